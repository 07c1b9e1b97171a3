//! JSON logs: whole, strict, silent about users' services, and one id for a tunnel everywhere.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Target, verified, wait};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Lines are written as things happen; a relay hears of a stream's end a moment after the nodes.
const LINES_LIMIT: Duration = Duration::from_secs(20);

/// A line of a log, each key once.
struct Line(BTreeMap<String, Value>);

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = Line;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line, A::Error> {
                let mut keys = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if keys.insert(key.clone(), value).is_some() {
                        return Err(serde::de::Error::custom(format!(
                            "the key `{key}` is there twice"
                        )));
                    }
                }
                Ok(Line(keys))
            }
        }
        input.deserialize_map(Once)
    }
}

impl Line {
    fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Reads a log strictly; a last line that is being written is left out.
fn read(log: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(log)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            let parsed: Line =
                serde_json::from_str(line).with_context(|| format!("{}: {line}", log.display()))?;
            for key in ["timestamp", "level", "target", "message"] {
                ensure!(
                    !parsed.text(key).is_empty(),
                    "{}: no `{key}`: {line}",
                    log.display()
                );
            }
            Ok(parsed)
        })
        .collect()
}

/// The tunnels that a log tells of, from their first line to their last.
fn tunnels(log: &Path) -> Result<BTreeSet<String>> {
    let lines = read(log)?;
    let told = |message: &str| -> BTreeSet<String> {
        let of = lines.iter().filter(|line| line.text("message") == message);
        of.map(|line| line.text("tunnel").to_owned()).collect()
    };
    Ok(&told("tunnel begins") & &told("tunnel ends"))
}

/// R-UI-03: one id names a tunnel in the logs of its consumer, its relay and its publisher; every
/// line of every daemon is one strict JSON object; names and addresses of users' services stay below
/// INFO.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_id_names_a_tunnel_in_the_logs_of_all_three() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("hidden-service", echo.address())?
        .argument("--log-format")
        .argument("json")
        .env("FAIRLEAD_LOG", "info,fairlead_node=debug,fairlead_worker=debug")
        .start()
        .await?;
    let listen = pool.listen("hidden-service")?;
    for seed in 0..5 {
        verified::echo_once(listen, seed, 1000).await?;
    }
    let logs = pool.dir().join("logs");
    wait::until("five tunnels in all three logs", LINES_LIMIT, || async {
        let mut sides = Vec::new();
        for side in [&["alpha"][..], &["beta"], &["local", "relay-1"]] {
            let mut seen = BTreeSet::new();
            for name in side {
                seen.append(&mut tunnels(&logs.join(format!("{name}.log")))?);
            }
            sides.push(seen);
        }
        let common = &(&sides[0] & &sides[1]) & &sides[2];
        ensure!(
            common.len() == 5,
            "{} at all three, {:?} each",
            common.len(),
            sides.iter().map(BTreeSet::len).collect::<Vec<_>>()
        );
        Ok(())
    })
    .await?;
    let target = echo.address().to_string();
    let mut lines_read = 0;
    for entry in std::fs::read_dir(&logs)? {
        let log = entry?.path();
        for line in read(&log)? {
            lines_read += 1;
            if line.text("level") == "DEBUG" {
                continue;
            }
            let text = serde_json::to_string(&line.0)?;
            for secret in ["hidden-service", target.as_str(), &listen.to_string()] {
                ensure!(
                    !text.contains(secret),
                    "{} tells of `{secret}`: {text}",
                    log.display()
                );
            }
        }
    }
    println!("{lines_read} lines");
    ensure!(lines_read > 30, "only {lines_read} lines");
    Ok(())
}

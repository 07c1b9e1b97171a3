//! A good node that comes while others misbehave: enrolled and running, with its times.

use crate::{Pool, binary, metrics::Scrape, pool, wait};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A newcomer that takes longer has failed, whatever the test's own limit.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long each part of joining took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// The command that enrols, from its start to its end.
    pub enrolled: Duration,
    /// The daemon, from its start to its session with the control plane and with a relay.
    pub connected: Duration,
}

/// A running node beside a pool's own; killed when dropped.
#[derive(Debug)]
pub struct Newcomer {
    daemon: Child,
    /// Its times.
    pub joined: Joined,
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Adds a node named `name` to the pool, enrols it and runs its daemon until it is connected. Its
/// link makes it need the pool's relays.
///
/// # Errors
/// When a part of it fails, or is not done within 30 s.
pub async fn join(pool: &Pool, name: &str) -> Result<Newcomer> {
    let answer = pool.cli(&["node", "add", name, "--json"])?.json()?;
    let text = |key: &str| {
        answer
            .get(key)
            .and_then(Value::as_str)
            .with_context(|| format!("no `{key}`: {answer}"))
    };
    let (token, command) = (text("token")?, text("install_command")?);
    let pin = command
        .split_once("--ca-pin ")
        .and_then(|(_, rest)| rest.split([' ', '\'', '"', '\n']).next())
        .context("no pin")?;
    let listen = crate::target::closed_port()?.to_string();
    let link = format!("{name}-link");
    let target = "127.0.0.1:9";
    let added = pool.cli(&[
        "link", "add", &link, "--from", name, "--to", "beta", "--target", target, "--listen", &listen,
    ])?;
    ensure!(added.code == Some(0), "{added:?}");

    let dir = pool.dir().join("newcomers").join(name);
    let dir_text = dir.to_str().context("path")?;
    let control = pool.control_address()?.to_string();
    let arguments = [
        "enrol",
        "node",
        "--control",
        &control,
        "--ca-pin",
        pin,
        "--dir",
        dir_text,
    ];
    let began = Instant::now();
    let enrolled = pool::run(&arguments, token, &[])?;
    ensure!(enrolled.code == Some(0), "{enrolled:?}");
    let took = began.elapsed();

    let log = std::fs::File::create(pool.dir().join("logs").join(format!("newcomer-{name}.log")))?;
    let metrics = crate::target::closed_port()?;
    let began = Instant::now();
    let daemon = Command::new(binary::fairlead()?)
        .args([
            "run",
            "node",
            "--dir",
            dir_text,
            "--metrics",
            &metrics.to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let mut newcomer = Newcomer {
        daemon,
        joined: Joined {
            enrolled: took,
            connected: Duration::ZERO,
        },
    };
    let url = format!("http://{metrics}/metrics");
    wait::until("the newcomer is connected", PATIENCE, || async {
        let scrape = Scrape::of(&url).await?;
        let value = |name| scrape.sum(name, &[]).unwrap_or(0.0);
        let (control, relays) = (
            value("fairlead_control_connected"),
            value("fairlead_hop_connected"),
        );
        ensure!(
            control >= 1.0 && relays >= 1.0,
            "control {control}, relays {relays}"
        );
        Ok(())
    })
    .await?;
    newcomer.joined.connected = began.elapsed();
    Ok(newcomer)
}

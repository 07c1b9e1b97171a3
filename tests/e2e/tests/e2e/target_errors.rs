//! F-08: a target that is down, unknown or silent gives its own code, in time, and leaks nothing.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::{Pool, Target, process, target, verified, wait};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The publisher gives a target 5 s; the rest is the way there and back, on a busy machine.
const SLOW_LIMIT: Duration = Duration::from_secs(8);

/// F-08: refused and unknown within a second.
const FAST_LIMIT: Duration = Duration::from_secs(1);

/// A node reports what it refused with its next status, every 10 s at the latest.
const SHOWN_LIMIT: Duration = Duration::from_secs(30);

const LINKS: [(&str, &str, Duration); 4] = [
    ("closed", "TARGET_REFUSED", FAST_LIMIT),
    ("unresolved", "TARGET_UNRESOLVED", FAST_LIMIT),
    ("no-socket", "TARGET_UNREACHABLE", FAST_LIMIT),
    ("silent", "TARGET_TIMEOUT", SLOW_LIMIT),
];

/// F-08, R-STR-07, R-ADM-05: one code each, told to the consumer; every descriptor comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_target_error_has_its_code_in_time_and_leaks_nothing() -> Result<()> {
    let (echo, hole) = (Target::echo().await?, Target::blackhole()?);
    let closed = target::closed_port()?.to_string();
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .to("closed", &closed)?
        .to("unresolved", "no-such-host.invalid:80")?
        .to("no-socket", "unix:/nonexistent/fairlead.sock")?
        .to("silent", hole.address())?
        .start()
        .await?;
    // Associations and whatever is made once exist before descriptors are counted.
    verified::echo_once(pool.listen("echo")?, 1, 100).await?;
    let file = pool.file()?;
    let mut daemons: Vec<u32> = file.relays.iter().map(|r| r.worker_pid).collect();
    daemons.extend(file.nodes.iter().map(|n| n.pid));
    let before: Vec<usize> = daemons
        .iter()
        .map(|&pid| process::descriptors(pid))
        .collect::<Result<_>>()?;
    let consumer = file.node("alpha")?.metrics.clone();

    for (link, code, limit) in LINKS {
        let rounds = if limit == FAST_LIMIT { 20 } else { 2 };
        let counted = Scrape::of(&consumer).await?.sum_of_label_value(code);
        for round in 0..rounds {
            let start = Instant::now();
            let ended = how_it_ends(pool.listen(link)?);
            let error = tokio::time::timeout(SLOW_LIMIT, ended)
                .await
                .with_context(|| format!("{link}: no end"))??;
            let took = start.elapsed();
            ensure!(took < limit, "{link}, round {round}: {took:?}");
            let error = error.with_context(|| format!("{link}: a clean end of a stream that never was"))?;
            ensure!(
                error.kind() == std::io::ErrorKind::ConnectionReset,
                "{link}: {error}"
            );
        }
        let total = Scrape::of(&consumer).await?.sum_of_label_value(code);
        ensure!(
            total - counted >= f64::from(rounds),
            "{link}: {code} counted {} times",
            total - counted
        );
    }
    verified::echo_once(pool.listen("echo")?, 2, 100).await?;

    // Each link says so to whoever looks at it.
    let rest = pool.rest()?;
    for (link, code, _) in LINKS {
        wait::until(&format!("link {link} shows {code}"), SHOWN_LIMIT, || async {
            let shown = rest.get(&format!("/v1/links/{link}")).await?;
            let refusal = shown.get("last_refusal").context("no refusal")?;
            ensure!(refusal.get("code").is_some_and(|c| c == code), "{shown}");
            Ok(())
        })
        .await?;
    }
    let healthy = rest.get("/v1/links/echo").await?;
    ensure!(
        healthy.get("last_refusal").is_none_or(Value::is_null),
        "{healthy}"
    );

    for (&pid, &before) in daemons.iter().zip(&before) {
        // A few may be connections that come and go by themselves.
        let limit = Duration::from_secs(10);
        let what = format!("descriptors of process {pid} ({before} before)");
        wait::until_true(&what, limit, || {
            process::descriptors(pid).is_ok_and(|now| now <= before + 4)
        })
        .await?;
    }
    Ok(())
}

/// Connects and waits for the end, before any byte; the error that it was, or none.
async fn how_it_ends(address: SocketAddr) -> Result<Option<std::io::Error>> {
    // A reset may be there before the connection is looked at for the first time.
    let mut stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) => return Ok(Some(error)),
    };
    let (received, error) = verified::receive_what_comes(&mut stream, 0).await?;
    ensure!(
        received.bytes == 0,
        "{} bytes of a stream that never was",
        received.bytes
    );
    Ok(error)
}

/// R-STR-07: a target that comes up later is reached; nothing remembers that it was down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_comes_up_is_reached_at_once() -> Result<()> {
    let address = target::closed_port()?;
    let pool = Pool::builder()
        .relays(0)
        .to("late", &address.to_string())?
        .start()
        .await?;
    ensure!(verified::echo_once(pool.listen("late")?, 1, 100).await.is_err());
    let _echo = Target::start_on(address, target::Behaviour::Echo).await?;
    verified::echo_once(pool.listen("late")?, 1, 100).await
}

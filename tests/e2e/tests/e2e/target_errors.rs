//! F-08: a target that is down, unknown, restarting or silent gives its own code, in time, and leaks
//! nothing.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::{Pool, Role, Target, process, target, verified, wait};
use serde_json::Value;
use std::fs;
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

/// A relay gives a publisher 10 s to ask for an endpoint, and an open is held for 3 s before.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(40);
/// The hold of an announced restart (R-ADM-03), the last round over the relays, and a busy machine.
const RESTART_LIMIT: Duration = Duration::from_secs(15 + 5);
/// What of that hold is left when the daemon has announced its end and is gone.
const RESTART_HELD_MIN: Duration = Duration::from_secs(8);

/// How often `code` was counted by the consumer, and by the relays for it.
async fn counted(pool: &Pool, code: &str) -> Result<(f64, f64)> {
    let file = pool.file()?;
    let consumer = Scrape::of(&file.node("alpha")?.metrics).await?;
    let labels = [("role", "consumer"), ("code", code)];
    let mut by_relays = 0.0;
    for relay in &file.relays {
        let scrape = Scrape::of(&relay.metrics).await?;
        by_relays += scrape
            .sum("fairlead_opens_refused_total", &[("code", code)])
            .unwrap_or(0.0);
    }
    let by_consumer = consumer.sum("fairlead_streams_refused_total", &labels);
    Ok((by_consumer.unwrap_or(0.0), by_relays))
}

/// The logs of the consumer and of a relay have a line with the code.
async fn is_logged(pool: &Pool, code: &str) -> Result<()> {
    let logs = pool.dir().join("logs");
    let relays = pool.file()?.relays;
    wait::until(&format!("log lines of {code}"), SHOWN_LIMIT, || async {
        let has = |name: &str, message: &str| -> Result<bool> {
            let text = fs::read_to_string(logs.join(format!("{name}.log")))?;
            Ok(text.lines().any(|l| l.contains(message) && l.contains(code)))
        };
        ensure!(
            has("alpha", "stream not opened; connection reset")?,
            "none of the consumer's"
        );
        for relay in &relays {
            if has(&relay.name, "open refused")? {
                return Ok(());
            }
        }
        anyhow::bail!("none of a relay's")
    })
    .await?;
    Ok(())
}

/// F-08, R-ADM-05 (endpoint unknown): a publisher that is there and does not publish what relay and
/// consumer know of is no restart to wait for: its relay says so within a second, for good, and leaks
/// nothing. When the publisher does publish it, connections go through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_its_publisher_does_not_know_is_refused_at_once() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let code = "UNKNOWN_ENDPOINT";
    // The publisher forgets a link: it comes back with the policy from before it, and nobody gives it
    // another.
    let state = pool.dir().join("nodes/beta/node.state");
    let before = fs::read(&state)?;
    let late = target::closed_port()?;
    let to = echo.address().to_string();
    let listen = late.to_string();
    let add = ["link", "add", "late", "--from", "alpha", "--to", "beta"];
    pool.cli(&[&add[..], &["--target", &to, "--listen", &listen]].concat())?
        .ok()?;
    wait::until("the new link echoes", SHOWN_LIMIT, || {
        verified::echo_once(late, 1, 100)
    })
    .await?;
    let control = process::stop(pool.pid(Role::Control)?)?;
    fs::write(&state, before)?;
    let old = pool.kill9(Role::Node("beta"))?;
    pool.back(Role::Node("beta"), old).await?;
    pool.until_echo("echo", SHOWN_LIMIT).await?;

    let begun = Instant::now();
    while counted(&pool, code).await?.0 == 0.0 {
        let end = tokio::time::timeout(SLOW_LIMIT, how_it_ends(late)).await;
        end.context("no end")??
            .context("a clean end of a stream that never was")?;
        ensure!(begun.elapsed() < UNKNOWN_LIMIT, "{code} was not told");
    }
    println!("told after {:?}", begun.elapsed());
    let alpha = pool.file()?.node("alpha")?.pid;
    let descriptors = process::descriptors(alpha)?;
    let (by_consumer, by_relays) = counted(&pool, code).await?;
    for round in 0..20 {
        let start = Instant::now();
        let error = how_it_ends(late).await?.context("a clean end")?;
        ensure!(
            start.elapsed() < FAST_LIMIT,
            "round {round}: {:?}",
            start.elapsed()
        );
        ensure!(error.kind() == std::io::ErrorKind::ConnectionReset, "{error}");
    }
    let (now_by_consumer, now_by_relays) = counted(&pool, code).await?;
    ensure!(now_by_consumer == by_consumer + 20.0, "{now_by_consumer}");
    ensure!(now_by_relays >= by_relays + 20.0, "{now_by_relays}");
    is_logged(&pool, code).await?;
    wait::until_true("descriptors come back", Duration::from_secs(10), || {
        process::descriptors(alpha).is_ok_and(|now| now <= descriptors + 4)
    })
    .await?;
    verified::echo_once(pool.listen("echo")?, 2, 100).await?;

    drop(control);
    wait::until("the link echoes again", SHOWN_LIMIT, || {
        verified::echo_once(late, 3, 100)
    })
    .await?;
    Ok(())
}

/// R-ADM-03, F-08 (endpoint restarting): a connection that begins while the publisher restarts, and
/// whose publisher does not come back, is held for the 15 s of the announcement and then refused with
/// the restart's code; the next daemon is reached at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_does_not_end_has_its_code() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let code = "ENDPOINT_RESTARTING";
    let link = pool.listen("echo")?;
    verified::echo_once(link, 1, 1000).await?;
    let beta = pool.pid(Role::Node("beta"))?;
    // Its manager starts nothing meanwhile.
    let manager = process::stop(pool.up_pid())?;
    process::terminate(beta)?;
    wait::until_true("the publisher ends", SHOWN_LIMIT, || !process::alive(beta)).await?;
    let start = Instant::now();
    let error = tokio::time::timeout(RESTART_LIMIT, how_it_ends(link))
        .await
        .context("no end")??
        .context("a clean end of a stream that never was")?;
    println!("held for {:?}: {error}", start.elapsed());
    ensure!(start.elapsed() >= RESTART_HELD_MIN, "{:?}", start.elapsed());
    let (by_consumer, by_relays) = counted(&pool, code).await?;
    ensure!(by_consumer == 1.0, "counted {by_consumer} times");
    ensure!(by_relays >= 1.0, "no relay refused with {code}");
    is_logged(&pool, code).await?;
    drop(manager);
    pool.back(Role::Node("beta"), beta).await?;
    pool.until_echo("echo", SHOWN_LIMIT).await?;
    Ok(())
}

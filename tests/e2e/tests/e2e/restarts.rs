//! Daemons that are told to end and come back: what is announced is waited for.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Ends, Pool, Role, Target, process, verified};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A service manager's restart of a daemon that had run well, on a busy machine.
const LIMIT: Duration = Duration::from_secs(25);
/// A run shorter than this is followed by a delay (the restart rule's good run, and a little).
const GOOD_RUN: Duration = Duration::from_secs(6);
/// A daemon has heard a signal and told its relays after this, also on a busy machine.
const ANNOUNCED: Duration = Duration::from_millis(300);

async fn until_ran_well(pool: &Pool, role: Role<'_>) -> Result<()> {
    let age = process::age(pool.pid(role)?)?;
    tokio::time::sleep(GOOD_RUN.saturating_sub(age)).await;
    Ok(())
}

/// R-ADM-03, F-08 (endpoint restarting): connections that begin while the publisher's daemon restarts
/// are held, and none fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_held_while_the_publisher_restarts_and_none_fails() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let link = pool.listen("echo")?;
    for round in 0..2 {
        until_ran_well(&pool, Role::Node("beta")).await?;
        verified::echo_once(link, 1, 1000).await?;
        let old = pool.pid(Role::Node("beta"))?;
        process::terminate(old)?;
        let began = Instant::now();
        // What reaches the daemon before it has heard the signal is a live stream, and ends with it.
        while process::alive(old) && began.elapsed() < ANNOUNCED {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut connections = JoinSet::new();
        let mut back = None;
        // They begin all the time, until a second after the next daemon is there.
        while back.is_none_or(|at: Instant| at.elapsed() < Duration::from_secs(1)) {
            connections.spawn(async move {
                let start = Instant::now();
                verified::echo_once(link, round, 500)
                    .await
                    .with_context(|| format!("begun {:?} after the stop", start - began))?;
                anyhow::Ok(start.elapsed())
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
            ensure!(began.elapsed() < LIMIT, "the daemon is not back");
            if back.is_none()
                && pool
                    .pid(Role::Node("beta"))
                    .is_ok_and(|pid| pid != old && process::alive(pid))
            {
                back = Some(Instant::now());
            }
        }
        let (mut longest, mut count) = (Duration::ZERO, 0);
        while let Some(ended) = connections.join_next().await {
            longest = longest.max(ended??);
            count += 1;
        }
        println!("round {round}: {count} connections, the longest waited {longest:?}");
    }
    Ok(())
}

/// How a socket ends whose stream's daemon is gone: not by a clean end.
async fn ends_by_reset(what: &str, stream: &mut TcpStream) -> Result<()> {
    let mut buffer = [0; 4096];
    let end = async {
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => anyhow::bail!("{what}: a clean end"),
                Ok(_) => {}
                Err(error) => return Ok(error.kind()),
            }
        }
    };
    let kind = tokio::time::timeout(LIMIT, end)
        .await
        .with_context(|| format!("{what}: no end"))??;
    ensure!(kind == ErrorKind::ConnectionReset, "{what}: {kind}");
    Ok(())
}

/// R-STR-02, R-ADM-04: each daemon restarts under traffic. Its live streams end by a reset at both
/// sockets, never by a clean end; new ones carry their bytes at once, and no byte of an old stream
/// appears in a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_daemons_restart_in_turn_under_traffic() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("link", &ends.address())?
        .start()
        .await?;
    let link = pool.listen("link")?;
    for (round, name) in ["beta", "alpha", "beta", "alpha"].into_iter().enumerate() {
        let seed = 60 + round as u64;
        let mut live = Vec::new();
        for _ in 0..5 {
            let (mut near, mut far) = ends.open(link).await?;
            let (sent, received) = tokio::try_join!(
                verified::send(&mut near, seed, 300_000),
                verified::receive(&mut far, seed, 300_000)
            )?;
            ensure!(sent == received.sha256);
            live.push((near, far));
        }
        until_ran_well(&pool, Role::Node(name)).await?;
        let old = pool.pid(Role::Node(name))?;
        process::terminate(old)?;
        for (near, far) in &mut live {
            ends_by_reset(&format!("round {round}, {name}: the application"), near).await?;
            ends_by_reset(&format!("round {round}, {name}: the target"), far).await?;
        }
        pool.back(Role::Node(name), old).await?;
        let again = Instant::now();
        // A consumer's daemon that is back listens a moment later.
        let (mut near, mut far) = loop {
            match ends.open(link).await {
                Ok(both) => break both,
                Err(error) if again.elapsed() > LIMIT => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let seed = 70 + round as u64;
        let (sent, received) = tokio::try_join!(
            verified::send(&mut near, seed, 1_000_000),
            verified::receive(&mut far, seed, 1_000_000)
        )?;
        ensure!(sent == received.sha256, "round {round}: the hashes differ");
        println!(
            "round {round}: {name} restarted, a new stream after {:?}",
            again.elapsed()
        );
    }
    Ok(())
}

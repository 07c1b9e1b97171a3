//! Busy is not dead (F-06, R-ADM-02): who does not answer keeps its connection while its host does.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Ends, Estate, Pool, Role, Target, process, verified, wait};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;

const PUSHED: u64 = 8 << 20;
/// More than the windows and the sockets of a whole path hold: 4 MiB at most in the stream, and
/// what two kernels grow their buffers to.
const MORE_THAN_FITS: u64 = 256 << 20;
/// As F-06 has it.
const STOPPED_FOR: Duration = Duration::from_secs(20);
/// All bytes are there this long after the stop.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// The sessions that relays have seen so far, and those that are up.
async fn sessions(pool: &Pool) -> Result<(f64, f64)> {
    let (mut opened, mut up) = (0.0, 0.0);
    for relay in pool.file()?.relays {
        let metrics = Scrape::of(&relay.metrics).await?;
        opened += metrics
            .sum("fairlead_hop_sessions_opened_total", &[])
            .unwrap_or_default();
        up += metrics.sum("fairlead_hop_sessions", &[]).unwrap_or_default();
    }
    Ok((opened, up))
}

/// F-06, R-ADM-02: a publisher that is stopped for 20 s with 8 MiB pushed at it, one stream's target
/// reading, another's not: same streams, same sessions, equal bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_publisher_keeps_its_connection_and_its_streams() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("push", &ends.address())?
        .start()
        .await?;
    let link = pool.listen("push")?;
    let (reading, mut idle) = (ends.open(link).await?, ends.open(link).await?);
    // Windows are full before the stop: nothing moves on this stream until its target reads.
    let (idle_near, mut idle_far) = (&mut idle.0, idle.1);
    let full = verified::send(idle_near, 52, MORE_THAN_FITS);
    let filled = tokio::time::timeout(Duration::from_secs(3), full).await;
    ensure!(
        filled.is_err(),
        "{MORE_THAN_FITS} bytes fit into windows that nobody reads"
    );
    // What was written is somewhere below: it is read to the end of what comes afterwards.
    let before = sessions(&pool).await?;

    let stopped = process::stop(pool.pid(Role::Node("beta"))?)?;
    let began = Instant::now();
    let (mut near, mut far) = reading;
    let sending = tokio::spawn(async move {
        let hash = verified::send(&mut near, 51, PUSHED).await?;
        anyhow::Ok((hash, near))
    });
    let receiving = tokio::spawn(async move { verified::receive(&mut far, 51, PUSHED).await });
    tokio::time::sleep(STOPPED_FOR).await;
    let during = sessions(&pool).await?;
    drop(stopped);
    let both = async { anyhow::Ok((sending.await??, receiving.await??)) };
    let ((sent, _near), received) = tokio::time::timeout(AFTERWARDS, both)
        .await
        .context("not all bytes arrived")??;
    println!(
        "stopped for {:?}, all there after {:?}",
        STOPPED_FOR,
        began.elapsed()
    );
    ensure!(sent == received.sha256, "the hashes differ");
    let first = tokio::time::timeout(AFTERWARDS, verified::receive(&mut idle_far, 52, 1 << 20));
    first
        .await
        .context("the full stream")?
        .context("the full stream")?;
    let after = sessions(&pool).await?;
    println!("sessions (opened, up): {before:?}, {during:?} while stopped, {after:?}");
    ensure!(
        during.1 == before.1,
        "a relay dropped a daemon whose host answers"
    );
    ensure!(after.0 == before.0, "{} new sessions", after.0 - before.0);
    Ok(())
}

/// F-06: a publisher that gets a tenth of a processor keeps its session and its stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starved_publisher_keeps_its_connection() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("push", &ends.address())?
        .start()
        .await?;
    let (mut near, mut far) = ends.open(pool.listen("push")?).await?;
    let before = sessions(&pool).await?;
    let beta = pool.pid(Role::Node("beta"))?;
    let sending = tokio::spawn(async move { verified::send(&mut near, 53, PUSHED).await.map(|h| (h, near)) });
    let receiving = tokio::spawn(async move { verified::receive(&mut far, 53, PUSHED).await });
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        let stopped = process::stop(beta)?;
        tokio::time::sleep(Duration::from_millis(180)).await;
        drop(stopped);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let both = async { anyhow::Ok((sending.await??, receiving.await??)) };
    let ((sent, _near), received) = tokio::time::timeout(AFTERWARDS, both)
        .await
        .context("not all bytes arrived")??;
    ensure!(sent == received.sha256, "the hashes differ");
    let after = sessions(&pool).await?;
    ensure!(
        after == before,
        "sessions (opened, up): {before:?}, then {after:?}"
    );
    Ok(())
}

/// R-ADM-02: a daemon whose host has vanished is dropped after about 3.5 s, with its registration; a
/// relay that died is known to its nodes at once, although nothing comes back in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vanished_host_is_dropped_in_time_and_a_dead_worker_is_known_at_once() -> Result<()> {
    let estate = Estate::new(1)?;
    let echo = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(echo.address()).await?;
    let limit = Duration::from_secs(25);
    estate.until_connected(limit).await?;
    let [relay] = &estate.relays[..] else {
        anyhow::bail!("not one relay");
    };
    estate.beta.cut();
    let cut = Instant::now();
    let gone = || async {
        let sessions = relay.count("fairlead_hop_sessions").await?;
        ensure!(sessions == 1.0, "{sessions} sessions");
        anyhow::Ok(())
    };
    wait::until("beta is dropped", limit, gone).await?;
    let took = cut.elapsed();
    let endpoints = relay.count("fairlead_registrations").await?;
    println!("a vanished host is dropped after {took:?}");
    ensure!(endpoints == 0.0, "{endpoints} endpoints of a daemon that is gone");
    ensure!(
        (Duration::from_millis(1500)..Duration::from_secs(6)).contains(&took),
        "dropped after {took:?}"
    );
    estate.beta.weather(fairlead_testkit::Weather::clear());
    estate.until_connected(limit).await?;

    // No supervisor, so that no successor answers in the dead worker's place.
    let worker = relay.pid()?;
    relay.kill_daemon()?;
    process::kill9(worker)?;
    let killed = Instant::now();
    let known = || async {
        for node in [&estate.alpha, &estate.beta] {
            let up = node.count("fairlead_hop_connected").await?;
            ensure!(up == 0.0, "{} is on {up} relays", node.name);
        }
        anyhow::Ok(())
    };
    wait::until("the dead relay is known", limit, known).await?;
    println!("a dead worker is known after {:?}", killed.elapsed());
    ensure!(
        killed.elapsed() < Duration::from_secs(1),
        "{:?}",
        killed.elapsed()
    );
    let mut held = estate.alpha.host.connect(estate.listen()?)?;
    // Nothing comes of it, and it is told so within the hold of 3 s.
    let mut byte = [0];
    let ended = tokio::time::timeout(Duration::from_secs(8), held.read(&mut byte)).await;
    ensure!(matches!(ended, Ok(Err(_))), "{ended:?}");
    Ok(())
}

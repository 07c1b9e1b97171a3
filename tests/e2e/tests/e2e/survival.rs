//! Streams that survive their relay: two sockets that notice nothing of a killed or stopped worker.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Ends, Pool, Postgres, Role, Target, Workload, process, target, verified};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const GIB: u64 = 1 << 30;
/// Between two kills: one worker of two dies at most every 8 s, which is no crash loop.
const KILL_EVERY: Duration = Duration::from_secs(4);
/// F-04: no gap is longer.
const GAP_MAX: Duration = Duration::from_secs(3);
/// A relay whose process is stopped is left in about 3 s; the machine may be busy. It goes on after 6 s:
/// a stream that had waited for it would show a gap of that.
const FROZEN_GAP_MAX: Duration = Duration::from_secs(5);

/// F-04, R-STR-01: a gibibyte both ways at once while the carrying worker is killed every few seconds:
/// hashes equal, no socket error, no long gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_gibibyte_each_way_survives_kills() -> Result<()> {
    let behaviour = Behaviour::BothWays {
        send: 31,
        expect: 32,
        len: GIB,
    };
    let target = Target::start(behaviour).await?;
    let pool = Pool::builder()
        .relays(2)
        .to("bulk", target.address())?
        .start()
        .await?;
    let mut stream = TcpStream::connect(pool.listen("bulk")?).await?;
    let start = Instant::now();
    let (mut read, mut write) = stream.split();
    let traffic = async {
        let sending = async {
            let hash = verified::send(&mut write, 32, GIB).await?;
            write.shutdown().await.context("shutdown")?;
            Ok(hash)
        };
        let (_, received) = tokio::try_join!(sending, verified::receive_to_end(&mut read, 31, GIB))?;
        Ok(received)
    };
    let told = |relay: &str| println!("killed the worker of {relay}");
    let (received, kills) = pool.under_kills(KILL_EVERY, traffic, told).await?;
    let outcome = target.outcome(Duration::from_secs(20)).await?;
    ensure!(outcome.error.is_none() && outcome.received == GIB, "{outcome:?}");
    ensure!(received.bytes == GIB);
    println!(
        "{kills:?}, {:.1} s, longest gap {:?}",
        start.elapsed().as_secs_f64(),
        received.longest_gap
    );
    ensure!(kills.count >= 1, "too fast to be killed");
    ensure!(kills.moves >= kills.count as u64, "{kills:?}");
    ensure!(
        received.longest_gap < GAP_MAX,
        "a gap of {:?}",
        received.longest_gap
    );
    Ok(())
}

/// `pgbench` lives through kill -9 of the carrying worker, again and again, and so does a transaction
/// that is open throughout: no client aborts, and the database holds what the clients were told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_pgbench_survives_kills() -> Result<()> {
    let postgres = Postgres::start().await?;
    let listen = target::closed_port()?;
    let pool = Pool::builder()
        .relays(2)
        .link_of_class(
            "db",
            &listen.to_string(),
            &postgres.address().to_string(),
            "database",
        )
        .start()
        .await?;
    let workload = Workload::start(&postgres, listen, 25)?;
    let traffic = async { tokio::task::spawn_blocking(|| workload.finish()).await? };
    let told = |relay: &str| println!("killed the worker of {relay}");
    let (ended, kills) = pool.under_kills(KILL_EVERY, traffic, told).await?;
    println!("{kills:?}\n{}", ended.report);
    ensure!(kills.count >= 3, "{kills:?}");
    postgres.holds_what_was_told(&ended)
}

/// A worker that is stopped keeps its sockets, and its kernel goes on acknowledging: streams leave it
/// in about 3 s. When it goes on, they do not notice either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_left() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(2)
        .to("echo", echo.address())?
        .start()
        .await?;
    let mut stream = TcpStream::connect(pool.listen("echo")?).await?;
    stream.set_nodelay(true)?;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let talk = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        for round in 0_u64.. {
            if *stopping.borrow() {
                break;
            }
            let asked = Instant::now();
            stream.write_u64(round).await?;
            ensure!(stream.read_u64().await? == round);
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(longest)
    });
    for _ in 0..3 {
        let relay = pool.carrying().await?;
        println!("stopping the worker of {relay}");
        let stopped = process::stop(pool.pid(Role::Worker(&relay))?)?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(stopped);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    stop.send_replace(true);
    let longest = talk.await??;
    let moves = pool.node_count("alpha", "fairlead_stream_moves_total").await?;
    println!("longest gap {longest:?}, {moves} moves");
    ensure!(moves >= 3.0, "{moves} moves");
    ensure!(longest < Duration::from_secs(4), "a gap of {longest:?}");
    Ok(())
}

/// A stopped worker is left as well by a stream that talks one way only, whichever way it is: its far
/// end has nothing to miss, and nothing of its own that could stay unacknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_left_by_a_stream_that_talks_one_way() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(2)
        .to("oneway", &ends.address())?
        .start()
        .await?;
    for from_consumer in [true, false] {
        let (near, far) = ends.open(pool.listen("oneway")?).await?;
        let (mut from, mut to) = if from_consumer { (near, far) } else { (far, near) };
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let sending = tokio::spawn(async move {
            let (mut offset, piece) = (0, 4096);
            while !*stopping.borrow() {
                let bytes = verified::Pattern::new(41).bytes(offset, piece);
                from.write_all(&bytes).await?;
                offset += piece as u64;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            from.shutdown().await?;
            // The other way stays open until all has arrived.
            anyhow::Ok((offset, from))
        });
        let receiving = tokio::spawn(async move {
            let (received, error) = verified::receive_what_comes(&mut to, 41).await?;
            match error {
                None => Ok((received, to)),
                Some(error) => Err(error).with_context(|| format!("after {} bytes", received.bytes)),
            }
        });
        let relay = pool.carrying().await?;
        println!("stopping the worker of {relay}; the consumer talks: {from_consumer}");
        let stopped = process::stop(pool.pid(Role::Worker(&relay))?)?;
        tokio::time::sleep(Duration::from_secs(6)).await;
        drop(stopped);
        stop.send_replace(true);
        let (sent, _from) = sending.await??;
        let (received, _to) = receiving.await??;
        println!("{sent} bytes, longest gap {:?}", received.longest_gap);
        ensure!(received.bytes == sent, "{} of {sent} bytes", received.bytes);
        ensure!(
            received.longest_gap < FROZEN_GAP_MAX,
            "a gap of {:?}",
            received.longest_gap
        );
    }
    Ok(())
}

/// R-NOD-01, R-UPD-08: the only relay's worker is killed; its streams wait for it and go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_relay_is_waited_for() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("echo", echo.address())?
        .start()
        .await?;
    let mut stream = TcpStream::connect(pool.listen("echo")?).await?;
    let mut gaps = Vec::new();
    for round in 0..3 {
        verified::echo_on(&mut stream, round, 1_000_000).await?;
        let old = pool.kill9(Role::Worker("local"))?;
        let killed = Instant::now();
        verified::echo_on(&mut stream, round, 1000)
            .await
            .context("after the kill")?;
        gaps.push(killed.elapsed());
        pool.back(Role::Worker("local"), old).await?;
    }
    println!("gaps {gaps:?}");
    pool.until_echo("echo", Duration::from_secs(5)).await?;
    Ok(())
}

//! F-03: a stream whose reader sleeps costs its window, and nobody else anything.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Pool, Target, process, verified};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A stream's window (4 MiB at most) at each end, the carrier's buffers, and what 50 busy streams and
/// an allocator cost beside it.
const GROWTH_MAX: u64 = 64 << 20;

/// F-03, R-STR-04: no request of 50 others takes a second while one reader sleeps for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sleeping_reader_stalls_nobody_and_costs_its_window() -> Result<()> {
    let (push, echo) = (
        Target::start(Behaviour::Push { seed: 8 }).await?,
        Target::echo().await?,
    );
    // One relay, one session: whatever the sleeper blocks, the others would share.
    let pool = Pool::builder()
        .relays(0)
        .to("push", push.address())?
        .to("echo", echo.address())?
        .start()
        .await?;
    let echoing = pool.listen("echo")?;
    let file = pool.file()?;
    let mut daemons: Vec<u32> = file.relays.iter().map(|r| r.worker_pid).collect();
    daemons.extend(file.nodes.iter().map(|n| n.pid));
    let before: Vec<u64> = daemons
        .iter()
        .map(|&pid| process::resident_bytes(pid))
        .collect::<Result<_>>()?;

    let mut sleeper = TcpStream::connect(pool.listen("push")?).await?;
    verified::receive(&mut sleeper, 8, 1000).await?;
    let end = Instant::now() + Duration::from_secs(10);
    let mut others = JoinSet::new();
    for number in 0..50 {
        others.spawn(async move {
            let mut stream = TcpStream::connect(echoing).await.context("connect")?;
            let mut longest = Duration::ZERO;
            let mut requests = 0_u32;
            while Instant::now() < end {
                let start = Instant::now();
                verified::echo_on(&mut stream, number, 2000).await?;
                longest = longest.max(start.elapsed());
                requests += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok((longest, requests))
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(result) = others.join_next().await {
        let (one, requests) = result??;
        ensure!(requests > 20, "only {requests} requests in 10 s");
        longest = longest.max(one);
    }
    println!("longest request beside the sleeper: {longest:?}");
    ensure!(longest < Duration::from_secs(1), "a request took {longest:?}");
    for (&pid, before) in daemons.iter().zip(&before) {
        let growth = process::resident_bytes(pid)?.saturating_sub(*before);
        ensure!(growth < GROWTH_MAX, "process {pid} grew by {growth} bytes");
    }
    // The sleeper wakes: nothing of its stream is missing.
    verified::receive_on(&mut sleeper, 8, 1000, 30_000_000).await?;
    Ok(())
}

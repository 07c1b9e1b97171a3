//! Bulk: one stream, a gibibyte each way at once.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Pool, Target, process, verified};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const GIB: u64 = 1 << 30;

/// What a daemon may hold beyond its rest for one stream in full flight: a window each way of 4 MiB
/// at most, and as much again in buffers of the carrier. Far below the gibibyte that passes.
const GROWTH_MAX: u64 = 96 << 20;

/// R-STR-04: buffers are bounded whatever passes; every byte once, in order, both ways at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_gibibyte_each_way_at_once_arrives_whole() -> Result<()> {
    let behaviour = Behaviour::BothWays {
        send: 21,
        expect: 22,
        len: GIB,
    };
    let target = Target::start(behaviour).await?;
    let pool = Pool::builder()
        .relays(1)
        .to("bulk", target.address())?
        .start()
        .await?;
    let file = pool.file()?;
    let mut daemons: Vec<u32> = file.relays.iter().map(|r| r.worker_pid).collect();
    daemons.extend(file.nodes.iter().map(|n| n.pid));
    let before = resident(&daemons)?;

    let start = Instant::now();
    let mut stream = TcpStream::connect(pool.listen("bulk")?).await?;
    let (mut read, mut write) = stream.split();
    let sending = async {
        let hash = verified::send(&mut write, 22, GIB).await?;
        write.shutdown().await.context("shutdown")?;
        Ok(hash)
    };
    let (_sent, received) = tokio::try_join!(sending, verified::receive_to_end(&mut read, 21, GIB))?;
    let outcome = target.outcome(Duration::from_secs(10)).await?;
    ensure!(outcome.error.is_none() && outcome.received == GIB, "{outcome:?}");
    ensure!(received.bytes == GIB);
    let rate = 2.0 * GIB as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("{rate:.0} MB/s both ways, longest gap {:?}", received.longest_gap);
    ensure!(
        received.longest_gap < Duration::from_secs(1),
        "a gap of {:?}",
        received.longest_gap
    );

    for (daemon, (before, after)) in daemons.iter().zip(before.iter().zip(resident(&daemons)?)) {
        let growth = after.saturating_sub(*before);
        ensure!(growth < GROWTH_MAX, "process {daemon} grew by {growth} bytes");
    }
    Ok(())
}

fn resident(pids: &[u32]) -> Result<Vec<u64>> {
    pids.iter().map(|&pid| process::resident_bytes(pid)).collect()
}

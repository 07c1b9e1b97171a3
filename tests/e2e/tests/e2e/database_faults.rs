//! A database's clients live through everything that happens to relays.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Estate, Postgres, Weather, Workload, process};
use std::time::{Duration, Instant};

/// All faults, and room on a busy machine.
const WORKLOAD_SECONDS: u32 = 35;
/// How long a host stays cut off: longer than any stream stays with it.
const CUT: Duration = Duration::from_secs(5);
/// Until nodes are back on a relay (R-NOD-01: they try at least every 15 s).
const CONNECTED_LIMIT: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The carrying worker dies of SIGKILL.
    Killed,
    /// Nothing passes to or from its host.
    CutOff,
    /// It is asked to end: it tells its nodes first.
    PlannedMove,
}

/// R-STR-01, R-STR-03, R-GEN-04: `pgbench` and an open transaction live through kill -9 of the carrying
/// worker, its host cut off and a planned move, with the control plane alive and dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_pgbench_survives_kill_cut_and_planned_move_without_control_plane_too() -> Result<()> {
    let estate = Estate::new(3)?;
    let postgres = estate.beta.host.block_on(Postgres::start())?;
    estate.build(&postgres.address().to_string()).await?;
    let listen = estate.listen()?;
    let start = || Workload::start(&postgres, listen, WORKLOAD_SECONDS);
    let workload = estate.alpha.host.run(start)??;
    let began = Instant::now();
    for control_lives in [true, false] {
        if !control_lives {
            estate.kill_control()?;
        }
        for fault in [Fault::Killed, Fault::CutOff, Fault::PlannedMove] {
            estate.until_connected(CONNECTED_LIMIT).await?;
            let relay = estate.carrying().await?;
            let at = began.elapsed().as_secs_f64();
            println!(
                "{at:.1} s: {fault:?} at {}, control plane lives: {control_lives}",
                relay.name
            );
            let old = relay.pid()?;
            match fault {
                Fault::Killed => process::kill9(old)?,
                Fault::PlannedMove => process::terminate(old)?,
                Fault::CutOff => {
                    relay.cut();
                    tokio::time::sleep(CUT).await;
                    relay.weather(Weather::clear());
                    continue;
                }
            }
            relay.back(old).await?;
        }
    }
    ensure!(workload.runs(), "it ended before all faults");
    let ended = tokio::task::spawn_blocking(|| workload.finish()).await??;
    let moves = estate.alpha.count("fairlead_stream_moves_total").await?;
    println!("{moves} moves\n{}", ended.report);
    // Nine connections, six faults: each carried some of them.
    ensure!(moves >= 6.0, "{moves} moves");
    let holds = || postgres.holds_what_was_told(&ended);
    estate.beta.host.run(holds)?.context("the database")
}

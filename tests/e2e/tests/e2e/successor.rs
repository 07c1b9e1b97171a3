//! The wrong successor: where the streams of a dead relay go.

use crate::storm::{STREAMS, Streams};
use anyhow::{Result, ensure};
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Estate, Target, Weather, process, wait};
use std::time::{Duration, Instant};

/// F-07: the dead relay's streams go to the slow one that lives, none to the one that the daemons have
/// never heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_no_stream_goes_to_a_relay_that_never_answered() -> Result<()> {
    process::raise_own_descriptors()?;
    let estate = Estate::new(3)?;
    let echo = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(echo.address()).await?;
    let [first, slow, unproven] = &estate.relays[..] else {
        anyhow::bail!("not three relays");
    };
    slow.weather(Weather::clear().delay(Duration::from_millis(300)));
    unproven.cut();
    // Daemons that start now have never heard of it.
    for node in [&estate.alpha, &estate.beta] {
        node.stop()?;
        estate.start(node)?;
    }
    let known = || async {
        for node in [&estate.alpha, &estate.beta] {
            let up = node.count("fairlead_hop_connected").await?;
            ensure!(up == 2.0, "{} is on {up} relays", node.name);
        }
        anyhow::Ok(())
    };
    wait::until("both nodes are on two relays", Duration::from_secs(30), known).await?;
    let refused = unproven.count("fairlead_opens_admitted_total").await?;

    let streams = Streams::open(estate.listen()?, Some(&estate.alpha.host)).await?;
    let carried = first.count("fairlead_live_tunnels").await?;
    println!("{carried} tunnels on {}, of {STREAMS} streams", first.name);
    streams.begin();
    first.cut();
    let cut = Instant::now();
    let all = || async {
        let here = slow.count("fairlead_live_tunnels").await?;
        ensure!(here >= STREAMS as f64, "{here} tunnels on {}", slow.name);
        anyhow::Ok(())
    };
    wait::until("all on the slow relay", Duration::from_secs(30), all).await?;
    println!("all on {} after {:?}", slow.name, cut.elapsed());
    let attached = || async {
        let suspended = estate.alpha.count("fairlead_streams_suspended").await?;
        ensure!(suspended == 0.0, "{suspended} streams without a leg");
        anyhow::Ok(())
    };
    wait::until("every stream has a leg", Duration::from_secs(30), attached).await?;
    println!("longest request {:?}", streams.longest());
    let opens = unproven.count("fairlead_opens_admitted_total").await?;
    ensure!(
        opens == refused,
        "{} streams were sent to the unproven relay",
        opens - refused
    );
    streams.finish().await?;
    Ok(())
}

//! Hosts of their own, joined by bad wires: what `up` does on one machine, done by hand as an admin
//! does it. The two nodes have no way to each other but the relay.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::net::Side;
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, Weather, verified, wait};
use std::net::SocketAddr;
use std::time::Duration;

/// A node tries again after 15 s at most (R-NOD-01); the rest is handshakes over a bad wire.
const BACK_LIMIT: Duration = Duration::from_secs(20);
/// How often a link flaps; the number is no multiple of the prime that orders the gaps.
const FLAPS: u64 = 60;
/// F-05: a second, and what a busy machine adds.
const REACHED_LIMIT: Duration = Duration::from_secs(2);
/// How long each cut lasts.
const CUT: Duration = Duration::from_secs(3);

/// One good connection from an application on alpha's host.
async fn echo(estate: &Estate, seed: u64, len: u64) -> Result<()> {
    let mut stream = estate.alpha.host.connect(estate.listen()?)?;
    verified::echo_on(&mut stream, seed, len).await
}

async fn echo_within(estate: &Estate, what: &str, limit: Duration) -> Result<()> {
    let ((), took) = wait::until(what, limit, || async {
        tokio::time::timeout(Duration::from_secs(4), echo(estate, 7, 1000)).await?
    })
    .await?;
    println!("{what}: {took:?}");
    Ok(())
}

/// R-GEN-02, R-NOD-01: nodes need an outbound way to their relay and no other; bytes are whole over
/// wires with delay and loss; a wire that was cut, one way or both, or unplugged, heals by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_on_hosts_of_their_own_reach_each_other_over_bad_wires() -> Result<()> {
    let estate = Estate::new(1)?;
    let (alpha, beta) = (&estate.alpha, &estate.beta);
    let target = Target::start_in(&beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    let past_the_relay = SocketAddr::from((beta.wire.address(Side::A), 22));
    let between = alpha
        .host
        .run(|| std::net::TcpStream::connect_timeout(&past_the_relay, Duration::from_millis(300)).is_ok())?;
    ensure!(!between, "alpha has a way to beta past the relay");

    let bad = Weather::clear()
        .delay(Duration::from_millis(10))
        .jitter(Duration::from_millis(2))
        .loss(0.005);
    alpha.weather(bad);
    beta.weather(bad);
    echo(&estate, 1, 5_000_000)
        .await
        .context("over 10 ms and 0.5 % loss")?;
    for wire in [&alpha.wire, &beta.wire] {
        let counts = wire.counts(Side::A);
        ensure!(
            counts.lost > 0 && counts.passed > 1000,
            "the wire did nothing: {counts:?}"
        );
    }
    alpha.weather(Weather::clear());
    beta.weather(Weather::clear());

    // Neither cut may outlast its end: first what beta says, then what it hears, then the plug.
    for (side, what) in [(Side::A, "be heard"), (Side::B, "hear")] {
        beta.wire.set(side, Weather::clear().cut());
        tokio::time::sleep(CUT).await;
        beta.wire.set(side, Weather::clear());
        echo_within(&estate, &format!("after beta could not {what}"), BACK_LIMIT).await?;
    }
    alpha.wire.link_down(&alpha.host)?;
    tokio::time::sleep(CUT).await;
    alpha.wire.link_up(&alpha.host)?;
    // What a pulled plug takes with it is the route.
    let gateway = alpha.wire.address(Side::B);
    alpha.host.ip(&format!("route replace default via {gateway}"))?;
    echo_within(&estate, "after the plug was pulled", BACK_LIMIT).await
}

/// F-05, R-ADM-04: a node's link flaps, 0 to 300 ms each time: its endpoint is registered exactly once
/// and reached within a second, every time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_on_a_flapping_link_is_registered_once_and_reached() -> Result<()> {
    let estate = Estate::new(1)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    let [relay] = &estate.relays[..] else {
        anyhow::bail!("not one relay");
    };
    let mut longest = Duration::ZERO;
    // Every length once, in no order.
    for round in 0..FLAPS {
        let gap = Duration::from_millis(round * 7919 % FLAPS * 300 / (FLAPS - 1));
        estate.beta.cut();
        tokio::time::sleep(gap).await;
        estate.beta.weather(Weather::clear());
        let healed = std::time::Instant::now();
        tokio::time::timeout(BACK_LIMIT, echo(&estate, round, 1000))
            .await
            .with_context(|| format!("round {round}, after {gap:?}: not reached"))??;
        longest = longest.max(healed.elapsed());
        let endpoints = relay.count("fairlead_registrations").await?;
        ensure!(endpoints == 1.0, "round {round}: {endpoints} registrations");
    }
    println!("{FLAPS} flaps, reached after {longest:?} at most");
    ensure!(longest < REACHED_LIMIT, "reached after {longest:?}");
    Ok(())
}

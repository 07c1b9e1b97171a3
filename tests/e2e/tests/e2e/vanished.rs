//! The relay's host is gone from one instant to the next: nothing answers, nothing refuses.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, PingPong, Weather, wait};
use serde_json::Value;
use std::time::Duration;

const EVEN_LIMIT: Duration = Duration::from_secs(30);
/// Bytes without an acknowledgement are suspicious after 250 ms; the aim for the move is 1 s. The
/// liveness connection's verdict would take 2 s and more.
const GAP_MAX: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 6;
/// Nodes miss a host after 4 s, and report it.
const MISSED_LIMIT: Duration = Duration::from_secs(12);
/// The control plane's own connection to it is given up after 15 s, and 5 s more make it offline.
const OFFLINE_LIMIT: Duration = Duration::from_secs(40);

/// R-STR-03: a stream with bytes on their way leaves a vanished host on suspicion, before the
/// liveness connection has its verdict; no echo is lost, doubled or wrong. Every other host that
/// vanishes is one that the stream was moved to a moment ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_leaves_a_vanished_host_before_it_is_dead() -> Result<()> {
    let estate = Estate::new(3)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    estate.until_connected(EVEN_LIMIT).await?;
    let link = estate.listen()?;
    let stream = estate.alpha.host.run(|| std::net::TcpStream::connect(link))??;
    let pings = PingPong::start(stream)?;
    let mut gaps = Vec::new();
    for _ in 0..ROUNDS {
        estate.until_connected(EVEN_LIMIT).await?;
        pings.until_even(EVEN_LIMIT).await?;
        let relay = estate.carrying().await?;
        pings.begin();
        relay.cut();
        // Echoes on their way may still come.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let even = pings.until_even(EVEN_LIMIT).await;
        let now = estate.carrying().await;
        gaps.push(pings.longest());
        println!("{} vanished: {:?}", relay.name, pings.longest());
        relay.weather(Weather::clear());
        even?;
        ensure!(now?.name != relay.name, "{} still carries", relay.name);
    }
    ensure!(gaps.iter().all(|gap| *gap <= GAP_MAX), "{gaps:?}");
    pings.sound()
}

/// R-UI-01: a host that vanished is told by its nodes' word, before the control plane misses it by itself; and what it
/// said last is not shown as what it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vanished_host_is_told_by_its_nodes_word() -> Result<()> {
    let estate = Estate::new(2)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    estate.until_connected(EVEN_LIMIT).await?;
    let relay = estate.relays.first().context("no relay")?;
    let warning = |code: &str| {
        let status = estate.admin(&["status", "--json"])?.json()?;
        let warnings = status.pointer("/warnings").and_then(Value::as_array);
        let of = |w: &&Value| w["code"] == code && w["name"] == relay.name.as_str();
        let found = warnings.and_then(|all| all.iter().find(of)).cloned();
        found.with_context(|| format!("no {code}: {status}"))
    };
    relay.cut();
    wait::until("the nodes' word", MISSED_LIMIT, || async {
        let message = warning("RELAY_NOT_REACHED")?["message"].to_string();
        ensure!(message.contains("nodes alpha, beta cannot reach it"), "{message}");
        Ok(())
    })
    .await?;
    wait::until("it is offline", OFFLINE_LIMIT, || async {
        let message = warning("RELAY_OFFLINE")?["message"].to_string();
        ensure!(
            message.contains("not connected, and none of 2 nodes reaches it"),
            "{message}"
        );
        Ok(())
    })
    .await?;
    let shown = estate.admin(&["relay", "show", &relay.name, "--json"])?.json()?;
    ensure!(
        shown["worker"]["state"] == "unknown" && shown["worker"]["pid"] == 0,
        "{shown}"
    );
    Ok(())
}

//! The relay's host is gone from one instant to the next: nothing answers, nothing refuses.

use anyhow::{Result, ensure};
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, PingPong, Weather};
use std::time::Duration;

const EVEN_LIMIT: Duration = Duration::from_secs(30);
/// Bytes without an acknowledgement are suspicious after 250 ms; the aim for the move is 1 s. The
/// liveness connection's verdict would take 2 s and more.
const GAP_MAX: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 6;

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

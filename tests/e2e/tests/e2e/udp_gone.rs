//! UDP alone does not pass for a while, between hosts that all live: TCP says so all the time.

use anyhow::{Context, Result, bail, ensure};
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::verified::{self, Pattern};
use fairlead_testkit::{Estate, PingPong, Weather};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// The probes of a QUIC connection that has lost all come after 13 s, then after 26 and 51 s: what relies on
/// them alone stands still for some seconds more.
const GONE: Duration = Duration::from_secs(20);
/// Losses before and after: the congestion windows are small, and full when UDP goes.
const LOSS: f64 = 0.02;
/// Connections that keep the congestion windows full, so that nothing but probes may leave.
const BULK: u64 = 8;
const ROUND: u64 = 2 << 20;
/// A dial beside the silent session tries every 500 ms.
const BACK_MAX: Duration = Duration::from_millis(2_500);
/// What the rounds that were on their way take at such losses.
const BULK_MAX: Duration = Duration::from_secs(20);
/// Two seconds until a silence is doubted, two until a doubt is told, and a busy machine.
const TOLD_MAX: Duration = Duration::from_secs(12);
const EVEN_LIMIT: Duration = Duration::from_secs(60);
/// The uploads' target: what it is sent, and what it answers in the end.
const UPLOADS: Behaviour = Behaviour::AnswerAfterEof {
    question: 100,
    answer: 200,
    len: ANSWER,
};
const ANSWER: u64 = 1_000;
/// Where they go in.
const UPLOADS_LISTEN: &str = "127.0.0.1:15999";
const CHUNK: usize = 64 << 10;

/// What fills the congestion windows: both ways, or from the consumer alone, to whom the relays go on talking
/// then, and not only of what is new.
#[derive(Debug, Clone, Copy)]
enum Load {
    Echoes,
    Uploads,
}

/// Rules of a relay's host, what does not pass by them, and what is carried meanwhile.
const CUTS: [(&str, &str, Load); 2] = [
    (
        "either way",
        "table inet gone { chain i { type filter hook input priority 0; meta l4proto udp drop; }; \
         chain o { type filter hook output priority 0; meta l4proto udp drop; }; }",
        Load::Echoes,
    ),
    (
        "to the relays",
        "table inet gone { chain i { type filter hook input priority 0; meta l4proto udp drop; }; }",
        Load::Uploads,
    ),
];

/// Echoes rounds of bytes until `until`, each byte checked.
async fn bulk(link: SocketAddr, host: &fairlead_testkit::net::Host, seed: u64, until: Instant) -> Result<()> {
    let mut stream = host.connect(link)?;
    while Instant::now() < until {
        verified::echo_on(&mut stream, seed, ROUND)
            .await
            .with_context(|| format!("bulk {seed}"))?;
    }
    Ok(())
}

/// Uploads bytes until `until`, each checked by the target, which answers when it has all.
async fn upload(host: &fairlead_testkit::net::Host, until: Instant) -> Result<()> {
    let Behaviour::AnswerAfterEof {
        question,
        answer,
        len,
        ..
    } = UPLOADS
    else {
        bail!("not the uploads' target");
    };
    let mut stream = host.connect(UPLOADS_LISTEN.parse()?)?;
    let (pattern, mut offset) = (Pattern::new(question), 0);
    while Instant::now() < until {
        stream.write_all(&pattern.bytes(offset, CHUNK)).await?;
        offset += CHUNK as u64;
    }
    stream.shutdown().await?;
    verified::receive_to_end(&mut stream, answer, len)
        .await
        .context("the answer to an upload")?;
    Ok(())
}

/// Waits until both nodes have told of each relay that nothing comes from it.
async fn told(estate: &Estate, gone: Instant) -> Result<()> {
    for node in ["alpha", "beta"] {
        loop {
            let shown = estate.admin(&["node", "show", node, "--json"])?.json()?;
            let relays = shown
                .get("relays")
                .and_then(Value::as_array)
                .context("no relays")?;
            if relays.iter().all(|r| {
                r.get("error")
                    .and_then(Value::as_str)
                    .is_some_and(|e| !e.is_empty())
            }) {
                break;
            }
            ensure!(
                gone.elapsed() < TOLD_MAX,
                "well after {:?} without UDP: {shown}",
                gone.elapsed()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    println!("told after {:?}", gone.elapsed());
    Ok(())
}

/// R-NOD-01, F-06: relays to which TCP passes and UDP does not for a while are reached again as soon as it
/// does: nobody waits for the silent connection's own probes. No stream is cut, no byte is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stood_still_without_udp_goes_on_as_soon_as_it_passes() -> Result<()> {
    let estate = std::sync::Arc::new(Estate::new(2)?);
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    let sink = Target::start_in(&estate.beta.host, UPLOADS)?;
    let link = ["link", "add", "uploads", "--from", "alpha", "--to", "beta"];
    let ends = ["--listen", UPLOADS_LISTEN, "--target", sink.address()];
    estate.admin(&[&link[..], &ends[..]].concat())?.ok()?;
    estate.state("link", "uploads", "ready").await?;
    estate.until_connected(EVEN_LIMIT).await?;
    let link = estate.listen()?;
    let pings = PingPong::start(estate.alpha.host.run(|| std::net::TcpStream::connect(link))??)?;
    for (ways, rules, load) in CUTS {
        for relay in &estate.relays {
            relay.weather(Weather::clear());
        }
        pings.until_even(EVEN_LIMIT).await?;
        for relay in &estate.relays {
            relay.weather(Weather {
                loss: LOSS,
                ..Weather::clear()
            });
        }
        let until = Instant::now() + GONE + Duration::from_secs(6);
        let mut bulks = JoinSet::new();
        for seed in 0..BULK {
            let estate = std::sync::Arc::clone(&estate);
            bulks.spawn(async move {
                match load {
                    Load::Echoes => bulk(link, &estate.alpha.host, seed, until).await,
                    Load::Uploads => upload(&estate.alpha.host, until).await,
                }
            });
        }
        // The windows are full by then.
        tokio::time::sleep(Duration::from_secs(3)).await;
        pings.begin();
        for relay in &estate.relays {
            relay.host.nft(rules)?;
        }
        let gone = Instant::now();
        told(&estate, gone).await?;
        tokio::time::sleep_until((gone + GONE).into()).await;
        for relay in &estate.relays {
            relay.host.nft("delete table inet gone")?;
        }
        let began = Instant::now();
        while let Some(bulk) = bulks.join_next().await {
            bulk??;
        }
        let (all, gap) = (began.elapsed(), pings.longest());
        println!(
            "no UDP {ways} for {GONE:?}: longest gap {gap:?}, all bulk had ended {all:?} after it passed again"
        );
        ensure!(gap >= GONE - Duration::from_secs(1), "UDP passed {ways}: {gap:?}");
        ensure!(gap <= GONE + BACK_MAX, "{gap:?} without UDP {ways} for {GONE:?}");
        ensure!(all <= BULK_MAX, "bulk: {all:?} after UDP passed {ways} again");
    }
    pings.sound()
}

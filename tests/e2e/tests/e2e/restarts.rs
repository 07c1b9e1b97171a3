//! Daemons that are told to end and come back: what is announced is waited for.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::attack::newcomer;
use fairlead_testkit::target::closed_port;
use fairlead_testkit::{Ends, Pool, Role, Target, process, verified, wait};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A service manager's restart of a daemon that had run well, on a busy machine.
const LIMIT: Duration = Duration::from_secs(25);
/// A run shorter than this is followed by a delay (the restart rule's good run, and a little).
const GOOD_RUN: Duration = Duration::from_secs(6);
/// A daemon has heard a signal and told its relays after this, also on a busy machine.
const ANNOUNCED: Duration = Duration::from_millis(300);

async fn until_ran_well(pool: &Pool, role: Role<'_>) -> Result<()> {
    let age = process::age(pool.pid(role)?)?;
    tokio::time::sleep(GOOD_RUN.saturating_sub(age)).await;
    Ok(())
}

/// R-ADM-03, F-08 (endpoint restarting): connections that begin while the publisher's daemon restarts
/// are held, and none fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_held_while_the_publisher_restarts_and_none_fails() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let link = pool.listen("echo")?;
    for round in 0..2 {
        until_ran_well(&pool, Role::Node("beta")).await?;
        verified::echo_once(link, 1, 1000).await?;
        let old = pool.pid(Role::Node("beta"))?;
        process::terminate(old)?;
        let began = Instant::now();
        // What reaches the daemon before it has heard the signal is a live stream, and ends with it.
        while process::alive(old) && began.elapsed() < ANNOUNCED {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut connections = JoinSet::new();
        let mut back = None;
        // They begin all the time, until a second after the next daemon is there.
        while back.is_none_or(|at: Instant| at.elapsed() < Duration::from_secs(1)) {
            connections.spawn(async move {
                let start = Instant::now();
                verified::echo_once(link, round, 500)
                    .await
                    .with_context(|| format!("begun {:?} after the stop", start - began))?;
                anyhow::Ok(start.elapsed())
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
            ensure!(began.elapsed() < LIMIT, "the daemon is not back");
            if back.is_none()
                && pool
                    .pid(Role::Node("beta"))
                    .is_ok_and(|pid| pid != old && process::alive(pid))
            {
                back = Some(Instant::now());
            }
        }
        let (mut longest, mut count) = (Duration::ZERO, 0);
        while let Some(ended) = connections.join_next().await {
            longest = longest.max(ended??);
            count += 1;
        }
        println!("round {round}: {count} connections, the longest waited {longest:?}");
    }
    Ok(())
}

/// How a socket ends whose stream's daemon is gone: not by a clean end.
async fn ends_by_reset(what: &str, stream: &mut TcpStream) -> Result<()> {
    let mut buffer = [0; 4096];
    let end = async {
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => anyhow::bail!("{what}: a clean end"),
                Ok(_) => {}
                Err(error) => return Ok(error.kind()),
            }
        }
    };
    let kind = tokio::time::timeout(LIMIT, end)
        .await
        .with_context(|| format!("{what}: no end"))??;
    ensure!(kind == ErrorKind::ConnectionReset, "{what}: {kind}");
    Ok(())
}

/// Streams of a third node, on which bytes go both ways until they are told to end.
struct Bystanders {
    streams: JoinSet<Result<()>>,
    /// Rounds that were complete and had equal sums, of all of them.
    rounds: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
}

impl Bystanders {
    const COUNT: u64 = 3;

    async fn start(ends: &Ends, link: SocketAddr) -> Result<Self> {
        let (stop, rounds) = (watch::Sender::new(false), Arc::new(AtomicU64::new(0)));
        let mut streams = JoinSet::new();
        for n in 0..Self::COUNT {
            let (near, far) = ends.open(link).await?;
            let (told, done) = (stop.subscribe(), rounds.clone());
            streams.spawn(async move {
                let what = || format!("stream {n} of the third node");
                both_ways(near, far, 100 * (n + 1), told, &done)
                    .await
                    .with_context(what)
            });
        }
        Ok(Self {
            streams,
            rounds,
            stop,
        })
    }

    /// Waits until each has gone on for a few rounds from this moment on.
    async fn go_on(&mut self) -> Result<()> {
        let wanted = self.rounds.load(Ordering::Relaxed) + 3 * Self::COUNT;
        let going = wait::until("the third node's streams go on", LIMIT, || async {
            let rounds = self.rounds.load(Ordering::Relaxed);
            ensure!(rounds >= wanted, "{rounds} of {wanted} rounds");
            Ok(())
        });
        tokio::select! {
            ended = self.streams.join_next() => ended.context("no stream")??.context("it was cut"),
            going = going => going.map(drop),
        }
    }

    /// Ends all in order: the sockets that they began with lasted.
    async fn end(mut self) -> Result<u64> {
        self.stop.send_replace(true);
        while let Some(ended) = self.streams.join_next().await {
            ended??;
        }
        Ok(self.rounds.load(Ordering::Relaxed))
    }
}

async fn both_ways(
    mut near: TcpStream,
    mut far: TcpStream,
    seed: u64,
    told: watch::Receiver<bool>,
    done: &AtomicU64,
) -> Result<()> {
    const LEN: u64 = 60_000;
    let mut round = seed << 32;
    while !*told.borrow() {
        let ((near_in, near_out), (far_in, far_out)) = (near.split(), far.split());
        let (mut near_in, mut near_out, mut far_in, mut far_out) = (near_in, near_out, far_in, far_out);
        let (there, arrived, back, returned) = tokio::try_join!(
            verified::send(&mut near_out, round, LEN),
            verified::receive(&mut far_in, round, LEN),
            verified::send(&mut far_out, round + 1, LEN),
            verified::receive(&mut near_in, round + 1, LEN),
        )?;
        ensure!(
            there == arrived.sha256 && back == returned.sha256,
            "the hashes differ"
        );
        done.fetch_add(1, Ordering::Relaxed);
        round += 2;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    near.shutdown().await?;
    far.shutdown().await?;
    for (what, end) in [("application", &mut near), ("target", &mut far)] {
        let rest = end.read_to_end(&mut Vec::new()).await.context(what)?;
        ensure!(rest == 0, "{what}: {rest} bytes more than were sent");
    }
    Ok(())
}

/// A link from the third node, and where its applications reach it.
async fn link_of_third(pool: &Pool, to: &str, target: &str) -> Result<SocketAddr> {
    let (name, listen) = (format!("third-{to}"), closed_port()?);
    let listen_text = listen.to_string();
    let add = ["link", "add", &name, "--from", "third", "--to", to];
    let rest = ["--target", target, "--listen", &listen_text];
    pool.cli(&[&add[..], &rest[..]].concat())?.ok()?;
    wait::until(&format!("{name} is ready"), LIMIT, || async {
        let shown = pool.cli(&["link", "show", &name, "--json"])?.json()?;
        let ready = shown.get("state").is_some_and(|state| state == "ready");
        ensure!(ready, "{shown}");
        Ok(())
    })
    .await?;
    Ok(listen)
}

/// R-STR-01, R-STR-02, R-ADM-04: each daemon restarts under traffic. Its live streams end by a reset at
/// both sockets, never by a clean end; new ones carry their bytes at once, and no byte of an old stream
/// appears in a new one. A third node's streams with the other daemon go on all the while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_daemons_restart_in_turn_under_traffic() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("link", &ends.address())?
        .start()
        .await?;
    let link = pool.listen("link")?;
    let _third = newcomer::join(&pool, "third").await?;
    let with_alpha = link_of_third(&pool, "alpha", &ends.address()).await?;
    let with_beta = link_of_third(&pool, "beta", &ends.address()).await?;
    let restarts = [
        ("beta", with_alpha),
        ("alpha", with_beta),
        ("beta", with_alpha),
        ("alpha", with_beta),
    ];
    for (round, (name, with_other)) in restarts.into_iter().enumerate() {
        let seed = 60 + round as u64;
        let mut live = Vec::new();
        for _ in 0..5 {
            let (mut near, mut far) = ends.open(link).await?;
            let (sent, received) = tokio::try_join!(
                verified::send(&mut near, seed, 300_000),
                verified::receive(&mut far, seed, 300_000)
            )?;
            ensure!(sent == received.sha256);
            live.push((near, far));
        }
        let mut others = Bystanders::start(&ends, with_other).await?;
        others.go_on().await?;
        until_ran_well(&pool, Role::Node(name)).await?;
        let old = pool.pid(Role::Node(name))?;
        process::terminate(old)?;
        for (near, far) in &mut live {
            ends_by_reset(&format!("round {round}, {name}: the application"), near).await?;
            ends_by_reset(&format!("round {round}, {name}: the target"), far).await?;
        }
        others.go_on().await?;
        pool.back(Role::Node(name), old).await?;
        let again = Instant::now();
        // A consumer's daemon that is back listens a moment later.
        let (mut near, mut far) = loop {
            match ends.open(link).await {
                Ok(both) => break both,
                Err(error) if again.elapsed() > LIMIT => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let seed = 70 + round as u64;
        let (sent, received) = tokio::try_join!(
            verified::send(&mut near, seed, 1_000_000),
            verified::receive(&mut far, seed, 1_000_000)
        )?;
        ensure!(sent == received.sha256, "round {round}: the hashes differ");
        let took = again.elapsed();
        others.go_on().await?;
        let others = others.end().await?;
        println!("round {round}: {name} restarted, a new stream after {took:?}, {others} rounds of others");
    }
    Ok(())
}

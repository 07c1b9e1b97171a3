//! A thousand live streams lose their relay at once: all go on, and nothing storms.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Host, Pool, Role, Target, process, verified, wait};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub(crate) const STREAMS: usize = 1000;
/// Between two requests of one stream.
const REQUEST_EVERY: Duration = Duration::from_millis(500);
/// At most so many opens at once: the burst is another test.
const OPENING: usize = 50;
/// The window after a death in which a storm would show.
const STORM_WINDOW: Duration = Duration::from_secs(6);
/// Until all streams have gone on after a death, on a busy machine.
const ALL_MOVED: Duration = Duration::from_secs(15);

/// Streams that each say something now and then, and check what they hear.
pub(crate) struct Streams {
    stop: watch::Sender<bool>,
    longest_ns: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    tasks: JoinSet<Result<()>>,
}

impl Streams {
    pub(crate) async fn open(link: SocketAddr, from: Option<&Host>) -> Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let (longest_ns, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let opening = Arc::new(Semaphore::new(OPENING));
        let opened = Arc::new(Semaphore::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..STREAMS {
            let turn = Arc::clone(&opening).acquire_owned().await?;
            let stream = match from {
                Some(host) => host.connect(link)?,
                None => TcpStream::connect(link).await?,
            };
            let (longest, requests) = (Arc::clone(&longest_ns), Arc::clone(&requests));
            let (mut stopping, opened) = (stopping.clone(), Arc::clone(&opened));
            tasks.spawn(async move {
                let mut stream = stream;
                verified::echo_on(&mut stream, number as u64, 100).await?;
                opened.add_permits(1);
                drop(turn);
                while !*stopping.borrow() {
                    let asked = Instant::now();
                    verified::echo_on(&mut stream, number as u64, 200)
                        .await
                        .with_context(|| format!("stream {number}"))?;
                    let took = u64::try_from(asked.elapsed().as_nanos())?;
                    longest.fetch_max(took, Ordering::SeqCst);
                    requests.fetch_add(1, Ordering::SeqCst);
                    let _ = tokio::time::timeout(REQUEST_EVERY, stopping.changed()).await;
                }
                Ok(())
            });
        }
        opened.acquire_many(u32::try_from(STREAMS)?).await?.forget();
        Ok(Self {
            stop,
            longest_ns,
            requests,
            tasks,
        })
    }

    pub(crate) fn begin(&self) {
        self.longest_ns.store(0, Ordering::SeqCst);
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::SeqCst))
    }

    pub(crate) async fn finish(mut self) -> Result<u64> {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(self.requests.load(Ordering::SeqCst))
    }
}

/// R-STR-01: all go on; the relay that is left is asked about once for each of them, daemons connect
/// again about once, and processors have time for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_thousand_live_streams_leave_a_killed_relay_without_a_storm() -> Result<()> {
    process::raise_own_descriptors()?;
    let echo = Target::start(Behaviour::Echo).await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let tunnels = async |relay: &str| pool.relay_count(relay, "fairlead_live_tunnels").await;
    let all_here = |relay: &'static str| async move {
        let here = tunnels(relay).await?;
        ensure!(here >= STREAMS as f64, "{here} tunnels on {relay}");
        anyhow::Ok(())
    };

    // All of them begin on one relay: the other's worker is dead, and its supervisor stopped.
    let supervisor = process::stop(pool.pid(Role::Supervisor("relay-1"))?)?;
    let old = pool.kill9(Role::Worker("relay-1"))?;
    let streams = Streams::open(pool.listen("echo")?, None).await?;
    wait::until("all on the local relay", ALL_MOVED, || all_here("local")).await?;
    drop(supervisor);
    pool.back(Role::Worker("relay-1"), old).await?;
    wait::until("nodes are on relay-1", ALL_MOVED, || async {
        let sessions = pool.relay_count("relay-1", "fairlead_hop_sessions").await?;
        ensure!(sessions >= 2.0, "{sessions} sessions");
        anyhow::Ok(())
    })
    .await?;
    let strays = tunnels("relay-1").await?;

    streams.begin();
    let survivor = pool.pid(Role::Worker("relay-1"))?;
    let nodes = [pool.pid(Role::Node("alpha"))?, pool.pid(Role::Node("beta"))?];
    let admitted = pool
        .relay_count("relay-1", "fairlead_opens_admitted_total")
        .await?;
    let sessions = async || -> Result<f64> {
        let mut sum = 0.0;
        for node in ["alpha", "beta"] {
            sum += pool
                .node_count(node, "fairlead_hop_sessions_opened_total")
                .await?;
        }
        Ok(sum)
    };
    let sessions_before = sessions().await?;
    let cpu = || -> Result<(Duration, Duration)> {
        let both = process::cpu_time(nodes[0])? + process::cpu_time(nodes[1])?;
        Ok((process::cpu_time(survivor)?, both))
    };
    let before = cpu()?;
    let killed = Instant::now();
    let old = pool.kill9(Role::Worker("local"))?;
    wait::until("all on relay-1", ALL_MOVED, || all_here("relay-1")).await?;
    let moved = killed.elapsed();
    pool.back(Role::Worker("local"), old).await?;
    tokio::time::sleep(STORM_WINDOW.saturating_sub(killed.elapsed())).await;
    let window = killed.elapsed();
    let after = cpu()?;
    let opens = pool
        .relay_count("relay-1", "fairlead_opens_admitted_total")
        .await?
        - admitted;
    let reconnects = sessions().await? - sessions_before;
    let (relay_cpu, node_cpu) = (after.0 - before.0, after.1 - before.1);
    let longest = streams.longest();
    println!(
        "{STREAMS} streams, {strays} of them elsewhere: all moved after {moved:?}, longest request {longest:?}; within {window:?}: \
         {opens} opens and {relay_cpu:?} of processor time at the relay that is left, \
         {reconnects} new sessions, {node_cpu:?} of both nodes"
    );
    let requests = streams.finish().await?;
    println!("{requests} requests in all");
    // A stream's move is one open; some find the relay before it knows the endpoint, or ask again.
    ensure!(opens < 3.0 * STREAMS as f64, "{opens} opens");
    ensure!(reconnects <= 8.0, "{reconnects} sessions");
    ensure!(longest < Duration::from_secs(8), "a request took {longest:?}");
    ensure!(relay_cpu < window / 2, "{relay_cpu:?} of {window:?}");
    Ok(())
}

//! What streams cost in memory: idle, and suspended with full windows.

use crate::release;
use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Role, process, verified, wait};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Streams that are opened at once.
const OPENING: usize = 64;
/// Streams before the first look, so that pools and caches are there.
const WARM: usize = 50;
/// What each end of a suspended stream says: the window of a fresh stream.
const WINDOW: u64 = 256 << 10;
/// After the last open, for what opening needed.
const SETTLE: Duration = Duration::from_secs(3);
/// Passes over all suspended streams, so that daemons have read what sockets took.
const PASSES: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);
/// Streams for which the pool has one relay: a session between node and relay has 8,192 legs at most.
const PER_RELAY: usize = 8_000;

/// Arguments of `cargo xtask bench memory`.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// A short run, of whatever build, that shows that everything works; its figures mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Numbers of streams.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000])]
    streams: Vec<usize>,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// Both ends of a stream.
type Both = (TcpStream, TcpStream);

struct Row {
    what: &'static str,
    streams: usize,
    /// Growth in bytes of workers, consumer and publisher; dead workers have none.
    workers: Option<u64>,
    consumer: u64,
    publisher: u64,
    /// What applications were able to say into suspended streams, both ways.
    held: Option<u64>,
}

/// Measures and prints the table.
pub(super) fn run(arguments: &MemoryArgs) -> Result<()> {
    if !arguments.smoke && release::again()? {
        return Ok(());
    }
    process::raise_own_descriptors()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let numbers = match arguments.smoke {
        true => vec![100],
        false => arguments.streams.clone(),
    };
    if !arguments.json {
        println!(
            "| | streams | relays, KiB each | consumer, KiB each | publisher, KiB each | both nodes, MiB | said into them, MiB |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    // Each row as soon as it is known: a later number may be more than the machine has room for.
    let mut rows = Vec::new();
    for streams in numbers {
        let tell = |row: &Row| match arguments.json {
            true => rows.push(row.to_json()),
            false => println!("{}", row.to_text()),
        };
        runtime.block_on(measure(streams, tell))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}

async fn measure(streams: usize, mut tell: impl FnMut(&Row)) -> Result<()> {
    eprintln!("memory: {streams} streams");
    let target = TcpListener::bind(("127.0.0.1", 0)).await?;
    let pool = Pool::builder()
        .relays(streams / PER_RELAY)
        .to("memory", &target.local_addr()?.to_string())?
        .start()
        .await?;
    let link = pool.listen("memory")?;
    let _warm = open(&target, link, WARM).await?;
    let file = pool.file()?;
    let workers: Vec<u32> = file.relays.iter().map(|relay| relay.worker_pid).collect();
    let consumer = [pool.pid(Role::Node("alpha"))?];
    let publisher = [pool.pid(Role::Node("beta"))?];
    let growth = Growth::from_now([&workers, &consumer, &publisher])?;
    let mut open = open(&target, link, streams).await?;
    tokio::time::sleep(SETTLE).await;
    let [relays, near, far] = growth.until_now()?;
    tell(&Row {
        what: "idle",
        streams,
        workers: Some(relays),
        consumer: near,
        publisher: far,
        held: None,
    });

    // Supervisors are stopped, so that their workers stay dead.
    let supervisors = file.relays.iter().map(|relay| relay.supervisor_pid);
    let stopped = supervisors.map(process::stop).collect::<Result<Vec<_>>>()?;
    workers.iter().try_for_each(|pid| process::kill9(*pid))?;
    let suspended = || async {
        let count = pool.node_count("alpha", "fairlead_streams_suspended").await?;
        ensure!(count >= streams as f64, "{count} of {streams} suspended");
        anyhow::Ok(())
    };
    wait::until("all streams are suspended", LIMIT, suspended).await?;
    let said = fill(&open).await?;
    let [_, near, far] = growth.until_now()?;
    tell(&Row {
        what: "suspended, windows full",
        streams,
        workers: None,
        consumer: near,
        publisher: far,
        held: Some(said.iter().map(|(up, down)| up + down).sum()),
    });
    drop(stopped);
    let resumed = Instant::now();
    check(&mut open, &said)
        .await
        .context("after the relays came back")?;
    eprintln!(
        "memory: all bytes there {:?} after the relays were let go on",
        resumed.elapsed()
    );
    Ok(())
}

/// What groups of processes grow by.
struct Growth<'a> {
    groups: [&'a [u32]; 3],
    before: [u64; 3],
}

impl<'a> Growth<'a> {
    fn from_now(groups: [&'a [u32]; 3]) -> Result<Self> {
        let before = Self::resident(groups)?;
        Ok(Self { groups, before })
    }

    /// Bytes of each group; one whose processes are dead has none.
    fn until_now(&self) -> Result<[u64; 3]> {
        let mut now = Self::resident(self.groups)?;
        for (now, before) in now.iter_mut().zip(self.before) {
            *now = now.saturating_sub(before);
        }
        Ok(now)
    }

    fn resident(groups: [&[u32]; 3]) -> Result<[u64; 3]> {
        let mut all = [0; 3];
        for (sum, pids) in all.iter_mut().zip(groups) {
            for pid in pids.iter().filter(|pid| process::alive(**pid)) {
                *sum += process::resident_bytes(*pid)?;
            }
        }
        Ok(all)
    }
}

/// Opens streams; each is known at both ends by its number.
async fn open(target: &TcpListener, link: SocketAddr, count: usize) -> Result<Vec<Both>> {
    let turns = Arc::new(Semaphore::new(OPENING));
    let mut nears = JoinSet::new();
    for number in 0..count as u64 {
        let turns = Arc::clone(&turns);
        nears.spawn(async move {
            let _turn = turns.acquire().await?;
            let mut near = TcpStream::connect(link).await.context("connect")?;
            near.write_u64(number).await?;
            // The far end says it back: the stream is open both ways.
            ensure!(near.read_u64().await? == number, "another stream's number");
            anyhow::Ok((number, near))
        });
    }
    let mut fars = Vec::with_capacity(count);
    for _ in 0..count {
        let (mut far, _) = tokio::time::timeout(LIMIT, target.accept())
            .await
            .context("the target was not dialled")??;
        let number = far.read_u64().await?;
        far.write_u64(number).await?;
        fars.push((number, far));
    }
    let mut all = Vec::with_capacity(count);
    while let Some(near) = nears.join_next().await {
        all.push(near??);
    }
    all.sort_by_key(|(number, _)| *number);
    fars.sort_by_key(|(number, _)| *number);
    Ok(all
        .into_iter()
        .zip(fars)
        .map(|((_, near), (_, far))| (near, far))
        .collect())
}

/// Says up to a window at both ends of each stream, as much as is taken; how much that was.
async fn fill(open: &[Both]) -> Result<Vec<(u64, u64)>> {
    let mut said = vec![(0, 0); open.len()];
    for _ in 0..PASSES {
        for (number, ((near, far), (up, down))) in open.iter().zip(&mut said).enumerate() {
            *up = say(near, number as u64, *up)?;
            *down = say(far, number as u64, *down)?;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(said)
}

fn say(socket: &TcpStream, seed: u64, from: u64) -> Result<u64> {
    let mut at = from;
    while at < WINDOW {
        let bytes = verified::Pattern::new(seed).bytes(at, usize::try_from((WINDOW - at).min(64 << 10))?);
        match socket.try_write(&bytes) {
            Ok(count) => at += count as u64,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).with_context(|| format!("stream {seed} at {at}")),
        }
    }
    Ok(at)
}

/// Reads all that was said, in both directions.
async fn check(open: &mut [Both], said: &[(u64, u64)]) -> Result<()> {
    for (number, ((near, far), (up, down))) in open.iter_mut().zip(said).enumerate() {
        let both = async {
            verified::receive(far, number as u64, *up).await?;
            verified::receive(near, number as u64, *down).await
        };
        tokio::time::timeout(LIMIT, both)
            .await
            .with_context(|| format!("stream {number}: no bytes"))??;
    }
    Ok(())
}

impl Row {
    fn to_text(&self) -> String {
        let each = |bytes: u64| bytes as f64 / 1024.0 / self.streams.max(1) as f64;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let dash = || "–".to_owned();
        format!(
            "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {} |",
            self.what,
            self.streams,
            self.workers
                .map_or_else(dash, |bytes| format!("{:.1}", each(bytes))),
            each(self.consumer),
            each(self.publisher),
            mib(self.consumer + self.publisher),
            self.held.map_or_else(dash, |bytes| format!("{:.1}", mib(bytes))),
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "what": self.what, "streams": self.streams, "relay_bytes": self.workers,
            "consumer_bytes": self.consumer, "publisher_bytes": self.publisher, "said_bytes": self.held,
        })
    }
}

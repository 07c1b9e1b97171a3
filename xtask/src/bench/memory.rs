//! What streams cost in memory: idle, suspended with full windows, and more of them than the nodes' budget
//! has room for (I9).

mod streams;

use crate::release;
use anyhow::{Context, Result, ensure};
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::process::Stopped;
use fairlead_testkit::{Pool, PoolFile, Role, process, wait};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use streams::Streams;

/// Streams before the first look, so that pools and caches are there.
const WARM: usize = 50;
/// Descriptors for all but streams.
const SPARE_DESCRIPTORS: u64 = 64;
/// After the last open, for what opening needed.
const SETTLE: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(60);
/// Streams for which the pool has one relay: a session between node and relay has 8,192 legs at most.
const PER_RELAY: usize = 8_000;
/// A node's `stream_memory` where nobody sets it.
const BUDGET: u64 = 1 << 30;
/// What a stream reserves of it while there is plenty: a window of 256 KiB in pieces of 1 KiB and 64 bytes,
/// and 32 KiB of send buffer.
const PLENTY: u64 = (272 + 32) << 10;

/// Arguments of `cargo xtask bench memory`.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// A short run, of whatever build, that shows that everything works; its figures mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Numbers of streams. Where the nodes' default `stream_memory` has no room for all with first windows,
    /// they are measured idle with more of it, and suspended with the default, which must hold.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000])]
    streams: Vec<usize>,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
}

struct Row {
    what: &'static str,
    streams: usize,
    /// Growth in bytes of workers, consumer and publisher; dead workers have none.
    workers: Option<u64>,
    consumer: u64,
    publisher: u64,
    /// What applications were able to say into suspended streams, both ways.
    held: Option<u64>,
    budget: Option<Held>,
}

/// How a budget held.
struct Held {
    bytes: u64,
    /// What consumer and publisher had reserved of it at most.
    reserved: [u64; 2],
    /// Streams refused, by code.
    refused: Vec<(String, u64)>,
}

/// Measures and prints the table.
pub(super) fn run(arguments: &MemoryArgs) -> Result<()> {
    if !arguments.smoke && release::again()? {
        return Ok(());
    }
    let descriptors = process::raise_own_descriptors()?;
    let most = arguments.streams.iter().copied().max().unwrap_or_default();
    ensure!(
        arguments.smoke || descriptors >= 2 * (most + WARM) as u64 + SPARE_DESCRIPTORS,
        "{most} streams have two ends each here, and this process may open {descriptors} descriptors: raise \
         `ulimit -Hn`, or give fewer `--streams`"
    );
    let runtime = tokio::runtime::Runtime::new()?;
    if !arguments.json {
        println!(
            "| | streams | relays, KiB each | consumer, KiB each | publisher, KiB each | both nodes, MiB | said into them, MiB |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    // Each row as soon as it is known: a later number may be more than the machine has room for.
    let mut rows = Vec::new();
    let mut tell = |row: &Row| match arguments.json {
        true => rows.push(row.to_json()),
        false => println!("{}", row.to_text()),
    };
    if arguments.smoke {
        runtime.block_on(with_room(100, &mut tell))?;
        runtime.block_on(beyond_budget(1000, 64 << 20, &mut tell))?;
    } else {
        for streams in arguments.streams.iter().copied() {
            runtime.block_on(with_room(streams, &mut tell))?;
            if !fits(streams) {
                runtime.block_on(beyond_budget(streams, BUDGET, &mut tell))?;
            }
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}

/// What so many streams reserve at first.
const fn wanted(streams: usize) -> u64 {
    (streams + WARM) as u64 * PLENTY
}

/// Whether the default budget has room for that.
const fn fits(streams: usize) -> bool {
    wanted(streams) <= BUDGET
}

/// Streams that the budget has room for: idle, and where the default has, suspended with full windows.
async fn with_room(streams: usize, tell: &mut impl FnMut(&Row)) -> Result<()> {
    eprintln!("memory: {streams} streams");
    let budget = wanted(streams).div_ceil(BUDGET) * BUDGET;
    let (mut ground, growth) = Ground::start(streams, budget).await?;
    let refused = ground.open(streams).await?;
    ensure!(
        refused == 0,
        "{refused} of {streams} refused: {:?}",
        ground.refused().await?
    );
    tokio::time::sleep(SETTLE).await;
    let [relays, consumer, publisher] = growth.until_now()?;
    tell(&Row {
        what: "idle",
        streams,
        workers: Some(relays),
        consumer,
        publisher,
        held: None,
        budget: None,
    });
    if !fits(streams) {
        return Ok(());
    }
    let stopped = ground.suspend().await?;
    let share = ground.streams.fill().await?;
    let [_, consumer, publisher] = growth.until_now()?;
    tell(&Row {
        what: "suspended, windows full",
        streams,
        workers: None,
        consumer,
        publisher,
        held: Some(ground.streams.said()),
        budget: None,
    });
    ensure!(share > 0.99, "ends took {share:.3} of their windows");
    ground.resume(stopped).await
}

/// More streams than a budget has room for: as many are refused by code, and the others, suspended, are
/// given bytes until nothing takes any.
async fn beyond_budget(streams: usize, budget: u64, tell: &mut impl FnMut(&Row)) -> Result<()> {
    eprintln!("memory: {streams} streams with a budget of {} MiB", budget >> 20);
    let (mut ground, growth) = Ground::start(streams, budget).await?;
    let refused = ground.open(streams).await?;
    let by_code = ground.refused().await?;
    let counted: u64 = by_code.iter().map(|(_, count)| count).sum();
    ensure!(refused > 0, "all {streams} streams were admitted");
    ensure!(counted == refused, "{refused} refused, by code {by_code:?}");
    let mut reserved = ground.reserved().await?;
    let stopped = ground.suspend().await?;
    let share = ground.streams.fill().await?;
    for (most, reserved) in reserved.iter_mut().zip(ground.reserved().await?) {
        *most = reserved.max(*most);
    }
    let [_, consumer, publisher] = growth.until_now()?;
    tell(&Row {
        what: "suspended, budget used up",
        streams: ground.streams.count(),
        workers: None,
        consumer,
        publisher,
        held: Some(ground.streams.said()),
        budget: Some(Held {
            bytes: budget,
            reserved,
            refused: by_code,
        }),
    });
    ensure!(share < 1.0, "every end took a window");
    for (what, bytes) in [("reserved", reserved), ("resident", [consumer, publisher])] {
        ensure!(
            bytes.iter().all(|b| *b <= budget),
            "I9: {what}: {bytes:?} of {budget}"
        );
    }
    ground.resume(stopped).await
}

/// A pool, and streams through it.
struct Ground {
    pool: Pool,
    file: PoolFile,
    streams: Streams,
    _warm: Streams,
}

impl Ground {
    async fn start(streams: usize, budget: u64) -> Result<(Self, Growth)> {
        let mut warm = Streams::to_a_target()?;
        let pool = Pool::builder()
            .relays(streams / PER_RELAY)
            .to("memory", &warm.target()?.to_string())?
            .argument(&format!("--stream-memory={}MiB", budget >> 20))
            // Filling takes a while, and reading what was said another.
            .argument("--stream-hold=300s")
            .start()
            .await?;
        let link = pool.listen("memory")?;
        let refused = warm.open(link, WARM).await?;
        ensure!(refused == 0, "{refused} of the first {WARM} refused");
        let file = pool.file()?;
        let growth = Growth::from_now([
            file.relays.iter().map(|relay| relay.worker_pid).collect(),
            vec![pool.pid(Role::Node("alpha"))?],
            vec![pool.pid(Role::Node("beta"))?],
        ])?;
        let ground = Self {
            pool,
            file,
            streams: warm.more(),
            _warm: warm,
        };
        Ok((ground, growth))
    }

    /// Opens streams; how many were refused.
    async fn open(&mut self, count: usize) -> Result<u64> {
        self.streams.open(self.pool.listen("memory")?, count).await
    }

    /// Streams that came to nothing at the consumer, by code: its own (`failed`), and what it was told.
    async fn refused(&self) -> Result<Vec<(String, u64)>> {
        let page = Scrape::of(&self.file.node("alpha")?.metrics).await?;
        let families = [
            "fairlead_streams_refused_total{",
            "fairlead_streams_failed_total{",
        ];
        let lines = page.text().lines();
        let samples = lines.filter(|line| families.iter().any(|family| line.starts_with(family)));
        let code = |sample: &str| {
            let (_, rest) = sample.split_once("code=\"")?;
            let (code, rest) = rest.split_once('"')?;
            let count: f64 = rest.rsplit_once(' ')?.1.parse().ok()?;
            Some((code.to_owned(), count as u64))
        };
        Ok(samples.filter_map(code).collect())
    }

    /// What consumer and publisher have reserved for streams.
    async fn reserved(&self) -> Result<[u64; 2]> {
        let metric = "fairlead_stream_memory_bytes";
        let consumer = self.pool.node_count("alpha", metric).await?;
        let publisher = self.pool.node_count("beta", metric).await?;
        Ok([consumer as u64, publisher as u64])
    }

    /// Kills the workers. Their supervisors are stopped, so that they stay dead.
    async fn suspend(&self) -> Result<Vec<Stopped>> {
        let relays = &self.file.relays;
        let stopped = relays.iter().map(|relay| process::stop(relay.supervisor_pid));
        let stopped = stopped.collect::<Result<Vec<_>>>()?;
        relays
            .iter()
            .try_for_each(|relay| process::kill9(relay.worker_pid))?;
        let suspended = || async {
            let count = self
                .pool
                .node_count("alpha", "fairlead_streams_suspended")
                .await?;
            let all = self.streams.count();
            ensure!(count >= all as f64, "{count} of {all} suspended");
            anyhow::Ok(())
        };
        wait::until("all streams are suspended", LIMIT, suspended).await?;
        Ok(stopped)
    }

    /// Lets the relays come back and reads what was said.
    async fn resume(&mut self, stopped: Vec<Stopped>) -> Result<()> {
        drop(stopped);
        let began = Instant::now();
        self.streams.check().await.context("after the relays came back")?;
        eprintln!(
            "memory: all bytes there {:?} after the relays were let go on",
            began.elapsed()
        );
        Ok(())
    }
}

/// What groups of processes grow by.
struct Growth {
    groups: [Vec<u32>; 3],
    before: [u64; 3],
}

impl Growth {
    fn from_now(groups: [Vec<u32>; 3]) -> Result<Self> {
        let before = Self::resident(&groups)?;
        Ok(Self { groups, before })
    }

    /// Bytes of each group; one whose processes are dead has none.
    fn until_now(&self) -> Result<[u64; 3]> {
        let mut now = Self::resident(&self.groups)?;
        for (now, before) in now.iter_mut().zip(self.before) {
            *now = now.saturating_sub(before);
        }
        Ok(now)
    }

    fn resident(groups: &[Vec<u32>; 3]) -> Result<[u64; 3]> {
        let mut all = [0; 3];
        for (sum, pids) in all.iter_mut().zip(groups) {
            for pid in pids.iter().filter(|pid| process::alive(**pid)) {
                *sum += process::resident_bytes(*pid)?;
            }
        }
        Ok(all)
    }
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
        ) + &self.budget.as_ref().map_or_else(String::new, |held| {
            let [consumer, publisher] = held.reserved.map(mib);
            let refused = held.refused.iter().map(|(code, count)| format!(", {count} refused by {code}"));
            format!(
                "\n\nBudget of each node {:.0} MiB: reserved {consumer:.1} at the consumer, {publisher:.1} at the publisher; \
                 grown by {:.1} and {:.1}{}",
                mib(held.bytes),
                mib(self.consumer),
                mib(self.publisher),
                refused.collect::<String>(),
            )
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "what": self.what, "streams": self.streams, "relay_bytes": self.workers,
            "consumer_bytes": self.consumer, "publisher_bytes": self.publisher, "said_bytes": self.held,
            "budget": self.budget.as_ref().map(|held| json!({
                "bytes": held.bytes, "reserved_bytes": held.reserved,
                "refused": held.refused.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            })),
        })
    }
}

//! Measures Fairlead beside what users would pick instead, in one run on one machine: direct TCP,
//! a pool of a release build, a plain two-hop quinn tunnel with the same cryptography, bore, and
//! rathole with Noise.
//!
//! Compare within one run only. Every figure is the median of the rounds; the subjects take turns
//! within each round, so that a machine that slows down slows all of them.

mod against;
mod gaps;
mod load;
mod memory;
mod peers;
mod reference;
mod service;
mod table;

use crate::release;
use anyhow::{Context, Result, bail};
use fairlead_testkit::{Pool, PoolBuilder, process};
use load::{Plan, Subject};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use table::Table;

/// Rounds of a full run.
const ROUNDS: usize = 3;
/// The link that the pool is measured through.
const LINK: &str = "bench";

/// A pool stops within this, or something is wrong with it.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// What can be left out.
const SUBJECTS: [&str; 5] = ["direct", "fairlead", "quinn", "bore", "rathole"];

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// A minute's run that shows that everything works; its figures mean nothing.
    #[arg(long)]
    pub(crate) smoke: bool,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
    /// How often everything is measured [default: 3, against another revision 5]; the table shows
    /// medians.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Leaves a subject out (repeatable): `direct`, `fairlead`, `quinn`, `bore` or `rathole`.
    #[arg(long, value_name = "SUBJECT")]
    without: Vec<String>,
    /// Holds this build against that of a revision, and nothing else. A measure is worse when the ranges
    /// are disjoint and the medians differ by more than 15 %; then this fails and names it.
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Runs as one process of the reference tunnel.
    #[arg(long, hide = true, value_enum, requires = "folder")]
    part: Option<reference::Part>,
    /// Where the processes of the reference tunnel find each other.
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
    /// The service behind the reference tunnel.
    #[arg(long, hide = true)]
    target: Option<SocketAddr>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// The longest gap of a ping-pong when its relay goes.
    Gaps(gaps::GapsArgs),
    /// What idle and suspended streams cost.
    Memory(memory::MemoryArgs),
}

/// Measures and prints the table.
pub(crate) fn run(arguments: &BenchArgs) -> Result<()> {
    if let (Some(part), Some(folder)) = (arguments.part, &arguments.folder) {
        return reference::run(part, folder, arguments.target);
    }
    match &arguments.what {
        Some(What::Gaps(arguments)) => return gaps::run(arguments),
        Some(What::Memory(arguments)) => return memory::run(arguments),
        None => {}
    }
    for name in &arguments.without {
        if !SUBJECTS.contains(&name.as_str()) {
            bail!("`{name}` is no subject: there are {}", SUBJECTS.join(", "));
        }
    }
    if !arguments.smoke && release::again()? {
        return Ok(());
    }
    measure(arguments)
}

fn measure(arguments: &BenchArgs) -> Result<()> {
    process::raise_own_descriptors()?;
    let plan = if arguments.smoke { Plan::SMOKE } else { Plan::FULL };
    let rounds = match (&arguments.against, arguments.smoke) {
        (_, true) => 1,
        (Some(_), false) => arguments.rounds.unwrap_or(against::ROUNDS).max(1),
        (None, false) => arguments.rounds.unwrap_or(ROUNDS).max(1),
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let ground = Ground::build(arguments, &runtime)?;
    let mut table = Table::new(ground.subjects.iter().map(|s| s.name).collect());
    let is_pool = |subject: &Subject| ground.pools.iter().any(|pool| pool.name == subject.name);
    for subject in ground.subjects.iter().filter(|subject| !is_pool(subject)) {
        eprintln!("bench: idle tunnels through {}", subject.name);
        load::idle(subject, &plan, &mut table).with_context(|| subject.name.to_owned())?;
    }
    for round in 1..=rounds {
        for pool in &ground.pools {
            eprintln!(
                "bench: round {round} of {rounds}: idle tunnels through {}",
                pool.name
            );
            let fresh = pool.again(&runtime, ground.service)?;
            load::idle(&fresh.subject()?, &plan, &mut table).with_context(|| pool.name.to_owned())?;
            fresh.stop(&runtime)?;
        }
    }
    for round in 1..=rounds {
        for subject in &ground.subjects {
            eprintln!("bench: round {round} of {rounds}: {}", subject.name);
            load::round(subject, &plan, &mut table).with_context(|| subject.name.to_owned())?;
        }
    }
    for pool in ground.pools {
        pool.stop(&runtime)?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&table.to_json())?);
    } else {
        println!("{}", table.to_text());
    }
    if let Some(revision) = &arguments.against {
        let worse = against::worse(&table);
        if !worse.is_empty() {
            bail!("worse than at {revision}:\n  {}", worse.join("\n  "));
        }
        println!("\nnothing is worse than at {revision}");
    }
    Ok(())
}

/// What is measured, and what keeps it running.
struct Ground {
    service: SocketAddr,
    subjects: Vec<Subject>,
    pools: Vec<Running>,
    _quinn: Option<reference::Tunnel>,
    _peers: Vec<peers::Peer>,
}

impl Ground {
    fn build(arguments: &BenchArgs, runtime: &tokio::runtime::Runtime) -> Result<Self> {
        let service = service::start()?;
        let alone = arguments.against.is_some();
        let wanted = |name: &str| !arguments.without.iter().any(|w| w == name);
        let (mut subjects, mut pools) = (Vec::new(), Vec::new());
        if wanted("direct") && !alone {
            subjects.push(Subject {
                name: "direct",
                address: service,
                relays: Vec::new(),
                nodes: Vec::new(),
            });
        }
        if let Some(revision) = &arguments.against {
            let builder = Pool::builder().program(&against::build(revision)?);
            let pool = Running::start(against::BEFORE, builder, runtime, service)?;
            subjects.push(pool.subject()?);
            pools.push(pool);
        }
        if wanted("fairlead") || alone {
            let pool = Running::start("fairlead", Pool::builder(), runtime, service)?;
            subjects.push(pool.subject()?);
            pools.push(pool);
        }
        let quinn = match wanted("quinn") && !alone {
            true => Some(reference::Tunnel::start(service)?),
            false => None,
        };
        subjects.extend(quinn.as_ref().map(reference::Tunnel::subject));
        let mut peers = Vec::new();
        for name in peers::NAMES {
            if alone || arguments.smoke || !wanted(name) {
                continue;
            }
            // They come from a registry, which may be out of reach: the rest is measured without.
            match peers::Peer::start(name, service).and_then(|peer| peer.served()) {
                Ok(peer) => {
                    subjects.push(peer.subject());
                    peers.push(peer);
                }
                Err(error) => eprintln!("bench: without {name}: {error:#}"),
            }
        }
        Ok(Self {
            service,
            subjects,
            pools,
            _quinn: quinn,
            _peers: peers,
        })
    }
}

/// A pool under measurement.
struct Running {
    name: &'static str,
    builder: PoolBuilder,
    pool: Pool,
}

impl Running {
    fn start(
        name: &'static str,
        builder: PoolBuilder,
        runtime: &tokio::runtime::Runtime,
        service: SocketAddr,
    ) -> Result<Self> {
        let listen = fairlead_testkit::target::closed_port()?;
        let linked = builder
            .clone()
            .link(LINK, &listen.to_string(), &service.to_string());
        let pool = runtime.block_on(linked.start())?;
        // The first tunnel makes the association; it is not what is measured.
        load::until_served(pool.listen(LINK)?)?;
        Ok(Self { name, builder, pool })
    }

    /// Another of its kind: memory that was used once is kept, and how much of it is of one process is
    /// chance.
    fn again(&self, runtime: &tokio::runtime::Runtime, service: SocketAddr) -> Result<Self> {
        Self::start(self.name, self.builder.clone(), runtime, service)
    }

    fn subject(&self) -> Result<Subject> {
        let file = self.pool.file()?;
        Ok(Subject {
            name: self.name,
            address: file.listen(LINK)?,
            relays: file.relays.iter().map(|r| r.worker_pid).collect(),
            nodes: file.nodes.iter().map(|n| n.pid).collect(),
        })
    }

    fn stop(mut self, runtime: &tokio::runtime::Runtime) -> Result<()> {
        runtime.block_on(self.pool.stop(STOP_LIMIT))?;
        self.pool.hush();
        Ok(())
    }
}

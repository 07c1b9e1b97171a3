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
use std::path::PathBuf;
use table::Table;

/// Rounds of a full run.
const ROUNDS: usize = 3;
/// The link that the pool is measured through.
const LINK: &str = "bench";

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
    target: Option<std::net::SocketAddr>,
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
    for subject in &ground.subjects {
        eprintln!("bench: idle tunnels through {}", subject.name);
        load::idle(subject, &plan, &mut table).with_context(|| subject.name.to_owned())?;
    }
    for round in 1..=rounds {
        for subject in &ground.subjects {
            eprintln!("bench: round {round} of {rounds}: {}", subject.name);
            load::round(subject, &plan, &mut table).with_context(|| subject.name.to_owned())?;
        }
    }
    for mut pool in ground.pools {
        runtime.block_on(pool.stop(std::time::Duration::from_secs(15)))?;
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
    subjects: Vec<Subject>,
    pools: Vec<Pool>,
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
            let pool = runtime.block_on(start_pool(builder, service))?;
            subjects.push(subject_of(&pool, against::BEFORE)?);
            pools.push(pool);
        }
        if wanted("fairlead") || alone {
            let pool = runtime.block_on(start_pool(Pool::builder(), service))?;
            subjects.push(subject_of(&pool, "fairlead")?);
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
            subjects,
            pools,
            _quinn: quinn,
            _peers: peers,
        })
    }
}

async fn start_pool(builder: PoolBuilder, service: std::net::SocketAddr) -> Result<Pool> {
    let listen = fairlead_testkit::target::closed_port()?;
    let builder = builder.link(LINK, &listen.to_string(), &service.to_string());
    let pool = builder.start().await?;
    // The first tunnel makes the association; it is not what is measured.
    load::until_served(pool.listen(LINK)?)?;
    Ok(pool)
}

fn subject_of(pool: &Pool, name: &'static str) -> Result<Subject> {
    let file = pool.file()?;
    Ok(Subject {
        name,
        address: file.listen(LINK)?,
        relays: file.relays.iter().map(|r| r.worker_pid).collect(),
        nodes: file.nodes.iter().map(|n| n.pid).collect(),
    })
}

//! Measures Fairlead beside what users would pick instead, in one run on one machine: direct TCP,
//! a pool of a release build, and a plain two-hop quinn tunnel with the same cryptography.
//!
//! Compare within one run only. Every figure is the median of the rounds; the subjects take turns
//! within each round, so that a machine that slows down slows all of them.

mod load;
mod reference;
mod service;
mod table;

use anyhow::{Context, Result, bail};
use fairlead_testkit::{Pool, binary, process};
use load::{Plan, Subject};
use std::path::{Path, PathBuf};
use std::process::Command;
use table::Table;

/// Rounds of a full run.
const ROUNDS: usize = 3;
/// The link that the pool is measured through.
const LINK: &str = "bench";

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// A minute's run that shows that everything works; its figures mean nothing.
    #[arg(long)]
    pub(crate) smoke: bool,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
    /// How often everything is measured; the table shows medians.
    #[arg(long, default_value_t = ROUNDS, value_name = "N")]
    rounds: usize,
    /// Leaves a subject out (repeatable): `direct`, `fairlead` or `quinn`.
    #[arg(long, value_name = "SUBJECT")]
    without: Vec<String>,
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

/// Measures and prints the table.
pub(crate) fn run(arguments: &BenchArgs) -> Result<()> {
    if let (Some(part), Some(folder)) = (arguments.part, &arguments.folder) {
        return reference::run(part, folder, arguments.target);
    }
    for name in &arguments.without {
        if !["direct", "fairlead", "quinn"].contains(&name.as_str()) {
            bail!("`{name}` is no subject: there are direct, fairlead and quinn");
        }
    }
    // A full run measures release builds: of the binary, which the testkit finds by its variable,
    // and of the load generator and the reference, which are in this one.
    let named = std::env::var_os(binary::BINARY_VARIABLE).map(PathBuf::from);
    if !arguments.smoke && (cfg!(debug_assertions) || named.is_none()) {
        let built = release_build()?;
        return again_with(
            &built.join("xtask"),
            &named.unwrap_or_else(|| built.join("fairlead")),
        );
    }
    measure(arguments)
}

fn measure(arguments: &BenchArgs) -> Result<()> {
    process::raise_own_descriptors()?;
    let plan = if arguments.smoke { Plan::SMOKE } else { Plan::FULL };
    let rounds = if arguments.smoke {
        1
    } else {
        arguments.rounds.max(1)
    };
    let service = service::start()?;
    let wanted = |name: &str| !arguments.without.iter().any(|w| w == name);
    let runtime = tokio::runtime::Runtime::new()?;
    let mut subjects = Vec::new();
    if wanted("direct") {
        subjects.push(Subject {
            name: "direct",
            address: service,
            relays: Vec::new(),
            nodes: Vec::new(),
        });
    }
    let mut pool = None;
    if wanted("fairlead") {
        let running = runtime.block_on(start_pool(service))?;
        subjects.push(subject_of(&running)?);
        pool = Some(running);
    }
    let quinn = if wanted("quinn") {
        Some(reference::Tunnel::start(service)?)
    } else {
        None
    };
    subjects.extend(quinn.as_ref().map(reference::Tunnel::subject));

    let mut table = Table::new(subjects.iter().map(|s| s.name).collect());
    for subject in &subjects {
        eprintln!("bench: idle tunnels through {}", subject.name);
        load::idle(subject, &plan, &mut table).with_context(|| subject.name.to_owned())?;
    }
    for round in 1..=rounds {
        for subject in &subjects {
            eprintln!("bench: round {round} of {rounds}: {}", subject.name);
            load::round(subject, &plan, &mut table).with_context(|| subject.name.to_owned())?;
        }
    }
    if let Some(mut pool) = pool {
        runtime.block_on(pool.stop(std::time::Duration::from_secs(15)))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&table.to_json())?);
    } else {
        println!("{}", table.to_text());
    }
    Ok(())
}

async fn start_pool(service: std::net::SocketAddr) -> Result<Pool> {
    let listen = fairlead_testkit::target::closed_port()?;
    let builder = Pool::builder().link(LINK, &listen.to_string(), &service.to_string());
    let pool = builder.start().await?;
    // The first tunnel makes the association; it is not what is measured.
    load::until_served(pool.listen(LINK)?)?;
    Ok(pool)
}

fn subject_of(pool: &Pool) -> Result<Subject> {
    let file = pool.file()?;
    Ok(Subject {
        name: "fairlead",
        address: file.listen(LINK)?,
        relays: file.relays.iter().map(|r| r.worker_pid).collect(),
        nodes: file.nodes.iter().map(|n| n.pid).collect(),
    })
}

/// Builds what is measured as it is released and returns the folder that holds it.
fn release_build() -> Result<PathBuf> {
    let root = crate::source::root()?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--release", "-p", "fairlead", "-p", "xtask"])
        .current_dir(&root);
    crate::steps::run_command(&mut build)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release"))
}

/// Runs this same command from another build, and with the variable that names the binary: a process
/// cannot safely change its own environment once it has threads.
fn again_with(xtask: &Path, fairlead: &Path) -> Result<()> {
    let mut again = Command::new(xtask);
    again
        .args(std::env::args_os().skip(1))
        .env(binary::BINARY_VARIABLE, fairlead);
    crate::steps::run_command(&mut again)
}

//! `cargo xtask sim`: the simulator of `tests/sim`, built to be fast and with its assertions.

use crate::{source, steps};
use anyhow::Result;
use std::process::Command;

/// Arguments of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimArguments {
    /// One world only, `streams` or `hop`; each seed runs in all of them if not given.
    #[arg(long)]
    world: Option<String>,
    /// Replays this one seed: prints its last events and the digest of all of them.
    #[arg(long, conflicts_with_all = ["seeds", "from", "minutes", "jobs"])]
    seed: Option<u64>,
    /// How many seeds; ten that fail end the run.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first of the seeds; another one each time if not given.
    #[arg(long)]
    from: Option<u64>,
    /// Stops after this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// How many threads; one per core if not given.
    #[arg(long)]
    jobs: Option<usize>,
}

/// Builds and runs it.
pub(crate) fn run(arguments: &SimArguments) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "run",
        "--quiet",
        "--profile",
        "e2e",
        "--package",
        "fairlead-sim",
        "--",
    ]);
    match arguments.seed {
        Some(seed) => command.arg(format!("--seed={seed}")),
        None => command.arg(format!("--seeds={}", arguments.seeds)),
    };
    if let Some(world) = &arguments.world {
        command.arg(format!("--world={world}"));
    }
    if let Some(from) = arguments.from {
        command.arg(format!("--from={from}"));
    }
    if let Some(minutes) = arguments.minutes {
        command.arg(format!("--minutes={minutes}"));
    }
    if let Some(jobs) = arguments.jobs {
        command.arg(format!("--jobs={jobs}"));
    }
    command.current_dir(source::root()?);
    steps::run_command(&mut command)
}

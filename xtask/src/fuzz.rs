//! Fuzzing on the stable compiler: libFuzzer with coverage and AddressSanitizer, no other tool.

use crate::{source, steps};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The sanitizer needs a target of its own name, so that build scripts and macros go without it.
const TRIPLE: &str = concat!(env!("XTASK_ARCH"), "-unknown-linux-gnu");

/// What libFuzzer needs of the compiler.
const FLAGS: [&str; 9] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Zsanitizer=address",
    "--cfg=fuzzing",
];

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzArguments {
    /// How long each target runs, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Only this target (repeatable).
    #[arg(long = "target", value_name = "NAME")]
    targets: Vec<String>,
    /// How many targets run at a time.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// Prints the targets and runs none.
    #[arg(long)]
    list: bool,
}

/// How long a smoke run gives each target: all seeds, and some thousands of variations.
const SMOKE_SECONDS: u64 = 4;
/// What a smoke run is built with: there is more to build than to run.
const SMOKE_PROFILE: &str = "smoke";
/// What the targets are built with else.
const PROFILE: &str = "release";

/// Runs every target for a few seconds.
pub(crate) fn smoke() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    fuzz_with(
        &FuzzArguments {
            seconds: SMOKE_SECONDS,
            targets: Vec::new(),
            jobs: u8::try_from(cores).unwrap_or(u8::MAX),
            list: false,
        },
        SMOKE_PROFILE,
    )
}

/// Builds the targets and runs them.
pub(crate) fn run(arguments: &FuzzArguments) -> Result<()> {
    fuzz_with(arguments, PROFILE)
}

fn fuzz_with(arguments: &FuzzArguments, profile: &str) -> Result<()> {
    let folder = source::root()?.join("fuzz");
    let all = targets(&folder)?;
    if let Some(unknown) = arguments.targets.iter().find(|t| !all.contains(t)) {
        bail!("no fuzz target `{unknown}`; there are: {}", all.join(", "));
    }
    if arguments.list {
        println!("{}", all.join("\n"));
        return Ok(());
    }
    let chosen = all
        .iter()
        .filter(|t| arguments.targets.is_empty() || arguments.targets.contains(t));
    let chosen: Vec<&String> = chosen.collect();
    let built = build(&folder, &chosen, profile)?;
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                while let Some(name) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("fuzz: {name} for {} s", arguments.seconds);
                    if let Err(error) = fuzz(&folder, &built.join(name), name, arguments.seconds) {
                        println!("fuzz: {name}: {error:#}");
                        failed
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(name.as_str());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("failed: {}; inputs are in fuzz/artifacts", failed.join(", "));
    }
    println!("fuzz: {} targets, nothing found", chosen.len());
    Ok(())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

fn metadata(folder: &Path) -> Result<Metadata> {
    let mut command = cargo();
    command
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(folder);
    let output = command
        .output()
        .with_context(|| format!("cargo metadata in {}", folder.display()))?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata")
}

fn targets(folder: &Path) -> Result<Vec<String>> {
    let targets = metadata(folder)?.packages.into_iter().flat_map(|p| p.targets);
    let mut names: Vec<String> = targets
        .filter(|t| t.kind.iter().any(|k| k == "bin"))
        .map(|t| t.name)
        .collect();
    names.sort();
    if names.is_empty() {
        bail!("no fuzz target in {}", folder.display());
    }
    Ok(names)
}

/// Builds the chosen targets and returns the folder that holds them.
fn build(folder: &Path, chosen: &[&String], profile: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["build", "--profile", profile, "--target", TRIPLE])
        .current_dir(folder);
    for name in chosen {
        command.args(["--bin", name]);
    }
    // Coverage and sanitizers are unstable options; this variable opens them on the stable compiler.
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    steps::run_command(&mut command)?;
    Ok(metadata(folder)?.target_directory.join(TRIPLE).join(profile))
}

fn fuzz(folder: &Path, program: &Path, name: &str, seconds: u64) -> Result<()> {
    let artifacts = folder.join("artifacts").join(name);
    std::fs::create_dir_all(&artifacts)?;
    // New inputs go to a folder of this run; what is worth keeping is committed by hand as a seed.
    let fresh = tempfile::Builder::new().prefix("fuzz-").tempdir()?;
    let mut command = Command::new(program);
    command.arg(fresh.path());
    for seeds in ["corpus", "seeds"] {
        let seeds = folder.join(seeds).join(name);
        if seeds.is_dir() {
            command.arg(seeds);
        }
    }
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-max_total_time={seconds}"));
    command.args([
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        "-verbosity=0",
    ]);
    steps::run_command(&mut command)
}

/// Cargo without the variables that this command's own `cargo run` set.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.env_remove("CARGO_TARGET_DIR");
    command
}

//! `cargo xtask sim`: many seeds over all cores, or one with its last events.

use anyhow::{Result, bail};
use clap::Parser;
use fairlead_sim::{Transcript, streams};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(name = "cargo xtask sim", about = "Simulates the cores, seed by seed")]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Runs this one seed alone and prints its last events and its digest.
    #[arg(long)]
    seed: Option<u64>,
    /// The first of the seeds; another each time if not given.
    #[arg(long)]
    from: Option<u64>,
    /// Stops after this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// How many threads; one per core if not given.
    #[arg(long)]
    jobs: Option<usize>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => replay(seed),
        None => many(&arguments),
    }
}

/// Both worlds of a seed.
fn run(seed: u64, transcript: &mut Transcript) {
    streams::run(seed, transcript);
}

fn replay(seed: u64) -> Result<()> {
    let mut transcript = Transcript::new(true);
    let result = catch_unwind(AssertUnwindSafe(|| run(seed, &mut transcript)));
    for line in transcript.lines() {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} events, digest {:016x}",
        transcript.events(),
        transcript.digest()
    );
    if result.is_err() {
        bail!("seed {seed} fails");
    }
    Ok(())
}

fn many(arguments: &Arguments) -> Result<()> {
    let from = arguments.from.unwrap_or_else(|| fastrand::u64(..) >> 16);
    let started = Instant::now();
    let limit = arguments.minutes.map(|m| Duration::from_secs(m * 60));
    let jobs = arguments
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (next, done, events) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && limit.is_none_or(|l| started.elapsed() < l) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= arguments.seeds {
                        break;
                    }
                    let seed = from.wrapping_add(n);
                    let mut transcript = Transcript::new(false);
                    if catch_unwind(AssertUnwindSafe(|| run(seed, &mut transcript))).is_err() {
                        eprintln!("seed {seed} fails; replay: cargo xtask sim --seed {seed}");
                        if failed.fetch_add(1, Ordering::Relaxed) >= 9 {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                    events.fetch_add(transcript.events(), Ordering::Relaxed);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(10_000) {
                        println!("{done} seeds in {:.0} s", started.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    println!(
        "{} seeds from {from}, {} events in {:.1} s",
        done.into_inner(),
        events.into_inner(),
        started.elapsed().as_secs_f64()
    );
    match failed.into_inner() {
        0 => Ok(()),
        n => bail!("{n} seeds fail; replay one with `cargo xtask sim --seed SEED`"),
    }
}

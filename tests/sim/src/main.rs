//! `cargo xtask sim`: many seeds over all cores, or one with its last events.

use anyhow::{Result, bail};
use clap::Parser;
use fairlead_sim::{Transcript, WorldKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Failing runs that end it all: what they have in common shows by then.
const FAILURES_MAX: u64 = 10;

#[derive(Parser)]
#[command(name = "cargo xtask sim", about = "Simulates the cores, seed by seed")]
struct Arguments {
    /// How many seeds; ten that fail end the run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// One world only; each seed runs in all of them if not given.
    #[arg(long)]
    world: Option<WorldKind>,
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
    let worlds = arguments
        .world
        .map_or(WorldKind::ALL.to_vec(), |world| vec![world]);
    match arguments.seed {
        Some(seed) => replay(seed, &worlds),
        None => many(&arguments, &worlds),
    }
}

fn replay(seed: u64, worlds: &[WorldKind]) -> Result<()> {
    let mut failed = false;
    for world in worlds {
        let mut transcript = Transcript::new(true);
        let result = catch_unwind(AssertUnwindSafe(|| world.run(seed, &mut transcript)));
        for line in transcript.lines() {
            println!("{line}");
        }
        println!(
            "world {}, seed {seed}: {} events, digest {:016x}",
            world.as_str(),
            transcript.events(),
            transcript.digest()
        );
        failed |= result.is_err();
    }
    if failed {
        bail!("seed {seed} fails");
    }
    Ok(())
}

/// What became of the seeds in one world.
#[derive(Default)]
struct Tally {
    seeds: AtomicU64,
    events: AtomicU64,
    busy_us: AtomicU64,
}

fn many(arguments: &Arguments, worlds: &[WorldKind]) -> Result<()> {
    let from = arguments.from.unwrap_or_else(|| fastrand::u64(..) >> 16);
    let started = Instant::now();
    let limit = arguments.minutes.map(|m| Duration::from_secs(m * 60));
    let jobs = arguments
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let tallies: Vec<Tally> = worlds.iter().map(|_| Tally::default()).collect();
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
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
                    for (world, tally) in worlds.iter().zip(&tallies) {
                        if !one(*world, seed, tally)
                            && failed.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX
                        {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(10_000) {
                        println!("{done} seeds in {:.0} s", started.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    for (world, tally) in worlds.iter().zip(tallies) {
        let (seeds, busy_s) = (tally.seeds.into_inner(), tally.busy_us.into_inner() as f64 / 1e6);
        println!(
            "world {}: {seeds} seeds from {from}, {} events, {:.0} seeds a second and thread",
            world.as_str(),
            tally.events.into_inner(),
            seeds as f64 / busy_s.max(1e-6),
        );
    }
    println!("{:.1} s with {jobs} threads", started.elapsed().as_secs_f64());
    match failed.into_inner() {
        0 => Ok(()),
        n => bail!("{n} runs fail; replay one with `cargo xtask sim --world WORLD --seed SEED`"),
    }
}

/// Runs one seed in one world: whether it holds.
fn one(world: WorldKind, seed: u64, tally: &Tally) -> bool {
    let began = Instant::now();
    let mut transcript = Transcript::new(false);
    let holds = catch_unwind(AssertUnwindSafe(|| world.run(seed, &mut transcript))).is_ok();
    if !holds {
        let name = world.as_str();
        eprintln!("seed {seed} fails; replay: cargo xtask sim --world {name} --seed {seed}");
    }
    let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    tally.seeds.fetch_add(1, Ordering::Relaxed);
    tally.events.fetch_add(transcript.events(), Ordering::Relaxed);
    tally.busy_us.fetch_add(took, Ordering::Relaxed);
    holds
}

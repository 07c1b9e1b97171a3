//! The project's own commands: `cargo xtask test` is everything that must pass, the others are its
//! parts and what a developer asks in between.

mod arrows;
mod bench;
mod deb;
mod docs;
mod fuzz;
mod needs;
mod release;
mod sim;
mod soak;
mod source;
mod spec;
mod steps;
mod test;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Fairlead's own commands",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must pass: format, lints, arrows, tidy, licences, unit and end-to-end tests,
    /// fuzz and bench smoke. Installs what it needs, or names it.
    Test(test::TestArguments),
    /// Holds the crates' dependencies against the layer table.
    Arrows,
    /// Checks what memory would forget: file sizes, module docs, undocumented settings, stray words.
    Tidy,
    /// Builds the Debian package, and tries it on a clean root.
    Deb(deb::DebArguments),
    /// Writes docs/reference from the code: settings, metrics, codes, command line.
    Docs,
    /// Lists the requirements that no test cites, by area.
    Spec(spec::SpecArguments),
    /// Runs the fuzz targets.
    Fuzz(fuzz::FuzzArguments),
    /// Simulates the pure cores, seed by seed, over all cores; `--seed` replays one.
    Sim(sim::SimArguments),
    /// Measures Fairlead beside what users would pick instead.
    Bench(bench::BenchArgs),
    /// Runs for long under faults, and holds what it saw against limits.
    Soak(soak::SoakArgs),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Test(arguments) => test::run(arguments),
        Command::Arrows => arrows::run(),
        Command::Tidy => tidy::run(),
        Command::Deb(arguments) => deb::run(arguments),
        Command::Docs => docs::run(),
        Command::Spec(arguments) => spec::run(arguments),
        Command::Fuzz(arguments) => fuzz::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Soak(arguments) => soak::run(arguments),
    }
}

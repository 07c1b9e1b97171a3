//! Runs of minutes that CI has no time for: endless kills, and hundreds of thousands of short tunnels.

mod kills;
mod short;
mod watch;

use crate::release;
use anyhow::{Context, Result};
use std::time::Duration;

/// Arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    #[command(subcommand)]
    what: Soak,
}

#[derive(Debug, clap::Subcommand)]
enum Soak {
    /// Bytes both ways at once while the carrying relay is killed again and again (F-04).
    Kills(kills::KillsArgs),
    /// Short tunnels, a third of them reset; afterwards every process is as it was before.
    Short(short::ShortArgs),
}

/// Runs one of them.
pub(crate) fn run(arguments: &SoakArgs) -> Result<()> {
    let smoke = match &arguments.what {
        Soak::Kills(arguments) => arguments.smoke,
        Soak::Short(arguments) => arguments.smoke,
    };
    if !smoke && release::again()? {
        return Ok(());
    }
    fairlead_testkit::process::raise_own_descriptors()?;
    let runtime = tokio::runtime::Runtime::new()?;
    match &arguments.what {
        Soak::Kills(arguments) => runtime.block_on(kills::run(arguments)),
        Soak::Short(arguments) => runtime.block_on(short::run(arguments)),
    }
}

/// Seconds, with or without the unit: `7s`.
fn seconds(text: &str) -> Result<Duration> {
    let number = text.trim_end_matches('s');
    let number: f64 = number
        .parse()
        .with_context(|| format!("`{text}` is no number of seconds"))?;
    Duration::try_from_secs_f64(number).context("not a time")
}

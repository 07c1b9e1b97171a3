//! Measures Fairlead beside what users would pick instead.

use anyhow::Result;

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// A minute's run that shows that everything works; its figures mean nothing.
    #[arg(long)]
    pub(crate) smoke: bool,
}

/// Measures and prints the table.
pub(crate) fn run(arguments: &BenchArgs) -> Result<()> {
    println!("bench: nothing is measured yet (smoke: {})", arguments.smoke);
    Ok(())
}

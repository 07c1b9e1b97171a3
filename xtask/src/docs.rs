//! `cargo xtask docs`: writes the reference pages from the code.

use crate::steps;
use anyhow::Result;
use std::process::Command;

/// Runs the test that compares the pages with the code, and lets it write them.
pub(crate) fn run() -> Result<()> {
    let arguments = ["test", "-q", "-p", "fairlead", "--test", "binary", "reference::"];
    steps::run_command(
        Command::new("cargo")
            .args(arguments)
            .env("FAIRLEAD_WRITE_REFERENCE", "1"),
    )
}

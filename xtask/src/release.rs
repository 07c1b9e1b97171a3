//! What is measured is what is released: builds it, and runs the same command again from that build.

use anyhow::Result;
use fairlead_testkit::binary;
use std::path::PathBuf;
use std::process::Command;

/// Runs this command again from a release build and returns true, unless this is one already.
///
/// The binary under test is found by its variable; load generators and references are in `xtask`
/// itself. A process cannot safely change its own environment once it has threads.
pub(crate) fn again() -> Result<bool> {
    let named = std::env::var_os(binary::BINARY_VARIABLE).map(PathBuf::from);
    if !cfg!(debug_assertions) && named.is_some() {
        return Ok(false);
    }
    let built = build()?;
    let mut again = Command::new(built.join("xtask"));
    again.args(std::env::args_os().skip(1)).env(
        binary::BINARY_VARIABLE,
        named.unwrap_or_else(|| built.join("fairlead")),
    );
    crate::steps::run_command(&mut again)?;
    Ok(true)
}

/// Builds and returns the folder that holds the programs.
fn build() -> Result<PathBuf> {
    let mut build = Command::new(cargo());
    build
        .args(["build", "--release", "-p", "fairlead", "-p", "xtask"])
        .current_dir(crate::source::root()?);
    crate::steps::run_command(&mut build)?;
    Ok(target_folder()?.join("release"))
}

/// The cargo that runs this.
pub(crate) fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => Ok(folder.into()),
        None => Ok(crate::source::root()?.join("target")),
    }
}

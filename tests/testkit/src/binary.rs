//! Where the binary under test is.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The variable that names the binary under test; `cargo xtask test` sets it.
pub const BINARY_VARIABLE: &str = "FAIRLEAD_BIN";

/// The binary under test: `FAIRLEAD_BIN`, else the `e2e` build in the target folder.
///
/// # Errors
/// When there is none; the message holds the command that makes it.
pub fn fairlead() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("{BINARY_VARIABLE} names `{}`, which is no file", path.display());
    }
    let path = target_dir()?.join("e2e/fairlead");
    if path.is_file() {
        return Ok(path);
    }
    bail!(
        "no binary at {}: run `cargo build --profile e2e -p fairlead --features test-clock`",
        path.display()
    )
}

/// The root folder of the workspace.
///
/// # Errors
/// When this crate lies at the root of the file system.
pub fn workspace() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here
        .ancestors()
        .nth(2)
        .context("the workspace has no root")?
        .to_owned())
}

fn target_dir() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => Ok(PathBuf::from(dir)),
        None => Ok(workspace()?.join("target")),
    }
}

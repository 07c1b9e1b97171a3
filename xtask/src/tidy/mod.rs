//! `cargo xtask tidy`: the checks that no compiler makes and nobody remembers.

mod dependencies;
mod operators;
mod settings;
mod text;

use crate::source::{self, SourceFile};
use anyhow::{Result, bail};

/// One thing that is not as the house has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    /// Where: a path, with a line where one is meant.
    pub(crate) place: String,
    /// What is wrong, and what is asked for.
    pub(crate) what: String,
}

impl Fault {
    fn at(file: &SourceFile, line: usize, what: impl Into<String>) -> Self {
        Self {
            place: format!("{}:{line}", file.path),
            what: what.into(),
        }
    }

    fn of(file: &SourceFile, what: impl Into<String>) -> Self {
        Self {
            place: file.path.clone(),
            what: what.into(),
        }
    }
}

/// Checks every file; prints all faults, and what is worth a look.
pub(crate) fn run() -> Result<()> {
    let files = source::files()?;
    let mut faults: Vec<Fault> = files.iter().flat_map(text::check).collect();
    faults.extend(settings::check(&files));
    faults.extend(operators::check(&files));
    faults.extend(dependencies::check(&files, &crate::arrows::packages()?)?);
    faults.sort();
    let long = files.iter().filter(|f| text::is_long(f)).count();
    for fault in &faults {
        println!("tidy: {}: {}", fault.place, fault.what);
    }
    if !faults.is_empty() {
        bail!("{} things to tidy", faults.len());
    }
    println!(
        "tidy: {} files; {long} hold more than {} lines",
        files.len(),
        text::ROOM_LINES
    );
    Ok(())
}

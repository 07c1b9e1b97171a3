//! Completions and man pages, drawn from the command line's own definition.

use crate::cli::Cli;
use crate::cli::verbs::{Completions, Man};
use crate::exit::{Exit, Failing, Failure};
use crate::table;
use clap::CommandFactory;
use fairlead_host::file::{self, FileError};
use std::io;
use std::path::Path;

/// Why a page was not written.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("a page cannot be made")]
    Render(#[source] io::Error),
}

impl Failing for PageError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Prints a shell's completions.
pub(crate) fn completions(flags: &Completions) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "fairlead", &mut text);
    table::raw(&String::from_utf8_lossy(&text));
    Exit::Done
}

/// Prints the program's page, or writes one for each command.
pub(crate) fn man(flags: &Man) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    match &flags.dir {
        None => {
            let text = page(command).map_err(PageError::Render)?;
            table::raw(&String::from_utf8_lossy(&text));
        }
        Some(dir) => {
            file::make_folder(dir, 0o755).map_err(PageError::File)?;
            let count = write_all(dir, command)?;
            table::line(&format!("{count} pages in {}", dir.display()));
        }
    }
    Ok(())
}

/// The page of a command and those below it; how many.
fn write_all(dir: &Path, command: clap::Command) -> Result<usize, PageError> {
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let below: Vec<clap::Command> = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
        .cloned()
        .collect();
    let text = page(command).map_err(PageError::Render)?;
    file::write_atomic(&dir.join(format!("{name}.1")), 0o644, &text)?;
    below
        .into_iter()
        .try_fold(1, |count, command| Ok(count + write_all(dir, command)?))
}

fn page(command: clap::Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command that people use says what it does, and its page is made.
    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Cli::command();
        command.build();
        let count = write_all(dir.path(), command).unwrap();
        assert!(count > 30, "{count}");
        for name in [
            "fairlead.1",
            "fairlead-relay-add.1",
            "fairlead-run-control.1",
            "fairlead-doctor.1",
        ] {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(text.contains(".SH NAME") && text.len() > 500, "{name}: {text}");
        }
    }
}

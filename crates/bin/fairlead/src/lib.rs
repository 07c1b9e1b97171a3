//! The `fairlead` binary's insides: flags and settings, wiring of the daemons, exit codes, the
//! admin's verbs, enrolment, and `up`, a whole pool on one machine.
//!
//! Nothing here decides anything about traffic or trust: the planes do. This crate reads what
//! people wrote, reports every fault of it at once, starts what was asked for and says in words
//! how it went.

pub mod cli;
mod doctor;
mod enrol;
pub mod exit;
pub mod faults;
mod hoist;
mod pages;
mod ports;
mod profile;
mod prompt;
mod rest;
mod run;
pub mod settings;
mod table;
pub mod tie;
mod tls;
mod token;
mod up;
mod verbs;
mod watch;

use clap::Parser;
use cli::{Cli, Command};
use exit::{Exit, Failure};
use fairlead_telemetry::{LogFormat, chain};
use std::process::ExitCode;

/// Environment variable with the log filter: `info`, `fairlead_node=debug`.
const LOG_VARIABLE: &str = "FAIRLEAD_LOG";

/// Runs the command line; the binary's `main`.
#[must_use]
pub fn main() -> ExitCode {
    run::keep_memory_private();
    let args = hoist::connection_flags(std::env::args_os());
    let cli = match Cli::try_parse_from(args.clone()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap's own code for the rest is 2.
            if error.use_stderr() {
                let _ = error.print();
                if error.kind() == clap::error::ErrorKind::UnknownArgument
                    && let Some(tip) = watch::tip(&args)
                {
                    table::complain(&format!("\n{tip}"));
                }
                return Exit::Usage.into();
            }
            table::note(error.print());
            return printed(Exit::Done).into();
        }
    };
    // A second installation cannot happen: this is the process's first act with TLS.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match dispatch(cli.command) {
        Ok(exit) => printed(exit).into(),
        Err(failure) => {
            table::complain(&format!("fairlead: {}", chain(failure.as_error())));
            failure.exit().into()
        }
    }
}

/// The exit, unless something could not be printed.
fn printed(exit: Exit) -> Exit {
    match (exit, table::failure()) {
        (Exit::Done, Some(error)) => {
            table::complain(&format!("fairlead: standard output cannot be written: {error}"));
            Exit::Failed
        }
        (exit, _) => exit,
    }
}

fn dispatch(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Run(daemon) => run::run(&daemon).map(|()| Exit::Done),
        Command::Up(flags) => short(up::run(&flags)),
        Command::Enrol(flags) => short(enrol::run(&flags)),
        Command::Relay(group) => short(verbs::relay(&group)),
        Command::Node(group) => short(verbs::node(&group)),
        Command::Link(group) => short(verbs::link(&group)),
        Command::Audit(group) => short(verbs::audit(&group)),
        Command::Settings(group) => short(verbs::settings(&group)),
        Command::Token(group) => short(verbs::token(&group)),
        Command::Login(flags) => short(profile::login(&flags)),
        Command::Status(flags) => short(verbs::status(&flags)),
        Command::Doctor(flags) => on_one_thread(doctor::run(&flags)),
        Command::Completions(flags) => Ok(pages::completions(&flags)),
        Command::Man(flags) => pages::man(&flags).map(|()| Exit::Done),
    }
}

/// Runs a command that is done when it has not failed.
fn short(command: impl Future<Output = Result<(), Failure>>) -> Result<Exit, Failure> {
    on_one_thread(async { command.await.map(|()| Exit::Done) })
}

/// Runs a command on one thread; it logs warnings only.
fn on_one_thread(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    init_log(LogFormat::Text, "warn");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(run::RunError::Runtime)?;
    runtime.block_on(command)
}

/// Starts logging to standard error.
fn init_log(format: LogFormat, default: &str) {
    let set = std::env::var(LOG_VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = set.unwrap_or_else(|| default.to_owned());
    if let Err(error) = fairlead_telemetry::init(format, Some(&filter)) {
        table::complain(&format!("fairlead: {LOG_VARIABLE} is ignored: {}", chain(&error)));
        let _ = fairlead_telemetry::init(format, Some(default));
    }
}

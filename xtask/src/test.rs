//! `cargo xtask test`: everything that must pass, cheap checks first.

use crate::steps::{self, Step, Tests};
use crate::{arrows, fuzz, needs, source, spec, tidy};
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestArguments {
    /// Only this step (repeatable).
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Without this step (repeatable).
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// Prints the steps and runs none.
    #[arg(long)]
    list: bool,
}

const STEPS: [Step; 12] = [
    Step {
        name: "needs",
        what: "programs that the tests call",
        essential: true,
        run: || done(needs::provide()),
    },
    Step {
        name: "format",
        what: "rustfmt",
        essential: false,
        run: format,
    },
    Step {
        name: "tidy",
        what: "what memory would forget",
        essential: false,
        run: || done(tidy::run()),
    },
    Step {
        name: "arrows",
        what: "crates against the layers",
        essential: false,
        run: || done(arrows::run()),
    },
    Step {
        name: "spec",
        what: "requirements and their tests",
        essential: false,
        run: || done(spec::run(&spec::SpecArguments::default())),
    },
    Step {
        name: "deny",
        what: "licences, sources, banned crates",
        essential: false,
        run: deny,
    },
    Step {
        name: "clippy",
        what: "lints, warnings are errors",
        essential: false,
        run: clippy,
    },
    Step {
        name: "unit",
        what: "unit and property tests",
        essential: false,
        run: unit,
    },
    Step {
        name: "fuzz",
        what: "every decoder for a few seconds",
        essential: false,
        run: || done(fuzz::smoke()),
    },
    Step {
        name: "build",
        what: "the binary for the end-to-end tests",
        essential: true,
        run: build,
    },
    Step {
        name: "bench",
        what: "benchmarks and soaks run at all",
        essential: false,
        run: bench,
    },
    Step {
        name: "e2e",
        what: "real processes, hurt on purpose",
        essential: false,
        run: e2e,
    },
];

/// Runs the chosen steps.
pub(crate) fn run(arguments: &TestArguments) -> Result<()> {
    for name in arguments.only.iter().chain(&arguments.skip) {
        if !STEPS.iter().any(|s| s.name == name) {
            let all: Vec<&str> = STEPS.iter().map(|s| s.name).collect();
            bail!("no step `{name}`; there are: {}", all.join(", "));
        }
    }
    let named = |list: &[String], step: &Step| list.iter().any(|n| n == step.name);
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|s| arguments.only.is_empty() || named(&arguments.only, s))
        .filter(|s| !named(&arguments.skip, s))
        .collect();
    if arguments.list {
        for step in chosen {
            println!("{:<8} {}", step.name, step.what);
        }
        return Ok(());
    }
    std::env::set_current_dir(source::root()?)?;
    steps::run_all(&chosen)
}

fn done(result: Result<()>) -> Result<Tests> {
    result.map(|()| Tests::default())
}

fn format() -> Result<Tests> {
    done(steps::run("cargo", &["fmt", "--all", "--check"]))
}

/// The release that `deny.toml` was written for.
const DENY_VERSION: &str = "0.20.2";

fn deny() -> Result<Tests> {
    if !steps::answers("cargo", &["deny", "--version"]) {
        // A debug build is there in a third of the time, and its one run is short.
        let mut install = Command::new("cargo");
        install.args([
            "install",
            "--debug",
            "--locked",
            "--quiet",
            "--version",
            DENY_VERSION,
            "cargo-deny",
        ]);
        steps::run_command(&mut install)?;
    }
    // It looks at the crates of every platform; a build fetches those of its own alone.
    steps::run("cargo", &["fetch", "--locked", "--quiet"])?;
    // Advisories need a database from the network: they are no part of a build that works without one.
    let arguments = ["deny", "--offline", "check", "bans", "licenses", "sources"];
    done(steps::run("cargo", &arguments))
}

fn clippy() -> Result<Tests> {
    done(steps::run(
        "cargo",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
    ))
}

fn unit() -> Result<Tests> {
    // The kit and what it drives are measured on the optimised build.
    let chosen = [
        "--workspace",
        "--exclude",
        "fairlead-e2e",
        "--exclude",
        "fairlead-testkit",
    ];
    steps::run_tests(runner().args(chosen))
}

fn build() -> Result<Tests> {
    let arguments = [
        "build",
        "--profile",
        "e2e",
        "-p",
        "fairlead",
        "--features",
        "test-clock",
    ];
    done(steps::run("cargo", &arguments))
}

fn e2e() -> Result<Tests> {
    let mut command = in_own_users(runner());
    let profile = if nextest() { "--cargo-profile" } else { "--profile" };
    command.args([profile, "e2e", "-p", "fairlead-testkit", "-p", "fairlead-e2e"]);
    if !nextest() {
        command.args(["--", "--test-threads", "1"]);
    }
    steps::run_tests(command.env("FAIRLEAD_BIN", binary()?))
}

/// For root, the command itself; for others, the command as root of a user namespace: network
/// namespaces and devices need no more.
fn in_own_users(command: Command) -> Command {
    if rustix::process::geteuid().is_root() {
        return command;
    }
    let mut inside = Command::new("unshare");
    inside
        .args(["--user", "--map-root-user"])
        .arg(command.get_program())
        .args(command.get_args());
    inside
}

/// The short forms of the benchmarks and soaks: that they run, and that what they assert holds.
const SMOKES: [&[&str]; 5] = [
    &["bench", "--smoke"],
    &["bench", "gaps", "--smoke"],
    &["bench", "memory", "--smoke"],
    &["soak", "kills", "--smoke"],
    &["soak", "short", "--smoke"],
];

fn bench() -> Result<Tests> {
    let program = std::env::current_exe()?;
    for smoke in SMOKES {
        let mut command = Command::new(&program);
        command.args(smoke);
        steps::run_command(in_own_users(command).env("FAIRLEAD_BIN", binary()?))?;
    }
    done(Ok(()))
}

fn binary() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target
        .map_or_else(|| source::root().map(|root| root.join("target")), Ok)?
        .join("e2e/fairlead"))
}

fn nextest() -> bool {
    steps::answers("cargo", &["nextest", "--version"])
}

/// nextest where it is installed, cargo's own runner elsewhere.
fn runner() -> Command {
    let mut command = Command::new("cargo");
    match nextest() {
        true => command.args(["nextest", "run", "--no-fail-fast"]),
        false => command.args(["test", "--no-fail-fast"]),
    };
    command
}

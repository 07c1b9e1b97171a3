//! What the tests need of the machine, and how it comes there.

use crate::steps;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// Where a program may lie that the search path of a plain user leaves out.
const FOLDERS: [&str; 5] = ["/usr/bin", "/usr/sbin", "/sbin", "/bin", "/usr/local/bin"];

/// A program that tests call, and the Debian package that holds it.
const PROGRAMS: [(&str, &str); 12] = [
    ("cc", "build-essential"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("losetup", "mount"),
    ("perl", "perl-base"),
    ("promtool", "prometheus"),
    ("systemd-analyze", "systemd"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
];

/// Looks for everything; installs what is missing where that is allowed, else names it.
pub(crate) fn provide() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let root = rustix::process::geteuid().is_root();
    if !root || !Path::new("/usr/bin/apt-get").exists() {
        bail!("install these packages first: {}", missing.join(" "));
    }
    println!("installing {}", missing.join(" "));
    let apt = |arguments: &[&str]| {
        steps::run_command(
            Command::new("apt-get")
                .env("DEBIAN_FRONTEND", "noninteractive")
                .args(arguments),
        )
    };
    apt(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&missing);
    apt(&arguments)
}

fn missing() -> Vec<&'static str> {
    let there = |program: &str| {
        FOLDERS
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !there(program))
        .map(|(_, package)| *package)
        .collect();
    if !postgres() {
        missing.push("postgresql");
    }
    missing.dedup();
    missing
}

/// The server's own programs lie outside of every search path.
fn postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    versions.map(|v| v.path().join("bin")).any(|bin| {
        ["initdb", "postgres", "pgbench", "psql"]
            .iter()
            .all(|program| bin.join(program).exists())
    })
}

//! What deploy/ ships: systemd units that systemd takes without a word.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The exposure that `systemd-analyze security` may find, of 10: 2 and less it calls OK.
const EXPOSURE_MAX: f64 = 2.0;

/// The units, in a folder of their own, with a program that is there on this machine.
fn units(dir: &Path) -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "service") {
            let unit = std::fs::read_to_string(&path)?;
            ensure!(
                unit.contains("ExecStart=/usr/bin/fairlead run "),
                "{}",
                path.display()
            );
            let copy = dir.join(path.file_name().context("a name")?);
            std::fs::write(&copy, unit.replace("/usr/bin/fairlead", "/bin/true"))?;
            found.push(copy);
        }
    }
    Ok(found)
}

fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .context("systemd-analyze, of Debian's package systemd")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {said}");
    }
    Ok(said)
}

/// R-ENR-05: the daemons run without root and without capabilities, in units that systemd verifies
/// without a word and finds hardened.
#[test]
fn the_units_verify_and_are_hardened() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let units = units(dir.path())?;
    ensure!(units.len() == 3, "{units:?}");
    for unit in &units {
        let words = said(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .arg(unit),
        )?;
        ensure!(words.is_empty(), "{}: {words}", unit.display());
        let report = said(
            Command::new("systemd-analyze")
                .args(["security", "--offline=true", "--no-pager"])
                .arg(unit),
        )?;
        let overall = report
            .lines()
            .find(|line| line.contains("Overall exposure level"))
            .context("no overall level")?;
        println!("{}", overall.trim());
        let level = overall
            .split_whitespace()
            .find_map(|word| word.parse::<f64>().ok())
            .context("no number")?;
        ensure!(level <= EXPOSURE_MAX, "{overall}");
        let text = std::fs::read_to_string(unit)?;
        for line in [
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=\n",
            "User=fairlead-",
        ] {
            ensure!(text.contains(line), "{}: no {line}", unit.display());
        }
    }
    Ok(())
}

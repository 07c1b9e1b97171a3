//! This build against an earlier one, side by side: `cargo xtask bench --against REV`.
//!
//! Both pools run at once and take turns within each round. A measure has become worse when no round
//! of this build was as good as the worst of the other (their ranges are disjoint) and the medians
//! differ by more than 15 %.

use super::table::Table;
use crate::{release, source, steps};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// The name of the earlier build's column.
pub(super) const BEFORE: &str = "before";
/// Rounds of a comparison.
pub(super) const ROUNDS: usize = 5;
/// Medians that differ by less are equal.
const SHARE: f64 = 0.15;

/// Builds the revision in a work tree below the target folder and returns its program.
pub(super) fn build(revision: &str) -> Result<PathBuf> {
    let folder = release::target_folder()?.join("against");
    let tree = folder.join("tree");
    let git = |arguments: &[&str]| -> Result<()> {
        let mut git = Command::new("git");
        git.current_dir(source::root()?).args(arguments);
        steps::run_command(&mut git)
    };
    let path = tree.to_str().context("the target folder's path is no text")?;
    if tree.exists() {
        git(&["-C", path, "checkout", "--quiet", "--detach", revision])?;
    } else {
        git(&["worktree", "add", "--quiet", "--detach", path, revision])?;
    }
    // A target folder of its own: the two builds would drive each other's results out.
    let target = folder.join("target");
    let mut build = Command::new(release::cargo());
    build
        .args(["build", "--release", "-p", "fairlead"])
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &target);
    steps::run_command(&mut build)?;
    Ok(target.join("release/fairlead"))
}

/// The measures that have become worse, each with its figures.
pub(super) fn worse(table: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for (row, unit, before, after) in table.pairs(BEFORE, "fairlead") {
        if is_worse(before, after, more_is_better(unit)) {
            let medians = super::table::median(before).zip(super::table::median(after));
            let (before, after) = medians.unwrap_or((f64::NAN, f64::NAN));
            found.push(format!("{row}: {before:.3} before, {after:.3} now ({unit})"));
        }
    }
    found
}

/// Rates are better when they are higher; times, memory and processor time when they are lower.
fn more_is_better(unit: &str) -> bool {
    matches!(unit, "Gbit/s" | "1/s")
}

fn is_worse(before: &[f64], after: &[f64], more_is_better: bool) -> bool {
    // Turned so that less is better.
    let sign = if more_is_better { -1.0 } else { 1.0 };
    let turned = |values: &[f64]| values.iter().map(|v| v * sign).collect::<Vec<f64>>();
    let (before, after) = (turned(before), turned(after));
    let worst_before = before.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let best_after = after.iter().copied().fold(f64::INFINITY, f64::min);
    let medians = super::table::median(&before).zip(super::table::median(&after));
    let Some((median_before, median_after)) = medians else {
        return false;
    };
    best_after > worst_before && median_after - median_before > SHARE * median_before.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worse_is_disjoint_and_more_than_fifteen_percent() {
        // Times: higher is worse.
        assert!(is_worse(&[10.0, 11.0, 9.0], &[13.0, 12.5, 14.0], false));
        assert!(
            !is_worse(&[10.0, 11.0, 9.0], &[13.0, 10.9, 14.0], false),
            "ranges meet"
        );
        assert!(
            !is_worse(&[10.0, 10.1, 9.9], &[11.0, 11.1, 11.2], false),
            "within 15 %"
        );
        assert!(!is_worse(&[13.0, 14.0], &[9.0, 10.0], false), "better");
        // Rates: lower is worse.
        assert!(is_worse(&[5.0, 5.2, 4.9], &[4.0, 4.1, 3.9], true));
        assert!(!is_worse(&[4.0, 4.1, 3.9], &[5.0, 5.2, 4.9], true), "better");
        assert!(
            !is_worse(&[5.0, 5.2, 4.0], &[4.0, 4.1, 3.9], true),
            "ranges touch"
        );
        assert!(!is_worse(&[], &[1.0], false) && !is_worse(&[1.0], &[], true));
    }

    #[test]
    fn worse_columns_are_named_with_their_figures() {
        let mut table = Table::new(vec![BEFORE, "fairlead"]);
        for (before, after) in [(4.0, 2.0), (4.1, 2.1), (3.9, 2.2)] {
            table.add("1 stream up", "Gbit/s", BEFORE, before);
            table.add("1 stream up", "Gbit/s", "fairlead", after);
            table.add("open p50", "µs", BEFORE, 100.0 * before);
            table.add("open p50", "µs", "fairlead", 100.0 * after);
        }
        table.add("idle tunnel, relay", "KiB", "fairlead", 5.0);
        assert_eq!(worse(&table), ["1 stream up: 4.000 before, 2.100 now (Gbit/s)"]);
    }
}

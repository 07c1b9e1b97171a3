//! What every process of a pool uses, over time.

use anyhow::Result;
use fairlead_testkit::{Pool, process};
use std::fmt::Write as _;

/// What a process uses at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) resident: u64,
    pub(super) descriptors: usize,
    /// Threads: the runtime's tasks are not told.
    pub(super) tasks: usize,
}

/// One process of a pool.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) pid: u32,
}

/// Every process of the pool as it is at this moment.
pub(super) fn subjects(pool: &Pool) -> Result<Vec<Subject>> {
    let file = pool.file()?;
    let subject = |name: String, pid| Subject { name, pid };
    let mut all = vec![
        subject("up".into(), pool.up_pid()),
        subject("control".into(), file.control.pid),
    ];
    for relay in &file.relays {
        all.push(subject(
            format!("supervisor {}", relay.name),
            relay.supervisor_pid,
        ));
        all.push(subject(format!("worker {}", relay.name), relay.worker_pid));
    }
    for node in &file.nodes {
        all.push(subject(format!("node {}", node.name), node.pid));
    }
    Ok(all)
}

impl Subject {
    pub(super) fn usage(&self) -> Result<Usage> {
        Ok(Usage {
            resident: process::resident_bytes(self.pid)?,
            descriptors: process::descriptors(self.pid)?,
            tasks: process::threads(self.pid)?,
        })
    }
}

/// A table of columns, each a usage per subject.
pub(super) fn table(subjects: &[Subject], columns: &[(&str, &[Usage])]) -> String {
    let mut text = String::from("| process |");
    for (name, _) in columns {
        let _ = write!(text, " {name}: MiB | descriptors | tasks |");
    }
    let _ = write!(text, "\n|---|{}", "---|---|---|".repeat(columns.len()));
    for (row, subject) in subjects.iter().enumerate() {
        let _ = write!(text, "\n| {} |", subject.name);
        for (_, usages) in columns {
            let usage = usages.get(row).copied().unwrap_or_default();
            let _ = write!(
                text,
                " {:.1} | {} | {} |",
                usage.resident as f64 / f64::from(1 << 20),
                usage.descriptors,
                usage.tasks
            );
        }
    }
    text
}

/// Subjects that are no processes.
#[cfg(test)]
pub(super) fn subjects_of_test(names: &[&str]) -> Vec<Subject> {
    let subject = |name: &&str| Subject {
        name: (*name).to_owned(),
        pid: 0,
    };
    names.iter().map(subject).collect()
}

//! `pool.json`: what tests, benchmarks and people need to know of a running pool. Its keys are a
//! contract: they may be added to, never changed.

use super::error::UpError;
use super::layout::{FILE_MODE, Layout};
use fairlead_host::file;
use serde::Serialize;
use std::path::PathBuf;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct PoolFile {
    pub(super) version: String,
    pub(super) up_pid: u32,
    pub(super) control: ControlEntry,
    pub(super) relays: Vec<RelayEntry>,
    pub(super) nodes: Vec<NodeEntry>,
    pub(super) links: Vec<LinkEntry>,
}

/// The control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ControlEntry {
    pub(super) pid: u32,
    pub(super) url: String,
    pub(super) ca_file: PathBuf,
    pub(super) admin_token_file: PathBuf,
    pub(super) metrics: String,
    pub(super) log: PathBuf,
}

/// A relay. `metrics` is its worker's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RelayEntry {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) failure_domain: String,
    pub(super) local: bool,
    pub(super) supervisor_pid: u32,
    pub(super) worker_pid: u32,
    pub(super) metrics: String,
    pub(super) supervisor_metrics: String,
    pub(super) dir: PathBuf,
    pub(super) log: PathBuf,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct NodeEntry {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) metrics: String,
    pub(super) dir: PathBuf,
    pub(super) log: PathBuf,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LinkEntry {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) class: String,
    pub(super) listen: String,
    pub(super) target: String,
    pub(super) consumer: String,
    pub(super) publisher: String,
}

impl PoolFile {
    /// Writes the file in one step.
    pub(super) fn write(&self, layout: &Layout) -> Result<(), UpError> {
        let path = layout.pool_file();
        let mut text = serde_json::to_string_pretty(self).map_err(|e| UpError::Malformed {
            path: path.clone(),
            reason: e.to_string(),
        })?;
        text.push('\n');
        Ok(file::write_atomic(&path, FILE_MODE, text.as_bytes())?)
    }
}

/// Removes the file: there is no pool.
pub(super) fn remove(layout: &Layout) -> Result<(), UpError> {
    Ok(file::remove(&layout.pool_file())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that outside harnesses read.
    #[test]
    fn the_keys_are_the_contract() {
        let file = PoolFile {
            version: "0".into(),
            up_pid: 9,
            control: ControlEntry {
                pid: 1,
                url: "u".into(),
                ca_file: "c".into(),
                admin_token_file: "t".into(),
                metrics: "m".into(),
                log: "l".into(),
            },
            relays: vec![RelayEntry {
                id: "i".into(),
                name: "local".into(),
                address: "a".into(),
                failure_domain: "host=local".into(),
                local: true,
                supervisor_pid: 2,
                worker_pid: 3,
                metrics: "m".into(),
                supervisor_metrics: "s".into(),
                dir: "d".into(),
                log: "l".into(),
            }],
            nodes: vec![NodeEntry {
                id: "i".into(),
                name: "alpha".into(),
                pid: 4,
                metrics: "m".into(),
                dir: "d".into(),
                log: "l".into(),
            }],
            links: vec![LinkEntry {
                id: "i".into(),
                name: "db".into(),
                class: "database".into(),
                listen: "l".into(),
                target: "t".into(),
                consumer: "alpha".into(),
                publisher: "beta".into(),
            }],
        };
        let json = serde_json::to_value(&file).unwrap();
        for pointer in [
            "/version",
            "/control/pid",
            "/control/url",
            "/control/ca_file",
            "/control/admin_token_file",
            "/control/metrics",
            "/relays/0/id",
            "/relays/0/name",
            "/relays/0/address",
            "/relays/0/failure_domain",
            "/relays/0/local",
            "/relays/0/supervisor_pid",
            "/relays/0/worker_pid",
            "/relays/0/metrics",
            "/nodes/0/id",
            "/nodes/0/name",
            "/nodes/0/pid",
            "/nodes/0/metrics",
            "/links/0/name",
            "/links/0/class",
            "/links/0/listen",
            "/links/0/target",
            "/links/0/consumer",
            "/links/0/publisher",
        ] {
            assert!(json.pointer(pointer).is_some(), "{pointer}");
        }
    }
}

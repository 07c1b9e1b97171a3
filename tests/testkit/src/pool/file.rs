//! `pool.json` as the contract has it: keys may be added, never changed.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What `fairlead up` tells about its pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PoolFile {
    /// The version of the binary that wrote the file.
    pub version: String,
    /// The control plane.
    pub control: ControlEntry,
    /// The relays, the local one among them.
    pub relays: Vec<RelayEntry>,
    /// The nodes.
    pub nodes: Vec<NodeEntry>,
    /// The links.
    pub links: Vec<LinkEntry>,
}

/// The control plane of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ControlEntry {
    /// Its process.
    pub pid: u32,
    /// `https://HOST:PORT`.
    pub url: String,
    /// The CA's certificate, PEM.
    pub ca_file: PathBuf,
    /// The first admin token.
    pub admin_token_file: PathBuf,
    /// Its metrics.
    pub metrics: String,
}

/// A relay of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RelayEntry {
    /// Its id.
    pub id: String,
    /// Its display name; `local` is the local relay's.
    pub name: String,
    /// Where nodes reach it.
    pub address: String,
    /// Its failure domain.
    pub failure_domain: String,
    /// Whether it is the control host's own relay.
    pub local: bool,
    /// Its supervisor's process.
    pub supervisor_pid: u32,
    /// Its worker's process.
    pub worker_pid: u32,
    /// Its worker's metrics.
    pub metrics: String,
}

/// A node of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NodeEntry {
    /// Its id.
    pub id: String,
    /// Its name: `alpha` consumes, `beta` publishes.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its metrics.
    pub metrics: String,
}

/// A link of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LinkEntry {
    /// Its name.
    pub name: String,
    /// Its service class.
    pub class: String,
    /// Where applications of the consumer connect.
    pub listen: String,
    /// What the publisher dials.
    pub target: String,
    /// The consumer's name.
    pub consumer: String,
    /// The publisher's name.
    pub publisher: String,
}

impl PoolFile {
    /// Reads the file.
    ///
    /// # Errors
    /// When it is absent or breaks the contract.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} breaks its contract", path.display()))
    }

    /// The address of a link's local listener.
    ///
    /// # Errors
    /// When there is no such link.
    pub fn listen(&self, link: &str) -> Result<SocketAddr> {
        let link = self.links.iter().find(|l| l.name == link);
        let link = link.with_context(|| format!("no such link in {:?}", self.links))?;
        link.listen
            .parse()
            .with_context(|| format!("`{}` is no socket address", link.listen))
    }

    /// A relay by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn relay(&self, name: &str) -> Result<&RelayEntry> {
        self.relays
            .iter()
            .find(|r| r.name == name)
            .with_context(|| format!("no relay `{name}`"))
    }

    /// A node by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> Result<&NodeEntry> {
        self.nodes
            .iter()
            .find(|n| n.name == name)
            .with_context(|| format!("no node `{name}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_is_read_and_unknown_keys_are_let_through() {
        let text = r#"{"version":"0.1.0","added":true,
            "control":{"pid":1,"url":"https://127.0.0.1:8443","ca_file":"/c","admin_token_file":"/t","metrics":"m"},
            "relays":[{"id":"i","name":"local","address":"127.0.0.1:9443","failure_domain":"f","local":true,
                       "supervisor_pid":2,"worker_pid":3,"metrics":"m"}],
            "nodes":[{"id":"n","name":"alpha","pid":4,"metrics":"m"}],
            "links":[{"name":"db","class":"database","listen":"127.0.0.1:15432","target":"127.0.0.1:5432",
                      "consumer":"alpha","publisher":"beta"}]}"#;
        let file: PoolFile = serde_json::from_str(text).unwrap();
        assert_eq!(file.listen("db").unwrap().port(), 15432);
        assert!(file.relay("local").unwrap().local && file.node("alpha").unwrap().pid == 4);
        assert!(file.listen("web").is_err());
        let broken = text.replace("worker_pid", "workerPid");
        assert!(serde_json::from_str::<PoolFile>(&broken).is_err());
    }
}

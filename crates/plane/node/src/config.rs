//! What the daemon is started with, and why it would not start.

pub use crate::identity::IdentityFault;
use fairlead_host::member::MemberError;
use fairlead_host::{LockError, StateError};
use fairlead_model::RelayId;
use fairlead_telemetry::ServeError;
use fairlead_transport::DialError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How a node daemon is started.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The member folder that enrolment left: identity, trust, control address. The daemon keeps
    /// its own state in `node.state` and `boot.state` beside them.
    pub dir: PathBuf,
    /// Where metrics and health are served; `None` serves none. Port 0 picks a free one, written
    /// to `runtime.json`.
    pub metrics: Option<SocketAddr>,
    /// The daemon's version, as reported to the control plane and to relays.
    pub version: &'static str,
}

/// Why a node daemon did not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another process has the folder.
    #[error("the node's folder cannot be taken")]
    Lock(#[from] LockError),
    /// The member's files.
    #[error("the node's folder cannot be used; enrol the node first")]
    Folder(#[from] MemberError),
    /// The folder is a relay's.
    #[error("the folder belongs to relay {0}, not to a node")]
    Role(RelayId),
    /// Certificate, key or trust.
    #[error("the node's identity cannot be used")]
    Identity(#[from] IdentityFault),
    /// The boot counter must be on disk before a peer is told of it.
    #[error("the start of the daemon cannot be recorded")]
    Boot(#[from] StateError),
    /// No UDP socket.
    #[error("no connections can be made")]
    Dialler(#[source] DialError),
    /// The metrics' address.
    #[error("metrics cannot be served")]
    Metrics(#[from] ServeError),
    /// A part of the daemon ended by itself; the process must be started anew.
    #[error("the daemon's {0} ended unexpectedly")]
    Ended(&'static str),
}

//! What the daemon is started with, and why it would not start.

pub use crate::identity::IdentityFault;
use fairlead_host::member::MemberError;
use fairlead_host::{LockError, StateError};
use fairlead_model::RelayId;
use fairlead_telemetry::ServeError;
use fairlead_transport::DialError;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a stream without a path is held before both its sockets are reset (R-STR-04).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHold(Duration);

/// A hold outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stream is held for 10s to 300s, not {0:?}")]
pub struct HoldOutOfRange(pub Duration);

impl StreamHold {
    /// 60 s: longer than the restart of a relay's host, shorter than most applications' patience.
    pub const DEFAULT: Self = Self(Duration::from_secs(60));
    const LEAST: Duration = Duration::from_secs(10);
    const MOST: Duration = Duration::from_secs(300);

    /// A hold of 10 s to 300 s. A longer one keeps each stream's unacknowledged bytes in memory for
    /// longer.
    ///
    /// # Errors
    /// It is outside of that range.
    pub fn new(hold: Duration) -> Result<Self, HoldOutOfRange> {
        if (Self::LEAST..=Self::MOST).contains(&hold) {
            Ok(Self(hold))
        } else {
            Err(HoldOutOfRange(hold))
        }
    }

    /// A hold that a test can wait for.
    #[cfg(test)]
    pub(crate) const fn of_test(hold: Duration) -> Self {
        Self(hold)
    }

    /// How long.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// How a node daemon is started.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The member folder that enrolment left: identity, trust, control address. The daemon keeps
    /// its own state in `node.state` and `boot.state` beside them.
    pub dir: PathBuf,
    /// Where metrics and health are served; `None` serves none. Port 0 picks a free one, written
    /// to `runtime.json`.
    pub metrics: Option<SocketAddr>,
    /// How long a stream without a path is held.
    pub hold: StreamHold,
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

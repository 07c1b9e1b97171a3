//! What the daemon is started with, and why it would not start.

pub use crate::identity::IdentityFault;
use fairlead_host::member::MemberError;
use fairlead_host::{LockError, StateError};
use fairlead_model::{BootCounter, RelayId};
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

/// How much memory all streams of a daemon may hold (R-STR-04): what they buffer, and what they have
/// allowed their far ends to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMemory(u64);

/// A text that gives no amount of memory within the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give 64MiB to 1024GiB, as a whole number with MiB or GiB")]
pub struct MemoryNotUsable;

impl StreamMemory {
    /// 1 GiB: 4 MiB windows for a hundred busy streams, or 8,700 idle ones: the first 860 get a window of
    /// 256 KiB and take a quarter, the others 100 KiB each.
    pub const DEFAULT: Self = Self(GIB);
    const LEAST: u64 = 64 * MIB;
    const MOST: u64 = 1024 * GIB;

    /// An amount that a test can use up.
    #[cfg(test)]
    pub(crate) const fn of_test(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

impl std::str::FromStr for StreamMemory {
    type Err = MemoryNotUsable;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let units = [("MiB", MIB), ("GiB", GIB)];
        let (number, unit) = units
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
            .ok_or(MemoryNotUsable)?;
        let bytes = number
            .trim_end()
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(unit));
        bytes
            .filter(|bytes| (Self::LEAST..=Self::MOST).contains(bytes))
            .map(Self)
            .ok_or(MemoryNotUsable)
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
    /// How much memory all streams may hold.
    pub memory: StreamMemory,
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
    #[error("the node's folder cannot be used{}", advice(.0))]
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
    /// Registrations keep 32 bits of it (R-ADM-04); the next start counts on from the wall clock.
    #[error("the boot counter is at {0}, past its end: start the daemon again, with the host's clock right")]
    BootCount(BootCounter),
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

/// Enrolling makes what is missing; it mends neither a disk nor a damaged file.
fn advice(error: &MemberError) -> &'static str {
    match error {
        MemberError::File(file) if file.is_absent() => "; enrol the node first",
        MemberError::Missing { .. }
        | MemberError::File(_)
        | MemberError::Json { .. }
        | MemberError::Faults { .. } => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_host::member::MemberFolder;

    #[test]
    fn enrolling_is_advised_only_where_a_file_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = MemberFolder::new(dir.path().to_owned());
        let said = || NodeError::from(folder.load().unwrap_err()).to_string();
        assert!(said().ends_with("; enrol the node first"), "{}", said());
        for damaged in ["", "{", "{}"] {
            std::fs::write(folder.config_path(), damaged).unwrap();
            assert!(!said().contains("enrol"), "{}", said());
        }
        std::fs::remove_file(folder.config_path()).unwrap();
        std::fs::create_dir(folder.config_path()).unwrap();
        assert!(!said().contains("enrol"), "{}", said());
    }

    #[test]
    fn memory_has_a_unit_and_a_range() {
        let parse = |text: &str| text.parse::<StreamMemory>().map(StreamMemory::get);
        assert_eq!(parse("1GiB"), Ok(StreamMemory::DEFAULT.get()));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("1024 GiB"), Ok(1 << 40));
        for wrong in [
            "63MiB",
            "1025GiB",
            "1",
            "1G",
            "-1GiB",
            "1.5GiB",
            "",
            "MiB",
            "99999999999999999999GiB",
        ] {
            assert_eq!(parse(wrong), Err(MemoryNotUsable), "{wrong}");
        }
    }
}

//! What a relay keeps on disk about its policy: written before an accepted policy or lease is
//! acknowledged, and each minute for the clocks' sake.
//!
//! ```text
//! u8 version = 1 | 16 relay | 16 host boot | u64 saved (boot ms) | bool floor? [i64 wall ms]
//! | bool head? [u64 epoch, u64 revision, 32 root, u64 leader term, u64 lease seq, i64 not after]
//! | u64 lease left (ms, by the boot clock) | bytes policy envelope | bytes lease envelope
//! ```
//! Checksum and atomic replacement are the file's business (`host`).

use super::PolicyHead;
use super::clock::HostBoot;
use crate::document::PolicyRoot;
use crate::envelope::ENVELOPE_LEN_MAX;
use bytes::Bytes;
use fairlead_codec::{ReadError, Reader, WriteError, Writer};
use fairlead_model::{BootTime, LeaderTerm, LeaseSeq, PolicyEpoch, RelayId, Revision, WallTime};
use std::time::Duration;

/// A relay's persisted knowledge. The envelopes are verified anew when they are read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose it is.
    pub relay: RelayId,
    /// The host boot in which it was saved.
    pub host_boot: HostBoot,
    /// When it was saved.
    pub saved: BootTime,
    /// The clock floor at that time.
    pub floor: Option<WallTime>,
    /// The highest policy and lease ever accepted.
    pub head: Option<PolicyHead>,
    /// How long the lease still had by the boot clock.
    pub lease_left: Duration,
    /// The policy's envelope; empty for none.
    pub policy_envelope: Bytes,
    /// The lease's envelope; empty for none.
    pub lease_envelope: Bytes,
}

/// Why a snapshot cannot be read back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are no snapshot.
    #[error("not a saved relay policy")]
    Malformed(#[from] ReadError),
    /// A version that this build does not know.
    #[error("a saved relay policy of version {0}, which this build does not know")]
    Version(u8),
}

const VERSION: u8 = 1;
/// Greatest snapshot: two envelopes and 256 bytes for all else (its fixed parts take 172).
pub const SNAPSHOT_LEN_MAX: usize = 2 * ENVELOPE_LEN_MAX + 256;

impl Snapshot {
    /// The snapshot's bytes.
    ///
    /// # Errors
    /// An envelope is longer than [`ENVELOPE_LEN_MAX`]; verified ones never are.
    pub fn encode(&self) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::with_capacity(256 + self.policy_envelope.len() + self.lease_envelope.len());
        let mut w = Writer::new(&mut out, SNAPSHOT_LEN_MAX);
        w.u8(VERSION)?;
        w.raw(&self.relay.to_bytes())?;
        w.raw(&self.host_boot.0)?;
        w.u64(self.saved.0)?;
        w.bool(self.floor.is_some())?;
        if let Some(floor) = self.floor {
            w.i64(floor.0)?;
        }
        w.bool(self.head.is_some())?;
        if let Some(head) = &self.head {
            w.u64(head.epoch.0)?;
            w.u64(head.revision.0)?;
            w.raw(&head.root.0)?;
            w.u64(head.leader_term.0)?;
            w.u64(head.lease_seq.0)?;
            w.i64(head.lease_not_after.0)?;
        }
        w.u64(u64::try_from(self.lease_left.as_millis()).unwrap_or(u64::MAX))?;
        w.bytes(&self.policy_envelope, ENVELOPE_LEN_MAX)?;
        w.bytes(&self.lease_envelope, ENVELOPE_LEN_MAX)?;
        Ok(out)
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are no snapshot, or a later build's.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let snapshot = Self {
            relay: RelayId::from_bytes(r.array()?),
            host_boot: HostBoot(r.array()?),
            saved: BootTime(r.u64()?),
            floor: if r.bool()? { Some(WallTime(r.i64()?)) } else { None },
            head: if r.bool()? {
                Some(PolicyHead {
                    epoch: PolicyEpoch(r.u64()?),
                    revision: Revision(r.u64()?),
                    root: PolicyRoot(r.array()?),
                    leader_term: LeaderTerm(r.u64()?),
                    lease_seq: LeaseSeq(r.u64()?),
                    lease_not_after: WallTime(r.i64()?),
                })
            } else {
                None
            },
            lease_left: Duration::from_millis(r.u64()?),
            policy_envelope: Bytes::copy_from_slice(r.bytes(ENVELOPE_LEN_MAX)?),
            lease_envelope: Bytes::copy_from_slice(r.bytes(ENVELOPE_LEN_MAX)?),
        };
        r.finish()?;
        Ok(snapshot)
    }
}

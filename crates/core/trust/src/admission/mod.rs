//! A relay's knowledge of what it may admit, and its verdicts.

mod apply;
mod clock;
mod decision;
mod policy;
mod snapshot;
mod unkept;
mod verdict;

pub use apply::{Applied, ApplyRefused, LEASE_MAX};
pub use clock::{HostBoot, Now};
pub use snapshot::{SNAPSHOT_LEN_MAX, Snapshot, SnapshotError};
pub use verdict::{Admitted, HELD_PER_NODE_MAX, HOLD_MAX, LiveTunnel, LiveVerdict, OpenClaim, Verdict};

use crate::document::{PolicyLease, PolicyRoot, RelayPolicy, RelaySettings};
use crate::envelope::Verified;
use crate::key::Keyring;
use bytes::Bytes;
use clock::{Floor, behind, floored};
use fairlead_model::{BootTime, LeaderTerm, LeaseSeq, PolicyEpoch, RelayId, Revision, WallTime};
use policy::HeldPolicy;
use std::sync::Arc;
use std::time::Duration;

/// What one relay knows: its policy, its lease, and how late it is at least.
///
/// **Inputs:** policies, leases and grants whose signatures have been verified, and [`Now`].
/// **Outputs:** verdicts. **Order:** a value never changes. [`Self::apply_policy`] and
/// [`Self::apply_lease`] give the next value; the caller writes the next value's
/// [`snapshot`](Self::snapshot) to disk, then puts it in the old one's place, then acknowledges. A
/// head that was acknowledged and forgotten would let an older policy in (R-POL-04). Where it cannot
/// be written, [`Self::with_unkept`] is put in the old one's place. Each minute the snapshot of
/// [`Self::newest`] is written again, so that a reboot costs a lease at most a minute of its memory.
///
/// A value is cheap to clone: the policy is shared.
#[derive(Debug, Clone)]
pub struct RelayAdmission {
    relay: RelayId,
    host_boot: HostBoot,
    head: Option<PolicyHead>,
    policy: Option<Arc<HeldPolicy>>,
    lease: Option<Arc<Verified<PolicyLease>>>,
    /// The end of the head's lease by the boot clock: receipt plus lease. It is remembered even
    /// where the lease itself is lost.
    lease_ends: BootTime,
    floor: Option<Floor>,
    /// The next value, where it could not be written: nothing is allowed that it does not allow.
    unkept: Option<Arc<RelayAdmission>>,
}

/// The highest policy and lease that a relay has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyHead {
    /// The policy's epoch.
    pub epoch: PolicyEpoch,
    /// The policy's revision.
    pub revision: Revision,
    /// The policy's root.
    pub root: PolicyRoot,
    /// The highest leader term of the epoch.
    pub leader_term: LeaderTerm,
    /// The highest lease number of the epoch.
    pub lease_seq: LeaseSeq,
    /// That lease's signed end.
    pub lease_not_after: WallTime,
}

/// What a relay's lease is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// None over the policy held has come.
    Missing,
    /// It admits for this long, if the clocks go on as they do.
    Valid(Duration),
    /// It ended by the wall clock or by the boot clock.
    Ended,
}

impl RelayAdmission {
    /// A relay that knows nothing and admits nothing.
    #[must_use]
    pub const fn new(relay: RelayId, host_boot: HostBoot) -> Self {
        Self {
            relay,
            host_boot,
            head: None,
            policy: None,
            lease: None,
            lease_ends: BootTime(0),
            floor: None,
            unkept: None,
        }
    }

    /// A relay that knows what `snapshot` says. `policy` and `lease` are its envelopes, verified
    /// with today's keys; one that no longer verifies is `None`, and the head still stands.
    #[must_use]
    pub fn restore(
        snapshot: &Snapshot,
        policy: Option<Verified<RelayPolicy>>,
        lease: Option<Verified<PolicyLease>>,
        host_boot: HostBoot,
        now: Now,
    ) -> Self {
        let head = snapshot.head;
        let is_head = |epoch, revision, root| {
            head.is_some_and(|h| (h.epoch, h.revision, h.root) == (epoch, revision, root))
        };
        let policy = policy
            .filter(|p| p.relay == snapshot.relay && is_head(p.epoch, p.revision, p.root()))
            .map(|p| Arc::new(HeldPolicy::new(p)));
        let lease = lease
            .filter(|l| l.relay == snapshot.relay && is_head(l.epoch, l.revision, l.root))
            .filter(|l| head.is_some_and(|h| h.lease_seq == l.seq));
        // Within the boot that saved it, the boot clock has counted on. After another boot it says
        // nothing, and the count goes on from what was saved.
        let same_boot = snapshot.host_boot == host_boot && now.boot >= snapshot.saved;
        let since = if same_boot { snapshot.saved } else { now.boot };
        Self {
            relay: snapshot.relay,
            host_boot,
            head,
            policy,
            lease: lease.map(Arc::new),
            lease_ends: since.plus(snapshot.lease_left.min(LEASE_MAX)),
            floor: snapshot.floor.map(|wall| Floor::new(wall, since)),
            unkept: None,
        }
    }

    /// What is to be on disk. Write it before a head is acknowledged, and each minute.
    #[must_use]
    pub fn snapshot(&self, now: Now) -> Snapshot {
        Snapshot {
            relay: self.relay,
            host_boot: self.host_boot,
            saved: now.boot,
            floor: self.floor.map(|f| f.wall(now.boot)),
            head: self.head,
            lease_left: self.lease_ends.since(now.boot),
            policy_envelope: self
                .policy
                .as_ref()
                .map_or_else(Bytes::new, |p| p.policy().envelope().clone()),
            lease_envelope: self
                .lease
                .as_ref()
                .map_or_else(Bytes::new, |l| l.envelope().clone()),
        }
    }

    /// The relay whose knowledge this is.
    #[must_use]
    pub const fn relay(&self) -> RelayId {
        self.relay
    }

    /// The highest policy and lease accepted.
    #[must_use]
    pub const fn head(&self) -> Option<PolicyHead> {
        self.head
    }

    /// The keys whose grants hold; none without a policy.
    #[must_use]
    pub fn grant_keys(&self) -> &Keyring {
        self.policy.as_ref().map_or(&NO_KEYS, |p| &p.policy().grant_keys)
    }

    /// The relay's bounds; the defaults without a policy.
    #[must_use]
    pub fn settings(&self) -> RelaySettings {
        self.policy
            .as_ref()
            .map_or(RelaySettings::DEFAULT, |p| p.policy().settings)
    }

    /// How far this host's wall clock is behind a time that the control plane has signed, where
    /// that is more than 60 s: "clock differs by …" (R-POL-05).
    #[must_use]
    pub fn clock_behind(&self, now: Now) -> Option<Duration> {
        behind(self.floor, now)
    }

    /// When the control plane signed the lease that is held.
    #[must_use]
    pub fn lease_signed_at(&self) -> Option<WallTime> {
        self.lease.as_ref().map(|lease| lease.not_before)
    }

    /// What the lease is worth.
    #[must_use]
    pub fn lease_state(&self, now: Now) -> LeaseState {
        let covering = self.lease.as_ref().filter(|held| {
            self.policy
                .as_ref()
                .is_some_and(|p| p.policy().root() == held.root)
        });
        let Some(held) = covering else {
            return LeaseState::Missing;
        };
        let wall = floored(self.floor, now);
        let left = held.not_after.since(wall).min(self.lease_ends.since(now.boot));
        if left.is_zero() {
            LeaseState::Ended
        } else {
            LeaseState::Valid(left)
        }
    }
}

static NO_KEYS: Keyring = Keyring::EMPTY;

#[cfg(test)]
mod tests;

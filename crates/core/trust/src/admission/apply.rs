//! What makes a relay's next state: newer policies and leases, and nothing else (R-POL-04).

use super::clock::Floor;
use super::policy::HeldPolicy;
use super::{Now, PolicyHead, RelayAdmission};
use crate::document::{PolicyLease, PolicyRoot, RelayPolicy};
use crate::envelope::Verified;
use fairlead_model::{LeaderTerm, LeaseSeq, PolicyEpoch, RelayId, Revision, WallTime};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What a valid policy or lease changed.
#[derive(Debug, Clone)]
pub enum Applied {
    /// Nothing: it is held already.
    Unchanged,
    /// This is the next value: persist, replace, acknowledge, in that order. Then hold every live
    /// tunnel against [`RelayAdmission::live_verdict`] and every session against
    /// [`RelayAdmission::session_verdict`]. If it cannot be persisted, the replacement is
    /// [`RelayAdmission::with_unkept`], and nothing is acknowledged.
    Next(RelayAdmission),
}

/// Why a policy or lease is not applied, for the status that the relay reports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyRefused {
    /// It is for another relay.
    #[error("it is for relay {0}")]
    OtherRelay(RelayId),
    /// An older epoch than the one held (R-POL-04).
    #[error("its epoch {given} is below {held}")]
    Epoch {
        /// The epoch given.
        given: PolicyEpoch,
        /// The epoch held.
        held: PolicyEpoch,
    },
    /// Signed by a leader that has been replaced.
    #[error("its leader term {given} is below {held}")]
    LeaderTerm {
        /// The term given.
        given: LeaderTerm,
        /// The term held.
        held: LeaderTerm,
    },
    /// An older revision than the one held (R-POL-04).
    #[error("its revision {given} is below {held}")]
    Revision {
        /// The revision given.
        given: Revision,
        /// The revision held.
        held: Revision,
    },
    /// The revision held, with other content (R-POL-04).
    #[error("its revision {revision} has root {given}, the one held has {held}")]
    OtherContent {
        /// The revision.
        revision: Revision,
        /// The root given.
        given: PolicyRoot,
        /// The root held.
        held: PolicyRoot,
    },
    /// An older lease than the one held, or the same number with other content.
    #[error("its lease number {given} is not above {held}")]
    LeaseSeq {
        /// The number given.
        given: LeaseSeq,
        /// The number held.
        held: LeaseSeq,
    },
    /// The lease is over another policy than the one held or given with it.
    #[error("its lease covers revision {revision} of epoch {epoch}, not the policy")]
    LeaseOfOtherPolicy {
        /// The epoch covered.
        epoch: PolicyEpoch,
        /// The revision covered.
        revision: Revision,
    },
    /// The lease is longer than any may be.
    #[error("its lease lasts {} h, more than {} h", .0.as_secs() / 3600, LEASE_MAX.as_secs() / 3600)]
    LeaseTooLong(Duration),
}

/// Longest lease (R-POL-01).
pub const LEASE_MAX: Duration = Duration::from_secs(168 * 3600);

impl RelayAdmission {
    /// The next value, with a policy and the lease over it.
    ///
    /// # Errors
    /// Either is for another relay, older than what is held, or other content under a number that
    /// is held.
    pub fn apply_policy(
        &self,
        policy: Verified<RelayPolicy>,
        lease: Verified<PolicyLease>,
        now: Now,
    ) -> Result<Applied, ApplyRefused> {
        if let Some(unkept) = &self.unkept {
            return Ok(unkept.again(unkept.apply_policy(policy, lease, now)?));
        }
        if policy.relay != self.relay {
            return Err(ApplyRefused::OtherRelay(policy.relay));
        }
        if (lease.epoch, lease.revision, lease.root) != (policy.epoch, policy.revision, policy.root()) {
            return Err(ApplyRefused::LeaseOfOtherPolicy {
                epoch: lease.epoch,
                revision: lease.revision,
            });
        }
        let mut next = self.clone();
        if self.accepts_policy(&policy)? {
            let new_reign = self.head.is_none_or(|h| policy.epoch > h.epoch);
            // A new reign's clock is believed over the old one's: the floor of a control plane
            // whose clock was in the future would never be reached again.
            let floor = if new_reign { None } else { self.floor };
            next.floor = Some(Floor::raised(floor, policy.issued_at, now.boot));
            let seen = self.head.filter(|_| !new_reign);
            next.head = Some(PolicyHead {
                epoch: policy.epoch,
                revision: policy.revision,
                root: policy.root(),
                leader_term: policy.leader_term,
                lease_seq: seen.map_or(LeaseSeq(0), |h| h.lease_seq),
                lease_not_after: seen.map_or(WallTime(0), |h| h.lease_not_after),
            });
            if new_reign {
                next.lease = None;
            }
            next.policy = Some(Arc::new(HeldPolicy::new(policy)));
        } else if self.policy.is_none() {
            // The head is remembered, the policy itself was lost or no longer verified (R-POL-07).
            next.policy = Some(Arc::new(HeldPolicy::new(policy)));
        } else {
            return self.apply_lease(lease, now);
        }
        match next.apply_lease(lease, now)? {
            Applied::Unchanged => Ok(Applied::Next(next)),
            Applied::Next(next) => Ok(Applied::Next(next)),
        }
    }

    /// The next value, with a renewed lease over the policy held.
    ///
    /// # Errors
    /// It is for another relay or policy, or not newer than the one held.
    pub fn apply_lease(&self, lease: Verified<PolicyLease>, now: Now) -> Result<Applied, ApplyRefused> {
        if let Some(unkept) = &self.unkept {
            return Ok(unkept.again(unkept.apply_lease(lease, now)?));
        }
        if lease.relay != self.relay {
            return Err(ApplyRefused::OtherRelay(lease.relay));
        }
        let Some(head) = self.head else {
            return Err(ApplyRefused::LeaseOfOtherPolicy {
                epoch: lease.epoch,
                revision: lease.revision,
            });
        };
        if lease.epoch < head.epoch {
            return Err(ApplyRefused::Epoch {
                given: lease.epoch,
                held: head.epoch,
            });
        }
        if (lease.epoch, lease.revision, lease.root) != (head.epoch, head.revision, head.root) {
            return Err(ApplyRefused::LeaseOfOtherPolicy {
                epoch: lease.epoch,
                revision: lease.revision,
            });
        }
        let lasts = lease.not_after.since(lease.not_before);
        if lasts > LEASE_MAX {
            return Err(ApplyRefused::LeaseTooLong(lasts));
        }
        if lease.leader_term < head.leader_term {
            return Err(ApplyRefused::LeaderTerm {
                given: lease.leader_term,
                held: head.leader_term,
            });
        }
        if lease.seq <= head.lease_seq {
            return self.apply_known_lease(lease, head);
        }
        let mut next = self.clone();
        next.head = Some(PolicyHead {
            leader_term: lease.leader_term,
            lease_seq: lease.seq,
            lease_not_after: lease.not_after,
            ..head
        });
        next.floor = Some(Floor::raised(self.floor, lease.not_before, now.boot));
        next.lease_ends = now.boot.plus(lasts);
        next.lease = Some(Arc::new(lease));
        Ok(Applied::Next(next))
    }

    /// What a value that is not on disk yet makes of a document that changes nothing of it: itself, to
    /// be persisted before it is acknowledged.
    fn again(&self, applied: Applied) -> Applied {
        match applied {
            Applied::Unchanged => Applied::Next(self.clone()),
            Applied::Next(next) => Applied::Next(next),
        }
    }

    /// A lease that is not newer than the head's. The same one again renews nothing: it was
    /// received the first time.
    fn apply_known_lease(
        &self,
        lease: Verified<PolicyLease>,
        head: PolicyHead,
    ) -> Result<Applied, ApplyRefused> {
        let refused = ApplyRefused::LeaseSeq {
            given: lease.seq,
            held: head.lease_seq,
        };
        match &self.lease {
            Some(held) if held.digest() == lease.digest() => Ok(Applied::Unchanged),
            Some(_) => Err(refused),
            // It was lost while its number was remembered.
            None if (lease.seq, lease.not_after) == (head.lease_seq, head.lease_not_after) => {
                let mut next = self.clone();
                next.lease = Some(Arc::new(lease));
                Ok(Applied::Next(next))
            }
            None => Err(refused),
        }
    }

    /// Whether `policy` is newer than the one held (`true`) or the very same (`false`).
    ///
    /// A higher epoch wins whatever its leader's term: a control plane restored from backup may
    /// have forgotten terms, and raises the epoch for that reason.
    fn accepts_policy(&self, policy: &Verified<RelayPolicy>) -> Result<bool, ApplyRefused> {
        let Some(held) = self.head else {
            return Ok(true);
        };
        match policy.epoch.cmp(&held.epoch) {
            Ordering::Greater => return Ok(true),
            Ordering::Less => {
                return Err(ApplyRefused::Epoch {
                    given: policy.epoch,
                    held: held.epoch,
                });
            }
            Ordering::Equal => {}
        }
        match policy.revision.cmp(&held.revision) {
            Ordering::Less => Err(ApplyRefused::Revision {
                given: policy.revision,
                held: held.revision,
            }),
            Ordering::Equal if policy.root() != held.root => Err(ApplyRefused::OtherContent {
                revision: policy.revision,
                given: policy.root(),
                held: held.root,
            }),
            // Signed before the term rose, and held already.
            Ordering::Equal => Ok(false),
            Ordering::Greater if policy.leader_term < held.leader_term => Err(ApplyRefused::LeaderTerm {
                given: policy.leader_term,
                held: held.leader_term,
            }),
            Ordering::Greater => Ok(true),
        }
    }
}

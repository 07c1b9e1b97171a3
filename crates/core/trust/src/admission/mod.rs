//! A relay's knowledge of what it may admit, and its verdicts.

mod clock;
mod decision;
mod policy;
mod snapshot;

pub use clock::{HostBoot, Now};
pub use snapshot::{SNAPSHOT_LEN_MAX, Snapshot, SnapshotError};

use crate::document::{Grant, PolicyLease, PolicyRoot, RelayPolicy, RelaySettings};
use crate::envelope::Verified;
use crate::grant::check_time;
use crate::key::Keyring;
use bytes::Bytes;
use clock::{Floor, behind, floored};
use decision::{Decision, Lease, Tunnel, decide};
use fairlead_model::{
    BootTime, EndpointId, Generation, LeaderTerm, LeaseSeq, NodeId, PolicyEpoch, RefusalCode, RelayId,
    Revision, RouteId, ServiceClass, WallTime,
};
use policy::HeldPolicy;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What one relay knows: its policy, its lease, and how late it is at least.
///
/// **Inputs:** policies, leases and grants whose signatures have been verified, and [`Now`].
/// **Outputs:** verdicts. **Order:** a value never changes. [`Self::apply_policy`] and
/// [`Self::apply_lease`] give the next value; the caller writes the next value's
/// [`snapshot`](Self::snapshot) to disk, then puts it in the old one's place, then acknowledges. A
/// head that was acknowledged and forgotten would let an older policy in (R-POL-04). Each minute
/// the snapshot is written again, so that a reboot costs a lease at most a minute of its memory.
///
/// A value is cheap to clone: the policy is shared.
#[derive(Debug, Clone)]
pub struct RelayAdmission {
    relay: RelayId,
    host_boot: HostBoot,
    head: Option<PolicyHead>,
    policy: Option<Arc<HeldPolicy>>,
    lease: Option<HeldLease>,
    floor: Option<Floor>,
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

#[derive(Debug, Clone)]
struct HeldLease {
    lease: Verified<PolicyLease>,
    /// Its end by the boot clock: receipt plus lease.
    ends: BootTime,
}

/// What a valid policy or lease changed.
#[derive(Debug, Clone)]
pub enum Applied {
    /// Nothing: it is held already.
    Unchanged,
    /// This is the next value: persist, replace, acknowledge, in that order. Then hold every live
    /// tunnel against [`RelayAdmission::live_verdict`] and every session against
    /// [`RelayAdmission::session_verdict`].
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
    #[error("its lease covers revision {epoch}.{revision}, not the policy")]
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

/// A consumer's wish to open a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct OpenClaim<'a> {
    /// The node whose certificate the hop session proved.
    pub consumer: NodeId,
    /// The route it asks for.
    pub route: RouteId,
    /// Its grant, verified with [`RelayAdmission::grant_keys`].
    pub grant: &'a Verified<Grant>,
    /// Whether the stream lives already.
    pub resume: bool,
    /// How long the claim has been held so far; zero when it is new.
    pub waited: Duration,
    /// How many other claims of this consumer are held.
    pub held_by_consumer: usize,
}

/// The answer to an [`OpenClaim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Open it.
    Admit(Admitted),
    /// Say no.
    Refuse(RefusalCode),
    /// The policy that holds the route may be on its way (R-POL-10): ask again when a policy is
    /// applied, or after this long.
    Hold(Duration),
}

/// Where an admitted tunnel leads, as the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The node that publishes it.
    pub publisher: NodeId,
    /// Its class.
    pub class: ServiceClass,
    /// The policy that admits it.
    pub epoch: PolicyEpoch,
    /// The policy's revision.
    pub revision: Revision,
}

/// A tunnel that carries bytes, with what it was admitted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveTunnel {
    /// Its route.
    pub route: RouteId,
    /// Its consumer.
    pub consumer: NodeId,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// Its publisher.
    pub publisher: NodeId,
}

/// The answer for a [`LiveTunnel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveVerdict {
    /// It goes on.
    Keep,
    /// Close it, with this reason.
    Close(RefusalCode),
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

/// Longest lease (R-POL-01).
pub const LEASE_MAX: Duration = Duration::from_secs(168 * 3600);
/// How long a claim ahead of the policy is held (R-POL-10).
pub const HOLD_MAX: Duration = Duration::from_secs(10);
/// Most claims of one node that are held: a node that knows more new routes than that opens again
/// when it is told to wait.
pub const HELD_PER_NODE_MAX: usize = 16;

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
            floor: None,
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
            lease: lease.map(|lease| HeldLease {
                lease,
                ends: since.plus(snapshot.lease_left.min(LEASE_MAX)),
            }),
            floor: snapshot.floor.map(|wall| Floor::new(wall, since)),
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
            lease_left: self
                .lease
                .as_ref()
                .map_or(Duration::ZERO, |l| l.ends.since(now.boot)),
            policy_envelope: self
                .policy
                .as_ref()
                .map_or_else(Bytes::new, |p| p.policy().envelope().clone()),
            lease_envelope: self
                .lease
                .as_ref()
                .map_or_else(Bytes::new, |l| l.lease.envelope().clone()),
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
            // The same lease again renews nothing: its receipt was the first time.
            let is_held = self
                .lease
                .as_ref()
                .is_some_and(|held| held.lease.digest() == lease.digest());
            return if is_held {
                Ok(Applied::Unchanged)
            } else {
                Err(ApplyRefused::LeaseSeq {
                    given: lease.seq,
                    held: head.lease_seq,
                })
            };
        }
        let mut next = self.clone();
        next.head = Some(PolicyHead {
            leader_term: lease.leader_term,
            lease_seq: lease.seq,
            lease_not_after: lease.not_after,
            ..head
        });
        next.floor = Some(Floor::raised(self.floor, lease.not_before, now.boot));
        next.lease = Some(HeldLease {
            ends: now.boot.plus(lasts),
            lease,
        });
        Ok(Applied::Next(next))
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

    /// What the lease is worth.
    #[must_use]
    pub fn lease_state(&self, now: Now) -> LeaseState {
        let covering = self.lease.as_ref().filter(|held| {
            self.policy
                .as_ref()
                .is_some_and(|p| p.policy().root() == held.lease.root)
        });
        let Some(held) = covering else {
            return LeaseState::Missing;
        };
        let wall = floored(self.floor, now);
        let left = held.lease.not_after.since(wall).min(held.ends.since(now.boot));
        if left.is_zero() {
            LeaseState::Ended
        } else {
            LeaseState::Valid(left)
        }
    }

    /// Whether a tunnel is opened.
    #[must_use]
    pub fn verdict(&self, claim: &OpenClaim<'_>, now: Now) -> Verdict {
        let Some(policy) = &self.policy else {
            return Verdict::Refuse(RefusalCode::NoPolicy);
        };
        let tunnel = if claim.resume {
            Tunnel::Resumed
        } else {
            Tunnel::New
        };
        match decide(self.lease(now), tunnel, policy.is_revoked(claim.route)) {
            Decision::Refuse(code) | Decision::Close(code) => Verdict::Refuse(code),
            // Only live tunnels are kept.
            Decision::Keep => Verdict::Refuse(RefusalCode::Internal),
            Decision::Examine => self.examine(policy, claim, now),
        }
    }

    fn examine(&self, policy: &HeldPolicy, claim: &OpenClaim<'_>, now: Now) -> Verdict {
        let grant = claim.grant;
        if !policy.has_node(claim.consumer) {
            return Verdict::Refuse(RefusalCode::UnknownNode);
        }
        if grant.route != claim.route || grant.consumer != claim.consumer {
            return Verdict::Refuse(RefusalCode::BadGrant);
        }
        // A key that policy no longer holds is revoked with all its grants, held ones included.
        if !self.grant_keys().keys().any(|k| k.id() == grant.signer()) {
            return Verdict::Refuse(RefusalCode::BadGrant);
        }
        if let Err(refused) = check_time(grant, floored(self.floor, now)) {
            return Verdict::Refuse(refused.code());
        }
        let Some((route, endpoint)) = policy.route(claim.route) else {
            return hold_or(policy, claim, RefusalCode::UnknownRoute);
        };
        let is_same = route.consumer == grant.consumer
            && endpoint.endpoint == grant.endpoint
            && endpoint.publisher == grant.publisher;
        if !is_same {
            return Verdict::Refuse(RefusalCode::BadGrant);
        }
        if !claim.resume {
            match grant.generation.cmp(&endpoint.generation) {
                Ordering::Equal => {}
                // Its consumer has a newer grant coming.
                Ordering::Less => return Verdict::Refuse(RefusalCode::GrantExpired),
                Ordering::Greater => return hold_or(policy, claim, RefusalCode::GrantAheadOfPolicy),
            }
        }
        Verdict::Admit(Admitted {
            endpoint: endpoint.endpoint,
            publisher: endpoint.publisher,
            class: endpoint.class,
            epoch: policy.policy().epoch,
            revision: policy.policy().revision,
        })
    }

    /// Whether a live tunnel goes on under the policy held. Generations are no matter: tunnels of
    /// an old one stay until the new one registers (R-ADM-01).
    #[must_use]
    pub fn live_verdict(&self, tunnel: &LiveTunnel, now: Now) -> LiveVerdict {
        let Some(policy) = &self.policy else {
            return LiveVerdict::Keep;
        };
        match decide(self.lease(now), Tunnel::Live, policy.is_revoked(tunnel.route)) {
            Decision::Refuse(code) | Decision::Close(code) => return LiveVerdict::Close(code),
            Decision::Keep | Decision::Examine => {}
        }
        if !policy.has_node(tunnel.consumer) || !policy.has_node(tunnel.publisher) {
            return LiveVerdict::Close(RefusalCode::UnknownNode);
        }
        let stands = policy.route(tunnel.route).is_some_and(|(route, endpoint)| {
            route.consumer == tunnel.consumer
                && endpoint.endpoint == tunnel.endpoint
                && endpoint.publisher == tunnel.publisher
        });
        if stands {
            LiveVerdict::Keep
        } else {
            LiveVerdict::Close(RefusalCode::UnknownRoute)
        }
    }

    /// Whether `node` may hold a hop session. A lease is not asked for: a session admits nothing,
    /// and it is there at once when the lease is renewed.
    ///
    /// # Errors
    /// No policy is held, or it does not name the node.
    pub fn session_verdict(&self, node: NodeId) -> Result<(), RefusalCode> {
        match &self.policy {
            None => Err(RefusalCode::NoPolicy),
            Some(policy) if policy.has_node(node) => Ok(()),
            Some(_) => Err(RefusalCode::UnknownNode),
        }
    }

    /// Whether `node` may register `endpoint`. An older generation than the policy's may: it serves
    /// until the newer one registers (R-ADM-01).
    ///
    /// # Errors
    /// No policy is held, it does not name the node, or the registration does not match it; the
    /// node tries that again while the policy may be on its way (R-POL-10).
    pub fn registration_verdict(
        &self,
        node: NodeId,
        endpoint: EndpointId,
        generation: Generation,
    ) -> Result<(), RefusalCode> {
        self.session_verdict(node)?;
        let held = self.policy.as_ref().and_then(|p| p.endpoint(endpoint));
        match held {
            Some(held) if held.publisher == node && generation <= held.generation => Ok(()),
            Some(_) | None => Err(RefusalCode::RegistrationMismatch),
        }
    }

    fn lease(&self, now: Now) -> Lease {
        match self.lease_state(now) {
            LeaseState::Valid(_) => Lease::Valid,
            LeaseState::Missing | LeaseState::Ended => Lease::Ended,
        }
    }
}

/// Holds a claim whose grant is newer than the policy, within the bounds; else refuses it.
fn hold_or(policy: &HeldPolicy, claim: &OpenClaim<'_>, otherwise: RefusalCode) -> Verdict {
    let grant = claim.grant;
    let held = policy.policy();
    if (grant.epoch, grant.revision) <= (held.epoch, held.revision) {
        return Verdict::Refuse(otherwise);
    }
    let left = HOLD_MAX.saturating_sub(claim.waited);
    if left.is_zero() {
        Verdict::Refuse(RefusalCode::GrantAheadOfPolicy)
    } else if claim.held_by_consumer >= HELD_PER_NODE_MAX {
        Verdict::Refuse(RefusalCode::TooMany)
    } else {
        Verdict::Hold(left)
    }
}

static NO_KEYS: Keyring = Keyring::EMPTY;

#[cfg(test)]
mod tests;

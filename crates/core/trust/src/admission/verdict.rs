//! A relay's answers: to opens, live tunnels, sessions and registrations.

use super::clock::floored;
use super::decision::{Decision, Lease, Tunnel, decide};
use super::policy::HeldPolicy;
use super::{LeaseState, Now, RelayAdmission};
use crate::document::Grant;
use crate::envelope::Verified;
use crate::grant::check_time;
use fairlead_model::{
    EndpointId, Generation, NodeId, PolicyEpoch, RefusalCode, Revision, RouteId, ServiceClass,
};
use std::cmp::Ordering;
use std::time::Duration;

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

/// How long a claim ahead of the policy is held (R-POL-10).
pub const HOLD_MAX: Duration = Duration::from_secs(10);
/// Most claims of one node that are held: a node that knows more new routes than that opens again
/// when it is told to wait.
pub const HELD_PER_NODE_MAX: usize = 16;

impl RelayAdmission {
    /// Whether a tunnel is opened.
    #[must_use]
    pub fn verdict(&self, claim: &OpenClaim<'_>, now: Now) -> Verdict {
        match self.unkept.as_ref().map(|unkept| unkept.verdict(claim, now)) {
            Some(no @ (Verdict::Refuse(_) | Verdict::Hold(_))) => return no,
            Some(Verdict::Admit(_)) | None => {}
        }
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
        match self
            .unkept
            .as_ref()
            .map(|unkept| unkept.live_verdict(tunnel, now))
        {
            Some(close @ LiveVerdict::Close(_)) => return close,
            Some(LiveVerdict::Keep) | None => {}
        }
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
        if let Some(unkept) = &self.unkept {
            unkept.session_verdict(node)?;
        }
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
        if let Some(unkept) = &self.unkept {
            unkept.registration_verdict(node, endpoint, generation)?;
        }
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

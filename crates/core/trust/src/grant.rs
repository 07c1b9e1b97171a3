//! The publisher's own look at a grant. A relay is not trusted for it.

use crate::document::{Grant, NodePolicy, Publication};
use crate::envelope::Verified;
use fairlead_model::{NodeId, RefusalCode, RouteId, WallTime};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::time::Duration;

/// Skew between two hosts' clocks that is tolerated (R-POL-05).
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

/// What a node says of the grants it keeps, so that the control plane sends again what was not kept:
/// SHA-256 over each envelope behind its length (u32, big-endian), in the order they came.
pub fn grants_digest<'a>(envelopes: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for envelope in envelopes {
        digest.update(u32::try_from(envelope.len()).unwrap_or(u32::MAX).to_be_bytes());
        digest.update(envelope);
    }
    digest.finalize().into()
}

/// Checks the grants of streams that other nodes open to this one.
///
/// Inputs: a grant whose signature the caller has verified with [`Self::keyring`], the peer that
/// the association's handshake proved, the route that the opener asked for. Output: the
/// publication to dial. Nothing is dialled before it.
#[derive(Debug)]
pub struct GrantCheck<'a> {
    policy: &'a NodePolicy,
}

/// Why a publisher refuses a stream; [`Self::code`] is what the consumer gets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantRefused {
    /// It is for another consumer than the association's peer.
    #[error("the grant is for {granted}, the peer is {peer}")]
    Consumer {
        /// The grant's consumer.
        granted: NodeId,
        /// The node that proved its key.
        peer: NodeId,
    },
    /// It is for another publisher.
    #[error("the grant is for publisher {granted}")]
    Publisher {
        /// The grant's publisher.
        granted: NodeId,
    },
    /// It is for another route than the one asked for.
    #[error("the grant is for {granted}, asked was {asked}")]
    Route {
        /// The grant's route.
        granted: RouteId,
        /// The route asked for.
        asked: RouteId,
    },
    /// The route is revoked.
    #[error("{0} is revoked")]
    Revoked(RouteId),
    /// It ended.
    #[error("the grant ended {} s ago", .0.as_secs())]
    Expired(Duration),
    /// It begins later than clocks may differ.
    #[error("the grant begins in {} s: the clock differs", .0.as_secs())]
    NotYetValid(Duration),
    /// The route is newer than this node's policy.
    #[error("{0} is newer than this node's policy")]
    AheadOfPolicy(RouteId),
    /// This node does not publish the route to that consumer.
    #[error("{0} is not published to its consumer")]
    NotPublished(RouteId),
    /// The endpoint changed after it was granted.
    #[error("the grant is for an older version of the endpoint")]
    Superseded,
}

impl GrantRefused {
    /// The code that the consumer gets.
    #[must_use]
    pub const fn code(&self) -> RefusalCode {
        match self {
            Self::Consumer { .. } | Self::Publisher { .. } | Self::Route { .. } => RefusalCode::BadGrant,
            Self::Revoked(_) => RefusalCode::Revoked,
            Self::Expired(_) | Self::Superseded => RefusalCode::GrantExpired,
            Self::NotYetValid(_) => RefusalCode::GrantNotYetValid,
            Self::AheadOfPolicy(_) => RefusalCode::GrantAheadOfPolicy,
            Self::NotPublished(_) => RefusalCode::UnknownEndpoint,
        }
    }
}

impl<'a> GrantCheck<'a> {
    /// The check under the node's policy.
    #[must_use]
    pub const fn new(policy: &'a NodePolicy) -> Self {
        Self { policy }
    }

    /// The keys whose grants hold; empty with no grant key, so that no grant does.
    #[must_use]
    pub const fn keyring(&self) -> &'a crate::Keyring {
        &self.policy.grant_keys
    }

    /// What to dial for `peer`, which opened `route` with `grant`; `resume` for a stream that lives
    /// already, whose endpoint may have a newer generation.
    ///
    /// # Errors
    /// Who or what the grant is not for.
    pub fn check(
        &self,
        grant: &Verified<Grant>,
        peer: NodeId,
        route: RouteId,
        resume: bool,
        wall: WallTime,
    ) -> Result<&'a Publication, GrantRefused> {
        if grant.consumer != peer {
            return Err(GrantRefused::Consumer {
                granted: grant.consumer,
                peer,
            });
        }
        if grant.publisher != self.policy.node {
            return Err(GrantRefused::Publisher {
                granted: grant.publisher,
            });
        }
        if grant.route != route {
            return Err(GrantRefused::Route {
                granted: grant.route,
                asked: route,
            });
        }
        if self.is_revoked(route) {
            return Err(GrantRefused::Revoked(route));
        }
        // A clock turned back does not go behind what the control plane has signed already.
        check_time(grant, wall.max(self.policy.issued_at))?;
        let publication = self
            .policy
            .publications
            .iter()
            .find(|p| p.routes.iter().any(|r| r.route == route));
        let Some(publication) = publication else {
            return Err(
                if (grant.epoch, grant.revision) > (self.policy.epoch, self.policy.revision) {
                    GrantRefused::AheadOfPolicy(route)
                } else {
                    GrantRefused::NotPublished(route)
                },
            );
        };
        let for_peer = publication
            .routes
            .iter()
            .any(|r| r.route == route && r.consumer == peer);
        if !for_peer || publication.endpoint != grant.endpoint {
            return Err(GrantRefused::NotPublished(route));
        }
        if !resume {
            match grant.generation.cmp(&publication.generation) {
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Less => return Err(GrantRefused::Superseded),
                std::cmp::Ordering::Greater => return Err(GrantRefused::AheadOfPolicy(route)),
            }
        }
        Ok(publication)
    }

    /// Whether a live stream of `route` is to be reset (R-REV-01).
    #[must_use]
    pub fn is_revoked(&self, route: RouteId) -> bool {
        self.policy.revoked_routes.contains(&route)
    }

    /// The routes that a policy revokes, for many questions at once.
    #[must_use]
    pub fn revoked(&self) -> BTreeSet<RouteId> {
        self.policy.revoked_routes.iter().copied().collect()
    }
}

/// Whether `grant` holds at `wall`, give or take [`CLOCK_SKEW_MAX`].
pub(crate) fn check_time(grant: &Grant, wall: WallTime) -> Result<(), GrantRefused> {
    if grant.not_before > wall.plus(CLOCK_SKEW_MAX) {
        return Err(GrantRefused::NotYetValid(grant.not_before.since(wall)));
    }
    if wall >= grant.not_after.plus(CLOCK_SKEW_MAX) {
        return Err(GrantRefused::Expired(wall.since(grant.not_after)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! What documents say, without the numbers that they are signed under: two plans are compared by
//! this, and what did not change is not signed again.

use fairlead_model::{
    EndpointId, Generation, LeaderTerm, NodeId, PolicyEpoch, RelayId, Revision, RouteId, WallTime,
};
use fairlead_trust::{
    Consumption, Grant, Keyring, NodePolicy, NodeRelay, PolicyEndpoint, PolicyRoute, Publication,
    RelayPolicy, RelaySettings,
};

/// The number that a policy is signed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    /// The reign of numbering.
    pub epoch: PolicyEpoch,
    /// The number within it.
    pub revision: Revision,
    /// The leader's term.
    pub leader_term: LeaderTerm,
    /// When it was numbered.
    pub issued_at: WallTime,
}

/// What a relay's policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayContents {
    /// Endpoints that may be registered.
    pub endpoints: Vec<PolicyEndpoint>,
    /// Routes that may be opened.
    pub routes: Vec<PolicyRoute>,
    /// Nodes that may hold a session.
    pub nodes: Vec<NodeId>,
    /// Routes that were taken away.
    pub revoked_routes: Vec<RouteId>,
    /// Bounds.
    pub settings: RelaySettings,
}

/// What a node's policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContents {
    /// Relays to keep a session to.
    pub relays: Vec<NodeRelay>,
    /// What it publishes.
    pub publications: Vec<Publication>,
    /// What it consumes.
    pub consumptions: Vec<Consumption>,
    /// Its routes that were taken away.
    pub revoked_routes: Vec<RouteId>,
}

/// What a grant says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantContents {
    /// Who may open.
    pub consumer: NodeId,
    /// Whom it may reach.
    pub publisher: NodeId,
    /// What it may reach.
    pub endpoint: EndpointId,
    /// By this route.
    pub route: RouteId,
    /// The endpoint's version.
    pub generation: Generation,
    /// The first revision that holds the route on all its relays.
    pub revision: Revision,
    /// Relays that it is used at: it outlasts their leases (R-POL-02). Not part of the document.
    pub relays: Vec<RelayId>,
}

impl RelayContents {
    /// The document.
    #[must_use]
    pub fn policy(&self, relay: RelayId, numbering: Numbering, grant_keys: &Keyring) -> RelayPolicy {
        RelayPolicy {
            relay,
            epoch: numbering.epoch,
            revision: numbering.revision,
            leader_term: numbering.leader_term,
            issued_at: numbering.issued_at,
            endpoints: self.endpoints.clone(),
            routes: self.routes.clone(),
            nodes: self.nodes.clone(),
            revoked_routes: self.revoked_routes.clone(),
            grant_keys: grant_keys.clone(),
            settings: self.settings,
        }
    }
}

impl NodeContents {
    /// The document.
    #[must_use]
    pub fn policy(&self, node: NodeId, numbering: Numbering, grant_keys: &Keyring) -> NodePolicy {
        NodePolicy {
            node,
            epoch: numbering.epoch,
            revision: numbering.revision,
            leader_term: numbering.leader_term,
            issued_at: numbering.issued_at,
            relays: self.relays.clone(),
            publications: self.publications.clone(),
            consumptions: self.consumptions.clone(),
            revoked_routes: self.revoked_routes.clone(),
            grant_keys: grant_keys.clone(),
        }
    }
}

impl GrantContents {
    /// The document, for the time from `not_before` to `not_after`.
    #[must_use]
    pub const fn grant(&self, epoch: PolicyEpoch, not_before: WallTime, not_after: WallTime) -> Grant {
        Grant {
            consumer: self.consumer,
            publisher: self.publisher,
            endpoint: self.endpoint,
            route: self.route,
            generation: self.generation,
            epoch,
            revision: self.revision,
            not_before,
            not_after,
        }
    }
}

//! The policy in force, indexed for the questions of a verdict.

use crate::document::{PolicyEndpoint, PolicyRoute, RelayPolicy};
use crate::envelope::Verified;
use fairlead_model::{EndpointId, NodeId, RouteId};
use std::collections::{BTreeMap, BTreeSet};

/// A policy and its indexes. Derived once, when the policy is applied.
#[derive(Debug)]
pub(super) struct HeldPolicy {
    policy: Verified<RelayPolicy>,
    endpoints: BTreeMap<EndpointId, PolicyEndpoint>,
    routes: BTreeMap<RouteId, PolicyRoute>,
    nodes: BTreeSet<NodeId>,
    revoked: BTreeSet<RouteId>,
}

impl HeldPolicy {
    pub(super) fn new(policy: Verified<RelayPolicy>) -> Self {
        Self {
            endpoints: policy.endpoints.iter().map(|e| (e.endpoint, *e)).collect(),
            routes: policy.routes.iter().map(|r| (r.route, *r)).collect(),
            nodes: policy.nodes.iter().copied().collect(),
            revoked: policy.revoked_routes.iter().copied().collect(),
            policy,
        }
    }

    pub(super) const fn policy(&self) -> &Verified<RelayPolicy> {
        &self.policy
    }

    pub(super) fn has_node(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    pub(super) fn is_revoked(&self, route: RouteId) -> bool {
        self.revoked.contains(&route)
    }

    pub(super) fn endpoint(&self, endpoint: EndpointId) -> Option<&PolicyEndpoint> {
        self.endpoints.get(&endpoint)
    }

    /// The route with the endpoint that it leads to.
    pub(super) fn route(&self, route: RouteId) -> Option<(&PolicyRoute, &PolicyEndpoint)> {
        let route = self.routes.get(&route)?;
        Some((route, self.endpoints.get(&route.endpoint)?))
    }
}

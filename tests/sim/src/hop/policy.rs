//! What the control plane wants: which node serves which endpoint at which relays.

use fairlead_model::{EndpointId, Generation, NodeId};
use std::collections::BTreeMap;

pub(super) fn node_id(node: usize) -> NodeId {
    NodeId::from_bytes([node as u8 + 1; 16])
}

pub(super) fn endpoint_id(endpoint: usize) -> EndpointId {
    EndpointId::from_bytes([endpoint as u8 + 1; 16])
}

/// An endpoint. Its generation rises with each change and survives its removal.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) publisher: usize,
    pub(super) generation: Generation,
    /// By relay.
    pub(super) at: Vec<bool>,
    pub(super) wanted: bool,
}

/// One version of it, as nodes and relays receive it.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) version: u64,
    pub(super) endpoints: Vec<Endpoint>,
    /// By node, then by relay: whether the node keeps a session to it.
    pub(super) relays: Vec<Vec<bool>>,
}

impl Policy {
    pub(super) fn draw(rng: &mut fastrand::Rng, nodes: usize, relays: usize, endpoints: usize) -> Self {
        let endpoint = |rng: &mut fastrand::Rng| Endpoint {
            publisher: rng.usize(0..nodes),
            generation: Generation(1),
            at: (0..relays).map(|_| rng.u8(0..4) > 0).collect(),
            wanted: true,
        };
        let mut reached: Vec<Vec<bool>> = (0..nodes)
            .map(|_| (0..relays).map(|_| rng.u8(0..5) > 0).collect())
            .collect();
        for node in &mut reached {
            node[rng.usize(0..relays)] = true;
        }
        Self {
            version: 1,
            endpoints: (0..endpoints).map(|_| endpoint(rng)).collect(),
            relays: reached,
        }
    }

    /// What a node registers at a relay.
    pub(super) fn publications(&self, node: usize, relay: usize) -> BTreeMap<EndpointId, Generation> {
        let all = self.endpoints.iter().enumerate();
        all.filter(|(_, e)| e.wanted && e.publisher == node && e.at[relay] && self.relays[node][relay])
            .map(|(n, e)| (endpoint_id(n), e.generation))
            .collect()
    }

    /// Whether a relay takes a registration, as `trust` has it.
    pub(super) fn admits(
        &self,
        relay: usize,
        node: NodeId,
        endpoint: EndpointId,
        generation: Generation,
    ) -> bool {
        let found = self
            .endpoints
            .iter()
            .enumerate()
            .find(|(n, _)| endpoint_id(*n) == endpoint);
        found.is_some_and(|(_, e)| {
            e.wanted && e.at[relay] && node_id(e.publisher) == node && generation <= e.generation
        })
    }
}

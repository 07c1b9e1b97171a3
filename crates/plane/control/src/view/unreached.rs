//! Relays that no node reaches, by what nodes report: sooner than a probe of a port that answered a minute
//! ago, and the only word there is where the port answers other relays and no node.

use crate::observed::Members;
use crate::state::State;
use fairlead_model::{Name, NodeId, RelayId};
use std::collections::BTreeMap;

/// What the connected nodes say of one relay.
#[derive(Debug, Default, Clone)]
struct Said {
    /// Nodes that reach it.
    on: usize,
    /// Nodes that tried and do not.
    off: Vec<NodeId>,
    /// Of those, one that reaches another relay or has none: its own network is not the reason.
    witness: Option<(NodeId, String)>,
    /// The first of them, whatever it reaches.
    first: Option<(NodeId, String)>,
}

impl Said {
    /// Who is believed: two that reach nothing at all are believed too.
    fn believed(&self) -> Option<&(NodeId, String)> {
        if self.on > 0 {
            return None;
        }
        let many = self.off.len() > 1;
        self.witness
            .as_ref()
            .or_else(|| self.first.as_ref().filter(|_| many))
    }
}

/// The relays of which nodes say anything.
#[derive(Debug, Default, Clone)]
pub(super) struct Unreached(BTreeMap<RelayId, Said>);

impl Unreached {
    pub(super) fn of(members: &Members) -> Self {
        let mut all: BTreeMap<RelayId, Said> = BTreeMap::new();
        for (id, node) in &members.nodes {
            let Some(status) = node.status.as_ref().filter(|_| node.session.is_some()) else {
                continue;
            };
            // A session that stands and of which nothing is heard reaches nobody.
            let is_on = |relay: &RelayId| {
                status
                    .relays
                    .get(relay)
                    .is_some_and(|r| r.connected && r.error.is_empty())
            };
            let reaches_any = status.relays.keys().any(is_on);
            for (relay, reach) in &status.relays {
                let said = all.entry(*relay).or_default();
                if is_on(relay) {
                    said.on = said.on.saturating_add(1);
                } else if !reach.error.is_empty() {
                    said.off.push(*id);
                    let word = || (*id, reach.error.clone());
                    said.first.get_or_insert_with(word);
                    if reaches_any || status.relays.len() == 1 {
                        said.witness.get_or_insert_with(word);
                    }
                }
            }
        }
        Self(all)
    }

    /// The nodes that do not reach the relay; none where they are not believed.
    pub(super) fn by(&self, relay: RelayId, state: &State) -> Vec<Name> {
        let believed = self.0.get(&relay).filter(|said| said.believed().is_some());
        let nodes = believed.map_or(&[][..], |said| &said.off);
        nodes
            .iter()
            .filter_map(|id| state.node(*id))
            .map(|node| node.name.0.clone())
            .collect()
    }

    /// The reason for which the relay is not ready; empty where there is none.
    pub(super) fn words(&self, relay: RelayId, state: &State) -> String {
        let Some(said) = self.0.get(&relay) else {
            return String::new();
        };
        let Some((node, error)) = said.believed() else {
            return String::new();
        };
        let name = state
            .node(*node)
            .map_or_else(|| node.to_string(), |n| n.name.0.to_string());
        match said.off.len() {
            1 => format!("node {name} does not reach it: {error}"),
            off => format!("none of {off} nodes reaches it; node {name}: {error}"),
        }
    }
}

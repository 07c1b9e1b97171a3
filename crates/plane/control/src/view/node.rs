//! Nodes: what their daemons said, and what keeps them from being ready.

use super::Viewer;
use super::newer::Signed;
use super::starting::{self, Ages, NodeLack};
use crate::api::{HeadView, NodeState, NodeView, PolicyView, ReachView, Ref, RefusedView};
use crate::observed::{NodeObserved, NodeReport};
use crate::readiness::OFFLINE_AFTER;
use crate::record::NodeRecord;
use fairlead_model::{NodeId, RelayId};

/// Why a node is not connected to a relay whose supervisor said goodbye.
const STOPPED: &str = "the relay was stopped";

impl Viewer<'_> {
    pub(crate) fn node(&self, record: &NodeRecord) -> NodeView {
        let id = record.id.0;
        let observed = self.members.nodes.get(&id);
        let status = observed.and_then(|o| o.status.as_ref());
        let (state, state_reason, starting) = self.node_state(record, observed);
        // What one that is away does is not known.
        let current = status.filter(|_| state != NodeState::Offline);
        NodeView {
            id,
            name: record.name.0.clone(),
            state,
            state_reason,
            starting,
            created_at: record.created_at.into(),
            enrolled_at: record.enrolled.as_ref().map(|e| e.at.into()),
            last_seen: self.last_seen(
                observed.is_some_and(|o| o.session.is_some()),
                observed.and_then(|o| o.closed).map(|c| c.at),
                record.stopped_at,
            ),
            version: observed.map(|o| o.version.clone()).unwrap_or_default(),
            policy: PolicyView {
                wanted: self.wanted_node(id),
                wanted_at: self.documents.nodes.get(&id).map(|p| p.issued_at),
                applied: status
                    .and_then(|s| s.policy)
                    .map(|(epoch, revision)| HeadView { epoch, revision }),
                refused: status.map(|s| s.policy_refused.clone()).unwrap_or_default(),
                holds_newer: status.is_some_and(|s| self.node_holds_newer(id, s)),
                lease_not_after: None,
            },
            refused: observed.and_then(|o| o.refused(self.mono)).map(RefusedView::from),
            relays: self.reaches(id, current),
            live_streams: current.map_or(0, |s| s.live_streams),
            memory_bytes: current.map_or(0, |s| s.memory_bytes),
            metrics: status.map(|s| s.metrics.clone()).unwrap_or_default(),
            certificate_not_after: record.enrolled.as_ref().map(|e| e.certificate_not_after.into()),
            copies: self.node_copies(id, observed),
        }
    }

    /// Whether a node refuses its policy since it holds something newer.
    fn node_holds_newer(&self, id: NodeId, status: &NodeReport) -> bool {
        let (Some(policy), Some((epoch, revision))) = (self.documents.nodes.get(&id), status.policy) else {
            return false;
        };
        let signed = Signed {
            epoch: policy.epoch,
            revision: policy.revision,
            leader_term: policy.leader_term,
        };
        !status.policy_refused.is_empty() && signed.is_refused_by(epoch, revision, status.leader_term)
    }

    fn wanted_node(&self, id: NodeId) -> Option<HeadView> {
        self.documents.nodes.get(&id).map(|p| HeadView {
            epoch: p.epoch.0,
            revision: p.revision.0,
        })
    }

    fn reaches(&self, id: NodeId, status: Option<&NodeReport>) -> Vec<ReachView> {
        let Some(policy) = self.documents.nodes.get(&id) else {
            return Vec::new();
        };
        policy
            .relays
            .iter()
            .map(|relay| {
                let reach = status.and_then(|s| s.relays.get(&relay.relay));
                ReachView {
                    relay: Ref {
                        id: relay.relay,
                        name: relay.name.clone(),
                    },
                    connected: reach.is_some_and(|r| r.connected),
                    rtt_us: reach.and_then(|r| r.rtt_us),
                    error: match reach {
                        // Known better than the node can see it.
                        Some(r) if !r.connected && self.is_stopped(relay.relay) => STOPPED.to_owned(),
                        Some(r) => r.error.clone(),
                        None => String::new(),
                    },
                    registered: reach.map(|r| r.registered.clone()).unwrap_or_default(),
                }
            })
            .collect()
    }

    fn is_stopped(&self, relay: RelayId) -> bool {
        let record = self.state.relay(relay);
        record.is_some_and(|record| self.facts(record).stopped)
    }

    /// How a node stands, why it is not ready, and whether it is only just starting.
    pub(super) fn node_state(
        &self,
        record: &NodeRecord,
        observed: Option<&NodeObserved>,
    ) -> (NodeState, String, bool) {
        let stands = |state, reason: &str| (state, reason.to_owned(), false);
        if record.enrolled.is_none() {
            return stands(NodeState::Pending, "it has not enrolled yet");
        }
        let connected = observed.is_some_and(|o| o.session.is_some());
        let closed = observed.and_then(|o| o.closed);
        if let Some(refused) = observed.and_then(|o| o.refused(self.mono)) {
            let reason = format!("its daemon's session is refused: {}", refused.words);
            return stands(NodeState::Offline, &reason);
        }
        let was_stopped = !connected && record.stopped_at.is_some();
        if closed.map_or(was_stopped, |c| c.stopped) {
            return stands(NodeState::Offline, "its daemon was stopped");
        }
        let lost_at = closed.map_or(self.inner.started, |c| c.at);
        if !connected && self.mono.since(lost_at) >= OFFLINE_AFTER {
            return stands(NodeState::Offline, "its daemon is not connected");
        }
        let id = record.id.0;
        match self.node_unready(id, connected, observed.and_then(|o| o.status.as_ref())) {
            None => stands(NodeState::Ready, ""),
            Some((reason, lack)) => {
                let starting = starting::node(lack, self.ages(id).unwrap_or_default());
                (NodeState::NotReady, reason, starting)
            }
        }
    }

    /// Since when a node has had what it is to do; `None` while it is not connected.
    pub(super) fn ages(&self, id: NodeId) -> Option<Ages> {
        let session = self.members.nodes.get(&id)?.session.as_ref()?;
        let policy = self.documents.nodes.get(&id);
        Some(Ages {
            session: Some(self.mono.since(session.at)),
            policy: policy.map(|p| self.wall.since(p.issued_at)),
        })
    }

    fn node_unready(
        &self,
        id: NodeId,
        connected: bool,
        status: Option<&NodeReport>,
    ) -> Option<(String, NodeLack)> {
        let lacks = |reason: &str, lack| Some((reason.to_owned(), lack));
        let Some(status) = status else {
            return lacks(
                if connected {
                    "its daemon has not reported yet"
                } else {
                    "its daemon is not connected yet"
                },
                NodeLack::Word,
            );
        };
        if !status.policy_refused.is_empty() {
            let reason = format!("it refused its policy: {}", status.policy_refused);
            return lacks(&reason, NodeLack::Refused);
        }
        let wanted = self.wanted_node(id).map(|w| (w.epoch, w.revision));
        // One that is on its way takes nothing from what the node has.
        let is_on_its_way = status.policy.is_some() && self.ages(id).is_some_and(Ages::has_new_policy);
        if wanted.is_none() || wanted != status.policy && !is_on_its_way {
            return lacks("it does not hold its newest policy yet", NodeLack::Policy);
        }
        let reaches = self.reaches(id, Some(status));
        if reaches.is_empty() {
            let relays = self.carriers(self.state.relays.keys().copied());
            return lacks("no relay is ready for it", NodeLack::Relays(relays));
        }
        let missing = reaches
            .iter()
            .find(|reach| !reach.connected && self.is_relay_ready(reach.relay.id));
        if let Some(reach) = missing {
            let lack = NodeLack::Relay {
                tried: !reach.error.is_empty(),
                relay: self.carrier(reach.relay.id),
            };
            return Some((unreached(reach), lack));
        }
        if !reaches.iter().any(|r| r.connected) {
            let relays = self.carriers(reaches.iter().map(|r| r.relay.id));
            return lacks("it is connected to none of its relays", NodeLack::Relays(relays));
        }
        None
    }
}

fn unreached(reach: &ReachView) -> String {
    if reach.error.is_empty() {
        format!("it is not connected to relay {} yet", reach.relay.name)
    } else {
        format!("it cannot connect to relay {}: {}", reach.relay.name, reach.error)
    }
}

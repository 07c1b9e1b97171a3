//! Views: what is wanted, what is signed and what was reported, put together for people.

use crate::api::{
    HeadView, LinkState, LinkView, NodeState, NodeView, PolicyView, ReachView, Ref, RefusalView, RelayState,
    RelayView, StatusView, WorkerView,
};
use crate::control::Inner;
use crate::observed::{Members, NodeObserved, NodeReport};
use crate::plan::endpoints_on;
use crate::publish::Documents;
use crate::readiness::{self, Facts, Lack, OFFLINE_AFTER, Standing};
use crate::reconcile::facts;
use crate::record::{At, LinkRecord, MemberKey, NodeRecord, RelayRecord};
use crate::state::State;
use crate::verbs::removable_after;
use fairlead_model::{Generation, MonoTime, Name, NodeId, RefusalCode, RelayId, WallTime};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use report::Report;
use unreached::Unreached;

mod copies;
mod report;
mod unreached;

/// One consistent look at everything. Holds the lock on reports: make views and drop it.
pub(crate) struct Viewer<'a> {
    inner: &'a Inner,
    pub(crate) state: Arc<State>,
    documents: Documents,
    members: MutexGuard<'a, Members>,
    mono: MonoTime,
    wall: WallTime,
    unreached: Unreached,
}

impl<'a> Viewer<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Self {
        let members = inner.observed.lock();
        Self {
            inner,
            state: inner.ledger.state(),
            documents: inner.published.snapshot(),
            unreached: Unreached::of(&members),
            members,
            mono: inner.clock.mono(),
            wall: inner.clock.wall(),
        }
    }

    pub(crate) fn relay(&self, record: &RelayRecord) -> RelayView {
        let id = record.id.0;
        let observed = self.members.relays.get(&id);
        let status = observed.and_then(|o| o.status.as_ref());
        let Standing {
            state,
            reason: state_reason,
            lack,
        } = self.standing(record);
        RelayView {
            id,
            name: record.name.0.clone(),
            address: record.address.0.clone(),
            failure_domain: record.failure_domain.0.clone(),
            local: record.local,
            state,
            state_reason,
            unreached_by: match lack {
                Lack::Way => self.unreached.by(id, &self.state),
                Lack::Nothing | Lack::Time | Lack::Mending => Vec::new(),
            },
            capacity: record.capacity,
            created_at: record.created_at.into(),
            enrolled_at: record.enrolled.as_ref().map(|e| e.at.into()),
            last_seen: self.last_seen(
                observed.is_some_and(|o| o.session.is_some()),
                observed.and_then(|o| o.closed).map(|c| c.at),
                record.lost_at,
            ),
            version: observed.map(|o| o.version.clone()).unwrap_or_default(),
            worker: match status {
                Some(status) => Some(Report::of_relay(state, self.facts(record).stopped).worker(status)),
                // As the control plane before this one heard.
                None => self.facts(record).stopped.then(|| WorkerView {
                    state: "stopped",
                    ..WorkerView::default()
                }),
            },
            policy: PolicyView {
                wanted: self.documents.relays.get(&id).map(|p| HeadView {
                    epoch: p.epoch.0,
                    revision: p.revision.0,
                }),
                wanted_at: self.documents.relays.get(&id).map(|p| p.issued_at),
                applied: status.and_then(|s| s.applied).map(|a| HeadView {
                    epoch: a.epoch.0,
                    revision: a.revision.0,
                }),
                refused: status.map(|s| s.policy_refused.clone()).unwrap_or_default(),
                lease_not_after: status.and_then(|s| s.applied).map(|a| a.lease_not_after),
            },
            certificate_not_after: record.enrolled.as_ref().map(|e| e.certificate_not_after.into()),
            endpoints: endpoints_on(&self.documents.placements, id),
            clock_behind: status.and_then(|s| s.clock_behind),
            signed_ahead: status.is_some_and(|s| s.signed_ahead),
            removable_after: self.removable_after(record),
            leased: self
                .state
                .heads
                .get(&MemberKey::Relay(record.id))
                .is_some_and(|head| head.record.lease_seq > 0 || head.record.lease_not_after.is_some()),
            copies: observed.and_then(|o| self.copies(&o.processes)),
        }
    }

    /// From when on a relay that has served may be removed, were it stopped at this moment.
    pub(crate) fn removable_after(&self, record: &RelayRecord) -> Option<WallTime> {
        if record.enrolled.is_none() || record.local || !record.served {
            return None;
        }
        let seen = match self.is_connected(record.id.0) {
            true => self.wall,
            false => self.seen_last(record),
        };
        removable_after(&self.state, record, seen)
    }

    /// Whether the relay's supervisor is connected.
    pub(crate) fn is_connected(&self, id: RelayId) -> bool {
        self.members.relays.get(&id).is_some_and(|o| o.session.is_some())
    }

    /// Whether the node's daemon is connected.
    pub(crate) fn is_node_connected(&self, id: NodeId) -> bool {
        self.members.nodes.get(&id).is_some_and(|o| o.session.is_some())
    }

    /// How many connected nodes say that they are connected to the relay.
    pub(crate) fn nodes_on(&self, id: RelayId) -> usize {
        self.members.witnesses(id).0
    }

    /// When an enrolled relay that is not connected was seen last, or later.
    pub(crate) fn seen_last(&self, record: &RelayRecord) -> WallTime {
        let closed = self.members.relays.get(&record.id.0).and_then(|o| o.closed);
        let seen = self.last_seen(false, closed.map(|c| c.at), record.lost_at);
        let enrolled = record.enrolled.as_ref();
        match (seen, enrolled) {
            (Some(seen), _) => seen,
            (None, Some(enrolled)) if !enrolled.connected => enrolled.at.into(),
            // It was connected when the control plane before this one ended.
            (None, _) => self.wall.minus(self.mono.since(self.inner.started)),
        }
    }

    pub(crate) fn standing(&self, record: &RelayRecord) -> Standing {
        readiness::standing(&self.facts(record))
    }

    fn facts(&self, record: &RelayRecord) -> Facts {
        let id = record.id.0;
        let facts = facts(
            record,
            self.members.relays.get(&id),
            &self.state,
            self.mono,
            self.inner.started,
        );
        Facts {
            unreached: self.unreached.words(id, &self.state),
            ..facts
        }
    }

    pub(crate) fn node(&self, record: &NodeRecord) -> NodeView {
        let id = record.id.0;
        let observed = self.members.nodes.get(&id);
        let status = observed.and_then(|o| o.status.as_ref());
        let (state, state_reason) = self.node_state(record, observed);
        // What one that is away does is not known.
        let current = status.filter(|_| state != NodeState::Offline);
        NodeView {
            id,
            name: record.name.0.clone(),
            state,
            state_reason,
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
                lease_not_after: None,
            },
            relays: self.reaches(id, current),
            live_streams: current.map_or(0, |s| s.live_streams),
            memory_bytes: current.map_or(0, |s| s.memory_bytes),
            metrics: status.map(|s| s.metrics.clone()).unwrap_or_default(),
            certificate_not_after: record.enrolled.as_ref().map(|e| e.certificate_not_after.into()),
            copies: self.node_copies(id, observed),
        }
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
                    error: reach.map(|r| r.error.clone()).unwrap_or_default(),
                    registered: reach.map(|r| r.registered.clone()).unwrap_or_default(),
                }
            })
            .collect()
    }

    fn node_state(&self, record: &NodeRecord, observed: Option<&NodeObserved>) -> (NodeState, String) {
        if record.enrolled.is_none() {
            return (NodeState::Pending, "it has not enrolled yet".to_owned());
        }
        let connected = observed.is_some_and(|o| o.session.is_some());
        let closed = observed.and_then(|o| o.closed);
        let was_stopped = !connected && record.stopped_at.is_some();
        if closed.map_or(was_stopped, |c| c.stopped) {
            return (NodeState::Offline, "its daemon was stopped".to_owned());
        }
        let lost_at = closed.map_or(self.inner.started, |c| c.at);
        if !connected && self.mono.since(lost_at) >= OFFLINE_AFTER {
            return (NodeState::Offline, "its daemon is not connected".to_owned());
        }
        let reason = self.node_unready(record.id.0, connected, observed.and_then(|o| o.status.as_ref()));
        match reason {
            None => (NodeState::Ready, String::new()),
            Some(reason) => (NodeState::NotReady, reason),
        }
    }

    fn is_relay_ready(&self, id: RelayId) -> bool {
        let relay = self.state.relay(id);
        relay.is_some_and(|r| self.standing(r).state == RelayState::Ready)
    }

    fn node_unready(&self, id: NodeId, connected: bool, status: Option<&NodeReport>) -> Option<String> {
        let Some(status) = status else {
            return Some(if connected {
                "its daemon has not reported yet".to_owned()
            } else {
                "its daemon is not connected yet".to_owned()
            });
        };
        if !status.policy_refused.is_empty() {
            return Some(format!("it refused its policy: {}", status.policy_refused));
        }
        let wanted = self.wanted_node(id);
        if wanted.is_none() || wanted.map(|w| (w.epoch, w.revision)) != status.policy {
            return Some("it does not hold its newest policy yet".to_owned());
        }
        let reaches = self.reaches(id, Some(status));
        if reaches.is_empty() {
            return Some("no relay is ready for it".to_owned());
        }
        let missing = reaches
            .iter()
            .find(|reach| !reach.connected && self.is_relay_ready(reach.relay.id));
        if let Some(reach) = missing {
            return Some(unreached(reach));
        }
        if !reaches.iter().any(|r| r.connected) {
            return Some("it is connected to none of its relays".to_owned());
        }
        None
    }

    pub(crate) fn link(&self, record: &LinkRecord) -> LinkView {
        let placement = self.documents.placements.get(&record.id.0);
        let relays: Vec<RelayId> = placement.map(|p| p.relays().collect()).unwrap_or_default();
        let waiting_for = self.link_waits(record, &relays);
        LinkView {
            id: record.id.0,
            name: record.name.0.clone(),
            from: self.node_ref(record.consumer.0),
            to: self.node_ref(record.publisher.0),
            target: record.target.0.clone(),
            listen: record.listen.0,
            class: record.class.0,
            endpoint: record.endpoint.0,
            generation: Generation(record.generation),
            route: record.route.0,
            created_at: record.created_at.into(),
            relays: relays
                .iter()
                .filter_map(|id| self.state.relay(*id))
                .map(|r| Ref {
                    id: r.id.0,
                    name: r.name.0.clone(),
                })
                .collect(),
            placement_reason: placement.map_or_else(
                || "it has not been planned yet".to_owned(),
                |p| p.reason.to_string(),
            ),
            state: if waiting_for.is_empty() {
                LinkState::Ready
            } else {
                LinkState::Pending
            },
            waiting_for,
            listen_error: self.listen_error(record),
            last_refusal: self.last_refusal(record),
        }
    }

    fn listen_error(&self, record: &LinkRecord) -> String {
        let consumer = self.members.nodes.get(&record.consumer.0);
        let status = consumer
            .filter(|n| n.session.is_some())
            .and_then(|n| n.status.as_ref());
        let listener = status.and_then(|s| s.listeners.get(&record.route.0));
        listener.map(|l| l.error.clone()).unwrap_or_default()
    }

    fn last_refusal(&self, record: &LinkRecord) -> Option<RefusalView> {
        let consumer = self.members.nodes.get(&record.consumer.0)?;
        let listener = consumer.status.as_ref()?.listeners.get(&record.route.0)?;
        let refusal = listener.last_refusal?;
        let code = u16::try_from(refusal.code)
            .ok()
            .and_then(RefusalCode::from_number);
        Some(RefusalView {
            code: code.map_or("UNKNOWN", RefusalCode::as_str),
            message: code.map_or_else(
                || format!("a code of a newer version: {}", refusal.code),
                |code| code.message().to_owned(),
            ),
            at: refusal.at,
            count: refusal.count,
        })
    }

    /// What is missing until a connection to the link's listener is carried.
    fn link_waits(&self, record: &LinkRecord, relays: &[RelayId]) -> Vec<String> {
        let mut waits = Vec::new();
        let consumer = self.node_ref(record.consumer.0).name;
        let publisher = self.node_ref(record.publisher.0).name;
        let report = |id: NodeId| {
            self.members
                .nodes
                .get(&id)
                .filter(|n| n.session.is_some())
                .and_then(|n| n.status.as_ref())
        };
        let from = report(record.consumer.0);
        let to = report(record.publisher.0);
        let is_registered_at = |r: &RelayId| to.is_some_and(|to| is_registered(to, *r, record));
        let registered = relays.iter().any(is_registered_at);
        // A relay where it is registered carries it, even out of the control plane's sight.
        let lacks_relay = !registered && !relays.iter().any(|r| self.is_relay_ready(*r));
        if lacks_relay {
            waits.push(self.no_relay(relays));
        }
        let away = |id: NodeId| {
            let enrolled = self.state.node(id).is_some_and(|n| n.enrolled.is_some());
            if enrolled {
                "is not connected"
            } else {
                "has not enrolled yet"
            }
        };
        if from.is_none() {
            waits.push(format!("consumer {consumer} {}", away(record.consumer.0)));
        }
        if to.is_none() {
            waits.push(format!("publisher {publisher} {}", away(record.publisher.0)));
        }
        // Each of these two follows from what is named before it: that is said once.
        if to.is_some() && !registered && !lacks_relay {
            waits.push(format!(
                "publisher {publisher} has not registered it on a relay yet"
            ));
        }
        if let Some(from) = from
            && registered
            && !relays
                .iter()
                .any(|r| is_registered_at(r) && from.relays.get(r).is_some_and(|reach| reach.connected))
        {
            waits.push(format!(
                "consumer {consumer} reaches no relay where it is registered yet"
            ));
        }
        let grants = self.documents.grants.get(&record.consumer.0);
        if let (Some(held), Some(wanted)) = (from.and_then(|s| s.grants), grants)
            && held != wanted.digest()
        {
            waits.push(format!("consumer {consumer} does not hold its grants yet"));
        }
        match from.map(|s| s.listeners.get(&record.route.0)) {
            Some(Some(listener)) if !listener.error.is_empty() => {
                waits.push(format!(
                    "consumer {consumer} cannot listen on {}: {}",
                    record.listen.0, listener.error
                ));
            }
            Some(Some(listener)) if listener.listening => {}
            Some(Some(_) | None) => {
                waits.push(format!(
                    "consumer {consumer} does not listen on {} yet",
                    record.listen.0
                ));
            }
            None => {}
        }
        waits
    }

    /// That none of a link's relays is ready, and why; none is said to be at fault where it has none.
    fn no_relay(&self, relays: &[RelayId]) -> String {
        let why = relays.iter().filter_map(|id| {
            let record = self.state.relay(*id)?;
            Some(format!("relay {}: {}", record.name.0, self.standing(record).reason))
        });
        let why: Vec<String> = why.collect();
        match why.as_slice() {
            [] => "no relay is ready to carry it".to_owned(),
            why => format!("no relay is ready to carry it ({})", why.join("; ")),
        }
    }

    fn node_ref(&self, id: NodeId) -> Ref<NodeId> {
        let name = self.state.node(id).map(|n| n.name.0.clone());
        Ref {
            id,
            name: name.unwrap_or_else(unknown_name),
        }
    }

    fn last_seen(&self, connected: bool, lost: Option<MonoTime>, stored: Option<At>) -> Option<WallTime> {
        if connected {
            return Some(self.wall);
        }
        lost.map(|at| self.wall.minus(self.mono.since(at)))
            .or_else(|| stored.map(WallTime::from))
    }

    pub(crate) fn status(&self, ca_pin: String) -> StatusView {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let state = &self.state;
        let relays_ready = state
            .relays
            .values()
            .filter(|k| self.standing(&k.record).state == RelayState::Ready);
        let nodes_ready = state.nodes.values().filter(|k| {
            let observed = self.members.nodes.get(&k.record.id.0);
            self.node_state(&k.record, observed).0 == NodeState::Ready
        });
        let links_ready = state
            .links
            .values()
            .filter(|k| self.link(&k.record).state == LinkState::Ready);
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            trust_domain: self.inner.domain.clone(),
            ca_pin,
            advertised: self.inner.settings.advertise.clone(),
            lab: self.inner.settings.lab,
            uptime: whole_seconds(self.mono.since(self.inner.started)),
            leader_term: self.inner.term().0,
            policy_epoch: self.inner.epoch.0,
            policy_revision: state.policy_revision(),
            relays_ready: count(relays_ready.count()),
            relays: count(state.relays.len()),
            nodes_ready: count(nodes_ready.count()),
            nodes: count(state.nodes.len()),
            links_ready: count(links_ready.count()),
            links: count(state.links.len()),
            audit_seq: state.audit_head.as_ref().map_or(0, |k| k.record.seq),
            audit_broken: self.inner.audit_broken.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}

fn is_registered(publisher: &NodeReport, relay: RelayId, link: &LinkRecord) -> bool {
    publisher
        .relays
        .get(&relay)
        .is_some_and(|reach| reach.registered.contains(&link.endpoint.0))
}

fn unreached(reach: &ReachView) -> String {
    if reach.error.is_empty() {
        format!("it is not connected to relay {} yet", reach.relay.name)
    } else {
        format!("it cannot connect to relay {}: {}", reach.relay.name, reach.error)
    }
}

/// A node that was removed while a view was made; nodes of links are never removed.
fn unknown_name() -> Name {
    #[allow(clippy::expect_used, reason = "a constant that a test parses")]
    UNKNOWN.parse().expect("a constant name")
}

const UNKNOWN: &str = "unknown";

fn whole_seconds(d: Duration) -> Duration {
    Duration::from_secs(d.as_secs())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_unknown_name_is_a_name() {
        assert_eq!(super::unknown_name().as_str(), super::UNKNOWN);
    }
}

//! Views: what is wanted, what is signed and what was reported, put together for people.

use crate::api::{
    HeadView, LinkState, NodeState, PolicyView, Ref, RefusedView, RelayState, RelayView, StatusView,
    WorkerView,
};
use crate::control::{FREE_UNKNOWN, Inner};
use crate::observed::{Members, Refused, RelayReport};
use crate::plan::endpoints_on;
use crate::publish::Documents;
use crate::readiness::{self, Facts, Lack, Standing};
use crate::reconcile::facts;
use crate::record::{At, MemberKey, RelayRecord, Text};
use crate::state::State;
use crate::verbs::removable_after;
use fairlead_model::{LeaseSeq, MonoTime, Name, NodeId, RelayId, WallTime};
use newer::Signed;
use report::Report;
use starting::Carrier;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use unreached::Unreached;

mod copies;
mod link;
mod newer;
mod node;
mod report;
mod starting;
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
        let standing = self.standing(record);
        let starting = self.carrier(record.id.0).starting;
        let Standing {
            state,
            reason: state_reason,
            lack,
        } = standing;
        RelayView {
            id,
            name: record.name.0.clone(),
            address: record.address.0.clone(),
            failure_domain: record.failure_domain.0.clone(),
            local: record.local,
            state,
            state_reason,
            starting,
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
                holds_newer: status.is_some_and(|s| self.relay_holds_newer(id, s)),
                lease_not_after: status.and_then(|s| s.applied).map(|a| a.lease_not_after),
            },
            certificate_not_after: record.enrolled.as_ref().map(|e| e.certificate_not_after.into()),
            endpoints: endpoints_on(&self.documents.placements, id),
            refused: observed.and_then(|o| o.refused(self.mono)).map(RefusedView::from),
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

    /// Whether a relay refuses its policy since it holds something newer.
    fn relay_holds_newer(&self, id: RelayId, status: &RelayReport) -> bool {
        let (Some(policy), Some(held)) = (self.documents.relays.get(&id), &status.applied) else {
            return false;
        };
        let head = self.state.heads.get(&MemberKey::Relay(Text(id)));
        let signed = Signed {
            epoch: policy.epoch,
            revision: policy.revision,
            leader_term: policy.leader_term,
        };
        let lease_seq = LeaseSeq(head.map_or(0, |head| head.record.lease_seq));
        !status.policy_refused.is_empty() && signed.is_below(held, policy.root(), lease_seq)
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

    /// How new a relay is.
    fn carrier(&self, id: RelayId) -> Carrier {
        let Some(record) = self.state.relay(id) else {
            return Carrier::default();
        };
        let standing = self.standing(record);
        let stood = self.members.stood(id, standing.state, self.mono);
        Carrier {
            starting: standing.is_starting(stood),
            ready: (standing.state == RelayState::Ready).then_some(stood),
        }
    }

    fn carriers(&self, relays: impl Iterator<Item = RelayId>) -> Carrier {
        relays.fold(Carrier::default(), |all, id| all.or(self.carrier(id)))
    }

    fn is_relay_ready(&self, id: RelayId) -> bool {
        let relay = self.state.relay(id);
        relay.is_some_and(|r| self.standing(r).state == RelayState::Ready)
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
            audit_broken: self.inner.audit_broken.load(Ordering::Relaxed),
            store_free: Some(self.inner.store_free.load(Ordering::Relaxed))
                .filter(|free| *free != FREE_UNKNOWN),
        }
    }
}

impl From<&Refused> for RefusedView {
    fn from(refused: &Refused) -> Self {
        Self {
            code: refused.code,
            message: refused.words.clone(),
        }
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

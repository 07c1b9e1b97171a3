//! Links: where they are placed, and what they wait for.

use super::{Viewer, starting};
use crate::api::{LinkState, LinkView, Ref, RefusalView};
use crate::observed::NodeReport;
use crate::publish::GrantSet;
use crate::record::LinkRecord;
use fairlead_model::{Generation, Name, NodeId, RefusalCode, RelayId};
use std::time::Duration;

impl Viewer<'_> {
    pub(crate) fn link(&self, record: &LinkRecord) -> LinkView {
        let placement = self.documents.placements.get(&record.id.0);
        let relays: Vec<RelayId> = placement.map(|p| p.relays().collect()).unwrap_or_default();
        let waiting_for = self.link_waits(record, &relays);
        let listen_error = self.listen_error(record);
        let starting = !waiting_for.is_empty()
            && listen_error.is_empty()
            && starting::link(
                self.age(record),
                [record.consumer.0, record.publisher.0].map(|id| self.ages(id)),
                self.carriers(relays.iter().copied()),
            );
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
            starting,
            waiting_for,
            listen_error,
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
        if from.is_some_and(|from| self.lacks_grant(record, from)) {
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

    /// Whether the consumer does not hold the link's grant; what it lacks of other links does not count.
    fn lacks_grant(&self, record: &LinkRecord, consumer: &NodeReport) -> bool {
        let (Some(held), Some(wanted)) = (consumer.grants, self.documents.grants.get(&record.consumer.0))
        else {
            return false;
        };
        let of = |set: &GrantSet| set.grants.get(&record.route.0).cloned();
        let held_grant = consumer.kept.as_deref().and_then(of);
        match (held_grant, of(wanted)) {
            (Some(held), Some(wanted)) if held.is_alike(&wanted) => false,
            (_, _) => held != wanted.digest(),
        }
    }

    /// Since when a link has what it is to have: it was added, or its grant was signed anew.
    fn age(&self, record: &LinkRecord) -> Duration {
        let grants = self.documents.grants.get(&record.consumer.0);
        let signed = grants
            .and_then(|set| set.grants.get(&record.route.0))
            .map(|signed| signed.grant.not_before);
        let added = self.wall.since(record.created_at.into());
        signed.map_or(added, |at| added.min(self.wall.since(at)))
    }

    /// Relays that may hold any link and are not connected; one that was served may hold those that have moved since.
    pub(crate) fn unheard_relays(&self) -> Vec<Name> {
        let relays = self.state.relays.values().map(|known| &known.record);
        relays
            .filter(|relay| relay.enrolled.is_some() && relay.served && !self.is_connected(relay.id.0))
            .map(|relay| relay.name.0.clone())
            .collect()
    }

    /// Those of a link's nodes that are not connected.
    pub(crate) fn unheard_nodes(&self, record: &LinkRecord) -> Vec<Name> {
        [record.consumer.0, record.publisher.0]
            .into_iter()
            .filter_map(|id| self.state.node(id))
            .filter(|node| node.enrolled.is_some() && !self.is_node_connected(node.id.0))
            .map(|node| node.name.0.clone())
            .collect()
    }

    /// That none of a link's relays is ready, and why; none is said to be at fault where it has none.
    fn no_relay(&self, relays: &[RelayId]) -> String {
        let why = relays.iter().filter_map(|id| {
            let record = self.state.relay(*id)?;
            Some(format!(
                "relay {}: {}",
                record.name.0,
                self.standing(record).reason
            ))
        });
        let why: Vec<String> = why.collect();
        match why.as_slice() {
            [] => "no relay is ready to carry it".to_owned(),
            why => format!("no relay is ready to carry it ({})", why.join("; ")),
        }
    }
}

fn is_registered(publisher: &NodeReport, relay: RelayId, link: &LinkRecord) -> bool {
    publisher
        .relays
        .get(&relay)
        .is_some_and(|reach| reach.registered.contains(&link.endpoint.0))
}

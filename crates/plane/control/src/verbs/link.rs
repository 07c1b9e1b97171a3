//! Verbs on links.

use super::{actor, full, missing, other_kind, taken};
use crate::api::{AddLink, ApiError, Faults, LinkView, Principal, RemovedLink};
use crate::audit::AuditNote;
use crate::control::Control;
use crate::ledger::Change;
use crate::plan::{LINKS_MAX, LINKS_PER_NODE_MAX};
use crate::record::{At, LinkRecord, RevokedRecord, Text, key};
use crate::state::State;
use crate::view::Viewer;
use fairlead_host::rng;
use fairlead_model::{ApiCode, ListenAddress, Name, NodeId, ServiceClass, TargetAddress};

impl Control {
    /// Adds a link: an endpoint on the publisher and a route to it for the consumer.
    ///
    /// # Errors
    /// Faults of the input, unknown nodes among them; the name, or the listen address on that
    /// consumer, is taken.
    pub async fn add_link(&self, by: &Principal, input: AddLink) -> Result<LinkView, ApiError> {
        let turn = self.0.ledger.turn().await?;
        let state = turn.state();
        let mut faults = Faults::default();
        let name: Option<Name> = faults.parse("name", &input.name);
        let consumer = node(state, &mut faults, "from", &input.from);
        let publisher = node(state, &mut faults, "to", &input.to);
        let target: Option<TargetAddress> = faults.parse("target", &input.target);
        let listen = faults.take("listen", ListenAddress::requested(&input.listen));
        let class: Option<ServiceClass> = match &input.class {
            Some(class) => faults.parse("class", class),
            None => Some(ServiceClass::default()),
        };
        if consumer.is_some() && consumer == publisher {
            faults.add(
                "to",
                "it is the consumer itself: the two ends are different nodes",
            );
        }
        let parts = name
            .zip(consumer)
            .zip(publisher)
            .zip(target)
            .zip(listen)
            .zip(class);
        let (((((name, consumer), publisher), target), listen), class) = faults.into_result(parts)?;
        let links = || state.links.values().map(|k| &k.record);
        if links().any(|l| l.name.0 == name) {
            return Err(taken("link", name.as_str()));
        }
        if let Some(other) = links().find(|l| l.consumer.0 == consumer && overlaps(l.listen.0, listen)) {
            let message = format!(
                "`{listen}` is taken on {} by link {}, which listens on {}",
                input.from, other.name.0, other.listen.0
            );
            return Err(ApiError::new(ApiCode::ListenTaken, message.clone()).with_fault("listen", message));
        }
        if state.links.len() >= LINKS_MAX {
            return Err(full("links", LINKS_MAX));
        }
        for (end, id) in [("from", consumer), ("to", publisher)] {
            let of_node = links()
                .filter(|l| l.consumer.0 == id || l.publisher.0 == id)
                .count();
            if of_node >= LINKS_PER_NODE_MAX {
                return Err(full("links of one node", LINKS_PER_NODE_MAX)
                    .with_fault(end, "it has no room for another"));
            }
        }
        let record = LinkRecord {
            id: Text(rng::new_id()),
            name: Text(name),
            consumer: Text(consumer),
            publisher: Text(publisher),
            target: Text(target),
            listen: Text(listen),
            class: Text(class),
            endpoint: Text(rng::new_id()),
            generation: 1,
            route: Text(rng::new_id()),
            created_at: At::from(self.0.clock.wall()),
        };
        let mut change = Change::default();
        change.note(AuditNote::new(actor(by), "link.add", format!("link {}", record.name.0)).after(&record));
        change.put(key::link(record.id.0), &record);
        turn.commit(change).await?;
        Ok(Viewer::new(&self.0).link(&record))
    }

    /// Every link, by name.
    pub async fn links(&self) -> Vec<LinkView> {
        let viewer = Viewer::new(&self.0);
        let mut views: Vec<LinkView> = viewer
            .state
            .links
            .values()
            .map(|k| viewer.link(&k.record))
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// One link, by name or id.
    ///
    /// # Errors
    /// No such link.
    pub async fn link(&self, name_or_id: &str) -> Result<LinkView, ApiError> {
        let viewer = Viewer::new(&self.0);
        let record = viewer.state.find_link(name_or_id)?;
        record
            .map(|l| viewer.link(l))
            .ok_or_else(|| missing(&viewer.state, "link", name_or_id))
    }

    /// Removes a link and revokes its route (R-REV-01); the link as it was, and who cannot have heard of it.
    ///
    /// # Errors
    /// No such link.
    pub async fn remove_link(&self, by: &Principal, name_or_id: &str) -> Result<RemovedLink, ApiError> {
        let turn = self.0.ledger.turn().await?;
        let record = turn
            .state()
            .find_link(name_or_id)?
            .cloned()
            .ok_or_else(|| missing(turn.state(), "link", name_or_id))?;
        let link = Viewer::new(&self.0).link(&record);
        let mut change = Change::default();
        change.note(
            AuditNote::new(actor(by), "link.remove", format!("link {}", record.name.0)).before(&record),
        );
        change.delete(key::link(record.id.0));
        change.put(
            key::revoked(record.route.0),
            &RevokedRecord {
                route: record.route,
                link: record.name.clone(),
                consumer: record.consumer,
                publisher: record.publisher,
                at: At::from(self.0.clock.wall()),
            },
        );
        turn.commit(change).await?;
        // After it: who connects from here on is given what is without it.
        let viewer = Viewer::new(&self.0);
        Ok(RemovedLink {
            link,
            unheard_relays: viewer.unheard_relays(),
            unheard_nodes: viewer.unheard_nodes(&record),
        })
    }
}

/// A node by name or id; a fault that names the nodes there are.
fn node(state: &State, faults: &mut Faults, field: &str, name_or_id: &str) -> Option<NodeId> {
    let found = faults.take(field, state.find_node(name_or_id))?.map(|n| n.id.0);
    if found.is_none() {
        let shown: String = name_or_id.chars().take(80).collect();
        let known: Vec<&str> = state
            .nodes
            .values()
            .take(8)
            .map(|k| k.record.name.0.as_str())
            .collect();
        let known = match (known.len(), state.nodes.len()) {
            (0, _) => "add one with `fairlead node add`".to_owned(),
            (shown, all) if shown < all => format!("there are {} and {} more", known.join(", "), all - shown),
            (_, _) => format!("there are: {}", known.join(", ")),
        };
        let other = other_kind(state, "node", name_or_id);
        faults.add(field, format!("there is no node `{shown}`{other}; {known}"));
    }
    found
}

/// Whether two listeners of one node would take the same address.
fn overlaps(one: ListenAddress, other: ListenAddress) -> bool {
    one.0.port() == other.0.port()
        && (one.0.ip() == other.0.ip()
            // A wildcard takes every address of its family; the IPv6 one may take IPv4's as well.
            || one.0.ip().is_unspecified() && (one.0.is_ipv6() || other.0.is_ipv4())
            || other.0.ip().is_unspecified() && (other.0.is_ipv6() || one.0.is_ipv4()))
}

//! Documents out of verified bytes; every field is checked.

use crate::field::{DecodeError, Fault, Place, WireId, class, ids, keyring, unique};
use crate::pb;
use bytes::Bytes;
use fairlead_model::{EndpointId, Generation, LeaderTerm, LeaseSeq, PolicyEpoch, RelayId, Revision, RouteId};
use fairlead_trust::{
    Consumption, Document, Grant, NodePolicy, NodeRelay, PolicyEndpoint, PolicyLease, PolicyRoot,
    PolicyRoute, Publication, PublishedRoute, RelayPolicy, RelaySettings, Verified, VerifiedPayload,
};
use prost::Message;
use std::collections::BTreeSet;

/// Parses a relay's policy.
///
/// # Errors
/// The first field with a fault.
pub fn decode_relay_policy(payload: &VerifiedPayload) -> Result<Verified<RelayPolicy>, DecodeError> {
    decode(payload, "relay policy", relay_policy)
}

/// Parses a policy lease.
///
/// # Errors
/// The first field with a fault.
pub fn decode_policy_lease(payload: &VerifiedPayload) -> Result<Verified<PolicyLease>, DecodeError> {
    decode(payload, "policy lease", policy_lease)
}

/// Parses a node's policy.
///
/// # Errors
/// The first field with a fault.
pub fn decode_node_policy(payload: &VerifiedPayload) -> Result<Verified<NodePolicy>, DecodeError> {
    decode(payload, "node policy", node_policy)
}

/// Parses a grant.
///
/// # Errors
/// The first field with a fault.
pub fn decode_grant(payload: &VerifiedPayload) -> Result<Verified<Grant>, DecodeError> {
    decode(payload, "grant", grant)
}

fn decode<M: Message + Default, T: Document>(
    payload: &VerifiedPayload,
    message: &'static str,
    check: impl FnOnce(M) -> Result<T, DecodeError>,
) -> Result<Verified<T>, DecodeError> {
    payload.parse(
        |found| DecodeError::OtherDocument {
            message,
            found: found.as_str(),
        },
        |bytes| {
            let wire = M::decode(bytes).map_err(|e| DecodeError::Protobuf {
                message,
                reason: e.to_string(),
            })?;
            check(wire)
        },
    )
}

fn relay_policy(wire: pb::RelayPolicy) -> Result<RelayPolicy, DecodeError> {
    let endpoints = policy_endpoints(&wire.endpoints)?;
    Ok(RelayPolicy {
        relay: Place::root("relay_id").id(&wire.relay_id)?,
        epoch: PolicyEpoch(wire.epoch),
        revision: Revision(wire.revision),
        leader_term: LeaderTerm(wire.leader_term),
        issued_at: Place::root("issued_at_ms").wall(wire.issued_at_ms)?,
        routes: policy_routes(&wire.routes, &endpoints)?,
        endpoints,
        nodes: ids(&wire.node_ids, |i| Place::item("node_ids", i))?,
        revoked_routes: ids(&wire.revoked_route_ids, |i| Place::item("revoked_route_ids", i))?,
        grant_keys: keyring(&wire.grant_keys, "grant_keys")?,
        settings: settings(wire.settings)?,
    })
}

fn policy_endpoints(list: &[pb::PolicyEndpoint]) -> Result<Vec<PolicyEndpoint>, DecodeError> {
    let mut seen = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, e)| {
            let at = Place::item("endpoints", index);
            Ok(PolicyEndpoint {
                endpoint: unique(&mut seen, &at.field("endpoint_id"), &e.endpoint_id)?,
                generation: Generation(e.generation),
                publisher: at.field("publisher_node_id").id(&e.publisher_node_id)?,
                class: class(&at.field("class"), e.class)?,
            })
        })
        .collect()
}

fn policy_routes(
    list: &[pb::PolicyRoute],
    endpoints: &[PolicyEndpoint],
) -> Result<Vec<PolicyRoute>, DecodeError> {
    let held: BTreeSet<EndpointId> = endpoints.iter().map(|e| e.endpoint).collect();
    let mut seen = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, r)| {
            let at = Place::item("routes", index);
            Ok(PolicyRoute {
                route: unique(&mut seen, &at.field("route_id"), &r.route_id)?,
                consumer: at.field("consumer_node_id").id(&r.consumer_node_id)?,
                endpoint: held_id(&held, &at.field("endpoint_id"), &r.endpoint_id)?,
            })
        })
        .collect()
}

fn settings(wire: Option<pb::RelaySettings>) -> Result<RelaySettings, DecodeError> {
    let at = Place::root("settings");
    let wire = wire.ok_or_else(|| at.fault(Fault::Missing))?;
    Ok(RelaySettings {
        legs_per_node_max: at
            .field("legs_per_node_max")
            .range(wire.legs_per_node_max, 1, 1 << 20)?,
        pending_opens_per_node_max: at.field("pending_opens_per_node_max").range(
            wire.pending_opens_per_node_max,
            1,
            1 << 16,
        )?,
        handshakes_per_address_max: at.field("handshakes_per_address_max").range(
            wire.handshakes_per_address_max,
            1,
            1 << 16,
        )?,
        splice_buffer_bytes: at.field("splice_buffer_bytes").range(
            wire.splice_buffer_bytes,
            16 * 1024,
            4 * 1024 * 1024,
        )?,
    })
}

fn policy_lease(wire: pb::PolicyLease) -> Result<PolicyLease, DecodeError> {
    Ok(PolicyLease {
        relay: Place::root("relay_id").id(&wire.relay_id)?,
        epoch: PolicyEpoch(wire.epoch),
        revision: Revision(wire.revision),
        root: PolicyRoot(Place::root("root").digest(&wire.root)?),
        not_before: Place::root("not_before_ms").wall(wire.not_before_ms)?,
        not_after: Place::root("not_after_ms").wall(wire.not_after_ms)?,
        seq: LeaseSeq(wire.seq),
        leader_term: LeaderTerm(wire.leader_term),
    })
}

fn node_policy(wire: pb::NodePolicy) -> Result<NodePolicy, DecodeError> {
    let relays = node_relays(&wire.relays)?;
    let held: BTreeSet<RelayId> = relays.iter().map(|r| r.relay).collect();
    Ok(NodePolicy {
        node: Place::root("node_id").id(&wire.node_id)?,
        epoch: PolicyEpoch(wire.epoch),
        revision: Revision(wire.revision),
        leader_term: LeaderTerm(wire.leader_term),
        issued_at: Place::root("issued_at_ms").wall(wire.issued_at_ms)?,
        relays,
        publications: publications(&wire.publications, &held)?,
        consumptions: consumptions(&wire.consumptions, &held)?,
        revoked_routes: ids(&wire.revoked_route_ids, |i| Place::item("revoked_route_ids", i))?,
        grant_keys: keyring(&wire.grant_keys, "grant_keys")?,
    })
}

fn node_relays(list: &[pb::NodeRelay]) -> Result<Vec<NodeRelay>, DecodeError> {
    let mut seen = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, r)| {
            let at = Place::item("relays", index);
            Ok(NodeRelay {
                relay: unique(&mut seen, &at.field("relay_id"), &r.relay_id)?,
                name: at.field("name").text(&r.name)?,
                address: at.field("address").text(&r.address)?,
                failure_domain: at.field("failure_domain").text(&r.failure_domain)?,
            })
        })
        .collect()
}

fn publications(
    list: &[pb::Publication],
    relays: &BTreeSet<RelayId>,
) -> Result<Vec<Publication>, DecodeError> {
    let mut seen = BTreeSet::new();
    // A route leads to one endpoint only.
    let mut routes = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, p)| {
            let at = Place::item("publications", index);
            Ok(Publication {
                endpoint: unique(&mut seen, &at.field("endpoint_id"), &p.endpoint_id)?,
                generation: Generation(p.generation),
                link: at.field("link_name").text(&p.link_name)?,
                target: at.field("target").text(&p.target)?,
                class: class(&at.field("class"), p.class)?,
                relays: assigned(&at, &p.relay_ids, relays)?,
                routes: published_routes(&at, &p.routes, &mut routes)?,
            })
        })
        .collect()
}

fn published_routes(
    at: &Place<'_>,
    list: &[pb::PublishedRoute],
    seen: &mut BTreeSet<RouteId>,
) -> Result<Vec<PublishedRoute>, DecodeError> {
    list.iter()
        .enumerate()
        .map(|(index, r)| {
            let at = at.field_item("routes", index);
            Ok(PublishedRoute {
                route: unique(seen, &at.field("route_id"), &r.route_id)?,
                consumer: at.field("consumer_node_id").id(&r.consumer_node_id)?,
                revision_min: Revision(r.revision_min),
            })
        })
        .collect()
}

fn consumptions(
    list: &[pb::Consumption],
    relays: &BTreeSet<RelayId>,
) -> Result<Vec<Consumption>, DecodeError> {
    let mut seen = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, c)| {
            let at = Place::item("consumptions", index);
            Ok(Consumption {
                route: unique(&mut seen, &at.field("route_id"), &c.route_id)?,
                endpoint: at.field("endpoint_id").id(&c.endpoint_id)?,
                generation: Generation(c.generation),
                publisher: at.field("publisher_node_id").id(&c.publisher_node_id)?,
                link: at.field("link_name").text(&c.link_name)?,
                listen: at.field("listen").text(&c.listen)?,
                class: class(&at.field("class"), c.class)?,
                relays: assigned(&at, &c.relay_ids, relays)?,
            })
        })
        .collect()
}

/// Relays of an assignment: each once, each among the policy's.
fn assigned(at: &Place<'_>, list: &[Bytes], relays: &BTreeSet<RelayId>) -> Result<Vec<RelayId>, DecodeError> {
    let mut seen = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, bytes)| {
            let at = at.field_item("relay_ids", index);
            let relay = unique(&mut seen, &at, bytes)?;
            held_id(relays, &at, bytes)?;
            Ok(relay)
        })
        .collect()
}

fn held_id<T: WireId>(held: &BTreeSet<T>, at: &Place<'_>, bytes: &[u8]) -> Result<T, DecodeError> {
    let id = at.id(bytes)?;
    if held.contains(&id) {
        Ok(id)
    } else {
        Err(at.fault(Fault::Dangling))
    }
}

fn grant(wire: pb::Grant) -> Result<Grant, DecodeError> {
    Ok(Grant {
        consumer: Place::root("consumer_node_id").id(&wire.consumer_node_id)?,
        publisher: Place::root("publisher_node_id").id(&wire.publisher_node_id)?,
        endpoint: Place::root("endpoint_id").id(&wire.endpoint_id)?,
        route: Place::root("route_id").id(&wire.route_id)?,
        generation: Generation(wire.generation),
        epoch: PolicyEpoch(wire.epoch),
        revision: Revision(wire.revision),
        not_before: Place::root("not_before_ms").wall(wire.not_before_ms)?,
        not_after: Place::root("not_after_ms").wall(wire.not_after_ms)?,
    })
}

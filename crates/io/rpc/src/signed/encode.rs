//! Documents into the bytes that are signed.

use crate::field::{WireId, class_to_wire, keyring_to_wire};
use crate::pb;
use fairlead_trust::{
    Consumption, Grant, NodePolicy, NodeRelay, PolicyLease, Publication, RelayPolicy, RelaySettings,
};
use prost::Message;

/// A relay policy's payload.
#[must_use]
pub fn encode_relay_policy(policy: &RelayPolicy) -> Vec<u8> {
    pb::RelayPolicy {
        relay_id: policy.relay.to_wire(),
        epoch: policy.epoch.0,
        revision: policy.revision.0,
        leader_term: policy.leader_term.0,
        issued_at_ms: policy.issued_at.0,
        endpoints: policy
            .endpoints
            .iter()
            .map(|e| pb::PolicyEndpoint {
                endpoint_id: e.endpoint.to_wire(),
                generation: e.generation.0,
                publisher_node_id: e.publisher.to_wire(),
                class: class_to_wire(e.class),
            })
            .collect(),
        routes: policy
            .routes
            .iter()
            .map(|r| pb::PolicyRoute {
                route_id: r.route.to_wire(),
                consumer_node_id: r.consumer.to_wire(),
                endpoint_id: r.endpoint.to_wire(),
            })
            .collect(),
        node_ids: policy.nodes.iter().map(|n| n.to_wire()).collect(),
        revoked_route_ids: policy.revoked_routes.iter().map(|r| r.to_wire()).collect(),
        grant_keys: keyring_to_wire(&policy.grant_keys),
        settings: Some(settings(policy.settings)),
    }
    .encode_to_vec()
}

/// A policy lease's payload.
#[must_use]
pub fn encode_policy_lease(lease: &PolicyLease) -> Vec<u8> {
    pb::PolicyLease {
        relay_id: lease.relay.to_wire(),
        epoch: lease.epoch.0,
        revision: lease.revision.0,
        root: bytes::Bytes::copy_from_slice(&lease.root.0),
        not_before_ms: lease.not_before.0,
        not_after_ms: lease.not_after.0,
        seq: lease.seq.0,
        leader_term: lease.leader_term.0,
    }
    .encode_to_vec()
}

/// A node policy's payload.
#[must_use]
pub fn encode_node_policy(policy: &NodePolicy) -> Vec<u8> {
    pb::NodePolicy {
        node_id: policy.node.to_wire(),
        epoch: policy.epoch.0,
        revision: policy.revision.0,
        leader_term: policy.leader_term.0,
        issued_at_ms: policy.issued_at.0,
        relays: policy.relays.iter().map(relay).collect(),
        publications: policy.publications.iter().map(publication).collect(),
        consumptions: policy.consumptions.iter().map(consumption).collect(),
        revoked_route_ids: policy.revoked_routes.iter().map(|r| r.to_wire()).collect(),
        grant_keys: keyring_to_wire(&policy.grant_keys),
    }
    .encode_to_vec()
}

/// A grant's payload.
#[must_use]
pub fn encode_grant(grant: &Grant) -> Vec<u8> {
    pb::Grant {
        consumer_node_id: grant.consumer.to_wire(),
        publisher_node_id: grant.publisher.to_wire(),
        endpoint_id: grant.endpoint.to_wire(),
        route_id: grant.route.to_wire(),
        generation: grant.generation.0,
        epoch: grant.epoch.0,
        revision: grant.revision.0,
        not_before_ms: grant.not_before.0,
        not_after_ms: grant.not_after.0,
    }
    .encode_to_vec()
}

const fn settings(settings: RelaySettings) -> pb::RelaySettings {
    pb::RelaySettings {
        legs_per_node_max: settings.legs_per_node_max,
        pending_opens_per_node_max: settings.pending_opens_per_node_max,
        handshakes_per_address_max: settings.handshakes_per_address_max,
        splice_buffer_bytes: settings.splice_buffer_bytes,
    }
}

fn relay(relay: &NodeRelay) -> pb::NodeRelay {
    pb::NodeRelay {
        relay_id: relay.relay.to_wire(),
        name: relay.name.to_string(),
        address: relay.address.to_string(),
        failure_domain: relay.failure_domain.to_string(),
    }
}

fn publication(publication: &Publication) -> pb::Publication {
    pb::Publication {
        endpoint_id: publication.endpoint.to_wire(),
        generation: publication.generation.0,
        link_name: publication.link.to_string(),
        target: publication.target.to_string(),
        class: class_to_wire(publication.class),
        relay_ids: publication.relays.iter().map(|r| r.to_wire()).collect(),
        routes: publication
            .routes
            .iter()
            .map(|r| pb::PublishedRoute {
                route_id: r.route.to_wire(),
                consumer_node_id: r.consumer.to_wire(),
                revision_min: r.revision_min.0,
            })
            .collect(),
    }
}

fn consumption(consumption: &Consumption) -> pb::Consumption {
    pb::Consumption {
        route_id: consumption.route.to_wire(),
        endpoint_id: consumption.endpoint.to_wire(),
        generation: consumption.generation.0,
        publisher_node_id: consumption.publisher.to_wire(),
        link_name: consumption.link.to_string(),
        listen: consumption.listen.to_string(),
        class: class_to_wire(consumption.class),
        relay_ids: consumption.relays.iter().map(|r| r.to_wire()).collect(),
    }
}

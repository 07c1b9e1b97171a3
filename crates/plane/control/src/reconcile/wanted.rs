//! The stored state as the plan's input, and what the plan keeps as records.

use crate::plan::{Place, Revoked, Wanted, WantedLink, WantedRelay};
use crate::record::{At, LinkRecord, PlaceRecord, RelayRecord, RevokedRecord, Text};
use crate::setting::Settings;
use crate::state::State;
use fairlead_model::{Generation, Revision, WallTime};

/// What is wanted as of `state`.
pub(super) fn wanted(state: &State, now: WallTime) -> Wanted {
    let settings = Settings::of(state);
    Wanted {
        relays: state
            .relays
            .iter()
            .map(|(id, k)| (*id, relay(&k.record)))
            .collect(),
        nodes: state.nodes.keys().copied().collect(),
        links: state.links.iter().map(|(id, k)| (*id, link(&k.record))).collect(),
        revoked: state
            .revoked
            .iter()
            .map(|(id, k)| (*id, revoked(&k.record)))
            .collect(),
        places: state
            .places
            .iter()
            .map(|(id, k)| (*id, place(&k.record)))
            .collect(),
        spread: settings.spread,
        settings: settings.relay,
        now,
        next: Revision(state.policy_revision()).next(),
    }
}

fn relay(record: &RelayRecord) -> WantedRelay {
    WantedRelay {
        name: record.name.0.clone(),
        address: record.address.0.clone(),
        failure_domain: record.failure_domain.0.clone(),
        local: record.local,
        capacity: record.capacity,
    }
}

fn link(record: &LinkRecord) -> WantedLink {
    WantedLink {
        name: record.name.0.clone(),
        consumer: record.consumer.0,
        publisher: record.publisher.0,
        target: record.target.0.clone(),
        listen: record.listen.0,
        class: record.class.0,
        endpoint: record.endpoint.0,
        generation: Generation(record.generation),
        route: record.route.0,
    }
}

fn revoked(record: &RevokedRecord) -> Revoked {
    Revoked {
        consumer: record.consumer.0,
        publisher: record.publisher.0,
        at: record.at.into(),
    }
}

fn place(record: &PlaceRecord) -> Place {
    Place {
        relays: record.relays.iter().map(|id| id.0).collect(),
        former: record
            .former
            .iter()
            .map(|(id, at)| (id.0, WallTime::from(*at)))
            .collect(),
        since: Revision(record.since),
        widened: Revision(record.widened),
    }
}

/// A place as it is kept.
pub(super) fn place_record(place: &Place) -> PlaceRecord {
    PlaceRecord {
        relays: place.relays.iter().map(|id| Text(*id)).collect(),
        former: place
            .former
            .iter()
            .map(|(id, at)| (Text(*id), At::from(*at)))
            .collect(),
        since: place.since.0,
        widened: place.widened.0,
    }
}

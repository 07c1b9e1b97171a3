//! Documents for the tests of this crate, signed for real.

use crate::admission::Now;
use crate::*;
use fairlead_model::{
    BootTime, EndpointId, Generation, LeaderTerm, LeaseSeq, NodeId, PolicyEpoch, RelayId, Revision, RouteId,
    ServiceClass, WallTime,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const RELAY: RelayId = RelayId::from_bytes([1; 16]);
pub(crate) const CONSUMER: NodeId = NodeId::from_bytes([2; 16]);
pub(crate) const PUBLISHER: NodeId = NodeId::from_bytes([3; 16]);
pub(crate) const STRANGER: NodeId = NodeId::from_bytes([4; 16]);
pub(crate) const ENDPOINT: EndpointId = EndpointId::from_bytes([5; 16]);
pub(crate) const ROUTE: RouteId = RouteId::from_bytes([6; 16]);
pub(crate) const NEW_ROUTE: RouteId = RouteId::from_bytes([7; 16]);
/// When everything begins: an ordinary date, a host up for a day.
pub(crate) const START: Now = Now {
    wall: WallTime(1_800_000_000_000),
    boot: BootTime(86_400_000),
};

pub(crate) const fn hours(n: u64) -> Duration {
    Duration::from_secs(n * 3600)
}

/// Both clocks `d` later.
pub(crate) fn after(now: Now, d: Duration) -> Now {
    Now {
        wall: now.wall.plus(d),
        boot: now.boot.plus(d),
    }
}

pub(crate) fn signer() -> SigningKey {
    SigningKey::from_seed(&[9; 32])
}

pub(crate) fn keyring() -> Keyring {
    Keyring::new([signer().verifying_key()]).unwrap()
}

thread_local! {
    /// Signing is slow without optimisation, and property tests sign the same documents often.
    static SIGNED: RefCell<BTreeMap<(KeyId, String), VerifiedPayload>> = const { RefCell::new(BTreeMap::new()) };
}

/// `document` as if it had been parsed out of a signed envelope: its debug text stands for its
/// bytes, so that other content has another root.
pub(crate) fn signed_by<T: Document + Clone + std::fmt::Debug>(
    key: &SigningKey,
    document: &T,
) -> Verified<T> {
    let payload = format!("{document:?}");
    let verified = SIGNED.with_borrow_mut(|held| {
        held.entry((key.verifying_key().id(), payload.clone()))
            .or_insert_with(|| {
                let envelope = seal(key, T::PAYLOAD_TYPE, payload.as_bytes()).unwrap();
                let ring = Keyring::new([key.verifying_key()]).unwrap();
                verify(&ring, T::PAYLOAD_TYPE, &envelope).unwrap()
            })
            .clone()
    });
    verified.parse(|_| (), |_| Ok(document.clone())).unwrap()
}

pub(crate) fn signed<T: Document + Clone + std::fmt::Debug>(document: &T) -> Verified<T> {
    signed_by(&signer(), document)
}

pub(crate) fn relay_policy(epoch: u64, revision: u64) -> RelayPolicy {
    RelayPolicy {
        relay: RELAY,
        epoch: PolicyEpoch(epoch),
        revision: Revision(revision),
        leader_term: LeaderTerm(1),
        issued_at: START.wall,
        endpoints: vec![PolicyEndpoint {
            endpoint: ENDPOINT,
            generation: Generation(3),
            publisher: PUBLISHER,
            class: ServiceClass::Database,
        }],
        routes: vec![PolicyRoute {
            route: ROUTE,
            consumer: CONSUMER,
            endpoint: ENDPOINT,
        }],
        nodes: vec![CONSUMER, PUBLISHER],
        revoked_routes: vec![],
        grant_keys: keyring(),
        settings: RelaySettings::DEFAULT,
    }
}

/// A lease of 72 h over `policy`, signed at [`START`].
pub(crate) fn lease(policy: &Verified<RelayPolicy>, seq: u64) -> PolicyLease {
    PolicyLease {
        relay: policy.relay,
        epoch: policy.epoch,
        revision: policy.revision,
        root: policy.root(),
        not_before: START.wall,
        not_after: START.wall.plus(hours(72)),
        seq: LeaseSeq(seq),
        leader_term: policy.leader_term,
    }
}

pub(crate) fn grant() -> Grant {
    Grant {
        consumer: CONSUMER,
        publisher: PUBLISHER,
        endpoint: ENDPOINT,
        route: ROUTE,
        generation: Generation(3),
        epoch: PolicyEpoch(1),
        revision: Revision(10),
        not_before: START.wall,
        not_after: START.wall.plus(hours(96)),
    }
}

pub(crate) fn node_policy() -> NodePolicy {
    NodePolicy {
        node: PUBLISHER,
        epoch: PolicyEpoch(1),
        revision: Revision(10),
        leader_term: LeaderTerm(1),
        issued_at: START.wall,
        relays: vec![],
        publications: vec![Publication {
            endpoint: ENDPOINT,
            generation: Generation(3),
            link: "db".parse().unwrap(),
            target: "127.0.0.1:5432".parse().unwrap(),
            class: ServiceClass::Database,
            relays: vec![RELAY],
            routes: vec![PublishedRoute {
                route: ROUTE,
                consumer: CONSUMER,
                revision_min: Revision(10),
            }],
        }],
        consumptions: vec![],
        revoked_routes: vec![],
        grant_keys: keyring(),
    }
}

//! Conversions of signed documents: nothing is lost, no fault is missed, garbage never panics.

use super::*;
use bytes::Bytes;
use fairlead_model::BootTime;
use fairlead_model::address::{Host, HostPort};
use fairlead_model::{
    EndpointId, FailureDomain, Generation, LeaderTerm, LeaseSeq, ListenAddress, Name, NodeId, PolicyEpoch,
    Revision, RouteId, ServiceClass, TargetAddress, WallTime,
};
use fairlead_trust::admission::{Applied, LeaseState};
use fairlead_trust::{
    Consumption, NodeRelay, PolicyEndpoint, PolicyRoot, PolicyRoute, Publication, PublishedRoute,
    RelaySettings, SigningKey, seal,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::BTreeSet;

fn key() -> SigningKey {
    SigningKey::from_seed(&[5; 32])
}

fn ring() -> Keyring {
    Keyring::new([key().verifying_key()]).unwrap()
}

fn sealed(payload_type: PayloadType, payload: &[u8]) -> Bytes {
    seal(&key(), payload_type, payload).unwrap()
}

fn counter() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..5, any::<u64>()]
}

fn wall() -> impl Strategy<Value = WallTime> {
    (0i64..253_402_300_800_000).prop_map(WallTime)
}

fn class() -> impl Strategy<Value = ServiceClass> {
    prop::sample::select(ServiceClass::ALL.to_vec())
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?".prop_map(|t| t.parse().unwrap())
}

fn host_port() -> impl Strategy<Value = HostPort> {
    let ip = any::<std::net::IpAddr>();
    prop_oneof![
        (ip, 1u16..).prop_map(|(ip, port)| HostPort::from_ip(ip, port)),
        ("[a-z][a-z0-9]{0,10}(\\.[a-z][a-z0-9]{0,10}){0,3}", 1u16..)
            .prop_map(|(name, port)| HostPort::parse(&name, Some(port)).unwrap()),
    ]
}

fn target() -> impl Strategy<Value = TargetAddress> {
    prop_oneof![
        host_port().prop_map(TargetAddress::Tcp),
        "/[a-z/]{1,30}".prop_map(|path| TargetAddress::Unix(path.into())),
    ]
}

fn ids<T: Ord + std::fmt::Debug>(make: fn([u8; 16]) -> T, most: usize) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::btree_set(any::<[u8; 16]>(), 0..most)
        .prop_map(move |set| set.into_iter().map(make).collect())
}

fn keys() -> impl Strategy<Value = Keyring> {
    proptest::collection::vec(any::<[u8; 32]>(), 0..3).prop_map(|seeds| {
        Keyring::new(seeds.iter().map(|s| SigningKey::from_seed(s).verifying_key())).unwrap()
    })
}

fn endpoints() -> impl Strategy<Value = Vec<PolicyEndpoint>> {
    ids(EndpointId::from_bytes, 5).prop_flat_map(|ids| {
        ids.into_iter()
            .map(|endpoint| {
                (counter(), any::<[u8; 16]>(), class()).prop_map(move |(generation, publisher, class)| {
                    PolicyEndpoint {
                        endpoint,
                        generation: Generation(generation),
                        publisher: NodeId::from_bytes(publisher),
                        class,
                    }
                })
            })
            .collect::<Vec<_>>()
    })
}

prop_compose! {
    fn relay_policy()(
        relay in any::<[u8; 16]>(),
        numbers in (counter(), counter(), counter()),
        issued_at in wall(),
        endpoints in endpoints(),
        route_ids in ids(RouteId::from_bytes, 5),
        consumer in any::<[u8; 16]>(),
        nodes in ids(NodeId::from_bytes, 5),
        revoked_routes in ids(RouteId::from_bytes, 5),
        grant_keys in keys(),
        settings in (1u32..=1 << 20, 1u32..=1 << 16, 1u32..=1 << 16, 16_384u32..=4 << 20),
    ) -> RelayPolicy {
        let routes = route_ids.iter().zip(endpoints.iter().cycle()).map(|(route, e)| PolicyRoute {
            route: *route,
            consumer: NodeId::from_bytes(consumer),
            endpoint: e.endpoint,
        }).collect();
        RelayPolicy {
            relay: RelayId::from_bytes(relay),
            epoch: PolicyEpoch(numbers.0),
            revision: Revision(numbers.1),
            leader_term: LeaderTerm(numbers.2),
            issued_at,
            endpoints,
            routes,
            nodes,
            revoked_routes,
            grant_keys,
            settings: RelaySettings {
                legs_per_node_max: settings.0,
                pending_opens_per_node_max: settings.1,
                handshakes_per_address_max: settings.2,
                splice_buffer_bytes: settings.3,
            },
        }
    }
}

prop_compose! {
    fn node_policy()(
        node in any::<[u8; 16]>(),
        numbers in (counter(), counter(), counter()),
        issued_at in wall(),
        relay_ids in ids(RelayId::from_bytes, 4),
        relay in (name(), host_port()),
        domain in prop::sample::select(vec!["h1", "host=a,power=b", "firewall=f,route=r"]),
        endpoint_ids in ids(EndpointId::from_bytes, 4),
        publication in (counter(), name(), target(), class()),
        route_ids in ids(RouteId::from_bytes, 4),
        consumption in (any::<[u8; 16]>(), counter(), any::<std::net::SocketAddr>(), class()),
        revoked_routes in ids(RouteId::from_bytes, 4),
        grant_keys in keys(),
    ) -> NodePolicy {
        let domain: FailureDomain = domain.parse().unwrap();
        let (generation, link, target, class) = publication;
        let (publisher, consumed_generation, mut listen, consumed_class) = consumption;
        listen.set_port(listen.port().max(1));
        // Flow label and scope are no part of an address in a policy.
        let listen = std::net::SocketAddr::new(listen.ip(), listen.port());
        let mut published = route_ids.clone().into_iter();
        NodePolicy {
            node: NodeId::from_bytes(node),
            epoch: PolicyEpoch(numbers.0),
            revision: Revision(numbers.1),
            leader_term: LeaderTerm(numbers.2),
            issued_at,
            relays: relay_ids.iter().map(|id| NodeRelay {
                relay: *id,
                name: relay.0.clone(),
                address: relay.1.clone(),
                failure_domain: domain.clone(),
            }).collect(),
            publications: endpoint_ids.iter().map(|endpoint| Publication {
                endpoint: *endpoint,
                generation: Generation(generation),
                link: link.clone(),
                target: target.clone(),
                class,
                relays: relay_ids.clone(),
                routes: published.next().map(|route| PublishedRoute {
                    route,
                    consumer: NodeId::from_bytes(publisher),
                    revision_min: Revision(numbers.1),
                }).into_iter().collect(),
            }).collect(),
            consumptions: route_ids.iter().map(|route| Consumption {
                route: *route,
                endpoint: EndpointId::from_bytes([1; 16]),
                generation: Generation(consumed_generation),
                publisher: NodeId::from_bytes(publisher),
                link: link.clone(),
                listen: ListenAddress(listen),
                class: consumed_class,
                relays: relay_ids.iter().rev().copied().collect(),
            }).collect(),
            revoked_routes,
            grant_keys,
        }
    }
}

prop_compose! {
    fn lease()(
        relay in any::<[u8; 16]>(), root in any::<[u8; 32]>(),
        numbers in (counter(), counter(), counter(), counter()),
        not_before in wall(), not_after in wall(),
    ) -> PolicyLease {
        PolicyLease {
            relay: RelayId::from_bytes(relay),
            epoch: PolicyEpoch(numbers.0),
            revision: Revision(numbers.1),
            root: PolicyRoot(root),
            not_before,
            not_after,
            seq: LeaseSeq(numbers.2),
            leader_term: LeaderTerm(numbers.3),
        }
    }
}

prop_compose! {
    fn grant()(
        nodes in any::<([u8; 16], [u8; 16])>(), endpoint in any::<[u8; 16]>(), route in any::<[u8; 16]>(),
        numbers in (counter(), counter(), counter()),
        not_before in wall(), not_after in wall(),
    ) -> Grant {
        Grant {
            consumer: NodeId::from_bytes(nodes.0),
            publisher: NodeId::from_bytes(nodes.1),
            endpoint: EndpointId::from_bytes(endpoint),
            route: RouteId::from_bytes(route),
            generation: Generation(numbers.0),
            epoch: PolicyEpoch(numbers.1),
            revision: Revision(numbers.2),
            not_before,
            not_after,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn relay_policies_round_trip(policy in relay_policy()) {
        let envelope = sealed(PayloadType::RelayPolicy, &encode_relay_policy(&policy));
        let opened = open_relay_policy(&ring(), &envelope).unwrap();
        prop_assert_eq!(&*opened, &policy);
        prop_assert_eq!(opened.root(), PolicyRoot::of(&encode_relay_policy(&policy)));
    }

    #[test]
    fn node_policies_round_trip(policy in node_policy()) {
        let envelope = sealed(PayloadType::NodePolicy, &encode_node_policy(&policy));
        prop_assert_eq!(&*open_node_policy(&ring(), &envelope).unwrap(), &policy);
    }

    #[test]
    fn leases_and_grants_round_trip(lease in lease(), grant in grant()) {
        let envelope = sealed(PayloadType::PolicyLease, &encode_policy_lease(&lease));
        prop_assert_eq!(&*open_policy_lease(&ring(), &envelope).unwrap(), &lease);
        let envelope = sealed(PayloadType::Grant, &encode_grant(&grant));
        prop_assert_eq!(&*open_grant(&ring(), &envelope).unwrap(), &grant);
    }

    /// Even signed garbage is a refusal, never a panic: a key may sign for a newer build.
    #[test]
    fn signed_garbage_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        policy in relay_policy(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut turned = encode_relay_policy(&policy);
        let at = at.index(turned.len());
        turned[at] = byte;
        for payload in [&bytes, &turned] {
            let _ = open_relay_policy(&ring(), &sealed(PayloadType::RelayPolicy, payload));
            let _ = open_policy_lease(&ring(), &sealed(PayloadType::PolicyLease, payload));
            let _ = open_node_policy(&ring(), &sealed(PayloadType::NodePolicy, payload));
            let _ = open_grant(&ring(), &sealed(PayloadType::Grant, payload));
        }
    }
}

fn wire_relay_policy() -> crate::pb::RelayPolicy {
    use crate::pb;
    let id = |n| Bytes::copy_from_slice(&[n; 16]);
    pb::RelayPolicy {
        relay_id: id(1),
        epoch: 1,
        revision: 2,
        leader_term: 3,
        issued_at_ms: 4,
        endpoints: vec![pb::PolicyEndpoint {
            endpoint_id: id(2),
            generation: 1,
            publisher_node_id: id(3),
            class: 1,
        }],
        routes: vec![pb::PolicyRoute {
            route_id: id(4),
            consumer_node_id: id(5),
            endpoint_id: id(2),
        }],
        node_ids: vec![id(3), id(5)],
        revoked_route_ids: vec![],
        grant_keys: vec![Bytes::copy_from_slice(&key().verifying_key().to_bytes())],
        settings: Some(pb::RelaySettings {
            legs_per_node_max: 1,
            pending_opens_per_node_max: 1,
            handshakes_per_address_max: 1,
            splice_buffer_bytes: 65_536,
        }),
    }
}

/// Every fault names its field and says what is wrong with it.
#[test]
fn faults_name_their_field() {
    type Break = fn(&mut crate::pb::RelayPolicy);
    let cases: [(Break, &str); 15] = [
        (|p| p.relay_id.clear(), "relay_id: it is missing"),
        (
            |p| p.relay_id = Bytes::from_static(&[1; 15]),
            "relay_id: it has 15 bytes, not 16",
        ),
        (|p| p.issued_at_ms = -1, "issued_at_ms: -1 ms is not a time"),
        (
            |p| p.issued_at_ms = i64::MAX,
            "issued_at_ms: 9223372036854775807 ms is not",
        ),
        (|p| p.endpoints[0].class = 0, "endpoints[0].class: it is missing"),
        (
            |p| p.endpoints[0].class = 9,
            "endpoints[0].class: 9 is not a class",
        ),
        (
            |p| p.endpoints.push(p.endpoints[0].clone()),
            "endpoints[1].endpoint_id: it is given twice",
        ),
        (
            |p| p.routes.push(p.routes[0].clone()),
            "routes[1].route_id: it is given twice",
        ),
        (
            |p| p.routes[0].endpoint_id = Bytes::from_static(&[9; 16]),
            "routes[0].endpoint_id: it names nothing",
        ),
        (
            |p| p.routes[0].consumer_node_id.clear(),
            "routes[0].consumer_node_id: it is missing",
        ),
        (
            |p| p.node_ids.push(p.node_ids[0].clone()),
            "node_ids[2]: it is given twice",
        ),
        (
            |p| p.grant_keys[0] = Bytes::from_static(&[0; 31]),
            "grant_keys[0]: not an Ed25519 public key",
        ),
        (|p| p.settings = None, "settings: it is missing"),
        (
            |p| p.settings.as_mut().unwrap().legs_per_node_max = 0,
            "settings.legs_per_node_max: 0 is not between 1 and 1048576",
        ),
        (
            |p| p.settings.as_mut().unwrap().splice_buffer_bytes = 1,
            "settings.splice_buffer_bytes: 1 is not between 16384 and 4194304",
        ),
    ];
    use prost::Message;
    let open = |wire: &crate::pb::RelayPolicy| {
        open_relay_policy(&ring(), &sealed(PayloadType::RelayPolicy, &wire.encode_to_vec()))
    };
    assert!(open(&wire_relay_policy()).is_ok());
    for (break_it, expected) in cases {
        let mut wire = wire_relay_policy();
        break_it(&mut wire);
        let Err(OpenError::Decode(error)) = open(&wire) else {
            panic!("{expected}: not refused");
        };
        let text = error.to_string();
        assert!(text.starts_with(expected), "{text} | {expected}");
    }
}

/// A node's relays of an assignment are among those it is told of, with their addresses.
#[test]
fn an_assignment_names_relays_of_the_policy() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut policy = loop {
        let policy = node_policy().new_tree(&mut runner).unwrap().current();
        if !policy.publications.is_empty() && !policy.relays.is_empty() {
            break policy;
        }
    };
    policy.publications[0].relays[0] = RelayId::from_bytes([250; 16]);
    let envelope = sealed(PayloadType::NodePolicy, &encode_node_policy(&policy));
    let error = open_node_policy(&ring(), &envelope).unwrap_err();
    let OpenError::Decode(error) = error else {
        panic!("{error}");
    };
    assert_eq!(
        error.to_string(),
        "publications[0].relay_ids[0]: it names nothing that this message holds"
    );
}

/// A verified payload of one type is not parsed as another.
#[test]
fn a_grant_is_not_parsed_as_a_lease() {
    let envelope = sealed(PayloadType::Grant, b"");
    let verified = verify(&ring(), PayloadType::Grant, &envelope).unwrap();
    assert!(matches!(
        decode_policy_lease(&verified),
        Err(DecodeError::OtherDocument { .. })
    ));
    assert!(matches!(
        open_policy_lease(&ring(), &envelope),
        Err(OpenError::Verify(VerifyError::PayloadType { .. }))
    ));
}

/// R-POL-04: what a relay saved is what it knows again, as far as today's keys vouch for it.
#[test]
fn a_relay_restores_what_it_saved() {
    let now = Now {
        wall: WallTime(1_800_000_000_000),
        boot: BootTime(1_000),
    };
    let boot = HostBoot([1; 16]);
    let relay = RelayId::from_bytes([1; 16]);
    let payload = {
        use prost::Message;
        wire_relay_policy().encode_to_vec()
    };
    let policy = open_relay_policy(&ring(), &sealed(PayloadType::RelayPolicy, &payload)).unwrap();
    let lease = PolicyLease {
        relay,
        epoch: policy.epoch,
        revision: policy.revision,
        root: policy.root(),
        not_before: now.wall,
        not_after: WallTime(now.wall.0 + 3_600_000),
        seq: LeaseSeq(1),
        leader_term: policy.leader_term,
    };
    let lease = open_policy_lease(
        &ring(),
        &sealed(PayloadType::PolicyLease, &encode_policy_lease(&lease)),
    )
    .unwrap();
    let applied = RelayAdmission::new(relay, boot).apply_policy(policy, lease, now);
    let Ok(Applied::Next(admission)) = applied else {
        panic!("not applied");
    };
    let saved = admission.snapshot(now).encode().unwrap();

    let restored = restore_admission(&saved, &ring(), relay, boot, now).unwrap();
    assert_eq!(restored.head(), admission.head());
    assert_eq!(restored.lease_state(now), admission.lease_state(now));
    // Keys that no longer vouch for the policy leave the head alone.
    let other = Keyring::new([SigningKey::from_seed(&[6; 32]).verifying_key()]).unwrap();
    let bare = restore_admission(&saved, &other, relay, boot, now).unwrap();
    assert_eq!(bare.head(), admission.head());
    assert_eq!(bare.lease_state(now), LeaseState::Missing);

    let stranger = RelayId::from_bytes([2; 16]);
    assert!(matches!(
        restore_admission(&saved, &ring(), stranger, boot, now),
        Err(RestoreError::OtherRelay { .. })
    ));
    assert!(matches!(
        restore_admission(b"", &ring(), relay, boot, now),
        Err(RestoreError::Snapshot(_))
    ));
}

/// The host of a generated address is one of both kinds: the strategies above cover them.
#[test]
fn both_kinds_of_host_are_generated() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let kinds: BTreeSet<bool> = (0..50)
        .map(|_| host_port().new_tree(&mut runner).unwrap().current())
        .map(|address| matches!(address.host(), Host::Dns(_)))
        .collect();
    assert_eq!(kinds.len(), 2);
}

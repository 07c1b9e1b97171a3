//! What plans promise, whatever is wanted.

use super::*;
use fairlead_model::{LeaderTerm, PolicyEpoch};
use fairlead_rpc::signed::{encode_node_policy, encode_relay_policy};
use fairlead_trust::Keyring;
use fairlead_trust::envelope::PAYLOAD_LEN_MAX;
use proptest::prelude::*;

const NOW: WallTime = WallTime(1_800_000_000_000);

fn id(kind: u8, n: usize) -> [u8; 16] {
    let mut bytes = [kind; 16];
    bytes[8..].copy_from_slice(&u64::try_from(n).unwrap().to_be_bytes());
    bytes
}

fn relay_id(n: usize) -> RelayId {
    RelayId::from_bytes(id(1, n))
}
fn node_id(n: usize) -> NodeId {
    NodeId::from_bytes(id(2, n))
}
fn link_id(n: usize) -> LinkId {
    LinkId::from_bytes(id(3, n))
}
fn route_id(n: usize) -> RouteId {
    RouteId::from_bytes(id(5, n))
}

fn relay(n: usize, domain: &str, capacity: bool) -> WantedRelay {
    WantedRelay {
        name: format!("relay-{n}").parse().unwrap(),
        address: format!("10.0.0.{n}:9443").parse().unwrap(),
        failure_domain: domain.parse().unwrap(),
        local: false,
        capacity,
    }
}

fn link(n: usize, consumer: usize, publisher: usize) -> WantedLink {
    WantedLink {
        name: format!("link-{n}").parse().unwrap(),
        consumer: node_id(consumer),
        publisher: node_id(publisher),
        target: "127.0.0.1:5432".parse().unwrap(),
        listen: format!("127.0.0.1:{}", 10_000 + n).parse().unwrap(),
        class: ServiceClass::Standard,
        endpoint: EndpointId::from_bytes(id(4, n)),
        generation: Generation(1),
        route: route_id(n),
    }
}

fn wanted(relays: &[(&str, bool)], nodes: usize, links: &[(usize, usize)]) -> Wanted {
    Wanted {
        relays: relays
            .iter()
            .enumerate()
            .map(|(n, (domain, capacity))| (relay_id(n), relay(n, domain, *capacity)))
            .collect(),
        nodes: (0..nodes).map(node_id).collect(),
        links: links
            .iter()
            .enumerate()
            .map(|(n, (consumer, publisher))| (link_id(n), link(n, *consumer, *publisher)))
            .collect(),
        revoked: BTreeMap::new(),
        places: BTreeMap::new(),
        spread: 2,
        settings: RelaySettings::DEFAULT,
        now: NOW,
        next: Revision(1),
    }
}

/// The next plan's input, given what this one left.
fn then(mut wanted: Wanted, before: &Plan) -> Wanted {
    wanted.places.clone_from(&before.places);
    wanted.next = wanted.next.next();
    wanted
}

/// Removes a link as the verb does: its route is revoked in the same change.
fn remove(wanted: &mut Wanted, n: usize) {
    let link = wanted.links.remove(&link_id(n)).unwrap();
    let revoked = Revoked {
        consumer: link.consumer,
        publisher: link.publisher,
        at: wanted.now,
    };
    wanted.revoked.insert(link.route, revoked);
}

fn holds(plan: &Plan, relay: RelayId, n: usize) -> bool {
    let contents = &plan.relays[&relay];
    let has_route = contents.routes.iter().any(|r| r.route == route_id(n));
    let has_endpoint = contents
        .endpoints
        .iter()
        .any(|e| e.endpoint == EndpointId::from_bytes(id(4, n)));
    assert_eq!(has_route, has_endpoint, "a route and its endpoint go together");
    has_route
}

#[test]
fn a_link_is_in_every_document_that_it_needs() {
    let plan = plan(&wanted(&[("a", true), ("b", true), ("c", true)], 3, &[(0, 1)]));
    let placed = &plan.places[&link_id(0)].relays;
    assert_eq!(placed.len(), 2);
    for n in 0..3 {
        assert_eq!(holds(&plan, relay_id(n), 0), placed.contains(&relay_id(n)));
    }
    let publication = &plan.nodes[&node_id(1)].publications[0];
    assert_eq!(&publication.relays, placed);
    assert_eq!(publication.routes[0].revision_min, Revision(1));
    assert_eq!(publication.routes[0].consumer, node_id(0));
    let consumption = &plan.nodes[&node_id(0)].consumptions[0];
    assert_eq!(&consumption.relays, placed);
    assert_eq!(consumption.publisher, node_id(1));
    assert!(plan.nodes[&node_id(2)].publications.is_empty());
    assert_eq!(plan.grants[&route_id(0)].revision, Revision(1));
    for relay in placed {
        assert_eq!(endpoints_on(&plan.placements, *relay), 1);
    }
}

/// R-ENR-07: a relay whose port is not verified carries nothing; it has a policy all the same, or
/// it could never become ready.
#[test]
fn a_relay_without_capacity_carries_nothing() {
    let plan = plan(&wanted(&[("a", true), ("b", false)], 2, &[(0, 1)]));
    assert_eq!(plan.places[&link_id(0)].relays, [relay_id(0)]);
    assert!(plan.relays[&relay_id(1)].routes.is_empty());
    assert!(plan.relays[&relay_id(1)].nodes.is_empty());
    assert_eq!(plan.nodes[&node_id(0)].relays.len(), 1);
}

/// R-REV-01: a removed link's route is revoked at every relay and at both its nodes, and its grant
/// is gone.
#[test]
fn a_removed_link_is_revoked_everywhere() {
    let first = wanted(&[("a", true), ("b", true), ("c", true)], 3, &[(0, 1), (0, 2)]);
    let before = plan(&first);
    let mut second = then(first, &before);
    remove(&mut second, 0);
    let after = plan(&second);
    for n in 0..3 {
        assert!(!holds(&after, relay_id(n), 0));
        assert_eq!(after.relays[&relay_id(n)].revoked_routes, [route_id(0)]);
    }
    assert_eq!(after.nodes[&node_id(0)].revoked_routes, [route_id(0)]);
    assert_eq!(after.nodes[&node_id(1)].revoked_routes, [route_id(0)]);
    assert!(after.nodes[&node_id(2)].revoked_routes.is_empty());
    assert!(!after.grants.contains_key(&route_id(0)));
    assert!(after.grants.contains_key(&route_id(1)));
    // It stays for as long as a grant may name it, and no longer.
    assert_eq!(after.again, Some(NOW.plus(REVOKED_KEPT)));
    let mut late = then(second, &after);
    late.now = NOW.plus(REVOKED_KEPT);
    let late = plan(&late);
    assert!(late.relays[&relay_id(0)].revoked_routes.is_empty());
    assert_eq!(late.forgotten, [route_id(0)]);
    assert!(after.forgotten.is_empty());
}

/// R-POL-09: a relay that a link leaves keeps it in its policy, and its nodes keep their sessions,
/// so that live tunnels stay; new ones go elsewhere. When it comes back, it is placed again.
#[test]
fn a_relay_that_a_link_leaves_keeps_its_tunnels() {
    let first = wanted(&[("a", true), ("b", true), ("c", true)], 2, &[(0, 1)]);
    let before = plan(&first);
    let left = before.places[&link_id(0)].relays[0];
    let mut second = then(first, &before);
    second.relays.get_mut(&left).unwrap().capacity = false;
    let after = plan(&second);
    let place = &after.places[&link_id(0)];
    assert_eq!(place.relays.len(), 2);
    assert!(!place.relays.contains(&left));
    assert_eq!(place.former[&left], NOW);
    assert_eq!((place.since, place.widened), (Revision(1), Revision(2)));
    assert!(holds(&after, left, 0));
    for n in 0..2 {
        assert!(after.nodes[&node_id(n)].relays.iter().any(|r| r.relay == left));
        assert!(after.relays[&left].nodes.contains(&node_id(n)));
    }
    assert!(!after.nodes[&node_id(0)].consumptions[0].relays.contains(&left));
    assert!(after.grants[&route_id(0)].relays.contains(&left));

    let mut back = then(second.clone(), &after);
    back.relays.get_mut(&left).unwrap().capacity = true;
    let back = plan(&back);
    assert!(back.places[&link_id(0)].relays.contains(&left));
    assert!(!back.places[&link_id(0)].former.contains_key(&left));
    assert_eq!(
        back.places[&link_id(0)].widened,
        Revision(2),
        "no relay is new to the link"
    );

    let mut late = then(second, &after);
    late.now = NOW.plus(FORMER_KEPT);
    let late = plan(&late);
    assert!(!holds(&late, left, 0));
}

/// R-GEN-04: where no relay is ready, nothing is taken away: relays may serve out of sight.
#[test]
fn no_ready_relay_changes_nothing() {
    let first = wanted(&[("a", true), ("b", true)], 2, &[(0, 1)]);
    let before = plan(&first);
    let mut second = then(first, &before);
    for relay in second.relays.values_mut() {
        relay.capacity = false;
    }
    let after = plan(&second);
    assert_eq!(after.places, before.places);
    assert_eq!(after.relays, before.relays);
    assert_eq!(after.nodes, before.nodes);
    assert_eq!(after.placements[&link_id(0)].reason, Reason::NoneReady);
}

/// The largest policies can be signed: names, addresses and targets of greatest length.
#[test]
fn the_largest_policies_fit() {
    let mut all = wanted(&[], NODES_MAX, &[]);
    let label = |c: char| std::iter::repeat_n(c, 63).collect::<String>();
    let host = [label('a'), label('b'), label('c'), "d".repeat(61)].join(".");
    for n in 0..SPREAD_MAX {
        let mut long = relay(
            n,
            &format!("host={},power={},firewall={n},route={n}", label('h'), label('p')),
            true,
        );
        long.name = label('r').parse().unwrap();
        long.address = format!("{host}:9443").parse().unwrap();
        all.relays.insert(relay_id(n), long);
    }
    all.spread = SPREAD_MAX;
    for n in 0..LINKS_MAX {
        // The first node publishes and the second consumes as many as a node may.
        let (consumer, publisher) = match n {
            0..LINKS_PER_NODE_MAX => (n, 0),
            _ if n < 2 * LINKS_PER_NODE_MAX - 1 => (1, n),
            _ => (2 + n % 1000, 3 + n % 1000),
        };
        let mut long = link(n, consumer, publisher);
        long.name = label('l').parse().unwrap();
        long.listen = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535".parse().unwrap();
        long.target = format!("{host}:65535").parse().unwrap();
        long.generation = Generation(u64::MAX);
        all.links.insert(link_id(n), long);
    }
    for n in 0..=REVOKED_MAX {
        let (consumer, publisher) = (node_id(0), node_id(1));
        let at = WallTime(NOW.0 - i64::try_from(n).unwrap());
        all.revoked.insert(
            route_id(LINKS_MAX + n),
            Revoked {
                consumer,
                publisher,
                at,
            },
        );
    }
    let numbering = Numbering {
        epoch: PolicyEpoch(u64::MAX),
        revision: Revision(u64::MAX),
        leader_term: LeaderTerm(u64::MAX),
        issued_at: NOW,
    };
    let plan = plan(&all);
    let oldest = route_id(LINKS_MAX + REVOKED_MAX);
    for (id, contents) in &plan.relays {
        assert_eq!(contents.routes.len(), LINKS_MAX);
        assert_eq!(contents.revoked_routes.len(), REVOKED_MAX);
        assert!(!contents.revoked_routes.contains(&oldest));
        let length = encode_relay_policy(&contents.policy(*id, numbering, &Keyring::EMPTY)).len();
        assert!(length <= PAYLOAD_LEN_MAX, "{length}");
    }
    for n in [0, 1] {
        let contents = &plan.nodes[&node_id(n)];
        assert!(contents.publications.len() + contents.consumptions.len() >= LINKS_PER_NODE_MAX);
        let length = encode_node_policy(&contents.policy(node_id(n), numbering, &Keyring::EMPTY)).len();
        assert!(length <= PAYLOAD_LEN_MAX, "node {n}: {length}");
    }
}

/// One step of an admin, or of the pool.
#[derive(Debug, Clone)]
enum Event {
    Capacity(usize, bool),
    Remove(usize),
    Spread(usize),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0usize..6, any::<bool>()).prop_map(|(n, on)| Event::Capacity(n, on)),
        1 => (0usize..8).prop_map(Event::Remove),
        1 => (1usize..5).prop_map(Event::Spread),
        1 => (1u64..200_000).prop_map(Event::Pass),
    ]
}

fn pools() -> impl Strategy<Value = Wanted> {
    (
        proptest::collection::vec((0u8..4, any::<bool>()), 0..6),
        1usize..5,
        proptest::collection::vec((0usize..5, 0usize..5), 0..8),
        1usize..5,
    )
        .prop_map(|(relays, nodes, links, spread)| {
            let domains: Vec<(String, bool)> = relays.iter().map(|(d, c)| (format!("d{d}"), *c)).collect();
            let relays: Vec<(&str, bool)> = domains.iter().map(|(d, c)| (d.as_str(), *c)).collect();
            let links: Vec<(usize, usize)> = links.iter().map(|(a, b)| (a % nodes, b % nodes)).collect();
            Wanted {
                spread,
                ..wanted(&relays, nodes, &links)
            }
        })
}

/// What must hold of every plan.
fn check(wanted: &Wanted, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert_eq!(plan, &super::plan(wanted), "equal inputs give equal plans");
    let ready: Vec<RelayId> = wanted
        .relays
        .iter()
        .filter(|(_, r)| r.capacity)
        .map(|(id, _)| *id)
        .collect();
    for (id, link) in &wanted.links {
        let place = &plan.places[id];
        if !ready.is_empty() {
            prop_assert_eq!(place.relays.len(), ready.len().min(wanted.spread));
            prop_assert!(place.relays.iter().all(|r| ready.contains(r)));
        }
        prop_assert!(place.former.keys().all(|r| !place.relays.contains(r)));
        prop_assert!(place.since <= place.widened && place.widened <= wanted.next);
        // Every route's endpoint is on each relay of its spread, and both its nodes may connect there.
        for relay in place.relays.iter().chain(place.former.keys()) {
            let contents = &plan.relays[relay];
            prop_assert!(
                contents
                    .endpoints
                    .iter()
                    .any(|e| e.endpoint == link.endpoint && e.publisher == link.publisher)
            );
            prop_assert!(
                contents
                    .routes
                    .iter()
                    .any(|r| r.route == link.route && r.consumer == link.consumer)
            );
            for node in [link.consumer, link.publisher] {
                prop_assert!(contents.nodes.contains(&node));
                prop_assert!(plan.nodes[&node].relays.iter().any(|r| r.relay == *relay));
            }
        }
        prop_assert_eq!(&plan.placements[id].relays().collect::<Vec<_>>(), &place.relays);
    }
    for (id, contents) in &plan.relays {
        // Nothing that is not wanted, nothing twice, in order: the document opens.
        prop_assert!(
            contents
                .routes
                .iter()
                .all(|r| wanted.links.values().any(|l| l.route == r.route))
        );
        prop_assert!(contents.routes.is_sorted_by(|a, b| a.route < b.route));
        prop_assert!(contents.endpoints.is_sorted_by(|a, b| a.endpoint < b.endpoint));
        prop_assert!(contents.nodes.is_sorted_by(|a, b| a < b));
        for node in &contents.nodes {
            prop_assert!(plan.nodes[node].relays.iter().any(|r| r.relay == *id));
        }
        for route in wanted.revoked.keys() {
            let is_held = contents.revoked_routes.contains(route);
            prop_assert_eq!(
                is_held,
                is_kept(wanted.revoked[route].at, REVOKED_KEPT, wanted.now)
            );
            prop_assert!(contents.routes.iter().all(|r| r.route != *route));
        }
    }
    for contents in plan.nodes.values() {
        // R-NOD-01: two sessions at least, in different domains where there are.
        prop_assert!(contents.relays.len() >= ready.len().min(2));
        let domain = |id: &RelayId| wanted.relays[id].failure_domain.clone();
        let apart = |ids: &[RelayId]| {
            ids.iter()
                .any(|a| ids.iter().any(|b| !domain(a).shares_with(&domain(b))))
        };
        if apart(&ready) {
            let held: Vec<RelayId> = contents
                .relays
                .iter()
                .map(|r| r.relay)
                .filter(|r| ready.contains(r))
                .collect();
            prop_assert!(apart(&held), "{:?}", held);
        }
    }
    Ok(())
}

proptest! {
    /// R-PLC-05, R-NOD-01, R-REV-01: over any history.
    #[test]
    fn plans_hold_their_promises(first in pools(), events in proptest::collection::vec(event(), 0..12)) {
        let mut wanted = first;
        let mut before = plan(&wanted);
        check(&wanted, &before)?;
        for event in events {
            wanted = then(wanted, &before);
            match event {
                Event::Capacity(n, on) => {
                    if let Some(relay) = wanted.relays.get_mut(&relay_id(n)) {
                        relay.capacity = on;
                    }
                }
                Event::Remove(n) if wanted.links.contains_key(&link_id(n)) => remove(&mut wanted, n),
                Event::Remove(_) => {}
                Event::Spread(n) => wanted.spread = n,
                Event::Pass(seconds) => wanted.now = wanted.now.plus(Duration::from_secs(seconds)),
            }
            let after = plan(&wanted);
            check(&wanted, &after)?;
            // A plan that was applied is stable.
            let again = then(wanted.clone(), &after);
            let again = plan(&again);
            prop_assert_eq!(&again.relays, &after.relays);
            prop_assert_eq!(&again.nodes, &after.nodes);
            prop_assert_eq!(&again.places, &after.places);
            before = after;
        }
    }
}

//! Vectors of the hash, and placements over many sets of relays.

use super::*;
use proptest::prelude::*;

fn relay(n: u8, domain: &str, ready: bool, local: bool) -> RelayCandidate {
    RelayCandidate {
        id: RelayId::from_bytes([n; 16]),
        ready,
        failure_domain: domain.parse().unwrap(),
        local,
    }
}

fn endpoint(n: u8) -> EndpointId {
    EndpointId::from_bytes([n; 16])
}

/// R-PLC-05: the hash is a contract between control planes of different versions.
#[test]
fn weights_have_vectors() {
    // Computed with Python's hashlib over the same bytes.
    for (subject, id, want) in [
        ([0u8; 16], [0u8; 16], 0x0f4f_0855_ab30_7cac),
        ([1; 16], [2; 16], 0x841a_e3ae_1383_221e),
        ([0xff; 16], [7; 16], 0x6a61_96e9_6d97_c379),
    ] {
        assert_eq!(weight(subject, RelayId::from_bytes(id)), want);
    }
}

/// R-PLC-05, R-GEN-03: distinct domains come before weight.
#[test]
fn domains_come_first() {
    let pool = [
        relay(1, "rack-1", true, false),
        relay(2, "rack-1", true, false),
        relay(3, "rack-2", true, false),
    ];
    for n in 0..50 {
        let placement = place(endpoint(n), &pool, 2);
        assert_eq!(placement.primaries.len(), 2);
        assert!(placement.primaries.contains(&pool[2].id), "{placement:?}");
    }
}

/// R-PLC-05: a relay that shares a domain with every other gives way where two others share none.
#[test]
fn two_domains_are_worth_more_than_the_best_weight() {
    let pool = [
        relay(1, "host=a,power=p", true, false),
        relay(2, "host=b,power=p,route=r", true, false),
        relay(3, "host=c,route=r", true, false),
    ];
    for n in 0..50 {
        let placement = place(endpoint(n), &pool, 2);
        let Reason::Hash { domains, .. } = placement.reason else {
            panic!("{placement:?}")
        };
        assert_eq!(domains, 2, "{placement:?}");
    }
}

/// R-PLC-07: one relay is off the control host, whatever the spread.
#[test]
fn one_place_is_off_the_control_host() {
    let pool = [relay(1, "a", true, true), relay(2, "b", true, false)];
    for n in 0..50 {
        assert_eq!(place(endpoint(n), &pool, 1).primaries, [pool[1].id]);
    }
    assert_eq!(place(endpoint(0), &pool[..1], 2).primaries, [pool[0].id]);
}

/// R-ENR-07: a relay that is not ready is no capacity.
#[test]
fn unready_relays_are_not_placed() {
    let pool = [relay(1, "a", false, false), relay(2, "b", true, false)];
    assert_eq!(place(endpoint(9), &pool, 2).primaries, [pool[1].id]);
    let none = place(endpoint(9), &pool[..1], 2);
    assert_eq!(none.reason, Reason::NoneReady);
    assert_eq!(none.reason.to_string(), "no relay is ready");
}

/// R-NOD-01: two sessions in different domains where there are, needed ones kept.
#[test]
fn sessions_are_completed() {
    let node = NodeId::from_bytes([5; 16]);
    let pool = [
        relay(1, "a", true, false),
        relay(2, "a", true, false),
        relay(3, "b", true, false),
    ];
    let ids = |needed: &[RelayId]| sessions(node, needed, &pool);
    assert!(ids(&[]).contains(&pool[2].id));
    assert_eq!(ids(&[]).len(), 2);
    assert_eq!(ids(&[pool[0].id]), [pool[0].id, pool[2].id]);
    assert_eq!(
        ids(&[pool[0].id, pool[1].id]),
        [pool[0].id, pool[1].id, pool[2].id]
    );
    assert_eq!(ids(&[pool[0].id, pool[2].id]), [pool[0].id, pool[2].id]);
    assert_eq!(sessions(node, &[], &pool[..2]).len(), 2);
    assert_eq!(sessions(node, &[], &pool[..1]), [pool[0].id]);
}

fn pools() -> impl Strategy<Value = Vec<RelayCandidate>> {
    proptest::collection::vec((0u8..6, any::<bool>(), any::<bool>()), 0..12).prop_map(|relays| {
        relays
            .into_iter()
            .enumerate()
            .map(|(n, (domain, ready, local))| {
                relay(u8::try_from(n).unwrap(), &format!("d{domain}"), ready, local)
            })
            .collect()
    })
}

proptest! {
    /// R-PLC-05: stable, of the right size, ready only, each once, as many domains as can be.
    #[test]
    fn placements_hold_their_promises(pool in pools(), subject in any::<[u8; 16]>(), spread in 1usize..6) {
        let endpoint = EndpointId::from_bytes(subject);
        let placement = place(endpoint, &pool, spread);
        let mut turned = pool.clone();
        turned.reverse();
        prop_assert_eq!(&place(endpoint, &turned, spread), &placement);
        let ready: Vec<&RelayCandidate> = pool.iter().filter(|c| c.ready).collect();
        let chosen: Vec<&&RelayCandidate> =
            ready.iter().filter(|c| placement.primaries.contains(&c.id)).collect();
        prop_assert_eq!(placement.primaries.len(), ready.len().min(spread));
        prop_assert_eq!(chosen.len(), placement.primaries.len());
        prop_assert!(ready.iter().all(|c| c.local) || chosen.iter().any(|c| !c.local));
        let names = |relays: &[&RelayCandidate]| {
            relays.iter().map(|c| c.failure_domain.to_string()).collect::<std::collections::BTreeSet<_>>().len()
        };
        let got = names(&chosen.iter().map(|c| **c).collect::<Vec<_>>());
        // The place given to a relay off the control host may cost one domain.
        prop_assert!(got + 1 >= names(&ready).min(spread));
        let Reason::Hash { off_host, .. } = placement.reason else {
            prop_assert!(ready.is_empty());
            return Ok(());
        };
        prop_assert!(off_host || got == names(&ready).min(spread));
    }

    /// R-PLC-05: a relay that leaves moves only what it held (one domain each).
    #[test]
    fn a_loss_moves_only_its_own(subject in any::<[u8; 16]>(), lost in 0u8..8) {
        let pool: Vec<RelayCandidate> =
            (0..8).map(|n| relay(n, &format!("d{n}"), true, false)).collect();
        let endpoint = EndpointId::from_bytes(subject);
        let before = place(endpoint, &pool, 2).primaries;
        let mut rest = pool.clone();
        rest.remove(usize::from(lost));
        let after = place(endpoint, &rest, 2).primaries;
        let gone = RelayId::from_bytes([lost; 16]);
        if before.contains(&gone) {
            prop_assert!(before.iter().filter(|id| **id != gone).all(|id| after.contains(id)));
        } else {
            prop_assert_eq!(before, after);
        }
    }

    /// R-NOD-01: at least two, in different domains where there are, and every needed one.
    #[test]
    fn sessions_hold_their_promises(pool in pools(), subject in any::<[u8; 16]>(), take in 0usize..4) {
        let ready: Vec<&RelayCandidate> = pool.iter().filter(|c| c.ready).collect();
        let needed: Vec<RelayId> = ready.iter().take(take).map(|c| c.id).collect();
        let got = sessions(NodeId::from_bytes(subject), &needed, &pool);
        prop_assert!(needed.iter().all(|id| got.contains(id)));
        prop_assert!(got.len() >= ready.len().min(SESSIONS_MIN));
        prop_assert!(got.len() <= needed.len().max(1) + 1);
        let chosen: Vec<&RelayCandidate> = pool.iter().filter(|c| got.contains(&c.id)).collect();
        prop_assert!(domains(&chosen) >= domains(&ready).min(SESSIONS_MIN));
    }
}

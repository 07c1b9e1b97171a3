//! The registry against a plain model, and its rules one by one.

use crate::frame::Register;
use crate::{Lookup, Registry, RegistryFault};
use fairlead_model::{EndpointId, Generation, MonoTime, NodeId, RegistrationEpoch};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn endpoint(n: u8) -> EndpointId {
    EndpointId::from_bytes([n; 16])
}

fn node(n: u8) -> NodeId {
    NodeId::from_bytes([n; 16])
}

fn register(e: u8, generation: u64, epoch: u64) -> Register {
    Register {
        endpoint: endpoint(e),
        generation: Generation(generation),
        epoch: RegistrationEpoch(epoch),
    }
}

fn at(s: u64) -> MonoTime {
    MonoTime(s * 1_000_000_000)
}

fn serves(registry: &Registry<u64>, e: u8, now: MonoTime) -> Option<u64> {
    match registry.lookup(endpoint(e), now) {
        Lookup::Served { session, .. } => Some(session),
        Lookup::Restarting { .. } | Lookup::NotRegistered => None,
    }
}

/// R-ADM-04: the newer registration wins at once, and the old connection's late goodbye, of either
/// kind, removes nothing.
#[test]
fn a_late_goodbye_never_removes_a_newer_registration() {
    let mut registry = Registry::default();
    registry.register(1, node(1), register(1, 1, 10)).unwrap();
    let again = registry.register(2, node(1), register(1, 1, 11)).unwrap();
    assert_eq!(again.replaced, Some((1, register(1, 1, 10))));
    assert!(!registry.unregister(1, register(1, 1, 10)));
    registry.session_ended(1, false, at(0));
    assert_eq!(serves(&registry, 1, at(0)), Some(2));
    // Nor does a registration of the old connection that was delayed.
    assert_eq!(
        registry.register(3, node(1), register(1, 1, 10)),
        Err(RegistryFault::Stale)
    );
    assert!(registry.unregister(2, register(1, 1, 11)));
    assert_eq!(serves(&registry, 1, at(0)), None);
}

/// R-ADM-01: an old generation serves until the new one registers, and never comes back.
#[test]
fn a_new_generation_replaces_the_old_when_it_registers() {
    let mut registry = Registry::default();
    registry.register(1, node(1), register(1, 1, 10)).unwrap();
    assert_eq!(serves(&registry, 1, at(0)), Some(1));
    // Even another node's, where policy moved the endpoint.
    registry.register(2, node(2), register(1, 2, 1)).unwrap();
    assert_eq!(serves(&registry, 1, at(0)), Some(2));
    assert_eq!(
        registry.register(1, node(1), register(1, 1, 99)),
        Err(RegistryFault::Stale)
    );
    assert_eq!(
        registry.register(3, node(1), register(1, 2, 99)),
        Err(RegistryFault::OtherNode)
    );
}

/// R-ADM-03: an announced restart keeps the place for 15 s; an unannounced end does not.
#[test]
fn announced_restarts_are_held() {
    let mut registry = Registry::default();
    registry.register(1, node(1), register(1, 1, 10)).unwrap();
    registry.register(2, node(2), register(2, 1, 10)).unwrap();
    registry.session_ended(1, true, at(100));
    registry.session_ended(2, false, at(100));
    assert_eq!(
        registry.lookup(endpoint(1), at(114)),
        Lookup::Restarting { until: at(115) }
    );
    assert_eq!(registry.lookup(endpoint(2), at(100)), Lookup::NotRegistered);
    assert_eq!(registry.lookup(endpoint(1), at(115)), Lookup::NotRegistered);
    // Back in time, it serves at once.
    registry.register(3, node(1), register(1, 1, 11)).unwrap();
    assert_eq!(serves(&registry, 1, at(114)), Some(3));
    registry.session_ended(3, true, at(200));
    registry.retain(at(215), |_, _, _| true);
    assert!(registry.is_empty());
}

/// A registration that policy no longer has goes, and who held it is named, to be told; one whose
/// session is gone has nobody to tell.
#[test]
fn retain_follows_policy() {
    let mut registry = Registry::default();
    registry.register(1, node(1), register(1, 1, 10)).unwrap();
    registry.register(1, node(1), register(2, 1, 10)).unwrap();
    registry.register(2, node(2), register(3, 1, 10)).unwrap();
    registry.session_ended(2, true, at(0));
    let dropped = registry.retain(at(0), |e, _, _| e == endpoint(2));
    assert_eq!(dropped, [(1, register(1, 1, 10))]);
    assert_eq!(registry.len(), 1);
    assert_eq!(serves(&registry, 1, at(0)), None);
}

/// Hitting the bound refuses the next one, and a repeated one is no next one.
#[test]
fn a_session_has_a_bound() {
    let mut registry = Registry::default();
    let numbered = |n: usize| Register {
        endpoint: EndpointId::from_bytes((n as u128).to_be_bytes()),
        generation: Generation(1),
        epoch: RegistrationEpoch(1),
    };
    for n in 0..crate::REGISTRATIONS_PER_SESSION_MAX {
        registry.register(1, node(1), numbered(n)).unwrap();
    }
    assert_eq!(
        registry.register(1, node(1), numbered(crate::REGISTRATIONS_PER_SESSION_MAX)),
        Err(RegistryFault::TooMany)
    );
    assert!(registry.register(1, node(1), numbered(0)).is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Register {
        session: u64,
        endpoint: u8,
        generation: u64,
    },
    Unregister {
        session: u64,
        endpoint: u8,
        generation: u64,
    },
    End {
        session: u64,
        announced: bool,
    },
    Wait {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (session, e, g) = (0u64..6, 0u8..4, 1u64..4);
    prop_oneof![
        4 => (session.clone(), e.clone(), g.clone())
            .prop_map(|(session, endpoint, generation)| Step::Register { session, endpoint, generation }),
        2 => (session.clone(), e, g)
            .prop_map(|(session, endpoint, generation)| Step::Unregister { session, endpoint, generation }),
        1 => (session, any::<bool>()).prop_map(|(session, announced)| Step::End { session, announced }),
        1 => (1u64..20).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    /// F-05: whatever one node's sessions do, in any order and with late goodbyes, an endpoint is
    /// served by the newest session of the newest generation that registered it and is still
    /// there. The session's number is its epoch, as it is in a daemon.
    #[test]
    fn the_newest_registration_serves(steps in proptest::collection::vec(step(), 0..80)) {
        let mut registry = Registry::default();
        // Endpoint to (generation, session), for registrations in force; None while restarting.
        let mut model: BTreeMap<u8, (u64, u64, Option<u64>)> = BTreeMap::new();
        let mut ended: BTreeSet<u64> = BTreeSet::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Register { session, endpoint, generation } => {
                    if ended.contains(&session) {
                        continue;
                    }
                    let newer = model.get(&endpoint).is_none_or(|&(g, s, gone)| {
                        (generation > g && session >= s)
                            || (generation == g && (session > s || (session == s && gone.is_none())))
                    });
                    let outcome = registry.register(session, node(1), register(endpoint, generation, session));
                    prop_assert_eq!(outcome.is_ok(), newer, "{:?}", outcome);
                    if newer {
                        model.insert(endpoint, (generation, session, None));
                    }
                }
                Step::Unregister { session, endpoint, generation } => {
                    let there = !ended.contains(&session)
                        && model.get(&endpoint).is_some_and(|&(_, s, _)| s == session);
                    prop_assert_eq!(
                        registry.unregister(session, register(endpoint, generation, session)),
                        there || model.get(&endpoint).is_some_and(|&(_, s, _)| s == session)
                    );
                    if model.get(&endpoint).is_some_and(|&(_, s, _)| s == session) {
                        model.remove(&endpoint);
                    }
                }
                Step::End { session, announced } => {
                    if !ended.insert(session) {
                        continue;
                    }
                    registry.session_ended(session, announced, at(now));
                    model.retain(|_, entry| {
                        if entry.1 == session {
                            entry.2 = Some(now + 15);
                        }
                        entry.1 != session || announced
                    });
                }
                Step::Wait { seconds } => now += seconds,
            }
            for e in 0..4 {
                let want = model.get(&e).and_then(|&(_, s, gone)| gone.is_none().then_some(s));
                prop_assert_eq!(serves(&registry, e, at(now)), want);
            }
        }
    }
}

//! R-POL-04: what is applied only rises, through any order of arrivals and restarts.

use super::*;
use fairlead_model::NodeId;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A policy and a lease over it, as the control plane would sign them.
fn pair(policy: &RelayPolicy, seq: u64) -> (Verified<RelayPolicy>, Verified<PolicyLease>) {
    let policy = signed(policy);
    let lease = signed(&lease(&policy, seq));
    (policy, lease)
}

fn apply(relay: &RelayAdmission, policy: &RelayPolicy, seq: u64) -> Result<Applied, ApplyRefused> {
    let (policy, lease) = pair(policy, seq);
    relay.apply_policy(policy, lease, START)
}

#[test]
fn another_relays_documents_are_refused() {
    let other = RelayId::from_bytes([99; 16]);
    let policy = RelayPolicy {
        relay: other,
        ..relay_policy(1, 11)
    };
    assert_eq!(
        apply(&relay(), &policy, 2).unwrap_err(),
        ApplyRefused::OtherRelay(other)
    );
    let (_, held) = pair(&relay_policy(1, 10), 2);
    let lease = signed(&PolicyLease {
        relay: other,
        ..*held
    });
    assert_eq!(
        relay().apply_lease(lease, START).unwrap_err(),
        ApplyRefused::OtherRelay(other)
    );
}

#[test]
fn lower_numbers_are_refused_by_name() {
    let relay = relay_with(&RelayPolicy {
        leader_term: LeaderTerm(5),
        ..relay_policy(2, 10)
    });
    let error = |policy: RelayPolicy| apply(&relay, &policy, 99).unwrap_err().to_string();
    assert!(error(relay_policy(1, 99)).contains("epoch 1 is below 2"));
    let lower = RelayPolicy {
        leader_term: LeaderTerm(9),
        ..relay_policy(2, 9)
    };
    assert!(error(lower).contains("revision 9 is below 10"));
    // A paused leader cannot sign another revision.
    let paused = RelayPolicy {
        leader_term: LeaderTerm(4),
        ..relay_policy(2, 11)
    };
    assert!(error(paused).contains("leader term 4 is below 5"));
}

/// R-POL-04: equal revision with other content is refused and says both roots.
#[test]
fn equal_revision_with_other_content_is_refused() {
    let relay = relay();
    let mut other = relay_policy(1, 10);
    other.nodes.push(STRANGER);
    let refused = apply(&relay, &other, 2).unwrap_err();
    let ApplyRefused::OtherContent { given, held, .. } = refused else {
        panic!("{refused}");
    };
    assert_ne!(given, held);
    assert_eq!(held, relay.head().unwrap().root);
}

#[test]
fn the_same_again_changes_nothing_and_a_newer_lease_renews() {
    let relay = relay();
    let policy = relay_policy(1, 10);
    assert!(matches!(apply(&relay, &policy, 1), Ok(Applied::Unchanged)));
    let renewed = next(apply(&relay, &policy, 2));
    assert_eq!(renewed.head().unwrap().lease_seq, LeaseSeq(2));
    assert_eq!(
        apply(&renewed, &policy, 1).unwrap_err(),
        ApplyRefused::LeaseSeq {
            given: LeaseSeq(1),
            held: LeaseSeq(2)
        }
    );
}

/// One lease number has one content.
#[test]
fn an_equal_lease_number_with_other_content_is_refused() {
    let (_, held) = pair(&relay_policy(1, 10), 1);
    let longer = signed(&PolicyLease {
        not_after: held.not_after.plus(hours(1)),
        ..*held
    });
    assert!(matches!(
        relay().apply_lease(longer, START),
        Err(ApplyRefused::LeaseSeq { .. })
    ));
}

#[test]
fn a_lease_covers_its_policy_only() {
    let (_, other) = pair(&relay_policy(1, 11), 2);
    let wrong = |applied| matches!(applied, Err(ApplyRefused::LeaseOfOtherPolicy { .. }));
    assert!(wrong(relay().apply_lease(other.clone(), START)));
    let policy = signed(&relay_policy(1, 12));
    assert!(wrong(relay().apply_policy(policy, other.clone(), START)));
    assert!(wrong(RelayAdmission::new(RELAY, BOOT).apply_lease(other, START)));
}

/// R-POL-01: no lease is longer than 168 h.
#[test]
fn a_lease_has_a_greatest_length() {
    let (_, held) = pair(&relay_policy(1, 10), 2);
    let of = |length| {
        let lease = signed(&PolicyLease {
            not_after: held.not_before.plus(length),
            ..*held
        });
        relay().apply_lease(lease, START)
    };
    assert!(of(LEASE_MAX).is_ok());
    assert!(matches!(
        of(LEASE_MAX + Duration::from_millis(1)),
        Err(ApplyRefused::LeaseTooLong(_))
    ));
}

/// R-POL-04: after a restore from backup the new epoch is taken, whatever its other numbers.
#[test]
fn a_new_epoch_starts_every_number_anew() {
    let relay = relay_with(&RelayPolicy {
        leader_term: LeaderTerm(5),
        ..relay_policy(1, 10)
    });
    let restored = next(apply(&relay, &relay_policy(2, 1), 1));
    let head = restored.head().unwrap();
    assert_eq!((head.epoch, head.revision), (PolicyEpoch(2), Revision(1)));
    assert_eq!(head.leader_term, LeaderTerm(1));
    assert!(matches!(
        apply(&restored, &relay_policy(1, 99), 99),
        Err(ApplyRefused::Epoch { .. })
    ));
}

/// R-POL-04: the head outlives a restart, and even a change of keys that makes its envelopes
/// worthless. R-POL-07: the policy given again is then taken, and its lease is not renewed by that.
#[test]
fn a_restart_forgets_no_head() {
    let relay = relay();
    let later = after(START, hours(1));
    let snapshot = Snapshot::decode(&relay.snapshot(START).encode().unwrap()).unwrap();
    let bare = RelayAdmission::restore(&snapshot, None, None, BOOT, later);
    assert_eq!(bare.head(), relay.head());
    assert_eq!(
        open(&bare, &grant(), false, START),
        Verdict::Refuse(RefusalCode::NoPolicy)
    );
    assert!(matches!(
        apply(&bare, &relay_policy(1, 9), 9),
        Err(ApplyRefused::Revision { .. })
    ));
    let (policy, lease) = pair(&relay_policy(1, 10), 1);
    let again = next(bare.apply_policy(policy, lease, later));
    assert_eq!(again.lease_state(later), LeaseState::Valid(hours(71)));
}

/// A snapshot's documents that are not its head's are left out.
#[test]
fn a_snapshot_with_other_documents_restores_its_head_only() {
    let snapshot = relay().snapshot(START);
    let (policy, lease) = pair(&relay_policy(1, 11), 2);
    let restored = RelayAdmission::restore(&snapshot, Some(policy), Some(lease), BOOT, START);
    assert_eq!(restored.lease_state(START), LeaseState::Missing);
    assert_eq!(restored.head(), relay().head());
}

#[test]
fn a_later_builds_snapshot_is_named() {
    assert_eq!(Snapshot::decode(&[7]), Err(SnapshotError::Version(7)));
}

#[derive(Debug, Clone)]
enum Step {
    Policy {
        epoch: u64,
        term: u64,
        revision: u64,
        seq: u64,
        content: u8,
    },
    Lease {
        seq: u64,
    },
    Restart {
        same_boot: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u64..4, 1u64..4, 1u64..5, 1u64..8, 0u8..2).prop_map(|(epoch, term, revision, seq, content)| {
            Step::Policy {
                epoch,
                term,
                revision,
                seq,
                content,
            }
        }),
        (1u64..8).prop_map(|seq| Step::Lease { seq }),
        any::<bool>().prop_map(|same_boot| Step::Restart { same_boot }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// R-POL-04: through any sequence of policies, leases and restarts, (epoch, revision, lease
    /// number) never falls, one (epoch, revision) has one root, and terms never fall in an epoch.
    #[test]
    fn heads_only_rise(steps in proptest::collection::vec(step(), 1..40)) {
        let mut relay = RelayAdmission::new(RELAY, BOOT);
        let mut roots = BTreeMap::new();
        let mut last_policy = None;
        for step in steps {
            let before = relay.head();
            let applied = match step {
                Step::Policy { epoch, term, revision, seq, content } => {
                    let mut policy = relay_policy(epoch, revision);
                    policy.leader_term = LeaderTerm(term);
                    policy.nodes.push(NodeId::from_bytes([100 + content; 16]));
                    let (policy, lease) = pair(&policy, seq);
                    let applied = relay.apply_policy(policy.clone(), lease, START);
                    if matches!(applied, Ok(Applied::Next(_))) {
                        last_policy = Some(policy);
                    }
                    applied
                }
                Step::Lease { seq } => match &last_policy {
                    None => continue,
                    Some(policy) => relay.apply_lease(signed(&lease(policy, seq)), START),
                },
                Step::Restart { same_boot } => {
                    let snapshot = Snapshot::decode(&relay.snapshot(START).encode().unwrap()).unwrap();
                    let boot = if same_boot { BOOT } else { OTHER_BOOT };
                    let lease = relay.lease.as_ref().map(|l| l.as_ref().clone());
                    relay = RelayAdmission::restore(&snapshot, last_policy.clone(), lease, boot, START);
                    prop_assert_eq!(relay.head(), before);
                    continue;
                }
            };
            if let Ok(Applied::Next(next)) = applied {
                relay = next;
            }
            let Some(head) = relay.head() else { continue };
            if let Some(before) = before {
                prop_assert!((head.epoch, head.revision) >= (before.epoch, before.revision));
                if head.epoch == before.epoch {
                    prop_assert!(head.lease_seq >= before.lease_seq);
                    prop_assert!(head.leader_term >= before.leader_term);
                }
            }
            let root = roots.entry((head.epoch, head.revision)).or_insert(head.root);
            prop_assert_eq!(*root, head.root);
        }
    }

    /// No grant, however well signed, widens what the policy says, and no verdict admits without a
    /// policy and a valid lease over it.
    #[test]
    fn no_verdict_admits_what_policy_does_not_hold(
        consumer in 1u8..5, publisher in 1u8..5, endpoint in 4u8..7, route in 5u8..8,
        generation in 1u64..6, revision in 8u64..13, resume: bool, held in 0usize..20,
        with_policy: bool, with_lease: bool, hour in 0u64..120,
    ) {
        let now = after(START, hours(hour));
        let mut relay = RelayAdmission::new(RELAY, BOOT);
        if with_policy {
            relay = super::relay();
        }
        if !with_lease {
            relay.lease = None;
        }
        let grant = signed(&Grant {
            consumer: NodeId::from_bytes([consumer; 16]),
            publisher: NodeId::from_bytes([publisher; 16]),
            endpoint: EndpointId::from_bytes([endpoint; 16]),
            route: RouteId::from_bytes([route; 16]),
            generation: Generation(generation),
            revision: Revision(revision),
            ..grant()
        });
        let claim = OpenClaim {
            consumer: grant.consumer,
            resume,
            held_by_consumer: held,
            ..claim(&grant)
        };
        let fits = grant.consumer == CONSUMER
            && grant.publisher == PUBLISHER
            && grant.endpoint == ENDPOINT
            && grant.route == ROUTE
            && (resume || generation == 3);
        let may = with_policy && with_lease && hour < 72;
        let admitted = matches!(relay.verdict(&claim, now), Verdict::Admit(_));
        prop_assert_eq!(admitted, fits && may);
    }

    #[test]
    fn snapshots_round_trip_and_garbage_is_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = Snapshot::decode(&bytes);
        let snapshot = relay().snapshot(START);
        let encoded = snapshot.encode().unwrap();
        prop_assert!(encoded.len() <= SNAPSHOT_LEN_MAX);
        prop_assert_eq!(Snapshot::decode(&encoded).unwrap(), snapshot);
        prop_assert!(Snapshot::decode(&encoded[..cut.index(encoded.len())]).is_err());
    }
}

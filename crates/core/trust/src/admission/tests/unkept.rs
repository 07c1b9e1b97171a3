//! R-REV-01, R-POL-04: what a policy takes away is gone although it cannot be written, and what it
//! gives waits for the disk.

use super::*;
use fairlead_model::NodeId;
use proptest::prelude::*;

fn applied(relay: &RelayAdmission, policy: &RelayPolicy, seq: u64) -> Result<Applied, ApplyRefused> {
    let policy = signed(policy);
    let lease = signed(&lease(&policy, seq));
    relay.apply_policy(policy, lease, START)
}

fn revoked(revision: u64) -> RelayPolicy {
    RelayPolicy {
        routes: vec![],
        revoked_routes: vec![ROUTE],
        ..relay_policy(1, revision)
    }
}

#[test]
fn an_unkept_revocation_is_in_force_and_not_acknowledged() {
    let kept = relay();
    let held = kept.with_unkept(next(applied(&kept, &revoked(11), 2)));
    for resume in [false, true] {
        assert_eq!(
            open(&held, &grant(), resume, START),
            Verdict::Refuse(RefusalCode::Revoked)
        );
    }
    assert_eq!(
        held.live_verdict(&tunnel(), START),
        LiveVerdict::Close(RefusalCode::Revoked)
    );
    assert!(!held.is_kept());
    assert_eq!(held.head(), kept.head());
    assert_eq!(held.snapshot(START), kept.snapshot(START));
    assert_eq!(held.newest().head().unwrap().revision, Revision(11));
}

/// What is applied rises from the unkept value on, and the very same again is to be written.
#[test]
fn nothing_older_than_the_unkept_is_applied() {
    let kept = relay();
    let held = kept.with_unkept(next(applied(&kept, &revoked(12), 2)));
    assert!(matches!(
        applied(&held, &relay_policy(1, 11), 3),
        Err(ApplyRefused::Revision { .. })
    ));
    let again = next(applied(&held, &revoked(12), 2));
    assert!(again.is_kept());
    assert_eq!(again.head(), held.newest().head());
    // A second one that cannot be written takes the first one's place.
    let held = held.with_unkept(next(applied(&held, &relay_policy(1, 13), 3)));
    assert_eq!(held.newest().head().unwrap().revision, Revision(13));
    let Verdict::Admit(admitted) = open(&held, &grant(), false, START) else {
        panic!("refused");
    };
    assert_eq!(admitted.revision, Revision(10));
}

/// A relay that never held a policy admits nothing by one that it could not write.
#[test]
fn the_first_policy_waits_for_the_disk() {
    let none = RelayAdmission::new(RELAY, BOOT);
    let held = none.with_unkept(next(applied(&none, &relay_policy(1, 10), 1)));
    assert_eq!(
        open(&held, &grant(), false, START),
        Verdict::Refuse(RefusalCode::NoPolicy)
    );
    assert_eq!(held.session_verdict(CONSUMER), Err(RefusalCode::NoPolicy));
}

/// Which parts of a small policy are there: node, node, endpoint, route, its revocation, the key.
fn part_of(parts: [bool; 6], generation: u64, revision: u64) -> RelayPolicy {
    let [consumer, publisher, endpoint, route, is_revoked, key] = parts;
    let mut policy = relay_policy(1, revision);
    let keep = |there: bool, node: NodeId| there.then_some(node);
    policy.nodes = [keep(consumer, CONSUMER), keep(publisher, PUBLISHER)]
        .into_iter()
        .flatten()
        .collect();
    policy.endpoints.retain(|_| endpoint);
    for endpoint in &mut policy.endpoints {
        endpoint.generation = Generation(generation);
    }
    policy.routes.retain(|_| route);
    if is_revoked {
        policy.revoked_routes.push(ROUTE);
    }
    if !key {
        policy.grant_keys = Keyring::EMPTY;
    }
    policy
}

proptest! {
    /// After a failed save exactly that is admitted which the old and the new value both admit.
    #[test]
    fn both_values_must_admit(
        old: [bool; 6], new: [bool; 6], old_generation in 2..5_u64, new_generation in 2..5_u64,
        resume: bool, generation in 2..5_u64, later in 0..100_u64,
    ) {
        let kept = relay_with(&part_of(old, old_generation, 10));
        let next = next(applied(&kept, &part_of(new, new_generation, 11), 2));
        let held = kept.with_unkept(next.clone());
        let now = after(START, hours(later));
        let claimed = Grant { generation: Generation(generation), ..grant() };
        let admits = |relay: &RelayAdmission| matches!(open(relay, &claimed, resume, now), Verdict::Admit(_));
        prop_assert_eq!(admits(&held), admits(&kept) && admits(&next));
        let keeps = |relay: &RelayAdmission| relay.live_verdict(&tunnel(), now) == LiveVerdict::Keep;
        prop_assert_eq!(keeps(&held), keeps(&kept) && keeps(&next));
        for node in [CONSUMER, PUBLISHER, STRANGER] {
            let session = |relay: &RelayAdmission| relay.session_verdict(node).is_ok();
            prop_assert_eq!(session(&held), session(&kept) && session(&next));
            let registers = |relay: &RelayAdmission| {
                relay.registration_verdict(node, ENDPOINT, Generation(generation)).is_ok()
            };
            prop_assert_eq!(registers(&held), registers(&kept) && registers(&next));
        }
    }
}

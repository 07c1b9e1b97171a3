//! Which documents are let in, kept and set aside.

use super::*;
use crate::tests::authority::Authority;
use fairlead_model::{EndpointId, Generation, WallTime};
use std::time::Duration;

const NODE: NodeId = NodeId::from_bytes([1; 16]);
const OTHER: NodeId = NodeId::from_bytes([2; 16]);
const ROUTE: RouteId = RouteId::from_bytes([3; 16]);

fn policy(authority: &Authority, term: u64, epoch: u64, revision: u64) -> NodePolicy {
    NodePolicy {
        node: NODE,
        epoch: PolicyEpoch(epoch),
        revision: Revision(revision),
        leader_term: LeaderTerm(term),
        issued_at: WallTime(1_800_000_000_000),
        relays: Vec::new(),
        publications: Vec::new(),
        consumptions: Vec::new(),
        revoked_routes: Vec::new(),
        grant_keys: Keyring::new([authority.grant_key.verifying_key()]).unwrap(),
    }
}

fn grant(authority: &Authority, consumer: NodeId) -> Bytes {
    let not_before = WallTime(1_800_000_000_000);
    authority.grant(&Grant {
        consumer,
        publisher: OTHER,
        endpoint: EndpointId::from_bytes([4; 16]),
        route: ROUTE,
        generation: Generation(1),
        epoch: PolicyEpoch(1),
        revision: Revision(1),
        not_before,
        not_after: not_before.plus(Duration::from_secs(3600)),
    })
}

fn keeper(authority: &Authority, dir: &std::path::Path) -> ViewKeeper {
    let keys = Keyring::new([authority.policy_key.verifying_key()]).unwrap();
    ViewKeeper::load(NODE, keys, NodeState::new(dir))
}

/// R-POL-04: lower terms, epochs and revisions are refused, and equal ones with other content.
#[test]
fn only_newer_policies_are_let_in() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut keeper = keeper(&authority, dir.path());
    let sign = |term, epoch, revision| authority.node_policy(&policy(&authority, term, epoch, revision));
    assert_eq!(keeper.head(), (PolicyEpoch(0), Revision(0)));
    assert!(keeper.offer_policy(sign(2, 1, 5)).unwrap());
    assert!(!keeper.offer_policy(sign(2, 1, 5)).unwrap());
    assert!(matches!(
        keeper.offer_policy(sign(1, 1, 6)),
        Err(Refused::OlderTerm { .. })
    ));
    assert_eq!(
        keeper.leader_term(),
        LeaderTerm(2),
        "the control plane is told by which term"
    );
    let older = keeper.offer_policy(sign(2, 1, 4)).unwrap_err();
    assert!(matches!(older, Refused::Older { .. }));
    assert_eq!(
        older.to_string(),
        "the node policy is revision 4 of epoch 1, held is revision 5 of epoch 1"
    );
    let mut changed = policy(&authority, 2, 1, 5);
    changed.revoked_routes.push(ROUTE);
    assert!(matches!(
        keeper.offer_policy(authority.node_policy(&changed)),
        Err(Refused::OtherContent(_))
    ));
    let mut others = policy(&authority, 2, 1, 9);
    others.node = OTHER;
    assert!(matches!(
        keeper.offer_policy(authority.node_policy(&others)),
        Err(Refused::OtherNode(OTHER))
    ));
    // A restored control plane numbers anew under a higher epoch, its terms included.
    assert!(keeper.offer_policy(sign(1, 2, 1)).unwrap());
    assert_eq!(keeper.head(), (PolicyEpoch(2), Revision(1)));
}

/// R-GEN-04: what was let in is there after a restart, and is verified again; what a key signs that
/// is trusted no more is set aside.
#[test]
fn kept_documents_are_verified_again() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    {
        let mut keeper = keeper(&authority, dir.path());
        // Grants before the policy that brings their key: they wait for it.
        assert!(
            keeper
                .offer_grants(vec![grant(&authority, NODE), grant(&authority, OTHER)])
                .unwrap()
        );
        assert_eq!(keeper.subscribe().borrow().grant_count(), 0);
        keeper
            .offer_policy(authority.node_policy(&policy(&authority, 1, 1, 5)))
            .unwrap();
        assert_eq!(
            keeper.subscribe().borrow().grant_count(),
            1,
            "the other is another node's"
        );
    }
    let mut again = keeper(&authority, dir.path());
    assert_eq!(again.head(), (PolicyEpoch(1), Revision(5)));
    assert!(again.subscribe().borrow().grant(ROUTE).is_some());
    let lower = authority.node_policy(&policy(&authority, 1, 1, 4));
    assert!(matches!(again.offer_policy(lower), Err(Refused::Older { .. })));

    let other_key = Keyring::new([authority.grant_key.verifying_key()]).unwrap();
    let set_aside = ViewKeeper::load(NODE, other_key, NodeState::new(dir.path()));
    assert_eq!(set_aside.head(), (PolicyEpoch(0), Revision(0)));
    assert!(set_aside.subscribe().borrow().policy().is_none());
}

/// The keys are at fault, not what they verified once: it outlives a save under the wrong keys, and
/// is used again with the right ones.
#[test]
fn a_policy_of_an_unknown_key_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let policy = authority.node_policy(&policy(&authority, 1, 1, 5));
    keeper(&authority, dir.path()).offer_policy(policy).unwrap();
    let other_key = Keyring::new([authority.grant_key.verifying_key()]).unwrap();
    let mut wrong = ViewKeeper::load(NODE, other_key, NodeState::new(dir.path()));
    assert!(wrong.subscribe().borrow().policy().is_none());
    wrong.offer_grants(vec![Bytes::from_static(b"grant")]).unwrap();
    drop(wrong);
    assert_eq!(
        keeper(&authority, dir.path()).head(),
        (PolicyEpoch(1), Revision(5))
    );
}

#[test]
fn the_set_of_grants_is_bounded() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut keeper = keeper(&authority, dir.path());
    let one = grant(&authority, NODE);
    assert!(matches!(
        keeper.offer_grants(vec![one; GRANTS_MAX + 1]),
        Err(Refused::TooMany { .. })
    ));
    assert!(matches!(
        keeper.offer_grants(vec![Bytes::from(vec![0; GRANT_LEN_MAX + 1])]),
        Err(Refused::TooMany { count: 1 })
    ));
}

/// R-REV-01, R-POL-04: a folder that cannot be written keeps no revocation from being enforced; what
/// the policy gives, and its number, wait until it can be written.
#[test]
fn a_revocation_that_cannot_be_kept_is_in_force() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let folder = dir.path().join("member");
    std::fs::create_dir(&folder).unwrap();
    let mut keeper = keeper(&authority, &folder);
    let added = RouteId::from_bytes([5; 16]);
    let consumption = |route| Consumption {
        route,
        endpoint: EndpointId::from_bytes([4; 16]),
        generation: Generation(1),
        publisher: OTHER,
        link: "db".parse().unwrap(),
        listen: "127.0.0.1:7".parse().unwrap(),
        class: fairlead_model::ServiceClass::Database,
        relays: Vec::new(),
    };
    let mut first = policy(&authority, 1, 1, 5);
    first.consumptions = vec![consumption(ROUTE)];
    keeper.offer_policy(authority.node_policy(&first)).unwrap();
    let view = keeper.subscribe();
    assert!(view.borrow().consumes(ROUTE));
    let mut second = policy(&authority, 1, 1, 7);
    second.consumptions = vec![consumption(added)];
    second.revoked_routes = vec![ROUTE];
    let second = authority.node_policy(&second);

    // A folder that is not there cannot be written, whoever runs this.
    let away = dir.path().join("away");
    std::fs::rename(&folder, &away).unwrap();
    for _ in 0..2 {
        let refused = keeper.offer_policy(second.clone()).unwrap_err();
        assert_eq!(refused.to_string(), "the documents cannot be kept");
        assert!(
            !view.borrow().consumes(ROUTE),
            "the revocation waits for the disk"
        );
        assert!(!view.borrow().consumes(added), "in force before it is on disk");
        assert_eq!(keeper.head(), (PolicyEpoch(1), Revision(5)));
    }
    let between = authority.node_policy(&policy(&authority, 1, 1, 6));
    assert!(matches!(keeper.offer_policy(between), Err(Refused::Older { .. })));

    std::fs::rename(&away, &folder).unwrap();
    assert!(keeper.save_unkept().unwrap());
    assert!(view.borrow().consumes(added) && !view.borrow().consumes(ROUTE));
    assert_eq!(keeper.head(), (PolicyEpoch(1), Revision(7)));
    assert!(!keeper.has_unkept() && !keeper.offer_policy(second).unwrap());
}

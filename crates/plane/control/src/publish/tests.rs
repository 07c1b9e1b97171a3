//! What is signed: the same bytes for the same number, nothing that does not open.

use super::*;
use fairlead_model::{EndpointId, Generation, LeaderTerm, PolicyEpoch, WallTime};
use fairlead_trust::RelaySettings;

fn numbering(revision: u64) -> Numbering {
    Numbering {
        epoch: PolicyEpoch(1),
        revision: Revision(revision),
        leader_term: LeaderTerm(1),
        issued_at: WallTime(1_800_000_000_000),
    }
}

fn contents() -> RelayContents {
    RelayContents {
        endpoints: Vec::new(),
        routes: Vec::new(),
        nodes: vec![NodeId::from_bytes([1; 16])],
        revoked_routes: Vec::new(),
        settings: RelaySettings::DEFAULT,
    }
}

/// R-POL-04: the same number and content give the same bytes: a restart never signs another
/// revision 7.
#[test]
fn the_same_number_and_content_are_the_same_bytes() {
    let key = SigningKey::from_seed(&[3; 32]);
    let keys = Keyring::new([key.verifying_key()]).unwrap();
    let relay = RelayId::from_bytes([2; 16]);
    let draft = |revision| contents().draft(relay, numbering(revision), &keys);
    let one = sign::<RelayContents>(&key, &keys, &draft(7)).unwrap();
    let two = sign::<RelayContents>(&key, &keys, &draft(7)).unwrap();
    assert_eq!(one.envelope(), two.envelope());
    assert_eq!(draft(7).root(), one.root().to_string());
    assert_ne!(draft(7).root(), draft(8).root());
    let head = HeadRecord {
        epoch: 1,
        revision: 7,
        root: draft(7).root(),
        issued_at: numbering(7).issued_at.into(),
        leader_term: 1,
        lease_seq: 0,
        lease_not_after: None,
    };
    assert!(is_of_head(&one, &head));
    assert!(!is_of_head(
        &one,
        &HeadRecord {
            revision: 8,
            ..head.clone()
        }
    ));
    assert!(!is_of_head(
        &one,
        &HeadRecord {
            root: draft(8).root(),
            ..head
        }
    ));
}

/// A document that its receiver could not open is not published.
#[test]
fn a_foreign_signature_is_not_published() {
    let key = SigningKey::from_seed(&[3; 32]);
    let other = Keyring::new([SigningKey::from_seed(&[4; 32]).verifying_key()]).unwrap();
    let draft = contents().draft(RelayId::from_bytes([2; 16]), numbering(1), &other);
    assert!(matches!(
        sign::<RelayContents>(&key, &other, &draft),
        Err(SignError::Open(_))
    ));
}

#[test]
fn a_grant_is_compared_but_for_its_time() {
    let contents = GrantContents {
        consumer: NodeId::from_bytes([1; 16]),
        publisher: NodeId::from_bytes([2; 16]),
        endpoint: EndpointId::from_bytes([3; 16]),
        route: RouteId::from_bytes([4; 16]),
        generation: Generation(1),
        revision: Revision(5),
        relays: Vec::new(),
    };
    let key = SigningKey::from_seed(&[3; 32]);
    let signed = sign_grant(&key, contents.grant(PolicyEpoch(1), WallTime(1), WallTime(2))).unwrap();
    assert!(signed.says(&contents));
    let widened = GrantContents {
        revision: Revision(6),
        ..contents
    };
    assert!(!signed.says(&widened));
}

#[test]
fn a_publication_wakes_those_who_watch() {
    let published = Published::default();
    let watch = published.watch();
    assert!(!watch.has_changed().unwrap());
    let placements = BTreeMap::from([(
        LinkId::from_bytes([1; 16]),
        fairlead_placement::place(EndpointId::from_bytes([1; 16]), &[], 2),
    )]);
    let documents = Documents {
        placements: Arc::new(placements),
        ..Documents::default()
    };
    assert!(!documents.is_same(&published.snapshot()));
    published.publish(documents.clone());
    assert!(watch.has_changed().unwrap());
    assert!(documents.is_same(&published.snapshot()));
}

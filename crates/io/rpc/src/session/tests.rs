//! Parts of session messages.

use super::*;
use fairlead_model::WallTime;
use fairlead_trust::SigningKey;
use proptest::prelude::*;
use prost::Message;

fn bundle() -> TrustBundle {
    let key = SigningKey::from_seed(&[1; 32]).verifying_key();
    TrustBundle {
        version: 3,
        ca_certificates: vec![Bytes::from_static(b"der")],
        policy_keys: Keyring::new([key]).unwrap(),
        trust_domain: "pool.example".parse().unwrap(),
    }
}

#[test]
fn bundles_round_trip_and_faults_are_named() {
    type Break = fn(&mut pb::TrustBundle);
    let wire = pb::TrustBundle::from(&bundle());
    assert_eq!(TrustBundle::try_from(wire.clone()), Ok(bundle()));
    let cases: [(Break, &str); 6] = [
        (|b| b.ca_certificates.clear(), "ca_certificates: it is missing"),
        (
            |b| b.ca_certificates = vec![Bytes::from_static(b"x"); CA_CERTIFICATES_MAX + 1],
            "ca_certificates: more than 8",
        ),
        (|b| b.ca_certificates[0].clear(), "ca_certificates[0]: 0 bytes"),
        (|b| b.policy_keys.clear(), "policy_keys: it is missing"),
        (|b| b.trust_domain.clear(), "trust_domain: it is missing"),
        (|b| b.trust_domain = "A b".into(), "trust_domain: `A b` is not"),
    ];
    for (break_it, expected) in cases {
        let mut broken = wire.clone();
        break_it(&mut broken);
        let error = TrustBundle::try_from(broken).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error} | {expected}");
    }
}

proptest! {
    #[test]
    fn heads_round_trip(
        numbers in any::<(u64, u64, u64, u64)>(),
        root in any::<[u8; 32]>(),
        not_after in 0i64..253_402_300_800_000,
    ) {
        let head = PolicyHead {
            epoch: PolicyEpoch(numbers.0),
            revision: Revision(numbers.1),
            root: PolicyRoot(root),
            leader_term: LeaderTerm(numbers.2),
            lease_seq: LeaseSeq(numbers.3),
            lease_not_after: WallTime(not_after),
        };
        prop_assert_eq!(PolicyHead::try_from(pb::PolicyHead::from(head)), Ok(head));
    }

    #[test]
    fn probe_requests_round_trip(request in any::<[u8; 16]>(), relay in any::<[u8; 16]>(), port in 1u16..) {
        let probe = ProbeRequest {
            request,
            relay: RelayId::from_bytes(relay),
            address: HostPort::parse("relay.example", Some(port)).unwrap(),
        };
        prop_assert_eq!(ProbeRequest::try_from(pb::ProbeRequest::from(&probe)), Ok(probe));
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = pb::TrustBundle::decode(&*bytes).map(TrustBundle::try_from);
        let _ = pb::PolicyHead::decode(&*bytes).map(PolicyHead::try_from);
        let _ = pb::ProbeRequest::decode(&*bytes).map(ProbeRequest::try_from);
    }
}

//! Identities out of real certificates.

use super::*;
use fairlead_model::NodeId;
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SanType};

fn domain() -> TrustDomain {
    "pool.example".parse().unwrap()
}

fn certificate(names: &[SanType], ca: bool) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.to_vec();
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2026, 1, 31);
    if ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

/// 2026-01-01T00:00:00Z.
const NEW_YEAR: WallTime = WallTime(1_767_225_600_000);

#[test]
fn one_uri_names_the_member() {
    let node = Identity::Node(NodeId::from_bytes([7; 16]));
    for identity in [node, Identity::Control] {
        let spiffe = uri(&identity.to_spiffe(&domain()));
        // A name beside it, as the control plane's certificate has for browsers, says nothing.
        for names in [vec![spiffe.clone()], vec![dns("control.example"), spiffe]] {
            let (found, validity) = identity_of(&certificate(&names, false), &domain()).unwrap();
            assert_eq!(found, identity);
            assert_eq!(validity.not_before, NEW_YEAR);
            assert_eq!(
                validity.not_after.since(validity.not_before).as_secs(),
                30 * 86_400
            );
        }
    }
}

#[test]
fn anything_else_names_nobody() {
    let control = uri("spiffe://pool.example/control");
    let error = |names: &[SanType], ca| identity_of(&certificate(names, ca), &domain()).unwrap_err();
    assert_eq!(error(&[], false), CertificateError::UriCount(0));
    assert_eq!(
        error(&[dns("pool.example")], false),
        CertificateError::UriCount(0)
    );
    assert_eq!(
        error(&[control.clone(), control.clone()], false),
        CertificateError::UriCount(2)
    );
    assert_eq!(error(&[control], true), CertificateError::IsCa);
    for other in [
        "spiffe://other.example/control",
        "https://pool.example/control",
        "spiffe://pool.example/admin",
    ] {
        assert!(
            matches!(error(&[uri(other)], false), CertificateError::Identity(_)),
            "{other}"
        );
    }
    let mut trailing = certificate(&[uri("spiffe://pool.example/control")], false);
    trailing.push(0);
    assert_eq!(
        identity_of(&trailing, &domain()),
        Err(CertificateError::Malformed)
    );
}

/// An enrolling host learns its trust domain from the control plane's leaf, and from no member's.
#[test]
fn only_the_control_plane_names_the_domain() {
    let of = |text, ca| control_domain_of(&certificate(&[uri(text)], ca));
    let (found, validity) = of("spiffe://pool.example/control", false).unwrap();
    assert_eq!((found, validity.not_before), (domain(), NEW_YEAR));
    let node = Identity::Node(NodeId::from_bytes([7; 16])).to_spiffe(&domain());
    for bad in [
        node.as_str(),
        "spiffe://pool.example/control/",
        "spiffe:///control",
        "spiffe://a/b/control",
        "https://pool.example/control",
    ] {
        assert!(
            matches!(of(bad, false), Err(CertificateError::Identity(_))),
            "{bad}"
        );
    }
    assert_eq!(
        of("spiffe://pool.example/control", true),
        Err(CertificateError::IsCa)
    );
}

/// F-14: a pin is of the CA's key, whatever certificate carries it.
#[test]
fn a_pin_is_of_the_key() {
    let key = KeyPair::generate().unwrap();
    let of = |year| {
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        ca_pin_of(params.self_signed(&key).unwrap().der()).unwrap()
    };
    assert_eq!(of(2030), of(2031));
    assert_ne!(of(2030), ca_pin_of(&certificate(&[], true)).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let _ = identity_of(&bytes, &domain());
        let mut turned = certificate(&[uri("spiffe://pool.example/control")], false);
        let at = at.index(turned.len());
        turned[at] = byte;
        let _ = identity_of(&turned, &domain());
        let _ = control_domain_of(&turned);
        let _ = ca_pin_of(&turned);
    }
}

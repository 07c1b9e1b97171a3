//! Tests of the trust in the control plane's certificate.

use super::*;
use fairlead_host::SystemClock;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};

struct Chain {
    leaf: CertificateDer<'static>,
    ca: CertificateDer<'static>,
}

fn chain(uri: &str, days: (i64, i64)) -> Chain {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = std::time::SystemTime::now();
    let at = |days: i64| {
        let offset = Duration::from_secs(days.unsigned_abs() * 86_400);
        if days < 0 { now - offset } else { now + offset }
    };
    params.not_before = at(days.0).into();
    params.not_after = at(days.1).into();
    let key = KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, &ca).unwrap();
    Chain {
        leaf: leaf.der().clone(),
        ca: ca.der().clone(),
    }
}

fn check(anchor: Anchor, chain: &Chain) -> Result<Seen, ControlCertError> {
    ControlVerifier::new(anchor, Arc::new(SystemClock::new()))
        .check(&chain.leaf, std::slice::from_ref(&chain.ca))
}

const CONTROL: &str = "spiffe://pool.example/control";

/// R-ENR-01: the CA's key is pinned; nothing is trusted on first use.
#[test]
fn only_the_pinned_ca_is_taken() {
    let good = chain(CONTROL, (-1, 1));
    let pin = pin_of(&good.ca).unwrap();
    let seen = check(Anchor::Pin(pin), &good).unwrap();
    assert_eq!(seen.domain.as_str(), "pool.example");
    assert_eq!(seen.ca.as_ref(), Some(&good.ca));
    let other = chain(CONTROL, (-1, 1));
    let error = check(Anchor::Pin(pin), &other).unwrap_err();
    assert!(matches!(error, ControlCertError::Pin { .. }), "{error}");
    assert!(error.to_string().contains(&pin.to_string()), "{error}");
}

/// R-ENR-01: a chain that carries the pinned CA but does not end in it is refused.
#[test]
fn a_leaf_of_another_ca_beside_the_pinned_one_is_refused() {
    let good = chain(CONTROL, (-1, 1));
    let forged = Chain {
        leaf: chain(CONTROL, (-1, 1)).leaf,
        ca: good.ca.clone(),
    };
    let error = check(Anchor::Pin(pin_of(&good.ca).unwrap()), &forged).unwrap_err();
    assert!(matches!(error, ControlCertError::Chain(_)), "{error}");
}

/// R-ENR-01: a CA file of another pool is named, with what to compare.
#[test]
fn a_ca_that_the_file_does_not_hold_is_said_so() {
    let good = chain(CONTROL, (-1, 1));
    check(Anchor::Certificates(vec![good.ca.clone()]), &good).unwrap();
    let other = chain(CONTROL, (-1, 1));
    let error = check(Anchor::Certificates(vec![other.ca]), &good).unwrap_err();
    assert!(matches!(error, ControlCertError::Issuer { .. }), "{error}");
    let pin = pin_of(&good.ca).unwrap().to_string();
    let text = error.to_string();
    assert!(text.contains(&pin) && text.contains("--ca-file"), "{text}");
}

#[test]
fn a_member_is_not_the_control_plane() {
    let uri = "spiffe://pool.example/node/0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11";
    let member = chain(uri, (-1, 1));
    let error = check(Anchor::Certificates(vec![member.ca.clone()]), &member).unwrap_err();
    assert!(matches!(error, ControlCertError::Leaf(_)), "{error}");
}

/// R-POL-05: a clock that is far off gets one clear message.
#[test]
fn a_clock_outside_the_validity_is_said_so() {
    for days in [(1, 3), (-3, -1)] {
        let shifted = chain(CONTROL, days);
        let error = check(Anchor::Pin(pin_of(&shifted.ca).unwrap()), &shifted).unwrap_err();
        assert!(matches!(error, ControlCertError::Clock { .. }), "{error}");
        assert!(error.to_string().contains("clock differs by "), "{error}");
    }
}

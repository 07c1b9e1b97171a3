//! Envelopes: what verifies, and that nothing else does.

use super::*;
use crate::key::VerifyingKey;
use proptest::prelude::*;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

fn ring(keys: &[&SigningKey]) -> Keyring {
    Keyring::new(keys.iter().map(|k| k.verifying_key())).unwrap()
}

/// The wire form, byte by byte: a build that writes another one cannot read old state files.
#[test]
fn the_wire_form_is_fixed() {
    let envelope = seal(&key(1), PayloadType::Grant, b"abc").unwrap();
    let name = PayloadType::Grant.as_str().as_bytes();
    let mut expected = vec![1, u8::try_from(name.len()).unwrap()];
    expected.extend_from_slice(name);
    expected.extend_from_slice(&hex::decode("34750f98bd59fcfc").unwrap());
    expected.extend_from_slice(&[3, b'a', b'b', b'c']);
    assert_eq!(hex::encode(&envelope[..expected.len()]), hex::encode(&expected));
    assert_eq!(envelope.len(), expected.len() + SIGNATURE_LEN);
    // Ed25519 signs without randomness (RFC 8032 section 5.1.6). Made by OpenSSL 3 over the message
    // below with the same seed.
    assert_eq!(
        hex::encode(&envelope[expected.len()..]),
        "af8b828117be2684a5d56ded9c99ff08e0d668e8a36cc0e278ffdc1e5875e040\
         ed3890dc772344d12e5ff1220259de5d1d095d88533d4ee6a5ccdd8ce4f27908"
    );
    let message = b"DSSEv1 33 application/vnd.fairlead.grant.v1 3 abc";
    assert_eq!(pre_authentication(PayloadType::Grant.as_str(), b"abc"), message);
}

#[test]
fn a_type_never_passes_for_another() {
    let signer = key(1);
    let keys = ring(&[&signer]);
    for sealed in PayloadType::ALL {
        let envelope = seal(&signer, sealed, b"payload").unwrap();
        for asked in PayloadType::ALL {
            let verified = verify(&keys, asked, &envelope);
            assert_eq!(verified.is_ok(), sealed == asked, "{sealed:?} as {asked:?}");
        }
    }
}

/// The boundary between type and payload is signed: bytes cannot move over it.
#[test]
fn a_boundary_cannot_be_shifted() {
    assert_ne!(pre_authentication("ab", b"c"), pre_authentication("a", b"bc"));
    assert_ne!(pre_authentication("a 1 b", b""), pre_authentication("a", b"1 b"));
}

/// The key id is a hint: a wrong one costs time, and grants nothing.
#[test]
fn a_wrong_key_hint_changes_nothing() {
    let (signer, other) = (key(1), key(2));
    let mut envelope = seal(&signer, PayloadType::Grant, b"payload").unwrap().to_vec();
    let at = 2 + PayloadType::Grant.as_str().len();
    envelope[at..at + 8].copy_from_slice(&other.verifying_key().id().to_bytes());
    let verified = verify(&ring(&[&other, &signer]), PayloadType::Grant, &envelope).unwrap();
    assert_eq!(verified.signer(), signer.verifying_key().id());
    assert_eq!(
        verify(&ring(&[&other]), PayloadType::Grant, &envelope),
        Err(VerifyError::Signature {
            hint: other.verifying_key().id()
        })
    );
    assert!(matches!(
        verify(&Keyring::EMPTY, PayloadType::Grant, &envelope),
        Err(VerifyError::Signature { .. })
    ));
}

#[test]
fn bounds_are_held() {
    let signer = key(1);
    let most = vec![0; PAYLOAD_LEN_MAX];
    let envelope = seal(&signer, PayloadType::Grant, &most).unwrap();
    assert!(envelope.len() <= ENVELOPE_LEN_MAX);
    let verified = verify(&ring(&[&signer]), PayloadType::Grant, &envelope).unwrap();
    assert_eq!(verified.payload().len(), PAYLOAD_LEN_MAX);
    let error = seal(&signer, PayloadType::Grant, &vec![0; PAYLOAD_LEN_MAX + 1]).unwrap_err();
    assert!(error.to_string().contains("1048577"), "{error}");

    let keys = (0..=16).map(|n| key(n).verifying_key()).collect::<Vec<_>>();
    assert!(Keyring::new(keys[..16].iter().copied()).is_ok());
    assert!(Keyring::new(keys).is_err());
}

#[test]
fn errors_say_what_was_found() {
    let keys = ring(&[&key(1)]);
    assert!(matches!(
        verify(&keys, PayloadType::Grant, b""),
        Err(VerifyError::Malformed(_))
    ));
    assert_eq!(
        verify(&keys, PayloadType::Grant, &[9, 1, 2]),
        Err(VerifyError::Version(9))
    );
    let mut long = seal(&key(1), PayloadType::Grant, b"x").unwrap().to_vec();
    long.push(0);
    assert!(matches!(
        verify(&keys, PayloadType::Grant, &long),
        Err(VerifyError::Malformed(ReadError::Trailing(1)))
    ));
}

/// A key of small order would verify signatures that nobody made.
#[test]
fn weak_keys_are_refused() {
    let mut identity = [0; 32];
    identity[0] = 1;
    assert!(VerifyingKey::from_bytes(&identity).is_err());
    assert!(VerifyingKey::from_bytes(&[0; 31]).is_err());
}

#[test]
fn keys_round_trip_and_do_not_print_themselves() {
    let signer = key(7);
    let pem = signer.to_pkcs8_pem().unwrap();
    let again = SigningKey::from_pkcs8_pem(&pem).unwrap();
    assert_eq!(again.verifying_key(), signer.verifying_key());
    assert_eq!(
        VerifyingKey::from_hex(&signer.verifying_key().to_hex()),
        Ok(signer.verifying_key())
    );
    let printed = format!("{signer:?}");
    assert!(!printed.contains(&hex::encode([7; 32])), "{printed}");
    assert!(SigningKey::from_pkcs8_pem("no key").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_sealed_verifies(payload in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let signer = key(3);
        let envelope = seal(&signer, PayloadType::NodePolicy, &payload).unwrap();
        let verified = verify(&ring(&[&signer]), PayloadType::NodePolicy, &envelope).unwrap();
        prop_assert_eq!(verified.payload(), &payload);
        prop_assert_eq!(verified.envelope(), &envelope);
        prop_assert_eq!(verified.digest(), <[u8; 32]>::from(Sha256::digest(&payload)));
    }

    /// R-POL-01: an envelope with any bit turned, cut short or grown never verifies, save for its
    /// key hint, which says nothing.
    #[test]
    fn tampered_envelopes_never_verify(
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let signer = key(3);
        let keys = ring(&[&signer]);
        let envelope = seal(&signer, PayloadType::RelayPolicy, &payload).unwrap();
        let mut turned = envelope.to_vec();
        let at = at.index(turned.len());
        turned[at] ^= 1 << bit;
        let hint = 2 + PayloadType::RelayPolicy.as_str().len();
        let verified = verify(&keys, PayloadType::RelayPolicy, &turned);
        prop_assert_eq!(verified.is_ok(), (hint..hint + 8).contains(&at));
        let short = &envelope[..cut.index(envelope.len())];
        prop_assert!(verify(&keys, PayloadType::RelayPolicy, short).is_err());
    }

    #[test]
    fn garbage_never_panics_or_verifies(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(verify(&ring(&[&key(1)]), PayloadType::Grant, &bytes).is_err());
    }
}

//! Signed envelopes: no bytes panic, and nothing verifies that was not sealed as it is.
#![no_main]

use fairlead_trust::{Keyring, PayloadType, SigningKey, VerifyError, seal, verify};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::from_seed(&[7; 32]));
static KEYRING: LazyLock<Keyring> =
    LazyLock::new(|| Keyring::new([KEY.verifying_key()]).expect("one key fits"));
const TYPES: [PayloadType; 4] = [
    PayloadType::RelayPolicy,
    PayloadType::PolicyLease,
    PayloadType::NodePolicy,
    PayloadType::Grant,
];

fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else {
        return;
    };
    let payload_type = TYPES[usize::from(mode >> 1) % TYPES.len()];
    if mode & 1 == 0 {
        // What arrives: it verifies only if sealing its payload gives the same bytes.
        if let Ok(verified) = verify(&KEYRING, payload_type, rest) {
            let again = seal(&KEY, payload_type, verified.payload()).expect("it was sealed before");
            assert!(same_but_hint(&again, rest), "an envelope has one form");
        }
        return;
    }
    // What is sealed verifies, and one changed byte of it does not.
    let Some((change, payload)) = rest.split_first_chunk::<4>() else {
        return;
    };
    let sealed = seal(&KEY, payload_type, payload).expect("libFuzzer's inputs are short");
    let verified = verify(&KEYRING, payload_type, &sealed).expect("it was just sealed");
    assert_eq!(verified.payload(), payload);
    for other in TYPES.into_iter().filter(|t| *t != payload_type) {
        assert!(
            verify(&KEYRING, other, &sealed).is_err(),
            "one type never passes for another"
        );
    }
    let [a, b, c, flip] = *change;
    let mut damaged = sealed.to_vec();
    let at = usize::from(u16::from_be_bytes([a, b])) * 256 + usize::from(c);
    let at = at % damaged.len();
    damaged[at] ^= flip;
    let result: Result<_, VerifyError> = verify(&KEYRING, payload_type, &damaged);
    assert!(
        result.is_err() || same_but_hint(&sealed, &damaged),
        "byte {at} is not covered"
    );
});

/// Whether two envelopes differ at most in their key id, which is a hint and not signed: it stands
/// behind the version and the type with its length.
fn same_but_hint(one: &[u8], other: &[u8]) -> bool {
    let hint = 2 + usize::from(one[1]);
    let rest = |e: &[u8]| [&e[..hint], &e[hint + 8..]].concat();
    one.len() == other.len() && rest(one) == rest(other)
}

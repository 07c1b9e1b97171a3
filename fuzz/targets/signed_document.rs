//! The protobuf of signed documents: no bytes panic, and what a document says survives encoding.
#![no_main]

use fairlead_rpc::signed::{
    decode_grant, decode_node_policy, decode_policy_lease, decode_relay_policy, encode_grant,
    encode_node_policy, encode_policy_lease, encode_relay_policy,
};
use fairlead_trust::{Keyring, PayloadType, SigningKey, VerifiedPayload, seal, verify};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::from_seed(&[7; 32]));
static KEYRING: LazyLock<Keyring> =
    LazyLock::new(|| Keyring::new([KEY.verifying_key()]).expect("one key fits"));

/// Documents are parsed out of verified bytes only, so the bytes are signed first.
fn signed(payload_type: PayloadType, payload: &[u8]) -> VerifiedPayload {
    let envelope = seal(&KEY, payload_type, payload).expect("libFuzzer's inputs are short");
    verify(&KEYRING, payload_type, &envelope).expect("it was just sealed")
}

macro_rules! round_trip {
    ($payload:expr, $type:ident, $decode:ident, $encode:ident) => {
        if let Ok(document) = $decode(&signed(PayloadType::$type, $payload)) {
            let again = $decode(&signed(PayloadType::$type, &$encode(&document)));
            assert_eq!(*again.expect("what decoded encodes to a document"), *document);
        }
    };
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, payload)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => round_trip!(payload, RelayPolicy, decode_relay_policy, encode_relay_policy),
        1 => round_trip!(payload, PolicyLease, decode_policy_lease, encode_policy_lease),
        2 => round_trip!(payload, NodePolicy, decode_node_policy, encode_node_policy),
        _ => round_trip!(payload, Grant, decode_grant, encode_grant),
    }
});

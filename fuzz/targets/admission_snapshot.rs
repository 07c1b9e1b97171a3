//! A relay's stored policy: no file content panics, and none gives a policy that was not signed.
#![no_main]

use fairlead_model::{BootTime, RelayId, WallTime};
use fairlead_rpc::signed::restore_admission;
use fairlead_trust::Keyring;
use fairlead_trust::admission::{HostBoot, Now, Snapshot};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(snapshot) = Snapshot::decode(data) {
        assert_eq!(
            snapshot.encode().expect("it was decoded"),
            data,
            "one snapshot has one encoding"
        );
    }
    let now = Now {
        wall: WallTime(1_800_000_000_000),
        boot: BootTime(1_000_000),
    };
    let relay = RelayId::from_bytes([1; 16]);
    if let Ok(admission) = restore_admission(data, &Keyring::EMPTY, relay, HostBoot([2; 16]), now) {
        assert!(admission.grant_keys().is_empty(), "no key signed this policy");
    }
});

//! Certificates that peers present: no bytes panic.
#![no_main]

use fairlead_model::TrustDomain;
use fairlead_trust::certificate::{ca_pin_of, control_domain_of, identity_of, validity_of};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static DOMAIN: LazyLock<TrustDomain> = LazyLock::new(|| "pool.example".parse().expect("a trust domain"));

fuzz_target!(|data: &[u8]| {
    let identity = identity_of(data, &DOMAIN);
    assert!(identity.is_err() || validity_of(data).is_ok());
    let _ = control_domain_of(data);
    let _ = ca_pin_of(data);
});

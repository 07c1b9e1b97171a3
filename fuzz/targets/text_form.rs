//! Everything that people type: no text panics, and what parses prints as text that parses equal.
#![no_main]

use fairlead_model::{
    FailureDomain, HostPort, Identity, ListenAddress, Name, RelayId, ServiceClass, TargetAddress, TrustDomain,
};
use libfuzzer_sys::fuzz_target;
use std::fmt::{Debug, Display};
use std::str::FromStr;

fn round_trip<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Debug + Display,
{
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            assert_eq!(
                printed.parse::<T>().expect("its own text"),
                value,
                "{text:?} prints as {printed:?}"
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fuzz_target!(|text: &str| {
    round_trip::<HostPort>(text);
    round_trip::<ListenAddress>(text);
    round_trip::<TargetAddress>(text);
    round_trip::<Name>(text);
    round_trip::<FailureDomain>(text);
    round_trip::<TrustDomain>(text);
    round_trip::<ServiceClass>(text);
    round_trip::<RelayId>(text);
    if let Ok(duration) = fairlead_model::duration::parse(text) {
        let printed = fairlead_model::duration::format(duration);
        assert_eq!(fairlead_model::duration::parse(&printed), Ok(duration));
    }
    let domain: TrustDomain = "pool.example".parse().expect("a trust domain");
    if let Ok(identity) = Identity::from_spiffe(text, &domain) {
        assert_eq!(identity.to_spiffe(&domain), text, "one identity has one spelling");
    }
});

//! Settings files: no contents panic, and every fault names its place and what is allowed.
#![no_main]

use fairlead::settings::ControlSettings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|contents: &str| {
    if let Err(faults) = ControlSettings::parse(contents) {
        let text = faults.to_string();
        assert!(!text.trim().is_empty(), "a fault without a word");
        assert!(text.len() < 4096 + 64 * contents.len(), "faults without bound");
    }
});

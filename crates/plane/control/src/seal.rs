//! The sum that each stored record ends with, so that a record changed on the disk is told at load.
//!
//! It is a last field of the record's JSON, over the key and all that stands before it: a record
//! without one is of a version that wrote none, and versions that know none read past it. It tells
//! damage, not ill will: whoever can write the store can make a sum.

use fairlead_store::VALUE_LEN_MAX;
use sha2::{Digest, Sha256};

const FIELD: &[u8] = br#","sum":""#;
/// The first 64 bits of a SHA-256, hexadecimal: damage passes once in 2^64.
const SUM_LEN: usize = 16;
const END: &[u8] = br#""}"#;

/// The record with its sum, where a stored value has room for it.
pub(crate) fn seal(key: &str, record: Vec<u8>) -> Vec<u8> {
    let Some(body) = record.strip_suffix(b"}").filter(|body| body.len() > 1) else {
        return record;
    };
    let sealed = [body, FIELD, sum(key, body).as_bytes(), END].concat();
    if sealed.len() <= VALUE_LEN_MAX {
        sealed
    } else {
        record
    }
}

/// Whether the record is what was sealed under this key, or never was sealed.
pub(crate) fn is_intact(key: &str, record: &[u8]) -> bool {
    let parts = record.strip_suffix(END).and_then(|rest| {
        let (rest, found) = rest.split_at_checked(rest.len().checked_sub(SUM_LEN)?)?;
        Some((rest.strip_suffix(FIELD)?, found))
    });
    parts.is_none_or(|(body, found)| sum(key, body).as_bytes() == found)
}

fn sum(key: &str, body: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(key);
    digest.update([0]);
    digest.update(body);
    let mut sum = hex::encode(digest.finalize());
    sum.truncate(SUM_LEN);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte of a record, changed alone, is told: by the sum, by the reader, or by both.
    #[test]
    fn a_changed_byte_is_told() {
        let record = br#"{"value":"3","n":7}"#.to_vec();
        let sealed = seal("setting/x", record.clone());
        assert!(is_intact("setting/x", &sealed) && is_intact("setting/x", &record));
        assert!(!is_intact("setting/y", &sealed), "another key's record");
        let read =
            |bytes: &[u8]| serde_json::from_slice::<crate::record::SettingRecord>(bytes).map(|r| r.value);
        assert_eq!(read(&sealed).unwrap(), "3");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            let said = read(&changed);
            assert!(
                !is_intact("setting/x", &changed) || said.is_err() || said.is_ok_and(|v| v == "3"),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_record_without_room_stays_as_it_is() {
        let full = format!(r#"{{"value":"{}"}}"#, "x".repeat(VALUE_LEN_MAX - 12)).into_bytes();
        assert_eq!(seal("setting/x", full.clone()), full);
        assert_eq!(seal("k", b"{}".to_vec()), b"{}");
        assert_eq!(seal("k", b"7".to_vec()), b"7");
        assert!(is_intact("k", b"") && is_intact("k", b"\"}"));
    }
}

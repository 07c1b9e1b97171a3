//! What tells one physical host from another (R-ENR-04, reading 8).
//!
//! A host's parts are digests made there: of its machine id, of its product UUID, and of a key file
//! that the member's folder holds. Parts that a host does not have are left out.

use crate::api::Faults;
use std::collections::BTreeMap;

/// Digest of `/etc/machine-id`. Clones of an image may share it.
pub const MACHINE: &str = "machine";
/// Digest of the firmware's product UUID.
pub const PRODUCT: &str = "product";
/// Digest of the host's key file. Always there.
pub const HOST_KEY: &str = "host_key";

/// Greatest length of a part: a digest of 64 bytes, hexadecimal.
const PART_LEN_MAX: usize = 128;

/// The part by which two fingerprints are of one physical host: the host key decides; where it differs, the
/// product UUID; where that is missing, the machine id. `None` where they are of two.
pub(crate) fn same_by(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Option<&'static str> {
    let same = |part: &str| Some(one.get(part)? == other.get(part)?);
    if same(HOST_KEY) == Some(true) {
        return Some(HOST_KEY);
    }
    let decides = [PRODUCT, MACHINE]
        .into_iter()
        .find_map(|part| Some((part, same(part)?)));
    decides.filter(|(_, is_same)| *is_same).map(|(part, _)| part)
}

/// Whether two fingerprints are of one physical host.
pub(crate) fn same_host(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> bool {
    same_by(one, other).is_some()
}

/// What a part is on its host.
pub(crate) fn words(part: &str) -> &'static str {
    match part {
        HOST_KEY => "its host key (`host.key`)",
        PRODUCT => "its product UUID (/sys/class/dmi/id/product_uuid)",
        _ => "its machine id (/etc/machine-id)",
    }
}

/// Checks the parts of a request.
pub(crate) fn check(parts: &BTreeMap<String, String>, faults: &mut Faults) {
    for (part, value) in parts {
        if ![MACHINE, PRODUCT, HOST_KEY].contains(&part.as_str()) {
            let shown: String = part.chars().take(64).collect();
            faults.add(
                "host_fingerprint",
                format!("`{shown}` is unknown: allowed are {MACHINE}, {PRODUCT} and {HOST_KEY}"),
            );
        } else if value.is_empty()
            || value.len() > PART_LEN_MAX
            || !value.bytes().all(|b| b.is_ascii_hexdigit())
        {
            faults.add(
                "host_fingerprint",
                format!("`{part}` is not a digest of 1 to {PART_LEN_MAX} hexadecimal digits"),
            );
        }
    }
    if !parts.contains_key(HOST_KEY) {
        faults.add("host_fingerprint", format!("`{HOST_KEY}` is missing"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    /// R-ENR-04: one physical host, however it is seen.
    #[test]
    fn hosts() {
        let host = parts(&[(HOST_KEY, "aa"), (MACHINE, "bb"), (PRODUCT, "cc")]);
        for (other, same) in [
            (parts(&[(HOST_KEY, "aa")]), Some(HOST_KEY)),
            (
                parts(&[(HOST_KEY, "a0"), (MACHINE, "bb"), (PRODUCT, "cc")]),
                Some(PRODUCT),
            ),
            (
                parts(&[(HOST_KEY, "a0"), (MACHINE, "b0"), (PRODUCT, "cc")]),
                Some(PRODUCT),
            ),
            // A clone of the image on other hardware.
            (parts(&[(HOST_KEY, "a0"), (MACHINE, "bb"), (PRODUCT, "c0")]), None),
            (parts(&[(HOST_KEY, "a0"), (MACHINE, "bb")]), Some(MACHINE)),
            (parts(&[(HOST_KEY, "a0"), (MACHINE, "b0")]), None),
            (parts(&[(HOST_KEY, "a0")]), None),
        ] {
            assert_eq!(same_by(&host, &other), same, "{other:?}");
            assert_eq!(same_by(&other, &host), same, "{other:?}");
        }
        let mut faults = Faults::default();
        check(&parts(&[(MACHINE, "xyz"), ("serial", "1")]), &mut faults);
        let error = faults.into_result::<()>(None).unwrap_err();
        assert_eq!(error.faults.len(), 3);
    }
}

//! What tells one physical host from another (R-ENR-04).
//!
//! No part alone is enough: machine ids are cloned with images, product UUIDs are absent in
//! containers, and the key file can be copied. The control plane compares the parts.

use crate::file::{self, FileError};
use crate::{rng, secret};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use zeroize::Zeroize as _;

/// The parts that identify a host, hashed with a domain of our own, so that they cannot be joined
/// with other products' records of the same ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFingerprint {
    parts: BTreeMap<String, String>,
}

impl HostFingerprint {
    /// Part name to lowercase hex: `machine`, `product`, `host_key`; what the host does not have
    /// is absent. `host_key` is always there.
    #[must_use]
    pub const fn parts(&self) -> &BTreeMap<String, String> {
        &self.parts
    }
}

/// Bytes of the host's own key, an Ed25519 seed.
const HOST_KEY_LEN: usize = 32;
/// Ids are 32 to 36 characters.
const ID_FILE_LEN_MAX: usize = 256;

/// Reads the host's fingerprint. The host's key is made at `host_key_file` (0600) if absent.
///
/// # Errors
/// The key file cannot be read or made; the other parts are optional.
pub fn fingerprint(host_key_file: &Path) -> Result<HostFingerprint, FileError> {
    let mut parts = host_parts();
    if file::is_free(host_key_file) {
        file::remove_stale(file::folder_of(host_key_file));
        let mut key = rng::bytes::<HOST_KEY_LEN>();
        let written = secret::write(host_key_file, &key);
        key.zeroize();
        written?;
    }
    let key = secret::read(host_key_file, HOST_KEY_LEN)?;
    parts.insert("host_key".to_owned(), digest("host_key", &key));
    Ok(HostFingerprint { parts })
}

/// The fingerprint's parts that are not a key: digests under `machine` and `product`, where the host
/// has them.
#[must_use]
pub fn host_parts() -> BTreeMap<String, String> {
    let (machine, product) = host_ids();
    [("machine", machine), ("product", product)]
        .into_iter()
        .filter_map(|(name, id)| Some((name.to_owned(), digest(name, id?.as_bytes()))))
        .collect()
}

/// The host's name, as its kernel has it.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Machine id and product UUID.
fn host_ids() -> (Option<String>, Option<String>) {
    // One test machine plays several hosts; its product UUID would give it away.
    #[cfg(feature = "test-clock")]
    if let Ok(id) = std::env::var("FAIRLEAD_TEST_MACHINE_ID") {
        return (Some(id), None);
    }
    (
        id_file("/etc/machine-id"),
        id_file("/sys/class/dmi/id/product_uuid"),
    )
}

fn id_file(path: &str) -> Option<String> {
    let text = file::read_text(Path::new(path), ID_FILE_LEN_MAX).ok()?;
    let id = text.trim();
    // "uninitialized" stands in images before their first boot.
    (!id.is_empty() && id != "uninitialized").then(|| id.to_ascii_lowercase())
}

fn digest(part: &str, id: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"fairlead host fingerprint v1\0");
    hash.update(part.as_bytes());
    hash.update([0]);
    hash.update(id);
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-ENR-04: the same host gives the same fingerprint, another key another one.
    #[test]
    fn stable_per_host_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let first = fingerprint(&a).unwrap();
        assert_eq!(fingerprint(&a).unwrap(), first);
        assert_ne!(
            fingerprint(&b).unwrap().parts().get("host_key"),
            first.parts().get("host_key")
        );
        assert!(first.parts().values().all(|hex| hex.len() == 64));
        assert_ne!(digest("machine", b"x"), digest("product", b"x"));
    }
}

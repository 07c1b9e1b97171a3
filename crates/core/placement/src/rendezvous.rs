//! Rendezvous hashing (highest random weight): each relay has a weight per subject, and the
//! heaviest win. A relay that leaves moves only what it held.

use crate::RelayCandidate;
use fairlead_model::RelayId;
use sha2::{Digest, Sha256};

/// Keeps these weights apart from any other use of SHA-256 over two ids. Changing it moves every
/// endpoint of every pool.
const DOMAIN: &[u8] = b"fairlead placement 1\0";

/// The weight of `relay` for a subject (an endpoint's or node's id): the first 8 bytes of
/// SHA-256(domain ‖ subject ‖ relay), big-endian. The hash is a contract: it has test vectors.
#[must_use]
pub fn weight(subject: [u8; 16], relay: RelayId) -> u64 {
    let digest = Sha256::new()
        .chain_update(DOMAIN)
        .chain_update(subject)
        .chain_update(relay.to_bytes())
        .finalize();
    digest.iter().take(8).fold(0, |w, byte| w << 8 | u64::from(*byte))
}

/// Heaviest first; equal weights by id.
pub(crate) fn order<'a>(
    subject: [u8; 16],
    candidates: impl Iterator<Item = &'a RelayCandidate>,
) -> Vec<&'a RelayCandidate> {
    let mut ordered: Vec<(u64, &RelayCandidate)> = candidates.map(|c| (weight(subject, c.id), c)).collect();
    ordered.sort_by(|(wa, a), (wb, b)| wb.cmp(wa).then(a.id.cmp(&b.id)));
    ordered.into_iter().map(|(_, c)| c).collect()
}

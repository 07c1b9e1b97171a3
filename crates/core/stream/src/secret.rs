//! From the association's pair secret to the keys of each leg and direction.
//!
//! ```text
//! stream secret  = HKDF-Expand-Label(HKDF-Extract(0, pair secret), "stream", number ‖ route, 32)
//! traffic secret = HKDF-Expand-Label(stream secret, "dialler" | "acceptor", epoch ‖ relay ‖ salt, 32)
//! key, iv        = HKDF-Expand-Label(traffic secret, "key" | "iv", "", 16 | 12)
//! next secret    = HKDF-Expand-Label(traffic secret, "rekey", "", 32)
//! ```
//! HKDF is RFC 5869 with SHA-256; HKDF-Expand-Label is RFC 8446 section 7.1 with the prefix
//! `fairlead ` where TLS has `tls13 `. Integers are big-endian, 8 bytes; ids are 16 bytes.

use crate::SALT_BYTES;
use aws_lc_rs::aead::{AES_128_GCM, LessSafeKey, NONCE_LEN, UnboundKey};
use aws_lc_rs::hkdf;
use fairlead_model::{LegEpoch, RelayId, RouteId, StreamNumber};
use zeroize::Zeroizing;

/// Bytes of every secret: the output of SHA-256.
pub(crate) const SECRET_BYTES: usize = 32;
const KEY_BYTES: usize = 16;
const LABEL_PREFIX: &[u8] = b"fairlead ";

/// Who sent a record. Each direction of a leg has its own key, bound to its sender's salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the daemon that opened the stream.
    FromDialler,
    /// From the daemon that publishes the endpoint.
    FromAcceptor,
}

impl Direction {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::FromDialler => b"dialler",
            Self::FromAcceptor => b"acceptor",
        }
    }

    /// The other direction.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::FromDialler => Self::FromAcceptor,
            Self::FromAcceptor => Self::FromDialler,
        }
    }
}

/// The secret of one stream; the keys of all its legs come from it. Wiped when dropped.
#[derive(Clone)]
pub struct StreamSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl StreamSecret {
    /// The secret of stream `number` on `route`, in the association whose TLS exporter gave
    /// `pair_secret`.
    #[must_use]
    pub fn derive(pair_secret: &[u8; 32], number: StreamNumber, route: RouteId) -> Self {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, &[0; SECRET_BYTES]).extract(pair_secret);
        let mut context = [0; 24];
        let (head, tail) = context.split_at_mut(8);
        head.copy_from_slice(&number.0.to_be_bytes());
        tail.copy_from_slice(&route.to_bytes());
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        expand_label(&prk, b"stream", &context, secret.as_mut_slice());
        Self(secret)
    }

    /// The first traffic secret of one direction of one leg.
    pub(crate) fn traffic(
        &self,
        direction: Direction,
        epoch: LegEpoch,
        relay: RelayId,
        salt: &[u8; SALT_BYTES],
    ) -> TrafficSecret {
        let mut context = [0; 8 + 16 + SALT_BYTES];
        let (head, tail) = context.split_at_mut(8);
        let (middle, end) = tail.split_at_mut(16);
        head.copy_from_slice(&epoch.0.to_be_bytes());
        middle.copy_from_slice(&relay.to_bytes());
        end.copy_from_slice(salt);
        TrafficSecret::expand(&self.0, direction.label(), &context)
    }
}

impl std::fmt::Debug for StreamSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamSecret(…)")
    }
}

/// The secret behind one key of one direction of one leg.
pub(crate) struct TrafficSecret(Zeroizing<[u8; SECRET_BYTES]>);

/// What the record layer needs of a traffic secret.
pub(crate) struct TrafficKey {
    pub(crate) key: LessSafeKey,
    pub(crate) iv: [u8; NONCE_LEN],
}

impl TrafficSecret {
    #[cfg(test)]
    pub(crate) fn clone_for_tests(&self) -> Self {
        Self(self.0.clone())
    }

    fn expand(secret: &[u8; SECRET_BYTES], label: &[u8], context: &[u8]) -> Self {
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
        let mut next = Zeroizing::new([0; SECRET_BYTES]);
        expand_label(&prk, label, context, next.as_mut_slice());
        Self(next)
    }

    /// The secret of the next key (rekeying); this one cannot be had back from it.
    pub(crate) fn next(&self) -> Self {
        Self::expand(&self.0, b"rekey", &[])
    }

    #[allow(
        clippy::expect_used,
        reason = "fails only for a key of another length than the cipher's"
    )]
    pub(crate) fn key(&self) -> TrafficKey {
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, self.0.as_slice());
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let mut iv = [0; NONCE_LEN];
        expand_label(&prk, b"key", &[], key.as_mut_slice());
        expand_label(&prk, b"iv", &[], &mut iv);
        let key = UnboundKey::new(&AES_128_GCM, key.as_slice()).expect("the key has the cipher's length");
        TrafficKey {
            key: LessSafeKey::new(key),
            iv,
        }
    }
}

struct OutputLength(usize);

impl hkdf::KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label. `label` and `context` are constants and fixed-size ids of ours: their lengths
/// fit one byte, and the output is at most [`SECRET_BYTES`].
#[allow(
    clippy::expect_used,
    reason = "HKDF fails only for outputs above 255 * 32 bytes"
)]
fn expand_label(prk: &hkdf::Prk, label: &[u8], context: &[u8], out: &mut [u8]) {
    debug_assert!(out.len() <= SECRET_BYTES && context.len() < 256);
    let length = (out.len() as u16).to_be_bytes();
    let label_length = [(LABEL_PREFIX.len() + label.len()) as u8];
    let context_length = [context.len() as u8];
    let info = [
        &length[..],
        &label_length,
        LABEL_PREFIX,
        label,
        &context_length,
        context,
    ];
    prk.expand(&info, OutputLength(out.len()))
        .and_then(|okm| okm.fill(out))
        .expect("the output is short enough");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic() -> TrafficSecret {
        let pair: [u8; 32] = std::array::from_fn(|i| i as u8);
        let secret = StreamSecret::derive(&pair, StreamNumber(7), RouteId::from_bytes([0xaa; 16]));
        secret.traffic(
            Direction::FromDialler,
            LegEpoch(1),
            RelayId::from_bytes([0xbb; 16]),
            &[0xcc; 16],
        )
    }

    #[test]
    fn every_input_changes_the_keys() {
        let pair = [1; 32];
        let base = (StreamNumber(1), RouteId::from_bytes([1; 16]));
        let legs = |secret: StreamSecret| {
            let mut all = Vec::new();
            for direction in [Direction::FromDialler, Direction::FromAcceptor] {
                for epoch in [1, 2] {
                    for relay in [1, 2] {
                        for salt in [1, 2] {
                            let relay = RelayId::from_bytes([relay; 16]);
                            all.push(*secret.traffic(direction, LegEpoch(epoch), relay, &[salt; 16]).0);
                        }
                    }
                }
            }
            all
        };
        let mut all = legs(StreamSecret::derive(&pair, base.0, base.1));
        all.extend(legs(StreamSecret::derive(&[2; 32], base.0, base.1)));
        all.extend(legs(StreamSecret::derive(&pair, StreamNumber(2), base.1)));
        all.extend(legs(StreamSecret::derive(
            &pair,
            base.0,
            RouteId::from_bytes([2; 16]),
        )));
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn nothing_secret_prints() {
        let secret = StreamSecret::derive(&[0x42; 32], StreamNumber(0), RouteId::from_bytes([0; 16]));
        assert_eq!(format!("{secret:?}"), "StreamSecret(…)");
    }

    /// Vectors made by an independent implementation (Python, `hmac` and `hashlib`) of the module's
    /// formulas.
    #[test]
    fn secrets_match_the_vectors() {
        let first = traffic();
        assert_eq!(*first.0, VECTOR_TRAFFIC);
        assert_eq!(first.key().iv, VECTOR_IV);
        assert_eq!(*first.next().0, VECTOR_NEXT);
    }

    const VECTOR_TRAFFIC: [u8; 32] = [
        0xd2, 0x94, 0x37, 0xa3, 0xc7, 0x2f, 0x5d, 0x71, 0x3d, 0xfe, 0xa2, 0xc4, 0xb1, 0xaa, 0xc5, 0x62, 0x1e,
        0x8d, 0xd1, 0xe7, 0xa3, 0xdb, 0x4b, 0x22, 0x79, 0x9d, 0x8f, 0xc4, 0x14, 0x20, 0x27, 0x77,
    ];
    const VECTOR_IV: [u8; 12] = [
        0xde, 0x2e, 0x71, 0x63, 0x09, 0x8c, 0xf1, 0xbf, 0x67, 0x99, 0xe9, 0xfa,
    ];
    const VECTOR_NEXT: [u8; 32] = [
        0xa1, 0x0a, 0xd5, 0xa0, 0xb9, 0x48, 0x21, 0xd5, 0xac, 0xd7, 0x77, 0xc2, 0x88, 0xa1, 0x51, 0x93, 0x89,
        0x9c, 0x6d, 0x85, 0xf1, 0xae, 0x1e, 0xaa, 0xa4, 0x68, 0x55, 0x0d, 0x4c, 0x09, 0xdf, 0xd6,
    ];
}

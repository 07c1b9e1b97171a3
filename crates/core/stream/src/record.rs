//! Sealed records: TLS 1.3's record rules (RFC 8446 section 5), per direction of a leg.
//!
//! A record is `23 0x03 0x03 length` and AES-128-GCM ciphertext with its tag; the header is the
//! additional data and the nonce is the IV xor the record's number under its key. Numbers are never
//! sent: a gap, a replay or a reordering is a bad tag. After 2^20 records both ends go to the next
//! key by themselves.

use crate::secret::{TrafficKey, TrafficSecret};
use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use bytes::BytesMut;

/// Bytes of a record before its ciphertext.
pub const HEADER_BYTES: usize = 5;
/// Bytes of the authentication tag behind the ciphertext.
pub const TAG_BYTES: usize = 16;
/// Most plaintext of a record (RFC 8446 section 5.1), so that a fast leg looks like TLS.
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// Most bytes of a whole record.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + TAG_BYTES;
/// Bytes that sealing adds to a plaintext.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// Records under one key. RFC 8446 section 5.5 allows 2^24.5 full ones for AES-GCM; this stays
/// far below and still costs nothing.
pub const RECORDS_PER_KEY: u64 = 1 << 20;

const CONTENT_TYPE: u8 = 23;
const VERSION: [u8; 2] = [3, 3];

/// Why a record cannot be opened. The leg that carried it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not a record's first three bytes.
    #[error("the bytes are no sealed record")]
    Header,
    /// No plaintext at all, or more than a record may hold.
    #[error("a record of {0} bytes behind its header")]
    Length(usize),
    /// Forged, replayed, reordered or damaged, or the first after a gap.
    #[error("the record's tag is wrong")]
    BadTag,
}

/// The length of the whole record whose header this is.
///
/// # Errors
/// The header is no sealed record's, or its length is out of range.
pub fn record_length(header: &[u8; HEADER_BYTES]) -> Result<usize, RecordError> {
    let [content_type, major, minor, high, low] = *header;
    if content_type != CONTENT_TYPE || [major, minor] != VERSION {
        return Err(RecordError::Header);
    }
    let body = usize::from(u16::from_be_bytes([high, low]));
    if body <= TAG_BYTES || body > PLAINTEXT_BYTES_MAX + TAG_BYTES {
        return Err(RecordError::Length(body));
    }
    Ok(HEADER_BYTES + body)
}

/// One direction's key with the number of the next record under it.
struct Sequence {
    secret: TrafficSecret,
    key: TrafficKey,
    next: u64,
}

impl Sequence {
    fn new(secret: TrafficSecret) -> Self {
        let key = secret.key();
        Self { secret, key, next: 0 }
    }

    /// The next record's nonce; goes to the next key when this one's records are used up.
    fn advance(&mut self) -> Nonce {
        if self.next == RECORDS_PER_KEY {
            *self = Self::new(self.secret.next());
        }
        let mut nonce: [u8; NONCE_LEN] = self.key.iv;
        for (byte, count) in nonce.iter_mut().rev().zip(self.next.to_le_bytes()) {
            *byte ^= count;
        }
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals the records of one direction of a leg, in order.
pub struct Sealer(Sequence);

impl Sealer {
    pub(crate) fn new(secret: TrafficSecret) -> Self {
        Self(Sequence::new(secret))
    }

    /// Seals `out[start..]` in place: [`HEADER_BYTES`] of any content, then the plaintext. Appends
    /// the tag. Returns whether there was a plaintext of 1 to [`PLAINTEXT_BYTES_MAX`] bytes; if not,
    /// nothing is sealed and the bytes must not be sent.
    #[must_use]
    pub fn seal(&mut self, out: &mut BytesMut, start: usize) -> bool {
        let Some(record) = out.get_mut(start..) else {
            return false;
        };
        let Some((header, plain)) = record.split_first_chunk_mut::<HEADER_BYTES>() else {
            return false;
        };
        if plain.is_empty() || plain.len() > PLAINTEXT_BYTES_MAX {
            return false;
        }
        let [major, minor] = VERSION;
        let [high, low] = ((plain.len() + TAG_BYTES) as u16).to_be_bytes();
        *header = [CONTENT_TYPE, major, minor, high, low];
        let nonce = self.0.advance();
        match self
            .0
            .key
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(*header), plain)
        {
            Ok(tag) => {
                out.extend_from_slice(tag.as_ref());
                true
            }
            Err(_) => false,
        }
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer")
            .field("next", &self.0.next)
            .finish_non_exhaustive()
    }
}

/// Opens the records of one direction of a leg, in order. After an error the leg is over: the
/// number of the failed record is used up.
pub struct Opener(Sequence);

impl Opener {
    pub(crate) fn new(secret: TrafficSecret) -> Self {
        Self(Sequence::new(secret))
    }

    /// Opens one whole record in place; the plaintext then stands behind its header.
    ///
    /// # Errors
    /// The bytes are not exactly one record, or it is not the next one of this direction.
    pub fn open_in_place<'r>(&mut self, record: &'r mut [u8]) -> Result<&'r mut [u8], RecordError> {
        let (header, body) = Self::parts(record)?;
        let header = *header;
        let length = body.len();
        let nonce = self.0.advance();
        let body = record
            .get_mut(HEADER_BYTES..)
            .ok_or(RecordError::Length(length))?;
        self.0
            .key
            .key
            .open_in_place(nonce, Aad::from(header), body)
            .map_err(|_| RecordError::BadTag)
    }

    /// Opens one whole record into a buffer of its own.
    ///
    /// # Errors
    /// As [`open_in_place`](Self::open_in_place).
    pub fn open(&mut self, record: &[u8]) -> Result<Vec<u8>, RecordError> {
        let (header, body) = Self::parts(record)?;
        let (cipher, tag) = body
            .split_last_chunk::<TAG_BYTES>()
            .ok_or(RecordError::Length(body.len()))?;
        let mut plain = vec![0; cipher.len()];
        let nonce = self.0.advance();
        match self
            .0
            .key
            .key
            .open_separate_gather(nonce, Aad::from(*header), cipher, tag, &mut plain)
        {
            Ok(()) => Ok(plain),
            Err(_) => Err(RecordError::BadTag),
        }
    }

    fn parts(record: &[u8]) -> Result<(&[u8; HEADER_BYTES], &[u8]), RecordError> {
        let (header, body) = record.split_first_chunk().ok_or(RecordError::Header)?;
        if record_length(header)? != record.len() {
            return Err(RecordError::Length(body.len()));
        }
        Ok((header, body))
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener")
            .field("next", &self.0.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, StreamSecret};
    use fairlead_model::{LegEpoch, RelayId, RouteId, StreamNumber};
    use proptest::prelude::*;

    fn pair() -> (Sealer, Opener) {
        let secret: [u8; 32] = std::array::from_fn(|i| i as u8);
        let secret = StreamSecret::derive(&secret, StreamNumber(7), RouteId::from_bytes([0xaa; 16]));
        let leg = || {
            let relay = RelayId::from_bytes([0xbb; 16]);
            secret.traffic(Direction::FromDialler, LegEpoch(1), relay, &[0xcc; 16])
        };
        (Sealer::new(leg()), Opener::new(leg()))
    }

    fn seal(sealer: &mut Sealer, plain: &[u8]) -> BytesMut {
        let mut out = BytesMut::from(&[0; HEADER_BYTES][..]);
        out.extend_from_slice(plain);
        assert!(sealer.seal(&mut out, 0));
        out
    }

    /// Vectors made with Python's `cryptography` from the keys of the vectors in `secret`: two
    /// records of PING{5}.
    #[test]
    fn records_match_the_vectors() {
        let (mut sealer, mut opener) = pair();
        let plain = [0x0b, 0, 0, 0, 0, 0, 0, 0, 5];
        for vector in [
            "17030300191e516516d994b55303baa804071a2476c27595103cbdc8bde8",
            "1703030019a55cc94f92661f78a33bc0bb9633208b3b64dc04315578c631",
        ] {
            let record = seal(&mut sealer, &plain);
            let hex: String = record.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(hex, vector);
            assert_eq!(opener.open(&record).unwrap(), plain);
        }
    }

    /// Both ends change the key after 2^20 records, and not before.
    #[test]
    fn the_key_changes_after_its_last_record() {
        let (mut sealer, mut opener) = pair();
        for number in 0..RECORDS_PER_KEY + 3 {
            let before = sealer.0.key.iv;
            let mut record = seal(&mut sealer, &[7]);
            assert_eq!(sealer.0.key.iv != before, number == RECORDS_PER_KEY);
            assert_eq!(opener.open_in_place(&mut record).unwrap(), [7]);
        }
    }

    #[test]
    fn replay_gap_and_reordering_are_bad_tags() {
        let (mut sealer, opener) = pair();
        let records = [
            seal(&mut sealer, &[1]),
            seal(&mut sealer, &[2]),
            seal(&mut sealer, &[3]),
        ];
        for order in [[0, 0], [0, 2], [1, 0]] {
            let mut opener = Opener(Sequence::new(opener.0.secret.clone_for_tests()));
            let results = order.map(|i| opener.open(&records[i]));
            assert!(results.contains(&Err(RecordError::BadTag)), "{order:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_both_ways(plain in prop::collection::vec(any::<u8>(), 1..2000)) {
            let (mut sealer, mut opener) = pair();
            let record = seal(&mut sealer, &plain);
            let mut second = seal(&mut sealer, &plain);
            prop_assert_ne!(&record, &second);
            prop_assert_eq!(&opener.open(&record).unwrap(), &plain);
            prop_assert_eq!(&opener.open_in_place(&mut second).unwrap()[..], &plain[..]);
        }

        #[test]
        fn any_changed_byte_is_noticed(plain in prop::collection::vec(any::<u8>(), 1..100), at: prop::sample::Index, flip in 1u8..) {
            let (mut sealer, mut opener) = pair();
            let mut record = seal(&mut sealer, &plain);
            let at = at.index(record.len());
            record[at] ^= flip;
            prop_assert!(opener.open(&record).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let (_, mut opener) = pair();
            prop_assert!(opener.open(&bytes).is_err());
        }
    }

    #[test]
    fn lengths_at_their_bounds() {
        let (mut sealer, mut opener) = pair();
        let full = seal(&mut sealer, &vec![9; PLAINTEXT_BYTES_MAX]);
        assert_eq!(full.len(), RECORD_BYTES_MAX);
        assert_eq!(opener.open(&full).unwrap().len(), PLAINTEXT_BYTES_MAX);
        let mut out = BytesMut::zeroed(HEADER_BYTES);
        assert!(!sealer.seal(&mut out, 0));
        let mut out = BytesMut::zeroed(HEADER_BYTES + PLAINTEXT_BYTES_MAX + 1);
        assert!(!sealer.seal(&mut out, 0));
        assert_eq!(record_length(&[23, 3, 3, 0, 16]), Err(RecordError::Length(16)));
        assert_eq!(
            record_length(&[23, 3, 3, 0x40, 17]),
            Err(RecordError::Length(0x4011))
        );
        assert_eq!(record_length(&[23, 3, 1, 0, 20]), Err(RecordError::Header));
        assert_eq!(record_length(&[23, 3, 3, 0x40, 16]), Ok(RECORD_BYTES_MAX));
    }
}

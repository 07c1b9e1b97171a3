//! Values larger than [`VALUE_LEN_MAX`](crate::VALUE_LEN_MAX), as a head and chunks that change
//! together in one commit.
//!
//! The head at the key itself has length and SHA-256 of the whole; chunk `n` is at the key,
//! U+0001 and four digits. A reader that meets a commit between head and chunks sees it by the
//! checksum and reads again.

use crate::api::{KEY_LEN_MAX, Op, ReadError, Store, StoreRevision, VALUE_LEN_MAX};
use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};

/// Greatest length of a chunked value: a policy of a few hundred endpoints is below it by far,
/// and its chunks fit one commit.
pub const CHUNKED_LEN_MAX: usize = 1 << 20;
/// Reads of one value before a reader gives up; each is spoilt only by a commit of that value.
const READS_MAX: usize = 8;
/// Separator and four digits.
const SUFFIX_LEN: usize = 5;
/// Magic, length and checksum.
const HEAD_LEN: usize = 4 + 8 + 32;
/// Tells a head from other values.
const MAGIC: [u8; 4] = *b"chk1";

const _: () = assert!(CHUNKED_LEN_MAX.div_ceil(VALUE_LEN_MAX) * 2 + 16 <= crate::OPS_MAX);
const _: () = assert!(CHUNKED_LEN_MAX.div_ceil(VALUE_LEN_MAX) <= 10_000);

/// The head of a stored chunked value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkHead {
    /// The commit that wrote it.
    pub revision: StoreRevision,
    /// Bytes of the whole value.
    pub len: usize,
    digest: [u8; 32],
}

/// Why a chunked value could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// Misuse: it is too large.
    #[error("the value of `{key}` has {len} bytes, at most {CHUNKED_LEN_MAX} are allowed")]
    TooLarge {
        /// Its key.
        key: String,
        /// Its bytes.
        len: usize,
    },
    /// Misuse: no room for the chunks' suffix.
    #[error("the key `{0}` is too long for a chunked value")]
    KeyTooLong(String),
    /// What is stored is not a chunked value, or its parts do not belong together.
    #[error("the chunked value of `{0}` is damaged")]
    Damaged(String),
    /// The store failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The changes that set `key` to `value`, in place of the one of `previous` if there is one.
/// Apply them with `Unchanged` of the head's revision, or `Absent`.
///
/// # Errors
/// Key or value are too long.
pub fn put(key: &str, value: &[u8], previous: Option<&ChunkHead>) -> Result<Vec<Op>, ChunkError> {
    if value.len() > CHUNKED_LEN_MAX {
        return Err(ChunkError::TooLarge {
            key: key.to_owned(),
            len: value.len(),
        });
    }
    if key.len() + SUFFIX_LEN > KEY_LEN_MAX {
        return Err(ChunkError::KeyTooLong(key.chars().take(64).collect()));
    }
    let mut head = BytesMut::with_capacity(HEAD_LEN);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&(value.len() as u64).to_be_bytes());
    head.extend_from_slice(&Sha256::digest(value));
    let mut ops = vec![Op::put(key, head.freeze())];
    ops.extend(
        value
            .chunks(VALUE_LEN_MAX)
            .enumerate()
            .map(|(n, chunk)| Op::put(chunk_key(key, n), Bytes::copy_from_slice(chunk))),
    );
    let kept = chunk_count(value.len());
    let before = previous.map_or(0, |head| chunk_count(head.len));
    ops.extend((kept..before).map(|n| Op::delete(chunk_key(key, n))));
    Ok(ops)
}

/// The changes that remove the value of `head`.
#[must_use]
pub fn delete(key: &str, head: &ChunkHead) -> Vec<Op> {
    let mut ops = vec![Op::delete(key)];
    ops.extend((0..chunk_count(head.len)).map(|n| Op::delete(chunk_key(key, n))));
    ops
}

/// Reads the head of a chunked value, if there is one.
///
/// # Errors
/// The store failed, or what is there is not a chunked value.
pub async fn head(store: &dyn Store, key: &str) -> Result<Option<ChunkHead>, ChunkError> {
    let Some(entry) = store.get(key).await? else {
        return Ok(None);
    };
    parse_head(&entry.value, entry.revision)
        .map(Some)
        .ok_or_else(|| ChunkError::Damaged(key.to_owned()))
}

/// Reads a chunked value, with the revision of its head.
///
/// # Errors
/// The store failed, or the parts do not belong together.
pub async fn read(store: &dyn Store, key: &str) -> Result<Option<(Bytes, StoreRevision)>, ChunkError> {
    for _ in 0..READS_MAX {
        let Some(head) = head(store, key).await? else {
            return Ok(None);
        };
        let mut value = BytesMut::with_capacity(head.len);
        for n in 0..chunk_count(head.len) {
            match store.get(&chunk_key(key, n)).await? {
                Some(entry) => value.extend_from_slice(&entry.value),
                None => break,
            }
        }
        if value.len() == head.len && Sha256::digest(&value).as_slice() == head.digest {
            return Ok(Some((value.freeze(), head.revision)));
        }
    }
    Err(ChunkError::Damaged(key.to_owned()))
}

fn parse_head(bytes: &[u8], revision: StoreRevision) -> Option<ChunkHead> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (len, digest) = rest.split_first_chunk::<8>()?;
    let len = usize::try_from(u64::from_be_bytes(*len)).ok()?;
    (*magic == MAGIC && len <= CHUNKED_LEN_MAX).then_some(())?;
    Some(ChunkHead {
        revision,
        len,
        digest: digest.try_into().ok()?,
    })
}

const fn chunk_count(len: usize) -> usize {
    len.div_ceil(VALUE_LEN_MAX)
}

fn chunk_key(key: &str, n: usize) -> String {
    format!("{key}\u{1}{n:04}")
}

//! The signed envelope, in the manner of DSSE: one signature over payload type and payload.
//!
//! ```text
//! u8 version = 1 | text type (≤ 64) | 8 bytes key id | bytes payload (≤ 1 MiB) | 64 bytes Ed25519
//! ```
//! Text and bytes carry a minimal varint length. The signature covers the pre-authentication
//! encoding `"DSSEv1" SP len(type) SP type SP len(payload) SP payload`, lengths in decimal (DSSE
//! protocol section "Signature definition"), so that neither type nor boundary can be shifted.

use crate::key::{KeyId, Keyring, SIGNATURE_LEN, SigningKey};
use bytes::Bytes;
use fairlead_codec::{ReadError, Reader, Writer};
use sha2::{Digest, Sha256};
use std::ops::Deref;

/// What a payload is. The signature covers it: a grant never passes for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadType {
    /// A relay's policy.
    RelayPolicy,
    /// A relay's policy lease.
    PolicyLease,
    /// A node's policy.
    NodePolicy,
    /// A consumer's grant.
    Grant,
}

/// A document that has its own payload type.
pub trait Document {
    /// The payload type that its envelopes must have.
    const PAYLOAD_TYPE: PayloadType;
}

/// Bytes whose signature has been verified. Only [`verify`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPayload {
    payload_type: PayloadType,
    signer: KeyId,
    envelope: Bytes,
    payload: Bytes,
    digest: [u8; 32],
}

/// A document parsed out of a verified payload, with the envelope that proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T> {
    document: T,
    source: VerifiedPayload,
}

/// Why nothing was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a payload of {length} bytes does not fit into a signed envelope of {PAYLOAD_LEN_MAX}")]
pub struct SealError {
    length: usize,
}

/// Why an envelope is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The bytes are no envelope.
    #[error("not a signed envelope")]
    Malformed(#[source] ReadError),
    /// A version that this build does not know.
    #[error("a signed envelope of version {0}, which this build does not know")]
    Version(u8),
    /// Another kind of document than was asked for.
    #[error("a signed `{found}` where a `{expected}` is due")]
    PayloadType {
        /// The type as written, at most [`TYPE_LEN_MAX`] bytes.
        found: String,
        /// The type that was asked for.
        expected: &'static str,
    },
    /// No key of the ring made the signature.
    #[error("no trusted key made its signature (it names key {hint})")]
    Signature {
        /// The key the envelope says it was signed with.
        hint: KeyId,
    },
}

/// Greatest payload: a policy of some thousand endpoints and routes (about 100 bytes each), far
/// above the few hundred that a relay carries, and below gRPC's 4 MiB message limit.
pub const PAYLOAD_LEN_MAX: usize = 1024 * 1024;
/// Greatest length of a payload type in bytes.
pub const TYPE_LEN_MAX: usize = 64;
/// Greatest envelope: version, type with its length, key id, payload with its length, signature.
pub const ENVELOPE_LEN_MAX: usize = 1 + 1 + TYPE_LEN_MAX + 8 + 3 + PAYLOAD_LEN_MAX + SIGNATURE_LEN;
const VERSION: u8 = 1;

const _: () = assert!(TYPE_LEN_MAX < 128, "a type's length takes one varint byte");
const _: () = assert!(
    PAYLOAD_LEN_MAX < 1 << 21,
    "a payload's length takes at most three varint bytes"
);

impl PayloadType {
    /// Every type.
    pub const ALL: [Self; 4] = [
        Self::RelayPolicy,
        Self::PolicyLease,
        Self::NodePolicy,
        Self::Grant,
    ];

    /// The type as the signature covers it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RelayPolicy => "application/vnd.fairlead.relay-policy.v1",
            Self::PolicyLease => "application/vnd.fairlead.policy-lease.v1",
            Self::NodePolicy => "application/vnd.fairlead.node-policy.v1",
            Self::Grant => "application/vnd.fairlead.grant.v1",
        }
    }
}

/// Signs `payload` as a document of `payload_type`: the whole envelope.
///
/// # Errors
/// The payload is longer than [`PAYLOAD_LEN_MAX`].
pub fn seal(key: &SigningKey, payload_type: PayloadType, payload: &[u8]) -> Result<Bytes, SealError> {
    let too_long = SealError {
        length: payload.len(),
    };
    if payload.len() > PAYLOAD_LEN_MAX {
        return Err(too_long);
    }
    let signature = key.sign(&pre_authentication(payload_type.as_str(), payload));
    let mut out = Vec::with_capacity(payload.len() + 256);
    let mut writer = Writer::new(&mut out, ENVELOPE_LEN_MAX);
    writer
        .u8(VERSION)
        .and_then(|()| writer.text(payload_type.as_str(), TYPE_LEN_MAX))
        .and_then(|()| writer.raw(&key.verifying_key().id().to_bytes()))
        .and_then(|()| writer.bytes(payload, PAYLOAD_LEN_MAX))
        .and_then(|()| writer.raw(&signature))
        .map_err(|_| too_long)?;
    Ok(Bytes::from(out))
}

/// Checks that a key of `keyring` signed these bytes as a document of `payload_type`. Costs one
/// signature check with a true key hint, at most one per key of the ring otherwise.
///
/// # Errors
/// The bytes are no envelope, of another type, or signed by none of the keys.
pub fn verify(
    keyring: &Keyring,
    payload_type: PayloadType,
    envelope: &[u8],
) -> Result<VerifiedPayload, VerifyError> {
    let mut reader = Reader::new(envelope);
    let version = reader.u8().map_err(VerifyError::Malformed)?;
    if version != VERSION {
        return Err(VerifyError::Version(version));
    }
    let parts = read_parts(reader).map_err(VerifyError::Malformed)?;
    let expected = payload_type.as_str();
    if parts.payload_type != expected {
        return Err(VerifyError::PayloadType {
            found: parts.payload_type.to_owned(),
            expected,
        });
    }
    let message = pre_authentication(expected, parts.payload);
    let signer = keyring
        .signer(parts.hint, &message, &parts.signature)
        .ok_or(VerifyError::Signature { hint: parts.hint })?;
    let payload = Bytes::copy_from_slice(parts.payload);
    Ok(VerifiedPayload {
        payload_type,
        signer,
        digest: Sha256::digest(&payload).into(),
        envelope: Bytes::copy_from_slice(envelope),
        payload,
    })
}

struct Parts<'a> {
    payload_type: &'a str,
    hint: KeyId,
    payload: &'a [u8],
    signature: [u8; SIGNATURE_LEN],
}

fn read_parts(mut reader: Reader<'_>) -> Result<Parts<'_>, ReadError> {
    let parts = Parts {
        payload_type: reader.text(TYPE_LEN_MAX)?,
        hint: KeyId::from_bytes(reader.array()?),
        payload: reader.bytes(PAYLOAD_LEN_MAX)?,
        signature: reader.array()?,
    };
    reader.finish()?;
    Ok(parts)
}

fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    out.extend_from_slice(payload);
    out
}

impl VerifiedPayload {
    /// What the payload is.
    #[must_use]
    pub const fn payload_type(&self) -> PayloadType {
        self.payload_type
    }

    /// The verified bytes: the only ones to parse.
    #[must_use]
    pub const fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The whole envelope, to be kept or passed on.
    #[must_use]
    pub const fn envelope(&self) -> &Bytes {
        &self.envelope
    }

    /// SHA-256 of the payload; of a policy it is the root.
    #[must_use]
    pub const fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The key that made the signature.
    #[must_use]
    pub const fn signer(&self) -> KeyId {
        self.signer
    }

    /// Parses the payload as `T`, whose type must be the payload's own.
    ///
    /// # Errors
    /// `wrong_type` if the payload is of another type than `T`; else what `parse` says.
    pub fn parse<T: Document, E>(
        &self,
        wrong_type: impl FnOnce(PayloadType) -> E,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<Verified<T>, E> {
        if self.payload_type != T::PAYLOAD_TYPE {
            return Err(wrong_type(self.payload_type));
        }
        Ok(Verified {
            document: parse(&self.payload)?,
            source: self.clone(),
        })
    }
}

impl<T> Verified<T> {
    /// The whole envelope, to be kept or passed on.
    #[must_use]
    pub const fn envelope(&self) -> &Bytes {
        self.source.envelope()
    }

    /// SHA-256 of the payload; of a policy it is the root.
    #[must_use]
    pub const fn digest(&self) -> [u8; 32] {
        self.source.digest()
    }

    /// The key that made the signature.
    #[must_use]
    pub const fn signer(&self) -> KeyId {
        self.source.signer()
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.document
    }
}

#[cfg(test)]
mod tests;

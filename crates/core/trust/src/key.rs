//! Ed25519 keys of signed documents.

use ed25519_dalek::pkcs8::{DecodePrivateKey, EncodePrivateKey, spki::der::pem::LineEnding};
use ed25519_dalek::{Signature, Signer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use zeroize::Zeroizing;

/// The key that signs. Its bytes are wiped when it is dropped and never printed.
pub struct SigningKey(ed25519_dalek::SigningKey);

/// The key that verifies: 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey(ed25519_dalek::VerifyingKey);

/// The first eight bytes of a verifying key's SHA-256. Only a hint which key to try first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 8]);

/// The keys that a receiver accepts: those of its trust bundle, or the grant keys of its policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring(BTreeMap<KeyId, VerifyingKey>);

/// A key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not 32 bytes that encode a point of the curve, or a point of small order, whose signatures
    /// prove nothing.
    #[error("not an Ed25519 public key")]
    VerifyingKey,
    /// Not a PKCS#8 Ed25519 key in PEM.
    #[error("not a PKCS#8 Ed25519 private key in PEM")]
    SigningKey,
    /// More than [`KEYS_MAX`] keys.
    #[error("more than {KEYS_MAX} keys")]
    TooMany,
}

/// Most keys of a keyring. A rotation needs two, a rotation during a restore three; a garbage
/// envelope costs one signature check per key.
pub const KEYS_MAX: usize = 16;

/// Length of a verifying key in bytes (RFC 8032 section 5.1.5).
pub const VERIFYING_KEY_LEN: usize = 32;

/// Length of a signature in bytes (RFC 8032 section 5.1.6).
pub(crate) const SIGNATURE_LEN: usize = 64;

impl SigningKey {
    /// The key whose RFC 8032 seed is `seed`: 32 bytes from the operating system's generator.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// Reads a key as [`Self::to_pkcs8_pem`] writes it.
    ///
    /// # Errors
    /// The text is no PKCS#8 Ed25519 key.
    pub fn from_pkcs8_pem(text: &str) -> Result<Self, KeyError> {
        ed25519_dalek::SigningKey::from_pkcs8_pem(text)
            .map(Self)
            .map_err(|_| KeyError::SigningKey)
    }

    /// The key as a PKCS#8 PEM document, for a file of mode 0600.
    ///
    /// # Errors
    /// The encoder failed; it has no reason to.
    pub fn to_pkcs8_pem(&self) -> Result<Zeroizing<String>, KeyError> {
        self.0
            .to_pkcs8_pem(LineEnding::LF)
            .map_err(|_| KeyError::SigningKey)
    }

    /// The key that verifies what this one signs.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(message).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey")
            .field(&self.verifying_key().id())
            .finish()
    }
}

impl VerifyingKey {
    /// Reads a key from exactly [`VERIFYING_KEY_LEN`] bytes.
    ///
    /// # Errors
    /// The bytes are no key, or a weak one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.try_into().map_err(|_| KeyError::VerifyingKey)?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(bytes).map_err(|_| KeyError::VerifyingKey)?;
        if key.is_weak() {
            return Err(KeyError::VerifyingKey);
        }
        Ok(Self(key))
    }

    /// The key's 32 bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; VERIFYING_KEY_LEN] {
        self.0.to_bytes()
    }

    /// The key as 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(self) -> String {
        hex::encode(self.to_bytes())
    }

    /// Reads a key as [`Self::to_hex`] writes it.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&hex::decode(text).map_err(|_| KeyError::VerifyingKey)?)
    }

    /// The key's id.
    #[must_use]
    pub fn id(self) -> KeyId {
        let digest: [u8; 32] = Sha256::digest(self.to_bytes()).into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        KeyId([a, b, c, d, e, f, g, h])
    }

    fn holds(self, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        // Strict: one message has one signature, whatever library checks it.
        self.0
            .verify_strict(message, &Signature::from_bytes(signature))
            .is_ok()
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.to_hex())
    }
}

impl KeyId {
    /// The id of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The id's bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl Keyring {
    /// The ring without a key.
    pub const EMPTY: Self = Self(BTreeMap::new());

    /// The ring of `keys`; a key given twice counts once.
    ///
    /// # Errors
    /// More than [`KEYS_MAX`] keys.
    pub fn new(keys: impl IntoIterator<Item = VerifyingKey>) -> Result<Self, KeyError> {
        let mut ring = BTreeMap::new();
        for key in keys {
            ring.insert(key.id(), key);
            if ring.len() > KEYS_MAX {
                return Err(KeyError::TooMany);
            }
        }
        Ok(Self(ring))
    }

    /// Whether it holds no key, so that nothing verifies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys, by id.
    pub fn keys(&self) -> impl Iterator<Item = VerifyingKey> {
        self.0.values().copied()
    }

    /// The id of the key that verifies `signature`; the hinted key is tried first.
    pub(crate) fn signer(
        &self,
        hint: KeyId,
        message: &[u8],
        signature: &[u8; SIGNATURE_LEN],
    ) -> Option<KeyId> {
        let hinted = self.0.get_key_value(&hint);
        let others = self.0.iter().filter(|(id, _)| **id != hint);
        hinted
            .into_iter()
            .chain(others)
            .find(|(_, key)| key.holds(message, signature))
            .map(|(id, _)| *id)
    }
}

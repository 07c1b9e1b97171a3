//! Secrets that are shown once and kept only hashed: enrolment tokens and admin tokens.
//!
//! They are 256 random bits, so a plain digest is as good as a slow one: there is nothing to guess.

use sha2::{Digest, Sha256};

/// Greatest length of a secret that is looked up. Ours have 43 characters.
pub(crate) const SECRET_LEN_MAX: usize = 128;

/// The hash that a secret is kept under.
pub(crate) fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

//! Randomness from the operating system, and what is made of it: ids, tokens, jitter.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fairlead_model::id;
use rand::TryRng as _;
use std::fmt;
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a token: 256 random bits (R-ENR-02).
pub const TOKEN_BYTES: usize = 32;

/// Fills `out` with random bytes.
///
/// Linux gives randomness from early boot on; a host that does not cannot make a key, so the
/// process is aborted: no caller could go on safely.
pub fn fill(out: &mut [u8]) {
    if let Err(error) = rand::rngs::SysRng.try_fill_bytes(out) {
        tracing::error!(%error, "the operating system gives no randomness");
        std::process::abort();
    }
}

/// `N` random bytes.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    fill(&mut out);
    out
}

/// An id that this crate can make.
pub trait NewId: Sized {
    /// The id of these bytes.
    fn from_bytes(bytes: [u8; 16]) -> Self;
}

macro_rules! new_ids {
    ($($name:ident)*) => {$(
        impl NewId for id::$name {
            fn from_bytes(bytes: [u8; 16]) -> Self {
                Self::from_bytes(bytes)
            }
        }
    )*};
}
new_ids!(RelayId NodeId LinkId EndpointId RouteId AssociationId SessionId TokenId AuditId ProcessBootId);

/// A new id: a UUID of version 7, so that ids sort by the time they were made.
#[must_use]
pub fn new_id<T: NewId>() -> T {
    T::from_bytes(*uuid::Uuid::now_v7().as_bytes())
}

/// A secret token as text: base64url without padding. Never printed; wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Takes over text that is a token.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The token itself, to be sent or hashed.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A new token of 256 random bits.
#[must_use]
pub fn token() -> Token {
    let mut raw = bytes::<TOKEN_BYTES>();
    let text = URL_SAFE_NO_PAD.encode(raw);
    raw.zeroize();
    Token::from_text(text)
}

/// A duration drawn evenly from zero to `max`, to the millisecond.
#[must_use]
pub fn jitter(max: Duration) -> Duration {
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    let draw = u64::from_le_bytes(bytes());
    Duration::from_millis(max_ms.checked_add(1).map_or(draw, |n| draw % n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_model::id::RelayId;
    use std::collections::BTreeSet;

    /// R-ENR-02: 256 random bits, not printed.
    #[test]
    fn tokens_are_long_distinct_and_silent() {
        let tokens: Vec<Token> = (0..100).map(|_| token()).collect();
        let distinct: BTreeSet<&str> = tokens.iter().map(Token::expose).collect();
        assert_eq!(distinct.len(), 100);
        for t in &tokens {
            assert_eq!(URL_SAFE_NO_PAD.decode(t.expose()).unwrap().len(), TOKEN_BYTES);
            assert!(!format!("{t:?}").contains(t.expose()));
        }
    }

    #[test]
    fn ids_rise() {
        let ids: Vec<RelayId> = (0..1000).map(|_| new_id()).collect();
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
    }

    #[test]
    fn jitter_stays_in_its_range() {
        let max = Duration::from_millis(3);
        let drawn: BTreeSet<Duration> = (0..400).map(|_| jitter(max)).collect();
        assert_eq!(drawn.len(), 4);
        assert_eq!(drawn.last(), Some(&max));
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }
}

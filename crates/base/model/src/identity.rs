//! SPIFFE identities of the pool's members (ARCHITECTURE.md, Identity and keys).

use crate::id::{NodeId, RelayId};
use std::fmt;
use std::str::FromStr;

/// One of the files that a member's identity is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityFile {
    /// The certificate chain.
    Chain,
    /// The private key.
    Key,
    /// The CA certificates.
    Roots,
}

impl fmt::Display for IdentityFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chain => "certificate file",
            Self::Key => "key file",
            Self::Roots => "CA file",
        })
    }
}

/// The pool's trust domain: the authority part of its SPIFFE ids. Lowercase letters,
/// digits, `-`, `.` and `_`, at most 255 bytes (SPIFFE-ID section 2.1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustDomain(String);

/// Who a certificate speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The control plane.
    Control,
    /// A relay (its supervisor and its worker).
    Relay(RelayId),
    /// A node daemon.
    Node(NodeId),
}

/// Text that is not an identity of the trust domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The trust domain's characters or length.
    #[error("`{0}` is not a trust domain: allowed are 1 to 255 characters of a-z, 0-9, `-`, `.` and `_`")]
    TrustDomain(String),
    /// Not one of the three forms of id.
    #[error(
        "`{0}` is not an identity: expected spiffe://<trust-domain>/control, \
         /relay/<id> or /node/<id>"
    )]
    Form(String),
    /// Another pool's id.
    #[error("`{found}` belongs to another trust domain than `{expected}`")]
    OtherDomain {
        /// The id as found.
        found: String,
        /// The trust domain that was expected.
        expected: TrustDomain,
    },
}

impl TrustDomain {
    /// The domain as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TrustDomain {
    type Err = IdentityError;
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_');
        if text.is_empty() || text.len() > 255 || !text.chars().all(allowed) {
            return Err(IdentityError::TrustDomain(text.chars().take(80).collect()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Identity {
    /// The SPIFFE id, as it stands in the certificate's URI SAN.
    #[must_use]
    pub fn to_spiffe(&self, domain: &TrustDomain) -> String {
        match self {
            Self::Control => format!("spiffe://{domain}/control"),
            Self::Relay(id) => format!("spiffe://{domain}/relay/{id}"),
            Self::Node(id) => format!("spiffe://{domain}/node/{id}"),
        }
    }

    /// Reads a SPIFFE id of `domain`.
    ///
    /// # Errors
    /// The text is no SPIFFE id of ours, or another trust domain's.
    pub fn from_spiffe(text: &str, domain: &TrustDomain) -> Result<Self, IdentityError> {
        let form = || IdentityError::Form(text.chars().take(160).collect());
        let rest = text.strip_prefix("spiffe://").ok_or_else(form)?;
        let (authority, path) = rest.split_once('/').ok_or_else(form)?;
        if authority != domain.as_str() {
            return Err(IdentityError::OtherDomain {
                found: text.chars().take(160).collect(),
                expected: domain.clone(),
            });
        }
        let identity = match path.split_once('/') {
            None if path == "control" => Self::Control,
            Some(("relay", id)) => Self::Relay(id.parse().map_err(|_| form())?),
            Some(("node", id)) => Self::Node(id.parse().map_err(|_| form())?),
            None | Some(_) => return Err(form()),
        };
        // One identity has one spelling: the uuid parser accepts several.
        if identity.to_spiffe(domain) == text {
            Ok(identity)
        } else {
            Err(form())
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("control"),
            Self::Relay(id) => write!(f, "relay {id}"),
            Self::Node(id) => write!(f, "node {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids_round_trip_in_one_spelling() {
        let domain: TrustDomain = "pool.example".parse().unwrap();
        let node = Identity::Node(NodeId::from_bytes([0xab; 16]));
        for id in [Identity::Control, node] {
            assert_eq!(Identity::from_spiffe(&id.to_spiffe(&domain), &domain), Ok(id));
        }
        for bad in [
            "spiffe://pool.example/relay",
            "spiffe://pool.example/control/",
            "spiffe://pool.example/node/ABABABAB-ABAB-ABAB-ABAB-ABABABABABAB",
            "spiffe://pool.example",
            "https://pool.example/control",
        ] {
            assert!(
                matches!(Identity::from_spiffe(bad, &domain), Err(IdentityError::Form(_))),
                "{bad}"
            );
        }
        assert!(matches!(
            Identity::from_spiffe("spiffe://other/control", &domain),
            Err(IdentityError::OtherDomain { .. })
        ));
    }
}

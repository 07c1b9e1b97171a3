//! Typed 128-bit ids. They are made by `host` (time-ordered UUIDs), never here.

use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// Text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: expected a UUID such as 0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11")]
pub struct IdError {
    what: &'static str,
    text: String,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The id whose big-endian bytes are `bytes`.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }

            /// Reads an id from a slice of exactly 16 bytes.
            #[must_use]
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_bytes(bytes.try_into().ok()?))
            }

            /// The 16 big-endian bytes: the form on the wire and in the store.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Uuid::from_u128(self.0).hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::parse_str(text)
                    .map(|u| Self(u.as_u128()))
                    .map_err(|_| IdError { what: $what, text: text.chars().take(64).collect() })
            }
        }
    )*};
}

ids! {
    /// A relay: a member of the pool.
    RelayId, "a relay id";
    /// A node: a managed host that publishes or consumes.
    NodeId, "a node id";
    /// An admin's wish that consumers reach a publisher's service.
    LinkId, "a link id";
    /// A published service on a node; its [`Generation`](crate::Generation) counts its changes.
    EndpointId, "an endpoint id";
    /// Permission for one consumer to reach one endpoint. Never reused.
    RouteId, "a route id";
    /// A directional pair secret between two node daemons (ARCHITECTURE.md, Streams).
    AssociationId, "an association id";
    /// A hop session between a daemon and a relay.
    SessionId, "a session id";
    /// An enrolment or admin token; the secret itself is never an id.
    TokenId, "a token id";
    /// One entry of the audit log.
    AuditId, "an audit id";
    /// One run of a process; tells a restarted peer from a reconnecting one.
    ProcessBootId, "a process boot id";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_round_trip() {
        let id = RelayId::from_bytes([7; 16]);
        assert_eq!(id.to_string().parse::<RelayId>().unwrap(), id);
        assert_eq!(RelayId::from_slice(&id.to_bytes()), Some(id));
        assert_eq!(RelayId::from_slice(&[0; 15]), None);
    }

    #[test]
    fn the_error_names_the_text() {
        let error = "relay-1".parse::<RelayId>().unwrap_err().to_string();
        assert!(
            error.contains("relay-1") && error.contains("a relay id"),
            "{error}"
        );
    }
}

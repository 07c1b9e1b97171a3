//! The one name of a tunnel in the logs of all who take part in it.

use crate::{AssociationId, StreamNumber};
use std::fmt;

/// Names one application connection at its consumer, at the relays that carry it and at its
/// publisher: the association and the stream's number within it, which OPEN and INCOMING carry in
/// clear. It stays the same when the stream moves to another relay, and gives no right to anything.
/// A relay may lie about it to the publisher; who compares logs sees that.
///
/// Logged as `tunnel`, written `0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11/7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId {
    /// The association whose secret seals the stream.
    pub association: AssociationId,
    /// The stream within it; 0 for the handshake that makes the association.
    pub stream: StreamNumber,
}

impl fmt::Display for TunnelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.association, self.stream.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_association_and_number() {
        let tunnel = TunnelId {
            association: AssociationId::from_bytes([1; 16]),
            stream: StreamNumber(7),
        };
        assert_eq!(tunnel.to_string(), "01010101-0101-0101-0101-010101010101/7");
    }
}

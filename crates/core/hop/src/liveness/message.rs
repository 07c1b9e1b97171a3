//! Messages of the liveness connection.
//!
//! ```text
//! kind (1) │ reason (1) │ zero (6) │ number (8, big-endian) │ id (16)
//! ```
//! All are 32 bytes; a field that a kind has no use for is zero.

use fairlead_model::{ProcessBootId, SessionId};

/// Bytes of a message.
pub const MESSAGE_LEN: usize = 32;

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveMessage {
    /// Node to relay, first: the hop session that the connection stands for. Its node is the one
    /// that the certificate names.
    Bind(SessionId),
    /// The relay's answer: it holds the session. With the worker's run.
    Bound(ProcessBootId),
    /// The relay's answer: it does not bind. With the worker's run, so that a node learns that the
    /// one it knew is gone.
    Refused(BindRefusal, ProcessBootId),
    /// Either way.
    Ping(u64),
    /// The answer to [`LiveMessage::Ping`], with its number.
    Pong(u64),
}

/// Why a relay does not bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BindRefusal {
    /// It has no such session of this node.
    NoSession,
    /// It has one, and cannot take the connection at this moment.
    Busy,
}

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a malformed liveness message of kind {kind}")]
pub struct MessageFault {
    /// The kind that it claims.
    pub kind: u8,
}

impl LiveMessage {
    /// The message's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_LEN] {
        let (kind, reason, number, id) = match self {
            Self::Bind(session) => (1, 0, 0, session.to_bytes()),
            Self::Bound(boot) => (2, 0, 0, boot.to_bytes()),
            Self::Refused(BindRefusal::NoSession, boot) => (3, 1, 0, boot.to_bytes()),
            Self::Refused(BindRefusal::Busy, boot) => (3, 2, 0, boot.to_bytes()),
            Self::Ping(number) => (4, 0, number, [0; 16]),
            Self::Pong(number) => (5, 0, number, [0; 16]),
        };
        let mut bytes = [0; MESSAGE_LEN];
        let fields = [kind, reason, 0, 0, 0, 0, 0, 0]
            .into_iter()
            .chain(u64::to_be_bytes(number))
            .chain(id);
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    /// An unknown kind, or a field that is not as the kind has it.
    pub fn decode(bytes: &[u8; MESSAGE_LEN]) -> Result<Self, MessageFault> {
        let [kind, reason, _, _, _, _, _, _, rest @ ..] = *bytes;
        let [n0, n1, n2, n3, n4, n5, n6, n7, id @ ..] = rest;
        let number = u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let message = match (kind, reason) {
            (1, 0) => Self::Bind(SessionId::from_bytes(id)),
            (2, 0) => Self::Bound(ProcessBootId::from_bytes(id)),
            (3, 1) => Self::Refused(BindRefusal::NoSession, ProcessBootId::from_bytes(id)),
            (3, 2) => Self::Refused(BindRefusal::Busy, ProcessBootId::from_bytes(id)),
            (4, 0) => Self::Ping(number),
            (5, 0) => Self::Pong(number),
            _ => return Err(MessageFault { kind }),
        };
        // One encoding each: what is not used is zero.
        let canonical = message.encode() == *bytes;
        canonical.then_some(message).ok_or(MessageFault { kind })
    }
}

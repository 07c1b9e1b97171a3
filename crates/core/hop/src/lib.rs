//! The hop session between a node daemon and a relay: its frames, and both ends' machines.
//!
//! A hop session is one carrier (a QUIC connection). Its first bidirectional stream is the control
//! stream: the daemon says [`Hello`], registers endpoints and is pinged there. Every other stream
//! is one single-use **leg**: it begins with one frame each way ([`Open`] or [`Incoming`], answered
//! by [`Answer`]) and carries raw bytes from there on, which this crate never looks at.
//!
//! Nothing here does I/O, reads a clock or verifies a grant. [`NodeControl`] and [`RelayControl`]
//! take frames and the time and give frames and events; [`Registry`] decides which session serves
//! an endpoint; [`liveness`] decides whether the other end is dead. The relay's loop asks `trust` for verdicts and tells the machine.

pub mod frame;
pub mod liveness;
mod node;
mod registry;
mod relay;

pub use frame::{
    Answer, DecodeError, Decoded, EncodeError, FRAME_LEN_MAX, Frame, GRANT_LEN_MAX, Hello, HelloOk, Incoming,
    LegKind, Open, PING_PADDING_MAX, Ping, Refusal, Register, RegisterRefused,
};
pub use node::{NodeControl, NodeControlConfig, NodeEvent, RegistrationState, SILENCE_MAX};
pub use registry::{
    Lookup, REGISTRATIONS_PER_SESSION_MAX, RESTART_HOLD, Registered, Registry, RegistryFault,
};
pub use relay::{RelayControl, RelayEvent};

use fairlead_model::RefusalCode;

/// The only version of the hop protocol so far.
pub const VERSION: u16 = 1;
/// ALPN of a hop session.
pub const ALPN: &[u8] = b"fairlead/1";

/// Why a hop session ends: the peer broke the protocol, or the two have no version in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionFault {
    /// A frame that has no place in this state, or on this stream.
    #[error("the peer sent {got} while {state}")]
    Unexpected {
        /// The frame's name.
        got: &'static str,
        /// What this end was doing.
        state: &'static str,
    },
    /// No common protocol version.
    #[error("the peer speaks versions {min} to {max}, this end speaks {VERSION}")]
    Version {
        /// The peer's lowest.
        min: u16,
        /// The peer's highest.
        max: u16,
    },
    /// The peer makes answers faster than it reads them, or registers more than a bound.
    #[error("the peer asks for more than {0} at once")]
    Flood(&'static str),
    /// Nothing was heard for the silence limit.
    #[error("the peer was silent for {0} ms")]
    Silent(u64),
}

impl SessionFault {
    /// The code that goes into the close.
    #[must_use]
    pub const fn code(self) -> RefusalCode {
        match self {
            Self::Unexpected { .. } | Self::Silent(_) => RefusalCode::Protocol,
            Self::Version { .. } => RefusalCode::Version,
            Self::Flood(_) => RefusalCode::TooMany,
        }
    }
}

#[cfg(test)]
mod tests;

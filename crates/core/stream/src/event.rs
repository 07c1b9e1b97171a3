//! What a stream tells its caller, and how its operations fail.

use crate::frame::FrameError;
use crate::leg::LegName;
use crate::record::RecordError;
use bytes::Bytes;
use fairlead_model::{LegEpoch, MonoTime, RefusalCode};

/// Something for the caller to act on, from [`Stream::poll_event`](crate::Stream::poll_event).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Acceptor: the peer attached a leg and proved the stream's secret for this relay and epoch.
    /// Verify the grant, then call `accept_attach` or `refuse_attach`. Nothing that follows on the
    /// leg is looked at before.
    Attach {
        /// The leg.
        leg: LegName,
        /// The signed grant, as the peer sent it.
        grant: Bytes,
        /// Whether it is the stream's first: the target is not dialled yet. Give verdicts in the
        /// order of the events.
        first: bool,
        /// Whether the dialler says, under seal, that the stream was attached before. `first` as well
        /// means that it lived in another run of the acceptor, or has ended: dial for none.
        resume: bool,
    },
    /// Dialler: the acceptor accepted the leg.
    Attached {
        /// The leg.
        leg: LegName,
    },
    /// Dialler: the acceptor's target is connected.
    Connected,
    /// The leg is over for both ends, and nothing more is to be sent or read on it.
    LegDone {
        /// The leg.
        leg: LegName,
    },
    /// Dialler: the acceptor asks for a leg through another relay.
    MovePlease,
    /// No leg is left; the stream ends at `until` unless one is attached.
    Suspended {
        /// When the hold ends.
        until: MonoTime,
    },
    /// The peer's socket was reset. What has been received can still be read; there is no clean end.
    PeerReset(ResetCode),
    /// The stream is over. Comes once and last; what `poll_transmit` still gives should be sent.
    Ended(End),
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both directions ended cleanly and both ends know it.
    Closed,
    /// The acceptor refused the attach or could not reach its target.
    Refused(RefusalCode),
    /// One of the sockets was reset.
    Reset(ResetCode),
    /// No leg was attached within the hold (R-STR-04).
    HoldExpired,
    /// The peer broke the protocol inside authenticated records.
    Protocol,
}

/// Why a stream was reset. Numbers are the wire form and are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResetCode {
    /// The application's socket failed or was reset.
    Application,
    /// Route, node or key was revoked (R-REV-01).
    Revoked,
    /// The daemon stops.
    ShuttingDown,
    /// No leg was attached within the hold.
    HoldExpired,
    /// The peer broke the protocol.
    Protocol,
    /// Something of the daemon's own broke, or a code of a newer peer.
    Internal,
}

impl ResetCode {
    /// Every code, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Application,
        Self::Revoked,
        Self::ShuttingDown,
        Self::HoldExpired,
        Self::Protocol,
        Self::Internal,
    ];

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Application => 1,
            Self::Revoked => 2,
            Self::ShuttingDown => 3,
            Self::HoldExpired => 4,
            Self::Protocol => 5,
            Self::Internal => 6,
        }
    }

    /// The code of a wire number; a newer peer's number reads as [`Internal`](Self::Internal).
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.number() == number)
            .unwrap_or(Self::Internal)
    }

    /// The stable name, in logs and metrics labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Application => "APPLICATION",
            Self::Revoked => "REVOKED",
            Self::ShuttingDown => "SHUTTING_DOWN",
            Self::HoldExpired => "HOLD_EXPIRED",
            Self::Protocol => "PROTOCOL",
            Self::Internal => "INTERNAL",
        }
    }
}

impl std::fmt::Display for ResetCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a leg cannot be opened. The caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenLegError {
    /// The epoch is not above those of the legs that were attached before, its relay has a leg of it
    /// already, or it is not one that `next_epoch` gave.
    #[error("leg epoch {0} is not a new one")]
    StaleEpoch(LegEpoch),
    /// More legs at once than a stream may have.
    #[error("the stream already has {0} legs")]
    TooMany(usize),
    /// The stream is over.
    #[error("the stream has ended")]
    Ended,
}

/// Why a leg ended while it was read. The leg is forgotten; its transport is to be closed. All but
/// [`UnknownLeg`](Self::UnknownLeg) are the peer's or the relay's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LegFault {
    /// The stream has no such leg.
    #[error("the stream has no leg of epoch {0}")]
    UnknownLeg(LegEpoch),
    /// A record that is malformed, replayed, out of order or forged. The stream lives.
    #[error("a sealed record cannot be opened")]
    Record(#[source] RecordError),
    /// An ATTACH for another relay or epoch than the leg's, or for an epoch that is over.
    #[error("the attach is not for this leg")]
    WrongAttach,
    /// More bytes than allowed arrived while the verdict on an ATTACH was awaited.
    #[error("more than {max} bytes before the verdict on the attach")]
    HeldTooMuch {
        /// The bound in bytes.
        max: usize,
    },
    /// More legs than a stream may have on which an ATTACH was verified. The stream lives.
    #[error("the stream already has {max} attached legs")]
    TooManyLegs {
        /// The bound.
        max: usize,
    },
    /// More separate pieces ahead of a gap than are kept. The stream lives.
    #[error("more than {max} pieces ahead of a gap")]
    TooManyPieces {
        /// The bound.
        max: usize,
    },
    /// A malformed frame. The stream ends: the peer is authenticated, so this is no relay's doing.
    #[error("a malformed frame")]
    Frame(#[source] FrameError),
    /// A frame that the state does not allow. The stream ends.
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
}

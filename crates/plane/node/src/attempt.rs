//! Why one attempt to open something through one relay failed, and what to do next (R-ADM-05).

use fairlead_hop::frame::{Answer, Frame, Refusal};
use fairlead_model::{RefusalCode, RetryClass};
use fairlead_transport::{CarrierEnd, FrameReadError, FrameWriteError, Leg, LegError, PairError};
use std::time::Duration;

/// One attempt's failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    /// A correct no, by the relay or the publisher.
    #[error("refused: {}", .0.code)]
    Refused(Refusal),
    /// The session gave no leg.
    #[error("no leg could be opened")]
    Leg(#[source] CarrierEnd),
    /// The relay gave no leg in time.
    #[error("no leg could be opened in time")]
    LegTimeout,
    /// The request could not be written.
    #[error("the open could not be written")]
    Write(#[source] FrameWriteError),
    /// The first sealed bytes could not be written.
    #[error("the leg failed")]
    Send(#[source] LegError),
    /// The answer could not be read.
    #[error("the answer could not be read")]
    Read(#[source] FrameReadError),
    /// The leg ended, or something else than an answer came.
    #[error("the leg ended before its answer")]
    NoAnswer,
    /// Nothing came in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The relay was not heard of while the answer was awaited.
    #[error("the relay fell silent")]
    Silent,
    /// The association's handshake.
    #[error("no association could be made")]
    Pair(#[source] PairError),
    /// The task that made the association is gone.
    #[error("the association was given up")]
    GivenUp,
}

impl AttemptError {
    /// What to do next.
    pub(crate) fn class(&self) -> RetryClass {
        self.refusal().map_or(RetryClass::Elsewhere, |r| r.code.class())
    }

    /// The refusal, if it was one.
    pub(crate) const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused(refusal) | Self::Pair(PairError::Refused(refusal)) => Some(*refusal),
            Self::Pair(_)
            | Self::Leg(_)
            | Self::LegTimeout
            | Self::Write(_)
            | Self::Send(_)
            | Self::Read(_)
            | Self::NoAnswer
            | Self::Timeout(_)
            | Self::Silent
            | Self::GivenUp => None,
        }
    }

    /// The code for logs and metrics.
    pub(crate) fn code(&self) -> RefusalCode {
        self.refusal()
            .map_or(RefusalCode::PublisherUnreachable, |r| r.code)
    }
}

/// Waits for the answer on a leg whose OPEN is written.
pub(crate) async fn answer(leg: &mut Leg, limit: Duration) -> Result<(), AttemptError> {
    let frame = tokio::time::timeout(limit, leg.recv.read_frame())
        .await
        .map_err(|_| AttemptError::Timeout(limit))?;
    match frame {
        Ok(Some(Frame::Answer(Answer::Ok))) => Ok(()),
        Ok(Some(Frame::Answer(Answer::Refused(refusal)))) => Err(AttemptError::Refused(refusal)),
        Ok(_) => Err(AttemptError::NoAnswer),
        Err(error) => Err(AttemptError::Read(error)),
    }
}

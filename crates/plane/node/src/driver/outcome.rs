//! How a stream ended, for those who started it.

use super::LegEnd;
use crate::live::EndReason;
use crate::socket::EndSocket;
use fairlead_model::RefusalCode;
use fairlead_stream::ResetCode;

/// How a stream ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Both directions finished and every byte was delivered.
    Closed,
    /// The publisher said no.
    Refused {
        /// Why.
        code: RefusalCode,
        /// As in [`Outcome::Lost`], where another attempt may succeed.
        untouched: Option<EndSocket>,
    },
    /// An application or target reset its connection, here or there, or the far daemon ended it.
    Reset(ResetCode),
    /// The leg was lost, and no other was attached in time.
    Lost {
        /// Whether the stream was attached before: its hold has ended (R-STR-04).
        held: bool,
        /// How.
        end: Option<LegEnd>,
        /// The application's socket, if no byte of it has entered the stream and the target was
        /// not connected: the open may be tried again as if nothing had been.
        untouched: Option<EndSocket>,
    },
    /// The peer broke the protocol.
    Protocol(Option<LegEnd>),
    /// The daemon ended it.
    Ended(EndReason),
}

impl Outcome {
    /// The application's socket, if the open may be tried again.
    pub(crate) fn untouched(self) -> Option<EndSocket> {
        match self {
            Self::Lost { untouched, .. } | Self::Refused { untouched, .. } => untouched,
            Self::Closed | Self::Reset(_) | Self::Protocol(_) | Self::Ended(_) => None,
        }
    }

    /// The publisher's no, if that was the end.
    pub(crate) fn refusal(&self) -> Option<RefusalCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Closed | Self::Reset(_) | Self::Lost { .. } | Self::Protocol(_) | Self::Ended(_) => None,
        }
    }

    /// The stable code of a stream that broke, and the detail for the log.
    pub(crate) fn failure(&self) -> (&'static str, String) {
        let detail = |end: &Option<LegEnd>| match end {
            Some(LegEnd::Lost(Some(error))) => fairlead_telemetry::chain(error),
            Some(LegEnd::Refused(refusal)) => refusal.code.message().to_owned(),
            Some(LegEnd::Fault(fault)) => fairlead_telemetry::chain(fault),
            Some(LegEnd::Lost(None)) | None => String::from("the leg ended"),
        };
        match self {
            Self::Lost { end, held: true, .. } => ("HOLD_EXPIRED", detail(end)),
            Self::Lost { end, held: false, .. } => ("LEG_LOST", detail(end)),
            Self::Protocol(end) => ("PROTOCOL", detail(end)),
            Self::Ended(reason) => (reason.as_str(), String::new()),
            Self::Reset(code) => (code.as_str(), String::new()),
            Self::Refused { code, .. } => (code.as_str(), code.message().to_owned()),
            Self::Closed => ("CLOSED", String::new()),
        }
    }
}

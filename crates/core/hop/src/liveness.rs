//! Who is dead: the liveness connection's messages, and what each end concludes from it.
//!
//! QUIC acknowledges in user space, so a process that is busy or stopped looks like one that is
//! gone. Beside each hop session runs a TCP connection that carries nothing but 32-byte messages:
//! there the **kernel** acknowledges, so that its end tells whether the other process or host is
//! gone, and its life that it is not. Neither sense kills alone: a TCP end can be forged, and
//! silence can be load. [`NodeLiveness`] and [`RelayLiveness`] weigh both.
//!
//! | liveness connection | QUIC | conclusion |
//! |---|---|---|
//! | never stood | silent for 10 s | dead |
//! | stands | silent | busy or frozen: doubted, nothing is torn down |
//! | stands, no PONG | anything | likewise |
//! | stands or never stood | silent for 3 s, or acknowledges nothing new | another connection is tried beside it, and takes its place if it stands first |
//! | broken | answers a probe | alive: the connection is made anew |
//! | broken, and refused or unanswered when tried anew | silent beyond a probe's time | dead |
//! | no acknowledgement of the kernel for 2 s | silent as long | dead |
//! | another process boot answers, or one that has no such session | anything | dead |

mod beside;
mod heard;
mod message;
mod node;
mod relay;

pub use message::{BindRefusal, LiveMessage, MESSAGE_LEN, MessageFault};
pub use node::{Doubt, NodeAction, NodeLiveness, Passed};
pub use relay::{RelayAction, RelayLiveness};

use std::time::Duration;

/// ALPN of a liveness connection.
pub const ALPN: &[u8] = b"fairlead-live/1";
/// How often each end pings. A host that vanishes leaves a ping unacknowledged within this.
pub const PING_INTERVAL: Duration = Duration::from_millis(1_500);
/// For how long the kernel may wait for an acknowledgement (`TCP_USER_TIMEOUT`). Only ever set on
/// this connection: on one that carries data it would kill a peer that merely does not read.
pub const UNACKNOWLEDGED_MAX: Duration = Duration::from_millis(2_000);
/// A QUIC carrier that has no liveness connection beside it is dead after this silence: quick
/// enough that a vanished peer is given up within the time that people wait, long enough for a
/// stalled process.
pub const QUIC_SILENCE_MAX: Duration = Duration::from_secs(10);
/// QUIC's own idle limit, for carriers whose liveness connection stands: a stopped process keeps
/// its sessions for this long (F-06: 20 s).
pub const FROZEN_MAX: Duration = Duration::from_secs(60);
/// A quiet end of a carrier sends something this often, and is answered.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The same of a node's end. After its way to the relay has changed, the relay's packets go astray
/// until one of the node's own shows the new one: within this (F-05: reachable within a second).
pub const NODE_KEEP_ALIVE: Duration = Duration::from_millis(500);
/// How often each end looks for datagrams.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Silence of QUIC that agrees with a kernel that got no acknowledgement for
/// [`UNACKNOWLEDGED_MAX`]: as long, less what a keep-alive may be late.
const SILENT_TOO: Duration = Duration::from_millis(1_900);
const _: () = assert!(SILENT_TOO.as_millis() < UNACKNOWLEDGED_MAX.as_millis());
const _: () = assert!(SILENT_TOO.as_millis() > KEEP_ALIVE.as_millis());
const _: () = assert!(FROZEN_MAX.as_millis() > QUIC_SILENCE_MAX.as_millis());

/// How a liveness connection that stood came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostCause {
    /// The peer's kernel ended it: its process is gone. Or somebody forged that.
    Closed,
    /// The peer's kernel did not acknowledge for [`UNACKNOWLEDGED_MAX`], or has no route.
    Unacknowledged,
    /// The peer broke the protocol of the connection.
    Protocol,
}

/// Why a liveness connection could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptFailure {
    /// The host answers that nobody listens.
    Refused,
    /// Nothing came back from the host.
    NoAnswer,
    /// The host took the connection and its process says nothing: busy or frozen.
    Unserved,
    /// The host took the connection and it was ended: its process is going, or turned it away.
    Cut,
    /// It can tell nothing of the peer: this host's limits, a certificate, a bound of the peer.
    Unable,
}

/// Why a peer is taken for dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Death {
    /// Its process is gone: nobody listens, and nothing of it is heard.
    #[error("its process is gone")]
    ProcessGone,
    /// Its host is gone: no acknowledgement, and nothing of it is heard.
    #[error("its host does not answer")]
    HostGone,
    /// Another process of the relay answered: the session's one is gone.
    #[error("it was restarted")]
    OtherBoot,
    /// The relay itself has ended the session.
    #[error("it has given the session up, having heard nothing of this node")]
    NoSession,
    /// Nothing was heard, and only QUIC could tell.
    #[error("nothing was heard of it for {} s", QUIC_SILENCE_MAX.as_secs())]
    Silent,
}

impl LostCause {
    /// The stable name, in labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Unacknowledged => "unacknowledged",
            Self::Protocol => "protocol",
        }
    }
}

impl AttemptFailure {
    /// The stable name, in labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::NoAnswer => "no_answer",
            Self::Unserved => "unserved",
            Self::Cut => "cut",
            Self::Unable => "unable",
        }
    }
}

impl Death {
    /// The stable name, in labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProcessGone => "process_gone",
            Self::HostGone => "host_gone",
            Self::OtherBoot => "other_boot",
            Self::NoSession => "no_session",
            Self::Silent => "silent",
        }
    }
}

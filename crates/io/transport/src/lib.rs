//! Carriers between daemons and relays: who is at the other end, and bytes to and from it.
//!
//! A [`Carrier`] is one authenticated QUIC connection; each of its bidirectional streams is a
//! [`Leg`]. [`Dialler`] makes carriers from the daemon's side, [`Listener`] takes them at a relay.
//! [`tls::MemberTls`] holds a member's certificate and roots, follows renewals, and accepts a peer
//! only by the exact identity in its certificate. [`pair`] runs the association's TLS between two
//! daemons over a leg that a relay carries. A [`LiveConnection`] beside a carrier tells whether the
//! other end is there at all. [`probe()`] tries a relay from outside.
//!
//! This crate moves bytes and checks identities; it decides nothing about who may reach what.

mod carrier;
pub mod closing;
mod config;
mod credit;
mod dial;
mod gate;
mod ids;
mod knock;
mod leg;
mod listen;
mod live;
pub mod pair;
mod probe;
mod socket;
pub mod tls;

pub use carrier::{Carrier, CarrierEnd, CarrierStats};
pub use config::{CarrierConfig, ResetKey, Sockets};
pub use dial::{AttemptError, DialError, Dialler};
pub use gate::ListenerStats;
pub use knock::Knock;
pub use leg::{FrameReadError, FrameWriteError, Leg, LegCode, LegError, LegRecv, LegSend, Written};
pub use listen::{AcceptError, Arriving, BindError, Listener, ListenerConfig};
pub use live::{
    LiveAcceptError, LiveAnswer, LiveArriving, LiveBinding, LiveConnection, LiveDialError, LiveListener,
};
pub use pair::{Accepted, PairError, PairHello, PairRun, PairSecret, Paired};
pub use probe::{ProbeError, ProbeReport, probe};
pub use tls::{CheckedMaterial, MemberTls, TlsError, TlsMaterial};

#[cfg(test)]
mod tests;

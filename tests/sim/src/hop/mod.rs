//! Hop sessions: node daemons, relays, and the network and hosts under them.
//!
//! Both ends' machines, the registry, the verdicts on who is dead and the rule that tells copies from
//! restarts are the real ones; the loops around them are written anew, as short as the loops of
//! `worker` and `node` allow. Carriers and liveness connections are modelled down to what the
//! machines can tell apart: datagrams that are lost, doubled and overtaken; kernels that acknowledge
//! for processes that are stopped; stateless resets; ports that nobody listens on.
//!
//! What must hold, besides what [`model`] says of registrations (R-ADM-01, R-ADM-03, R-ADM-04):
//!
//! - H1: an open is never led to a session that a newer one of the same node has fenced.
//! - H2: no end is declared dead while it is heard, or before it is read what came of it, or while its
//!   liveness connection stands.
//! - H3: an end that is gone is declared dead within the limits of R-ADM-02.
//! - H4: a relay that listens again has its daemons back within a second or so (R-UPD-08), those that
//!   want it only then within as long from there.
//! - H5: in a world at peace every daemon is registered at every relay of its policy, once, within
//!   [`check::PEACE_MAX`], and nothing is left of what was before (F-05).
//! - H6: restarts are not taken for copies of an identity (R-ENR-10).
//! - H7: what an end holds is bounded.
//! - H8: where datagrams pass again, a session carries again within [`check::CARRIES_MAX`], or another one
//!   in its place, however long QUIC's own probes would wait.

mod carrier;
mod check;
mod faults;
mod kernel;
mod model;
mod node;
mod plan;
mod policy;
mod relay;
mod session;
mod world;

use crate::Transcript;
use plan::Fault;

/// A rule that is left out, to see that the invariants notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A relay takes every registration as newer than those before.
    EpochsIgnored,
    /// The end of a session removes what its node has registered since with another one.
    LateGoodbyes,
    /// Registrations of a daemon that announced its restart go with its session.
    RestartsForgotten,
    /// Liveness connections count for nothing: QUIC's silence decides.
    QuicAlone,
    /// A lost liveness connection is a death.
    LivenessAlone,
    /// Daemons are not told of registrations that a policy has dropped.
    SilentSweeps,
    /// What an end does not hear while it is stopped itself counts as silence.
    PausesCount,
    /// Nothing is dialled beside a session whose datagrams do not pass.
    NeverBeside,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::EpochsIgnored,
        Self::LateGoodbyes,
        Self::RestartsForgotten,
        Self::QuicAlone,
        Self::LivenessAlone,
        Self::SilentSweeps,
        Self::PausesCount,
        Self::NeverBeside,
    ];

    /// What must happen for it to be noticed, if that is rare among all that may happen.
    const fn stage(self) -> Option<&'static [Fault]> {
        match self {
            Self::EpochsIgnored
            | Self::LateGoodbyes
            | Self::RestartsForgotten
            | Self::QuicAlone
            | Self::LivenessAlone
            | Self::SilentSweeps => None,
            Self::PausesCount => Some(&[Fault::NodeFrozen, Fault::TcpCut]),
            Self::NeverBeside => Some(&[Fault::UdpGone]),
        }
    }
}

/// Runs the world of `seed` to its end.
///
/// # Panics
/// An invariant does not hold.
pub fn run(seed: u64, transcript: &mut Transcript) {
    world::World::new(seed, None, transcript).run();
}

/// Runs the world of `seed` with a rule left out.
///
/// # Panics
/// An invariant does not hold.
pub fn run_mutated(seed: u64, mutation: Mutation, transcript: &mut Transcript) {
    world::World::new(seed, Some(mutation), transcript).run();
}

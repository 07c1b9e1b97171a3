//! The cores under everything a network, hosts and relays can do to them, in a world of one thread
//! with its own clock: a seed decides all of it, and the same seed does the same again.
//!
//! - [`streams`] drives pairs of [`fairlead_stream::Stream`] through relays that die, freeze, lie and
//!   come back, daemons that stall and crash, paths that are cut one way or both, and applications
//!   that write, read, stop, half-close and reset whenever they like. The reference model is what the
//!   applications wrote; invariants I1 to I9 of ARCHITECTURE.md are checked after every event. No
//!   control plane stands in the world at all (I10).
//! - [`hop`] drives daemons and relays through everything that decides where a relay leads an open:
//!   sessions, liveness connections, registrations, policies, restarts. The reference model is the
//!   history of each endpoint's registrations; what else must hold is listed there (H1 to H7).
//!
//! A broken invariant panics with what broke; otherwise the [`Transcript`] has a digest of everything
//! that happened.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a simulator stops where something is not as it must be"
)]

mod agenda;
pub mod hop;
pub mod streams;
mod transcript;
mod worlds;

pub use transcript::Transcript;
pub use worlds::WorldKind;

#[cfg(test)]
mod tests;

//! The worlds, by name.

use crate::{Transcript, hop, streams};

/// A world that seeds are run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WorldKind {
    /// Streams over legs through relays.
    Streams,
    /// Hop sessions, registrations and who is dead.
    Hop,
}

impl WorldKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Streams, Self::Hop];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Hop => "hop",
        }
    }

    /// Runs it under `seed`.
    ///
    /// # Panics
    /// An invariant does not hold.
    pub fn run(self, seed: u64, transcript: &mut Transcript) {
        match self {
            Self::Streams => streams::run(seed, transcript),
            Self::Hop => hop::run(seed, transcript),
        }
    }
}

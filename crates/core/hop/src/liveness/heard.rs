//! When QUIC was last heard, counted in time that this process has run.

use fairlead_model::MonoTime;
use std::time::Duration;

/// Longest time between two inputs of a process that runs: three of its looks at the datagrams.
const PAUSE_MAX: Duration = Duration::from_millis(750);
const _: () = assert!(PAUSE_MAX.as_millis() >= 3 * super::LOOK_EVERY.as_millis());

/// What was heard of the peer.
///
/// A process that was stopped, or had no turn, finds its timers due before it has read what came
/// meanwhile: the peer was not silent, nobody listened. Such a pause is no silence (F-06).
#[derive(Debug)]
pub(super) struct Heard {
    received_bytes: u64,
    at: MonoTime,
    looked: MonoTime,
}

/// What a look has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Something has come since the last one.
    pub(super) news: bool,
    /// For how long this process did not run; zero if it did.
    pub(super) paused: Duration,
}

impl Heard {
    /// Heard at `now`.
    pub(super) const fn new(received_bytes: u64, now: MonoTime) -> Self {
        Self {
            received_bytes,
            at: now,
            looked: now,
        }
    }

    /// Looks at how much QUIC has received.
    pub(super) fn look(&mut self, received_bytes: u64, now: MonoTime) -> Look {
        let since = now.since(self.looked);
        let paused = if since > PAUSE_MAX { since } else { Duration::ZERO };
        self.looked = now;
        self.at = self.at.plus(paused);
        let news = received_bytes != self.received_bytes;
        if news {
            self.received_bytes = received_bytes;
            self.at = now;
        }
        Look { news, paused }
    }

    /// When the peer was last heard, later by what this process has not run since.
    pub(super) const fn at(&self) -> MonoTime {
        self.at
    }
}

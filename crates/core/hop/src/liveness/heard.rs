//! When QUIC was last heard, and by it, counted in time that this process has run.

use super::node::Passed;
use fairlead_model::MonoTime;
use std::time::Duration;

/// Longest time between two inputs of a process that runs: three of its looks at the datagrams.
const PAUSE_MAX: Duration = Duration::from_millis(750);
const _: () = assert!(PAUSE_MAX.as_millis() >= 3 * super::LOOK_EVERY.as_millis());
/// How long after a pause something that came meanwhile may not have been read: until the next look.
const CATCH_UP: Duration = super::LOOK_EVERY;

/// What was heard of the peer.
///
/// A process that was stopped, or had no turn, finds its timers due before it has read what came
/// meanwhile: the peer was not silent, nobody listened. Such a pause is no silence (F-06), and what
/// was silent before it is none until all that came has been read.
#[derive(Debug)]
pub(super) struct Heard {
    received_bytes: u64,
    at: MonoTime,
    looked: MonoTime,
    /// When this process last went on after a pause.
    resumed: Option<MonoTime>,
}

/// Whether what this end says arrives.
///
/// Not by the number of ACK frames: an end that is not heard any more goes on telling in its own packets what it
/// heard before. QUIC measures the round trip anew with each acknowledgement of something new (RFC 9002, section
/// 5.1), which to the nanosecond is another one.
#[derive(Debug)]
pub(super) struct Arrived {
    rtt: Duration,
    asking_frames: u64,
    /// Since when something waits for its acknowledgement, later by what this process has not run since.
    waits: Option<MonoTime>,
    looked: MonoTime,
}

impl Arrived {
    pub(super) const fn new(passed: Passed, now: MonoTime) -> Self {
        Self {
            rtt: passed.rtt,
            asking_frames: passed.asking_frames,
            waits: None,
            looked: now,
        }
    }

    pub(super) fn look(&mut self, passed: Passed, now: MonoTime) {
        let paused = pause(self.looked, now);
        self.looked = now;
        self.waits = self.waits.map(|at| at.plus(paused));
        if self.rtt != passed.rtt {
            (self.rtt, self.waits) = (passed.rtt, None);
        }
        if self.asking_frames != passed.asking_frames {
            self.asking_frames = passed.asking_frames;
            self.waits.get_or_insert(now);
        }
    }

    /// Whether something has waited for its acknowledgement for `limit`.
    pub(super) fn is_silent(&self, limit: Duration, now: MonoTime) -> bool {
        self.waits.is_some_and(|at| now.since(at) >= limit)
    }
}

/// For how long this process did not run since it looked last; zero if it did.
fn pause(looked: MonoTime, now: MonoTime) -> Duration {
    let since = now.since(looked);
    if since > PAUSE_MAX { since } else { Duration::ZERO }
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
            resumed: None,
        }
    }

    /// Looks at how much QUIC has received.
    pub(super) fn look(&mut self, received_bytes: u64, now: MonoTime) -> Look {
        let paused = pause(self.looked, now);
        self.looked = now;
        self.at = self.at.plus(paused);
        if !paused.is_zero() {
            self.resumed = Some(now);
        }
        let news = received_bytes != self.received_bytes;
        if news {
            self.received_bytes = received_bytes;
            self.at = now;
        }
        Look { news, paused }
    }

    /// Whether something may have come during a pause that is not read yet: nobody is dead by then.
    pub(super) fn is_behind(&self, now: MonoTime) -> bool {
        self.resumed.is_some_and(|at| now < at.plus(CATCH_UP))
    }

    /// Whether the peer has been silent for `limit`, all that came being read.
    pub(super) fn is_silent(&self, limit: Duration, now: MonoTime) -> bool {
        !self.is_behind(now) && now.since(self.at) >= limit
    }

    /// When the peer was last heard, later by what this process has not run since.
    pub(super) const fn at(&self) -> MonoTime {
        self.at
    }
}

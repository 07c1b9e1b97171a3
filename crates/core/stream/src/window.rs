//! How much the peer may have in flight to this end, and when it is told.

use crate::rtt::Rtt;
use fairlead_model::MonoTime;
use std::time::Duration;

/// Bytes that either end may send before it has heard a limit, and the least that a window shrinks
/// to. Part of the protocol: what every stream is charged for, however many there are.
pub const INITIAL_WINDOW: u64 = 64 * 1024;
/// The window in bytes that the first limit gives where memory allows: a small file's worth before
/// the first measured round trip.
pub(crate) const FIRST_WINDOW: u64 = 256 * 1024;
/// Longest time that received bytes wait for their ACK, so that one ACK serves many records and a
/// reply carries it for nothing.
const ACK_DELAY: Duration = Duration::from_millis(10);
/// Fewest bytes that make an ACK due at once, where the window holds four times as many.
const ACK_BYTES_MIN: u64 = 64 * 1024;
/// The window stops growing when its own queue delays the path by this much: a larger one would
/// add delay for the streams beside it, and no throughput.
const QUEUEING_MAX: Duration = Duration::from_millis(10);

/// Credit and acknowledgements of the receiving direction (I3: the limit never retracts).
#[derive(Debug)]
pub(crate) struct Window {
    size: u64,
    /// How far it may grow by the settings, and by the daemon's memory.
    cap: u64,
    max: u64,
    /// The path could use a window above `max`.
    short: bool,
    /// The highest limit that was sent, and what the peer may rely on.
    limit: u64,
    /// Bytes received since the last ACK.
    unacked: u64,
    due: bool,
    deadline: Option<MonoTime>,
    /// Start of the measured round, and what was consumed when it started.
    round: Option<(MonoTime, u64)>,
}

impl Window {
    pub(crate) fn new(max: u64) -> Self {
        let cap = max.max(INITIAL_WINDOW);
        Self {
            size: FIRST_WINDOW.min(cap),
            cap,
            max: cap,
            short: false,
            limit: INITIAL_WINDOW,
            unacked: 0,
            due: false,
            deadline: None,
            round: None,
        }
    }

    pub(crate) fn set_max(&mut self, max: u64) {
        self.max = max.clamp(INITIAL_WINDOW, self.cap);
        if self.short && self.size < self.max {
            self.size = self.max;
            self.short = false;
        }
        self.size = self.size.min(self.max);
    }

    /// The size that the path could use.
    pub(crate) const fn wanted(&self) -> u64 {
        if self.short {
            let doubled = self.size * 2;
            if doubled < self.cap { doubled } else { self.cap }
        } else {
            self.size
        }
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// `n` new bytes arrived.
    pub(crate) fn received(&mut self, n: u64, now: MonoTime) {
        self.unacked += n;
        if self.unacked >= self.threshold() {
            self.due = true;
        } else {
            self.arm(now);
        }
    }

    /// An ACK is due at once: after ATTACH, FIN and duplicates.
    pub(crate) fn ack_now(&mut self) {
        self.due = true;
    }

    /// The application took bytes; `consumed` counts all it ever took.
    pub(crate) fn consumed(&mut self, consumed: u64, rtt: &Rtt, now: MonoTime) {
        self.grow(consumed, rtt, now);
        let gain = (consumed + self.size).saturating_sub(self.limit);
        if gain >= self.threshold() {
            self.due = true;
        } else if gain > 0 {
            self.arm(now);
        }
    }

    /// Nothing is to be received any more: no credit is worth telling.
    pub(crate) fn quiet(&mut self) {
        self.deadline = None;
    }

    pub(crate) const fn is_due(&self) -> bool {
        self.due
    }

    /// Whether there is anything at all to tell, due or not: it rides on a record that goes anyway.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.due || self.deadline.is_some()
    }

    pub(crate) const fn deadline(&self) -> Option<MonoTime> {
        if self.due { None } else { self.deadline }
    }

    pub(crate) fn handle_timeout(&mut self, now: MonoTime) {
        if self.deadline.is_some_and(|d| d <= now) {
            self.due = true;
        }
    }

    /// The limit to send; the ACK is on its way. Whether it ends a busy spell tells `bulk`.
    pub(crate) fn acknowledge(&mut self, consumed: u64) -> Acknowledged {
        let bulk = self.unacked >= self.threshold();
        self.limit = self.limit.max(consumed + self.size);
        self.unacked = 0;
        self.due = false;
        self.deadline = None;
        Acknowledged {
            limit: self.limit,
            bulk,
        }
    }

    fn threshold(&self) -> u64 {
        (self.size / 8).max(ACK_BYTES_MIN.min(self.size / 4))
    }

    fn arm(&mut self, now: MonoTime) {
        self.deadline.get_or_insert(now.plus(ACK_DELAY));
    }

    /// Doubles the window when half of it or more is consumed within one round trip: then the
    /// window, not the application, is the limit.
    fn grow(&mut self, consumed: u64, rtt: &Rtt, now: MonoTime) {
        let Some(round_trip) = rtt.smoothed() else { return };
        let (start, before) = *self.round.get_or_insert((now, consumed));
        let elapsed = now.since(start);
        if elapsed < round_trip {
            return;
        }
        let whole_rounds = elapsed.as_nanos() / round_trip.as_nanos().max(1);
        let per_round = u128::from(consumed - before) / whole_rounds.max(1);
        if per_round >= u128::from(self.size / 2) && rtt.queueing() < QUEUEING_MAX {
            self.short = self.size * 2 > self.max && self.size < self.cap;
            self.size = (self.size * 2).min(self.max);
        } else {
            self.short = false;
        }
        self.round = Some((now, consumed));
    }
}

/// What an ACK says beside the position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acknowledged {
    pub(crate) limit: u64,
    /// The ACK was due by bytes, not by time.
    pub(crate) bulk: bool,
}

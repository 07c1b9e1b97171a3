//! Round-trip time of a stream, end to end, from ATTACH and PING.

use fairlead_model::MonoTime;
use std::time::Duration;

/// Least time between two PINGs of a busy stream: ten samples a second follow a changing path and
/// cost nothing.
const PING_INTERVAL: Duration = Duration::from_millis(100);

/// Round-trip times, smoothed as RFC 9002 section 5.3 does (one eighth of each new sample).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    least: Duration,
    outstanding: Option<(u64, MonoTime)>,
    last_ping: Option<MonoTime>,
    next_id: u64,
}

impl Rtt {
    pub(crate) fn sample(&mut self, rtt: Duration) {
        match &mut self.smoothed {
            Some(smoothed) => {
                *smoothed = (*smoothed * 7 + rtt) / 8;
                self.least = self.least.min(rtt);
            }
            None => {
                self.smoothed = Some(rtt);
                self.least = rtt;
            }
        }
    }

    /// The id of a PING to send, if one is due: none is out, and the last was long enough ago.
    pub(crate) fn ping_due(&mut self, now: MonoTime) -> Option<u64> {
        if self.outstanding.is_some() || self.last_ping.is_some_and(|t| now.since(t) < PING_INTERVAL) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.outstanding = Some((id, now));
        self.last_ping = Some(now);
        Some(id)
    }

    /// A PONG came; one that answers no PING that is out is ignored.
    pub(crate) fn pong(&mut self, id: u64, now: MonoTime) {
        if let Some((_, sent)) = self.outstanding.take_if(|(out, _)| *out == id) {
            self.sample(now.since(sent));
        }
    }

    /// A leg is gone, perhaps with a PING or its PONG.
    pub(crate) fn forget_ping(&mut self) {
        self.outstanding = None;
    }

    pub(crate) const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How much longer than the shortest the path takes: its queues.
    pub(crate) fn queueing(&self) -> Duration {
        self.smoothed
            .map_or(Duration::ZERO, |s| s.saturating_sub(self.least))
    }
}

//! Waits between attempts, with jitter.

use std::time::Duration;

/// A wait that grows with each failure and starts over after a success.
///
/// Each wait is drawn from the upper half of its step, so that a thousand daemons that lost the
/// same relay do not come back in one instant.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    step: Duration,
}

impl Backoff {
    /// Waits from `first` (its upper half) to `longest`, growing by half each time.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            step: first,
        }
    }

    /// The next wait. `jitter` draws uniformly from zero to its argument.
    pub(crate) fn next(&mut self, jitter: impl Fn(Duration) -> Duration) -> Duration {
        let half = self.step / 2;
        let wait = half + jitter(half);
        self.step = (self.step + half).min(self.longest);
        wait
    }

    /// Starts over.
    pub(crate) const fn reset(&mut self) {
        self.step = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-NOD-01: the first retry comes within 100 ms, and no wait exceeds 15 s.
    #[test]
    fn waits_grow_within_their_bounds() {
        for (draw, first, last) in [(0, 50, 7_500), (1, 100, 15_000)] {
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(15));
            let jitter = |d: Duration| d * draw;
            assert_eq!(backoff.next(jitter), Duration::from_millis(first));
            let mut wait = Duration::ZERO;
            for _ in 0..30 {
                let next = backoff.next(jitter);
                assert!(next >= wait);
                wait = next;
            }
            assert_eq!(wait, Duration::from_millis(last));
            backoff.reset();
            assert_eq!(backoff.next(jitter), Duration::from_millis(first));
        }
    }
}

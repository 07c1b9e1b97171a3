//! When an ended worker is started again: a pure rule.
//!
//! Input: [`RestartRule::ended`] with the time a run began and ended. Output: how long to wait.
//! A worker that ran well is started again at once, since live tunnels wait for it; one that keeps
//! ending soon after its start waits longer each time, and is reported as a crash loop.

use fairlead_model::MonoTime;
use std::collections::VecDeque;
use std::time::Duration;

/// A run at least this long counts as a good one: it clears the back-off. Below the 7 s between two
/// kills of F-04.
pub const GOOD_RUN: Duration = Duration::from_secs(5);
/// First delay after a short run. A worker needs about 50 ms to listen, so this keeps the gap of
/// one crash below the 3 s for which nodes hold new connections (R-NOD-02).
pub const DELAY_FIRST: Duration = Duration::from_millis(200);
/// Longest delay below a crash loop.
pub const DELAY_MAX: Duration = Duration::from_secs(5);
/// Delay while in a crash loop: the host is spared, the relay still heals by itself.
pub const CRASH_LOOP_DELAY: Duration = Duration::from_secs(30);
/// This many ends of short runs within [`CRASH_LOOP_WINDOW`] are a crash loop. A run of
/// [`GOOD_RUN`] is none of them, however often one is ended from outside.
pub const CRASH_LOOP_ENDS: usize = 5;
/// See [`CRASH_LOOP_ENDS`].
pub const CRASH_LOOP_WINDOW: Duration = Duration::from_secs(60);

const _: () = assert!(DELAY_FIRST.as_millis() < DELAY_MAX.as_millis());
const _: () = assert!(DELAY_MAX.as_millis() < CRASH_LOOP_DELAY.as_millis());

/// What to do about an ended worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Start it after this delay.
    After(Duration),
    /// It keeps ending: start it after this delay, and report the crash loop.
    CrashLoop(Duration),
}

impl Restart {
    /// The delay.
    #[must_use]
    pub const fn delay(self) -> Duration {
        match self {
            Self::After(d) | Self::CrashLoop(d) => d,
        }
    }
}

/// Remembers the last ends of short runs, at most [`CRASH_LOOP_ENDS`] of them.
#[derive(Debug, Default)]
pub struct RestartRule {
    ends: VecDeque<MonoTime>,
    short_runs: u32,
}

impl RestartRule {
    /// A run that began at `began` has ended at `now`.
    pub fn ended(&mut self, began: MonoTime, now: MonoTime) -> Restart {
        if now.since(began) >= GOOD_RUN {
            self.ends.clear();
            self.short_runs = 0;
            return Restart::After(Duration::ZERO);
        }
        if self.ends.len() == CRASH_LOOP_ENDS {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
        let crash_loop = self.ends.len() == CRASH_LOOP_ENDS
            && self
                .ends
                .front()
                .is_some_and(|first| now.since(*first) < CRASH_LOOP_WINDOW);
        if crash_loop {
            return Restart::CrashLoop(CRASH_LOOP_DELAY);
        }
        let delay = DELAY_FIRST
            .saturating_mul(1 << self.short_runs.min(10))
            .min(DELAY_MAX);
        self.short_runs = self.short_runs.saturating_add(1);
        Restart::After(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * 1_000_000_000)
    }

    #[test]
    fn a_good_run_is_followed_at_once() {
        let mut rule = RestartRule::default();
        assert_eq!(rule.ended(at(0), at(100)), Restart::After(Duration::ZERO));
    }

    #[test]
    fn short_runs_wait_longer_each_time() {
        let mut rule = RestartRule::default();
        let delays: Vec<_> = (0..4)
            .map(|i| rule.ended(at(i * 20), at(i * 20 + 1)).delay())
            .collect();
        assert_eq!(
            delays.iter().map(Duration::as_millis).collect::<Vec<_>>(),
            [200, 400, 800, 1600]
        );
        // A good run clears the back-off.
        assert_eq!(rule.ended(at(200), at(300)), Restart::After(Duration::ZERO));
        assert_eq!(rule.ended(at(400), at(401)), Restart::After(DELAY_FIRST));
    }

    #[test]
    fn five_ends_in_a_minute_are_a_crash_loop() {
        let mut rule = RestartRule::default();
        for i in 0..4 {
            assert!(matches!(rule.ended(at(i), at(i)), Restart::After(_)), "{i}");
        }
        assert_eq!(rule.ended(at(5), at(6)), Restart::CrashLoop(CRASH_LOOP_DELAY));
        // Good runs are none, however many end within the window.
        for i in 0..10 {
            let began = 10 + i * 11;
            assert_eq!(
                rule.ended(at(began), at(began + 10)),
                Restart::After(Duration::ZERO)
            );
        }
        // Ends far apart are none.
        assert!(matches!(rule.ended(at(3600), at(3601)), Restart::After(_)));
    }
}

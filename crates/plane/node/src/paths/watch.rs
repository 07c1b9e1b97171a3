//! Whether one path lives, by when it was heard of and when it was asked.

use fairlead_model::MonoTime;
use std::time::Duration;

/// An idle path is asked this often (ARCHITECTURE.md, Streams).
const PING_EVERY: Duration = Duration::from_secs(1);
/// A path that was busy is asked after this much silence.
const PING_BUSY_AFTER: Duration = Duration::from_millis(100);
/// Looks in a row that found something new, for a path to count as busy.
const BUSY_LOOKS: u32 = 3;
/// Pings without an answer until the path counts as silent.
const MISSED_MAX: u32 = 3;
/// Least time for an answer before the path is suspected.
const SUSPECT_AFTER_MIN: Duration = Duration::from_millis(250);
/// The same in round trips.
const SUSPECT_AFTER_RTTS: u32 = 3;

/// How long an answer may take before silence is suspicious.
pub(crate) fn suspect_after(rtt: Option<Duration>) -> Duration {
    (rtt.unwrap_or_default() * SUSPECT_AFTER_RTTS).max(SUSPECT_AFTER_MIN)
}

/// What is thought of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Verdict {
    /// Nothing speaks against it.
    #[default]
    Alive,
    /// An answer is late.
    Suspect,
    /// Three answers are missing.
    Silent,
}

/// What follows from one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) ping: bool,
    pub(super) verdict: Verdict,
}

/// The state of one path's watch.
#[derive(Debug, Default)]
pub(super) struct PathWatch {
    heard: Option<MonoTime>,
    busy_looks: u32,
    /// The oldest ping without an answer.
    asked: Option<MonoTime>,
    pings: u32,
}

impl PathWatch {
    /// A look at `now` at a path that was last heard of at `heard`.
    pub(super) fn tick(&mut self, now: MonoTime, heard: MonoTime, rtt: Duration) -> Look {
        let news = self.heard.is_none_or(|before| heard > before);
        self.heard = Some(heard);
        // What comes after a ping is its answer, or as good as one.
        if self.asked.is_some_and(|asked| heard > asked) {
            self.asked = None;
            self.pings = 0;
        }
        let Some(asked) = self.asked else {
            let busy = self.busy_looks >= BUSY_LOOKS;
            let patience = if busy { PING_BUSY_AFTER } else { PING_EVERY };
            let ping = now.since(heard) >= patience;
            if news {
                self.busy_looks += 1;
            } else if ping || !busy {
                self.busy_looks = 0;
            }
            if ping {
                self.asked = Some(now);
                self.pings = 1;
            }
            return Look {
                ping,
                verdict: Verdict::Alive,
            };
        };
        let waited = now.since(asked);
        let due = waited >= PING_EVERY * self.pings;
        let ping = due && self.pings < MISSED_MAX;
        self.pings += u32::from(ping);
        let verdict = if waited >= PING_EVERY * MISSED_MAX {
            Verdict::Silent
        } else if waited >= suspect_after(Some(rtt)) {
            Verdict::Suspect
        } else {
            Verdict::Alive
        };
        if verdict == Verdict::Silent && waited >= PING_EVERY * (MISSED_MAX + 1) {
            // Asked again from time to time: a relay that was stopped may go on.
            self.asked = None;
            self.pings = 0;
        }
        Look { ping, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime(1_000_000_000).plus(Duration::from_millis(ms))
    }

    /// The looks that said something, every 50 ms; the path is heard of at the given times.
    fn story(heard: &[u64], until: u64, rtt: u64) -> String {
        let mut watch = PathWatch::default();
        let mut told = String::new();
        let mut verdict = Verdict::Alive;
        for ms in (0..until).step_by(50) {
            let last = heard.iter().copied().filter(|h| *h <= ms).max().unwrap();
            let look = watch.tick(at(ms), at(last), Duration::from_millis(rtt));
            if look.ping {
                told += &format!("{ms} ping, ");
            }
            if look.verdict != verdict {
                verdict = look.verdict;
                told += &format!("{ms} {verdict:?}, ");
            }
        }
        told
    }

    /// An idle path is asked each second and left alone while it answers.
    #[test]
    fn an_idle_path_is_asked_each_second() {
        assert_eq!(story(&[0, 1010, 2060], 3000, 10), "1000 ping, 2050 ping, ");
    }

    /// Three missed pings are silence: about 3 s after the first.
    #[test]
    fn an_idle_path_falls_silent() {
        let expected = "1000 ping, 1250 Suspect, 2000 ping, 3000 ping, 4000 Silent, ";
        assert_eq!(story(&[0], 4500, 10), expected);
    }

    /// A busy path is asked soon after its last word.
    #[test]
    fn a_busy_path_is_asked_at_once() {
        let heard: Vec<u64> = (0..=500).step_by(25).collect();
        let expected = "600 ping, 850 Suspect, 1600 ping, 2600 ping, 3600 Silent, ";
        assert_eq!(story(&heard, 4000, 10), expected);
    }

    /// A long round trip is no silence.
    #[test]
    fn a_long_path_gets_its_time() {
        assert_eq!(story(&[0, 1600], 2500, 200), "1000 ping, ");
    }

    /// A path that speaks again is no longer suspect.
    #[test]
    fn a_path_that_speaks_again_is_trusted() {
        let expected = "1000 ping, 1250 Suspect, 2000 ping, 2100 Alive, ";
        assert_eq!(story(&[0, 2100], 3000, 10), expected);
    }
}

//! A path that carries nothing, and whether it would carry.
//!
//! A spare is asked as a stream would ask: an open through its relay that ends at the publisher's
//! daemon. Its sealed answer proves the way there and back, what the relay and the publisher think
//! of the route, and how long a move would take.

use super::watch::suspect_after;
use fairlead_model::MonoTime;
use std::time::Duration;

/// A spare is asked this often (ARCHITECTURE.md, Streams).
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Wait after a first failure, twice as long each time, up to the longest: a relay that has come
/// back is asked again before its streams' applications notice.
const AGAIN_FIRST: Duration = Duration::from_millis(50);
const AGAIN_LONGEST: Duration = Duration::from_secs(1);
const AGAIN_DOUBLINGS: u32 = 5;
/// A path that was not heard of for this long, three questions, has no proof any more.
pub(super) const PROOF_AGE_MAX: Duration = Duration::from_secs(3);

const _: () = assert!(
    AGAIN_FIRST.as_millis() << AGAIN_DOUBLINGS >= AGAIN_LONGEST.as_millis(),
    "the doublings reach the longest wait"
);

/// What is known of one spare.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// When the publisher's last answer came, and how long it took.
    proof: Option<(MonoTime, Duration)>,
    /// A question is on its way since then.
    asked: Option<MonoTime>,
    next: MonoTime,
    failures: u32,
}

impl Spare {
    /// Since when a question is due; `None` if it is not.
    pub(super) fn due(&self, now: MonoTime) -> Option<MonoTime> {
        (self.asked.is_none() && self.next <= now).then_some(self.next)
    }

    /// A question is on its way. Every one is answered or fails.
    pub(super) const fn asked(&mut self, now: MonoTime) {
        self.asked = Some(now);
    }

    /// The answer came. True if the spare had no proof before.
    pub(super) fn answered(&mut self, now: MonoTime, rtt: Duration) -> bool {
        let news = self.proven(now).is_none();
        *self = Self {
            proof: Some((now, rtt)),
            asked: None,
            next: now.plus(ASK_EVERY),
            failures: 0,
        };
        news
    }

    /// No answer came, or another one than asked for. Never a proof: false. `jitter` draws from zero
    /// to its argument.
    pub(super) fn failed(&mut self, now: MonoTime, jitter: impl Fn(Duration) -> Duration) -> bool {
        let wait = (AGAIN_FIRST * (1 << self.failures.min(AGAIN_DOUBLINGS))).min(AGAIN_LONGEST);
        *self = Self {
            proof: None,
            asked: None,
            next: now.plus(wait / 2 + jitter(wait / 2)),
            failures: self.failures.saturating_add(1),
        };
        false
    }

    /// How long the last answer took, if it is fresh and no other is late.
    pub(super) fn proven(&self, now: MonoTime) -> Option<Duration> {
        let (at, rtt) = self.proof?;
        let late = self
            .asked
            .is_some_and(|asked| now.since(asked) >= suspect_after(Some(rtt)));
        (now.since(at) < PROOF_AGE_MAX && !late).then_some(rtt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime(1_000_000_000).plus(Duration::from_millis(ms))
    }

    const RTT: Duration = Duration::from_millis(10);

    /// F-07: a spare that never answered is never proven, and is asked again and again, no more than
    /// once in half a second in the end.
    #[test]
    fn without_an_answer_there_is_no_proof() {
        let mut spare = Spare::default();
        let mut asked = Vec::new();
        for ms in 0..10_000 {
            assert_eq!(spare.proven(at(ms)), None);
            if spare.due(at(ms)).is_some() {
                asked.push(ms);
                spare.asked(at(ms));
                assert!(!spare.failed(at(ms), |_| Duration::ZERO));
            }
        }
        assert_eq!(asked.first(), Some(&0));
        assert!(asked.len() <= 30, "{asked:?}");
        assert!(asked.windows(2).all(|w| w[1] - w[0] <= 500), "{asked:?}");
    }

    /// A proof ends with its age, and sooner when the next answer is late.
    #[test]
    fn a_proof_ends() {
        let mut spare = Spare::default();
        spare.asked(at(0));
        assert!(spare.answered(at(10), RTT), "the first proof is news");
        assert_eq!(spare.proven(at(10)), Some(RTT));
        assert_eq!(spare.due(at(1009)), None);
        assert!(spare.due(at(1010)).is_some());
        assert_eq!(spare.proven(at(3009)), Some(RTT));
        assert_eq!(spare.proven(at(3010)), None, "three questions old");
        spare.asked(at(1010));
        assert_eq!(spare.proven(at(1259)), Some(RTT));
        assert_eq!(spare.proven(at(1260)), None, "the answer is late");
        assert!(spare.answered(at(1300), RTT), "it is news again");
        spare.asked(at(2300));
        assert!(!spare.answered(at(2310), RTT), "it had a proof");
        spare.failed(at(2320), |_| Duration::ZERO);
        assert_eq!(spare.proven(at(2320)), None, "a failure ends it");
    }
}

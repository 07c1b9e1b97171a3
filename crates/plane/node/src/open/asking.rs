//! Which relays of an open's round are asked, and when. Pure.
//!
//! A relay that does not answer is not waited for to the end before another one is asked (R-NOD-02), and it
//! is not given up for that either: it may be slow, it may hold the open for a late policy (R-POL-10), and
//! so may all others. Whichever answers first carries the stream: every leg of an open bears the same
//! stream number, so that the target is dialled once (I8).

use crate::driver::answer_wait;
use fairlead_model::MonoTime;
use std::time::Duration;

/// Legs of one open that wait for their answers at once: with the longest wait for each, the third is asked
/// within the 3 s that a connection is held. One less than a stream may have.
pub(super) const ASKED_AT_ONCE: usize = 3;

/// What the round does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Asks this candidate.
    Ask(usize),
    /// Gives up this candidate's leg: it is late, and others wait to be asked.
    GiveUp(usize),
    /// Nothing before that, unless an answer comes.
    WaitUntil(MonoTime),
    /// Nothing before an answer comes.
    Wait,
    /// All were asked, and none is left that could answer.
    Over,
}

#[derive(Debug)]
struct Asked {
    candidate: usize,
    late_at: MonoTime,
}

/// One round over `count` candidates, which are asked in their order.
///
/// After each input, [`next`](Self::next) is called until it says to wait.
#[derive(Debug)]
pub(super) struct Asking {
    count: usize,
    next: usize,
    /// Those that have not answered, the one that was asked first in front.
    waiting: Vec<Asked>,
}

impl Asking {
    /// Nobody is asked yet.
    pub(super) const fn new(count: usize) -> Self {
        Self {
            count,
            next: 0,
            waiting: Vec::new(),
        }
    }

    /// There are so many candidates now: those that came are asked behind the others.
    pub(super) const fn grow(&mut self, count: usize) {
        if count > self.count {
            self.count = count;
        }
    }

    /// What to do at `now`.
    pub(super) fn next(&self, now: MonoTime) -> Next {
        let late_at = self.waiting.iter().map(|asked| asked.late_at).max();
        let has_more = self.next < self.count;
        match (late_at, self.waiting.first()) {
            (Some(at), Some(_)) if has_more && at > now => Next::WaitUntil(at),
            (Some(_), Some(first)) if has_more && self.waiting.len() >= ASKED_AT_ONCE => {
                Next::GiveUp(first.candidate)
            }
            _ if has_more => Next::Ask(self.next),
            (Some(_), _) => Next::Wait,
            (None, _) => Next::Over,
        }
    }

    /// The candidate was asked; the round trip to its publisher is `rtt`, as far as is known.
    pub(super) fn asked(&mut self, candidate: usize, rtt: Option<Duration>, now: MonoTime) {
        self.next = self.next.max(candidate + 1);
        self.waiting.push(Asked {
            candidate,
            late_at: now.plus(answer_wait(rtt)),
        });
    }

    /// No further candidate before then.
    pub(super) fn postpone(&mut self, until: MonoTime) {
        if let Some(last) = self.waiting.last_mut() {
            last.late_at = last.late_at.max(until);
        }
    }

    /// The candidates that were asked and have not answered.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|asked| asked.candidate)
    }

    /// Those of them that are late.
    pub(super) fn late(&self, now: MonoTime) -> impl Iterator<Item = usize> {
        let late = self.waiting.iter().filter(move |asked| asked.late_at <= now);
        late.map(|asked| asked.candidate)
    }

    /// The candidate has answered, failed, or was given up.
    pub(super) fn ended(&mut self, candidate: usize) {
        self.waiting.retain(|asked| asked.candidate != candidate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::HOLD;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn at(ms: u64) -> MonoTime {
        MonoTime(1_000_000_000).plus(Duration::from_millis(ms))
    }

    /// What a relay of the story does: after how many milliseconds it answers, if it does, and the round trip
    /// that is known of it.
    type Relay = (Option<u64>, Option<u64>);

    /// When each candidate was asked, and which were given up, until `until` or the round's end. The first
    /// answer is a refusal, as all others: the round goes on.
    fn story(relays: &[Relay], until: u64) -> (Vec<u64>, BTreeSet<usize>, bool) {
        let mut asking = Asking::new(relays.len());
        let (mut asked, mut given_up) = (Vec::new(), BTreeSet::new());
        let mut due: Vec<(u64, usize)> = Vec::new();
        for ms in 0..=until {
            let (now, later): (Vec<_>, Vec<_>) = due.iter().partition(|(at, _)| *at <= ms);
            due = later;
            for (_, n) in now {
                asking.ended(n);
            }
            loop {
                match asking.next(at(ms)) {
                    Next::Ask(n) => {
                        assert_eq!(n, asked.len(), "in their order, each once");
                        asked.push(ms);
                        asking.asked(n, relays[n].1.map(Duration::from_millis), at(ms));
                        due.extend(relays[n].0.map(|answer| (ms + answer, n)));
                        assert!(asking.waiting.len() <= ASKED_AT_ONCE);
                    }
                    Next::GiveUp(n) => {
                        assert!(asked.len() < relays.len(), "nobody gives way to nobody");
                        assert!(given_up.insert(n));
                        asking.ended(n);
                    }
                    Next::WaitUntil(until) => {
                        assert!(until > at(ms));
                        break;
                    }
                    Next::Wait => break,
                    Next::Over => return (asked, given_up, true),
                }
            }
        }
        (asked, given_up, false)
    }

    /// R-NOD-02: beside a relay that says nothing another one is asked after a second; one that refuses gives
    /// way at once.
    #[test]
    fn a_silent_relay_does_not_keep_the_others_from_being_asked() {
        let silent = (None, None);
        let (asked, given_up, over) = story(&[silent, silent, silent], 20_000);
        assert_eq!(
            (asked, given_up, over),
            (vec![0, 1_000, 2_000], BTreeSet::new(), false)
        );
        let refuses = (Some(10), None);
        let (asked, _, over) = story(&[refuses, refuses], 20_000);
        assert_eq!((asked, over), (vec![0, 10], true));
        let (asked, ..) = story(&[silent, refuses, refuses], 20_000);
        assert_eq!(asked, [0, 1_000, 1_010]);
        let (asked, given_up, _) = story(&[silent; 5], 20_000);
        assert_eq!(asked, [0, 1_000, 2_000, 3_000, 4_000]);
        assert_eq!(given_up, BTreeSet::from([0, 1]), "never more than three at once");
    }

    /// R-NOD-02: a relay that comes while the only one says nothing is asked as if it had been there.
    #[test]
    fn who_comes_later_is_asked_beside_a_silent_one() {
        let mut asking = Asking::new(1);
        assert_eq!(asking.next(at(0)), Next::Ask(0));
        asking.asked(0, None, at(0));
        assert_eq!(asking.next(at(0)), Next::Wait);
        asking.grow(2);
        assert_eq!(asking.next(at(300)), Next::WaitUntil(at(1_000)));
        asking.grow(1);
        assert_eq!(asking.next(at(1_000)), Next::Ask(1));
        asking.asked(1, None, at(1_000));
        assert_eq!(asking.next(at(1_000)), Next::Wait);
    }

    /// R-POL-10: who is asked alone, or last, is waited for.
    #[test]
    fn a_slow_relay_is_waited_for() {
        let slow = (Some(9_000), None);
        let (asked, given_up, over) = story(&[slow], 20_000);
        assert_eq!((asked, given_up, over), (vec![0], BTreeSet::new(), true));
        let (asked, given_up, over) = story(&[slow, slow], 20_000);
        assert_eq!((asked, given_up, over), (vec![0, 1_000], BTreeSet::new(), true));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// R-NOD-02: whatever the relays do, and whatever is known of their paths, each is asked within half
        /// the hold of the one before, and nobody before those in front are late or done; and a round whose
        /// relays all answer ends.
        #[test]
        fn everybody_is_asked_in_time(
            relays in prop::collection::vec(
                (prop::option::of(1u64..6_000), prop::option::of(0u64..2_000)), 1..6),
        ) {
            let (asked, given_up, over) = story(&relays, 40_000);
            prop_assert_eq!(asked.len(), relays.len());
            let half = u64::try_from(HOLD.as_millis()).unwrap() / 2;
            for (n, pair) in asked.windows(2).enumerate() {
                let (before, after) = (pair[0], pair[1]);
                prop_assert!(after <= before + half, "{asked:?}");
                let answers = relays[n].0.is_some_and(|answer| before + answer <= after);
                prop_assert!(answers || after >= before + 1_000, "{asked:?}");
            }
            prop_assert!(given_up.iter().all(|n| n + ASKED_AT_ONCE < relays.len()));
            let all_answer = relays.iter().all(|(answer, _)| answer.is_some());
            prop_assert!(over || !all_answer);
        }
    }
}

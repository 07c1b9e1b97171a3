//! Tells two copies of one identity from one member that restarts (R-ENR-10). Pure.
//!
//! A member's folder is locked by one process, and each process draws a boot id. So a run that was
//! succeeded is dead, unless the folder was copied: a run that comes **back** after a later one has
//! begun is the proof of two. It is one only if the run was alive after the later one came: what it had
//! sent before may be late, and counts for nothing. From then on one of them is kept and the other refused, until the
//! other has not come for [`QUARREL_FOR`]: copies that took turns would tear each other's sessions
//! down at the speed of the network.

use fairlead_model::{MonoTime, ProcessBootId};
use std::time::Duration;

/// How long the refused copy may be silent before the member counts as one again. Longer than any
/// pause of a daemon between two attempts.
pub const QUARREL_FOR: Duration = Duration::from_secs(600);
/// How long after its last hello the refused copy is told of. A refused process comes again after 15 to
/// 30 s, so one that has been silent for as long as four of its pauses was stopped.
pub const COPY_NEWS_FOR: Duration = Duration::from_secs(120);
const _: () = assert!(
    COPY_NEWS_FOR.as_secs() <= QUARREL_FOR.as_secs(),
    "what is told of is refused still"
);
/// Runs that are remembered. More than a copy per host that an image was given to by mistake; the
/// oldest goes first.
const RUNS_MAX: usize = 8;

/// A process of the member.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run<T> {
    boot: ProcessBootId,
    /// When it came first.
    arrival: u64,
    about: T,
    own_host: bool,
}

/// The processes that have come with one member's identity.
///
/// **Input:** [`hello`](Self::hello), at the beginning of each session. Hellos may come in another order
/// than their sessions arrived in.
/// **Output:** its verdict. A refused process is told so and gets no session; the session of one
/// that is kept takes the place of any other.
#[derive(Debug, Clone)]
pub struct Runs<T> {
    /// In the order of their first hello, and of their arrival.
    runs: Vec<Run<T>>,
    quarrel: Option<Quarrel>,
}

#[derive(Debug, Clone, Copy)]
struct Quarrel {
    kept: ProcessBootId,
    refused: ProcessBootId,
    /// When the refused one came last.
    heard: MonoTime,
}

impl Quarrel {
    /// Whether the refused one has come within `within`.
    fn is_fresh(&self, now: MonoTime, within: Duration) -> bool {
        now.since(self.heard) < within
    }
}

/// What becomes of a process that said hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunVerdict<T> {
    /// No other one lives.
    Alone,
    /// A later one has greeted that arrived after this session did: what is heard only now was said by a
    /// dead run, or proves nothing yet. The session is to end; a process that lives comes again.
    Late,
    /// Another one lives and is to go.
    Kept {
        /// The other.
        other: T,
        /// Whether this hello has shown it.
        found: bool,
    },
    /// It is to go: another one lives and is kept.
    Refused {
        /// The other.
        kept: T,
        /// Whether this hello has shown it.
        found: bool,
    },
}

/// Two processes with one identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies<'a, T> {
    /// The one that is kept.
    pub kept: &'a T,
    /// The one that is refused.
    pub refused: &'a T,
    /// When the refused one came last.
    pub refused_at: MonoTime,
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self {
            runs: Vec::new(),
            quarrel: None,
        }
    }
}

impl<T: Clone> Runs<T> {
    /// A process begins a session. `arrival` rises in the order in which sessions arrived: a process's must
    /// be drawn after it was heard of and before it could go on without an answer, so that it lived then.
    /// `own_host` says whether it runs on the host that enrolled, as far as that is known; `lives` whether
    /// a process has a session at this moment.
    ///
    /// Of two copies the one on the enrolled host is kept, else the one that came first: a copy that
    /// appears later does not drive out the original.
    pub fn hello(
        &mut self,
        boot: ProcessBootId,
        arrival: u64,
        about: T,
        own_host: bool,
        now: MonoTime,
        lives: impl Fn(ProcessBootId) -> bool,
    ) -> RunVerdict<T> {
        self.settle(now);
        let later = self.runs.last().filter(|last| last.boot != boot);
        if later.is_some_and(|later| arrival < later.arrival) {
            return RunVerdict::Late;
        }
        let first = self.runs.iter().find(|known| known.boot == boot);
        let run = Run {
            boot,
            arrival: first.map_or(arrival, |first| first.arrival),
            about,
            own_host,
        };
        let succeeded = self
            .runs
            .last()
            .filter(|last| last.boot != boot)
            .map(|last| last.boot);
        let came_before = self.runs.iter_mut().find(|known| known.boot == boot);
        let is_known = came_before.map(|known| *known = run.clone()).is_some();
        if !is_known {
            if self.runs.len() >= RUNS_MAX {
                let kept = self.quarrel.map(|q| q.kept);
                let oldest = self.runs.iter().position(|known| Some(known.boot) != kept);
                self.runs.remove(oldest.unwrap_or(0));
            }
            self.runs.push(run);
        }
        match (self.quarrel, succeeded) {
            (Some(quarrel), _) if quarrel.kept == boot => self.verdict(boot, quarrel, false),
            (Some(quarrel), _) => {
                let stays = lives(quarrel.kept) && self.rank(quarrel.kept) < self.rank(boot);
                self.decide(boot, quarrel.kept, stays, now, false)
            }
            (None, Some(later)) if is_known => {
                let stays = self.rank(later) < self.rank(boot);
                self.decide(boot, later, stays, now, true)
            }
            (None, Some(_) | None) => RunVerdict::Alone,
        }
    }

    /// The two copies, while the refused one comes: for [`COPY_NEWS_FOR`] after its last hello. It stays
    /// refused for longer.
    #[must_use]
    pub fn copies(&self, now: MonoTime) -> Option<Copies<'_, T>> {
        let quarrel = self.quarrel.filter(|q| q.is_fresh(now, COPY_NEWS_FOR))?;
        Some(Copies {
            kept: self.about(quarrel.kept)?,
            refused: self.about(quarrel.refused)?,
            refused_at: quarrel.heard,
        })
    }

    /// A quarrel that is over leaves the run that was kept, as if it were the only one ever.
    fn settle(&mut self, now: MonoTime) {
        if let Some(quarrel) = self.quarrel.filter(|q| !q.is_fresh(now, QUARREL_FOR)) {
            self.quarrel = None;
            self.runs.retain(|run| run.boot == quarrel.kept);
        }
    }

    /// Keeps `boot`, or the `other` one that `stays`.
    fn decide(
        &mut self,
        boot: ProcessBootId,
        other: ProcessBootId,
        stays: bool,
        now: MonoTime,
        found: bool,
    ) -> RunVerdict<T> {
        let (kept, refused) = if stays { (other, boot) } else { (boot, other) };
        let quarrel = Quarrel {
            kept,
            refused,
            heard: now,
        };
        self.quarrel = Some(quarrel);
        self.verdict(boot, quarrel, found)
    }

    fn verdict(&self, boot: ProcessBootId, quarrel: Quarrel, found: bool) -> RunVerdict<T> {
        let other = if quarrel.kept == boot {
            quarrel.refused
        } else {
            quarrel.kept
        };
        match self.about(other).cloned() {
            None => RunVerdict::Alone,
            Some(other) if quarrel.kept == boot => RunVerdict::Kept { other, found },
            Some(kept) => RunVerdict::Refused { kept, found },
        }
    }

    fn about(&self, boot: ProcessBootId) -> Option<&T> {
        self.runs
            .iter()
            .find(|run| run.boot == boot)
            .map(|run| &run.about)
    }

    /// The order in which copies are kept: lowest first.
    fn rank(&self, boot: ProcessBootId) -> (bool, usize) {
        let place = self.runs.iter().position(|run| run.boot == boot);
        let own_host = place
            .and_then(|place| self.runs.get(place))
            .is_some_and(|run| run.own_host);
        (!own_host, place.unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn boot(n: u8) -> ProcessBootId {
        ProcessBootId::from_bytes([n; 16])
    }

    /// A line per hello: seconds, process, whether on the enrolled host, whether the kept one lives. Sessions
    /// arrive when they greet.
    fn told(runs: &mut Runs<u8>, at_s: u32, n: u8, own_host: bool, lives: bool) -> RunVerdict<u8> {
        let now = MonoTime(0).plus(SECOND * at_s);
        runs.hello(boot(n), u64::from(at_s), n, own_host, now, |_| lives)
    }

    /// A hello of a session that arrived then.
    fn arrived(runs: &mut Runs<u8>, arrival: u64, n: u8) -> RunVerdict<u8> {
        runs.hello(boot(n), arrival, n, false, MonoTime(0), |_| true)
    }

    /// R-ENR-10: what a dead run said before its successor came, and is heard after it, is no copy's word:
    /// whether the run was known or not, once or twice, and the successor is not taken for one either.
    #[test]
    fn the_late_word_of_a_dead_run_is_no_copys() {
        for is_known in [true, false] {
            let mut runs = Runs::default();
            if is_known {
                assert_eq!(arrived(&mut runs, 1, 1), RunVerdict::Alone);
            }
            assert_eq!(arrived(&mut runs, 4, 2), RunVerdict::Alone);
            assert_eq!(arrived(&mut runs, 2, 1), RunVerdict::Late);
            assert_eq!(arrived(&mut runs, 3, 1), RunVerdict::Late);
            for arrival in 5..8 {
                assert_eq!(arrived(&mut runs, arrival, 2), RunVerdict::Alone, "it reconnects");
            }
            assert_eq!(arrived(&mut runs, 9, 3), RunVerdict::Alone, "the next run");
            assert_eq!(arrived(&mut runs, 8, 2), RunVerdict::Late);
            assert_eq!(runs.copies(MonoTime(0)), None);
        }
    }

    /// R-ENR-10: a copy whose hello was overtaken comes again, and is found then.
    #[test]
    fn a_copy_that_was_late_is_found_when_it_comes_again() {
        let mut runs = Runs::default();
        arrived(&mut runs, 1, 1);
        arrived(&mut runs, 3, 2);
        assert_eq!(arrived(&mut runs, 2, 1), RunVerdict::Late);
        let found = RunVerdict::Kept {
            other: 2,
            found: true,
        };
        assert_eq!(arrived(&mut runs, 4, 1), found);
        assert!(runs.copies(MonoTime(0)).is_some());
    }

    /// R-ENR-10: restarts, however many and however fast, are no clone.
    #[test]
    fn restarts_are_no_clone() {
        let mut runs = Runs::default();
        for n in 0..=100 {
            assert_eq!(told(&mut runs, 0, n, true, true), RunVerdict::Alone);
            assert_eq!(
                told(&mut runs, 0, n, true, true),
                RunVerdict::Alone,
                "it reconnects"
            );
        }
        assert!(runs.runs.len() <= RUNS_MAX);
        assert_eq!(runs.copies(MonoTime(0)), None);
    }

    /// R-ENR-10: a run that comes back after a later one began has a copy; the earlier is kept, and
    /// the other refused until it has been silent.
    #[test]
    fn a_copy_is_found_refused_and_forgotten() {
        let mut runs = Runs::default();
        assert_eq!(told(&mut runs, 0, 1, false, true), RunVerdict::Alone);
        assert_eq!(told(&mut runs, 1, 2, false, true), RunVerdict::Alone);
        let found = RunVerdict::Kept {
            other: 2,
            found: true,
        };
        assert_eq!(told(&mut runs, 2, 1, false, true), found);
        let refused = RunVerdict::Refused {
            kept: 1,
            found: false,
        };
        for at_s in [3, 300, 800] {
            assert_eq!(told(&mut runs, at_s, 2, false, true), refused);
        }
        let copies = Copies {
            kept: &1,
            refused: &2,
            refused_at: MonoTime(0).plus(SECOND * 800),
        };
        assert_eq!(runs.copies(MonoTime(0).plus(SECOND * 919)), Some(copies));
        // It has not come for longer than it pauses: no news any more, and refused still.
        assert_eq!(runs.copies(MonoTime(0).plus(SECOND * 920)), None);
        assert_eq!(told(&mut runs, 1000, 2, false, true), refused);
        assert!(runs.copies(MonoTime(0).plus(SECOND * 1000)).is_some());
        assert_eq!(told(&mut runs, 1601, 1, false, true), RunVerdict::Alone);
        assert_eq!(runs.copies(MonoTime(0).plus(SECOND * 1601)), None);
        assert_eq!(told(&mut runs, 1602, 1, false, true), RunVerdict::Alone);
    }

    /// The copy on the enrolled host is kept, whichever came first; where the kept one is gone, the
    /// other may come in.
    #[test]
    fn the_enrolled_host_is_preferred_and_a_dead_one_is_not() {
        let mut runs = Runs::default();
        told(&mut runs, 0, 1, false, true);
        told(&mut runs, 1, 2, true, true);
        let refused = RunVerdict::Refused { kept: 2, found: true };
        assert_eq!(told(&mut runs, 2, 1, false, true), refused);
        let kept = RunVerdict::Kept {
            other: 2,
            found: false,
        };
        assert_eq!(told(&mut runs, 3, 1, false, false), kept, "the kept one is gone");
        assert_eq!(
            told(&mut runs, 4, 2, true, true),
            RunVerdict::Kept {
                other: 1,
                found: false
            }
        );
    }
}

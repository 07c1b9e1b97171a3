//! Stream numbers that were used (I8).

use fairlead_model::StreamNumber;

/// How far below the highest number a late one is still told apart from a used one. Opens of one
/// association race over two or more relays and may overtake each other by as many as are pending
/// at once, which the daemons bound below this.
const WINDOW: u64 = 4096;
const WORD_BITS: u64 = u64::BITS as u64;
const WORDS: usize = (WINDOW / WORD_BITS) as usize;

/// Remembers which stream numbers of one association were seen, so that a stream id never lives
/// twice: a relay that replays an old OPEN, with the early data that followed it, gets nothing.
///
/// The dialler numbers its streams 0, 1, 2, …; numbers more than 4,096 below the highest seen count
/// as used. Costs 520 bytes.
#[derive(Debug, Clone)]
pub struct NumberWindow {
    /// One above the highest number seen.
    above: u64,
    /// Bit `n % WINDOW` says that `n` was seen, for the numbers in `above - WINDOW .. above`.
    seen: [u64; WORDS],
}

impl NumberWindow {
    /// No number was seen.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            above: 0,
            seen: [0; WORDS],
        }
    }

    /// Takes a number: `true` exactly once, `false` if it was used before or is too far back.
    pub fn admit(&mut self, number: StreamNumber) -> bool {
        let n = number.0;
        // The topmost number would leave no room above it; no association opens 2^64 streams.
        if n == u64::MAX || n.saturating_add(WINDOW) < self.above {
            return false;
        }
        if n >= self.above {
            let fresh = (n + 1 - self.above).min(WINDOW);
            for back in 0..fresh {
                *self.word(n - back) &= !Self::bit(n - back);
            }
            self.above = n + 1;
        }
        let (word, bit) = (self.word(n), Self::bit(n));
        let unused = *word & bit == 0;
        *word |= bit;
        unused
    }

    const fn bit(n: u64) -> u64 {
        1 << (n % WORD_BITS)
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "the index is below WORDS by the remainder"
    )]
    const fn word(&mut self, n: u64) -> &mut u64 {
        &mut self.seen[((n % WINDOW) / WORD_BITS) as usize]
    }
}

impl Default for NumberWindow {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// I8: a number is admitted at most once, and always if it is new and not far back.
        #[test]
        fn a_number_is_admitted_once(steps in prop::collection::vec((0u64..6000, any::<bool>()), 1..300)) {
            let mut window = NumberWindow::new();
            let mut used = BTreeSet::new();
            let mut base = 0u64;
            for (step, far) in steps {
                let n = base + step % 200;
                base += if far { step } else { 0 };
                let highest = used.iter().next_back().copied().unwrap_or(0u64);
                let admitted = window.admit(StreamNumber(n));
                prop_assert!(!(admitted && used.contains(&n)));
                if n + WINDOW > highest {
                    prop_assert_eq!(admitted, !used.contains(&n));
                }
                if admitted {
                    used.insert(n);
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        let mut window = NumberWindow::new();
        assert!(window.admit(StreamNumber(0)));
        assert!(!window.admit(StreamNumber(0)));
        assert!(window.admit(StreamNumber(u64::MAX - 1)));
        assert!(!window.admit(StreamNumber(u64::MAX)));
        assert!(!window.admit(StreamNumber(1)));
        assert!(window.admit(StreamNumber(u64::MAX - 2)));
    }
}

//! How many legs the peer of a carrier may have open: a little more than it has, up to its bound.
//!
//! quinn keeps two table entries for each stream that its peer may open, some 90 bytes, open or not:
//! 8,192 legs are 750 KiB a session, of which most use a few.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Legs that a peer may open from the start. A daemon that loses a relay opens 768 legs at another at a
/// time: they need no answer of ours first.
pub(crate) const LEGS_FIRST: u32 = 1_024;
/// The least that it may open beside those that it has, for the same reason.
const LEGS_AHEAD: u32 = 768;
const _: () = assert!(LEGS_AHEAD < LEGS_FIRST);

/// The peer's credit on one carrier. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Credit(Arc<Mutex<State>>);

#[derive(Debug, Clone, Copy)]
struct State {
    open: u32,
    granted: u32,
    max: u32,
}

/// One leg of the peer's, until dropped.
#[derive(Debug)]
pub(crate) struct LegPlace(Credit);

impl Credit {
    /// The credit of a peer that has no legs and may have `max`.
    pub(crate) fn new(max: u32) -> Self {
        Self(Arc::new(Mutex::new(State {
            open: 0,
            granted: max.min(LEGS_FIRST),
            max,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer has opened a leg; with it the new limit, where it grows.
    pub(crate) fn opened(&self) -> (LegPlace, Option<u32>) {
        let mut state = self.lock();
        state.open = state.open.saturating_add(1);
        let grown = state.grown();
        let has_grown = grown > state.granted;
        state.granted = grown;
        (LegPlace(self.clone()), has_grown.then_some(grown))
    }

    /// Changes the bound; gives the limit that follows.
    pub(crate) fn set_max(&self, max: u32) -> u32 {
        let mut state = self.lock();
        state.max = max;
        state.granted = state.granted.max(LEGS_FIRST).min(max);
        state.granted = state.grown();
        state.granted
    }
}

impl State {
    /// Twice the limit where what is ahead has become small.
    fn grown(self) -> u32 {
        let needed = self.open.saturating_add(LEGS_AHEAD);
        if needed <= self.granted {
            return self.granted;
        }
        needed.max(self.granted.saturating_mul(2)).min(self.max)
    }
}

impl Drop for LegPlace {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.open = state.open.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-STR-04: the limit stays ahead of what is open, grows in few steps and never above its bound.
    #[test]
    fn the_limit_is_ahead_of_what_is_open() {
        let credit = Credit::new(8_192);
        assert_eq!(credit.lock().granted, LEGS_FIRST);
        let (mut held, mut steps) = (Vec::new(), Vec::new());
        for open in 1..=8_192 {
            let (place, grown) = credit.opened();
            held.push(place);
            steps.extend(grown.map(|grown| (open, grown)));
            let granted = credit.lock().granted;
            assert!(granted >= (open + LEGS_AHEAD).min(8_192), "{open}: {granted}");
        }
        assert_eq!(steps, [(257, 2_048), (1_281, 4_096), (3_329, 8_192)]);
        drop(held);
        assert_eq!(credit.lock().open, 0);
        assert_eq!(credit.opened().1, None, "what was granted is not taken back");
    }

    #[test]
    fn the_bound_holds_at_once() {
        let credit = Credit::new(8);
        assert_eq!(credit.lock().granted, 8);
        assert_eq!(
            credit.set_max(8_192),
            LEGS_FIRST,
            "a stranger that has become a member"
        );
        let _held: Vec<LegPlace> = (0..300).map(|_| credit.opened().0).collect();
        assert_eq!(credit.set_max(1_500), 1_500);
        assert_eq!(credit.set_max(100), 100);
        assert_eq!(credit.opened().1, None);
    }
}

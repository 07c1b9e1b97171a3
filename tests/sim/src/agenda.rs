//! What is due, in order of time, and of what was planned first within a time.

use fairlead_model::MonoTime;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Due<T> {
    at: MonoTime,
    sequence: u64,
    what: T,
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    /// The soonest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// The agenda of a world.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    due: BinaryHeap<Due<T>>,
    sequence: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            due: BinaryHeap::new(),
            sequence: 0,
        }
    }
}

impl<T> Agenda<T> {
    pub(crate) fn add(&mut self, at: MonoTime, what: T) {
        self.sequence += 1;
        let sequence = self.sequence;
        self.due.push(Due { at, sequence, what });
    }

    /// Takes what is due next.
    pub(crate) fn next(&mut self) -> Option<(MonoTime, T)> {
        self.due.pop().map(|due| (due.at, due.what))
    }
}

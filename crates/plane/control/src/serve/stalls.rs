//! Answers that never end, and readers that stop reading them. A response that is written without
//! end tells its connection when it has handed over a piece and when it was asked for the next; a
//! piece that nobody takes for too long ends the connection, so that a reader costs a bounded
//! buffer for a bounded time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a reader may leave a piece untaken: a phone that changes its network is back sooner. The
/// piece before it may lie in the connection's own buffer meanwhile.
const STALL_MAX: Duration = Duration::from_secs(20);
/// How often a connection looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The endless answers of one connection; in the extensions of every REST request.
#[derive(Debug, Clone, Default)]
pub struct Stalls(Arc<Mutex<Offered>>);

#[derive(Debug, Default)]
struct Offered {
    next: u64,
    /// Since when a piece has waited, by answer.
    since: BTreeMap<u64, Instant>,
}

/// One endless answer. Dropped, it waits for nobody.
#[derive(Debug)]
pub struct Endless {
    stalls: Stalls,
    number: u64,
}

impl Stalls {
    /// An answer that will not end by itself.
    #[must_use]
    pub fn endless(&self) -> Endless {
        let mut offered = self.lock();
        let number = offered.next;
        offered.next = number.wrapping_add(1);
        Endless {
            stalls: self.clone(),
            number,
        }
    }

    /// Returns when a reader has stalled. Cancel safe.
    pub(super) async fn stalled(&self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            look.tick().await;
            if self.is_stalled(Instant::now()) {
                return;
            }
        }
    }

    fn is_stalled(&self, now: Instant) -> bool {
        let offered = self.lock();
        let mut since = offered.since.values();
        since.any(|since| now.saturating_duration_since(*since) >= STALL_MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endless {
    /// A piece was handed over.
    pub fn offered(&self) {
        let mut offered = self.stalls.lock();
        offered.since.entry(self.number).or_insert_with(Instant::now);
    }

    /// It was taken: the next one is asked for.
    pub fn taken(&self) {
        self.stalls.lock().since.remove(&self.number);
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.taken();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_piece_that_nobody_takes_is_a_stall() {
        let stalls = Stalls::default();
        let (one, other) = (stalls.endless(), stalls.endless());
        let later = Instant::now() + 2 * STALL_MAX;
        assert!(!stalls.is_stalled(later), "nothing was offered");
        one.offered();
        assert!(!stalls.is_stalled(Instant::now()));
        assert!(stalls.is_stalled(later));
        one.taken();
        other.offered();
        other.taken();
        assert!(!stalls.is_stalled(later));
        one.offered();
        drop(one);
        assert!(!stalls.is_stalled(later), "its answer ended");
    }
}

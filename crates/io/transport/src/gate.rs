//! Bounds on handshakes in progress, in total and per address (F-10): where one is reached, the
//! oldest makes room for the newest. Who has just come keeps its place for a moment, long enough for an
//! honest handshake; where all are that new, the next one waits.

use fairlead_room::{Place, Room, accountable};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// From this many handshakes on, half of a listener's places, a peer must prove its address by a Retry before
/// it costs any: forged sources never fill them.
const RETRY_FROM: usize = 32;
/// From this many handshakes of one address on, likewise: otherwise packets with a forged source
/// would use up an honest node's share.
const RETRY_FROM_ADDRESS: usize = 4;

/// How long a newcomer keeps its place whatever comes behind it, as on 8443: a handshake of an honest
/// peer is two round trips, and 64 places change hands 256 times a second all the same.
const GRACE: Duration = Duration::from_millis(250);
/// How often a waiting arrival looks for a place: those of handshakes that end are given back sooner
/// than any grace.
const PLACE_CHECK_EVERY: Duration = Duration::from_millis(10);

/// What a listener has done to peers, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenerStats {
    /// Handshakes in progress.
    pub pending: usize,
    /// How many there may be.
    pub pending_max: usize,
    /// Peers told to prove their address first.
    pub retried: u64,
    /// Handshakes that a bound ended.
    pub refused: u64,
}

/// Handshakes in progress.
#[derive(Debug)]
pub(crate) struct Gate {
    room: Room<IpAddr>,
    /// Held by the one that looks for a place; the others wait behind it, first come, first served.
    turn: Mutex<()>,
    max: usize,
    retried: AtomicU64,
}

impl Gate {
    pub(crate) fn new(handshakes_max: usize, per_address_max: usize) -> Self {
        Self {
            room: Room::with_grace(handshakes_max, per_address_max, GRACE),
            turn: Mutex::new(()),
            max: handshakes_max,
            retried: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_per_address_max(&self, max: usize) {
        self.room.set_per_key_max(max);
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        ListenerStats {
            pending: self.room.len(),
            pending_max: self.max,
            retried: self.retried.load(Ordering::Relaxed),
            refused: self.room.evicted(),
        }
    }

    /// Whether a peer that has not proved its address is to do so before it costs anything, which is
    /// counted.
    pub(crate) fn asks_for_proof(&self, from: IpAddr) -> bool {
        let address = accountable(from);
        let is_busy = self.room.len() >= RETRY_FROM || self.room.held_by(&address) >= RETRY_FROM_ADDRESS;
        if is_busy {
            self.retried.fetch_add(1, Ordering::Relaxed);
        }
        is_busy
    }

    /// A place for a peer whose address is proved, or need not be; waits where all are new, at most for the grace: who
    /// comes behind it waits in its turn, or in the socket's queue. Cancel-safe.
    pub(crate) async fn enter(&self, from: IpAddr) -> Place<IpAddr> {
        let address = accountable(from);
        let _turn = self.turn.lock().await;
        loop {
            match self.room.try_enter(address, Instant::now()) {
                Ok(place) => return place,
                Err(all) => tokio::time::sleep(all.wait.min(PLACE_CHECK_EVERY)).await,
            }
        }
    }

    /// Takes a place away for something that is short elsewhere; whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        self.room.make_room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(n: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 1, n).into()
    }

    /// F-10: a newcomer has its moment however many come behind it, and they wait no longer than that;
    /// one that holds many places has none.
    #[tokio::test]
    async fn a_newcomer_keeps_its_place_for_a_moment() {
        let gate = Gate::new(6, 64);
        let began = Instant::now();
        let first = gate.enter(address(1)).await;
        let mut held = Vec::new();
        for n in 2..=6 {
            held.push(gate.enter(address(n)).await);
        }
        assert!(began.elapsed() < GRACE, "{:?}", began.elapsed());
        let next = gate.enter(address(7)).await;
        assert!(began.elapsed() >= GRACE, "{:?}", began.elapsed());
        assert!(first.is_evicted() && !next.is_evicted());
        assert_eq!((gate.stats().pending, gate.stats().refused), (6, 1));
        // A place that is given back is taken at once.
        let waiting = Instant::now();
        drop(next);
        let next = gate.enter(address(8)).await;
        assert!(waiting.elapsed() < GRACE && !next.is_evicted());
    }

    /// F-10: who fills the room alone pays at once, with its own oldest.
    #[tokio::test]
    async fn one_address_that_holds_many_makes_room_at_once() {
        let gate = Gate::new(6, 64);
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(gate.enter(address(1)).await);
        }
        let began = Instant::now();
        let other = gate.enter(address(2)).await;
        assert!(began.elapsed() < GRACE, "{:?}", began.elapsed());
        assert!(held[0].is_evicted() && !held[1].is_evicted() && !other.is_evicted());
    }
}

//! Bounds on handshakes in progress, in total and per address (F-10): where one is reached, the
//! oldest makes room for the newest.

use fairlead_room::{Place, Room, accountable};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// From this many handshakes on, a peer must prove its address by a Retry before it costs any.
const RETRY_FROM: usize = 64;
/// From this many handshakes of one address on, likewise: otherwise packets with a forged source
/// would use up an honest node's share.
const RETRY_FROM_ADDRESS: usize = 4;

/// What a listener has done to peers, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenerStats {
    /// Handshakes in progress.
    pub pending: usize,
    /// Peers told to prove their address first.
    pub retried: u64,
    /// Handshakes that a bound ended.
    pub refused: u64,
}

/// Handshakes in progress.
#[derive(Debug)]
pub(crate) struct Gate {
    room: Room<IpAddr>,
    retried: AtomicU64,
}

impl Gate {
    pub(crate) fn new(handshakes_max: usize, per_address_max: usize) -> Self {
        Self {
            room: Room::new(handshakes_max, per_address_max),
            retried: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_per_address_max(&self, max: usize) {
        self.room.set_per_key_max(max);
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        ListenerStats {
            pending: self.room.len(),
            retried: self.retried.load(Ordering::Relaxed),
            refused: self.room.evicted(),
        }
    }

    /// A place for a peer that has proved its address, or that comes while nothing is busy; without
    /// one it must prove it first, which is counted.
    pub(crate) fn admit(&self, from: IpAddr, validated: bool) -> Option<Place<IpAddr>> {
        let address = accountable(from);
        let is_busy = self.room.len() >= RETRY_FROM || self.room.held_by(&address) >= RETRY_FROM_ADDRESS;
        if is_busy && !validated {
            self.retried.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.room.enter(address))
    }

    /// A place for a peer whose address the system has proved.
    pub(crate) fn enter(&self, from: IpAddr) -> Place<IpAddr> {
        self.room.enter(accountable(from))
    }

    /// Takes a place away for something that is short elsewhere; whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        self.room.make_room()
    }
}

//! Bounds on handshakes in progress, in total and per address (F-10).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// Peers turned away by a bound.
    pub refused: u64,
}

/// Counts handshakes in progress.
#[derive(Debug)]
pub(crate) struct Gate {
    handshakes_max: usize,
    per_address_max: AtomicUsize,
    counts: Mutex<Counts>,
    retried: AtomicU64,
    refused: AtomicU64,
}

/// At most `handshakes_max` entries.
#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

pub(crate) enum Admit {
    Place(Place),
    Retry,
    Refuse,
}

/// One handshake's place; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    address: IpAddr,
}

impl Gate {
    pub(crate) fn new(handshakes_max: usize, per_address_max: usize) -> Self {
        Self {
            handshakes_max,
            per_address_max: AtomicUsize::new(per_address_max),
            counts: Mutex::default(),
            retried: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_per_address_max(&self, max: usize) {
        self.per_address_max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        ListenerStats {
            pending: self.lock().total,
            retried: self.retried.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more peer may begin; what it is told otherwise is counted.
    pub(crate) fn admit(self: &Arc<Self>, from: IpAddr, validated: bool) -> Admit {
        let address = accountable(from);
        let mut counts = self.lock();
        let of_address = counts.by_address.get(&address).copied().unwrap_or(0);
        if !validated && (counts.total >= RETRY_FROM || of_address >= RETRY_FROM_ADDRESS) {
            self.retried.fetch_add(1, Ordering::Relaxed);
            return Admit::Retry;
        }
        if counts.total >= self.handshakes_max || of_address >= self.per_address_max.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Admit::Refuse;
        }
        counts.total += 1;
        *counts.by_address.entry(address).or_insert(0) += 1;
        Admit::Place(Place {
            gate: Arc::clone(self),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.gate.lock();
        counts.total = counts.total.saturating_sub(1);
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

/// Whom an address stands for: an IPv4 host, or the /64 that one IPv6 site gets.
fn accountable(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

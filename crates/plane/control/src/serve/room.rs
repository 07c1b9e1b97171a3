//! A bounded set of connections. Where it is full, room is made instead of closing the door: whoever
//! holds the most loses its oldest. Somebody who opens many and says nothing pushes out its own; one
//! who comes once gets in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// The set; `Key` tells holders apart.
#[derive(Debug)]
pub(super) struct Room<Key: Ord> {
    max: usize,
    per_key_max: usize,
    held: Mutex<Held<Key>>,
}

#[derive(Debug)]
struct Held<Key: Ord> {
    next: u64,
    places: BTreeMap<u64, CancellationToken>,
    /// The numbers of each holder's places: the least is the oldest.
    by_key: BTreeMap<Key, BTreeSet<u64>>,
}

/// One place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place<Key: Ord> {
    room: Arc<Room<Key>>,
    key: Key,
    number: u64,
    evicted: CancellationToken,
}

impl<Key: Ord + Clone> Room<Key> {
    /// A room of `max` places, of which one holder has `per_key_max`; both at least 1.
    pub(super) fn new(max: usize, per_key_max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            per_key_max,
            held: Mutex::new(Held {
                next: 0,
                places: BTreeMap::new(),
                by_key: BTreeMap::new(),
            }),
        })
    }

    /// A place for `key`.
    pub(super) fn enter(self: &Arc<Self>, key: Key) -> Place<Key> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held
            .by_key
            .get(&key)
            .is_some_and(|own| own.len() >= self.per_key_max)
        {
            held.evict(&key.clone());
        } else if held.places.len() >= self.max {
            let most = held.by_key.iter().max_by_key(|(_, places)| places.len());
            if let Some(most) = most.map(|(key, _)| key.clone()) {
                held.evict(&most);
            }
        }
        let number = held.next;
        held.next = held.next.wrapping_add(1);
        let evicted = CancellationToken::new();
        held.places.insert(number, evicted.clone());
        held.by_key.entry(key.clone()).or_default().insert(number);
        Place {
            room: Arc::clone(self),
            key,
            number,
            evicted,
        }
    }
}

impl<Key: Ord> Held<Key> {
    /// Ends the oldest place of `key`.
    fn evict(&mut self, key: &Key) {
        let oldest = self.by_key.get(key).and_then(|places| places.first().copied());
        if let Some(evicted) = oldest.and_then(|number| self.remove(key, number)) {
            evicted.cancel();
        }
    }

    fn remove(&mut self, key: &Key, number: u64) -> Option<CancellationToken> {
        if let Some(places) = self.by_key.get_mut(key) {
            places.remove(&number);
            if places.is_empty() {
                self.by_key.remove(key);
            }
        }
        self.places.remove(&number)
    }
}

impl<Key: Ord> Place<Key> {
    /// Waits until the place is taken away. Cancel-safe.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl<Key: Ord> Drop for Place<Key> {
    fn drop(&mut self) {
        let mut held = self.room.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.remove(&self.key, self.number);
    }
}

#[cfg(test)]
mod tests;

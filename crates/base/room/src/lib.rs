//! A bounded set of strangers: connections that have proven nothing yet.
//!
//! Where it is full, room is made instead of closing the door: whoever holds the most loses its
//! oldest, and where many hold the same, the oldest of them all goes. Somebody who opens many and
//! says nothing pushes out its own; one who comes once gets in, and has at least as long as it takes
//! to fill the room anew (F-10).
//!
//! A room may have a grace: who has just come, and holds few places, keeps them for that long. Where
//! all are within it, the next one waits ([`Room::try_enter`]).

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Whoever holds more places than this has no grace: a few addresses could keep everybody waiting.
const GRACE_PLACES_MAX: usize = 4;

/// The set; `Key` tells holders apart. Clones share it.
#[derive(Debug)]
pub struct Room<Key: Ord>(Arc<Shared<Key>>);

#[derive(Debug)]
struct Shared<Key: Ord> {
    max: usize,
    grace: Duration,
    held: Mutex<Held<Key>>,
}

#[derive(Debug)]
struct Held<Key: Ord> {
    per_key_max: usize,
    next: u64,
    places: BTreeMap<u64, Taken>,
    /// The numbers of each holder's places: the least is the oldest.
    by_key: BTreeMap<Key, BTreeSet<u64>>,
    evicted: u64,
}

#[derive(Debug)]
struct Taken {
    notice: Arc<Mutex<Notice>>,
    /// Until then it is within its grace.
    safe_until: Option<Instant>,
}

/// Every place was taken so short a time ago that none may be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllNew {
    /// At the latest then there will be one.
    pub wait: Duration,
}

/// What a place's holder is told.
#[derive(Debug, Default)]
struct Notice {
    evicted: bool,
    waker: Option<Waker>,
}

/// One place; given back when dropped.
#[derive(Debug)]
pub struct Place<Key: Ord> {
    room: Arc<Shared<Key>>,
    key: Key,
    number: u64,
    notice: Arc<Mutex<Notice>>,
}

impl<Key: Ord> Clone for Room<Key> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Key: Ord + Clone> Room<Key> {
    /// A room of `max` places, of which one holder has `per_key_max`; both count as at least 1.
    #[must_use]
    pub fn new(max: usize, per_key_max: usize) -> Self {
        Self::with_grace(max, per_key_max, Duration::ZERO)
    }

    /// The same; with [`Room::try_enter`], who holds a few places keeps each of them for `grace`.
    #[must_use]
    pub fn with_grace(max: usize, per_key_max: usize, grace: Duration) -> Self {
        Self(Arc::new(Shared {
            max: max.max(1),
            grace,
            held: Mutex::new(Held {
                per_key_max: per_key_max.max(1),
                next: 0,
                places: BTreeMap::new(),
                by_key: BTreeMap::new(),
                evicted: 0,
            }),
        }))
    }

    /// A place for `key`, without a grace; another is taken away where there is none left, in its
    /// grace or not.
    #[must_use = "the place is given back when dropped"]
    pub fn enter(&self, key: Key) -> Place<Key> {
        let mut held = self.0.lock();
        if held.has_its_share(&key) {
            held.evict_oldest_of(&key);
        } else if held.places.len() >= self.0.max {
            held.evict();
        }
        self.place(&mut held, key, None)
    }

    /// A place for `key` from `now` on; another one, whose grace is over, is taken away where there is
    /// none left. Who has its share already, or more than a few, pays with its own oldest at once.
    ///
    /// # Errors
    /// The room is full of places within their grace: ask again after the wait at the latest.
    pub fn try_enter(&self, key: Key, now: Instant) -> Result<Place<Key>, AllNew> {
        let mut held = self.0.lock();
        if held.has_its_share(&key) {
            held.evict_oldest_of(&key);
        } else if held.places.len() >= self.0.max {
            held.evict_past_grace(now)?;
        }
        Ok(self.place(&mut held, key, now.checked_add(self.0.grace)))
    }

    fn place(&self, held: &mut Held<Key>, key: Key, safe_until: Option<Instant>) -> Place<Key> {
        let number = held.next;
        held.next = held.next.wrapping_add(1);
        let notice = Arc::<Mutex<Notice>>::default();
        let taken = Taken {
            notice: Arc::clone(&notice),
            safe_until,
        };
        held.places.insert(number, taken);
        held.by_key.entry(key.clone()).or_default().insert(number);
        Place {
            room: Arc::clone(&self.0),
            key,
            number,
            notice,
        }
    }

    /// Takes one place away, for something that is short elsewhere; whether there was one.
    pub fn make_room(&self) -> bool {
        self.0.lock().evict()
    }

    /// Changes how many places one holder may have from here on; counts as at least 1.
    pub fn set_per_key_max(&self, max: usize) {
        self.0.lock().per_key_max = max.max(1);
    }

    /// How many places are taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().places.len()
    }

    /// Whether no place is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many places `key` has.
    #[must_use]
    pub fn held_by(&self, key: &Key) -> usize {
        self.0.lock().by_key.get(key).map_or(0, BTreeSet::len)
    }

    /// How many places were taken away so far.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.0.lock().evicted
    }
}

impl<Key: Ord> Shared<Key> {
    fn lock(&self) -> MutexGuard<'_, Held<Key>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Key: Ord + Clone> Held<Key> {
    fn has_its_share(&self, key: &Key) -> bool {
        self.by_key.get(key).map_or(0, BTreeSet::len) >= self.per_key_max
    }

    /// Takes the oldest place of those who hold the most.
    fn evict(&mut self) -> bool {
        self.evict_of(|_, _| true)
    }

    /// The same among those who hold more than a few, or whose oldest place is past its grace.
    fn evict_past_grace(&mut self, now: Instant) -> Result<(), AllNew> {
        let left = |taken: &Taken| {
            taken
                .safe_until
                .map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
        };
        if self.evict_of(|count, oldest| count > GRACE_PLACES_MAX || left(oldest).is_zero()) {
            return Ok(());
        }
        let wait = self.places.values().map(left).min().unwrap_or_default();
        Err(AllNew { wait })
    }

    fn evict_of(&mut self, may_go: impl Fn(usize, &Taken) -> bool) -> bool {
        let mut of_most: Option<(usize, u64, &Key)> = None;
        for (key, places) in &self.by_key {
            let Some(&oldest) = places.first() else { continue };
            if !self
                .places
                .get(&oldest)
                .is_some_and(|taken| may_go(places.len(), taken))
            {
                continue;
            }
            let is_more = of_most.is_none_or(|(count, first, _)| {
                places.len() > count || (places.len() == count && oldest < first)
            });
            if is_more {
                of_most = Some((places.len(), oldest, key));
            }
        }
        let Some((_, _, key)) = of_most else { return false };
        let key = key.clone();
        self.evict_oldest_of(&key);
        true
    }

    fn evict_oldest_of(&mut self, key: &Key) {
        let oldest = self.by_key.get(key).and_then(|places| places.first().copied());
        if let Some(notice) = oldest.and_then(|number| self.remove(key, number)) {
            self.evicted = self.evicted.saturating_add(1);
            let mut notice = lock(&notice);
            notice.evicted = true;
            if let Some(waker) = notice.waker.take() {
                waker.wake();
            }
        }
    }
}

impl<Key: Ord> Held<Key> {
    fn remove(&mut self, key: &Key, number: u64) -> Option<Arc<Mutex<Notice>>> {
        if let Some(places) = self.by_key.get_mut(key) {
            places.remove(&number);
            if places.is_empty() {
                self.by_key.remove(key);
            }
        }
        self.places.remove(&number).map(|taken| taken.notice)
    }
}

impl<Key: Ord> Place<Key> {
    /// Waits until the place is taken away. One waiter at a time; cancel-safe.
    pub async fn evicted(&self) {
        poll_fn(|context| self.poll_evicted(context)).await;
    }

    /// [`Place::evicted`] for hand-written futures: ready once the place is taken away. The last
    /// context that asked is woken.
    pub fn poll_evicted(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut notice = lock(&self.notice);
        if notice.evicted {
            return Poll::Ready(());
        }
        notice.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether the place has been taken away.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        lock(&self.notice).evicted
    }
}

impl<Key: Ord> Drop for Place<Key> {
    fn drop(&mut self) {
        self.room.lock().remove(&self.key, self.number);
    }
}

fn lock(notice: &Mutex<Notice>) -> MutexGuard<'_, Notice> {
    notice.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom an address stands for: an IPv4 host, or the /64 that one IPv6 site gets.
#[must_use]
pub fn accountable(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests;

//! Legs that wait for their stream's driver: one of each relay.
//!
//! A relay may bring as many legs in a stream's name as it likes. It takes nobody else's place by that: its
//! newer leg takes the place of its own older one, and the driver gets the relays' legs in turn.

use fairlead_model::{LegEpoch, RelayId};
use futures_util::task::AtomicWaker;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

/// The legs, each of them an `L`. As many as there are relays with a session, all of them of the policy.
#[derive(Debug)]
pub(crate) struct WaitingLegs<L> {
    inner: Mutex<Inner<L>>,
    driver: AtomicWaker,
}

#[derive(Debug)]
struct Inner<L> {
    /// Whose place was taken first is in front.
    places: VecDeque<Place<L>>,
    is_closed: bool,
}

#[derive(Debug)]
struct Place<L> {
    relay: RelayId,
    epoch: LegEpoch,
    leg: L,
}

impl<L> Default for WaitingLegs<L> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                places: VecDeque::new(),
                is_closed: false,
            }),
            driver: AtomicWaker::new(),
        }
    }
}

impl<L> WaitingLegs<L> {
    /// Puts a leg in its relay's place. Gives the leg that is not waited with: the one that was there before;
    /// this one, if that has a higher epoch, since the stream takes no lower one after it (I5), or if the driver
    /// is gone.
    pub(crate) fn put(&self, relay: RelayId, epoch: LegEpoch, leg: L) -> Option<L> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Some(leg);
        }
        let given_up = match inner.places.iter_mut().find(|place| place.relay == relay) {
            Some(place) if place.epoch > epoch => return Some(leg),
            Some(place) => {
                place.epoch = epoch;
                Some(std::mem::replace(&mut place.leg, leg))
            }
            None => {
                inner.places.push_back(Place { relay, epoch, leg });
                None
            }
        };
        drop(inner);
        self.driver.wake();
        given_up
    }

    /// The next leg; registers the task to be woken when there is one.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Option<L> {
        self.driver.register(cx.waker());
        self.lock().places.pop_front().map(|place| place.leg)
    }

    /// Takes no more legs. Those that wait.
    pub(crate) fn close(&self) -> impl Iterator<Item = L> + use<L> {
        let mut inner = self.lock();
        inner.is_closed = true;
        std::mem::take(&mut inner.places)
            .into_iter()
            .map(|place| place.leg)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<L>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    fn relay(n: u8) -> RelayId {
        RelayId::from_bytes([n; 16])
    }

    fn all(legs: &WaitingLegs<&'static str>) -> Vec<&'static str> {
        let cx = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| legs.poll(&cx)).collect()
    }

    /// R-STR-01, R-STR-05: a relay that brings leg after leg of a stream fills its own place. The honest relay's
    /// leg is waited with, and the driver gets it next but one, however many more come before it looks again.
    #[test]
    fn a_relay_that_fills_its_place_keeps_no_other_relays_leg_out() {
        let legs = WaitingLegs::default();
        for epoch in 1..=1000 {
            legs.put(relay(1), LegEpoch(epoch), "hostile");
        }
        assert_eq!(legs.put(relay(2), LegEpoch(7), "honest"), None);
        let cx = Context::from_waker(Waker::noop());
        let mut got = Vec::new();
        for epoch in 1001..1004 {
            got.extend(legs.poll(&cx));
            legs.put(relay(1), LegEpoch(epoch), "hostile");
        }
        assert_eq!(got, ["hostile", "honest", "hostile"]);
        assert_eq!(all(&legs), ["hostile"], "one place");
    }

    /// I5: of one relay's legs that with the highest epoch is waited with, whichever came first; of two with the
    /// same, the newer.
    #[test]
    fn a_relays_newest_leg_takes_the_place_of_its_older_one() {
        let legs = WaitingLegs::default();
        assert_eq!(legs.put(relay(1), LegEpoch(4), "a"), None);
        assert_eq!(legs.put(relay(1), LegEpoch(5), "b"), Some("a"));
        assert_eq!(legs.put(relay(1), LegEpoch(4), "c"), Some("c"));
        assert_eq!(legs.put(relay(1), LegEpoch(5), "d"), Some("b"));
        assert_eq!(all(&legs), ["d"]);
        assert_eq!(
            legs.put(relay(1), LegEpoch(1), "e"),
            None,
            "its place is free again"
        );
        assert_eq!(all(&legs), ["e"]);
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The driver is woken by a leg, and gets none once it is gone.
    #[test]
    fn a_leg_wakes_its_driver_and_finds_none_that_is_gone() {
        let legs = WaitingLegs::default();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        assert_eq!(legs.poll(&Context::from_waker(&waker)), None);
        legs.put(relay(1), LegEpoch(1), "a");
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(legs.close().collect::<Vec<_>>(), ["a"]);
        assert_eq!(legs.put(relay(2), LegEpoch(1), "b"), Some("b"));
        assert_eq!(all(&legs), [""; 0]);
    }
}

//! Who makes room for whom.

use super::*;
use std::task::Wake;

fn evicted(places: &[Place<u8>]) -> Vec<bool> {
    places.iter().map(Place::is_evicted).collect()
}

/// F-10: whoever holds the most pays for the next one, with its oldest.
#[test]
fn who_holds_the_most_makes_room() {
    let room = Room::new(4, 3);
    let quiet = room.enter(1);
    let loud: Vec<Place<u8>> = (0..3).map(|_| room.enter(2)).collect();
    let new = room.enter(3);
    assert!(!quiet.is_evicted() && !new.is_evicted());
    assert_eq!(evicted(&loud), [true, false, false]);
    assert_eq!(room.len(), 4);
    // The loud one again: it pays for itself, now as later.
    let again = room.enter(2);
    assert_eq!(evicted(&loud), [true, true, false]);
    assert!(!quiet.is_evicted() && !again.is_evicted());
    assert_eq!(room.evicted(), 2);
    drop((quiet, new, again, loud));
    assert!(room.is_empty());
}

/// F-10: where many addresses hold one place each, the oldest goes, whatever its address: somebody
/// who has just come has time to say who it is.
#[test]
fn among_equals_the_oldest_goes() {
    let room = Room::new(4, 4);
    let first: Vec<Place<u8>> = (0..4).map(|n| room.enter(200 + n)).collect();
    // The greatest and the least key of all, among newer ones in between.
    let greatest = room.enter(255);
    let least = room.enter(0);
    assert_eq!(evicted(&first), [true, true, false, false]);
    let more: Vec<Place<u8>> = (0..2).map(|n| room.enter(100 + n)).collect();
    assert_eq!(evicted(&first), [true; 4]);
    assert!(!greatest.is_evicted() && !least.is_evicted());
    drop(more);
}

/// F-10: who has just come keeps its place for the grace, however many come after it; the next one
/// waits no longer than that, and then the oldest goes.
#[test]
fn a_newcomer_has_its_grace() {
    let grace = Duration::from_millis(250);
    let room = Room::with_grace(3, 3, grace);
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let mut places: Vec<Place<u8>> = [(1, 0), (2, 100), (2, 200)]
        .map(|(key, ms)| room.try_enter(key, at(ms)).unwrap())
        .into();
    for (ms, left) in [(200, 50), (249, 1)] {
        let wait = Duration::from_millis(left);
        assert_eq!(room.try_enter(3, at(ms)).unwrap_err(), AllNew { wait });
    }
    assert_eq!((evicted(&places), room.evicted()), (vec![false; 3], 0));
    // Whose grace is over makes room, though another holds more.
    places.push(room.try_enter(3, at(250)).unwrap());
    assert_eq!(evicted(&places), [true, false, false, false]);
    // A place that is given back is free at once.
    places.pop();
    places.push(room.try_enter(4, at(250)).unwrap());
    assert_eq!(evicted(&places), [true, false, false, false]);
    // Past every grace, who holds the most pays.
    places.push(room.try_enter(5, at(1_000)).unwrap());
    assert_eq!(evicted(&places), [true, true, false, false, false]);
    // What is short elsewhere waits for no grace.
    assert!(room.make_room());
}

/// Whoever holds more than a few, or all of its share, keeps nobody waiting.
#[test]
fn who_holds_many_has_no_grace() {
    let now = Instant::now();
    let room = Room::with_grace(8, 6, Duration::from_secs(1));
    let loud: Vec<Place<u8>> = (0..7).map(|_| room.try_enter(1, now).unwrap()).collect();
    assert_eq!(evicted(&loud), [true, false, false, false, false, false, false]);
    let quiet: Vec<Place<u8>> = (2..6).map(|key| room.try_enter(key, now).unwrap()).collect();
    assert_eq!(evicted(&loud), [true, true, true, false, false, false, false]);
    // With four places it is one of many.
    assert!(room.try_enter(6, now).is_err());
    assert_eq!(evicted(&quiet), [false; 4]);
}

#[test]
fn one_holder_has_its_share_only() {
    let room = Room::new(100, 2);
    let places: Vec<Place<u8>> = (0..5).map(|_| room.enter(1)).collect();
    assert_eq!(evicted(&places), [true, true, true, false, false]);
    assert_eq!((room.len(), room.held_by(&1)), (2, 2));
    // A place that was taken away is not given back a second time.
    drop(places);
    assert!(room.is_empty());
    assert!(!room.make_room());
    room.set_per_key_max(1);
    let one = room.enter(1);
    let two = room.enter(1);
    assert!(one.is_evicted() && !two.is_evicted());
    assert!(room.make_room() && two.is_evicted());
}

/// A waiter is woken when its place goes, and one that asks later learns it at once.
#[test]
fn the_holder_is_told() {
    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let room = Room::new(1, 1);
    let place = room.enter(1);
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    let mut waiting = Box::pin(place.evicted());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let next = room.enter(2);
    assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst));
    assert!(waiting.as_mut().poll(&mut context).is_ready());
    drop(waiting);
    assert!(Box::pin(place.evicted()).as_mut().poll(&mut context).is_ready());
    assert!(!next.is_evicted());
}

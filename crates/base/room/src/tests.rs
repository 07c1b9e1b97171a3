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

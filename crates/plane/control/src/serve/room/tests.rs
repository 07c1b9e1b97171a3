//! Who makes room for whom.

use super::*;

fn is_evicted(place: &Place<u8>) -> bool {
    place.evicted.is_cancelled()
}

fn count(room: &Room<u8>) -> (usize, usize) {
    let held = room.held.lock().unwrap();
    (held.places.len(), held.by_key.len())
}

/// F-10: whoever holds the most pays for the next one, with its oldest.
#[test]
fn who_holds_the_most_makes_room() {
    let room = Room::new(4, 3);
    let quiet = room.enter(1);
    let loud: Vec<Place<u8>> = (0..3).map(|_| room.enter(2)).collect();
    let new = room.enter(3);
    assert!(!is_evicted(&quiet) && !is_evicted(&new));
    assert_eq!(
        loud.iter().map(is_evicted).collect::<Vec<_>>(),
        [true, false, false]
    );
    assert_eq!(count(&room), (4, 3));
    // The loud one again: it pays for itself, now as later.
    let again = room.enter(2);
    assert_eq!(
        loud.iter().map(is_evicted).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert!(!is_evicted(&quiet) && !is_evicted(&again));
    drop((quiet, new, again, loud));
    assert_eq!(count(&room), (0, 0));
}

#[test]
fn one_holder_has_its_share_only() {
    let room = Room::new(100, 2);
    let places: Vec<Place<u8>> = (0..5).map(|_| room.enter(1)).collect();
    assert_eq!(
        places.iter().map(is_evicted).collect::<Vec<_>>(),
        [true, true, true, false, false]
    );
    assert_eq!(count(&room), (2, 1));
    // A place that was taken away is not given back a second time.
    drop(places);
    assert_eq!(count(&room), (0, 0));
}

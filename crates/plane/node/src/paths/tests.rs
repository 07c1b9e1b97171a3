//! Who is told to move, and when.

use super::*;
use std::task::Waker;

fn path(relay: u8) -> Path {
    Path {
        publisher: NodeId::from_bytes([1; 16]),
        relay: RelayId::from_bytes([relay; 16]),
        session: 1,
    }
}

fn at(ms: u64) -> MonoTime {
    MonoTime(1_000_000_000).plus(Duration::from_millis(ms))
}

fn told(place: &PathPlace) -> Vec<Told> {
    place.poll_told(&mut Context::from_waker(Waker::noop())).collect()
}

const ROUTE: RouteId = RouteId::from_bytes([7; 16]);

fn no_relay_is_left(_: RouteId, _: RelayId) -> bool {
    false
}

/// A look at paths 1 and 2, neither of which is lost.
fn tick(paths: &Paths, ms: u64, leave: impl Fn(RouteId, RelayId) -> bool) {
    let ways = BTreeMap::from([(ROUTE, vec![path(1), path(2)])]);
    paths.lock().tick(at(ms), &ways, leave, |_| false);
}

/// R-STR-03: suspicion moves at most a tenth of the streams in a second, silence moves them all.
#[test]
fn suspicion_is_rationed_and_silence_is_not() {
    let paths = Paths::new(at(0));
    let places: Vec<_> = (0..1000).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
    let other = paths.enter(path(2), ROUTE, at(0));
    let mut suspected_by_2_s = 0;
    let (mut suspected, mut silent) = (0, 0);
    for ms in (50..5000).step_by(50) {
        other.heard(at(ms), None);
        tick(&paths, ms, no_relay_is_left);
        let all: Vec<Told> = places.iter().flat_map(told).collect();
        suspected += all.iter().filter(|t| **t == Told::Suspect).count();
        silent += all.iter().filter(|t| **t == Told::Silent).count();
        if ms == 2000 {
            suspected_by_2_s = suspected;
        }
    }
    // The first ping goes out after 1 s; suspicion begins 250 ms later, with one second's ration.
    assert!((100..=190).contains(&suspected_by_2_s), "{suspected_by_2_s}");
    assert!(
        silent >= 1000 - suspected,
        "{silent} told of silence, {suspected} suspected"
    );
}

/// Planned moves take the legs of a relay that is left, and no others.
#[test]
fn a_relay_is_left_bit_by_bit() {
    let paths = Paths::new(at(0));
    let stay = paths.enter(path(2), ROUTE, at(0));
    let leave: Vec<_> = (0..100).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
    let mut counts = Vec::new();
    for ms in [10, 20, 30, 40] {
        tick(&paths, ms, |_, relay| relay == path(1).relay);
        counts.push(leave.iter().flat_map(told).filter(|t| *t == Told::Leave).count());
    }
    assert_eq!(counts, [40, 40, 20, 0]);
    assert_eq!(told(&stay), []);
    drop(leave);
    assert_eq!(paths.lock().paths.len(), 1, "an empty path is forgotten");
}

/// Pings go round, so that one stuck leg does not stand for its path.
#[test]
fn pings_go_round() {
    let paths = Paths::new(at(0));
    let places: Vec<_> = (0..5).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
    let mut pinged = [0; 5];
    for second in 1..=5 {
        tick(&paths, second * 1000, no_relay_is_left);
        for (place, count) in places.iter().zip(&mut pinged) {
            *count += told(place).iter().filter(|t| **t == Told::Ping).count();
            place.heard(at(second * 1000), None);
        }
    }
    assert_eq!(pinged, [3; 5]);
}

/// R-STR-01: each leg is asked in its turn, however busy its path is: one alone each second, many within the
/// time that all have, and nobody sooner.
#[test]
fn each_leg_is_asked_in_its_turn() {
    for (count, within) in [(1, 1), (5, 5), (1000, 20)] {
        let paths = Paths::new(at(0));
        let places: Vec<_> = (0..count).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
        let mut asked = vec![0; count];
        for ms in (50..=1000 + within * 1000).step_by(50) {
            for place in &places {
                place.heard(at(ms), None);
            }
            tick(&paths, ms, no_relay_is_left);
            for (place, asked) in places.iter().zip(&mut asked) {
                let told = told(place);
                assert!(!told.contains(&Told::Ping), "the path is busy");
                *asked += told.iter().filter(|t| **t == Told::Ask).count();
            }
        }
        assert!(asked.iter().all(|n| (1..=2).contains(n)), "{count}: {asked:?}");
    }
}

/// R-STR-01: the streams of a relay that is lost are told in one look, suspected before or not.
#[test]
fn a_lost_relay_is_told_to_all_its_streams_at_once() {
    let paths = Paths::new(at(0));
    let places: Vec<_> = (0..1000).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
    let stay = paths.enter(path(2), ROUTE, at(0));
    for ms in (50..1400).step_by(50) {
        stay.heard(at(ms), None);
        tick(&paths, ms, no_relay_is_left);
    }
    let suspected = places.iter().flat_map(told).filter(|t| *t == Told::Suspect);
    assert!(suspected.count() > 0, "the test wants some to be suspected");
    let ways = BTreeMap::from([(ROUTE, vec![path(2)])]);
    paths
        .lock()
        .tick(at(1400), &ways, no_relay_is_left, |p| p == path(1));
    for place in &places {
        assert_eq!(told(place), [Told::Silent]);
    }
    assert!(!told(&stay).contains(&Told::Silent));
}

/// F-07: while no other path is proven, nobody is asked to leave a path that may yet live.
#[test]
fn nobody_is_sent_nowhere() {
    let paths = Paths::new(at(0));
    let places: Vec<_> = (0..100).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
    let moved = |t: &Told| matches!(t, Told::Leave | Told::Suspect);
    for ms in (50..2000).step_by(50) {
        tick(&paths, ms, |_, _| true);
        assert_eq!(places.iter().flat_map(told).filter(moved).count(), 0, "{ms} ms");
    }
    let proof = (path(2), Some(Duration::from_millis(3)));
    let ways = BTreeMap::from([(ROUTE, vec![path(1), path(2)])]);
    let due = paths.lock().spares_due(at(2000), &ways, PROBES_AT_ONCE);
    assert_eq!(
        due,
        [(path(2), ROUTE)],
        "only the path that carries nothing is probed"
    );
    let news = paths.proofs();
    paths.probed(proof.0, proof.1, at(2003));
    assert!(news.has_changed().unwrap());
    assert_eq!(paths.proven(path(2), at(2003)), Some(Duration::from_millis(3)));
    tick(&paths, 2050, |_, _| true);
    assert!(places.iter().flat_map(told).filter(moved).count() > 0);
}

/// Probes are bounded, and those that waited longest go first.
#[test]
fn probes_go_in_turn() {
    let paths = Paths::new(at(0));
    let ways = BTreeMap::from([(ROUTE, (1..=100).map(path).collect::<Vec<_>>())]);
    let mut probed = std::collections::BTreeSet::new();
    for ms in [0, 10, 20, 30] {
        let due = paths.lock().spares_due(at(ms), &ways, 25);
        assert!(due.len() <= 25);
        for (path, _) in due {
            probed.insert(path);
            paths.probed(path, None, at(ms));
        }
    }
    assert!(probed.len() >= 75, "{} of 100 paths", probed.len());
    let none = paths.lock().spares_due(at(40), &BTreeMap::new(), 25);
    assert!(none.is_empty());
    assert!(
        paths.lock().spares.is_empty(),
        "what no route could take is forgotten"
    );
}

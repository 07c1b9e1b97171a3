//! Watches the paths that carry streams: a path leads through one relay to one publisher, and only
//! sealed records of the publisher show that it lives (ARCHITECTURE.md, Streams).
//!
//! A relay may be connected and still move nothing: frozen, or cut off on its far side. Each path is
//! therefore pinged end to end, on legs that it carries anyway: an idle one each second, a busy one
//! as soon as it falls silent. What follows from silence is told to the legs' drivers, which open
//! legs elsewhere.

mod watch;

use crate::relays::Relays;
use crate::view::ViewReceiver;
use fairlead_host::{Clock, rng};
use fairlead_model::{MonoTime, NodeId, RelayId, RouteId};
use futures_util::task::AtomicWaker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
pub(crate) use watch::suspect_after;
use watch::{PathWatch, Verdict};

/// How often the paths are looked at. Below the shortest suspicion (250 ms), far above what a look
/// at 16,000 legs takes.
const TICK: Duration = Duration::from_millis(50);
/// Legs that carry a ping of their path: one alone could be stuck for a reason of its own.
const PINGS_AT_ONCE: usize = 3;
/// Moves on suspicion per second: a tenth of the daemon's streams, and never fewer than this; so few
/// are no storm for any relay.
const SUSPICIONS_PER_SECOND_MIN: f64 = 16.0;
const SUSPICIONS_SHARE: f64 = 0.1;
/// Planned moves per tick: 800 a second, so that 1,000 streams leave a relay that stops within its
/// grace of 2 s.
const PLANNED_PER_TICK: usize = 40;
/// A leg that was told to move and is still there is told again after this long.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What a leg's driver is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Send a PING on the leg.
    Ping,
    /// The path may be dead: attach another leg beside this one.
    Suspect,
    /// Three pings are unanswered: attach another leg.
    Silent,
    /// The relay is to be left: attach another leg, then leave this one.
    Leave,
}

impl Told {
    const ALL: [Self; 4] = [Self::Ping, Self::Suspect, Self::Silent, Self::Leave];

    const fn bit(self) -> u8 {
        match self {
            Self::Ping => 1,
            Self::Suspect => 2,
            Self::Silent => 4,
            Self::Leave => 8,
        }
    }
}

/// A publisher reached through a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(crate) publisher: NodeId,
    pub(crate) relay: RelayId,
}

/// The paths of a daemon. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    paths: BTreeMap<Path, Entry>,
    next: u64,
    legs: usize,
    /// Suspicions that may be acted on now, and when that was counted.
    tokens: f64,
    counted: MonoTime,
}

#[derive(Debug, Default)]
struct Entry {
    pulse: Arc<Pulse>,
    watch: PathWatch,
    legs: BTreeMap<u64, LegEntry>,
    /// The leg that was pinged last; the next ones follow it.
    pinged: u64,
}

#[derive(Debug)]
struct LegEntry {
    route: RouteId,
    signal: Arc<Signal>,
    told: Option<MonoTime>,
}

/// What drivers note about a path.
#[derive(Debug, Default)]
struct Pulse {
    heard: AtomicU64,
    rtt_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Signal {
    bits: AtomicU8,
    waker: AtomicWaker,
}

/// An attached leg's place on its path; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct PathPlace {
    paths: Paths,
    path: Path,
    number: u64,
    pulse: Arc<Pulse>,
    signal: Arc<Signal>,
}

impl Paths {
    /// None yet.
    pub(crate) fn new(now: MonoTime) -> Self {
        let inner = Inner {
            paths: BTreeMap::new(),
            next: 0,
            legs: 0,
            tokens: SUSPICIONS_PER_SECOND_MIN,
            counted: now,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    /// A leg was attached on `path`: a sign of life.
    pub(crate) fn enter(&self, path: Path, route: RouteId, now: MonoTime) -> PathPlace {
        let signal = Arc::new(Signal::default());
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        inner.legs += 1;
        let entry = inner.paths.entry(path).or_default();
        entry.pulse.heard.fetch_max(now.0, Ordering::Relaxed);
        let leg = LegEntry {
            route,
            signal: signal.clone(),
            told: None,
        };
        entry.legs.insert(number, leg);
        let pulse = entry.pulse.clone();
        drop(inner);
        PathPlace {
            paths: self.clone(),
            path,
            number,
            pulse,
            signal,
        }
    }

    /// Whether one more stream may go on its suspicion; counts it.
    pub(crate) fn may_suspect(&self, now: MonoTime) -> bool {
        self.lock().take_token(now)
    }

    /// Watches until `cancel`.
    pub(crate) async fn watch(
        self,
        relays: Relays,
        mut view: ViewReceiver,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = cancel.cancelled() => return,
            }
            let now = clock.mono();
            let sessions = relays.sessions();
            let view = view.borrow_and_update().clone();
            let leave = |route: RouteId, relay: RelayId| {
                sessions.get(&relay).is_some_and(|s| s.draining) || view.has_left(route, relay)
            };
            self.lock().tick(now, leave);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take_token(&mut self, now: MonoTime) -> bool {
        let per_second = (self.legs as f64 * SUSPICIONS_SHARE).max(SUSPICIONS_PER_SECOND_MIN);
        let gained = per_second * now.since(self.counted).as_secs_f64();
        self.tokens = (self.tokens + gained).min(per_second);
        self.counted = now;
        let may = self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }

    fn tick(&mut self, now: MonoTime, leave: impl Fn(RouteId, RelayId) -> bool) {
        let mut planned = PLANNED_PER_TICK;
        let mut suspects = Vec::new();
        for (path, entry) in &mut self.paths {
            let heard = MonoTime(entry.pulse.heard.load(Ordering::Relaxed));
            let rtt = Duration::from_nanos(entry.pulse.rtt_ns.load(Ordering::Relaxed));
            let verdict = entry.watch.tick(now, heard, rtt);
            if verdict.ping {
                entry.ping();
            }
            match verdict.verdict {
                Verdict::Alive => {}
                Verdict::Suspect => {
                    suspects.extend(entry.untold(now).map(|(number, _)| (*path, *number)));
                    continue;
                }
                Verdict::Silent => {
                    for (_, leg) in entry.untold(now) {
                        leg.tell(Told::Silent, now);
                    }
                    continue;
                }
            }
            let leaving = entry
                .untold(now)
                .filter(|(_, leg)| leave(leg.route, path.relay))
                .take(planned);
            for (_, leg) in leaving {
                leg.tell(Told::Leave, now);
                planned -= 1;
            }
        }
        // In no order that repeats, so that no stream is always the last.
        while !suspects.is_empty() && self.take_token(now) {
            let chosen = suspects.swap_remove(draw(suspects.len()));
            let leg = self
                .paths
                .get_mut(&chosen.0)
                .and_then(|e| e.legs.get_mut(&chosen.1));
            if let Some(leg) = leg {
                leg.tell(Told::Suspect, now);
            }
        }
    }
}

/// A number below `count`, by chance.
fn draw(count: usize) -> usize {
    usize::from_le_bytes(rng::bytes()).checked_rem(count).unwrap_or(0)
}

impl Entry {
    /// Tells the legs behind those of the last time to ping.
    fn ping(&mut self) {
        let behind = self.legs.range(self.pinged.saturating_add(1)..);
        let legs = behind.chain(self.legs.range(..=self.pinged)).take(PINGS_AT_ONCE);
        let mut last = self.pinged;
        for (number, leg) in legs {
            leg.signal.tell(Told::Ping);
            last = *number;
        }
        self.pinged = last;
    }

    fn untold(&mut self, now: MonoTime) -> impl Iterator<Item = (&u64, &mut LegEntry)> {
        self.legs
            .iter_mut()
            .filter(move |(_, l)| l.told.is_none_or(|told| now.since(told) >= TELL_AGAIN_AFTER))
    }
}

impl LegEntry {
    fn tell(&mut self, what: Told, now: MonoTime) {
        self.told = Some(now);
        self.signal.tell(what);
    }
}

impl Signal {
    fn tell(&self, what: Told) {
        self.bits.fetch_or(what.bit(), Ordering::AcqRel);
        self.waker.wake();
    }
}

impl PathPlace {
    /// A sealed record of the publisher came over the path.
    pub(crate) fn heard(&self, now: MonoTime, rtt: Option<Duration>) {
        self.pulse.heard.store(now.0, Ordering::Relaxed);
        if let Some(rtt) = rtt {
            let ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
            self.pulse.rtt_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// What the driver is told; registers its task to be woken when there is more.
    pub(crate) fn poll_told(&self, cx: &mut Context<'_>) -> impl Iterator<Item = Told> + use<> {
        self.signal.waker.register(cx.waker());
        let mut bits = self.signal.bits.load(Ordering::Acquire);
        if bits != 0 {
            bits = self.signal.bits.swap(0, Ordering::AcqRel);
        }
        Told::ALL.into_iter().filter(move |told| bits & told.bit() != 0)
    }
}

impl Drop for PathPlace {
    fn drop(&mut self) {
        let mut inner = self.paths.lock();
        inner.legs = inner.legs.saturating_sub(1);
        let Some(entry) = inner.paths.get_mut(&self.path) else {
            return;
        };
        entry.legs.remove(&self.number);
        if entry.legs.is_empty() {
            inner.paths.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn path(relay: u8) -> Path {
        Path {
            publisher: NodeId::from_bytes([1; 16]),
            relay: RelayId::from_bytes([relay; 16]),
        }
    }

    fn at(ms: u64) -> MonoTime {
        MonoTime(1_000_000_000).plus(Duration::from_millis(ms))
    }

    fn told(place: &PathPlace) -> Vec<Told> {
        place.poll_told(&mut Context::from_waker(Waker::noop())).collect()
    }

    const ROUTE: RouteId = RouteId::from_bytes([7; 16]);

    /// R-STR-03: suspicion moves at most a tenth of the streams in a second, silence moves them all.
    #[test]
    fn suspicion_is_rationed_and_silence_is_not() {
        let paths = Paths::new(at(0));
        let places: Vec<_> = (0..1000).map(|_| paths.enter(path(1), ROUTE, at(0))).collect();
        let mut suspected_by_2_s = 0;
        let (mut suspected, mut silent) = (0, 0);
        for ms in (50..5000).step_by(50) {
            paths.lock().tick(at(ms), |_, _| false);
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
            paths.lock().tick(at(ms), |_, relay| relay == path(1).relay);
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
            paths.lock().tick(at(second * 1000), |_, _| false);
            for (place, count) in places.iter().zip(&mut pinged) {
                *count += told(place).iter().filter(|t| **t == Told::Ping).count();
                place.heard(at(second * 1000), None);
            }
        }
        assert_eq!(pinged, [3; 5]);
    }
}

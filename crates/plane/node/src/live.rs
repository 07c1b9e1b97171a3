//! The streams that live in this daemon, so that a revocation or a restarted peer can end them
//! (R-REV-01), and their number, which is bounded.

use crate::memory::{Memory, MemoryShare};
use crate::metrics::{NodeMetrics, StreamRole};
use fairlead_model::{BootCounter, NodeId, RelayId, RouteId};
use fairlead_stream::Stream;
use futures_util::task::AtomicWaker;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

/// Most live streams of a daemon: idle ones take about 10 KiB each. What they buffer is bounded by
/// the daemon's memory for streams.
pub(crate) const STREAMS_MAX: usize = 16 * 1024;

/// Why the daemon itself ends a live stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Its route is revoked or gone from the policy.
    Revoked,
    /// The far daemon has started anew and knows the stream no longer.
    PeerRestarted,
    /// This daemon stops.
    Stopping,
}

impl EndReason {
    const ALL: [Self; 3] = [Self::Revoked, Self::PeerRestarted, Self::Stopping];

    /// The reason's stable name, in labels and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Revoked => "REVOKED",
            Self::PeerRestarted => "PEER_RESTARTED",
            Self::Stopping => "STOPPING",
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Revoked => 1,
            Self::PeerRestarted => 2,
            Self::Stopping => 3,
        }
    }
}

/// What the daemon knows of a live stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LiveStream {
    /// This daemon's half.
    pub(crate) role: StreamRole,
    /// The route that permits it.
    pub(crate) route: RouteId,
    /// The far daemon.
    pub(crate) peer: NodeId,
    /// The far daemon's run.
    pub(crate) peer_boot: BootCounter,
}

/// The runs of a far daemon before one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EarlierRuns {
    /// This daemon's half of their streams.
    pub(crate) role: StreamRole,
    /// The far daemon.
    pub(crate) peer: NodeId,
    /// The run that is not one of them.
    pub(crate) before: BootCounter,
}

/// All live streams of a daemon. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct LiveStreams {
    inner: Arc<Mutex<Inner>>,
    memory: Memory,
    metrics: NodeMetrics,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    streams: BTreeMap<u64, (LiveStream, Arc<EndSignal>)>,
    /// Relays that have closed legs of published routes as revoked, while streams of the route live.
    revoked_by: BTreeMap<RouteId, BTreeSet<RelayId>>,
}

/// Wakes one driver to end its stream.
#[derive(Debug, Default)]
struct EndSignal {
    reason: AtomicU8,
    suspended: AtomicBool,
    /// Sealed bytes came since the far daemon's run was doubted.
    lived: AtomicBool,
    waker: AtomicWaker,
}

/// A stream's place among the live ones; gives it back when dropped.
#[derive(Debug)]
pub(crate) struct LiveGuard {
    streams: LiveStreams,
    number: u64,
    role: StreamRole,
    signal: Arc<EndSignal>,
    memory: MemoryShare,
}

impl LiveStreams {
    /// None live.
    pub(crate) fn new(metrics: NodeMetrics, memory: Memory) -> Self {
        Self {
            inner: Arc::default(),
            memory,
            metrics,
        }
    }

    /// Takes a place, or `None` if [`STREAMS_MAX`] are taken, or the memory for streams.
    pub(crate) fn enter(&self, stream: LiveStream) -> Option<LiveGuard> {
        let memory = self.memory.admit()?;
        let signal = Arc::new(EndSignal::default());
        let mut inner = self.lock();
        if inner.streams.len() >= STREAMS_MAX {
            return None;
        }
        let number = inner.next;
        inner.next += 1;
        inner.streams.insert(number, (stream, signal.clone()));
        drop(inner);
        self.metrics.streams_live.get_or_create(&stream.role.into()).inc();
        Some(LiveGuard {
            streams: self.clone(),
            number,
            role: stream.role,
            signal,
            memory,
        })
    }

    /// How many live.
    pub(crate) fn len(&self) -> usize {
        self.lock().streams.len()
    }

    /// Ends every stream that `doomed` picks; returns how many.
    pub(crate) fn end(&self, reason: EndReason, doomed: impl Fn(&LiveStream) -> bool) -> usize {
        self.end_where(reason, |stream, _| doomed(stream))
    }

    fn end_where(&self, reason: EndReason, doomed: impl Fn(&LiveStream, &EndSignal) -> bool) -> usize {
        self.lock().end_where(reason, doomed)
    }

    /// Doubts the runs of `runs` until they are heard of again; returns how many streams are of them.
    pub(crate) fn doubt(&self, runs: EarlierRuns) -> usize {
        let inner = self.lock();
        let of_them = inner.streams.values().filter(|(stream, _)| runs.have(stream));
        of_them
            .map(|(_, signal)| signal.lived.store(false, Ordering::Release))
            .count()
    }

    /// A far daemon's run has proved that it lives.
    pub(crate) fn note_life(&self, role: StreamRole, peer: NodeId, run: BootCounter) {
        for (stream, signal) in self.lock().streams.values() {
            if (stream.role, stream.peer, stream.peer_boot) == (role, peer, run) {
                signal.lived.store(true, Ordering::Release);
            }
        }
    }

    /// Ends this daemon's halves of a route's streams that have no leg; returns how many.
    pub(crate) fn end_suspended(&self, reason: EndReason, role: StreamRole, route: RouteId) -> usize {
        self.end_where(reason, |stream, signal| {
            (stream.role, stream.route) == (role, route) && signal.suspended.load(Ordering::Acquire)
        })
    }

    /// Ends the published streams without a leg of routes that every relay that `connected` names has
    /// closed as revoked; returns how many. One relay's word alone is the loss of its legs (R-STR-05).
    pub(crate) fn end_revoked_by(&self, connected: impl Fn(RouteId) -> Vec<RelayId>) -> usize {
        let inner = self.lock();
        let by_all = inner.revoked_by.iter().filter(|(route, said)| {
            let relays = connected(**route);
            !relays.is_empty() && relays.iter().all(|relay| said.contains(relay))
        });
        let routes: BTreeSet<RouteId> = by_all.map(|(route, _)| *route).collect();
        if routes.is_empty() {
            return 0;
        }
        inner.end_where(EndReason::Revoked, |stream, signal| {
            stream.role == StreamRole::Publisher
                && routes.contains(&stream.route)
                && signal.suspended.load(Ordering::Acquire)
        })
    }

    /// Ends the streams without a leg of those of the runs that were not heard of, on any stream, since they
    /// were doubted; returns how many.
    pub(crate) fn end_dead(&self, reason: EndReason, runs: EarlierRuns) -> usize {
        let inner = self.lock();
        let of_them = inner.streams.values().filter(|(stream, _)| runs.have(stream));
        let lived = of_them.filter(|(_, signal)| signal.lived.load(Ordering::Acquire));
        let lived: BTreeSet<BootCounter> = lived.map(|(stream, _)| stream.peer_boot).collect();
        inner.end_where(reason, |stream, signal| {
            runs.have(stream)
                && !lived.contains(&stream.peer_boot)
                && signal.suspended.load(Ordering::Acquire)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn leave(&mut self, number: u64) {
        let Some((gone, _)) = self.streams.remove(&number) else {
            return;
        };
        if self.revoked_by.contains_key(&gone.route)
            && !self
                .streams
                .values()
                .any(|(stream, _)| stream.route == gone.route)
        {
            self.revoked_by.remove(&gone.route);
        }
    }

    fn end_where(&self, reason: EndReason, doomed: impl Fn(&LiveStream, &EndSignal) -> bool) -> usize {
        let mut ended = 0;
        for (stream, signal) in self.streams.values() {
            if doomed(stream, signal) {
                signal.reason.store(reason.number(), Ordering::Release);
                signal.waker.wake();
                ended += 1;
            }
        }
        ended
    }
}

impl EarlierRuns {
    /// Whether a run is one of them.
    pub(crate) fn has(self, role: StreamRole, peer: NodeId, run: BootCounter) -> bool {
        role == self.role && peer == self.peer && run < self.before
    }

    fn have(self, stream: &LiveStream) -> bool {
        self.has(stream.role, stream.peer, stream.peer_boot)
    }
}

impl LiveGuard {
    /// Fits the stream to the daemon's memory. True if it may hold more or less than before.
    pub(crate) fn balance(&mut self, stream: &mut Stream) -> bool {
        self.memory.balance(stream)
    }

    /// Tells a new stream what it may hold, before anything is sent of it.
    pub(crate) fn begin(&self, stream: &mut Stream) {
        self.memory.begin(stream);
    }

    /// Notes whether the stream has no leg.
    pub(crate) fn note_suspension(&self, suspended: bool) {
        self.signal.suspended.store(suspended, Ordering::Release);
    }

    /// A relay has closed a leg of the stream as revoked.
    pub(crate) fn note_revoked(&self, relay: RelayId) {
        let mut inner = self.streams.lock();
        if let Some(route) = inner.streams.get(&self.number).map(|(stream, _)| stream.route) {
            inner.revoked_by.entry(route).or_default().insert(relay);
        }
    }

    /// A relay has carried an ATTACH of the stream.
    pub(crate) fn note_carried(&self, relay: RelayId) {
        let mut inner = self.streams.lock();
        if inner.revoked_by.is_empty() {
            return;
        }
        let route = inner.streams.get(&self.number).map(|(stream, _)| stream.route);
        if let Some(said) = route.and_then(|route| inner.revoked_by.get_mut(&route)) {
            said.remove(&relay);
        }
    }

    /// Notes that the far daemon's run lives: sealed bytes of it came.
    pub(crate) fn note_life(&self) {
        self.signal.lived.store(true, Ordering::Release);
    }

    /// Whether the stream is to end; registers the task to be woken when it is.
    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Option<EndReason> {
        self.signal.waker.register(cx.waker());
        let number = self.signal.reason.load(Ordering::Acquire);
        EndReason::ALL.into_iter().find(|r| r.number() == number)
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.streams.lock().leave(self.number);
        self.streams
            .metrics
            .streams_live
            .get_or_create(&self.role.into())
            .dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StreamMemory;
    use fairlead_telemetry::Metrics;
    use std::task::Waker;

    fn stream(route: u8, peer: u8, boot: u64) -> LiveStream {
        LiveStream {
            role: StreamRole::Publisher,
            route: RouteId::from_bytes([route; 16]),
            peer: NodeId::from_bytes([peer; 16]),
            peer_boot: BootCounter(boot),
        }
    }

    fn live_streams(memory: StreamMemory) -> LiveStreams {
        let metrics = NodeMetrics::new(&Metrics::new("node"));
        let memory = Memory::new(memory, metrics.stream_memory.clone());
        LiveStreams::new(metrics, memory)
    }

    /// I9: a stream that memory has no room for is refused, and room that is given back is used again.
    #[test]
    fn memory_bounds_places() {
        let live = live_streams(StreamMemory::of_test(10 * fairlead_stream::STREAM_FLOOR));
        let mut held: Vec<_> = std::iter::from_fn(|| live.enter(stream(1, 1, 1)))
            .take(100)
            .collect();
        assert!((5..=10).contains(&held.len()), "{}", held.len());
        held.pop();
        assert!(live.enter(stream(1, 1, 1)).is_some());
        held.clear();
        assert_eq!(live.metrics.stream_memory.get(), 0);
    }

    /// R-REV-01: only the streams of the revoked route end.
    #[test]
    fn a_revocation_ends_its_route_only() {
        let live = live_streams(StreamMemory::of_test(u64::MAX / 2));
        let one = live.enter(stream(1, 1, 1)).unwrap();
        let two = live.enter(stream(2, 1, 1)).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(one.poll_end(&mut cx), None);
        assert_eq!(
            live.end(EndReason::Revoked, |s| s.route == RouteId::from_bytes([1; 16])),
            1
        );
        assert_eq!(one.poll_end(&mut cx), Some(EndReason::Revoked));
        assert_eq!(two.poll_end(&mut cx), None);
        drop(one);
        assert_eq!(live.len(), 1);
    }

    const EARLIER: EarlierRuns = EarlierRuns {
        role: StreamRole::Publisher,
        peer: NodeId::from_bytes([1; 16]),
        before: BootCounter(3),
    };

    /// R-ENR-10: of an earlier run's streams those end that have no leg.
    #[test]
    fn what_has_a_leg_is_left_alone() {
        let live = live_streams(StreamMemory::of_test(u64::MAX / 2));
        let [attached, suspended, back, later, other] = [(1, 1), (1, 1), (1, 1), (1, 3), (2, 1)]
            .map(|(peer, boot)| live.enter(stream(1, peer, boot)).unwrap());
        for guard in [&suspended, &back, &later, &other] {
            guard.note_suspension(true);
        }
        back.note_suspension(false);
        assert_eq!(live.doubt(EARLIER), 3);
        assert_eq!(live.end_dead(EndReason::PeerRestarted, EARLIER), 1);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(suspended.poll_end(&mut cx), Some(EndReason::PeerRestarted));
        for spared in [attached, back, later, other] {
            assert_eq!(spared.poll_end(&mut cx), None);
        }
    }

    /// R-ENR-10: a run that was heard of after a later one, on one of its streams or by a handshake, lives: none of
    /// its streams ends. What was heard before proves nothing.
    #[test]
    fn a_run_that_lives_keeps_its_streams() {
        let live = live_streams(StreamMemory::of_test(u64::MAX / 2));
        let [dead, one, two] = [1, 2, 2].map(|boot| live.enter(stream(1, 1, boot)).unwrap());
        for guard in [&dead, &one, &two] {
            guard.note_suspension(true);
            guard.note_life();
        }
        assert_eq!(live.doubt(EARLIER), 3);
        two.note_life();
        assert_eq!(live.end_dead(EndReason::PeerRestarted, EARLIER), 1);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(dead.poll_end(&mut cx), Some(EndReason::PeerRestarted));
        live.doubt(EARLIER);
        live.note_life(EARLIER.role, EARLIER.peer, BootCounter(2));
        drop(dead);
        assert_eq!(live.end_dead(EndReason::PeerRestarted, EARLIER), 0);
        live.doubt(EARLIER);
        assert_eq!(live.end_dead(EndReason::PeerRestarted, EARLIER), 2);
    }

    /// R-STR-04: the number of streams is bounded, and a place given back is free again.
    #[test]
    fn places_are_bounded() {
        let live = live_streams(StreamMemory::of_test(u64::MAX / 2));
        let mut held: Vec<_> = (0..STREAMS_MAX)
            .map(|_| live.enter(stream(1, 1, 1)).unwrap())
            .collect();
        assert!(live.enter(stream(1, 1, 1)).is_none());
        held.pop();
        assert!(live.enter(stream(1, 1, 1)).is_some());
    }

    /// R-REV-01, R-STR-05: a publisher's half ends when every connected relay has closed legs of its route
    /// as revoked, and only without a leg.
    #[test]
    fn one_relay_alone_revokes_nothing() {
        let live = live_streams(StreamMemory::DEFAULT);
        let [one, two] = [1, 2].map(|n| RelayId::from_bytes([n; 16]));
        let guard = live.enter(stream(1, 2, 1)).unwrap();
        guard.note_suspension(true);
        guard.note_revoked(one);
        assert_eq!(live.end_revoked_by(|_| vec![one, two]), 0);
        assert_eq!(live.end_revoked_by(|_| Vec::new()), 0, "nobody is connected");
        guard.note_revoked(two);
        guard.note_carried(one);
        assert_eq!(live.end_revoked_by(|_| vec![one, two]), 0, "it carries again");
        guard.note_revoked(one);
        guard.note_suspension(false);
        assert_eq!(live.end_revoked_by(|_| vec![one, two]), 0, "it has a leg");
        guard.note_suspension(true);
        assert_eq!(live.end_revoked_by(|_| vec![one, two]), 1);
        let ended = guard.poll_end(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ended, Some(EndReason::Revoked));
        drop(guard);
        assert!(live.lock().revoked_by.is_empty());
    }
}

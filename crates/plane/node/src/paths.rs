//! Watches the paths that carry streams: a path leads through one relay to one publisher, and only
//! sealed records of the publisher show that it lives (ARCHITECTURE.md, Streams).
//!
//! A relay may be connected and still move nothing: frozen, or cut off on its far side. Each path is
//! therefore pinged end to end, on legs that it carries anyway: an idle one each second, a busy one
//! as soon as it falls silent. What follows from silence is told to the legs' drivers, which open
//! legs elsewhere: only on paths that have answered. Those that carry nothing are spares, and are
//! proved by probes.

mod revoked;
mod spare;
mod watch;

use crate::consumer::Consumer;
use crate::live::EndReason;
use crate::metrics::StreamRole;
use crate::probe::probe;
use crate::relays::{Doubt, Session, Sessions};
use crate::view::View;
use fairlead_host::rng;
use fairlead_model::{MonoTime, NodeId, RelayId, RouteId};
use futures_util::task::AtomicWaker;
use revoked::SaidRevoked;
use spare::{PROOF_AGE_MAX, Spare};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;
use tokio::sync::{Semaphore, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
pub(crate) use watch::suspect_after;
use watch::{PathWatch, Verdict};

/// How often the paths are looked at. Below the shortest suspicion (250 ms), far above what a look
/// at 16,000 legs takes.
const TICK: Duration = Duration::from_millis(50);
/// Legs that carry a ping of their path: one alone could be stuck for a reason of its own.
const PINGS_AT_ONCE: usize = 3;
/// Each leg is asked this often whether it carries, whatever the path shows: a relay may stall one leg of
/// many, and an end that only reads has nothing on its way whose acknowledgement it would miss. Two rounds,
/// and what follows, are well within a stream's hold (60 s), in which the writer waits; 10,000 legs that are
/// idle send 500 PINGs a second.
const ASK_EACH_WITHIN: Duration = Duration::from_secs(20);
/// Longest time between two legs of one path that are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Moves on suspicion per second: a tenth of the daemon's streams, and never fewer than this; so few
/// are no storm for any relay.
const SUSPICIONS_PER_SECOND_MIN: f64 = 16.0;
const SUSPICIONS_SHARE: f64 = 0.1;
/// Planned moves per tick: 800 a second, so that 1,000 streams leave a relay that stops within its
/// grace of 2 s.
const PLANNED_PER_TICK: usize = 40;
/// A leg that was told to move and is still there is told again after this long.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Probes under way at once. Each is an open that ends at the publisher's daemon, of the order of a
/// millisecond of CPU; a daemon with more spares than this proves them in turn.
const PROBES_AT_ONCE: usize = 32;
/// Streams that open a further leg at once: three quarters of what a relay lets a node have
/// unanswered by default (1,024), so that the loss of a relay with thousands of streams is one round
/// trip for the first of them, a few for the last, and leaves room for new connections.
const MOVES_AT_ONCE: usize = 768;

/// What a leg's driver is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Send a PING on the leg.
    Ping,
    /// Send one if nothing was heard on the leg since the last time.
    Ask,
    /// The path may be dead: attach another leg beside this one.
    Suspect,
    /// Three pings are unanswered: attach another leg.
    Silent,
    /// The relay is to be left: attach another leg, then leave this one.
    Leave,
}

impl Told {
    const ALL: [Self; 5] = [Self::Ping, Self::Ask, Self::Suspect, Self::Silent, Self::Leave];

    const fn bit(self) -> u8 {
        match self {
            Self::Ping => 1,
            Self::Suspect => 2,
            Self::Silent => 4,
            Self::Leave => 8,
            Self::Ask => 16,
        }
    }
}

/// A publisher reached through one hop session to a relay. Another session is another path: what
/// was proved of a relay says nothing about its next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(crate) publisher: NodeId,
    pub(crate) relay: RelayId,
    /// The session's number.
    pub(crate) session: u32,
}

/// The paths of a daemon. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    inner: Arc<Mutex<Inner>>,
    /// Counts the proofs of paths that had none: streams that wait for one look again.
    proofs: channel::Sender<u64>,
    /// Places of streams that open a further leg.
    pub(crate) moves: Arc<Semaphore>,
}

#[derive(Debug)]
struct Inner {
    paths: BTreeMap<Path, Entry>,
    /// Paths that routes in use could take and that carry nothing.
    spares: BTreeMap<Path, Spare>,
    /// Routes with live streams: the publisher, and how many.
    routes: BTreeMap<RouteId, (NodeId, usize)>,
    said_revoked: SaidRevoked,
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
    /// What the last look said.
    verdict: Verdict,
    legs: BTreeMap<u64, LegEntry>,
    /// The leg that was pinged last; the next ones follow it.
    pinged: u64,
    /// The leg that was asked last, and when the next one is.
    asked: u64,
    ask_at: MonoTime,
}

/// Where the routes in use could go at this moment.
type Ways = BTreeMap<RouteId, Vec<Path>>;

#[derive(Debug)]
struct LegEntry {
    route: RouteId,
    signal: Arc<Signal>,
    told: Option<(Told, MonoTime)>,
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

/// A live stream's interest in its route's paths; given up when dropped.
#[derive(Debug)]
pub(crate) struct RouteInUse {
    paths: Paths,
    route: RouteId,
}

impl Paths {
    /// None yet.
    pub(crate) fn new(now: MonoTime) -> Self {
        let inner = Inner {
            paths: BTreeMap::new(),
            spares: BTreeMap::new(),
            routes: BTreeMap::new(),
            said_revoked: SaidRevoked::default(),
            next: 0,
            legs: 0,
            tokens: SUSPICIONS_PER_SECOND_MIN,
            counted: now,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            proofs: channel::Sender::new(0),
            moves: Arc::new(Semaphore::new(MOVES_AT_ONCE)),
        }
    }

    /// A stream of `route` lives: the paths that it could move to are kept proved.
    pub(crate) fn follow(&self, route: RouteId, publisher: NodeId) -> RouteInUse {
        let mut inner = self.lock();
        inner.routes.entry(route).or_insert((publisher, 0)).1 += 1;
        drop(inner);
        RouteInUse {
            paths: self.clone(),
            route,
        }
    }

    /// How long the path's publisher took to answer, if it has answered lately and is not late with
    /// another answer: only such a path is moved to (F-07).
    pub(crate) fn proven(&self, path: Path, now: MonoTime) -> Option<Duration> {
        self.lock().proven(path, now)
    }

    /// Tells of paths that were not proven and are.
    pub(crate) fn proofs(&self) -> channel::Receiver<u64> {
        self.proofs.subscribe()
    }

    /// A leg was attached on `path`: a sign of life.
    pub(crate) fn enter(&self, path: Path, route: RouteId, now: MonoTime) -> PathPlace {
        let signal = Arc::new(Signal::default());
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        inner.legs += 1;
        let entry = inner.paths.entry(path).or_insert_with(|| Entry {
            ask_at: now.plus(ASK_EVERY),
            ..Entry::default()
        });
        entry.pulse.heard.fetch_max(now.0, Ordering::Relaxed);
        let leg = LegEntry {
            route,
            signal: signal.clone(),
            told: None,
        };
        entry.legs.insert(number, leg);
        let pulse = entry.pulse.clone();
        inner.spares.remove(&path);
        inner.said_revoked.carried(route, path);
        drop(inner);
        PathPlace {
            paths: self.clone(),
            path,
            number,
            pulse,
            signal,
        }
    }

    /// The path's relay has refused or closed something of `route` as revoked, unsealed.
    pub(crate) fn note_revoked(&self, route: RouteId, path: Path) {
        let mut inner = self.lock();
        if inner.routes.contains_key(&route) {
            inner.said_revoked.note(route, path);
        }
    }

    /// The path has carried a question of `route` to its publisher and the answer back.
    pub(crate) fn note_carried(&self, route: RouteId, path: Path) {
        self.lock().said_revoked.carried(route, path);
    }

    /// Whether one more stream may go on its suspicion; counts it.
    pub(crate) fn may_suspect(&self, now: MonoTime) -> bool {
        self.lock().take_token(now)
    }

    /// Watches until `cancel`.
    pub(crate) async fn watch(self, consumer: Arc<Consumer>, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sessions = consumer.relays.subscribe();
        let mut probes = JoinSet::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // A relay is lost, or back: nobody waits for the next look.
                changed = sessions.changed() => if changed.is_err() { return },
                Some(done) = probes.join_next() => if let Ok((path, answer)) = done {
                    self.probed(path, answer, consumer.clock.mono());
                    continue;
                },
                () = cancel.cancelled() => return,
            }
            let now = consumer.clock.mono();
            let sessions = sessions.borrow_and_update().clone();
            let view = consumer.view.borrow().clone();
            self.end_revoked(&consumer, &view, &sessions);
            let due = {
                let mut inner = self.lock();
                let ways = ways(&inner.routes, &view, &sessions);
                let leave = |route: RouteId, relay: RelayId| {
                    sessions.get(&relay).is_some_and(|s| s.draining) || view.has_left(route, relay)
                };
                let lost = |path: Path| {
                    let session = sessions.get(&path.relay).filter(|s| s.number == path.session);
                    session.is_none_or(|s| s.doubt == Doubt::LivenessLost)
                };
                inner.tick(now, &ways, leave, lost);
                inner.spares_due(now, &ways, PROBES_AT_ONCE.saturating_sub(probes.len()))
            };
            for (path, route) in due {
                let consumer = consumer.clone();
                probes.spawn(async move { (path, probe(&consumer, path, route).await) });
            }
        }
    }

    /// Ends the streams without a leg of routes that every connected relay of theirs says are revoked: this
    /// daemon's halves, whichever they are.
    fn end_revoked(&self, consumer: &Consumer, view: &View, sessions: &Sessions) {
        let revoked = {
            let inner = self.lock();
            inner.said_revoked.by_all(|route| {
                let (publisher, _) = *inner.routes.get(&route)?;
                Some(
                    connected(view, sessions, route, publisher)?
                        .map(|(path, _)| path)
                        .collect(),
                )
            })
        };
        for route in revoked {
            let ended = consumer
                .live
                .end_suspended(EndReason::Revoked, StreamRole::Consumer, route);
            if ended > 0 {
                tracing::info!(%route, ended, "every connected relay has revoked the route; its streams are reset");
            }
        }
        let ended = consumer.live.end_revoked_by(|route| {
            let relays = view.published_through(route).iter();
            relays
                .filter(|relay| sessions.contains_key(relay))
                .copied()
                .collect()
        });
        if ended > 0 {
            tracing::info!(
                ended,
                "every connected relay has revoked published routes; their streams are reset"
            );
        }
    }

    fn probed(&self, path: Path, answer: Option<Duration>, now: MonoTime) {
        let mut inner = self.lock();
        let Some(spare) = inner.spares.get_mut(&path) else {
            return;
        };
        let news = match answer {
            Some(rtt) => spare.answered(now, rtt),
            None => spare.failed(now, rng::jitter),
        };
        drop(inner);
        if news {
            tracing::debug!(relay = %path.relay, publisher = %path.publisher, rtt = ?answer, "path proved");
            self.proofs.send_modify(|count| *count += 1);
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

    /// Whether the path answered lately, and how fast.
    fn proven(&self, path: Path, now: MonoTime) -> Option<Duration> {
        match self.paths.get(&path) {
            Some(entry) => entry.proven(now),
            None => self.spares.get(&path)?.proven(now),
        }
    }

    /// The spares to probe at this moment, at most `max`, each with a route that leads there. Those
    /// that no route could take any more are forgotten.
    fn spares_due(&mut self, now: MonoTime, ways: &Ways, max: usize) -> Vec<(Path, RouteId)> {
        let wanted: BTreeMap<Path, RouteId> = ways
            .iter()
            .flat_map(|(route, paths)| paths.iter().map(|path| (*path, *route)))
            .filter(|(path, _)| !self.paths.contains_key(path))
            .collect();
        self.spares.retain(|path, _| wanted.contains_key(path));
        let mut due: Vec<(MonoTime, Path, RouteId)> = wanted
            .into_iter()
            .filter_map(|(path, route)| {
                let since = self.spares.entry(path).or_default().due(now)?;
                Some((since, path, route))
            })
            .collect();
        due.sort_unstable();
        due.truncate(max);
        for (_, path, _) in &due {
            if let Some(spare) = self.spares.get_mut(path) {
                spare.asked(now);
            }
        }
        due.into_iter().map(|(_, path, route)| (path, route)).collect()
    }

    fn tick(
        &mut self,
        now: MonoTime,
        ways: &Ways,
        leave: impl Fn(RouteId, RelayId) -> bool,
        lost: impl Fn(Path) -> bool,
    ) {
        let mut planned = PLANNED_PER_TICK;
        let mut suspects = Vec::new();
        // Streams are asked to leave a path only where another one answers.
        let elsewhere: BTreeMap<RouteId, Vec<RelayId>> = ways
            .iter()
            .map(|(route, paths)| {
                let proven = paths.iter().filter(|path| self.proven(**path, now).is_some());
                (*route, proven.map(|path| path.relay).collect())
            })
            .collect();
        let has_elsewhere = |leg: &LegEntry, path: &Path| {
            let relays = elsewhere.get(&leg.route);
            relays.is_some_and(|relays| relays.iter().any(|relay| *relay != path.relay))
        };
        for (path, entry) in &mut self.paths {
            if lost(*path) {
                // Dead, not suspect: all of its streams go at once.
                entry.verdict = Verdict::Silent;
                for (_, leg) in entry.untold(Told::Silent, now) {
                    leg.tell(Told::Silent, now);
                }
                continue;
            }
            let heard = MonoTime(entry.pulse.heard.load(Ordering::Relaxed));
            let look = entry.watch.tick(now, heard, entry.pulse.rtt());
            entry.verdict = look.verdict;
            if look.ping {
                entry.ping();
            }
            entry.ask(now);
            match look.verdict {
                Verdict::Alive => {}
                Verdict::Suspect => {
                    let untold = entry.untold(Told::Suspect, now);
                    let movable = untold.filter(|(_, leg)| has_elsewhere(leg, path));
                    suspects.extend(movable.map(|(number, _)| (*path, *number)));
                    continue;
                }
                Verdict::Silent => {
                    for (_, leg) in entry.untold(Told::Silent, now) {
                        leg.tell(Told::Silent, now);
                    }
                    continue;
                }
            }
            let leaving = entry
                .untold(Told::Leave, now)
                .filter(|(_, leg)| leave(leg.route, path.relay) && has_elsewhere(leg, path))
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

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

    /// Asks the legs whose turn it is.
    fn ask(&mut self, now: MonoTime) {
        let count = u32::try_from(self.legs.len()).unwrap_or(u32::MAX).max(1);
        let every = (ASK_EACH_WITHIN / count).min(ASK_EVERY);
        // What was missed in a pause is not made up for.
        let mut at = if now.since(self.ask_at) > ASK_EVERY {
            now
        } else {
            self.ask_at
        };
        let mut last = self.asked;
        let behind = self.legs.range(last.saturating_add(1)..);
        for (number, leg) in behind.chain(self.legs.range(..=last)) {
            if at > now {
                break;
            }
            leg.signal.tell(Told::Ask);
            last = *number;
            at = at.plus(every);
        }
        self.asked = last;
        self.ask_at = at;
    }

    /// Legs to which `what` is news.
    fn untold(&mut self, what: Told, now: MonoTime) -> impl Iterator<Item = (&u64, &mut LegEntry)> {
        self.legs.iter_mut().filter(move |(_, l)| {
            l.told.is_none_or(|(told, at)| {
                now.since(at) >= TELL_AGAIN_AFTER || (told != what && what == Told::Silent)
            })
        })
    }

    fn proven(&self, now: MonoTime) -> Option<Duration> {
        let heard = MonoTime(self.pulse.heard.load(Ordering::Relaxed));
        let lately = now.since(heard) < PROOF_AGE_MAX && self.verdict == Verdict::Alive;
        lately.then(|| self.pulse.rtt())
    }
}

/// The paths that each route could take: through the relays of its consumption that are connected
/// and not doubted.
fn ways(routes: &BTreeMap<RouteId, (NodeId, usize)>, view: &View, sessions: &Sessions) -> Ways {
    let of_route = |(route, (publisher, _)): (&RouteId, &(NodeId, usize))| {
        let connected = connected(view, sessions, *route, *publisher)?;
        let undoubted = connected.filter(|(_, session)| !session.doubt.any());
        Some((*route, undoubted.map(|(path, _)| path).collect()))
    };
    routes.iter().filter_map(of_route).collect()
}

/// The paths through the relays of a route's consumption that are connected.
fn connected<'a>(
    view: &'a View,
    sessions: &'a Sessions,
    route: RouteId,
    publisher: NodeId,
) -> Option<impl Iterator<Item = (Path, &'a Session)>> {
    let relays = &view.consumption(route)?.relays;
    Some(relays.iter().filter_map(move |relay| {
        let session = sessions.get(relay)?;
        let path = Path {
            publisher,
            relay: *relay,
            session: session.number,
        };
        Some((path, session))
    }))
}

impl Pulse {
    fn rtt(&self) -> Duration {
        Duration::from_nanos(self.rtt_ns.load(Ordering::Relaxed))
    }
}

impl LegEntry {
    fn tell(&mut self, what: Told, now: MonoTime) {
        self.told = Some((what, now));
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
            self.pulse.rtt_ns.store(nanos(rtt), Ordering::Relaxed);
        }
    }

    /// When the path was last heard of, on whatever leg.
    pub(crate) fn last_heard(&self) -> MonoTime {
        MonoTime(self.pulse.heard.load(Ordering::Relaxed))
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

impl Drop for RouteInUse {
    fn drop(&mut self) {
        let mut inner = self.paths.lock();
        if let Some((_, count)) = inner.routes.get_mut(&self.route) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                inner.routes.remove(&self.route);
                inner.said_revoked.forget(self.route);
            }
        }
    }
}

#[cfg(test)]
mod tests;

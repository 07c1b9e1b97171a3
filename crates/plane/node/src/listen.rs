//! Local listeners: one per address that the policy's consumptions name.
//!
//! Listeners follow the policy; live streams do not depend on them.

use crate::consumer::Consumer;
use crate::view::{View, ViewReceiver};
use fairlead_host::descriptors::is_exhaustion;
use fairlead_host::{DescriptorPlace, Headroom};
use fairlead_model::{ListenAddress, MonoTime, RefusalCode, RouteId, WallTime};
use fairlead_telemetry::RateLimitedLog;
use fairlead_trust::Consumption;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections that the kernel holds before they are accepted: what a burst may bring while the
/// daemon makes its first association. The kernel's own bound (`somaxconn`) is 4,096.
const BACKLOG: i32 = 1024;
/// Connections of the daemon that wait for their stream, over all listeners, beyond those that each
/// listener has for itself. Beyond it they wait in the backlogs.
const HELD_MAX: usize = 4096;
/// Of these, each listener has this many for itself: one whose publisher is away fills the common
/// ones within seconds, and the others must not wait for it.
const HELD_PER_LISTENER: usize = 32;
/// Pause of a listener when this host has run out of descriptors or memory: long enough to cost no
/// CPU (R-SHD-03), short against what a caller notices.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a lasting shortage is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// Wait before an address that could not be bound is tried again.
const BIND_RETRY: Duration = Duration::from_secs(1);
/// How often refusals are told at once; those between go up with the next status. Applications that
/// try again without a pause must not make a status each time.
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(1);

/// What the control plane is told of one consumption's listener.
#[derive(Debug, Clone)]
pub(crate) struct ListenerState {
    /// `Err` says why it does not listen.
    pub(crate) bound: Result<(), String>,
    /// The latest connection that was turned away with a code, while none after it was carried.
    pub(crate) last_refusal: Option<LastRefusal>,
    /// How many were turned away with a code since the listener came.
    refusals: u64,
}

/// The latest refusal of a route, and how many there were since its listener came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastRefusal {
    pub(crate) code: RefusalCode,
    pub(crate) at: WallTime,
    pub(crate) count: u64,
}

/// Whether each consumption's listener works and whom it turned away, for the control plane. As
/// large as the policy's consumptions. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ListenerTable {
    states: Arc<Mutex<States>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct States {
    of: BTreeMap<RouteId, ListenerState>,
    /// When a refusal, or that one was overcome, was told at once last.
    told: Option<MonoTime>,
}

impl ListenerTable {
    /// Empty. `changed` is notified of every change.
    pub(crate) fn new(changed: Arc<Notify>) -> Self {
        Self {
            states: Arc::default(),
            changed,
        }
    }

    /// Every consumption's listener.
    pub(crate) fn states(&self) -> Vec<(RouteId, ListenerState)> {
        let table = self.lock();
        table
            .of
            .iter()
            .map(|(route, state)| (*route, state.clone()))
            .collect()
    }

    /// Notes that a connection of `route` was turned away. One whose listener has gone is not told.
    pub(crate) fn turned_away(&self, route: RouteId, code: RefusalCode, at: WallTime, now: MonoTime) {
        let mut table = self.lock();
        let Some(state) = table.of.get_mut(&route) else {
            return;
        };
        state.refusals = state.refusals.saturating_add(1);
        state.last_refusal = Some(LastRefusal {
            code,
            at,
            count: state.refusals,
        });
        self.tell(&mut table, now);
    }

    /// Notes that a connection of `route` is carried to its target: what was refused before is overcome.
    pub(crate) fn carried(&self, route: RouteId, now: MonoTime) {
        let mut table = self.lock();
        let overcome = table
            .of
            .get_mut(&route)
            .and_then(|state| state.last_refusal.take());
        if overcome.is_some() {
            self.tell(&mut table, now);
        }
    }

    fn tell(&self, table: &mut States, now: MonoTime) {
        if table
            .told
            .is_none_or(|told| now.since(told) >= REFUSALS_TOLD_EVERY)
        {
            table.told = Some(now);
            self.changed.notify_one();
        }
    }

    fn set(&self, route: RouteId, bound: Result<(), String>) {
        let mut table = self.lock();
        let before = table.of.get(&route);
        if before.is_some_and(|state| state.bound == bound) {
            return;
        }
        let state = ListenerState {
            bound,
            last_refusal: before.and_then(|state| state.last_refusal),
            refusals: before.map_or(0, |state| state.refusals),
        };
        table.of.insert(route, state);
        self.changed.notify_one();
    }

    fn keep(&self, wanted: impl Fn(RouteId) -> bool) {
        self.lock().of.retain(|route, _| wanted(*route));
    }

    fn lock(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the policy's consumptions until `cancel`, then closes the listeners. Connections go on
/// as tasks of `streams`.
pub(crate) async fn listen_all(
    consumer: Arc<Consumer>,
    table: ListenerTable,
    mut view: ViewReceiver,
    streams: TaskTracker,
    cancel: CancellationToken,
) {
    let held = Arc::new(Semaphore::new(HELD_MAX));
    let headroom = consumer.headroom.clone();
    let listeners = TaskTracker::new();
    let mut running: BTreeMap<ListenAddress, (watch::Sender<Arc<Consumption>>, CancellationToken)> =
        BTreeMap::new();
    loop {
        let now = view.borrow_and_update().clone();
        table.keep(|route| now.consumes(route));
        let wanted = wanted(&now, &table);
        running.retain(|address, (_, token)| {
            let keep = wanted.contains_key(address);
            if !keep {
                token.cancel();
            }
            keep
        });
        for (address, consumption) in wanted {
            if let Some((sender, _)) = running.get(&address) {
                sender.send_if_modified(|held| {
                    let changed = *held != consumption;
                    *held = consumption;
                    changed
                });
                continue;
            }
            let (sender, receiver) = watch::channel(consumption);
            let token = cancel.child_token();
            let listener = Listener {
                address,
                consumption: receiver,
                consumer: consumer.clone(),
                table: table.clone(),
                held: held.clone(),
                own: Arc::new(Semaphore::new(HELD_PER_LISTENER)),
                headroom: headroom.clone(),
                streams: streams.clone(),
            };
            listeners.spawn(listener.run(token.clone()));
            running.insert(address, (sender, token));
        }
        tokio::select! {
            changed = view.changed() => if changed.is_err() { break },
            () = cancel.cancelled() => break,
        }
    }
    cancel.cancel();
    listeners.close();
    listeners.wait().await;
}

/// The consumption of each address; a second one for the same address is reported.
fn wanted(view: &View, table: &ListenerTable) -> BTreeMap<ListenAddress, Arc<Consumption>> {
    let mut wanted: BTreeMap<ListenAddress, Arc<Consumption>> = BTreeMap::new();
    for consumption in view.policy().into_iter().flat_map(|p| &p.consumptions) {
        if !view.consumes(consumption.route) {
            continue;
        }
        if let Some(first) = wanted.get(&consumption.listen) {
            let error = format!("{} is taken by link {}", consumption.listen, first.link);
            table.set(consumption.route, Err(error));
        } else {
            wanted.insert(consumption.listen, Arc::new(consumption.clone()));
        }
    }
    wanted
}

struct Listener {
    address: ListenAddress,
    consumption: watch::Receiver<Arc<Consumption>>,
    consumer: Arc<Consumer>,
    table: ListenerTable,
    held: Arc<Semaphore>,
    own: Arc<Semaphore>,
    headroom: Headroom,
    streams: TaskTracker,
}

/// What a connection takes of the daemon: a place until its stream is open or refused, and a
/// descriptor as long as it lives.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) held: OwnedSemaphorePermit,
    pub(crate) descriptor: DescriptorPlace,
}

impl Listener {
    async fn run(mut self, cancel: CancellationToken) {
        let log = RateLimitedLog::new(LOG_EVERY);
        loop {
            let route = self.consumption.borrow_and_update().route;
            match bind(self.address) {
                Ok(socket) => {
                    self.table.set(route, Ok(()));
                    tracing::info!(%route, "listening");
                    tokio::select! {
                        () = self.accept_all(&socket) => {}
                        () = cancel.cancelled() => {}
                    }
                    return;
                }
                Err(error) => {
                    if let Some(suppressed) = log.allow(std::time::Instant::now()) {
                        tracing::warn!(%route, listen = %self.address, %error, suppressed, "listener failed; trying again");
                    }
                    // The address stands beside it wherever it is told.
                    self.table.set(route, Err(error.to_string()));
                    tokio::select! {
                        () = tokio::time::sleep(BIND_RETRY) => {}
                        () = cancel.cancelled() => return,
                    }
                }
            }
        }
    }

    /// Accepts until the listener's consumption is gone.
    async fn accept_all(&mut self, listener: &TcpListener) {
        let log = RateLimitedLog::new(LOG_EVERY);
        loop {
            let Some(held) = self.place().await else { return };
            let descriptor = match self.headroom.take() {
                Ok(descriptor) => descriptor,
                Err(short) => {
                    self.short(&log, &short).await;
                    continue;
                }
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                changed = self.consumption.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // Another consumption took over the address: it is served from here on.
                    let route = self.consumption.borrow_and_update().route;
                    self.table.set(route, Ok(()));
                    continue;
                }
            };
            match accepted {
                Ok((socket, _)) => {
                    let consumption = self.consumption.borrow().clone();
                    let consumer = self.consumer.clone();
                    let admission = Admission { held, descriptor };
                    self.streams.spawn(consumer.serve(socket, consumption, admission));
                }
                Err(error) if is_exhaustion(&error) => self.short(&log, &error).await,
                // A connection that ended before it was accepted.
                Err(error) => tracing::debug!(%error, "accept failed"),
            }
        }
    }

    /// A place for one connection that waits: one of the listener's own, else a common one.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            own = self.own.clone().acquire_owned() => own.ok(),
            common = self.held.clone().acquire_owned() => common.ok(),
        }
    }

    /// Out of descriptors or memory: those that come wait in the backlog for a moment (F-09).
    async fn short(&self, log: &RateLimitedLog, error: &(dyn std::fmt::Display + Sync)) {
        self.consumer.metrics.accept_pauses.inc();
        if let Some(suppressed) = log.allow(std::time::Instant::now()) {
            tracing::warn!(%error, suppressed, "out of descriptors or memory; accepting again in a moment");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A listening socket. An IPv6 address takes IPv6 only, so that the same port of IPv4 stays free
/// for another link.
fn bind(address: ListenAddress) -> io::Result<TcpListener> {
    let ListenAddress(address) = address;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of an earlier run in TIME_WAIT do not keep the address.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal is told at once, those of the next second with the next status; each listener has
    /// its own count, which goes with it.
    #[tokio::test(start_paused = true)]
    async fn refusals_are_counted_and_told_now_and_then() {
        let (start, changed) = (MonoTime(0), Arc::new(Notify::new()));
        let at = WallTime(1);
        let table = ListenerTable::new(changed.clone());
        let told = async || {
            let wait = tokio::time::timeout(Duration::from_millis(1), changed.notified());
            wait.await.is_ok()
        };
        let (one, two) = (RouteId::from_bytes([1; 16]), RouteId::from_bytes([2; 16]));
        table.turned_away(one, RefusalCode::Draining, at, start);
        assert!(
            table.states().is_empty() && !told().await,
            "no listener, no refusal"
        );
        table.set(one, Ok(()));
        table.set(two, Ok(()));
        assert!(told().await);
        for (route, code) in [
            (one, RefusalCode::TargetTimeout),
            (two, RefusalCode::BadGrant),
            (one, RefusalCode::TargetRefused),
        ] {
            let first = code == RefusalCode::TargetTimeout;
            table.turned_away(route, code, at, start);
            assert_eq!(told().await, first, "{code}");
        }
        // What else becomes of the listener leaves it standing.
        table.set(one, Err("gone".to_owned()));
        let counts = || -> Vec<_> {
            let states = table.states().into_iter();
            states
                .map(|(_, s)| s.last_refusal.map(|r| (r.code, r.count)))
                .collect()
        };
        assert_eq!(
            counts(),
            [
                Some((RefusalCode::TargetRefused, 2)),
                Some((RefusalCode::BadGrant, 1))
            ]
        );
        assert!(told().await);
        let later = start.plus(REFUSALS_TOLD_EVERY);
        table.turned_away(two, RefusalCode::BadGrant, at, later);
        assert!(told().await);
        // One that is carried ends it, and is told as seldom; the next refusal counts on.
        table.carried(one, later);
        assert!(!told().await);
        assert_eq!(counts(), [None, Some((RefusalCode::BadGrant, 2))]);
        let latest = later.plus(REFUSALS_TOLD_EVERY);
        table.turned_away(one, RefusalCode::TargetRefused, at, later);
        table.carried(one, latest);
        assert!(told().await);
        table.carried(one, latest.plus(REFUSALS_TOLD_EVERY));
        assert!(!told().await, "nothing was overcome");
        table.turned_away(one, RefusalCode::TargetRefused, at, latest);
        assert_eq!(counts()[0], Some((RefusalCode::TargetRefused, 4)));
        table.keep(|route| route == two);
        table.set(one, Ok(()));
        assert_eq!(counts(), [None, Some((RefusalCode::BadGrant, 2))]);
    }

    #[tokio::test]
    async fn both_families_share_a_port_and_a_taken_one_is_told() {
        let any = ListenAddress("127.0.0.1:0".parse().unwrap());
        // Another process may hold the same port of the other family: try a few.
        let (v4, v6) = (0..20)
            .find_map(|_| {
                let v4 = bind(any).unwrap();
                let port = v4.local_addr().unwrap().port();
                let v6 = bind(ListenAddress(format!("[::1]:{port}").parse().unwrap())).ok()?;
                Some((v4, v6))
            })
            .unwrap();
        assert_eq!(v4.local_addr().unwrap().port(), v6.local_addr().unwrap().port());
        let error = bind(ListenAddress(v4.local_addr().unwrap())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}

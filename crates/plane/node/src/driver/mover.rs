//! Finds a consumer's stream its next leg (R-STR-01, R-STR-03).
//!
//! Only the dialling daemon opens legs. A stream that lost its leg takes the next one from a warm
//! session of another relay; a stream whose path is suspect or whose relay is to be left gets one
//! beside the old. The mover says through which relay and when; the driver puts OPEN, ATTACH and
//! what is unacknowledged onto the leg in one flight. Streams go only where the publisher has
//! answered lately (F-07): while no path is proven, they wait for one probe, not for a thousand.

use super::LegIo;
use super::first::FirstLeg;
use crate::association::{Association, LEG_WAIT_MAX, PairRequest};
use crate::consumer::Consumer;
use crate::paths::{Path, PathPlace, RouteInUse, suspect_after};
use crate::relays::Session;
use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::{Frame, LegKind, Open, Refusal};
use fairlead_host::rng;
use fairlead_model::{LegEpoch, MonoTime, NodeId, RefusalCode, RelayId, RouteId, StreamNumber};
use fairlead_stream::{AttachKind, Stream};
use fairlead_transport::Leg;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// How long the answer to an ATTACH may take before another relay is tried, and the same in round
/// trips. The answer comes from the publisher's daemon, not from its target.
const ATTACH_WAIT_MIN: Duration = Duration::from_secs(1);
const ATTACH_WAIT_RTTS: u32 = 4;
/// How long in all while the path answers others: a relay that takes a thousand streams at once, or
/// a long path whose congestion window is still small, needs its time.
const ATTACH_WAIT_LONGEST: Duration = Duration::from_secs(6);
/// A relay that failed a stream is left alone by it for this long, twice as long each time, up to
/// the longest.
const AVOID_FIRST: Duration = Duration::from_millis(250);
const AVOID_LONGEST: Duration = Duration::from_secs(4);
/// Longest wait between looks for a relay while a stream has none; a new session is seen at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Spread of the streams that wait for the same relay.
const LOOK_JITTER: Duration = Duration::from_millis(50);
/// Least time between two suspicions of one stream; it doubles up to the longest, so that an overloaded
/// host or a stopped publisher makes no stream wander, and starts over after a calm or when a suspicion
/// was right: another path answered while the old one stayed silent.
const SUSPECT_AGAIN: Duration = Duration::from_millis(500);
const SUSPECT_AGAIN_LONGEST: Duration = Duration::from_secs(2);
const CALM: Duration = Duration::from_secs(30);
/// Wait after the daemon's ration of suspicions was found used up.
const RATION_WAIT: Duration = Duration::from_millis(125);
/// How long a stream waits for the proof of its publisher's run before it looks for another relay: the one
/// that said not to know the association may swallow the handshake as well.
const VERIFY_WAIT: Duration = Duration::from_secs(1);
/// Longest wait that a refusal may ask of a stream for one relay.
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(15);
/// Paths count as equally fast up to twice the fastest's time and this much more: streams spread over
/// them, and none goes the long way while there is a short one.
const RTT_SLACK: Duration = Duration::from_millis(5);

/// Why a stream gets another leg; the least urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MoveKind {
    /// Its relay is to be left: make before break.
    Planned,
    /// Its path may be dead.
    Suspicion,
    /// It has no leg, or its path is silent.
    Failure,
}

impl MoveKind {
    /// The kind's stable name, in labels and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Suspicion => "suspicion",
            Self::Failure => "failure",
        }
    }

    pub(super) const fn attach(self) -> AttachKind {
        match self {
            Self::Planned => AttachKind::Planned,
            Self::Suspicion | Self::Failure => AttachKind::Resend,
        }
    }
}

/// The hop session that a leg runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Via {
    pub(crate) relay: RelayId,
    /// Tells a session from its successor at the same relay.
    pub(crate) session: u32,
}

/// A wish for another leg.
#[derive(Debug, Clone, Copy)]
struct Wish {
    kind: MoveKind,
    since: MonoTime,
}

/// What the mover gives its driver.
pub(super) enum Step {
    /// Nothing now; the task is woken.
    Pending,
    /// A fresh leg; the driver opens it in the machine and tells [`Mover::attaching`].
    Leg(Leg, Via, MoveKind, MovePermit),
}

enum State {
    Idle,
    Opening(Via, Opening),
    Waiting(Waiting),
}

/// A place among the streams that open a further leg at once.
pub(super) type MovePermit = OwnedSemaphorePermit;
type Opening = Pin<Box<dyn Future<Output = Option<(Leg, MovePermit)>> + Send>>;
type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A further leg whose ATTACH is not answered.
#[derive(Debug)]
struct Attaching {
    epoch: LegEpoch,
    wish: Option<Wish>,
    by: MonoTime,
    /// The path, and when no more patience is had with it.
    patience: (Path, MonoTime),
    /// Given back with the answer.
    _permit: MovePermit,
}

#[derive(Debug)]
struct Avoided {
    via: Via,
    until: MonoTime,
    failures: u32,
}

/// The mover of one stream.
pub(crate) struct Mover {
    consumer: Arc<Consumer>,
    route: RouteId,
    publisher: NodeId,
    association: Arc<Association>,
    number: StreamNumber,
    wish: Option<Wish>,
    state: State,
    /// Until the stream is attached, or has lost it.
    first: Option<FirstLeg>,
    attaching: Option<Attaching>,
    /// At most one entry per relay of the route.
    avoided: Vec<Avoided>,
    suspect_from: MonoTime,
    suspect_wait: Duration,
    /// Keeps the route's other paths proved.
    _in_use: RouteInUse,
}

impl Mover {
    /// For a stream of `association`, whose `first` leg was answered by its relay.
    pub(crate) fn new(
        consumer: Arc<Consumer>,
        route: RouteId,
        publisher: NodeId,
        association: Arc<Association>,
        number: StreamNumber,
        first: &LegIo,
    ) -> Self {
        let now = consumer.clock.mono();
        let in_use = consumer.paths.follow(route, publisher);
        let via = first.via();
        let path = Path {
            publisher,
            relay: via.relay,
            session: via.session,
        };
        let rtt = consumer.paths.proven(path, now);
        let first = FirstLeg::new(first.epoch(), path, rtt, now);
        Self {
            consumer,
            route,
            publisher,
            association,
            number,
            wish: None,
            state: State::Idle,
            first: Some(first),
            attaching: None,
            avoided: Vec::new(),
            suspect_from: now,
            suspect_wait: SUSPECT_AGAIN,
            _in_use: in_use,
        }
    }

    /// The stream wants another leg. A wish that is being fulfilled takes the more urgent kind.
    pub(super) fn want(&mut self, kind: MoveKind, now: MonoTime) {
        if self.attaching.is_some() || (kind == MoveKind::Suspicion && !self.may_suspect(now)) {
            return;
        }
        match &mut self.wish {
            Some(wish) => wish.kind = wish.kind.max(kind),
            None => self.wish = Some(Wish { kind, since: now }),
        }
    }

    /// Whether the stream's last suspicion is long enough ago; counts another one.
    fn may_suspect(&mut self, now: MonoTime) -> bool {
        if now < self.suspect_from {
            return false;
        }
        if now.since(self.suspect_from) >= CALM {
            self.suspect_wait = SUSPECT_AGAIN;
        }
        self.suspect_from = now.plus(self.suspect_wait + rng::jitter(self.suspect_wait / 2));
        self.suspect_wait = (self.suspect_wait * 2).min(SUSPECT_AGAIN_LONGEST);
        true
    }

    /// Whether the stream waits too long for the answer to its first ATTACH, or bytes of it for their
    /// acknowledgement. Takes from the daemon's ration of suspicions, except where the first leg's path
    /// answers nobody.
    pub(super) fn suspects(&mut self, stream: &Stream, now: MonoTime) -> bool {
        if self.suspect_at(stream).is_none_or(|at| at > now) {
            return false;
        }
        let paths = &self.consumer.paths;
        let silent = |first: &FirstLeg| paths.proven(first.path(), now).is_none();
        let may = self.first.as_ref().is_some_and(silent) || paths.may_suspect(now);
        if !may {
            self.suspect_from = now.plus(RATION_WAIT + rng::jitter(RATION_WAIT));
        }
        may
    }

    /// When a suspicion would arise.
    fn suspect_at(&self, stream: &Stream) -> Option<MonoTime> {
        if self.wish.is_some() || self.attaching.is_some() {
            return None;
        }
        let late = match &self.first {
            Some(first) => first.late_at(),
            None => stream.unacked_since()?.plus(suspect_after(stream.rtt())),
        };
        Some(late.max(self.suspect_from))
    }

    /// When the driver has to look again although nothing wakes it.
    pub(super) fn deadline(&self, stream: &Stream) -> Option<MonoTime> {
        match &self.attaching {
            Some(attaching) => Some(attaching.by),
            None => self.suspect_at(stream),
        }
    }

    /// A leg whose answer is overdue. While its path answers others it has more time.
    pub(super) fn overdue(&mut self, now: MonoTime) -> Option<LegEpoch> {
        let attaching = self.attaching.as_mut().filter(|a| a.by <= now)?;
        let (path, until) = attaching.patience;
        if now < until && self.consumer.paths.proven(path, now).is_some() {
            attaching.by = now.plus(ATTACH_WAIT_MIN / 2).min(until);
            return None;
        }
        Some(attaching.epoch)
    }

    /// Goes on with the wish. `used`: relays that the stream has legs through.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now: MonoTime,
        stream: &Stream,
        used: &[RelayId],
    ) -> Step {
        loop {
            match &mut self.state {
                State::Idle => {
                    let Some(wish) = self.wish.filter(|_| self.attaching.is_none()) else {
                        return Step::Pending;
                    };
                    self.begin(wish, now, stream, used);
                    if matches!(self.state, State::Idle) {
                        return Step::Pending;
                    }
                }
                State::Opening(via, opening) => {
                    let via = *via;
                    match opening.as_mut().poll(cx) {
                        Poll::Pending => return Step::Pending,
                        Poll::Ready(leg) => {
                            self.state = State::Idle;
                            match (leg, self.wish) {
                                (Some((leg, permit)), Some(wish)) => {
                                    return Step::Leg(leg, via, wish.kind, permit);
                                }
                                (Some(_), None) => {}
                                (None, _) => self.avoid(via, now),
                            }
                        }
                    }
                }
                State::Waiting(waiting) => match waiting.as_mut().poll(cx) {
                    Poll::Pending => return Step::Pending,
                    Poll::Ready(()) => self.state = State::Idle,
                },
            }
        }
    }

    fn begin(&mut self, wish: Wish, now: MonoTime, stream: &Stream, used: &[RelayId]) {
        // Before the look: what changes after it is not missed.
        let mut sessions = self.consumer.relays.subscribe();
        let mut proofs = self.consumer.paths.proofs();
        if let Some((via, session)) = self.candidate(wish.kind, now, used) {
            let moves = self.consumer.paths.moves.clone();
            let opening = async move {
                let permit = moves.acquire_owned().await.ok()?;
                let leg = tokio::time::timeout(LEG_WAIT_MAX, session.carrier.open_leg()).await;
                Some((leg.ok()?.ok()?, permit))
            };
            self.state = State::Opening(via, Box::pin(opening));
        } else if self.first.is_none()
            && stream.has_leg()
            && (wish.kind != MoveKind::Failure || now.since(wish.since) >= LOOK_EVERY)
        {
            // Nowhere to go; who wished for it will say so again.
            self.wish = None;
        } else {
            let next = self
                .avoided
                .iter()
                .map(|a| a.until.since(now))
                .filter(|wait| !wait.is_zero());
            let wait = next.min().unwrap_or(LOOK_EVERY).min(LOOK_EVERY) + rng::jitter(LOOK_JITTER);
            self.state = State::Waiting(Box::pin(async move {
                // An error is the end of the daemon.
                tokio::select! {
                    _ = sessions.changed() => {}
                    _ = proofs.changed() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }));
        }
    }

    /// The best relay whose path is proven: one that does not drain, then among the fastest in turn.
    fn candidate(&self, kind: MoveKind, now: MonoTime, used: &[RelayId]) -> Option<(Via, Session)> {
        let view = self.consumer.view.borrow().clone();
        let relays = &view.consumption(self.route)?.relays;
        self.grant()?;
        let sessions = self.consumer.relays.sessions();
        let turn = self.consumer.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn.checked_rem(relays.len())?;
        let in_turn = relays.iter().cycle().skip(start).take(relays.len());
        let proven = in_turn.filter_map(|relay| {
            let session = sessions.get(relay)?;
            let via = Via {
                relay: *relay,
                session: session.number,
            };
            let avoided = self.avoided.iter().any(|a| a.via == via && a.until > now);
            let good = !session.doubt.any() && (!session.draining || kind == MoveKind::Failure);
            if !good || avoided || used.contains(relay) || session.carrier.end().is_some() {
                return None;
            }
            let rtt = self.consumer.paths.proven(self.path(via), now)?;
            Some((via, session.clone(), rtt))
        });
        let proven: Vec<(Via, Session, Duration)> = proven.collect();
        let draining = proven.iter().all(|(_, session, _)| session.draining);
        let choice = || {
            proven
                .iter()
                .filter(|(_, session, _)| session.draining == draining)
        };
        let fastest = choice().map(|(_, _, rtt)| *rtt).min()?;
        // The first in the order of the turn.
        let (via, session, _) = choice().find(|(_, _, rtt)| *rtt <= fastest * 2 + RTT_SLACK)?;
        Some((*via, session.clone()))
    }

    const fn path(&self, via: Via) -> Path {
        Path {
            publisher: self.publisher,
            relay: via.relay,
            session: via.session,
        }
    }

    fn grant(&self) -> Option<Bytes> {
        let view = self.consumer.view.borrow().clone();
        let grant = view.grant(self.route)?;
        let ended = self.consumer.clock.wall() > grant.not_after.plus(fairlead_trust::grant::CLOCK_SKEW_MAX);
        (!ended).then(|| grant.envelope().clone())
    }

    /// The OPEN of a leg, and the stream's grant renewed.
    pub(super) fn open(&self, stream: &mut Stream, epoch: LegEpoch) -> Option<Bytes> {
        let grant = self.grant()?;
        stream.set_grant(grant.clone()).ok()?;
        let open = Frame::Open(Open {
            kind: LegKind::Stream,
            association: self.association.id(),
            route: self.route,
            stream: self.number,
            epoch,
            resume: stream.ever_attached(),
            grant,
        });
        let mut bytes = BytesMut::new();
        open.encode(&mut bytes).ok()?;
        Some(bytes.freeze())
    }

    /// A leg is on its way in the machine.
    pub(super) fn attaching(
        &mut self,
        epoch: LegEpoch,
        via: Via,
        stream: &Stream,
        permit: MovePermit,
        now: MonoTime,
    ) {
        let view = self.consumer.view.borrow().clone();
        let mut relays = view.policy().into_iter().flat_map(|policy| &policy.relays);
        if let Some(relay) = relays.find(|r| r.relay == via.relay) {
            self.consumer.metrics.move_attempted(&relay.name);
        }
        let path = self.path(via);
        let rtt = self.consumer.paths.proven(path, now).max(stream.rtt());
        let wait = (rtt.unwrap_or_default() * ATTACH_WAIT_RTTS).max(ATTACH_WAIT_MIN);
        self.attaching = Some(Attaching {
            epoch,
            wish: self.wish.take(),
            by: now.plus(wait),
            patience: (path, now.plus(ATTACH_WAIT_LONGEST)),
            _permit: permit,
        });
    }

    /// The publisher has accepted a leg: its place on its path, and what kind of move is complete,
    /// after how long. `heard`: when the paths of the stream's other legs were last heard of.
    pub(super) fn attached(
        &mut self,
        epoch: LegEpoch,
        via: Via,
        heard: Option<MonoTime>,
        now: MonoTime,
    ) -> (PathPlace, Option<(MoveKind, Duration)>) {
        let place = self.consumer.paths.enter(self.path(via), self.route, now);
        self.avoided.retain(|a| a.via.relay != via.relay);
        let fulfilled = self.attaching.take_if(|a| a.epoch == epoch);
        if self.first.take().is_some() && self.attaching.is_none() {
            // If the first was late, it has come after all.
            self.wish = None;
        }
        let wish = fulfilled.and_then(|a| a.wish);
        if let Some(wish) = wish
            && wish.kind >= MoveKind::Suspicion
            && heard.is_none_or(|at| at < wish.since)
        {
            self.suspect_wait = SUSPECT_AGAIN;
        }
        (place, wish.map(|w| (w.kind, now.since(w.since))))
    }

    /// The machine has left a leg. One that was not attached was refused by the publisher.
    pub(super) fn left(&mut self, epoch: LegEpoch, via: Via, now: MonoTime) {
        let first = self.first.as_ref().map(FirstLeg::epoch);
        let further = self.attaching.as_ref().map(|a| a.epoch);
        if [first, further].contains(&Some(epoch)) {
            self.lost(epoch, via, None, now);
        }
    }

    /// The machine has no such leg any more.
    pub(super) fn forget(&mut self, epoch: LegEpoch) {
        self.attaching.take_if(|a| a.epoch == epoch);
    }

    /// A leg is lost: its relay is left alone for a while, and so is a publisher that a relay says
    /// not to know the association, until it has proved which run it is.
    pub(super) fn lost(&mut self, epoch: LegEpoch, via: Via, refusal: Option<Refusal>, now: MonoTime) {
        self.first.take_if(|first| first.epoch() == epoch);
        if let Some(failed) = self.attaching.take_if(|a| a.epoch == epoch) {
            // Kept, so that the time since the loss goes on.
            self.wish = failed.wish;
        }
        self.avoid(via, now);
        let code = refusal.map(|refusal| refusal.code);
        if let Some(wait) = refusal.and_then(|refusal| refusal.retry_after)
            && let Some(avoided) = self.avoided.iter_mut().find(|a| a.via == via)
        {
            // Spread, so that those who were refused together do not come back together.
            let wait = wait.min(REFUSED_WAIT_MAX);
            avoided.until = avoided.until.max(now.plus(wait + rng::jitter(wait / 2)));
        }
        if code == Some(RefusalCode::UnknownAssociation) && matches!(self.state, State::Idle) {
            self.verify(via);
        }
    }

    /// A relay has refused or closed a leg as revoked. Its word alone is the loss of this leg.
    pub(super) fn said_revoked(&self, via: Via) {
        self.consumer.paths.note_revoked(self.route, self.path(via));
    }

    /// Asks the publisher itself, by another handshake, which run it is. What another run than the stream's says
    /// is the failure of this leg alone; what becomes of its streams is decided in `old_runs`.
    fn verify(&mut self, via: Via) {
        let sessions = self.consumer.relays.sessions();
        let (Some(session), Some(grant)) = (sessions.get(&via.relay).cloned(), self.grant()) else {
            return;
        };
        let associations = self.consumer.associations.clone();
        let request = PairRequest {
            publisher: self.publisher,
            route: self.route,
            grant,
            session,
            unknown: Some(self.association.id()),
        };
        self.state = State::Waiting(Box::pin(async move {
            // An error is an elapsed wait: whenever the handshake succeeds, it counts.
            let _ = tokio::time::timeout(VERIFY_WAIT, associations.get(&request)).await;
        }));
    }

    /// Leaves a relay alone for a while.
    pub(super) fn avoid(&mut self, via: Via, now: MonoTime) {
        let before = self.avoided.iter().position(|a| a.via.relay == via.relay);
        let before = before.map(|at| self.avoided.swap_remove(at));
        let failures = before.filter(|b| b.via == via).map_or(0, |b| b.failures + 1);
        let wait = (AVOID_FIRST * 2_u32.saturating_pow(failures)).min(AVOID_LONGEST);
        self.avoided.push(Avoided {
            via,
            until: now.plus(wait),
            failures,
        });
    }
}

//! Associations that this daemon dials: one secret per publisher, made once for however many
//! streams want it at the same time, and renewed hourly.
//!
//! A relay that swallows a handshake holds up nobody else's: who asks through another one makes it there.
//! And no relay's word ends an association, since it is unsealed: that the publisher does not know it
//! starts a handshake, and until that has proved another one the old stays in use.

use crate::attempt::AttemptError;
use crate::live::EarlierRuns;
use crate::metrics::{NodeMetrics, StreamRole};
use crate::old_runs::OldRuns;
use crate::probe::probe_number;
use crate::relays::Session;
use crate::told;
use bytes::Bytes;
use fairlead_hop::frame::{Frame, LegKind, Open};
use fairlead_host::{Clock, rng};
use fairlead_model::{AssociationId, BootCounter, LegEpoch, MonoTime, NodeId, RouteId, StreamNumber};
use fairlead_stream::StreamSecret;
use fairlead_transport::{MemberTls, PairHello, PairSecret, pair};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// Age at which an association is renewed.
const RENEW_AFTER: Duration = Duration::from_secs(60 * 60);
/// For this long after that the old one still opens streams (ARCHITECTURE.md, Streams).
const OLD_USED_FOR: Duration = Duration::from_secs(2 * 60);
/// Age at which a publisher forgets an association: its last open has been answered by then.
pub(crate) const FORGET_AFTER: Duration = Duration::from_secs(60 * 60 + 2 * 60 + 60);
/// For this long a handshake is made for all that ask, through whichever relay: far longer than one takes.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// How long a relay may take to give a leg: it waits only for its limit on legs.
pub(crate) const LEG_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long a handshake may take in all: its leg, and as long as a relay holds an OPEN for a late policy
/// (10 s, R-POL-10).
const MAKE_MAX: Duration = Duration::from_secs(LEG_WAIT_MAX.as_secs() + 10);

/// A secret shared with one publisher.
pub(crate) struct Association {
    id: AssociationId,
    peer_boot: BootCounter,
    /// An earlier run of the publisher that is dead.
    peer_dead: Option<BootCounter>,
    secret: PairSecret,
    /// When its handshake began and was done.
    begun: MonoTime,
    made: MonoTime,
    next_stream: AtomicU64,
    next_probe: AtomicU64,
}

/// What a stream is for. Its number says it, and its secret is drawn from its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// It is carried to the target.
    Service,
    /// The publisher's daemon sends it back.
    Check,
}

/// Set in the numbers of [`StreamKind::Check`]. The bit above it is that of probes.
pub(crate) const CHECK_BIT: u64 = 1 << 62;

impl StreamKind {
    const fn number(self, count: u64) -> StreamNumber {
        match self {
            Self::Service => StreamNumber(count & !CHECK_BIT),
            Self::Check => StreamNumber(count | CHECK_BIT),
        }
    }

    /// What a stream of this number is for.
    pub(crate) const fn of(number: StreamNumber) -> Self {
        if number.0 & CHECK_BIT == 0 {
            Self::Service
        } else {
            Self::Check
        }
    }
}

/// What is needed to make one: any route to the publisher with its grant, and a relay.
#[derive(Debug, Clone)]
pub(crate) struct PairRequest {
    pub(crate) publisher: NodeId,
    pub(crate) route: RouteId,
    pub(crate) grant: Bytes,
    pub(crate) session: Session,
    /// One that the publisher does not know, as a relay says: another one is wanted.
    pub(crate) unknown: Option<AssociationId>,
}

/// The associations of a daemon, by publisher.
#[derive(Debug)]
pub(crate) struct Associations {
    entries: Mutex<BTreeMap<NodeId, Entry>>,
    tls: Arc<MemberTls>,
    boot: BootCounter,
    clock: Arc<dyn Clock>,
    old_runs: OldRuns,
    metrics: NodeMetrics,
    tasks: TaskTracker,
}

type Made = Option<Result<Arc<Association>, Arc<AttemptError>>>;

/// A handshake under way.
#[derive(Debug, Clone)]
struct Making {
    /// The session that carries it.
    session: u32,
    since: MonoTime,
    made: watch::Receiver<Made>,
}

/// What somebody waits for who has no association.
struct Waiting {
    making: Making,
    current: watch::Receiver<Option<Arc<Association>>>,
    /// The current one, which is of no use to him.
    useless: Option<AssociationId>,
}

#[derive(Debug, Default)]
struct Entry {
    current: watch::Sender<Option<Arc<Association>>>,
    /// At most one for each session of this daemon, the latest last.
    making: Vec<Making>,
    /// To be replaced before its time: this daemon's certificate has changed.
    stale: bool,
}

impl std::fmt::Debug for Association {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Association")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Association {
    /// Its id, carried in every OPEN.
    pub(crate) const fn id(&self) -> AssociationId {
        self.id
    }

    /// Whether it is to be used from now on where `before` was. A relay may keep an earlier run's last word back
    /// until the next has proved itself; but one that took up a handshake after that lives, and is where relays
    /// lead to.
    fn succeeds(&self, before: &Self) -> bool {
        before.peer_boot <= self.peer_boot || self.begun > before.made
    }

    /// The publisher's run.
    pub(crate) const fn peer_boot(&self) -> BootCounter {
        self.peer_boot
    }

    /// A number that no stream of this association has had, and the stream's secret.
    pub(crate) fn new_stream(&self, route: RouteId, kind: StreamKind) -> (StreamNumber, StreamSecret) {
        let number = kind.number(self.next_stream.fetch_add(1, Ordering::Relaxed));
        (number, StreamSecret::derive(self.secret.expose(), number, route))
    }

    /// A number that neither a stream nor a probe of this association has had, and its secret.
    pub(crate) fn new_probe(&self, route: RouteId) -> (StreamNumber, StreamSecret) {
        let number = self.next_probe.fetch_add(1, Ordering::Relaxed);
        let number = probe_number(StreamNumber(number));
        (number, StreamSecret::derive(self.secret.expose(), number, route))
    }
}

impl Associations {
    /// None yet. Handshakes run as tasks of `tasks`.
    pub(crate) fn new(
        tls: Arc<MemberTls>,
        boot: BootCounter,
        clock: Arc<dyn Clock>,
        old_runs: OldRuns,
        metrics: NodeMetrics,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            entries: Mutex::default(),
            tls,
            boot,
            clock,
            old_runs,
            metrics,
            tasks,
        }
    }

    /// The association with a publisher; made through the request's relay if there is none. Of all
    /// that ask at once, one makes it and the others wait for the same result. A handshake that fails, or
    /// takes long, is waited for by those only who asked through its relay; whichever succeeds serves all.
    ///
    /// Cancel safe: a handshake goes on for the others. Takes [`MAKE_MAX`] more than a second at most.
    pub(crate) async fn get(
        self: &Arc<Self>,
        request: &PairRequest,
    ) -> Result<Arc<Association>, Arc<AttemptError>> {
        let mut shares = true;
        loop {
            let Waiting {
                mut making,
                mut current,
                useless,
            } = match self.current_or_making(request, shares) {
                Ok(current) => return Ok(current),
                Err(waiting) => waiting,
            };
            let is_own = making.session == request.session.number;
            let another = current.wait_for(|current| {
                let id = current.as_ref().map(|current| current.id);
                id.is_some() && id != useless
            });
            let late = SHARED_FOR.saturating_sub(self.clock.mono().since(making.since));
            tokio::select! {
                biased;
                made = making.made.wait_for(Option::is_some) => match made.as_deref() {
                    Ok(Some(Ok(association))) => return Ok(association.clone()),
                    Ok(Some(Err(error))) if is_own => return Err(error.clone()),
                    Ok(None) | Err(_) if is_own => return Err(Arc::new(AttemptError::GivenUp)),
                    Ok(_) | Err(_) => {}
                },
                another = another => if let Ok(Some(association)) = another.as_deref() {
                    return Ok(association.clone());
                },
                () = tokio::time::sleep(late), if !is_own => {}
            }
            shares = false;
        }
    }

    fn current_or_making(
        self: &Arc<Self>,
        request: &PairRequest,
        shares: bool,
    ) -> Result<Arc<Association>, Waiting> {
        let now = self.clock.mono();
        let mut entries = self.lock();
        let entry = entries.entry(request.publisher).or_default();
        let current = entry.current.borrow().clone();
        let useless = current.as_ref().map(|current| current.id);
        let usable = match current.filter(|current| Some(current.id) != request.unknown) {
            Some(current) if now.since(current.made) < RENEW_AFTER && !entry.stale => return Ok(current),
            Some(current) if now.since(current.made) < RENEW_AFTER + OLD_USED_FOR => Some(current),
            Some(_) | None => None,
        };
        // A maker that is gone without a result is succeeded.
        entry
            .making
            .retain(|m| m.made.has_changed().is_ok() || m.made.borrow().is_some());
        let session = request.session.number;
        let own = entry.making.iter().find(|m| m.session == session);
        let is_shared = |m: &&Making| shares && now.since(m.since) < SHARED_FOR;
        let making = match own.or(entry.making.last().filter(is_shared)) {
            Some(making) => making.clone(),
            None => {
                let making = Making {
                    session,
                    since: now,
                    made: self.start(request.clone()),
                };
                entry.making.push(making.clone());
                making
            }
        };
        let current = entry.current.subscribe();
        usable.ok_or(Waiting {
            making,
            current,
            useless,
        })
    }

    /// This daemon's certificate has changed: every association is made anew when it is used next.
    pub(crate) fn renew_all(&self) {
        for entry in self.lock().values_mut() {
            entry.stale = true;
        }
    }

    fn start(self: &Arc<Self>, request: PairRequest) -> watch::Receiver<Made> {
        let (sender, receiver) = watch::channel(None);
        let this = self.clone();
        self.tasks.spawn(async move {
            let made = tokio::time::timeout(MAKE_MAX, this.make(&request)).await;
            let made = made.unwrap_or(Err(AttemptError::Timeout(MAKE_MAX)));
            let result = made.map(Arc::new).map_err(Arc::new);
            this.made(&request, &result);
            sender.send_replace(Some(result));
        });
        receiver
    }

    fn made(&self, request: &PairRequest, result: &Result<Arc<Association>, Arc<AttemptError>>) {
        let (role, publisher) = (StreamRole::Consumer, request.publisher);
        {
            let mut entries = self.lock();
            let entry = entries.entry(publisher).or_default();
            entry.making.retain(|m| m.session != request.session.number);
            let before = entry.current.borrow().clone();
            if let Ok(association) = result
                && before.is_none_or(|before| association.succeeds(&before))
            {
                entry.current.send_replace(Some(association.clone()));
                entry.stale = false;
            }
        }
        match result {
            Ok(association) => {
                self.metrics.associations.get_or_create(&role.into()).inc();
                if let Some(suppressed) = told::association("made") {
                    tracing::info!(%publisher, association = %association.id, suppressed, "association made");
                }
                self.proved(publisher, association);
            }
            Err(error) => {
                self.metrics.associations_failed.get_or_create(&role.into()).inc();
                let error = fairlead_telemetry::chain(&**error);
                if let Some(suppressed) = told::association("not made") {
                    tracing::info!(%publisher, error, suppressed, "association not made");
                }
            }
        }
    }

    /// A run of the publisher has proved itself: it lives, and earlier ones are dead or will be heard of.
    fn proved(&self, publisher: NodeId, association: &Association) {
        let (role, peer, run) = (StreamRole::Consumer, publisher, association.peer_boot);
        self.old_runs.heard(role, peer, run, association.begun);
        if let Some(dead) = association.peer_dead {
            self.old_runs.end_of(role, peer, dead);
        }
        let before = EarlierRuns {
            role,
            peer,
            before: run,
        };
        self.old_runs.doubt(before, self.clock.mono());
    }

    async fn make(&self, request: &PairRequest) -> Result<Association, AttemptError> {
        let (id, begun): (AssociationId, _) = (rng::new_id(), self.clock.mono());
        let mut leg = tokio::time::timeout(LEG_WAIT_MAX, request.session.carrier.open_leg())
            .await
            .map_err(|_| AttemptError::LegTimeout)?
            .map_err(AttemptError::Leg)?;
        let open = Frame::Open(Open {
            kind: LegKind::Pair,
            association: id,
            route: request.route,
            stream: StreamNumber(0),
            epoch: LegEpoch(0),
            resume: false,
            grant: request.grant.clone(),
        });
        leg.send.write_frame(&open).await.map_err(AttemptError::Write)?;
        let hello = PairHello {
            association: id,
            boot: self.boot,
        };
        let paired = pair::dial(leg, &self.tls, request.publisher, hello)
            .await
            .map_err(AttemptError::Pair)?;
        Ok(Association {
            id,
            peer_boot: paired.peer_boot,
            peer_dead: paired.peer_dead,
            secret: paired.secret,
            begun,
            made: self.clock.mono(),
            next_stream: AtomicU64::new(0),
            next_probe: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Whether the relay of a hop session lives: the liveness connection beside it, and QUIC's silence
//! (R-ADM-02). What is decided is the machine's ([`fairlead_hop::liveness`]); this loop makes
//! connections, counts datagrams, and tells [`Relays`](crate::relays::Relays) of each doubt.

use crate::metrics::{CauseLabel, RelayLabel};
use crate::session::SessionContext;
use fairlead_hop::liveness::{Death, Doubt, LostCause, NodeAction, NodeLiveness, Passed};
use fairlead_model::{Identity, MonoTime, ProcessBootId, RefusalCode, SessionId};
use fairlead_telemetry::chain;
use fairlead_transport::{Carrier, DialError, LiveAnswer, LiveConnection, LiveDialError};
use fairlead_trust::NodeRelay;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How long a relay is doubted before the control plane is told: longer than a busy worker's pauses.
const DOUBT_TOLD_AFTER: Duration = Duration::from_secs(2);
/// What it is told then.
const DOUBTED: &str = "nothing comes from it by UDP, or nothing arrives there, though its host may be there: UDP to \
                       it or from it is blocked, or its worker is busy or frozen";

/// What the session tells its watch, and hears of it.
#[derive(Debug)]
pub(crate) struct Vitals {
    /// The relay worker's run, once it has greeted.
    established: watch::Sender<Option<ProcessBootId>>,
    /// Woken when the relay is doubted: the control stream's loop pings it.
    pub(crate) probe: Notify,
}

impl Vitals {
    /// Of a session that is not established.
    pub(crate) fn new() -> Self {
        Self {
            established: watch::Sender::new(None),
            probe: Notify::new(),
        }
    }

    /// The relay greeted.
    pub(crate) fn established(&self, relay_boot: ProcessBootId) {
        self.established.send_replace(Some(relay_boot));
    }
}

/// One session, as its watch sees it.
pub(crate) struct Watched<'a> {
    pub(crate) context: &'a SessionContext,
    pub(crate) relay: &'a NodeRelay,
    /// Which session of this daemon.
    pub(crate) number: u32,
    /// Which session for the relay.
    pub(crate) session: SessionId,
    pub(crate) carrier: &'a Carrier,
    pub(crate) vitals: &'a Vitals,
}

/// How a watch ends.
pub(crate) enum Verdict {
    Dead(Death),
    /// The session's connection brings nothing; this one, to the same relay, stands.
    Overtaken(Carrier),
}

type Beside<'a> = Pin<Box<dyn Future<Output = Result<Carrier, DialError>> + Send + 'a>>;
type Attempt<'a> = Pin<Box<dyn Future<Output = Result<LiveAnswer, LiveDialError>> + Send + 'a>>;

enum Event {
    Answer(Result<LiveAnswer, LiveDialError>),
    Pings(Result<u32, LostCause>),
    Beside(Result<Carrier, DialError>),
    Timeout,
}

impl<'a> Watched<'a> {
    /// Watches until the relay is dead, or another connection to it has taken the session's place.
    pub(crate) async fn watch(self) -> Verdict {
        let mut established = self.vitals.established.subscribe();
        let boot = match established.wait_for(Option::is_some).await.map(|boot| *boot) {
            Ok(Some(boot)) => boot,
            // The session is over.
            Ok(None) | Err(_) => return std::future::pending().await,
        };
        let clock = &self.context.clock;
        let mut machine = NodeLiveness::new(boot, self.passed(), clock.mono());
        let mut attempt: Option<Attempt<'a>> = None;
        let mut standing = Standing::new(&self);
        let (mut doubt, mut suspicion) = (Doubt::None, Suspicion::default());
        let mut beside: Option<Beside<'a>> = None;
        loop {
            while let Some(action) = machine.poll_action() {
                match action {
                    NodeAction::Probe => self.vitals.probe.notify_one(),
                    NodeAction::Connect(limit) => attempt = Some(self.attempt(limit)),
                    NodeAction::OnlyQuic => self.warn(),
                    NodeAction::DialBeside => {
                        tracing::debug!(relay = %self.relay.name, "the relay lives and QUIC does not pass: dialling beside");
                        beside = Some(self.beside());
                    }
                    NodeAction::GiveUpBeside => beside = None,
                    NodeAction::Dead(death) => {
                        self.count_death(death);
                        return Verdict::Dead(death);
                    }
                }
            }
            let now = clock.mono();
            self.tell(&mut doubt, machine.doubt(now));
            self.report(&mut suspicion, doubt, now);
            let wake = [machine.poll_timeout(now), suspicion.due()]
                .into_iter()
                .flatten()
                .min();
            let wake = wake.map(|at| Instant::now() + at.since(now));
            let event = tokio::select! {
                answer = finish(&mut attempt) => Event::Answer(answer),
                pings = standing.pings() => Event::Pings(pings),
                dialled = finish(&mut beside) => Event::Beside(dialled),
                () = sleep_until(wake) => Event::Timeout,
            };
            let now = clock.mono();
            machine.datagrams(self.passed(), now);
            match event {
                Event::Answer(answer) => {
                    attempt = None;
                    match answer {
                        Ok(LiveAnswer::Bound(connection, boot)) => {
                            tracing::debug!(relay = %self.relay.name, "liveness connection up");
                            standing.set(Some(connection));
                            machine.bound(boot);
                        }
                        Ok(LiveAnswer::Refused(why, boot)) => {
                            tracing::debug!(relay = %self.relay.name, ?why, "liveness connection refused");
                            machine.refused(why, boot, now);
                        }
                        Err(error) => {
                            let failure = error.failure();
                            tracing::debug!(relay = %self.relay.name, failure = failure.as_str(), error = chain(&error), "no liveness connection");
                            machine.attempt_failed(failure, now);
                        }
                    }
                }
                Event::Pings(Ok(unanswered)) => machine.pings(unanswered),
                Event::Pings(Err(cause)) => {
                    standing.set(None);
                    self.count_lost(cause);
                    machine.lost(cause, now);
                }
                Event::Beside(dialled) => {
                    beside = None;
                    match dialled {
                        Ok(carrier) if machine.beside_up(now) => return Verdict::Overtaken(carrier),
                        Ok(carrier) => carrier.close(RefusalCode::MemberLeft),
                        Err(error) => {
                            tracing::debug!(relay = %self.relay.name, error = chain(&error), "not reached beside either");
                            machine.beside_failed(now);
                        }
                    }
                }
                Event::Timeout => machine.handle_timeout(now),
            }
        }
    }

    fn passed(&self) -> Passed {
        let stats = self.carrier.stats();
        Passed {
            received_bytes: stats.received_bytes,
            asking_frames: stats.asking_frames,
            rtt: stats.rtt,
        }
    }

    fn attempt(&self, limit: Duration) -> Attempt<'a> {
        Box::pin(self.context.dialler.dial_live(
            self.carrier.remote_address(),
            Identity::Relay(self.relay.relay),
            self.session,
            limit,
        ))
    }

    fn beside(&self) -> Beside<'a> {
        let Watched { context, relay, .. } = self;
        Box::pin(context.dialler.dial(&relay.address, Identity::Relay(relay.relay)))
    }

    fn tell(&self, told: &mut Doubt, doubt: Doubt) {
        if std::mem::replace(told, doubt) != doubt {
            tracing::debug!(relay = %self.relay.name, ?doubt, "doubt of the relay");
            self.context
                .relays
                .mark(self.relay.relay, self.number, |s| s.doubt = doubt);
        }
    }

    /// Tells the control plane of a doubt that lasts, and of its end. A round trip that was measured before
    /// is none any more.
    fn report(&self, suspicion: &mut Suspicion, doubt: Doubt, now: MonoTime) {
        let Some(told) = suspicion.look(doubt, now) else {
            return;
        };
        self.context.relays.note(self.relay.relay, self.number, |reach| {
            reach.error.clear();
            if told {
                reach.error.push_str(DOUBTED);
                reach.rtt = None;
            }
        });
    }

    fn warn(&self) {
        if let Some(suppressed) = self.context.only_quic.allow(std::time::Instant::now()) {
            tracing::warn!(relay = %self.relay.name, address = %self.carrier.remote_address(), suppressed, "no liveness connection to the relay over TCP: its death is noticed later");
        }
    }

    fn count_lost(&self, cause: LostCause) {
        tracing::info!(relay = %self.relay.name, cause = cause.as_str(), "liveness connection lost");
        let label = CauseLabel::of(&self.relay.name, cause.as_str());
        self.context.metrics.liveness_lost.get_or_create(&label).inc();
    }

    fn count_death(&self, death: Death) {
        let label = CauseLabel::of(&self.relay.name, death.as_str());
        self.context.metrics.hop_dead.get_or_create(&label).inc();
    }
}

/// A doubt on its way to the control plane.
#[derive(Debug, Default)]
struct Suspicion {
    since: Option<MonoTime>,
    told: bool,
}

impl Suspicion {
    /// Whether the doubt is to be told of, or its end; `None` where nothing has changed.
    fn look(&mut self, doubt: Doubt, now: MonoTime) -> Option<bool> {
        if !doubt.any() {
            self.since = None;
            return std::mem::take(&mut self.told).then_some(false);
        }
        let since = *self.since.get_or_insert(now);
        let is_news = !self.told && now.since(since) >= DOUBT_TOLD_AFTER;
        self.told |= is_news;
        is_news.then_some(true)
    }

    /// When it is to be told of, if it lasts.
    fn due(&self) -> Option<MonoTime> {
        self.since
            .filter(|_| !self.told)
            .map(|since| since.plus(DOUBT_TOLD_AFTER))
    }
}

/// The session's liveness connection, if it has one; counted.
struct Standing<'w, 'a> {
    watched: &'w Watched<'a>,
    connection: Option<LiveConnection>,
}

impl<'w, 'a> Standing<'w, 'a> {
    const fn new(watched: &'w Watched<'a>) -> Self {
        Self {
            watched,
            connection: None,
        }
    }

    fn set(&mut self, connection: Option<LiveConnection>) {
        let Watched { context, relay, .. } = self.watched;
        // The gauge is that of the session that stands, if one does.
        let standing = context.relays.standing(relay.relay);
        if standing.is_none_or(|number| number == self.watched.number) {
            let label = RelayLabel::of(&relay.name);
            let gauge = context.metrics.liveness_connected.get_or_create(&label).clone();
            gauge.set(i64::from(connection.is_some()));
        }
        self.connection = connection;
    }

    async fn pings(&mut self) -> Result<u32, LostCause> {
        match &mut self.connection {
            Some(connection) => connection.pings().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Standing<'_, '_> {
    fn drop(&mut self) {
        self.set(None);
    }
}

async fn finish<F: Future + Unpin>(attempt: &mut Option<F>) -> F::Output {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-PLC-01: a relay that goes on being silent is told of once, and so is its voice; a short pause is not.
    #[test]
    fn a_doubt_that_lasts_is_told_of() {
        let at = |ms| MonoTime(0).plus(Duration::from_millis(ms));
        let mut suspicion = Suspicion::default();
        assert_eq!(suspicion.look(Doubt::Silent, at(0)), None);
        assert_eq!(suspicion.due(), Some(at(2_000)));
        assert_eq!(suspicion.look(Doubt::None, at(1_500)), None);
        assert_eq!(suspicion.due(), None);
        assert_eq!(suspicion.look(Doubt::LivenessLost, at(3_000)), None);
        assert_eq!(suspicion.look(Doubt::Silent, at(5_000)), Some(true));
        assert_eq!(
            (suspicion.look(Doubt::Silent, at(9_000)), suspicion.due()),
            (None, None)
        );
        assert_eq!(suspicion.look(Doubt::None, at(9_500)), Some(false));
        assert_eq!(suspicion.look(Doubt::None, at(9_600)), None);
    }
}

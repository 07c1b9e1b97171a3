//! Keeps a hop session to each relay of the policy (R-NOD-01): dials, greets, registers, hands
//! over incoming legs, and comes back after every end.

use crate::backoff::Backoff;
use crate::liveness::{Verdict, Vitals, Watched};
use crate::metrics::{NodeMetrics, RelayLabel};
use crate::publisher::Publisher;
use crate::relays::{Relays, Session};
use crate::view::{View, ViewReceiver};
use fairlead_hop::frame::Frame;
use fairlead_hop::liveness::{Death, Doubt};
use fairlead_hop::{NodeControl, NodeControlConfig, NodeEvent, RegistrationState, SessionFault};
use fairlead_host::{Clock, rng};
use fairlead_model::{
    EndpointId, Generation, Identity, ProcessBootId, RefusalCode, RegistrationBoot, RelayId,
};
use fairlead_telemetry::{RateLimitedLog, chain};
use fairlead_transport::{
    Carrier, CarrierEnd, DialError, Dialler, FrameReadError, FrameWriteError, Knock, Leg, LegCode,
};
use fairlead_trust::NodeRelay;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// First wait after a lost session or failed dial: a fraction of a second (R-NOD-01). The dial
/// itself tries again twice a second for 10 s, and a port that opens ends every wait.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest wait (R-NOD-01).
const RETRY_LONGEST: Duration = Duration::from_secs(15);
/// Longest wait of a copy that a relay keeps out while the other one lives (R-ENR-10); the shortest
/// is half of it.
const RETRY_OF_COPY: Duration = Duration::from_secs(30);
/// How long a frame may wait for a relay that does not read its control stream: as long as nothing may be
/// heard of a relay. One that is stopped takes no frame behind uploads that fill the carrier's window, and
/// the liveness watch decides whether it lives (F-06).
const CONTROL_WRITE_MAX: Duration = fairlead_hop::SILENCE_MAX;
/// The same before the relay has greeted: its liveness is not watched yet.
const GREETING_WRITE_MAX: Duration = Duration::from_secs(10);
/// How long a stopping daemon waits for a relay to take its goodbye.
const FAREWELL_MAX: Duration = Duration::from_millis(300);
/// Incoming legs of one session that are not attached yet. Bounds the memory that a relay can ask
/// for without any consumer's key; 500 simultaneous opens must fit.
const INCOMING_MAX: usize = 1024;
/// Most legs that a relay may bring over one session, whatever it tells: four times the default of
/// `relay.legs-per-node`.
const LEGS_TAKEN_MAX: u32 = 65_536;
/// Before the relay has told how many.
pub(crate) const LEGS_BEFORE_WELCOME: u32 = 64;
/// How often a lasting failure to reach a relay is logged again.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(60);

/// What every hop session of the daemon shares.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub(crate) dialler: Arc<Dialler>,
    pub(crate) relays: Relays,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) boot: RegistrationBoot,
    pub(crate) process_boot: ProcessBootId,
    pub(crate) software: &'static str,
    /// Counts the sessions of this run, whatever the relay.
    pub(crate) session_numbers: AtomicU32,
    /// Of relays to which only UDP passes.
    pub(crate) only_quic: RateLimitedLog,
    /// Incoming legs run here.
    pub(crate) streams: TaskTracker,
}

/// Why a session ended or never began.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("the relay cannot be reached")]
    Dial(#[source] DialError),
    #[error("the session was lost")]
    Lost(#[source] CarrierEnd),
    #[error("the relay carries the session no more")]
    Dead(#[source] Death),
    #[error("its connection brought nothing any more, and another one to the relay takes its place")]
    Overtaken(Box<Carrier>),
    #[error("the control stream ended")]
    ControlEnded,
    #[error("the control stream cannot be read")]
    Read(#[source] FrameReadError),
    #[error("the control stream cannot be written")]
    Write(#[source] FrameWriteError),
    #[error("the relay does not read its control stream")]
    WriteTimeout,
    #[error("the relay broke the protocol")]
    Fault(#[source] SessionFault),
    #[error("the relay ended the session: {0}")]
    Closed(RefusalCode),
    #[error("the daemon stops")]
    Stopping,
}

impl SessionEnd {
    /// Whether the relay keeps this process out because another one uses its identity.
    const fn is_copy(&self) -> bool {
        matches!(self, Self::Closed(RefusalCode::IdentityInUse))
    }

    const fn code(&self) -> RefusalCode {
        match self {
            Self::Fault(fault) => fault.code(),
            Self::Dial(_)
            | Self::Lost(_)
            | Self::Dead(_)
            | Self::Overtaken(_)
            | Self::ControlEnded
            | Self::Read(_)
            | Self::Write(_)
            | Self::WriteTimeout
            | Self::Closed(_)
            | Self::Stopping => RefusalCode::MemberLeft,
        }
    }
}

/// Follows the policy's relays until `cancel`.
pub(crate) async fn keep_all(
    context: Arc<SessionContext>,
    mut view: ViewReceiver,
    cancel: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let mut kept: BTreeMap<RelayId, (watch::Sender<NodeRelay>, CancellationToken)> = BTreeMap::new();
    loop {
        let now = view.borrow_and_update().clone();
        let relays = now.policy().into_iter().flat_map(|p| &p.relays);
        let wanted: BTreeMap<RelayId, NodeRelay> = relays.map(|r| (r.relay, r.clone())).collect();
        kept.retain(|relay, (_, token)| {
            let keep = wanted.contains_key(relay);
            if !keep {
                token.cancel();
                context.relays.remove(*relay);
            }
            keep
        });
        for (id, relay) in wanted {
            if let Some((sender, _)) = kept.get(&id) {
                sender.send_if_modified(|held| {
                    let changed = *held != relay;
                    *held = relay;
                    changed
                });
                continue;
            }
            context.relays.add(id);
            let (sender, receiver) = watch::channel(relay);
            let token = cancel.child_token();
            tasks.spawn(keep(context.clone(), receiver, view.clone(), token.clone()));
            kept.insert(id, (sender, token));
        }
        tokio::select! {
            changed = view.changed() => if changed.is_err() { break },
            () = cancel.cancelled() => break,
        }
    }
    cancel.cancel();
    tasks.close();
    tasks.wait().await;
}

/// Keeps one relay's session.
async fn keep(
    context: Arc<SessionContext>,
    mut relay: watch::Receiver<NodeRelay>,
    view: ViewReceiver,
    cancel: CancellationToken,
) {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
    let log = RateLimitedLog::new(LOG_EVERY);
    let mut knock = Knock::new();
    let mut ready = None;
    loop {
        let target = relay.borrow_and_update().clone();
        let number = context.session_numbers.fetch_add(1, Ordering::Relaxed);
        let mut established = false;
        let reached = match ready.take() {
            Some(carrier) => Ok(carrier),
            None => reach(&context, &target, &mut knock, &cancel).await,
        };
        let end = match reached {
            Err(end) => end,
            Ok(carrier) => {
                let view = view.clone();
                one_session(
                    &context,
                    &target,
                    number,
                    carrier,
                    view,
                    &cancel,
                    &mut established,
                )
                .await
            }
        };
        let why = chain(&end);
        let label = RelayLabel::of(&target.name);
        context.relays.down(target.relay, number, why.clone());
        let gauge = context.metrics.hop_connected.get_or_create(&label).clone();
        gauge.set(0);
        // A relay that left the policy and came back has another keeper, and may have its session.
        if context.relays.standing(target.relay).is_some() {
            gauge.set(1);
        }
        if cancel.is_cancelled() {
            // It left the policy: what is no more wanted is not missed.
            if !context.relays.wanted(target.relay) {
                context.metrics.forget_relay(&label);
            }
            return;
        }
        let is_copy = end.is_copy();
        if established {
            // The relay greets a copy before it sends it away.
            if !is_copy {
                backoff.reset();
                knock = Knock::new();
            }
            tracing::info!(relay = %target.name, reason = why, "hop session ended");
            if let SessionEnd::Overtaken(carrier) = end {
                ready = Some(*carrier);
                continue;
            }
            if matches!(end, SessionEnd::Dead(Death::OtherBoot)) {
                // Its next worker has just answered.
                continue;
            }
        } else if let Some(suppressed) = log.allow(std::time::Instant::now()) {
            tracing::warn!(relay = %target.name, reason = why, suppressed, "relay is not reachable; trying again");
        }
        let wait = if is_copy {
            RETRY_OF_COPY / 2 + rng::jitter(RETRY_OF_COPY / 2)
        } else {
            backoff.next(rng::jitter)
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // Its port is open: a copy is kept out, whatever the network does.
            () = knock.opened(&target.address), if !is_copy => {}
            changed = relay.changed() => if changed.is_err() { return },
            () = cancel.cancelled() => return,
        }
    }
}

/// Dials the relay; anew when its port opens meanwhile, since attempts on the way wait for their
/// retransmission.
async fn reach(
    context: &SessionContext,
    relay: &NodeRelay,
    knock: &mut Knock,
    cancel: &CancellationToken,
) -> Result<Carrier, SessionEnd> {
    loop {
        tokio::select! {
            biased;
            dialled = context.dialler.dial(&relay.address, Identity::Relay(relay.relay)) => {
                return dialled.map_err(SessionEnd::Dial);
            }
            () = knock.opened(&relay.address) => {}
            () = cancel.cancelled() => return Err(SessionEnd::Stopping),
        }
    }
}

pub(crate) async fn one_session(
    context: &SessionContext,
    relay: &NodeRelay,
    number: u32,
    carrier: Carrier,
    view: ViewReceiver,
    cancel: &CancellationToken,
    established: &mut bool,
) -> SessionEnd {
    let leg = match carrier.open_leg().await {
        Ok(leg) => leg,
        Err(end) => return SessionEnd::Lost(end),
    };
    let (session, vitals) = (rng::new_id(), Vitals::new());
    let config = NodeControlConfig {
        session,
        process_boot: context.process_boot,
        boot: context.boot,
        session_number: number,
        software: context.software.to_owned(),
    };
    let mut control = Control {
        context,
        relay,
        number,
        carrier: &carrier,
        vitals: &vitals,
        leg,
        machine: NodeControl::new(config, context.clock.mono()),
        established,
    };
    let watched = Watched {
        context,
        relay,
        number,
        session,
        carrier: &carrier,
        vitals: &vitals,
    };
    let end = tokio::select! {
        end = control.run(view, cancel) => end,
        end = accept(context, relay.relay, &carrier) => end,
        verdict = watched.watch() => match verdict {
            Verdict::Dead(death) => SessionEnd::Dead(death),
            Verdict::Overtaken(carrier) => SessionEnd::Overtaken(Box::new(carrier)),
        },
        end = carrier.closed() => SessionEnd::Lost(end),
    };
    // Said on the control stream as well, whichever is noticed first.
    let end = match carrier.end() {
        Some(CarrierEnd::Peer(code)) if code == LegCode::from(RefusalCode::IdentityInUse) => {
            SessionEnd::Closed(RefusalCode::IdentityInUse)
        }
        Some(_) | None => end,
    };
    // Before the carrier goes: streams look for another relay by this, not by their legs' errors.
    context.relays.down(relay.relay, number, chain(&end));
    carrier.close(end.code());
    end
}

/// Takes legs that the relay opens, each in its own task.
async fn accept(context: &SessionContext, relay: RelayId, carrier: &Carrier) -> SessionEnd {
    let pending = Arc::new(Semaphore::new(INCOMING_MAX));
    loop {
        let leg = match carrier.accept_leg().await {
            Ok(leg) => leg,
            Err(end) => return SessionEnd::Lost(end),
        };
        let Ok(permit) = pending.clone().try_acquire_owned() else {
            // Dropped: the relay sees a reset leg and tells the consumer.
            tracing::debug!(%relay, "too many incoming legs wait for their attach");
            continue;
        };
        let publisher = context.publisher.clone();
        context.streams.spawn(publisher.incoming(leg, relay, permit));
    }
}

/// The control stream of one session.
struct Control<'a> {
    context: &'a SessionContext,
    relay: &'a NodeRelay,
    number: u32,
    carrier: &'a Carrier,
    vitals: &'a Vitals,
    leg: Leg,
    machine: NodeControl,
    established: &'a mut bool,
}

impl Control<'_> {
    async fn run(&mut self, mut view: ViewReceiver, cancel: &CancellationToken) -> SessionEnd {
        match self.converse(&mut view, cancel).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn converse(
        &mut self,
        view: &mut ViewReceiver,
        cancel: &CancellationToken,
    ) -> Result<SessionEnd, SessionEnd> {
        self.publish(view);
        let mut announced = false;
        loop {
            if !self.flush_until(cancel, announced).await? {
                return Ok(SessionEnd::Stopping);
            }
            if let Some(end) = self.events() {
                return Ok(end);
            }
            if announced {
                self.farewell().await;
                return Ok(SessionEnd::Stopping);
            }
            let now = self.context.clock.mono();
            let wake = self
                .machine
                .poll_timeout()
                .map(|at| Instant::now() + at.since(now));
            tokio::select! {
                frame = self.leg.recv.read_frame() => self.take(frame)?,
                () = sleep_until(wake) => {
                    let now = self.context.clock.mono();
                    self.machine.handle_timeout(now).map_err(SessionEnd::Fault)?;
                }
                changed = view.changed() => match changed {
                    Ok(()) => self.publish(view),
                    // The daemon's other parts end in no order; its goodbye is said all the same.
                    Err(_) => {
                        self.machine.announce_restart();
                        announced = true;
                    }
                },
                () = self.vitals.probe.notified() => self.machine.probe(self.context.clock.mono()),
                () = cancel.cancelled() => {
                    self.machine.announce_restart();
                    announced = true;
                }
            }
        }
    }

    fn take(&mut self, frame: Result<Option<Frame>, FrameReadError>) -> Result<(), SessionEnd> {
        let now = self.context.clock.mono();
        match frame {
            Ok(Some(frame)) => self.machine.handle_frame(frame, now).map_err(SessionEnd::Fault),
            Ok(None) => Err(SessionEnd::ControlEnded),
            Err(error) => Err(SessionEnd::Read(error)),
        }
    }

    fn publish(&mut self, view: &mut ViewReceiver) {
        let wanted = publications(&view.borrow_and_update(), self.relay.relay);
        self.machine.set_publications(&wanted, self.context.clock.mono());
        if *self.established {
            self.report_registrations();
        }
    }

    /// Writes what is due; false if the daemon stops and the relay takes nothing, its goodbye included.
    async fn flush_until(&mut self, cancel: &CancellationToken, announced: bool) -> Result<bool, SessionEnd> {
        let mut flush = std::pin::pin!(self.flush());
        if !announced {
            tokio::select! {
                biased;
                flushed = &mut flush => return flushed.map(|()| true),
                () = cancel.cancelled() => {}
            }
        }
        match tokio::time::timeout(FAREWELL_MAX, flush).await {
            Ok(flushed) => flushed.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    async fn flush(&mut self) -> Result<(), SessionEnd> {
        let limit = if *self.established {
            CONTROL_WRITE_MAX
        } else {
            GREETING_WRITE_MAX
        };
        while let Some(frame) = self.machine.poll_transmit() {
            let write = self.leg.send.write_frame(&frame);
            match tokio::time::timeout(limit, write).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(SessionEnd::Write(error)),
                Err(_) => return Err(SessionEnd::WriteTimeout),
            }
        }
        Ok(())
    }

    /// Gives the last frames time to arrive: closing the carrier would discard them.
    async fn farewell(&mut self) {
        self.leg.send.finish();
        let _ = tokio::time::timeout(FAREWELL_MAX, self.leg.send.drained()).await;
    }

    fn events(&mut self) -> Option<SessionEnd> {
        let (relay, name) = (self.relay.relay, &self.relay.name);
        while let Some(event) = self.machine.poll_event() {
            match event {
                NodeEvent::Established {
                    relay_boot, legs_max, ..
                } => {
                    // Publishers take as many as the relay may bring.
                    self.carrier.set_legs_max(legs_max.min(LEGS_TAKEN_MAX));
                    self.up(relay_boot);
                }
                NodeEvent::Registered { endpoint, generation } => {
                    tracing::info!(relay = %name, %endpoint, %generation, "registered");
                    self.report_registrations();
                }
                NodeEvent::RegisterRefused {
                    endpoint,
                    generation,
                    code,
                    retry_at,
                } => {
                    let retry_ms = retry_at.since(self.context.clock.mono()).as_millis();
                    tracing::debug!(relay = %name, %endpoint, %generation, code = code.as_str(), retry_ms, "registration refused");
                    self.report_registrations();
                }
                NodeEvent::DrainNotice => {
                    tracing::info!(relay = %name, "relay drains");
                    self.context
                        .relays
                        .mark(relay, self.number, |s| s.draining = true);
                }
                NodeEvent::Closed { code } => return Some(SessionEnd::Closed(code)),
                NodeEvent::Rtt(rtt) => {
                    let label = RelayLabel::of(name);
                    let measured = self.context.metrics.hop_rtt.get_or_create(&label).clone();
                    measured.set(rtt.as_secs_f64());
                    self.context
                        .relays
                        .note(relay, self.number, |reach| reach.rtt = Some(rtt));
                }
            }
        }
        None
    }

    fn up(&mut self, relay_boot: ProcessBootId) {
        *self.established = true;
        self.vitals.established(relay_boot);
        tracing::info!(relay = %self.relay.name, address = %self.carrier.remote_address(), "hop session established");
        let session = Session {
            carrier: self.carrier.clone(),
            number: self.number,
            draining: false,
            doubt: Doubt::None,
        };
        self.context.relays.up(self.relay.relay, session);
        let (label, metrics) = (RelayLabel::of(&self.relay.name), &self.context.metrics);
        metrics.hop_connected.get_or_create(&label).set(1);
        metrics.hop_sessions_opened.get_or_create(&label).inc();
        // Before the first ping is answered, the handshake's own measurement.
        let rtt = self.carrier.rtt();
        self.context
            .relays
            .note(self.relay.relay, self.number, |reach| reach.rtt = Some(rtt));
    }

    fn report_registrations(&self) {
        let registered: Vec<EndpointId> = self
            .machine
            .registrations()
            .filter(|(_, _, state)| matches!(state, RegistrationState::Registered))
            .map(|(endpoint, _, _)| endpoint)
            .collect();
        self.context.relays.note(self.relay.relay, self.number, |reach| {
            reach.registered = registered;
        });
    }
}

/// What the policy wants registered at `relay`.
fn publications(view: &View, relay: RelayId) -> BTreeMap<EndpointId, Generation> {
    let publications = view.policy().into_iter().flat_map(|p| &p.publications);
    publications
        .filter(|p| p.relays.contains(&relay))
        .map(|p| (p.endpoint, p.generation))
        .collect()
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

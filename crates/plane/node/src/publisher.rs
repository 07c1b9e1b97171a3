//! Answers legs that relays open on behalf of consumers.
//!
//! What a relay says is advisory. A stream is opened only for a consumer that holds the
//! association's secret, and the target is dialled only after the consumer's sealed grant has been
//! verified here (R-STR-05).

use crate::accepted::{AcceptedAssociation, AcceptedAssociations};
use crate::association::StreamKind;
use crate::driver::{AttachClaim, Driver, Further, Gate, LegIo, Near, Outcome, Via};
use crate::failed::FailedTargets;
use crate::grants::VerifiedGrants;
use crate::live::{EarlierRuns, LiveStream, LiveStreams};
use crate::metrics::{NodeMetrics, StreamRole};
use crate::old_runs::OldRuns;
use crate::probe::{answer_probe, is_probe};
use crate::resumable::{FurtherLeg, Resumable, StreamName, ToDriver};
use crate::target;
use crate::told;
use crate::view::ViewReceiver;
use bytes::Bytes;
use fairlead_hop::frame::{Answer, Frame, Incoming, LegKind, Refusal};
use fairlead_host::{Clock, Headroom, rng};
use fairlead_model::{LegEpoch, RefusalCode, RelayId, RouteId, TargetAddress, TunnelId};
use fairlead_stream::{AttachKind, Config, LegPath, Stream, StreamSecret};
use fairlead_telemetry::chain;
use fairlead_transport::{FrameReadError, FrameWriteError, Leg, LegCode, LegSend, MemberTls, PairRun, pair};
use fairlead_trust::GrantCheck;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// How long a relay may take to say what its leg is for.
const INCOMING_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long an open may wait for the handshake of its own association, which another leg carries
/// and which may be answered a moment later.
const ASSOCIATION_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a relay may take to take an answer. It has just opened the leg; one that is stopped for longer has
/// lost the asker by then.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why a leg was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The leg failed.
    #[error("the answer could not be written")]
    Write(#[source] FrameWriteError),
    /// The relay did not take it.
    #[error("the relay took no answer within {} ms", .0.as_millis())]
    Untaken(Duration),
}

/// A stream's life, to its end.
type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What answers incoming legs.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) view: ViewReceiver,
    pub(crate) tls: Arc<MemberTls>,
    pub(crate) run: PairRun,
    pub(crate) accepted: AcceptedAssociations,
    pub(crate) grants: VerifiedGrants,
    pub(crate) live: LiveStreams,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) resumable: Resumable,
    pub(crate) failed: FailedTargets,
    pub(crate) old_runs: OldRuns,
    pub(crate) stream_config: Config,
    /// Where bytes of checks are sent back.
    pub(crate) tasks: TaskTracker,
    /// Shared with the consumer: both take a descriptor for each stream.
    pub(crate) headroom: Headroom,
}

impl Publisher {
    /// Serves one leg to its end. `pending` is given back once the leg's consumer is known.
    pub(crate) async fn incoming(
        self: Arc<Self>,
        mut leg: Leg,
        relay: RelayId,
        pending: OwnedSemaphorePermit,
    ) {
        match tokio::time::timeout(INCOMING_WAIT_MAX, leg.recv.read_frame()).await {
            Ok(Ok(Some(Frame::Incoming(incoming)))) => match incoming.kind {
                // Boxed, so that a stream's task keeps nothing of what came before it.
                LegKind::Pair => Box::pin(self.pair(leg, relay, incoming, pending)).await,
                LegKind::Stream => {
                    let (route, tunnel) = (incoming.route, incoming.tunnel());
                    let opening = Box::pin(self.clone().stream(leg, relay, incoming, pending));
                    if let Some(stream) = opening.await {
                        let outcome = stream.await;
                        self.report(route, tunnel, &outcome);
                    }
                }
            },
            Ok(Ok(Some(frame))) => {
                if let Some(suppressed) = told::fault("frame") {
                    tracing::warn!(%relay, frame = frame.name(), suppressed, "a leg did not begin with INCOMING");
                }
                leg.abort(LegCode::from(RefusalCode::Protocol));
            }
            Ok(Err(error @ (FrameReadError::Decode(_) | FrameReadError::Truncated))) => {
                if let Some(suppressed) = told::fault("no frame") {
                    tracing::warn!(%relay, error = chain(&error), suppressed, "a leg did not begin with a frame");
                }
                leg.abort(LegCode::from(RefusalCode::Protocol));
            }
            Ok(Err(FrameReadError::Leg(_)) | Ok(None)) => {}
            Err(_) => tracing::debug!(%relay, "an incoming leg said nothing"),
        }
    }

    /// The association's handshake.
    async fn pair(&self, mut leg: Leg, relay: RelayId, incoming: Incoming, _pending: OwnedSemaphorePermit) {
        let (consumer, role) = (incoming.consumer, StreamRole::Publisher);
        let begun = self.clock.mono();
        if !self.view.borrow().has_consumer(consumer) {
            return refuse(leg, RefusalCode::UnknownEndpoint).await;
        }
        let Some(slot) = self.accepted.begin(relay, consumer, incoming.association, begun) else {
            return refuse(leg, RefusalCode::TooMany).await;
        };
        if let Err(error) = answer(&mut leg, Answer::Ok).await {
            tracing::debug!(%relay, error = chain(&error), "an incoming leg failed");
            return;
        }
        let failed = self
            .metrics
            .associations_failed
            .get_or_create(&role.into())
            .clone();
        match pair::accept(leg, &self.tls, self.run).await {
            Ok(accepted) if accepted.peer == consumer && accepted.association == incoming.association => {
                let peer_boot = accepted.peer_boot;
                let now = self.clock.mono();
                let is_later = slot.fill(accepted.secret, peer_boot, now);
                self.old_runs.heard(role, consumer, peer_boot, begun);
                if is_later {
                    let before = EarlierRuns {
                        role,
                        peer: consumer,
                        before: peer_boot,
                    };
                    self.old_runs.doubt(before, now);
                }
                self.metrics.associations.get_or_create(&role.into()).inc();
                if let Some(suppressed) = told::association("accepted") {
                    tracing::info!(%consumer, association = %incoming.association, suppressed, "association accepted");
                }
            }
            Ok(accepted) => {
                failed.inc();
                if let Some(suppressed) = told::fault("other consumer") {
                    tracing::warn!(%relay, claimed = %consumer, proved = %accepted.peer, suppressed, "a relay named another consumer than the one that proved its key");
                }
            }
            Err(error) => {
                failed.inc();
                if let Some(suppressed) = told::association("not accepted") {
                    tracing::info!(%consumer, error = chain(&error), suppressed, "association not accepted");
                }
            }
        }
    }

    /// Answers a stream's first leg; gives what is to run.
    async fn stream(
        self: Arc<Self>,
        mut leg: Leg,
        relay: RelayId,
        incoming: Incoming,
        pending: OwnedSemaphorePermit,
    ) -> Option<Running> {
        let (route, role) = (incoming.route, StreamRole::Publisher);
        if self.is_stale(&incoming) {
            self.refuse_stream(leg, &incoming, RefusalCode::UnknownRoute)
                .await;
            return None;
        }
        let name = named(&incoming);
        if let Some(live) = self.resumable.find(name) {
            further(live, leg, relay, incoming.epoch, pending).await;
            return None;
        }
        let association = match self.association(&incoming).await {
            Ok(association) => association,
            Err(code) => {
                self.refuse_stream(leg, &incoming, code).await;
                return None;
            }
        };
        if is_probe(incoming.stream) {
            self.probed(leg, relay, &incoming, &association).await;
            return None;
        }
        let mailbox = match self.resumable.enter(name) {
            Ok(mailbox) => mailbox,
            Err(live) => {
                further(live, leg, relay, incoming.epoch, pending).await;
                return None;
            }
        };
        let guard = self.live.enter(LiveStream {
            role,
            route,
            peer: incoming.consumer,
            peer_boot: association.peer_boot(),
        });
        // For the target's socket; held to the end of this stream.
        let descriptor = self.headroom.take();
        let (Some(guard), Ok(descriptor)) = (guard, descriptor) else {
            self.metrics.refused(role, RefusalCode::PublisherOverloaded);
            refuse(leg, RefusalCode::PublisherOverloaded).await;
            return None;
        };
        if let Err(error) = answer(&mut leg, Answer::Ok).await {
            tracing::debug!(%route, error = chain(&error), "an incoming leg failed");
            return None;
        }
        let secret = StreamSecret::derive(association.secret(), incoming.stream, route);
        let mut stream = Stream::accept(self.stream_config, secret);
        guard.begin(&mut stream);
        let path = LegPath {
            epoch: incoming.epoch,
            relay,
            salt: rng::bytes(),
        };
        if let Err(error) = stream.open_leg(path, AttachKind::Resend) {
            tracing::debug!(%route, %error, "an incoming leg was not taken");
            leg.abort(LegCode::from(RefusalCode::Protocol));
            return None;
        }
        let mut leg = LegIo::new(leg, incoming.epoch, Via { relay, session: 0 });
        leg.pending = Some(pending);
        let tunnel = incoming.tunnel();
        tracing::debug!(%tunnel, %route, consumer = %incoming.consumer, %relay, "tunnel begins");
        let gate = self.clone().gate(association, incoming);
        let opened = self.metrics.streams_opened.get_or_create(&role.into()).clone();
        let driver = Driver::new(
            stream,
            Near::Unverified,
            leg,
            Further::Mailbox(mailbox, gate),
            guard,
            self.clock.clone(),
            self.metrics.clone(),
        )
        .on_connected(Box::new(move || {
            opened.inc();
        }));
        let span = tracing::debug_span!("stream", %tunnel);
        // Boxed before it is moved: a value that a future moves is kept twice by it.
        let running = Box::pin(driver.run().instrument(span));
        Some(Box::pin(async move {
            let _descriptor = descriptor;
            running.await
        }))
    }

    /// Answers a probe under seal: whether a stream of its route could move to this leg's path.
    async fn probed(
        &self,
        mut leg: Leg,
        relay: RelayId,
        incoming: &Incoming,
        association: &AcceptedAssociation,
    ) {
        if let Err(error) = answer(&mut leg, Answer::Ok).await {
            tracing::debug!(%relay, error = chain(&error), "an incoming leg failed");
            return;
        }
        let secret = StreamSecret::derive(association.secret(), incoming.stream, incoming.route);
        let path = LegPath {
            epoch: incoming.epoch,
            relay,
            salt: rng::bytes(),
        };
        let judge = |grant: &Bytes| match self.judge(association, incoming, grant, AttachClaim::FURTHER) {
            Ok(_) => RefusalCode::UnknownStream,
            Err(code) => code,
        };
        answer_probe(leg, path, secret, self.clock.mono(), judge).await;
    }

    async fn refuse_stream(&self, leg: Leg, incoming: &Incoming, code: RefusalCode) {
        self.metrics.refused(StreamRole::Publisher, code);
        let (tunnel, route, code_name) = (incoming.tunnel(), incoming.route, code.as_str());
        tracing::debug!(%tunnel, %route, code = code_name, "tunnel refused");
        if let Some(suppressed) = told::stream(code_name) {
            tracing::info!(%tunnel, %route, consumer = %incoming.consumer, code = code_name, suppressed, "stream refused");
        }
        refuse(leg, code).await;
    }

    /// R-REV-02: the relay's policy is too old for this route; another's may not be.
    fn is_stale(&self, incoming: &Incoming) -> bool {
        let view = self.view.borrow().clone();
        view.policy().is_some_and(|policy| {
            let mut published = policy.publications.iter().flat_map(|p| &p.routes);
            published.any(|r| {
                r.route == incoming.route
                    && incoming.policy.0 == policy.epoch
                    && incoming.policy.1 < r.revision_min
            })
        })
    }

    /// The association that the relay says the stream is of.
    async fn association(&self, incoming: &Incoming) -> Result<Arc<AcceptedAssociation>, RefusalCode> {
        if self.view.borrow().policy().is_none() {
            return Err(RefusalCode::UnknownEndpoint);
        }
        let (consumer, association) = (incoming.consumer, incoming.association);
        self.accepted
            .find(consumer, association, self.clock.mono(), ASSOCIATION_WAIT_MAX)
            .await
            .ok_or(RefusalCode::UnknownAssociation)
    }

    /// The verdict on the consumer's own sealed ATTACH, for each leg of the stream.
    fn gate(self: Arc<Self>, association: Arc<AcceptedAssociation>, incoming: Incoming) -> Gate {
        Box::new(move |grant, claim| {
            let verdict = self.judge(&association, &incoming, grant, claim);
            let (kind, tasks) = (StreamKind::of(incoming.stream), self.tasks.clone());
            if let Err(code) = verdict
                && let Some(suppressed) = told::stream(code.as_str())
            {
                let (tunnel, route) = (incoming.tunnel(), incoming.route);
                tracing::info!(%tunnel, %route, consumer = %association.peer(), code = code.as_str(), claim.first, suppressed, "attach refused");
            }
            let target = verdict?;
            let (failed, name) = (self.failed.clone(), named(&incoming));
            Ok(target.map(|target| -> crate::driver::Dial {
                Box::pin(async move {
                    let dialled = match kind {
                        StreamKind::Service => target::dial(&target).await,
                        StreamKind::Check => target::echo(&tasks),
                    };
                    if let Err(error) = &dialled {
                        failed.note(name, error.code());
                    }
                    dialled
                })
            }))
        })
    }

    /// The target to dial, for the stream's first leg.
    fn judge(
        &self,
        association: &AcceptedAssociation,
        incoming: &Incoming,
        grant: &Bytes,
        claim: AttachClaim,
    ) -> Result<Option<TargetAddress>, RefusalCode> {
        let route = incoming.route;
        let view = self.view.borrow().clone();
        let check = GrantCheck::new(view.policy().ok_or(RefusalCode::UnknownEndpoint)?);
        let grant = self.grants.open(check.keyring(), route, grant).map_err(|error| {
            tracing::debug!(%route, error = chain(&error), "a grant cannot be verified");
            RefusalCode::BadGrant
        })?;
        let publication = check
            .check(&grant, association.peer(), route, !claim.first, self.clock.wall())
            .map_err(|error| {
                tracing::debug!(%route, %error, "a grant does not hold");
                error.code()
            })?;
        if !claim.first {
            return Ok(None);
        }
        // A stream that is resumed and does not live here has ended: the consumer is told so, and how, under
        // seal, and by its own sealed word: a relay's could end a stream that is new (R-STR-05). And a relay
        // may replay an old OPEN with its early data: no number is dialled for twice (I8).
        if !claim.resume && association.admit(incoming.stream) {
            Ok(Some(publication.target.clone()))
        } else {
            let failed = self.failed.code(named(incoming));
            Err(failed.unwrap_or(RefusalCode::UnknownStream))
        }
    }

    fn report(&self, route: RouteId, tunnel: TunnelId, outcome: &Outcome) {
        let role = StreamRole::Publisher;
        let (code, detail) = outcome.failure();
        tracing::debug!(%tunnel, %route, code, "tunnel ends");
        match outcome {
            Outcome::Closed | Outcome::Reset(_) => return,
            Outcome::Refused { code, .. } => self.metrics.refused(role, *code),
            Outcome::Lost { .. } | Outcome::Protocol(_) | Outcome::Ended(_) => {
                self.metrics.failed(role, code);
            }
        }
        if let Some(suppressed) = told::stream(code) {
            tracing::info!(%tunnel, %route, code, detail, suppressed, "stream reset");
        }
    }
}

/// The stream that a leg is for, as its relay says.
const fn named(incoming: &Incoming) -> StreamName {
    StreamName {
        consumer: incoming.consumer,
        association: incoming.association,
        number: incoming.stream,
        route: incoming.route,
    }
}

/// Gives a leg to the driver of the stream that it is for. What the relay claims is not believed by
/// that; the driver's machine takes the leg only for an ATTACH sealed for it.
async fn further(
    live: ToDriver,
    mut leg: Leg,
    relay: RelayId,
    epoch: LegEpoch,
    pending: OwnedSemaphorePermit,
) {
    if let Err(error) = answer(&mut leg, Answer::Ok).await {
        tracing::debug!(%relay, error = chain(&error), "an incoming leg failed");
        return;
    }
    let further = FurtherLeg {
        leg,
        relay,
        epoch,
        pending,
    };
    if let Some(given_up) = live.put(relay, epoch, further) {
        tracing::debug!(%relay, epoch = %given_up.epoch, "a further leg is not waited with");
    }
}

async fn refuse(mut leg: Leg, code: RefusalCode) {
    if answer(&mut leg, Answer::Refused(Refusal::from(code)))
        .await
        .is_ok()
    {
        leg.send.finish();
    }
}

/// Answers a leg. A relay that gives its legs no window holds no task of this daemon for ever.
async fn answer(leg: &mut Leg, answer: Answer) -> Result<(), AnswerError> {
    answer_within(&mut leg.send, answer, ANSWER_MAX).await
}

/// The same, within another limit.
pub(crate) async fn answer_within(
    send: &mut LegSend,
    answer: Answer,
    limit: Duration,
) -> Result<(), AnswerError> {
    match tokio::time::timeout(limit, send.write_frame(&Frame::Answer(answer))).await {
        Ok(written) => written.map_err(AnswerError::Write),
        Err(_) => Err(AnswerError::Untaken(limit)),
    }
}

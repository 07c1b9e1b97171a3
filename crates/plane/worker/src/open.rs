//! One leg that a consumer opened: verdict, publisher's leg, answer, and the tunnel between them.
//!
//! The consumer's bytes go to the publisher behind INCOMING, before the answer: half a round trip
//! less for the first byte. Everything up to the answer is bounded in time and number.

use crate::budget::{InUse, Use};
use crate::metrics::OpenFailure;
use crate::relay::{Relay, Served};
use crate::splice::{Direction, DirectionEnd, Lost};
use crate::told;
use crate::tunnels::{Tunnel, TunnelPlace};
use fairlead_hop::{Answer, Frame, Incoming, Open, Refusal};
use fairlead_model::{Identity, NodeId, RefusalCode, TunnelId};
use fairlead_transport::{Carrier, Leg, LegCode, LegRecv, LegSend};
use fairlead_trust::admission::{Admitted, HELD_PER_NODE_MAX, LiveTunnel, LiveVerdict, OpenClaim, Verdict};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, debug, info};

/// Time for the first frame of a leg. The consumer sends it with the stream's first packet.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// Time for the publisher's daemon to answer an INCOMING. It answers before it dials its target,
/// so this is a round trip and the daemon's own delay.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Time for the consumer to take a refusal or answer.
const REPLY_DEADLINE: Duration = Duration::from_secs(10);

/// Why a leg did not become a tunnel.
enum OpenEnd {
    /// This relay says no.
    Refuse(Refusal),
    /// The publisher said no; its refusal is passed on.
    Passed(Refusal),
    /// Admitted, but it came to nothing; the consumer is told the code.
    Failed(OpenFailure, RefusalCode),
    /// The consumer broke the protocol or left: nobody to tell.
    Abort(RefusalCode),
}

impl From<RefusalCode> for OpenEnd {
    fn from(code: RefusalCode) -> Self {
        Self::Refuse(code.into())
    }
}

/// Serves one leg to its end.
pub(crate) async fn serve(relay: Arc<Relay>, peer: Identity, mut leg: Leg) {
    let mut tunnel = None;
    // Boxed, and gone by then: what opening needs is more than what a tunnel does.
    let opened = Box::pin(open(&relay, peer, &mut leg.recv, &mut tunnel)).await;
    match opened {
        Ok(opened) => {
            // Boxed: most of a worker's memory is tunnels, and most of a tunnel's life is this.
            let tunnel = Box::pin(opened.join(Arc::clone(&relay), leg));
            tunnel.await;
        }
        Err(end) => Box::pin(refuse(&relay, leg, tunnel, end)).await,
    }
}

async fn refuse(relay: &Relay, leg: Leg, tunnel: Option<TunnelId>, end: OpenEnd) {
    let Leg { mut send, mut recv } = leg;
    let refusal = note(relay, tunnel, &end);
    recv.stop(refusal.code.into());
    match end {
        OpenEnd::Abort(code) => send.reset(code.into()),
        OpenEnd::Refuse(_) | OpenEnd::Passed(_) | OpenEnd::Failed(..) => {
            answer_refused(&mut send, refusal).await;
        }
    }
}

/// Counts and logs why a leg did not become a tunnel; gives what its consumer is told. `tunnel` is
/// known once the leg has said what it is for.
fn note(relay: &Relay, tunnel: Option<TunnelId>, end: &OpenEnd) -> Refusal {
    let tunnel = tunnel.map(tracing::field::display);
    match *end {
        OpenEnd::Refuse(refusal) => {
            relay.metrics.refused(refusal.code);
            let code = refusal.code.as_str();
            if let Some(suppressed) = told::open(code) {
                info!(tunnel, code, suppressed, "open refused");
            }
            refusal
        }
        OpenEnd::Passed(refusal) => {
            relay.metrics.failed(OpenFailure::PublisherRefused);
            debug!(
                tunnel,
                code = refusal.code.as_str(),
                "open refused by the publisher"
            );
            refusal
        }
        OpenEnd::Failed(failure, code) => {
            relay.metrics.failed(failure);
            let (reason, code_name) = (failure.as_str(), code.as_str());
            if let Some(suppressed) = told::open(reason) {
                info!(tunnel, code = code_name, reason, suppressed, "open failed");
            }
            code.into()
        }
        OpenEnd::Abort(code) => {
            debug!(tunnel, code = code.as_str(), "open aborted");
            code.into()
        }
    }
}

async fn answer_refused(send: &mut LegSend, refusal: Refusal) {
    let frame = Frame::Answer(Answer::Refused(refusal));
    match timeout(REPLY_DEADLINE, send.write_frame(&frame)).await {
        Ok(Ok(())) => send.finish(),
        Ok(Err(_)) | Err(_) => send.reset(refusal.code.into()),
    }
}

/// The task that moves the consumer's bytes.
type WayThere = AbortOnDropHandle<Option<DirectionEnd>>;

/// An admitted open, with the publisher's leg.
struct Opened {
    name: TunnelId,
    publisher: Leg,
    place: TunnelPlace,
    /// Released once the publisher has answered.
    pending: InUse,
    /// One leg of each node, for as long as the tunnel lives.
    legs: (InUse, InUse),
}

async fn open(
    relay: &Arc<Relay>,
    peer: Identity,
    recv: &mut LegRecv,
    tunnel: &mut Option<TunnelId>,
) -> Result<Opened, OpenEnd> {
    let frame = match timeout(OPEN_DEADLINE, recv.read_frame()).await {
        Ok(Ok(Some(frame))) => frame,
        Ok(Ok(None) | Err(_)) | Err(_) => return Err(OpenEnd::Abort(RefusalCode::Protocol)),
    };
    let Frame::Open(open) = frame else {
        return Err(OpenEnd::Abort(RefusalCode::Protocol));
    };
    let name = open.tunnel();
    *tunnel = Some(name);
    let consumer = match peer {
        Identity::Node(node) => node,
        Identity::Relay(_) | Identity::Control => return Err(RefusalCode::UnknownNode.into()),
    };
    if relay.stopping.is_cancelled() {
        return Err(RefusalCode::ShuttingDown.into());
    }
    if relay.memory.is_short(relay.tunnels.len() as u64) {
        return Err(RefusalCode::Overloaded.into());
    }
    let settings = relay.policy.current().settings();
    let pending = relay.budget.take(
        consumer,
        Use::Pending,
        settings.pending_opens_per_node_max as usize,
    )?;
    let admitted = admit(relay, consumer, &open).await?;
    let legs_max = settings.legs_per_node_max as usize;
    let legs = (
        relay.budget.take(consumer, Use::Leg, legs_max)?,
        // The publisher's bound is the relay's to keep, not the consumer's fault.
        relay
            .budget
            .take(admitted.publisher, Use::Leg, legs_max)
            .map_err(|_| RefusalCode::Overloaded)?,
    );
    let carrier = match relay.served(admitted.endpoint, admitted.publisher) {
        Served::By(carrier) => carrier,
        Served::Restarting(left) => {
            return Err(OpenEnd::Refuse(Refusal {
                code: RefusalCode::EndpointRestarting,
                retry_after: Some(left),
            }));
        }
        Served::Nobody => return Err(RefusalCode::NotRegistered.into()),
        Served::Unknown => return Err(RefusalCode::UnknownEndpoint.into()),
    };
    let place = relay.tunnels.add(LiveTunnel {
        route: open.route,
        consumer,
        endpoint: admitted.endpoint,
        publisher: admitted.publisher,
    });
    // From here on a policy that revokes the route finds the tunnel; one that came in between the
    // verdict and here did not.
    recheck(relay, place.tunnel())?;
    relay.metrics.opens_admitted.inc();
    let publisher = incoming(&carrier, consumer, &open, &admitted).await?;
    Ok(Opened {
        name,
        publisher,
        place,
        pending,
        legs,
    })
}

/// Asks policy, and waits for a late one where the verdict says so (R-POL-10).
async fn admit(relay: &Relay, consumer: NodeId, open: &Open) -> Result<Admitted, RefusalCode> {
    let mut changes = relay.policy.changes();
    let came = Instant::now();
    let mut held: Option<InUse> = None;
    loop {
        // Seen before the value is read: a change in between is not missed.
        changes.mark_unchanged();
        let policy = relay.policy.current();
        policy.session_verdict(consumer).or_else(|code| match code {
            // A node that policy does not name yet may hold a grant that is ahead of it.
            RefusalCode::UnknownNode => Ok(()),
            other => Err(other),
        })?;
        let grant = relay
            .grants
            .verify(&policy, open.route, &open.grant)
            .ok_or(RefusalCode::BadGrant)?;
        let held_by_consumer = relay.budget.used(consumer, Use::Held) - usize::from(held.is_some());
        let claim = OpenClaim {
            consumer,
            route: open.route,
            grant: &grant,
            resume: open.resume,
            waited: came.elapsed(),
            held_by_consumer,
        };
        match policy.verdict(&claim, relay.policy.now()) {
            Verdict::Admit(admitted) => return Ok(admitted),
            Verdict::Refuse(code) => return Err(code),
            Verdict::Hold(at_most) => {
                if held.is_none() {
                    held = Some(relay.budget.take(consumer, Use::Held, HELD_PER_NODE_MAX)?);
                    debug!(route = %open.route, "open held for a late policy");
                }
                tokio::select! {
                    _ = changes.changed() => {}
                    () = tokio::time::sleep(at_most) => {}
                    () = relay.stopping.cancelled() => return Err(RefusalCode::ShuttingDown),
                }
            }
        }
    }
}

/// Whether the tunnel still stands under the policy that is in force by the time it is listed.
fn recheck(relay: &Relay, tunnel: &Tunnel) -> Result<(), RefusalCode> {
    match relay
        .policy
        .current()
        .live_verdict(tunnel.live(), relay.policy.now())
    {
        LiveVerdict::Keep => Ok(()),
        LiveVerdict::Close(code) => Err(code),
    }
}

/// Opens the publisher's leg and sends INCOMING on it.
async fn incoming(
    carrier: &Carrier,
    consumer: NodeId,
    open: &Open,
    admitted: &Admitted,
) -> Result<Leg, OpenEnd> {
    let unreachable = || {
        OpenEnd::Failed(
            OpenFailure::PublisherUnreachable,
            RefusalCode::PublisherUnreachable,
        )
    };
    let frame = Frame::Incoming(Incoming {
        kind: open.kind,
        association: open.association,
        route: open.route,
        stream: open.stream,
        epoch: open.epoch,
        resume: open.resume,
        endpoint: admitted.endpoint,
        consumer,
        policy: (admitted.epoch, admitted.revision),
    });
    let opening = async {
        let mut leg = carrier.open_leg().await.map_err(|_| unreachable())?;
        leg.send.write_frame(&frame).await.map_err(|_| unreachable())?;
        Ok(leg)
    };
    timeout(ANSWER_DEADLINE, opening)
        .await
        .unwrap_or_else(|_| Err(unreachable()))
}

impl Opened {
    /// Runs the tunnel: the way there at once, the way back behind the publisher's answer.
    async fn join(self, relay: Arc<Relay>, consumer: Leg) {
        let Self {
            name,
            publisher,
            place,
            pending,
            legs,
        } = self;
        let there = Direction::new(
            consumer.recv,
            publisher.send,
            Lost {
                to_sender: RefusalCode::PublisherUnreachable.into(),
                to_receiver: LegCode::CANCELLED,
            },
            place.tunnel().half_closed(),
        );
        // A task of its own: in one task, a busy direction starves the other for seconds.
        let mut way_there = AbortOnDropHandle::new(
            relay.tasks.spawn(
                travel(Arc::clone(&relay), there, Arc::clone(place.tunnel()))
                    .instrument(tracing::Span::current()),
            ),
        );
        let ends = (publisher.recv, consumer.send);
        let back = answered(&relay, name, place.tunnel(), ends, pending, &mut way_there).await;
        match back {
            Ok(back) => {
                let live = place.tunnel().live();
                debug!(tunnel = %name, route = %live.route, publisher = %live.publisher, "tunnel begins");
                travel(Arc::clone(&relay), back, Arc::clone(place.tunnel())).await;
            }
            // Ends the way there as well, and tells both peers.
            Err(code) => place.tunnel().close(code),
        }
        if !way_there.is_finished() {
            let _ = way_there.await;
        }
        debug!(tunnel = %name, "tunnel ends");
        drop((place, legs));
    }
}

/// Waits for the publisher's answer and passes it on. Gives the way back, or the code with which
/// the tunnel ends; the consumer has been told by then. `way_there` ends early when the consumer gives
/// up the leg.
async fn answered(
    relay: &Relay,
    name: TunnelId,
    tunnel: &Tunnel,
    (mut from, mut to): (LegRecv, LegSend),
    pending: InUse,
    way_there: &mut WayThere,
) -> Result<Direction, RefusalCode> {
    let unreachable = OpenEnd::Failed(
        OpenFailure::PublisherUnreachable,
        RefusalCode::PublisherUnreachable,
    );
    let left = OpenEnd::Failed(OpenFailure::ConsumerLeft, RefusalCode::MemberLeft);
    let end = tokio::select! {
        // In this order: a publisher that refuses or is lost ends the way there as well.
        biased;
        answer = timeout(ANSWER_DEADLINE, from.read_frame()) => match answer {
            Ok(Ok(Some(Frame::Answer(Answer::Ok)))) => {
                let frame = Frame::Answer(Answer::Ok);
                match timeout(REPLY_DEADLINE, to.write_frame(&frame)).await {
                    Ok(Ok(())) => {
                        drop(pending);
                        let lost = Lost {
                            to_sender: LegCode::CANCELLED,
                            to_receiver: RefusalCode::PublisherUnreachable.into(),
                        };
                        return Ok(Direction::new(from, to, lost, tunnel.half_closed()));
                    }
                    Ok(Err(_)) | Err(_) => {
                        // Part of the answer may be written: no other may follow it.
                        to.reset(RefusalCode::ShuttingDown.into());
                        left
                    }
                }
            }
            Ok(Ok(Some(Frame::Answer(Answer::Refused(refusal))))) => OpenEnd::Passed(refusal),
            Ok(Ok(Some(_) | None) | Err(_)) | Err(_) => unreachable,
        },
        () = consumer_left(way_there) => left,
        code = tunnel.closed() => OpenEnd::Refuse(code.into()),
    };
    let refusal = note(relay, Some(name), &end);
    from.stop(refusal.code.into());
    answer_refused(&mut to, refusal).await;
    Err(refusal.code)
}

/// Waits until the consumer has given up its leg or its connection is gone. Not again after that.
async fn consumer_left(way_there: &mut WayThere) {
    match way_there.await {
        Ok(Some(DirectionEnd::Reset(_) | DirectionEnd::Lost)) => {}
        // It has finished sending, or the publisher does not listen: it may wait for an answer still.
        Ok(Some(DirectionEnd::Finished | DirectionEnd::Stopped(_)) | None) | Err(_) => {
            std::future::pending().await
        }
    }
}

/// Moves one direction's bytes until it ends or the tunnel is closed; how it ended by itself.
async fn travel(relay: Arc<Relay>, mut direction: Direction, tunnel: Arc<Tunnel>) -> Option<DirectionEnd> {
    let end = tokio::select! {
        biased;
        code = tunnel.closed() => {
            direction.abort(code.into());
            return None;
        }
        end = direction.run(|bytes| { relay.metrics.relayed_bytes.inc_by(bytes); }) => end,
    };
    match end {
        DirectionEnd::Finished => {}
        DirectionEnd::Reset(code) | DirectionEnd::Stopped(code) => {
            debug!(%code, "direction cut off");
        }
        DirectionEnd::Lost => debug!("direction lost its connection"),
    }
    Some(end)
}

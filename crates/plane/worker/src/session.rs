//! One hop session: its control stream, and the legs that its member opens.

use crate::relay::{Relay, SessionNumber, ToSession, streams_max};
use crate::told;
use crate::{liveness, open};
use fairlead_hop::{Frame, Refusal, Register, RelayControl, RelayEvent};
use fairlead_model::{Identity, NodeId, RefusalCode};
use fairlead_telemetry::chain;
use fairlead_transport::{AcceptError, Arriving, Carrier, FrameReadError, FrameWriteError, Leg};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{Instrument, debug, info, info_span};

/// Time for the member's control stream and HELLO, as for the handshake (ARCHITECTURE.md, Hop sessions and legs).
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// Time for one frame to be taken by the member. Frames are small and the member's window is not:
/// one that takes none for this long does not read its control stream.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Time for a member to acknowledge why it is let go: some round trips.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Liveness connections of one session that wait to be taken over. A node makes one at a time.
const BINDINGS_MAX: usize = 1;
/// How long a member of the installation that policy does not name may stay: its policy may be on
/// the way, as for a grant (R-POL-10).
const UNLISTED_MAX: Duration = Duration::from_secs(10);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("the member closed it")]
    Closed(RefusalCode),
    #[error("the worker ends")]
    Stopped,
    #[error("the connection ended")]
    Carrier(#[source] fairlead_transport::CarrierEnd),
    #[error("the control stream ended")]
    ControlEnded,
    #[error("the member is dead")]
    Dead(#[source] fairlead_hop::liveness::Death),
    #[error("no greeting within {} s", HELLO_DEADLINE.as_secs())]
    NoHello,
    #[error("the control stream failed")]
    Read(#[source] FrameReadError),
    #[error("the control stream failed")]
    Write(#[source] FrameWriteError),
    #[error("the member does not read its control stream")]
    NotReading,
    #[error("the member broke the protocol")]
    Fault(#[source] fairlead_hop::SessionFault),
    #[error("policy does not admit the member: {0}")]
    Policy(RefusalCode),
    #[error("{0}")]
    Copy(RefusalCode),
}

impl SessionEnd {
    /// Whether the member is to know why, whatever else is lost: what it does next depends on it.
    const fn is_dismissal(&self) -> bool {
        match self {
            Self::Policy(_) | Self::Copy(_) | Self::Fault(_) => true,
            Self::Closed(_)
            | Self::Stopped
            | Self::Carrier(_)
            | Self::ControlEnded
            | Self::Dead(_)
            | Self::NoHello
            | Self::Read(_)
            | Self::Write(_)
            | Self::NotReading => false,
        }
    }

    /// What the member is told.
    fn code(&self) -> RefusalCode {
        match self {
            Self::Closed(_) | Self::Stopped | Self::Carrier(_) | Self::Dead(_) => RefusalCode::ShuttingDown,
            Self::Policy(code) | Self::Copy(code) => *code,
            Self::Fault(fault) => fault.code(),
            Self::ControlEnded | Self::NoHello | Self::Read(_) | Self::Write(_) | Self::NotReading => {
                RefusalCode::Protocol
            }
        }
    }
}

/// Takes an arrival through handshake and session, to its end.
pub(crate) async fn serve(relay: Arc<Relay>, arriving: Arriving) {
    let remote = arriving.remote_address();
    let carrier = match arriving.finish().await {
        Ok(carrier) => carrier,
        Err(error) => {
            relay.metrics.handshake_failed(match error {
                AcceptError::Deadline => "deadline",
                AcceptError::Evicted => "evicted",
                AcceptError::Failed(_) => "failed",
                AcceptError::Certificate(_) | AcceptError::NoCertificate => "certificate",
            });
            debug!(%remote, reason = %chain(&error), "handshake failed");
            return;
        }
    };
    let span = info_span!("session", peer = %carrier.peer());
    session(relay, carrier).instrument(span).await;
}

async fn session(relay: Arc<Relay>, carrier: Carrier) {
    let (sender, bindings) = mpsc::channel(BINDINGS_MAX);
    let wakes = Wakes::default();
    let to = ToSession {
        bindings: sender,
        withdrawn: Arc::clone(&wakes.withdrawn),
    };
    let number = relay.add_session(&carrier, to);
    if let Some(suppressed) = told::session("up") {
        info!(remote = %carrier.remote_address(), suppressed, "hop session up");
    }
    let end = tokio::select! {
        end = control(&relay, &carrier, number, &wakes) => end,
        death = liveness::watch(&relay, &carrier, bindings, &wakes.probe) => SessionEnd::Dead(death),
        end = carrier.closed() => SessionEnd::Carrier(end),
        () = relay.ended.cancelled() => SessionEnd::Stopped,
    };
    carrier.close(end.code());
    relay.remove_session(number);
    if let Some(suppressed) = told::session("ended") {
        info!(reason = %chain(&end), suppressed, "hop session ended");
    }
}

/// What wakes the control stream's loop besides its frames.
#[derive(Debug, Default)]
struct Wakes {
    /// The member is doubted: ping it.
    probe: Notify,
    /// Registrations were withdrawn.
    withdrawn: Arc<Notify>,
}

async fn control(relay: &Arc<Relay>, carrier: &Carrier, number: SessionNumber, wakes: &Wakes) -> SessionEnd {
    let mut leg = match timeout(HELLO_DEADLINE, carrier.accept_leg()).await {
        Err(_) => return SessionEnd::NoHello,
        Ok(Err(end)) => return SessionEnd::Carrier(end),
        Ok(Ok(leg)) => leg,
    };
    leg.send.set_priority(1);
    let settings = relay.policy.current().settings();
    let legs_max = settings.legs_per_node_max;
    carrier.set_legs_max(streams_max(&settings));
    let mut machine = RelayControl::new(relay.id, relay.process_boot, legs_max);
    let end = converse(relay, carrier, number, &mut leg, &mut machine, wakes).await;
    if end.is_dismissal() {
        machine.close(end.code());
        if flush(&mut leg, &mut machine).await.is_ok() {
            // The reason must be there before the carrier goes: the packet that ends it is sent once,
            // and may be lost.
            leg.send.finish();
            let _ = timeout(FAREWELL_MAX, leg.send.drained()).await;
        }
    }
    end
}

async fn converse(
    relay: &Arc<Relay>,
    carrier: &Carrier,
    number: SessionNumber,
    leg: &mut Leg,
    machine: &mut RelayControl,
    wakes: &Wakes,
) -> SessionEnd {
    let hello = timeout(HELLO_DEADLINE, async {
        while !machine.is_established() {
            step(relay, carrier, number, leg, machine).await?;
        }
        Ok(())
    });
    match hello.await {
        Err(_) => return SessionEnd::NoHello,
        Ok(Err(end)) => return end,
        Ok(Ok(())) => {}
    }
    // Two loops in one task: a control stream that is not read must not keep legs waiting, and
    // neither loop does anything heavy.
    tokio::select! {
        end = control_loop(relay, carrier, number, leg, machine, wakes) => end,
        end = leg_loop(relay, carrier) => end,
    }
}

/// Hands each new leg to a task of its own. The carrier's limit on streams bounds how many.
async fn leg_loop(relay: &Arc<Relay>, carrier: &Carrier) -> SessionEnd {
    loop {
        match carrier.accept_leg().await {
            Ok(leg) => {
                let span = tracing::Span::current();
                relay
                    .tasks
                    .spawn(open::serve(Arc::clone(relay), carrier.peer(), leg).instrument(span));
            }
            Err(end) => return SessionEnd::Carrier(end),
        }
    }
}

async fn control_loop(
    relay: &Arc<Relay>,
    carrier: &Carrier,
    number: SessionNumber,
    leg: &mut Leg,
    machine: &mut RelayControl,
    wakes: &Wakes,
) -> SessionEnd {
    let mut changes = relay.policy.changes();
    let mut leave_at = unlisted(relay, carrier).map(|_| Instant::now() + UNLISTED_MAX);
    let mut told_to_drain = false;
    loop {
        let next = tokio::select! {
            next = step(relay, carrier, number, leg, machine) => next,
            changed = changes.changed() => {
                // The keeper lives as long as the relay: its end cannot come before this loop's.
                let _ = changed;
                match (unlisted(relay, carrier), leave_at) {
                    (None, _) => { leave_at = None; Ok(()) }
                    // It was in policy and no longer is.
                    (Some(code), None) => Err(SessionEnd::Policy(code)),
                    (Some(_), Some(_)) => Ok(()),
                }
            }
            () = at(leave_at) => match unlisted(relay, carrier) {
                Some(code) => Err(SessionEnd::Policy(code)),
                None => { leave_at = None; Ok(()) }
            },
            () = wakes.probe.notified() => match machine.probe() {
                Ok(()) => flush(leg, machine).await,
                Err(fault) => Err(SessionEnd::Fault(fault)),
            },
            () = wakes.withdrawn.notified() => match tell_withdrawn(relay, number, machine) {
                Ok(()) => flush(leg, machine).await,
                Err(fault) => Err(SessionEnd::Fault(fault)),
            },
            () = relay.stopping.cancelled(), if !told_to_drain => {
                told_to_drain = true;
                match machine.drain_notice() {
                    Ok(()) => flush(leg, machine).await,
                    Err(fault) => Err(SessionEnd::Fault(fault)),
                }
            }
        };
        if let Err(end) = next {
            return end;
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Why policy does not name the member, if it does not. Relays come to probe.
fn unlisted(relay: &Relay, carrier: &Carrier) -> Option<RefusalCode> {
    match carrier.peer() {
        Identity::Node(node) => relay.policy.current().session_verdict(node).err(),
        Identity::Relay(_) | Identity::Control => None,
    }
}

/// Takes one frame and writes what follows from it. Cancel-safe while it waits for the frame; it
/// is only ever cancelled there by the caller's other events, or with the whole session.
async fn step(
    relay: &Relay,
    carrier: &Carrier,
    number: SessionNumber,
    leg: &mut Leg,
    machine: &mut RelayControl,
) -> Result<(), SessionEnd> {
    let frame = match leg.recv.read_frame().await {
        Ok(Some(frame)) => frame,
        Ok(None) => return Err(SessionEnd::ControlEnded),
        Err(error) => return Err(SessionEnd::Read(error)),
    };
    tracing::trace!(frame = frame.name(), "control frame");
    let event = machine.handle_frame(frame).map_err(SessionEnd::Fault)?;
    match event {
        None => {}
        Some(RelayEvent::Hello(hello)) => {
            debug!(software = hello.software, "hello");
            // Each probe of a relay is a run of its own, and none ends another.
            if let Identity::Node(node) = carrier.peer() {
                relay.greeted(number, node, &hello).map_err(SessionEnd::Copy)?;
            }
        }
        Some(RelayEvent::Register(register)) => {
            answer_registration(relay, carrier, number, register, machine).map_err(SessionEnd::Fault)?;
        }
        Some(RelayEvent::Unregister(register)) => relay.unregister(number, register),
        Some(RelayEvent::Restarting) => relay.announce_restart(number),
        Some(RelayEvent::Closed(code)) => return Err(SessionEnd::Closed(code)),
    }
    flush(leg, machine).await
}

/// Tells the member of registrations that a newer session has taken over (R-ADM-04), or that the
/// policy has dropped.
fn tell_withdrawn(
    relay: &Relay,
    number: SessionNumber,
    machine: &mut RelayControl,
) -> Result<(), fairlead_hop::SessionFault> {
    for (endpoint, register) in relay.take_withdrawn(number) {
        debug!(%endpoint, "the registration is withdrawn");
        machine.refuse(register, Refusal::from(RefusalCode::RegistrationMismatch))?;
    }
    Ok(())
}

fn answer_registration(
    relay: &Relay,
    carrier: &Carrier,
    number: SessionNumber,
    register: Register,
    machine: &mut RelayControl,
) -> Result<(), fairlead_hop::SessionFault> {
    relay.asked(number, register.endpoint);
    match admit_registration(relay, carrier.peer(), number, register) {
        Ok(()) => {
            if let Some(suppressed) = told::session("registered") {
                info!(endpoint = %register.endpoint, generation = register.generation.0, suppressed, "registered");
            }
            machine.registered(register)
        }
        Err(code) => {
            relay.metrics.registration_refused(code);
            debug!(endpoint = %register.endpoint, %code, "registration refused");
            machine.refuse(register, Refusal::from(code))
        }
    }
}

fn admit_registration(
    relay: &Relay,
    peer: Identity,
    number: SessionNumber,
    register: Register,
) -> Result<(), RefusalCode> {
    let node: NodeId = match peer {
        Identity::Node(node) => node,
        Identity::Relay(_) | Identity::Control => return Err(RefusalCode::UnknownNode),
    };
    relay
        .policy
        .current()
        .registration_verdict(node, register.endpoint, register.generation)?;
    match relay.register(number, node, register) {
        Ok(()) => Ok(()),
        Err(fairlead_hop::RegistryFault::Stale | fairlead_hop::RegistryFault::OtherNode) => {
            Err(RefusalCode::RegistrationMismatch)
        }
        Err(fairlead_hop::RegistryFault::TooMany) => Err(RefusalCode::TooMany),
    }
}

async fn flush(leg: &mut Leg, machine: &mut RelayControl) -> Result<(), SessionEnd> {
    while let Some(frame) = machine.poll_transmit() {
        write(leg, &frame).await?;
    }
    Ok(())
}

async fn write(leg: &mut Leg, frame: &Frame) -> Result<(), SessionEnd> {
    timeout(WRITE_DEADLINE, leg.send.write_frame(frame))
        .await
        .map_err(|_| SessionEnd::NotReading)?
        .map_err(SessionEnd::Write)
}

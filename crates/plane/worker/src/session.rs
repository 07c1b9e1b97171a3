//! One hop session: its control stream, and the legs that its member opens.

use crate::relay::{Relay, SessionNumber, ToSession, streams_max};
use crate::told;
use crate::{liveness, open};
use bytes::{Bytes, BytesMut};
use fairlead_hop::{Frame, Refusal, Register, RegistryFault, RelayControl, RelayEvent, SessionFault};
use fairlead_model::{Identity, NodeId, RefusalCode};
use fairlead_telemetry::chain;
use fairlead_transport::{AcceptError, Arriving, Carrier, FrameReadError, FrameWriteError, Leg, LegSend};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
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
/// How long a member of the pool that policy does not name may stay: its policy may be on
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
    Fault(#[source] SessionFault),
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

    /// A control stream that failed since the member closed the connection: the member closed it.
    fn at_root(self, carrier: Option<fairlead_transport::CarrierEnd>) -> Self {
        use fairlead_transport::CarrierEnd;
        match (self, carrier) {
            (Self::Read(_) | Self::Write(_) | Self::ControlEnded, Some(end @ CarrierEnd::Peer(_))) => {
                Self::Carrier(end)
            }
            (end, _) => end,
        }
    }

    /// The stable code that the member or this relay gave, for the log; `None` where neither did.
    fn given(&self) -> Option<&'static str> {
        match self {
            Self::Carrier(fairlead_transport::CarrierEnd::Peer(code)) => {
                code.refusal().map(RefusalCode::as_str)
            }
            Self::Closed(code) | Self::Policy(code) | Self::Copy(code) => Some(code.as_str()),
            Self::Fault(fault) => Some(fault.code().as_str()),
            Self::Stopped
            | Self::Carrier(_)
            | Self::Dead(_)
            | Self::ControlEnded
            | Self::NoHello
            | Self::Read(_)
            | Self::Write(_)
            | Self::NotReading => None,
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
pub(crate) async fn serve(relay: Arc<Relay>, number: SessionNumber, arriving: Arriving) {
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
    // Boxed once there is one: what only shakes hands pays for no session.
    Box::pin(session(relay, number, carrier).instrument(span)).await;
}

async fn session(relay: Arc<Relay>, number: SessionNumber, carrier: Carrier) {
    let (sender, bindings) = mpsc::channel(BINDINGS_MAX);
    let wakes = Wakes::default();
    let to = ToSession {
        bindings: sender,
        withdrawn: Arc::clone(&wakes.withdrawn),
    };
    relay.add_session(number, &carrier, to);
    if let Some(suppressed) = said(carrier.peer(), "up") {
        info!(remote = %carrier.remote_address(), suppressed, "hop session up");
    }
    let end = tokio::select! {
        end = control(&relay, &carrier, number, &wakes) => end,
        death = liveness::watch(&relay, &carrier, bindings, &wakes.probe) => SessionEnd::Dead(death),
        end = carrier.closed() => SessionEnd::Carrier(end),
        () = relay.ended.cancelled() => SessionEnd::Stopped,
    };
    let end = end.at_root(carrier.end());
    carrier.close(end.code());
    relay.remove_session(number);
    if let Some(suppressed) = said(carrier.peer(), "ended") {
        info!(code = end.given(), reason = %chain(&end), suppressed, "hop session ended");
    }
}

/// Whether a session's begin or end is news, with how many such lines were left out. The relays of a pool try
/// each other's ports once a minute: that is none.
fn said(peer: Identity, kind: &'static str) -> Option<u64> {
    match peer {
        Identity::Relay(relay) => {
            debug!(%relay, kind, "a relay probes this port");
            None
        }
        Identity::Node(_) | Identity::Control => told::session(kind),
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

/// The control stream of one session.
struct Control<'a> {
    relay: &'a Arc<Relay>,
    carrier: &'a Carrier,
    number: SessionNumber,
    leg: Leg,
    machine: RelayControl,
    pen: Pen,
}

async fn control(relay: &Arc<Relay>, carrier: &Carrier, number: SessionNumber, wakes: &Wakes) -> SessionEnd {
    let leg = match timeout(HELLO_DEADLINE, carrier.accept_leg()).await {
        Err(_) => return SessionEnd::NoHello,
        Ok(Err(end)) => return SessionEnd::Carrier(end),
        Ok(Ok(leg)) => leg,
    };
    leg.send.set_priority(1);
    let settings = relay.policy.current().settings();
    carrier.set_legs_max(streams_max(&settings));
    let mut control = Control {
        relay,
        carrier,
        number,
        leg,
        machine: RelayControl::new(relay.id, relay.process_boot, settings.legs_per_node_max),
        pen: Pen::default(),
    };
    let end = control.converse(wakes).await;
    if end.is_dismissal() {
        control.dismiss(end.code()).await;
    }
    end
}

impl Control<'_> {
    async fn converse(&mut self, wakes: &Wakes) -> SessionEnd {
        match timeout(HELLO_DEADLINE, self.greet()).await {
            Err(_) => return SessionEnd::NoHello,
            Ok(Err(end)) => return end,
            Ok(Ok(())) => {}
        }
        let (relay, carrier) = (self.relay, self.carrier);
        // Two loops in one task: a control stream that is not read must not keep legs waiting, and
        // neither loop does anything heavy.
        tokio::select! {
            end = self.run(wakes) => match end {
                Ok(never) => match never {},
                Err(end) => end,
            },
            end = leg_loop(relay, carrier) => end,
        }
    }

    async fn greet(&mut self) -> Result<(), SessionEnd> {
        while !self.machine.is_established() {
            let frame = self.leg.recv.read_frame().await;
            self.take(frame)?;
            self.pen.flush(&mut self.machine, &mut self.leg.send).await?;
        }
        Ok(())
    }

    /// Waits for all that concerns the session at once. Whatever comes first, a frame that was begun
    /// is written to its end: a member waits for each answer, and reads frames from one stream.
    async fn run(&mut self, wakes: &Wakes) -> Result<Infallible, SessionEnd> {
        let mut changes = self.relay.policy.changes();
        let mut leave_at = self.unlisted().map(|_| Instant::now() + UNLISTED_MAX);
        let mut told_to_drain = false;
        loop {
            // A member that does not read its answers is not read either.
            let writes = self.pen.has_work(&self.machine);
            tokio::select! {
                frame = self.leg.recv.read_frame(), if !writes => self.take(frame)?,
                flushed = self.pen.flush(&mut self.machine, &mut self.leg.send), if writes => flushed?,
                changed = changes.changed() => {
                    // The keeper lives as long as the relay: its end cannot come before this loop's.
                    let _ = changed;
                    match (self.unlisted(), leave_at) {
                        (None, _) => leave_at = None,
                        // It was in policy and no longer is.
                        (Some(code), None) => return Err(SessionEnd::Policy(code)),
                        (Some(_), Some(_)) => {}
                    }
                }
                () = at(leave_at) => match self.unlisted() {
                    Some(code) => return Err(SessionEnd::Policy(code)),
                    None => leave_at = None,
                },
                () = wakes.probe.notified() => self.machine.probe().map_err(SessionEnd::Fault)?,
                () = wakes.withdrawn.notified() => self.tell_withdrawn().map_err(SessionEnd::Fault)?,
                () = self.relay.stopping.cancelled(), if !told_to_drain => {
                    told_to_drain = true;
                    self.machine.drain_notice().map_err(SessionEnd::Fault)?;
                }
            }
        }
    }

    /// Says why the member is let go, behind what it was being told.
    async fn dismiss(&mut self, code: RefusalCode) {
        self.machine.close(code);
        let said = timeout(
            WRITE_DEADLINE,
            self.pen.flush(&mut self.machine, &mut self.leg.send),
        );
        if let Ok(Ok(())) = said.await {
            // The reason must be there before the carrier goes: the packet that ends it is sent once,
            // and may be lost.
            self.leg.send.finish();
            let _ = timeout(FAREWELL_MAX, self.leg.send.drained()).await;
        }
    }

    /// Why policy does not name the member, if it does not. Relays come to probe.
    fn unlisted(&self) -> Option<RefusalCode> {
        match self.carrier.peer() {
            Identity::Node(node) => self.relay.policy.current().session_verdict(node).err(),
            Identity::Relay(_) | Identity::Control => None,
        }
    }

    /// Takes one frame; what follows from it waits in the machine to be written.
    fn take(&mut self, frame: Result<Option<Frame>, FrameReadError>) -> Result<(), SessionEnd> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(SessionEnd::ControlEnded),
            Err(error) => return Err(SessionEnd::Read(error)),
        };
        tracing::trace!(frame = frame.name(), "control frame");
        match self.machine.handle_frame(frame).map_err(SessionEnd::Fault)? {
            None => {}
            Some(RelayEvent::Hello(hello)) => {
                debug!(software = hello.software, "hello");
                // Each probe of a relay is a run of its own, and none ends another.
                if let Identity::Node(node) = self.carrier.peer() {
                    self.relay
                        .greeted(self.number, node, &hello)
                        .map_err(SessionEnd::Copy)?;
                }
            }
            Some(RelayEvent::Register(register)) => {
                self.answer_registration(register).map_err(SessionEnd::Fault)?;
            }
            Some(RelayEvent::Unregister(register)) => self.relay.unregister(self.number, register),
            Some(RelayEvent::Restarting) => self.relay.announce_restart(self.number),
            Some(RelayEvent::Closed(code)) => return Err(SessionEnd::Closed(code)),
        }
        Ok(())
    }

    /// Tells the member of registrations that a newer session has taken over (R-ADM-04), or that the
    /// policy has dropped.
    fn tell_withdrawn(&mut self) -> Result<(), SessionFault> {
        for (endpoint, register) in self.relay.take_withdrawn(self.number) {
            debug!(%endpoint, "the registration is withdrawn");
            self.machine
                .refuse(register, Refusal::from(RefusalCode::RegistrationMismatch))?;
        }
        Ok(())
    }

    fn answer_registration(&mut self, register: Register) -> Result<(), SessionFault> {
        self.relay.asked(self.number, register.endpoint);
        match self.admit_registration(register) {
            Ok(()) => {
                if let Some(suppressed) = told::session("registered") {
                    info!(endpoint = %register.endpoint, generation = register.generation.0, suppressed, "registered");
                }
                self.machine.registered(register)
            }
            Err(code) => {
                self.relay.metrics.registration_refused(code);
                debug!(endpoint = %register.endpoint, %code, "registration refused");
                self.machine.refuse(register, Refusal::from(code))
            }
        }
    }

    fn admit_registration(&self, register: Register) -> Result<(), RefusalCode> {
        let node: NodeId = match self.carrier.peer() {
            Identity::Node(node) => node,
            Identity::Relay(_) | Identity::Control => return Err(RefusalCode::UnknownNode),
        };
        self.relay
            .policy
            .current()
            .registration_verdict(node, register.endpoint, register.generation)?;
        match self.relay.register(self.number, node, register) {
            Ok(()) => Ok(()),
            Err(RegistryFault::Stale | RegistryFault::OtherNode) => Err(RefusalCode::RegistrationMismatch),
            Err(RegistryFault::TooMany) => Err(RefusalCode::TooMany),
        }
    }
}

/// What is being written to the control stream.
#[derive(Debug)]
struct Pen {
    /// The frame that was begun, as far as it is not written.
    rest: Bytes,
    /// When it must be.
    due: Instant,
}

impl Default for Pen {
    fn default() -> Self {
        Self {
            rest: Bytes::new(),
            due: Instant::now(),
        }
    }
}

impl Pen {
    /// Whether a frame waits, begun or not.
    fn has_work(&self, machine: &RelayControl) -> bool {
        !self.rest.is_empty() || machine.has_transmit()
    }

    /// Writes all that waits. Cancel-safe: the next call goes on within the frame that was begun, and
    /// its deadline with it.
    async fn flush(&mut self, machine: &mut RelayControl, send: &mut LegSend) -> Result<(), SessionEnd> {
        loop {
            if self.rest.is_empty() {
                let Some(frame) = machine.poll_transmit() else {
                    return Ok(());
                };
                let mut encoded = BytesMut::new();
                frame
                    .encode(&mut encoded)
                    .map_err(|error| SessionEnd::Write(error.into()))?;
                self.rest = encoded.freeze();
                self.due = Instant::now() + WRITE_DEADLINE;
            }
            timeout_at(self.due, send.write_chunks(std::slice::from_mut(&mut self.rest)))
                .await
                .map_err(|_| SessionEnd::NotReading)?
                .map_err(|error| SessionEnd::Write(error.into()))?;
        }
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

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_model::{NodeId, RelayId};
    use fairlead_transport::{CarrierEnd, LegCode, LegError};

    #[test]
    fn a_probe_of_the_port_is_no_news() {
        assert_eq!(said(Identity::Relay(RelayId::from_bytes([1; 16])), "up"), None);
        assert!(said(Identity::Node(NodeId::from_bytes([1; 16])), "up").is_some());
    }

    /// A member that leaves closes its connection, and its control stream fails by that: the log has the code
    /// that the guide names, whichever of the two is seen first.
    #[test]
    fn the_code_of_a_member_that_leaves_is_logged() {
        let left = || CarrierEnd::Peer(LegCode::from(RefusalCode::MemberLeft));
        let failed = SessionEnd::Read(FrameReadError::Leg(LegError::Carrier(left())));
        assert_eq!(failed.given(), None);
        for end in [failed, SessionEnd::ControlEnded, SessionEnd::Carrier(left())] {
            let end = end.at_root(Some(left()));
            assert_eq!(end.given(), Some("MEMBER_LEFT"));
            assert!(matches!(end, SessionEnd::Carrier(_)));
        }
        // What this relay found out stays what it is.
        let refused = SessionEnd::Policy(RefusalCode::Draining).at_root(Some(left()));
        assert_eq!(refused.given(), Some("DRAINING"));
        assert_eq!(SessionEnd::ControlEnded.at_root(None).given(), None);
    }
}

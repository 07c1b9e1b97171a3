//! The loop of one stream: socket ↔ machine ↔ legs.
//!
//! A stream outlives its legs: while the socket stands, the machine keeps what is not acknowledged,
//! and another leg carries it on. The consumer's driver gets legs from its mover, the publisher's
//! from its mailbox.
//!
//! One task per stream, driven by readiness. Every turn gives each of the four movements a bounded
//! share, so that neither direction starves the other and no stream starves its neighbours. An
//! idle stream holds no buffer and no armed timer.

mod first;
mod leg;
mod legs;
mod mover;
mod outcome;
mod timer;

pub(crate) use first::answer_wait;
pub(crate) use leg::{LegEnd, LegIo};
pub(crate) use mover::{MoveKind, Mover, Via};
pub(crate) use outcome::Outcome;

use crate::live::{EndReason, LiveGuard};
use crate::metrics::{NodeMetrics, StreamRole};
use crate::resumable::Mailbox;
use crate::socket::{EndSocket, is_transient};
use crate::target::DialError;
use bytes::Bytes;
use fairlead_host::Clock;
use fairlead_model::{MonoTime, RefusalCode, RetryClass};
use fairlead_stream::{End, Event, LegName, ResetCode, Stream};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use timer::Timer;

/// Turns before the task lets others run: with the shares below at most 4 MiB each way.
const TURNS_PER_POLL: usize = 16;
/// Socket reads of one turn, each at most 64 KiB.
const READS_PER_TURN: usize = 4;
/// Socket writes of one turn, each at most [`SLICES_PER_WRITE`] records of 16 KiB.
const WRITES_PER_TURN: usize = 2;
/// Slices of one vectored write: 256 KiB, what a socket's send buffer takes at once.
const SLICES_PER_WRITE: usize = 16;
/// A socket that is not read (full window, or EOF seen) tells nobody that its far side was reset;
/// it is asked this often.
const RESET_CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a leg may take to close in order after its stream has ended: its last words are one
/// record, and a relay that does not take it is given up. As long, an application may take bytes
/// that arrived before the error behind them.
const CLOSE_MAX: Duration = Duration::from_secs(3);
/// A leg whose consumer sends no ATTACH is given up: a handshake's deadline.
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a publisher that sees silence asks for another leg.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often a stream that waits for its far end asks on its leg whether it still carries.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long a stream that was never attached looks for a relay: as long as connections are held.
const CONNECT_MAX: Duration = crate::open::HOLD;

/// A target that is being dialled.
pub(crate) type Dial = Pin<Box<dyn Future<Output = Result<EndSocket, DialError>> + Send>>;

/// What a consumer's sealed ATTACH says of its stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachClaim {
    /// It is the first that arrived here.
    pub(crate) first: bool,
    /// The consumer has had an answer to an earlier one.
    pub(crate) resume: bool,
}

impl AttachClaim {
    /// Of a leg for which nothing is dialled.
    pub(crate) const FURTHER: Self = Self {
        first: false,
        resume: true,
    };
}

/// Decides on a consumer's ATTACH: verifies its grant and, for the stream's first, starts to dial.
pub(crate) type Gate = Box<dyn FnMut(&Bytes, AttachClaim) -> Result<Option<Dial>, RefusalCode> + Send>;

/// Called once, when the target is connected.
pub(crate) type OnConnected = Box<dyn FnOnce() + Send>;

/// The near end of the stream.
pub(crate) enum Near {
    /// The publisher's half before the consumer's grant is verified.
    Unverified,
    /// The publisher's half while the target is dialled.
    Dialling(Dial),
    /// The socket.
    Joined(EndSocket),
    /// The socket is closed.
    Gone,
}

/// Where a stream's further legs come from.
pub(crate) enum Further {
    /// The consumer opens them.
    Mover(Box<Mover>),
    /// The publisher is given them, and decides on each.
    Mailbox(Mailbox, Gate),
}

/// Everything one stream needs to run.
pub(crate) struct Driver {
    stream: Stream,
    near: Near,
    /// The machine's legs: one, two while the stream moves, and those that are not attached.
    legs: Vec<LegIo>,
    /// Legs that the machine has left, with their last words on the way.
    leaving: Vec<LegIo>,
    further: Further,
    guard: LiveGuard,
    clock: Arc<dyn Clock>,
    metrics: NodeMetrics,
    on_connected: Option<OnConnected>,
    timer: Timer,
    /// Bytes of the socket are in the stream.
    taken: bool,
    connected: bool,
    /// The socket's EOF is in the stream.
    eof: bool,
    /// The stream's EOF has been passed to the socket.
    finished: bool,
    reset_checked: MonoTime,
    /// A stream that was never attached is given up then.
    connect_by: Option<MonoTime>,
    suspended: bool,
    /// When the consumer was asked last for another leg.
    asked: Option<MonoTime>,
    /// When the leg of a stream that waits for its far end was pinged last.
    pinged: MonoTime,
    leg_end: Option<LegEnd>,
    /// Set when the stream has ended; what is left is to close socket and leg in order.
    outcome: Option<Outcome>,
    /// The leg is given up then, and a socket that waits for its RST gets it.
    close_by: Option<MonoTime>,
}

impl Driver {
    /// A driver for `stream`, whose leg is open in the machine already.
    pub(crate) fn new(
        stream: Stream,
        near: Near,
        leg: LegIo,
        further: Further,
        guard: LiveGuard,
        clock: Arc<dyn Clock>,
        metrics: NodeMetrics,
    ) -> Self {
        let now = clock.mono();
        let mut leg = leg;
        let connect_by = match further {
            Further::Mover(_) => Some(now.plus(CONNECT_MAX)),
            Further::Mailbox(..) => {
                leg.by = Some(now.plus(ATTACH_WAIT_MAX));
                None
            }
        };
        Self {
            stream,
            near,
            legs: vec![leg],
            leaving: Vec::new(),
            further,
            guard,
            clock,
            metrics,
            on_connected: None,
            timer: Timer::default(),
            taken: false,
            connected: false,
            eof: false,
            finished: false,
            reset_checked: now,
            connect_by,
            suspended: false,
            asked: None,
            pinged: now,
            leg_end: None,
            outcome: None,
            close_by: None,
        }
    }

    /// Notes that bytes of the socket were written into the stream before the driver took over.
    pub(crate) const fn with_taken(mut self, taken: bool) -> Self {
        self.taken = taken;
        self
    }

    /// Calls `f` once the target is connected.
    pub(crate) fn on_connected(mut self, f: OnConnected) -> Self {
        self.on_connected = Some(f);
        self
    }

    /// Runs the stream to its end.
    ///
    /// Cancel safe: a dropped driver closes its socket and resets its legs.
    pub(crate) async fn run(mut self) -> Outcome {
        poll_fn(|cx| self.poll_drive(cx)).await
    }

    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        if self.outcome.is_none()
            && let Some(reason) = self.guard.poll_end(cx)
        {
            let now = self.clock.mono();
            self.stream.reset(reset_code(reason), now);
            self.end(Outcome::Ended(reason), now);
        }
        for _ in 0..TURNS_PER_POLL {
            let now = self.clock.mono();
            let progress = if self.outcome.is_none() {
                self.turn(cx, now)
            } else {
                self.turn_closing(cx, now)
            };
            if let Some(outcome) = self.take_finished() {
                return Poll::Ready(outcome);
            }
            if !progress && !self.poll_timer(cx, now) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// One round of a live stream. True if anything moved.
    fn turn(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let mut progress = self.legs_in(cx, now);
        progress |= self.events(now);
        progress |= self.further_legs(cx, now);
        progress |= self.ping_if_waiting(now);
        progress |= self.dial(cx, now);
        progress |= self.socket_out(cx, now);
        progress |= self.socket_in(cx, now);
        // Before the legs: the next ACK gives credit by it.
        progress |= self.guard.balance(&mut self.stream);
        progress |= self.legs_out(cx, now);
        self.note_suspension();
        progress
    }

    /// One round after the stream's end: the socket gets its last bytes, the leg its last words.
    fn turn_closing(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let mut progress = self.socket_out(cx, now);
        let late = self.close_by.is_some_and(|by| by <= now);
        self.leaving.append(&mut self.legs);
        progress |= self.close_leaving(cx, now, late);
        // All that can be delivered is; what follows it is an error, not an end.
        let closed = matches!(self.outcome, Some(Outcome::Closed));
        let delivered = self.stream.read_slices(&mut [IoSlice::new(&[])]) == 0;
        if !closed && (delivered || late) && matches!(self.near, Near::Joined(_)) {
            self.reset_socket();
            progress = true;
        }
        progress
    }

    /// The outcome, once socket and leg are closed.
    fn take_finished(&mut self) -> Option<Outcome> {
        let socket_done = !matches!(self.near, Near::Joined(_)) || self.finished;
        if self.outcome.is_some() && socket_done && self.leaving.is_empty() && self.legs.is_empty() {
            return self.outcome.take();
        }
        None
    }

    fn events(&mut self, now: MonoTime) -> bool {
        let mut progress = false;
        while let Some(event) = self.stream.poll_event() {
            progress = true;
            match event {
                Event::Attach {
                    leg,
                    grant,
                    first,
                    resume,
                } => self.attach(leg, &grant, AttachClaim { first, resume }, now),
                Event::Connected => self.connected(),
                Event::Ended(end) => {
                    let outcome = self.judge(end);
                    self.end(outcome, now);
                }
                Event::LegDone { leg } => self.leave_leg(leg, now),
                Event::Attached { leg } => self.attached(leg, now),
                Event::MovePlease => self.want(MoveKind::Suspicion, now),
                // The end that follows a reset says the same; a suspension is seen in the machine.
                Event::PeerReset(_) | Event::Suspended { .. } => {}
            }
        }
        progress
    }

    fn judge(&mut self, end: End) -> Outcome {
        match end {
            End::Closed => Outcome::Closed,
            End::Refused(code) => Outcome::Refused {
                code,
                untouched: match code.class() {
                    RetryClass::Never => None,
                    RetryClass::Elsewhere | RetryClass::Wait => self.take_untouched(),
                },
            },
            End::Reset(code) => Outcome::Reset(code),
            End::HoldExpired => self.lost(),
            End::Protocol => Outcome::Protocol(self.leg_end.take()),
        }
    }

    fn lost(&mut self) -> Outcome {
        let end = self.leg_end.take();
        let held = self.stream.ever_attached();
        let untouched = self.take_untouched();
        Outcome::Lost { held, end, untouched }
    }

    /// Whether the application cannot tell that anything was tried.
    const fn is_untouched(&self) -> bool {
        !(self.connected || self.taken || self.eof)
    }

    /// The socket, if the application cannot tell that anything was tried.
    fn take_untouched(&mut self) -> Option<EndSocket> {
        if !self.is_untouched() {
            return None;
        }
        match std::mem::replace(&mut self.near, Near::Gone) {
            Near::Joined(socket) => Some(socket),
            Near::Unverified | Near::Dialling(_) | Near::Gone => None,
        }
    }

    /// The stream has ended. An application whose stream broke gets an RST: at once, or behind the
    /// bytes that arrived before the break.
    fn end(&mut self, outcome: Outcome, now: MonoTime) {
        if self.outcome.is_some() {
            return;
        }
        match &outcome {
            Outcome::Refused { .. } | Outcome::Ended(_) | Outcome::Protocol(_) => self.reset_socket(),
            Outcome::Closed | Outcome::Reset(_) | Outcome::Lost { .. } => {}
        }
        if let (Outcome::Refused { .. }, Further::Mailbox(mailbox, _)) = (&outcome, &mut self.further) {
            // A consumer that has not heard it asks on another leg, and is answered anew.
            mailbox.close();
        }
        self.close_by = Some(now.plus(CLOSE_MAX));
        self.connect_by = None;
        self.outcome = Some(outcome);
        self.note_suspension();
    }

    fn attach(&mut self, name: LegName, grant: &Bytes, claim: AttachClaim, now: MonoTime) {
        let verdict = match &mut self.further {
            Further::Mailbox(_, gate) => gate(grant, claim),
            Further::Mover(_) => Err(RefusalCode::UnknownStream),
        };
        if let Some(leg) = self.legs.iter_mut().find(|l| l.name() == name) {
            leg.pending = None;
            leg.by = None;
        }
        match verdict {
            Ok(dial) => {
                if let Some(dial) = dial {
                    self.near = Near::Dialling(dial);
                }
                if let Err(fault) = self.stream.accept_attach(name, now) {
                    self.drop_leg(name, LegEnd::Fault(fault), now);
                }
            }
            Err(code) => self.stream.refuse_attach(name, code),
        }
    }

    fn dial(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let Near::Dialling(dial) = &mut self.near else {
            return false;
        };
        let Poll::Ready(result) = dial.as_mut().poll(cx) else {
            return false;
        };
        match result {
            Ok(socket) => {
                self.near = Near::Joined(socket);
                self.reset_checked = now;
                self.stream.target_connected();
                self.connected();
            }
            Err(error) => {
                tracing::debug!(error = fairlead_telemetry::chain(&error), "target not reached");
                self.near = Near::Gone;
                self.stream.target_failed(error.code());
            }
        }
        true
    }

    const fn role(&self) -> StreamRole {
        match self.further {
            Further::Mover(_) => StreamRole::Consumer,
            Further::Mailbox(..) => StreamRole::Publisher,
        }
    }

    fn connected(&mut self) {
        self.connected = true;
        if let Some(f) = self.on_connected.take() {
            f();
        }
    }

    /// Both directions are at their end, and all is written.
    fn close_socket(&mut self) {
        match std::mem::replace(&mut self.near, Near::Gone) {
            Near::Joined(socket) => socket.close(),
            near @ (Near::Unverified | Near::Dialling(_) | Near::Gone) => self.near = near,
        }
    }

    fn reset_socket(&mut self) {
        if let Near::Joined(socket) = std::mem::replace(&mut self.near, Near::Gone) {
            socket.reset();
        }
    }

    fn socket_out(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let mut progress = false;
        for _ in 0..WRITES_PER_TURN {
            if !self.write_once(cx, now) {
                break;
            }
            progress = true;
        }
        if !self.finished
            && let Near::Joined(socket) = &self.near
            && self.stream.is_read_finished()
        {
            self.finished = true;
            progress = true;
            if let Err(error) = socket.finish() {
                self.socket_failed(&error, now);
            }
        }
        // Nothing more can come or go; the last acknowledgements need no descriptor.
        if self.finished && self.eof {
            self.close_socket();
        }
        progress
    }

    /// One write to the socket; true if bytes went or the socket failed.
    fn write_once(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let Near::Joined(socket) = &self.near else {
            return false;
        };
        let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
        let count = self.stream.read_slices(&mut slices);
        let Some(slices) = slices.get(..count).filter(|s| !s.is_empty()) else {
            return false;
        };
        match socket.poll_write(cx, slices) {
            Poll::Ready(Ok(written)) => {
                self.stream.consume(written, now);
                self.metrics.bytes_received.inc_by(written as u64);
                true
            }
            Poll::Ready(Err(error)) => {
                self.socket_failed(&error, now);
                true
            }
            Poll::Pending => false,
        }
    }

    fn socket_in(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let mut progress = false;
        for _ in 0..READS_PER_TURN {
            let Near::Joined(socket) = &self.near else { break };
            if self.eof || self.stream.write_capacity() == 0 {
                break;
            }
            let result = match socket.poll_read_ready(cx) {
                Poll::Ready(Ok(())) => self.stream.write_with(|buffer| socket.try_read(buffer)),
                Poll::Ready(Err(error)) => Err(error),
                Poll::Pending => break,
            };
            match result {
                Ok(0) => {
                    self.eof = true;
                    progress = true;
                    self.stream.finish();
                }
                Ok(count) => {
                    self.taken = true;
                    progress = true;
                    self.metrics.bytes_sent.inc_by(count as u64);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    progress = true;
                    self.socket_failed(&error, now);
                }
            }
        }
        progress
    }

    /// The near application is gone or was reset: the far one gets an RST too.
    fn socket_failed(&mut self, error: &io::Error, now: MonoTime) {
        tracing::debug!(%error, "the application's connection failed");
        self.reset_socket();
        if self.outcome.is_none() {
            self.stream.reset(ResetCode::Application, now);
        }
    }

    /// Handles what is due and arms the timer for what comes next. True if something was due.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let live = self.outcome.is_none();
        if self.give_up_legs(now) {
            return true;
        }
        if self.connect_by.is_some_and(|by| by <= now) {
            let outcome = self.lost();
            self.end(outcome, now);
            return true;
        }
        if self.check_reset(now) {
            return true;
        }
        let deadline = [
            self.stream.poll_timeout().filter(|_| live),
            self.reading_paused()
                .then(|| self.reset_checked.plus(RESET_CHECK_EVERY)),
            self.connect_by,
            self.legs_deadline(),
            self.close_by.filter(|by| *by > now),
        ]
        .into_iter()
        .flatten()
        .min();
        if !self.timer.poll_due(cx, deadline, now) {
            return false;
        }
        if live {
            self.stream.handle_timeout(self.clock.mono());
        }
        true
    }

    fn reading_paused(&self) -> bool {
        self.outcome.is_none()
            && matches!(self.near, Near::Joined(_))
            && (self.eof || self.stream.write_capacity() == 0)
    }

    /// Asks a socket that is not read for its error, now and then. True if it had one.
    fn check_reset(&mut self, now: MonoTime) -> bool {
        if now.since(self.reset_checked) < RESET_CHECK_EVERY {
            return false;
        }
        self.reset_checked = now;
        if self.reading_paused()
            && let Near::Joined(socket) = &self.near
            && let Some(error) = socket.pending_error()
        {
            self.socket_failed(&error, now);
            return true;
        }
        false
    }
}

const fn reset_code(reason: EndReason) -> ResetCode {
    match reason {
        EndReason::Revoked => ResetCode::Revoked,
        EndReason::PeerRestarted | EndReason::Stopping => ResetCode::ShuttingDown,
    }
}

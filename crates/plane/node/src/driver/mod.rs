//! The loop of one stream: socket ↔ machine ↔ leg.
//!
//! One task per stream, driven by readiness. Every turn gives each of the four movements a bounded
//! share, so that neither direction starves the other and no stream starves its neighbours. An
//! idle stream holds no buffer and no armed timer.

mod leg;
mod outcome;
mod timer;

pub(crate) use leg::{LegEnd, LegIo};
pub(crate) use outcome::Outcome;

use crate::live::{EndReason, LiveGuard};
use crate::metrics::NodeMetrics;
use crate::socket::{EndSocket, is_transient};
use crate::target::DialError;
use bytes::Bytes;
use fairlead_host::Clock;
use fairlead_model::{LegEpoch, MonoTime, RefusalCode, RetryClass};
use fairlead_stream::{End, Event, ResetCode, Stream};
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
/// How long a RESET may wait behind bytes that the far application does not take. A reset drops what
/// was not delivered; this much patience is a courtesy to readers that are merely slow.
const RESET_SEND_MAX: Duration = Duration::from_secs(3);
/// A leg whose consumer sends no ATTACH is given up: a handshake's deadline.
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(10);

/// A target that is being dialled.
pub(crate) type Dial = Pin<Box<dyn Future<Output = Result<EndSocket, DialError>> + Send>>;

/// Decides on a consumer's ATTACH: verifies its grant and, for the stream's first, starts to dial.
pub(crate) type Gate = Box<dyn FnMut(&Bytes, bool) -> Result<Dial, RefusalCode> + Send>;

/// Called once, when the target is connected.
pub(crate) type OnConnected = Box<dyn FnOnce() + Send>;

/// The near end of the stream.
pub(crate) enum Near {
    /// The publisher's half before the consumer's grant is verified.
    Gate(Gate),
    /// The publisher's half while the target is dialled.
    Dialling(Dial),
    /// The socket.
    Joined(EndSocket),
    /// The socket is closed.
    Gone,
}

/// Everything one stream needs to run.
pub(crate) struct Driver {
    stream: Stream,
    near: Near,
    leg: Option<LegIo>,
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
    attach_by: Option<MonoTime>,
    /// The socket is gone; the stream is cut off then if its RESET is not through.
    reset_by: Option<MonoTime>,
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
        guard: LiveGuard,
        clock: Arc<dyn Clock>,
        metrics: NodeMetrics,
    ) -> Self {
        let now = clock.mono();
        let attach_by = matches!(near, Near::Gate(_)).then(|| now.plus(ATTACH_WAIT_MAX));
        Self {
            stream,
            near,
            leg: Some(leg),
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
            attach_by,
            reset_by: None,
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
    /// Cancel safe: a dropped driver closes its socket and resets its leg.
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
        let mut progress = self.move_leg(now, |leg, stream| leg.poll_in(cx, stream, now));
        progress |= self.events(now);
        progress |= self.dial(cx, now);
        progress |= self.socket_out(cx, now);
        progress |= self.socket_in(cx, now);
        progress | self.move_leg(now, |leg, stream| leg.poll_out(cx, stream, now))
    }

    /// One round after the stream's end: the socket gets its last bytes, the leg its last words.
    fn turn_closing(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let mut progress = self.socket_out(cx, now);
        let late = self.close_by.is_some_and(|by| by <= now);
        if let Some(leg) = &mut self.leg
            && (leg.poll_close(cx, &mut self.stream, now).is_ready() || late)
        {
            self.leg = None;
            progress = true;
        }
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
        if self.outcome.is_some() && socket_done && self.leg.is_none() {
            return self.outcome.take();
        }
        None
    }

    fn move_leg(
        &mut self,
        now: MonoTime,
        step: impl FnOnce(&mut LegIo, &mut Stream) -> Result<bool, LegEnd>,
    ) -> bool {
        let Some(leg) = &mut self.leg else { return false };
        match step(leg, &mut self.stream) {
            Ok(progress) => progress,
            Err(end) => {
                self.lose_leg(end, now);
                true
            }
        }
    }

    fn lose_leg(&mut self, end: LegEnd, now: MonoTime) {
        let Some(leg) = self.leg.take() else { return };
        if matches!(end, LegEnd::Lost(_)) {
            self.stream.leg_lost(leg.epoch(), now);
        }
        self.leg_end = Some(end);
    }

    fn events(&mut self, now: MonoTime) -> bool {
        let mut progress = false;
        while let Some(event) = self.stream.poll_event() {
            progress = true;
            match event {
                Event::Attach { epoch, grant, first } => self.attach(epoch, &grant, first, now),
                Event::Connected => self.connected(),
                Event::Ended(end) => {
                    let outcome = self.judge(end);
                    self.end(outcome, now);
                }
                Event::LegDone { .. } => self.leg = None,
                // The end that follows it says the same.
                Event::PeerReset(_)
                | Event::Attached { .. }
                | Event::MovePlease
                | Event::Suspended { .. } => {}
            }
        }
        // A machine that waits for another leg before it was ever attached has lost its only one.
        if self.outcome.is_none() && self.leg.is_none() && !self.stream.ever_attached() {
            let outcome = self.lost();
            self.end(outcome, now);
            progress = true;
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
        let untouched = self.take_untouched();
        Outcome::Lost { end, untouched }
    }

    /// The socket, if the application cannot tell that anything was tried.
    fn take_untouched(&mut self) -> Option<EndSocket> {
        if self.connected || self.taken || self.eof {
            return None;
        }
        match std::mem::replace(&mut self.near, Near::Gone) {
            Near::Joined(socket) => Some(socket),
            Near::Gate(_) | Near::Dialling(_) | Near::Gone => None,
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
        self.close_by = Some(now.plus(CLOSE_MAX));
        self.attach_by = None;
        self.outcome = Some(outcome);
    }

    fn attach(&mut self, epoch: LegEpoch, grant: &Bytes, first: bool, now: MonoTime) {
        let verdict = match &mut self.near {
            Near::Gate(gate) => gate(grant, first),
            Near::Dialling(_) | Near::Joined(_) | Near::Gone => Err(RefusalCode::UnknownStream),
        };
        match verdict {
            Ok(dial) => {
                self.attach_by = None;
                self.near = Near::Dialling(dial);
                if let Err(fault) = self.stream.accept_attach(epoch, now) {
                    self.lose_leg(LegEnd::Fault(fault), now);
                }
            }
            Err(code) => self.stream.refuse_attach(epoch, code),
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

    fn connected(&mut self) {
        self.connected = true;
        if let Some(f) = self.on_connected.take() {
            f();
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
            self.reset_by = Some(now.plus(RESET_SEND_MAX));
        }
    }

    /// Handles what is due and arms the timer for what comes next. True if something was due.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        if self.attach_by.is_some_and(|by| by <= now) {
            self.leg = None;
            let outcome = self.lost();
            self.end(outcome, now);
            return true;
        }
        let live = self.outcome.is_none();
        if live && self.reset_by.is_some_and(|by| by <= now) {
            // The far daemon learns it by the loss of the leg.
            self.leg = None;
            self.end(Outcome::Reset(ResetCode::Application), now);
            return true;
        }
        if self.check_reset(now) {
            return true;
        }
        let deadline = [
            self.stream.poll_timeout().filter(|_| live),
            self.reading_paused()
                .then(|| self.reset_checked.plus(RESET_CHECK_EVERY)),
            self.attach_by,
            self.reset_by.filter(|_| live),
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

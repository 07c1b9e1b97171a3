//! The machine of one end of a stream.

mod end;
mod memory;
mod receive;
mod transmit;

use crate::attach::AttachRules;
use crate::config::Config;
use crate::event::{End, Event, LegFault, OpenLegError, ResetCode};
use crate::frame::GRANT_BYTES_MAX;
use crate::leg::{AttachKind, Leg, LegName, LegPath, LegState};
use crate::recv::RecvBuffer;
use crate::rtt::Rtt;
use crate::secret::{Direction, StreamSecret};
use crate::send::SendBuffer;
use crate::window::{INITIAL_WINDOW, Window};
use bytes::Bytes;
use fairlead_model::{LegEpoch, MonoTime, RefusalCode};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

pub use transmit::TRANSMIT_BATCH;

/// Most legs of one stream at once: two live ones, one more on its way, and one whose loss has not
/// been noticed.
const LEGS_MAX: usize = 4;
/// Most legs beside these on which the acceptor has verified nothing. The daemon keeps one for each relay,
/// so that relays which make legs up crowd none out; eight are more than an endpoint's relays.
const UNVERIFIED_MAX: usize = 8;

/// What only one of the ends has.
enum Role {
    Dialler {
        grant: Bytes,
        /// The last epoch that was allocated; 0 before the first.
        allocated: LegEpoch,
        /// The last epoch that a leg was opened with.
        opened: LegEpoch,
    },
    Acceptor {
        /// The highest epoch whose ATTACH was verified (I5).
        attached: LegEpoch,
    },
}

/// Whether the acceptor's target is connected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Unknown,
    Connected,
    Failed(RefusalCode),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Bytes flow, or wait for a leg, or the last of both directions is being acknowledged.
    Open,
    /// This end was reset; the peer has not confirmed it.
    Resetting(ResetCode),
    /// `Ended` was told; frames that tell the peer may still be due.
    Over,
}

/// Frames of the stream that are due on its current leg. Those without an acknowledgement of their
/// own come due again with each lost or added leg.
#[derive(Default)]
struct Due {
    fin: bool,
    reset: Option<ResetCode>,
    dial_result: bool,
    closed: bool,
    move_please: bool,
}

/// One end of a resumable stream.
///
/// # Inputs and outputs
/// | from | in | out |
/// |---|---|---|
/// | application's socket | [`write_with`](Self::write_with), [`write`](Self::write), [`finish`](Self::finish), [`reset`](Self::reset) | [`read_slices`](Self::read_slices) + [`consume`](Self::consume), [`read`](Self::read), [`is_read_finished`](Self::is_read_finished) |
/// | legs | [`open_leg`](Self::open_leg), [`receive`](Self::receive), [`leg_lost`](Self::leg_lost) | [`poll_transmit`](Self::poll_transmit) |
/// | daemon | [`accept_attach`](Self::accept_attach), [`refuse_attach`](Self::refuse_attach), [`target_connected`](Self::target_connected), [`target_failed`](Self::target_failed) | [`poll_event`](Self::poll_event) |
/// | clock | [`handle_timeout`](Self::handle_timeout) | [`poll_timeout`](Self::poll_timeout) |
///
/// # Order
/// After any input, poll events until there are none, then transmit on every leg, then look at the
/// timeout. Legs are always read, however slow the application is (I4): the window bounds what can
/// arrive. `poll_transmit` is called only when what it gave before is written, so that sealed bytes
/// are bounded by one batch per leg. All that it gave goes onto that leg, in order.
///
/// # States
/// Opening (no leg attached yet) → Active (one) → Dual (two) → Active; Active → Suspended (none,
/// for `Config::hold`) → Active or ended. Each direction is open, FIN sent, or FIN acknowledged.
/// Nothing has to be persisted: a stream does not outlive its daemon.
pub struct Stream {
    role: Role,
    rules: AttachRules,
    config: Config,
    secret: StreamSecret,
    legs: Vec<Leg>,
    send: SendBuffer,
    recv: RecvBuffer,
    window: Window,
    rtt: Rtt,
    phase: Phase,
    target: Target,
    attached_once: bool,
    due: Due,
    fin_sent: bool,
    closed_sent: bool,
    /// Either end was reset: no clean end can follow.
    was_reset: bool,
    /// When the hold ends; only while no leg is attached.
    suspended_until: Option<MonoTime>,
    /// When the peer last acknowledged something new, or when the first byte went out behind an
    /// acknowledged one.
    ack_progress: MonoTime,
    /// When this end stops waiting for the peer's CLOSED.
    linger_until: Option<MonoTime>,
    events: VecDeque<Event>,
}

/// How far both directions of a stream are: positions in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the application wrote.
    pub written: u64,
    /// One above the highest position that was sent.
    pub sent: u64,
    /// Below this the far daemon holds everything (I2).
    pub acked: u64,
    /// Below this this end may send: the peer's word (I3).
    pub limit: u64,
    /// Below this everything was received.
    pub received: u64,
    /// Bytes that the application took.
    pub consumed: u64,
    /// Below this the peer may send: this end's word, which never retracts (I3).
    pub granted: u64,
}

/// A grant longer than an ATTACH may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a grant of {length} bytes, at most {max} allowed", max = GRANT_BYTES_MAX)]
pub struct GrantTooLong {
    /// The grant's length in bytes.
    pub length: usize,
}

impl Stream {
    /// The consumer's end. `grant` is the signed grant that each ATTACH carries.
    ///
    /// # Errors
    /// The grant is longer than [`GRANT_BYTES_MAX`].
    pub fn dial(config: Config, secret: StreamSecret, grant: Bytes) -> Result<Self, GrantTooLong> {
        if grant.len() > GRANT_BYTES_MAX {
            return Err(GrantTooLong { length: grant.len() });
        }
        let role = Role::Dialler {
            grant,
            allocated: LegEpoch(0),
            opened: LegEpoch(0),
        };
        Ok(Self::new(role, config, secret))
    }

    /// The publisher's end.
    #[must_use]
    pub fn accept(config: Config, secret: StreamSecret) -> Self {
        Self::new(
            Role::Acceptor {
                attached: LegEpoch(0),
            },
            config,
            secret,
        )
    }

    fn new(role: Role, config: Config, secret: StreamSecret) -> Self {
        Self {
            role,
            rules: AttachRules::default(),
            config,
            secret,
            // Most streams never have two at once.
            legs: Vec::with_capacity(1),
            send: SendBuffer::new(INITIAL_WINDOW),
            recv: RecvBuffer::new(),
            window: Window::new(config.window_max),
            rtt: Rtt::default(),
            phase: Phase::Open,
            target: Target::Unknown,
            attached_once: false,
            due: Due::default(),
            fin_sent: false,
            closed_sent: false,
            was_reset: false,
            suspended_until: None,
            ack_progress: MonoTime(0),
            linger_until: None,
            events: VecDeque::new(),
        }
    }

    /// The same machine under fewer rules: what the model must find fault with.
    #[cfg(test)]
    pub(crate) const fn with_rules(mut self, rules: AttachRules) -> Self {
        self.rules = rules;
        self
    }

    // ---- legs

    /// Dialler: burns the next epoch, for the OPEN of a new leg. An OPEN that is refused or never
    /// answered has burnt it too (I5). An acceptor gets 0, which no leg has.
    pub fn next_epoch(&mut self) -> LegEpoch {
        match &mut self.role {
            Role::Dialler { allocated, .. } => {
                *allocated = allocated.next();
                *allocated
            }
            Role::Acceptor { .. } => LegEpoch(0),
        }
    }

    /// Takes a leg into use. The dialler calls it when the OPEN is written and transmits at once;
    /// the acceptor when INCOMING came, and sends nothing before it has verified an ATTACH. Until then
    /// several relays may say that they have the leg of one epoch: the first whose ATTACH opens has it.
    /// `kind` is the dialler's; an acceptor's is ignored.
    ///
    /// # Errors
    /// The epoch is not a new one, the relay has a leg of it, too many legs are open, or the stream is over.
    pub fn open_leg(&mut self, path: LegPath, kind: AttachKind) -> Result<(), OpenLegError> {
        if self.phase == Phase::Over {
            return Err(OpenLegError::Ended);
        }
        let stale = match &self.role {
            Role::Dialler {
                allocated, opened, ..
            } => path.epoch <= *opened || path.epoch > *allocated,
            Role::Acceptor { attached } => {
                !self.rules.is_new(path.epoch, *attached) || self.leg(path.name()).is_some()
            }
        };
        if stale {
            return Err(OpenLegError::StaleEpoch(path.epoch));
        }
        let max = match &self.role {
            Role::Dialler { .. } => LEGS_MAX,
            Role::Acceptor { .. } => UNVERIFIED_MAX,
        };
        let is_dialler = matches!(self.role, Role::Dialler { .. });
        let counted = self.legs.iter().filter(|l| is_dialler || l.is_unverified());
        if counted.count() >= max {
            return Err(OpenLegError::TooMany(max));
        }
        let state = match &mut self.role {
            Role::Dialler { opened, .. } => {
                *opened = path.epoch;
                LegState::Attaching { kind, sent: None }
            }
            Role::Acceptor { .. } => LegState::AwaitAttach,
        };
        if is_dialler && kind == AttachKind::Resend {
            self.send_again();
        }
        self.legs
            .push(Leg::new(path, state, &self.secret, self.direction(), self.rules));
        Ok(())
    }

    /// A leg ended: refused by its relay, reset, or cut. Unknown legs are ignored.
    pub fn leg_lost(&mut self, leg: LegName, now: MonoTime) {
        let Some(index) = self.legs.iter().position(|l| l.name() == leg) else {
            return;
        };
        let leg = self.legs.swap_remove(index);
        self.rtt.forget_ping();
        if let Some(sent) = leg.sent {
            self.send.resend(sent);
        }
        // So may the last ACK be, and with it the limit that the peer waits for.
        self.window.ack_now();
        self.repeat_unacknowledged();
        self.without_leg(now);
    }

    /// Acceptor: the grant of this leg's ATTACH is good. For the stream's first leg, dial the target
    /// now and call `target_connected` or `target_failed`.
    ///
    /// # Errors
    /// What followed the ATTACH ended the leg.
    pub fn accept_attach(&mut self, name: LegName, now: MonoTime) -> Result<(), LegFault> {
        let Some(leg) = self.leg_mut(name) else {
            return Err(LegFault::UnknownLeg(name.epoch));
        };
        let LegState::AwaitVerdict(claim) = leg.state else {
            return Err(LegFault::UnknownLeg(name.epoch));
        };
        leg.state = LegState::Attached { ok_due: true };
        let (rest, held) = leg.take_held();
        self.attached(name.epoch, now);
        if !self.acknowledge(claim.next, claim.limit, now) {
            return self.fail_leg(
                name,
                LegFault::Protocol("ATTACH acknowledges what was not sent"),
                now,
            );
        }
        if claim.resend {
            self.send_again();
        }
        let result = self
            .on_plaintext(name, rest, now)
            .and_then(|()| self.on_bytes(name, &held, now));
        result
            .map(|_| ())
            .or_else(|fault| self.fail_leg(name, fault, now))
    }

    /// Acceptor: the grant of this leg's ATTACH is not good. The refusal is sealed and sent; the
    /// stream ends if it was its first leg.
    pub fn refuse_attach(&mut self, name: LegName, code: RefusalCode) {
        let first = !self.attached_once;
        let Some(leg) = self.leg_mut(name).filter(|l| l.awaits_verdict()) else {
            return;
        };
        leg.state = LegState::Refusing(Some(code));
        leg.take_held();
        if first {
            self.end(End::Refused(code));
        }
    }

    /// Acceptor: the target is connected.
    pub fn target_connected(&mut self) {
        if self.phase == Phase::Open && self.target == Target::Unknown {
            self.target = Target::Connected;
            self.due.dial_result = true;
        }
    }

    /// Acceptor: the target could not be connected (R-STR-07). The code is sealed and sent, and the
    /// stream ends.
    pub fn target_failed(&mut self, code: RefusalCode) {
        if self.phase == Phase::Open && self.target == Target::Unknown {
            self.target = Target::Failed(code);
            self.due.dial_result = true;
            self.end(End::Refused(code));
        }
    }

    /// Dialler: replaces the grant that further ATTACHes carry; a stream outlives its first one.
    ///
    /// # Errors
    /// The grant is longer than [`GRANT_BYTES_MAX`]; the old one stays.
    pub fn set_grant(&mut self, fresh: Bytes) -> Result<(), GrantTooLong> {
        if fresh.len() > GRANT_BYTES_MAX {
            return Err(GrantTooLong { length: fresh.len() });
        }
        if let Role::Dialler { grant, .. } = &mut self.role {
            *grant = fresh;
        }
        Ok(())
    }

    /// Sends a PING on an attached leg; the peer answers with a record of its own. Shows whether the
    /// path lives while nothing else is sent.
    pub fn request_ping(&mut self, name: LegName) {
        if let Some(leg) = self.leg_mut(name) {
            leg.ping_due = leg.is_attached();
        }
    }

    /// Acceptor: asks the dialler for a leg through another relay.
    pub fn request_move(&mut self) {
        self.due.move_please = self.phase != Phase::Over;
    }

    // ---- application

    /// How many bytes can be written: zero while the peer's window and the small reserve behind it
    /// are full, and after the end. Stop reading the socket meanwhile (R-STR-04).
    #[must_use]
    pub fn write_capacity(&self) -> usize {
        match self.phase {
            Phase::Open => self.send.capacity(),
            Phase::Resetting(_) | Phase::Over => 0,
        }
    }

    /// Lets `read` put bytes straight into the retained send buffer: it gets at least one byte of
    /// room, at most 64 KiB and at most [`write_capacity`](Self::write_capacity), and returns how
    /// many bytes it wrote to the front. Not called, and 0 returned, without capacity.
    ///
    /// # Errors
    /// What `read` returns; nothing is written then.
    pub fn write_with<E>(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        if self.write_capacity() == 0 {
            return Ok(0);
        }
        self.send.write_with(read)
    }

    /// Copies as many of `bytes` as there is capacity for; returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if self.write_capacity() == 0 {
            return 0;
        }
        self.send.write(bytes)
    }

    /// The application sends nothing more: EOF of its socket. Repeated calls change nothing.
    pub fn finish(&mut self) {
        if self.phase == Phase::Open && self.send.finish() {
            self.due.fin = true;
        }
    }

    /// The application's socket failed or was reset, or the daemon ends the stream: both directions
    /// are over. What was written and fits the peer's window still goes ahead of the RESET, as TCP
    /// delivers what precedes a reset in the best case (F-02).
    pub fn reset(&mut self, code: ResetCode, now: MonoTime) {
        if self.phase != Phase::Open {
            return;
        }
        self.was_reset = true;
        self.send.cut();
        self.recv.clear();
        self.window.quiet();
        self.due.fin = false;
        self.due.reset = Some(code);
        self.phase = Phase::Resetting(code);
        self.linger(now);
        // Nobody can be told: no leg has been opened, or the acceptor has verified none.
        let silent = match self.role {
            Role::Dialler { .. } => self.legs.is_empty() && !self.attached_once,
            Role::Acceptor { .. } => !self.attached_once,
        };
        if silent || (self.legs.is_empty() && self.config.hold.is_zero()) {
            self.end(End::Reset(code));
        }
    }

    /// Fills `slices` from the front with bytes to deliver, for one vectored write; returns how many
    /// slices it filled. Zero: nothing can be delivered now.
    pub fn read_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.recv.slices(slices)
    }

    /// The application took `n` bytes of what `read_slices` gave.
    pub fn consume(&mut self, n: usize, now: MonoTime) {
        if self.recv.consume(n) > 0 {
            self.after_read(now);
        }
    }

    /// Takes the next piece to deliver.
    pub fn read(&mut self, now: MonoTime) -> Option<Bytes> {
        let piece = self.recv.read()?;
        self.after_read(now);
        Some(piece)
    }

    /// Whether the peer's direction ended cleanly and every byte of it was taken (I6): pass the EOF
    /// on. Never after a reset.
    #[must_use]
    pub fn is_read_finished(&self) -> bool {
        self.recv.is_drained() && !self.was_reset
    }

    // ---- daemon

    /// The next thing for the caller to act on.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When `handle_timeout` wants to be called; a later or needless call does no harm.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        if self.phase == Phase::Over {
            return None;
        }
        let ack = self.window.deadline().filter(|_| self.current().is_some());
        let retire = self.legs.iter().filter_map(|l| l.retire_by).min();
        [ack, retire, self.suspended_until, self.linger_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time has passed. Transmit afterwards: an ACK may be due.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        if self.phase == Phase::Over {
            return;
        }
        self.window.handle_timeout(now);
        let past = |t: Option<MonoTime>| t.is_some_and(|t| t <= now);
        while let Some(leg) = self.legs.iter().find(|l| past(l.retire_by)).map(Leg::name) {
            self.events.push_back(Event::LegDone { leg });
            self.leg_lost(leg, now);
        }
        if past(self.suspended_until) || past(self.linger_until) {
            self.give_up();
        }
    }

    /// Whether an ATTACH was ever accepted: an OPEN of a further leg says that it resumes.
    #[must_use]
    pub const fn ever_attached(&self) -> bool {
        self.attached_once
    }

    /// Whether a leg is attached, or carries bytes until it is: a stream without one needs another.
    #[must_use]
    pub fn has_leg(&self) -> bool {
        self.phase != Phase::Over && self.current().is_some()
    }

    /// Whether it is the leg that carries new bytes.
    #[must_use]
    pub fn is_current(&self, leg: LegName) -> bool {
        self.current() == Some(leg)
    }

    /// Whether the leg is attached.
    #[must_use]
    pub fn is_attached(&self, leg: LegName) -> bool {
        self.leg(leg).is_some_and(Leg::is_attached)
    }

    /// Whether the stream was attached, has no leg, and waits for one within its hold.
    #[must_use]
    pub const fn is_suspended(&self) -> bool {
        self.suspended_until.is_some()
    }

    /// Whether both directions are complete and acknowledged: all that may be missing is the peer's
    /// CLOSED.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Open && self.all_done()
    }

    /// Since when this end waits for a word of the peer: bytes or a FIN are on their way and nothing
    /// new was acknowledged, or a PING is on the current leg and no record came. A peer's slow
    /// application is no reason for it: arrived bytes are acknowledged before they are read (I4).
    #[must_use]
    pub fn unacked_since(&self) -> Option<MonoTime> {
        if self.phase != Phase::Open {
            return None;
        }
        let unacked = self.send.unacked();
        let fin = self.fin_sent && !self.send.fin_acked();
        let sent = (fin || unacked.from < unacked.to).then_some(self.ack_progress);
        let pinged = self.current().and_then(|leg| self.leg(leg)?.pinged);
        sent.into_iter().chain(pinged).min()
    }

    /// Whether this end can do nothing before the peer speaks, and nothing that it sent is on its
    /// way: it has no credit left, or waits for the target. A leg that swallowed the peer's word looks
    /// just so; a PING on it now and then tells ([`request_ping`](Self::request_ping)).
    #[must_use]
    pub fn waits_for_peer(&self) -> bool {
        let dialling = matches!(self.role, Role::Dialler { .. }) && self.target == Target::Unknown;
        self.phase == Phase::Open && self.attached_once && (dialling || self.send.is_blocked())
    }

    /// How long the stream is held without a leg.
    #[must_use]
    pub const fn hold(&self) -> Duration {
        self.config.hold
    }

    /// How far both directions are.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            written: self.send.written(),
            sent: self.send.unacked().to,
            acked: self.send.acked(),
            limit: self.send.limit(),
            received: self.recv.next(),
            consumed: self.recv.consumed(),
            granted: self.window.limit(),
        }
    }

    /// The smoothed round-trip time, end to end, once measured.
    #[must_use]
    pub const fn rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    // ---- shared by the parts

    const fn direction(&self) -> Direction {
        match self.role {
            Role::Dialler { .. } => Direction::FromDialler,
            Role::Acceptor { .. } => Direction::FromAcceptor,
        }
    }

    fn leg(&self, name: LegName) -> Option<&Leg> {
        self.legs.iter().find(|l| l.name() == name)
    }

    fn leg_mut(&mut self, name: LegName) -> Option<&mut Leg> {
        self.legs.iter_mut().find(|l| l.name() == name)
    }

    /// The leg that carries new bytes and the stream's control frames: the newest attached one, or a
    /// newer one that is being attached if it carries data at once or is the only one.
    fn current(&self) -> Option<LegName> {
        let usable = self.legs.iter().any(Leg::is_usable);
        let carries = |leg: &&Leg| match leg.state {
            LegState::Attached { .. } => leg.is_usable(),
            LegState::Attaching {
                kind: AttachKind::Resend,
                ..
            } => true,
            LegState::Attaching {
                kind: AttachKind::Planned,
                ..
            } => !usable,
            LegState::AwaitAttach | LegState::AwaitVerdict(_) | LegState::Refusing(_) => false,
        };
        self.legs.iter().filter(carries).map(Leg::name).max()
    }

    fn after_read(&mut self, now: MonoTime) {
        if self.phase == Phase::Open && !self.recv.has_final() {
            self.window.consumed(self.recv.consumed(), &self.rtt, now);
        }
    }

    /// Takes an acknowledgement; `false` if it is of what was not sent.
    fn acknowledge(&mut self, next: u64, limit: u64, now: MonoTime) -> bool {
        let before = self.send.acked();
        let good = self.send.acknowledge(next, limit);
        if self.send.acked() > before {
            self.ack_progress = now;
        }
        good
    }

    /// All that was sent and not acknowledged goes out again on the current leg.
    fn send_again(&mut self) {
        self.send.resend(self.send.unacked());
        self.repeat_unacknowledged();
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("direction", &self.direction())
            .field("legs", &self.legs.len())
            .field("written", &self.send.written())
            .field("acked", &self.send.acked())
            .field("received", &self.recv.next())
            .field("consumed", &self.recv.consumed())
            .finish_non_exhaustive()
    }
}

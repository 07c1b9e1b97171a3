//! The relay's verdict on a node.

use super::heard::Heard;
use super::{Death, KEEP_ALIVE, LOOK_EVERY, LostCause, QUIC_SILENCE_MAX, SILENT_TOO};
use fairlead_model::MonoTime;
use std::collections::VecDeque;
use std::time::Duration;

/// QUIC's silence that kills a node whose liveness connection was ended and not made anew: two
/// keep-alives and a probe unanswered. A relay cannot ask the node's host whether its process
/// lives, so that it waits longer than the node does (a stopped process and a forged end cannot be
/// told from a killed one).
const LOST_SILENCE_MAX: Duration = Duration::from_secs(2);
const _: () = assert!(LOST_SILENCE_MAX.as_millis() == 2 * KEEP_ALIVE.as_millis());
/// Round trips of silence that it takes at least.
const LOST_ROUND_TRIPS: u32 = 3;
/// How long a node that is heard of may take to come back with its liveness connection, before
/// QUIC alone decides.
const REBIND_MAX: Duration = Duration::from_secs(10);

/// What the relay's loop is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayAction {
    /// Send something over QUIC that the node answers.
    Probe,
    /// End the session.
    Dead(Death),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// QUIC alone decides.
    OnlyQuic,
    /// The connection stands.
    Held,
    /// It was lost at this time.
    Lost(MonoTime, Death),
    Dead,
}

/// The relay's end, as a machine, for one hop session.
///
/// **Inputs:** [`bound`](Self::bound) and [`lost`](Self::lost) of the session's newest liveness
/// connection, how much QUIC has received ([`datagrams`](Self::datagrams), before every other
/// input), and [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout).
/// **Outputs:** [`poll_action`](Self::poll_action), drained after every input. After
/// [`RelayAction::Dead`] nothing more comes.
#[derive(Debug)]
pub struct RelayLiveness {
    state: State,
    heard: Heard,
    rtt: Duration,
    actions: VecDeque<RelayAction>,
}

impl RelayLiveness {
    /// A session without a liveness connection, whose node was heard at `now`.
    #[must_use]
    pub fn new(received_bytes: u64, now: MonoTime) -> Self {
        Self {
            state: State::OnlyQuic,
            heard: Heard::new(received_bytes, now),
            rtt: Duration::ZERO,
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<RelayAction> {
        self.actions.pop_front()
    }

    /// Bytes that QUIC has received so far, and its round trip.
    pub fn datagrams(&mut self, received_bytes: u64, rtt: Duration, now: MonoTime) {
        self.rtt = rtt;
        let look = self.heard.look(received_bytes, now);
        if let State::Lost(at, _) = &mut self.state {
            *at = at.plus(look.paused);
        }
    }

    /// The node made a connection for the session.
    pub fn bound(&mut self) {
        match self.state {
            State::Dead => {}
            State::OnlyQuic | State::Held | State::Lost(..) => self.state = State::Held,
        }
    }

    /// The connection was lost.
    pub fn lost(&mut self, cause: LostCause, now: MonoTime) {
        match self.state {
            State::OnlyQuic | State::Lost(..) | State::Dead => {}
            State::Held => match cause {
                LostCause::Unacknowledged if self.heard.is_silent(SILENT_TOO, now) => {
                    self.die(Death::HostGone)
                }
                LostCause::Unacknowledged => self.probe(Death::HostGone, now),
                LostCause::Closed | LostCause::Protocol => self.probe(Death::ProcessGone, now),
            },
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        match self.state {
            State::Dead => None,
            State::OnlyQuic | State::Held | State::Lost(..) => Some(now.plus(LOOK_EVERY)),
        }
    }

    /// Lets the time pass.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        match self.state {
            State::Held | State::Dead => {}
            State::OnlyQuic => {
                if self.heard.is_silent(QUIC_SILENCE_MAX, now) {
                    self.die(Death::Silent);
                }
            }
            State::Lost(at, death) => {
                let limit = LOST_SILENCE_MAX.max(self.rtt * LOST_ROUND_TRIPS);
                if self.heard.is_silent(limit, now) && now.since(at) >= limit {
                    self.die(death);
                } else if now.since(at) >= REBIND_MAX {
                    self.state = State::OnlyQuic;
                }
            }
        }
    }

    fn probe(&mut self, death: Death, now: MonoTime) {
        self.state = State::Lost(now, death);
        self.actions.push_back(RelayAction::Probe);
    }

    fn die(&mut self, death: Death) {
        self.state = State::Dead;
        self.actions.clear();
        self.actions.push_back(RelayAction::Dead(death));
    }
}

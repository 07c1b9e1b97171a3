//! How streams lose legs, replace them, and end.

use super::{Phase, Role, Stream};
use crate::event::{End, Event, LegFault, ResetCode};
use crate::leg::{LegName, LegState};
use fairlead_model::{LegEpoch, MonoTime};
use std::time::Duration;

/// Shortest time to wait for the peer's CLOSED: long enough for a slow path, short enough that a
/// peer that never answers holds no leg for long.
const LINGER_MIN: Duration = Duration::from_secs(10);
/// Longest life of a leg that a newer one replaced: what it still carries is acknowledged by then,
/// or its relay is frozen.
const RETIRE_MAX: Duration = Duration::from_secs(10);

impl Stream {
    /// A leg was attached: the hold is over, and older attached legs are on their way out.
    pub(super) fn attached(&mut self, epoch: LegEpoch, now: MonoTime) {
        self.attached_once = true;
        self.suspended_until = None;
        self.ack_progress = now;
        self.window.ack_now();
        self.repeat_unacknowledged();
        for leg in self
            .legs
            .iter_mut()
            .filter(|l| l.epoch < epoch && l.is_attached())
        {
            leg.retire_by.get_or_insert(now.plus(RETIRE_MAX));
        }
    }

    /// Frames that have no acknowledgement of their own go out again: their leg may be lost.
    pub(super) fn repeat_unacknowledged(&mut self) {
        match self.phase {
            Phase::Open => self.due.fin = self.send.is_finished() && !self.send.fin_acked(),
            Phase::Resetting(code) => self.due.reset = Some(code),
            Phase::Over => {}
        }
        let acceptor = matches!(self.role, Role::Acceptor { .. });
        self.due.dial_result |= acceptor && self.target != super::Target::Unknown;
        self.due.closed |= self.closed_sent;
    }

    /// Both directions are complete and acknowledged, as far as this end knows.
    pub(super) fn all_done(&self) -> bool {
        self.send.fin_acked() && self.recv.is_complete()
    }

    /// Tells the peer once this end has nothing left to wait for.
    pub(super) fn close_if_done(&mut self, now: MonoTime) {
        if self.phase == Phase::Open && self.all_done() && !self.closed_sent && !self.due.closed {
            self.due.closed = true;
            self.linger(now);
        }
    }

    pub(super) fn linger(&mut self, now: MonoTime) {
        let wait = (self.config.hold * 2).max(LINGER_MIN);
        self.linger_until.get_or_insert(now.plus(wait));
    }

    /// After the loss of a leg: goes on with another, waits for one, or ends.
    pub(super) fn without_leg(&mut self, now: MonoTime) {
        if self.phase == Phase::Over || self.legs.iter().any(crate::leg::Leg::is_usable) {
            return;
        }
        if !self.attached_once {
            // A dialler tries elsewhere; an acceptor has nobody to wait for.
            if matches!(self.role, Role::Acceptor { .. }) && self.legs.is_empty() {
                self.give_up();
            }
        } else if self.config.hold.is_zero() && self.legs.is_empty() {
            self.give_up();
        } else if self.suspended_until.is_none() {
            let until = now.plus(self.config.hold);
            self.suspended_until = Some(until);
            self.events.push_back(Event::Suspended { until });
        }
    }

    /// Nothing more will be heard of the peer.
    pub(super) fn give_up(&mut self) {
        match self.phase {
            Phase::Open if self.all_done() => self.end(End::Closed),
            Phase::Open => self.end(End::HoldExpired),
            Phase::Resetting(code) => self.end(End::Reset(code)),
            Phase::Over => {}
        }
    }

    /// The stream is over for this end. What was received can still be read.
    pub(super) fn end(&mut self, end: End) {
        if self.phase == Phase::Over {
            return;
        }
        self.phase = Phase::Over;
        self.suspended_until = None;
        self.linger_until = None;
        self.due.fin = false;
        self.due.reset = None;
        self.send.clear();
        self.events.push_back(Event::Ended(end));
    }

    /// Forgets a leg that broke, and with it the stream if the peer itself is to blame.
    pub(super) fn fail_leg(&mut self, leg: LegName, fault: LegFault, now: MonoTime) -> Result<(), LegFault> {
        match fault {
            LegFault::Frame(_) | LegFault::Protocol(_) => {
                // The RESET goes out on this or any other leg that is attached, if the caller still
                // transmits; the fault closes this one.
                self.end(End::Protocol);
                self.due.reset = Some(ResetCode::Protocol);
                self.legs.retain(|l| l.name() != leg);
            }
            LegFault::UnknownLeg(_)
            | LegFault::Record(_)
            | LegFault::WrongAttach
            | LegFault::HeldTooMuch { .. }
            | LegFault::TooManyLegs { .. }
            | LegFault::TooManyPieces { .. } => self.leg_lost(leg, now),
        }
        Err(fault)
    }

    /// Drops legs that both ends have left.
    pub(super) fn reap_detached(&mut self) {
        let events = &mut self.events;
        let ended = self.phase == Phase::Over;
        self.legs.retain(|leg| {
            let over = leg.detach_sent && leg.detach_received;
            if over && !ended {
                events.push_back(Event::LegDone { leg: leg.name() });
            }
            !over
        });
    }

    /// Whether an attached leg is on its way out: a newer one is attached.
    pub(super) fn is_retiring(&self, epoch: LegEpoch) -> bool {
        self.legs
            .iter()
            .any(|l| l.epoch > epoch && matches!(l.state, LegState::Attached { .. }))
    }
}

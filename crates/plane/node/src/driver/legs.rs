//! The legs of one stream: more than one while it moves, none while it is suspended.

use super::leg::{LegEnd, LegIo};
use super::mover::{MoveKind, Step};
use super::{ATTACH_WAIT_MAX, CLOSE_MAX, Driver, Further};
use crate::paths::Told;
use crate::resumable::FurtherLeg;
use fairlead_host::rng;
use fairlead_model::{MonoTime, RefusalCode, RelayId};
use fairlead_stream::{AttachKind, LegName, LegPath};
use std::task::Context;

impl Driver {
    /// Feeds the machine from every leg. True if bytes came or a leg was lost.
    pub(super) fn legs_in(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let mut heard = false;
        let progress = self.each_leg(now, |leg, stream| {
            let arrived = leg.poll_in(cx, stream, now)?;
            heard |= arrived.sealed;
            Ok(arrived.any)
        });
        if heard {
            self.guard.note_life();
        }
        progress
    }

    /// Sends what is due on every leg.
    pub(super) fn legs_out(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let progress = self.each_leg(now, |leg, stream| leg.poll_out(cx, stream, now));
        progress | (!self.leaving.is_empty() && self.close_leaving(cx, now, false))
    }

    fn each_leg(
        &mut self,
        now: MonoTime,
        mut step: impl FnMut(&mut LegIo, &mut fairlead_stream::Stream) -> Result<bool, LegEnd>,
    ) -> bool {
        let mut progress = false;
        let mut index = 0;
        while let Some(leg) = self.legs.get_mut(index) {
            match step(leg, &mut self.stream) {
                Ok(moved) => {
                    progress |= moved;
                    index += 1;
                }
                Err(end) => {
                    let name = leg.name();
                    self.drop_leg(name, end, now);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Closes the legs that the machine has left, in order or, if `late`, at once. True if one is gone.
    pub(super) fn close_leaving(&mut self, cx: &mut Context<'_>, now: MonoTime, late: bool) -> bool {
        let before = self.leaving.len();
        let stream = &mut self.stream;
        self.leaving.retain_mut(|leg| {
            let late = late || leg.by.is_some_and(|by| by <= now);
            leg.poll_close(cx, stream, now).is_pending() && !late
        });
        self.leaving.len() < before
    }

    /// A leg is over: its transport failed, or the machine has forgotten it.
    pub(super) fn drop_leg(&mut self, name: LegName, end: LegEnd, now: MonoTime) {
        let Some(index) = self.legs.iter().position(|l| l.name() == name) else {
            return;
        };
        let epoch = name.epoch;
        let leg = self.legs.swap_remove(index);
        let refusal = match &end {
            LegEnd::Refused(refusal) => Some(*refusal),
            LegEnd::Lost(_) | LegEnd::Fault(_) => None,
        };
        let code = refusal.map(|refusal| refusal.code);
        let is_revoked = end.code() == Some(RefusalCode::Revoked);
        self.stream.leg_lost(name, now);
        tracing::debug!(%epoch, relay = %name.relay, ?end, "leg lost");
        self.leg_end = Some(end);
        if is_revoked {
            match &self.further {
                Further::Mover(mover) => mover.said_revoked(leg.via()),
                Further::Mailbox(..) => self.guard.note_revoked(name.relay),
            }
        }
        if let Further::Mover(mover) = &mut self.further {
            mover.lost(epoch, leg.via(), refusal, now);
            // A relay's word alone ends no stream that lives; one that no leg has reached the publisher
            // for can be opened anew, under another association, while the application cannot tell.
            let unheard = !self.stream.ever_attached() && self.legs.is_empty();
            if code == Some(RefusalCode::UnknownAssociation) && unheard && self.is_untouched() {
                self.connect_by = Some(now);
            }
        }
    }

    /// The machine has left a leg in order.
    pub(super) fn leave_leg(&mut self, name: LegName, now: MonoTime) {
        if let Some(index) = self.legs.iter().position(|l| l.name() == name) {
            let mut leg = self.legs.swap_remove(index);
            leg.by = Some(now.plus(CLOSE_MAX));
            leg.place = None;
            if let Further::Mover(mover) = &mut self.further {
                mover.left(name.epoch, leg.via(), now);
            }
            self.leaving.push(leg);
        }
    }

    /// The publisher has accepted a leg.
    pub(super) fn attached(&mut self, name: LegName, now: MonoTime) {
        self.connect_by = None;
        if let Further::Mailbox(..) = self.further {
            self.guard.note_carried(name.relay);
        }
        let epoch = name.epoch;
        let others = self.legs.iter().filter(|l| l.name() != name);
        let heard = others.filter_map(|l| Some(l.place.as_ref()?.last_heard())).max();
        let leg = self.legs.iter_mut().find(|l| l.name() == name);
        let (Further::Mover(mover), Some(leg)) = (&mut self.further, leg) else {
            return;
        };
        let (place, moved) = mover.attached(epoch, leg.via(), heard, now);
        leg.place = Some(place);
        if let Some((kind, took)) = moved {
            self.metrics.moved(kind, took);
            let (relay, took_ms) = (leg.via().relay, took.as_millis());
            tracing::debug!(%epoch, %relay, kind = kind.as_str(), took_ms, "stream moved");
        }
        self.drop_unanswered(name, now);
    }

    /// Gives up legs from before the attached one that the publisher has not answered: it takes none of
    /// them any more (I5).
    fn drop_unanswered(&mut self, attached: LegName, now: MonoTime) {
        let names = self.legs.iter().map(LegIo::name);
        let earlier = names.filter(|leg| leg.epoch < attached.epoch);
        let unanswered: Vec<LegName> = earlier.filter(|leg| !self.stream.is_attached(*leg)).collect();
        for leg in unanswered {
            self.drop_leg(leg, LegEnd::Lost(None), now);
        }
    }

    /// Wishes for another leg, at the consumer.
    pub(super) fn want(&mut self, kind: MoveKind, now: MonoTime) {
        if let Further::Mover(mover) = &mut self.further {
            mover.want(kind, now);
        }
    }

    /// Takes further legs into use. True if there was one.
    pub(super) fn further_legs(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        match &mut self.further {
            Further::Mover(_) => self.move_on(cx, now),
            Further::Mailbox(mailbox, _) => {
                let Some(further) = mailbox.poll_leg(cx) else {
                    return self.ask_to_move(now);
                };
                self.take_leg(further, now);
                true
            }
        }
    }

    /// The consumer's part: says what the stream needs, and opens the leg that the mover found.
    fn move_on(&mut self, cx: &mut Context<'_>, now: MonoTime) -> bool {
        let Further::Mover(mover) = &mut self.further else {
            return false;
        };
        let mut progress = false;
        for leg in &mut self.legs {
            let Some(place) = &leg.place else { continue };
            for told in place.poll_told(cx) {
                let name = leg.name();
                let current = self.stream.is_current(name);
                match told {
                    Told::Ask if std::mem::take(&mut leg.heard) => {}
                    Told::Ping | Told::Ask => {
                        self.stream.request_ping(name);
                        progress = true;
                    }
                    Told::Suspect if current => mover.want(MoveKind::Suspicion, now),
                    Told::Silent if current => mover.want(MoveKind::Failure, now),
                    Told::Leave if current => mover.want(MoveKind::Planned, now),
                    Told::Suspect | Told::Silent | Told::Leave => {}
                }
            }
        }
        if !self.stream.has_leg() {
            mover.want(MoveKind::Failure, now);
        } else if mover.suspects(&self.stream, now) {
            mover.want(MoveKind::Suspicion, now);
        }
        // Without a leg that carries, none stands in the way of another through its relay.
        let carries = self.stream.has_leg();
        let legs = self.legs.iter().filter(|_| carries);
        let used: Vec<RelayId> = legs.map(|l| l.via().relay).collect();
        let (leg, via, kind, permit) = match mover.poll(cx, now, &self.stream, &used) {
            Step::Pending => return progress,
            Step::Leg(leg, via, kind, permit) => (leg, via, kind, permit),
        };
        let epoch = self.stream.next_epoch();
        let Some(open) = mover.open(&mut self.stream, epoch) else {
            return true;
        };
        let path = LegPath {
            epoch,
            relay: via.relay,
            salt: rng::bytes(),
        };
        match self.stream.open_leg(path, kind.attach()) {
            Ok(()) => {
                mover.attaching(epoch, via, &self.stream, permit, now);
                self.legs.push(LegIo::opening(leg, epoch, via, &open));
            }
            Err(error) => {
                tracing::debug!(%epoch, %error, "no further leg");
                mover.avoid(via, now);
            }
        }
        true
    }

    /// The publisher's part: a leg that a relay says belongs to this stream. Each relay may have one
    /// that is not attached, so that none can crowd out the others.
    fn take_leg(&mut self, further: FurtherLeg, now: MonoTime) {
        let FurtherLeg {
            leg,
            relay,
            epoch,
            pending,
        } = further;
        let path = LegPath {
            epoch,
            relay,
            salt: rng::bytes(),
        };
        if let Err(error) = self.stream.open_leg(path, AttachKind::Resend) {
            tracing::debug!(%epoch, %relay, %error, "a further leg was not taken");
            return;
        }
        let unattached = |l: &&LegIo| l.by.is_some() && l.via().relay == relay;
        if let Some(old) = self.legs.iter().find(unattached).map(LegIo::name) {
            self.drop_leg(old, LegEnd::Lost(None), now);
        }
        let via = super::Via { relay, session: 0 };
        let mut leg = LegIo::new(leg, epoch, via);
        leg.by = Some(now.plus(ATTACH_WAIT_MAX));
        leg.pending = Some(pending);
        self.legs.push(leg);
    }

    /// The publisher's part: it sees silence in its direction, and only the consumer can open legs.
    fn ask_to_move(&mut self, now: MonoTime) -> bool {
        let late = |since: MonoTime| since.plus(crate::paths::suspect_after(self.stream.rtt())) <= now;
        let due = self.stream.unacked_since().is_some_and(late)
            && self
                .asked
                .is_none_or(|asked| now.since(asked) >= super::ASK_EVERY);
        if due {
            self.asked = Some(now);
            self.stream.request_move();
        }
        due
    }

    /// Asks on the leg that carries whether it does, while nothing else would show it. True if it
    /// was time to.
    pub(super) fn ping_if_waiting(&mut self, now: MonoTime) -> bool {
        let due = self.ping_at().is_some_and(|at| at <= now);
        if due {
            self.pinged = now;
            let legs = self.legs.iter().map(LegIo::name);
            if let Some(leg) = { legs }.find(|leg| self.stream.is_current(*leg)) {
                self.stream.request_ping(leg);
            }
        }
        due
    }

    fn ping_at(&self) -> Option<MonoTime> {
        let waits = self.outcome.is_none() && self.stream.waits_for_peer() && self.stream.has_leg();
        waits.then(|| self.pinged.plus(super::PING_EVERY))
    }

    /// When the leg that carries, on which nothing was acknowledged for a whole hold, is as good as lost: its
    /// relay keeps it open and carries nothing, and no other was found. One that is on its way has its own
    /// time, and what was not acknowledged before it is not its fault.
    fn stalled_at(&self) -> Option<MonoTime> {
        let mut names = self.legs.iter().map(LegIo::name);
        names.find(|leg| self.stream.is_current(*leg) && self.stream.is_attached(*leg))?;
        Some(self.stream.unacked_since()?.plus(self.stream.hold()))
    }

    /// Gives up legs that are not attached in time, or carry nothing. True if there was one.
    pub(super) fn give_up_legs(&mut self, now: MonoTime) -> bool {
        if self.outcome.is_none() && self.stalled_at().is_some_and(|at| at <= now) {
            let names = self.legs.iter().map(LegIo::name);
            let stalled: Vec<LegName> = names.filter(|leg| self.stream.is_attached(*leg)).collect();
            for leg in stalled {
                self.drop_leg(leg, LegEnd::Lost(None), now);
            }
            return true;
        }
        if self.outcome.is_some() {
            return false;
        }
        let overdue = match &mut self.further {
            Further::Mover(mover) => {
                let Some(epoch) = mover.overdue(now) else {
                    return false;
                };
                let leg = self.legs.iter().find(|l| l.epoch() == epoch);
                if leg.is_none() {
                    mover.forget(epoch);
                }
                leg.map(LegIo::name)
            }
            Further::Mailbox(..) => {
                let late = |l: &&LegIo| l.by.is_some_and(|by| by <= now);
                let Some(leg) = self.legs.iter().find(late) else {
                    return false;
                };
                Some(leg.name())
            }
        };
        if let Some(leg) = overdue {
            self.drop_leg(leg, LegEnd::Lost(None), now);
        }
        true
    }

    /// When legs have to be looked at although nothing wakes the task.
    pub(super) fn legs_deadline(&self) -> Option<MonoTime> {
        if self.outcome.is_some() {
            return None;
        }
        let leaving = self.leaving.iter().filter_map(|l| l.by).min();
        let own = match &self.further {
            Further::Mover(mover) => mover.deadline(&self.stream),
            Further::Mailbox(..) => {
                let unattached = self.legs.iter().filter_map(|l| l.by).min();
                let since = self.stream.unacked_since();
                let ask = since.map(|since| {
                    let late = since.plus(crate::paths::suspect_after(self.stream.rtt()));
                    self.asked
                        .map_or(late, |asked| late.max(asked.plus(super::ASK_EVERY)))
                });
                [unattached, ask].into_iter().flatten().min()
            }
        };
        [leaving, own, self.ping_at(), self.stalled_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Keeps the count of suspended streams.
    pub(super) fn note_suspension(&mut self) {
        let suspended = self.outcome.is_none() && self.stream.is_suspended();
        if suspended != self.suspended {
            self.suspended = suspended;
            self.guard.note_suspension(suspended);
            let gauge = self
                .metrics
                .streams_suspended
                .get_or_create(&self.role().into())
                .clone();
            if suspended {
                gauge.inc();
            } else {
                gauge.dec();
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.suspended {
            self.metrics
                .streams_suspended
                .get_or_create(&self.role().into())
                .dec();
        }
    }
}

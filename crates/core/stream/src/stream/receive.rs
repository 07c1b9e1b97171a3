//! Sealed bytes in.

use super::{LEGS_MAX, Phase, Role, Stream, Target};
use crate::event::{End, Event, LegFault, ResetCode};
use crate::frame::Frame;
use crate::leg::{Claim, Leg, LegName, LegState};
use crate::recv::{AHEAD_PIECES_MAX, Inserted, RecvFault};
use bytes::Bytes;
use fairlead_codec::Reader;
use fairlead_model::{MonoTime, RefusalCode};

impl Stream {
    /// Bytes of a leg, in order, in any pieces. Call it whenever the leg has some (I4). Says whether a
    /// record of the peer was opened: only that shows that the path to it lives. A relay can make bytes
    /// that open as nothing come for ever.
    ///
    /// # Errors
    /// The leg is over and forgotten: close its transport. Events say whether the stream is too.
    pub fn receive(&mut self, leg: LegName, now: MonoTime, bytes: &[u8]) -> Result<bool, LegFault> {
        self.on_bytes(leg, bytes, now)
            .or_else(|fault| self.fail_leg(leg, fault, now).map(|()| false))
    }

    /// True if a record was opened.
    pub(super) fn on_bytes(
        &mut self,
        name: LegName,
        mut bytes: &[u8],
        now: MonoTime,
    ) -> Result<bool, LegFault> {
        let from = self.direction().reverse();
        let mut opened = false;
        loop {
            if self.phase == Phase::Over {
                return Ok(opened);
            }
            let Some(leg) = self.legs.iter_mut().find(|l| l.name() == name) else {
                return Err(LegFault::UnknownLeg(name.epoch));
            };
            if leg.awaits_verdict() {
                return leg.hold(bytes).map(|()| opened);
            }
            let Some(plaintext) = leg.next_record(&mut bytes, &self.secret, from)? else {
                return Ok(opened);
            };
            opened = true;
            leg.pinged = None;
            self.on_plaintext(name, plaintext, now)?;
            if self.leg(name).is_none() {
                // The leg is done; what follows on it is nothing.
                return Ok(opened);
            }
        }
    }

    pub(super) fn on_plaintext(
        &mut self,
        name: LegName,
        plaintext: Bytes,
        now: MonoTime,
    ) -> Result<(), LegFault> {
        // Of two legs whose attaches waited, the first may have brought the end.
        if self.phase == Phase::Over {
            return Ok(());
        }
        let mut reader = Reader::new(&plaintext);
        while let Some(frame) = Frame::take(&mut reader).map_err(LegFault::Frame)? {
            self.on_frame(name, frame, &plaintext, now)?;
            if self.phase == Phase::Over {
                return Ok(());
            }
            if let Some(leg) = self.leg_mut(name).filter(|l| l.awaits_verdict()) {
                leg.hold_rest(plaintext.slice(plaintext.len() - reader.remaining()..));
                return Ok(());
            }
        }
        self.close_if_done(now);
        self.reap_detached();
        Ok(())
    }

    fn on_frame(
        &mut self,
        name: LegName,
        frame: Frame<'_>,
        plaintext: &Bytes,
        now: MonoTime,
    ) -> Result<(), LegFault> {
        let Some(leg) = self.leg_mut(name) else {
            return Ok(());
        };
        match leg.state {
            LegState::AwaitAttach => return self.on_first_of_acceptor(name, frame),
            LegState::Attaching { sent, .. } => return self.on_first_of_dialler(name, frame, sent, now),
            LegState::Refusing(_) => return Ok(()),
            LegState::AwaitVerdict(_) | LegState::Attached { .. } => {}
        }
        match frame {
            Frame::Data { offset, bytes } => self.on_data(offset, plaintext.slice_ref(bytes), now),
            Frame::Ack { next, limit } => self.on_ack(next, limit, now),
            Frame::Fin { final_offset } => self.on_fin(final_offset),
            Frame::Reset { code, final_offset } => self.on_reset(code, final_offset),
            Frame::DialResult { code } => self.on_dial_result(code),
            Frame::Closed => self.on_closed(),
            Frame::MovePlease => {
                if self.is_acceptor() {
                    return Err(LegFault::Protocol("MOVE_PLEASE from the dialler"));
                }
                if !self.events.contains(&Event::MovePlease) {
                    self.events.push_back(Event::MovePlease);
                }
                Ok(())
            }
            Frame::Detach => {
                leg.detach_received = true;
                Ok(())
            }
            Frame::Ping { id } => {
                leg.pong = Some(id);
                Ok(())
            }
            Frame::Pong { id } => {
                self.rtt.pong(id, now);
                Ok(())
            }
            Frame::Attach { .. } | Frame::AttachOk { .. } | Frame::AttachRefused { .. } => {
                Err(LegFault::Protocol("a second attach on one leg"))
            }
        }
    }

    /// The first frame from a dialler: it proves the secret for this relay and epoch (I7).
    fn on_first_of_acceptor(&mut self, name: LegName, frame: Frame<'_>) -> Result<(), LegFault> {
        let Frame::Attach {
            epoch: claimed,
            relay,
            next,
            limit,
            resend,
            resume,
            grant,
        } = frame
        else {
            return Err(LegFault::Protocol("a leg that does not start with ATTACH"));
        };
        // Two legs may race before the first verdict: the target is dialled once.
        let first = !self.attached_once && !self.legs.iter().any(Leg::awaits_verdict);
        let verified = self.legs.iter().filter(|l| !l.is_unverified()).count();
        let Role::Acceptor { attached } = &mut self.role else {
            return Err(LegFault::Protocol("ATTACH from the acceptor"));
        };
        let Some(leg) = self.legs.iter_mut().find(|l| l.name() == name) else {
            return Ok(());
        };
        if !self
            .rules
            .takes((claimed, relay), (name.epoch, name.relay), *attached)
        {
            return Err(LegFault::WrongAttach);
        }
        if verified >= LEGS_MAX {
            return Err(LegFault::TooManyLegs { max: LEGS_MAX });
        }
        *attached = claimed;
        leg.state = LegState::AwaitVerdict(Claim { next, limit, resend });
        self.events.push_back(Event::Attach {
            leg: name,
            grant: Bytes::copy_from_slice(grant),
            first,
            resume,
        });
        Ok(())
    }

    /// The first frame from an acceptor answers the ATTACH.
    fn on_first_of_dialler(
        &mut self,
        name: LegName,
        frame: Frame<'_>,
        sent: Option<MonoTime>,
        now: MonoTime,
    ) -> Result<(), LegFault> {
        match frame {
            Frame::AttachOk {
                epoch: answered,
                next,
                limit,
                connected,
            } => {
                if answered != name.epoch {
                    return Err(LegFault::WrongAttach);
                }
                if let Some(sent) = sent {
                    self.rtt.sample(now.since(sent));
                }
                if let Some(leg) = self.leg_mut(name) {
                    leg.state = LegState::Attached { ok_due: false };
                }
                self.attached(name.epoch, now);
                self.events.push_back(Event::Attached { leg: name });
                self.on_ack(next, limit, now)?;
                if connected { self.on_dial_result(0) } else { Ok(()) }
            }
            Frame::AttachRefused {
                epoch: answered,
                code,
            } => {
                if answered != name.epoch {
                    return Err(LegFault::WrongAttach);
                }
                let code = RefusalCode::from_number(code).unwrap_or(RefusalCode::Internal);
                if self.legs.iter().any(|l| l.name() != name && l.is_usable()) {
                    self.events.push_back(Event::LegDone { leg: name });
                    self.leg_lost(name, now);
                } else if self.all_done() || matches!(self.phase, Phase::Resetting(_)) {
                    // A peer that knows the stream no longer has seen its end.
                    self.give_up();
                } else {
                    self.end(End::Refused(code));
                }
                Ok(())
            }
            Frame::Data { .. }
            | Frame::Ack { .. }
            | Frame::Fin { .. }
            | Frame::Reset { .. }
            | Frame::Attach { .. }
            | Frame::DialResult { .. }
            | Frame::MovePlease
            | Frame::Detach
            | Frame::Ping { .. }
            | Frame::Pong { .. }
            | Frame::Closed => Err(LegFault::Protocol(
                "a leg that does not start with an answer to ATTACH",
            )),
        }
    }

    fn on_data(&mut self, offset: u64, bytes: Bytes, now: MonoTime) -> Result<(), LegFault> {
        match self
            .recv
            .insert(offset, bytes, self.window.limit())
            .map_err(recv_fault)?
        {
            Inserted::Readable(n) => self.window.received(n, now),
            Inserted::Ahead => self.window.received(0, now),
            Inserted::Duplicate => self.window.ack_now(),
        }
        // After a reset of this end nobody reads any more.
        if self.phase != Phase::Open {
            self.recv.clear();
        }
        if self.recv.is_complete() {
            self.window.ack_now();
        }
        Ok(())
    }

    fn on_ack(&mut self, next: u64, limit: u64, now: MonoTime) -> Result<(), LegFault> {
        if !self.acknowledge(next, limit, now) {
            return Err(LegFault::Protocol("an ACK of what was not sent"));
        }
        if self.send.fin_acked() {
            self.due.fin = false;
        }
        Ok(())
    }

    fn on_fin(&mut self, final_offset: u64) -> Result<(), LegFault> {
        self.recv
            .set_final(final_offset, self.window.limit())
            .map_err(recv_fault)?;
        self.window.ack_now();
        Ok(())
    }

    fn on_reset(&mut self, code: u16, final_offset: u64) -> Result<(), LegFault> {
        if final_offset > self.window.limit() {
            return Err(LegFault::Protocol("a RESET beyond the limit"));
        }
        self.was_reset = true;
        // Both ends may reset at once: each then tells its own reason.
        if let Phase::Resetting(own) = self.phase {
            self.end(End::Reset(own));
        } else {
            let code = ResetCode::from_number(code);
            self.events.push_back(Event::PeerReset(code));
            self.end(End::Reset(code));
        }
        self.due.closed = true;
        Ok(())
    }

    fn on_dial_result(&mut self, code: u16) -> Result<(), LegFault> {
        if self.is_acceptor() {
            return Err(LegFault::Protocol("DIAL_RESULT from the dialler"));
        }
        match (code, self.target) {
            (0, Target::Unknown) => {
                self.target = Target::Connected;
                self.events.push_back(Event::Connected);
            }
            // Repeated after a change of leg.
            (0, Target::Connected) => {}
            (_, Target::Unknown) => {
                let code = RefusalCode::from_number(code).unwrap_or(RefusalCode::Internal);
                self.target = Target::Failed(code);
                self.end(End::Refused(code));
            }
            (_, Target::Connected | Target::Failed(_)) => {
                return Err(LegFault::Protocol("a second, different DIAL_RESULT"));
            }
        }
        Ok(())
    }

    fn on_closed(&mut self) -> Result<(), LegFault> {
        match self.phase {
            Phase::Resetting(code) => self.end(End::Reset(code)),
            Phase::Open => {
                // The peer's CLOSED also acknowledges this end's FIN.
                if !self.fin_sent || !self.recv.is_complete() {
                    return Err(LegFault::Protocol("CLOSED before the end"));
                }
                self.due.closed = !self.closed_sent;
                self.end(End::Closed);
            }
            Phase::Over => {}
        }
        Ok(())
    }

    const fn is_acceptor(&self) -> bool {
        matches!(self.role, Role::Acceptor { .. })
    }
}

fn recv_fault(fault: RecvFault) -> LegFault {
    match fault {
        RecvFault::AboveLimit => LegFault::Protocol("bytes above the limit"),
        RecvFault::BeyondFinal => LegFault::Protocol("bytes or another end beyond the end"),
        RecvFault::TooManyPieces => LegFault::TooManyPieces {
            max: AHEAD_PIECES_MAX,
        },
    }
}

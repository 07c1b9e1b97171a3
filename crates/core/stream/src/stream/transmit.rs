//! Sealed bytes out.

use super::{Phase, Role, Stream, Target};
use crate::event::Event;
use crate::frame::{CONTROL_BYTES_MAX, DATA_HEADER_BYTES, Frame, SALT_BYTES};
use crate::leg::{Leg, LegName, LegState};
use crate::record::{HEADER_BYTES, OVERHEAD_BYTES, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX};
use bytes::BytesMut;
use fairlead_codec::Writer;
use fairlead_model::MonoTime;

/// A good `max` for [`Stream::poll_transmit`]: four full records, enough for one large write, little
/// enough that an ACK waits behind it for a fraction of a millisecond.
pub const TRANSMIT_BATCH: usize = 4 * RECORD_BYTES_MAX;

/// The id of a PING that asks only for a sign of life: the round-trip clock counts its own from 0.
const PATH_PING: u64 = u64::MAX;

/// Bytes of control frames that one record may carry beside its data: every kind but ATTACH at
/// once fits.
const CONTROL_ROOM: usize = 256;

impl Stream {
    /// Appends the sealed bytes that are due on a leg to `out` and returns how many; 0: nothing is
    /// due now. `max` is soft: the last record may go over it, by less than 16.1 KiB. The bytes must
    /// go onto the leg, in order; call again when they are written.
    pub fn poll_transmit(&mut self, leg: LegName, now: MonoTime, out: &mut BytesMut, max: usize) -> usize {
        let begin = out.len();
        let ready = self.send.sendable(max).map_or(0, |s| (s.to - s.from) as usize);
        while out.len() - begin < max && self.one_record(leg, now, out, begin, ready) {}
        let refused = |l: &Leg| l.name() == leg && matches!(l.state, LegState::Refusing(_));
        if out.len() > begin && self.legs.iter().any(refused) {
            self.legs.retain(|l| l.name() != leg);
            if self.phase != Phase::Over {
                self.events.push_back(Event::LegDone { leg });
                self.without_leg(now);
            }
        }
        self.close_if_done(now);
        self.reap_detached();
        out.len() - begin
    }

    /// Appends one record; `false` if there is nothing to put into it.
    fn one_record(
        &mut self,
        leg: LegName,
        now: MonoTime,
        out: &mut BytesMut,
        begin: usize,
        ready: usize,
    ) -> bool {
        let is_current = self.current() == Some(leg);
        let retiring = self.is_retiring(leg.epoch);
        let Some(index) = self.legs.iter().position(|l| l.name() == leg) else {
            return false;
        };
        let start = out.len();
        let salt_bytes = self.legs.get(index).and_then(|l| l.salt).map_or(0, |salt| {
            out.extend_from_slice(&salt);
            SALT_BYTES
        });
        let record = start + salt_bytes;
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let plaintext = out.len();
        self.put_leg_frames(index, now, retiring, out);
        if is_current {
            self.put_stream_frames(now, out);
            self.put_data(index, plaintext, out, begin, ready, now);
        }
        let sealed = out.len() > plaintext
            && self.legs.get_mut(index).is_some_and(|leg| {
                leg.salt = None;
                leg.sealer.seal(out, record)
            });
        if !sealed {
            out.truncate(start);
        }
        sealed
    }

    /// Frames that belong to the leg itself.
    fn put_leg_frames(&mut self, index: usize, now: MonoTime, retiring: bool, out: &mut BytesMut) {
        let next = self.recv.ack_position();
        let connected = self.target == Target::Connected;
        let acked = self.send.acked();
        let is_dialler = matches!(self.role, Role::Dialler { .. });
        let resume = self.attached_once;
        let Some(leg) = self.legs.get_mut(index) else {
            return;
        };
        let epoch = leg.epoch;
        match &mut leg.state {
            LegState::Attaching { kind, sent } => {
                if sent.is_none() {
                    *sent = Some(now);
                    let resend = *kind == crate::AttachKind::Resend;
                    let relay = leg.relay;
                    let limit = self.window.acknowledge(self.recv.consumed()).limit;
                    if let Role::Dialler { grant, .. } = &self.role {
                        put(
                            out,
                            &Frame::Attach {
                                epoch,
                                relay,
                                next,
                                limit,
                                resend,
                                resume,
                                grant,
                            },
                        );
                    }
                }
            }
            LegState::AwaitAttach | LegState::AwaitVerdict(_) => {}
            LegState::Refusing(code) => {
                if let Some(code) = code.take() {
                    put(
                        out,
                        &Frame::AttachRefused {
                            epoch,
                            code: code.number(),
                        },
                    );
                }
            }
            LegState::Attached { ok_due } => {
                if std::mem::take(ok_due) {
                    let limit = self.window.acknowledge(self.recv.consumed()).limit;
                    put(
                        out,
                        &Frame::AttachOk {
                            epoch,
                            next,
                            limit,
                            connected,
                        },
                    );
                }
                if let Some(id) = leg.pong.take() {
                    put(out, &Frame::Pong { id });
                }
                if std::mem::take(&mut leg.ping_due) {
                    leg.pinged.get_or_insert(now);
                    put(out, &Frame::Ping { id: PATH_PING });
                }
                let acknowledged = leg.sent.is_none_or(|s| s.to <= acked);
                // The dialler leaves first: it knows that both ends have the newer leg. An acceptor
                // that left before its ATTACH_OK arrived could be left without any.
                let may_leave = is_dialler || leg.detach_received;
                if retiring && acknowledged && may_leave && !leg.detach_sent {
                    leg.detach_sent = true;
                    put(out, &Frame::Detach);
                }
            }
        }
    }

    /// Frames of the stream, on its current leg.
    fn put_stream_frames(&mut self, now: MonoTime, out: &mut BytesMut) {
        if std::mem::take(&mut self.due.dial_result) {
            let code = match self.target {
                Target::Unknown | Target::Connected => 0,
                Target::Failed(code) => code.number(),
            };
            put(out, &Frame::DialResult { code });
        }
        let more = self.phase == Phase::Open && self.send.sendable(1).is_some();
        if self.phase != Phase::Over && (self.window.is_due() || (more && self.window.is_wanted())) {
            let next = self.recv.ack_position();
            let ack = self.window.acknowledge(self.recv.consumed());
            put(
                out,
                &Frame::Ack {
                    next,
                    limit: ack.limit,
                },
            );
            if (ack.bulk || self.rtt.smoothed().is_none())
                && !self.recv.has_final()
                && let Some(id) = self.rtt.ping_due(now)
            {
                put(out, &Frame::Ping { id });
            }
        }
        if std::mem::take(&mut self.due.move_please) {
            put(out, &Frame::MovePlease);
        }
        // A FIN may precede the last bytes in their record: it names its position.
        let room = PLAINTEXT_BYTES_MAX - CONTROL_BYTES_MAX - DATA_HEADER_BYTES - CONTROL_ROOM;
        if self.due.fin && self.send.ends_within(room) {
            self.due.fin = false;
            self.fin_sent = true;
            let unacked = self.send.unacked();
            if unacked.from == unacked.to {
                self.ack_progress = now;
            }
            put(
                out,
                &Frame::Fin {
                    final_offset: self.send.written(),
                },
            );
        }
        // A RESET follows all bytes that the peer may still have.
        if self.send.all_sent()
            && let Some(code) = self.due.reset.take()
        {
            put(
                out,
                &Frame::Reset {
                    code: code.number(),
                    final_offset: self.send.written(),
                },
            );
        }
        if std::mem::take(&mut self.due.closed) {
            self.closed_sent = true;
            put(out, &Frame::Closed);
        }
    }

    fn put_data(
        &mut self,
        index: usize,
        plaintext: usize,
        out: &mut BytesMut,
        begin: usize,
        ready: usize,
        now: MonoTime,
    ) {
        let used = out.len() - plaintext + DATA_HEADER_BYTES;
        let Some(span) = self.send.sendable(PLAINTEXT_BYTES_MAX.saturating_sub(used)) else {
            return;
        };
        if out.len() - begin < RECORD_BYTES_MAX {
            // Room for the whole batch at once.
            let records = ready / crate::send::DATA_BYTES_MAX + 1;
            out.reserve(ready + records * (OVERHEAD_BYTES + DATA_HEADER_BYTES) + CONTROL_ROOM);
        }
        let header = Frame::put_data_header(span.from, &mut Writer::new(out, DATA_HEADER_BYTES));
        debug_assert!(header.is_ok());
        let unacked = self.send.unacked();
        if unacked.from == unacked.to {
            self.ack_progress = now;
        }
        self.send.take(span, out);
        if let Some(leg) = self.legs.get_mut(index) {
            leg.sent = Some(crate::send::Span::cover(leg.sent, span));
        }
    }
}

fn put(out: &mut BytesMut, frame: &Frame<'_>) {
    let written = frame.put(&mut Writer::new(out, CONTROL_BYTES_MAX));
    debug_assert!(written.is_ok(), "a control frame has its bound");
}

//! One machine at one daemon, with its application and its legs.

use super::application::Application;
use super::legs::LegId;
use super::plan::ms;
use super::world::{ACCEPTOR, DIALLER, EndId, Happening, World};
use bytes::{Bytes, BytesMut};
use fairlead_model::{LegEpoch, MonoTime, RefusalCode};
use fairlead_stream::record::RECORD_BYTES_MAX;
use fairlead_stream::{Event, LegName, ResetCode, SALT_BYTES, Stream};
use std::collections::VecDeque;

/// The grant of every stream; the publisher's check of grants is another crate's.
pub(super) const GRANT: &[u8] = b"grant";

/// Turns of one machine at one moment, above which it is spinning.
const TURNS_MAX: u32 = 20_000;

pub(super) struct End {
    pub(super) side: usize,
    pub(super) stream: usize,
    pub(super) machine: Stream,
    pub(super) app: Option<Application>,
    pub(super) legs: Vec<LegId>,
    pub(super) over: Option<fairlead_stream::End>,
    /// Its daemon or its socket is gone: nothing is asked of it any more.
    pub(super) gone: bool,
    pub(super) held_until: Option<MonoTime>,
    pub(super) peer_reset: bool,
    pub(super) own_reset: bool,
    /// The highest epoch that was attached (I5).
    pub(super) attached: LegEpoch,
    /// Epoch and relay of every leg that this end took (I7).
    pub(super) taken: Vec<(LegEpoch, usize)>,
    pub(super) timer_at: Option<MonoTime>,
    /// The highest limit that it gave (I3).
    pub(super) granted: u64,
    pub(super) received_max: u64,
    pub(super) suspect_from: MonoTime,
    /// Attaches that wait for the publisher's verdict, and whether they resume.
    pub(super) verdicts: VecDeque<(LegId, bool)>,
    /// The publisher refuses the next attach.
    pub(super) refuses: bool,
}

impl End {
    pub(super) fn new(side: usize, stream: usize, machine: Stream) -> Self {
        Self {
            side,
            stream,
            machine,
            app: None,
            legs: Vec::new(),
            over: None,
            gone: false,
            held_until: None,
            peer_reset: false,
            own_reset: false,
            attached: LegEpoch(0),
            taken: Vec::new(),
            timer_at: None,
            granted: 0,
            received_max: 0,
            suspect_from: MonoTime(0),
            verdicts: VecDeque::new(),
            refuses: false,
        }
    }

    /// Whether nothing more will happen here.
    pub(super) fn is_done(&self) -> bool {
        self.gone || (self.over.is_some() && self.legs.is_empty() && self.is_drained())
    }

    fn is_drained(&self) -> bool {
        let progress = self.machine.progress();
        let eof = self.over != Some(fairlead_stream::End::Closed) || self.app.as_ref().is_some_and(|a| a.eof);
        self.own_reset || self.app.is_none() || (progress.received == progress.consumed && eof)
    }
}

impl World<'_> {
    /// Does what a daemon's loop does after any input: timers, events, and writing to the legs.
    pub(super) fn settle(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        if end.gone || self.daemons[end.side].stalled_until > self.now {
            return;
        }
        self.touched.insert(end.stream);
        let mut turns = 0;
        loop {
            turns += 1;
            assert!(turns < TURNS_MAX, "a machine spins: {:?}", self.ends[&id].machine);
            let mut progress = self.events(id);
            progress |= self.transmit(id);
            let end = self.ends.get_mut(&id).unwrap();
            if end.machine.poll_timeout().is_some_and(|t| t <= self.now) {
                end.machine.handle_timeout(self.now);
                progress = true;
            }
            if !progress {
                break;
            }
        }
        self.finish_over(id);
        let end = self.ends.get_mut(&id).unwrap();
        if let Some(at) = end.machine.poll_timeout()
            && end.timer_at.is_none_or(|t| at < t)
        {
            end.timer_at = Some(at);
            self.at(at, Happening::Timer(id));
        }
    }

    fn transmit(&mut self, id: EndId) -> bool {
        let mut any = false;
        for leg_id in self.ends[&id].legs.clone() {
            let end = self.ends.get_mut(&id).unwrap();
            let Some(leg) = self.legs.get(&leg_id).filter(|l| l.open[end.side]) else {
                continue;
            };
            if leg.pipes[end.side].near.bytes >= self.plan.segment_bytes {
                continue;
            }
            let (mut out, side, batch) = (BytesMut::new(), end.side, self.plan.batch);
            let n = end
                .machine
                .poll_transmit(leg.name(side), self.now, &mut out, batch);
            assert_eq!(n, out.len(), "what poll_transmit says and does");
            assert!(n < batch + SALT_BYTES + RECORD_BYTES_MAX, "the batch bound");
            if n > 0 {
                any = true;
                self.send(leg_id, side, out.freeze());
            }
        }
        any
    }

    /// An ended stream's last frames are out: its legs are closed.
    fn finish_over(&mut self, id: EndId) {
        let end = &self.ends[&id];
        if end.over.is_none() {
            return;
        }
        let side = end.side;
        let waits = |l: &LegId| {
            let leg = self.legs.get(l).filter(|l| !l.dead);
            leg.is_some_and(|l| l.pipes[side].near.bytes >= self.plan.segment_bytes)
        };
        if end.legs.iter().any(waits) && !self.calm {
            return;
        }
        for leg in end.legs.clone() {
            self.close_leg(leg, side, false);
        }
        let course = &mut self.courses[self.ends[&id].stream];
        if course.serving == Some(id) {
            course.serving = None;
        }
    }

    fn events(&mut self, id: EndId) -> bool {
        let mut any = false;
        while let Some(event) = self.ends.get_mut(&id).unwrap().machine.poll_event() {
            any = true;
            let end = &self.ends[&id];
            let (side, stream) = (end.side, end.stream);
            assert!(end.over.is_none(), "an event after the end: {event:?}");
            self.note(format_args!("stream {stream} at {side}: {event:?}"));
            match event {
                Event::Attach {
                    leg,
                    grant,
                    first,
                    resume,
                } => self.on_attach(id, leg, &grant, (first, resume)),
                Event::Attached { leg } => {
                    self.check_answer(id, leg.epoch);
                    self.ends.get_mut(&id).unwrap().held_until = None;
                }
                Event::Connected => assert!(self.courses[stream].dialled == 1, "connected without a target"),
                Event::LegDone { leg } => {
                    if let Some(leg) = self.leg_of(id, leg) {
                        self.close_leg(leg, side, false);
                    }
                }
                Event::MovePlease => self.open_leg(id, fairlead_stream::AttachKind::Planned),
                Event::Suspended { until } => self.ends.get_mut(&id).unwrap().held_until = Some(until),
                Event::PeerReset(_) => {
                    let other = if side == DIALLER {
                        self.courses[stream].acceptor
                    } else {
                        self.courses[stream].dialler
                    };
                    let reset = other.and_then(|o| self.ends.get(&o)).is_some_and(|o| o.own_reset);
                    assert!(reset, "a reset that the peer did not send");
                    self.ends.get_mut(&id).unwrap().peer_reset = true;
                }
                Event::Ended(how) => self.on_ended(id, how),
            }
        }
        any
    }

    pub(super) fn leg_of(&self, id: EndId, name: LegName) -> Option<LegId> {
        let end = self.ends.get(&id)?;
        let of_name = |l: &LegId| self.legs.get(l).is_some_and(|l| l.name(end.side) == name);
        end.legs.iter().copied().find(of_name)
    }

    fn on_attach(&mut self, id: EndId, name: LegName, grant: &Bytes, (first, resume): (bool, bool)) {
        assert_eq!(&grant[..], GRANT, "the grant as it was sent");
        let Some(leg) = self.leg_of(id, name) else {
            panic!("an attach on no leg")
        };
        self.check_attach(id, leg, name.epoch, first);
        self.legs.get_mut(&leg).unwrap().verified = true;
        let waits = self.rng.u8(0..8) == 0;
        let end = self.ends.get_mut(&id).unwrap();
        end.verdicts.push_back((leg, resume));
        if waits {
            let at = self.after(60);
            self.at(at, Happening::Verdicts(id));
        } else if end.verdicts.len() == 1 {
            self.verdicts(id);
        }
    }

    /// The publisher's policy decides on the attaches that wait, in their order.
    pub(super) fn verdicts(&mut self, id: EndId) {
        while let Some((leg, resume)) = self.ends.get_mut(&id).and_then(|e| e.verdicts.pop_front()) {
            self.verdict(id, leg, resume);
        }
    }

    fn verdict(&mut self, id: EndId, leg: LegId, resume: bool) {
        let Some(name) = self.legs.get(&leg).map(|l| l.name(ACCEPTOR)) else {
            return;
        };
        // A leg or a stream that ended meanwhile needs no verdict.
        let waits = |e: &&mut End| !e.gone && e.over.is_none() && e.legs.contains(&leg);
        let Some(end) = self.ends.get_mut(&id).filter(waits) else {
            return;
        };
        let stream = end.stream;
        self.dirty.insert(id);
        if std::mem::take(&mut end.refuses) {
            self.courses[stream].excused.get_or_insert("attach refused");
            return end.machine.refuse_attach(name, RefusalCode::BadGrant);
        }
        let serves = self.courses[stream].acceptor == Some(id);
        if !serves && !self.admit(id, resume) {
            let end = self.ends.get_mut(&id).unwrap();
            return end.machine.refuse_attach(name, RefusalCode::UnknownStream);
        }
        if !serves {
            let good = self.rng.u8(0..40) > 0;
            let dial_ms_max = [0, 300][self.rng.usize(0..2)];
            let at = self.after(dial_ms_max);
            self.at(at, Happening::Dialled(id, good));
        }
        let end = self.ends.get_mut(&id).unwrap();
        if end.machine.accept_attach(name, self.now).is_err() {
            self.close_leg(leg, ACCEPTOR, true);
        } else if end.machine.is_attached(name) {
            end.held_until = None;
        }
    }

    /// Whether the first attach of this machine is of a new stream (I8); it is served from here on.
    fn admit(&mut self, id: EndId, resume: bool) -> bool {
        let stream = self.ends[&id].stream;
        let association = self.courses[stream].association;
        let numbers = self.daemons[ACCEPTOR].numbers.entry(association).or_default();
        if resume || !numbers.admit(fairlead_model::StreamNumber(stream as u64)) {
            return false;
        }
        let course = &mut self.courses[stream];
        course.dialled += 1;
        assert_eq!(course.dialled, 1, "I8: a second target for one stream");
        course.acceptor = Some(id);
        true
    }

    pub(super) fn dialled(&mut self, id: EndId, good: bool) {
        let Some(end) = self.ends.get_mut(&id).filter(|e| !e.gone && e.over.is_none()) else {
            return;
        };
        let stream = end.stream;
        self.dirty.insert(id);
        if !good {
            self.courses[stream].excused.get_or_insert("target failed");
            return end.machine.target_failed(RefusalCode::TargetRefused);
        }
        end.machine.target_connected();
        let mut app = Application::draw(&mut self.rng, &self.plan, stream, ACCEPTOR);
        if self.calm {
            app.hurry();
        }
        self.ends.get_mut(&id).unwrap().app = Some(app);
        self.at(self.now, Happening::Application(id));
    }

    pub(super) fn application(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(&id).filter(|e| !e.gone) else {
            return;
        };
        if self.daemons[end.side].stalled_until <= self.now
            && let Some(app) = &mut end.app
        {
            if !end.own_reset {
                app.turn(&mut end.machine, &mut self.rng, self.now);
            }
            self.dirty.insert(id);
        }
        let end = &self.ends[&id];
        if let Some(every) = end.app.as_ref().map(|a| a.every_ms).filter(|_| !end.is_done()) {
            let at = self.now.plus(ms(every));
            self.at(at, Happening::Application(id));
        }
    }

    /// An application resets its connection.
    pub(super) fn reset(&mut self, id: EndId, why: &'static str, code: ResetCode) {
        let now = self.now;
        let Some(end) = self.ends.get_mut(&id).filter(|e| e.over.is_none() && !e.gone) else {
            return;
        };
        end.own_reset = true;
        end.machine.reset(code, now);
        let stream = end.stream;
        assert_eq!(end.machine.write_capacity(), 0, "room after a reset");
        self.courses[stream].excused.get_or_insert(why);
        self.note(format_args!("stream {stream}: {why}"));
        self.dirty.insert(id);
    }
}

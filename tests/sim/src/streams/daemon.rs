//! What the daemons do around their machines: open legs and take them, give streams names, start anew.

use super::application::Application;
use super::end::{End, GRANT};
use super::legs::{Leg, LegId, relay_id};
use super::plan::ms;
use super::world::{ACCEPTOR, Course, DIALLER, EndId, Happening, World};
use bytes::Bytes;
use fairlead_model::{LegEpoch, MonoTime, RouteId, StreamNumber};
use fairlead_stream::{AttachKind, LegPath, OpenLegError, ResetCode, Stream, StreamSecret};
use std::collections::BTreeMap;

/// Legs that a dialler keeps open at most; the machine takes one more.
const LEGS_MAX: usize = 3;
/// How long an attach may stay without an answer.
const ATTACH_WAIT_MS: u64 = 2_500;

/// How long the publisher keeps a leg on which nothing was verified.
const UNVERIFIED_WAIT_MS: u64 = 10_000;

impl World<'_> {
    fn secret(association: (u64, u64), stream: usize) -> StreamSecret {
        let mut pair = [0; 32];
        pair[..8].copy_from_slice(&association.0.to_be_bytes());
        pair[8..16].copy_from_slice(&association.1.to_be_bytes());
        StreamSecret::derive(&pair, StreamNumber(stream as u64), RouteId::from_bytes([9; 16]))
    }

    fn path(&mut self, epoch: LegEpoch, relay: usize) -> LegPath {
        let mut salt = [0; 16];
        self.rng.fill(&mut salt);
        LegPath {
            epoch,
            relay: relay_id(relay),
            salt,
        }
    }

    /// A consumer's application connects.
    pub(super) fn connect(&mut self, _: usize) {
        let stream = self.courses.len();
        let association = (self.daemons[DIALLER].boot, self.daemons[ACCEPTOR].boot);
        let config = self.plan.config[DIALLER];
        let machine = Stream::dial(
            config,
            Self::secret(association, stream),
            Bytes::from_static(GRANT),
        );
        let mut end = End::new(DIALLER, stream, machine.expect("the grant is short"));
        let mut app = Application::draw(&mut self.rng, &self.plan, stream, DIALLER);
        if self.calm {
            app.hurry();
        }
        end.app = Some(app);
        let id = self.name();
        self.ends.insert(id, end);
        self.courses.push(Course {
            association,
            dialler: Some(id),
            acceptor: None,
            serving: None,
            excused: None,
            dialled: 0,
            opened: BTreeMap::new(),
        });
        self.note(format_args!("stream {stream} connects"));
        self.open_leg(id, AttachKind::Resend);
        self.at(self.now, Happening::Application(id));
        let at = self.after(50);
        self.at(at, Happening::Drive(id));
    }

    /// The dialler opens a leg through some relay.
    pub(super) fn open_leg(&mut self, id: EndId, kind: AttachKind) {
        let end = &self.ends[&id];
        if end.side != DIALLER || end.over.is_some() || end.gone || end.legs.len() >= LEGS_MAX {
            return;
        }
        let stream = end.stream;
        let relay = self.rng.usize(0..self.plan.relays);
        let mut exit = relay;
        if self.plan.collusion && self.relays[relay].lies(self.now) {
            exit = self.rng.usize(0..self.plan.relays);
        }
        let end = self.ends.get_mut(&id).unwrap();
        let epoch = end.machine.next_epoch();
        let path = self.path(epoch, relay);
        let end = self.ends.get_mut(&id).unwrap();
        if end.machine.open_leg(path, kind).is_err() {
            return;
        }
        let name = self.name();
        let mut leg = Leg::new(stream, epoch, [relay, exit], self.now);
        leg.ends[DIALLER] = Some(id);
        leg.open[DIALLER] = true;
        let at = self.now.plus(self.plan.latency[DIALLER][relay]);
        leg.pipes[DIALLER].near.push(at, Bytes::new());
        self.legs.insert(name, leg);
        self.ends.get_mut(&id).unwrap().legs.push(name);
        self.courses[stream].opened.insert(epoch, relay);
        self.note(format_args!(
            "leg {name}: stream {stream} epoch {epoch} through {relay} to {exit} {kind:?}"
        ));
        if !self.relays[relay].is_up(self.now) {
            self.break_leg(name);
        }
        self.dirty.insert(id);
    }

    /// The dialling daemon looks after its stream.
    pub(super) fn drive(&mut self, id: EndId) {
        let Some(end) = self.ends.get(&id).filter(|e| e.over.is_none() && !e.gone) else {
            return;
        };
        if !self.is_stalled(DIALLER) {
            let late = |leg: &LegId| {
                let leg = &self.legs[leg];
                !end.machine.is_attached(leg.name(DIALLER))
                    && self.now.since(leg.opened_at) > ms(ATTACH_WAIT_MS)
            };
            let late: Vec<LegId> = end.legs.iter().copied().filter(late).collect();
            for leg in late {
                self.leave_leg(id, leg);
            }
            let (now, patience) = (self.now, self.plan.patience);
            let pings = self.rng.u8(0..8) == 0;
            let end = self.ends.get_mut(&id).unwrap();
            if pings {
                // A record that a relay has swallowed shows with the next one.
                for leg in &end.legs {
                    end.machine.request_ping(self.legs[leg].name(DIALLER));
                }
                self.dirty.insert(id);
            }
            let end = self.ends.get_mut(&id).unwrap();
            let suspect = end.machine.unacked_since();
            if !end.machine.has_leg() {
                self.open_leg(id, AttachKind::Resend);
            } else if suspect.is_some_and(|t| now.since(t) > patience) && now >= end.suspect_from {
                end.suspect_from = now.plus(patience * 2);
                self.open_leg(id, AttachKind::Resend);
            }
        }
        let at = self.after(if self.calm { 500 } else { 150 });
        self.at(at, Happening::Drive(id));
    }

    /// The dialler gives a leg up by itself.
    pub(super) fn leave_leg(&mut self, id: EndId, leg: LegId) {
        let side = self.ends[&id].side;
        let name = self.legs[&leg].name(side);
        self.close_leg(leg, side, true);
        self.ends.get_mut(&id).unwrap().machine.leg_lost(name, self.now);
        self.dirty.insert(id);
    }

    /// INCOMING at the publisher.
    pub(super) fn incoming(&mut self, id: LegId) {
        let leg = &self.legs[&id];
        let (stream, epoch, relay) = (leg.stream, leg.epoch, leg.relay[ACCEPTOR]);
        let course = &self.courses[stream];
        let known = (self.daemons[DIALLER].boot, self.daemons[ACCEPTOR].boot) == course.association;
        let end = match course.serving {
            Some(end) => end,
            None if !known => {
                let leg = self.legs.get_mut(&id).unwrap();
                leg.dead = true;
                let at = self.after(50);
                return self.notice(id, DIALLER, at, super::legs::Notice::UnknownAssociation);
            }
            None => {
                let config = self.plan.config[ACCEPTOR];
                let machine = Stream::accept(config, Self::secret(course.association, stream));
                let name = self.name();
                self.ends.insert(name, End::new(ACCEPTOR, stream, machine));
                self.courses[stream].serving = Some(name);
                name
            }
        };
        self.settle(end);
        let path = self.path(epoch, relay);
        let leg = self.legs.get_mut(&id).unwrap();
        leg.ends[ACCEPTOR] = Some(end);
        let e = self.ends.get_mut(&end).unwrap();
        let opened = e.machine.open_leg(path, AttachKind::Resend);
        if let Err(OpenLegError::StaleEpoch(_) | OpenLegError::TooMany(_)) = opened {
            let honest = leg.ends[DIALLER].is_some() && leg.relay[DIALLER] == relay;
            // Of the relay's own leg of the epoch it may have told before.
            let first = epoch > e.attached && !e.taken.contains(&(epoch, relay));
            assert!(
                !honest || !first,
                "R-STR-05: another relay's word keeps epoch {epoch} out: {opened:?}"
            );
        }
        if opened.is_ok() {
            leg.open[ACCEPTOR] = true;
            // One unverified leg per relay, so that a lying one fills no machine.
            let unverified = |l: &&LegId| {
                let leg = &self.legs[*l];
                leg.relay[ACCEPTOR] == relay && !leg.verified
            };
            let old = e.legs.iter().find(unverified).copied();
            e.legs.push(id);
            e.taken.push((epoch, relay));
            self.dirty.insert(end);
            let at = self.now.plus(ms(UNVERIFIED_WAIT_MS));
            self.at(at, Happening::Unverified(id));
            if let Some(old) = old {
                self.leave_leg(end, old);
            }
        } else {
            self.close_leg(id, ACCEPTOR, true);
        }
    }

    /// Nothing was verified on a leg for too long.
    pub(super) fn unverified(&mut self, id: LegId) {
        let Some(leg) = self.legs.get(&id).filter(|l| l.open[ACCEPTOR]) else {
            return;
        };
        let Some(end) = leg.ends[ACCEPTOR] else { return };
        self.settle(end);
        if self
            .legs
            .get(&id)
            .is_some_and(|l| l.open[ACCEPTOR] && !l.verified)
        {
            self.leave_leg(end, id);
        }
    }

    /// A daemon dies and starts anew: its streams and legs are gone at once.
    pub(super) fn crash(&mut self, side: usize) {
        self.note(format_args!("daemon {side} starts anew"));
        self.daemons[side].boot += 1;
        self.daemons[side].numbers.clear();
        self.daemons[side].stalled_until = MonoTime(0);
        let ids: Vec<EndId> = self
            .ends
            .iter()
            .filter(|(_, e)| e.side == side)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.drop_end(id, "daemon crashed");
        }
        let at = self.after(3_000);
        self.at(at, Happening::Handshake(1 - side));
    }

    /// The machine and its socket are gone, without a word.
    fn drop_end(&mut self, id: EndId, why: &'static str) {
        let end = self.ends.get_mut(&id).unwrap();
        if end.is_done() {
            return;
        }
        end.gone = true;
        let (side, stream) = (end.side, end.stream);
        for leg in end.legs.clone() {
            self.close_leg(leg, side, true);
        }
        let course = &mut self.courses[stream];
        course.excused.get_or_insert(why);
        if course.serving == Some(id) {
            course.serving = None;
        }
        self.touched.insert(stream);
    }

    /// The other daemon proved to `side` which run of it lives: streams with an older one end.
    pub(super) fn handshake(&mut self, side: usize) {
        let boots = (self.daemons[DIALLER].boot, self.daemons[ACCEPTOR].boot);
        let old = |e: &&EndId| {
            let end = &self.ends[e];
            end.side == side && !end.gone && self.courses[end.stream].association != boots
        };
        let ids: Vec<EndId> = self.ends.keys().filter(old).copied().collect();
        for id in ids {
            self.reset(id, "the peer started anew", ResetCode::ShuttingDown);
            self.settle(id);
            self.drop_end(id, "the peer started anew");
        }
    }
}

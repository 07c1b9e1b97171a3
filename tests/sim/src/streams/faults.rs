//! What is done to a world.

use super::legs::{Leg, LegId};
use super::plan::Fault;
use super::world::{ACCEPTOR, DIALLER, EndId, Happening, World};
use bytes::{Bytes, BytesMut};
use fairlead_model::{LegEpoch, MonoTime};
use fairlead_stream::{AttachKind, ResetCode};

/// A relay's state. Times say until when.
#[derive(Debug, Default)]
pub(super) struct Relay {
    down_until: MonoTime,
    frozen_until: MonoTime,
    hostile_until: MonoTime,
    pub(super) refuses_until: MonoTime,
    /// Per node: towards the relay, from the relay.
    cut_until: [[MonoTime; 2]; 2],
    /// What a hostile one does, one bit a kind.
    tricks: u8,
}

impl Relay {
    pub(super) fn is_up(&self, now: MonoTime) -> bool {
        self.down_until <= now
    }

    pub(super) fn runs(&self, now: MonoTime) -> bool {
        self.down_until <= now && self.frozen_until <= now
    }

    pub(super) fn lies(&self, now: MonoTime) -> bool {
        self.hostile_until > now
    }

    pub(super) fn is_cut(&self, side: usize, towards: bool, now: MonoTime) -> bool {
        self.cut_until[side][usize::from(!towards)] > now
    }

    /// What becomes of a piece that passes through while it lies.
    pub(super) fn mishandle(&self, rng: &mut fastrand::Rng, piece: Bytes) -> Vec<Bytes> {
        if rng.u8(0..4) > 0 {
            return vec![piece];
        }
        let trick = rng.u8(0..6);
        if self.tricks & (1 << trick) == 0 {
            return vec![piece];
        }
        match trick {
            0 => {
                let mut flipped = BytesMut::from(&piece[..]);
                let at = rng.usize(0..flipped.len());
                flipped[at] ^= 1 << rng.u8(0..8);
                vec![flipped.freeze()]
            }
            1 => Vec::new(),
            2 => vec![piece.clone(), piece],
            3 => {
                let cut = rng.usize(0..piece.len());
                let (front, back) = (piece.slice(..cut), piece.slice(cut..));
                [back, front].into_iter().filter(|p| !p.is_empty()).collect()
            }
            4 => {
                let mut junk = vec![0; rng.usize(1..100)];
                rng.fill(&mut junk);
                vec![junk.into(), piece]
            }
            _ => vec![piece.slice(..rng.usize(1..=piece.len()))],
        }
    }
}

impl World<'_> {
    /// Does one of the seed's faults.
    pub(super) fn fault(&mut self) {
        if self.plan.faults.is_empty() {
            return;
        }
        let kind = self.plan.faults[self.rng.usize(0..self.plan.faults.len())];
        self.note(format_args!("{kind:?}"));
        let spell = [20, 1_000, 8_000][self.rng.usize(0..3)];
        let until = self.after(spell).min(self.plan.calm_at);
        let relay = self.rng.usize(0..self.plan.relays);
        let side = self.rng.usize(0..2);
        match kind {
            Fault::LegLost => {
                if let Some(leg) = self.some_leg() {
                    self.break_leg(leg);
                }
            }
            Fault::RelayKilled => {
                self.relays[relay].down_until = until;
                let carried = |l: &Leg| l.relay.contains(&relay) && !l.dead;
                let legs: Vec<LegId> = self
                    .legs
                    .iter()
                    .filter(|(_, l)| carried(l))
                    .map(|(id, _)| *id)
                    .collect();
                for leg in legs {
                    self.break_leg(leg);
                }
            }
            Fault::RelayFrozen => self.relays[relay].frozen_until = until,
            Fault::OneWayCut => {
                let way = self.rng.usize(0..2);
                self.relays[relay].cut_until[side][way] = until;
            }
            Fault::Partition => self.relays[relay].cut_until[side] = [until; 2],
            Fault::DaemonStalled => self.daemons[side].stalled_until = until,
            Fault::DaemonCrashed => {
                if self.rng.u8(0..3) == 0 {
                    self.crash(side);
                }
            }
            Fault::RelayHostile => {
                self.relays[relay].hostile_until = until;
                self.relays[relay].tricks = self.rng.u8(..);
            }
            Fault::RelayRefuses => self.relays[relay].refuses_until = until,
            Fault::Replay => self.replay(),
            Fault::PlannedMove => {
                self.on_some_end(DIALLER, |world, id| world.open_leg(id, AttachKind::Planned))
            }
            Fault::SuspectedMove => {
                self.on_some_end(DIALLER, |world, id| world.open_leg(id, AttachKind::Resend))
            }
            Fault::MovePlease => self.on_some_end(ACCEPTOR, |world, id| {
                world.ends.get_mut(&id).unwrap().machine.request_move();
            }),
            Fault::Ping => {
                if let Some(leg) = self.some_leg()
                    && let Some(id) = self.legs[&leg].ends[side]
                {
                    let name = self.legs[&leg].name(side);
                    self.ends.get_mut(&id).unwrap().machine.request_ping(name);
                    self.dirty.insert(id);
                }
            }
            Fault::ApplicationStalled => self.on_some_end(side, |world, id| {
                if let Some(app) = &mut world.ends.get_mut(&id).unwrap().app {
                    app.stalled_until = until;
                }
            }),
            Fault::ApplicationReset => {
                if self.rng.u8(0..4) == 0 {
                    self.on_some_end(side, |world, id| {
                        if world.ends[&id].app.is_some() {
                            world.reset(id, "application reset", ResetCode::Application);
                        }
                    });
                }
            }
            Fault::AttachRefused => {
                if self.rng.u8(0..4) == 0 {
                    self.on_some_end(ACCEPTOR, |world, id| {
                        world.ends.get_mut(&id).unwrap().refuses = true
                    });
                }
            }
            Fault::WindowChanged => self.on_some_end(side, |world, id| {
                let max = [1, 256 << 10, 1 << 20][world.rng.usize(0..3)];
                let max = max.min(world.plan.config[side].window_max);
                world.ends.get_mut(&id).unwrap().machine.set_window_max(max);
            }),
        }
        self.at(until, Happening::Healed);
    }

    fn some_leg(&mut self) -> Option<LegId> {
        let live: Vec<LegId> = self
            .legs
            .iter()
            .filter(|(_, l)| !l.dead)
            .map(|(id, _)| *id)
            .collect();
        (!live.is_empty()).then(|| live[self.rng.usize(0..live.len())])
    }

    fn on_some_end(&mut self, side: usize, act: impl FnOnce(&mut Self, EndId)) {
        let live = |e: &super::end::End| e.side == side && !e.gone && e.over.is_none();
        let ids: Vec<EndId> = self
            .ends
            .iter()
            .filter(|(_, e)| live(e))
            .map(|(id, _)| *id)
            .collect();
        if !ids.is_empty() && !self.is_stalled(side) {
            let id = ids[self.rng.usize(0..ids.len())];
            act(self, id);
            self.dirty.insert(id);
        }
    }

    /// A relay plays to the publisher what a consumer once sent it: under the same claims, as another
    /// epoch, as another stream, or through an accomplice. Of the very next epoch it only tells, and says
    /// nothing: the leg stays.
    fn replay(&mut self) {
        let recorded: Vec<LegId> = self
            .legs
            .iter()
            .filter(|(_, l)| !l.record.is_empty())
            .map(|(id, _)| *id)
            .collect();
        if recorded.is_empty() {
            return;
        }
        let source = &self.legs[&recorded[self.rng.usize(0..recorded.len())]];
        let (mut stream, mut epoch, mut exit) = (source.stream, source.epoch, source.relay[DIALLER]);
        let (bytes, mut silent) = (Bytes::from(source.record.clone()), false);
        match self.rng.u8(0..4) {
            0 => {
                let ahead = self.rng.u64(1..4);
                epoch = LegEpoch(epoch.0 + ahead);
                silent = ahead == 1;
            }
            1 => stream = self.rng.usize(0..self.courses.len()),
            2 => exit = self.rng.usize(0..self.plan.relays),
            _ => {}
        }
        let name = self.name();
        let mut leg = Leg::new(stream, epoch, [exit, exit], self.now);
        leg.pipes[DIALLER].far.push(self.now, Bytes::new());
        let end = self.rng.usize(1..=bytes.len());
        if !silent {
            leg.pipes[DIALLER].far.push(self.now, bytes.slice(..end));
        }
        self.legs.insert(name, leg);
        self.note(format_args!(
            "leg {name}: a replay as stream {stream} epoch {epoch} through {exit}"
        ));
        self.pump(name);
    }
}

//! Legs: two segments each way, from a daemon to its relay and on to the other daemon.

use super::world::{ACCEPTOR, DIALLER, EndId, Happening, World};
use bytes::Bytes;
use fairlead_model::{LegEpoch, MonoTime, RelayId};
use fairlead_stream::LegName;
use std::collections::VecDeque;
use std::time::Duration;

pub(super) type LegId = u64;

/// Most bytes of a leg that a lying relay remembers to play again.
const RECORD_BYTES_MAX: usize = 256 * 1024;

pub(super) fn relay_id(relay: usize) -> RelayId {
    RelayId::from_bytes([relay as u8 + 1; 16])
}

/// Why a leg is gone, as an end learns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// It ended, was reset, or its relay is gone.
    Lost,
    /// The other daemon has said to its relay, or the relay makes it up, that it knows no such
    /// association.
    UnknownAssociation,
}

#[derive(Debug, Default)]
pub(super) struct Segment {
    pub(super) queue: VecDeque<(MonoTime, Bytes)>,
    pub(super) bytes: usize,
    last: MonoTime,
}

impl Segment {
    pub(super) fn push(&mut self, at: MonoTime, bytes: Bytes) {
        self.last = self.last.max(at);
        self.bytes += bytes.len();
        self.queue.push_back((self.last, bytes));
    }

    fn pop(&mut self) -> Option<Bytes> {
        let (_, bytes) = self.queue.pop_front()?;
        self.bytes -= bytes.len();
        Some(bytes)
    }

    fn due(&self) -> Option<MonoTime> {
        self.queue.front().map(|(at, _)| *at)
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) near: Segment,
    pub(super) far: Segment,
    /// Its sender has ended it: the receiver learns it behind the last byte.
    ended: bool,
}

pub(super) struct Leg {
    pub(super) stream: usize,
    pub(super) epoch: LegEpoch,
    /// The relay of each side: the same, unless two of them work together.
    pub(super) relay: [usize; 2],
    pub(super) ends: [Option<EndId>; 2],
    /// Whether each end still uses it.
    pub(super) open: [bool; 2],
    /// By what is sent on it: to the acceptor, to the dialler. The first piece to the acceptor is
    /// empty and stands for the OPEN.
    pub(super) pipes: [Pipe; 2],
    /// The relay lost it: nothing passes.
    pub(super) dead: bool,
    noticed: [bool; 2],
    pub(super) wake: Option<MonoTime>,
    /// A relay did something to what it carries: the receiver may wait for the rest of a record that
    /// never comes.
    pub(super) tampered: bool,
    /// The acceptor has verified an ATTACH on it.
    pub(super) verified: bool,
    /// What the relay could play again.
    pub(super) record: Vec<u8>,
    pub(super) opened_at: MonoTime,
}

impl Leg {
    pub(super) fn new(stream: usize, epoch: LegEpoch, relay: [usize; 2], now: MonoTime) -> Self {
        Self {
            stream,
            epoch,
            relay,
            ends: [None, None],
            open: [false, false],
            pipes: Default::default(),
            dead: false,
            noticed: [false, false],
            wake: None,
            tampered: false,
            verified: false,
            record: Vec::new(),
            opened_at: now,
        }
    }

    /// Its name at the machine of `side`.
    pub(super) fn name(&self, side: usize) -> LegName {
        LegName {
            epoch: self.epoch,
            relay: relay_id(self.relay[side]),
        }
    }
}

impl World<'_> {
    /// Delay between a side's daemon and its relay.
    fn delay(&mut self, side: usize, relay: usize) -> Duration {
        self.plan.latency[side][relay] + Duration::from_micros(self.rng.u64(0..=self.plan.jitter_ms * 1000))
    }

    /// Puts a daemon's bytes onto a leg, in pieces.
    pub(super) fn send(&mut self, leg: LegId, side: usize, mut bytes: Bytes) {
        let relay = self.legs[&leg].relay[side];
        self.transcript.bytes(&bytes);
        while !bytes.is_empty() {
            let n = self.rng.usize(1..=self.plan.chunk_max).min(bytes.len());
            let at = self.now.plus(self.delay(side, relay));
            let piece = bytes.split_to(n);
            let l = self.legs.get_mut(&leg).unwrap();
            l.pipes[side].near.push(at, piece);
        }
        self.wake(leg, true);
    }

    /// Plans the next look at a leg. `fresh`: what is due has not been looked at.
    fn wake(&mut self, id: LegId, fresh: bool) {
        let now = self.now;
        let Some(leg) = self.legs.get_mut(&id) else { return };
        let segments = leg.pipes.iter().flat_map(|p| [&p.near, &p.far]);
        // What is due and still there waits for something else than time.
        let next = segments
            .filter_map(Segment::due)
            .filter(|at| *at > now || fresh)
            .min();
        if let Some(at) = next.filter(|at| leg.wake.is_none_or(|w| *at < w)) {
            leg.wake = Some(at);
            self.at(at, Happening::Wire(id));
        }
    }

    /// Moves along what is due.
    pub(super) fn pump(&mut self, id: LegId) {
        for side in [DIALLER, ACCEPTOR] {
            while self.through_relay(id, side) | self.deliver(id, side) {}
            self.end_of_pipe(id, side);
        }
        self.wake(id, false);
        let over = |l: &Leg| l.open == [false; 2] && (l.dead || l.ends[ACCEPTOR].is_some());
        if self.legs.get(&id).is_some_and(over) {
            self.legs.remove(&id);
        }
    }

    /// One piece from a daemon through the relay onto the second segment.
    fn through_relay(&mut self, id: LegId, side: usize) -> bool {
        let Some(leg) = self.legs.get(&id) else {
            return false;
        };
        let [from, to] = [leg.relay[side], leg.relay[1 - side]];
        let pipe = &leg.pipes[side];
        let due = pipe.near.due().is_some_and(|at| at <= self.now);
        let room = pipe.far.bytes < self.plan.segment_bytes;
        let runs = [from, to].iter().all(|r| self.relays[*r].runs(self.now));
        if leg.dead || !due || !room || !runs || self.relays[from].is_cut(side, true, self.now) {
            return false;
        }
        let delay = self.delay(1 - side, to);
        let at = self.now.plus(delay);
        let leg = self.legs.get_mut(&id).unwrap();
        let Some(piece) = leg.pipes[side].near.pop() else {
            return false;
        };
        if let Some(sender) = leg.ends[side] {
            self.dirty.insert(sender);
        }
        if piece.is_empty() {
            if self.relays[from].refuses_until > self.now {
                self.refuse_open(id);
            } else {
                leg.pipes[side].far.push(at, piece);
            }
            return true;
        }
        if side == DIALLER && leg.record.len() < RECORD_BYTES_MAX {
            leg.record.extend_from_slice(&piece);
        }
        let lies = self.relays[from].lies(self.now);
        leg.tampered |= lies;
        let pieces = if lies {
            self.relays[from].mishandle(&mut self.rng, piece)
        } else {
            vec![piece]
        };
        for piece in pieces {
            leg.pipes[side].far.push(at, piece);
        }
        true
    }

    /// One piece from the relay to the daemon.
    fn deliver(&mut self, id: LegId, side: usize) -> bool {
        let to = 1 - side;
        let Some(leg) = self.legs.get(&id) else {
            return false;
        };
        let due = leg.pipes[side].far.due().is_some_and(|at| at <= self.now);
        let relay = leg.relay[to];
        if leg.dead || !due || self.is_stalled(to) || self.relays[relay].is_cut(to, false, self.now) {
            return false;
        }
        let leg = self.legs.get_mut(&id).unwrap();
        let Some(piece) = leg.pipes[side].far.pop() else {
            return false;
        };
        if piece.is_empty() {
            self.incoming(id);
        } else if let Some(end) = leg.ends[to].filter(|_| leg.open[to]) {
            let name = leg.name(to);
            self.transcript.bytes(&piece);
            let now = self.now;
            let Some(e) = self.ends.get_mut(&end) else {
                return true;
            };
            if let Err(fault) = e.machine.receive(name, now, &piece) {
                self.note(format_args!("leg {id} ends at {to}: {fault:?}"));
                self.close_leg(id, to, true);
            }
            self.dirty.insert(end);
        }
        true
    }

    /// The receiver has read all that its peer sent before it ended the leg.
    fn end_of_pipe(&mut self, id: LegId, side: usize) {
        let Some(leg) = self.legs.get(&id) else { return };
        let pipe = &leg.pipes[side];
        let empty = pipe.near.queue.is_empty() && pipe.far.queue.is_empty();
        if pipe.ended && empty && !leg.dead {
            let to = 1 - side;
            let at = self.now.plus(self.plan.latency[to][leg.relay[to]]);
            self.notice(id, to, at, Notice::Lost);
        }
    }

    /// A daemon leaves a leg: in order, behind what it sent, or with a reset that overtakes it.
    pub(super) fn close_leg(&mut self, id: LegId, side: usize, abort: bool) {
        let Some(leg) = self.legs.get_mut(&id) else { return };
        leg.open[side] = false;
        leg.noticed[side] = true;
        leg.pipes[1 - side].near.queue.clear();
        leg.pipes[1 - side].near.bytes = 0;
        if let Some(end) = leg.ends[side]
            && let Some(e) = self.ends.get_mut(&end)
        {
            e.legs.retain(|l| *l != id);
        }
        let leg = self.legs.get_mut(&id).unwrap();
        if abort {
            leg.dead = true;
            let at = self.after(self.plan.notice_ms_max);
            self.notice(id, 1 - side, at, Notice::Lost);
        } else {
            leg.pipes[side].ended = true;
            self.end_of_pipe(id, side);
            self.wake(id, true);
        }
    }

    /// Lets an end learn at `at` that a leg is gone.
    pub(super) fn notice(&mut self, id: LegId, side: usize, at: MonoTime, why: Notice) {
        if let Some(leg) = self.legs.get_mut(&id)
            && !std::mem::replace(&mut leg.noticed[side], true)
        {
            self.at(at, Happening::Noticed(id, side, why));
        }
    }

    pub(super) fn noticed(&mut self, id: LegId, side: usize, why: Notice) {
        if self.is_stalled(side) {
            let at = self.daemons[side].stalled_until;
            self.at(at, Happening::Noticed(id, side, why));
            return;
        }
        let Some(leg) = self.legs.get_mut(&id) else { return };
        let was_open = std::mem::replace(&mut leg.open[side], false);
        let (name, end) = (leg.name(side), leg.ends[side]);
        if was_open && let Some(end) = end {
            self.note(format_args!("leg {id} lost at {side}: {why:?}"));
            if let Some(e) = self.ends.get_mut(&end) {
                e.legs.retain(|l| *l != id);
                e.machine.leg_lost(name, self.now);
            }
            self.dirty.insert(end);
            if why == Notice::UnknownAssociation {
                let at = self.after(200);
                self.at(at, Happening::Handshake(DIALLER));
            }
        }
        self.pump(id);
    }

    /// The relay says no to an OPEN: honestly, or in the publisher's name.
    fn refuse_open(&mut self, id: LegId) {
        let leg = self.legs.get_mut(&id).unwrap();
        leg.dead = true;
        leg.noticed[ACCEPTOR] = true;
        let unknown = self.rng.bool();
        let why = if unknown {
            Notice::UnknownAssociation
        } else {
            Notice::Lost
        };
        let at = self.after(20);
        self.notice(id, DIALLER, at, why);
    }

    /// A leg breaks in the middle: what is on its way is lost from some point on.
    pub(super) fn break_leg(&mut self, id: LegId) {
        let Some(leg) = self.legs.get_mut(&id) else { return };
        leg.dead = true;
        for side in [DIALLER, ACCEPTOR] {
            let at = self.after(self.plan.notice_ms_max);
            self.notice(id, side, at, Notice::Lost);
        }
    }
}

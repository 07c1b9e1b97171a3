//! Two ends of a stream, driven by the input: writes, reads, ends, legs that come, break, freeze and
//! are damaged. Whatever happens, each end reads a prefix of what the other wrote (I1), and reads the
//! end only after all of it (I6).
#![no_main]

use bytes::{Bytes, BytesMut};
use fairlead_model::{MonoTime, RefusalCode, RelayId, RouteId, StreamNumber};
use fairlead_stream::{
    AttachKind, Config, Event, LegName, LegPath, ResetCode, Stream, StreamSecret, TRANSMIT_BATCH,
};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Operations of one run: enough for several changes of leg, few enough for thousands of runs a
/// second.
const OPERATIONS_MAX: usize = 300;

struct End {
    stream: Stream,
    wrote: u64,
    read: u64,
    finished: bool,
    ended: bool,
}

/// Sealed bytes on their way, to the acceptor and to the dialler.
type Wires = BTreeMap<LegName, [VecDeque<u8>; 2]>;

const DIALLER: usize = 0;
const ACCEPTOR: usize = 1;

fn pattern(side: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8 ^ side as u8
}

struct Run<'a> {
    input: std::slice::Iter<'a, u8>,
    now: MonoTime,
    ends: [End; 2],
    wires: Wires,
    salt: u8,
    refuse: bool,
}

impl Run<'_> {
    fn byte(&mut self) -> u8 {
        self.input.next().copied().unwrap_or(0)
    }

    fn end_of(&mut self) -> (usize, &mut End) {
        let side = usize::from(self.byte() & 1);
        (side, &mut self.ends[side])
    }

    fn leg(&mut self) -> Option<LegName> {
        let n = usize::from(self.byte());
        let count = self.wires.len();
        self.wires.keys().copied().nth(n.checked_rem(count)?)
    }

    fn step(&mut self, operation: u8) {
        match operation % 14 {
            0 | 1 => {
                // Mostly small, so that runs are quick; now and then several records.
                let length = u64::from(self.byte()) * u64::from(self.byte());
                let length = if length > 60_000 { length } else { length / 32 };
                let (side, end) = self.end_of();
                let from = end.wrote;
                let bytes: Vec<u8> = (from..from + length).map(|at| pattern(side, at)).collect();
                end.wrote += end.stream.write(&bytes) as u64;
            }
            2 => {
                let max = usize::from(self.byte()) * 64;
                let now = self.now;
                let (side, end) = self.end_of();
                Self::read(side, end, max, now);
            }
            3 => {
                let (_, end) = self.end_of();
                end.stream.finish();
                end.finished = true;
            }
            4 => {
                if self.byte() > 200 {
                    let now = self.now;
                    let (_, end) = self.end_of();
                    end.stream.reset(ResetCode::Application, now);
                }
            }
            5 => self.open(),
            6 => {
                if let Some(leg) = self.leg() {
                    self.lose(leg);
                }
            }
            7 => {
                let ms = u64::from(self.byte());
                self.now = self.now.plus(Duration::from_millis(ms * ms));
                for end in &mut self.ends {
                    end.stream.handle_timeout(self.now);
                }
            }
            8 => {
                // Damage: a changed, lost or doubled byte.
                let Some(leg) = self.leg() else { return };
                let (to, at, how) = (
                    usize::from(self.byte() & 1),
                    usize::from(self.byte()),
                    self.byte(),
                );
                let Some(wire) = self.wires.get_mut(&leg).map(|w| &mut w[to]) else {
                    return;
                };
                if wire.is_empty() {
                    return;
                }
                let at = at % wire.len();
                match how % 3 {
                    0 => wire[at] ^= how | 1,
                    1 => drop(wire.remove(at)),
                    _ => wire.insert(at, how),
                }
            }
            9 => self.refuse = self.byte() > 240,
            10 => self.ends[ACCEPTOR].stream.request_move(),
            _ => {
                let Some(leg) = self.leg() else { return };
                self.transmit(leg);
                let count = usize::from(self.byte()) * usize::from(self.byte()) + 1;
                self.deliver(leg, count);
            }
        }
        self.events();
    }

    fn read(side: usize, end: &mut End, max: usize, now: MonoTime) {
        let mut left = max;
        while left > 0 {
            let Some(piece) = end.stream.read(now) else { break };
            for b in &piece {
                assert_eq!(*b, pattern(1 - side, end.read), "I1");
                end.read += 1;
            }
            left = left.saturating_sub(piece.len());
        }
    }

    fn open(&mut self) {
        let kind = if self.byte() & 1 == 0 {
            AttachKind::Resend
        } else {
            AttachKind::Planned
        };
        let epoch = self.ends[DIALLER].stream.next_epoch();
        let relay = RelayId::from_bytes([self.byte(); 16]);
        for end in &mut self.ends {
            self.salt = self.salt.wrapping_add(1);
            let _ = end.stream.open_leg(
                LegPath {
                    epoch,
                    relay,
                    salt: [self.salt; 16],
                },
                kind,
            );
        }
        self.wires.insert(LegName { epoch, relay }, Default::default());
        if self.wires.len() > 6 {
            let first = *self.wires.keys().next().expect("there are seven");
            self.lose(first);
        }
    }

    fn lose(&mut self, leg: LegName) {
        self.wires.remove(&leg);
        for end in &mut self.ends {
            end.stream.leg_lost(leg, self.now);
        }
    }

    fn transmit(&mut self, leg: LegName) {
        let Some(wires) = self.wires.get_mut(&leg) else {
            return;
        };
        for (side, end) in self.ends.iter_mut().enumerate() {
            let mut out = BytesMut::new();
            end.stream.poll_transmit(leg, self.now, &mut out, TRANSMIT_BATCH);
            wires[1 - side].extend(out);
        }
    }

    fn deliver(&mut self, leg: LegName, count: usize) {
        let Some(wires) = self.wires.get_mut(&leg) else {
            return;
        };
        for (side, end) in self.ends.iter_mut().enumerate() {
            let count = count.min(wires[side].len());
            let bytes: Vec<u8> = wires[side].drain(..count).collect();
            if end.stream.receive(leg, self.now, &bytes).is_err() {
                wires[side].clear();
            }
        }
    }

    fn events(&mut self) {
        for side in [DIALLER, ACCEPTOR] {
            while let Some(event) = self.ends[side].stream.poll_event() {
                let end = &mut self.ends[side];
                assert!(!end.ended, "an event after the end");
                match event {
                    Event::Attach { leg, first, .. } => {
                        if self.refuse {
                            end.stream.refuse_attach(leg, RefusalCode::Revoked);
                        } else if end.stream.accept_attach(leg, self.now).is_ok() && first {
                            end.stream.target_connected();
                        }
                    }
                    Event::Ended(how) => {
                        end.ended = true;
                        assert_ne!(how, fairlead_stream::End::Protocol, "both ends are honest");
                    }
                    Event::Attached { .. }
                    | Event::Connected
                    | Event::LegDone { .. }
                    | Event::MovePlease
                    | Event::Suspended { .. }
                    | Event::PeerReset(_) => {}
                }
            }
        }
    }

    fn check(&mut self) {
        for side in [DIALLER, ACCEPTOR] {
            Self::read(side, &mut self.ends[side], usize::MAX, self.now);
            let (end, other) = (&self.ends[side], &self.ends[1 - side]);
            assert!(end.read <= other.wrote, "I1");
            if end.stream.is_read_finished() {
                assert!(other.finished && end.read == other.wrote, "I6");
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let secret = || StreamSecret::derive(&[1; 32], StreamNumber(1), RouteId::from_bytes([2; 16]));
    let dial = Stream::dial(Config::default(), secret(), Bytes::from_static(b"grant"));
    let end = |stream| End {
        stream,
        wrote: 0,
        read: 0,
        finished: false,
        ended: false,
    };
    let mut run = Run {
        input: data.iter(),
        now: MonoTime(1),
        ends: [
            end(dial.expect("the grant is short")),
            end(Stream::accept(Config::default(), secret())),
        ],
        wires: Wires::new(),
        salt: 0,
        refuse: false,
    };
    run.open();
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = run.input.next().copied() else {
            break;
        };
        run.step(operation);
    }
    run.check();
});

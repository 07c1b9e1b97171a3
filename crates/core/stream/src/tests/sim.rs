//! Two ends of one stream, legs between them with delay and loss, and a clock that only the
//! simulator moves. The reference model is the pattern: byte `n` of a direction is a function of `n`.

use crate::*;
use bytes::{Bytes, BytesMut};
use fairlead_model::{LegEpoch, MonoTime, RefusalCode, RelayId, RouteId, StreamNumber};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

pub(super) const PAIR_SECRET: [u8; 32] = [0x5e; 32];
pub(super) const GRANT: &[u8] = b"grant of the test";

pub(super) fn secret() -> StreamSecret {
    StreamSecret::derive(&PAIR_SECRET, StreamNumber(3), RouteId::from_bytes([9; 16]))
}

/// A leg's name.
pub(super) fn leg(epoch: u64, relay: u8) -> LegName {
    LegName {
        epoch: LegEpoch(epoch),
        relay: RelayId::from_bytes([relay; 16]),
    }
}

/// Byte `n` of the direction that `salt` names.
pub(super) fn pattern(salt: u64, n: u64) -> u8 {
    ((n ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(super) struct End {
    pub(super) stream: Stream,
    salt_out: u64,
    salt_in: u64,
    /// How many bytes this end's application writes in all, then FIN.
    pub(super) total: u64,
    pub(super) written: u64,
    pub(super) read: u64,
    pub(super) eof: bool,
    pub(super) finishes: bool,
    pub(super) connected: bool,
    pub(super) peer_reset: Option<ResetCode>,
    pub(super) ended: Option<crate::End>,
    pub(super) suspended: u32,
    pub(super) attached: u32,
    /// How often its target was to be dialled.
    pub(super) dials: u32,
    pub(super) legs_done: Vec<LegName>,
    pub(super) move_please: bool,
}

impl End {
    fn new(stream: Stream, salt_out: u64, salt_in: u64, total: u64) -> Self {
        Self {
            stream,
            salt_out,
            salt_in,
            total,
            written: 0,
            read: 0,
            eof: false,
            finishes: true,
            connected: false,
            peer_reset: None,
            ended: None,
            suspended: 0,
            attached: 0,
            dials: 0,
            legs_done: Vec::new(),
            move_please: false,
        }
    }

    /// The application writes at most `max` bytes of its pattern, and its FIN after the last.
    pub(super) fn app_write(&mut self, max: usize) {
        let want = usize::try_from(self.total - self.written).unwrap().min(max);
        let (salt, at) = (self.salt_out, self.written);
        if want > 0 && self.stream.write_capacity() > 0 {
            let before = self.written;
            let fill = |buf: &mut [u8]| {
                let n = buf.len().min(want);
                for (i, b) in buf[..n].iter_mut().enumerate() {
                    *b = pattern(salt, at + i as u64);
                }
                Ok::<_, ()>(n)
            };
            self.written += self.stream.write_with(fill).unwrap() as u64;
            let wrote = (self.written - before) as usize;
            if wrote > 0 && wrote < want {
                return self.app_write(want - wrote);
            }
        }
        if self.written == self.total && self.finishes {
            self.stream.finish();
        }
    }

    /// The application reads at most `max` bytes and holds them against the pattern (I1).
    pub(super) fn app_read(&mut self, max: usize, now: MonoTime) {
        let mut slices = [IoSlice::new(&[]); 4];
        let filled = self.stream.read_slices(&mut slices);
        let mut n = 0;
        for slice in &slices[..filled] {
            for b in slice.iter().take(max - n) {
                assert_eq!(
                    *b,
                    pattern(self.salt_in, self.read + n as u64),
                    "I1 at {}",
                    self.read + n as u64
                );
                n += 1;
            }
        }
        if n > 0 {
            assert!(!self.eof, "I6: bytes after the end");
            self.stream.consume(n, now);
            self.read += n as u64;
            if n < max {
                return self.app_read(max - n, now);
            }
        }
        self.eof |= self.stream.is_read_finished();
    }
}

struct Wire {
    queue: VecDeque<(MonoTime, Bytes)>,
    last: MonoTime,
}

impl Wire {
    fn push(&mut self, at: MonoTime, bytes: Bytes) {
        self.last = self.last.max(at);
        self.queue.push_back((self.last, bytes));
    }
}

pub(super) struct SimLeg {
    pub(super) name: LegName,
    delay: Duration,
    /// Dialler to acceptor, acceptor to dialler.
    wires: [Wire; 2],
    /// When each end notices that the leg is gone.
    lost_at: [Option<MonoTime>; 2],
    /// Nothing passes, and nobody notices.
    pub(super) frozen: bool,
    open: [bool; 2],
}

pub(super) struct World {
    pub(super) now: MonoTime,
    config: Config,
    pub(super) ends: [End; 2],
    pub(super) legs: Vec<SimLeg>,
    pub(super) rng: fastrand::Rng,
    /// Every byte that any leg carried.
    pub(super) carried: Vec<u8>,
    pub(super) record: bool,
    pub(super) refuse: Option<RefusalCode>,
    pub(super) target: Result<(), RefusalCode>,
    pub(super) chunk_max: usize,
    pub(super) batch: usize,
    /// Chunks on a wire above which its sender waits.
    pub(super) wire_chunks: usize,
}

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

impl World {
    pub(super) fn new(seed: u64, config: Config, totals: [u64; 2]) -> Self {
        let dial = Stream::dial(config, secret(), Bytes::from_static(GRANT)).unwrap();
        let accept = Stream::accept(config, secret());
        Self {
            now: MonoTime(1_000_000_000),
            config,
            ends: [End::new(dial, 1, 2, totals[A]), End::new(accept, 2, 1, totals[B])],
            legs: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            carried: Vec::new(),
            record: false,
            refuse: None,
            target: Ok(()),
            chunk_max: 40_000,
            batch: TRANSMIT_BATCH,
            wire_chunks: 8,
        }
    }

    pub(super) fn path(&mut self, epoch: LegEpoch, relay: u8) -> LegPath {
        let mut salt = [0; SALT_BYTES];
        self.rng.fill(&mut salt);
        LegPath {
            epoch,
            relay: RelayId::from_bytes([relay; 16]),
            salt,
        }
    }

    /// The dialler opens a leg through `relay`; the acceptor hears of it at once.
    pub(super) fn open(&mut self, relay: u8, kind: AttachKind, delay: Duration) -> LegName {
        let epoch = self.ends[A].stream.next_epoch();
        let path = self.path(epoch, relay);
        self.ends[A].stream.open_leg(path, kind).unwrap();
        let path = self.path(epoch, relay);
        let name = path.name();
        let opened = self.ends[B].stream.open_leg(path, kind).is_ok();
        let wire = || Wire {
            queue: VecDeque::new(),
            last: MonoTime(0),
        };
        self.legs.push(SimLeg {
            name,
            delay,
            wires: [wire(), wire()],
            lost_at: [(!opened).then_some(self.now.plus(delay)), None],
            frozen: false,
            open: [true, opened],
        });
        name
    }

    /// The leg breaks: what is on it is lost from some point on, and each end notices in its time.
    pub(super) fn kill(&mut self, name: LegName) {
        let (now, rng) = (self.now, &mut self.rng);
        let Some(leg) = self.legs.iter_mut().find(|l| l.name == name) else {
            return;
        };
        for (wire, lost) in leg.wires.iter_mut().zip(&mut leg.lost_at) {
            let keep = rng.usize(0..=wire.queue.len());
            wire.queue.truncate(keep);
            let notice = now.plus(Duration::from_millis(rng.u64(0..400)));
            lost.get_or_insert(notice);
        }
        leg.frozen = true;
    }

    /// Events, writes to the legs, arrivals and timers at `now`.
    pub(super) fn settle(&mut self) {
        for _ in 0..64 {
            let mut progress = false;
            for side in [A, B] {
                progress |= self.events(side);
                progress |= self.transmit(side);
                progress |= self.arrivals(side);
            }
            if !progress {
                return;
            }
        }
    }

    fn events(&mut self, side: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.ends[side].stream.poll_event() {
            any = true;
            let end = &mut self.ends[side];
            assert!(end.ended.is_none(), "an event after the end: {event:?}");
            match event {
                Event::Attach {
                    leg,
                    grant,
                    first,
                    resume,
                } => {
                    assert!(!(first && resume), "one acceptor for all its life");
                    assert_eq!((side, &grant[..]), (B, GRANT));
                    if let Some(code) = self.refuse {
                        end.stream.refuse_attach(leg, code);
                        continue;
                    }
                    if end.stream.accept_attach(leg, self.now).is_err() {
                        self.leg_closed(side, leg);
                        continue;
                    }
                    if first {
                        end.dials += 1;
                        match self.target {
                            Ok(()) => end.stream.target_connected(),
                            Err(code) => end.stream.target_failed(code),
                        }
                        end.connected = self.target.is_ok();
                    }
                }
                Event::Attached { .. } => end.attached += 1,
                Event::Connected => end.connected = true,
                Event::LegDone { leg } => {
                    end.legs_done.push(leg);
                    self.leg_closed(side, leg);
                }
                Event::MovePlease => end.move_please = true,
                Event::Suspended { .. } => end.suspended += 1,
                Event::PeerReset(code) => end.peer_reset = Some(code),
                // The acceptor's daemon keeps no stream that was never attached.
                Event::Ended(crate::End::HoldExpired) if !end.stream.ever_attached() && side == B => {
                    end.stream = Stream::accept(self.config, secret());
                }
                Event::Ended(how) => end.ended = Some(how),
            }
        }
        any
    }

    /// An end leaves a leg cleanly: the other reads what is on the way, then its end.
    fn leg_closed(&mut self, side: usize, name: LegName) {
        let now = self.now;
        if let Some(leg) = self.legs.iter_mut().find(|l| l.name == name) {
            leg.open[side] = false;
            let end = now.plus(leg.delay).plus(Duration::from_millis(1));
            leg.lost_at[1 - side].get_or_insert(end);
        }
    }

    fn transmit(&mut self, side: usize) -> bool {
        let mut any = false;
        for i in 0..self.legs.len() {
            let (name, open, delay) = (self.legs[i].name, self.legs[i].open[side], self.legs[i].delay);
            if !open || self.legs[i].wires[side].queue.len() > self.wire_chunks {
                continue;
            }
            let mut out = BytesMut::new();
            let n = self.ends[side]
                .stream
                .poll_transmit(name, self.now, &mut out, self.batch);
            assert_eq!(n, out.len());
            assert!(
                n < self.batch + SALT_BYTES + record::RECORD_BYTES_MAX,
                "the batch bound"
            );
            any |= n > 0;
            if self.record {
                self.carried.extend_from_slice(&out);
            }
            if self.legs[i].frozen {
                continue;
            }
            let mut rest = out.freeze();
            while !rest.is_empty() {
                let chunk = rest.split_to(self.rng.usize(1..=self.chunk_max).min(rest.len()));
                let at = self.now.plus(delay);
                self.legs[i].wires[side].push(at, chunk);
            }
        }
        any
    }

    fn arrivals(&mut self, side: usize) -> bool {
        let mut any = false;
        for i in 0..self.legs.len() {
            let name = self.legs[i].name;
            let from = 1 - side;
            while let Some((_, bytes)) = self.legs[i].wires[from]
                .queue
                .pop_front_if(|(at, _)| *at <= self.now)
            {
                any = true;
                if self.legs[i].open[side] && self.ends[side].stream.receive(name, self.now, &bytes).is_err()
                {
                    self.legs[i].open[side] = false;
                    let notice = self.now.plus(self.legs[i].delay);
                    self.legs[i].lost_at[from].get_or_insert(notice);
                }
            }
            if self.legs[i].lost_at[side].is_some_and(|at| at <= self.now) && self.legs[i].open[side] {
                any = true;
                self.legs[i].open[side] = false;
                self.ends[side].stream.leg_lost(name, self.now);
            }
        }
        any
    }

    /// Moves the clock to the next thing that happens, at most to `until`.
    pub(super) fn advance(&mut self, until: MonoTime) {
        let arrivals = self
            .legs
            .iter()
            .flat_map(|l| l.wires.iter())
            .filter_map(|w| w.queue.front())
            .map(|q| q.0);
        let losses = self
            .legs
            .iter()
            .flat_map(|l| l.open.iter().zip(&l.lost_at))
            .filter_map(|(open, at)| at.filter(|_| *open));
        let timers = self.ends.iter().filter_map(|e| e.stream.poll_timeout());
        let next = arrivals
            .chain(losses)
            .chain(timers)
            .filter(|t| *t > self.now)
            .min();
        self.now = next.map_or(until, |t| t.min(until));
        for end in &mut self.ends {
            if end.stream.poll_timeout().is_some_and(|t| t <= self.now) {
                end.stream.handle_timeout(self.now);
            }
        }
    }

    /// Lets both applications write and read as fast as they can until nothing is left to do, at
    /// most for `time`.
    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now.plus(time);
        while self.now < until {
            for side in [A, B] {
                let end = &mut self.ends[side];
                if end.ended.is_none() && (side == A || end.connected) {
                    end.app_write(usize::MAX);
                }
                end.app_read(usize::MAX, self.now);
            }
            self.settle();
            if self.ends.iter().all(|e| e.ended.is_some()) {
                for end in &mut self.ends {
                    end.app_read(usize::MAX, self.now);
                    end.app_read(usize::MAX, self.now);
                }
                return;
            }
            self.advance(until);
        }
    }
}

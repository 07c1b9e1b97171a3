//! The application at one end: what it writes is the reference model, byte `n` of a direction being a
//! function of `n`.

use super::plan::Plan;
use fairlead_model::MonoTime;
use fairlead_stream::Stream;
use std::io::IoSlice;

/// Bytes `8 n` to `8 n + 7` of the direction that `salt` names.
fn pattern(salt: u64, n: u64) -> [u8; 8] {
    let mixed = (n ^ salt).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).to_le_bytes()
}

/// Calls `with` for each of `bytes`, the first of which is byte `at` of its direction, and what it is to
/// be.
fn by_pattern<T>(bytes: impl Iterator<Item = T>, salt: u64, at: u64, mut with: impl FnMut(T, u8)) {
    let (mut word, mut offset) = (pattern(salt, at / 8), (at % 8) as usize);
    let mut number = at / 8;
    for byte in bytes {
        if offset == 8 {
            number += 1;
            (word, offset) = (pattern(salt, number), 0);
        }
        with(byte, word[offset]);
        offset += 1;
    }
}

pub(super) struct Application {
    salt_out: u64,
    salt_in: u64,
    /// How many bytes it writes in all; then it half-closes, if `finishes`.
    pub(super) total: u64,
    pub(super) finishes: bool,
    pub(super) written: u64,
    pub(super) finished: bool,
    pub(super) read: u64,
    pub(super) eof: bool,
    pub(super) stalled_until: MonoTime,
    write_max: usize,
    read_max: usize,
    pub(super) every_ms: u64,
    /// It answers only after the peer's end, as many protocols do.
    pub(super) waits_for_eof: bool,
}

impl Application {
    pub(super) fn draw(rng: &mut fastrand::Rng, plan: &Plan, stream: usize, side: usize) -> Self {
        let name = |side: usize| (stream * 2 + side + 1) as u64;
        let total = match rng.u8(0..6) {
            0 => 0,
            1 => rng.u64(0..=plan.bytes_max.min(100)),
            _ => rng.u64(0..=plan.bytes_max),
        };
        Self {
            salt_out: name(side) << 32,
            salt_in: name(1 - side) << 32,
            total,
            finishes: true,
            written: 0,
            finished: false,
            read: 0,
            eof: false,
            stalled_until: MonoTime(0),
            write_max: [10, 5_000, 200_000][rng.usize(0..3)],
            read_max: [10, 5_000, 400_000][rng.usize(0..3)],
            every_ms: [1, 10, 80][rng.usize(0..3)],
            waits_for_eof: side == 1 && rng.u8(0..4) == 0,
        }
    }

    /// From here on it is as fast as can be.
    pub(super) fn hurry(&mut self) {
        self.stalled_until = MonoTime(0);
        self.write_max = usize::MAX;
        self.read_max = usize::MAX;
        self.every_ms = 10;
        self.finishes = true;
    }

    pub(super) fn turn(&mut self, stream: &mut Stream, rng: &mut fastrand::Rng, now: MonoTime) {
        if now < self.stalled_until {
            return;
        }
        let most = |max: usize, rng: &mut fastrand::Rng| {
            if max == usize::MAX {
                max
            } else {
                rng.usize(0..=max)
            }
        };
        self.read(stream, most(self.read_max, rng), now);
        if !self.waits_for_eof || self.eof {
            self.write(stream, most(self.write_max, rng));
        }
    }

    fn write(&mut self, stream: &mut Stream, max: usize) {
        let mut left = usize::try_from(self.total - self.written).unwrap().min(max);
        while left > 0 && stream.write_capacity() > 0 {
            let (salt, at) = (self.salt_out, self.written);
            let fill = |buf: &mut [u8]| {
                assert!(!buf.is_empty(), "room for nothing");
                let n = buf.len().min(left);
                by_pattern(buf[..n].iter_mut(), salt, at, |byte, wanted| *byte = wanted);
                Ok::<_, ()>(n)
            };
            let wrote = stream.write_with(fill).unwrap();
            self.written += wrote as u64;
            left -= wrote;
        }
        if self.written == self.total && self.finishes && !self.finished {
            self.finished = true;
            stream.finish();
        }
    }

    /// Reads at most `max` bytes and holds them against what the peer wrote (I1).
    pub(super) fn read(&mut self, stream: &mut Stream, max: usize, now: MonoTime) {
        let mut left = max;
        while left > 0 {
            let mut slices = [IoSlice::new(&[]); 4];
            let filled = stream.read_slices(&mut slices);
            let mut taken = 0;
            for slice in &slices[..filled] {
                let at = self.read + taken as u64;
                let n = slice.len().min(left - taken);
                let mut wrong = false;
                let compare = |byte: &u8, wanted| wrong |= *byte != wanted;
                by_pattern(slice[..n].iter(), self.salt_in, at, compare);
                assert!(!wrong, "I1: a byte from {at} to {} is wrong", at + n as u64);
                taken += n;
            }
            if taken == 0 {
                break;
            }
            assert!(!self.eof, "I6: bytes after the end");
            stream.consume(taken, now);
            self.read += taken as u64;
            left -= taken;
        }
        self.eof |= stream.is_read_finished();
    }
}

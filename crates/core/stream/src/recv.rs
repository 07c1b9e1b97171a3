//! The bytes of one direction that arrived and that the application has not taken, by offset.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

/// Pieces shorter than this are copied together, so that a queue of tiny ones costs about its bytes.
const SMALL_BYTES: usize = 1024;
/// A run of small pieces is closed at this length.
const RUN_BYTES: usize = 4 * 1024;
/// Most pieces kept ahead of a gap. Only second legs make gaps; a full window of full records makes
/// 257, and neighbouring small pieces are joined.
pub(crate) const AHEAD_PIECES_MAX: usize = 1024;
/// A drained queue with more slots than this gives them back.
const QUEUE_SLOTS_KEPT: usize = 64;

/// Why a DATA, FIN or RESET does not fit what was received before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecvFault {
    /// Above the advertised limit (I3).
    AboveLimit,
    /// Beyond the end, or a second, different end.
    BeyondFinal,
    /// More pieces ahead of a gap than are kept.
    TooManyPieces,
}

/// What a DATA brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// Bytes that can be read.
    Readable(u64),
    /// Bytes ahead of a gap.
    Ahead,
    /// Nothing new.
    Duplicate,
}

/// Received bytes of one direction (I1): `consumed ≤ next`, everything below `next` was received,
/// nothing is delivered out of order or twice.
pub(crate) struct RecvBuffer {
    ready: VecDeque<Bytes>,
    /// Small pieces behind `ready`.
    run: BytesMut,
    consumed: u64,
    next: u64,
    /// Disjoint pieces above `next`.
    ahead: BTreeMap<u64, Bytes>,
    final_offset: Option<u64>,
}

impl RecvBuffer {
    pub(crate) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            run: BytesMut::new(),
            consumed: 0,
            next: 0,
            ahead: BTreeMap::new(),
            final_offset: None,
        }
    }

    pub(crate) fn insert(&mut self, offset: u64, data: Bytes, limit: u64) -> Result<Inserted, RecvFault> {
        let end = offset + data.len() as u64;
        if end > limit {
            return Err(RecvFault::AboveLimit);
        }
        if self.final_offset.is_some_and(|f| end > f) {
            return Err(RecvFault::BeyondFinal);
        }
        if end <= self.next {
            return Ok(Inserted::Duplicate);
        }
        if offset > self.next {
            return self.insert_ahead(offset, data);
        }
        let before = self.next;
        self.push(Self::from_position(offset, data, before));
        while let Some(piece) = self.ahead.first_entry().filter(|p| *p.key() <= self.next) {
            let (start, piece) = piece.remove_entry();
            let piece = Self::from_position(start, piece, self.next);
            self.push(piece);
        }
        Ok(Inserted::Readable(self.next - before))
    }

    /// The direction has exactly `final_offset` bytes. `true` if that is new.
    pub(crate) fn set_final(&mut self, final_offset: u64, limit: u64) -> Result<bool, RecvFault> {
        if final_offset > limit {
            return Err(RecvFault::AboveLimit);
        }
        let last_end = self
            .ahead
            .last_key_value()
            .map_or(self.next, |(o, p)| o + p.len() as u64);
        if last_end > final_offset || self.final_offset.is_some_and(|f| f != final_offset) {
            return Err(RecvFault::BeyondFinal);
        }
        Ok(self.final_offset.replace(final_offset).is_none())
    }

    /// Fills `slices` from the front with what can be read; returns how many it filled.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let run = (!self.run.is_empty()).then_some(&self.run[..]);
        let parts = self.ready.iter().map(|b| &b[..]).chain(run);
        let mut filled = 0;
        for (slot, part) in slices.iter_mut().zip(parts) {
            *slot = IoSlice::new(part);
            filled += 1;
        }
        filled
    }

    /// Takes `n` bytes off the front; returns how many there were.
    pub(crate) fn consume(&mut self, n: usize) -> u64 {
        let mut left = n;
        while let Some(front) = self.ready.front_mut().filter(|_| left > 0) {
            let step = left.min(front.len());
            front.advance(step);
            left -= step;
            if front.is_empty() {
                self.ready.pop_front();
            }
        }
        let step = left.min(self.run.len());
        self.run.advance(step);
        left -= step;
        self.release();
        let taken = (n - left) as u64;
        self.consumed += taken;
        debug_assert!(self.consumed <= self.next, "I1: more delivered than received");
        taken
    }

    /// Takes one piece off the front.
    pub(crate) fn read(&mut self) -> Option<Bytes> {
        let piece = match self.ready.pop_front() {
            Some(piece) => piece,
            None if self.run.is_empty() => return None,
            None => std::mem::take(&mut self.run).freeze(),
        };
        self.release();
        self.consumed += piece.len() as u64;
        Some(piece)
    }

    /// Drops what nobody will read.
    pub(crate) fn clear(&mut self) {
        self.ready = VecDeque::new();
        self.run = BytesMut::new();
        self.ahead = BTreeMap::new();
        self.consumed = self.next;
    }

    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    pub(crate) const fn consumed(&self) -> u64 {
        self.consumed
    }

    pub(crate) const fn final_offset(&self) -> Option<u64> {
        self.final_offset
    }

    pub(crate) const fn has_final(&self) -> bool {
        self.final_offset.is_some()
    }

    /// Whether everything up to the end was received.
    pub(crate) fn is_complete(&self) -> bool {
        self.final_offset == Some(self.next)
    }

    /// Whether everything up to the end was received and read (I6).
    pub(crate) fn is_drained(&self) -> bool {
        self.final_offset == Some(self.consumed)
    }

    /// The position that an ACK names: the FIN counts for one.
    pub(crate) fn ack_position(&self) -> u64 {
        self.next + u64::from(self.is_complete())
    }

    fn insert_ahead(&mut self, offset: u64, data: Bytes) -> Result<Inserted, RecvFault> {
        let end = offset + data.len() as u64;
        let mut at = offset;
        // The holes between the pieces that are there already, in order.
        let before = self.ahead.range(..=offset).next_back();
        if let Some((start, piece)) = before {
            at = at.max(start + piece.len() as u64);
        }
        let mut holes = Vec::new();
        for (start, piece) in self.ahead.range(offset..end) {
            if at < *start {
                holes.push((at, *start));
            }
            at = at.max(start + piece.len() as u64);
        }
        if at < end {
            holes.push((at, end));
        }
        if holes.is_empty() {
            return Ok(Inserted::Duplicate);
        }
        for (from, to) in holes {
            let range = (from - offset) as usize..(to - offset) as usize;
            self.keep_ahead(from, data.slice(range))?;
        }
        Ok(Inserted::Ahead)
    }

    fn keep_ahead(&mut self, from: u64, piece: Bytes) -> Result<(), RecvFault> {
        if let Some((start, before)) = self.ahead.range_mut(..from).next_back()
            && start + before.len() as u64 == from
            && before.len() + piece.len() <= RUN_BYTES
        {
            *before = [&before[..], &piece[..]].concat().into();
            return Ok(());
        }
        if self.ahead.len() >= AHEAD_PIECES_MAX {
            return Err(RecvFault::TooManyPieces);
        }
        // A small piece must not keep a whole record's buffer.
        let piece = if piece.len() < SMALL_BYTES {
            Bytes::copy_from_slice(&piece)
        } else {
            piece
        };
        self.ahead.insert(from, piece);
        Ok(())
    }

    fn push(&mut self, piece: Bytes) {
        self.next += piece.len() as u64;
        if piece.len() < SMALL_BYTES {
            self.run.extend_from_slice(&piece);
            if self.run.len() < RUN_BYTES {
                return;
            }
            self.ready.push_back(std::mem::take(&mut self.run).freeze());
        } else {
            if !self.run.is_empty() {
                self.ready.push_back(std::mem::take(&mut self.run).freeze());
            }
            self.ready.push_back(piece);
        }
    }

    /// The part of a piece at `offset` that starts at `position`.
    fn from_position(offset: u64, mut piece: Bytes, position: u64) -> Bytes {
        let skip = usize::try_from(position.saturating_sub(offset)).unwrap_or(usize::MAX);
        piece.advance(skip.min(piece.len()));
        piece
    }

    fn release(&mut self) {
        if self.run.is_empty() {
            self.run = BytesMut::new();
        }
        if self.ready.is_empty() && self.ready.capacity() > QUEUE_SLOTS_KEPT {
            self.ready = VecDeque::new();
        }
    }
}

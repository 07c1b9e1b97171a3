//! The bytes of one direction that the far daemon has not acknowledged, by offset.

use crate::budget::PIECE_OVERHEAD;
use bytes::BytesMut;
use std::collections::VecDeque;

/// Most bytes of one block, and of one read from the application's socket: four full records, so
/// that a busy stream sends no short ones.
pub(crate) const BLOCK_BYTES_MAX: usize = 4 * DATA_BYTES_MAX;
/// Most stream bytes of one record.
pub(crate) const DATA_BYTES_MAX: usize = crate::record::PLAINTEXT_BYTES_MAX - crate::frame::DATA_HEADER_BYTES;
/// Bytes of a first read: most messages fit, and an idle stream that wakes up stays cheap.
const READ_BYTES_MIN: usize = 4 * 1024;
/// A block with less room than this is left as it is: reads that short cost more than they save.
const ROOM_BYTES_MIN: usize = 1024;
/// Bytes that may wait beyond the peer's limit, so that an ACK finds the next batch ready.
const AHEAD_BYTES: u64 = 64 * 1024;

struct Block {
    start: u64,
    data: Vec<u8>,
}

impl Block {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }
}

/// A span of positions, from the first to one behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Span {
    /// The shortest span over both.
    pub(crate) fn cover(old: Option<Self>, new: Self) -> Self {
        match old {
            Some(old) => Self {
                from: old.from.min(new.from),
                to: old.to.max(new.to),
            },
            None => new,
        }
    }
}

/// Retained plaintext of the sending direction (I2, I3): `acked ≤ next ≤ limit`, `next ≤ written`.
pub(crate) struct SendBuffer {
    blocks: VecDeque<Block>,
    acked: u64,
    /// First position that was never sent.
    next: u64,
    written: u64,
    limit: u64,
    /// Sent positions to send again; spans of several lost legs are covered by one, because a byte
    /// sent twice is only a duplicate.
    resend: Option<Span>,
    /// No byte follows `written`.
    finished: bool,
    fin_acked: bool,
    read_room: usize,
    /// Memory of the blocks, and the most that they may take.
    held: u64,
    max: u64,
}

impl SendBuffer {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            blocks: VecDeque::new(),
            acked: 0,
            next: 0,
            written: 0,
            limit,
            resend: None,
            finished: false,
            fin_acked: false,
            read_room: READ_BYTES_MIN,
            held: 0,
            max: u64::MAX,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        usize::try_from(self.credit_room().min(self.memory_room())).unwrap_or(usize::MAX)
    }

    /// Room under the peer's limit and the reserve behind it.
    fn credit_room(&self) -> u64 {
        if self.finished {
            return 0;
        }
        (self.limit + AHEAD_BYTES).saturating_sub(self.written)
    }

    /// Room in memory: in the last block, or else for another one that is worth having.
    fn memory_room(&self) -> u64 {
        let spare = self.blocks.back().map_or(0, |b| b.data.capacity() - b.data.len());
        if spare >= ROOM_BYTES_MIN {
            return spare as u64;
        }
        let room = self.max.saturating_sub(self.held + PIECE_OVERHEAD);
        if room >= ROOM_BYTES_MIN as u64 { room } else { 0 }
    }

    /// Whether memory, not the peer, keeps a full read out.
    pub(crate) fn is_short(&self) -> bool {
        let read = self.read_room as u64;
        let room = self.max.saturating_sub(self.held + PIECE_OVERHEAD);
        self.held > 0 && self.credit_room() > self.memory_room() && room < read
    }

    pub(crate) const fn set_max(&mut self, max: u64) {
        self.max = max;
    }

    pub(crate) fn write_with<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let capacity = self.capacity();
        if capacity == 0 {
            return Ok(0);
        }
        let wanted = self.read_room.min(capacity);
        let full = |b: &Block| b.data.capacity() - b.data.len() < wanted.min(ROOM_BYTES_MIN);
        if self.blocks.back().is_none_or(full) {
            // Where the peer's credit comes in crumbs, they share a block.
            let room = self.max.saturating_sub(self.held + PIECE_OVERHEAD);
            let least = READ_BYTES_MIN.min(usize::try_from(room).unwrap_or(usize::MAX));
            let data = Vec::with_capacity(wanted.max(least));
            self.held += held_by(&data);
            self.blocks.push_back(Block {
                start: self.written,
                data,
            });
        }
        let Some(block) = self.blocks.back_mut() else {
            return Ok(0);
        };
        let before = block.data.len();
        let room = wanted.min(block.data.capacity() - before);
        block.data.resize(before + room, 0);
        let result = read(block.data.get_mut(before..).unwrap_or_default());
        let taken = result.as_ref().map_or(0, |n| (*n).min(room));
        block.data.truncate(before + taken);
        if block.data.is_empty() {
            self.held -= held_by(&block.data);
            self.blocks.pop_back();
        }
        // A read that filled its room had more waiting; one that hardly used it needs less zeroing.
        if taken == room && room == self.read_room {
            self.read_room = (self.read_room * 4).min(BLOCK_BYTES_MAX);
        } else if taken < self.read_room / 8 {
            self.read_room = (self.read_room / 4).max(READ_BYTES_MIN);
        }
        self.written += taken as u64;
        result.map(|_| taken)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut left = bytes;
        while !left.is_empty() {
            let copy = |room: &mut [u8]| {
                let n = room.len().min(left.len());
                if let (Some(to), Some(from)) = (room.get_mut(..n), left.get(..n)) {
                    to.copy_from_slice(from);
                }
                Ok::<_, std::convert::Infallible>(n)
            };
            let Ok(n) = self.write_with(copy);
            if n == 0 {
                break;
            }
            left = left.get(n..).unwrap_or_default();
        }
        bytes.len() - left.len()
    }

    /// No byte follows. `true` if that is new.
    pub(crate) fn finish(&mut self) -> bool {
        !std::mem::replace(&mut self.finished, true)
    }

    /// No byte follows, and what the peer gave no credit for is dropped: the stream was reset.
    pub(crate) fn cut(&mut self) {
        self.finished = true;
        self.written = self.written.min(self.limit.max(self.next));
        while let Some(last) = self.blocks.pop_back_if(|b| b.start >= self.written) {
            self.held -= held_by(&last.data);
        }
        if let Some(last) = self.blocks.back_mut() {
            let keep = usize::try_from(self.written - last.start).unwrap_or(usize::MAX);
            last.data.truncate(keep);
        }
    }

    /// Drops everything: nothing is sent any more.
    pub(crate) fn clear(&mut self) {
        self.blocks = VecDeque::new();
        self.held = 0;
        self.finished = true;
        self.acked = self.next;
        self.written = self.next;
        self.resend = None;
    }

    /// The peer holds everything below `next` and allows positions below `limit`. `false` if it
    /// acknowledges what was never sent, or takes back what it gave (I3).
    pub(crate) fn acknowledge(&mut self, next: u64, limit: u64) -> bool {
        let fin_position = self.finished && next == self.written + 1 && self.next == self.written;
        if (next > self.next && !fin_position) || limit > crate::frame::POSITION_MAX {
            return false;
        }
        self.fin_acked |= fin_position;
        self.limit = self.limit.max(limit);
        self.acked = self.acked.max(next.min(self.written));
        while let Some(first) = self.blocks.pop_front_if(|b| b.end() <= self.acked) {
            self.held -= held_by(&first.data);
        }
        if self.blocks.is_empty() && self.blocks.capacity() > 64 {
            self.blocks = VecDeque::new();
        }
        self.resend = self.resend.and_then(|r| {
            let from = r.from.max(self.acked);
            (from < r.to).then_some(Span { from, to: r.to })
        });
        true
    }

    /// Positions of `span` that are not acknowledged are sent again.
    pub(crate) fn resend(&mut self, span: Span) {
        let span = Span {
            from: span.from.max(self.acked),
            to: span.to.min(self.next),
        };
        if span.from < span.to {
            self.resend = Some(Span::cover(self.resend, span));
        }
    }

    /// Everything sent and not acknowledged.
    pub(crate) fn unacked(&self) -> Span {
        Span {
            from: self.acked,
            to: self.next,
        }
    }

    /// The next span to send, at most `max` bytes: what is due again, then what is new.
    pub(crate) fn sendable(&self, max: usize) -> Option<Span> {
        let max = max as u64;
        let span = match self.resend {
            Some(r) => Span {
                from: r.from,
                to: r.to.min(r.from + max),
            },
            None => Span {
                from: self.next,
                to: self.written.min(self.limit).min(self.next + max),
            },
        };
        (span.from < span.to).then_some(span)
    }

    /// Appends the bytes of a span that [`sendable`](Self::sendable) gave, and counts it as sent.
    pub(crate) fn take(&mut self, span: Span, out: &mut BytesMut) {
        let first = self.blocks.partition_point(|b| b.end() <= span.from);
        let mut at = span.from;
        for block in self.blocks.range(first..) {
            if at >= span.to {
                break;
            }
            let from = usize::try_from(at - block.start).unwrap_or(usize::MAX);
            let to = usize::try_from(span.to.min(block.end()) - block.start).unwrap_or(usize::MAX);
            let part = block.data.get(from..to).unwrap_or_default();
            out.extend_from_slice(part);
            at += part.len() as u64;
        }
        debug_assert_eq!(at, span.to, "I2: an unacknowledged byte is missing");
        match &mut self.resend {
            Some(r) if r.from == span.from => {
                r.from = span.to;
                if r.from >= r.to {
                    self.resend = None;
                }
            }
            Some(_) | None => self.next = self.next.max(span.to),
        }
        debug_assert!(self.next <= self.limit, "I3: sent above the peer's limit");
    }

    /// Whether bytes wait and the peer gives no credit for them.
    pub(crate) fn is_blocked(&self) -> bool {
        self.resend.is_none() && self.next == self.limit && self.next < self.written
    }

    /// Whether every byte was sent, so that the FIN or the RESET may follow.
    pub(crate) fn all_sent(&self) -> bool {
        self.resend.is_none() && self.next == self.written
    }

    /// Whether at most `room` bytes are left to send, and all of them may go now.
    pub(crate) fn ends_within(&self, room: usize) -> bool {
        let left = self.written - self.next;
        self.resend.is_none() && self.written <= self.limit && left <= room as u64
    }

    pub(crate) const fn is_finished(&self) -> bool {
        self.finished
    }

    pub(crate) const fn fin_acked(&self) -> bool {
        self.fin_acked
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) const fn written(&self) -> u64 {
        self.written
    }

    /// Memory that the blocks hold, in bytes.
    pub(crate) const fn charge(&self) -> u64 {
        self.held
    }
}

/// What a block's memory costs.
const fn held_by(data: &Vec<u8>) -> u64 {
    data.capacity() as u64 + PIECE_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I9: a peer whose credit comes a byte at a time makes no block of each of them.
    #[test]
    fn crumbs_of_credit_share_blocks() {
        let mut buffer = SendBuffer::new(0);
        let first = buffer.write(&vec![7; usize::try_from(AHEAD_BYTES).unwrap()]) as u64;
        assert_eq!(first, AHEAD_BYTES);
        let before = buffer.charge();
        for limit in 1..=10_000 {
            assert!(buffer.acknowledge(0, limit));
            assert_eq!(buffer.write(b"ab"), 1, "at {limit}");
        }
        let grown = buffer.charge() - before;
        assert!(grown < 10_000 * 7 / 5 + 4096, "{grown} bytes for 10,000");
        assert_eq!(buffer.written(), AHEAD_BYTES + 10_000);
    }
}

//! The memory that all streams of a daemon may hold (I9, R-STR-04).
//!
//! Everything that a stream may come to hold is reserved before: the credit that its peer may use,
//! and the room of its send buffer. A stream gets its floor when it opens, or is refused. What it
//! gets beyond depends on what is left: while much is, windows grow to bandwidth times round trip;
//! as it dwindles they shrink, down to the floor, which always moves. A quarter of the budget is
//! kept for the floors of streams to come.

use crate::stream::Stream;
use crate::window::{FIRST_WINDOW, INITIAL_WINDOW};

/// Send buffer that each stream may hold in any case, in bytes: one record on the way while the next
/// is read.
const SEND_FLOOR: u64 = 32 * 1024;
/// Steps in which a send buffer's room grows: a full read.
const SEND_STEP: u64 = crate::send::BLOCK_BYTES_MAX as u64 + PIECE_OVERHEAD;
/// What the memory of one block or received piece costs beside its bytes.
pub(crate) const PIECE_OVERHEAD: u64 = 64;
/// Received pieces hold at least this many bytes each: smaller ones are copied together.
const PIECE_BYTES_MIN: u64 = 1024;
/// A window or send buffer may be as large as this share of what is left to grow into. So small a
/// share leaves room for many to grow, and however few are left of the budget, no stream takes it
/// all.
const GROWTH_SHARE: u64 = 16;
/// Parts of the budget that growth may use, of [`PARTS`]; the rest is for floors.
const GROWTH_PARTS: u64 = 3;
/// Parts in which new streams begin with [`FIRST_WINDOW`] instead of the floor.
const PLENTY_PARTS: u64 = 1;
const PARTS: u64 = 4;

/// Memory in bytes that one stream takes in any case: what is charged for an idle one. Its real cost
/// is about a tenth while it is idle.
pub const STREAM_FLOOR: u64 = cost_of_window(INITIAL_WINDOW) + SEND_FLOOR;

/// The budget of a daemon.
///
/// Calls: [`admit`](Self::admit) when a stream opens, [`balance`](Self::balance) when its
/// [`needs`](Share::needs) say so, [`release`](Self::release) when it is gone. What is reserved never
/// exceeds the total, and each stream's [`charge`](Stream::charge) never exceeds its share.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    used: u64,
}

/// What one stream has reserved, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// How far the window may grow.
    window_max: u64,
    /// Window that is reserved: `window_max`, or credit that was given when it was more.
    window: u64,
    send: u64,
}

/// What a window of `bytes` may cost: its bytes come in pieces with their overhead.
const fn cost_of_window(bytes: u64) -> u64 {
    bytes + bytes / PIECE_BYTES_MIN * PIECE_OVERHEAD
}

impl Share {
    /// Reserved, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        cost_of_window(self.window) + self.send
    }

    /// Whether a stream wants more than its share, or holds so little of it that some could be given
    /// back, or has more than `window_limit`, which [`Budget::window_limit`] gave.
    #[must_use]
    pub fn needs(&self, stream: &Stream, window_limit: u64) -> bool {
        stream.window_wanted() > self.window_max
            || stream.send_wanted()
            || self.window_max > window_limit.max(INITIAL_WINDOW)
            || self.window > self.window_max.max(stream.credit())
            || self.send > Self::send_kept(stream.send_held())
    }

    /// Tells a stream what it may hold: before anything is sent of it.
    pub fn apply(&self, stream: &mut Stream) {
        stream.set_window_max(self.window_max);
        stream.set_send_max(self.send);
    }

    /// Room that a send buffer keeps which holds `held` bytes: twice as much, and a full read, so that
    /// it does not come and go with every acknowledgement.
    fn send_kept(held: u64) -> u64 {
        if held == 0 {
            SEND_FLOOR
        } else {
            (held * 2).max(held + SEND_STEP)
        }
    }
}

impl Budget {
    /// A budget of `total` bytes, of which nothing is used.
    #[must_use]
    pub const fn new(total: u64) -> Self {
        Self { total, used: 0 }
    }

    /// Reserved by all streams, in bytes.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// How far a window may grow at this moment, in bytes; the floor stands in any case.
    #[must_use]
    pub const fn window_limit(&self) -> u64 {
        self.growth_left() / GROWTH_SHARE
    }

    /// Takes in a stream; `None`: there is no room for its floor, and it is to be refused.
    pub fn admit(&mut self) -> Option<Share> {
        let plenty = self.used < self.total / PARTS * PLENTY_PARTS;
        let window = if plenty { FIRST_WINDOW } else { INITIAL_WINDOW };
        let share = |window| Share {
            window_max: window,
            window,
            send: SEND_FLOOR,
        };
        let fits = |share: &Share| self.used + share.bytes() <= self.total;
        let share = [share(window), share(INITIAL_WINDOW)].into_iter().find(fits)?;
        self.used += share.bytes();
        Some(share)
    }

    /// Fits a stream and its share to each other and to what is left.
    pub fn balance(&mut self, share: &mut Share, stream: &mut Stream) {
        self.used -= share.bytes();
        let (window_limit, credit) = (self.window_limit(), stream.credit());
        let wanted = stream.window_wanted().max(share.window_max);
        let kept = wanted.min(window_limit).max(INITIAL_WINDOW);
        // Growth has to fit; what shrinks fits as it did.
        share.window_max = if kept > share.window_max && !self.has_growth(cost_of_window(kept) + share.send) {
            share.window_max
        } else {
            kept
        };
        share.window = share.window_max.max(credit);
        let held = stream.send_held();
        let send = if stream.send_wanted() {
            share.send + SEND_STEP
        } else {
            share.send.min(Share::send_kept(held))
        };
        let grows = send > share.send;
        let fits = send <= window_limit && self.has_growth(cost_of_window(share.window) + send);
        share.send = match (grows, fits) {
            (false, _) | (true, true) => send,
            // Under pressure the room shrinks with what is held.
            (true, false) => share.send.min(held.max(SEND_FLOOR)).max(SEND_FLOOR),
        };
        self.used += share.bytes();
        debug_assert!(self.used <= self.total, "I9: more is reserved than there is");
        share.apply(stream);
    }

    /// A stream is gone.
    pub const fn release(&mut self, share: &Share) {
        self.used = self.used.saturating_sub(share.bytes());
    }

    const fn growth_left(&self) -> u64 {
        (self.total / PARTS * GROWTH_PARTS).saturating_sub(self.used)
    }

    const fn has_growth(&self, bytes: u64) -> bool {
        bytes <= self.growth_left()
    }
}

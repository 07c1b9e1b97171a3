//! One direction of a tunnel: bytes from a leg of one carrier into a leg of another.
//!
//! Chunks go from the receiving stream into the sending one as they are, many in one call: the
//! payload is never copied here, and never looked at. What a direction can hold is bounded by the
//! two streams' windows and one batch; a peer that does not read stops its own tunnel only.

use bytes::Bytes;
use fairlead_transport::{LegCode, LegError, LegRecv, LegSend};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Most chunks in one read. A chunk is about one packet: 64 of them make a write of 64 to 400 KiB,
/// which is what a busy stream has ready at once. One write per chunk makes a relay three times
/// slower (measured).
const BATCH_CHUNKS: usize = 64;
/// Batches in one turn before other tasks get theirs.
const TURN_BATCHES: usize = 8;
/// How often an idle direction that is left alone looks whether anybody still reads it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One direction.
pub(crate) struct Direction {
    from: LegRecv,
    to: LegSend,
    /// Read and not written yet. Holds no memory while the direction keeps up.
    waiting: Vec<Bytes>,
    /// Cancelled when either direction of the tunnel has read its end.
    half_closed: CancellationToken,
    watch: Watch,
    /// What either peer is told when the other's carrier is gone.
    lost: Lost,
}

/// How an idle direction learns that its receiver is gone, so that its sender does.
///
/// A peer that gives up a leg resets the way from it as well, and the other direction sees that at
/// once. Only one that had finished sending can leave silently: a direction that is left alone looks
/// for itself. It does not wait for quinn's `stopped`, which keeps an entry of each stream that is
/// reset afterwards until the connection ends (some 100 B for each, without a bound).
enum Watch {
    Both(Pin<Box<WaitForCancellationFutureOwned>>),
    Alone(Pin<Box<Interval>>),
}

/// Reasons given when a carrier ends under a direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    /// To the sender, when the receiver's carrier is gone.
    pub(crate) to_sender: LegCode,
    /// To the receiver, when the sender's carrier is gone.
    pub(crate) to_receiver: LegCode,
}

/// How a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectionEnd {
    /// The sender finished, and the finish was passed on.
    Finished,
    /// The sender reset, and the reset was passed on.
    Reset(LegCode),
    /// The receiver stopped, and the stop was passed on.
    Stopped(LegCode),
    /// A carrier ended; the other peer was told.
    Lost,
}

impl Direction {
    /// A direction that has moved nothing yet. `half_closed` is shared with the other one.
    pub(crate) fn new(from: LegRecv, to: LegSend, lost: Lost, half_closed: CancellationToken) -> Self {
        let watch = Watch::Both(Box::pin(half_closed.clone().cancelled_owned()));
        Self {
            from,
            to,
            waiting: Vec::new(),
            half_closed,
            watch,
            lost,
        }
    }

    /// Moves bytes until the direction ends; `count` is told of each batch. The end has been passed
    /// on by then, and after a clean one the receiver has everything. Cancelled, it can only be
    /// [aborted](Self::abort).
    pub(crate) async fn run(&mut self, mut count: impl FnMut(u64)) -> DirectionEnd {
        let moved = std::future::poll_fn(|cx| self.poll_move(cx, &mut count)).await;
        self.half_closed.cancel();
        match moved {
            Ok(()) => {
                self.to.finish();
                // Until then the tunnel is not over: a worker that stops waits for it.
                match self.to.drained().await {
                    Ok(()) => DirectionEnd::Finished,
                    Err(LegError::Stopped(code)) => DirectionEnd::Stopped(code),
                    Err(LegError::Reset(_) | LegError::Carrier(_) | LegError::Ended) => DirectionEnd::Lost,
                }
            }
            Err(LegError::Reset(code)) => {
                self.to.reset(code);
                DirectionEnd::Reset(code)
            }
            Err(LegError::Stopped(code)) => {
                self.from.stop(code);
                DirectionEnd::Stopped(code)
            }
            Err(LegError::Carrier(_) | LegError::Ended) => {
                self.to.reset(self.lost.to_receiver);
                self.from.stop(self.lost.to_sender);
                DirectionEnd::Lost
            }
        }
    }

    /// Cuts the direction off towards both peers.
    pub(crate) fn abort(&mut self, code: LegCode) {
        self.to.reset(code);
        self.from.stop(code);
    }

    fn poll_move(&mut self, cx: &mut Context<'_>, count: &mut impl FnMut(u64)) -> Poll<Result<(), LegError>> {
        for _ in 0..TURN_BATCHES {
            if !self.waiting.is_empty() {
                match self.to.poll_write_chunks(cx, &mut self.waiting) {
                    // The sender may have reset by then: the receiver learns of it when it reads on.
                    // A leg that is given up as a whole is noticed by the other direction.
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(written)) => {
                        count(written.bytes as u64);
                        self.waiting.drain(..written.chunks.min(self.waiting.len()));
                        if self.waiting.is_empty() {
                            // An idle tunnel keeps no buffer.
                            self.waiting = Vec::new();
                        }
                        continue;
                    }
                }
            }
            let mut batch = [const { Bytes::new() }; BATCH_CHUNKS];
            let read = match self.from.poll_read_chunks(cx, &mut batch) {
                Poll::Pending => return self.poll_left(cx),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(Some(read))) => read,
            };
            let batch = batch.get_mut(..read).unwrap_or_default();
            match self.to.poll_write_chunks(cx, batch) {
                Poll::Pending => self.waiting.extend(batch.iter_mut().map(std::mem::take)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(written)) => {
                    count(written.bytes as u64);
                    let left = batch.get_mut(written.chunks..).unwrap_or_default();
                    self.waiting.extend(left.iter_mut().map(std::mem::take));
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// While nothing comes in, nothing is written, so a receiver that left would not be noticed.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LegError>> {
        loop {
            match &mut self.watch {
                Watch::Both(half_closed) => {
                    ready!(half_closed.as_mut().poll(cx));
                    let mut looks = tokio::time::interval(LOOK_EVERY);
                    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    self.watch = Watch::Alone(Box::pin(looks));
                }
                // The first look is at once: a lost connection ends both directions.
                Watch::Alone(looks) => {
                    ready!(looks.poll_tick(cx));
                    self.to.look()?;
                }
            }
        }
    }
}

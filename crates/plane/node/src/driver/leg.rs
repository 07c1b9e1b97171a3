//! One leg under a stream: moves sealed bytes between the carrier and the machine.

use super::mover::Via;
use crate::paths::PathPlace;
use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::{Answer, Frame, Refusal};
use fairlead_model::{LegEpoch, MonoTime, RefusalCode};
use fairlead_stream::{LegFault, LegName, Stream, TRANSMIT_BATCH};
use fairlead_transport::{FrameReadError, Leg, LegError, LegRecv, LegSend};
use std::pin::pin;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// Batches that one turn may send.
const BATCHES_PER_TURN: usize = 4;
/// Chunks taken from the carrier at once.
const CHUNKS_AT_ONCE: usize = 16;
/// Such takes in one turn.
const TAKES_PER_TURN: usize = 4;

/// A leg with what is on its way to the carrier.
#[derive(Debug)]
pub(crate) struct LegIo {
    epoch: LegEpoch,
    via: Via,
    /// The relay's answer to OPEN has come, or the leg needs none: raw bytes follow.
    answered: bool,
    /// The attached leg's place on its path, at the consumer.
    pub(super) place: Option<PathPlace>,
    /// Bytes have come since the leg was asked last.
    pub(super) heard: bool,
    /// Given back when the leg's consumer is known, at the publisher.
    pub(crate) pending: Option<OwnedSemaphorePermit>,
    /// The leg is given up then: it is not attached, or has not closed.
    pub(super) by: Option<MonoTime>,
    send: LegSend,
    recv: LegRecv,
    /// Sealed, not yet taken by the carrier.
    out: Bytes,
    /// Where the machine seals; empty while idle.
    buffer: BytesMut,
    finished: bool,
    drained: bool,
}

/// What has arrived on a leg.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrived {
    /// Bytes.
    pub(super) any: bool,
    /// Records that the peer has sealed: it lives.
    pub(super) sealed: bool,
}

/// How a leg ended.
#[derive(Debug)]
pub(crate) enum LegEnd {
    /// The carrier lost it, or the far side closed it.
    Lost(Option<LegError>),
    /// The relay or the publisher said no, unsealed.
    Refused(Refusal),
    /// Its bytes were not what the peer sealed. The machine has forgotten the leg already.
    Fault(LegFault),
}

impl LegEnd {
    /// Why the relay or the publisher ended it, unsealed, where it said so.
    pub(super) fn code(&self) -> Option<RefusalCode> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            Self::Lost(Some(LegError::Reset(code) | LegError::Stopped(code))) => code.refusal(),
            Self::Lost(_) | Self::Fault(_) => None,
        }
    }
}

impl LegIo {
    /// Takes over a leg on which raw bytes go both ways.
    pub(crate) fn new(leg: Leg, epoch: LegEpoch, via: Via) -> Self {
        Self {
            epoch,
            via,
            answered: true,
            place: None,
            heard: false,
            pending: None,
            by: None,
            send: leg.send,
            recv: leg.recv,
            out: Bytes::new(),
            buffer: BytesMut::new(),
            finished: false,
            drained: false,
        }
    }

    /// Takes over a leg that nothing was written on: `open` goes first, sealed bytes follow at once,
    /// and the answer is read when it comes.
    pub(super) fn opening(leg: Leg, epoch: LegEpoch, via: Via, open: &[u8]) -> Self {
        Self {
            answered: false,
            buffer: BytesMut::from(open),
            ..Self::new(leg, epoch, via)
        }
    }

    /// The session that it runs over.
    pub(crate) const fn via(&self) -> Via {
        self.via
    }

    /// The leg's epoch.
    pub(crate) const fn epoch(&self) -> LegEpoch {
        self.epoch
    }

    /// The leg's name in the machine.
    pub(crate) const fn name(&self) -> LegName {
        LegName {
            epoch: self.epoch,
            relay: self.via.relay,
        }
    }

    /// Feeds the machine with what has arrived.
    ///
    /// A leg is always drained: the window bounds what can come, and a reader that stops would stop
    /// the acknowledgements behind the data (invariant I4).
    pub(super) fn poll_in(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        now: MonoTime,
    ) -> Result<Arrived, LegEnd> {
        if !self.answered {
            match self.poll_answer(cx) {
                Poll::Ready(result) => result?,
                Poll::Pending => return Ok(Arrived::default()),
            }
        }
        let (name, mut progress, mut heard) = (self.name(), false, false);
        for _ in 0..TAKES_PER_TURN {
            let mut chunks: [Bytes; CHUNKS_AT_ONCE] = Default::default();
            match self.recv.poll_read_chunks(cx, &mut chunks) {
                Poll::Ready(Ok(Some(count))) => {
                    progress = true;
                    for chunk in chunks.iter().take(count) {
                        heard |= stream.receive(name, now, chunk).map_err(LegEnd::Fault)?;
                    }
                }
                Poll::Ready(Ok(None)) => {
                    self.drained = true;
                    return Err(LegEnd::Lost(None));
                }
                Poll::Ready(Err(error)) => return Err(LegEnd::Lost(Some(error))),
                Poll::Pending => break,
            }
        }
        self.heard |= heard;
        // Bytes that open as no record may be the relay's own.
        if heard && let Some(place) = &self.place {
            place.heard(now, stream.rtt());
        }
        Ok(Arrived {
            any: progress,
            sealed: heard,
        })
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LegEnd>> {
        // Cancel safe: what was read and is no whole frame stays.
        let frame = match pin!(self.recv.read_frame()).poll(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return Poll::Pending,
        };
        Poll::Ready(match frame {
            Ok(Some(Frame::Answer(Answer::Ok))) => {
                self.answered = true;
                Ok(())
            }
            Ok(Some(Frame::Answer(Answer::Refused(refusal)))) => Err(LegEnd::Refused(refusal)),
            Err(FrameReadError::Leg(error)) => Err(LegEnd::Lost(Some(error))),
            Ok(_) | Err(_) => Err(LegEnd::Lost(None)),
        })
    }

    /// Sends what the machine has for this leg. `Ok(true)` means bytes went.
    pub(crate) fn poll_out(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        now: MonoTime,
    ) -> Result<bool, LegEnd> {
        let mut progress = false;
        for _ in 0..BATCHES_PER_TURN {
            if !self.fill(stream, now) || !self.poll_write(cx)? {
                break;
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Takes the machine's last words and closes the leg in order: everything is written, then
    /// FIN, then the far side's FIN is awaited. Ready when nothing is left to do.
    pub(crate) fn poll_close(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        now: MonoTime,
    ) -> Poll<()> {
        while !self.finished {
            if !self.fill(stream, now) {
                self.send.finish();
                self.finished = true;
                break;
            }
            match self.poll_write(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(_) => return Poll::Ready(()),
            }
        }
        for _ in 0..TAKES_PER_TURN {
            if self.drained {
                return Poll::Ready(());
            }
            let mut chunks: [Bytes; CHUNKS_AT_ONCE] = Default::default();
            match self.recv.poll_read_chunks(cx, &mut chunks) {
                Poll::Ready(Ok(Some(_))) => {}
                Poll::Ready(Ok(None) | Err(_)) => self.drained = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Makes `out` the next batch if it is empty; false if there is nothing to send.
    fn fill(&mut self, stream: &mut Stream, now: MonoTime) -> bool {
        if !self.out.is_empty() {
            return true;
        }
        // An OPEN may wait in the buffer.
        if stream.poll_transmit(self.name(), now, &mut self.buffer, TRANSMIT_BATCH) == 0
            && self.buffer.is_empty()
        {
            // Idle streams hold no buffer.
            self.buffer = BytesMut::new();
            return false;
        }
        self.out = self.buffer.split().freeze();
        true
    }

    /// Writes from `out`; false if the carrier takes nothing now.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<bool, LegEnd> {
        match self
            .send
            .poll_write_chunks(cx, std::slice::from_mut(&mut self.out))
        {
            Poll::Ready(Ok(written)) => Ok(written.bytes > 0),
            Poll::Ready(Err(error)) => Err(LegEnd::Lost(Some(error))),
            Poll::Pending => Ok(false),
        }
    }
}

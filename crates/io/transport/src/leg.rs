//! One byte pipe on a carrier.

use crate::carrier::CarrierEnd;
use crate::credit::LegPlace;
use bytes::{Buf, Bytes, BytesMut};
use fairlead_hop::frame::{DecodeError, Decoded, EncodeError, Frame};
use fairlead_model::RefusalCode;
use quinn::{ReadError, VarInt, WriteError};
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes of one frame read: the frames that begin a leg are small, and whatever lies behind
/// them is raw bytes that are not to be gathered here.
const FRAME_READ_LEN: usize = fairlead_hop::FRAME_LEN_MAX;

/// One bidirectional pipe. Its two directions are independent: each ends by itself.
#[derive(Debug)]
pub struct Leg {
    /// To the peer.
    pub send: LegSend,
    /// From the peer.
    pub recv: LegRecv,
}

/// The sending direction of a leg. Dropped before [`finish`](Self::finish), it is reset: an end
/// that nobody decided on is never taken for a clean one.
#[derive(Debug)]
pub struct LegSend {
    stream: quinn::SendStream,
    ended: bool,
    _place: Option<Arc<LegPlace>>,
}

/// The receiving direction of a leg. Dropped before its end, it tells the peer to stop.
#[derive(Debug)]
pub struct LegRecv {
    stream: quinn::RecvStream,
    /// Bytes read from the stream and not taken yet: what came behind a frame, or part of one.
    held: Bytes,
    ended: bool,
    _place: Option<Arc<LegPlace>>,
}

/// Why one direction of a leg was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegCode(pub u64);

/// How a leg's direction fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LegError {
    /// The peer gave up sending.
    #[error("the peer reset the leg: {0}")]
    Reset(LegCode),
    /// The peer gave up reading.
    #[error("the peer stopped reading the leg: {0}")]
    Stopped(LegCode),
    /// The carrier is gone.
    #[error("the leg's connection ended")]
    Carrier(#[source] CarrierEnd),
    /// This end ended the direction before.
    #[error("the leg was ended here")]
    Ended,
}

/// Why a frame could not be read from a leg.
#[derive(Debug, thiserror::Error)]
pub enum FrameReadError {
    /// The leg failed.
    #[error(transparent)]
    Leg(#[from] LegError),
    /// The peer sent no frame.
    #[error("the peer sent a malformed frame")]
    Decode(#[from] DecodeError),
    /// The leg ended within a frame.
    #[error("the leg ended within a frame")]
    Truncated,
}

/// Why a frame could not be written to a leg.
#[derive(Debug, thiserror::Error)]
pub enum FrameWriteError {
    /// The leg failed.
    #[error(transparent)]
    Leg(#[from] LegError),
    /// The frame is larger than the protocol allows.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// What a write took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Bytes.
    pub bytes: usize,
    /// Chunks that were taken whole.
    pub chunks: usize,
}

impl LegCode {
    /// Nobody needs the leg any more.
    pub const CANCELLED: Self = Self(0x1000);

    /// The refusal that the code stands for.
    #[must_use]
    pub fn refusal(self) -> Option<RefusalCode> {
        u16::try_from(self.0).ok().and_then(RefusalCode::from_number)
    }

    fn varint(self) -> VarInt {
        VarInt::from_u64(self.0).unwrap_or(VarInt::MAX)
    }
}

impl From<RefusalCode> for LegCode {
    fn from(code: RefusalCode) -> Self {
        Self(code.number().into())
    }
}

impl From<VarInt> for LegCode {
    fn from(code: VarInt) -> Self {
        Self(code.into_inner())
    }
}

impl fmt::Display for LegCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.refusal() {
            Some(code) => code.fmt(f),
            None if *self == Self::CANCELLED => f.write_str("cancelled"),
            None => write!(f, "code {}", self.0),
        }
    }
}

impl Leg {
    /// `place` is that of a leg of the peer's.
    pub(crate) fn new(send: quinn::SendStream, recv: quinn::RecvStream, place: Option<LegPlace>) -> Self {
        let place = place.map(Arc::new);
        Self {
            send: LegSend {
                stream: send,
                ended: false,
                _place: place.clone(),
            },
            recv: LegRecv {
                stream: recv,
                held: Bytes::new(),
                ended: false,
                _place: place,
            },
        }
    }

    /// Cuts off both directions.
    pub fn abort(mut self, code: LegCode) {
        self.send.reset(code);
        self.recv.stop(code);
    }
}

impl LegSend {
    /// Writes a frame. **Not** cancel-safe: a cancelled write may leave part of the frame behind.
    ///
    /// # Errors
    /// The frame is too large, or the leg failed.
    pub async fn write_frame(&mut self, frame: &Frame) -> Result<(), FrameWriteError> {
        let mut buffer = BytesMut::with_capacity(128);
        frame.encode(&mut buffer)?;
        Ok(self.write_all_chunks(&mut [buffer.freeze()]).await?)
    }

    /// Writes as much of `chunks` as flow control allows, without copying: chunks that were taken
    /// become empty, one that was taken in part is advanced. One call with many chunks costs far
    /// less than many calls. Ready only with something written, unless all chunks are empty.
    pub fn poll_write_chunks(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<Written, LegError>> {
        if self.ended {
            return Poll::Ready(Err(LegError::Ended));
        }
        if chunks.iter().all(Bytes::is_empty) {
            return Poll::Ready(Ok(Written {
                bytes: 0,
                chunks: chunks.len(),
            }));
        }
        // The future holds nothing between polls: a fresh one takes up where the last one was.
        let written = ready!(pin!(self.stream.write_chunks(chunks)).poll(cx))?;
        Poll::Ready(Ok(Written {
            bytes: written.bytes,
            chunks: written.chunks,
        }))
    }

    /// As [`poll_write_chunks`](Self::poll_write_chunks). Cancel-safe.
    ///
    /// # Errors
    /// The leg failed.
    pub async fn write_chunks(&mut self, chunks: &mut [Bytes]) -> Result<Written, LegError> {
        std::future::poll_fn(|cx| self.poll_write_chunks(cx, chunks)).await
    }

    /// Writes all of `chunks`. Cancelled, it leaves in `chunks` what was not written.
    ///
    /// # Errors
    /// The leg failed.
    pub async fn write_all_chunks(&mut self, chunks: &mut [Bytes]) -> Result<(), LegError> {
        let mut left = chunks;
        while !left.is_empty() {
            let written = self.write_chunks(left).await?;
            left = left.get_mut(written.chunks..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes all of `bytes`. Not cancel-safe.
    ///
    /// # Errors
    /// The leg failed.
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<(), LegError> {
        self.write_all_chunks(&mut [Bytes::copy_from_slice(bytes)]).await
    }

    /// Ends the direction cleanly: the peer reads all that was written, then the end.
    pub fn finish(&mut self) {
        if !self.ended {
            self.ended = true;
            let _ = self.stream.finish();
        }
    }

    /// Cuts the direction off; what the peer has not read may be lost.
    pub fn reset(&mut self, code: LegCode) {
        self.ended = true;
        let _ = self.stream.reset(code.varint());
    }

    /// Waits until the peer gives up reading, or, after [`finish`](Self::finish), has got
    /// everything (`Ok`). Cancel-safe.
    ///
    /// # Errors
    /// The peer stopped, or the carrier ended.
    pub async fn drained(&self) -> Result<(), LegError> {
        match self.stream.stopped().await {
            Ok(None) => Ok(()),
            Ok(Some(code)) => Err(LegError::Stopped(code.into())),
            Err(quinn::StoppedError::ConnectionLost(error)) => Err(LegError::Carrier(error.into())),
            Err(quinn::StoppedError::ZeroRttRejected) => Err(LegError::Ended),
        }
    }

    /// Looks whether the peer still reads, without waiting.
    ///
    /// # Errors
    /// The peer stopped, the carrier ended, or the direction was ended here.
    pub fn look(&mut self) -> Result<(), LegError> {
        if self.ended {
            return Err(LegError::Ended);
        }
        // A write of nothing fails as one of bytes would. It takes the place of a waiting write's
        // waker, which `&mut self` rules out.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match pin!(self.stream.write_chunks(&mut [])).poll(&mut cx) {
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(_)) | Poll::Pending => Ok(()),
        }
    }

    /// Sends this leg's bytes before those of legs with a lower priority. 0 unless set.
    pub fn set_priority(&self, priority: i32) {
        let _ = self.stream.set_priority(priority);
    }
}

impl Drop for LegSend {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.stream.reset(LegCode::CANCELLED.varint());
        }
    }
}

impl LegRecv {
    /// Reads the next frame, or `None` at the clean end of the leg. Bytes behind the frame stay
    /// for later reads. Frames that may be skipped are. Cancel-safe.
    ///
    /// # Errors
    /// The leg failed, or the peer sent no frame of the protocol.
    pub async fn read_frame(&mut self) -> Result<Option<Frame>, FrameReadError> {
        loop {
            let needed = match Frame::decode(&self.held)? {
                Decoded::Frame { frame, consumed } => {
                    self.held.advance(consumed);
                    return Ok(Some(frame));
                }
                Decoded::Skip { consumed } => {
                    self.held.advance(consumed);
                    continue;
                }
                Decoded::Incomplete { needed } => needed,
            };
            debug_assert!(needed > self.held.len() && needed <= FRAME_READ_LEN);
            match self
                .stream
                .read_chunk(FRAME_READ_LEN, true)
                .await
                .map_err(LegError::from)?
            {
                Some(chunk) if self.held.is_empty() => self.held = chunk.bytes,
                Some(chunk) => {
                    let mut joined = BytesMut::with_capacity(self.held.len() + chunk.bytes.len());
                    joined.extend_from_slice(&self.held);
                    joined.extend_from_slice(&chunk.bytes);
                    self.held = joined.freeze();
                }
                None => {
                    self.ended = true;
                    return if self.held.is_empty() {
                        Ok(None)
                    } else {
                        Err(FrameReadError::Truncated)
                    };
                }
            }
        }
    }

    /// Takes what has arrived, without copying: `Some(n)` filled the first `n` of `chunks`, `None`
    /// is the clean end. Many chunks in one call cost far less than many calls.
    pub fn poll_read_chunks(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<Option<usize>, LegError>> {
        if !self.held.is_empty()
            && let Some(first) = chunks.first_mut()
        {
            *first = std::mem::take(&mut self.held);
            return Poll::Ready(Ok(Some(1)));
        }
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        let read = ready!(pin!(self.stream.read_chunks(chunks)).poll(cx))?;
        self.ended = read.is_none();
        Poll::Ready(Ok(read))
    }

    /// As [`poll_read_chunks`](Self::poll_read_chunks). Cancel-safe.
    ///
    /// # Errors
    /// The leg failed.
    pub async fn read_chunks(&mut self, chunks: &mut [Bytes]) -> Result<Option<usize>, LegError> {
        std::future::poll_fn(|cx| self.poll_read_chunks(cx, chunks)).await
    }

    /// Puts bytes back in front of what is still to be read, for tests that look ahead.
    #[cfg(test)]
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        assert!(self.held.is_empty(), "bytes are held already");
        self.held = bytes;
    }

    /// Reads exactly as many bytes as `out` holds. Not cancel-safe.
    ///
    /// # Errors
    /// The leg failed, or ended before.
    pub async fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        tokio::io::AsyncReadExt::read_exact(self, out).await.map(|_| ())
    }

    /// Gives up reading: the peer is told to stop.
    pub fn stop(&mut self, code: LegCode) {
        self.ended = true;
        self.held.clear();
        let _ = self.stream.stop(code.varint());
    }
}

impl Drop for LegRecv {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.stream.stop(LegCode::CANCELLED.varint());
        }
    }
}

impl AsyncRead for LegRecv {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.held.is_empty() {
            let take = this.held.len().min(buf.remaining());
            buf.put_slice(&this.held.split_to(take));
            return Poll::Ready(Ok(()));
        }
        if this.ended || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(this.stream.poll_read_buf(cx, buf)).map_err(LegError::from)?;
        this.ended = buf.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LegSend {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(Err(LegError::Ended.into()));
        }
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes)).map_err(LegError::from)?;
        Poll::Ready(Ok(written))
    }

    /// Bytes leave by themselves: there is nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().finish();
        Poll::Ready(Ok(()))
    }
}

impl From<ReadError> for LegError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(code.into()),
            ReadError::ConnectionLost(error) => Self::Carrier(error.into()),
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => {
                Self::Ended
            }
        }
    }
}

impl From<WriteError> for LegError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Stopped(code.into()),
            WriteError::ConnectionLost(error) => Self::Carrier(error.into()),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Self::Ended,
        }
    }
}

impl From<LegError> for io::Error {
    fn from(error: LegError) -> Self {
        let kind = match error {
            LegError::Reset(_) => io::ErrorKind::ConnectionReset,
            LegError::Stopped(_) => io::ErrorKind::BrokenPipe,
            LegError::Carrier(_) => io::ErrorKind::ConnectionAborted,
            LegError::Ended => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

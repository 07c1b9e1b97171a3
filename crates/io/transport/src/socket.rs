//! A relay's UDP socket, as quinn reads it: of what strangers say, no more than a hello's worth is taken.
//!
//! The kernel hands over up to 64 KiB at once: one oversized datagram, or many that came from one peer and
//! were joined (GRO). quinn keeps a read in one piece as long as any packet of it is kept, so that a first
//! packet that waits for its turn would hold all that came with it.

use crate::config::DATAGRAM_LEN_MAX;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// First byte of a packet of the handshake: the long header (RFC 9000, 17.2).
const LONG_HEADER: u8 = 0x80;
/// Most bytes taken of one read that has such a packet: one datagram of the greatest length, or a flight of
/// five of 1,200 bytes. What is cut off is lost, as anything may be on UDP, and said again.
const HANDSHAKE_READ_MAX: usize = DATAGRAM_LEN_MAX as usize;
/// The least length of a client's first datagrams (RFC 9000, 14.1). Of shorter ones that were joined only the
/// first is taken: each counts little by itself, and would hold all of them.
const INITIAL_LEN_MIN: usize = 1_200;

/// The socket beneath, with reads cut.
#[derive(Debug)]
pub(crate) struct ListenSocket(pub(crate) Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for ListenSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.0).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.0.poll_recv(cx, bufs, meta))?;
        for (buf, meta) in bufs.iter().zip(meta.iter_mut()).take(count) {
            meta.len = taken(buf, meta.len, meta.stride);
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

/// How many of the `len` bytes of a read, datagrams of `stride` bytes, are taken: whole datagrams, but of an
/// oversized one what fits.
fn taken(buf: &[u8], len: usize, stride: usize) -> usize {
    let read = buf.get(..len).unwrap_or(buf);
    let begins_handshake = |datagram: &[u8]| datagram.first().is_some_and(|first| first & LONG_HEADER != 0);
    if len <= stride.min(HANDSHAKE_READ_MAX) || stride == 0 {
        len
    } else if stride > HANDSHAKE_READ_MAX {
        HANDSHAKE_READ_MAX
    } else if !read.chunks(stride).any(begins_handshake) {
        len
    } else if stride < INITIAL_LEN_MIN {
        stride
    } else {
        len.min(HANDSHAKE_READ_MAX - HANDSHAKE_READ_MAX % stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn::Runtime;
    use std::future::poll_fn;

    /// A read of `count` datagrams of `stride` bytes, of which `long` begins with a long header.
    fn read(count: usize, stride: usize, long: Option<usize>) -> Vec<u8> {
        let mut read = vec![0x40; count * stride];
        if let Some(first) = long.and_then(|n| read.get_mut(n * stride)) {
            *first |= LONG_HEADER;
        }
        read
    }

    /// R-GEN-02: whoever speaks of a handshake is heard for one datagram of ours at most, wherever in a read
    /// it does; carriers' reads are taken whole.
    #[test]
    fn reads_with_a_handshake_are_cut() {
        for (count, stride, long, expected) in [
            (1, 1_200, Some(0), 1_200),
            (2, 1_200, Some(0), 2_400),
            (5, 1_200, Some(4), 6_000),
            (50, 1_200, Some(0), 6_000),
            (50, 1_200, Some(49), 6_000),
            (2, 100, Some(0), 100),
            (50, 100, Some(49), 100),
            (2, 100, None, 200),
            (1, 60_000, Some(0), HANDSHAKE_READ_MAX),
            (1, 60_000, None, HANDSHAKE_READ_MAX),
            (50, 1_200, None, 60_000),
            (10, HANDSHAKE_READ_MAX, None, 10 * HANDSHAKE_READ_MAX),
            (10, HANDSHAKE_READ_MAX, Some(3), HANDSHAKE_READ_MAX),
            (0, 0, None, 0),
        ] {
            let read = read(count, stride, long);
            assert_eq!(
                taken(&read, read.len(), stride),
                expected,
                "{count} of {stride} bytes, {long:?}"
            );
        }
    }

    /// The same of what a kernel hands over.
    #[tokio::test]
    async fn oversized_datagrams_are_cut_as_they_are_read() {
        let runtime = quinn::TokioRuntime;
        let own = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = own.local_addr().unwrap();
        let socket = ListenSocket(runtime.wrap_udp_socket(own).unwrap());
        let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for length in [60_000, 1_200] {
            far.send_to(&read(1, length, Some(0)), to).unwrap();
            let (mut space, mut meta) = (vec![0; 1 << 16], [RecvMeta::default()]);
            let count = poll_fn(|cx| socket.poll_recv(cx, &mut [IoSliceMut::new(&mut space)], &mut meta));
            assert_eq!(count.await.unwrap(), 1);
            assert_eq!(meta[0].len, length.min(HANDSHAKE_READ_MAX));
        }
    }
}

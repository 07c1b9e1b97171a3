//! One end of a carried stream: the socket of an application or of a target.
//!
//! Both kinds of socket, TCP and Unix, are driven by readiness, so that an idle stream holds no
//! buffer: memory is taken when there are bytes and given back when there are none.
//!
//! A TCP connection that is not closed in order ends with an RST, whoever closes it: this daemon, or the
//! kernel when the daemon was killed. What was cut off never looks complete (R-STR-02).

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Silence after which the kernel asks whether the other host still exists. Without it a vanished
/// host would hold its stream for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Unanswered questions until the socket fails: dead after 60 + 4 × 15 = 120 s.
const KEEPALIVE_PROBES: u32 = 4;

/// A connected socket of an application or a target.
#[derive(Debug)]
pub(crate) enum EndSocket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A Unix stream connection.
    Unix(UnixStream),
}

impl EndSocket {
    /// Takes over a connected TCP socket. No Nagle: the stream layer batches already, and a held
    /// back segment would cost an application a round trip.
    pub(crate) fn tcp(socket: TcpStream) -> io::Result<Self> {
        // First of all: the process may be killed at any moment.
        socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        socket.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES);
        socket2::SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(socket))
    }

    /// Takes over a connected Unix socket.
    pub(crate) const fn unix(socket: UnixStream) -> Self {
        Self::Unix(socket)
    }

    /// Waits until there may be something to read. False positives happen: read with
    /// [`EndSocket::try_read`] and ask again after `WouldBlock`.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(s) => s.poll_read_ready(cx),
            Self::Unix(s) => s.poll_read_ready(cx),
        }
    }

    /// Reads what is there into `buffer`; 0 is EOF.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.try_read(buffer),
            Self::Unix(s) => s.try_read(buffer),
        }
    }

    /// Writes as much of `slices` as the socket takes at once.
    ///
    /// Cancel safe: what was not counted was not written.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            match self {
                Self::Tcp(s) => ready!(s.poll_write_ready(cx))?,
                Self::Unix(s) => ready!(s.poll_write_ready(cx))?,
            }
            let result = match self {
                Self::Tcp(s) => s.try_write_vectored(slices),
                Self::Unix(s) => s.try_write_vectored(slices),
            };
            match result {
                Err(e) if is_transient(&e) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// Sends FIN: the far side reads EOF after all bytes written before. The other direction goes on.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let how = std::net::Shutdown::Write;
        let result = match self {
            Self::Tcp(s) => socket2::SockRef::from(s).shutdown(how),
            Self::Unix(s) => socket2::SockRef::from(s).shutdown(how),
        };
        match result {
            // The far side has gone already; whoever reads or writes next learns how.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    /// Closes a connection that has ended in both directions: what the kernel has still to send is sent.
    pub(crate) fn close(self) {
        // An RST is all that is left if the option is refused.
        let _ = match &self {
            Self::Tcp(s) => socket2::SockRef::from(s).set_linger(None),
            Self::Unix(_) => Ok(()),
        };
    }

    /// Ends the connection with RST, so that the far side reads an error and never a clean EOF
    /// (R-STR-02), as dropping it does. A Unix socket has no RST: its peer reads an error if it left
    /// bytes unread here and EOF otherwise, and its writes fail.
    pub(crate) fn reset(self) {
        drop(self);
    }

    /// The error the kernel holds for the socket, if any: how an end that is not being read tells
    /// that its far side was reset.
    pub(crate) fn pending_error(&self) -> Option<io::Error> {
        match self {
            Self::Tcp(s) => s.take_error(),
            Self::Unix(s) => s.take_error(),
        }
        .unwrap_or_else(Some)
    }
}

/// Whether a readiness call is to be repeated.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn tcp_pair() -> (EndSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), async {
            listener.accept().await.unwrap().0
        });
        (EndSocket::tcp(near.unwrap()).unwrap(), far)
    }

    async fn read(socket: &EndSocket) -> io::Result<Vec<u8>> {
        loop {
            poll_fn(|cx| socket.poll_read_ready(cx)).await?;
            let mut buffer = [0; 64];
            match socket.try_read(&mut buffer) {
                Err(e) if is_transient(&e) => {}
                result => return result.map(|n| buffer[..n].to_vec()),
            }
        }
    }

    /// R-STR-02: RST reads as an error on the other side, after the bytes before it or without
    /// them, and never as EOF.
    #[tokio::test]
    async fn reset_is_an_error_and_finish_is_eof() {
        let (near, mut far) = tcp_pair().await;
        near.reset();
        let error = far.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

        let (near, mut far) = tcp_pair().await;
        let slices = [IoSlice::new(b"last"), IoSlice::new(b" words")];
        let written = poll_fn(|cx| near.poll_write(cx, &slices)).await.unwrap();
        assert_eq!(written, 10);
        near.finish().unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"last words");
        // The other direction still works: a half-close.
        far.write_all(b"answer").await.unwrap();
        assert_eq!(read(&near).await.unwrap(), b"answer");
        drop(far);
        assert_eq!(read(&near).await.unwrap(), b"");
    }

    /// R-STR-02, F-02: a connection that is let go without a word is cut off, also after a half-close; one
    /// that is closed in order delivers all that was written, however slow its reader is.
    #[tokio::test]
    async fn only_an_orderly_close_is_an_eof() {
        let (near, mut far) = tcp_pair().await;
        drop(near);
        let error = far.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

        let (near, mut far) = tcp_pair().await;
        near.finish().unwrap();
        assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0);
        drop(near);
        seen_as_failed(&EndSocket::tcp(far).unwrap()).await;

        let (near, mut far) = tcp_pair().await;
        let block = vec![7; 64 * 1024];
        let mut written = 0;
        // Until the kernel's buffers are full.
        while let Ok(Ok(count)) = tokio::time::timeout(
            Duration::from_millis(100),
            poll_fn(|cx| near.poll_write(cx, &[IoSlice::new(&block)])),
        )
        .await
        {
            written += count;
        }
        near.finish().unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(read(&near).await.unwrap(), b"");
        near.close();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), written);
    }

    #[tokio::test]
    async fn a_reset_is_seen_without_reading() {
        let (near, far) = tcp_pair().await;
        EndSocket::tcp(far).unwrap().reset();
        seen_as_failed(&near).await;
    }

    /// The far side's reset is known without reading or writing.
    async fn seen_as_failed(near: &EndSocket) {
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while near.pending_error().is_none() {
            assert!(std::time::Instant::now() < deadline, "the reset was not seen");
            tokio::task::yield_now().await;
        }
    }
}

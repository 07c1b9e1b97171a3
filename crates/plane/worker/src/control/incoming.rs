//! Connections to the worker's socket, bounded: whoever connects and says nothing makes room for the
//! next and is closed in time. The stream of them has no errors, since the server ends at the first:
//! a worker that was short of descriptors for a moment would be deaf to its supervisor for good.

use fairlead_room::{Place, Room};
use fairlead_telemetry::RateLimitedLog;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Connections that have not said what HTTP/2 begins with.
const SILENT_MAX: usize = 16;
/// Connections that have. One supervisor needs one, and another while it adopts.
const SPEAKING_MAX: usize = 16;
/// What HTTP/2 begins with: 24 bytes.
const PREFACE_LEN: usize = 24;
/// Silence of a connection until it is closed: its end answers the server's pings (every 5 s).
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Pause after a failed accept: out of descriptors is not cured by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a lasting failure is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// The connections that come to `listener`, without an end and without errors.
pub(super) fn connections(listener: UnixListener) -> impl Stream<Item = Result<Connection, io::Error>> {
    Incoming {
        listener,
        silent: Room::new(SILENT_MAX, SILENT_MAX),
        speaking: Arc::default(),
        pause: Box::pin(tokio::time::sleep(Duration::ZERO)),
        log: RateLimitedLog::new(LOG_EVERY),
    }
}

struct Incoming {
    listener: UnixListener,
    silent: Room<()>,
    speaking: Arc<AtomicUsize>,
    pause: Pin<Box<Sleep>>,
    log: RateLimitedLog,
}

impl Stream for Incoming {
    type Item = Result<Connection, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            ready!(self.pause.as_mut().poll(context));
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    if self.speaking.load(Ordering::Relaxed) >= SPEAKING_MAX {
                        continue;
                    }
                    return Poll::Ready(Some(Ok(Connection {
                        stream,
                        stage: Stage::Silent {
                            place: self.silent.enter(()),
                            heard: 0,
                        },
                        speaking: Arc::clone(&self.speaking),
                        silence: Box::pin(tokio::time::sleep(SILENCE_MAX)),
                    })));
                }
                Err(error) => {
                    if let Some(suppressed) = self.log.allow(std::time::Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept a connection of the supervisor");
                    }
                    self.pause.as_mut().reset(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// One connection.
pub(super) struct Connection {
    stream: UnixStream,
    stage: Stage,
    speaking: Arc<AtomicUsize>,
    silence: Pin<Box<Sleep>>,
}

enum Stage {
    Silent { place: Place<()>, heard: usize },
    Speaking,
}

impl Connection {
    fn hear(&mut self, bytes: usize) {
        self.silence.as_mut().reset(Instant::now() + SILENCE_MAX);
        if let Stage::Silent { heard, .. } = &mut self.stage {
            *heard += bytes;
            if *heard >= PREFACE_LEN {
                self.stage = Stage::Speaking;
                self.speaking.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Speaking) {
            self.speaking.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            self.hear(buffer.filled().len() - before);
            return Poll::Ready(read);
        }
        if let Stage::Silent { place, .. } = &self.stage
            && place.poll_evicted(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_stream::StreamExt as _;

    async fn ended(connection: &mut Connection) -> io::ErrorKind {
        connection.read(&mut [0]).await.unwrap_err().kind()
    }

    #[tokio::test]
    async fn silence_makes_room_and_speech_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut incoming = Box::pin(connections(UnixListener::bind(&path).unwrap()));
        let mut speaker = UnixStream::connect(&path).await.unwrap();
        let mut spoken = incoming.next().await.unwrap().unwrap();
        speaker.write_all(&[7; PREFACE_LEN]).await.unwrap();
        spoken.read_exact(&mut [0; PREFACE_LEN]).await.unwrap();
        let (mut far, mut near) = (Vec::new(), Vec::new());
        for _ in 0..=SILENT_MAX {
            far.push(UnixStream::connect(&path).await.unwrap());
            near.push(incoming.next().await.unwrap().unwrap());
        }
        assert_eq!(ended(&mut near[0]).await, io::ErrorKind::ConnectionAborted);
        speaker.write_all(b"x").await.unwrap();
        assert_eq!(spoken.read(&mut [0]).await.unwrap(), 1);
        drop(spoken);
        // The last of them was closed in time, too.
        tokio::time::pause();
        let began = Instant::now();
        assert_eq!(ended(&mut near[SILENT_MAX]).await, io::ErrorKind::TimedOut);
        assert!(began.elapsed() <= SILENCE_MAX + Duration::from_millis(1));
    }
}

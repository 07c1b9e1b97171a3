//! The liveness connection: TLS over TCP beside a carrier, for pings alone (see
//! [`fairlead_hop::liveness`]).
//!
//! ```text
//! node ── TLS 1.3, both certificates, ALPN fairlead-live/1 ──► relay
//! node ── BIND session ──► relay ── BOUND or REFUSED, process boot ──► node
//! both, every 1.5 s: PING, answered by PONG
//! ```
//! The kernel acknowledges even for a process that is stopped, so that `TCP_USER_TIMEOUT` finds the
//! host that is gone and no other.

mod dial;
mod hello;
mod listen;

pub use dial::{LiveAnswer, LiveDialError};
#[cfg(test)]
pub(crate) use listen::SESSIONS_MAX;
pub use listen::{LiveAcceptError, LiveArriving, LiveBinding, LiveListener};

use fairlead_hop::liveness::{LiveMessage, LostCause, MESSAGE_LEN, PING_INTERVAL, UNACKNOWLEDGED_MAX};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_rustls::TlsStream;

/// Messages of the peer within one ping interval: its ping, the answer to ours, and as much again
/// for clocks that drift and a process that catches up. More breaks the protocol.
const MESSAGES_PER_INTERVAL_MAX: u32 = 64;
/// Messages that wait to be written. A peer that reads none is pinged no more; its kernel's
/// acknowledgement of what is on the way is what counts.
const OUTBOX_BYTES_MAX: usize = 64 * MESSAGE_LEN;

/// A liveness connection that stands. Dropping it ends it.
#[derive(Debug)]
pub struct LiveConnection {
    tls: Box<TlsStream<TcpStream>>,
    outbox: Vec<u8>,
    inbox: [u8; MESSAGE_LEN],
    filled: usize,
    ticks: Interval,
    taken: u32,
    sent: u64,
    answered: u64,
}

impl LiveConnection {
    fn new(tls: Box<TlsStream<TcpStream>>) -> Self {
        let mut ticks = interval(PING_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            tls,
            outbox: Vec::new(),
            inbox: [0; MESSAGE_LEN],
            filled: 0,
            ticks,
            taken: 0,
            sent: 0,
            answered: 0,
        }
    }

    /// Pings and answers pings until the number of unanswered pings has changed, and gives that.
    /// Cancel-safe; it must be polled all the time.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn pings(&mut self) -> Result<u32, LostCause> {
        let before = self.unanswered();
        poll_fn(|cx| {
            self.poll_work(cx)?;
            let after = self.unanswered();
            if after == before {
                Poll::Pending
            } else {
                Poll::Ready(Ok(after))
            }
        })
        .await
    }

    fn unanswered(&self) -> u32 {
        u32::try_from(self.sent.saturating_sub(self.answered)).unwrap_or(u32::MAX)
    }

    fn poll_work(&mut self, cx: &mut Context<'_>) -> Result<(), LostCause> {
        while self.ticks.poll_tick(cx).is_ready() {
            self.taken = 0;
            if self.outbox.len() < OUTBOX_BYTES_MAX {
                self.sent += 1;
                self.queue(LiveMessage::Ping(self.sent));
            }
        }
        self.poll_read(cx)?;
        self.poll_write(cx)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<(), LostCause> {
        loop {
            let Some(rest) = self.inbox.get_mut(self.filled..) else {
                return Err(LostCause::Protocol);
            };
            let mut buffer = ReadBuf::new(rest);
            match Pin::new(&mut *self.tls).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(lost(&error)),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Err(LostCause::Closed),
                Poll::Ready(Ok(())) => self.filled += buffer.filled().len(),
            }
            if self.filled == MESSAGE_LEN {
                self.filled = 0;
                self.take()?;
            }
        }
    }

    fn take(&mut self) -> Result<(), LostCause> {
        self.taken += 1;
        if self.taken > MESSAGES_PER_INTERVAL_MAX {
            return Err(LostCause::Protocol);
        }
        match LiveMessage::decode(&self.inbox) {
            Ok(LiveMessage::Ping(number)) => {
                if self.outbox.len() < OUTBOX_BYTES_MAX {
                    self.queue(LiveMessage::Pong(number));
                }
                Ok(())
            }
            Ok(LiveMessage::Pong(number)) if number <= self.sent => {
                self.answered = self.answered.max(number);
                Ok(())
            }
            Ok(
                LiveMessage::Pong(_)
                | LiveMessage::Bind(_)
                | LiveMessage::Bound(_)
                | LiveMessage::Refused(..),
            )
            | Err(_) => Err(LostCause::Protocol),
        }
    }

    fn queue(&mut self, message: LiveMessage) {
        self.outbox.extend_from_slice(&message.encode());
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), LostCause> {
        while !self.outbox.is_empty() {
            match Pin::new(&mut *self.tls).poll_write(cx, &self.outbox) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(lost(&error)),
                Poll::Ready(Ok(0)) => return Err(LostCause::Closed),
                Poll::Ready(Ok(written)) => drop(self.outbox.drain(..written)),
            }
        }
        match Pin::new(&mut *self.tls).poll_flush(cx) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(error)) => Err(lost(&error)),
        }
    }
}

/// What the end of a connection says about the peer.
fn lost(error: &io::Error) -> LostCause {
    match error.kind() {
        io::ErrorKind::InvalidData => LostCause::Protocol,
        _ if no_answer(error) => LostCause::Unacknowledged,
        _ => LostCause::Closed,
    }
}

/// Whether nothing came back from the host.
fn no_answer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}

/// Small messages that go at once, and an end as soon as the peer's kernel is silent.
fn set_up(tcp: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(tcp);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

/// How long the peer's process may take for its part of the handshake, once its host has taken the
/// connection.
const SERVE_MAX: Duration = Duration::from_secs(3);

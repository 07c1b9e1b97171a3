//! One authenticated connection between a daemon and a relay.

use crate::closing::Closing;
use crate::credit::Credit;
use crate::leg::{Leg, LegCode};
use fairlead_model::{Identity, RefusalCode};
use quinn::{ConnectionError, TransportErrorCode, VarInt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One authenticated QUIC connection. Clones are handles of the same connection; it closes when
/// the last handle and leg are dropped, or by [`close`](Self::close).
///
/// The dialler's first stream is the control stream of the hop session; all others, of either
/// side, are legs.
#[derive(Debug, Clone)]
pub struct Carrier {
    connection: quinn::Connection,
    peer: Identity,
    credit: Credit,
    _counted: Option<Arc<Counted>>,
}

/// How many of something there are, such as carriers. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

/// One of them, until dropped.
#[derive(Debug)]
pub(crate) struct Counted(Count);

impl Count {
    pub(crate) fn one(&self) -> Arc<Counted> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Arc::new(Counted(self.clone()))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a carrier ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CarrierEnd {
    /// This end closed it.
    #[error("this end closed the connection")]
    Local,
    /// The peer closed it.
    #[error("the peer closed the connection: {0}")]
    Peer(LegCode),
    /// The peer was restarted and knows nothing of it.
    #[error("the peer was restarted")]
    Restarted,
    /// Nothing was heard from the peer for the idle timeout.
    #[error("the peer did not answer in time")]
    Silent,
    /// The peer takes no new connections, as one that is about to end.
    #[error("it takes no new connections: it stops, or has just been stopped")]
    Stopping,
    /// The peer ended the handshake; its TLS alert in words.
    #[error("the peer refused the handshake: {0}")]
    Handshake(String),
    /// One of the ends broke QUIC, or this end refused the peer's certificate.
    #[error("the connection failed: {0}")]
    Failed(String),
}

/// Numbers about a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarrierStats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
    /// Frames sent that the peer acknowledges by themselves.
    pub asking_frames: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets taken for lost.
    pub lost_packets: u64,
    /// Greatest UDP payload in use.
    pub mtu_bytes: u16,
}

/// Frames of those that a carrier sends which make their packet one to be acknowledged.
const fn asking(frames: &quinn::FrameStats) -> u64 {
    frames.ping
        + frames.stream
        + frames.reset_stream
        + frames.stop_sending
        + frames.max_data
        + frames.max_stream_data
        + frames.max_streams_bidi
        + frames.max_streams_uni
}

impl Carrier {
    /// The connection's own limit is that of [`CarrierConfig::quic`](crate::CarrierConfig) with this
    /// bound.
    pub(crate) fn new(connection: quinn::Connection, peer: Identity, legs_max: u32) -> Self {
        Self {
            connection,
            peer,
            credit: Credit::new(legs_max),
            _counted: None,
        }
    }

    /// The same, counted until its last handle is dropped.
    pub(crate) fn counted(self, count: &Count) -> Self {
        Self {
            _counted: Some(count.one()),
            ..self
        }
    }

    /// Who proved to be at the other end.
    #[must_use]
    pub const fn peer(&self) -> Identity {
        self.peer
    }

    /// Where the peer is.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        canonical(self.connection.remote_address())
    }

    /// A number that tells this carrier from others of this process.
    #[must_use]
    pub fn number(&self) -> usize {
        self.connection.stable_id()
    }

    /// Opens a leg. The peer learns of it with the first byte. Waits while the peer's limit of legs
    /// is reached. Cancel-safe.
    ///
    /// # Errors
    /// The carrier ended.
    pub async fn open_leg(&self) -> Result<Leg, CarrierEnd> {
        let (send, recv) = self.connection.open_bi().await?;
        Ok(Leg::new(send, recv, None))
    }

    /// Takes the next leg that the peer opened. Cancel-safe.
    ///
    /// # Errors
    /// The carrier ended.
    pub async fn accept_leg(&self) -> Result<Leg, CarrierEnd> {
        let (send, recv) = self.connection.accept_bi().await?;
        let (place, grown) = self.credit.opened();
        if let Some(limit) = grown {
            self.limit_legs(limit);
        }
        Ok(Leg::new(send, recv, Some(place)))
    }

    /// The smoothed round-trip time.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    /// Numbers about the carrier.
    #[must_use]
    pub fn stats(&self) -> CarrierStats {
        let stats = self.connection.stats();
        CarrierStats {
            rtt: stats.path.rtt,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            asking_frames: asking(&stats.frame_tx),
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            mtu_bytes: stats.path.current_mtu,
        }
    }

    /// Changes how many legs the peer may have open at once. It is told of more only as it needs them.
    pub fn set_legs_max(&self, legs_max: u32) {
        self.limit_legs(self.credit.set_max(legs_max));
    }

    fn limit_legs(&self, limit: u32) {
        self.connection
            .set_max_concurrent_bi_streams(VarInt::from_u32(limit.saturating_add(1)));
    }

    /// Ends the carrier and all its legs at once.
    pub fn close(&self, code: RefusalCode) {
        Closing::begin_of(&self.connection);
        self.connection
            .close(VarInt::from_u32(code.number().into()), code.as_str().as_bytes());
    }

    /// Waits for the end. Cancel-safe.
    pub async fn closed(&self) -> CarrierEnd {
        self.connection.closed().await.into()
    }

    /// How the carrier ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<CarrierEnd> {
        self.connection.close_reason().map(CarrierEnd::from)
    }
}

/// An IPv4 address as such, also where an IPv6 socket carries it.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl From<ConnectionError> for CarrierEnd {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::LocallyClosed => Self::Local,
            ConnectionError::ApplicationClosed(close) => Self::Peer(LegCode(close.error_code.into_inner())),
            ConnectionError::Reset => Self::Restarted,
            ConnectionError::TimedOut => Self::Silent,
            // An endpoint that is closed refuses new handshakes by the one, and ends those under way by the other.
            ConnectionError::ConnectionClosed(close)
                if [
                    TransportErrorCode::CONNECTION_REFUSED,
                    TransportErrorCode::APPLICATION_ERROR,
                ]
                .contains(&close.error_code) =>
            {
                Self::Stopping
            }
            ConnectionError::ConnectionClosed(close) => Self::Handshake(close.to_string()),
            error @ (ConnectionError::VersionMismatch
            | ConnectionError::TransportError(_)
            | ConnectionError::CidsExhausted) => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the handshake are for those whose handshake fails: not for a relay that stops.
    #[test]
    fn a_peer_that_stops_is_said_to() {
        let closed = |error_code| {
            CarrierEnd::from(ConnectionError::ConnectionClosed(quinn::ConnectionClose {
                error_code,
                frame_type: None,
                reason: bytes::Bytes::new(),
            }))
        };
        for code in [
            TransportErrorCode::CONNECTION_REFUSED,
            TransportErrorCode::APPLICATION_ERROR,
        ] {
            assert_eq!(closed(code), CarrierEnd::Stopping);
        }
        let alert = closed(TransportErrorCode::crypto(42));
        assert!(matches!(alert, CarrierEnd::Handshake(_)), "{alert:?}");
    }
}

//! How a carrier behaves: windows, timers, packet sizes.

use crate::closing::Closing;
use crate::credit::LEGS_FIRST;
use crate::ids::{self, Ids};
use crate::listen::BindError;
use aws_lc_rs::hmac;
use fairlead_hop::liveness;
use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Settings of one end of a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarrierConfig {
    /// Bytes that the peer may send on one leg before this end's user has read them: the bound of
    /// what one direction of a tunnel costs this process. Default 256 KiB (ARCHITECTURE.md, Hop sessions and legs); more
    /// allows more throughput on long paths and costs more memory and more queueing delay.
    pub leg_window_bytes: u32,
    /// Legs that the peer may have open at once. Default 8,192; both ends of a hop session replace it
    /// when they know better. The peer is told of 1,024, and of more as it comes near its limit: each
    /// costs some 90 bytes, open or not.
    pub legs_max: u32,
    /// Silence that ends the carrier. Default 60 s: a stopped process keeps its carriers for that
    /// long (F-06). Who is dead sooner is decided above it ([`fairlead_hop::liveness`]).
    pub idle_timeout: Duration,
    /// How often a quiet end sends something. Default 1 s: a restarted relay answers the first
    /// such packet with a stateless reset.
    pub keep_alive: Duration,
}

impl Default for CarrierConfig {
    fn default() -> Self {
        Self {
            leg_window_bytes: 256 * 1024,
            legs_max: 8_192,
            idle_timeout: liveness::FROZEN_MAX,
            keep_alive: liveness::KEEP_ALIVE,
        }
    }
}

/// Bytes kept for retransmission over all legs of a carrier; new writes wait above it. Legs take
/// turns, so a large value costs memory, not fairness: 64 legs with a full window each.
const SEND_WINDOW_BYTES: u64 = 16 * 1024 * 1024;
/// Greatest UDP payload that this end takes and looks for. quinn puts 10 datagrams into one system
/// call, whose payload is at most 65,507 bytes (IPv4): above 6,550 the kernel would refuse the
/// batch. Networks with an MTU of 1,500 are found to be so and stay at 1,452.
pub(crate) const DATAGRAM_LEN_MAX: u16 = 6_500;
const _: () = assert!(DATAGRAM_LEN_MAX as u32 * 10 <= 65_507);
/// Socket buffers: two full bursts of many legs. The kernel cuts it down to its own limit
/// (`net.core.rmem_max`).
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Least time between two stateless resets. quinn's 20 ms would take 2 s to tell 100 nodes that
/// their relay restarted.
const RESET_INTERVAL: Duration = Duration::from_micros(200);
/// First guess of a round trip, before there is a sample: private networks. It sets how soon an
/// unanswered first packet is sent again.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Connections that wait to be accepted: a thousand nodes that come at once.
const TCP_BACKLOG: i32 = 1_024;
/// Tries to find a port that is free on both protocols. Most are.
const FREE_TRIES: usize = 32;

impl CarrierConfig {
    /// The settings of quinn, for an endpoint that ends by `closing`.
    pub(crate) fn quic(&self, closing: &Closing) -> TransportConfig {
        let mut config = TransportConfig::default();
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(DATAGRAM_LEN_MAX);
        config
            .max_concurrent_bidi_streams(VarInt::from_u32(self.legs_max.min(LEGS_FIRST).saturating_add(1)))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(self.leg_window_bytes))
            // Never shared between legs: a stalled leg holds its own window and no other's.
            .receive_window(VarInt::MAX)
            .send_window(SEND_WINDOW_BYTES)
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .keep_alive_interval(Some(self.keep_alive))
            .initial_rtt(INITIAL_RTT)
            .mtu_discovery_config(Some(mtu))
            .congestion_controller_factory(closing.controllers());
        config
    }
}

/// The secret from which a relay's stateless-reset tokens and connection ids are made. With the
/// same key, a restarted worker recognises packets of connections it has lost and says so at once.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ResetKey([u8; Self::LEN]);

impl fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetKey(…)")
    }
}

impl ResetKey {
    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// The key of these random bytes, which the caller keeps secret and persists.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Endpoint settings that follow from the key.
    pub(crate) fn endpoint(&self) -> EndpointConfig {
        endpoint(hmac::Key::new(hmac::HMAC_SHA256, &self.0))
    }
}

/// Endpoint settings of a dialler: its connections die with it.
pub(crate) fn dialler_endpoint() -> EndpointConfig {
    endpoint(ids::random_key())
}

fn endpoint(key: hmac::Key) -> EndpointConfig {
    // Without a key of its own, packets of lost connections fail the id's own check and get no reset.
    let tag = hmac::sign(&key, b"fairlead connection ids");
    let of_ids = hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref());
    let mut config = EndpointConfig::new(Arc::new(key));
    config
        .min_reset_interval(RESET_INTERVAL)
        .cid_generator(move || Box::new(Ids::new(of_ids.clone())));
    // In range by the constant above; the default stays otherwise.
    let _ = config.max_udp_payload_size(DATAGRAM_LEN_MAX);
    config
}

/// A UDP socket with room for bursts. An IPv6 wildcard takes IPv4 as well.
pub(crate) fn bind_udp(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if let SocketAddr::V6(v6) = address {
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    // Best effort: a small buffer costs retransmissions, not correctness.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A listening TCP socket on the same terms.
fn bind_tcp(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let SocketAddr::V6(v6) = address {
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    // Connections of a worker that has ended keep the port busy for a minute otherwise. It does not
    // let two listen at once.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(TCP_BACKLOG)?;
    Ok(socket.into())
}

/// A relay's port: hop sessions on UDP, liveness connections on the same number of TCP.
#[derive(Debug)]
pub struct Sockets {
    /// For [`Listener::on`](crate::Listener::on).
    pub udp: std::net::UdpSocket,
    /// For [`LiveListener::on`](crate::LiveListener::on).
    pub tcp: std::net::TcpListener,
}

impl Sockets {
    /// Binds both. Port 0 picks one that is free on both.
    ///
    /// # Errors
    /// One of them is taken or not of this host.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let mut tries = if address.port() == 0 { FREE_TRIES } else { 1 };
        loop {
            tries -= 1;
            let udp = bind_udp(address).map_err(|source| BindError::Bind { address, source })?;
            let both = udp
                .local_addr()
                .map_err(|source| BindError::Bind { address, source })?;
            match bind_tcp(both) {
                Ok(tcp) => return Ok(Self { udp, tcp }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {}
                Err(source) => {
                    return Err(BindError::BindTcp {
                        address: both,
                        source,
                    });
                }
            }
        }
    }
}

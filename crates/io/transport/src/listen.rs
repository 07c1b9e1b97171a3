//! A relay's QUIC listener, and what it does to strangers.
//!
//! Until a peer has proved its address, it costs nothing lasting: when handshakes pile up, or one
//! address has several, a QUIC Retry is demanded first. Handshakes are bounded in number, per
//! address and in time (F-10).

use crate::carrier::{Carrier, CarrierEnd, Count, Counted, canonical};
use crate::closing::Closing;
use crate::config::{CarrierConfig, ResetKey, bind_udp};
use crate::gate::{Gate, ListenerStats};
use crate::socket::ListenSocket;
use crate::tls::{MemberTls, Peer, TlsError, identity_of_chain};
use fairlead_model::RefusalCode;
use fairlead_room::Place;
use fairlead_trust::certificate::CertificateError;
use quinn::TransportConfig;
use quinn::crypto::rustls::QuicServerConfig;
use rustls_pki_types::CertificateDer;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that a handshake may take (ARCHITECTURE.md, Hop sessions and legs).
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Legs of a peer before its handshake is done: its control stream, and none that could be used.
const LEGS_OF_STRANGER_MAX: u32 = 8;
/// First guess of the round trip to a stranger. It is short because quinn keeps a handshake that came to
/// nothing for nine of them and 75 ms, so that its peer hears of it: evicted ones would else outnumber those
/// that may be in progress. To a peer that is farther away the first flight is said again once or twice.
const RTT_OF_STRANGER: Duration = Duration::from_millis(10);
/// Most handshakes at once where nobody sets it.
const HANDSHAKES_MAX: usize = 64;
/// Most connections that are no carriers: handshakes in progress, and three quarters as many that came to
/// nothing and are not gone yet. Where there are more, the next one waits. In a storm 64 places change hands
/// 256 times a second (their grace), and quinn lets 48 go 290 times a second: neither waits for the other.
const fn unproven_max(handshakes_max: usize) -> usize {
    let least = if handshakes_max == 0 { 1 } else { handshakes_max };
    least.saturating_add(least.saturating_mul(3).div_ceil(4))
}
/// What one of them costs (measured, heap at the peak of a storm of whole hellos): quinn's connection, its
/// channel and a send buffer of ten datagrams are 41 KiB, keys 12, rustls's transcript and buffers 15, tasks
/// and places 6.
const UNPROVEN_BYTES: usize = 74 * 1024;
/// How often an arrival that waits for them looks again.
const UNPROVEN_CHECK_EVERY: Duration = Duration::from_millis(5);
/// Most first packets that are no connections yet; quinn drops the next one before it costs anything, and its
/// peer says it again 0.3 s later. They are looked at as they come: who has not proved its address is told to.
pub(crate) const INCOMING_MAX: usize = 128;
/// Most of them that have proved it and wait for places: what changes hands in 0.4 s. More would only let a
/// good node wait longer behind strangers (with 1,024 it was 3 s), not get in sooner.
pub(crate) const WAITING_MAX: usize = INCOMING_MAX / 4 * 3;
/// Most bytes kept of one handshake after its first packet, until it is taken: a ClientHello with
/// X25519MLKEM768 is two packets of 1,200 bytes.
const INCOMING_BYTES: usize = 1_500;
/// What one of them costs beside: its keys 4 KiB, its first packet 2, what quinn keeps of it 3. A stranger may
/// make it 19 more by what is taken of one read ([`crate::socket`]), or by many packets of a few bytes.
const INCOMING_BYTES_BESIDE: usize = 9 * 1024;
/// What all that is said here may cost, of the 16 MiB that a storm at both doors may (R-GEN-02). The other
/// door costs 3 MiB, what malloc loses between them a fifth of all.
const STRANGERS_BYTES_MAX: usize = 10 * 1024 * 1024;
const _: () = assert!(
    unproven_max(HANDSHAKES_MAX) * UNPROVEN_BYTES + INCOMING_MAX * (INCOMING_BYTES + INCOMING_BYTES_BESIDE)
        <= STRANGERS_BYTES_MAX
);

/// Settings of a listener.
#[derive(Debug)]
pub struct ListenerConfig {
    /// Where to listen. `[::]` takes IPv4 as well.
    pub address: SocketAddr,
    /// Persisted by the caller, so that lost connections are recognised after a restart.
    pub reset_key: ResetKey,
    /// How its carriers behave.
    pub carrier: CarrierConfig,
    /// Most handshakes at once. Default 64: with Retry before it, only peers that really answer count, at
    /// some 74 KiB each. One more takes the place of the oldest, which costs as much for another 0.2 s;
    /// three quarters as many of those there may be, 8 MiB in all.
    pub handshakes_max: usize,
    /// Most handshakes at once from one IPv4 address or IPv6 /64. Default 64: a site behind one
    /// address whose nodes all come back at the same moment.
    pub handshakes_per_address_max: usize,
}

impl ListenerConfig {
    /// A listener with default bounds.
    #[must_use]
    pub fn new(address: SocketAddr, reset_key: ResetKey) -> Self {
        Self {
            address,
            reset_key,
            carrier: CarrierConfig::default(),
            handshakes_max: HANDSHAKES_MAX,
            handshakes_per_address_max: 64,
        }
    }
}

/// Why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is taken or not of this host.
    #[error("cannot listen on {address}/udp")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The same of TCP.
    #[error("cannot listen on {address}/tcp")]
    BindTcp {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The TLS settings do not fit QUIC.
    #[error("cannot set up TLS")]
    Tls(#[source] TlsError),
    /// rustls's settings lack what QUIC needs.
    #[error("cannot set up QUIC")]
    Quic(#[source] quinn::crypto::rustls::NoInitialCipherSuite),
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// It took longer than the deadline.
    #[error("no complete handshake within {} s", HANDSHAKE_DEADLINE.as_secs())]
    Deadline,
    /// It failed.
    #[error("the handshake failed")]
    Failed(#[source] CarrierEnd),
    /// The certificate names nobody, although it was verified.
    #[error("the peer's certificate cannot be read")]
    Certificate(#[source] CertificateError),
    /// No certificate came with it.
    #[error("the peer has no certificate")]
    NoCertificate,
    /// There were too many handshakes at once, and others had begun later.
    #[error("a newer handshake took its place")]
    Evicted,
}

/// A relay's listener. Take arrivals with [`accept`](Self::accept) and finish each in a task of
/// its own.
#[derive(Debug)]
pub struct Listener {
    endpoint: quinn::Endpoint,
    closing: Closing,
    template: quinn::ServerConfig,
    /// What a peer may have once it has proved who it is.
    legs_max: AtomicU32,
    tls: Arc<MemberTls>,
    gate: Arc<Gate>,
    /// Peers that have proved their addresses and wait for places.
    waiting: Mutex<VecDeque<quinn::Incoming>>,
    carriers: Count,
    /// Arrivals that are no connections yet.
    arrived: Count,
    unproven_max: usize,
}

/// A peer that has begun a handshake and passed the bounds.
#[derive(Debug)]
pub struct Arriving {
    incoming: quinn::Incoming,
    tls: Arc<MemberTls>,
    legs_max: u32,
    place: Place<IpAddr>,
    carriers: Count,
    arrived: Arc<Counted>,
}

impl Listener {
    /// Opens the port. Needs a tokio runtime.
    ///
    /// # Errors
    /// The port cannot be had, or TLS cannot be set up.
    pub fn bind(config: ListenerConfig, tls: Arc<MemberTls>) -> Result<Self, BindError> {
        let socket = bind_udp(config.address).map_err(|source| BindError::Bind {
            address: config.address,
            source,
        })?;
        Self::on(socket, config, tls)
    }

    /// Listens on a socket that [`Sockets`](crate::Sockets) has bound. Needs a tokio runtime.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn on(
        socket: std::net::UdpSocket,
        config: ListenerConfig,
        tls: Arc<MemberTls>,
    ) -> Result<Self, BindError> {
        let rustls = tls
            .server_config(Peer::AnyMember, fairlead_hop::ALPN)
            .map_err(BindError::Tls)?;
        let crypto = QuicServerConfig::try_from(rustls).map_err(BindError::Quic)?;
        let closing = Closing::default();
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        server
            .transport_config(Arc::new(of_stranger(&config.carrier, &closing)))
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BYTES as u64)
            .incoming_buffer_size_total((INCOMING_MAX * INCOMING_BYTES) as u64);
        let template = server.clone();
        let address = config.address;
        let bind = |source| BindError::Bind { address, source };
        let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
        let socket = ListenSocket(runtime.wrap_udp_socket(socket).map_err(bind)?);
        let endpoint = quinn::Endpoint::new_with_abstract_socket(
            config.reset_key.endpoint(),
            Some(server),
            Arc::new(socket),
            runtime,
        )
        .map_err(bind)?;
        Ok(Self {
            endpoint,
            closing,
            template,
            legs_max: AtomicU32::new(config.carrier.legs_max),
            tls,
            gate: Arc::new(Gate::new(
                config.handshakes_max,
                config.handshakes_per_address_max,
            )),
            waiting: Mutex::default(),
            carriers: Count::default(),
            arrived: Count::default(),
            unproven_max: unproven_max(config.handshakes_max),
        })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The next peer that passes the bounds; `None` once the listener is closed. Cancelled, it may turn
    /// away one peer, which tries again.
    pub async fn accept(&self) -> Option<Arriving> {
        let first = self.waiting().pop_front();
        let incoming = match first {
            Some(first) => first,
            None => self.proved().await?,
        };
        let place = self.place(incoming.remote_address().ip());
        tokio::pin!(place);
        // Who comes meanwhile need not wait to be told to prove its address.
        let place = loop {
            tokio::select! {
                biased;
                place = &mut place => break place,
                next = self.proved() => self.set_aside(next?),
            }
        };
        Some(Arriving {
            incoming,
            tls: Arc::clone(&self.tls),
            legs_max: self.legs_max.load(Ordering::Relaxed),
            place,
            carriers: self.carriers.clone(),
            // Before its task has run: where the processor is short, arrivals are faster.
            arrived: self.arrived.one(),
        })
    }

    /// The next peer that has proved its address, or need not. Cancel-safe.
    async fn proved(&self) -> Option<quinn::Incoming> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if incoming.remote_address_validated()
                || !self.gate.asks_for_proof(incoming.remote_address().ip())
            {
                return Some(incoming);
            }
            // Only fails for a peer that has proved its address, which is not asked again.
            let _ = incoming.retry();
        }
    }

    /// A place for one more connection that is no carrier. Cancel-safe.
    async fn place(&self, from: IpAddr) -> Place<IpAddr> {
        while self.unproven() >= self.unproven_max {
            tokio::time::sleep(UNPROVEN_CHECK_EVERY).await;
        }
        self.gate.enter(from).await
    }

    /// Keeps a peer until it is its turn; one too many says its hello again.
    fn set_aside(&self, incoming: quinn::Incoming) {
        let mut waiting = self.waiting();
        if waiting.len() < WAITING_MAX {
            waiting.push_back(incoming);
        } else {
            incoming.ignore();
        }
    }

    pub(crate) fn waiting(&self) -> MutexGuard<'_, VecDeque<quinn::Incoming>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that are no carriers: not yet, or no more; and arrivals that are to be some.
    pub(crate) fn unproven(&self) -> usize {
        let connections = self.endpoint.open_connections();
        (connections + self.arrived.get()).saturating_sub(self.carriers.get())
    }

    /// Changes how later carriers behave.
    pub fn set_carrier(&self, carrier: &CarrierConfig) {
        let mut server = self.template.clone();
        server.transport_config(Arc::new(of_stranger(carrier, &self.closing)));
        self.legs_max.store(carrier.legs_max, Ordering::Relaxed);
        self.endpoint.set_server_config(Some(server));
    }

    /// Changes the bound per address (policy has a setting for it).
    pub fn set_handshakes_per_address_max(&self, max: usize) {
        self.gate.set_per_address_max(max);
    }

    /// What it has done to peers.
    #[must_use]
    pub fn stats(&self) -> ListenerStats {
        self.gate.stats()
    }

    /// Takes no more peers and closes every carrier with `code`.
    pub fn close(&self, code: RefusalCode) {
        self.closing.begin();
        self.endpoint
            .close(u32::from(code.number()).into(), code.as_str().as_bytes());
    }

    /// Waits until the peers have been told of the close, for `at_most`.
    pub async fn drained(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.endpoint.wait_idle()).await;
    }
}

impl Arriving {
    /// Where the peer is.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    /// Completes the handshake, within 10 s.
    ///
    /// # Errors
    /// The peer was too slow, or is nobody of this pool.
    pub async fn finish(self) -> Result<Carrier, AcceptError> {
        let connecting = self
            .incoming
            .accept()
            .map_err(|error| AcceptError::Failed(error.into()))?;
        drop(self.arrived);
        let connection = tokio::select! {
            shaken = tokio::time::timeout(HANDSHAKE_DEADLINE, connecting) => shaken
                .map_err(|_| AcceptError::Deadline)?
                .map_err(|error| AcceptError::Failed(error.into()))?,
            () = self.place.evicted() => return Err(AcceptError::Evicted),
        };
        drop(self.place);
        let chain = connection
            .peer_identity()
            .and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok())
            .ok_or(AcceptError::NoCertificate)?;
        let (peer, _) = identity_of_chain(&chain, self.tls.domain()).map_err(AcceptError::Certificate)?;
        let carrier =
            Carrier::new(connection, peer, self.legs_max.min(LEGS_OF_STRANGER_MAX)).counted(&self.carriers);
        carrier.set_legs_max(self.legs_max);
        Ok(carrier)
    }
}

/// The carrier of somebody who has proven nothing: quinn keeps some 90 bytes for each leg that its peer
/// may open (F-10).
fn of_stranger(carrier: &CarrierConfig, closing: &Closing) -> TransportConfig {
    let mut config = CarrierConfig {
        legs_max: carrier.legs_max.min(LEGS_OF_STRANGER_MAX),
        ..carrier.clone()
    }
    .quic(closing);
    config.initial_rtt(RTT_OF_STRANGER);
    config
}

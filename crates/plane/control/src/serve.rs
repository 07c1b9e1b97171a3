//! Port 8443: one listener, two faces, told apart by the TLS server name.
//!
//! - [`GRPC_SERVER_NAME`]: gRPC for members. A client certificate of our CA is required; the
//!   identity that it proves goes with every request of the connection.
//! - any other name, or none: REST. No client certificate is asked for.
//!
//! TLS 1.3 only, no resumption, no 0-RTT. Connections are bounded in number, per address, and in
//! the time that a handshake or a request's head may take.

use crate::authority::{AuthorityError, ServerIdentity};
use crate::control::{Control, Inner};
use crate::ledger::CommitError;
use crate::reconcile;
use crate::session::{Caller, service};
use axum::Router;
use axum::extract::Extension;
use fairlead_rpc::GRPC_SERVER_NAME;
use fairlead_trust::certificate::identity_of;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::RootCertStore;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls_pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at once: every node and relay of the largest installation, and admins.
const CONNECTIONS_MAX: usize = crate::plan::NODES_MAX + crate::plan::RELAYS_MAX + 512;
/// Connections of one address at once: nodes behind one NAT share it.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 1_024;
/// TLS handshakes at once. Each costs a signature and a key exchange, 0.5 ms of a core.
const HANDSHAKES_MAX: usize = 256;
/// Handshakes of one address at once: a quarter of all, so that no address alone keeps members out
/// by sending half of a hello (F-10).
const HANDSHAKES_PER_ADDRESS_MAX: usize = 64;
/// How long a TLS handshake may take.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the head of an HTTP/1.1 request may take, idle time between two requests included.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// HTTP/2 keepalive: a member's host that vanished is seen after 15 s.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_WAIT_MAX: Duration = Duration::from_secs(10);
/// Streams of one HTTP/2 connection: a session and a renewal need two.
const STREAMS_MAX: u32 = 64;
/// How often the server certificate's end is looked at.
const CERTIFICATE_CHECK_EVERY: Duration = Duration::from_secs(3600);
/// Pause after `accept` failed: out of descriptors is not cured by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long connections may take to end when the control plane stops.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);

/// The peer's address, in the extensions of every REST request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// Why serving ended before it was cancelled.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The TLS settings cannot be made.
    #[error("making the TLS settings of the control plane's port")]
    Tls(#[source] rustls::Error),
    /// The verifier of client certificates cannot be made.
    #[error("making the verifier of members' certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    /// The listener's address cannot be read.
    #[error("the control plane's listener")]
    Listener(#[source] io::Error),
    /// The server certificate cannot be renewed.
    #[error("renewing the server certificate")]
    Certificate(#[from] AuthorityError),
    /// Another control plane leads, or the store failed for good.
    #[error("the control plane has lost the lead")]
    Lead(#[from] CommitError),
}

/// Serves a control plane until cancelled: members' gRPC, `rest`, and the reconcile loop. Then ends
/// every session and connection, and closes the store.
///
/// # Errors
/// TLS settings cannot be made, or another control plane took the lead.
pub async fn serve(
    control: Control,
    rest: Router,
    listener: TcpListener,
    cancel: CancellationToken,
) -> Result<(), ServeError> {
    let inner = Arc::clone(&control.0);
    let local = listener.local_addr().map_err(ServeError::Listener)?;
    let faces = Mutex::new(Arc::new(Faces::new(&inner)?));
    tracing::info!(%local, "the control plane listens");
    let tasks = TaskTracker::new();
    // Ends when serving ends for whatever reason.
    let stop = cancel.child_token();
    let _ends = stop.clone().drop_guard();
    let mut reconcile = tokio::spawn(reconcile::run(Arc::clone(&inner), stop.clone()));
    let grpc = tonic::service::Routes::new(service(Arc::clone(&inner)))
        .prepare()
        .into_axum_router();
    let acceptor = Acceptor {
        inner: Arc::clone(&inner),
        grpc,
        rest,
        connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        addresses: Arc::default(),
        tasks: tasks.clone(),
        stop: stop.clone(),
    };
    let mut certificate_check = tokio::time::interval(CERTIFICATE_CHECK_EVERY);
    let result = loop {
        tokio::select! {
            () = cancel.cancelled() => break Ok(()),
            ended = &mut reconcile => {
                break match ended {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(error.into()),
                    Err(_) => Err(CommitError::Stopping.into()),
                };
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let faces = Arc::clone(&faces.lock().unwrap_or_else(PoisonError::into_inner));
                    acceptor.take(stream, peer, faces);
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = certificate_check.tick() => {
                if inner.renew_server()? {
                    tracing::info!("the server certificate was renewed");
                    *faces.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(Faces::new(&inner)?);
                }
            }
        }
    };
    drop(listener);
    inner.stopping.cancel();
    stop.cancel();
    inner.sessions.close();
    tasks.close();
    let ended = async {
        inner.sessions.wait().await;
        tasks.wait().await;
        if !reconcile.is_finished() {
            let _ = (&mut reconcile).await;
        }
    };
    if tokio::time::timeout(STOP_WAIT_MAX, ended).await.is_err() {
        tracing::warn!("connections did not end in time");
        reconcile.abort();
    }
    inner.ledger.close().await;
    tracing::info!("the control plane stopped");
    result
}

/// TLS settings of the two faces.
struct Faces {
    grpc: Arc<ServerConfig>,
    rest: Arc<ServerConfig>,
}

impl Faces {
    fn new(inner: &Inner) -> Result<Self, ServeError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let identity = inner.server_identity();
        let mut roots = RootCertStore::empty();
        roots
            .add(inner.authority.ca_der().clone())
            .map_err(ServeError::Tls)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(ServeError::Verifier)?;
        let builder = || {
            ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(ServeError::Tls)
        };
        let grpc = builder()?.with_client_cert_verifier(verifier);
        let rest = builder()?.with_no_client_auth();
        Ok(Self {
            grpc: finish(grpc, &identity, inner.authority.ca_der(), &[b"h2"])?,
            rest: finish(rest, &identity, inner.authority.ca_der(), &[b"h2", b"http/1.1"])?,
        })
    }
}

/// The chain includes the CA: an enrolling host checks it against its pin.
fn finish(
    builder: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    identity: &ServerIdentity,
    ca: &CertificateDer<'static>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, ServeError> {
    let mut chain = identity.chain.clone();
    chain.push(ca.clone());
    let mut config = builder
        .with_single_cert(chain, identity.key.clone_key())
        .map_err(ServeError::Tls)?;
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    // No resumption: each handshake proves identity and revocation anew.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

struct Acceptor {
    inner: Arc<Inner>,
    grpc: Router,
    rest: Router,
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    addresses: Arc<Addresses>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

const _: () = assert!(HANDSHAKES_PER_ADDRESS_MAX * 4 <= HANDSHAKES_MAX);

/// What each address holds.
#[derive(Default)]
struct Addresses(Mutex<BTreeMap<IpAddr, Held>>);

/// What one address holds: connections, of which some are still in their handshake.
#[derive(Default)]
struct Held {
    connections: usize,
    handshakes: usize,
}

/// One connection's place in all bounds; given back when dropped.
struct Place {
    _connection: OwnedSemaphorePermit,
    address: IpAddr,
    addresses: Arc<Addresses>,
    is_shaken: bool,
}

impl Place {
    /// The handshake is over: its share of the address's handshakes is free again.
    fn shaken(&mut self) {
        if !std::mem::replace(&mut self.is_shaken, true) {
            self.addresses.give_back(self.address, false);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shaken();
        self.addresses.give_back(self.address, true);
    }
}

impl Addresses {
    /// Counts one more connection in its handshake; whether the address may have it.
    fn take(&self, address: IpAddr) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = held.entry(address).or_default();
        if of_address.connections >= CONNECTIONS_PER_ADDRESS_MAX
            || of_address.handshakes >= HANDSHAKES_PER_ADDRESS_MAX
        {
            return false;
        }
        of_address.connections += 1;
        of_address.handshakes += 1;
        true
    }

    /// Gives back a connection, or else a handshake.
    fn give_back(&self, address: IpAddr, is_connection: bool) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of_address) = held.get_mut(&address) else {
            return;
        };
        let count = if is_connection {
            &mut of_address.connections
        } else {
            &mut of_address.handshakes
        };
        *count = count.saturating_sub(1);
        if of_address.connections == 0 {
            held.remove(&address);
        }
    }
}

impl Acceptor {
    /// Starts a connection's task, or closes the connection where a bound is reached.
    fn take(&self, stream: TcpStream, peer: SocketAddr, faces: Arc<Faces>) {
        let Some(place) = self.place(peer.ip()) else {
            tracing::debug!(%peer, "a connection was closed: too many");
            return;
        };
        let connection = Connection {
            inner: Arc::clone(&self.inner),
            grpc: self.grpc.clone(),
            rest: self.rest.clone(),
            handshakes: Arc::clone(&self.handshakes),
            stop: self.stop.clone(),
            peer,
            faces,
            place,
        };
        self.tasks.spawn(async move {
            if let Err(reason) = connection.serve(stream).await {
                tracing::debug!(%peer, reason, "a connection ended");
            }
        });
    }

    fn place(&self, address: IpAddr) -> Option<Place> {
        let connection = Arc::clone(&self.connections).try_acquire_owned().ok()?;
        self.addresses.take(address).then(|| Place {
            _connection: connection,
            address,
            addresses: Arc::clone(&self.addresses),
            is_shaken: false,
        })
    }
}

struct Connection {
    inner: Arc<Inner>,
    grpc: Router,
    rest: Router,
    handshakes: Arc<Semaphore>,
    stop: CancellationToken,
    peer: SocketAddr,
    faces: Arc<Faces>,
    place: Place,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) -> Result<(), String> {
        let _ = stream.set_nodelay(true);
        let handshake = async {
            let _turn = self.handshakes.acquire().await.map_err(|e| e.to_string())?;
            self.handshake(stream).await
        };
        let (stream, is_grpc) = tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            shaken = tokio::time::timeout(HANDSHAKE_WAIT_MAX, handshake) => {
                shaken.map_err(|_| "the handshake took too long".to_owned())??
            }
        };
        self.place.shaken();
        let router = if is_grpc {
            let caller = self.caller(&stream)?;
            self.grpc.clone().layer(Extension(caller))
        } else {
            self.rest.clone().layer(Extension(PeerAddress(self.peer)))
        };
        let mut server = auto::Builder::new(TokioExecutor::new());
        server
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WAIT_MAX);
        server
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WAIT_MAX)
            .max_concurrent_streams(STREAMS_MAX);
        let connection =
            server.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router));
        tokio::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(|e| e.to_string()),
            () = self.stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await.map_err(|e| e.to_string())
    }

    /// The handshake of the face that the server name selects; whether it is gRPC's.
    async fn handshake(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, bool), String> {
        let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream)
            .await
            .map_err(|e| e.to_string())?;
        let is_grpc = start.client_hello().server_name() == Some(GRPC_SERVER_NAME);
        let config = if is_grpc {
            &self.faces.grpc
        } else {
            &self.faces.rest
        };
        let stream = start
            .into_stream(Arc::clone(config))
            .await
            .map_err(|e| e.to_string())?;
        Ok((stream, is_grpc))
    }

    /// Who the client certificate says it is: the leaf that proved its key.
    fn caller(&self, stream: &TlsStream<TcpStream>) -> Result<Caller, String> {
        let leaf = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| chain.first())
            .ok_or("no client certificate")?;
        let (identity, _) = identity_of(leaf, &self.inner.domain).map_err(|e| e.to_string())?;
        Ok(Caller(identity))
    }
}

//! Port 8443: one listener, two faces, told apart by the TLS server name.
//!
//! - [`GRPC_SERVER_NAME`]: gRPC for members. A client certificate of our CA is required; the
//!   identity that it proves goes with every request of the connection.
//! - any other name, or none: REST. No client certificate is asked for.
//!
//! TLS 1.3 only, no resumption, no 0-RTT. Unfinished handshakes, members' connections and REST
//! connections each have a room of their own, bounded in number and per holder; the time that a
//! handshake or a request's head may take is bounded too.

mod faces;
mod room;
mod stalls;

pub use stalls::{Endless, Stalls};

use crate::authority::AuthorityError;
use crate::control::{Control, Inner};
use crate::ledger::CommitError;
use crate::metrics::ControlMetrics;
use crate::reconcile;
use crate::session::{Caller, service};
use axum::Router;
use axum::extract::Extension;
use faces::Faces;
use fairlead_model::Identity;
use fairlead_rpc::GRPC_SERVER_NAME;
use fairlead_trust::certificate::{identity_of, key_hash_of};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use room::{Place, Room};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Unfinished handshakes at once: some 10 KiB each. A full room loses the oldest of the address
/// that holds the most, so that half-sent hellos keep nobody out (F-10).
const HANDSHAKES_MAX: usize = 1_024;
/// Of one address: nodes behind one NAT come back at the same moment.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 256;
/// Connections of members at once: every node and relay of the largest installation, and those that
/// overlap while a member changes its certificate.
const MEMBERS_MAX: usize = crate::plan::NODES_MAX + crate::plan::RELAYS_MAX + 512;
/// Of one member: its session's, a renewal's, and those that have died without a word.
const PER_MEMBER_MAX: usize = 4;
/// REST connections at once. They have proven nothing: their room is not the members'.
const REST_MAX: usize = 1_024;
/// Of one address.
const REST_PER_ADDRESS_MAX: usize = 256;
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
    if let Some(metrics) = &inner.settings.metrics {
        ControlMetrics::register(metrics).follow(metrics, &inner);
    }
    let mut reconcile = JoinSet::new();
    reconcile.spawn(reconcile::run(Arc::clone(&inner), stop.clone()));
    let grpc = tonic::service::Routes::new(service(Arc::clone(&inner)))
        .prepare()
        .into_axum_router();
    let acceptor = Acceptor {
        inner: Arc::clone(&inner),
        grpc,
        rest,
        rooms: Rooms {
            handshakes: Room::new(HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX),
            members: Room::new(MEMBERS_MAX, PER_MEMBER_MAX),
            rest: Room::new(REST_MAX, REST_PER_ADDRESS_MAX),
        },
        tasks: tasks.clone(),
        stop: stop.clone(),
    };
    let mut certificate_check = tokio::time::interval(CERTIFICATE_CHECK_EVERY);
    let result = loop {
        tokio::select! {
            () = cancel.cancelled() => break Ok(()),
            ended = reconcile.join_next() => {
                break match ended {
                    Some(Ok(Ok(()))) => Ok(()),
                    Some(Ok(Err(error))) => Err(error.into()),
                    Some(Err(_)) | None => Err(CommitError::Stopping.into()),
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
        while reconcile.join_next().await.is_some() {}
    };
    if tokio::time::timeout(STOP_WAIT_MAX, ended).await.is_err() {
        tracing::warn!("connections did not end in time");
        reconcile.abort_all();
    }
    inner.ledger.close().await;
    tracing::info!("the control plane stopped");
    result
}

/// Where connections are counted.
#[derive(Clone)]
struct Rooms {
    handshakes: Arc<Room<IpAddr>>,
    members: Arc<Room<Identity>>,
    rest: Arc<Room<IpAddr>>,
}

struct Acceptor {
    inner: Arc<Inner>,
    grpc: Router,
    rest: Router,
    rooms: Rooms,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Acceptor {
    /// Starts a connection's task.
    fn take(&self, stream: TcpStream, peer: SocketAddr, faces: Arc<Faces>) {
        let place = self.rooms.handshakes.enter(peer.ip());
        let connection = Connection {
            inner: Arc::clone(&self.inner),
            grpc: self.grpc.clone(),
            rest: self.rest.clone(),
            rooms: self.rooms.clone(),
            stop: self.stop.clone(),
            peer,
            faces,
        };
        self.tasks.spawn(async move {
            if let Err(reason) = connection.run(stream, place).await {
                tracing::debug!(%peer, reason, "a connection ended");
            }
        });
    }
}

/// Why a connection had to make room.
const EVICTED: &str = "a newer one took its place";

struct Connection {
    inner: Arc<Inner>,
    grpc: Router,
    rest: Router,
    rooms: Rooms,
    stop: CancellationToken,
    peer: SocketAddr,
    faces: Arc<Faces>,
}

impl Connection {
    /// The handshake, then the face that it selected.
    async fn run(self, stream: TcpStream, place: Place<IpAddr>) -> Result<(), String> {
        let _ = stream.set_nodelay(true);
        let (stream, is_grpc) = tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            () = place.evicted() => return Err(EVICTED.to_owned()),
            shaken = tokio::time::timeout(HANDSHAKE_WAIT_MAX, self.handshake(stream)) => {
                shaken.map_err(|_| "the handshake took too long".to_owned())??
            }
        };
        drop(place);
        if is_grpc {
            let caller = self.caller(&stream)?;
            let place = self.rooms.members.enter(caller.identity);
            let router = self.grpc.clone().layer(Extension(caller));
            self.serve(stream, router, place, Stalls::default()).await
        } else {
            let place = self.rooms.rest.enter(self.peer.ip());
            let stalls = Stalls::default();
            let router = self.rest.clone();
            let router = router
                .layer(Extension(PeerAddress(self.peer)))
                .layer(Extension(stalls.clone()));
            self.serve(stream, router, place, stalls).await
        }
    }

    async fn serve<Key: Ord>(
        &self,
        stream: TlsStream<TcpStream>,
        router: Router,
        place: Place<Key>,
        stalls: Stalls,
    ) -> Result<(), String> {
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
            () = place.evicted() => return Err(EVICTED.to_owned()),
            () = stalls.stalled() => return Err("its reader stopped reading".to_owned()),
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
        let key_hash = key_hash_of(leaf).map_err(|e| e.to_string())?;
        Ok(Caller {
            identity,
            key_hash,
            address: self.peer.ip().to_canonical(),
        })
    }
}

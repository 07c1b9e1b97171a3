//! Port 8443: one listener, two faces, told apart by the TLS server name.
//!
//! - [`GRPC_SERVER_NAME`]: gRPC for members. A client certificate of our CA is required; the
//!   identity that it proves goes with every request of the connection.
//! - any other name, or none: REST. No client certificate is asked for.
//!
//! TLS 1.3 only, no resumption, no 0-RTT. Unfinished handshakes, members' connections and REST
//! connections each have a room of their own, bounded in number and per holder; the time that a
//! handshake or a request's head may take is bounded too, and a connection on which nothing happens
//! is closed.

mod activity;
mod faces;
mod http;
mod stalls;

pub use stalls::{Endless, Stalls};

use crate::authority::AuthorityError;
use crate::control::{Control, Inner};
use crate::ledger::CommitError;
use crate::metrics::ControlMetrics;
use crate::reconcile;
use crate::session::{Caller, service};
use activity::Activity;
use axum::Router;
use axum::extract::Extension;
use faces::Faces;
use fairlead_host::descriptors::is_exhaustion;
use fairlead_host::{DescriptorBudget, DescriptorPlace};
use fairlead_model::Identity;
use fairlead_room::{Place, Room, accountable};
use fairlead_rpc::GRPC_SERVER_NAME;
use fairlead_telemetry::RateLimitedLog;
use fairlead_trust::certificate::{identity_of, key_hash_of};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Unfinished handshakes at once: some 18 KiB each, 9 MiB in all. A full room loses the oldest of
/// the address that holds the most, so that half-sent hellos keep nobody out (F-10).
const HANDSHAKES_MAX: usize = 512;
/// A handshake's place is its own for so long: it takes some tens of milliseconds, of which a storm of
/// strangers makes more. 2,048 of them a second get in at least; the others wait in the backlog.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(250);
/// How often a freed place is looked for where all are within their grace.
const PLACE_CHECK_EVERY: Duration = Duration::from_millis(10);
/// Of one address: nodes behind one NAT come back at the same moment.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 128;
/// Connections of members at once: every node and relay of the largest pool, and those that
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
/// How often the server certificate's end is looked at.
const CERTIFICATE_CHECK_EVERY: Duration = Duration::from_secs(3600);
/// Pause after `accept` failed: out of descriptors is not cured by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a lasting shortage is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// How long a connection that was told to end may take over it.
const GOODBYE_WAIT_MAX: Duration = Duration::from_secs(3);
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
        ControlMetrics::register(metrics, &inner.revocations).follow(metrics, &inner);
    }
    let mut reconcile = JoinSet::new();
    reconcile.spawn(reconcile::run(Arc::clone(&inner), stop.clone()));
    // A log of years takes seconds to read: members are not kept waiting for it.
    let mut audit = JoinSet::new();
    let checked = control.clone();
    audit.spawn(async move { checked.watch_audit().await });
    let grpc = tonic::service::Routes::new(service(Arc::clone(&inner)))
        .prepare()
        .into_axum_router();
    let acceptor = Acceptor {
        inner: Arc::clone(&inner),
        grpc,
        rest,
        rooms: Rooms {
            handshakes: Room::with_grace(HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX, HANDSHAKE_GRACE),
            members: Room::new(MEMBERS_MAX, PER_MEMBER_MAX),
            rest: Room::new(REST_MAX, REST_PER_ADDRESS_MAX),
        },
        descriptors: DescriptorBudget::default(),
        arrivals: AtomicU64::new(0),
        log: RateLimitedLog::new(LOG_EVERY),
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
                    acceptor.take(stream, peer, faces).await;
                }
                Err(error) if is_exhaustion(&error) => {
                    acceptor.short(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                // A connection that ended before it was accepted.
                Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
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
    handshakes: Room<IpAddr>,
    members: Room<Identity>,
    rest: Room<IpAddr>,
}

struct Acceptor {
    inner: Arc<Inner>,
    grpc: Router,
    rest: Router,
    rooms: Rooms,
    descriptors: DescriptorBudget,
    /// Connections so far.
    arrivals: AtomicU64,
    log: RateLimitedLog,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Acceptor {
    /// Starts a connection's task; waits for a place first where all are new, at most for the grace:
    /// who comes next waits in the listener's backlog.
    async fn take(&self, stream: TcpStream, peer: SocketAddr, faces: Arc<Faces>) {
        let Some(descriptor) = self.descriptor() else {
            return;
        };
        let place = loop {
            match self
                .rooms
                .handshakes
                .try_enter(accountable(peer.ip()), std::time::Instant::now())
            {
                Ok(place) => break place,
                Err(all) => tokio::time::sleep(all.wait.min(PLACE_CHECK_EVERY)).await,
            }
        };
        let connection = Connection {
            inner: Arc::clone(&self.inner),
            grpc: self.grpc.clone(),
            rest: self.rest.clone(),
            rooms: self.rooms.clone(),
            stop: self.stop.clone(),
            peer,
            arrival: self.arrivals.fetch_add(1, Ordering::Relaxed),
            faces,
        };
        self.tasks.spawn(async move {
            let _descriptor = descriptor;
            if let Err(reason) = connection.run(stream, place).await {
                tracing::debug!(%peer, reason, "a connection ended");
            }
        });
    }

    /// A descriptor for a connection. Where only the reserve is left, somebody who has proven
    /// nothing makes room; members do not (F-09).
    fn descriptor(&self) -> Option<DescriptorPlace> {
        if let Some(place) = self.descriptors.take() {
            return Some(place);
        }
        self.short(&"only the reserve is left");
        (self.rooms.handshakes.make_room() || self.rooms.rest.make_room())
            .then(|| self.descriptors.take_over())
    }

    fn short(&self, error: &dyn std::fmt::Display) {
        if let Some(suppressed) = self.log.allow(std::time::Instant::now()) {
            tracing::warn!(%error, suppressed, "short of descriptors or memory for connections; raise the limit (LimitNOFILE)");
        }
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
    /// Its place in the order of connections.
    arrival: u64,
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
            let server = http::member_server();
            let watched = (Activity::of_member(), Stalls::default());
            // Boxed, here and below: else each handshake would hold the room that serving takes.
            Box::pin(self.serve(stream, server, router, place, watched)).await
        } else {
            let place = self.rooms.rest.enter(accountable(self.peer.ip()));
            let stalls = Stalls::default();
            let router = self.rest.clone();
            let router = router
                .layer(Extension(PeerAddress(self.peer)))
                .layer(Extension(stalls.clone()));
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let server = http::rest_server(is_h2);
            let watched = (Activity::of_stranger(), stalls);
            Box::pin(self.serve(stream, server, router, place, watched)).await
        }
    }

    async fn serve<Key: Ord>(
        &self,
        stream: TlsStream<TcpStream>,
        server: http::Server,
        router: Router,
        place: Place<Key>,
        (activity, stalls): (Activity, Stalls),
    ) -> Result<(), String> {
        let router = activity.watch(router);
        let connection =
            server.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router));
        tokio::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(|e| e.to_string()),
            () = place.evicted() => return Err(EVICTED.to_owned()),
            () = stalls.stalled() => return Err("its reader stopped reading".to_owned()),
            () = activity.over() => {}
            () = self.stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::time::timeout(GOODBYE_WAIT_MAX, connection)
            .await
            .map_err(|_| "it did not end when it was told to".to_owned())?
            .map_err(|e| e.to_string())
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
            arrival: self.arrival,
        })
    }
}

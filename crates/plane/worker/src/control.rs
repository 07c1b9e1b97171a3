//! The supervisor's hold on the worker: gRPC on a Unix socket that only its user can open.

mod incoming;

use crate::identity::{Identities, ReloadError};
use crate::policy::ApplyError;
use crate::relay::Relay;
use fairlead_rpc::pb;
use fairlead_rpc::pb::worker_control_server::{WorkerControl, WorkerControlServer};
use fairlead_telemetry::chain;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

/// The greatest message: a policy envelope (1 MiB) and its lease, with room for the framing.
const MESSAGE_LEN_MAX: usize = 3 * 1024 * 1024;
/// Calls at once. A supervisor makes one at a time beside its watch; two overlap while one
/// supervisor adopts from another.
const CALLS_MAX: usize = 16;
/// Calls of one connection that are taken up at all.
const STREAMS_MAX: u32 = 64;
/// Decoded headers of one call, and with them CONTINUATION frames.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Calls that are reset before they are taken up, and for faults: more end the connection.
const RESET_BEFORE_TAKEN_MAX: usize = 20;
const RESET_FOR_FAULTS_MAX: usize = 64;
/// Keepalive: the other end answers, so that one that says nothing is known (`incoming`).
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a watcher is told of numbers that move all the time (tunnels, bytes, memory).
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Statuses that wait for a watcher; it is given the latest, so more would be stale.
const WATCH_QUEUE: usize = 1;

/// What a supervisor asked for with Stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopAsked {
    /// Time that live tunnels are given.
    pub(crate) grace: Duration,
}

/// What the service answers from.
#[derive(Debug, Clone)]
pub(crate) struct ControlService {
    pub(crate) relay: Arc<Relay>,
    pub(crate) identities: Arc<Identities>,
    pub(crate) stop: watch::Sender<Option<StopAsked>>,
    pub(crate) facts: Arc<Facts>,
}

/// What does not change in one run.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) version: &'static str,
    pub(crate) listening: String,
    pub(crate) metrics: String,
}

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the supervisor on {}", path.display())]
pub struct SocketError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Opens the socket with mode 0600. One left behind by a dead worker is replaced: the caller holds
/// the folder's lock, so no live one can be there.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let at = |source| SocketError {
        path: path.to_owned(),
        source,
    };
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(at(error)),
    }
    // Until the mode is set, the folder's own mode (0700) keeps others out.
    let listener = UnixListener::bind(path).map_err(at)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(at)?;
    Ok(listener)
}

/// Serves the supervisor until `cancel`.
pub(crate) async fn serve(listener: UnixListener, service: ControlService, cancel: CancellationToken) {
    let service = WorkerControlServer::new(service).max_decoding_message_size(MESSAGE_LEN_MAX);
    let served = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(CALLS_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESET_BEFORE_TAKEN_MAX))
        .http2_max_local_error_reset_streams(Some(RESET_FOR_FAULTS_MAX))
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_WAIT_MAX))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming::connections(listener), cancel.cancelled_owned())
        .await;
    if let Err(error) = served {
        warn!(reason = %chain(&error), "the supervisor's socket failed");
    }
}

impl ControlService {
    fn status(&self) -> pb::WorkerStatusResponse {
        let resources = fairlead_host::resources();
        let clock_behind = self.relay.look_at_clock().unwrap_or_default();
        pb::WorkerStatusResponse {
            version: self.facts.version.to_owned(),
            pid: std::process::id(),
            process_boot_id: self.relay.process_boot.to_bytes().to_vec().into(),
            listening: self.facts.listening.clone(),
            applied: self.relay.policy.current().head().map(Into::into),
            policy_refused: self.relay.policy.last_refusal(),
            live_tunnels: self.relay.tunnels.len() as u64,
            hop_sessions: self.relay.sessions() as u64,
            memory_bytes: resources.rss_bytes,
            open_descriptors: resources.fds_open,
            bytes_relayed: self.relay.metrics.relayed_bytes.get(),
            metrics: self.facts.metrics.clone(),
            cloned_nodes: self.relay.cloned_nodes(),
            clock_behind_ms: u64::try_from(clock_behind.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Runs `work` to its end even where its supervisor gives up on the call: what has come into force
    /// is enforced.
    async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        match self.relay.tasks.spawn(work).await {
            Ok(answer) => Ok(Response::new(answer)),
            Err(error) => Err(Status::internal(format!("the call ended abnormally: {error}"))),
        }
    }

    fn applied(&self, outcome: &Result<(), ApplyError>) -> pb::ApplyPolicyResponse {
        // What cannot be written is enforced too, as far as it takes away.
        if !matches!(outcome, Err(ApplyError::Open(_) | ApplyError::Refused(_))) {
            self.relay.enforce();
        }
        pb::ApplyPolicyResponse {
            applied: outcome.is_ok(),
            refused: outcome.as_ref().err().map(|e| chain(e)).unwrap_or_default(),
            head: self.relay.policy.current().head().map(Into::into),
        }
    }
}

#[tonic::async_trait]
impl WorkerControl for ControlService {
    type WatchStream = ReceiverStream<Result<pb::WorkerStatusResponse, Status>>;

    async fn status(
        &self,
        _: Request<pb::WorkerStatusRequest>,
    ) -> Result<Response<pb::WorkerStatusResponse>, Status> {
        Ok(Response::new(Self::status(self)))
    }

    async fn watch(
        &self,
        _: Request<pb::WorkerStatusRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (to_watcher, stream) = mpsc::channel(WATCH_QUEUE);
        let service = self.clone();
        self.relay.tasks.spawn(async move {
            let mut changes = service.relay.policy.changes();
            loop {
                if to_watcher.send(Ok(Self::status(&service))).await.is_err() {
                    return;
                }
                tokio::select! {
                    _ = changes.changed() => {}
                    () = tokio::time::sleep(WATCH_INTERVAL) => {}
                    () = to_watcher.closed() => return,
                    () = service.relay.ended.cancelled() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn apply_policy(
        &self,
        request: Request<pb::SignedPolicy>,
    ) -> Result<Response<pb::ApplyPolicyResponse>, Status> {
        let signed = request.into_inner();
        let service = self.clone();
        self.to_the_end(async move {
            let keeper = &service.relay.policy;
            let outcome = keeper.apply_policy(&signed.policy_envelope, &signed.lease_envelope);
            service.applied(&outcome.await)
        })
        .await
    }

    async fn apply_lease(
        &self,
        request: Request<pb::ApplyLeaseRequest>,
    ) -> Result<Response<pb::ApplyPolicyResponse>, Status> {
        let lease = request.into_inner().lease_envelope;
        let service = self.clone();
        self.to_the_end(async move {
            let outcome = service.relay.policy.apply_lease(&lease).await;
            service.applied(&outcome)
        })
        .await
    }

    async fn reload_identity(
        &self,
        _: Request<pb::ReloadIdentityRequest>,
    ) -> Result<Response<pb::ReloadIdentityResponse>, Status> {
        self.identities
            .reload()
            .and_then(|()| self.relay.policy.reload_keys().map_err(ReloadError::Keys))
            .map_err(|error| {
                warn!(reason = %chain(&error), "identity not reloaded");
                Status::failed_precondition(chain(&error))
            })?;
        info!("identity and trust reloaded");
        Ok(Response::new(pb::ReloadIdentityResponse {}))
    }

    async fn stop(&self, request: Request<pb::StopRequest>) -> Result<Response<pb::StopResponse>, Status> {
        let grace = Duration::from_millis(request.into_inner().grace_ms.into());
        self.stop.send_replace(Some(StopAsked { grace }));
        Ok(Response::new(pb::StopResponse {}))
    }
}

//! A relay's traffic process: takes hop sessions from nodes, admits tunnels by signed policy, and
//! moves their bytes.
//!
//! ```text
//! supervisor ── gRPC, worker.sock ──► control ──► policy (verified, on disk, in force)
//! node ── QUIC ──► session ── control stream ──► registrations
//!                     └────── leg ──► open ── verdict ──► publisher's leg ──► splice
//! ```
//! It cannot read what it carries: records are sealed from daemon to daemon, and this crate has no
//! way to the crate that seals them. It needs no control plane to admit, only a policy with a live
//! lease, and keeps both on disk.

mod budget;
mod control;
mod grants;
mod identity;
mod liveness;
mod metrics;
mod open;
mod policy;
mod relay;
mod session;
mod splice;
mod told;
mod tunnels;

#[cfg(test)]
mod tests;

pub use control::SocketError;
pub use identity::ReloadError;
pub use policy::PolicyStateError;

use crate::control::{ControlService, Facts, StopAsked};
use crate::identity::Identities;
use crate::metrics::WorkerMetrics;
use crate::policy::PolicyKeeper;
use crate::relay::{Relay, RelayParts};
use fairlead_host::member::{MemberError, MemberFolder, MemberRole, RuntimeInfo};
use fairlead_host::{Clock, FileError, FolderLock, LockError, SystemClock};
use fairlead_model::{Identity, RefusalCode};
use fairlead_telemetry::{Health, Metrics, Served, chain, metric};
pub use fairlead_transport::BindError;
use fairlead_transport::{Listener, ListenerConfig, LiveListener, ResetKey, Sockets, TlsError};
use fairlead_trust::admission::LeaseState;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// What a worker is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The relay's member folder; the worker's own files are in `worker/` inside it.
    pub dir: PathBuf,
    /// Address for hop sessions (UDP) and liveness connections (TCP). Port 0 picks one that is free
    /// on both.
    pub listen: SocketAddr,
    /// Address for metrics and health; none without.
    pub metrics: Option<SocketAddr>,
    /// Software version, reported to the supervisor.
    pub version: &'static str,
}

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The member folder is not a relay's, or cannot be read.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The folder holds a node's identity.
    #[error("{} is a node's folder, not a relay's", .0.display())]
    NotARelay(PathBuf),
    /// Another worker runs in the folder.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The worker's folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// Certificate, key or CA cannot be used.
    #[error(transparent)]
    Identity(#[from] ReloadError),
    /// The reset key's file holds something else.
    #[error("{} does not hold a reset key of {} bytes", .0.display(), ResetKey::LEN)]
    ResetKey(PathBuf),
    /// The stored policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyStateError),
    /// The port cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Liveness connections cannot be listened for.
    #[error("cannot listen for liveness connections")]
    Live(#[source] TlsError),
    /// The port's own address cannot be read.
    #[error("cannot read the address of the listener")]
    Address(#[source] io::Error),
    /// The metrics address cannot be had.
    #[error("cannot serve metrics")]
    Metrics(#[source] fairlead_telemetry::ServeError),
    /// The supervisor's socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Registers every metric of a worker in `registry`, unset: for the reference page.
pub fn describe_metrics(registry: &fairlead_telemetry::Metrics) {
    let _ = metrics::WorkerMetrics::register(registry);
}

/// What live tunnels are given when the process is told to end (SIGTERM).
const STOP_GRACE: Duration = Duration::from_secs(2);
/// The longest grace that a supervisor may ask for: the drain wait of R-UPD-02.
const STOP_GRACE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long the end waits for tasks and for peers to hear of it.
const END_WAIT: Duration = Duration::from_secs(1);
/// How often the policy's clocks are written to disk and registrations are swept.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// How often a policy that could not be written is tried again.
const SAVE_AGAIN: Duration = Duration::from_secs(5);

/// Runs a worker until `cancel`, or until its supervisor stops it.
///
/// Dropping the future ends every task at once; like kill -9, it leaves nothing that would need a
/// clean end.
///
/// # Errors
/// It cannot start. Once it listens, it ends without an error.
pub async fn run(config: WorkerConfig, cancel: CancellationToken) -> Result<(), WorkerError> {
    let folder = MemberFolder::new(config.dir.clone());
    let member = folder.load()?;
    let id = match member.role {
        MemberRole::Relay(id) => id,
        MemberRole::Node(_) => return Err(WorkerError::NotARelay(config.dir)),
    };
    let own_folder = folder.worker_dir();
    fairlead_host::file::make_folder(&own_folder, 0o700)?;
    let _lock = FolderLock::acquire(&own_folder)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let identities = Arc::new(Identities::load(
        &folder,
        member.trust_domain,
        Identity::Relay(id),
    )?);
    let policy = Arc::new(PolicyKeeper::restore(&folder, id, Arc::clone(&clock))?);
    let mut listener = ListenerConfig::new(config.listen, reset_key(&own_folder.join("reset.key"))?);
    let settings = policy.current().settings();
    listener.carrier = relay::carrier_config(&settings);
    listener.handshakes_per_address_max = settings.handshakes_per_address_max as usize;
    let sockets = Sockets::bind(config.listen)?;
    let live_listener = LiveListener::on(
        sockets.tcp,
        Arc::clone(identities.tls()),
        listener.handshakes_per_address_max,
    )
    .map_err(WorkerError::Live)?;
    let listener = Listener::on(sockets.udp, listener, Arc::clone(identities.tls()))?;
    let listening = listener.local_address().map_err(WorkerError::Address)?;
    let registry = Metrics::new("worker");
    let metrics = WorkerMetrics::register(&registry);
    let relay = Arc::new(Relay::new(RelayParts {
        id,
        clock,
        policy,
        listener,
        live_listener,
        metrics,
    }));
    let _ended = relay.ended.clone().drop_guard();
    watch_numbers(&relay, &registry);
    let served = match config.metrics {
        None => None,
        Some(address) => Some(
            fairlead_telemetry::serve(address, registry, health(&relay), relay.ended.clone())
                .await
                .map_err(WorkerError::Metrics)?,
        ),
    };
    let socket = control::bind(&own_folder.join("worker.sock"))?;
    let (stop, asked) = watch::channel(None);
    let metrics_url = served.as_ref().map(Served::url);
    let service = ControlService {
        relay: Arc::clone(&relay),
        identities,
        stop,
        facts: Arc::new(Facts {
            version: config.version,
            listening: listening.to_string(),
            metrics: metrics_url.clone().unwrap_or_default(),
        }),
    };
    let _control = AbortOnDropHandle::new(relay.tasks.spawn(control::serve(
        socket,
        service,
        relay.ended.clone(),
    )));
    let _arrivals = AbortOnDropHandle::new(relay.tasks.spawn(arrivals(Arc::clone(&relay))));
    let _live = AbortOnDropHandle::new(relay.tasks.spawn(liveness::arrivals(Arc::clone(&relay))));
    let _memory = AbortOnDropHandle::new(relay.tasks.spawn(relay.memory.clone().run(relay.ended.clone())));
    let _keeping = AbortOnDropHandle::new(relay.tasks.spawn(keeping(Arc::clone(&relay))));
    let runtime = own_folder.join("runtime.json");
    let announced = fairlead_host::member::announce(
        runtime.clone(),
        RuntimeInfo {
            pid: std::process::id(),
            metrics_url,
            listen: Some(listening.to_string()),
        },
    );
    info!(%listening, relay = %id, "worker listens");
    fairlead_host::notify_ready();
    let grace = told_to_stop(asked, cancel).await;
    fairlead_host::notify_stopping();
    end(&relay, grace).await;
    announced.end().await;
    fairlead_host::file::remove(&runtime)?;
    Ok(())
}

/// Waits until the worker is to end; how long live tunnels are given.
async fn told_to_stop(mut asked: watch::Receiver<Option<StopAsked>>, cancel: CancellationToken) -> Duration {
    tokio::select! {
        () = cancel.cancelled() => STOP_GRACE,
        asked = asked.wait_for(Option::is_some) => match asked.ok().and_then(|asked| *asked) {
            Some(asked) => asked.grace.min(STOP_GRACE_MAX),
            None => STOP_GRACE,
        },
    }
}

/// Refuses new tunnels, waits for the live ones within `grace`, then tells every peer.
async fn end(relay: &Relay, grace: Duration) {
    relay.stopping.cancel();
    let live = relay.tunnels.len();
    info!(live, ?grace, "worker stops");
    let _ = tokio::time::timeout(grace, relay.tunnels.none_left()).await;
    relay.tunnels.close_where(|_| Some(RefusalCode::ShuttingDown));
    relay.listener.close(RefusalCode::ShuttingDown);
    relay.ended.cancel();
    relay.tasks.close();
    let _ = tokio::time::timeout(END_WAIT, relay.tasks.wait()).await;
    relay.listener.drained(END_WAIT).await;
}

/// Hands each arrival to a task of its own, until the listener is closed.
async fn arrivals(relay: Arc<Relay>) {
    while let Some(arriving) = relay.listener.accept().await {
        let number = relay.next_session();
        relay
            .tasks
            .spawn(session::serve(Arc::clone(&relay), number, arriving));
    }
}

/// Writes the policy's clocks to disk and sweeps registrations, now and then.
async fn keeping(relay: Arc<Relay>) {
    let mut changes = relay.policy.changes();
    let mut saved = tokio::time::Instant::now();
    loop {
        let wait = if relay.policy.current().is_kept() {
            SAVE_INTERVAL
        } else {
            SAVE_AGAIN
        };
        tokio::select! {
            () = relay.ended.cancelled() => return,
            // One that cannot be written shortens the wait.
            _ = changes.changed() => continue,
            () = tokio::time::sleep_until(saved + wait) => {}
        }
        saved = tokio::time::Instant::now();
        if relay.policy.current().newest().head().is_some() {
            match relay.policy.save().await {
                Ok(true) => relay.enforce(),
                Ok(false) => {}
                Err(error) => warn!(reason = %chain(&error), "policy state not saved"),
            }
        }
        relay.sweep();
        let _ = relay.look_at_clock();
    }
}

/// Gauges that are read rather than counted.
fn watch_numbers(relay: &Arc<Relay>, registry: &Metrics) {
    let relay = Arc::downgrade(relay);
    let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    registry.on_scrape(move || {
        let Some(relay) = relay.upgrade() else { return };
        let m = &relay.metrics;
        let (handshakes, live) = (relay.listener.stats(), relay.live_listener.stats());
        m.handshakes_pending
            .set(gauge((handshakes.pending + live.pending) as u64));
        metric::set(&m.handshakes_retried, handshakes.retried);
        metric::set(&m.handshakes_refused, handshakes.refused + live.refused);
        m.live_tunnels.set(gauge(relay.tunnels.len() as u64));
        m.limits(&relay.limits_used());
        let (admission, now) = (relay.policy.current(), relay.policy.now());
        m.policy_revision
            .set(gauge(admission.head().map_or(0, |head| head.revision.0)));
        let age = admission.lease_signed_at().map(|at| now.wall.since(at));
        m.policy_age.set(age.unwrap_or_default().as_secs_f64());
        m.lease_left.set(match admission.lease_state(now) {
            LeaseState::Valid(left) => left.as_secs_f64(),
            LeaseState::Missing | LeaseState::Ended => 0.0,
        });
    });
}

/// Ready is a worker that would admit.
fn health(relay: &Arc<Relay>) -> fairlead_telemetry::HealthFn {
    let relay = Arc::downgrade(relay);
    Arc::new(move || {
        let Some(relay) = relay.upgrade() else {
            return Health::NotReady("stopped".to_owned());
        };
        if relay.stopping.is_cancelled() {
            return Health::NotReady("stopping".to_owned());
        }
        match relay.policy.current().lease_state(relay.policy.now()) {
            LeaseState::Valid(_) => Health::Ready,
            LeaseState::Missing => Health::NotReady("no policy".to_owned()),
            LeaseState::Ended => Health::NotReady("the policy lease has ended".to_owned()),
        }
    })
}

/// Reads the key that makes lost connections known after a restart, or makes it.
fn reset_key(path: &Path) -> Result<ResetKey, WorkerError> {
    match fairlead_host::secret::read(path, ResetKey::LEN) {
        Ok(bytes) => <[u8; ResetKey::LEN]>::try_from(bytes.as_slice())
            .map(ResetKey::from_bytes)
            .map_err(|_| WorkerError::ResetKey(path.to_owned())),
        Err(error) if error.is_absent() => {
            let bytes = fairlead_host::rng::bytes();
            fairlead_host::secret::write(path, &bytes)?;
            Ok(ResetKey::from_bytes(bytes))
        }
        Err(error) => Err(error.into()),
    }
}

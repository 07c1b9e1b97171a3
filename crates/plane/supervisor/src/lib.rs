//! The relay's manager process: it holds the relay's session with the control plane, keeps the
//! worker running and passes policy, leases and trust to it.
//!
//! It carries no byte of any tunnel and keeps no policy on disk: the worker verifies and persists
//! what it is given, so that a supervisor that dies (or is updated) costs nothing. A worker
//! outlives its supervisor's sudden end and is adopted by the next one; a supervisor that is asked
//! to stop stops its worker first.
//!
//! Two loops, in one task group that [`run`] ends: the keeper owns the worker's process and feeds
//! it; the session speaks with the control plane. They share what is wanted of the worker and what
//! is observed of it, both watched values, bounded and coalescing.

mod identity;
mod keeper;
mod metrics;
mod process;
pub use process::SUPERVISED;
pub mod restart;
mod session;
mod shared;

use crate::metrics::SupervisorMetrics;
use fairlead_host::member::{MEND, MemberError, MemberFolder, MemberRole, RuntimeInfo};
use fairlead_host::{Clock, FolderLock, LockError, SystemClock};
use fairlead_telemetry::{Health, Metrics, ServeError};
use fairlead_transport::{CarrierConfig, DialError, Dialler, TlsError};
use shared::{Shared, WorkerPhase};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a supervisor is started with.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    /// The relay's member folder, as enrolment left it.
    pub dir: PathBuf,
    /// How the worker is started.
    pub worker: WorkerCommand,
    /// Where metrics and health are served; `None` serves none.
    pub metrics: Option<SocketAddr>,
    /// Version of this program, as the control plane shows it.
    pub version: &'static str,
}

/// Registers every metric of a supervisor in `registry`, unset: for the reference page.
pub fn describe_metrics(registry: &fairlead_telemetry::Metrics) {
    let _ = metrics::SupervisorMetrics::register(registry);
}

/// The worker's program and arguments.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The program, by path.
    pub program: PathBuf,
    /// Its arguments, to which `--listen` and the relay's address are added. They hold no secret.
    pub arguments: Vec<OsString>,
}

/// Why a supervisor could not start.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Another process holds the folder.
    #[error("another supervisor may run in this folder")]
    Lock(#[from] LockError),
    /// The member's files.
    #[error("the relay's folder cannot be used")]
    Member(#[from] MemberError),
    /// The folder is a node's.
    #[error("{} is a node's folder: run `fairlead run node` there", .0.display())]
    NotRelay(PathBuf),
    /// Certificate and key.
    #[error("{} cannot be used; {MEND}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: TlsError,
    },
    /// The probe's sockets.
    #[error("sockets for probes cannot be opened")]
    Dialler(#[from] DialError),
    /// The metrics address.
    #[error("metrics cannot be served on {address}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: ServeError,
    },
}

/// Runs the supervisor until `cancel`, then stops the worker gracefully and returns.
///
/// # Errors
/// The member folder cannot be read, another supervisor holds it, or the metrics address is taken.
/// Loss of the control plane or of the worker is no error: both are retried for ever.
pub async fn run(config: SupervisorConfig, cancel: CancellationToken) -> Result<(), SupervisorError> {
    let _lock = FolderLock::acquire(&config.dir)?;
    let folder = MemberFolder::new(config.dir.clone());
    let member = folder.load()?;
    let MemberRole::Relay(relay) = member.role else {
        return Err(SupervisorError::NotRelay(config.dir));
    };
    let tls = identity::load(&folder, &member)?;
    let dialler = Arc::new(Dialler::new(tls.clone(), &CarrierConfig::default())?);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let bundle_version = folder.load_trust()?.version;
    let shared = Arc::new(Shared::new(
        folder,
        member,
        tls,
        clock,
        config.version,
        bundle_version,
    ));
    let metrics = Metrics::new("supervisor");
    SupervisorMetrics::register(&metrics).follow(&metrics, &shared);
    let health = {
        let shared = shared.clone();
        Arc::new(move || match shared.observed().phase {
            WorkerPhase::Listening => Health::Ready,
            phase @ (WorkerPhase::Starting
            | WorkerPhase::BackingOff
            | WorkerPhase::CrashLoop
            | WorkerPhase::Unresponsive) => Health::NotReady(format!("the worker is {}", phase.as_str())),
        })
    };
    let served = match config.metrics {
        Some(address) => Some(
            fairlead_telemetry::serve(address, metrics, health, cancel.clone())
                .await
                .map_err(|source| SupervisorError::Metrics { address, source })?,
        ),
        None => None,
    };
    let _announced = shared.folder.announce(RuntimeInfo {
        pid: std::process::id(),
        metrics_url: served.as_ref().map(fairlead_telemetry::Served::url),
        listen: None,
    });
    tracing::info!(%relay, name = %shared.member.name, control = %shared.member.control, "supervisor started");
    fairlead_host::notify_ready();
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper::keep(shared.clone(), config.worker, cancel.clone()));
    tasks.spawn(session::hold(shared.clone(), dialler.clone(), cancel.clone()));
    while tasks.join_next().await.is_some() {}
    dialler.close().await;
    if let Some(served) = served {
        served.join().await;
    }
    tracing::info!("supervisor stopped");
    Ok(())
}

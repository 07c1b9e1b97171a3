//! The relay's manager process: it holds the relay's session with the control plane, keeps the
//! worker running and passes policy, leases and trust to it.
//!
//! It carries no byte of any tunnel and keeps no policy of its own: the worker verifies and
//! persists what it is given, so that a supervisor that dies (or is updated) costs nothing. A
//! worker outlives its supervisor's sudden end and is adopted by the next one; a supervisor that
//! is asked to stop stops its worker first.
//!
//! Tasks, all in one group that [`run`] ends: the keeper ([`keeper`]) owns the worker's process;
//! the worker link feeds it and hears its status; the control session speaks with the control
//! plane; renewal keeps the certificate young. They share [`state::Shared`], whose parts are
//! watched values: bounded and coalescing.

pub mod keeper;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
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
}

/// The worker's program and arguments.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The program, by path.
    pub program: PathBuf,
    /// Its arguments. They hold no secret.
    pub arguments: Vec<OsString>,
}

/// Why a supervisor could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Placeholder of the first hour.
    #[error("the supervisor is not built yet")]
    Unbuilt,
}

/// Runs the supervisor until `cancel`, then stops the worker gracefully and returns.
///
/// # Errors
/// The member folder cannot be read, another supervisor holds it, or the metrics address is taken.
/// Loss of the control plane or of the worker is no error: both are retried for ever.
pub async fn run(config: SupervisorConfig, cancel: CancellationToken) -> Result<(), SupervisorError> {
    let _ = (config, cancel);
    Err(SupervisorError::Unbuilt)
}

//! A relay's traffic process (skeleton of the public entry point).

use std::net::SocketAddr;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

/// What a worker is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The relay's member folder; the worker's own files are in `worker/` inside it.
    pub dir: PathBuf,
    /// UDP address for hop sessions. Port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address for metrics and health; none without.
    pub metrics: Option<SocketAddr>,
    /// Software version, reported to the supervisor.
    pub version: &'static str,
}

/// Why a worker cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Not built yet.
    #[error("not built yet")]
    Unbuilt,
}

/// Runs a worker until `cancel`, or until its supervisor stops it.
///
/// # Errors
/// It cannot start.
pub async fn run(config: WorkerConfig, cancel: CancellationToken) -> Result<(), WorkerError> {
    let _ = (config, cancel);
    Err(WorkerError::Unbuilt)
}

//! What the daemon is started with, and why it would not start.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How a node daemon is started.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The member folder that enrolment left: identity, trust, control address. The daemon keeps
    /// its own state in `node.state` and `boot.state` beside them.
    pub dir: PathBuf,
    /// Where metrics and health are served; `None` serves none. Port 0 picks a free one, written
    /// to `runtime.json`.
    pub metrics: Option<SocketAddr>,
    /// The daemon's version, as reported to the control plane.
    pub version: &'static str,
}

/// Why a node daemon did not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Not yet assembled.
    #[error("the node daemon is not ready to run")]
    NotReady,
}

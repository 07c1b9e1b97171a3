//! The node daemon's data plane and its thread to the control plane.
//!
//! A node daemon keeps hop sessions to its assigned relays, registers what it publishes, listens
//! where its applications consume, and carries their bytes as sealed end-to-end streams. What it
//! may do is written in a signed node policy and in signed grants, which it keeps on disk: it
//! restarts and opens new tunnels with the control plane dead (R-GEN-04).
//!
//! Read top-down: [`run`] assembles the daemon; `control` receives policy and grants, `view` holds
//! the verified state that every other module follows; `relay` keeps the hop sessions, `listen`
//! and `consumer` open streams, `publisher` and `target` answer them, `driver` moves the bytes.

mod config;

pub use config::{NodeConfig, NodeError};

use tokio_util::sync::CancellationToken;

/// Runs a node daemon until `cancel` is cancelled or it cannot go on.
///
/// Cancel safe: no. Cancel it through `cancel`, so that streams and sockets end in order.
///
/// # Errors
/// The member folder cannot be read or is held by another process, or the daemon's identity is not
/// usable. A control plane or relays that are away are no error.
pub async fn run(config: NodeConfig, cancel: CancellationToken) -> Result<(), NodeError> {
    let _ = (config, cancel);
    Err(NodeError::NotReady)
}

//! The node daemon's data plane and its thread to the control plane.
//!
//! A node daemon keeps hop sessions to its assigned relays, registers what it publishes, listens
//! where its applications consume, and carries their bytes as sealed end-to-end streams. What it
//! may do is written in a signed node policy and in signed grants, which it keeps on disk: it
//! restarts and opens new tunnels with the control plane dead (R-GEN-04).
//!
//! Read top-down: [`run`] assembles the daemon; `control` receives policy and grants, `view` holds
//! the verified state that every other module follows; `session` keeps the hop sessions listed in
//! `relays`; `listen` and `consumer` open streams, with `association` for their secrets, which `warm`
//! makes ahead of need;
//! `publisher`, `accepted` and `target` answer them, `resumable` finds the live stream that a further
//! leg is for, and `waiting` holds it until its driver comes; `old_runs` ends what dead runs of far daemons
//! have left; `driver` moves the bytes of each stream and, at the consumer, its legs from relay to relay;
//! `paths` watches which of them still lead to the publisher.

mod accepted;
mod association;
mod attempt;
mod backoff;
mod check;
mod config;
mod consumer;
mod control;
mod driver;
mod failed;
mod grants;
mod identity;
mod listen;
mod live;
mod liveness;
mod memory;
mod metrics;
mod old_runs;
mod open;
mod paths;
mod probe;
mod publisher;
mod relays;
mod resumable;
mod run;
mod session;
mod socket;
mod state;
mod target;
mod told;
mod view;
mod waiting;
mod warm;

pub use config::{
    HoldOutOfRange, IdentityFault, MemoryNotUsable, NodeConfig, NodeError, StreamHold, StreamMemory,
};
pub use run::run;

/// Registers every metric of a node daemon in `registry`, unset: for the reference page.
pub fn describe_metrics(registry: &fairlead_telemetry::Metrics) {
    let _ = metrics::NodeMetrics::new(registry);
}

#[cfg(test)]
mod tests;

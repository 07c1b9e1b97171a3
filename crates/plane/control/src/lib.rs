//! The control plane: certificates, tokens and enrolment; what admins want; the plan that follows
//! from it; signed policies, leases and grants; sessions of supervisors and node daemons.
//!
//! ```text
//! verbs ──► ledger ──► store           what is wanted, with its audit entry, in one transaction
//!              │ state
//!              ▼
//! sessions ► observed ► reconcile ──► plan (pure) ──► commit revision and root ──► sign
//!     ▲                                                                              │
//!     └────────────────────────── published policies, grants ◄──────────────────────┘
//! ```
//! Everything that an answer acknowledges is in the store before the answer: ending the process at
//! any instant loses nothing that was acknowledged. What members report lives in memory only and
//! comes again when they reconnect.
//!
//! [`Control::open`] opens it, [`serve`] serves it, its methods are the admin's verbs.

pub mod api;
pub mod audit;
mod authority;
mod control;
mod enrol;
pub mod fingerprint;
mod folder;
pub mod grant;
mod ledger;
mod metrics;
mod observed;
pub mod plan;
mod publish;
pub mod readiness;
mod reconcile;
mod record;
mod revocation;
mod seal;
mod serve;
mod session;
pub mod setting;
mod state;
mod token;
mod told;
mod verbs;
mod view;

pub use api::ApiError;
pub use authority::{AuthorityError, CERTIFICATE_LIFETIME, CERTIFICATE_RENEW_LEFT};
pub use control::{Control, ControlSettings, OpenError};
pub use enrol::CLOCK_SKEW_MAX;
pub use folder::ControlFolder;
pub use ledger::CommitError;
pub use serve::{Endless, PeerAddress, ServeError, Stalls, serve};
pub use state::LoadError;

/// Registers every metric of the control plane in `registry`, unset: for the reference page.
pub fn describe_metrics(registry: &fairlead_telemetry::Metrics) {
    let _ = metrics::ControlMetrics::register(registry, &revocation::Revocations::default());
}

//! The control plane: certificates, tokens and enrolment; what admins want; the plan that follows
//! from it; signed policies, leases and grants; sessions of supervisors and node daemons.
//!
//! Everything that an answer acknowledges is in the store before the answer: ending the process at
//! any instant loses nothing that was acknowledged. What members report lives in memory only and
//! comes again when they reconnect.

pub mod api;

pub use api::ApiError;

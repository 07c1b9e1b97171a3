//! Who may do what: signed documents and the verdicts drawn from them. Pure: no clock, no I/O.
//!
//! The control plane signs four documents: a relay's policy, its lease, a node's policy and a
//! consumer's grant. Each travels as the payload of an [envelope](envelope); its bytes are parsed
//! (by the `rpc` crate) only after [`verify`] has held, and the types make the order plain:
//!
//! ```text
//! bytes ── verify(keyring, type) ──► VerifiedPayload ── parse ──► Verified<RelayPolicy>
//! ```
//!
//! - [`RelayAdmission`] is a relay's whole knowledge: policy, lease, clock floor. It answers each
//!   open, registration and session with a [`Verdict`].
//! - [`GrantCheck`] is the publisher's own look at a grant; the relay is not trusted for it.
//! - [`Runs`] tells two copies of one identity from a member that restarts.
//! - [`certificate`] reads identities out of X.509 certificates.

pub mod admission;
pub mod certificate;
pub mod document;
pub mod envelope;
pub mod grant;
pub mod key;
mod narrow;
pub mod runs;

pub use admission::{OpenClaim, RelayAdmission, Verdict};
pub use document::{
    Consumption, Grant, NodePolicy, NodeRelay, PolicyEndpoint, PolicyLease, PolicyRoot, PolicyRoute,
    Publication, PublishedRoute, RelayPolicy, RelaySettings,
};
pub use envelope::{Document, PayloadType, SealError, Verified, VerifiedPayload, VerifyError, seal, verify};
pub use grant::{GrantCheck, GrantRefused, grants_digest};
pub use key::{KeyError, KeyId, Keyring, SigningKey, VerifyingKey};
pub use runs::{COPY_NEWS_FOR, Copies, RunVerdict, Runs};

#[cfg(test)]
mod fixture;

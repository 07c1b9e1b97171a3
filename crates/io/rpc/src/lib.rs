//! gRPC between the planes: the code generated from `proto/`, the only conversions between
//! protobuf and model types, and the channel that members and supervisors dial.
//!
//! Protobuf is parsed here and nowhere else. Signed documents are parsed only out of a
//! [`VerifiedPayload`](fairlead_trust::VerifiedPayload), which only a verified signature makes.

/// The generated messages, clients and servers, as they are in `proto/fairlead/v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated; its documentation stands in proto/"
)]
pub mod pb {
    tonic::include_proto!("fairlead.v1");
}

/// The TLS server name that selects the gRPC face of the control plane's port, where client
/// certificates are required. Never resolved: dialled addresses come from settings.
pub const GRPC_SERVER_NAME: &str = "grpc.fairlead.internal";

pub mod channel;
pub mod field;
pub mod session;
pub mod signed;

pub use field::{DecodeError, Fault};
pub use session::{ProbeRequest, TrustBundle};

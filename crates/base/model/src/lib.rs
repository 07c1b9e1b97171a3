//! The vocabulary of Fairlead as types: ids, counters, names, addresses, domains, identities,
//! service classes, points in time and the stable codes of refusals and API errors.
//!
//! Nothing here does I/O, reads a clock or knows an encoding: `rpc`, `store`, `hop`, `stream` and
//! `admin` convert these types at their own borders. Every type that is read from text has one
//! parser, and its error says what is allowed.

pub mod address;
pub mod class;
pub mod code;
pub mod counter;
pub mod domain;
pub mod duration;
pub mod id;
pub mod identity;
pub mod name;
pub mod pin;
pub mod refusal;
pub mod time;
pub mod tunnel;

pub use address::{HostPort, ListenAddress, TargetAddress};
pub use class::ServiceClass;
pub use code::ApiCode;
pub use counter::{
    BootCounter, Generation, LeaderTerm, LeaseSeq, LegEpoch, PolicyEpoch, RegistrationBoot,
    RegistrationEpoch, Revision, StreamNumber,
};
pub use domain::FailureDomain;
pub use id::{
    AssociationId, AuditId, EndpointId, LinkId, NodeId, ProcessBootId, RelayId, RouteId, SessionId, TokenId,
};
pub use identity::{Identity, IdentityFile, TrustDomain};
pub use name::Name;
pub use pin::CaPin;
pub use refusal::{RefusalCode, RetryClass};
pub use time::{BootTime, MonoTime, WallTime};
pub use tunnel::TunnelId;

//! The JSON of the REST interface: requests, answers and errors. The CLI reads the same types.
//!
//! Ids, names and addresses are text, times RFC 3339 in UTC, durations `72h`. Requests refuse
//! unknown fields; answers may gain fields, never lose or change one.

mod check;
mod view;
mod warning;

pub use check::{CheckLink, Copies, PathCheck};
pub(crate) use view::time;
pub use view::{
    AuditEntry, Link, Node, Policy, PolicyHead, Reach, Reference, Refusal, Relay, RemovedLink, Setting,
    Status, Token, Worker, waits_for_somebody,
};
pub use warning::Warning;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A list. More fields may come, such as a cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
}

/// Every error's body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorJson,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorJson {
    /// Stable code, such as `LISTEN_TAKEN`.
    pub code: String,
    /// One sentence for people.
    pub message: String,
    /// Every fault of the request's fields.
    #[serde(default)]
    pub faults: Vec<FaultJson>,
    /// Facts for programs.
    #[serde(default)]
    pub details: BTreeMap<String, String>,
}

/// One fault of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FaultJson {
    /// The field.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// Body of `POST /v1/enrol`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrolRequest {
    /// The one-shot token.
    pub token: String,
    /// `relay` or `node`.
    pub role: String,
    /// Certificate signing request, PEM. Names in it are ignored.
    pub csr_pem: String,
    /// Version of the enrolling program.
    pub version: String,
    /// Parts that tell this host from another.
    pub host_fingerprint: BTreeMap<String, String>,
    /// The host's wall clock, RFC 3339 with milliseconds.
    pub wall_clock: String,
    /// Where the relay's worker will listen; informative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

impl std::fmt::Debug for EnrolRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrolRequest")
            .field("role", &self.role)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Answer of `POST /v1/enrol`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnrolResponse {
    /// `relay` or `node`.
    pub role: String,
    /// The member's id.
    pub id: String,
    /// The member's name.
    pub name: String,
    /// The pool's trust domain.
    pub trust_domain: String,
    /// The member's certificate, leaf first, PEM.
    pub certificate_chain_pem: String,
    /// The CA certificate, PEM.
    pub ca_pem: String,
    /// Ed25519 keys that policies are signed with, hexadecimal.
    pub policy_keys: Vec<String>,
    /// Version of the trust bundle that `ca_pem` and `policy_keys` are.
    pub trust_bundle_version: u64,
    /// Server name that selects the gRPC face of the control plane.
    pub grpc_server_name: String,
    /// Where nodes reach it; relays only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised_address: Option<String>,
}

/// Body of `POST /v1/relays`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRelay {
    /// Display name.
    pub name: String,
    /// Where nodes reach it; port 9443 where none is written.
    pub address: String,
    /// Labels of what it fails with; its own name as host label where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    /// Whether it is the local relay: the one on the control plane's own host.
    #[serde(default)]
    pub local: bool,
}

/// Body of `POST /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNode {
    /// Display name.
    pub name: String,
}

/// Body of `POST /v1/links`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddLink {
    /// Display name.
    pub name: String,
    /// The consumer: a node's name or id.
    pub from: String,
    /// The publisher: a node's name or id.
    pub to: String,
    /// What the publisher's daemon dials: `host:port`, `[v6]:port` or `unix:/path`.
    pub target: String,
    /// Where the consumer's daemon listens: `ip:port` or `[v6]:port`.
    pub listen: String,
    /// `standard` (where absent), `database` or `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// Body of `PUT /v1/settings/{key}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSetting {
    /// The value, in the form that reads show.
    pub value: String,
}

/// Body of `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddToken {
    /// Name shown in the audit log.
    pub name: String,
    /// `admin:system` or `read`; at least one.
    pub scopes: Vec<String>,
}

/// Body of `POST /v1/session`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The admin token.
    pub token: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

/// A member that was added, with the one-shot token to enrol it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Issued {
    /// `relay` or `node`.
    pub role: String,
    /// The member's id.
    pub id: String,
    /// The member's name.
    pub name: String,
    /// What to run on its host; the token, which is not in it, goes to its standard input.
    pub install_command: String,
    /// The token; shown once.
    pub token: String,
    /// When it expires.
    pub expires_at: String,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("role", &self.role)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An admin token that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedToken {
    /// What is kept of it.
    #[serde(flatten)]
    pub token: Token,
    /// The secret; shown once.
    pub secret: String,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Answer of `GET /v1/whoami`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// The token's name.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
}

/// Body of routes that take none: `{}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// Answer of `GET /healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}

impl From<AddRelay> for fairlead_control::api::AddRelay {
    fn from(relay: AddRelay) -> Self {
        Self {
            name: relay.name,
            address: relay.address,
            failure_domain: relay.failure_domain,
            local: relay.local,
        }
    }
}

impl From<AddLink> for fairlead_control::api::AddLink {
    fn from(link: AddLink) -> Self {
        Self {
            name: link.name,
            from: link.from,
            to: link.to,
            target: link.target,
            listen: link.listen,
            class: link.class,
        }
    }
}

impl From<AddToken> for fairlead_control::api::AddToken {
    fn from(token: AddToken) -> Self {
        Self {
            name: token.name,
            scopes: token.scopes,
        }
    }
}

impl From<EnrolRequest> for fairlead_control::api::EnrolRequest {
    fn from(request: EnrolRequest) -> Self {
        let wall_clock = request.wall_clock.parse::<jiff::Timestamp>().ok();
        Self {
            token: request.token,
            role: request.role,
            csr_pem: request.csr_pem,
            version: request.version,
            host_fingerprint: request.host_fingerprint,
            wall_clock: wall_clock.map(|at| fairlead_model::WallTime(at.as_millisecond())),
        }
    }
}

impl From<fairlead_control::api::ApiError> for ErrorBody {
    fn from(error: fairlead_control::api::ApiError) -> Self {
        Self {
            error: ErrorJson {
                code: error.code.as_str().to_owned(),
                message: error.message,
                faults: error
                    .faults
                    .into_iter()
                    .map(|f| FaultJson {
                        field: f.field,
                        message: f.message,
                    })
                    .collect(),
                details: error.details,
            },
        }
    }
}

impl From<fairlead_control::api::Issued> for Issued {
    fn from(issued: fairlead_control::api::Issued) -> Self {
        Self {
            role: issued.role.as_str().to_owned(),
            id: issued.id,
            name: issued.name.to_string(),
            install_command: issued.install_command,
            token: issued.token,
            expires_at: view::time(issued.expires_at),
        }
    }
}

impl From<fairlead_control::api::IssuedToken> for IssuedToken {
    fn from(issued: fairlead_control::api::IssuedToken) -> Self {
        Self {
            token: issued.view.into(),
            secret: issued.secret,
        }
    }
}

impl From<fairlead_control::api::Enrolled> for EnrolResponse {
    fn from(enrolled: fairlead_control::api::Enrolled) -> Self {
        let id = match enrolled.identity {
            fairlead_model::Identity::Relay(id) => id.to_string(),
            fairlead_model::Identity::Node(id) => id.to_string(),
            fairlead_model::Identity::Control => String::new(),
        };
        Self {
            role: enrolled.role.as_str().to_owned(),
            id,
            name: enrolled.name.to_string(),
            trust_domain: enrolled.trust_domain.to_string(),
            certificate_chain_pem: enrolled.certificate_chain_pem,
            ca_pem: enrolled.ca_pem,
            policy_keys: enrolled.policy_keys.iter().map(hex_text).collect(),
            trust_bundle_version: enrolled.trust_bundle_version,
            grpc_server_name: enrolled.grpc_server_name,
            advertised_address: enrolled.advertised_address.map(|a| a.to_string()),
        }
    }
}

fn hex_text(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

//! What the control plane's verbs take and give: inputs as an admin wrote them, views as plain
//! structs, and one error with every fault of an input listed together.
//!
//! Nothing here is serialised: `admin` turns views into JSON, `fairlead` into tables.

mod view;

pub use view::{
    AuditView, CopiesView, HeadView, LinkState, LinkView, Look, NodeState, NodeView, PathCheckView,
    PathReportView, PolicyView, ReachView, Ref, RefusalView, RefusedView, RelayState, RelayView, RemovedLink,
    SettingView, StatusView, TokenView, WorkerView,
};

use fairlead_model::{ApiCode, HostPort, Identity, Name, TokenId, TrustDomain, WallTime};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Why a verb did nothing. A verb that fails has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The stable code.
    pub code: ApiCode,
    /// One sentence for people: what is wrong and what to do.
    pub message: String,
    /// Every fault of the input, in the order of its fields; empty where no field is at fault.
    pub faults: Vec<Fault>,
    /// Facts for programs: the holder's name, the difference in seconds.
    pub details: BTreeMap<String, String>,
}

/// One fault of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The field, as it is named in JSON.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl ApiError {
    /// An error without faults.
    #[must_use]
    pub fn new(code: ApiCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            faults: Vec::new(),
            details: BTreeMap::new(),
        }
    }

    /// The error of an input with faults; its message names the fields.
    #[must_use]
    pub fn faults(faults: Vec<Fault>) -> Self {
        let fields: Vec<&str> = faults.iter().map(|f| f.field.as_str()).collect();
        Self {
            code: ApiCode::InvalidRequest,
            message: format!("not valid: {}", fields.join(", ")),
            faults,
            details: BTreeMap::new(),
        }
    }

    /// The same error with a fault.
    #[must_use]
    pub fn with_fault(mut self, field: &str, message: impl Into<String>) -> Self {
        self.faults.push(Fault {
            field: field.to_owned(),
            message: message.into(),
        });
        self
    }

    /// The same error with a fact for programs.
    #[must_use]
    pub fn with_detail(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.details.insert(key.to_owned(), value.to_string());
        self
    }
}

/// Collects the faults of one input, so that they are reported together.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Adds a fault.
    pub fn add(&mut self, field: &str, message: impl fmt::Display) {
        self.0.push(Fault {
            field: field.to_owned(),
            message: message.to_string(),
        });
    }

    /// Parses one field; a fault is kept and gives `None`.
    pub fn parse<T>(&mut self, field: &str, text: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        self.take(field, text.parse())
    }

    /// The value of one field that was read; a fault is kept and gives `None`.
    pub fn take<T, E: fmt::Display>(&mut self, field: &str, read: Result<T, E>) -> Option<T> {
        read.map_err(|e| self.add(field, e)).ok()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value`, or every fault.
    ///
    /// # Errors
    /// There are faults, or `value` is `None`.
    pub fn into_result<T>(self, value: Option<T>) -> Result<T, ApiError> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            Some(_) | None => Err(ApiError::faults(self.0)),
        }
    }
}

/// What an admin token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Everything.
    System,
    /// Every read, no change.
    Read,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 2] = [Self::System, Self::Read];

    /// The scope's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "admin:system",
            Self::Read => "read",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = ScopeError;
    fn from_str(text: &str) -> Result<Self, ScopeError> {
        Self::ALL
            .into_iter()
            .find(|s| s.as_str() == text)
            .ok_or_else(|| ScopeError(text.chars().take(64).collect()))
    }
}

/// Text that is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a scope: expected admin:system or read")]
pub struct ScopeError(String);

/// Who asks: the owner of an admin token. Every change's audit entry names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The token's id.
    pub token: TokenId,
    /// The token's name.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
}

impl Principal {
    /// Whether it may change things.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.scopes.contains(&Scope::System)
    }

    /// Whether it may read.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.scopes
            .iter()
            .any(|s| matches!(s, Scope::System | Scope::Read))
    }
}

/// The role that a member enrols in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberRole {
    /// A relay.
    Relay,
    /// A node.
    Node,
}

impl MemberRole {
    /// The role's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Node => "node",
        }
    }
}

impl fmt::Display for MemberRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MemberRole {
    type Err = RoleError;
    fn from_str(text: &str) -> Result<Self, RoleError> {
        match text {
            "relay" => Ok(Self::Relay),
            "node" => Ok(Self::Node),
            _ => Err(RoleError(text.chars().take(64).collect())),
        }
    }
}

/// Text that is not a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role: expected relay or node")]
pub struct RoleError(String);

/// "Add relay" (R-ENR-01), as written.
#[derive(Debug, Clone, Default)]
pub struct AddRelay {
    /// Display name.
    pub name: String,
    /// Where nodes reach it; port 9443 where none is written.
    pub address: String,
    /// Labels of what it fails with; the relay's own name as host label where absent.
    pub failure_domain: Option<String>,
    /// Whether it is the local relay: the one on the control plane's own host.
    pub local: bool,
}

/// "Add link", as written.
#[derive(Debug, Clone, Default)]
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
    pub class: Option<String>,
}

/// "Add token", as written.
#[derive(Debug, Clone, Default)]
pub struct AddToken {
    /// Name shown in the audit log: 1 to 63 characters of a-z, 0-9, `-` and `.`.
    pub name: String,
    /// `admin:system` or `read`; at least one.
    pub scopes: Vec<String>,
}

/// What an enrolling member sends (R-ENR-02, R-ENR-03).
#[derive(Clone, Default)]
pub struct EnrolRequest {
    /// The one-shot token. Never printed.
    pub token: String,
    /// `relay` or `node`.
    pub role: String,
    /// Certificate signing request, PEM. Names in it are ignored.
    pub csr_pem: String,
    /// Version of the enrolling program.
    pub version: String,
    /// What tells this host from another: see [`crate::fingerprint`].
    pub host_fingerprint: BTreeMap<String, String>,
    /// The member's wall clock, for the clock check; `None` if it was malformed or absent.
    pub wall_clock: Option<WallTime>,
}

impl fmt::Debug for EnrolRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrolRequest")
            .field("role", &self.role)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What an enrolled member gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// Its role.
    pub role: MemberRole,
    /// Who it is.
    pub identity: Identity,
    /// Its display name.
    pub name: Name,
    /// The pool's trust domain.
    pub trust_domain: TrustDomain,
    /// Its certificate, leaf first, PEM.
    pub certificate_chain_pem: String,
    /// The CA certificate, PEM.
    pub ca_pem: String,
    /// Keys that policies and leases are signed with.
    pub policy_keys: Vec<[u8; 32]>,
    /// Version of the trust bundle that `ca_pem` and `policy_keys` are.
    pub trust_bundle_version: u64,
    /// Server name that selects the gRPC face of the control plane.
    pub grpc_server_name: String,
    /// Where nodes reach it; relays only.
    pub advertised_address: Option<HostPort>,
}

/// A one-shot enrolment token, shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// The member's role.
    pub role: MemberRole,
    /// The member's id, as text.
    pub id: String,
    /// The member's name.
    pub name: Name,
    /// What to run on its host; the token, which is not in it, goes to its standard input.
    pub install_command: String,
    /// The token. Never printed by `Debug`, kept only hashed.
    pub token: String,
    /// When it expires.
    pub expires_at: WallTime,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("role", &self.role)
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An admin token, shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// What is kept of it.
    pub view: TokenView,
    /// The secret. Never printed by `Debug`, kept only hashed.
    pub secret: String,
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken")
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

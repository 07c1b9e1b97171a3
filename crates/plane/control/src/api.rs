//! What the control plane's verbs take and give: inputs as an admin wrote them, views as plain
//! structs, and one error with every fault of an input listed together.
//!
//! Nothing here is serialised: `admin` turns views into JSON, `fairlead` into tables.

use fairlead_model::{
    ApiCode, AuditId, EndpointId, FailureDomain, Generation, HostPort, Identity, LinkId, ListenAddress, Name,
    NodeId, RelayId, RouteId, ServiceClass, TargetAddress, TokenId, TrustDomain, WallTime,
};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
        text.parse().map_err(|e| self.add(field, e)).ok()
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
    /// The installation's trust domain.
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
    /// What to run on its host; the token goes to its standard input.
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

/// An admin token as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenView {
    /// Its id.
    pub id: TokenId,
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: WallTime,
}

/// A member's or link's id and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ref<Id> {
    /// The id.
    pub id: Id,
    /// The display name.
    pub name: Name,
}

/// How a relay stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RelayState {
    /// Added, not enrolled yet: no capacity.
    Pending,
    /// Connected; its worker or port is not verified yet (R-ENR-07), or no longer.
    NotReady,
    /// Its port answered a real handshake and its worker holds the policy.
    Ready,
    /// Its supervisor has not been connected for 5 s.
    Offline,
}

impl RelayState {
    /// The state's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::NotReady => "not-ready",
            Self::Ready => "ready",
            Self::Offline => "offline",
        }
    }
}

/// How a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeState {
    /// Added, not enrolled yet.
    Pending,
    /// Connected; it does not hold its newest policy, or reaches none of its relays, yet.
    NotReady,
    /// Connected, holds its newest policy, and has a hop session to every assigned relay that is
    /// ready.
    Ready,
    /// Its daemon has not been connected for 5 s (R-NOD-06).
    Offline,
}

impl NodeState {
    /// The state's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::NotReady => "not-ready",
            Self::Ready => "ready",
            Self::Offline => "offline",
        }
    }
}

/// How a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkState {
    /// Something is missing: [`LinkView::waiting_for`] says what.
    Pending,
    /// The publisher is registered on a relay that the consumer reaches, and the consumer listens.
    Ready,
}

impl LinkState {
    /// The state's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
        }
    }
}

/// A policy's place in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct HeadView {
    /// Epoch.
    pub epoch: u64,
    /// Revision within the epoch.
    pub revision: u64,
}

/// A member's policy: what it should hold and what it says it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyView {
    /// What was signed last; `None` before the first.
    pub wanted: Option<HeadView>,
    /// What the member reported last.
    pub applied: Option<HeadView>,
    /// Why the member refused the last one; empty if it did not.
    pub refused: String,
    /// End of the lease that the relay reported; relays only.
    pub lease_not_after: Option<WallTime>,
}

impl PolicyView {
    /// Whether the member holds the newest policy.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.wanted.is_some() && self.applied == self.wanted && self.refused.is_empty()
    }
}

/// A relay's worker, as its supervisor reported it last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerView {
    /// `starting`, `listening`, `backing-off` or `crash-loop`.
    pub state: &'static str,
    /// Version.
    pub version: String,
    /// Process id; 0 while it does not run.
    pub pid: u32,
    /// How often it was started again since the supervisor started.
    pub restarts: u32,
    /// How the last one ended, in words.
    pub last_exit: String,
    /// Tunnels that are open.
    pub live_tunnels: u64,
    /// Hop sessions that are open.
    pub hop_sessions: u64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Open file descriptors.
    pub open_descriptors: u64,
    /// Bytes carried since it started.
    pub bytes_relayed: u64,
    /// Where its metrics are; empty where it serves none.
    pub metrics: String,
}

/// A relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayView {
    /// Id.
    pub id: RelayId,
    /// Display name.
    pub name: Name,
    /// Where nodes reach it.
    pub address: HostPort,
    /// What it fails with.
    pub failure_domain: FailureDomain,
    /// Whether it is the local relay.
    pub local: bool,
    /// How it stands.
    pub state: RelayState,
    /// Why it is not ready; empty when it is.
    pub state_reason: String,
    /// Whether endpoints are placed on it.
    pub capacity: bool,
    /// When it was added.
    pub created_at: WallTime,
    /// When it enrolled.
    pub enrolled_at: Option<WallTime>,
    /// When its supervisor was last heard.
    pub last_seen: Option<WallTime>,
    /// Version of its supervisor; empty before it connects.
    pub version: String,
    /// Its worker; `None` before the first report.
    pub worker: Option<WorkerView>,
    /// Its policy.
    pub policy: PolicyView,
    /// End of its certificate.
    pub certificate_not_after: Option<WallTime>,
    /// How many endpoints are placed on it.
    pub endpoints: u64,
}

/// How a node reaches one relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachView {
    /// The relay.
    pub relay: Ref<RelayId>,
    /// Whether it has a hop session.
    pub connected: bool,
    /// Round-trip time in microseconds, where measured.
    pub rtt_us: Option<u32>,
    /// Why it is not connected; empty when it is or has not tried.
    pub error: String,
    /// Endpoints registered there.
    pub registered: Vec<EndpointId>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Id.
    pub id: NodeId,
    /// Display name.
    pub name: Name,
    /// How it stands.
    pub state: NodeState,
    /// Why it is not ready; empty when it is.
    pub state_reason: String,
    /// When it was added.
    pub created_at: WallTime,
    /// When it enrolled.
    pub enrolled_at: Option<WallTime>,
    /// When its daemon was last heard.
    pub last_seen: Option<WallTime>,
    /// Version of its daemon; empty before it connects.
    pub version: String,
    /// Its policy.
    pub policy: PolicyView,
    /// Its assigned relays.
    pub relays: Vec<ReachView>,
    /// Streams that are open.
    pub live_streams: u64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Where its metrics are; empty where it serves none.
    pub metrics: String,
    /// End of its certificate.
    pub certificate_not_after: Option<WallTime>,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// Id.
    pub id: LinkId,
    /// Display name.
    pub name: Name,
    /// The consumer.
    pub from: Ref<NodeId>,
    /// The publisher.
    pub to: Ref<NodeId>,
    /// What the publisher's daemon dials.
    pub target: TargetAddress,
    /// Where the consumer's daemon listens.
    pub listen: ListenAddress,
    /// Class.
    pub class: ServiceClass,
    /// The published service.
    pub endpoint: EndpointId,
    /// Its generation.
    pub generation: Generation,
    /// The consumer's permission.
    pub route: RouteId,
    /// When it was added.
    pub created_at: WallTime,
    /// Relays that carry it, best first.
    pub relays: Vec<Ref<RelayId>>,
    /// Why these relays.
    pub placement_reason: String,
    /// How it stands.
    pub state: LinkState,
    /// What is missing until it is ready, one sentence each.
    pub waiting_for: Vec<String>,
}

/// One audit entry (R-UI-05).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditView {
    /// Place in the log, from 1, without gaps.
    pub seq: u64,
    /// Id.
    pub id: AuditId,
    /// When.
    pub at: WallTime,
    /// Who: `token <name>`, `relay <name>`, `node <name>` or `control`.
    pub actor: String,
    /// What: `link.add`, `relay.enrol`, …
    pub action: String,
    /// On what: `link db`.
    pub object: String,
    /// The object before, JSON text; `None` where there was none.
    pub before: Option<String>,
    /// The object after, JSON text; `None` where there is none.
    pub after: Option<String>,
    /// SHA-256 over the previous entry's hash and this entry, hexadecimal.
    pub hash: String,
    /// The previous entry's hash; 64 zeros for the first.
    pub previous_hash: String,
}

/// A setting with its registry entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingView {
    /// Key.
    pub key: &'static str,
    /// The value in force, in the form that it is set.
    pub value: String,
    /// The default.
    pub default: String,
    /// What is allowed: `1h to 168h`.
    pub range: String,
    /// What it means.
    pub meaning: &'static str,
    /// The requirement or measurement it comes from.
    pub source: &'static str,
}

/// The installation at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusView {
    /// Version of the control plane.
    pub version: String,
    /// Trust domain.
    pub trust_domain: TrustDomain,
    /// CA pin: `sha256:<hex>`.
    pub ca_pin: String,
    /// Where members reach the control plane.
    pub advertised: HostPort,
    /// Whether lab mode is on: several relays on one host.
    pub lab: bool,
    /// How long this control plane has run.
    pub uptime: Duration,
    /// Term of the leader.
    pub leader_term: u64,
    /// Policy epoch.
    pub policy_epoch: u64,
    /// Newest policy revision.
    pub policy_revision: u64,
    /// Relays that are ready, of all.
    pub relays_ready: u64,
    /// All relays.
    pub relays: u64,
    /// Nodes that are ready, of all.
    pub nodes_ready: u64,
    /// All nodes.
    pub nodes: u64,
    /// Links that are ready, of all.
    pub links_ready: u64,
    /// All links.
    pub links: u64,
    /// Newest audit entry.
    pub audit_seq: u64,
}

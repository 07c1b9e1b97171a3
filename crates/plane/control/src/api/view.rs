//! What is shown: members, links, settings, tokens and log entries, with their states.

use super::Scope;
use fairlead_model::{
    AuditId, EndpointId, FailureDomain, Generation, HostPort, LinkId, ListenAddress, Name, NodeId, RelayId,
    RouteId, ServiceClass, TargetAddress, TokenId, TrustDomain, WallTime,
};
use std::time::Duration;

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
    /// When that was signed: the age of the policy.
    pub wanted_at: Option<WallTime>,
    /// What the member reported last.
    pub applied: Option<HeadView>,
    /// Why the member refused the last one; empty if it did not.
    pub refused: String,
    /// Whether it refuses it since it holds something newer: the control plane's store is older (R-POL-04).
    pub holds_newer: bool,
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
    /// `starting`, `listening`, `backing-off`, `crash-loop` or `unresponsive`; `stopped` where it ended with
    /// its supervisor, which said so; `unknown` where its supervisor is away. What it did is not counted then.
    pub state: &'static str,
    /// Version.
    pub version: String,
    /// Process id; 0 while it does not run.
    pub pid: u32,
    /// How often it was started again since the supervisor started.
    pub restarts: u32,
    /// How the last one ended, in words, with the reason that it gave.
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

/// Two processes that use one member's identity: it was copied (R-ENR-10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiesView {
    /// The process that is kept: its host's name, address, and digests of its ids.
    pub kept: String,
    /// The one that is refused.
    pub refused: String,
    /// When they were found; `None` where only relays have met them.
    pub since: Option<WallTime>,
    /// When the refused one was seen last.
    pub last_seen: WallTime,
    /// Relays that have met both.
    pub met_by: Vec<Name>,
}

/// A link that was removed, as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedLink {
    /// The link.
    pub link: LinkView,
    /// Relays that may hold it and have not heard that it was removed: they are not connected.
    pub unheard_relays: Vec<Name>,
    /// Those of its nodes that have not.
    pub unheard_nodes: Vec<Name>,
}

/// Why a member's sessions are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedView {
    /// Stable code, such as `CLOCK_DIFFERS`.
    pub code: &'static str,
    /// What the member was told.
    pub message: String,
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
    /// Whether it is only just starting: it is not ready, nothing is known to be wrong, and it has not taken
    /// longer than it may.
    pub starting: bool,
    /// The connected nodes whose word is why it does not count as ready: they cannot reach it.
    pub unreached_by: Vec<Name>,
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
    /// From when on it may be removed, were it stopped at this moment and were nothing else in the way;
    /// `None` for one that may go at once, and for the local relay, which may not.
    pub removable_after: Option<WallTime>,
    /// Whether it was ever given a lease.
    pub leased: bool,
    /// Two processes that use its identity; `None` while there is one.
    pub copies: Option<CopiesView>,
    /// Why its supervisor's sessions are refused; `None` where it is connected, or does not try.
    pub refused: Option<RefusedView>,
    /// How far its host's clock is behind what was signed here, where that is more than 60 s, by its
    /// last report (R-POL-05).
    pub clock_behind: Option<std::time::Duration>,
    /// That it is behind since the control plane's clock was ahead when it signed: the host's is right.
    pub signed_ahead: bool,
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
    /// Whether it is only just starting: it is not ready, nothing is known to be wrong, and it has not taken
    /// longer than it may.
    pub starting: bool,
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
    /// Why its daemon's sessions are refused; `None` where it is connected, or does not try.
    pub refused: Option<RefusedView>,
    /// Its assigned relays; of one that is offline, without how it reaches them: that is not known.
    pub relays: Vec<ReachView>,
    /// Streams that are open; 0 of one that is offline.
    pub live_streams: u64,
    /// Resident memory in bytes; 0 of one that is offline.
    pub memory_bytes: u64,
    /// Where its metrics are; empty where it serves none.
    pub metrics: String,
    /// End of its certificate.
    pub certificate_not_after: Option<WallTime>,
    /// Two processes that use its identity; `None` while there is one.
    pub copies: Option<CopiesView>,
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
    /// Whether it is only just starting: it is not ready, nothing is known to be wrong, and it has not taken
    /// longer than it may.
    pub starting: bool,
    /// What is missing until it is ready, one sentence each.
    pub waiting_for: Vec<String>,
    /// Why the consumer cannot listen; empty while it can, or has not said.
    pub listen_error: String,
    /// The latest connection to its listener that was turned away; `None` where one was carried since.
    pub last_refusal: Option<RefusalView>,
}

/// The latest connection of a link that was refused, as its consumer reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalView {
    /// The stable code, such as `TARGET_REFUSED`; `UNKNOWN` for one of a newer version.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
    /// When, by the consumer's clock.
    pub at: WallTime,
    /// How many were refused since the consumer's daemon started.
    pub count: u64,
}

/// How far a consumer came that tried a link's path anew (R-UI-04).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathCheckView {
    /// The link.
    pub link: Name,
    /// The consumer.
    pub from: Ref<NodeId>,
    /// The publisher.
    pub to: Ref<NodeId>,
    /// The relay that it went through.
    pub relay: Ref<RelayId>,
    /// What the consumer said.
    pub report: PathReportView,
}

/// What a consumer reported of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathReportView {
    /// Microseconds until the hop session was up; 0 if it was not.
    pub session_us: u32,
    /// Microseconds from the open until the first byte was back, handshake between the nodes
    /// included; 0 if none came.
    pub tunnel_us: u32,
    /// Bytes that came back as they were sent.
    pub bytes_verified: u64,
    /// The code of what stopped the path; empty if nothing did.
    pub failed: String,
    /// The same in words.
    pub detail: String,
    /// How the publisher's dial of the target ended: `CONNECTED` or a code; empty if it was not tried.
    pub target: String,
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

/// The pool at a glance.
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
    /// The first audit entry that is not as it was written; 0 while none is known. The log is checked
    /// after each start.
    pub audit_broken: u64,
    /// Bytes that may still be written to the store's disk; `None` where it is not known.
    pub store_free: Option<u64>,
}

/// Everything that is shown, at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: WallTime,
    /// The pool.
    pub status: StatusView,
    /// Relays, by id.
    pub relays: Vec<RelayView>,
    /// Nodes, by id.
    pub nodes: Vec<NodeView>,
    /// Links, by id.
    pub links: Vec<LinkView>,
}

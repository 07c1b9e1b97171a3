//! Answers of reads, made from the control plane's views.

use super::Copies;
use fairlead_control::api;
use fairlead_model::WallTime;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A point in time as RFC 3339 in UTC.
pub(crate) fn time(at: WallTime) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| "out of range".to_owned(), |t| t.to_string())
}

/// An object by id and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reference {
    /// The id.
    pub id: String,
    /// The display name.
    pub name: String,
}

impl<Id: std::fmt::Display> From<api::Ref<Id>> for Reference {
    fn from(r: api::Ref<Id>) -> Self {
        Self {
            id: r.id.to_string(),
            name: r.name.to_string(),
        }
    }
}

/// A policy's place in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyHead {
    /// Epoch.
    pub epoch: u64,
    /// Revision within the epoch.
    pub revision: u64,
}

impl From<api::HeadView> for PolicyHead {
    fn from(h: api::HeadView) -> Self {
        Self {
            epoch: h.epoch,
            revision: h.revision,
        }
    }
}

/// A member's policy: what it should hold and what it says it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// What was signed last.
    pub wanted: Option<PolicyHead>,
    /// When that was signed: the age of the policy.
    #[serde(default)]
    pub wanted_at: Option<String>,
    /// What the member reported last.
    pub applied: Option<PolicyHead>,
    /// Why the member refused the last one, in words; empty if it did not.
    pub refused: String,
    /// Whether it refuses it since it holds something newer: the control plane was restored from an older backup.
    #[serde(default)]
    pub holds_newer: bool,
    /// End of the lease that the relay reported; relays only.
    pub lease_not_after: Option<String>,
}

impl From<api::PolicyView> for Policy {
    fn from(p: api::PolicyView) -> Self {
        Self {
            wanted: p.wanted.map(Into::into),
            wanted_at: p.wanted_at.map(time),
            applied: p.applied.map(Into::into),
            refused: p.refused,
            holds_newer: p.holds_newer,
            lease_not_after: p.lease_not_after.map(time),
        }
    }
}

/// A relay's worker, as its supervisor reported it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// `starting`, `listening`, `backing-off`, `crash-loop` or `unresponsive`; `stopped` where it ended with
    /// its supervisor, which said so; `unknown` where its relay is offline without a word, and it may run
    /// still. Process id, tunnels, sessions, memory and descriptors are 0 of one that is stopped or unknown.
    pub state: String,
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
    /// Bytes carried since it started, by its last report.
    pub bytes_relayed: u64,
    /// Where its metrics are; empty where it serves none.
    pub metrics: String,
}

impl From<api::WorkerView> for Worker {
    fn from(w: api::WorkerView) -> Self {
        Self {
            state: w.state.to_owned(),
            version: w.version,
            pid: w.pid,
            restarts: w.restarts,
            last_exit: w.last_exit,
            live_tunnels: w.live_tunnels,
            hop_sessions: w.hop_sessions,
            memory_bytes: w.memory_bytes,
            open_descriptors: w.open_descriptors,
            bytes_relayed: w.bytes_relayed,
            metrics: w.metrics,
        }
    }
}

/// A relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Relay {
    /// Id.
    pub id: String,
    /// Display name.
    pub name: String,
    /// Where nodes reach it.
    pub address: String,
    /// What it fails with.
    pub failure_domain: String,
    /// Whether it is the local relay.
    pub local: bool,
    /// `pending`, `not-ready`, `ready` or `offline`.
    pub state: String,
    /// Why it is not ready; empty when it is.
    pub state_reason: String,
    /// Whether it is only just starting: it is not ready, nothing is known to be wrong, and it has not taken
    /// longer than it may.
    #[serde(default)]
    pub starting: bool,
    /// Whether endpoints are placed on it.
    pub capacity: bool,
    /// When it was added.
    pub created_at: String,
    /// When it enrolled.
    pub enrolled_at: Option<String>,
    /// When its supervisor was last heard.
    pub last_seen: Option<String>,
    /// Version of its supervisor; empty before it connects.
    pub version: String,
    /// Its worker.
    pub worker: Option<Worker>,
    /// Its policy.
    pub policy: Policy,
    /// End of its certificate.
    pub certificate_not_after: Option<String>,
    /// How many endpoints are placed on it.
    pub endpoints: u64,
    /// From when on it may be removed, were it stopped at this moment and were nothing else in the way: its
    /// longest lease and 60 s for its clock are over. Null for one that may go at once, and for the local
    /// relay, which may not.
    #[serde(default)]
    pub removable_after: Option<String>,
    /// Two processes that use its identity, while there are two.
    #[serde(default)]
    pub copies: Option<Copies>,
}

impl Relay {
    /// Its worker, where its numbers are of this moment: nothing is heard of an offline relay's.
    #[must_use]
    pub fn live_worker(&self) -> Option<&Worker> {
        let is_away = self.state == api::RelayState::Offline.as_str();
        self.worker.as_ref().filter(|_| !is_away)
    }
}

impl From<api::RelayView> for Relay {
    fn from(r: api::RelayView) -> Self {
        Self {
            id: r.id.to_string(),
            name: r.name.to_string(),
            address: r.address.to_string(),
            failure_domain: r.failure_domain.to_string(),
            local: r.local,
            state: r.state.as_str().to_owned(),
            state_reason: r.state_reason,
            starting: r.starting,
            capacity: r.capacity,
            created_at: time(r.created_at),
            enrolled_at: r.enrolled_at.map(time),
            last_seen: r.last_seen.map(time),
            version: r.version,
            worker: r.worker.map(Into::into),
            policy: r.policy.into(),
            certificate_not_after: r.certificate_not_after.map(time),
            endpoints: r.endpoints,
            removable_after: r.removable_after.map(time),
            copies: r.copies.map(Into::into),
        }
    }
}

/// How a node reaches one relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reach {
    /// The relay.
    pub relay: Reference,
    /// Whether it has a hop session; false while the node is offline, and not known then.
    pub connected: bool,
    /// Round-trip time in microseconds, where measured.
    pub rtt_us: Option<u32>,
    /// Why it is not connected, or what speaks against a session that stands still: its relay is silent.
    /// Empty where neither is so, and before the first attempt.
    pub error: String,
    /// Ids of the endpoints registered there.
    pub registered: Vec<String>,
}

impl From<api::ReachView> for Reach {
    fn from(r: api::ReachView) -> Self {
        Self {
            relay: r.relay.into(),
            connected: r.connected,
            rtt_us: r.rtt_us,
            error: r.error,
            registered: r.registered.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Id.
    pub id: String,
    /// Display name.
    pub name: String,
    /// `pending`, `not-ready`, `ready` or `offline`.
    pub state: String,
    /// Why it is not ready; empty when it is.
    pub state_reason: String,
    /// Whether it is only just starting: it is not ready, nothing is known to be wrong, and it has not taken
    /// longer than it may.
    #[serde(default)]
    pub starting: bool,
    /// When it was added.
    pub created_at: String,
    /// When it enrolled.
    pub enrolled_at: Option<String>,
    /// When its daemon was last heard.
    pub last_seen: Option<String>,
    /// Version of its daemon; empty before it connects.
    pub version: String,
    /// Its policy.
    pub policy: Policy,
    /// Its assigned relays. Of a node that is offline it is not known how it reaches them: none is `connected`,
    /// and nothing is `registered`.
    pub relays: Vec<Reach>,
    /// Streams that are open; 0 while the node is offline, and not known then.
    pub live_streams: u64,
    /// Resident memory in bytes; 0 while the node is offline, and not known then.
    pub memory_bytes: u64,
    /// Where its metrics are; empty where it serves none.
    pub metrics: String,
    /// End of its certificate.
    pub certificate_not_after: Option<String>,
    /// Two processes that use its identity, while there are two.
    #[serde(default)]
    pub copies: Option<Copies>,
}

impl Node {
    /// Whether its numbers and paths are of this moment: it is connected, or was until a moment ago.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let live = [api::NodeState::NotReady, api::NodeState::Ready];
        live.iter().any(|state| state.as_str() == self.state)
    }
}

impl From<api::NodeView> for Node {
    fn from(n: api::NodeView) -> Self {
        Self {
            id: n.id.to_string(),
            name: n.name.to_string(),
            state: n.state.as_str().to_owned(),
            state_reason: n.state_reason,
            starting: n.starting,
            created_at: time(n.created_at),
            enrolled_at: n.enrolled_at.map(time),
            last_seen: n.last_seen.map(time),
            version: n.version,
            policy: n.policy.into(),
            relays: n.relays.into_iter().map(Into::into).collect(),
            live_streams: n.live_streams,
            memory_bytes: n.memory_bytes,
            metrics: n.metrics,
            certificate_not_after: n.certificate_not_after.map(time),
            copies: n.copies.map(Into::into),
        }
    }
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Link {
    /// Id.
    pub id: String,
    /// Display name.
    pub name: String,
    /// The consumer.
    pub from: Reference,
    /// The publisher.
    pub to: Reference,
    /// What the publisher's daemon dials.
    pub target: String,
    /// Where the consumer's daemon listens.
    pub listen: String,
    /// `standard`, `database` or `storage`.
    pub class: String,
    /// Id of the published service.
    pub endpoint: String,
    /// Its generation.
    pub generation: u64,
    /// Id of the consumer's permission.
    pub route: String,
    /// When it was added.
    pub created_at: String,
    /// Relays that carry it, best first.
    pub relays: Vec<Reference>,
    /// Why these relays.
    pub placement_reason: String,
    /// `pending` or `ready`.
    pub state: String,
    /// Whether it is only just starting: it is not ready, nothing is known to be wrong, and it has not taken
    /// longer than it may.
    #[serde(default)]
    pub starting: bool,
    /// What is missing until it is ready, one sentence each.
    pub waiting_for: Vec<String>,
    /// Why the consumer cannot listen; empty while it can, or has not said.
    #[serde(default)]
    pub listen_error: String,
    /// The latest connection to its listener that was turned away, if none was carried since.
    #[serde(default)]
    pub last_refusal: Option<Refusal>,
}

/// A link that was removed, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedLink {
    /// The link.
    #[serde(flatten)]
    pub link: Link,
    /// Names of relays that may hold it and have not heard that it was removed: they are not connected. Its tunnels
    /// there stay until they are.
    #[serde(default)]
    pub unheard_relays: Vec<String>,
    /// Names of those of its nodes that have not heard of it.
    #[serde(default)]
    pub unheard_nodes: Vec<String>,
}

impl From<api::RemovedLink> for RemovedLink {
    fn from(removed: api::RemovedLink) -> Self {
        let names = |names: Vec<fairlead_model::Name>| names.iter().map(ToString::to_string).collect();
        Self {
            link: removed.link.into(),
            unheard_relays: names(removed.unheard_relays),
            unheard_nodes: names(removed.unheard_nodes),
        }
    }
}

/// The latest connection of a link that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// Stable code, such as `TARGET_REFUSED`.
    pub code: String,
    /// One sentence.
    pub message: String,
    /// When, by the consumer's clock.
    pub at: String,
    /// How many were refused since the consumer's daemon started.
    pub count: u64,
}

impl From<api::RefusalView> for Refusal {
    fn from(r: api::RefusalView) -> Self {
        Self {
            code: r.code.to_owned(),
            message: r.message,
            at: time(r.at),
            count: r.count,
        }
    }
}

impl From<api::LinkView> for Link {
    fn from(l: api::LinkView) -> Self {
        Self {
            id: l.id.to_string(),
            name: l.name.to_string(),
            from: l.from.into(),
            to: l.to.into(),
            target: l.target.to_string(),
            listen: l.listen.to_string(),
            class: l.class.to_string(),
            endpoint: l.endpoint.to_string(),
            generation: l.generation.0,
            route: l.route.to_string(),
            created_at: time(l.created_at),
            relays: l.relays.into_iter().map(Into::into).collect(),
            placement_reason: l.placement_reason,
            state: l.state.as_str().to_owned(),
            starting: l.starting,
            waiting_for: l.waiting_for,
            listen_error: l.listen_error,
            last_refusal: l.last_refusal.map(Into::into),
        }
    }
}

/// One audit entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Place in the log, from 1, without gaps.
    pub seq: u64,
    /// Id.
    pub id: String,
    /// When.
    pub at: String,
    /// Who.
    pub actor: String,
    /// What, such as `link.add`.
    pub action: String,
    /// On what.
    pub object: String,
    /// The object before; null where there was none.
    pub before: Option<serde_json::Value>,
    /// The object after; null where there is none.
    pub after: Option<serde_json::Value>,
    /// SHA-256 over the previous entry's hash and this entry, hexadecimal.
    pub hash: String,
    /// The previous entry's hash.
    pub previous_hash: String,
}

impl From<api::AuditView> for AuditEntry {
    fn from(a: api::AuditView) -> Self {
        Self {
            seq: a.seq,
            id: a.id.to_string(),
            at: time(a.at),
            actor: a.actor,
            action: a.action,
            object: a.object,
            before: a.before.map(object),
            after: a.after.map(object),
            hash: a.hash,
            previous_hash: a.previous_hash,
        }
    }
}

/// An object of the audit log, which keeps it as the text that its hash was taken over.
fn object(text: String) -> serde_json::Value {
    serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))
}

/// A setting with its registry entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Setting {
    /// Key.
    pub key: String,
    /// The value in force.
    pub value: String,
    /// The default.
    pub default: String,
    /// What is allowed.
    pub range: String,
    /// What it means.
    pub meaning: String,
    /// The requirement or measurement it comes from.
    pub source: String,
}

impl From<api::SettingView> for Setting {
    fn from(s: api::SettingView) -> Self {
        Self {
            key: s.key.to_owned(),
            value: s.value,
            default: s.default,
            range: s.range,
            meaning: s.meaning.to_owned(),
            source: s.source.to_owned(),
        }
    }
}

/// An admin token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: String,
}

impl From<api::TokenView> for Token {
    fn from(t: api::TokenView) -> Self {
        Self {
            id: t.id.to_string(),
            name: t.name,
            scopes: t.scopes.iter().map(ToString::to_string).collect(),
            created_at: time(t.created_at),
        }
    }
}

/// The pool at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the control plane.
    pub version: String,
    /// Trust domain.
    pub trust_domain: String,
    /// CA pin: `sha256:` and hexadecimal digits.
    pub ca_pin: String,
    /// Where members reach the control plane.
    pub advertised: String,
    /// Whether lab mode is on: several relays on one host.
    pub lab: bool,
    /// How long this control plane has run, in words.
    pub uptime: String,
    /// The same in whole seconds.
    pub uptime_s: u64,
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
    /// `attention` where there are warnings, or members wait for somebody to enrol them; `settling` where
    /// something is not ready and nothing is known to be wrong; else `well`.
    #[serde(default)]
    pub verdict: String,
}

/// Whether a member in this state waits for somebody: it has not been enrolled. Others come right by
/// themselves, or have a warning.
#[must_use]
pub fn waits_for_somebody(state: &str) -> bool {
    state == api::RelayState::Pending.as_str()
}

impl From<&api::Look> for Status {
    fn from(look: &api::Look) -> Self {
        let s = look.status.clone();
        Self {
            verdict: crate::verdict::verdict(look, &crate::warning::warnings(look)).to_owned(),
            version: s.version,
            trust_domain: s.trust_domain.to_string(),
            ca_pin: s.ca_pin,
            advertised: s.advertised.to_string(),
            lab: s.lab,
            uptime: fairlead_model::duration::format(s.uptime),
            uptime_s: s.uptime.as_secs(),
            leader_term: s.leader_term,
            policy_epoch: s.policy_epoch,
            policy_revision: s.policy_revision,
            relays_ready: s.relays_ready,
            relays: s.relays,
            nodes_ready: s.nodes_ready,
            nodes: s.nodes,
            links_ready: s.links_ready,
            links: s.links,
            audit_seq: s.audit_seq,
        }
    }
}

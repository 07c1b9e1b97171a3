//! The signed documents, as `proto/fairlead/v1/signed.proto` has them, in model types.

use crate::envelope::{Document, PayloadType, Verified};
use crate::key::Keyring;
use fairlead_model::{
    EndpointId, FailureDomain, Generation, HostPort, LeaderTerm, LeaseSeq, ListenAddress, Name, NodeId,
    PolicyEpoch, RelayId, Revision, RouteId, ServiceClass, TargetAddress, WallTime,
};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 of a policy's payload: its content, whatever its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyRoot(pub [u8; 32]);

/// What a relay may admit: a whole snapshot, identified by (epoch, revision, root).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPolicy {
    /// The relay that it is for.
    pub relay: RelayId,
    /// The reign of numbering.
    pub epoch: PolicyEpoch,
    /// Its number within the epoch. One counter serves relays, nodes and grants, so that a grant's
    /// revision can be held against a policy's.
    pub revision: Revision,
    /// The term of the leader that signed it.
    pub leader_term: LeaderTerm,
    /// When it was signed.
    pub issued_at: WallTime,
    /// Endpoints that may be registered.
    pub endpoints: Vec<PolicyEndpoint>,
    /// Routes that may be opened.
    pub routes: Vec<PolicyRoute>,
    /// Nodes that may hold a hop session.
    pub nodes: Vec<NodeId>,
    /// Routes whose tunnels close and that are never opened again.
    pub revoked_routes: Vec<RouteId>,
    /// Keys whose grants hold.
    pub grant_keys: Keyring,
    /// The relay's bounds.
    pub settings: RelaySettings,
}

/// An endpoint as a relay knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyEndpoint {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Its version.
    pub generation: Generation,
    /// The node that may register it.
    pub publisher: NodeId,
    /// Its class, for admission under load.
    pub class: ServiceClass,
}

/// A route as a relay knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRoute {
    /// The route; never reused.
    pub route: RouteId,
    /// The node that may open it.
    pub consumer: NodeId,
    /// Where it leads.
    pub endpoint: EndpointId,
}

/// Bounds of a relay, per peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelaySettings {
    /// Most legs of one node. Range 1 to 1,048,576.
    pub legs_per_node_max: u32,
    /// Most opens of one node that await their answer. Range 1 to 65,536.
    pub pending_opens_per_node_max: u32,
    /// Most unfinished handshakes of one address. Range 1 to 65,536.
    pub handshakes_per_address_max: u32,
    /// Bytes buffered per direction of a tunnel. Range 16 KiB to 4 MiB.
    pub splice_buffer_bytes: u32,
}

/// How long a relay may admit under one policy (R-POL-01).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyLease {
    /// The relay that it is for.
    pub relay: RelayId,
    /// The policy's epoch.
    pub epoch: PolicyEpoch,
    /// The policy's revision.
    pub revision: Revision,
    /// The policy's root.
    pub root: PolicyRoot,
    /// When it was signed.
    pub not_before: WallTime,
    /// When it ends.
    pub not_after: WallTime,
    /// Its number; rises within an epoch.
    pub seq: LeaseSeq,
    /// The term of the leader that signed it.
    pub leader_term: LeaderTerm,
}

/// What a node publishes and consumes, and through which relays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePolicy {
    /// The node that it is for.
    pub node: NodeId,
    /// The reign of numbering.
    pub epoch: PolicyEpoch,
    /// Its number within the epoch.
    pub revision: Revision,
    /// The term of the leader that signed it.
    pub leader_term: LeaderTerm,
    /// When it was signed.
    pub issued_at: WallTime,
    /// Relays to keep a hop session to.
    pub relays: Vec<NodeRelay>,
    /// What it publishes.
    pub publications: Vec<Publication>,
    /// What it consumes.
    pub consumptions: Vec<Consumption>,
    /// Routes whose streams it resets itself and never accepts again.
    pub revoked_routes: Vec<RouteId>,
    /// Keys whose grants hold.
    pub grant_keys: Keyring,
}

/// A relay as a node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRelay {
    /// The relay; its certificate must name it.
    pub relay: RelayId,
    /// Its name, for people.
    pub name: Name,
    /// Where it is dialled; names are resolved at each dial.
    pub address: HostPort,
    /// What it fails together with.
    pub failure_domain: FailureDomain,
}

/// An endpoint that a node publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Its version.
    pub generation: Generation,
    /// The link's name, for people.
    pub link: Name,
    /// Where accepted streams are dialled to.
    pub target: TargetAddress,
    /// Its class.
    pub class: ServiceClass,
    /// Where to register it, best first.
    pub relays: Vec<RelayId>,
    /// Who may open it.
    pub routes: Vec<PublishedRoute>,
}

/// A route as its publisher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedRoute {
    /// The route.
    pub route: RouteId,
    /// The only node that may open it.
    pub consumer: NodeId,
    /// The lowest relay policy revision that may have admitted it (R-REV-02).
    pub revision_min: Revision,
}

/// A route as its consumer knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumption {
    /// The route.
    pub route: RouteId,
    /// Where it leads.
    pub endpoint: EndpointId,
    /// The endpoint's version.
    pub generation: Generation,
    /// The node that publishes it.
    pub publisher: NodeId,
    /// The link's name, for people.
    pub link: Name,
    /// Where the node listens for applications.
    pub listen: ListenAddress,
    /// Its class.
    pub class: ServiceClass,
    /// Relays to open it through: primaries first, then standbys.
    pub relays: Vec<RelayId>,
}

/// The signed right of one consumer to open one route (R-POL-02).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The node that may open.
    pub consumer: NodeId,
    /// The node it may reach.
    pub publisher: NodeId,
    /// The endpoint it may reach.
    pub endpoint: EndpointId,
    /// By this route.
    pub route: RouteId,
    /// The endpoint's version when it was granted.
    pub generation: Generation,
    /// The reign of the revision below.
    pub epoch: PolicyEpoch,
    /// The first revision that holds the route.
    pub revision: Revision,
    /// When it begins.
    pub not_before: WallTime,
    /// When it ends.
    pub not_after: WallTime,
}

impl RelaySettings {
    /// The values of a relay that nobody has tuned: a node may hold 16,384 legs and 1,024 unanswered
    /// opens (500 at once through a link never used before must not be refused), an address 256
    /// unfinished handshakes, and a tunnel 256 KiB per direction (one stream window at first).
    pub const DEFAULT: Self = Self {
        legs_per_node_max: 16_384,
        pending_opens_per_node_max: 1_024,
        handshakes_per_address_max: 256,
        splice_buffer_bytes: 256 * 1024,
    };
}

impl PolicyRoot {
    /// The root of a policy with this payload.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        Self(Sha256::digest(payload).into())
    }
}

impl Verified<RelayPolicy> {
    /// The policy's root, which its leases name.
    #[must_use]
    pub const fn root(&self) -> PolicyRoot {
        PolicyRoot(self.digest())
    }
}

impl fmt::Display for PolicyRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PolicyRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyRoot({self})")
    }
}

impl Document for RelayPolicy {
    const PAYLOAD_TYPE: PayloadType = PayloadType::RelayPolicy;
}
impl Document for PolicyLease {
    const PAYLOAD_TYPE: PayloadType = PayloadType::PolicyLease;
}
impl Document for NodePolicy {
    const PAYLOAD_TYPE: PayloadType = PayloadType::NodePolicy;
}
impl Document for Grant {
    const PAYLOAD_TYPE: PayloadType = PayloadType::Grant;
}

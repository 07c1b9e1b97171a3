//! Stored records, and the keys they stand under. JSON, each within the store's 4,000 bytes: every
//! text in them is bounded where it is taken in.

use fairlead_model::{
    EndpointId, FailureDomain, HostPort, LinkId, ListenAddress, Name, NodeId, RelayId, RouteId, ServiceClass,
    TargetAddress, TokenId, TrustDomain, WallTime,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A point in time: milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct At(i64);

impl From<WallTime> for At {
    fn from(at: WallTime) -> Self {
        Self(at.0)
    }
}

impl From<At> for WallTime {
    fn from(at: At) -> Self {
        Self(at.0)
    }
}

/// RFC 3339 with milliseconds.
pub(crate) fn time_text(at: WallTime) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| at.0.to_string(), |t| format!("{t:.3}"))
}

/// A model type in its text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Text<T>(pub(crate) T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// A member: a relay or a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemberKey {
    Relay(Text<RelayId>),
    Node(Text<NodeId>),
}

impl fmt::Display for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relay(id) => write!(f, "relay/{}", id.0),
            Self::Node(id) => write!(f, "node/{}", id.0),
        }
    }
}

impl FromStr for MemberKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some(("relay", id)) => id
                .parse()
                .map(|id| Self::Relay(Text(id)))
                .map_err(|_| text.to_owned()),
            Some(("node", id)) => id
                .parse()
                .map(|id| Self::Node(Text(id)))
                .map_err(|_| text.to_owned()),
            Some(_) | None => Err(text.to_owned()),
        }
    }
}

/// What enrolment left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrolledRecord {
    pub(crate) at: At,
    /// SHA-256 of the member's public key, hexadecimal.
    pub(crate) key_hash: String,
    /// Parts that tell its host from another ([`crate::fingerprint`]).
    pub(crate) host: BTreeMap<String, String>,
    pub(crate) certificate_not_after: At,
    /// Whether it has had a session since: its host holds what enrolment gave it.
    #[serde(default)]
    pub(crate) connected: bool,
}

impl EnrolledRecord {
    /// After a session.
    pub(crate) fn connected(self) -> Self {
        Self {
            connected: true,
            ..self
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayRecord {
    pub(crate) id: Text<RelayId>,
    pub(crate) name: Text<Name>,
    pub(crate) address: Text<HostPort>,
    pub(crate) failure_domain: Text<FailureDomain>,
    /// On the control plane's own host.
    pub(crate) local: bool,
    pub(crate) created_at: At,
    #[serde(default)]
    pub(crate) enrolled: Option<EnrolledRecord>,
    /// When its session ended; absent while it is connected and before it ever was.
    #[serde(default)]
    pub(crate) lost_at: Option<At>,
    /// Whether its supervisor said then that it stops.
    #[serde(default)]
    pub(crate) stopped: bool,
    /// Whether endpoints are placed on it: its port has been verified (R-ENR-07).
    #[serde(default)]
    pub(crate) capacity: bool,
    /// Whether it ever had capacity: policies of nodes may have named it since, and its own nodes.
    /// Never taken back. A record of a version that did not keep it counts as one that had.
    #[serde(default = "may_have_served")]
    pub(crate) served: bool,
}

const fn may_have_served() -> bool {
    true
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) id: Text<NodeId>,
    pub(crate) name: Text<Name>,
    pub(crate) created_at: At,
    #[serde(default)]
    pub(crate) enrolled: Option<EnrolledRecord>,
    /// When its daemon said that it stops; absent from its next session on.
    #[serde(default)]
    pub(crate) stopped_at: Option<At>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkRecord {
    pub(crate) id: Text<LinkId>,
    pub(crate) name: Text<Name>,
    pub(crate) consumer: Text<NodeId>,
    pub(crate) publisher: Text<NodeId>,
    pub(crate) target: Text<TargetAddress>,
    pub(crate) listen: Text<ListenAddress>,
    pub(crate) class: Text<ServiceClass>,
    pub(crate) endpoint: Text<EndpointId>,
    pub(crate) generation: u64,
    pub(crate) route: Text<RouteId>,
    pub(crate) created_at: At,
}

/// A route that was taken away. It stands in policies until no grant can name it any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RevokedRecord {
    pub(crate) route: Text<RouteId>,
    /// The name of its link, for people.
    pub(crate) link: Text<Name>,
    pub(crate) consumer: Text<NodeId>,
    pub(crate) publisher: Text<NodeId>,
    pub(crate) at: At,
}

/// A one-shot enrolment token; it stands under the hash of its secret (R-ENR-02).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrolmentRecord {
    pub(crate) member: MemberKey,
    pub(crate) issued_at: At,
    pub(crate) expires_at: At,
    #[serde(default)]
    pub(crate) used: Option<UsedRecord>,
    /// Refused uses that the audit log knows of.
    #[serde(default)]
    pub(crate) refused: u64,
}

/// The token's one use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedRecord {
    pub(crate) at: At,
    pub(crate) key_hash: String,
    pub(crate) host: BTreeMap<String, String>,
}

/// An admin token; it stands under the hash of its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) id: Text<TokenId>,
    pub(crate) name: String,
    pub(crate) scopes: Vec<Text<crate::api::Scope>>,
    pub(crate) created_at: At,
}

/// A setting that an admin set; one that stands at its default has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingRecord {
    pub(crate) value: String,
}

/// The newest policy of a member, committed before it is signed. The same content with the same
/// `issued_at` and `leader_term` gives the same bytes, so a restart signs the same envelope again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeadRecord {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    /// SHA-256 of the policy's payload, hexadecimal.
    pub(crate) root: String,
    pub(crate) issued_at: At,
    pub(crate) leader_term: u64,
    /// Highest lease number taken in this epoch; 0 before the first. Relays only.
    #[serde(default)]
    pub(crate) lease_seq: u64,
    /// End of the latest lease.
    #[serde(default)]
    pub(crate) lease_not_after: Option<At>,
}

/// Where a link is, from one plan to the next: its tunnels stay open on the relays that it leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlaceRecord {
    /// Best first.
    pub(crate) relays: Vec<Text<RelayId>>,
    /// Relays that it has left, and when.
    pub(crate) former: Vec<(Text<RelayId>, At)>,
    /// The first policy revision that holds the link's route.
    pub(crate) since: u64,
    /// The first one that holds it on all its relays.
    pub(crate) widened: u64,
}

/// What the pool is, made at its first start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolRecord {
    pub(crate) trust_domain: Text<TrustDomain>,
    pub(crate) policy_epoch: u64,
    pub(crate) created_at: At,
    /// `None` in a store of a version that did not write it; filled in by the next start.
    #[serde(default)]
    pub(crate) keys: Option<KeysRecord>,
}

/// Which keys the pool has: others would be refused by every member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeysRecord {
    /// The CA pin.
    pub(crate) ca: String,
    /// Public keys, hexadecimal.
    pub(crate) policy: String,
    pub(crate) grant: String,
}

/// Who leads: every commit depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaderRecord {
    pub(crate) term: u64,
}

/// The highest policy revision taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CounterRecord {
    pub(crate) revision: u64,
}

/// When the control plane was alive for the last time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PulseRecord {
    pub(crate) at: At,
}

/// Keys of the store.
pub(crate) mod key {
    use super::MemberKey;
    use fairlead_model::{LinkId, NodeId, RelayId, RouteId};

    pub(crate) const RELAY: &str = "relay/";
    pub(crate) const NODE: &str = "node/";
    pub(crate) const LINK: &str = "link/";
    pub(crate) const REVOKED: &str = "revoked/";
    pub(crate) const ENROLMENT: &str = "enrolment/";
    pub(crate) const TOKEN: &str = "token/";
    pub(crate) const SETTING: &str = "setting/";
    pub(crate) const HEAD: &str = "head/";
    pub(crate) const PLACE: &str = "place/";
    pub(crate) const AUDIT: &str = "audit/";
    pub(crate) const AUDIT_HEAD: &str = "meta/audit-head";
    pub(crate) const COUNTER: &str = "meta/counter";
    pub(crate) const PULSE: &str = "meta/pulse";
    pub(crate) const POOL: &str = "meta/installation";
    pub(crate) const LEADER: &str = "meta/leader";

    pub(crate) fn relay(id: RelayId) -> String {
        format!("{RELAY}{id}")
    }
    pub(crate) fn node(id: NodeId) -> String {
        format!("{NODE}{id}")
    }
    pub(crate) fn link(id: LinkId) -> String {
        format!("{LINK}{id}")
    }
    pub(crate) fn revoked(id: RouteId) -> String {
        format!("{REVOKED}{id}")
    }
    pub(crate) fn enrolment(hash: &str) -> String {
        format!("{ENROLMENT}{hash}")
    }
    pub(crate) fn token(hash: &str) -> String {
        format!("{TOKEN}{hash}")
    }
    pub(crate) fn setting(name: &str) -> String {
        format!("{SETTING}{name}")
    }
    pub(crate) fn head(member: MemberKey) -> String {
        format!("{HEAD}{member}")
    }
    pub(crate) fn place(link: LinkId) -> String {
        format!("{PLACE}{link}")
    }
    /// Twenty digits, so that the order of keys is the order of entries.
    pub(crate) fn audit(seq: u64) -> String {
        format!("{AUDIT}{seq:020}")
    }
}

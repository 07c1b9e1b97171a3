//! Copies of an identity, and paths that were tried.

use super::Reference;
use super::view::time;
use fairlead_control::api;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Two processes that use one member's identity: it was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Copies {
    /// The process that is kept: its host's name, address, and digests of its ids.
    pub kept: String,
    /// The one that is refused.
    pub refused: String,
    /// When they were found; absent where only relays have met them.
    pub since: Option<String>,
    /// When the refused one was seen last. Two minutes later it counts as stopped.
    #[serde(default)]
    pub last_seen: String,
    /// Names of relays that have met both.
    pub met_by: Vec<String>,
}

impl From<api::CopiesView> for Copies {
    fn from(c: api::CopiesView) -> Self {
        Self {
            kept: c.kept,
            refused: c.refused,
            since: c.since.map(time),
            last_seen: time(c.last_seen),
            met_by: c.met_by.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Body of `POST /v1/links/{link}/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckLink {
    /// The relay to go through, by name or id; the link's first where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
}

/// How far the consumer came that tried a link's path with a new hop session, a new association and
/// new tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathCheck {
    /// The link's name.
    pub link: String,
    /// The consumer.
    pub from: Reference,
    /// The publisher.
    pub to: Reference,
    /// The relay.
    pub relay: Reference,
    /// Microseconds until the hop session was up; 0 if it was not.
    pub session_us: u32,
    /// Microseconds from the open until the first byte was back; 0 if none came.
    pub tunnel_us: u32,
    /// Bytes that went to the publisher's daemon and came back the same.
    pub bytes_verified: u64,
    /// Stable code of what stopped the path; empty if nothing did.
    pub failed: String,
    /// The same in words.
    pub detail: String,
    /// How the publisher's dial of the target ended: `CONNECTED` or a code; empty if it was not tried.
    pub target: String,
}

impl From<api::PathCheckView> for PathCheck {
    fn from(c: api::PathCheckView) -> Self {
        Self {
            link: c.link.to_string(),
            from: c.from.into(),
            to: c.to.into(),
            relay: c.relay.into(),
            session_us: c.report.session_us,
            tunnel_us: c.report.tunnel_us,
            bytes_verified: c.report.bytes_verified,
            failed: c.report.failed,
            detail: c.report.detail,
            target: c.report.target,
        }
    }
}

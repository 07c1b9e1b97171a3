//! Lists as tables.

use super::page::{self, optional, or_dash};
use super::{names, yes_no};
use crate::table;
use fairlead_admin::json;

/// What a pool lacks, and the command that mends it.
pub(super) const NO_RELAY: &str = "no relay yet: fairlead relay add";
pub(super) const NO_NODE: &str = "no node yet: fairlead node add";
pub(super) const NO_LINK: &str = "no link yet: fairlead link add";

/// Columns of `relay ls`.
pub(crate) const RELAYS: &[&str] = &[
    "NAME",
    "STATE",
    "ADDRESS",
    "FAILURE DOMAIN",
    "LOCAL",
    "VERSION",
    "ENDPOINTS",
    "TUNNELS",
    "REASON",
];

pub(super) fn relays(relays: &json::List<json::Relay>) {
    let rows: Vec<Vec<String>> = relays.items.iter().map(relay).collect();
    table::print(RELAYS, &rows, NO_RELAY);
}

fn relay(r: &json::Relay) -> Vec<String> {
    let tunnels = r.live_worker().map(|w| w.live_tunnels.to_string());
    vec![
        r.name.clone(),
        r.state.clone(),
        r.address.clone(),
        r.failure_domain.clone(),
        yes_no(r.local).to_owned(),
        or_dash(&r.version),
        r.endpoints.to_string(),
        or_dash(&tunnels.unwrap_or_default()),
        or_dash(&r.state_reason),
    ]
}

/// Columns of `node ls`.
const NODES: &[&str] = &[
    "NAME",
    "STATE",
    "VERSION",
    "RELAYS",
    "STREAMS",
    "LAST SEEN",
    "REASON",
];

pub(super) fn nodes(nodes: &json::List<json::Node>) {
    let rows: Vec<Vec<String>> = nodes.items.iter().map(node).collect();
    table::print(NODES, &rows, NO_NODE);
}

fn node(n: &json::Node) -> Vec<String> {
    let connected = n.relays.iter().filter(|r| r.connected).count();
    // What one that is away does is not known.
    let (relays, streams) = match n.is_live() {
        true => (
            format!("{connected} of {}", n.relays.len()),
            n.live_streams.to_string(),
        ),
        false => (or_dash(""), or_dash("")),
    };
    vec![
        n.name.clone(),
        n.state.clone(),
        or_dash(&n.version),
        relays,
        streams,
        optional(n.last_seen.as_ref()),
        or_dash(&n.state_reason),
    ]
}

pub(super) fn links(links: &json::List<json::Link>) {
    let rows = links.items.iter().map(|l| {
        vec![
            l.name.clone(),
            l.state.clone(),
            l.class.clone(),
            l.from.name.clone(),
            l.listen.clone(),
            l.to.name.clone(),
            l.target.clone(),
            names(&l.relays),
            page::link_reason(l),
        ]
    });
    table::print(
        &[
            "NAME", "STATE", "CLASS", "FROM", "LISTEN", "TO", "TARGET", "RELAYS", "REASON",
        ],
        &rows.collect::<Vec<_>>(),
        NO_LINK,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cell(columns: &[&str], row: &[String], column: &str) -> String {
        let at = columns.iter().position(|c| *c == column).unwrap();
        row[at].clone()
    }

    /// Numbers that a member said before it went away are not shown as those of now.
    #[test]
    fn who_is_away_has_no_live_figures() {
        let relay_with = |state: &str, worker: &str| -> json::Relay {
            serde_json::from_value(json!({
                "id": "", "name": "r", "state": state, "state_reason": "", "address": "", "failure_domain": "",
                "local": false, "capacity": true, "created_at": "", "enrolled_at": null, "last_seen": null,
                "version": "", "endpoints": 0, "certificate_not_after": null,
                "policy": {"wanted": null, "applied": null, "refused": "", "lease_not_after": null},
                "worker": {"state": worker, "version": "", "pid": 7, "restarts": 0, "last_exit": "",
                    "live_tunnels": 5, "hop_sessions": 0, "memory_bytes": 0, "open_descriptors": 0,
                    "bytes_relayed": 0, "metrics": ""},
            }))
            .unwrap()
        };
        let tunnels = |state, worker| cell(RELAYS, &relay(&relay_with(state, worker)), "TUNNELS");
        assert_eq!(tunnels("ready", "listening"), "5");
        assert_eq!(tunnels("offline", "unknown"), "-");
        assert_eq!(tunnels("offline", "stopped"), "-");
        let node_in = |state: &str| -> json::Node {
            serde_json::from_value(json!({
                "id": "", "name": "n", "state": state, "state_reason": "", "created_at": "", "enrolled_at": null,
                "last_seen": null, "version": "", "live_streams": 3, "memory_bytes": 0, "metrics": "",
                "certificate_not_after": null,
                "policy": {"wanted": null, "applied": null, "refused": "", "lease_not_after": null},
                "relays": [{"relay": {"id": "", "name": "r"}, "connected": true, "rtt_us": null, "error": "",
                    "registered": []}],
            }))
            .unwrap()
        };
        for (state, paths, streams) in [("ready", "1 of 1", "3"), ("offline", "-", "-")] {
            let row = node(&node_in(state));
            assert_eq!(cell(NODES, &row, "RELAYS"), paths);
            assert_eq!(cell(NODES, &row, "STREAMS"), streams);
        }
    }
}

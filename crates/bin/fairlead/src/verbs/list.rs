//! Lists as tables.

use super::page::{self, optional, or_dash};
use super::{names, yes_no};
use crate::table;
use fairlead_admin::json;

/// What a pool lacks, and the command that mends it.
pub(super) const NO_RELAY: &str = "no relay yet: fairlead relay add";
pub(super) const NO_NODE: &str = "no node yet: fairlead node add";
pub(super) const NO_LINK: &str = "no link yet: fairlead link add";

pub(super) fn relays(relays: &json::List<json::Relay>) {
    let rows = relays.items.iter().map(|r| {
        vec![
            r.name.clone(),
            r.state.clone(),
            r.address.clone(),
            r.failure_domain.clone(),
            yes_no(r.local).to_owned(),
            or_dash(&r.version),
            r.endpoints.to_string(),
            r.worker.as_ref().map_or(0, |w| w.live_tunnels).to_string(),
            or_dash(&r.state_reason),
        ]
    });
    table::print(
        &[
            "NAME",
            "STATE",
            "ADDRESS",
            "FAILURE DOMAIN",
            "LOCAL",
            "VERSION",
            "ENDPOINTS",
            "TUNNELS",
            "REASON",
        ],
        &rows.collect::<Vec<_>>(),
        NO_RELAY,
    );
}

pub(super) fn nodes(nodes: &json::List<json::Node>) {
    let rows = nodes.items.iter().map(|n| {
        let connected = n.relays.iter().filter(|r| r.connected).count();
        vec![
            n.name.clone(),
            n.state.clone(),
            or_dash(&n.version),
            format!("{connected} of {}", n.relays.len()),
            n.live_streams.to_string(),
            optional(n.last_seen.as_ref()),
            or_dash(&n.state_reason),
        ]
    });
    table::print(
        &[
            "NAME",
            "STATE",
            "VERSION",
            "RELAYS",
            "STREAMS",
            "LAST SEEN",
            "REASON",
        ],
        &rows.collect::<Vec<_>>(),
        NO_NODE,
    );
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

//! One object as a page of facts.

use crate::cli::verbs::Connection;
use crate::table;
use fairlead_admin::json;
use serde::Serialize;

/// Prints JSON or the plain form, as asked.
pub(super) fn show<T: Serialize>(connection: &Connection, value: &T, plain: impl FnOnce(&T)) {
    if connection.json {
        table::json(value);
    } else {
        plain(value);
    }
}

pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.to_owned()
    }
}

pub(super) fn optional(time: Option<&String>) -> String {
    time.map_or_else(|| "-".to_owned(), |t| short_time(t))
}

/// A time without its fraction of a second.
pub(super) fn short_time(text: &str) -> String {
    match text.split_once('.') {
        Some((whole, _)) => format!("{whole}Z"),
        None => text.to_owned(),
    }
}

fn page(facts: &[(&str, String)]) {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        table::line(&format!("{name:width$}  {}", or_dash(value)));
    }
}

pub(super) fn issued(issued: &json::Issued) {
    table::line(&format!(
        "{} {} added. Run on its host, before {}:\n\n  {}\n\nand give it this token on standard input; it works \
         once:\n\n  {}",
        issued.role,
        issued.name,
        short_time(&issued.expires_at),
        issued.install_command,
        issued.token
    ));
}

fn head(head: Option<json::PolicyHead>) -> String {
    head.map_or_else(|| "none".to_owned(), |h| format!("{}.{}", h.epoch, h.revision))
}

pub(super) fn relay(r: &json::Relay) {
    let mut facts = vec![
        ("name", r.name.clone()),
        ("id", r.id.clone()),
        ("state", r.state.clone()),
        ("reason", r.state_reason.clone()),
        ("address", r.address.clone()),
        ("failure domain", r.failure_domain.clone()),
        ("local", r.local.to_string()),
        ("version", r.version.clone()),
        ("enrolled", optional(r.enrolled_at.as_ref())),
        ("last seen", optional(r.last_seen.as_ref())),
        ("certificate until", optional(r.certificate_not_after.as_ref())),
        ("policy wanted", head(r.policy.wanted)),
        ("policy applied", head(r.policy.applied)),
        ("policy refused", r.policy.refused.clone()),
        ("lease until", optional(r.policy.lease_not_after.as_ref())),
        ("endpoints", r.endpoints.to_string()),
    ];
    if let Some(w) = &r.worker {
        facts.extend([
            ("worker", w.state.clone()),
            ("worker pid", w.pid.to_string()),
            ("worker version", w.version.clone()),
            ("worker restarts", w.restarts.to_string()),
            ("worker last exit", w.last_exit.clone()),
            ("live tunnels", w.live_tunnels.to_string()),
            ("hop sessions", w.hop_sessions.to_string()),
            ("memory bytes", w.memory_bytes.to_string()),
            ("open descriptors", w.open_descriptors.to_string()),
            ("bytes relayed", w.bytes_relayed.to_string()),
            ("metrics", w.metrics.clone()),
        ]);
    }
    page(&facts);
}

pub(super) fn node(n: &json::Node) {
    page(&[
        ("name", n.name.clone()),
        ("id", n.id.clone()),
        ("state", n.state.clone()),
        ("reason", n.state_reason.clone()),
        ("version", n.version.clone()),
        ("enrolled", optional(n.enrolled_at.as_ref())),
        ("last seen", optional(n.last_seen.as_ref())),
        ("certificate until", optional(n.certificate_not_after.as_ref())),
        ("policy wanted", head(n.policy.wanted)),
        ("policy applied", head(n.policy.applied)),
        ("policy refused", n.policy.refused.clone()),
        ("live streams", n.live_streams.to_string()),
        ("memory bytes", n.memory_bytes.to_string()),
        ("metrics", n.metrics.clone()),
    ]);
    let rows = n.relays.iter().map(|r| {
        vec![
            r.relay.name.clone(),
            super::yes_no(r.connected).to_owned(),
            r.rtt_us.map_or_else(
                || "-".to_owned(),
                |us| format!("{:.1} ms", f64::from(us) / 1000.0),
            ),
            r.registered.len().to_string(),
            or_dash(&r.error),
        ]
    });
    table::line("");
    table::print(
        &["RELAY", "CONNECTED", "RTT", "REGISTERED", "REASON"],
        rows.collect(),
    );
}

pub(super) fn link(l: &json::Link) {
    page(&[
        ("name", l.name.clone()),
        ("id", l.id.clone()),
        ("state", l.state.clone()),
        ("waiting for", l.waiting_for.join("; ")),
        ("class", l.class.clone()),
        ("from", l.from.name.clone()),
        ("listen", l.listen.clone()),
        ("to", l.to.name.clone()),
        ("target", l.target.clone()),
        ("endpoint", format!("{} generation {}", l.endpoint, l.generation)),
        ("route", l.route.clone()),
        ("relays", super::names(&l.relays)),
        ("placement", l.placement_reason.clone()),
        ("added", short_time(&l.created_at)),
    ]);
}

pub(super) fn setting(s: &json::Setting) {
    page(&[
        ("key", s.key.clone()),
        ("value", s.value.clone()),
        ("default", s.default.clone()),
        ("range", s.range.clone()),
        ("meaning", s.meaning.clone()),
        ("source", s.source.clone()),
    ]);
}

pub(super) fn status(s: &json::Status) {
    page(&[
        ("control plane", s.advertised.clone()),
        ("version", s.version.clone()),
        ("running for", s.uptime.clone()),
        ("lab mode", s.lab.to_string()),
        ("trust domain", s.trust_domain.clone()),
        ("CA pin", s.ca_pin.clone()),
        ("relays ready", format!("{} of {}", s.relays_ready, s.relays)),
        ("nodes ready", format!("{} of {}", s.nodes_ready, s.nodes)),
        ("links ready", format!("{} of {}", s.links_ready, s.links)),
        ("policy", format!("{}.{}", s.policy_epoch, s.policy_revision)),
        ("audit entries", s.audit_seq.to_string()),
    ]);
}

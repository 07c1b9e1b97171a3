//! One object as a page of facts.

use crate::cli::verbs::Connection;
use crate::table;
use fairlead_admin::json;
use fairlead_model::WallTime;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Longest value shown in an audit table: addresses, targets and ids are shorter.
const VALUE_LEN_MAX: usize = 120;
/// Members that an audit table leaves out: they say nothing to people, or stand in other columns.
const CHANGE_SILENT: [&str; 4] = ["id", "name", "key_hash", "created_at"];

/// Prints JSON or the plain form, as asked.
pub(crate) fn show<T: Serialize>(connection: &Connection, value: &T, plain: impl FnOnce(&T)) {
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

/// What an audit entry changed, for a table: the members that differ. `--json` has all of it.
pub(super) fn change(before: Option<&Value>, after: Option<&Value>) -> String {
    let before = members(before);
    let after = members(after);
    let keys: BTreeSet<&String> = before
        .keys()
        .chain(after.keys())
        .filter(|key| !CHANGE_SILENT.contains(&key.as_str()))
        .collect();
    let mut parts = Vec::new();
    for key in keys {
        match (before.get(key), after.get(key)) {
            (Some(old), Some(new)) if old == new => {}
            (Some(old), Some(new)) => {
                parts.push(format!("{key}: {} → {}", brief(key, old), brief(key, new)));
            }
            // What is not set yet is no news.
            (None, Some(Value::Null)) => {}
            (None, Some(new)) => parts.push(format!("{key}: {}", brief(key, new))),
            (Some(old), None) => parts.push(format!("{key}: was {}", brief(key, old))),
            (None, None) => {}
        }
    }
    or_dash(&parts.join(", "))
}

/// A text's beginning.
fn short(text: &str, len_max: usize) -> String {
    match text.char_indices().nth(len_max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn members(value: Option<&Value>) -> serde_json::Map<String, Value> {
    match value {
        Some(Value::Object(members)) => members.clone(),
        Some(other) => std::iter::once(("value".to_owned(), other.clone())).collect(),
        None => serde_json::Map::new(),
    }
}

fn brief(key: &str, value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => "{…}".to_owned(),
        // Records keep times in milliseconds.
        Value::Number(ms) if key.ends_with("at") || key.ends_with("after") => ms
            .as_i64()
            .map_or_else(|| ms.to_string(), |ms| table::time(WallTime(ms))),
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    };
    short(&text, VALUE_LEN_MAX)
}

pub(super) fn page(facts: &[(&str, String)]) {
    let rows: Vec<(String, String)> = facts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), or_dash(value)))
        .collect();
    table::facts(&rows);
}

pub(super) fn issued(issued: &json::Issued) {
    table::line(&steps(issued, "added"));
}

pub(super) fn issued_again(issued: &json::Issued) {
    table::line(&steps(
        issued,
        "has a new token; an older one, or an enrolment that never connected, has ended (move its folder away if \
         --dir names it)",
    ));
}

/// What to do on the member's host. The token is given apart from the command, which asks for it:
/// neither arguments nor the shell's history hold it.
fn steps(issued: &json::Issued, what: &str) -> String {
    let command = &issued.install_command;
    let mut words = command.split(' ').skip_while(|word| *word != "--dir").skip(1);
    let dir = words.next().unwrap_or("DIR");
    let daemon = if issued.role == "relay" {
        "supervisor"
    } else {
        "node"
    };
    format!(
        "{} {} {what}. On its host, before {}:\n\n  {command}\n\nIt asks for this token, which works once:\n\n  \
         {}\n\nThen, as a service:\n\n  fairlead run {daemon} --dir {dir}\n\nAny other --dir will do where {dir} \
         cannot be written; nothing here needs root.",
        issued.role,
        issued.name,
        short_time(&issued.expires_at),
        issued.token,
    )
}

/// Which policy, in words: two numbers with a dot between them tell nobody what they count.
pub(crate) fn numbered(epoch: u64, revision: u64) -> String {
    format!("epoch {epoch}, revision {revision}")
}

pub(crate) fn head(head: Option<json::PolicyHead>) -> String {
    head.map_or_else(|| "none".to_owned(), |h| numbered(h.epoch, h.revision))
}

/// Two processes with one identity.
pub(crate) fn copies(c: &json::Copies) -> String {
    let met_by = if c.met_by.is_empty() {
        String::new()
    } else {
        format!("; met by {}", c.met_by.join(", "))
    };
    let last_seen = short_time(&c.last_seen);
    format!(
        "{} is kept, {} is refused, last seen {last_seen}{met_by}",
        c.kept, c.refused
    )
}

/// A worker that has ended has none.
fn pid(pid: u32) -> String {
    if pid == 0 { String::new() } else { pid.to_string() }
}

/// A number of this moment; of who is away there is none.
fn figure(number: u64, live: bool) -> String {
    if live { number.to_string() } else { String::new() }
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
        ("copies", r.copies.as_ref().map(copies).unwrap_or_default()),
        ("policy wanted", head(r.policy.wanted)),
        ("policy applied", head(r.policy.applied)),
        ("policy refused", r.policy.refused.clone()),
        ("lease until", optional(r.policy.lease_not_after.as_ref())),
        ("removable after", optional(r.removable_after.as_ref())),
        ("endpoints", r.endpoints.to_string()),
    ];
    if let Some(w) = &r.worker {
        let live = r.live_worker().is_some();
        facts.extend([
            ("worker", w.state.clone()),
            ("worker pid", pid(if live { w.pid } else { 0 })),
            ("worker version", w.version.clone()),
            ("worker restarts", w.restarts.to_string()),
            ("worker last exit", w.last_exit.clone()),
            ("live tunnels", figure(w.live_tunnels, live)),
            ("hop sessions", figure(w.hop_sessions, live)),
            ("memory bytes", figure(w.memory_bytes, live)),
            ("open descriptors", figure(w.open_descriptors, live)),
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
        ("copies", n.copies.as_ref().map(copies).unwrap_or_default()),
        ("policy wanted", head(n.policy.wanted)),
        ("policy applied", head(n.policy.applied)),
        ("policy refused", n.policy.refused.clone()),
        ("live streams", figure(n.live_streams, n.is_live())),
        ("memory bytes", figure(n.memory_bytes, n.is_live())),
        ("metrics", n.metrics.clone()),
    ]);
    if n.relays.is_empty() {
        return;
    }
    let rows: Vec<Vec<String>> = n.relays.iter().map(|r| path(r, n.is_live())).collect();
    table::line("");
    table::print(&["RELAY", "CONNECTED", "RTT", "REGISTERED", "REASON"], &rows, "");
}

/// How a node reaches a relay; of a node that is away, only that it is to.
fn path(r: &json::Reach, live: bool) -> Vec<String> {
    if !live {
        let mut row = vec![r.relay.name.clone(), "not known".to_owned()];
        row.resize(5, or_dash(""));
        return row;
    }
    vec![
        r.relay.name.clone(),
        connected(r).to_owned(),
        r.rtt_us.map_or_else(
            || "-".to_owned(),
            |us| format!("{:.1} ms", f64::from(us) / 1000.0),
        ),
        r.registered.len().to_string(),
        or_dash(&r.error),
    ]
}

/// Whether the node is connected to a relay; one that is silent is doubted until it is taken for dead.
const fn connected(reach: &json::Reach) -> &'static str {
    match (reach.connected, reach.error.is_empty()) {
        (true, false) => "in doubt",
        (connected, _) => super::yes_no(connected),
    }
}

/// What a link waits for, or what its last connection met.
pub(super) fn link_reason(l: &json::Link) -> String {
    match &l.last_refusal {
        Some(refusal) if l.waiting_for.is_empty() => refused(refusal),
        Some(_) | None => or_dash(&once(&l.waiting_for.join("; "))),
    }
}

/// A reason, without those parts that only repeat the end of the part before.
pub(crate) fn once(reason: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in reason.split(": ") {
        if parts.last().is_none_or(|before| !before.ends_with(part)) {
            parts.push(part);
        }
    }
    parts.join(": ")
}

fn refused(refusal: &json::Refusal) -> String {
    format!(
        "{} at {}: {} ({} so far)",
        refusal.code,
        short_time(&refusal.at),
        refusal.message,
        refusal.count
    )
}

pub(super) fn link(l: &json::Link) {
    page(&[
        ("name", l.name.clone()),
        ("id", l.id.clone()),
        ("state", l.state.clone()),
        ("waiting for", once(&l.waiting_for.join("; "))),
        (
            "last refusal",
            l.last_refusal.as_ref().map(refused).unwrap_or_default(),
        ),
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
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_differs_is_shown() {
        let before = json!({"name": "db", "listen": "127.0.0.1:1", "note": null});
        let after = json!({"name": "db", "listen": "127.0.0.1:2", "note": {"a": 1}});
        assert_eq!(
            change(Some(&before), Some(&after)),
            "listen: 127.0.0.1:1 → 127.0.0.1:2, note: null → {…}"
        );
        assert_eq!(change(None, Some(&json!({"a": [1]}))), "a: [1]");
        assert_eq!(change(Some(&json!("72h")), Some(&json!("1h"))), "value: 72h → 1h");
        assert_eq!(change(None, None), "-");
        assert_eq!(
            brief("a", &"x".repeat(130).into()),
            format!("{}…", "x".repeat(120))
        );
        let at = json!({"id": "0", "lost_at": 1_796_040_000_000_u64, "gone": null});
        assert_eq!(change(None, Some(&at)), "lost_at: 2026-11-30T12:00:00Z");
    }

    #[test]
    fn the_token_stands_apart_from_the_command() {
        let issued = json::Issued {
            role: "relay".into(),
            id: "1".into(),
            name: "paris-1".into(),
            install_command: "fairlead enrol relay --control c:1 --dir /var/lib/x".into(),
            token: "SECRET".into(),
            expires_at: "2026-11-30T11:49:00.5Z".into(),
        };
        let text = steps(&issued, "added");
        assert_eq!(text.matches("SECRET").count(), 1, "{text}");
        assert!(
            text.contains("\n  fairlead enrol relay --control c:1 --dir /var/lib/x\n"),
            "{text}"
        );
        assert!(
            text.contains("\n  fairlead run supervisor --dir /var/lib/x\n"),
            "{text}"
        );
    }

    /// A node that is away is not said to be connected anywhere.
    #[test]
    fn a_path_of_who_is_away_is_not_known() {
        let reach: json::Reach = serde_json::from_value(json!({
            "relay": {"id": "", "name": "r"}, "connected": true, "rtt_us": 1500, "error": "", "registered": ["e"],
        }))
        .unwrap();
        assert_eq!(path(&reach, true), ["r", "yes", "1.5 ms", "1", "-"]);
        assert_eq!(path(&reach, false), ["r", "not known", "-", "-", "-"]);
        assert_eq!(
            (figure(3, true), figure(3, false)),
            ("3".to_owned(), String::new())
        );
    }

    #[test]
    fn a_reason_is_not_said_twice() {
        let doubled = "consumer a cannot listen on [::1]:80: cannot listen on [::1]:80: Address in use";
        assert_eq!(
            once(doubled),
            "consumer a cannot listen on [::1]:80: Address in use"
        );
        for kept in ["", "a: b", "no relay is ready; b: c"] {
            assert_eq!(once(kept), kept);
        }
    }

    #[test]
    fn times_lose_their_fraction() {
        assert_eq!(short_time("2026-11-30T11:49:00.5Z"), "2026-11-30T11:49:00Z");
        assert_eq!(short_time("2026-11-30T11:49:00Z"), "2026-11-30T11:49:00Z");
    }
}

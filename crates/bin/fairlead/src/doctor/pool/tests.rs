//! What the checks say of members and links that stand in some way.

use super::*;
use crate::doctor::report::{Check, Outcome};
use serde_json::{Value, json};

fn reference(name: &str) -> Value {
    json!({"id": name, "name": name})
}

fn policy_json() -> Value {
    json!({"wanted": null, "applied": null, "refused": "", "lease_not_after": null})
}

pub(super) fn relay(change: impl FnOnce(&mut json::Relay)) -> json::Relay {
    let mut relay = serde_json::from_value(json!({
        "id": "r", "name": "relay-1", "state": "ready", "state_reason": "", "address": "192.0.2.1:9443",
        "failure_domain": "h", "local": false, "capacity": true, "created_at": "", "enrolled_at": null, "last_seen": null,
        "version": "", "policy": policy_json(), "endpoints": 0, "certificate_not_after": null,
        "worker": {
            "state": "listening", "version": "", "pid": 7, "restarts": 1, "last_exit": "", "live_tunnels": 1,
            "hop_sessions": 2, "memory_bytes": 5 << 20, "open_descriptors": 0, "bytes_relayed": 0, "metrics": "",
        },
    }))
    .unwrap();
    change(&mut relay);
    relay
}

pub(super) fn node(change: impl FnOnce(&mut json::Node)) -> json::Node {
    let mut node = serde_json::from_value(json!({
        "id": "n", "name": "alpha", "state": "ready", "state_reason": "", "created_at": "", "enrolled_at": null,
        "last_seen": null, "version": "", "policy": policy_json(), "live_streams": 0, "memory_bytes": 0,
        "metrics": "", "certificate_not_after": null,
        "relays": [{"relay": reference("relay-1"), "connected": true, "rtt_us": null, "error": "",
                    "registered": ["e"]}],
    }))
    .unwrap();
    change(&mut node);
    node
}

pub(super) fn link(listen_error: &str, waits: &[&str]) -> json::Link {
    serde_json::from_value(json!({
        "id": "l", "name": "db", "from": reference("alpha"), "to": reference("beta"), "target": "127.0.0.1:5",
        "listen": "127.0.0.1:4", "class": "standard", "endpoint": "", "generation": 1, "route": "",
        "created_at": "", "relays": [], "placement_reason": "", "state": "pending", "waiting_for": waits,
        "listen_error": listen_error,
    }))
    .unwrap()
}

pub(super) fn pool(relay: json::Relay, node: json::Node, link: json::Link) -> Pool {
    Pool {
        status: serde_json::from_value(json!({
            "version": "", "trust_domain": "", "ca_pin": "", "advertised": "", "lab": false, "uptime": "", "uptime_s": 0,
            "leader_term": 1, "policy_epoch": 1, "policy_revision": 1, "relays_ready": 1, "relays": 1,
            "nodes_ready": 1, "nodes": 1, "links_ready": 0, "links": 1, "audit_seq": 1,
        }))
        .unwrap(),
        warnings: Vec::new(),
        relays: vec![relay],
        nodes: vec![node],
        links: vec![link],
    }
}

/// The checks that `look` makes.
fn checks(look: impl FnOnce(&mut Subject<'_>)) -> Vec<Check> {
    let mut report = Report::default();
    look(&mut report.on("it"));
    report.checks().to_vec()
}

/// The check of this name.
fn one<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|c| c.check == name).unwrap()
}

/// R-UI-04: a name that nothing has is answered with the one that was likely meant, whatever kind it is of,
/// else with all that there are.
#[test]
fn an_unknown_name_is_answered_with_candidates_of_every_kind() {
    let pool = pool(relay(|_| {}), node(|_| {}), link("", &[]));
    let told = |name: &str| unknown(name, &pool).to_string();
    let none = |name: &str| format!("there is no relay, node or link `{name}`");
    for (typed, meant) in [("realy-1", "relay-1"), ("alhpa", "alpha"), ("dbb", "db")] {
        assert_eq!(told(typed), format!("{}; did you mean `{meant}`?", none(typed)));
    }
    let all = "; there are: relay-1, alpha, db";
    assert_eq!(told("tokyo"), format!("{}{all}", none("tokyo")));
    assert_eq!(unknown("tokyo", &pool).exit(), Exit::Usage);
}

/// Counts are said as people say them.
#[test]
fn one_thing_is_not_spoken_of_as_several() {
    let found = checks(|s| member_relay(s, &relay(|_| {})));
    let worker = "listening, pid 7, 1 tunnel, 2 hop sessions, 5 MiB";
    assert_eq!(one(&found, "worker").found, worker);
    let restarted = relay(|r| {
        if let Some(worker) = &mut r.worker {
            worker.last_exit = "killed by signal 9".to_owned();
        }
    });
    let found = checks(|s| member_relay(s, &restarted));
    let ended = format!("{worker}; 1 restart, last exit: killed by signal 9");
    assert_eq!(one(&found, "worker").found, ended);
    let found = checks(|s| member_node(s, &node(|_| {}), true));
    assert_eq!(
        one(&found, "relay").found,
        "relay-1: connected, 1 endpoint registered"
    );
}

/// Advice names a command that can be run as it stands, and no placeholder.
#[test]
fn what_to_do_on_a_members_host_can_be_typed() {
    let offline = |reason: &str| reason.to_owned();
    let relay = relay(|r| {
        r.state = offline("offline");
        r.policy.refused = "it cannot be written".to_owned();
    });
    let node = node(|n| {
        n.state = offline("offline");
        n.policy.refused = "it cannot be kept".to_owned();
    });
    for (kind, found) in [
        ("relay", checks(|s| member_relay(s, &relay))),
        ("node", checks(|s| member_node(s, &node, true))),
    ] {
        for check in ["state", "policy"] {
            let advice = &one(&found, check).advice;
            let command = format!("`fairlead doctor --dir /var/lib/fairlead/{kind}`");
            assert!(advice.contains(&command) && !advice.contains("DIR"), "{advice}");
        }
    }
    // What an offline relay said last is not said of now.
    let found = checks(|s| member_relay(s, &relay));
    let worker = one(&found, "worker");
    assert_eq!(worker.outcome, Outcome::NotMeasured);
    assert_eq!(worker.found, "not known while its supervisor is away");
}

/// R-POL-04: a member that holds something newer is not told to look at its disk.
#[test]
fn a_restored_store_is_named_where_a_policy_is_refused_as_older() {
    let older = relay(|r| {
        r.policy.refused = "its revision 10 is below 11".to_owned();
        r.policy.holds_newer = true;
    });
    let found = checks(|s| member_relay(s, &older));
    let advice = &one(&found, "policy").advice;
    assert!(
        advice.contains("restored from a copy") && !advice.contains("disk"),
        "{advice}"
    );
}

/// A taken listen address is to be freed; what else a link waits for comes by itself.
#[test]
fn a_taken_listen_address_has_its_own_advice() {
    let taken = "Address already in use (os error 98)";
    let waits = [
        "alpha cannot listen: Address already in use (os error 98)",
        "a grant",
    ];
    let found = checks(|s| member_link(s, &link(taken, &waits)));
    let advice: Vec<&str> = found.iter().map(|c| c.advice.as_str()).collect();
    assert!(
        advice[0].contains("free that address") && advice[1].contains("ready by itself"),
        "{advice:?}"
    );
}

/// A relay that was stopped in order has one fault, that it is stopped; no firewall is blamed.
#[test]
fn a_relay_that_was_stopped_has_one_fault() {
    let stopped = relay(|r| {
        r.state = "offline".to_owned();
        r.state_reason = "its supervisor was stopped".to_owned();
        if let Some(worker) = &mut r.worker {
            worker.state = "stopped".to_owned();
            worker.pid = 0;
        }
    });
    assert!(is_stopped(&stopped));
    let found = checks(|s| member_relay(s, &stopped));
    let failed: Vec<&str> = found
        .iter()
        .filter(|c| c.outcome == Outcome::Failed)
        .map(|c| c.check)
        .collect();
    assert_eq!(failed, ["state"]);
    assert!(one(&found, "state").advice.contains("start its relay service"));
    assert_eq!(one(&found, "worker").outcome, Outcome::NotMeasured);
}

/// A relay, a node and a link may share a name: it is said, and one of them can be named alone.
#[test]
fn a_name_of_several_is_told_apart_by_its_kind() {
    let is = |text: Option<&str>| {
        ["relay", "node", "link"].map(|kind| Wanted::of(text).is(kind, "paris-1", "an-id"))
    };
    assert_eq!(is(None), [true; 3]);
    assert_eq!(is(Some("paris-1")), [true; 3]);
    assert_eq!(is(Some("an-id")), [true; 3]);
    assert_eq!(is(Some("node/paris-1")), [false, true, false]);
    assert_eq!(is(Some("node/an-id")), [false, true, false]);
    assert_eq!(is(Some("relay/tokyo")), [false; 3]);
    let mut report = Report::default();
    several(&mut report, "paris-1", [("relay", 1), ("node", 0), ("link", 0)]);
    assert!(report.checks().is_empty());
    several(&mut report, "paris-1", [("relay", 1), ("node", 1), ("link", 0)]);
    let found = &report.checks()[0].found;
    assert!(
        found.contains("a relay and a node") && found.contains("`fairlead doctor relay/paris-1`"),
        "{found}"
    );
}

/// A row does not say its outcome twice: `warning  warning`.
#[test]
fn a_reported_warning_is_called_so_once() {
    let mut report = Report::default();
    for severity in ["critical", "warning"] {
        let warning = serde_json::from_value(json!({
            "code": "X", "severity": severity, "kind": "pool", "id": "", "name": "", "message": "m", "action": "a",
        }));
        reported(&mut report.on("warnings"), &warning.unwrap());
    }
    let rows: Vec<(Outcome, &str)> = report.checks().iter().map(|c| (c.outcome, c.check)).collect();
    assert_eq!(
        rows,
        [(Outcome::Failed, "reported"), (Outcome::Warning, "reported")]
    );
}

/// A lease is overdue where its renewal is, not where it is short: `policy.lease` may be 1 h.
#[test]
fn a_short_lease_that_is_renewed_is_no_fault() {
    let with = |minutes: i64| {
        let end = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(minutes);
        let held = relay(|r| r.policy.lease_not_after = Some(end.to_string()));
        one(&checks(|s| lease(s, &held.policy)), "lease").clone()
    };
    for (minutes, outcome) in [
        (60, Outcome::Ok),
        (49, Outcome::Ok),
        (44, Outcome::Warning),
        (-1, Outcome::Failed),
    ] {
        let found = with(minutes);
        assert_eq!(found.outcome, outcome, "{found:?}");
    }
    let overdue = with(44).found;
    assert!(overdue.ends_with("min left: it was not renewed"), "{overdue}");
}

/// Whatever is named, that no relay is ready is said: nothing else works before.
#[test]
fn a_pool_without_a_ready_relay_is_said_of_every_name() {
    let warning = |code: &str, kind: &str, name: &str| -> json::Warning {
        serde_json::from_value(json!({
            "code": code, "severity": "critical", "kind": kind, "id": "", "name": name, "message": "", "action": "",
        }))
        .unwrap()
    };
    let all = [
        warning("AUDIT_BROKEN", "pool", ""),
        warning("NO_RELAY_READY", "pool", ""),
        warning("LINK_NOT_READY", "link", "db"),
        warning("LINK_NOT_READY", "link", "web"),
    ];
    let of = |name| {
        let said = all.iter().filter(|w| concerns(w, Wanted::of(name)));
        said.map(|w| (w.code.as_str(), w.name.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Some("db")), [("NO_RELAY_READY", ""), ("LINK_NOT_READY", "db")]);
    assert_eq!(of(None).len(), all.len());
}

/// A store whose disk is full is not said to be well.
#[test]
fn a_full_disk_is_said_of_the_store() {
    let status = pool(relay(|_| {}), node(|_| {}), link("", &[])).status;
    let full: json::Warning = serde_json::from_value(json!({
        "code": "STORE_DISK_FULL", "severity": "critical", "kind": "pool", "id": "", "name": "", "message": "",
        "action": "Make room.",
    }))
    .unwrap();
    let with = |warnings: &[json::Warning]| one(&checks(|s| store(s, &status, warnings)), "store").clone();
    assert_eq!(with(&[]).outcome, Outcome::Ok);
    let found = with(&[full]);
    assert_eq!(
        (found.outcome, found.advice.as_str()),
        (Outcome::Warning, "Make room.")
    );
    assert!(
        found.found.ends_with("its disk is full, or nearly so"),
        "{found:?}"
    );
}

/// What is still on its way after a while is no failure yet.
#[test]
fn what_is_on_its_way_is_no_failure() {
    let coming = relay(|r| (r.state, r.starting) = ("not-ready".to_owned(), true));
    let daemon = node(|n| (n.state, n.starting) = ("not-ready".to_owned(), true));
    let mut waits = link("", &["its grants"]);
    waits.starting = true;
    for found in [
        checks(|s| member_relay(s, &coming)),
        checks(|s| member_node(s, &daemon, false)),
        checks(|s| member_link(s, &waits)),
    ] {
        let state = one(&found, "state");
        assert_eq!(state.outcome, Outcome::Warning, "{state:?}");
        assert!(state.found.starts_with("on its way: "), "{state:?}");
    }
}

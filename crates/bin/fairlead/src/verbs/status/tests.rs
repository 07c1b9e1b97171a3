//! What `status` says, once.

use super::*;

fn unready(object: &str, waits: Waits, reason: &str) -> Unready {
    Unready {
        object: object.to_owned(),
        waits,
        reason: reason.to_owned(),
    }
}

fn status(relays: u64, nodes: u64, links: u64) -> json::Status {
    serde_json::from_value(serde_json::json!({
        "version": "1", "trust_domain": "pool.example", "ca_pin": "", "advertised": "c:8443",
        "lab": false, "uptime": "1s", "uptime_s": 1, "leader_term": 1, "policy_epoch": 1, "policy_revision": 1,
        "relays_ready": 0, "relays": relays, "nodes_ready": 0, "nodes": nodes,
        "links_ready": 0, "links": links, "audit_seq": 1,
    }))
    .unwrap()
}

/// A pool that settles is not said to need nothing; what has a warning is not said twice.
#[test]
fn what_is_not_ready_is_said_once() {
    let mut attention = vec![("relay a".to_owned(), "It is offline.".to_owned())];
    let all = vec![
        unready("relay a", Waits::Itself, "its supervisor is not connected"),
        unready("node b", Waits::Enrolment, "it has not enrolled yet"),
        unready("node d", Waits::Enrolment, "it has not enrolled yet"),
        unready("link web", Waits::Itself, "no relay is ready to carry it"),
        unready("link db", Waits::Member, "consumer b has not enrolled yet"),
        unready("link ssh", Waits::Itself, "no relay is ready to carry it"),
        unready("node c", Waits::Itself, ""),
    ];
    assert_eq!(
        settling(all, &mut attention),
        [
            "settling: link web, link ssh are not ready yet: no relay is ready to carry it",
            "waiting: link db is not ready yet: consumer b has not enrolled yet",
            "settling: node c is not ready yet",
        ]
    );
    let rows = grouped(attention);
    let objects: Vec<&str> = rows.iter().map(|(object, _)| object.as_str()).collect();
    assert_eq!(objects, ["relay a", "node b, node d"]);
    let why = &rows[1].1;
    assert!(
        why.ends_with("token: `fairlead node token b`, `fairlead node token d`"),
        "{why}"
    );
}

/// Every row of the table is in the JSON, by a code; what a warning says is not said twice.
#[test]
fn the_json_has_what_is_not_ready() {
    let offline: json::Warning = serde_json::from_value(serde_json::json!({
        "code": "RELAY_OFFLINE", "severity": "critical", "kind": "relay", "id": "1", "name": "a",
        "message": "Relay a is offline.", "action": "Check its host.",
    }))
    .unwrap();
    let all = vec![
        unready("relay a", Waits::Itself, "its supervisor is not connected"),
        unready("node late", Waits::Enrolment, "it has not enrolled yet"),
        unready("link db", Waits::Member, "consumer late has not enrolled yet"),
        unready("node c", Waits::Itself, "it has not reported yet"),
    ];
    let rows = lacking(&status(1, 2, 0), all, &[offline]);
    let rows: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}: {}", row.code, row.kind, row.name, row.message))
        .collect();
    assert_eq!(
        rows,
        [
            "NOT_ENROLLED node late: it has not enrolled yet".to_owned(),
            "WAITING link db: consumer late has not enrolled yet".to_owned(),
            "SETTLING node c: it has not reported yet".to_owned(),
            format!("NO_LINK pool : {NO_LINK}"),
        ]
    );
}

/// The command that helps is given as it is typed.
#[test]
fn one_that_is_to_enrol_has_its_command() {
    let mut attention = Vec::new();
    settling(
        vec![unready("relay paris-1", Waits::Enrolment, "")],
        &mut attention,
    );
    let [(object, why)] = attention.as_slice() else {
        panic!("{attention:?}")
    };
    assert_eq!(object, "relay paris-1");
    assert!(why.contains("`fairlead relay token paris-1` prints one"), "{why}");
}

/// A watch prints changes: that time goes on is none.
#[test]
fn a_longer_run_time_alone_is_no_change() {
    let mut later = status(1, 1, 1);
    let before = lasting(&later, &[]);
    later.uptime = "2s".to_owned();
    later.uptime_s = 2;
    assert_eq!(lasting(&later, &[]), before);
    later.links_ready = 1;
    assert_ne!(lasting(&later, &[]), before);
}

/// The object stands beside its warning, which does not begin with it again; several of one fault are one row.
#[test]
fn a_warning_of_several_is_said_once() {
    let warning = |kind: &str, name: &str, message: String| -> json::Warning {
        serde_json::from_value(serde_json::json!({
            "code": "X", "severity": "critical", "kind": kind, "id": name, "name": name,
            "message": message, "action": "Start it.",
        }))
        .unwrap()
    };
    let offline = |name: &str| {
        warning(
            "relay",
            name,
            format!("Relay {name} is offline: its supervisor was stopped."),
        )
    };
    let listens = warning("link", "web", "Link web: its consumer cannot listen.".to_owned());
    let lease = warning("relay", "a", "Relay a's lease has ended.".to_owned());
    let pool = warning("pool", "", "No relay is ready.".to_owned());
    let rows = grouped(
        [offline("a"), pool, offline("b"), listens, lease]
            .iter()
            .map(warned)
            .collect(),
    );
    let rows: Vec<(&str, &str)> = rows
        .iter()
        .map(|(object, why)| (object.as_str(), why.as_str()))
        .collect();
    assert_eq!(
        rows,
        [
            (
                "relay a, relay b",
                "offline: its supervisor was stopped. Start it."
            ),
            ("pool", "No relay is ready. Start it."),
            ("link web", "its consumer cannot listen. Start it."),
            ("relay a", "Relay a's lease has ended. Start it."),
        ]
    );
    let many: Vec<String> = (0..10).map(|n| format!("node {n}")).collect();
    assert!(listed(&many).ends_with("node 7 and 2 more"), "{}", listed(&many));
}

#[test]
fn an_empty_pool_says_what_it_lacks_first() {
    let says = |relays, nodes, links| next_step(&status(relays, nodes, links)).unwrap_or_default().1;
    assert_eq!(says(0, 0, 0), "no relay yet: fairlead relay add");
    assert!(says(1, 0, 0).contains("node add") && says(1, 2, 0).contains("link add"));
    assert_eq!(says(1, 2, 1), "");
}

/// The keys of `/v1/status` stay where they are; the warnings come beside them.
#[test]
fn the_json_has_the_warnings() {
    let warning: json::Warning = serde_json::from_value(serde_json::json!({
        "code": "RELAY_OFFLINE", "severity": "critical", "kind": "relay", "id": "1", "name": "a",
        "message": "Relay a is offline.", "action": "Check its host.",
    }))
    .unwrap();
    let status = status(1, 1, 1);
    let page = Page {
        status: &status,
        warnings: std::slice::from_ref(&warning),
        not_ready: Vec::new(),
    };
    let shown = serde_json::to_value(&page).unwrap();
    let mut expected = serde_json::to_value(&status).unwrap();
    expected["warnings"] = serde_json::json!([warning]);
    expected["not_ready"] = serde_json::json!([]);
    assert_eq!(shown, expected);
}

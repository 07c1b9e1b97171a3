//! `fairlead status`: the pool in a few lines, and what needs attention.

use super::list::{NO_LINK, NO_NODE, NO_RELAY};
use super::page::{numbered, once, page};
use crate::cli::verbs::Connection;
use crate::exit::Failure;
use crate::rest::RestClient;
use crate::table;
use fairlead_admin::json;
use serde::Serialize;
use std::time::Duration;

/// So many things that need attention are listed; `ls` has all.
const LISTED_MAX: usize = 20;

/// What needs attention: on what, and why.
type Attention = (String, String);

/// The whole as JSON.
#[derive(Debug, Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    status: &'a json::Status,
    /// As `/v1/warnings` gives them.
    warnings: &'a [json::Warning],
}

/// A member or link that is not ready.
#[derive(Debug)]
struct Unready {
    /// `relay paris-1`.
    object: String,
    /// Whether it waits for somebody to enrol it.
    waits: bool,
    reason: String,
}

pub(super) async fn show(connection: &Connection, client: &RestClient) -> Result<(), Failure> {
    let mut status: json::Status = client.get("/v1/status").await?;
    if table::is_followed() {
        let hours = Duration::from_secs(status.uptime_s / 3600 * 3600);
        status.uptime = fairlead_model::duration::format(hours);
        status.uptime_s = hours.as_secs();
    }
    let warnings: json::List<json::Warning> = client.get("/v1/warnings").await?;
    if connection.json {
        table::json(&Page {
            status: &status,
            warnings: &warnings.items,
        });
        return Ok(());
    }
    let mut attention: Vec<Attention> = warnings.items.iter().map(warned).collect();
    let mut pending = settling(unready(client, &status).await?, &mut attention);
    pending.extend(next_step(&status).map(str::to_owned));
    summary(&status);
    if attention.is_empty() && pending.is_empty() {
        table::line("\nnothing needs attention");
        return Ok(());
    }
    if !attention.is_empty() {
        table::line("");
        let rows = attention.get(..LISTED_MAX).unwrap_or(&attention);
        table::prose(["NEEDS ATTENTION", "WHY"], rows);
        more(attention.len());
    }
    if !pending.is_empty() {
        table::line("");
        for text in pending.iter().take(LISTED_MAX) {
            table::paragraph(text);
        }
        more(pending.len());
    }
    Ok(())
}

fn more(all: usize) {
    if let Some(more) = all.checked_sub(LISTED_MAX).filter(|n| *n > 0) {
        table::line(&format!("… and {more} more"));
    }
}

fn warned(w: &json::Warning) -> Attention {
    let object = match w.kind.as_str() {
        "pool" => w.kind.clone(),
        kind => format!("{kind} {}", w.name),
    };
    (object, once(&format!("{} {}", w.message, w.action)))
}

/// Whatever is not ready, by the lists whose count says that something is not.
async fn unready(client: &RestClient, status: &json::Status) -> Result<Vec<Unready>, Failure> {
    let mut unready = Vec::new();
    let mut member = |kind: &str, name: &str, state: &str, reason: String| {
        if state != "ready" {
            unready.push(Unready {
                object: format!("{kind} {name}"),
                waits: state == "pending",
                reason,
            });
        }
    };
    if status.relays_ready < status.relays {
        let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
        for r in relays.items {
            member("relay", &r.name, &r.state, r.state_reason);
        }
    }
    if status.nodes_ready < status.nodes {
        let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
        for n in nodes.items {
            member("node", &n.name, &n.state, n.state_reason);
        }
    }
    if status.links_ready < status.links {
        let links: json::List<json::Link> = client.get("/v1/links").await?;
        let waiting = links.items.into_iter().filter(|l| l.state != "ready");
        unready.extend(waiting.map(|l| Unready {
            object: format!("link {}", l.name),
            waits: false,
            reason: once(&l.waiting_for.join("; ")),
        }));
    }
    Ok(unready)
}

/// What comes right by itself, in words. What waits for somebody goes to `attention`, where what has
/// a warning is already.
fn settling(unready: Vec<Unready>, attention: &mut Vec<Attention>) -> Vec<String> {
    let mut settling = Vec::new();
    for Unready {
        object,
        waits,
        reason,
    } in unready
    {
        if attention.iter().any(|(known, _)| *known == object) {
            continue;
        }
        if waits {
            attention.push((object, reason));
        } else {
            let why = if reason.is_empty() {
                reason
            } else {
                format!(": {reason}")
            };
            settling.push(format!("settling: {object} is not ready yet{why}"));
        }
    }
    settling
}

/// What a pool that carries nothing lacks first.
const fn next_step(status: &json::Status) -> Option<&'static str> {
    match (status.relays, status.nodes, status.links) {
        (0, _, _) => Some(NO_RELAY),
        (_, 0, _) => Some(NO_NODE),
        (_, _, 0) => Some(NO_LINK),
        (_, _, _) => None,
    }
}

fn summary(s: &json::Status) {
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
        ("policy", numbered(s.policy_epoch, s.policy_revision)),
        ("audit entries", s.audit_seq.to_string()),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unready(object: &str, waits: bool, reason: &str) -> Unready {
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
            unready("relay a", false, "its supervisor is not connected"),
            unready("node b", true, "it has not enrolled yet"),
            unready("link web", false, "no relay is ready to carry it"),
            unready("node c", false, ""),
        ];
        assert_eq!(
            settling(all, &mut attention),
            [
                "settling: link web is not ready yet: no relay is ready to carry it",
                "settling: node c is not ready yet",
            ]
        );
        let objects: Vec<&str> = attention.iter().map(|(object, _)| object.as_str()).collect();
        assert_eq!(objects, ["relay a", "node b"]);
    }

    #[test]
    fn an_empty_pool_says_what_it_lacks_first() {
        let says = |relays, nodes, links| next_step(&status(relays, nodes, links)).unwrap_or_default();
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
        };
        let shown = serde_json::to_value(&page).unwrap();
        let mut expected = serde_json::to_value(&status).unwrap();
        expected["warnings"] = serde_json::json!([warning]);
        assert_eq!(shown, expected);
    }
}

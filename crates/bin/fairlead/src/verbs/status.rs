//! `fairlead status`: the pool in a few lines, and what needs attention.

use super::list::{NO_LINK, NO_NODE, NO_RELAY};
use super::page::{numbered, once, page};
use crate::cli::verbs::Connection;
use crate::exit::Failure;
use crate::rest::RestClient;
use crate::table;
use fairlead_admin::json;
use serde::Serialize;
use std::collections::BTreeSet;

/// So many are named that need attention for one reason.
const NAMES_MAX: usize = 8;
/// So many things that need attention are listed; `ls` has all.
const LISTED_MAX: usize = 20;

/// What members wait for that have not enrolled; each is `relay NAME` or `node NAME`.
fn enrol(objects: &[String]) -> Attention {
    let new = objects.iter().map(|object| match object.split_once(' ') {
        Some((kind, name)) => format!("`fairlead {kind} token {name}`"),
        None => object.clone(),
    });
    let new = listed(&new.collect::<Vec<String>>());
    let why = match objects {
        [_] => format!(
            "has not enrolled yet: run the command on its host that adding it printed; {new} prints one with a \
             new token"
        ),
        _ => format!(
            "have not enrolled yet: run the command on each one's host that adding it printed; for one with a new \
             token: {new}"
        ),
    };
    (listed(objects), why)
}

/// What needs attention: on what, and why.
type Attention = (String, String);

/// The whole as JSON.
#[derive(Debug, Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    status: &'a json::Status,
    /// As `/v1/warnings` gives them.
    warnings: &'a [json::Warning],
    /// What is not ready and has no warning, and what a pool that carries nothing lacks first.
    not_ready: Vec<Lacking>,
}

/// What is not ready, and why; no warning says so.
#[derive(Debug, Serialize)]
struct Lacking {
    code: &'static str,
    /// `pool`, `relay`, `node` or `link`.
    kind: String,
    /// Its name; empty for the pool.
    name: String,
    message: String,
}

/// A member or link that is not ready.
#[derive(Debug)]
struct Unready {
    /// `relay paris-1`.
    object: String,
    waits: Waits,
    reason: String,
}

/// What somebody who is not ready waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Somebody is to enrol it.
    Enrolment,
    /// A member of it is to be enrolled, which needs attention itself.
    Member,
    /// Nobody: it comes right by itself.
    Itself,
}

impl Waits {
    /// Its stable code.
    const fn code(self) -> &'static str {
        match self {
            Self::Enrolment => "NOT_ENROLLED",
            Self::Member => "WAITING",
            Self::Itself => "SETTLING",
        }
    }
}

pub(super) async fn show(connection: &Connection, client: &RestClient) -> Result<(), Failure> {
    let status: json::Status = client.get("/v1/status").await?;
    let warnings: json::List<json::Warning> = client.get("/v1/warnings").await?;
    let mut compared = lasting(&status, &warnings.items);
    if connection.json {
        let not_ready = lacking(&status, unready(client, &status).await?, &warnings.items);
        compared.push_str(&format!("{not_ready:?}"));
        table::compare_by(compared);
        table::json(&Page {
            status: &status,
            warnings: &warnings.items,
            not_ready,
        });
        return Ok(());
    }
    let mut attention: Vec<Attention> = warnings.items.iter().map(warned).collect();
    let mut pending = settling(unready(client, &status).await?, &mut attention);
    pending.extend(next_step(&status).map(|(_, text)| text.to_owned()));
    compared.push_str(&format!("{attention:?}{pending:?}"));
    table::compare_by(compared);
    summary(&status);
    if attention.is_empty() && pending.is_empty() {
        table::line("\nnothing needs attention");
        return Ok(());
    }
    if !attention.is_empty() {
        table::line("");
        let rows = grouped(attention);
        table::prose(
            ["NEEDS ATTENTION", "WHY"],
            rows.get(..LISTED_MAX).unwrap_or(&rows),
        );
        more(rows.len());
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

/// All of it but how long the control plane runs, which differs each time.
fn lasting(status: &json::Status, warnings: &[json::Warning]) -> String {
    let status = json::Status {
        uptime: String::new(),
        uptime_s: 0,
        ..status.clone()
    };
    format!("{status:?}{warnings:?}")
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
    (object, once(&format!("{} {}", about(w), w.action)))
}

/// The message without its beginning, where that only names the object: it stands beside it.
fn about(w: &json::Warning) -> &str {
    let named = |rest: &str| {
        let rest = w.message.get(w.kind.len()..)?.strip_prefix(rest)?;
        rest.strip_prefix(" is ").or_else(|| rest.strip_prefix(": "))
    };
    let is_of_kind = w.message.to_lowercase().starts_with(&w.kind);
    let about = named(&format!(" {}", w.name)).filter(|_| is_of_kind);
    about.unwrap_or(&w.message)
}

/// What several need attention for alike is said once, where the first of them stands.
fn grouped(attention: Vec<Attention>) -> Vec<Attention> {
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for (object, why) in attention {
        match groups.iter_mut().find(|(_, known)| *known == why) {
            Some((objects, _)) => objects.push(object),
            None => groups.push((vec![object], why)),
        }
    }
    let groups = groups.into_iter().map(|(objects, why)| (listed(&objects), why));
    groups.collect()
}

/// Their names: `relay a, relay b and 3 more`.
fn listed(objects: &[String]) -> String {
    let shown = objects.get(..NAMES_MAX).unwrap_or(objects).join(", ");
    match objects.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Whatever is not ready, by the lists whose count says that something is not.
async fn unready(client: &RestClient, status: &json::Status) -> Result<Vec<Unready>, Failure> {
    let mut unready = Vec::new();
    let mut member = |kind: &str, name: &str, state: &str, reason: String| {
        if state != "ready" {
            unready.push(Unready {
                object: format!("{kind} {name}"),
                waits: if json::waits_for_somebody(state) {
                    Waits::Enrolment
                } else {
                    Waits::Itself
                },
                reason,
            });
        }
    };
    let mut to_enrol = BTreeSet::new();
    if status.relays_ready < status.relays {
        let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
        for r in relays.items {
            member("relay", &r.name, &r.state, r.state_reason);
        }
    }
    if status.nodes_ready < status.nodes {
        let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
        for n in nodes.items {
            if json::waits_for_somebody(&n.state) {
                to_enrol.insert(n.id);
            }
            member("node", &n.name, &n.state, n.state_reason);
        }
    }
    if status.links_ready < status.links {
        let links: json::List<json::Link> = client.get("/v1/links").await?;
        let waiting = links.items.into_iter().filter(|l| l.state != "ready");
        unready.extend(waiting.map(|l| Unready {
            object: format!("link {}", l.name),
            waits: if [&l.from.id, &l.to.id].iter().any(|id| to_enrol.contains(*id)) {
                Waits::Member
            } else {
                Waits::Itself
            },
            reason: once(&l.waiting_for.join("; ")),
        }));
    }
    Ok(unready)
}

/// What comes right by itself, or with what needs attention, in words; what several wait for alike is said
/// once. What waits for somebody goes to `attention`, where what has a warning is already.
fn settling(unready: Vec<Unready>, attention: &mut Vec<Attention>) -> Vec<String> {
    let mut settling: Vec<(Waits, String, Vec<String>)> = Vec::new();
    let mut to_enrol = Vec::new();
    for one in unready {
        if is_said(&one, attention) {
            continue;
        }
        let (waits, reason) = (one.waits, one.reason);
        if waits == Waits::Enrolment {
            to_enrol.push(one.object);
            continue;
        }
        let alike = settling
            .iter_mut()
            .find(|(w, why, _)| (*w, why) == (waits, &reason));
        match alike {
            Some((_, _, objects)) => objects.push(one.object),
            None => settling.push((waits, reason, vec![one.object])),
        }
    }
    if !to_enrol.is_empty() {
        attention.push(enrol(&to_enrol));
    }
    let said = settling.into_iter().map(|(waits, reason, objects)| {
        let word = if waits == Waits::Member {
            "waiting"
        } else {
            "settling"
        };
        let verb = if objects.len() == 1 { "is" } else { "are" };
        let why = if reason.is_empty() {
            reason
        } else {
            format!(": {reason}")
        };
        format!("{word}: {} {verb} not ready yet{why}", listed(&objects))
    });
    said.collect()
}

/// What of it the warnings do not say, for JSON.
fn lacking(status: &json::Status, unready: Vec<Unready>, warnings: &[json::Warning]) -> Vec<Lacking> {
    let attention: Vec<Attention> = warnings.iter().map(warned).collect();
    let unsaid = unready.into_iter().filter(|one| !is_said(one, &attention));
    let members = unsaid.map(|one| {
        let (kind, name) = one.object.split_once(' ').unwrap_or((&one.object, ""));
        Lacking {
            code: one.waits.code(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            message: one.reason,
        }
    });
    let pool = next_step(status).map(|(code, text)| Lacking {
        code,
        kind: "pool".to_owned(),
        name: String::new(),
        message: text.to_owned(),
    });
    members.chain(pool).collect()
}

/// Whether it needs attention already.
fn is_said(one: &Unready, attention: &[Attention]) -> bool {
    attention.iter().any(|(known, _)| *known == one.object)
}

/// What a pool that carries nothing lacks first: its code, and how to get it.
const fn next_step(status: &json::Status) -> Option<(&'static str, &'static str)> {
    match (status.relays, status.nodes, status.links) {
        (0, _, _) => Some(("NO_RELAY", NO_RELAY)),
        (_, 0, _) => Some(("NO_NODE", NO_NODE)),
        (_, _, 0) => Some(("NO_LINK", NO_LINK)),
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
mod tests;

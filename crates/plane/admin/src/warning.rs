//! What an admin should know or mend, from one look at everything. Pure; most urgent first.
//!
//! Each has a stable code, what is the matter, and what to do: the operator's guide explains them
//! under their codes.

use crate::json::Warning;
use fairlead_control::api::{
    CopiesView, LinkState, LinkView, Look, NodeState, NodeView, PolicyView, RefusedView, RelayState,
    RelayView, StatusView,
};
use fairlead_model::WallTime;
use std::time::Duration;

/// A member that has just enrolled may take this long before it is looked at; its owner may be at work still. One
/// that is started again has less (`starting` of its view).
const SETTLE: Duration = Duration::from_secs(30);
/// A control plane that has just started knows nothing of its members for this long.
const START: Duration = Duration::from_secs(10);
/// A lease is renewed every ten minutes: one with less left is not.
const LEASE_LEFT_MIN: Duration = Duration::from_secs(45 * 60);
/// A certificate is renewed with twelve days left: one with less left than this is not.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a connection that was turned away is news.
const REFUSAL_NEWS: Duration = Duration::from_secs(10 * 60);

/// Room that the store's disk should have, as a member's folder should.
const STORE_FREE_MIN: u64 = 64 << 20;
/// Room with which a commit may fail at any moment: a store grows by more than what is written to it.
const STORE_FREE_NEEDED: u64 = 4 << 20;

/// What to do where a member refuses its policy.
const REFUSED_ACTION: &str = "Mostly its disk is full, or the control plane was restored from an old copy: make room, or \
                              see backup and restore in the guide.";

/// The same of one member.
fn refused_action(policy: &PolicyView, status: &StatusView) -> String {
    if !policy.holds_newer {
        return REFUSED_ACTION.to_owned();
    }
    format!(
        "The control plane's store is older than what this member holds: was it restored from a copy? Its leader \
         term is {}, its newest policy revision {} of epoch {}. See backup and restore in the guide.",
        status.leader_term, status.policy_revision, status.policy_epoch
    )
}

/// What to do for a relay that is offline and may admit nothing.
const OFFLINE_ACTION: &str = "Start its relay service, or check its host and its log.";

/// What to do about a host whose clock is wrong.
const CLOCK_ACTION: &str =
    "Set that host's clock right, and keep it right: chrony or systemd-timesyncd does.";

/// Names that a message lists.
const NAMES_SHOWN_MAX: usize = 8;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Critical,
    Warning,
}

/// Every warning of a look.
pub(crate) fn warnings(look: &Look) -> Vec<Warning> {
    let mut found = Found::default();
    // What was refused is known, and no time mends it.
    let is_known = |refused: &str| look.status.uptime >= START || !refused.is_empty();
    store(look, &mut found);
    older(look, &mut found);
    if look.status.uptime >= START {
        pool(look, &mut found);
    }
    for relay in look.relays.iter().filter(|r| is_known(&r.policy.refused)) {
        self::relay(relay, look, &mut found);
    }
    for node in look.nodes.iter().filter(|n| is_known(&n.policy.refused)) {
        self::node(node, look, &mut found);
    }
    for link in look.links.iter().filter(|_| is_known("")) {
        self::link(link, look, &mut found);
    }
    found.0.sort_by_key(|(severity, _)| *severity);
    found.0.into_iter().map(|(_, warning)| warning).collect()
}

#[derive(Debug, Default)]
struct Found(Vec<(Severity, Warning)>);

/// What a warning is about: kind, id, name.
type Object<'a> = (&'static str, String, &'a str);

impl Found {
    fn add(&mut self, severity: Severity, code: &str, object: Object<'_>, message: String, action: &str) {
        let (kind, id, name) = object;
        let severity_text = match severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        };
        let warning = Warning {
            code: code.to_owned(),
            severity: severity_text.to_owned(),
            kind: kind.to_owned(),
            id,
            name: name.to_owned(),
            message,
            action: action.to_owned(),
        };
        self.0.push((severity, warning));
    }
}

/// Little room on the store's disk. What is signed goes on; what is changed has to be written first.
fn store(look: &Look, found: &mut Found) {
    let Some(free) = look.status.store_free.filter(|free| *free < STORE_FREE_MIN) else {
        return;
    };
    let object = ("pool", String::new(), "");
    let action =
        "Make room on the control plane's host: a change that cannot be written is refused. Links go on.";
    let (severity, message) = if free < STORE_FREE_NEEDED {
        (
            Severity::Critical,
            "The disk of the control plane's store is full, or nearly so: changes are refused.".to_owned(),
        )
    } else {
        let mib = free >> 20;
        (
            Severity::Warning,
            format!("The disk of the control plane's store has {mib} MiB of room left."),
        )
    };
    found.add(severity, "STORE_DISK_FULL", object, message, action);
}

fn pool(look: &Look, found: &mut Found) {
    let status = &look.status;
    if status.audit_broken > 0 {
        found.add(
            Severity::Critical,
            "AUDIT_BROKEN",
            ("pool", String::new(), ""),
            format!(
                "The audit log is broken at entry {}: it is not what the control plane wrote.",
                status.audit_broken
            ),
            "The disk is failing, or somebody wrote to the store: look at its host, and compare the log with a \
             backup's. Everything else is served as before.",
        );
    }
    let enrolled = look.relays.iter().filter(|relay| relay.enrolled_at.is_some());
    // One that refuses a policy as older admits under its last one.
    let admits = look
        .relays
        .iter()
        .any(|relay| is_older(&relay.policy, relay.state != RelayState::Offline));
    let starts = look.relays.iter().any(|relay| relay.starting);
    if enrolled.count() > 0 && status.relays_ready == 0 && !admits && !starts {
        found.add(
            Severity::Critical,
            "NO_RELAY_READY",
            ("pool", String::new(), ""),
            "No relay is ready: no new connection is carried.".to_owned(),
            "Look at the relays first: start their hosts and services, or open their ports.",
        );
    }
}

/// Whether a member that is `there` refuses its policy because it holds a newer one.
fn is_older(policy: &PolicyView, there: bool) -> bool {
    there && policy.holds_newer
}

/// Members that hold something newer than the control plane (R-POL-04): what works goes on, and nothing that
/// is changed arrives.
fn older(look: &Look, found: &mut Found) {
    let relays = look
        .relays
        .iter()
        .filter(|r| is_older(&r.policy, r.state != RelayState::Offline));
    let relays: Vec<&str> = relays.map(|r| r.name.as_str()).collect();
    let nodes = look
        .nodes
        .iter()
        .filter(|n| is_older(&n.policy, n.state != NodeState::Offline));
    let nodes: Vec<&str> = nodes.map(|n| n.name.as_str()).collect();
    let who = match (relays.is_empty(), nodes.is_empty()) {
        (true, true) => return,
        (false, true) => listed("relay", &relays),
        (true, false) => listed("node", &nodes),
        (false, false) => format!("{} and {}", listed("relay", &relays), listed("node", &nodes)),
    };
    let (verb, it) = if relays.len() + nodes.len() == 1 {
        ("holds", "it holds")
    } else {
        ("hold", "they hold")
    };
    let status = &look.status;
    let message = format!(
        "{} {verb} something newer than this control plane, whose leader term is {} and newest policy \
         revision {} of epoch {}: was it \
         restored from an older backup? Links of the policy that {it} go on; changes do not arrive.",
        capital(&who),
        status.leader_term,
        status.policy_revision,
        status.policy_epoch
    );
    let action = "See backup and restore in the guide; no host is at fault.";
    found.add(
        Severity::Critical,
        "CONTROL_PLANE_OLDER",
        ("pool", String::new(), ""),
        message,
        action,
    );
}

/// `nodes a, b and 3 more`.
fn listed(kind: &str, names: &[&str]) -> String {
    let shown = names
        .iter()
        .take(NAMES_SHOWN_MAX)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    let plural = if names.len() == 1 { "" } else { "s" };
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => format!("{kind}{plural} {shown}"),
        more => format!("{kind}{plural} {shown} and {more} more"),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn relay(relay: &RelayView, look: &Look, found: &mut Found) {
    let now = look.at;
    let object = || ("relay", relay.id.to_string(), relay.name.as_str());
    let name = &relay.name;
    let refused;
    match relay.state {
        // It runs, and is told so each time.
        RelayState::Offline if relay.refused.is_some() => refused_sessions(object(), relay.refused.as_ref(), found),
        RelayState::Offline => found.add(
            Severity::Critical,
            "RELAY_OFFLINE",
            object(),
            format!("Relay {name} is offline: {}.", relay.state_reason),
            match &relay.worker {
                // It ended in order.
                Some(worker) if worker.state == "stopped" => "Start its relay service.",
                // No worker of it is there that could admit.
                Some(_) | None if !relay.unreached_by.is_empty() => {
                    "Look at its host and its network first: the nodes miss it as well."
                }
                // Its last report says that it holds none.
                Some(_) if relay.policy.lease_not_after.is_none() => OFFLINE_ACTION,
                // It never got one.
                None if !relay.leased => OFFLINE_ACTION,
                Some(_) | None => {
                    "Start its relay service, or check its host and its log. A worker that still runs admits until \
                     its lease ends."
                }
            },
        ),
        RelayState::NotReady if !relay.unreached_by.is_empty() => {
            let nodes: Vec<&str> = relay.unreached_by.iter().map(|name| name.as_str()).collect();
            found.add(
                Severity::Critical,
                "RELAY_NOT_REACHED",
                object(),
                format!("Relay {name}: {} cannot reach it.", listed("node", &nodes)),
                match nodes.as_slice() {
                    [_] => {
                        "Look at that relay's host, its network and its UDP port first; then at the node's own network:                          no other node says anything of the relay."
                    }
                    _ => "Look at that relay's host, its network and its UDP port first: the nodes agree.",
                },
            );
        }
        // At once where it refused its policy: no time mends that.
        RelayState::NotReady
            if !relay.policy.refused.is_empty() || !(relay.starting || is_new(relay.enrolled_at, now)) =>
        found.add(
            Severity::Warning,
            "RELAY_NOT_READY",
            object(),
            format!("Relay {name} is not ready: {}.", relay.state_reason),
            if !relay.policy.refused.is_empty() {
                refused = refused_action(&relay.policy, &look.status);
                &refused
            } else if relay.worker.as_ref().is_some_and(|w| w.state != "listening") {
                "Read the relay's log on its host: it says why the worker does not listen."
            } else {
                "Check that nodes and other relays reach its UDP port, and that its worker is not frozen; read its log."
            },
        ),
        RelayState::NotReady | RelayState::Pending | RelayState::Ready => {}
    }
    copies(object(), relay.copies.as_ref(), found);
    if let Some(behind) = relay.clock_behind.filter(|_| relay.state != RelayState::Offline) {
        let (message, action) = if relay.signed_ahead {
            (
                format!(
                    "The control plane's clock was {} s ahead when it signed what relay {name} holds.",
                    behind.as_secs()
                ),
                "Keep the control plane's clock right. The relay goes by the signed time until its own has passed it: \
                 this ends by itself.",
            )
        } else {
            (
                format!(
                    "Clock differs by {} s: the clock of relay {name}'s host is behind the control plane's.",
                    behind.as_secs()
                ),
                CLOCK_ACTION,
            )
        };
        found.add(Severity::Warning, "CLOCK_DIFFERS", object(), message, action);
    }
    if let Some(end) = relay.policy.lease_not_after {
        lease(relay, end, now, found);
    }
    certificate(object(), relay.certificate_not_after, now, found);
}

fn lease(relay: &RelayView, end: WallTime, now: WallTime, found: &mut Found) {
    let object = ("relay", relay.id.to_string(), relay.name.as_str());
    let action = "Bring its connection to the control plane back: the lease is renewed by itself.";
    let left = end.since(now);
    if left.is_zero() {
        let message = format!("Relay {}'s lease has ended: it admits nothing new.", relay.name);
        found.add(Severity::Critical, "LEASE_ENDED", object, message, action);
    } else if left < LEASE_LEFT_MIN && relay.state == RelayState::Offline {
        let message = format!(
            "Relay {}'s lease ends in {} min.",
            relay.name,
            left.as_secs() / 60
        );
        found.add(Severity::Warning, "LEASE_ENDING", object, message, action);
    }
}

/// Whether all that the node lacks are relays that no node reaches.
fn lacks_only(node: &NodeView, look: &Look) -> bool {
    let missing = node.relays.iter().filter(|reach| !reach.connected);
    let is_unreached = |id| {
        let relay = look.relays.iter().find(|relay| relay.id == id);
        relay.is_some_and(|relay| !relay.unreached_by.is_empty())
    };
    let mut missing = missing.map(|reach| is_unreached(reach.relay.id)).peekable();
    node.policy.refused.is_empty()
        && node.policy.is_current()
        && missing.peek().is_some()
        && missing.all(|is| is)
}

fn node(node: &NodeView, look: &Look, found: &mut Found) {
    let now = look.at;
    let refused;
    let object = || ("node", node.id.to_string(), node.name.as_str());
    let name = &node.name;
    match node.state {
        NodeState::Offline if node.refused.is_some() => {
            refused_sessions(object(), node.refused.as_ref(), found)
        }
        NodeState::Offline => found.add(
            Severity::Critical,
            "NODE_OFFLINE",
            object(),
            format!("Node {name} is offline: {}.", node.state_reason),
            "Start its node service, or check its host and its log.",
        ),
        // The relay is named.
        NodeState::NotReady if lacks_only(node, look) => {}
        NodeState::NotReady
            if !node.policy.refused.is_empty() || !(node.starting || is_new(node.enrolled_at, now)) =>
        {
            found.add(
                Severity::Warning,
                "NODE_NOT_READY",
                object(),
                format!("Node {name} is not ready: {}.", node.state_reason),
                if node.policy.refused.is_empty() {
                    "Check that it reaches the relays' UDP port, and read its log."
                } else {
                    refused = refused_action(&node.policy, &look.status);
                    &refused
                },
            )
        }
        NodeState::NotReady | NodeState::Pending | NodeState::Ready => {}
    }
    copies(object(), node.copies.as_ref(), found);
    certificate(object(), node.certificate_not_after, now, found);
}

/// A member that runs and is not let in: it is no use to start its service.
fn refused_sessions(object: Object<'_>, refused: Option<&RefusedView>, found: &mut Found) {
    let Some(refused) = refused else {
        return;
    };
    let (kind, _, name) = &object;
    let message = format!(
        "{} {name} runs, and the control plane refuses its sessions: {}.",
        capital(kind),
        refused.message
    );
    found.add(Severity::Critical, refused.code, object, message, CLOCK_ACTION);
}

fn copies(object: Object<'_>, copies: Option<&CopiesView>, found: &mut Found) {
    let Some(copies) = copies else {
        return;
    };
    let (kind, _, name) = &object;
    let message = format!(
        "Two processes use the key of {kind} {name}: {} is kept, {} is refused, seen last at {}.",
        copies.kept,
        copies.refused,
        crate::json::time(copies.last_seen)
    );
    let action = "Stop one of them: two minutes after the refused one was seen last, this is over. If a copy is not yours, \
         remove the member and add it again under a new key.";
    found.add(Severity::Critical, "IDENTITY_CLONED", object, message, action);
}

fn certificate(object: Object<'_>, end: Option<WallTime>, now: WallTime, found: &mut Found) {
    let Some(left) = end.map(|end| end.since(now)) else {
        return;
    };
    if left >= CERTIFICATE_LEFT_MIN {
        return;
    }
    let (kind, _, name) = &object;
    let (severity, message) = if left.is_zero() {
        (
            Severity::Critical,
            format!("The certificate of {kind} {name} has ended."),
        )
    } else {
        let hours = left.as_secs() / 3600;
        (
            Severity::Warning,
            format!("The certificate of {kind} {name} ends in {hours} h and was not renewed."),
        )
    };
    let action = "It is renewed while the member is connected: bring it back. One that has ended cannot come back: \
                  remove the member, add it again and enrol its host anew.";
    found.add(severity, "CERTIFICATE_ENDING", object, message, action);
}

/// What helps where a consumer cannot listen; `error` is its system's.
fn listen_advice(error: &str) -> &'static str {
    if error.contains(NO_SUCH_ADDRESS) {
        "No interface of the consumer's host has that address. Remove the link and add it with one that the host \
         has, or give the host that address: it listens by itself then."
    } else {
        "Free that address on the consumer's host (`ss -ltnp` tells who has it), and it listens by itself; or \
         remove the link and add it with another one."
    }
}

/// EADDRNOTAVAIL, as Linux and so a node's report names it.
const NO_SUCH_ADDRESS: &str = "os error 99";

fn link(link: &LinkView, look: &Look, found: &mut Found) {
    let object = || ("link", link.id.to_string(), link.name.as_str());
    let name = &link.name;
    match link.state {
        // At once: no time mends it.
        LinkState::Pending if !link.listen_error.is_empty() => found.add(
            Severity::Critical,
            "LISTEN_FAILED",
            object(),
            format!(
                "Link {name}: its consumer {} cannot listen on {}: {}.",
                link.from.name, link.listen, link.listen_error
            ),
            listen_advice(&link.listen_error),
        ),
        LinkState::Pending if !(link.starting || is_new(Some(link.created_at), look.at)) => found.add(
            Severity::Critical,
            "LINK_NOT_READY",
            object(),
            format!("Link {name} does not work: {}.", link.waiting_for.join("; ")),
            "Mend what is named; the link is ready by itself then.",
        ),
        LinkState::Pending => {}
        LinkState::Ready if link.relays.len() == 1 => found.add(
            Severity::Warning,
            "LINK_HAS_NO_SPARE",
            object(),
            format!("Link {name} has one relay only: it ends with that relay."),
            "Add a relay in another failure domain.",
        ),
        LinkState::Ready => {}
    }
    if let Some(refusal) = &link.last_refusal
        && look.at.since(refusal.at) < REFUSAL_NEWS
    {
        let message = format!(
            "Link {name} turned a connection away ({}, {} so far): {}.",
            refusal.code,
            refusal.count,
            refusal.message.trim_end_matches('.')
        );
        let action =
            "TARGET codes: check the service on the publisher's host. Others: see the code in the guide.";
        found.add(Severity::Warning, "LINK_REFUSES", object(), message, action);
    }
}

fn is_new(enrolled_at: Option<WallTime>, now: WallTime) -> bool {
    enrolled_at.is_some_and(|at| now.since(at) < SETTLE)
}

#[cfg(test)]
mod tests;

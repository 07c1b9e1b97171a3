//! New sessions and tunnels, made for the occasion by the links' consumers.

use super::or_none;
use crate::cli::verbs::Doctor;
use crate::doctor::report::{Report, Subject};
use crate::rest::{RestClient, RestError, segment};
use crate::table;
use fairlead_admin::json;
use fairlead_model::ApiCode;
use std::collections::BTreeSet;

/// New tunnels of one run: each takes up to some seconds of the operator's.
const TUNNELS_MAX: usize = 16;

/// A link and one of its relays.
pub(super) struct Path<'a> {
    pub(super) link: &'a json::Link,
    pub(super) relay: &'a json::Reference,
}

/// Each relay once, then each link once; a link that was named through each of its relays.
pub(super) fn paths<'a>(
    relays: &[&json::Relay],
    nodes: &[&json::Node],
    links: &[&'a json::Link],
    all: &'a [json::Link],
) -> Vec<Path<'a>> {
    let mut taken = BTreeSet::new();
    let mut paths: Vec<Path<'a>> = Vec::new();
    for relay in relays {
        let of_relay = |link: &'a json::Link| Some((link, link.relays.iter().find(|r| r.id == relay.id)?));
        let mut usable: Vec<_> = all.iter().filter_map(of_relay).collect();
        usable.sort_by_key(|(link, _)| (link.state != "ready", taken.contains(&link.id)));
        if let Some((link, relay)) = usable.first() {
            taken.insert(link.id.clone());
            paths.push(Path { link, relay });
        }
    }
    let of_nodes = all
        .iter()
        .filter(|l| links.is_empty() && nodes.iter().any(|n| l.from.id == n.id || l.to.id == n.id));
    let named_only = relays.is_empty() && nodes.is_empty();
    for link in links.iter().copied().chain(of_nodes) {
        let many = if named_only { link.relays.len() } else { 1 };
        if named_only || !taken.contains(&link.id) {
            paths.extend(link.relays.iter().take(many).map(|relay| Path { link, relay }));
        }
    }
    paths
}

pub(super) async fn tunnels(
    report: &mut Report,
    client: &RestClient,
    flags: &Doctor,
    paths: &[Path<'_>],
    relays: &[&json::Relay],
) {
    let mut subject = report.on("new tunnels");
    if flags.no_tunnel {
        subject.unmeasured("tunnel", "left out by --no-tunnel", "");
        return;
    }
    for relay in relays.iter().filter(|r| r.state != "pending") {
        if !paths.iter().any(|p| p.relay.id == relay.id) {
            let found = format!("relay {}: no link goes through it", relay.name);
            subject.unmeasured(
                "tunnel",
                found,
                "with a link through it, its admission can be tried",
            );
        }
    }
    if paths.is_empty() && relays.is_empty() {
        subject.unmeasured("tunnel", "no relay carries it", "");
    }
    for (done, path) in paths.iter().enumerate() {
        let name = format!("link {} through {}", path.link.name, path.relay.name);
        if done >= TUNNELS_MAX {
            let left = paths.len() - done;
            let found = format!(
                "{} more: one run tries {TUNNELS_MAX}",
                table::counted(left, "path")
            );
            subject.unmeasured("tunnel", found, "name a link to try its paths");
            return;
        }
        let body = json::CheckLink {
            relay: Some(path.relay.id.clone()),
        };
        let route = format!("/v1/links/{}/check", segment(&path.link.id));
        match client.post::<_, json::PathCheck>(&route, &body).await {
            Ok(check) => tunnel(&mut subject, &name, &check),
            Err(RestError::Api {
                code: ApiCode::Forbidden,
                ..
            }) => {
                let advice = "log in with a token with admin:system, or give --no-tunnel";
                subject.unmeasured("tunnel", "this token may only read", advice);
                return;
            }
            Err(error) => {
                let found = format!("{name}: {}", fairlead_telemetry::chain(&error));
                subject.failed(
                    "tunnel",
                    found,
                    "let the consumer's daemon run and reach the control plane",
                );
            }
        }
    }
}

pub(super) fn tunnel(subject: &mut Subject<'_>, name: &str, check: &json::PathCheck) {
    let ms = |us: u32| f64::from(us) / 1e3;
    if !check.failed.is_empty() {
        let found = format!("{name}: {}: {}", check.failed, check.detail);
        let advice = match check.failed.as_str() {
            "NO_SESSION" => "the consumer cannot open a new session to the relay, whatever its old one does",
            "LEASE_ENDED" => "let the relay's supervisor reach the control plane",
            "NOT_REGISTERED" => "the publisher's daemon is not connected to this relay",
            _ => "the logs of the consumer, the relay and the publisher name the same code",
        };
        subject.failed("tunnel", found, advice);
        return;
    }
    let path = format!(
        "{name}: session in {:.1} ms, first byte back in {:.1} ms, {} bytes verified",
        ms(check.session_us),
        ms(check.tunnel_us),
        check.bytes_verified
    );
    if check.target == "CONNECTED" {
        subject.ok("tunnel", format!("{path}; the target accepts connections"));
    } else {
        subject.ok("tunnel", path);
        let found = format!(
            "{} from {}: {}",
            check.link,
            check.to.name,
            or_none(&check.target)
        );
        subject.warning("target", found, target_advice(&check.target));
    }
}

/// What helps where the path is whole and the publisher cannot connect to the target, by its code.
fn target_advice(code: &str) -> &'static str {
    match code {
        "TARGET_REFUSED" => {
            "the path is whole: nothing listens there on the publisher's host: start the service, or mend the link's \
             --target"
        }
        "TARGET_UNRESOLVED" => {
            "the path is whole: the publisher's host cannot resolve that name: check its DNS, or mend the link's \
             --target"
        }
        "TARGET_UNREACHABLE" => {
            "the path is whole: the publisher's host has no way there: check route and firewall; a Unix socket must \
             exist, and the node's user may open it; or mend the link's --target"
        }
        "TARGET_TIMEOUT" => {
            "the path is whole: the service does not answer the publisher's host: check the service and the \
             firewall between the two"
        }
        _ => "the path is whole: look at the service itself, and at the link's --target",
    }
}

//! Checks by way of the control plane.

mod coming;
mod reach;
mod tunnels;

use super::TCP_SHUT;
use super::port;
use super::report::{Report, Subject};
use crate::cli::verbs::Doctor;
use crate::exit::{Exit, Failing, Failure};
use crate::profile;
use crate::rest::{RestClient, RestError};
use crate::table;
use crate::verbs::{copies, numbered, once, said};
use fairlead_admin::json;
use fairlead_model::{HostPort, WallTime};
use std::time::Duration;

/// A certificate that has less left needs a look.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(5 * 86_400);
/// As the control plane's own warning has it: `policy.lease` is 1 h at least and renewed every ten minutes.
const LEASE_LEFT_MIN: Duration = Duration::from_secs(45 * 60);

/// Nothing is carried while the control plane warns of this.
const NO_RELAY_READY: &str = "NO_RELAY_READY";

/// What is checked.
struct Pool {
    status: json::Status,
    warnings: Vec<json::Warning>,
    relays: Vec<json::Relay>,
    nodes: Vec<json::Node>,
    links: Vec<json::Link>,
}

/// No member or link of that name.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unknown(String);

impl Failing for Unknown {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

pub(crate) async fn check(flags: &Doctor) -> Result<Report, Failure> {
    let client = profile::client(&flags.connection)?;
    let mut report = Report::default();
    let pool = match coming::settled(&client).await {
        Ok(pool) => pool,
        Err(error) => {
            let place = profile::control_place(&flags.connection);
            reach::failed(&mut report, client.control(), place, &error).await;
            return Ok(report);
        }
    };
    let wanted = Wanted::of(flags.name.as_deref());
    let relays: Vec<&json::Relay> = pool
        .relays
        .iter()
        .filter(|r| wanted.is("relay", &r.name, &r.id))
        .collect();
    let nodes: Vec<&json::Node> = pool
        .nodes
        .iter()
        .filter(|n| wanted.is("node", &n.name, &n.id))
        .collect();
    let links: Vec<&json::Link> = pool
        .links
        .iter()
        .filter(|l| wanted.is("link", &l.name, &l.id))
        .collect();
    if let Some(name) = &flags.name
        && relays.is_empty()
        && nodes.is_empty()
        && links.is_empty()
    {
        return Err(unknown(name, &pool).into());
    }
    control(&mut report, &pool.status, &pool.warnings);
    if let Some(name) = &flags.name {
        let found = [
            ("relay", relays.len()),
            ("node", nodes.len()),
            ("link", links.len()),
        ];
        several(&mut report, name, found);
    }
    let mut subject = report.on("warnings");
    for warning in pool.warnings.iter().filter(|w| concerns(w, wanted)) {
        reported(&mut subject, warning);
    }
    let tried: Vec<&json::Relay> = relays.iter().copied().filter(|r| !is_stopped(r)).collect();
    let paths = tunnels::paths(&tried, &nodes, &links, &pool.links);
    for relay in &relays {
        let mut subject = report.on(format!("relay {}", relay.name));
        member_relay(&mut subject, relay);
        if is_stopped(relay) {
            subject.unmeasured("port", STOPPED, "");
            continue;
        }
        listeners(&mut subject, relay).await;
        reach(&mut subject, relay, &pool.nodes);
    }
    let relay_ready = pool.relays.iter().any(|r| r.state == "ready");
    for node in &nodes {
        member_node(&mut report.on(format!("node {}", node.name)), node, relay_ready);
    }
    for link in &links {
        member_link(&mut report.on(format!("link {}", link.name)), link);
    }
    tunnels::tunnels(&mut report, &client, flags, &paths, &tried).await;
    Ok(report)
}

/// Whether a warning is of what was named, or explains whatever does not work there.
fn concerns(warning: &json::Warning, wanted: Wanted<'_>) -> bool {
    wanted.is(&warning.kind, &warning.name, &warning.id) || warning.code == NO_RELAY_READY
}

/// What the control plane warns of.
fn reported(subject: &mut Subject<'_>, warning: &json::Warning) {
    let found = format!("{}: {}", warning.code, warning.message);
    if warning.severity == "critical" {
        subject.failed("reported", found, &warning.action);
    } else {
        subject.warning("reported", found, &warning.action);
    }
}

/// What was named: `NAME`, or `KIND/NAME` where a relay, a node and a link share a name.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    kind: Option<&'a str>,
    /// All where none is given.
    name: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn of(text: Option<&'a str>) -> Self {
        // No name has a slash.
        match text.and_then(|text| text.split_once('/')) {
            Some((kind, name)) => Self {
                kind: Some(kind),
                name: Some(name),
            },
            None => Self {
                kind: None,
                name: text,
            },
        }
    }

    fn is(self, kind: &str, name: &str, id: &str) -> bool {
        self.kind.is_none_or(|k| k == kind) && self.name.is_none_or(|n| n == name || n == id)
    }
}

/// Says that a name is that of several.
fn several(report: &mut Report, name: &str, found: [(&str, usize); 3]) {
    let kinds: Vec<&str> = found
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(kind, _)| *kind)
        .collect();
    if let [kind, _, ..] = kinds.as_slice() {
        report.on("control plane").ok(
            "name",
            format!(
                "{name} is a {}: each is checked; `fairlead doctor {kind}/{name}` checks the {kind} alone",
                kinds.join(" and a ")
            ),
        );
    }
}

fn unknown(name: &str, pool: &Pool) -> Unknown {
    let relays = pool.relays.iter().map(|r| r.name.clone());
    let nodes = pool.nodes.iter().map(|n| n.name.clone());
    let links = pool.links.iter().map(|l| l.name.clone());
    let names: Vec<String> = relays.chain(nodes).chain(links).collect();
    let error = format!("there is no relay, node or link `{name}`");
    Unknown(said(&error, name, &names, false))
}

async fn read(client: &RestClient) -> Result<Pool, RestError> {
    let status: json::Status = client.get("/v1/status").await?;
    let warnings: json::List<json::Warning> = client.get("/v1/warnings").await?;
    let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
    let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
    let links: json::List<json::Link> = client.get("/v1/links").await?;
    Ok(Pool {
        status,
        warnings: warnings.items,
        relays: relays.items,
        nodes: nodes.items,
        links: links.items,
    })
}

fn control(report: &mut Report, status: &json::Status, warnings: &[json::Warning]) {
    let mut subject = report.on("control plane");
    subject.ok(
        "reach",
        format!("{} answers, up for {}", status.advertised, status.uptime),
    );
    let own = env!("CARGO_PKG_VERSION");
    if status.version == own {
        subject.ok("version", own);
    } else {
        let found = format!("it runs {}, this command is {own}", status.version);
        subject.warning(
            "version",
            found,
            "use the command of the version that the control plane runs",
        );
    }
    store(&mut subject, status, warnings);
}

fn store(subject: &mut Subject<'_>, status: &json::Status, warnings: &[json::Warning]) {
    let holds = format!(
        "{} audit entries, policy: {}",
        status.audit_seq,
        numbered(status.policy_epoch, status.policy_revision)
    );
    match warnings.iter().find(|warning| warning.code == STORE_DISK_FULL) {
        Some(full) => subject.warning(
            "store",
            format!("{holds}; its disk is full, or nearly so"),
            &full.action,
        ),
        None => subject.ok("store", holds),
    }
}

/// The warning for which the store is not said to be well.
const STORE_DISK_FULL: &str = "STORE_DISK_FULL";

/// Why nothing further is tried of a relay that was stopped in order.
const STOPPED: &str = "the relay was stopped in order: its port, its nodes and its tunnels are not tried";

/// Whether a relay was stopped in order: that explains whatever does not answer.
fn is_stopped(relay: &json::Relay) -> bool {
    relay.state == "offline"
        && relay
            .worker
            .as_ref()
            .is_some_and(|worker| worker.state == "stopped")
}

fn member_relay(subject: &mut Subject<'_>, relay: &json::Relay) {
    match relay.state.as_str() {
        "ready" => subject.ok(
            "state",
            "ready: another relay's supervisor shook hands with its port",
        ),
        "pending" => {
            subject.warning("state", relay.state_reason.clone(), &enrol("relay", &relay.name));
            return;
        }
        state if is_stopped(relay) => subject.failed(
            "state",
            format!("{state}: {}", relay.state_reason),
            "start its relay service, if that was not meant to last",
        ),
        "not-ready" if relay.starting => subject.warning("state", starts(&relay.state_reason), AGAIN),
        state => subject.failed(
            "state",
            format!("{state}: {}", relay.state_reason),
            &on_host("relay", "see that `fairlead run supervisor` runs, then"),
        ),
    }
    match &relay.worker {
        None => subject.unmeasured("worker", "its supervisor has not reported", ""),
        Some(_) if is_stopped(relay) => subject.unmeasured("worker", "it ended with its supervisor", ""),
        Some(w) if relay.live_worker().is_none() => {
            let ended = match w.last_exit.as_str() {
                "" => String::new(),
                exit => format!("; one before it: {exit}"),
            };
            subject.unmeasured(
                "worker",
                format!("not known while its supervisor is away{ended}"),
                "",
            );
        }
        Some(w) if w.state != "listening" => subject.failed(
            "worker",
            format!("{}; last exit: {}", w.state, or_none(&w.last_exit)),
            "its log on the relay's host says why it ends",
        ),
        Some(w) => {
            let found = format!(
                "listening, pid {}, {}, {}, {} MiB",
                w.pid,
                table::counted(w.live_tunnels, "tunnel"),
                table::counted(w.hop_sessions, "hop session"),
                w.memory_bytes >> 20
            );
            if w.last_exit.is_empty() {
                subject.ok("worker", found);
            } else {
                let restarts = table::counted(w.restarts, "restart");
                let found = format!("{found}; {restarts}, last exit: {}", w.last_exit);
                subject.warning("worker", found, "its log on the relay's host says why it ended");
            }
        }
    }
    identity(
        subject,
        relay.certificate_not_after.as_deref(),
        relay.copies.as_ref(),
    );
    policy(subject, "relay", &relay.policy);
    lease(subject, &relay.policy);
}

/// Of what still comes by itself after it was waited for.
fn starts(reason: &str) -> String {
    format!("on its way: {reason}")
}

/// What to do about it.
const AGAIN: &str = "run this again in a moment; what takes longer than it should is a warning then";

/// What to do for a member that has not enrolled.
fn enrol(kind: &str, name: &str) -> String {
    format!("run the command that `fairlead {kind} token {name}` prints on its host")
}

fn identity(subject: &mut Subject<'_>, not_after: Option<&str>, cloned: Option<&json::Copies>) {
    if let Some(cloned) = cloned {
        subject.failed(
            "identity",
            format!("two processes use its key: {}", copies(cloned)),
            "stop one of them; if a copy is not yours, remove the member and add it again",
        );
    }
    match not_after.and_then(left) {
        None => subject.unmeasured("certificate", "its end is not known", ""),
        Some(left) if left.is_zero() => subject.failed(
            "certificate",
            "it has ended",
            "start its daemon within reach of the control plane; if that does not help, add it anew",
        ),
        Some(left) if left < CERTIFICATE_LEFT_MIN => subject.warning(
            "certificate",
            format!(
                "it ends in {}, and is renewed with 12 days left as a rule",
                days(left)
            ),
            "the member's log says why it is not renewed",
        ),
        Some(left) => subject.ok("certificate", format!("{} left", days(left))),
    }
}

/// What to do on a member's host. Its folder is the install command's, unless its owner chose another.
fn on_host(kind: &str, what: &str) -> String {
    format!("on its host: {what} `fairlead doctor --dir /var/lib/fairlead/{kind}` (or where it was enrolled)")
}

fn policy(subject: &mut Subject<'_>, kind: &str, policy: &json::Policy) {
    let shown = crate::verbs::head;
    if !policy.refused.is_empty() {
        let advice = match policy.holds_newer {
            true => "the control plane's store is older than what this member holds: was it restored from a copy? \
                     See backup and restore in the guide"
                .to_owned(),
            false => on_host(kind, "a full disk, or a folder of another pool: see"),
        };
        subject.failed("policy", format!("refused: {}", policy.refused), &advice);
    } else if policy.wanted.is_none() {
        subject.unmeasured("policy", "none has been made for it yet", "");
    } else if policy.applied == policy.wanted {
        subject.ok("policy", format!("{}: the newest", shown(policy.applied)));
    } else {
        subject.warning(
            "policy",
            format!(
                "it holds {}; the newest is {}",
                shown(policy.applied),
                shown(policy.wanted)
            ),
            "run this again in a moment; if it stays so, see that it is connected",
        );
    }
}

fn lease(subject: &mut Subject<'_>, policy: &json::Policy) {
    match policy.lease_not_after.as_deref().and_then(left) {
        None => subject.unmeasured("lease", "it has reported none", ""),
        Some(left) if left.is_zero() => subject.failed(
            "lease",
            "it has ended: the relay admits no new tunnels",
            "let its supervisor reach the control plane",
        ),
        Some(left) if left < LEASE_LEFT_MIN => subject.warning(
            "lease",
            format!("{} min left: it was not renewed", left.as_secs() / 60),
            "let its supervisor reach the control plane: leases are renewed every 10 min",
        ),
        Some(left) => subject.ok("lease", format!("{} left", hours(left))),
    }
}

async fn listeners(subject: &mut Subject<'_>, relay: &json::Relay) {
    let Ok(address) = relay.address.parse::<HostPort>() else {
        subject.failed(
            "address",
            format!("`{}` is no address", relay.address),
            "remove the relay and add it again",
        );
        return;
    };
    let resolved = match port::resolve(&address).await {
        Ok(resolved) => resolved,
        Err(error) => {
            let found = format!("{address} does not resolve from this machine: {error}");
            subject.failed("address", found, "mend its DNS entry");
            return;
        }
    };
    let shown: Vec<String> = resolved.iter().map(|a| a.ip().to_string()).collect();
    subject.ok("address", format!("{address} is {}", shown.join(", ")));
    for at in resolved {
        match port::quic(at).await {
            Ok(Some(took)) => subject.ok("udp", format!("{at} answers QUIC in {:.1} ms", ms(took))),
            Ok(None) => silent(subject, relay, format!("{at} does not answer this machine")),
            Err(error) => silent(subject, relay, format!("{at}: {error}")),
        }
        match port::tcp(at).await {
            Ok(()) => subject.ok("tcp", format!("{at} accepts connections")),
            Err(error) => subject.warning("tcp", format!("{at}: {error}"), TCP_SHUT),
        }
    }
}

fn silent(subject: &mut Subject<'_>, relay: &json::Relay, found: String) {
    if relay.state == "ready" {
        let advice = "it answers other relays: something between this machine and it drops UDP";
        subject.warning("udp", found, advice);
    } else {
        let advice = "open 9443/udp (or the port of its address) to it, and see that its worker listens";
        subject.failed("udp", found, advice);
    }
}

/// The nodes whose policy names the relay.
fn reach(subject: &mut Subject<'_>, relay: &json::Relay, nodes: &[json::Node]) {
    let (mut on, mut of, mut rtts) = (0u32, 0u32, Vec::new());
    for node in nodes.iter().filter(|n| n.state != "pending") {
        let Some(reach) = node.relays.iter().find(|r| r.relay.id == relay.id) else {
            continue;
        };
        of += 1;
        if node.state == "offline" {
            continue;
        }
        if reach.connected {
            on += 1;
            rtts.extend(reach.rtt_us);
        } else {
            subject.failed(
                "nodes",
                format!("node {} is not connected: {}", node.name, or_none(&reach.error)),
                "see that the node's network lets UDP out to the relay's address",
            );
        }
    }
    let rtt = match (rtts.iter().min(), rtts.iter().max()) {
        (Some(least), Some(most)) => {
            format!(
                ", round trip {:.1} to {:.1} ms",
                f64::from(*least) / 1e3,
                f64::from(*most) / 1e3
            )
        }
        (_, _) => String::new(),
    };
    match of {
        0 => subject.unmeasured("nodes", "no node has it in its policy", ""),
        // Each that is not has its own line.
        _ if on == 0 => {}
        _ => subject.ok("nodes", format!("{on} of {of} nodes are connected{rtt}")),
    }
}

fn member_node(subject: &mut Subject<'_>, node: &json::Node, relay_ready: bool) {
    const NO_RELAY: &str =
        "no relay of the pool is ready, and no node is before one is: begin with the relays";
    match node.state.as_str() {
        "ready" => subject.ok("state", "ready"),
        "pending" => {
            subject.warning("state", node.state_reason.clone(), &enrol("node", &node.name));
            return;
        }
        "not-ready" if node.starting => subject.warning("state", starts(&node.state_reason), AGAIN),
        "not-ready" if !relay_ready => {
            subject.failed("state", format!("not-ready: {}", node.state_reason), NO_RELAY);
        }
        state => subject.failed(
            "state",
            format!("{state}: {}", node.state_reason),
            &on_host("node", "see that `fairlead run node` runs, then"),
        ),
    }
    identity(
        subject,
        node.certificate_not_after.as_deref(),
        node.copies.as_ref(),
    );
    policy(subject, "node", &node.policy);
    for reach in &node.relays {
        if node.state == "offline" {
            break;
        }
        let name = &reach.relay.name;
        if reach.connected {
            subject.ok(
                "relay",
                format!(
                    "{name}: connected, {} registered",
                    table::counted(reach.registered.len(), "endpoint")
                ),
            );
        } else {
            let found = format!("{name}: {}", or_none(&reach.error));
            let advice = match relay_ready {
                true => "see that the node's network lets UDP out to the relay's address",
                false => NO_RELAY,
            };
            subject.failed("relay", found, advice);
        }
    }
}

fn member_link(subject: &mut Subject<'_>, link: &json::Link) {
    if link.state == "ready" {
        subject.ok(
            "state",
            format!("ready: {} listens on {}", link.from.name, link.listen),
        );
    }
    for wait in &link.waiting_for {
        let advice = if !link.listen_error.is_empty() && wait.contains(&link.listen_error) {
            "free that address on the consumer's host, or remove the link and add it with another --listen"
        } else {
            "once this is mended, the link is ready by itself"
        };
        if link.starting {
            subject.warning("state", starts(&once(wait)), AGAIN);
            continue;
        }
        subject.failed("state", once(wait), advice);
    }
    if let Some(refusal) = &link.last_refusal {
        // While it is news, the control plane warns of it; the tunnel below says whether it is still so.
        let found = format!(
            "the latest: {} at {}: {} ({} so far)",
            refusal.code, refusal.at, refusal.message, refusal.count
        );
        subject.ok("refusals", found);
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() {
        "no reason is known"
    } else {
        text
    }
}

/// How long until a time; zero once it is past.
fn left(time: &str) -> Option<Duration> {
    let at: jiff::Timestamp = time.parse().ok()?;
    let now = fairlead_host::Clock::wall(&fairlead_host::SystemClock::new());
    Some(WallTime(at.as_millisecond()).since(now))
}

fn days(left: Duration) -> String {
    format!("{} days", left.as_secs() / 86_400)
}

fn hours(left: Duration) -> String {
    format!("{:.1} h", left.as_secs_f64() / 3600.0)
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;

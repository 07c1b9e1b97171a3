//! What the control plane exports: how the pool stands, read at each scrape.

use crate::api::{NodeState, NodeView, RelayState, RelayView, StatusView};
use crate::control::Inner;
use crate::revocation::Revocations;
use crate::view::Viewer;
use fairlead_model::WallTime;
use fairlead_telemetry::metric::{Family, Gauge, SecondsGauge};
use fairlead_telemetry::{Metrics, ProcessUse};
use std::sync::{Arc, Weak};

/// One gauge of the pool's status.
struct Row {
    name: &'static str,
    help: &'static str,
    of: fn(&StatusView) -> u64,
}

const ROWS: &[Row] = &[
    Row {
        name: "relays",
        help: "Relays of the pool",
        of: |s| s.relays,
    },
    Row {
        name: "relays_ready",
        help: "Relays that are ready",
        of: |s| s.relays_ready,
    },
    Row {
        name: "nodes",
        help: "Nodes of the pool",
        of: |s| s.nodes,
    },
    Row {
        name: "nodes_ready",
        help: "Nodes that are ready",
        of: |s| s.nodes_ready,
    },
    Row {
        name: "links",
        help: "Links of the pool",
        of: |s| s.links,
    },
    Row {
        name: "links_ready",
        help: "Links that are ready",
        of: |s| s.links_ready,
    },
    Row {
        name: "policy_revision",
        help: "Newest policy revision",
        of: |s| s.policy_revision,
    },
    Row {
        name: "leader_term",
        help: "Term of the leader",
        of: |s| s.leader_term,
    },
    Row {
        name: "audit_entries",
        help: "Entries of the audit log",
        of: |s| s.audit_seq,
    },
    Row {
        name: "audit_broken_entry",
        help: "The first entry of the audit log that is not as it was written; 0 while none is known",
        of: |s| s.audit_broken,
    },
];

/// The one label of gauges by member.
type ByName<G> = Family<Vec<(&'static str, String)>, G>;

/// The control plane's metrics.
#[derive(Debug)]
pub(crate) struct ControlMetrics {
    rows: Vec<Gauge>,
    failure_domains_ready: Gauge,
    relay_ready: ByName<Gauge>,
    relay_connected: ByName<Gauge>,
    relay_policy_pending: ByName<Gauge>,
    relay_revocations_pending: ByName<Gauge>,
    relay_lease_left: ByName<SecondsGauge>,
    node_ready: ByName<Gauge>,
    node_connected: ByName<Gauge>,
    node_relays_reached: ByName<Gauge>,
    certificate_left: ByName<SecondsGauge>,
}

const BY_RELAY: &[&str] = &["relay"];
const BY_NODE: &[&str] = &["node"];

impl ControlMetrics {
    /// Metrics that `registry` shows.
    pub(crate) fn register(registry: &Metrics, revocations: &Revocations) -> Self {
        revocations.register(registry);
        let m = Self {
            rows: ROWS.iter().map(|_| Gauge::default()).collect(),
            failure_domains_ready: Gauge::default(),
            relay_ready: Family::default(),
            relay_connected: Family::default(),
            relay_policy_pending: Family::default(),
            relay_revocations_pending: Family::default(),
            relay_lease_left: Family::default(),
            node_ready: Family::default(),
            node_connected: Family::default(),
            node_relays_reached: Family::default(),
            certificate_left: Family::default(),
        };
        for (row, gauge) in ROWS.iter().zip(&m.rows) {
            registry.register(row.name, row.help, gauge.clone());
        }
        registry.register(
            "failure_domains_ready",
            // R-GEN-03.
            "Failure domains with a ready relay off the control plane's host; production needs two",
            m.failure_domains_ready.clone(),
        );
        for (name, labels, help, family) in [
            (
                "relay_ready",
                BY_RELAY,
                "1 while the relay is ready, 0 while it is pending, not ready or offline",
                &m.relay_ready,
            ),
            (
                "relay_connected",
                BY_RELAY,
                "1 while the relay's supervisor is connected",
                &m.relay_connected,
            ),
            (
                "relay_policy_pending",
                BY_RELAY,
                "1 while the relay has not applied its newest policy: changes and revocations wait for it",
                &m.relay_policy_pending,
            ),
            (
                "relay_revocations_pending",
                BY_RELAY,
                "Revoked routes of which the relay has not said that it enforces the revocation",
                &m.relay_revocations_pending,
            ),
            (
                "node_ready",
                BY_NODE,
                "1 while the node is ready, 0 while it is pending, not ready or offline",
                &m.node_ready,
            ),
            (
                "node_connected",
                BY_NODE,
                "1 while the node's daemon is connected",
                &m.node_connected,
            ),
            (
                "node_relays_reached",
                BY_NODE,
                "How many relays of its policy the node is connected to; no series while it is offline",
                &m.node_relays_reached,
            ),
        ] {
            registry.register_by(name, labels, help, family.clone());
        }
        registry.register_by(
            "relay_lease_left_seconds",
            BY_RELAY,
            "Time until the lease that the relay reported last ends",
            m.relay_lease_left.clone(),
        );
        registry.register_by(
            "member_certificate_left_seconds",
            &["role", "member"],
            "Time until the member's newest certificate ends",
            m.certificate_left.clone(),
        );
        registry.watch_process(process);
        m
    }

    /// Reads them from the pool before each scrape. It is held by no reference.
    pub(crate) fn follow(self, registry: &Metrics, inner: &Arc<Inner>) {
        let inner: Weak<Inner> = Arc::downgrade(inner);
        registry.on_scrape(move || {
            if let Some(inner) = inner.upgrade() {
                self.read(&inner);
            }
        });
    }

    fn read(&self, inner: &Inner) {
        let viewer = Viewer::new(inner);
        let status = viewer.status(String::new());
        let state = viewer.state.clone();
        let relays: Vec<RelayView> = state.relays.values().map(|k| viewer.relay(&k.record)).collect();
        let nodes: Vec<NodeView> = state.nodes.values().map(|k| viewer.node(&k.record)).collect();
        let relay_connected: Vec<bool> = relays.iter().map(|r| viewer.is_connected(r.id)).collect();
        let node_connected: Vec<bool> = nodes.iter().map(|n| viewer.is_node_connected(n.id)).collect();
        drop(viewer);
        let now = inner.clock.wall();
        for (row, gauge) in ROWS.iter().zip(&self.rows) {
            gauge.set(count((row.of)(&status)));
        }
        self.failure_domains_ready
            .set(count(domains_ready(&relays) as u64));
        // Emptied first: a member that was removed has no series any more.
        for family in [
            &self.relay_ready,
            &self.relay_connected,
            &self.relay_policy_pending,
            &self.relay_revocations_pending,
            &self.node_ready,
            &self.node_connected,
            &self.node_relays_reached,
        ] {
            family.clear();
        }
        self.relay_lease_left.clear();
        self.certificate_left.clear();
        for (relay, connected) in relays.iter().zip(relay_connected) {
            let label = vec![("relay", relay.name.to_string())];
            put(&self.relay_ready, &label, relay.state == RelayState::Ready);
            put(&self.relay_connected, &label, connected);
            let pending = relay.policy.wanted.is_some() && relay.policy.wanted != relay.policy.applied;
            put(&self.relay_policy_pending, &label, pending);
            self.relay_revocations_pending
                .get_or_create(&label)
                .set(count(inner.revocations.pending(relay.id) as u64));
            if let Some(end) = relay.policy.lease_not_after {
                put_left(&self.relay_lease_left, &label, end, now);
            }
            self.certificate("relay", relay.name.to_string(), relay.certificate_not_after, now);
        }
        for (node, connected) in nodes.iter().zip(node_connected) {
            let label = vec![("node", node.name.to_string())];
            put(&self.node_ready, &label, node.state == NodeState::Ready);
            put(&self.node_connected, &label, connected);
            // What one that is away reaches is not known: it has no series.
            if node.state != NodeState::Offline {
                let reached = node.relays.iter().filter(|reach| reach.connected).count();
                self.node_relays_reached
                    .get_or_create(&label)
                    .set(count(reached as u64));
            }
            self.certificate("node", node.name.to_string(), node.certificate_not_after, now);
        }
    }

    fn certificate(&self, role: &'static str, member: String, end: Option<WallTime>, now: WallTime) {
        if let Some(end) = end {
            let label = vec![("role", role.to_owned()), ("member", member)];
            put_left(&self.certificate_left, &label, end, now);
        }
    }
}

/// How many of the ready relays off the control host share no failure domain with one counted before.
fn domains_ready(relays: &[RelayView]) -> usize {
    let mut apart: Vec<&RelayView> = Vec::new();
    for relay in relays {
        let counts = relay.state == RelayState::Ready && !relay.local;
        if counts
            && !apart
                .iter()
                .any(|a| a.failure_domain.shares_with(&relay.failure_domain))
        {
            apart.push(relay);
        }
    }
    apart.len()
}

fn put(family: &ByName<Gauge>, label: &Vec<(&'static str, String)>, yes: bool) {
    family.get_or_create(label).set(i64::from(yes));
}

fn put_left(
    family: &ByName<SecondsGauge>,
    label: &Vec<(&'static str, String)>,
    end: WallTime,
    now: WallTime,
) {
    family.get_or_create(label).set(end.since(now).as_secs_f64());
}

fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn process() -> ProcessUse {
    let used = fairlead_host::resources();
    ProcessUse {
        resident_bytes: used.rss_bytes,
        descriptors_open: used.fds_open,
        descriptors_max: used.fds_limit,
        threads: used.threads,
        cpu: used.cpu,
    }
}

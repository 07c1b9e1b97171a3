//! What the control plane exports: how the installation stands, read at each scrape.

use crate::api::StatusView;
use crate::control::Inner;
use crate::view::Viewer;
use fairlead_telemetry::Metrics;
use fairlead_telemetry::metric::Gauge;
use std::sync::{Arc, Weak};

/// One gauge of the installation's status.
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
        help: "Nodes",
        of: |s| s.nodes,
    },
    Row {
        name: "nodes_ready",
        help: "Nodes that are ready",
        of: |s| s.nodes_ready,
    },
    Row {
        name: "links",
        help: "Links",
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
];

/// Registers the gauges. They hold no control plane alive.
pub(crate) fn register(metrics: &Metrics, inner: &Arc<Inner>) {
    let gauges: Vec<Gauge> = ROWS
        .iter()
        .map(|row| {
            let gauge = Gauge::default();
            metrics.register(row.name, row.help, gauge.clone());
            gauge
        })
        .collect();
    let inner: Weak<Inner> = Arc::downgrade(inner);
    metrics.on_scrape(move || {
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let status = Viewer::new(&inner).status(String::new());
        for (row, gauge) in ROWS.iter().zip(&gauges) {
            gauge.set(i64::try_from((row.of)(&status)).unwrap_or(i64::MAX));
        }
    });
}

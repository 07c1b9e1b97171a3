//! The supervisor's own metrics. The worker serves its own.

use crate::shared::{Shared, WorkerPhase};
use fairlead_telemetry::Metrics;
use fairlead_telemetry::metric::Gauge;
use std::sync::Arc;

/// Registers the gauges; they are set on each scrape.
pub(crate) fn register(metrics: &Metrics, shared: &Arc<Shared>) {
    let connected: Gauge = Gauge::default();
    let listening: Gauge = Gauge::default();
    let restarts: Gauge = Gauge::default();
    let certificate: Gauge = Gauge::default();
    metrics.register(
        "control_connected",
        "1 while the session with the control plane is up",
        connected.clone(),
    );
    metrics.register(
        "worker_listening",
        "1 while the worker serves its port",
        listening.clone(),
    );
    metrics.register(
        "worker_restarts",
        "Starts of the worker after the first, since the supervisor started",
        restarts.clone(),
    );
    metrics.register(
        "certificate_left_seconds",
        "Time until the relay's certificate ends",
        certificate.clone(),
    );
    let shared = shared.clone();
    metrics.on_scrape(move || {
        let observed = shared.observed();
        connected.set(i64::from(shared.connected()));
        listening.set(i64::from(observed.phase == WorkerPhase::Listening));
        restarts.set(i64::from(observed.restarts));
        let left = shared.tls.not_after().0.saturating_sub(shared.clock.wall().0);
        certificate.set(left.div_euclid(1000));
    });
}

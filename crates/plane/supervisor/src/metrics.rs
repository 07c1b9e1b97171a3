//! The supervisor's own metrics. The worker serves its own.

use crate::shared::{Shared, WorkerPhase};
use fairlead_telemetry::metric::{Counter, Gauge, SecondsGauge, set};
use fairlead_telemetry::{Metrics, ProcessUse};
use std::sync::Arc;

/// What is read on each scrape.
#[derive(Debug, Default)]
pub(crate) struct SupervisorMetrics {
    connected: Gauge,
    listening: Gauge,
    restarts: Counter,
    certificate: SecondsGauge,
}

impl SupervisorMetrics {
    /// Metrics that `registry` shows.
    pub(crate) fn register(registry: &Metrics) -> Self {
        let m = Self::default();
        registry.register(
            "control_connected",
            "1 while the session with the control plane is up",
            m.connected.clone(),
        );
        registry.register(
            "worker_listening",
            "1 while the worker serves its port",
            m.listening.clone(),
        );
        registry.register(
            "worker_restarts",
            "Starts of the worker after the first, since the supervisor started",
            m.restarts.clone(),
        );
        registry.register(
            "certificate_left_seconds",
            "Time until the member's certificate ends",
            m.certificate.clone(),
        );
        registry.watch_process(process);
        m
    }

    /// Reads them from `shared` before each scrape.
    pub(crate) fn follow(self, registry: &Metrics, shared: &Arc<Shared>) {
        let shared = shared.clone();
        registry.on_scrape(move || {
            let observed = shared.observed();
            self.connected.set(i64::from(shared.connected()));
            self.listening
                .set(i64::from(observed.phase == WorkerPhase::Listening));
            set(&self.restarts, u64::from(observed.restarts));
            let left = shared.tls.not_after().since(shared.clock.wall());
            self.certificate.set(left.as_secs_f64());
        });
    }
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

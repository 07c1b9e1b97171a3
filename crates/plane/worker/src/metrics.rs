//! What a worker counts (R-UI-03).

use fairlead_model::RefusalCode;
use fairlead_telemetry::Metrics;
use fairlead_telemetry::metric::{Counter, Family, Gauge};

type ByLabel = Family<Vec<(&'static str, &'static str)>, Counter>;

/// The worker's metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerMetrics {
    pub(crate) hop_sessions: Gauge,
    pub(crate) hop_sessions_opened: Counter,
    pub(crate) live_tunnels: Gauge,
    pub(crate) registrations: Gauge,
    pub(crate) relayed_bytes: Counter,
    pub(crate) opens_admitted: Counter,
    pub(crate) lease_left_seconds: Gauge,
    pub(crate) handshakes_pending: Gauge,
    pub(crate) handshakes_retried: Gauge,
    pub(crate) handshakes_refused: Gauge,
    pub(crate) memory_bytes: Gauge,
    pub(crate) open_descriptors: Gauge,
    opens_refused: ByLabel,
    opens_failed: ByLabel,
    tunnels_closed: ByLabel,
    handshakes_failed: ByLabel,
    registrations_refused: ByLabel,
}

/// Why an OPEN came to nothing although the relay admitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// The consumer left before the answer.
    ConsumerLeft,
    /// The publisher's leg could not be opened, or was not answered in time.
    PublisherUnreachable,
    /// The publisher said no.
    PublisherRefused,
}

impl OpenFailure {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ConsumerLeft => "consumer_left",
            Self::PublisherUnreachable => "publisher_unreachable",
            Self::PublisherRefused => "publisher_refused",
        }
    }
}

impl WorkerMetrics {
    /// Metrics that `registry` shows.
    pub(crate) fn register(registry: &Metrics) -> Self {
        let m = Self::default();
        for (name, help, gauge) in [
            ("hop_sessions", "Hop sessions that are up", &m.hop_sessions),
            ("live_tunnels", "Tunnels that carry bytes", &m.live_tunnels),
            (
                "registrations",
                "Endpoints registered on this relay",
                &m.registrations,
            ),
            (
                "policy_lease_left_seconds",
                "Seconds for which the policy lease still admits",
                &m.lease_left_seconds,
            ),
            (
                "handshakes_pending",
                "Handshakes in progress",
                &m.handshakes_pending,
            ),
            (
                "handshakes_retried",
                "Peers told to prove their address first, since the start",
                &m.handshakes_retried,
            ),
            (
                "handshakes_refused",
                "Peers turned away by a bound on handshakes, since the start",
                &m.handshakes_refused,
            ),
            ("memory_bytes", "Resident memory", &m.memory_bytes),
            ("open_descriptors", "Open file descriptors", &m.open_descriptors),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, counter) in [
            (
                "hop_sessions_opened",
                "Hop sessions that came up",
                &m.hop_sessions_opened,
            ),
            (
                "relayed_bytes",
                "Payload bytes passed on, both directions",
                &m.relayed_bytes,
            ),
            ("opens_admitted", "Tunnels admitted", &m.opens_admitted),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, family) in [
            (
                "opens_refused",
                "Tunnels refused by this relay, by code",
                &m.opens_refused,
            ),
            (
                "opens_failed",
                "Tunnels admitted that came to nothing, by reason",
                &m.opens_failed,
            ),
            (
                "tunnels_closed",
                "Live tunnels closed by policy, by code",
                &m.tunnels_closed,
            ),
            (
                "handshakes_failed",
                "Handshakes that failed, by reason",
                &m.handshakes_failed,
            ),
            (
                "registrations_refused",
                "Registrations refused, by code",
                &m.registrations_refused,
            ),
        ] {
            registry.register(name, help, family.clone());
        }
        m
    }

    pub(crate) fn refused(&self, code: RefusalCode) {
        count(&self.opens_refused, "code", code.as_str());
    }

    pub(crate) fn failed(&self, failure: OpenFailure) {
        count(&self.opens_failed, "reason", failure.as_str());
    }

    pub(crate) fn closed(&self, code: RefusalCode) {
        count(&self.tunnels_closed, "code", code.as_str());
    }

    pub(crate) fn handshake_failed(&self, reason: &'static str) {
        count(&self.handshakes_failed, "reason", reason);
    }

    pub(crate) fn registration_refused(&self, code: RefusalCode) {
        count(&self.registrations_refused, "code", code.as_str());
    }
}

fn count(family: &ByLabel, label: &'static str, value: &'static str) {
    family.get_or_create(&vec![(label, value)]).inc();
}

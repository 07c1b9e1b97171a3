//! What a worker counts (R-UI-03).

use fairlead_hop::liveness::{Death, LostCause};
use fairlead_model::RefusalCode;
use fairlead_telemetry::metric::{Counter, Family, Gauge, SecondsGauge};
use fairlead_telemetry::{Metrics, ProcessUse};

type ByLabel = Family<Vec<(&'static str, &'static str)>, Counter>;

/// The worker's metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerMetrics {
    pub(crate) hop_sessions: Gauge,
    pub(crate) liveness_connections: Gauge,
    pub(crate) liveness_refused: Counter,
    pub(crate) hop_sessions_accepted: Counter,
    pub(crate) live_tunnels: Gauge,
    pub(crate) registrations: Gauge,
    pub(crate) relayed_bytes: Counter,
    pub(crate) opens_admitted: Counter,
    pub(crate) policy_revision: Gauge,
    pub(crate) policy_age: SecondsGauge,
    pub(crate) lease_left: SecondsGauge,
    pub(crate) handshakes_pending: Gauge,
    pub(crate) handshakes_retried: Counter,
    pub(crate) handshakes_refused: Counter,
    opens_refused: ByLabel,
    opens_failed: ByLabel,
    tunnels_closed: ByLabel,
    handshakes_failed: ByLabel,
    registrations_refused: ByLabel,
    liveness_lost: ByLabel,
    sessions_dead: ByLabel,
    limit_used: Family<Vec<(&'static str, &'static str)>, SecondsGauge>,
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
    pub(crate) const fn as_str(self) -> &'static str {
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
            (
                "liveness_connections",
                "Liveness connections that stand beside hop sessions",
                &m.liveness_connections,
            ),
            ("live_tunnels", "Tunnels that carry bytes", &m.live_tunnels),
            (
                "registrations",
                "Endpoints registered on this relay",
                &m.registrations,
            ),
            (
                "policy_revision",
                "Revision of the policy in force",
                &m.policy_revision,
            ),
            (
                "handshakes_pending",
                "Handshakes in progress",
                &m.handshakes_pending,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "policy_age_seconds",
            "Time since the control plane signed the lease that the relay admits by",
            m.policy_age.clone(),
        );
        registry.register(
            "policy_lease_left_seconds",
            "Time for which the policy lease still admits; 0 when it admits nothing",
            m.lease_left.clone(),
        );
        for (name, help, counter) in [
            (
                "hop_sessions_accepted",
                "Hop sessions that came up; beyond one for each node, they are reconnects",
                &m.hop_sessions_accepted,
            ),
            (
                "liveness_refused",
                "Liveness connections that were refused or came to nothing",
                &m.liveness_refused,
            ),
            (
                "relayed_bytes",
                "Payload bytes passed on, both directions",
                &m.relayed_bytes,
            ),
            ("opens_admitted", "Tunnels admitted", &m.opens_admitted),
            (
                "handshakes_retried",
                "Peers told to prove their address first",
                &m.handshakes_retried,
            ),
            (
                "handshakes_refused",
                "Peers turned away by a bound on handshakes",
                &m.handshakes_refused,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, label, help, family) in [
            (
                "opens_refused",
                &["code"],
                "Tunnels refused by this relay, by code",
                &m.opens_refused,
            ),
            (
                "opens_failed",
                &["reason"],
                "Tunnels admitted that came to nothing, by reason",
                &m.opens_failed,
            ),
            (
                "tunnels_closed",
                &["code"],
                "Live tunnels closed by policy, by code",
                &m.tunnels_closed,
            ),
            (
                "handshakes_failed",
                &["reason"],
                "Handshakes that failed, by reason",
                &m.handshakes_failed,
            ),
            (
                "liveness_lost",
                &["cause"],
                "Liveness connections lost, by cause",
                &m.liveness_lost,
            ),
            (
                "sessions_dead",
                &["cause"],
                "Hop sessions ended because their node is dead, by how that was known",
                &m.sessions_dead,
            ),
            (
                "registrations_refused",
                &["code"],
                "Registrations refused, by code",
                &m.registrations_refused,
            ),
        ] {
            registry.register_by(name, label, help, family.clone());
        }
        registry.register_by(
            "limit_used_ratio",
            &["limit"],
            "How much of a bound is in use, 1 is all; of what is bounded per node, the busiest one's",
            m.limit_used.clone(),
        );
        registry.watch_process(process);
        m
    }

    /// What is in use of each bound.
    pub(crate) fn limits(&self, shares: &[(&'static str, f64)]) {
        for (limit, share) in shares {
            self.limit_used
                .get_or_create(&vec![("limit", *limit)])
                .set(*share);
        }
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

    pub(crate) fn liveness_lost(&self, cause: LostCause) {
        count(&self.liveness_lost, "cause", cause.as_str());
    }

    pub(crate) fn session_dead(&self, death: Death) {
        count(&self.sessions_dead, "cause", death.as_str());
    }

    pub(crate) fn registration_refused(&self, code: RefusalCode) {
        count(&self.registrations_refused, "code", code.as_str());
    }
}

fn count(family: &ByLabel, label: &'static str, value: &'static str) {
    family.get_or_create(&vec![(label, value)]).inc();
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

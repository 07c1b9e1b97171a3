//! The daemon's metrics (R-UI-03).

use crate::driver::MoveKind;
use fairlead_model::RefusalCode;
use fairlead_telemetry::metric::{Counter, Family, Gauge, Histogram, SecondsGauge, exponential_buckets};
use fairlead_telemetry::{Metrics, ProcessUse};
use prometheus_client::encoding::EncodeLabelSet;
use std::time::Duration;

/// Which half of a stream this daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StreamRole {
    /// It listens for the application and dials the stream.
    Consumer,
    /// It accepts the stream and dials the target.
    Publisher,
}

impl StreamRole {
    /// The role's one name, in labels and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Publisher => "publisher",
        }
    }
}

/// Labels: the daemon's half.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RoleLabel {
    role: &'static str,
}

/// Labels: the daemon's half and a stable code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CodeLabel {
    role: &'static str,
    code: &'static str,
}

/// Labels: a relay's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RelayLabel {
    relay: String,
}

/// Labels: a relay's name and a stable cause.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CauseLabel {
    relay: String,
    cause: &'static str,
}

impl CauseLabel {
    /// Of this relay.
    pub(crate) fn of(relay: &impl ToString, cause: &'static str) -> Self {
        Self {
            relay: relay.to_string(),
            cause,
        }
    }
}

/// Labels: which way bytes go.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

/// Labels: why a stream moved.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MoveLabel {
    kind: &'static str,
}

/// Every metric of the daemon. Clones share the values.
#[derive(Debug, Clone)]
pub(crate) struct NodeMetrics {
    pub(crate) streams_live: Family<RoleLabel, Gauge>,
    pub(crate) streams_opened: Family<RoleLabel, Counter>,
    pub(crate) streams_refused: Family<CodeLabel, Counter>,
    pub(crate) streams_failed: Family<CodeLabel, Counter>,
    pub(crate) streams_suspended: Family<RoleLabel, Gauge>,
    pub(crate) stream_memory: Gauge,
    stream_moves: Family<MoveLabel, Counter>,
    move_attempts: Family<RelayLabel, Counter>,
    move_gap_seconds: Family<MoveLabel, Histogram>,
    pub(crate) open_seconds: Histogram,
    pub(crate) connections_held: Gauge,
    pub(crate) accept_pauses: Counter,
    /// Application bytes into streams. Kept apart from the family: drivers add to it for every read.
    pub(crate) bytes_sent: Counter,
    /// Application bytes out of streams.
    pub(crate) bytes_received: Counter,
    pub(crate) hop_connected: Family<RelayLabel, Gauge>,
    pub(crate) hop_sessions_opened: Family<RelayLabel, Counter>,
    pub(crate) hop_rtt: Family<RelayLabel, SecondsGauge>,
    pub(crate) liveness_connected: Family<RelayLabel, Gauge>,
    pub(crate) liveness_lost: Family<CauseLabel, Counter>,
    pub(crate) hop_dead: Family<CauseLabel, Counter>,
    pub(crate) associations: Family<RoleLabel, Counter>,
    pub(crate) associations_failed: Family<RoleLabel, Counter>,
    pub(crate) control_connected: Gauge,
    pub(crate) policy_revision: Gauge,
    pub(crate) grants: Gauge,
    pub(crate) grants_left: SecondsGauge,
    pub(crate) certificate_left: SecondsGauge,
    limit_used: Family<Vec<(&'static str, &'static str)>, SecondsGauge>,
}

impl NodeMetrics {
    /// Registers all of them.
    pub(crate) fn new(registry: &Metrics) -> Self {
        let bytes = Family::<DirectionLabel, Counter>::default();
        let direction = |direction| bytes.get_or_create(&DirectionLabel { direction }).clone();
        let metrics = Self {
            streams_live: Family::default(),
            streams_opened: Family::default(),
            streams_refused: Family::default(),
            streams_failed: Family::default(),
            streams_suspended: Family::default(),
            stream_memory: Gauge::default(),
            stream_moves: Family::default(),
            move_attempts: Family::default(),
            move_gap_seconds: Family::new_with_constructor(gap_histogram),
            // 0.25 ms to 8 s: an open on one host takes a millisecond, a held one up to 3 s.
            open_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            connections_held: Gauge::default(),
            accept_pauses: Counter::default(),
            bytes_sent: direction("sent"),
            bytes_received: direction("received"),
            hop_connected: Family::default(),
            hop_sessions_opened: Family::default(),
            hop_rtt: Family::default(),
            liveness_connected: Family::default(),
            liveness_lost: Family::default(),
            hop_dead: Family::default(),
            associations: Family::default(),
            associations_failed: Family::default(),
            control_connected: Gauge::default(),
            policy_revision: Gauge::default(),
            grants: Gauge::default(),
            grants_left: SecondsGauge::default(),
            certificate_left: SecondsGauge::default(),
            limit_used: Family::default(),
        };
        metrics.register(registry);
        registry.register_by(
            "stream_bytes",
            &["direction"],
            "Application bytes carried: sent into streams, received out of them",
            bytes,
        );
        registry.watch_process(process);
        metrics
    }

    /// What is in use of each bound.
    pub(crate) fn limits(&self, shares: &[(&'static str, f64)]) {
        for (limit, share) in shares {
            self.limit_used
                .get_or_create(&vec![("limit", *limit)])
                .set(*share);
        }
    }

    /// Ends the series that say how a relay is reached: a zero for one that nobody wants any more
    /// would be an alarm for ever.
    pub(crate) fn forget_relay(&self, relay: &RelayLabel) {
        self.hop_connected.remove(relay);
        self.hop_rtt.remove(relay);
        self.liveness_connected.remove(relay);
    }

    fn register(&self, registry: &Metrics) {
        let m = self.clone();
        registry.register_by(
            "streams_live",
            &["role"],
            "Streams whose two sockets are joined",
            m.streams_live,
        );
        registry.register_by("streams_opened", &["role"], "Streams opened", m.streams_opened);
        registry.register_by(
            "streams_refused",
            &["role", "code"],
            "Streams refused, by the stable code of the refusal",
            m.streams_refused,
        );
        registry.register_by(
            "streams_failed",
            &["role", "code"],
            "Streams that ended in a reset which neither application asked for, by reason",
            m.streams_failed,
        );
        registry.register_by(
            "streams_suspended",
            &["role"],
            "Streams that have no leg and wait for one",
            m.streams_suspended,
        );
        registry.register(
            "stream_memory_bytes",
            "Memory that streams have reserved: their buffers, and what their far ends may still send",
            m.stream_memory,
        );
        registry.register_by(
            "limit_used_ratio",
            &["limit"],
            "How much of a bound is in use, 1 is all; of what is bounded per node, the busiest one's",
            m.limit_used,
        );
        registry.register_by(
            "stream_moves",
            &["kind"],
            "Streams that this daemon dialled and moved to another leg, by reason",
            m.stream_moves,
        );
        registry.register_by(
            "stream_move_attempts",
            &["relay"],
            "Further legs opened for live streams, attached or not",
            m.move_attempts,
        );
        registry.register_by(
            "stream_move_gap_seconds",
            &["kind"],
            "The gap of a resume: from the loss or the suspicion of a stream's leg to the publisher's answer \
             on the next",
            m.move_gap_seconds,
        );
        registry.register(
            "stream_open_seconds",
            "From an application's connect to the target's answer",
            m.open_seconds,
        );
        registry.register(
            "connections_held",
            "Applications' connections that wait for their stream to open",
            m.connections_held,
        );
        registry.register(
            "accept_pauses",
            "Pauses of a listener because this host ran out of descriptors or memory",
            m.accept_pauses,
        );
        registry.register_by(
            "hop_connected",
            &["relay"],
            "1 while this node's hop session with the relay is up: whether it reaches the relay",
            m.hop_connected,
        );
        registry.register_by(
            "hop_sessions_opened",
            &["relay"],
            "Hop sessions that came up; its rate is the rate of reconnects",
            m.hop_sessions_opened,
        );
        registry.register_by(
            "hop_rtt_seconds",
            &["relay"],
            "Round trip to the relay, measured last",
            m.hop_rtt,
        );
        registry.register_by(
            "liveness_connected",
            &["relay"],
            "1 while the liveness connection to the relay stands",
            m.liveness_connected,
        );
        registry.register_by(
            "liveness_lost",
            &["relay", "cause"],
            "Liveness connections lost",
            m.liveness_lost,
        );
        registry.register_by(
            "hop_dead",
            &["relay", "cause"],
            "Hop sessions whose relay was found dead, by how that was known",
            m.hop_dead,
        );
        registry.register_by("associations", &["role"], "Associations made", m.associations);
        registry.register_by(
            "associations_failed",
            &["role"],
            "Associations that could not be made",
            m.associations_failed,
        );
        registry.register(
            "control_connected",
            "1 while the session with the control plane is up",
            m.control_connected,
        );
        registry.register(
            "policy_revision",
            "Revision of the policy in force",
            m.policy_revision,
        );
        registry.register("grants", "Verified grants held", m.grants);
        registry.register(
            "grants_left_seconds",
            "Time until the first of the grants held ends; 0 without grants",
            m.grants_left,
        );
        registry.register(
            "certificate_left_seconds",
            "Time until the member's certificate ends",
            m.certificate_left,
        );
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, role: StreamRole, code: RefusalCode) {
        let label = CodeLabel {
            role: role.as_str(),
            code: code.as_str(),
        };
        self.streams_refused.get_or_create(&label).inc();
    }

    /// Counts a move. A planned one has no gap: both legs live.
    pub(crate) fn moved(&self, kind: MoveKind, gap: Duration) {
        let label = MoveLabel { kind: kind.as_str() };
        self.stream_moves.get_or_create(&label).inc();
        match kind {
            MoveKind::Planned => {}
            MoveKind::Suspicion | MoveKind::Failure => {
                self.move_gap_seconds
                    .get_or_create(&label)
                    .observe(gap.as_secs_f64());
            }
        }
    }

    /// Counts a further leg for a live stream, whatever comes of it.
    pub(crate) fn move_attempted(&self, relay: &impl ToString) {
        self.move_attempts.get_or_create(&RelayLabel::of(relay)).inc();
    }

    /// How many further legs were opened through a relay.
    #[cfg(test)]
    pub(crate) fn move_attempts(&self, relay: &str) -> u64 {
        self.move_attempts.get_or_create(&RelayLabel::of(&relay)).get()
    }

    /// How many sessions a relay has had.
    #[cfg(test)]
    pub(crate) fn hop_session_count(&self, relay: &str) -> u64 {
        self.hop_sessions_opened
            .get_or_create(&RelayLabel::of(&relay))
            .get()
    }

    /// How many streams were moved for this reason.
    #[cfg(test)]
    pub(crate) fn move_count(&self, kind: MoveKind) -> u64 {
        let label = MoveLabel { kind: kind.as_str() };
        self.stream_moves.get_or_create(&label).get()
    }

    /// How many associations this daemon has made as a consumer.
    #[cfg(test)]
    pub(crate) fn association_count(&self) -> u64 {
        self.associations
            .get_or_create(&StreamRole::Consumer.into())
            .get()
    }

    /// How many were refused with `code`.
    #[cfg(test)]
    pub(crate) fn refused_count(&self, role: StreamRole, code: RefusalCode) -> u64 {
        let label = CodeLabel {
            role: role.as_str(),
            code: code.as_str(),
        };
        self.streams_refused.get_or_create(&label).get()
    }

    /// Counts a stream that broke; `reason` is a stable code.
    pub(crate) fn failed(&self, role: StreamRole, reason: &'static str) {
        let label = CodeLabel {
            role: role.as_str(),
            code: reason,
        };
        self.streams_failed.get_or_create(&label).inc();
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

/// 1 ms to 65 s: a warm leg takes a round trip, a stream without a relay waits for the hold.
fn gap_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

impl From<StreamRole> for RoleLabel {
    fn from(role: StreamRole) -> Self {
        Self { role: role.as_str() }
    }
}

impl RelayLabel {
    /// The label of one relay.
    pub(crate) fn of(name: &impl ToString) -> Self {
        Self {
            relay: name.to_string(),
        }
    }
}

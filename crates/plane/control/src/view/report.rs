//! What a supervisor's last report is worth: of a worker that nobody hears of, no number is of this moment. Pure.

use crate::api::{RelayState, WorkerView};
use crate::observed::RelayReport;

/// Whether a report is of this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Its supervisor is connected, or was until a moment ago.
    Current,
    /// Its supervisor said that it stops, and its worker with it.
    Stopped,
    /// Its supervisor is away: what the worker does is not known.
    Old,
}

impl Report {
    pub(super) const fn of_relay(state: RelayState, stopped: bool) -> Self {
        match state {
            RelayState::Offline if stopped => Self::Stopped,
            RelayState::Offline => Self::Old,
            RelayState::Pending | RelayState::NotReady | RelayState::Ready => Self::Current,
        }
    }

    /// The worker, without what may not be so any more.
    pub(super) fn worker(self, s: &RelayReport) -> WorkerView {
        let lasting = WorkerView {
            version: s.worker_version.clone(),
            restarts: s.worker_restarts,
            last_exit: s.worker_last_exit.clone(),
            bytes_relayed: s.bytes_relayed,
            ..WorkerView::default()
        };
        match self {
            Self::Stopped => WorkerView {
                state: "stopped",
                ..lasting
            },
            Self::Old => WorkerView {
                state: "unknown",
                metrics: s.worker_metrics.clone(),
                ..lasting
            },
            Self::Current => WorkerView {
                state: s.worker.as_str(),
                pid: s.worker_pid,
                live_tunnels: s.live_tunnels,
                hop_sessions: s.hop_sessions,
                memory_bytes: s.memory_bytes,
                open_descriptors: s.open_descriptors,
                metrics: s.worker_metrics.clone(),
                ..lasting
            },
        }
    }
}

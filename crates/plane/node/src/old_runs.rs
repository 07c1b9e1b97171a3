//! Earlier runs of far daemons, of which a later one has proved itself.
//!
//! Mostly the earlier one is dead, since a daemon's folder is locked: what it had open is to end long
//! before its hold. But a folder may have been copied (R-ENR-10), and a copy speaks to this daemon before
//! relays and control plane have sent it away. The streams are those of the run that holds them: what
//! another one answers is the failure of a leg. So a later run ends nothing by itself; what is of a run
//! that was not heard of for a while after it, and has no leg, is of a dead one. At once only what is of a run
//! that the later one knows to be dead, since it has taken over its lock.

use crate::live::{EarlierRuns, EndReason, LiveStreams};
use crate::metrics::StreamRole;
use fairlead_host::Clock;
use fairlead_model::{BootCounter, MonoTime, NodeId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long a run that a relay took for dead may take to come back and attach its streams, or to be
/// reached again: as long as it tries to dial a relay at once, and less than any hold.
pub(crate) const BACK_WITHIN: Duration = Duration::from_secs(10);
/// Later runs that are waited for at once, of all far daemons. The streams of what finds no room end with
/// their holds.
const WAITING_MAX: usize = 1024;

/// Daemons that have started anew a moment ago. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct OldRuns {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    live: LiveStreams,
    /// In the order in which they are due.
    waiting: Mutex<VecDeque<Doubted>>,
    added: Notify,
}

/// Runs before one that has proved itself.
#[derive(Debug, Clone, Copy)]
struct Doubted {
    runs: EarlierRuns,
    since: MonoTime,
    due: MonoTime,
}

impl OldRuns {
    /// None yet.
    pub(crate) fn new(live: LiveStreams) -> Self {
        let inner = Inner {
            live,
            waiting: Mutex::default(),
            added: Notify::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// A run has proved itself that is later than `runs`: those of them that are not heard of in time are dead.
    /// Nothing new where that is being found out.
    pub(crate) fn doubt(&self, runs: EarlierRuns, now: MonoTime) {
        let mut waiting = self.lock();
        let is_news = waiting.len() < WAITING_MAX && waiting.iter().all(|doubted| doubted.runs != runs);
        if is_news && self.inner.live.doubt(runs) > 0 {
            let due = now.plus(BACK_WITHIN);
            waiting.push_back(Doubted {
                runs,
                since: now,
                due,
            });
            self.inner.added.notify_one();
        }
    }

    /// A run of a far daemon has taken part in a handshake that was begun at `begun`. One that was begun before
    /// the run was doubted proves nothing: a relay may have kept its last word back.
    pub(crate) fn heard(&self, role: StreamRole, peer: NodeId, run: BootCounter, begun: MonoTime) {
        let waiting = self.lock();
        let mut doubts = waiting.iter().filter(|doubted| doubted.runs.has(role, peer, run));
        if doubts.all(|doubted| doubted.since < begun) {
            self.inner.live.note_life(role, peer, run);
        }
    }

    /// Ends what a run has left that is dead, as the one after it has proved.
    pub(crate) fn end_of(&self, role: StreamRole, peer: NodeId, run: BootCounter) {
        let ended = self.inner.live.end(EndReason::PeerRestarted, |stream| {
            (stream.role, stream.peer, stream.peer_boot) == (role, peer, run)
        });
        log(role, peer, ended);
    }

    /// Ends what dead runs have left, until `cancel`.
    pub(crate) async fn end_all(self, clock: Arc<dyn Clock>, cancel: CancellationToken) {
        loop {
            let first = self.lock().front().copied();
            let wait = async {
                match first {
                    Some(doubted) => tokio::time::sleep(doubted.due.since(clock.mono())).await,
                    None => self.inner.added.notified().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = cancel.cancelled() => return,
            }
            if let Some(doubted) = first
                && doubted.due <= clock.mono()
            {
                self.end(doubted.runs);
                self.lock().pop_front();
            }
        }
    }

    fn end(&self, runs: EarlierRuns) {
        let ended = self.inner.live.end_dead(EndReason::PeerRestarted, runs);
        log(runs.role, runs.peer, ended);
    }

    /// How many are waited for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Doubted>> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(role: StreamRole, peer: NodeId, ended: usize) {
    if ended > 0 {
        let role = role.as_str();
        tracing::info!(%peer, role, ended, "a far daemon has restarted; its old streams end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StreamMemory;
    use crate::live::LiveStream;
    use crate::memory::Memory;
    use crate::metrics::NodeMetrics;
    use fairlead_model::RouteId;
    use fairlead_telemetry::Metrics;

    const PEER: NodeId = NodeId::from_bytes([1; 16]);
    const ROLE: StreamRole = StreamRole::Consumer;

    /// R-ENR-10: a handshake that was begun before a run was doubted is no proof that it lives, since its last word
    /// may have been kept back; one that was begun after it is. A doubt that is raised again waits no longer.
    #[test]
    fn only_a_handshake_that_was_begun_since_proves_life() {
        let metrics = NodeMetrics::new(&Metrics::new("node"));
        let memory = Memory::new(StreamMemory::of_test(u64::MAX / 2), metrics.stream_memory.clone());
        let old_runs = OldRuns::new(LiveStreams::new(metrics, memory));
        let runs = EarlierRuns {
            role: ROLE,
            peer: PEER,
            before: BootCounter(2),
        };
        old_runs.doubt(runs, MonoTime(5));
        assert_eq!(old_runs.len(), 0, "nothing is of them");
        for (begun, is_dead) in [(9, true), (10, true), (11, false)] {
            let guard = old_runs.inner.live.enter(LiveStream {
                role: ROLE,
                route: RouteId::from_bytes([1; 16]),
                peer: PEER,
                peer_boot: BootCounter(1),
            });
            guard.as_ref().unwrap().note_suspension(true);
            old_runs.doubt(runs, MonoTime(10));
            old_runs.doubt(runs, MonoTime(20));
            assert_eq!(old_runs.len(), 1);
            old_runs.heard(ROLE, PEER, BootCounter(1), MonoTime(begun));
            let ended = old_runs.inner.live.end_dead(EndReason::PeerRestarted, runs);
            assert_eq!(ended == 1, is_dead, "begun at {begun}");
            old_runs.lock().clear();
        }
    }
}

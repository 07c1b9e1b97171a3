//! Earlier runs of consumers, of which a later one has proved itself.
//!
//! Mostly the earlier one is dead, since a daemon's folder is locked: what it had open is to end long
//! before its hold. But a folder may have been copied (R-ENR-10), and a copy speaks to this daemon before
//! relays and control plane have sent it away. Whichever of the two lives attaches its streams again at
//! once. So a later run ends nothing by itself: what has no leg a while later is of a dead run.

use crate::live::{EndReason, LiveStreams};
use crate::metrics::StreamRole;
use fairlead_host::Clock;
use fairlead_model::{BootCounter, MonoTime, NodeId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long a run that a relay took for dead may take to come back and attach its streams: as long as it
/// tries to dial a relay at once, and less than any hold.
const BACK_WITHIN: Duration = Duration::from_secs(10);
/// Later runs that are waited for at once, of all consumers. The streams of what finds no room end with
/// their holds.
const WAITING_MAX: usize = 1024;

/// Consumers that have started anew a moment ago. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OldRuns {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order in which they are due.
    waiting: Mutex<VecDeque<Later>>,
    added: Notify,
}

/// A run that has proved itself.
#[derive(Debug, Clone, Copy)]
struct Later {
    consumer: NodeId,
    boot: BootCounter,
    due: MonoTime,
}

impl OldRuns {
    /// A run of `consumer` has proved itself that is later than any known before.
    pub(crate) fn succeeded(&self, consumer: NodeId, boot: BootCounter, now: MonoTime) {
        let mut waiting = self.lock();
        if waiting.len() < WAITING_MAX {
            let due = now.plus(BACK_WITHIN);
            waiting.push_back(Later { consumer, boot, due });
            self.inner.added.notify_one();
        }
    }

    /// Ends what earlier runs have left, until `cancel`.
    pub(crate) async fn end_all(self, live: LiveStreams, clock: Arc<dyn Clock>, cancel: CancellationToken) {
        loop {
            let first = self.lock().front().copied();
            let wait = async {
                match first {
                    Some(later) => tokio::time::sleep(later.due.since(clock.mono())).await,
                    None => self.inner.added.notified().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = cancel.cancelled() => return,
            }
            if let Some(later) = first
                && later.due <= clock.mono()
            {
                end(&live, later);
                self.lock().pop_front();
            }
        }
    }

    /// How many are waited for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Later>> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(live: &LiveStreams, later: Later) {
    let consumer = later.consumer;
    let ended = live.end_suspended(EndReason::PeerRestarted, |s| {
        s.role == StreamRole::Publisher && s.peer == consumer && s.peer_boot < later.boot
    });
    if ended > 0 {
        tracing::info!(%consumer, ended, "consumer has restarted; its old streams end");
    }
}

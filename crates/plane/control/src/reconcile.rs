//! The reconcile loop: what is observed decides capacity and probes; what is wanted becomes a plan;
//! the plan's numbers and roots are committed, then it is signed and published.
//!
//! The loop decides nothing itself: [`crate::readiness`] and [`crate::plan`] do. It looks when a
//! member reports, when something is committed, and every [`LOOK_EVERY`].

mod ahead;
mod apply;
mod wanted;

use crate::api::RelayState;
use crate::audit::AuditNote;
use crate::control::{FREE_UNKNOWN, Inner};
use crate::folder::ControlFolder;
use crate::ledger::{Change, CommitError};
use crate::observed::RelayObserved;
use crate::readiness::{self, Facts, Port, Sight, Standing, Worker, capacity, standing};
use crate::record::{At, PulseRecord, RelayRecord, key};
use crate::state::State;
use apply::Apply;
use fairlead_host::rng;
use fairlead_model::{MonoTime, RelayId};
use fairlead_telemetry::RateLimitedLog;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often the loop looks while nothing happens: probes and losses are a matter of seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it is recorded that the control plane is alive. After a crash, an outage is taken to
/// have begun at the last record (R-POL-08); as short as what counts as an outage.
const PULSE_EVERY: Duration = readiness::OFFLINE_AFTER;
/// How often the room on the store's disk is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The first pause after the store failed; it doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause: what waited for room on the disk goes on this soon after there is some.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a lasting failure is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// The least time between two answers to members that hold something newer: those of a pool that come back
/// one after the other cost few commits.
const RAISE_EVERY: Duration = Duration::from_secs(5);
/// Most such answers of one run: a pool comes back with fewer, and a member that goes on claiming is not
/// followed further.
const RAISES_MAX: u32 = 256;
/// The longest rest after a plan. A rest lasts as long as its plan took: planning takes at most
/// half of one core, whatever the admins do.
const REST_MAX: Duration = Duration::from_secs(1);

/// Runs until stopped.
///
/// # Errors
/// Another control plane leads, or the ledger cannot go on. A store that fails is tried again.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) -> Result<(), CommitError> {
    let mut commits = inner.ledger.watch();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reconcile = Reconcile {
        apply: Apply::new(Arc::clone(&inner)),
        inner,
        measured_at: None,
        pulse_at: None,
        raised_at: None,
        raises: 0,
    };
    let mut pause = PAUSE;
    let log = RateLimitedLog::new(LOG_EVERY);
    while !stop.is_cancelled() {
        let began = tokio::time::Instant::now();
        let rest = match reconcile.look(&mut commits).await {
            Ok(()) => {
                pause = PAUSE;
                began.elapsed().min(REST_MAX)
            }
            Err(CommitError::Stopping) => return Ok(()),
            Err(error @ CommitError::Store(_)) => {
                if let Some(suppressed) = log.allow(std::time::Instant::now()) {
                    tracing::warn!(error = %fairlead_telemetry::chain(&error), suppressed, "what is wanted could not be applied; it is tried again");
                }
                let rest = pause;
                pause = (pause * 2).min(PAUSE_MAX);
                reconcile.apply.again();
                rest
            }
            Err(error @ (CommitError::LostLead | CommitError::Encode(_) | CommitError::Load(_))) => {
                return Err(error);
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(rest) => {}
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = reconcile.inner.wake.notified() => {}
            changed = commits.changed() => if changed.is_err() { break },
            _ = look.tick() => {}
        }
    }
    // The next start takes this for the beginning of the outage.
    match reconcile.pulse().await {
        Ok(()) | Err(CommitError::Stopping) => Ok(()),
        Err(error) => Err(error),
    }
}

struct Reconcile {
    inner: Arc<Inner>,
    apply: Apply,
    /// When the room on the disk was measured.
    measured_at: Option<MonoTime>,
    pulse_at: Option<MonoTime>,
    /// When members that hold something newer were answered last.
    raised_at: Option<MonoTime>,
    raises: u32,
}

impl Reconcile {
    /// One look: probes, capacity, pulse, plan.
    async fn look(&mut self, commits: &mut watch::Receiver<u64>) -> Result<(), CommitError> {
        // First: without room, what follows fails.
        self.measure().await;
        let changes = self.observe();
        if !changes.is_empty() {
            self.commit_capacity(changes).await?;
        }
        let now = self.inner.clock.mono();
        if self.pulse_at.is_none_or(|at| now.since(at) >= PULSE_EVERY) {
            self.pulse().await?;
        }
        self.catch_up(now).await?;
        let seen = *commits.borrow_and_update();
        self.apply.follow(seen).await
    }

    /// Goes above the numbers of members that hold something newer: this control plane was restored from an
    /// older copy, and what it signs would be refused.
    async fn catch_up(&mut self, now: MonoTime) -> Result<(), CommitError> {
        let is_time = self.raised_at.is_none_or(|at| now.since(at) >= RAISE_EVERY);
        if !is_time || self.raises >= RAISES_MAX {
            return Ok(());
        }
        let documents = self.inner.published.snapshot();
        let revision = self.inner.ledger.state().policy_revision();
        let (epoch, term) = (self.inner.epoch, self.inner.term().0);
        let ahead = ahead::ahead(&self.inner.observed.lock(), &documents, epoch, revision, term);
        if ahead.members.is_empty() {
            return Ok(());
        }
        self.raised_at = Some(now);
        self.raises = self.raises.saturating_add(1);
        self.apply.raise(ahead).await
    }

    /// Sends probes that are due; which relays gain or lose capacity, and why.
    fn observe(&self) -> Vec<(RelayId, bool, String)> {
        let state = self.inner.ledger.state();
        let now = self.inner.clock.mono();
        let mut changes = Vec::new();
        let mut members = self.inner.observed.lock();
        let connected = members.connected();
        for (id, kept) in &state.relays {
            let record = &kept.record;
            members.probe(*id, &record.address.0, &connected, rng::bytes::<16>, now);
            let facts = facts(record, members.relays.get(id), &state, now, self.inner.started);
            let Standing {
                state: standing,
                reason,
                ..
            } = standing(&facts);
            let unready = members.stands(*id, standing, now).max(away(standing, &facts));
            // Asked for only where it decides: every node is looked at.
            let (nodes_on, nodes_off) = if record.capacity && unready >= readiness::lost_after(facts.stopped)
            {
                members.witnesses(*id)
            } else {
                (0, 0)
            };
            let sight = Sight {
                standing,
                stopped: facts.stopped,
                unready,
                nodes_on,
                nodes_off,
            };
            let capacity = capacity(record.capacity, sight);
            if capacity != record.capacity {
                changes.push((*id, capacity, reason));
            }
        }
        changes
    }

    async fn commit_capacity(&self, changes: Vec<(RelayId, bool, String)>) -> Result<(), CommitError> {
        let turn = self.inner.ledger.turn().await?;
        let mut change = Change::default();
        for (id, capacity, reason) in changes {
            let Some(before) = turn.state().relay(id) else {
                continue;
            };
            let after = RelayRecord {
                capacity,
                served: before.served || capacity,
                ..before.clone()
            };
            let (action, facts) = if capacity {
                ("relay.capacity.gain", serde_json::json!({ "capacity": true }))
            } else {
                (
                    "relay.capacity.loss",
                    serde_json::json!({ "capacity": false, "reason": reason }),
                )
            };
            tracing::info!(relay = %before.name.0, capacity, reason, "a relay's capacity changed");
            let object = format!("relay {}", before.name.0);
            change.note(AuditNote::new("control", action, object).after(&facts));
            change.put(key::relay(id), &after);
        }
        turn.commit(change).await
    }

    /// Asks how much room there is on the store's disk, every few seconds.
    async fn measure(&mut self) {
        let now = self.inner.clock.mono();
        if self.measured_at.is_some_and(|at| now.since(at) < MEASURE_EVERY) {
            return;
        }
        self.measured_at = Some(now);
        let folder = ControlFolder::new(&self.inner.settings.dir);
        // A disk that hangs holds no thread that serves.
        let free = match tokio::task::spawn_blocking(move || folder.free()).await {
            Ok(Ok(free)) => free,
            Ok(Err(_)) | Err(_) => FREE_UNKNOWN,
        };
        self.inner.store_free.store(free, Ordering::Relaxed);
    }

    /// Records that the control plane is alive.
    async fn pulse(&mut self) -> Result<(), CommitError> {
        let turn = self.inner.ledger.turn().await?;
        let at = At::from(self.inner.clock.wall());
        let mut change = Change::default();
        change.put(key::PULSE, &PulseRecord { at });
        turn.commit(change).await?;
        self.pulse_at = Some(self.inner.clock.mono());
        Ok(())
    }
}

/// How long a relay that is offline has been away: longer than it was seen to be.
fn away(standing: RelayState, facts: &Facts) -> Duration {
    match standing {
        RelayState::Offline => facts.away.unwrap_or_default(),
        RelayState::Pending | RelayState::NotReady | RelayState::Ready => Duration::ZERO,
    }
}

/// What is known of a relay. `started` is when this control plane began to look.
pub(crate) fn facts(
    record: &RelayRecord,
    observed: Option<&RelayObserved>,
    state: &State,
    now: MonoTime,
    started: MonoTime,
) -> Facts {
    let name = |id: RelayId| {
        state
            .relay(id)
            .map_or_else(|| id.to_string(), |relay| relay.name.0.to_string())
    };
    let status = observed.and_then(|o| o.status.as_ref());
    let port = match (observed, status) {
        (Some(observed), Some(status)) => observed.probes.port(status.worker_pid, name),
        (Some(_) | None, _) => Port::Unknown,
    };
    let is_connected = observed.is_some_and(|o| o.session.is_some());
    let closed = observed.and_then(|o| o.closed);
    let lost_at = closed.map_or(started, |c| c.at);
    let refused = observed.and_then(|o| o.refused(now));
    Facts {
        enrolled: record.enrolled.is_some(),
        away: (!is_connected).then(|| now.since(lost_at)),
        refused: refused.map(|r| r.words.clone()).unwrap_or_default(),
        stopped: match closed {
            // It was, and is there again.
            _ if refused.is_some() => false,
            Some(closed) => closed.stopped,
            // It has not come since this control plane began: what the one before knew stands.
            None => record.stopped && !is_connected,
        },
        worker: status.map(|s| Worker {
            state: s.worker,
            last_exit: s.worker_last_exit.clone(),
            holds_policy: s.applied.is_some(),
            policy_refused: s.policy_refused.clone(),
        }),
        port,
        unreached: String::new(),
    }
}

//! A supervisor's session: policy, leases, trust and probes down; the worker's state up.

use super::{
    Caller, DOWN_QUEUED_MAX, Ended, HELLO_WAIT_MAX, SILENCE_MAX, clock_fault, copies, enrolled, send,
    send_result, text,
};
use crate::audit::AuditNote;
use crate::control::Inner;
use crate::ledger::{Change, CommitError};
use crate::observed::{Cloned, Closed, Opened, Refused, RelayReport, WorkerState};
use crate::publish::is_of_head;
use crate::readiness::OFFLINE_AFTER;
use crate::record::{At, EnrolledRecord, HeadRecord, MemberKey, RelayRecord, Text, key, time_text};
use crate::setting::Settings;
use crate::told;
use bytes::Bytes;
use fairlead_model::{LeaseSeq, MonoTime, NodeId, RelayId, WallTime};
use fairlead_rpc::pb::{self, relay_down, relay_up};
use fairlead_rpc::signed::encode_policy_lease;
use fairlead_trust::admission::{LEASE_MAX, PolicyHead};
use fairlead_trust::{PayloadType, PolicyLease, RelayPolicy, Verified, seal};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Status, Streaming};

/// How often a lease is renewed, so that an outage starts with nearly the full lease.
const LEASE_EVERY: Duration = Duration::from_secs(600);
/// How soon a lease that is due and could not be sent is looked at again. What it waits for (a policy,
/// the commit of its number, the worker's word that it holds it) wakes the session by itself; without
/// a least wait, the session would spin until then (R-SHD-03).
const LEASE_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Nodes of which a report may say that two processes came; a worker names no more.
const CLONED_MAX: usize = 64;
/// How far above the store's lease number a relay's word is believed: a bounded step of a counter of 64 bits.
const LEASE_STEP_MAX: u64 = 1 << 32;
/// The least time between two pushes of the same policy to the same worker process: one that
/// refuses it is not flooded.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

const _: () = assert!(
    DOWN_QUEUED_MAX >= 4,
    "a session's first messages fit without a wait"
);

type Sender = mpsc::Sender<Result<pb::RelayDown, Status>>;

/// What was sent to the supervisor.
#[derive(Default)]
struct Sent {
    policy: Option<Policy>,
    lease: Option<Lease>,
}

struct Policy {
    root: [u8; 32],
    revision: u64,
    /// The worker's process that it was sent for.
    worker_pid: u32,
    at: MonoTime,
}

struct Lease {
    at: MonoTime,
    length: Duration,
}

struct Task {
    inner: Arc<Inner>,
    id: RelayId,
    /// The session's number.
    session: u64,
    down: Sender,
    sent: Sent,
    /// What the worker held when the session began; its reports say it from then on.
    said: Option<PolicyHead>,
    /// Whether its worker's clock has been behind what was signed here ever since the hello, which told the
    /// time within 60 s of ours: then it was our clock that was ahead. `None` until the worker was heard.
    signed_ahead: Option<bool>,
}

/// Serves one session to its end.
pub(super) async fn run(
    inner: Arc<Inner>,
    id: RelayId,
    caller: Caller,
    mut up: Streaming<pb::RelayUp>,
    down: Sender,
) {
    let hello = tokio::time::timeout(HELLO_WAIT_MAX, up.message()).await;
    let Ok(Ok(Some(pb::RelayUp {
        body: Some(relay_up::Body::Hello(hello)),
    }))) = hello
    else {
        let _ = send_result(
            &down,
            Err(Status::invalid_argument("the first message is not a hello")),
        )
        .await;
        return;
    };
    let member = MemberKey::Relay(Text(id));
    if let Some(fault) = clock_fault(hello.wall_clock_ms, inner.clock.wall()) {
        if let Some(suppressed) = told::session("refused") {
            tracing::warn!(relay = %id, fault, suppressed, "a relay's session was refused");
        }
        inner
            .observed
            .refuse(member, Refused::by_clock(&fault, inner.clock.mono()));
        let _ = send_result(&down, Err(Status::failed_precondition(fault))).await;
        return;
    }
    let admitted = match enrolled(&inner.ledger.state(), member, caller) {
        Ok(()) => copies::admit(&inner, member, caller, hello.process.clone()).await,
        Err(refused) => Err(refused),
    };
    let boot = match admitted {
        Ok(boot) => boot,
        Err(refused) => {
            let _ = send_result(&down, Err(refused)).await;
            return;
        }
    };
    let cancel = inner.stopping.child_token();
    let Opened {
        session,
        mut probes,
        first,
    } = inner
        .observed
        .open_relay(id, text(hello.version.clone()), boot, cancel.clone());
    let mut task = Task {
        inner: Arc::clone(&inner),
        id,
        session: session.number,
        down,
        sent: Sent::default(),
        said: None,
        signed_ahead: None,
    };
    let ended = match task.open(hello, first, caller).await {
        Ok(()) => task.serve(&mut up, &mut probes, &cancel).await,
        Err(ended) => ended,
    };
    if let Some(suppressed) = told::session("ended") {
        tracing::info!(relay = %id, reason = ended.words(), suppressed, "a relay's session ended");
    }
    let closed = Closed::by(ended, inner.clock.mono());
    if inner.observed.close_relay(id, session.number, closed)
        && let Err(error) = record_loss(&inner, id, closed.stopped).await
    {
        // The next start takes the last pulse for it.
        tracing::warn!(relay = %id, error = %fairlead_telemetry::chain(&error), "the end of a session was not recorded");
    }
    // One that opened while the member was removed.
    if inner.ledger.state().relay(id).is_none() {
        inner.observed.forget_relay(id);
    }
    inner.wake.notify_one();
}

impl Task {
    async fn open(&mut self, hello: pb::RelayHello, first: bool, caller: Caller) -> Result<(), Ended> {
        record_return(&self.inner, self.id, first, caller).await.map_err(|error| {
            tracing::warn!(relay = %self.id, error = %fairlead_telemetry::chain(&error), "a session could not be opened");
            Ended::Gone
        })?;
        let state = self.inner.ledger.state();
        // Again: it may have been removed, or have enrolled again, before its hello.
        if let Err(refused) = enrolled(&state, MemberKey::Relay(Text(self.id)), caller) {
            send_result(&self.down, Err(refused)).await?;
            return Err(Ended::Gone);
        }
        let record = state.relay(self.id).ok_or(Ended::Gone)?;
        if let Some(suppressed) = told::session("connected") {
            tracing::info!(relay = %record.name.0, version = %text(hello.version), suppressed, "a relay connected");
        }
        self.send(relay_down::Body::Welcome(pb::RelayWelcome {
            name: record.name.0.to_string(),
            wall_clock_ms: self.inner.clock.wall().0,
            advertised_address: record.address.0.to_string(),
        }))
        .await?;
        if hello.trust_bundle_version < self.inner.bundle.version {
            self.send(relay_down::Body::TrustBundle(pb::TrustBundle::from(
                &self.inner.bundle,
            )))
            .await?;
        }
        let applied = hello.applied.and_then(|head| PolicyHead::try_from(head).ok());
        self.said = applied;
        let mut members = self.inner.observed.lock();
        let observed = members.relay_in(self.id, self.session).ok_or(Ended::Replaced)?;
        if let Some(status) = &mut observed.status {
            status.applied = applied;
        }
        Ok(())
    }

    async fn serve(
        &mut self,
        up: &mut (impl Stream<Item = Result<pb::RelayUp, Status>> + Unpin),
        probes: &mut mpsc::Receiver<fairlead_rpc::ProbeRequest>,
        cancel: &tokio_util::sync::CancellationToken,
    ) -> Ended {
        let mut documents = self.inner.published.watch();
        let mut commits = self.inner.ledger.watch();
        let mut heard = tokio::time::Instant::now();
        loop {
            documents.mark_unchanged();
            commits.mark_unchanged();
            if let Err(ended) = self.follow().await {
                return ended;
            }
            let lease_wait = self.lease_wait().max(LEASE_AGAIN_AFTER);
            tokio::select! {
                () = cancel.cancelled() => return Ended::cancelled(&self.inner.stopping),
                message = up.next() => {
                    heard = tokio::time::Instant::now();
                    match message {
                        Some(Ok(pb::RelayUp { body: Some(body) })) => {
                            if let Err(ended) = self.hear(body).await {
                                return ended;
                            }
                        }
                        // A message of a newer version.
                        Some(Ok(pb::RelayUp { body: None })) => {}
                        None | Some(Err(_)) => return Ended::Gone,
                    }
                }
                probe = probes.recv() => match probe {
                    Some(probe) => {
                        let probe = relay_down::Body::Probe(pb::ProbeRequest::from(&probe));
                        if let Err(ended) = self.send(probe).await {
                            return ended;
                        }
                    }
                    None => return Ended::cancelled(&self.inner.stopping),
                },
                changed = wait(&mut documents) => if !changed { return Ended::Stopping },
                changed = wait(&mut commits) => if !changed { return Ended::Stopping },
                () = tokio::time::sleep(lease_wait) => {}
                () = tokio::time::sleep_until(heard + SILENCE_MAX) => return Ended::Silent,
            }
        }
    }

    async fn send(&self, body: relay_down::Body) -> Result<(), Ended> {
        send(&self.down, pb::RelayDown { body: Some(body) }).await
    }

    /// Sends what the supervisor should have and has not been sent.
    async fn follow(&mut self) -> Result<(), Ended> {
        let Some(policy) = self.inner.published.snapshot().relays.get(&self.id).cloned() else {
            return Ok(());
        };
        let now = self.inner.clock.mono();
        if self.policy_due(&policy, now) {
            let Some(lease) = self.lease(&policy).await? else {
                return Ok(());
            };
            self.send(relay_down::Body::Policy(pb::SignedPolicy {
                policy_envelope: policy.envelope().clone(),
                lease_envelope: lease,
            }))
            .await?;
            let pid = self.reported(|s| s.worker_pid).unwrap_or(0);
            self.sent.policy = Some(Policy {
                root: policy.root().0,
                revision: policy.revision.0,
                worker_pid: pid,
                at: now,
            });
            return Ok(());
        }
        // A lease alone, for the policy that the worker holds.
        if self.lease_wait().is_zero() && self.holds(&policy) {
            let Some(lease) = self.lease(&policy).await? else {
                return Ok(());
            };
            self.send(relay_down::Body::LeaseEnvelope(lease)).await?;
        }
        Ok(())
    }

    /// Whether the policy is to be sent: it is new, or the worker says that it does not hold it
    /// (R-POL-07).
    fn policy_due(&self, policy: &Verified<RelayPolicy>, now: MonoTime) -> bool {
        if self.holds(policy) {
            return false;
        }
        let Some(sent) = &self.sent.policy else {
            return true;
        };
        if sent.root != policy.root().0 || sent.revision != policy.revision.0 {
            return true;
        }
        // It was sent and is not reported yet: again for another process, or after a while.
        let other_process = self
            .reported(|s| s.worker_pid)
            .is_some_and(|pid| pid != sent.worker_pid);
        other_process || now.since(sent.at) >= AGAIN_AFTER
    }

    /// Whether the worker reported that it holds this policy.
    fn holds(&self, policy: &Verified<RelayPolicy>) -> bool {
        self.reported(|s| s.applied)
            .unwrap_or(self.said)
            .is_some_and(|a| {
                a.epoch == policy.epoch && a.revision == policy.revision && a.root == policy.root()
            })
    }

    fn reported<T>(&self, of: impl FnOnce(&RelayReport) -> T) -> Option<T> {
        let members = self.inner.observed.lock();
        members
            .relays
            .get(&self.id)
            .and_then(|o| o.status.as_ref())
            .map(of)
    }

    /// Until the next lease; zero when it is due.
    fn lease_wait(&self) -> Duration {
        let length = Settings::of(&self.inner.ledger.state()).lease;
        match &self.sent.lease {
            Some(lease) if lease.length == length => {
                LEASE_EVERY.saturating_sub(self.inner.clock.mono().since(lease.at))
            }
            // None yet, or the setting was changed.
            Some(_) | None => Duration::ZERO,
        }
    }

    /// A new lease for the policy; `None` while the policy is not the newest committed one (its
    /// successor is about to be signed).
    async fn lease(&mut self, policy: &Verified<RelayPolicy>) -> Result<Option<Bytes>, Ended> {
        let length = Settings::of(&self.inner.ledger.state()).lease;
        let at = self.inner.clock.mono();
        let held = self.reported(|s| s.applied).unwrap_or(self.said);
        match issue_lease(&self.inner, self.id, policy, held, length).await {
            Ok(lease) => {
                if lease.is_some() {
                    self.sent.lease = Some(Lease { at, length });
                }
                Ok(lease)
            }
            Err(error) => {
                // The member comes again; the store may have recovered then.
                tracing::warn!(relay = %self.id, error = %fairlead_telemetry::chain(&error), "no lease could be signed");
                Err(Ended::Gone)
            }
        }
    }

    /// Tells of a clock that was set back during the session (R-POL-05): at its beginning it is the
    /// session that is refused.
    fn tell_clock(&self, before: Option<Duration>, now: Option<Duration>, signed_ahead: bool) {
        let Some(news) = clock_news(before, now, signed_ahead) else {
            return;
        };
        let Some(suppressed) = told::session("clock") else {
            return;
        };
        match news {
            Err(fault) => tracing::warn!(relay = %self.id, suppressed, "{fault}"),
            Ok(()) => tracing::info!(relay = %self.id, suppressed, "the relay's clock is right again"),
        }
    }

    async fn hear(&mut self, body: relay_up::Body) -> Result<(), Ended> {
        match body {
            relay_up::Body::Hello(_) => return Err(Ended::Protocol),
            relay_up::Body::Status(status) => {
                let mut report = report(status, self.inner.clock.mono());
                let (cloned, applied) = (report.cloned.clone(), report.applied);
                let behind = report.clock_behind;
                if report.worker == WorkerState::Listening {
                    let ever = self.signed_ahead.get_or_insert(true);
                    *ever &= behind.is_some();
                }
                report.signed_ahead = behind.is_some() && self.signed_ahead == Some(true);
                let signed_ahead = report.signed_ahead;
                let before = {
                    let mut members = self.inner.observed.lock();
                    let observed = members.relay_in(self.id, self.session).ok_or(Ended::Replaced)?;
                    observed.status.replace(report)
                };
                self.tell_clock(
                    before.and_then(|report| report.clock_behind),
                    behind,
                    signed_ahead,
                );
                if let (Some(head), Some(record)) = (applied, self.inner.ledger.state().relay(self.id)) {
                    let (name, now) = (record.name.0.to_string(), self.inner.clock.wall());
                    self.inner.revocations.applied(self.id, &name, &head, now);
                }
                for cloned in &cloned {
                    copies::note_report(&self.inner, self.id, cloned).await;
                }
            }
            relay_up::Body::ProbeReport(report) => {
                let (Some(relay), Ok(id)) = (
                    RelayId::from_slice(&report.relay_id),
                    <[u8; 16]>::try_from(report.request_id.as_ref()),
                ) else {
                    return Err(Ended::Protocol);
                };
                let result = if report.reachable {
                    Ok(())
                } else if report.error.is_empty() {
                    Err("no reason given".to_owned())
                } else {
                    Err(text(report.error))
                };
                let now = self.inner.clock.mono();
                self.inner
                    .observed
                    .probe_reported(relay, self.id, id, result, now);
            }
            relay_up::Body::Goodbye(_) => return Err(Ended::Goodbye),
        }
        self.inner.wake.notify_one();
        Ok(())
    }
}

/// What there is to say of a relay's clock: whether it differs or no longer does; nothing where the
/// last report said the same.
fn clock_news(
    before: Option<Duration>,
    now: Option<Duration>,
    signed_ahead: bool,
) -> Option<Result<(), String>> {
    match (before, now) {
        (None, Some(behind)) if signed_ahead => Some(Err(format!(
            "this control plane's clock was {} ahead when it signed what the relay holds; the relay admits by the \
             signed times until its clock has passed them",
            crate::enrol::about(behind)
        ))),
        (None, Some(behind)) => Some(Err(format!(
            "clock differs by {}: the relay's clock is behind what was signed here; it admits by the signed times",
            crate::enrol::about(behind)
        ))),
        (Some(_), None) => Some(Ok(())),
        (None, None) | (Some(_), Some(_)) => None,
    }
}

async fn wait(changes: &mut watch::Receiver<u64>) -> bool {
    changes.changed().await.is_ok()
}

fn report(status: pb::RelayStatus, told_at: MonoTime) -> RelayReport {
    let worker = match status.worker_state() {
        pb::WorkerState::Unspecified | pb::WorkerState::Starting => WorkerState::Starting,
        pb::WorkerState::Listening => WorkerState::Listening,
        pb::WorkerState::BackingOff => WorkerState::BackingOff,
        pb::WorkerState::CrashLoop => WorkerState::CrashLoop,
        pb::WorkerState::Unresponsive => WorkerState::Unresponsive,
    };
    RelayReport {
        worker,
        worker_version: text(status.worker_version),
        worker_pid: status.worker_pid,
        worker_restarts: status.worker_restarts,
        worker_last_exit: text(status.worker_last_exit),
        applied: status.applied.and_then(|head| PolicyHead::try_from(head).ok()),
        policy_refused: text(status.policy_refused),
        live_tunnels: status.live_tunnels,
        hop_sessions: status.hop_sessions,
        memory_bytes: status.memory_bytes,
        open_descriptors: status.open_descriptors,
        bytes_relayed: status.bytes_relayed,
        worker_metrics: text(status.worker_metrics),
        clock_behind: Some(Duration::from_millis(status.clock_behind_ms)).filter(|behind| !behind.is_zero()),
        signed_ahead: false,
        cloned: status
            .cloned_nodes
            .into_iter()
            .take(CLONED_MAX)
            .filter_map(|c| {
                Some(Cloned {
                    node: NodeId::from_slice(&c.node_id)?,
                    kept: text(c.kept),
                    refused: text(c.refused),
                    ago: Duration::from_millis(c.refused_ago_ms),
                    told_at,
                })
            })
            .collect(),
    }
}

/// Takes the next lease number in the store, then signs the lease. It is above the one that the relay holds
/// too: a store that was restored from an older copy has forgotten those since.
async fn issue_lease(
    inner: &Inner,
    id: RelayId,
    policy: &Verified<RelayPolicy>,
    held: Option<PolicyHead>,
    length: Duration,
) -> Result<Option<Bytes>, CommitError> {
    let member = MemberKey::Relay(Text(id));
    let turn = inner.ledger.turn().await?;
    let Some(head) = turn.state().heads.get(&member).map(|k| k.record.clone()) else {
        return Ok(None);
    };
    if !is_of_head(policy, &head) {
        return Ok(None);
    }
    let not_before = inner.clock.wall();
    let not_after = not_before.plus(length);
    let held = held.filter(|held| {
        held.epoch == policy.epoch && held.lease_seq.0.saturating_sub(head.lease_seq) <= LEASE_STEP_MAX
    });
    let held_seq = held.map_or(0, |held| held.lease_seq.0);
    // No lease is longer, whatever a relay says.
    let held_end = held.map(|held| At::from(held.lease_not_after.min(not_before.plus(LEASE_MAX))));
    let next = HeadRecord {
        lease_seq: head.lease_seq.max(held_seq).saturating_add(1),
        // The longest that is out: it may be the one that the relay holds (R-POL-02).
        lease_not_after: head.lease_not_after.max(Some(At::from(not_after))).max(held_end),
        ..head
    };
    let seq = LeaseSeq(next.lease_seq);
    let mut change = Change::default();
    change.put(key::head(member), &next);
    turn.commit(change).await?;
    let lease = PolicyLease {
        relay: id,
        epoch: policy.epoch,
        revision: policy.revision,
        root: policy.root(),
        not_before,
        not_after,
        seq,
        leader_term: inner.term(),
    };
    match seal(
        &inner.authority.policy,
        PayloadType::PolicyLease,
        &encode_policy_lease(&lease),
    ) {
        Ok(envelope) => Ok(Some(envelope)),
        Err(error) => {
            tracing::error!(relay = %id, %error, "a lease could not be signed");
            Ok(None)
        }
    }
}

/// Notes in the store when a relay's session ended, the start of an outage, and whether that was said.
async fn record_loss(inner: &Inner, id: RelayId, stopped: bool) -> Result<(), CommitError> {
    let now = inner.clock.wall();
    let turn = inner.ledger.turn().await?;
    let Some(before) = turn.state().relay(id) else {
        return Ok(());
    };
    let after = RelayRecord {
        lost_at: Some(At::from(now)),
        stopped,
        ..before.clone()
    };
    let mut change = Change::default();
    change.put(key::relay(id), &after);
    turn.commit(change).await
}

/// On reconnect: the outage goes into the audit log (R-POL-08), with its beginning and its end.
///
/// A loss that is on record began then. One that is not, at the `first` session of this process's
/// life, is the control plane's own: it was alive for the last time at its last pulse.
async fn record_return(inner: &Inner, id: RelayId, first: bool, caller: Caller) -> Result<(), CommitError> {
    let to = inner.clock.wall();
    let turn = inner.ledger.turn().await?;
    let Some(before) = turn.state().relay(id) else {
        return Ok(());
    };
    let had_lease = turn
        .state()
        .heads
        .get(&MemberKey::Relay(Text(id)))
        .is_some_and(|head| head.record.lease_seq > 0);
    let from = before
        .lost_at
        .map(WallTime::from)
        .or(inner.last_pulse.filter(|_| first));
    let outage = from.filter(|from| had_lease && to.since(*from) >= OFFLINE_AFTER);
    let connected = before
        .enrolled
        .clone()
        .filter(|e| !e.connected && caller.has_key_of(e))
        .map(EnrolledRecord::connected);
    if before.lost_at.is_none() && outage.is_none() && connected.is_none() {
        return Ok(());
    }
    let after = RelayRecord {
        lost_at: None,
        stopped: false,
        enrolled: connected.or_else(|| before.enrolled.clone()),
        ..before.clone()
    };
    let mut change = Change::default();
    if let Some(from) = outage {
        let period = serde_json::json!({ "from": time_text(from), "to": time_text(to) });
        let object = format!("relay {}", before.name.0);
        change.note(AuditNote::new("control", "relay.instance.policy.stale_period", object).after(&period));
    }
    change.put(key::relay(id), &after);
    turn.commit(change).await
}

#[cfg(test)]
mod tests;

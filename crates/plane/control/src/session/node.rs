//! A node daemon's session: policy, grants and trust down; reach, registrations and listeners up.

use super::{
    Caller, Ended, HELLO_WAIT_MAX, SILENCE_MAX, clock_fault, copies, enrolled, send, send_result, text,
};
use crate::api::PathReportView;
use crate::control::Inner;
use crate::ledger::{Change, CommitError};
use crate::observed::{CheckAsked, Closed, LastRefusal, Listener, NodeReport, Reach, Refused};
use crate::plan::{LINKS_PER_NODE_MAX, RELAYS_MAX};
use crate::publish::GrantSet;
use crate::record::{At, EnrolledRecord, MemberKey, NodeRecord, Text, key};
use crate::told;
use bytes::Bytes;
use fairlead_model::{EndpointId, MonoTime, NodeId, RelayId, RouteId, WallTime};
use fairlead_rpc::pb::{self, node_down, node_up};
use fairlead_trust::{NodePolicy, Verified};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

type Sender = mpsc::Sender<Result<pb::NodeDown, Status>>;

/// The least time between two pushes of the same policy: a node that refuses it is not flooded.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The least time between two looks whether it is to be pushed again.
const AGAIN_LOOK_MIN: Duration = Duration::from_millis(100);

/// Sets of grants that are known by their digests: so many changes may be on their way to a node at once.
const SENT_KEPT_MAX: usize = 8;

struct Task {
    inner: Arc<Inner>,
    id: NodeId,
    /// The session's number.
    session: u64,
    down: Sender,
    /// The policy that was sent last: epoch, revision, when.
    policy: Option<(u64, u64, MonoTime)>,
    /// The grants that were sent last, and when.
    grants: Option<(Arc<GrantSet>, MonoTime)>,
    /// The newest sets that were sent, with their digests: a report may be of one before the last.
    sent: VecDeque<([u8; 32], Arc<GrantSet>)>,
    /// The policy that the node said it holds.
    held: Option<(u64, u64)>,
    /// The digest of the grants that the node said it keeps.
    held_grants: Option<[u8; 32]>,
    /// The path that the node tries.
    checking: Option<CheckAsked>,
}

/// Serves one session to its end.
pub(super) async fn run(
    inner: Arc<Inner>,
    id: NodeId,
    caller: Caller,
    mut up: Streaming<pb::NodeUp>,
    down: Sender,
) {
    let hello = tokio::time::timeout(HELLO_WAIT_MAX, up.message()).await;
    let Ok(Ok(Some(pb::NodeUp {
        body: Some(node_up::Body::Hello(hello)),
    }))) = hello
    else {
        let _ = send_result(
            &down,
            Err(Status::invalid_argument("the first message is not a hello")),
        )
        .await;
        return;
    };
    let member = MemberKey::Node(Text(id));
    if let Some(fault) = clock_fault(hello.wall_clock_ms, inner.clock.wall()) {
        if let Some(suppressed) = told::session("refused") {
            tracing::warn!(node = %id, fault, suppressed, "a node's session was refused");
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
    let (session, mut checks) = inner.observed.open_node(
        id,
        text(hello.version.clone()),
        boot,
        cancel.clone(),
        inner.clock.mono(),
    );
    let mut task = Task {
        inner: Arc::clone(&inner),
        id,
        session: session.number,
        down,
        policy: None,
        grants: None,
        sent: VecDeque::new(),
        held: Some((hello.policy_epoch, hello.policy_revision)),
        held_grants: None,
        checking: None,
    };
    let ended = match task.open(&hello, caller).await {
        Ok(()) => task.serve(&mut up, &mut checks, &cancel).await,
        Err(ended) => ended,
    };
    if let Some(suppressed) = told::session("ended") {
        tracing::info!(node = %id, reason = ended.words(), suppressed, "a node's session ended");
    }
    let closed = Closed::by(ended, inner.clock.mono());
    if inner.observed.close_node(id, session.number, closed)
        && closed.stopped
        && let Err(error) = record_stop(&inner, id).await
    {
        // Until the next start it is known all the same.
        tracing::warn!(node = %id, error = %fairlead_telemetry::chain(&error), "a node's goodbye was not recorded");
    }
    // One that opened while the member was removed.
    if inner.ledger.state().node(id).is_none() {
        inner.observed.forget_node(id);
    }
    inner.wake.notify_one();
}

impl Task {
    async fn open(&self, hello: &pb::NodeHello, caller: Caller) -> Result<(), Ended> {
        record_connected(&self.inner, self.id, caller).await.map_err(|error| {
            tracing::warn!(node = %self.id, error = %fairlead_telemetry::chain(&error), "a session could not be opened");
            Ended::Gone
        })?;
        let state = self.inner.ledger.state();
        // Again: it may have been removed, or have enrolled again, before its hello.
        if let Err(refused) = enrolled(&state, MemberKey::Node(Text(self.id)), caller) {
            send_result(&self.down, Err(refused)).await?;
            return Err(Ended::Gone);
        }
        let record = state.node(self.id).ok_or(Ended::Gone)?;
        if let Some(suppressed) = told::session("connected") {
            tracing::info!(node = %record.name.0, suppressed, "a node connected");
        }
        self.send(node_down::Body::Welcome(pb::NodeWelcome {
            name: record.name.0.to_string(),
            wall_clock_ms: self.inner.clock.wall().0,
        }))
        .await?;
        if hello.trust_bundle_version < self.inner.bundle.version {
            self.send(node_down::Body::TrustBundle(pb::TrustBundle::from(
                &self.inner.bundle,
            )))
            .await?;
        }
        Ok(())
    }

    async fn serve(
        &mut self,
        up: &mut Streaming<pb::NodeUp>,
        checks: &mut mpsc::Receiver<CheckAsked>,
        cancel: &tokio_util::sync::CancellationToken,
    ) -> Ended {
        let mut documents = self.inner.published.watch();
        let mut heard = tokio::time::Instant::now();
        loop {
            documents.mark_unchanged();
            if let Err(ended) = self.follow().await {
                return ended;
            }
            let (again_wait, is_idle) = (self.again_wait(), self.checking.is_none());
            tokio::select! {
                () = cancel.cancelled() => return Ended::cancelled(&self.inner.stopping),
                message = up.message() => {
                    heard = tokio::time::Instant::now();
                    match message {
                        Ok(Some(pb::NodeUp { body: Some(node_up::Body::Status(status)) })) => {
                            if let Err(ended) = self.hear(status) {
                                return ended;
                            }
                        }
                        Ok(Some(pb::NodeUp { body: Some(node_up::Body::PathReport(report)) })) => self.checked(report),
                        Ok(Some(pb::NodeUp { body: Some(node_up::Body::Hello(_)) })) => return Ended::Protocol,
                        Ok(Some(pb::NodeUp { body: Some(node_up::Body::Goodbye(_)) })) => return Ended::Goodbye,
                        // A message of a newer version.
                        Ok(Some(pb::NodeUp { body: None })) => {}
                        Ok(None) | Err(_) => return Ended::Gone,
                    }
                }
                asked = checks.recv(), if is_idle => match asked {
                    Some(asked) => if let Err(ended) = self.check(asked).await {
                        return ended;
                    },
                    None => return Ended::cancelled(&self.inner.stopping),
                },
                () = given_up(self.checking.as_mut()) => self.checking = None,
                changed = documents.changed() => if changed.is_err() { return Ended::Stopping },
                () = tokio::time::sleep(again_wait) => {}
                () = tokio::time::sleep_until(heard + SILENCE_MAX) => return Ended::Silent,
            }
        }
    }

    /// Asks the node to try a path.
    async fn check(&mut self, asked: CheckAsked) -> Result<(), Ended> {
        self.send(node_down::Body::PathCheck(pb::PathCheck {
            check_id: Bytes::copy_from_slice(&asked.check),
            route_id: Bytes::copy_from_slice(&asked.route.to_bytes()),
            relay_id: Bytes::copy_from_slice(&asked.relay.to_bytes()),
        }))
        .await?;
        self.checking = Some(asked);
        Ok(())
    }

    /// Passes the report on; a late one, that nobody waits for, is dropped.
    fn checked(&mut self, report: pb::PathReport) {
        let asked = self.checking.take_if(|asked| report.check_id == asked.check[..]);
        if let Some(asked) = asked {
            let _ = asked.answer.send(PathReportView {
                session_us: report.session_us,
                tunnel_us: report.tunnel_us,
                bytes_verified: report.bytes_verified,
                failed: text(report.failed),
                detail: text(report.detail),
                target: text(report.target),
            });
        }
    }

    async fn send(&self, body: node_down::Body) -> Result<(), Ended> {
        send(&self.down, pb::NodeDown { body: Some(body) }).await
    }

    /// Sends what the daemon should have and has not been sent: the policy first, then its grants.
    async fn follow(&mut self) -> Result<(), Ended> {
        let documents = self.inner.published.snapshot();
        if let Some(policy) = documents.nodes.get(&self.id) {
            let now = self.inner.clock.mono();
            if self.policy_due(policy, now) {
                self.send(node_down::Body::PolicyEnvelope(policy.envelope().clone()))
                    .await?;
                self.policy = Some((policy.epoch.0, policy.revision.0, now));
            }
        }
        // Before the first plan there is none: an empty set would take away what the node holds.
        let Some(grants) = documents.grants.get(&self.id).cloned() else {
            return Ok(());
        };
        let now = self.inner.clock.mono();
        if self.grants_due(&grants, now) {
            self.send(node_down::Body::Grants(pb::GrantSet {
                grant_envelopes: grants.grants.values().map(|g| g.envelope.clone()).collect(),
            }))
            .await?;
            self.remember(&grants);
            self.grants = Some((grants, now));
        }
        Ok(())
    }

    /// Keeps what was sent, to know it in a report.
    fn remember(&mut self, grants: &Arc<GrantSet>) {
        let digest = grants.digest();
        self.sent.retain(|(known, _)| *known != digest);
        self.sent.push_back((digest, Arc::clone(grants)));
        if self.sent.len() > SENT_KEPT_MAX {
            self.sent.pop_front();
        }
    }

    /// The grants of a digest, where they were sent lately.
    fn known(&self, digest: [u8; 32]) -> Option<Arc<GrantSet>> {
        let known = self.sent.iter().find(|(of, _)| *of == digest);
        known.map(|(_, grants)| Arc::clone(grants))
    }

    /// Whether the grants are to be sent: they are new, or the node says that it keeps others, since
    /// its disk was full say (R-POL-09).
    fn grants_due(&self, grants: &GrantSet, now: MonoTime) -> bool {
        match &self.grants {
            Some((sent, at)) if sent.grants == grants.grants => {
                self.grants_missed(sent) && now.since(*at) >= AGAIN_AFTER
            }
            Some(_) | None => true,
        }
    }

    fn grants_missed(&self, sent: &GrantSet) -> bool {
        self.held_grants.is_some_and(|held| held != sent.digest())
    }

    fn policy_due(&self, policy: &Verified<NodePolicy>, now: MonoTime) -> bool {
        let point = (policy.epoch.0, policy.revision.0);
        if self.held == Some(point) {
            return false;
        }
        match self.policy {
            Some((epoch, revision, at)) if (epoch, revision) == point => now.since(at) >= AGAIN_AFTER,
            Some(_) | None => true,
        }
    }

    /// How long until what was sent, and the node does not say it holds, is sent again.
    fn again_wait(&self) -> Duration {
        let policy = self
            .policy
            .filter(|(epoch, revision, _)| self.held != Some((*epoch, *revision)))
            .map(|(_, _, at)| at);
        let grants = self
            .grants
            .as_ref()
            .filter(|(sent, _)| self.grants_missed(sent))
            .map(|(_, at)| *at);
        match policy.into_iter().chain(grants).min() {
            Some(at) => {
                let since = self.inner.clock.mono().since(at);
                AGAIN_AFTER.saturating_sub(since).max(AGAIN_LOOK_MIN)
            }
            None => SILENCE_MAX,
        }
    }

    fn hear(&mut self, status: pb::NodeStatus) -> Result<(), Ended> {
        let mut report = report(status);
        self.held = report.policy;
        self.held_grants = report.grants;
        report.kept = report.grants.and_then(|digest| self.known(digest));
        let mut members = self.inner.observed.lock();
        let observed = members.node_in(self.id, self.session).ok_or(Ended::Replaced)?;
        if report.kept.is_none() {
            // Of a set that was sent long ago, or by the session before.
            let before = observed.status.take();
            report.kept = before
                .filter(|before| before.grants == report.grants)
                .and_then(|before| before.kept);
        }
        observed.status = Some(report);
        drop(members);
        self.inner.wake.notify_one();
        Ok(())
    }
}

/// Waits until nobody waits for the path's report any more.
async fn given_up(checking: Option<&mut CheckAsked>) {
    match checking {
        Some(asked) => asked.answer.closed().await,
        None => std::future::pending().await,
    }
}

/// Notes in the store that the node's daemon said goodbye.
async fn record_stop(inner: &Inner, id: NodeId) -> Result<(), CommitError> {
    let now = inner.clock.wall();
    let turn = inner.ledger.turn().await?;
    let Some(before) = turn.state().node(id) else {
        return Ok(());
    };
    let after = NodeRecord {
        stopped_at: Some(At::from(now)),
        ..before.clone()
    };
    let mut change = Change::default();
    change.put(key::node(id), &after);
    turn.commit(change).await
}

/// Notes in the store that the node has had a session since it enrolled, and since it said goodbye.
async fn record_connected(inner: &Inner, id: NodeId, caller: Caller) -> Result<(), CommitError> {
    let turn = inner.ledger.turn().await?;
    let Some(before) = turn.state().node(id) else {
        return Ok(());
    };
    let enrolled = before
        .enrolled
        .clone()
        .filter(|e| !e.connected && caller.has_key_of(e));
    if enrolled.is_none() && before.stopped_at.is_none() {
        return Ok(());
    }
    let after = NodeRecord {
        enrolled: enrolled
            .map(EnrolledRecord::connected)
            .or_else(|| before.enrolled.clone()),
        stopped_at: None,
        ..before.clone()
    };
    let mut change = Change::default();
    change.put(key::node(id), &after);
    turn.commit(change).await
}

/// Reads a report; parts without an id of ours, and parts above the bounds, are left out.
fn report(status: pb::NodeStatus) -> NodeReport {
    NodeReport {
        policy: (status.policy_epoch > 0).then_some((status.policy_epoch, status.policy_revision)),
        leader_term: status.leader_term,
        policy_refused: text(status.policy_refused),
        grants: status.grants_digest.as_ref().try_into().ok(),
        kept: None,
        relays: status
            .relays
            .into_iter()
            .take(RELAYS_MAX)
            .filter_map(|reach| Some((RelayId::from_slice(&reach.relay_id)?, self::reach(reach))))
            .collect(),
        listeners: status
            .listeners
            .into_iter()
            .take(LINKS_PER_NODE_MAX)
            .filter_map(|listener| {
                Some((
                    RouteId::from_slice(&listener.route_id)?,
                    Listener {
                        listening: listener.listening,
                        error: text(listener.error),
                        last_refusal: listener.last_refusal.map(|refusal| LastRefusal {
                            code: refusal.code,
                            at: WallTime(refusal.at_ms),
                            count: refusal.count,
                        }),
                    },
                ))
            })
            .collect(),
        live_streams: status.live_streams,
        memory_bytes: status.memory_bytes,
        metrics: text(status.metrics),
    }
}

fn reach(reach: pb::RelayReach) -> Reach {
    Reach {
        connected: reach.connected,
        rtt_us: (reach.rtt_us > 0).then_some(reach.rtt_us),
        error: text(reach.error),
        registered: reach
            .registered_endpoint_ids
            .iter()
            .take(LINKS_PER_NODE_MAX)
            .filter_map(|id| EndpointId::from_slice(id))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Control, ControlSettings};
    use fairlead_host::SystemClock;

    /// R-ENR-10: what a session says after its successor has begun may be of a dead process, and is not shown.
    #[tokio::test]
    async fn a_replaced_session_reports_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let settings = ControlSettings::new(dir.path().to_owned(), "127.0.0.1:8443".parse().unwrap());
        let control = Control::open(settings, Arc::new(SystemClock::new()))
            .await
            .unwrap();
        let (inner, id) = (Arc::clone(&control.0), NodeId::from_bytes([1; 16]));
        let open = |version: &str| {
            let cancel = tokio_util::sync::CancellationToken::new();
            let (session, _checks) =
                inner
                    .observed
                    .open_node(id, version.to_owned(), None, cancel, MonoTime(0));
            task(&inner, id, session.number)
        };
        let (mut first, mut second) = (open("1"), open("2"));
        let status = |live_streams| pb::NodeStatus {
            live_streams,
            ..pb::NodeStatus::default()
        };
        let shown = || {
            inner.observed.lock().nodes[&id]
                .status
                .as_ref()
                .map(|s| s.live_streams)
        };
        assert_eq!(first.hear(status(1)), Err(Ended::Replaced));
        assert_eq!(shown(), None);
        assert_eq!(second.hear(status(2)), Ok(()));
        assert_eq!(first.hear(status(3)), Err(Ended::Replaced));
        assert_eq!(shown(), Some(2));
    }

    fn task(inner: &Arc<Inner>, id: NodeId, session: u64) -> Task {
        Task {
            inner: Arc::clone(inner),
            id,
            session,
            down: mpsc::channel(4).0,
            policy: None,
            grants: None,
            sent: VecDeque::new(),
            held: None,
            held_grants: None,
            checking: None,
        }
    }

    /// Between a restart and its first plan nothing is sent: an empty set of grants would take away
    /// those that the node holds.
    #[tokio::test]
    async fn nothing_is_sent_before_the_first_plan() {
        let dir = tempfile::tempdir().unwrap();
        let settings = ControlSettings::new(dir.path().to_owned(), "127.0.0.1:8443".parse().unwrap());
        let control = Control::open(settings, Arc::new(SystemClock::new()))
            .await
            .unwrap();
        let (down, mut sent) = mpsc::channel(4);
        let mut task = Task {
            down,
            ..task(&control.0, NodeId::from_bytes([1; 16]), 0)
        };
        task.follow().await.unwrap();
        assert!(sent.try_recv().is_err());
    }
}

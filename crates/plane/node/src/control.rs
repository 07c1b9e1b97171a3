//! The session with the control plane: policy, grants and trust come down, observations go up.
//!
//! Nothing of the data plane waits for it. It comes back by itself for as long as the daemon runs.

use crate::backoff::Backoff;
use crate::check::PathChecker;
use crate::identity::{IdentityKeeper, TrustError};
use crate::listen::ListenerTable;
use crate::live::LiveStreams;
use crate::metrics::NodeMetrics;
use crate::relays::Relays;
use crate::view::{Refused, ViewKeeper};
use bytes::Bytes;
use fairlead_host::member::SessionTeller;
use fairlead_host::{Clock, rng};
use fairlead_model::{HostPort, Identity, ProcessBootId, WallTime};
use fairlead_rpc::channel::ConnectError;
use fairlead_rpc::pb;
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_telemetry::{RateLimitedLog, chain};
use fairlead_transport::{MemberTls, TlsError, tls};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;

/// First wait before the next attempt, and the longest: a control plane that comes back finds its
/// nodes again within seconds, and a thousand of them do not come in one instant.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Wait of a copy that is kept out while the other one lives (R-ENR-10).
const RETRY_OF_COPY: Duration = Duration::from_secs(30);
/// A session that lived this long clears the back-off.
const GOOD_SESSION: Duration = Duration::from_secs(10);
/// How often a status goes up when nothing changes (R-PLC-01).
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// Changes within this time go up as one status.
const STATUS_GATHER: Duration = Duration::from_millis(50);
/// How long a goodbye may take: a control plane that does not answer holds up no stop.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How long a message may wait for a control plane that does not read.
const SEND_MAX: Duration = Duration::from_secs(10);
/// Messages on their way up: a hello and the statuses behind it.
const OUTBOX_MAX: usize = 4;
/// Greatest message down: a node policy of 1 MiB, or 4,096 grants of at most 4 KiB.
const MESSAGE_LEN_MAX: usize = 20 * 1024 * 1024;
/// Skew between the clocks of two hosts that is tolerated (R-POL-05).
const SKEW_MAX: Duration = Duration::from_secs(60);
/// How often a lasting failure is logged again.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// How often documents that could not be kept are tried again.
const SAVE_AGAIN: Duration = Duration::from_secs(5);
/// How often the certificate's age is looked at.
const RENEW_CHECK_EVERY: Duration = Duration::from_secs(60);

/// Everything the session reads and feeds.
#[derive(Debug)]
pub(crate) struct ControlSession {
    pub(crate) address: HostPort,
    pub(crate) server_name: String,
    pub(crate) version: &'static str,
    /// This process, as the control plane is told (R-ENR-10).
    pub(crate) process: pb::Process,
    pub(crate) checker: Arc<PathChecker>,
    pub(crate) tls: Arc<MemberTls>,
    pub(crate) identity: Arc<IdentityKeeper>,
    pub(crate) keeper: Arc<Mutex<ViewKeeper>>,
    pub(crate) relays: Relays,
    pub(crate) listeners: ListenerTable,
    pub(crate) live: LiveStreams,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) metrics_url: String,
    /// Tells on this host how the session stands.
    pub(crate) teller: SessionTeller,
    /// Woken when something that goes up has changed.
    pub(crate) changed: Arc<Notify>,
    /// Why the last policy was refused; empty if it was not.
    pub(crate) policy_refused: Mutex<String>,
}

/// Why a session ended or never began.
#[derive(Debug, thiserror::Error)]
enum ControlEnd {
    #[error("TLS cannot be set up")]
    Tls(#[source] TlsError),
    #[error("the control plane cannot be reached")]
    Connect(#[source] ConnectError),
    #[error("the control plane ended the session: {}", .0.message())]
    Status(tonic::Status),
    #[error("the control plane ended the session")]
    Ended,
    #[error("the control plane does not read")]
    Blocked,
    #[error("this daemon stops")]
    Stopping,
}

impl ControlEnd {
    /// Whether the control plane keeps this process out because another one uses its identity.
    fn is_copy(&self) -> bool {
        match self {
            Self::Status(status) => status.code() == tonic::Code::AlreadyExists,
            Self::Tls(_) | Self::Connect(_) | Self::Ended | Self::Blocked | Self::Stopping => false,
        }
    }
}

/// This process, as the control plane is told.
pub(crate) fn this_process(boot: ProcessBootId) -> pb::Process {
    let mut parts = fairlead_host::host_parts();
    pb::Process {
        boot_id: id_bytes(boot.to_bytes()),
        host_name: fairlead_host::host_name(),
        machine: parts.remove("machine").unwrap_or_default(),
        product: parts.remove("product").unwrap_or_default(),
    }
}

/// Keeps the session until `cancel`; then it says goodbye.
pub(crate) async fn keep(session: Arc<ControlSession>, cancel: CancellationToken) {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
    let log = RateLimitedLog::new(LOG_EVERY);
    loop {
        let mut established = false;
        let began = session.clock.mono();
        let overdue = async {
            cancel.cancelled().await;
            tokio::time::sleep(GOODBYE_MAX).await;
        };
        let end = tokio::select! {
            end = session.run(&mut established, &cancel) => end,
            () = overdue => return,
        };
        session.metrics.control_connected.set(0);
        if cancel.is_cancelled() {
            return;
        }
        session.teller.tell(Some(chain(&end))).await;
        if established {
            // Two copies of one identity that took turns at full speed would be no back-off.
            if session.clock.mono().since(began) >= GOOD_SESSION {
                backoff.reset();
            }
            tracing::info!(reason = chain(&end), "control session ended");
        } else if let Some(suppressed) = log.allow(std::time::Instant::now()) {
            tracing::warn!(
                reason = chain(&end),
                suppressed,
                "no session with the control plane; trying again"
            );
        }
        let wait = if end.is_copy() {
            RETRY_OF_COPY / 2 + rng::jitter(RETRY_OF_COPY / 2)
        } else {
            backoff.next(rng::jitter)
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = cancel.cancelled() => return,
        }
    }
}

impl ControlSession {
    async fn run(&self, established: &mut bool, cancel: &CancellationToken) -> ControlEnd {
        match self.converse(established, cancel).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn converse(
        &self,
        established: &mut bool,
        cancel: &CancellationToken,
    ) -> Result<ControlEnd, ControlEnd> {
        let config = tls::grpc_client_config(&self.tls, Identity::Control).map_err(ControlEnd::Tls)?;
        let channel = tokio::select! {
            channel = fairlead_rpc::channel::connect(&self.address, config, &self.server_name) => {
                channel.map_err(ControlEnd::Connect)?
            }
            () = cancel.cancelled() => return Ok(ControlEnd::Stopping),
        };
        let mut client = MemberControlClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LEN_MAX);
        let (up, outbox) = mpsc::channel(OUTBOX_MAX);
        send(&up, pb::node_up::Body::Hello(self.hello())).await?;
        let mut down = client
            .node_session(ReceiverStream::new(outbox))
            .await
            .map_err(ControlEnd::Status)?
            .into_inner();
        match self.talk(&channel, up, &mut down, established, cancel).await {
            Err(ControlEnd::Ended) => {
                let said = fairlead_rpc::channel::reason(&mut down).await;
                Err(said.map_or(ControlEnd::Ended, ControlEnd::Status))
            }
            end => end,
        }
    }

    async fn talk(
        &self,
        channel: &Channel,
        up: mpsc::Sender<pb::NodeUp>,
        down: &mut Streaming<pb::NodeDown>,
        established: &mut bool,
        cancel: &CancellationToken,
    ) -> Result<ControlEnd, ControlEnd> {
        send(&up, pb::node_up::Body::Status(self.status())).await?;
        let mut reported = Instant::now();
        let mut checks: JoinSet<pb::PathReport> = JoinSet::new();
        let mut renew = tokio::time::interval(RENEW_CHECK_EVERY);
        renew.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut save = tokio::time::interval(SAVE_AGAIN);
        save.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => {
                    send(&up, pb::node_up::Body::Goodbye(pb::Goodbye {})).await?;
                    drop(up);
                    // It has been heard when the control plane ends the session.
                    while let Ok(Some(_)) = down.message().await {}
                    return Ok(ControlEnd::Stopping);
                }
                message = down.message() => match message {
                    Ok(Some(pb::NodeDown { body: Some(pb::node_down::Body::PathCheck(check)) })) => {
                        // One at a time; the control plane sends no second one before the report.
                        if checks.is_empty() {
                            checks.spawn(self.checker.clone().run(check));
                        }
                    }
                    Ok(Some(pb::NodeDown { body: Some(body) })) => {
                        if !std::mem::replace(established, true) {
                            self.metrics.control_connected.set(1);
                            self.teller.tell(None).await;
                            tracing::info!(control = %self.address, "control session established");
                        }
                        self.take(body).await;
                    }
                    // A message of a later version.
                    Ok(Some(pb::NodeDown { body: None })) => {}
                    Ok(None) => return Ok(ControlEnd::Ended),
                    Err(status) => return Ok(ControlEnd::Status(status)),
                },
                () = status_due(&self.changed, reported) => {
                    send(&up, pb::node_up::Body::Status(self.status())).await?;
                    reported = Instant::now();
                }
                Some(checked) = checks.join_next() => if let Ok(report) = checked {
                    send(&up, pb::node_up::Body::PathReport(report)).await?;
                },
                _ = renew.tick() => self.renew(channel).await,
                _ = save.tick() => self.save_unkept().await,
            }
        }
    }

    /// Writes what could not be written, if there is such.
    async fn save_unkept(&self) {
        let has_unkept = self
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .has_unkept();
        if !has_unkept {
            return;
        }
        match self.offer(ViewKeeper::save_unkept).await {
            Ok(_) => {
                tracing::info!(
                    revision = self.metrics.policy_revision.get(),
                    "the folder can be written again; what it could not keep is in force"
                );
                self.policy_refused
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clear();
                self.changed.notify_one();
            }
            Err(error) => tracing::debug!(error = chain(&error), "the folder cannot be written yet"),
        }
    }

    async fn take(&self, body: pb::node_down::Body) {
        use pb::node_down::Body;
        match body {
            Body::Welcome(welcome) => {
                self.check_clock(WallTime(welcome.wall_clock_ms));
            }
            Body::PolicyEnvelope(envelope) => {
                let result = self.offer(move |keeper| keeper.offer_policy(envelope)).await;
                let refused = match result {
                    Ok(new) => {
                        if new {
                            tracing::info!(
                                revision = self.metrics.policy_revision.get(),
                                "node policy in force"
                            );
                        }
                        String::new()
                    }
                    Err(error @ Refused::State(_)) => {
                        tracing::warn!(
                            error = chain(&error),
                            "node policy not kept: what it takes away is in force, the rest waits"
                        );
                        chain(&error)
                    }
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "node policy refused");
                        chain(&error)
                    }
                };
                *self.policy_refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
            }
            Body::Grants(set) => {
                let envelopes: Vec<Bytes> = set.grant_envelopes;
                match self.offer(move |keeper| keeper.offer_grants(envelopes)).await {
                    Ok(true) => tracing::info!(held = self.metrics.grants.get(), "grants in force"),
                    Ok(false) => {}
                    Err(error) => tracing::warn!(error = chain(&error), "grants refused"),
                }
            }
            // The session's loop keeps the check's task.
            Body::PathCheck(_) => {}
            Body::TrustBundle(bundle) => match self.trust(bundle).await {
                Ok(true) => tracing::info!("trust bundle in force"),
                Ok(false) => {}
                Err(error) => tracing::warn!(error = chain(&error), "trust bundle refused"),
            },
        }
        self.changed.notify_one();
    }

    /// Lets the keeper verify and persist on a thread that may block.
    async fn offer(
        &self,
        offer: impl FnOnce(&mut ViewKeeper) -> Result<bool, Refused> + Send + 'static,
    ) -> Result<bool, Refused> {
        let (keeper, metrics) = (self.keeper.clone(), self.metrics.clone());
        let work = move || {
            let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
            let result = offer(&mut keeper);
            let view = keeper.subscribe().borrow().clone();
            if let Some(policy) = view.policy() {
                metrics
                    .policy_revision
                    .set(i64::try_from(policy.revision.0).unwrap_or(i64::MAX));
            }
            metrics
                .grants
                .set(i64::try_from(view.grant_count()).unwrap_or(i64::MAX));
            result
        };
        // The work does not panic; if the runtime is going down, nothing was offered.
        tokio::task::spawn_blocking(work).await.unwrap_or(Ok(false))
    }

    async fn trust(&self, bundle: pb::TrustBundle) -> Result<bool, TrustError> {
        let (identity, keeper) = (self.identity.clone(), self.keeper.clone());
        let work = move || {
            let Some(keys) = identity.take_bundle(bundle)? else {
                return Ok(false);
            };
            keeper
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .set_keys(keys);
            Ok(true)
        };
        tokio::task::spawn_blocking(work).await.unwrap_or(Ok(false))
    }

    async fn renew(&self, channel: &Channel) {
        if !self.identity.renewal_due(self.clock.wall()) {
            return;
        }
        match self.identity.renew(channel.clone()).await {
            Ok(()) => tracing::info!(not_after_ms = self.tls.not_after().0, "certificate renewed"),
            Err(error) => tracing::warn!(error = chain(&error), "certificate not renewed; trying again"),
        }
    }

    fn check_clock(&self, control: WallTime) {
        let own = self.clock.wall();
        let skew = own.since(control).max(control.since(own));
        if skew > SKEW_MAX {
            let skew_s = skew.as_secs();
            tracing::warn!(skew_s, "clock differs by {skew_s} s from the control plane's");
        }
    }

    fn hello(&self) -> pb::NodeHello {
        let (epoch, revision) = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).head();
        pb::NodeHello {
            version: self.version.to_owned(),
            capabilities: Vec::new(),
            wall_clock_ms: self.clock.wall().0,
            policy_epoch: epoch.0,
            policy_revision: revision.0,
            trust_bundle_version: self.identity.bundle_version(),
            process: Some(self.process.clone()),
        }
    }

    fn status(&self) -> pb::NodeStatus {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let ((epoch, revision), grants_digest) = (keeper.head(), keeper.grants_digest());
        let leader_term = keeper.leader_term();
        drop(keeper);
        let relays = self
            .relays
            .reach()
            .into_iter()
            .map(|(relay, reach)| pb::RelayReach {
                relay_id: id_bytes(relay.to_bytes()),
                connected: reach.connected,
                rtt_us: reach
                    .rtt
                    .map_or(0, |rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).max(1)),
                error: reach.error,
                registered_endpoint_ids: reach.registered.iter().map(|e| id_bytes(e.to_bytes())).collect(),
            });
        pb::NodeStatus {
            policy_epoch: epoch.0,
            policy_revision: revision.0,
            policy_refused: self
                .policy_refused
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            relays: relays.collect(),
            listeners: listener_states(&self.listeners),
            live_streams: self.live.len() as u64,
            memory_bytes: fairlead_host::resources().rss_bytes,
            metrics: self.metrics_url.clone(),
            grants_digest: Bytes::copy_from_slice(&grants_digest),
            leader_term: leader_term.0,
        }
    }
}

/// The listeners, as the control plane is told.
pub(crate) fn listener_states(listeners: &ListenerTable) -> Vec<pb::ListenerState> {
    let states = listeners.states().into_iter();
    states
        .map(|(route, state)| pb::ListenerState {
            route_id: id_bytes(route.to_bytes()),
            listening: state.bound.is_ok(),
            error: state.bound.err().unwrap_or_default(),
            last_refusal: state.last_refusal.map(|refusal| pb::LastRefusal {
                code: u32::from(refusal.code.number()),
                at_ms: refusal.at.0,
                count: refusal.count,
            }),
        })
        .collect()
}

/// Waits until a status is due after the last one. Cancel safe: a change that was noticed is noticed
/// again, and what comes up meanwhile puts nothing off.
async fn status_due(changed: &Notify, reported: Instant) {
    if tokio::time::timeout_at(reported + STATUS_EVERY, changed.notified())
        .await
        .is_ok()
    {
        let mut noticed = Noticed(Some(changed));
        tokio::time::sleep(STATUS_GATHER).await;
        noticed.0 = None;
    }
}

/// A change that was noticed and is not reported yet.
struct Noticed<'a>(Option<&'a Notify>);

impl Drop for Noticed<'_> {
    fn drop(&mut self) {
        if let Some(changed) = self.0 {
            changed.notify_one();
        }
    }
}

fn id_bytes(id: [u8; 16]) -> Bytes {
    Bytes::copy_from_slice(&id)
}

async fn send(up: &mpsc::Sender<pb::NodeUp>, body: pb::node_up::Body) -> Result<(), ControlEnd> {
    match tokio::time::timeout(SEND_MAX, up.send(pb::NodeUp { body: Some(body) })).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(ControlEnd::Ended),
        Err(_) => Err(ControlEnd::Blocked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change is reported at once even where something else came up while changes were gathered:
    /// a node that has just taken its policy says so, not 10 s later.
    #[tokio::test(start_paused = true)]
    async fn a_change_that_was_noticed_is_not_lost() {
        let changed = Notify::new();
        changed.notify_one();
        let reported = Instant::now();
        let interrupted = tokio::time::timeout(STATUS_GATHER / 2, status_due(&changed, reported)).await;
        assert!(interrupted.is_err());
        let began = Instant::now();
        status_due(&changed, reported).await;
        assert_eq!(began.elapsed(), STATUS_GATHER);
        // Reported once.
        let reported = Instant::now();
        status_due(&changed, reported).await;
        assert_eq!(reported.elapsed(), STATUS_EVERY);
    }

    /// R-PLC-01: a status goes up in time although something else comes up more often. A look every
    /// 5 s at what is unwritten once put it off for ever, and the control plane ended each session.
    #[tokio::test(start_paused = true)]
    async fn nothing_puts_a_status_off() {
        let changed = Notify::new();
        let reported = Instant::now();
        let mut other = tokio::time::interval(SAVE_AGAIN);
        loop {
            tokio::select! {
                () = status_due(&changed, reported) => break,
                _ = other.tick() => assert!(reported.elapsed() < 2 * STATUS_EVERY),
            }
        }
        assert_eq!(reported.elapsed(), STATUS_EVERY);
    }
}

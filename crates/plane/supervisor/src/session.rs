//! The session with the control plane: wanted state flows down, observed state flows up. It is
//! held for ever: whatever ends it, the next one begins after a pause with jitter.

use crate::identity::{self, RENEW_JITTER};
use crate::shared::{Observed, Shared};
use bytes::Bytes;
use fairlead_model::{Identity, WallTime};
use fairlead_rpc::channel::ConnectError;
use fairlead_rpc::pb;
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_rpc::pb::relay_down::Body as Down;
use fairlead_rpc::pb::relay_up::Body as Up;
use fairlead_telemetry::chain;
use fairlead_transport::tls::grpc_client_config;
use fairlead_transport::{Dialler, TlsError};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;

/// First pause before the next session.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// Longest pause: a control plane that is back is found within it, and new routes must flow
/// within 5 s of that.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Pause of a copy that is kept out while the other one lives (R-ENR-10).
const PAUSE_OF_COPY: Duration = Duration::from_secs(30);
/// A session that lived this long clears the back-off.
const GOOD_SESSION: Duration = Duration::from_secs(10);
/// Status is sent at least this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// Changes of status within this time are sent as one.
const STATUS_PAUSE: Duration = Duration::from_millis(50);
/// Messages up that wait for the connection: a status, a report and a hello, with room.
const UP_QUEUE_LEN: usize = 16;
/// Probes at once; more are refused in their reports.
const PROBES_MAX: usize = 4;
/// How long a goodbye may take: a control plane that does not answer holds up no stop.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// Skew between the clocks of two hosts that is tolerated (R-POL-05).
const SKEW_MAX: Duration = Duration::from_secs(60);
/// A failed renewal is tried again after this long.
const RENEW_RETRY: Duration = Duration::from_secs(600);
/// What this version can do, by name.
const CAPABILITIES: &[&str] = &["policy_lease_v1"];

/// Why a session ended or did not begin.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the control plane refused the session: {}", .0.message())]
    Refused(tonic::Status),
    #[error("the session ended: {}", .0.message())]
    Ended(tonic::Status),
    #[error("the control plane closed the session")]
    Closed,
    #[error("the control plane does not take messages")]
    Stalled,
    #[error("this supervisor stops")]
    Stopping,
}

impl SessionError {
    /// Whether the control plane keeps this process out because another one uses its identity.
    fn is_copy(&self) -> bool {
        match self {
            Self::Refused(status) | Self::Ended(status) => status.code() == tonic::Code::AlreadyExists,
            Self::Connect(_) | Self::Tls(_) | Self::Closed | Self::Stalled | Self::Stopping => false,
        }
    }
}

/// Holds a session until `cancel`; then it says goodbye.
pub(crate) async fn hold(shared: Arc<Shared>, dialler: Arc<Dialler>, cancel: CancellationToken) {
    let mut pause = PAUSE_FIRST;
    let mut told = String::new();
    loop {
        let began = shared.clock.mono();
        let overdue = async {
            cancel.cancelled().await;
            tokio::time::sleep(GOODBYE_MAX).await;
        };
        let result = tokio::select! {
            result = session(&shared, &dialler, &cancel) => result,
            () = overdue => return,
        };
        shared.set_connected(false);
        if cancel.is_cancelled() {
            return;
        }
        if shared.clock.mono().since(began) >= GOOD_SESSION {
            pause = PAUSE_FIRST;
            told.clear();
        }
        let Err(error) = result;
        let text = chain(&error);
        shared.teller.tell(Some(text.clone())).await;
        // The same reason again is no news.
        if text == told {
            tracing::debug!(reason = %text, "no session with the control plane");
        } else {
            tracing::warn!(reason = %text, "no session with the control plane: trying again");
            told = text;
        }
        let step = if error.is_copy() { PAUSE_OF_COPY } else { pause };
        let wait = step / 2 + fairlead_host::rng::jitter(step / 2);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = cancel.cancelled() => return,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn session(
    shared: &Arc<Shared>,
    dialler: &Arc<Dialler>,
    cancel: &CancellationToken,
) -> Result<Infallible, SessionError> {
    let tls = grpc_client_config(&shared.tls, Identity::Control)?;
    let connect =
        fairlead_rpc::channel::connect(&shared.member.control, tls, &shared.member.grpc_server_name);
    let channel = tokio::select! {
        channel = connect => channel?,
        () = cancel.cancelled() => return Err(SessionError::Stopping),
    };
    let mut client = MemberControlClient::new(channel.clone());
    let (up, messages) = mpsc::channel(UP_QUEUE_LEN);
    let mut observed = shared.watch_observed();
    let first = observed.borrow_and_update().clone();
    send(&up, Up::Hello(hello(shared, &first))).await?;
    send(&up, Up::Status(status(&first))).await?;
    let mut down = client
        .relay_session(ReceiverStream::new(messages))
        .await
        .map_err(SessionError::Refused)?
        .into_inner();
    match talk(shared, dialler, &channel, up, observed, &mut down, cancel).await {
        Err(SessionError::Closed) => {
            let said = fairlead_rpc::channel::reason(&mut down).await;
            Err(said.map_or(SessionError::Closed, SessionError::Ended))
        }
        end => end,
    }
}

async fn talk(
    shared: &Arc<Shared>,
    dialler: &Arc<Dialler>,
    channel: &Channel,
    up: mpsc::Sender<pb::RelayUp>,
    mut observed: watch::Receiver<Observed>,
    down: &mut Streaming<pb::RelayDown>,
    cancel: &CancellationToken,
) -> Result<Infallible, SessionError> {
    let mut probes: JoinSet<pb::ProbeReport> = JoinSet::new();
    let mut renewals: JoinSet<Result<(), identity::IdentityError>> = JoinSet::new();
    let jitter = fairlead_host::rng::jitter(RENEW_JITTER);
    let mut renewal = Box::pin(tokio::time::sleep(renewal_in(shared, jitter)));
    let mut tick = tokio::time::interval(STATUS_INTERVAL);
    loop {
        tokio::select! {
            () = cancel.cancelled() => {
                send(&up, Up::Goodbye(pb::Goodbye {})).await?;
                drop(up);
                // It has been heard when the control plane ends the session.
                while let Ok(Some(_)) = down.message().await {}
                return Err(SessionError::Stopping);
            }
            message = down.message() => match message {
                Ok(Some(message)) => {
                    take(shared, dialler, message, &mut probes);
                    shared.teller.tell(None).await;
                }
                Ok(None) => return Err(SessionError::Closed),
                Err(status) => return Err(SessionError::Ended(status)),
            },
            changed = observed.changed() => {
                if changed.is_err() {
                    return Err(SessionError::Closed);
                }
                // A short pause lets changes that belong together travel together.
                tokio::time::sleep(STATUS_PAUSE).await;
                let now = observed.borrow_and_update().clone();
                send(&up, Up::Status(status(&now))).await?;
            }
            _ = tick.tick() => send(&up, Up::Status(status(&shared.observed()))).await?,
            Some(report) = probes.join_next() => {
                if let Ok(report) = report {
                    send(&up, Up::ProbeReport(report)).await?;
                }
            }
            () = &mut renewal, if renewals.is_empty() => {
                renewals.spawn(renew(shared.clone(), channel.clone()));
            }
            Some(result) = renewals.join_next() => {
                let wait = match result {
                    Ok(Ok(())) => {
                        tracing::info!("certificate renewed");
                        // Never at once: a control plane that issues short certificates is not
                        // asked in a loop.
                        renewal_in(shared, jitter).max(RENEW_RETRY)
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(error = %chain(&error), "the certificate could not be renewed");
                        RENEW_RETRY
                    }
                    Err(error) => {
                        tracing::error!(%error, "the renewal ended abnormally");
                        RENEW_RETRY
                    }
                };
                renewal.as_mut().reset(tokio::time::Instant::now() + wait);
            }
        }
    }
}

fn renewal_in(shared: &Shared, jitter: Duration) -> Duration {
    identity::renewal_due_in(shared.tls.not_after(), shared.clock.wall(), jitter)
}

async fn renew(shared: Arc<Shared>, channel: Channel) -> Result<(), identity::IdentityError> {
    identity::renew(&shared, MemberControlClient::new(channel)).await
}

/// Queues a message; a queue that stays full means a control plane that reads nothing.
async fn send(up: &mpsc::Sender<pb::RelayUp>, body: Up) -> Result<(), SessionError> {
    let message = pb::RelayUp { body: Some(body) };
    match tokio::time::timeout(STATUS_INTERVAL, up.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(SessionError::Closed),
        Err(_) => Err(SessionError::Stalled),
    }
}

fn hello(shared: &Shared, observed: &Observed) -> pb::RelayHello {
    pb::RelayHello {
        version: shared.version.to_owned(),
        capabilities: CAPABILITIES.iter().map(|c| (*c).to_owned()).collect(),
        wall_clock_ms: shared.clock.wall().0,
        applied: observed.status.as_ref().and_then(|s| s.applied.clone()),
        trust_bundle_version: shared.bundle_version(),
        process: Some(shared.process.clone()),
    }
}

fn status(observed: &Observed) -> pb::RelayStatus {
    let worker = observed.status.clone().unwrap_or_default();
    let refused = if observed.refused.is_empty() {
        worker.policy_refused
    } else {
        observed.refused.clone()
    };
    pb::RelayStatus {
        worker_state: observed.phase.to_wire().into(),
        worker_version: worker.version,
        worker_pid: observed.pid.unwrap_or(0),
        worker_restarts: observed.restarts,
        worker_last_exit: observed.last_exit.clone(),
        applied: worker.applied,
        policy_refused: refused,
        live_tunnels: worker.live_tunnels,
        hop_sessions: worker.hop_sessions,
        memory_bytes: worker.memory_bytes,
        open_descriptors: worker.open_descriptors,
        bytes_relayed: worker.bytes_relayed,
        worker_metrics: worker.metrics,
        cloned_nodes: worker.cloned_nodes,
        clock_behind_ms: worker.clock_behind_ms,
    }
}

fn take(
    shared: &Arc<Shared>,
    dialler: &Arc<Dialler>,
    message: pb::RelayDown,
    probes: &mut JoinSet<pb::ProbeReport>,
) {
    match message.body {
        Some(Down::Welcome(welcome)) => {
            shared.set_connected(true);
            tracing::info!(name = %welcome.name, address = %welcome.advertised_address, "session with the control plane");
            if let Some(fault) = clock_fault(shared.clock.wall(), WallTime(welcome.wall_clock_ms)) {
                tracing::warn!("{fault}");
            }
        }
        Some(Down::Policy(policy)) => shared.want(|wanted| {
            wanted.policy = Some(policy);
            // The policy brings its own lease, newer than any before it.
            wanted.lease = None;
        }),
        Some(Down::LeaseEnvelope(lease)) => shared.want(|wanted| wanted.lease = Some(lease)),
        Some(Down::TrustBundle(bundle)) => {
            if let Err(error) = identity::take_bundle(shared, bundle) {
                tracing::error!(error = %chain(&error), "a trust bundle was not taken");
            }
        }
        Some(Down::Probe(request)) => start_probe(dialler, request, probes),
        // A newer control plane's message.
        None => tracing::debug!("a message of a kind that this version does not know"),
    }
}

/// Says how far the clocks differ, where it is too far (R-POL-05).
fn clock_fault(own: WallTime, control: WallTime) -> Option<String> {
    let skew = own.since(control).max(control.since(own));
    let skew_s = skew.as_secs();
    (skew > SKEW_MAX).then(|| format!("clock differs by {skew_s} s from the control plane's"))
}

fn failed(request: &pb::ProbeRequest, error: String) -> pb::ProbeReport {
    pb::ProbeReport {
        request_id: request.request_id.clone(),
        relay_id: request.relay_id.clone(),
        reachable: false,
        error,
        rtt_us: 0,
    }
}

/// Tries another relay's port with a real handshake (R-ENR-07, R-RCH-03).
fn start_probe(dialler: &Arc<Dialler>, request: pb::ProbeRequest, probes: &mut JoinSet<pb::ProbeReport>) {
    if probes.len() >= PROBES_MAX {
        // The control plane asks again later; a report of its own would need a queue.
        tracing::warn!("a probe was not run: {PROBES_MAX} run already");
        return;
    }
    let dialler = dialler.clone();
    probes.spawn(async move {
        let probe = match fairlead_rpc::ProbeRequest::try_from(request.clone()) {
            Ok(probe) => probe,
            Err(error) => return failed(&request, chain(&error)),
        };
        match fairlead_transport::probe(&dialler, &probe.address, probe.relay).await {
            Ok(report) => pb::ProbeReport {
                request_id: Bytes::copy_from_slice(&probe.request),
                relay_id: request.relay_id,
                reachable: true,
                error: String::new(),
                rtt_us: u32::try_from(report.rtt.as_micros()).unwrap_or(u32::MAX),
            },
            Err(error) => {
                let error = chain(&error);
                // The control plane asks again within seconds, and shows it with the relay that it is about.
                tracing::debug!(relay = %probe.relay, error, "probe failed");
                failed(&request, error)
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-POL-05: a minute in either direction is tolerated, and no more.
    #[test]
    fn clocks_may_differ_by_a_minute() {
        let control = WallTime(1_800_000_000_000);
        for tolerated in [-60_000, 0, 60_000] {
            assert_eq!(clock_fault(WallTime(control.0 + tolerated), control), None);
        }
        for apart in [-60_001, 60_001] {
            let fault = clock_fault(WallTime(control.0 + apart), control).unwrap();
            assert!(fault.starts_with("clock differs by 60 s"), "{fault}");
        }
    }
}

//! Keeps the worker running and feeds it: adopts or starts its process, hands it policy, leases
//! and identity through its socket, and hears its status.

use crate::WorkerCommand;
use crate::process::Process;
use crate::restart::{Restart, RestartRule};
use crate::shared::{Shared, Wanted, WorkerPhase};
use fairlead_rpc::pb;
use fairlead_rpc::pb::worker_control_client::WorkerControlClient;
use fairlead_telemetry::{RateLimitedLog, chain};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// Pause between tries to reach a starting worker's socket: about its start time (50 ms).
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A started worker that has not answered by then is ended and counts as failed.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Longest wait for one answer of the worker; it persists a policy within milliseconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that is asked to stop closes its tunnels within this time.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// After the grace and a SIGTERM, the worker is killed.
const TERM_GRACE: Duration = Duration::from_secs(3);
/// A live worker that does not answer is adopted by its runtime file after this long.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(2);

/// A clock that goes to and fro fills no log.
static CLOCK_LOG: RateLimitedLog = RateLimitedLog::new(Duration::from_secs(60)).with_burst(4);

type Client = WorkerControlClient<Channel>;

/// The worker's socket in its folder.
fn socket(shared: &Shared) -> PathBuf {
    shared.folder.worker_dir().join("worker.sock")
}

/// Keeps the worker until `cancel`, then stops it.
pub(crate) async fn keep(shared: Arc<Shared>, command: WorkerCommand, cancel: CancellationToken) {
    let mut rule = RestartRule::default();
    let mut started_before = false;
    loop {
        let began = shared.clock.mono();
        let ended = match get_process(&shared, &command, &mut started_before).await {
            Ok(mut process) => {
                let pid = process.pid();
                shared.observe(|o| {
                    o.pid = Some(pid);
                    o.phase = WorkerPhase::Starting;
                });
                tokio::select! {
                    words = run_out(&shared, &mut process) => words,
                    () = cancel.cancelled() => {
                        stop(&shared, &mut process).await;
                        return;
                    }
                }
            }
            Err(error) => format!("could not be started: {error}"),
        };
        let restart = rule.ended(began, shared.clock.mono());
        let next_start_ms = restart.delay().as_millis();
        let phase = match restart {
            Restart::After(_) => {
                tracing::warn!(how = %ended, next_start_ms, "the worker ended");
                WorkerPhase::BackingOff
            }
            Restart::CrashLoop(_) => {
                tracing::error!(how = %ended, next_start_ms, "the worker keeps ending soon after its start");
                WorkerPhase::CrashLoop
            }
        };
        shared.observe(|o| {
            o.phase = phase;
            o.pid = None;
            o.status = None;
            o.last_exit = ended;
        });
        tokio::select! {
            () = tokio::time::sleep(restart.delay()) => {}
            () = cancel.cancelled() => return,
        }
    }
}

/// The live worker of an earlier supervisor, or a new one. The former is looked for each time: it
/// may not have served its socket yet when this supervisor started.
async fn get_process(
    shared: &Shared,
    command: &WorkerCommand,
    started_before: &mut bool,
) -> std::io::Result<Process> {
    if let Some(process) = adopt(shared).await {
        tracing::info!(pid = process.pid(), "adopted the running worker");
        return Ok(process);
    }
    if std::mem::replace(started_before, true) {
        shared.observe(|o| o.restarts = o.restarts.saturating_add(1));
    }
    let process = Process::start(command, shared.member.listen)?;
    tracing::info!(pid = process.pid(), "worker started");
    Ok(process)
}

async fn adopt(shared: &Shared) -> Option<Process> {
    // A socket that takes a connection belongs to a live process, frozen or not.
    let channel = fairlead_rpc::channel::unix(&socket(shared)).await.ok()?;
    let mut client = Client::new(channel);
    let call = client.status(pb::WorkerStatusRequest {});
    let pid = match tokio::time::timeout(ADOPT_TIMEOUT, call).await {
        Ok(Ok(status)) => Some(status.into_inner().pid),
        Ok(Err(_)) => None,
        Err(_) => worker_runtime_pid(shared),
    };
    Process::adopt(pid?)
        .map_err(|error| tracing::warn!(%error, "a running worker could not be adopted"))
        .ok()
}

fn worker_runtime_pid(shared: &Shared) -> Option<u32> {
    fairlead_host::member::read_runtime(&shared.folder.worker_dir().join("runtime.json"))
        .ok()
        .flatten()
        .map(|info| info.pid)
}

/// Feeds the worker until its process has ended; how, in words.
async fn run_out(shared: &Shared, process: &mut Process) -> String {
    let adopted = matches!(process, Process::Adopted { .. });
    let client = tokio::select! {
        words = process.ended() => return words,
        client = connect(shared, adopted) => client,
    };
    if client.is_none() {
        process.kill();
        let words = process.ended().await;
        return format!(
            "did not answer on its socket within {} s, {words}",
            START_DEADLINE.as_secs()
        );
    }
    let mut client = client;
    loop {
        let serve = async {
            let connected = match client.take() {
                Some(connected) => Some(connected),
                // It answered before: a live process is given all the time it needs.
                None => connect(shared, true).await,
            };
            if let Some(connected) = connected {
                feed(shared, connected).await;
            }
            shared.observe(|o| {
                o.phase = WorkerPhase::Unresponsive;
                o.status = None;
            });
            tokio::time::sleep(CONNECT_PAUSE).await;
        };
        tokio::select! {
            words = process.ended() => return words,
            () = serve => {}
        }
    }
}

/// Tries the socket until it answers; `None` at the deadline, unless the worker may take for ever.
async fn connect(shared: &Shared, for_ever: bool) -> Option<Client> {
    let path = socket(shared);
    let tries = async {
        loop {
            match fairlead_rpc::channel::unix(&path).await {
                Ok(channel) => return Client::new(channel),
                Err(_) => tokio::time::sleep(CONNECT_PAUSE).await,
            }
        }
    };
    if for_ever {
        Some(tries.await)
    } else {
        tokio::time::timeout(START_DEADLINE, tries).await.ok()
    }
}

/// Speaks with the worker until the connection ends.
async fn feed(shared: &Shared, mut client: Client) {
    let mut wanted = shared.watch_wanted();
    let statuses = match client.watch(pb::WorkerStatusRequest {}).await {
        Ok(answer) => answer.into_inner(),
        Err(error) => {
            tracing::debug!(%error, "the worker does not answer");
            return;
        }
    };
    tokio::select! {
        () = hear(shared, statuses) => {}
        () = give(shared, &mut client, &mut wanted) => {}
    }
}

async fn hear(shared: &Shared, mut statuses: tonic::Streaming<pb::WorkerStatusResponse>) {
    let mut clock = ClockNews::default();
    loop {
        match statuses.message().await {
            Ok(Some(status)) => {
                clock.hear(status.clock_behind_ms);
                shared.observe(|o| {
                    o.phase = if status.listening.is_empty() {
                        WorkerPhase::Starting
                    } else {
                        WorkerPhase::Listening
                    };
                    // What it refused it may have taken since: it tries again by itself.
                    o.refused.clone_from(&status.policy_refused);
                    o.status = Some(status);
                });
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "the worker's status stream ended");
                return;
            }
        }
    }
}

/// What the worker says of the host's clock, told when it changes (R-POL-05).
#[derive(Debug, Default)]
struct ClockNews {
    is_behind: bool,
}

impl ClockNews {
    fn hear(&mut self, behind_ms: u64) {
        let Some(is_behind) = self.change(behind_ms) else {
            return;
        };
        let Some(suppressed) = CLOCK_LOG.allow(std::time::Instant::now()) else {
            return;
        };
        if is_behind {
            let behind_s = behind_ms / 1000;
            tracing::warn!(
                suppressed,
                "clock differs by {behind_s} s: this host's clock is behind what the control plane has signed; set it right"
            );
        } else {
            tracing::info!(suppressed, "the clock is right again");
        }
    }

    /// Whether it is behind, where that is new.
    fn change(&mut self, behind_ms: u64) -> Option<bool> {
        let is_behind = behind_ms > 0;
        (std::mem::replace(&mut self.is_behind, is_behind) != is_behind).then_some(is_behind)
    }
}

/// Gives the worker what is wanted, at once and on every change.
async fn give(shared: &Shared, client: &mut Client, wanted: &mut watch::Receiver<Wanted>) {
    // A worker reads its identity files itself when it starts; an adopted one may have missed a
    // change, so a change that this supervisor has made is told again.
    let mut given = Wanted::default();
    loop {
        let now = wanted.borrow_and_update().clone();
        if let Err(error) = give_changes(shared, client, &given, &now).await {
            tracing::warn!(error = %chain(&error), "the worker did not take what it was given");
            return;
        }
        given = now;
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Why the worker was not given something.
#[derive(Debug, thiserror::Error)]
enum GiveError {
    #[error("{0} failed")]
    Call(&'static str, #[source] tonic::Status),
    #[error("{call} was not answered within {} s", CALL_TIMEOUT.as_secs())]
    TimedOut { call: &'static str },
}

async fn give_changes(
    shared: &Shared,
    client: &mut Client,
    given: &Wanted,
    now: &Wanted,
) -> Result<(), GiveError> {
    if now.identity != given.identity {
        call(
            "ReloadIdentity",
            client.reload_identity(pb::ReloadIdentityRequest {}),
        )
        .await?;
    }
    if let Some(policy) = &now.policy
        && given.policy.as_ref() != Some(policy)
    {
        let answer = call("ApplyPolicy", client.apply_policy(policy.clone())).await?;
        note(shared, "policy", answer);
    }
    if let Some(lease) = &now.lease
        && given.lease.as_ref() != Some(lease)
    {
        let request = pb::ApplyLeaseRequest {
            lease_envelope: lease.clone(),
        };
        let answer = call("ApplyLease", client.apply_lease(request)).await?;
        note(shared, "lease", answer);
    }
    Ok(())
}

async fn call<T>(
    name: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, GiveError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(GiveError::Call(name, status)),
        Err(_) => Err(GiveError::TimedOut { call: name }),
    }
}

fn note(shared: &Shared, what: &str, answer: pb::ApplyPolicyResponse) {
    if answer.applied {
        let head = answer.head.unwrap_or_default();
        tracing::info!(
            epoch = head.epoch,
            revision = head.revision,
            lease_seq = head.lease_seq,
            "{what} applied"
        );
    } else {
        tracing::warn!(reason = %answer.refused, "the worker refused the {what}");
    }
    shared.observe(|o| o.refused = answer.refused);
}

/// Stops the worker: by its socket, then SIGTERM, then SIGKILL.
async fn stop(shared: &Shared, process: &mut Process) {
    let grace_ms = u32::try_from(STOP_GRACE.as_millis()).unwrap_or(u32::MAX);
    let graceful = async {
        // A socket that does not answer earns its SIGTERM at the end of the grace.
        if let Ok(channel) = fairlead_rpc::channel::unix(&socket(shared)).await {
            let _ = Client::new(channel).stop(pb::StopRequest { grace_ms }).await;
            tokio::time::sleep(STOP_GRACE).await;
        }
    };
    let asked = tokio::time::timeout(STOP_GRACE + TERM_GRACE, graceful);
    tokio::select! {
        words = process.ended() => {
            tracing::info!(how = %words, "worker stopped");
            return;
        }
        _ = asked => {}
    }
    process.terminate();
    if tokio::time::timeout(TERM_GRACE, process.ended()).await.is_ok() {
        tracing::info!("worker stopped by SIGTERM");
        return;
    }
    process.kill();
    let words = process.ended().await;
    tracing::warn!(how = %words, "worker did not stop and was killed");
}

#[cfg(test)]
pub(crate) mod tests;

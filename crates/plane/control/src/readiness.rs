//! How a relay stands, when its port is probed, and whether links are placed on it (R-ENR-07).
//! Pure: facts in, answers out.
//!
//! Standing and capacity are two things. Standing is what the control plane sees at the moment.
//! Capacity decides placement and changes slowly: a relay gets it when its port has answered a real
//! handshake from outside its process, and loses it only when nobody uses the relay any more. A
//! supervisor that is away, or a control plane that was restarted, moves no link: the data path
//! does not need them (R-GEN-04).

use crate::api::RelayState;
use fairlead_model::{MonoTime, RelayId};
use std::time::Duration;

/// How long a member may be away before it is shown offline (R-NOD-06).
pub const OFFLINE_AFTER: Duration = Duration::from_secs(5);
/// How long a relay may not be ready, with no node connected to it, before its links are placed
/// elsewhere: consumers try their other relays by themselves meanwhile (R-NOD-03), a host that
/// restarts its worker is back sooner.
pub const LOST_AFTER: Duration = Duration::from_secs(30);
/// The same for a relay whose supervisor said that it stops: nothing is guessed. A host that only
/// restarts its service is ready again within about three seconds; links that were placed anew for that
/// would cost every member that has them two policies, there and back. Nothing is cut either way.
pub const STOPPED_AFTER: Duration = Duration::from_secs(5);
/// How often a port that answered is tried again.
pub const PROBE_EVERY: Duration = Duration::from_secs(60);
/// How long a report may take: a dial of several addresses and an echo.
pub const PROBE_WAIT_MAX: Duration = Duration::from_secs(15);
/// The wait before a port that did not answer is tried again, per failure in a row.
pub const PROBE_AGAIN: Duration = Duration::from_secs(2);
/// The longest of these waits.
pub const PROBE_AGAIN_MAX: Duration = Duration::from_secs(15);
/// Failures in a row after which a port that answered before counts as closed: one lost probe says
/// as much about the prober's network as about the port.
pub const PROBE_FAILURES_MAX: u32 = 3;

/// How long what comes by itself may take before it is a fault. A relay that was started again is ready within
/// about three seconds; a probe of its port may take its whole time.
pub const START_MAX: Duration = PROBE_WAIT_MAX;
/// How long nodes may take to be connected to a relay that has become ready: they knock at its port.
pub const REACH_MAX: Duration = Duration::from_secs(5);

/// What the supervisor says of its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// It starts.
    Starting,
    /// It listens.
    Listening,
    /// It ended; the supervisor waits before it starts another.
    BackingOff,
    /// It keeps ending soon after its start.
    CrashLoop,
    /// It runs and no longer answers its supervisor.
    Unresponsive,
}

impl WorkerState {
    /// The state's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Listening => "listening",
            Self::BackingOff => "backing-off",
            Self::CrashLoop => "crash-loop",
            Self::Unresponsive => "unresponsive",
        }
    }
}

/// What is known of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Whether it has enrolled.
    pub enrolled: bool,
    /// How long its supervisor has been away; `None` while it is connected.
    pub away: Option<Duration>,
    /// Whether its supervisor said that it stops, and its worker with it.
    pub stopped: bool,
    /// Why its supervisor's hellos are refused while it is not connected; else empty.
    pub refused: String,
    /// Its worker; `None` before the first report.
    pub worker: Option<Worker>,
    /// Whether its port answers.
    pub port: Port,
    /// What nodes say, where none of them reaches it; else empty. It shows how the relay stands and moves
    /// nothing: nodes leave it by themselves, and a probe that fails decides capacity.
    pub unreached: String,
}

/// What a supervisor reported of its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// How it stands.
    pub state: WorkerState,
    /// How the last one ended, in words, with the reason that it gave; empty if none has.
    pub last_exit: String,
    /// Whether it holds a policy.
    pub holds_policy: bool,
    /// Why it refused the last policy; empty if it did not.
    pub policy_refused: String,
}

/// What probes found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// Nothing yet about this worker.
    Unknown,
    /// It answered.
    Open,
    /// It did not answer.
    Closed {
        /// The prober's name.
        by: String,
        /// Why.
        error: String,
    },
}

/// How a relay stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The state.
    pub state: RelayState,
    /// Why it is not ready; empty when it is.
    pub reason: String,
    /// What would help.
    pub lack: Lack,
}

/// What helps where a relay is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Nothing: it is ready.
    Nothing,
    /// Time: it comes up, and nothing is known to be wrong.
    Time,
    /// A way for nodes: none of them reaches it.
    Way,
    /// Somebody who does something.
    Mending,
}

impl Standing {
    /// Whether it is only just starting; `stood` is how long it has stood so.
    #[must_use]
    pub fn is_starting(&self, stood: Duration) -> bool {
        self.state == RelayState::NotReady && self.lack == Lack::Time && stood < START_MAX
    }
}

/// How a relay stands, and why it is not ready.
#[must_use]
pub fn standing(facts: &Facts) -> Standing {
    let stands = |state, reason: &str, lack| Standing {
        state,
        reason: reason.to_owned(),
        lack,
    };
    if !facts.enrolled {
        return stands(RelayState::Pending, "it has not enrolled yet", Lack::Mending);
    }
    if !facts.refused.is_empty() {
        let reason = format!("its supervisor's session is refused: {}", facts.refused);
        return stands(RelayState::Offline, &reason, Lack::Mending);
    }
    if facts.stopped {
        return stands(RelayState::Offline, "its supervisor was stopped", Lack::Mending);
    }
    if facts.away.is_some_and(|away| away >= OFFLINE_AFTER) {
        let reason = "its supervisor is not connected";
        // Where nodes miss it as well, it is not the way to the control plane.
        return match facts.unreached.as_str() {
            "" => stands(RelayState::Offline, reason, Lack::Mending),
            nodes => stands(RelayState::Offline, &format!("{reason}, and {nodes}"), Lack::Way),
        };
    }
    match unready(facts) {
        None => stands(RelayState::Ready, "", Lack::Nothing),
        Some((reason, lack)) => stands(RelayState::NotReady, &reason, lack),
    }
}

fn unready(facts: &Facts) -> Option<(String, Lack)> {
    let comes = |reason: &str| Some((reason.to_owned(), Lack::Time));
    let fails = |reason: String| Some((reason, Lack::Mending));
    let Some(worker) = &facts.worker else {
        return comes(if facts.away.is_some() {
            "its supervisor is not connected yet"
        } else {
            "its supervisor has not reported yet"
        });
    };
    let ended = |what: &str| {
        if worker.last_exit.is_empty() {
            what.to_owned()
        } else {
            format!("{what}: {}", worker.last_exit)
        }
    };
    match worker.state {
        WorkerState::Starting if worker.last_exit.is_empty() => return comes("its worker is starting"),
        WorkerState::Starting => {
            return comes(&format!(
                "its worker is starting; the last one {}",
                worker.last_exit
            ));
        }
        WorkerState::BackingOff => return fails(ended("its worker ended")),
        WorkerState::CrashLoop => return fails(ended("its worker keeps ending")),
        WorkerState::Unresponsive => {
            return fails("its worker runs and does not answer its supervisor".to_owned());
        }
        WorkerState::Listening => {}
    }
    if !worker.policy_refused.is_empty() {
        return fails(format!(
            "its worker refused its policy: {}",
            worker.policy_refused
        ));
    }
    if !worker.holds_policy {
        return comes("its worker holds no policy yet");
    }
    match &facts.port {
        Port::Open if !facts.unreached.is_empty() => Some((facts.unreached.clone(), Lack::Way)),
        Port::Open => None,
        Port::Unknown => comes("its port has not been verified yet"),
        Port::Closed { by, error } => fails(format!("its port did not answer relay {by}: {error}")),
    }
}

/// What decides capacity besides standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// How it stands.
    pub standing: RelayState,
    /// Whether its supervisor said that it stops.
    pub stopped: bool,
    /// How long it has not been ready; zero while it is.
    pub unready: Duration,
    /// Nodes that say that they are connected to it.
    pub nodes_on: usize,
    /// Nodes that say that they try and are not.
    pub nodes_off: usize,
}

/// Whether links are placed on a relay, given whether they were.
///
/// A relay whose supervisor is away is not given up without a witness, its goodbye or a node: where no
/// node reports either, it is the control plane that is cut off.
#[must_use]
pub fn capacity(held: bool, sight: Sight) -> bool {
    let given_up = sight.unready >= lost_after(sight.stopped) && sight.nodes_on == 0;
    let is_witnessed = sight.stopped || sight.nodes_off > 0;
    match sight.standing {
        RelayState::Ready => true,
        RelayState::Pending => false,
        RelayState::NotReady => held && !given_up,
        RelayState::Offline => held && !(given_up && is_witnessed),
    }
}

/// How long a relay may not be ready before its links are placed elsewhere.
#[must_use]
pub const fn lost_after(stopped: bool) -> Duration {
    if stopped { STOPPED_AFTER } else { LOST_AFTER }
}

/// What is known of a relay's port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probes {
    /// The probe that has no report yet.
    pub asked: Option<Asked>,
    /// Who was asked last.
    pub last_prober: Option<RelayId>,
    /// The last one that succeeded.
    pub proven: Option<Proven>,
    /// What has failed since.
    pub failed: Option<Failed>,
}

/// A probe under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Names its report.
    pub request: [u8; 16],
    /// Who probes.
    pub by: RelayId,
    /// When it was asked.
    pub at: MonoTime,
    /// The worker's process then.
    pub worker_pid: u32,
}

/// A probe that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proven {
    /// Who probed.
    pub by: RelayId,
    /// When it was reported.
    pub at: MonoTime,
    /// The worker's process that answered.
    pub worker_pid: u32,
}

/// Probes that failed, in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Who probed last.
    pub by: RelayId,
    /// When it was reported.
    pub at: MonoTime,
    /// The worker's process that did not answer.
    pub worker_pid: u32,
    /// Why.
    pub error: String,
    /// How many.
    pub count: u32,
}

impl Probes {
    /// Takes in a report. One that was not asked for, or comes late, changes nothing.
    pub fn report(&mut self, by: RelayId, request: [u8; 16], result: Result<(), String>, now: MonoTime) {
        let Some(asked) = self.asked.filter(|a| a.request == request && a.by == by) else {
            return;
        };
        self.asked = None;
        match result {
            Ok(()) => {
                self.failed = None;
                self.proven = Some(Proven {
                    by,
                    at: now,
                    worker_pid: asked.worker_pid,
                });
            }
            Err(error) => {
                let count = self.failed.as_ref().map_or(0, |f| f.count).saturating_add(1);
                self.failed = Some(Failed {
                    by,
                    at: now,
                    worker_pid: asked.worker_pid,
                    error,
                    count,
                });
            }
        }
    }

    /// Whether the port of the worker with this process id answers. `name` names a prober.
    #[must_use]
    pub fn port(&self, worker_pid: u32, name: impl FnOnce(RelayId) -> String) -> Port {
        let is_proven = self.proven.is_some_and(|p| p.worker_pid == worker_pid);
        // That an earlier process did not answer says nothing of this one.
        match self.failed.as_ref().filter(|f| f.worker_pid == worker_pid) {
            Some(failed) if !is_proven || failed.count >= PROBE_FAILURES_MAX => Port::Closed {
                by: name(failed.by),
                error: failed.error.clone(),
            },
            Some(_) | None if is_proven => Port::Open,
            Some(_) | None => Port::Unknown,
        }
    }

    /// Who is to probe the port, if it is time. `connected` are the relays whose supervisors are
    /// connected, ascending: another one than the relay's own where there is any, each in turn.
    #[must_use]
    pub fn next(
        &self,
        relay: RelayId,
        worker_pid: u32,
        connected: &[RelayId],
        now: MonoTime,
    ) -> Option<RelayId> {
        let others = || connected.iter().copied().filter(|id| *id != relay);
        let is_alone = others().next().is_none();
        if !self.is_due(relay, worker_pid, is_alone, now) {
            return None;
        }
        let after = self.last_prober.and_then(|last| others().find(|id| *id > last));
        after
            .or_else(|| others().next())
            .or_else(|| connected.contains(&relay).then_some(relay))
    }

    fn is_due(&self, relay: RelayId, worker_pid: u32, is_alone: bool, now: MonoTime) -> bool {
        if self
            .asked
            .is_some_and(|asked| now.since(asked.at) < PROBE_WAIT_MAX)
        {
            return false;
        }
        if let Some(failed) = &self.failed {
            return now.since(failed.at) >= PROBE_AGAIN.saturating_mul(failed.count).min(PROBE_AGAIN_MAX);
        }
        match self.proven {
            Some(proven) if proven.worker_pid == worker_pid => {
                // Its own word counts only while there is no other's.
                let is_own = proven.by == relay && !is_alone;
                is_own || now.since(proven.at) >= PROBE_EVERY
            }
            Some(_) | None => true,
        }
    }
}

#[cfg(test)]
mod tests;

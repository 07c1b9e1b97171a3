//! What members report, and who is connected. In memory only: it comes again when they reconnect.

use crate::api::{PathReportView, RelayState};
use crate::plan::RELAYS_MAX;
use crate::publish::GrantSet;
use crate::readiness::{Asked, Probes};
use crate::record::{MemberKey, Text};
use crate::session::Processes;
use fairlead_model::{EndpointId, HostPort, MonoTime, NodeId, ProcessBootId, RelayId, RouteId, WallTime};
use fairlead_rpc::ProbeRequest;
use fairlead_trust::admission::PolicyHead;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub(crate) use crate::readiness::WorkerState;

/// Probes that wait for one supervisor's session: one per other relay.
const PROBES_QUEUED_MAX: usize = RELAYS_MAX;

/// Paths that wait until a node has tried the one before. An admin waits for each.
const CHECKS_QUEUED_MAX: usize = 4;

/// How long a refused hello is why a member is not connected: it tries again every few seconds, so one that
/// is not heard for so long has stopped, or cannot come.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// What a relay's supervisor reported last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelayReport {
    pub(crate) worker: WorkerState,
    pub(crate) worker_version: String,
    pub(crate) worker_pid: u32,
    pub(crate) worker_restarts: u32,
    pub(crate) worker_last_exit: String,
    pub(crate) applied: Option<PolicyHead>,
    pub(crate) policy_refused: String,
    pub(crate) live_tunnels: u64,
    pub(crate) hop_sessions: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) open_descriptors: u64,
    pub(crate) bytes_relayed: u64,
    pub(crate) worker_metrics: String,
    /// How far the host's clock is behind what was signed here, where that is too far (R-POL-05).
    pub(crate) clock_behind: Option<Duration>,
    /// That it is since this control plane's clock was ahead when it signed.
    pub(crate) signed_ahead: bool,
    /// Nodes of which the worker met two processes.
    pub(crate) cloned: Vec<Cloned>,
}

/// A node of which a worker met two processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cloned {
    pub(crate) node: NodeId,
    /// The address of the process that is kept.
    pub(crate) kept: String,
    /// The other's.
    pub(crate) refused: String,
    /// How long before the report the other one came last.
    pub(crate) ago: Duration,
    /// When the report came.
    pub(crate) told_at: MonoTime,
}

/// What a node's daemon reported last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeReport {
    /// Epoch and revision of the policy that it holds.
    pub(crate) policy: Option<(u64, u64)>,
    /// The leader term below which it refuses a policy; 0 where it holds none.
    pub(crate) leader_term: u64,
    pub(crate) policy_refused: String,
    /// The digest of the grants that it keeps; `None` where it does not say.
    pub(crate) grants: Option<[u8; 32]>,
    /// Those grants, where they are of a set that this session has sent.
    pub(crate) kept: Option<Arc<GrantSet>>,
    pub(crate) relays: BTreeMap<RelayId, Reach>,
    pub(crate) listeners: BTreeMap<RouteId, Listener>,
    pub(crate) live_streams: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) metrics: String,
}

/// How a node reaches a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) connected: bool,
    pub(crate) rtt_us: Option<u32>,
    /// Why it is not connected, or what speaks against a session that stands still.
    pub(crate) error: String,
    pub(crate) registered: Vec<EndpointId>,
}

/// A consumer's listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) listening: bool,
    pub(crate) error: String,
    pub(crate) last_refusal: Option<LastRefusal>,
}

/// The latest stream of a route that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastRefusal {
    /// The code's number; one of a newer version may be unknown here.
    pub(crate) code: u32,
    pub(crate) at: WallTime,
    pub(crate) count: u64,
}

/// A member's process, as it says itself; only the address is observed (R-ENR-10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) boot: ProcessBootId,
    pub(crate) address: IpAddr,
    pub(crate) host_name: String,
    pub(crate) machine: String,
    pub(crate) product: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = |digest: &str| digest.get(..8).unwrap_or(digest).to_owned();
        write!(
            f,
            "host `{}` at {}",
            self.host_name.escape_default(),
            self.address
        )?;
        match (self.machine.as_str(), self.product.as_str()) {
            ("", "") => Ok(()),
            (machine, "") => write!(f, " (machine {})", hint(machine)),
            ("", product) => write!(f, " (product {})", hint(product)),
            (machine, product) => write!(f, " (machine {}, product {})", hint(machine), hint(product)),
        }
    }
}

/// A session's number: a late end of an old session is told from the end of the one that took its
/// place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionNumber {
    pub(crate) number: u64,
}

/// How a session was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) at: MonoTime,
    /// The member said that it stops: it is offline at once.
    pub(crate) stopped: bool,
}

/// A hello that was refused, by a member that enrolled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Stable code.
    pub(crate) code: &'static str,
    /// What the member was told.
    pub(crate) words: String,
    pub(crate) at: MonoTime,
}

impl Refused {
    /// The clocks differ (R-POL-05).
    pub(crate) const CLOCK_DIFFERS: &'static str = "CLOCK_DIFFERS";

    /// Whether it still counts at `now`: a member that is there tries again within seconds.
    fn is_news(&self, now: MonoTime) -> bool {
        now.since(self.at) < REFUSED_FOR
    }
}

/// A supervisor's session.
#[derive(Debug)]
pub(crate) struct RelaySession {
    number: u64,
    boot: Option<ProcessBootId>,
    cancel: CancellationToken,
    probes: mpsc::Sender<ProbeRequest>,
}

/// A path that a node is to try.
#[derive(Debug)]
pub(crate) struct CheckAsked {
    /// Names it.
    pub(crate) check: [u8; 16],
    pub(crate) route: RouteId,
    pub(crate) relay: RelayId,
    /// Who waits for the report.
    pub(crate) answer: oneshot::Sender<PathReportView>,
}

/// A node daemon's session.
#[derive(Debug)]
pub(crate) struct NodeSession {
    number: u64,
    /// When it was opened.
    pub(crate) at: MonoTime,
    boot: Option<ProcessBootId>,
    cancel: CancellationToken,
    checks: mpsc::Sender<CheckAsked>,
}

/// A relay as it was seen.
#[derive(Debug, Default)]
pub(crate) struct RelayObserved {
    /// The session, while the supervisor is connected.
    pub(crate) session: Option<RelaySession>,
    /// Whether it has had a session.
    met: bool,
    /// How the last session ended; `None` while one is open.
    pub(crate) closed: Option<Closed>,
    /// The last hello that was refused since.
    refused: Option<Refused>,
    /// Version of the supervisor.
    pub(crate) version: String,
    /// Which processes have come with its identity.
    pub(crate) processes: Processes,
    /// The last report; it outlives its session.
    pub(crate) status: Option<RelayReport>,
    /// What probes of its port found.
    pub(crate) probes: Probes,
    /// Since when it has not been ready; `None` while it is.
    unready_since: Option<MonoTime>,
    /// How it stood at the last look, and since when; `None` before the first.
    stood: Option<(RelayState, MonoTime)>,
}

/// A node as it was seen.
#[derive(Debug, Default)]
pub(crate) struct NodeObserved {
    /// The session, while the daemon is connected.
    pub(crate) session: Option<NodeSession>,
    /// How the last session ended; `None` while one is open.
    pub(crate) closed: Option<Closed>,
    /// The last hello that was refused since.
    refused: Option<Refused>,
    /// Version of the daemon.
    pub(crate) version: String,
    /// Which processes have come with its identity.
    pub(crate) processes: Processes,
    /// The last report; it outlives its session.
    pub(crate) status: Option<NodeReport>,
}

/// Every member that was seen since the start.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) relays: BTreeMap<RelayId, RelayObserved>,
    pub(crate) nodes: BTreeMap<NodeId, NodeObserved>,
    sessions: u64,
}

/// The members, behind their lock.
#[derive(Debug, Default)]
pub(crate) struct Observed(Mutex<Members>);

/// A supervisor's session, opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: SessionNumber,
    /// What it is to probe.
    pub(crate) probes: mpsc::Receiver<ProbeRequest>,
    /// Whether it is the relay's first session since the control plane started.
    pub(crate) first: bool,
}

impl Observed {
    /// The members. Held for moments only, never over an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a supervisor's session; an older one of the same relay is cancelled.
    pub(crate) fn open_relay(
        &self,
        id: RelayId,
        version: String,
        boot: Option<ProcessBootId>,
        cancel: CancellationToken,
    ) -> Opened {
        let mut members = self.lock();
        let number = members.next_session();
        let (sender, probes) = mpsc::channel(PROBES_QUEUED_MAX);
        let relay = members.relays.entry(id).or_default();
        if let Some(old) = &relay.session {
            old.cancel.cancel();
        }
        relay.session = Some(RelaySession {
            number,
            boot,
            cancel,
            probes: sender,
        });
        let first = !relay.met;
        relay.met = true;
        relay.closed = None;
        relay.refused = None;
        relay.version = version;
        Opened {
            session: SessionNumber { number },
            probes,
            first,
        }
    }

    /// Keeps why a member's hello was refused. One whose session is open goes by that.
    pub(crate) fn refuse(&self, member: MemberKey, refused: Refused) {
        let mut members = self.lock();
        match member {
            MemberKey::Relay(Text(id)) => members.relays.entry(id).or_default().refused = Some(refused),
            MemberKey::Node(Text(id)) => members.nodes.entry(id).or_default().refused = Some(refused),
        }
    }

    /// Closes a supervisor's session; whether it was the relay's newest.
    pub(crate) fn close_relay(&self, id: RelayId, number: u64, closed: Closed) -> bool {
        let mut members = self.lock();
        let Some(relay) = members.relays.get_mut(&id) else {
            return false;
        };
        if relay.session.as_ref().is_none_or(|s| s.number != number) {
            return false;
        }
        relay.session = None;
        relay.closed = Some(closed);
        // What it was asked has no answer any more.
        for other in members.relays.values_mut() {
            other.probes.asked = other.probes.asked.filter(|asked| asked.by != id);
        }
        true
    }

    /// Opens a node's session; an older one of the same node is cancelled.
    pub(crate) fn open_node(
        &self,
        id: NodeId,
        version: String,
        boot: Option<ProcessBootId>,
        cancel: CancellationToken,
        at: MonoTime,
    ) -> (SessionNumber, mpsc::Receiver<CheckAsked>) {
        let (checks, asked) = mpsc::channel(CHECKS_QUEUED_MAX);
        let mut members = self.lock();
        let number = members.next_session();
        let node = members.nodes.entry(id).or_default();
        if let Some(old) = &node.session {
            old.cancel.cancel();
        }
        node.session = Some(NodeSession {
            number,
            at,
            boot,
            cancel,
            checks,
        });
        node.closed = None;
        node.refused = None;
        node.version = version;
        (SessionNumber { number }, asked)
    }

    /// Asks a node to try a path.
    ///
    /// # Errors
    /// Whether it has been asked for too many; otherwise it is not connected.
    pub(crate) fn ask_check(&self, id: NodeId, asked: CheckAsked) -> Result<(), bool> {
        let members = self.lock();
        let session = members.nodes.get(&id).and_then(|node| node.session.as_ref());
        let sent = session.ok_or(false)?.checks.try_send(asked);
        sent.map_err(|error| matches!(error, mpsc::error::TrySendError::Full(_)))
    }

    /// Closes a node's session, unless a newer one has taken its place; whether it was the newest.
    pub(crate) fn close_node(&self, id: NodeId, number: u64, closed: Closed) -> bool {
        let mut members = self.lock();
        if let Some(node) = members.nodes.get_mut(&id)
            && node.session.as_ref().is_some_and(|s| s.number == number)
        {
            node.session = None;
            node.closed = Some(closed);
            return true;
        }
        false
    }

    /// Ends a removed relay's session, and forgets what was seen of it.
    pub(crate) fn forget_relay(&self, id: RelayId) {
        let mut members = self.lock();
        if let Some(session) = members.relays.remove(&id).and_then(|relay| relay.session) {
            session.cancel.cancel();
        }
        for other in members.relays.values_mut() {
            other.probes.asked = other.probes.asked.filter(|asked| asked.by != id);
        }
    }

    /// Ends a removed node's session, and forgets what was seen of it.
    pub(crate) fn forget_node(&self, id: NodeId) {
        let node = self.lock().nodes.remove(&id);
        if let Some(session) = node.and_then(|node| node.session) {
            session.cancel.cancel();
        }
    }

    /// Takes in what `by` found at the port of `relay`.
    pub(crate) fn probe_reported(
        &self,
        relay: RelayId,
        by: RelayId,
        request: [u8; 16],
        result: Result<(), String>,
        now: MonoTime,
    ) {
        if let Some(observed) = self.lock().relays.get_mut(&relay) {
            observed.probes.report(by, request, result, now);
        }
    }
}

impl RelayObserved {
    /// Why it is not connected, where its hellos are refused.
    pub(crate) fn refused(&self, now: MonoTime) -> Option<&Refused> {
        let refused = self.refused.as_ref().filter(|refused| refused.is_news(now));
        refused.filter(|_| self.session.is_none())
    }
}

impl NodeObserved {
    /// Why it is not connected, where its hellos are refused.
    pub(crate) fn refused(&self, now: MonoTime) -> Option<&Refused> {
        let refused = self.refused.as_ref().filter(|refused| refused.is_news(now));
        refused.filter(|_| self.session.is_none())
    }
}

impl Members {
    /// Judges a member's hello; `judge` is given the process whose session is open.
    pub(crate) fn hello<T>(
        &mut self,
        member: MemberKey,
        judge: impl FnOnce(&mut Processes, Option<ProcessBootId>) -> T,
    ) -> T {
        match member {
            MemberKey::Relay(Text(id)) => {
                let relay = self.relays.entry(id).or_default();
                let lives = relay.session.as_ref().and_then(|s| s.boot);
                judge(&mut relay.processes, lives)
            }
            MemberKey::Node(Text(id)) => {
                let node = self.nodes.entry(id).or_default();
                let lives = node.session.as_ref().and_then(|s| s.boot);
                judge(&mut node.processes, lives)
            }
        }
    }

    /// What was seen of the relay whose newest session this is: what an earlier one says late is of a process
    /// that may be dead.
    pub(crate) fn relay_in(&mut self, id: RelayId, session: u64) -> Option<&mut RelayObserved> {
        let relay = self.relays.get_mut(&id)?;
        let newest = relay.session.as_ref()?.number;
        (newest == session).then_some(relay)
    }

    /// The same of a node.
    pub(crate) fn node_in(&mut self, id: NodeId, session: u64) -> Option<&mut NodeObserved> {
        let node = self.nodes.get_mut(&id)?;
        let newest = node.session.as_ref()?.number;
        (newest == session).then_some(node)
    }

    fn next_session(&mut self) -> u64 {
        self.sessions = self.sessions.saturating_add(1);
        self.sessions
    }

    /// Relays whose supervisors are connected, ascending.
    pub(crate) fn connected(&self) -> Vec<RelayId> {
        let connected = self.relays.iter().filter(|(_, relay)| relay.session.is_some());
        connected.map(|(id, _)| *id).collect()
    }

    /// Asks for a probe of `relay` where one is due; `request` names it.
    pub(crate) fn probe(
        &mut self,
        relay: RelayId,
        address: &HostPort,
        connected: &[RelayId],
        request: impl FnOnce() -> [u8; 16],
        now: MonoTime,
    ) {
        let Some(target) = self.relays.get(&relay).filter(|t| t.session.is_some()) else {
            return;
        };
        let Some(worker_pid) = target
            .status
            .as_ref()
            .filter(|s| s.worker == WorkerState::Listening)
            .map(|s| s.worker_pid)
        else {
            return;
        };
        let Some(by) = target.probes.next(relay, worker_pid, connected, now) else {
            return;
        };
        let request = request();
        let probe = ProbeRequest {
            request,
            relay,
            address: address.clone(),
        };
        let session = self.relays.get(&by).and_then(|prober| prober.session.as_ref());
        if session.is_none_or(|session| session.probes.try_send(probe).is_err()) {
            // A session that is over or stuck; the next look asks another one.
            return;
        }
        if let Some(target) = self.relays.get_mut(&relay) {
            target.probes.last_prober = Some(by);
            target.probes.asked = Some(Asked {
                request,
                by,
                at: now,
                worker_pid,
            });
        }
    }

    /// Takes in how a relay stands; how long it has not been ready, zero while it is.
    pub(crate) fn stands(&mut self, relay: RelayId, state: RelayState, now: MonoTime) -> Duration {
        let observed = self.relays.entry(relay).or_default();
        if observed.stood.is_none_or(|(before, _)| before != state) {
            observed.stood = Some((state, now));
        }
        if state == RelayState::Ready {
            observed.unready_since = None;
            return Duration::ZERO;
        }
        now.since(*observed.unready_since.get_or_insert(now))
    }

    /// How long a relay has stood in the state that it is in; zero until it was looked at in it.
    pub(crate) fn stood(&self, relay: RelayId, state: RelayState, now: MonoTime) -> Duration {
        let stood = self.relays.get(&relay).and_then(|observed| observed.stood);
        let since = stood.filter(|(before, _)| *before == state);
        since.map_or(Duration::ZERO, |(_, since)| now.since(since))
    }

    /// How many connected nodes say that they are connected to a relay, and how many that they are
    /// not.
    pub(crate) fn witnesses(&self, relay: RelayId) -> (usize, usize) {
        let reach = |node: &NodeObserved| {
            node.session.as_ref()?;
            node.status
                .as_ref()?
                .relays
                .get(&relay)
                .map(|reach| reach.connected)
        };
        let said: Vec<bool> = self.nodes.values().filter_map(reach).collect();
        let on = said.iter().filter(|connected| **connected).count();
        (on, said.len() - on)
    }
}

#[cfg(test)]
mod tests;

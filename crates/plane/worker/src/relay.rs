//! What all sessions and tunnels of a worker share.

use crate::budget::{Budget, Use};
use crate::grants::Grants;
use crate::metrics::WorkerMetrics;
use crate::policy::PolicyKeeper;
use crate::told;
use crate::tunnels::Tunnels;
use fairlead_hop::liveness::BindRefusal;
use fairlead_hop::{Hello, Lookup, REGISTRATIONS_PER_SESSION_MAX, Register, Registry, RegistryFault};
use fairlead_host::headroom::{share, used_shares};
use fairlead_host::{Clock, MemoryWatch};
use fairlead_model::{
    EndpointId, Identity, MonoTime, NodeId, ProcessBootId, RefusalCode, RelayId, SessionId,
};
use fairlead_rpc::pb;
use fairlead_transport::{Carrier, CarrierConfig, Listener, LiveBinding, LiveListener};
use fairlead_trust::RelaySettings;
use fairlead_trust::admission::LiveVerdict;
use fairlead_trust::{RunVerdict, Runs};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

/// Most hop sessions of one member. It holds one; more are left over from connections that it has
/// lost and this end has not yet. The oldest goes first (F-05: hundreds of losses in a minute).
const SESSIONS_PER_MEMBER_MAX: usize = 4;

/// Nodes that a report names of which two processes came: more are no accident, and one is enough to
/// look.
const CLONED_MAX: usize = 64;

/// A publisher that has been here for so long under the same policy, and has not asked for an endpoint,
/// does not publish it: its own policy and its registrations had the time that R-POL-10 gives them.
const UNASKED_MIN: Duration = Duration::from_secs(10);

/// Names a hop session within the worker's run; later ones are higher.
pub(crate) type SessionNumber = u64;

/// The worker's shared state.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) id: RelayId,
    pub(crate) process_boot: ProcessBootId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) policy: Arc<PolicyKeeper>,
    pub(crate) listener: Listener,
    pub(crate) live_listener: LiveListener,
    pub(crate) budget: Arc<Budget>,
    pub(crate) grants: Grants,
    pub(crate) tunnels: Arc<Tunnels>,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) memory: MemoryWatch,
    /// Cancelled when no new tunnel is to be admitted any more.
    pub(crate) stopping: CancellationToken,
    /// Cancelled at the very end: whatever still runs is to return.
    pub(crate) ended: CancellationToken,
    /// Every session, open and tunnel runs in here.
    pub(crate) tasks: TaskTracker,
    /// As the log was told last.
    clock_is_behind: AtomicBool,
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    last: SessionNumber,
    live: BTreeMap<SessionNumber, Session>,
    registry: Registry<SessionNumber>,
    /// The processes that came in the name of each node of the policy.
    runs: BTreeMap<NodeId, Runs<SocketAddr>>,
}

#[derive(Debug)]
struct Session {
    carrier: Carrier,
    /// Once the member has greeted.
    greeted: Option<Greeted>,
    /// Endpoints that it asked to register, refused ones too, and has not said goodbye to.
    asked: BTreeSet<EndpointId>,
    restarting: bool,
    to: ToSession,
    /// Registrations that it has no more, by endpoint: a newer session has taken them over, or the
    /// policy dropped them. The member is not told yet.
    withdrawn: BTreeMap<EndpointId, Register>,
}

impl Session {
    /// The member is to be told that it has a registration no more.
    fn withdraw(&mut self, held: Register) {
        self.withdrawn.insert(held.endpoint, held);
        self.to.withdrawn.notify_one();
    }
}

/// What a greeting told.
#[derive(Debug, Clone, Copy)]
struct Greeted {
    session: SessionId,
    /// The member's run.
    boot: ProcessBootId,
    at: MonoTime,
}

/// How a session's loops are reached.
#[derive(Debug, Clone)]
pub(crate) struct ToSession {
    /// Liveness connections for it.
    pub(crate) bindings: mpsc::Sender<LiveBinding>,
    /// Woken when registrations were withdrawn.
    pub(crate) withdrawn: Arc<Notify>,
}

/// Where an endpoint is served.
#[derive(Debug)]
pub(crate) enum Served {
    /// Through this carrier.
    By(Carrier),
    /// Its daemon comes back soon; ask again after this (R-ADM-03).
    Restarting(Duration),
    /// Nowhere here; the publisher may be on its way.
    Nobody,
    /// Nowhere: the publisher is here, and does not publish it.
    Unknown,
}

impl Relay {
    pub(crate) fn new(parts: RelayParts) -> Self {
        Self {
            id: parts.id,
            process_boot: fairlead_host::rng::new_id(),
            clock: parts.clock,
            memory: MemoryWatch::default(),
            policy: parts.policy,
            listener: parts.listener,
            live_listener: parts.live_listener,
            budget: Arc::default(),
            grants: Grants::default(),
            tunnels: Arc::default(),
            metrics: parts.metrics,
            stopping: CancellationToken::new(),
            ended: CancellationToken::new(),
            tasks: TaskTracker::new(),
            clock_is_behind: AtomicBool::new(false),
            sessions: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a session that arrives. Drawn before its handshake: one that completes it was alive
    /// then, so that a later number is a later run's (R-ENR-10).
    pub(crate) fn next_session(&self) -> SessionNumber {
        let mut sessions = self.lock();
        sessions.last += 1;
        sessions.last
    }

    /// Adds a session; a member's oldest one too many is closed.
    pub(crate) fn add_session(&self, number: SessionNumber, carrier: &Carrier, to: ToSession) {
        let mut sessions = self.lock();
        let peer = carrier.peer();
        let mut same = sessions
            .live
            .values()
            .filter(|session| session.carrier.peer() == peer);
        if let Some(oldest) = same.next()
            && same.count() + 1 >= SESSIONS_PER_MEMBER_MAX
        {
            oldest.carrier.close(RefusalCode::TooMany);
        }
        sessions.live.insert(
            number,
            Session {
                carrier: carrier.clone(),
                greeted: None,
                asked: BTreeSet::new(),
                restarting: false,
                to,
                withdrawn: BTreeMap::new(),
            },
        );
        self.count(&sessions);
        self.metrics.hop_sessions_accepted.inc();
    }

    /// The node greeted. A daemon holds its folder's lock, so another run of it means that the
    /// earlier one is dead: its sessions are closed at once, and opens that wait for it fail over
    /// instead of waiting for a timeout. One that announced its restart ends by itself.
    ///
    /// # Errors
    /// The earlier one is not dead: the folder was copied, and this copy is to go (R-ENR-10). Or this is the
    /// earlier one, whose greeting came late.
    pub(crate) fn greeted(
        &self,
        number: SessionNumber,
        node: NodeId,
        hello: &Hello,
    ) -> Result<(), RefusalCode> {
        let now = self.clock.mono();
        let process_boot = hello.process_boot;
        let mut sessions = self.lock();
        let Sessions { live, runs, .. } = &mut *sessions;
        let Some(session) = live.get_mut(&number) else {
            return Ok(());
        };
        session.greeted = Some(Greeted {
            session: hello.session,
            boot: process_boot,
            at: now,
        });
        let remote = session.carrier.remote_address();
        let peer = session.carrier.peer();
        let lives = |boot| {
            live.values().any(|session| {
                session.carrier.peer() == peer && session.greeted.is_some_and(|its| its.boot == boot)
            })
        };
        let runs = runs.entry(node).or_default();
        let verdict = runs.hello(process_boot, number, remote, false, now, lives);
        let code = match verdict {
            RunVerdict::Alone => RefusalCode::ShuttingDown,
            RunVerdict::Late => {
                debug!(%node, %remote, "the greeting of an earlier run came late");
                return Err(RefusalCode::ShuttingDown);
            }
            RunVerdict::Kept { other, found } => {
                if found {
                    warn!(%node, kept = %remote, refused = %other, "two processes use the node's identity: it was copied");
                }
                RefusalCode::IdentityInUse
            }
            RunVerdict::Refused { kept, found } => {
                if found {
                    warn!(%node, %kept, refused = %remote, "two processes use the node's identity: it was copied");
                }
                return Err(RefusalCode::IdentityInUse);
            }
        };
        let dead = sessions.live.range(..number).filter(|(_, earlier)| {
            earlier.carrier.peer() == peer
                && !earlier.restarting
                && earlier.greeted.is_some_and(|its| its.boot != process_boot)
        });
        for (_, earlier) in dead {
            if let Some(suppressed) = told::session("new run") {
                info!(%peer, suppressed, "another run of the node: the earlier run's session is closed");
            }
            earlier.carrier.close(code);
        }
        Ok(())
    }

    /// Nodes of which two processes came.
    pub(crate) fn cloned_nodes(&self) -> Vec<pb::ClonedNode> {
        let now = self.clock.mono();
        let sessions = self.lock();
        let cloned = sessions.runs.iter().filter_map(|(node, runs)| {
            let copies = runs.copies(now)?;
            Some(pb::ClonedNode {
                node_id: node.to_bytes().to_vec().into(),
                kept: copies.kept.to_string(),
                refused: copies.refused.to_string(),
                refused_ago_ms: u64::try_from(now.since(copies.refused_at).as_millis()).unwrap_or(u64::MAX),
            })
        });
        cloned.take(CLONED_MAX).collect()
    }

    /// The member of the session announced a restart (R-ADM-03).
    pub(crate) fn announce_restart(&self, number: SessionNumber) {
        let mut sessions = self.lock();
        if let Some(session) = sessions.live.get_mut(&number) {
            session.restarting = true;
            if let Some(suppressed) = told::session("restarts") {
                info!(peer = %session.carrier.peer(), suppressed, "the member restarts: its registrations are kept");
            }
        }
        sessions.registry.announce_restart(number, self.clock.mono());
    }

    /// How far this host's clock is behind what the control plane has signed, where that is too far;
    /// tells the log of it when it begins and when it ends (R-POL-05).
    pub(crate) fn look_at_clock(&self) -> Option<Duration> {
        let behind = self.policy.current().clock_behind(self.policy.now());
        if self.clock_is_behind.swap(behind.is_some(), Ordering::Relaxed) != behind.is_some()
            && let Some(suppressed) = told::session("clock")
        {
            match behind {
                Some(by) => {
                    let by_s = by.as_secs();
                    warn!(
                        suppressed,
                        "clock differs by {by_s} s: it is behind what the control plane has signed; leases end by the signed times"
                    );
                }
                None => info!(suppressed, "the clock is right again"),
            }
        }
        behind
    }

    /// Hands a liveness connection to the session that it names; back, if there is none of this
    /// member, or it has one on its way already.
    pub(crate) fn bind_live(&self, binding: LiveBinding) -> Result<(), (LiveBinding, BindRefusal)> {
        let sessions = self.lock();
        let session = sessions.live.values().find(|session| {
            session.carrier.peer() == binding.peer
                && session.greeted.is_some_and(|its| its.session == binding.session)
        });
        match session {
            None => Err((binding, BindRefusal::NoSession)),
            Some(session) => session
                .to
                .bindings
                .try_send(binding)
                .map_err(|error| match error {
                    TrySendError::Full(binding) => (binding, BindRefusal::Busy),
                    TrySendError::Closed(binding) => (binding, BindRefusal::NoSession),
                }),
        }
    }

    /// Registrations that the session has lost since the last call, other than by its own doing.
    pub(crate) fn take_withdrawn(&self, number: SessionNumber) -> BTreeMap<EndpointId, Register> {
        let mut sessions = self.lock();
        let session = sessions.live.get_mut(&number);
        session
            .map(|s| std::mem::take(&mut s.withdrawn))
            .unwrap_or_default()
    }

    /// Removes a session and what it registered.
    pub(crate) fn remove_session(&self, number: SessionNumber) {
        let mut sessions = self.lock();
        let restarting = sessions
            .live
            .remove(&number)
            .is_some_and(|session| session.restarting);
        sessions
            .registry
            .session_ended(number, restarting, self.clock.mono());
        self.count(&sessions);
    }

    /// Registers an endpoint for a session whose node policy allows it.
    ///
    /// A node keeps one session: an older one of its own that served the endpoint is given up, and
    /// is closed, so that opens that wait on it fail over at once (F-05). Another node's session is
    /// told, so that it knows, and tries again.
    pub(crate) fn register(
        &self,
        number: SessionNumber,
        node: NodeId,
        register: Register,
    ) -> Result<(), RegistryFault> {
        let mut sessions = self.lock();
        let registered = sessions.registry.register(number, node, register)?;
        if let Some((before, held)) = registered.replaced
            && let Some(before) = sessions.live.get_mut(&before)
        {
            if before.carrier.peer() == Identity::Node(node) {
                if let Some(suppressed) = told::session("replaced") {
                    info!(peer = %before.carrier.peer(), suppressed, "a newer session of the member has registered: the older one is closed");
                }
                before.carrier.close(RefusalCode::ShuttingDown);
            } else {
                before.withdraw(held);
            }
        }
        self.count(&sessions);
        Ok(())
    }

    /// A session asks for an endpoint, before anybody has judged it.
    pub(crate) fn asked(&self, number: SessionNumber, endpoint: EndpointId) {
        if let Some(session) = self.lock().live.get_mut(&number)
            && session.asked.len() < REGISTRATIONS_PER_SESSION_MAX
        {
            session.asked.insert(endpoint);
        }
    }

    /// A goodbye to one endpoint.
    pub(crate) fn unregister(&self, number: SessionNumber, register: Register) {
        let mut sessions = self.lock();
        if let Some(session) = sessions.live.get_mut(&number) {
            session.asked.remove(&register.endpoint);
        }
        sessions.registry.unregister(number, register);
        self.count(&sessions);
    }

    /// Where `endpoint` of `publisher` is served.
    pub(crate) fn served(&self, endpoint: EndpointId, publisher: NodeId) -> Served {
        let now = self.clock.mono();
        let sessions = self.lock();
        match sessions.registry.lookup(endpoint, now) {
            Lookup::Served { session, node, .. } if node == publisher => sessions
                .live
                .get(&session)
                .map_or(Served::Nobody, |session| Served::By(session.carrier.clone())),
            Lookup::Restarting { until } => Served::Restarting(until.since(now)),
            // Registered by the endpoint's former publisher only.
            Lookup::Served { .. } | Lookup::NotRegistered => {
                let settled = now.since(self.policy.in_force_since()) >= UNASKED_MIN;
                if settled && sessions.leave_out(publisher, endpoint, now) {
                    Served::Unknown
                } else {
                    Served::Nobody
                }
            }
        }
    }

    /// How near each bound is, as shares of 1; of what is bounded per node, the busiest one's
    /// (R-UI-03).
    pub(crate) fn limits_used(&self) -> Vec<(&'static str, f64)> {
        let settings = self.policy.current().settings();
        let mut most_sessions: BTreeMap<Identity, usize> = BTreeMap::new();
        for session in self.lock().live.values() {
            *most_sessions.entry(session.carrier.peer()).or_default() += 1;
        }
        let most_sessions = most_sessions.into_values().max().unwrap_or(0);
        let (quic, live) = (self.listener.stats(), self.live_listener.stats());
        let legs_max = settings.legs_per_node_max as usize;
        let opens_max = settings.pending_opens_per_node_max as usize;
        let mut shares = used_shares(&fairlead_host::resources());
        for (limit, used, max) in [
            ("legs_of_node", self.budget.most(Use::Leg), legs_max),
            ("pending_opens_of_node", self.budget.most(Use::Pending), opens_max),
            ("sessions_of_node", most_sessions, SESSIONS_PER_MEMBER_MAX),
            ("handshakes_udp", quic.pending, quic.pending_max),
            ("handshakes_tcp", live.pending, live.pending_max),
        ] {
            shares.push((limit, share(used as u64, max as u64)));
        }
        shares
    }

    /// How many sessions there are.
    pub(crate) fn sessions(&self) -> usize {
        self.lock().live.len()
    }

    /// Holds what is live against the policy in force: tunnels of revoked routes and registrations
    /// that it no longer has go (R-REV-01). Sessions look after themselves.
    pub(crate) fn enforce(&self) {
        let policy = self.policy.current();
        let now = self.policy.now();
        let closed = self
            .tunnels
            .close_where(|tunnel| match policy.live_verdict(tunnel, now) {
                LiveVerdict::Keep => None,
                LiveVerdict::Close(code) => {
                    self.metrics.closed(code);
                    Some(code)
                }
            });
        if closed > 0 {
            info!(closed, "tunnels closed by policy");
        }
        self.sweep();
        let settings = policy.settings();
        self.listener
            .set_handshakes_per_address_max(settings.handshakes_per_address_max as usize);
        self.live_listener
            .set_handshakes_per_address_max(settings.handshakes_per_address_max as usize);
        self.listener.set_carrier(&carrier_config(&settings));
    }

    /// Drops registrations whose policy or daemon is gone. Sessions are told, and try again: a daemon
    /// that has missed a short-lived policy would else take them for registered for good.
    pub(crate) fn sweep(&self) {
        let policy = self.policy.current();
        let mut sessions = self.lock();
        sessions
            .runs
            .retain(|node, _| policy.session_verdict(*node).is_ok());
        let dropped = sessions
            .registry
            .retain(self.clock.mono(), |endpoint, node, generation| {
                policy.registration_verdict(node, endpoint, generation).is_ok()
            });
        for (number, held) in dropped {
            if let Some(session) = sessions.live.get_mut(&number) {
                session.withdraw(held);
            }
        }
        self.count(&sessions);
    }

    fn count(&self, sessions: &Sessions) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.hop_sessions.set(gauge(sessions.live.len()));
        self.metrics.registrations.set(gauge(sessions.registry.len()));
    }
}

impl Sessions {
    /// Whether the publisher has been here for a while, and no session of it asks for the endpoint.
    fn leave_out(&self, publisher: NodeId, endpoint: EndpointId, now: MonoTime) -> bool {
        let its = || {
            let of = Identity::Node(publisher);
            self.live
                .values()
                .filter(move |session| session.carrier.peer() == of)
        };
        let has_settled = |session: &Session| {
            !session.restarting
                && session
                    .greeted
                    .is_some_and(|its| now.since(its.at) >= UNASKED_MIN)
        };
        its().any(has_settled) && !its().any(|session| session.asked.contains(&endpoint))
    }
}

/// How carriers behave under a policy's settings. Those that are up keep what they began with.
pub(crate) fn carrier_config(settings: &RelaySettings) -> CarrierConfig {
    CarrierConfig {
        leg_window_bytes: settings.splice_buffer_bytes,
        legs_max: streams_max(settings),
        ..CarrierConfig::default()
    }
}

/// Streams that a carrier may have open. Above the bound on legs, so that one leg too many gets its
/// refusal and is not left waiting for a stream.
pub(crate) const fn streams_max(settings: &RelaySettings) -> u32 {
    settings
        .legs_per_node_max
        .saturating_add(settings.pending_opens_per_node_max)
}

/// What [`Relay::new`] is made of.
pub(crate) struct RelayParts {
    pub(crate) id: RelayId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) policy: Arc<PolicyKeeper>,
    pub(crate) listener: Listener,
    pub(crate) live_listener: LiveListener,
    pub(crate) metrics: WorkerMetrics,
}

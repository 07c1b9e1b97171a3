//! Assembles the daemon and ends it in order.

use crate::accepted::AcceptedAssociations;
use crate::association::{Associations, StreamKind};
use crate::check::PathChecker;
use crate::config::{NodeConfig, NodeError};
use crate::consumer::Consumer;
use crate::control::{self, ControlSession};
use crate::failed::FailedTargets;
use crate::grants::VerifiedGrants;
use crate::identity::IdentityKeeper;
use crate::listen::{self, ListenerTable};
use crate::live::{EndReason, LiveStreams};
use crate::memory::Memory;
use crate::metrics::{NodeMetrics, StreamRole};
use crate::old_runs::OldRuns;
use crate::open::Unanswered;
use crate::paths::Paths;
use crate::publisher::Publisher;
use crate::relays::Relays;
use crate::resumable::Resumable;
use crate::session::{self, SessionContext};
use crate::state::NodeState;
use crate::view::{ViewKeeper, ViewReceiver};
use crate::warm;
use fairlead_hop::liveness;
use fairlead_host::headroom::{share, used_shares};
use fairlead_host::member::{MemberFolder, MemberRole, RuntimeInfo};
use fairlead_host::{Clock, FolderLock, Headroom, SystemClock, rng};
use fairlead_model::RegistrationBoot;
use fairlead_telemetry::{Health, Metrics, RateLimitedLog, Served, chain};
use fairlead_transport::{CarrierConfig, Dialler};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long live streams may take to tell their far ends that the daemon stops.
const STREAMS_END_MAX: Duration = Duration::from_secs(2);
/// How long the rest may take: goodbyes to relays and the closing of connections.
const STOP_MAX: Duration = Duration::from_secs(3);

/// Runs a node daemon until `cancel` is cancelled or it cannot go on.
///
/// Cancel safe: no. End it through `cancel`, so that streams and sockets end in order.
///
/// # Errors
/// The member folder cannot be read or is held by another process, or the daemon's identity is not
/// usable. A control plane or relays that are away are no error.
pub async fn run(config: NodeConfig, cancel: CancellationToken) -> Result<(), NodeError> {
    // Boxed: everything that the start needs at once would make every caller's future as large.
    Box::pin(start_and_wait(config, cancel, |_| {})).await
}

/// The parts of a running daemon that a test looks into.
#[derive(Debug, Clone)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests look in"))]
pub(crate) struct Started {
    /// Takes documents, as the control session does.
    pub(crate) keeper: Arc<Mutex<ViewKeeper>>,
    /// What has happened.
    pub(crate) metrics: NodeMetrics,
    /// Who is connected.
    pub(crate) relays: Relays,
    /// Who listens.
    pub(crate) listeners: ListenerTable,
    /// What is carried.
    pub(crate) live: LiveStreams,
    /// Who has started anew.
    pub(crate) old_runs: OldRuns,
    /// Whose secrets are shared.
    pub(crate) associations: Arc<Associations>,
    /// What answers.
    pub(crate) paths: Paths,
    /// What tries paths, while the daemon runs.
    pub(crate) checker: Weak<PathChecker>,
    /// The daemon's time.
    pub(crate) clock: Arc<dyn Clock>,
}

pub(crate) async fn start_and_wait(
    config: NodeConfig,
    cancel: CancellationToken,
    started: impl FnOnce(Started) + Send,
) -> Result<(), NodeError> {
    let lock = FolderLock::acquire(&config.dir)?;
    let folder = MemberFolder::new(config.dir.clone());
    let member = folder.load()?;
    let node = match member.role {
        MemberRole::Node(node) => node,
        MemberRole::Relay(relay) => return Err(NodeError::Role(relay)),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (identity, keys) = IdentityKeeper::load(folder.clone(), &member)?;
    let identity = Arc::new(identity);
    let tls = identity.tls();
    let mut state = NodeState::new(&config.dir);
    let run = state.count_boot(&*clock, lock.place())?;
    let boot = run.boot;
    let registrations = RegistrationBoot::of(boot).ok_or(NodeError::BootCount(boot))?;
    let keeper = ViewKeeper::load(node, keys, state);
    let view = keeper.subscribe();

    let registry = Metrics::new("node");
    let metrics = NodeMetrics::new(&registry);
    registry.on_scrape({
        let (metrics, view, tls, clock) = (metrics.clone(), view.clone(), tls.clone(), clock.clone());
        let stream_memory = config.memory.get();
        move || {
            let now = clock.wall();
            let view = view.borrow().clone();
            let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            let revision = view.policy().map_or(0, |policy| policy.revision.0);
            metrics.policy_revision.set(gauge(revision));
            metrics.grants.set(gauge(view.grant_count() as u64));
            let end = view.grants_end();
            let left = end.map(|end| end.since(now)).unwrap_or_default();
            metrics.grants_left.set(left.as_secs_f64());
            let left = tls.not_after().since(now);
            metrics.certificate_left.set(left.as_secs_f64());
            let mut shares = used_shares(&fairlead_host::resources());
            let reserved = u64::try_from(metrics.stream_memory.get()).unwrap_or(0);
            shares.push(("stream_memory", share(reserved, stream_memory)));
            metrics.limits(&shares);
        }
    });
    let health = Arc::new(|| Health::Ready);
    let served = match config.metrics {
        Some(address) => {
            Some(fairlead_telemetry::serve(address, registry, health, cancel.child_token()).await?)
        }
        None => None,
    };
    let metrics_url = served.as_ref().map(Served::url);

    let changed = Arc::new(Notify::new());
    let relays = Relays::new(changed.clone());
    let listeners = ListenerTable::new(changed.clone());
    let memory = Memory::new(config.memory, metrics.stream_memory.clone());
    let live = LiveStreams::new(metrics.clone(), memory);
    let streams = TaskTracker::new();
    let old_runs = OldRuns::new(live.clone());
    let associations = Arc::new(Associations::new(
        tls.clone(),
        boot,
        clock.clone(),
        old_runs.clone(),
        metrics.clone(),
        streams.clone(),
    ));
    identity.tell(associations.clone());
    let stream_config = fairlead_stream::Config {
        hold: config.hold.get(),
        ..fairlead_stream::Config::default()
    };
    let paths = Paths::new(clock.mono());
    let process_boot = rng::new_id();
    let headroom = Headroom::default();
    let memory = headroom.memory.clone();
    let publisher = Arc::new(Publisher {
        view: view.clone(),
        tls: tls.clone(),
        run,
        accepted: AcceptedAssociations::default(),
        grants: VerifiedGrants::default(),
        live: live.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
        resumable: Resumable::default(),
        failed: FailedTargets::default(),
        old_runs: old_runs.clone(),
        stream_config,
        tasks: streams.clone(),
        headroom: headroom.clone(),
    });
    let consumer = Arc::new(Consumer {
        view: view.clone(),
        relays: relays.clone(),
        associations: associations.clone(),
        live: live.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
        paths: paths.clone(),
        stream_config,
        headroom,
        turn: AtomicUsize::new(0),
        unanswered: Unanswered::default(),
        kind: StreamKind::Service,
        listeners: listeners.clone(),
    });
    let carrier = CarrierConfig {
        keep_alive: liveness::NODE_KEEP_ALIVE,
        legs_max: session::LEGS_BEFORE_WELCOME,
        ..CarrierConfig::default()
    };
    let dialler = Arc::new(Dialler::new(tls.clone(), &carrier).map_err(NodeError::Dialler)?);
    let sessions = Arc::new(SessionContext {
        dialler,
        relays: relays.clone(),
        publisher,
        clock: clock.clone(),
        metrics: metrics.clone(),
        boot: registrations,
        process_boot,
        software: config.version,
        session_numbers: AtomicU32::new(0),
        only_quic: RateLimitedLog::new(session::LOG_EVERY),
        streams: streams.clone(),
    });
    let keeper = Arc::new(Mutex::new(keeper));
    let (front, back) = (CancellationToken::new(), CancellationToken::new());
    // A dropped daemon ends its tasks too.
    let _guards = (front.clone().drop_guard(), back.clone().drop_guard());
    let checker = Arc::new(PathChecker {
        sessions: sessions.clone(),
        consumer: consumer.clone(),
        tls: tls.clone(),
        boot,
        old_runs: old_runs.clone(),
        tasks: streams.clone(),
    });
    started(Started {
        keeper: keeper.clone(),
        metrics: metrics.clone(),
        relays: relays.clone(),
        listeners: listeners.clone(),
        live: live.clone(),
        old_runs: old_runs.clone(),
        associations: associations.clone(),
        paths: paths.clone(),
        checker: Arc::downgrade(&checker),
        clock: clock.clone(),
    });
    let watched = paths.watch(consumer.clone(), back.clone());
    let warm = warm::keep(associations, relays.clone(), view.clone(), front.clone());
    let control = Arc::new(ControlSession {
        address: member.control.clone(),
        server_name: member.grpc_server_name.clone(),
        version: config.version,
        process: control::this_process(process_boot),
        checker,
        tls,
        identity,
        keeper,
        relays,
        listeners: listeners.clone(),
        live: live.clone(),
        clock: clock.clone(),
        metrics,
        metrics_url: metrics_url.clone().unwrap_or_default(),
        teller: folder.session_teller(),
        changed,
        policy_refused: Mutex::default(),
    });

    let mut parts: JoinSet<&'static str> = JoinSet::new();
    parts.spawn(named(
        "hop sessions",
        session::keep_all(sessions.clone(), view.clone(), back.clone()),
    ));
    parts.spawn(named(
        "listeners",
        listen::listen_all(consumer, listeners, view.clone(), streams.clone(), front.clone()),
    ));
    parts.spawn(named("control session", control::keep(control, front.clone())));
    parts.spawn(named("associations", warm));
    parts.spawn(named("paths", watched));
    parts.spawn(named("memory", memory.run(back.clone())));
    parts.spawn(named("old runs", old_runs.end_all(clock, back.clone())));
    parts.spawn(named("revocation", end_revoked(view, live.clone(), back.clone())));

    let info = RuntimeInfo {
        pid: std::process::id(),
        metrics_url,
        listen: None,
    };
    let announced = folder.announce(info);
    fairlead_host::notify_ready();
    tracing::info!(%node, name = %member.name, %boot, "node daemon runs");

    let ended = tokio::select! {
        () = cancel.cancelled() => Ok(()),
        part = parts.join_next() => Err(NodeError::Ended(part.and_then(Result::ok).unwrap_or("task"))),
    };
    fairlead_host::notify_stopping();
    front.cancel();
    live.end(EndReason::Stopping, |_| true);
    streams.close();
    let _ = tokio::time::timeout(STREAMS_END_MAX, streams.wait()).await;
    back.cancel();
    let rest = async {
        while parts.join_next().await.is_some() {}
        sessions.dialler.close().await;
    };
    let _ = tokio::time::timeout(STOP_MAX, rest).await;
    announced.end().await;
    if let Err(error) = folder.remove_runtime() {
        tracing::warn!(error = chain(&error), "runtime.json stays behind");
    }
    tracing::info!("node daemon stopped");
    ended
}

async fn named(name: &'static str, part: impl Future<Output = ()>) -> &'static str {
    part.await;
    name
}

/// Ends live streams whose route the policy no longer permits (R-REV-01).
async fn end_revoked(mut view: ViewReceiver, live: LiveStreams, cancel: CancellationToken) {
    loop {
        let now = view.borrow_and_update().clone();
        let ended = live.end(EndReason::Revoked, |stream| match stream.role {
            StreamRole::Consumer => !now.consumes(stream.route),
            StreamRole::Publisher => !now.publishes(stream.route, stream.peer),
        });
        if ended > 0 {
            tracing::info!(ended, "streams of revoked routes reset");
        }
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            () = cancel.cancelled() => return,
        }
    }
}

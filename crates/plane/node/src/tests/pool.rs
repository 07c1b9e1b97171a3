//! A pool in one process: relays' workers, nodes `alpha` (consumer) and `beta` (publisher).

use super::authority::Authority;
use crate::config::{NodeConfig, StreamHold, StreamMemory};
use crate::metrics::StreamRole;
use crate::run::{Started, start_and_wait};
use fairlead_host::member::{MemberFolder, MemberRole};
use fairlead_host::{Clock, SystemClock};
use fairlead_model::{
    EndpointId, Generation, LeaderTerm, LeaseSeq, ListenAddress, NodeId, PolicyEpoch, RefusalCode, RelayId,
    Revision, RouteId, ServiceClass, TargetAddress,
};
use fairlead_rpc::pb;
use fairlead_rpc::pb::worker_control_client::WorkerControlClient;
use fairlead_trust::{
    Consumption, Grant, Keyring, NodePolicy, NodeRelay, PolicyEndpoint, PolicyLease, PolicyRoute,
    Publication, PublishedRoute, RelayPolicy, RelaySettings,
};
use fairlead_worker::WorkerConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const ALPHA: NodeId = NodeId::from_bytes([0xa; 16]);
pub(crate) const BETA: NodeId = NodeId::from_bytes([0xb; 16]);
/// Longest wait for anything that a test expects.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Threads of each daemon.
const WORKER_THREADS: usize = 2;

/// A daemon with a runtime of its own, so that it can be killed: every task and socket at once, and
/// no goodbye.
struct Running {
    cancel: CancellationToken,
    task: JoinHandle<()>,
    runtime: Option<Runtime>,
}

impl Running {
    fn start<F: Future<Output = ()> + Send + 'static>(daemon: impl FnOnce(CancellationToken) -> F) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKER_THREADS)
            .enable_all()
            .build()
            .unwrap();
        let cancel = CancellationToken::new();
        let task = runtime.spawn(daemon(cancel.clone()));
        Self {
            cancel,
            task,
            runtime: Some(runtime),
        }
    }

    async fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE))
            .await
            .unwrap();
    }

    async fn stop(mut self) {
        self.cancel.cancel();
        (&mut self.task).await.unwrap();
        self.kill().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A node daemon.
pub(crate) struct Node {
    dir: PathBuf,
    running: Option<Running>,
    hold: StreamHold,
    memory: StreamMemory,
    pub(crate) started: Started,
}

/// A relay's worker.
pub(crate) struct Worker {
    pub(crate) id: RelayId,
    dir: PathBuf,
    pub(crate) address: SocketAddr,
    running: Option<Running>,
}

/// A stopped worker.
pub(crate) struct Frozen(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Frozen {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// One link from alpha to beta.
#[derive(Clone)]
pub(crate) struct TestLink {
    pub(crate) route: RouteId,
    pub(crate) endpoint: EndpointId,
    pub(crate) listen: SocketAddr,
    pub(crate) target: TargetAddress,
    pub(crate) granted: bool,
    pub(crate) revoked: bool,
}

/// The pool. Documents follow `links` at each [`publish`](Self::publish).
pub(crate) struct Pool {
    pub(crate) authority: Authority,
    pub(crate) workers: Vec<Worker>,
    pub(crate) alpha: Node,
    pub(crate) beta: Node,
    pub(crate) links: Vec<TestLink>,
    /// Keys that beta's policy takes grants by.
    pub(crate) beta_grant_keys: Keyring,
    /// Relays that are none of `workers`.
    pub(crate) strangers: Vec<NodeRelay>,
    /// Relays of alpha's consumptions, where they are not all.
    pub(crate) consumed_through: Option<Vec<RelayId>>,
    /// Other addresses of relays, as one node's policy names them.
    pub(crate) detours: Vec<(NodeId, RelayId, SocketAddr)>,
    revision: u64,
    _root: tempfile::TempDir,
}

impl Pool {
    /// A pool of `relays` relays with one link to each of `targets`, ready for traffic.
    pub(crate) async fn start(relays: usize, targets: &[String]) -> Self {
        Self::start_with(relays, targets, StreamHold::DEFAULT, [StreamMemory::DEFAULT; 2]).await
    }

    /// The same, with streams held for `hold`.
    pub(crate) async fn start_with_hold(relays: usize, targets: &[String], hold: StreamHold) -> Self {
        Self::start_with(relays, targets, hold, [StreamMemory::DEFAULT; 2]).await
    }

    /// The same, with `memory` for the streams of alpha and of beta.
    pub(crate) async fn start_with(
        relays: usize,
        targets: &[String],
        hold: StreamHold,
        memory: [StreamMemory; 2],
    ) -> Self {
        if let Ok(filter) = std::env::var("FAIRLEAD_LOG") {
            let _ = fairlead_telemetry::init(fairlead_telemetry::LogFormat::Text, Some(&filter));
        }
        let root = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let mut workers = Vec::new();
        for n in 0..relays {
            let dir = root.path().join(format!("relay-{n}"));
            workers.push(Worker::start(&authority, n, dir).await);
        }
        let alpha = Node::start(&authority, ALPHA, root.path().join("alpha"), hold, memory[0]).await;
        let beta = Node::start(&authority, BETA, root.path().join("beta"), hold, memory[1]).await;
        let links = (1..)
            .zip(targets)
            .map(|(n, target)| TestLink::new(n, target, "127.0.0.1:0"))
            .collect();
        let mut pool = Self {
            beta_grant_keys: keyring(&authority.grant_key),
            authority,
            workers,
            alpha,
            beta,
            links,
            strangers: Vec::new(),
            consumed_through: None,
            detours: Vec::new(),
            revision: 0,
            _root: root,
        };
        pool.publish().await;
        pool.ready().await;
        pool
    }

    /// Signs the documents of `links` anew and gives them to everybody.
    pub(crate) async fn publish(&mut self) {
        self.revision += 1;
        for worker in &self.workers {
            worker.apply(self).await;
        }
        self.beta
            .offer_policy(&self.authority.node_policy(&self.beta_policy()));
        self.alpha
            .offer_policy(&self.authority.node_policy(&self.alpha_policy()));
        let grants = self.links.iter().filter(|l| l.granted).map(|l| self.grant(l));
        self.alpha.offer_grants(grants.collect());
    }

    /// Gives the relays alone what is wanted: the nodes are out of reach of the control plane.
    pub(crate) async fn publish_to_relays(&mut self) {
        self.revision += 1;
        for worker in &self.workers {
            worker.apply(self).await;
        }
    }

    /// Publishes, ends every hop session, and waits until all are made anew at the addresses that
    /// policy has by then.
    pub(crate) async fn redial(&mut self) {
        self.publish().await;
        for node in [&self.alpha, &self.beta] {
            for session in node.started.relays.sessions().values() {
                session.carrier.close(RefusalCode::ShuttingDown);
            }
        }
        for node in [&self.alpha, &self.beta] {
            eventually("the sessions to end", || {
                let sessions = node.started.relays.sessions();
                sessions.values().all(|s| s.carrier.end().is_none())
            })
            .await;
        }
        self.ready().await;
    }

    /// Waits until every session is up, every endpoint registered and every listener bound.
    pub(crate) async fn ready(&self) {
        let live = self.links.iter().filter(|l| !l.revoked).count();
        let relays = self.workers.len() + self.strangers.len();
        eventually("the pool to be ready", || {
            let registered = |n: &Node| {
                n.started
                    .relays
                    .reach()
                    .iter()
                    .map(|(_, r)| r.registered.len())
                    .sum::<usize>()
            };
            let connected = |n: &Node| n.started.relays.sessions().len() == relays;
            let bound = self.alpha.started.listeners.states();
            connected(&self.alpha)
                && connected(&self.beta)
                && registered(&self.beta) == live * relays
                && bound.len() == live
                && bound.iter().all(|(_, state)| state.bound.is_ok())
        })
        .await;
    }

    /// Connects to a link as an application does.
    pub(crate) async fn connect(&self, link: usize) -> TcpStream {
        TcpStream::connect(self.links[link].listen).await.unwrap()
    }

    pub(crate) fn grant(&self, link: &TestLink) -> bytes::Bytes {
        let now = SystemClock::new().wall();
        self.authority.grant(&Grant {
            consumer: ALPHA,
            publisher: BETA,
            endpoint: link.endpoint,
            route: link.route,
            generation: Generation(1),
            epoch: PolicyEpoch(1),
            revision: Revision(1),
            not_before: now,
            not_after: now.plus(Duration::from_secs(3600)),
        })
    }

    /// Beta's policy after the next change, for a test that tells nobody else.
    pub(crate) fn next_beta_policy(&mut self) -> NodePolicy {
        self.revision += 1;
        self.beta_policy()
    }

    fn relays(&self, node: NodeId) -> Vec<NodeRelay> {
        let address = |w: &Worker| {
            let detour = self.detours.iter().find(|(n, r, _)| (*n, *r) == (node, w.id));
            detour.map_or(w.address, |(_, _, address)| *address)
        };
        let relay = |w: &Worker| NodeRelay {
            relay: w.id,
            name: format!("relay-{}", w.id.to_bytes()[0]).parse().unwrap(),
            address: address(w).into(),
            failure_domain: format!("h{}", w.id.to_bytes()[0]).parse().unwrap(),
        };
        self.workers
            .iter()
            .map(relay)
            .chain(self.strangers.iter().cloned())
            .collect()
    }

    fn node_policy(&self, node: NodeId, keys: &Keyring) -> NodePolicy {
        NodePolicy {
            node,
            epoch: PolicyEpoch(1),
            revision: Revision(self.revision),
            leader_term: LeaderTerm(1),
            issued_at: SystemClock::new().wall(),
            relays: self.relays(node),
            publications: Vec::new(),
            consumptions: Vec::new(),
            revoked_routes: self.links.iter().filter(|l| l.revoked).map(|l| l.route).collect(),
            grant_keys: keys.clone(),
        }
    }

    fn alpha_policy(&self) -> NodePolicy {
        let all = || self.relays(ALPHA).iter().map(|r| r.relay).collect();
        let relays: Vec<RelayId> = self.consumed_through.clone().unwrap_or_else(all);
        let links = self.links.iter().filter(|l| !l.revoked);
        NodePolicy {
            consumptions: links
                .map(|l| Consumption {
                    route: l.route,
                    endpoint: l.endpoint,
                    generation: Generation(1),
                    publisher: BETA,
                    link: "link".parse().unwrap(),
                    listen: ListenAddress(l.listen),
                    class: ServiceClass::Standard,
                    relays: relays.clone(),
                })
                .collect(),
            ..self.node_policy(ALPHA, &keyring(&self.authority.grant_key))
        }
    }

    fn beta_policy(&self) -> NodePolicy {
        let relays: Vec<RelayId> = self.relays(BETA).iter().map(|r| r.relay).collect();
        let links = self.links.iter().filter(|l| !l.revoked);
        NodePolicy {
            publications: links
                .map(|l| Publication {
                    endpoint: l.endpoint,
                    generation: Generation(1),
                    link: "link".parse().unwrap(),
                    target: l.target.clone(),
                    class: ServiceClass::Standard,
                    relays: relays.clone(),
                    routes: vec![PublishedRoute {
                        route: l.route,
                        consumer: ALPHA,
                        revision_min: Revision(1),
                    }],
                })
                .collect(),
            ..self.node_policy(BETA, &self.beta_grant_keys)
        }
    }
}

pub(crate) fn keyring(key: &fairlead_trust::SigningKey) -> Keyring {
    Keyring::new([key.verifying_key()]).unwrap()
}

impl TestLink {
    /// A link numbered `n`; a listening port 0 becomes a free one.
    pub(crate) fn new(n: u8, target: &str, listen: &str) -> Self {
        // Bound and let go: nobody else takes it in the moment between.
        let listen = std::net::TcpListener::bind(listen).unwrap().local_addr().unwrap();
        Self {
            route: RouteId::from_bytes([n; 16]),
            endpoint: EndpointId::from_bytes([n; 16]),
            listen,
            target: target.parse().unwrap(),
            granted: true,
            revoked: false,
        }
    }
}

impl Worker {
    async fn start(authority: &Authority, n: usize, dir: PathBuf) -> Self {
        let id = RelayId::from_bytes([u8::try_from(n + 1).unwrap(); 16]);
        authority.enrol(&dir, MemberRole::Relay(id), None);
        let mut worker = Self {
            id,
            dir,
            address: "127.0.0.1:0".parse().unwrap(),
            running: None,
        };
        worker.restart().await;
        worker
    }

    /// Ends the worker as a kill would: no goodbye to anybody.
    pub(crate) async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill().await;
        }
    }

    /// Ends the worker in order.
    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    /// Stops it as SIGSTOP would: its sockets stay, and nothing reads them until the guard is dropped.
    pub(crate) fn freeze(&self) -> Frozen {
        let runtime = self.running.as_ref().and_then(|r| r.runtime.as_ref()).unwrap();
        let frozen = Frozen(Arc::default());
        let stopped = Arc::new(std::sync::Barrier::new(WORKER_THREADS + 1));
        for _ in 0..WORKER_THREADS {
            let (held, stopped) = (frozen.0.clone(), stopped.clone());
            runtime.spawn(async move {
                stopped.wait();
                let (thawed, wake) = &*held;
                let thawed = thawed.lock().unwrap();
                drop(wake.wait_while(thawed, |thawed| !*thawed).unwrap());
            });
        }
        stopped.wait();
        frozen
    }

    /// Starts it in the same folder, on the same port.
    pub(crate) async fn restart(&mut self) {
        let config = WorkerConfig {
            dir: self.dir.clone(),
            listen: self.address,
            metrics: Some("127.0.0.1:0".parse().unwrap()),
            version: "test",
        };
        let runtime = self.dir.join("worker/runtime.json");
        let _ = std::fs::remove_file(&runtime);
        self.running = Some(Running::start(|cancel| async move {
            fairlead_worker::run(config, cancel).await.unwrap();
        }));
        eventually("the worker to listen", || runtime.exists()).await;
        let info = std::fs::read_to_string(&runtime).unwrap();
        let listen = info
            .split("\"listen\":")
            .nth(1)
            .unwrap()
            .split('"')
            .nth(1)
            .unwrap();
        self.address = listen.trim_start_matches("udp://").parse().unwrap();
    }

    /// How many endpoints are registered at it.
    pub(crate) async fn registrations(&self) -> u64 {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let runtime = fairlead_host::member::read_runtime(&self.dir.join("worker/runtime.json"));
        let url = runtime.unwrap().unwrap().metrics_url.unwrap();
        let host = url.trim_start_matches("http://").trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(host).await.unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        let line = page
            .lines()
            .find_map(|l| l.strip_prefix("fairlead_registrations "));
        line.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
    }

    async fn apply(&self, pool: &Pool) {
        let clock = SystemClock::new();
        let links = || pool.links.iter().filter(|l| !l.revoked);
        let policy = RelayPolicy {
            relay: self.id,
            epoch: PolicyEpoch(1),
            revision: Revision(pool.revision),
            leader_term: LeaderTerm(1),
            issued_at: clock.wall(),
            endpoints: links()
                .map(|l| PolicyEndpoint {
                    endpoint: l.endpoint,
                    generation: Generation(1),
                    publisher: BETA,
                    class: ServiceClass::Standard,
                })
                .collect(),
            routes: links()
                .map(|l| PolicyRoute {
                    route: l.route,
                    consumer: ALPHA,
                    endpoint: l.endpoint,
                })
                .collect(),
            nodes: vec![ALPHA, BETA],
            revoked_routes: pool.links.iter().filter(|l| l.revoked).map(|l| l.route).collect(),
            grant_keys: keyring(&pool.authority.grant_key),
            settings: RelaySettings::DEFAULT,
        };
        let (policy_envelope, root) = pool.authority.relay_policy(&policy);
        let lease_envelope = pool.authority.lease(&PolicyLease {
            relay: self.id,
            epoch: PolicyEpoch(1),
            revision: Revision(pool.revision),
            root,
            not_before: clock.wall(),
            not_after: clock.wall().plus(Duration::from_secs(3600)),
            seq: LeaseSeq(pool.revision),
            leader_term: LeaderTerm(1),
        });
        let channel = fairlead_rpc::channel::unix(&self.dir.join("worker/worker.sock"))
            .await
            .unwrap();
        let answer = WorkerControlClient::new(channel)
            .apply_policy(pb::SignedPolicy {
                policy_envelope,
                lease_envelope,
            })
            .await
            .unwrap()
            .into_inner();
        assert!(answer.applied, "{}", answer.refused);
    }
}

impl Node {
    async fn start(
        authority: &Authority,
        id: NodeId,
        dir: PathBuf,
        hold: StreamHold,
        memory: StreamMemory,
    ) -> Self {
        authority.enrol(&dir, MemberRole::Node(id), None);
        let (running, started) = run_node(&dir, hold, memory).await;
        Self {
            dir,
            hold,
            memory,
            running: Some(running),
            started,
        }
    }

    /// Ends the daemon as a kill would and starts it in the same folder.
    pub(crate) async fn kill_and_restart(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill().await;
        }
        let (running, started) = run_node(&self.dir, self.hold, self.memory).await;
        self.running = Some(running);
        self.started = started;
    }

    /// Copies the daemon's folder and starts another one in it.
    pub(crate) async fn start_copy(&self) -> Self {
        let dir = self.dir.with_extension("copy");
        copy_folder(&self.dir, &dir);
        let (running, started) = run_node(&dir, self.hold, self.memory).await;
        Self {
            dir,
            hold: self.hold,
            memory: self.memory,
            running: Some(running),
            started,
        }
    }

    /// Ends the daemon in order.
    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    pub(crate) fn folder(&self) -> MemberFolder {
        MemberFolder::new(self.dir.clone())
    }

    pub(crate) fn offer_policy(&self, envelope: &bytes::Bytes) {
        let mut keeper = self.started.keeper.lock().unwrap();
        assert!(keeper.offer_policy(envelope.clone()).unwrap());
    }

    pub(crate) fn offer_grants(&self, grants: Vec<bytes::Bytes>) {
        self.started.keeper.lock().unwrap().offer_grants(grants).unwrap();
    }

    /// How many streams were refused with `code`.
    pub(crate) fn refused(&self, role: StreamRole, code: RefusalCode) -> u64 {
        self.started.metrics.refused_count(role, code)
    }
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::set_permissions(to, std::fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

async fn run_node(dir: &std::path::Path, hold: StreamHold, memory: StreamMemory) -> (Running, Started) {
    let config = NodeConfig {
        dir: dir.to_owned(),
        metrics: None,
        hold,
        memory,
        version: "test",
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let running = Running::start(|cancel| async move {
        let tell = move |started| drop(sender.send(started));
        Box::pin(start_and_wait(config, cancel, tell)).await.unwrap();
    });
    (running, receiver.await.unwrap())
}

/// Waits until `condition` holds; what it watches has no event to await from outside.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

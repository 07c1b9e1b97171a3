//! The control plane under test, and members that hold what they are given as real ones do.

mod node;
mod tls;

pub use node::{Node, NodeView};
pub use tls::client_config;

use fairlead_control::api::{AddLink, AddRelay, EnrolRequest, Enrolled, Principal};
use fairlead_control::{Control, ControlFolder, ControlSettings};
use fairlead_host::{Clock, SystemClock};
use fairlead_model::{BootTime, HostPort, Identity, MonoTime, NodeId, RelayId, RouteId, WallTime};
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_rpc::pb::{self, relay_down, relay_up};
use fairlead_rpc::{GRPC_SERVER_NAME, signed};
use fairlead_telemetry::Metrics;
use fairlead_trust::admission::{Applied, HostBoot, Now, PolicyHead};
use fairlead_trust::{Keyring, RelayAdmission, VerifyingKey};
use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Longest wait for anything; hitting it is a failure.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// The real clocks, which tests push forward.
#[derive(Debug, Default)]
pub struct TestClock {
    system: SystemClock,
    wall_ms: AtomicI64,
    mono_ms: AtomicU64,
}

impl TestClock {
    /// All clocks go on by `by`.
    pub fn pass(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap();
        self.mono_ms.fetch_add(ms, Ordering::SeqCst);
        self.wall_ms
            .fetch_add(i64::try_from(ms).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn wall(&self) -> WallTime {
        WallTime(self.system.wall().0 + self.wall_ms.load(Ordering::SeqCst))
    }
    fn boot(&self) -> BootTime {
        BootTime(self.system.boot().0 + self.mono_ms.load(Ordering::SeqCst))
    }
    fn mono(&self) -> MonoTime {
        let passed = Duration::from_millis(self.mono_ms.load(Ordering::SeqCst));
        self.system.mono().plus(passed)
    }
}

/// A control plane that is served.
pub struct Plane {
    pub control: Control,
    pub admin: Principal,
    pub clock: Arc<TestClock>,
    pub address: HostPort,
    pub metrics: Metrics,
    cancel: CancellationToken,
    serving: JoinHandle<()>,
    runtime: Runtime,
}

async fn end(runtime: Runtime) {
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(WAIT_MAX));
    ended.await.unwrap();
}

impl Plane {
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(dir, true, Arc::default()).await
    }

    pub async fn start_with(dir: &Path, lab: bool, clock: Arc<TestClock>) -> Self {
        // A runtime of its own, so that it can end at once with everything that runs in it.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let cancel = CancellationToken::new();
        let (opened, is_open) = tokio::sync::oneshot::channel();
        let metrics = Metrics::new("control");
        let its_metrics = Some(metrics.clone());
        let (dir, its_clock, its_cancel) = (dir.to_owned(), clock.clone(), cancel.clone());
        let serving = runtime.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let address = HostPort::from_ip(address.ip(), address.port());
            let settings = ControlSettings {
                lab,
                metrics: its_metrics,
                ..ControlSettings::new(dir.clone(), address.clone())
            };
            let control = Control::open(settings, its_clock).await.unwrap();
            let token = std::fs::read_to_string(ControlFolder::new(&dir).admin_token_path()).unwrap();
            let admin = control.authenticate(token.trim()).await.unwrap();
            let _ = opened.send((control.clone(), admin, address));
            let rest = axum::Router::new();
            fairlead_control::serve(control, rest, listener, its_cancel)
                .await
                .unwrap();
        });
        let (control, admin, address) = is_open.await.unwrap();
        Self {
            control,
            admin,
            clock,
            address,
            metrics,
            cancel,
            serving,
            runtime,
        }
    }

    /// Stops serving, and gives up the folder.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.serving.await.unwrap();
        drop(self.control);
        end(self.runtime).await;
    }

    /// Ends everything at once, as far as a process can do that to a part of itself: nobody is told
    /// good-bye, nothing is written any more.
    pub async fn kill(self) {
        drop(self.control);
        end(self.runtime).await;
    }

    pub async fn add_relay(&self, name: &str) -> String {
        let n: u32 = name.bytes().map(u32::from).sum();
        let input = AddRelay {
            name: name.to_owned(),
            address: format!("192.0.2.{}:9443", n % 250),
            ..AddRelay::default()
        };
        self.control.add_relay(&self.admin, input).await.unwrap().token
    }

    pub async fn relay(&self, name: &str) -> Member {
        let token = self.add_relay(name).await;
        Member::enrol(self, "relay", &token).await
    }

    pub async fn node(&self, name: &str) -> Member {
        let token = self.control.add_node(&self.admin, name).await.unwrap().token;
        Member::enrol(self, "node", &token).await
    }

    pub async fn link(&self, name: &str, from: &str, to: &str, port: u16) -> RouteId {
        let input = AddLink {
            name: name.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            target: "127.0.0.1:5432".to_owned(),
            listen: format!("127.0.0.1:{port}"),
            class: None,
        };
        self.control.add_link(&self.admin, input).await.unwrap().route
    }

    /// Waits until `check` holds of the control plane's views.
    pub async fn until(&self, what: &str, check: impl AsyncFn(&Control) -> bool) {
        let waited = tokio::time::timeout(WAIT_MAX, async {
            // Views have no event: they are looked at again and again.
            while !check(&self.control).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        if waited.await.is_err() {
            let relays = self.control.relays().await;
            let nodes = self.control.nodes().await;
            let links = self.control.links().await;
            panic!("never came to be: {what}\n{relays:#?}\n{nodes:#?}\n{links:#?}");
        }
    }

    /// Waits until the control plane has noticed the end of a member's session: when it was last seen goes
    /// on with the clock until then, and stands afterwards.
    pub async fn until_away(&self, last_seen: impl AsyncFn(&Control) -> Option<WallTime>) {
        let step = Duration::from_millis(50);
        self.until("it is away", async |c| {
            let before = last_seen(c).await;
            self.clock.pass(step);
            let after = last_seen(c).await;
            before
                .zip(after)
                .is_some_and(|(before, after)| after < before.plus(step / 2))
        })
        .await;
    }

    pub fn clock_wall(&self) -> WallTime {
        self.clock.wall()
    }

    pub async fn actions(&self) -> Vec<String> {
        let entries = self.control.audit(0, 1000).await.unwrap();
        entries.into_iter().map(|e| e.action).collect()
    }
}

/// An enrolling request of a host.
pub fn request(plane: &Plane, role: &str, token: &str, host: &str, key: &KeyPair) -> EnrolRequest {
    let csr = CertificateParams::default().serialize_request(key).unwrap();
    let digest: String = host.bytes().map(|b| format!("{b:02x}")).collect();
    EnrolRequest {
        token: token.to_owned(),
        role: role.to_owned(),
        csr_pem: csr.pem().unwrap(),
        version: "0.1.0".to_owned(),
        host_fingerprint: BTreeMap::from([("host_key".to_owned(), digest)]),
        wall_clock: Some(plane.clock.wall()),
    }
}

pub const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An enrolled member's identity.
#[derive(Clone)]
pub struct Member {
    pub enrolled: Enrolled,
    pub key: Arc<KeyPair>,
    pub tls: Arc<ClientConfig>,
}

impl Member {
    pub async fn enrol(plane: &Plane, role: &str, token: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let request = request(plane, role, token, token, &key);
        let enrolled = plane.control.enrol(request, FROM).await.unwrap();
        let tls = client_config(&enrolled.ca_pem, Some((&enrolled.certificate_chain_pem, &key)));
        Self {
            enrolled,
            key: Arc::new(key),
            tls,
        }
    }

    pub async fn channel(&self, plane: &Plane) -> Channel {
        fairlead_rpc::channel::connect(&plane.address, self.tls.clone(), GRPC_SERVER_NAME)
            .await
            .unwrap()
    }

    pub async fn client(&self, plane: &Plane) -> MemberControlClient<Channel> {
        MemberControlClient::new(self.channel(plane).await)
    }

    pub fn policy_keys(&self) -> Keyring {
        let keys = self.enrolled.policy_keys.iter();
        Keyring::new(keys.map(|k| VerifyingKey::from_bytes(k).unwrap())).unwrap()
    }

    pub fn relay_id(&self) -> RelayId {
        match self.enrolled.identity {
            Identity::Relay(id) => id,
            other => panic!("{other:?}"),
        }
    }

    pub fn node_id(&self) -> NodeId {
        match self.enrolled.identity {
            Identity::Node(id) => id,
            other => panic!("{other:?}"),
        }
    }
}

/// What a relay holds, and what it does when it is asked.
#[derive(Debug, Clone)]
pub struct RelayView {
    pub admission: RelayAdmission,
    /// Policies with their leases, and leases alone, that came.
    pub policies: usize,
    pub leases: usize,
    /// Ids of relays that it was asked to probe.
    pub probed: Vec<RelayId>,
    /// What was refused.
    pub refused: Vec<String>,
    pub ended: Option<String>,
}

/// A supervisor with its worker.
pub struct Relay {
    pub member: Member,
    pub view: watch::Receiver<RelayView>,
    /// Ports that its probes find closed.
    pub closed: watch::Sender<BTreeSet<RelayId>>,
    up: mpsc::Sender<pb::RelayUp>,
    clock: Arc<TestClock>,
    tasks: JoinSet<()>,
}

fn now(clock: &TestClock) -> Now {
    Now {
        wall: clock.wall(),
        boot: clock.boot(),
    }
}

impl Relay {
    pub async fn connect(plane: &Plane, member: &Member) -> Self {
        let admission = RelayAdmission::new(member.relay_id(), HostBoot([1; 16]));
        Self::connect_with(plane, member, admission).await
    }

    /// Connects with what it held before.
    pub async fn connect_with(plane: &Plane, member: &Member, admission: RelayAdmission) -> Self {
        let (up, ups) = mpsc::channel(64);
        let hello = pb::RelayHello {
            version: "0.1.0".to_owned(),
            wall_clock_ms: plane.clock.wall().0,
            applied: admission.head().map(pb::PolicyHead::from),
            trust_bundle_version: member.enrolled.trust_bundle_version,
            ..pb::RelayHello::default()
        };
        up.send(relay_up(relay_up::Body::Hello(hello))).await.unwrap();
        up.send(status(admission.head())).await.unwrap();
        let mut client = member.client(plane).await;
        let downs = client
            .relay_session(ReceiverStream::new(ups))
            .await
            .unwrap()
            .into_inner();
        let (sender, view) = watch::channel(RelayView {
            admission,
            policies: 0,
            leases: 0,
            probed: Vec::new(),
            refused: Vec::new(),
            ended: None,
        });
        let (closed, closed_now) = watch::channel(BTreeSet::new());
        let mut tasks = JoinSet::new();
        let (keys, clock, answers) = (member.policy_keys(), plane.clock.clone(), up.clone());
        tasks.spawn(async move { relay_task(downs, keys, clock, sender, closed_now, answers).await });
        Self {
            member: member.clone(),
            view,
            closed,
            up,
            clock: plane.clock.clone(),
            tasks,
        }
    }

    pub fn id(&self) -> RelayId {
        self.member.relay_id()
    }

    pub fn now(&self) -> Now {
        now(&self.clock)
    }

    /// Reports once more.
    pub async fn report(&self) {
        let head = self.view.borrow().admission.head();
        self.up.send(status(head)).await.unwrap();
    }

    /// Reports once more, with a change.
    pub async fn report_with(&self, change: impl FnOnce(&mut pb::RelayStatus)) {
        let mut report = status(self.view.borrow().admission.head());
        if let Some(relay_up::Body::Status(status)) = &mut report.body {
            change(status);
        }
        self.up.send(report).await.unwrap();
    }

    /// Waits until `check` holds of what it has got.
    pub async fn until(&self, what: &str, check: impl FnMut(&RelayView) -> bool) -> RelayView {
        wait(&self.view, what, check).await
    }

    /// Says that it stops; its session stays open.
    pub async fn say_goodbye(&self) {
        let goodbye = relay_up::Body::Goodbye(pb::Goodbye {});
        self.up.send(relay_up(goodbye)).await.unwrap();
    }

    /// Ends its session without a word.
    pub async fn vanish(mut self) -> RelayAdmission {
        self.tasks.shutdown().await;
        self.view.borrow().admission.clone()
    }
}

async fn wait<T: Clone + std::fmt::Debug>(
    view: &watch::Receiver<T>,
    what: &str,
    check: impl FnMut(&T) -> bool,
) -> T {
    let mut watched = view.clone();
    let waited = tokio::time::timeout(WAIT_MAX, watched.wait_for(check)).await;
    match waited {
        Ok(Ok(held)) => held.clone(),
        Ok(Err(_)) | Err(_) => panic!("never came to be: {what}\n{:#?}", *view.borrow()),
    }
}

fn relay_up(body: relay_up::Body) -> pb::RelayUp {
    pb::RelayUp { body: Some(body) }
}

fn status(head: Option<PolicyHead>) -> pb::RelayUp {
    relay_up(relay_up::Body::Status(pb::RelayStatus {
        worker_state: pb::WorkerState::Listening.into(),
        worker_version: "0.1.0".to_owned(),
        worker_pid: 7,
        applied: head.map(pb::PolicyHead::from),
        ..pb::RelayStatus::default()
    }))
}

async fn relay_task(
    mut downs: Streaming<pb::RelayDown>,
    keys: Keyring,
    clock: Arc<TestClock>,
    view: watch::Sender<RelayView>,
    closed: watch::Receiver<BTreeSet<RelayId>>,
    up: mpsc::Sender<pb::RelayUp>,
) {
    let ended = loop {
        let body = match downs.message().await {
            Ok(Some(down)) => down.body.unwrap(),
            Ok(None) => break "closed".to_owned(),
            Err(status) => break status.message().to_owned(),
        };
        let held = view.borrow().admission.clone();
        let answer = match body {
            relay_down::Body::Policy(signed) => {
                let policy = signed::open_relay_policy(&keys, &signed.policy_envelope).unwrap();
                let lease = signed::open_policy_lease(&keys, &signed.lease_envelope).unwrap();
                view.send_modify(|v| v.policies += 1);
                Some(held.apply_policy(policy, lease, now(&clock)))
            }
            relay_down::Body::LeaseEnvelope(lease) => {
                let lease = signed::open_policy_lease(&keys, &lease).unwrap();
                view.send_modify(|v| v.leases += 1);
                Some(held.apply_lease(lease, now(&clock)))
            }
            relay_down::Body::Probe(probe) => {
                let relay = RelayId::from_slice(&probe.relay_id).unwrap();
                let reachable = !closed.borrow().contains(&relay);
                view.send_modify(|v| v.probed.push(relay));
                let report = pb::ProbeReport {
                    request_id: probe.request_id,
                    relay_id: probe.relay_id,
                    reachable,
                    error: if reachable {
                        String::new()
                    } else {
                        "nobody answers".to_owned()
                    },
                    rtt_us: 100,
                };
                let _ = up.send(relay_up(relay_up::Body::ProbeReport(report))).await;
                None
            }
            relay_down::Body::Welcome(_) | relay_down::Body::TrustBundle(_) => None,
        };
        match answer {
            Some(Ok(Applied::Next(next))) => {
                let head = next.head();
                view.send_modify(|v| v.admission = next);
                let _ = up.send(status(head)).await;
            }
            Some(Ok(Applied::Unchanged)) => {
                let _ = up.send(status(held.head())).await;
            }
            Some(Err(refused)) => view.send_modify(|v| v.refused.push(refused.to_string())),
            None => {}
        }
    };
    view.send_modify(|v| v.ended = Some(ended));
}

/// A call's refusal.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, Status>) -> Status {
    result.expect_err("the call was answered")
}

/// A stream of one message that then stays open.
pub fn once<T: Send + 'static>(message: T) -> (Request<ReceiverStream<T>>, mpsc::Sender<T>) {
    let (sender, receiver) = mpsc::channel(4);
    sender.try_send(message).map_err(|_| "full").unwrap();
    (Request::new(ReceiverStream::new(receiver)), sender)
}

//! One relay with its folder, keys and worker; and nodes that speak the hop protocol by hand.

use crate::{WorkerConfig, WorkerError, run};
use bytes::Bytes;
use fairlead_hop::{Answer, Frame, Incoming, LegKind, NodeControl, NodeControlConfig, NodeEvent, Open};
use fairlead_host::member::{MemberConfig, MemberFolder, MemberRole, TrustBundle};
use fairlead_model::{
    AssociationId, CaPin, EndpointId, Generation, Identity, LeaderTerm, LeaseSeq, LegEpoch, MonoTime, NodeId,
    PolicyEpoch, ProcessBootId, RefusalCode, RelayId, Revision, RouteId, ServiceClass, SessionId,
    StreamNumber, TrustDomain, WallTime,
};
use fairlead_rpc::pb;
use fairlead_rpc::pb::worker_control_client::WorkerControlClient;
use fairlead_rpc::signed::{encode_grant, encode_policy_lease, encode_relay_policy};
use fairlead_transport::{Carrier, CarrierConfig, CarrierEnd, Dialler, Leg, MemberTls, TlsMaterial};
use fairlead_trust::{
    Grant, Keyring, PayloadType, PolicyEndpoint, PolicyLease, PolicyRoot, PolicyRoute, RelayPolicy,
    RelaySettings, SigningKey, seal,
};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ED25519,
    SanType,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// Every await in these tests ends well before this.
const SOON: Duration = Duration::from_secs(25);
/// The nodes of the tests.
pub(crate) const ALPHA: NodeId = NodeId::from_bytes([0xa1; 16]);
pub(crate) const BETA: NodeId = NodeId::from_bytes([0xb2; 16]);
pub(crate) const RELAY: RelayId = RelayId::from_bytes([1; 16]);
/// What beta publishes and alpha may open.
pub(crate) const ENDPOINT: EndpointId = EndpointId::from_bytes([0xe1; 16]);
pub(crate) const ROUTE: RouteId = RouteId::from_bytes([0x21; 16]);

pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let future = Box::pin(future);
    async { tokio::time::timeout(SOON, future).await.expect("in time") }
}

pub(crate) fn wall() -> WallTime {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    WallTime(i64::try_from(now.as_millis()).unwrap())
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
}

/// A relay's whole surroundings.
pub(crate) struct Pool {
    authority: Authority,
    pub(crate) key: SigningKey,
    pub(crate) folder: MemberFolder,
    domain: TrustDomain,
    usual_grant: std::sync::OnceLock<Bytes>,
    _dir: tempfile::TempDir,
}

/// A running worker.
pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: String,
    pub(crate) control: WorkerControlClient<Channel>,
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), WorkerError>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Pool {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = params.self_signed(&key).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        let pool = Self {
            authority: Authority {
                issuer: Issuer::new(params, key),
                ca_pem,
            },
            key: SigningKey::from_seed(&[5; 32]),
            folder: MemberFolder::new(dir.path().join("relay")),
            domain: "pool.test".parse().unwrap(),
            usual_grant: std::sync::OnceLock::new(),
            _dir: dir,
        };
        pool.folder.create().unwrap();
        pool.write_identity();
        pool.write_trust(&[&pool.key]);
        pool.folder
            .save(&MemberConfig {
                role: MemberRole::Relay(RELAY),
                name: "relay-1".parse().unwrap(),
                trust_domain: pool.domain.clone(),
                control: "127.0.0.1:8443".parse().unwrap(),
                ca_pin: CaPin([0; 32]),
                grpc_server_name: "grpc.fairlead.internal".to_owned(),
                advertised_address: None,
                listen: None,
            })
            .unwrap();
        pool
    }

    /// A fresh certificate for the relay, as a renewal leaves it.
    pub(crate) fn write_identity(&self) {
        let (chain, key) = self.certificate(Identity::Relay(RELAY));
        self.folder
            .save_identity(key.as_bytes(), &chain, &self.authority.ca_pem)
            .unwrap();
    }

    pub(crate) fn write_trust(&self, keys: &[&SigningKey]) {
        self.folder
            .save_trust(&TrustBundle {
                version: 1,
                policy_keys: keys.iter().map(|key| key.verifying_key().to_bytes()).collect(),
            })
            .unwrap();
    }

    fn certificate(&self, identity: Identity) -> (String, String) {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(
            identity.to_spiffe(&self.domain).as_str().try_into().unwrap(),
        )];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let chain = params.signed_by(&key, &self.authority.issuer).unwrap().pem();
        (chain, key.serialize_pem())
    }

    pub(crate) fn member(&self, identity: Identity) -> Arc<MemberTls> {
        let (chain_pem, key_pem) = self.certificate(identity);
        let material = TlsMaterial {
            chain_pem: &chain_pem,
            key_pem: key_pem.as_bytes(),
            roots_pem: &self.authority.ca_pem,
            domain: self.domain.clone(),
        };
        Arc::new(MemberTls::new(&material, identity).unwrap())
    }

    pub(crate) fn config(&self, listen: &str) -> WorkerConfig {
        WorkerConfig {
            dir: self.folder.dir().to_owned(),
            listen: listen.parse().unwrap(),
            metrics: Some("127.0.0.1:0".parse().unwrap()),
            version: "0.1.0-test",
        }
    }

    /// Starts a worker and waits until its supervisor could speak to it.
    pub(crate) async fn start(&self) -> Worker {
        self.start_on("127.0.0.1:0").await
    }

    pub(crate) async fn start_on(&self, listen: &str) -> Worker {
        let runtime = self.folder.worker_dir().join("runtime.json");
        let _ = std::fs::remove_file(&runtime);
        let cancel = CancellationToken::new();
        // A runtime of its own: its sudden end is the worker's kill -9.
        let runtime_of_worker = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut task = runtime_of_worker.spawn(run(self.config(listen), cancel.clone()));
        let begun = Instant::now();
        let info = loop {
            if let Some(info) = fairlead_host::member::read_runtime(&runtime).unwrap() {
                break info;
            }
            if task.is_finished() {
                panic!("worker: {:?}", (&mut task).await);
            }
            assert!(begun.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let socket = self.folder.worker_dir().join("worker.sock");
        let channel = fairlead_rpc::channel::unix(&socket).await.unwrap();
        Worker {
            address: info.listen.unwrap().parse().unwrap(),
            metrics: info.metrics_url.unwrap(),
            control: WorkerControlClient::new(channel),
            cancel,
            task,
            runtime: Some(runtime_of_worker),
        }
    }

    /// The policy under which alpha may open beta's endpoint.
    pub(crate) fn policy(&self, revision: u64) -> RelayPolicy {
        RelayPolicy {
            relay: RELAY,
            epoch: PolicyEpoch(1),
            revision: Revision(revision),
            leader_term: LeaderTerm(1),
            issued_at: wall(),
            endpoints: vec![PolicyEndpoint {
                endpoint: ENDPOINT,
                generation: Generation(1),
                publisher: BETA,
                class: ServiceClass::Database,
            }],
            routes: vec![PolicyRoute {
                route: ROUTE,
                consumer: ALPHA,
                endpoint: ENDPOINT,
            }],
            nodes: vec![ALPHA, BETA],
            revoked_routes: Vec::new(),
            grant_keys: Keyring::new([self.key.verifying_key()]).unwrap(),
            settings: RelaySettings::DEFAULT,
        }
    }

    pub(crate) fn signed(&self, policy: &RelayPolicy, seq: u64, lasts: Duration) -> pb::SignedPolicy {
        let payload = encode_relay_policy(policy);
        let lease = encode_policy_lease(&PolicyLease {
            relay: policy.relay,
            epoch: policy.epoch,
            revision: policy.revision,
            root: PolicyRoot::of(&payload),
            not_before: wall(),
            not_after: wall().plus(lasts),
            seq: LeaseSeq(seq),
            leader_term: policy.leader_term,
        });
        pb::SignedPolicy {
            policy_envelope: seal(&self.key, PayloadType::RelayPolicy, &payload).unwrap(),
            lease_envelope: seal(&self.key, PayloadType::PolicyLease, &lease).unwrap(),
        }
    }

    pub(crate) fn grant(&self, revision: u64, change: impl FnOnce(&mut Grant)) -> Bytes {
        let mut grant = Grant {
            consumer: ALPHA,
            publisher: BETA,
            endpoint: ENDPOINT,
            route: ROUTE,
            generation: Generation(1),
            epoch: PolicyEpoch(1),
            revision: Revision(revision),
            not_before: wall(),
            not_after: wall().plus(Duration::from_secs(3600)),
        };
        change(&mut grant);
        seal(&self.key, PayloadType::Grant, &encode_grant(&grant)).unwrap()
    }

    /// An OPEN of alpha's route.
    pub(crate) fn open(&self) -> Open {
        static STREAM: AtomicU64 = AtomicU64::new(1);
        Open {
            kind: LegKind::Stream,
            association: AssociationId::from_bytes([7; 16]),
            route: ROUTE,
            stream: StreamNumber(STREAM.fetch_add(1, Ordering::Relaxed)),
            epoch: LegEpoch(1),
            resume: false,
            grant: self.usual_grant.get_or_init(|| self.grant(1, |_| ())).clone(),
        }
    }

    /// A worker with [`policy`](Self::policy) 1 in force, and both nodes connected to it.
    pub(crate) async fn ready(&self) -> (Worker, Node, Node) {
        let mut worker = self.start().await;
        let signed = self.signed(&self.policy(1), 1, Duration::from_secs(3600));
        worker.apply(signed).await.unwrap();
        let alpha = Node::connect(self, worker.address, ALPHA).await;
        let beta = Node::connect(self, worker.address, BETA).await;
        beta.publish(&[(ENDPOINT, 1)]).await;
        (worker, alpha, beta)
    }
}

impl Worker {
    /// Applies a policy; the refusal in words.
    pub(crate) async fn apply(&mut self, signed: pb::SignedPolicy) -> Result<(), String> {
        let answer = self.control.apply_policy(signed).await.unwrap().into_inner();
        if answer.applied {
            Ok(())
        } else {
            Err(answer.refused)
        }
    }

    pub(crate) async fn status(&mut self) -> pb::WorkerStatusResponse {
        self.control
            .status(pb::WorkerStatusRequest {})
            .await
            .unwrap()
            .into_inner()
    }

    /// Waits until the status fits.
    pub(crate) async fn until(&mut self, fits: impl Fn(&pb::WorkerStatusResponse) -> bool) {
        let begun = Instant::now();
        loop {
            let status = self.status().await;
            if fits(&status) {
                return;
            }
            assert!(begun.elapsed() < SOON, "{status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The end of a process: nothing is said, nothing is saved.
    pub(crate) async fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(5)))
            .await
            .unwrap();
    }

    /// Waits for the worker's own end.
    pub(crate) async fn ended(mut self) -> Result<(), WorkerError> {
        soon(&mut self.task).await.unwrap()
    }

    /// The metrics page.
    pub(crate) async fn scrape(&self) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let host = self
            .metrics
            .trim_start_matches("http://")
            .trim_end_matches("/metrics");
        let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }
}

/// A node with one hop session, whose control stream runs in a task.
pub(crate) struct Node {
    pub(crate) carrier: Carrier,
    pub(crate) session: SessionId,
    _dialler: Dialler,
    wanted: tokio::sync::watch::Sender<Wanted>,
    registered: tokio::sync::watch::Receiver<BTreeMap<EndpointId, Result<Generation, RefusalCode>>>,
    told: tokio::sync::watch::Receiver<Option<RefusalCode>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Default)]
struct Wanted {
    publications: BTreeMap<EndpointId, Generation>,
    restart: bool,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    pub(crate) async fn connect(pool: &Pool, address: SocketAddr, id: NodeId) -> Self {
        Self::try_connect(pool, address, id).await.unwrap()
    }

    pub(crate) async fn try_connect(
        pool: &Pool,
        address: SocketAddr,
        id: NodeId,
    ) -> Result<Self, CarrierEnd> {
        Self::connect_run(pool, address, id, ProcessBootId::from_bytes([1; 16])).await
    }

    /// Connects as a given run of the node's daemon.
    pub(crate) async fn connect_run(
        pool: &Pool,
        address: SocketAddr,
        id: NodeId,
        process_boot: ProcessBootId,
    ) -> Result<Self, CarrierEnd> {
        static SESSION: AtomicU32 = AtomicU32::new(1);
        let number = SESSION.fetch_add(1, Ordering::Relaxed);
        let dialler = Dialler::new(pool.member(Identity::Node(id)), &CarrierConfig::default()).unwrap();
        let carrier = soon(dialler.dial(&address.into(), Identity::Relay(RELAY)))
            .await
            .unwrap();
        let mut control = carrier.open_leg().await?;
        let clock = Instant::now();
        let now = move || MonoTime(u64::try_from(clock.elapsed().as_nanos()).unwrap());
        let session = SessionId::from_bytes(u128::from(number).to_be_bytes());
        let mut machine = NodeControl::new(
            NodeControlConfig {
                session,
                process_boot,
                boot: fairlead_model::RegistrationBoot::new(1),
                session_number: number,
                software: "test".to_owned(),
            },
            now(),
        );
        let (wanted, mut wanted_here) = tokio::sync::watch::channel(Wanted::default());
        let (to_registered, registered) = tokio::sync::watch::channel(BTreeMap::new());
        let (to_told, told) = tokio::sync::watch::channel(None);
        let (up, is_up) = tokio::sync::oneshot::channel();
        let mut up = Some(up);
        let task = tokio::spawn(async move {
            loop {
                while let Some(frame) = machine.poll_transmit() {
                    if control.send.write_frame(&frame).await.is_err() {
                        return;
                    }
                }
                while let Some(event) = machine.poll_event() {
                    match event {
                        NodeEvent::Established { .. } => {
                            up.take().map(|up| up.send(()));
                        }
                        NodeEvent::Registered { endpoint, generation } => {
                            to_registered.send_modify(|r| {
                                r.insert(endpoint, Ok(generation));
                            });
                        }
                        NodeEvent::RegisterRefused { endpoint, code, .. } => {
                            to_registered.send_modify(|r| {
                                r.insert(endpoint, Err(code));
                            });
                        }
                        NodeEvent::Closed { code } => {
                            to_told.send_replace(Some(code));
                        }
                        NodeEvent::DrainNotice | NodeEvent::Rtt(_) => {}
                    }
                }
                let due = machine
                    .poll_timeout()
                    .map_or(Duration::from_secs(60), |t| t.since(now()));
                tokio::select! {
                    frame = control.recv.read_frame() => match frame {
                        Ok(Some(frame)) => machine.handle_frame(frame, now()).unwrap(),
                        Ok(None) | Err(_) => return,
                    },
                    changed = wanted_here.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let wanted = wanted_here.borrow_and_update().clone();
                        machine.set_publications(&wanted.publications, now());
                        if wanted.restart {
                            machine.announce_restart();
                        }
                    }
                    () = tokio::time::sleep(due) => machine.handle_timeout(now()).unwrap(),
                }
            }
        });
        tokio::select! {
            up = soon(is_up) => up.map_err(|_| carrier.end().unwrap_or(CarrierEnd::Local))?,
            end = carrier.closed() => return Err(end),
        }
        Ok(Self {
            carrier,
            session,
            _dialler: dialler,
            wanted,
            registered,
            told,
            task,
        })
    }

    /// Waits until the worker has closed the carrier, with `code`.
    pub(crate) async fn closed_by(&self, code: RefusalCode) {
        let end = soon(self.carrier.closed()).await;
        assert_eq!(end, CarrierEnd::Peer(code.into()));
    }

    /// The reason that the worker gives for its end of the session.
    pub(crate) async fn dismissed(&self) -> RefusalCode {
        let mut told = self.told.clone();
        let code = soon(told.wait_for(Option::is_some)).await.unwrap();
        code.unwrap()
    }

    /// Registers these endpoints and waits until they are in force.
    pub(crate) async fn publish(&self, endpoints: &[(EndpointId, u64)]) {
        self.want(endpoints);
        for (endpoint, generation) in endpoints {
            let mut registered = self.registered.clone();
            soon(registered.wait_for(|r| r.get(endpoint) == Some(&Ok(Generation(*generation)))))
                .await
                .unwrap();
        }
    }

    pub(crate) fn want(&self, endpoints: &[(EndpointId, u64)]) {
        self.wanted.send_modify(|wanted| {
            wanted.publications = endpoints.iter().map(|&(e, g)| (e, Generation(g))).collect();
        });
    }

    pub(crate) fn announce_restart(&self) {
        self.wanted.send_modify(|wanted| wanted.restart = true);
    }

    /// Waits for a refusal of the registration.
    pub(crate) async fn refused(&self, endpoint: EndpointId) -> RefusalCode {
        let mut registered = self.registered.clone();
        let refused = soon(registered.wait_for(|r| matches!(r.get(&endpoint), Some(Err(_))))).await;
        match refused.unwrap().get(&endpoint) {
            Some(Err(code)) => *code,
            other => panic!("{other:?}"),
        }
    }

    /// Opens a leg and sends OPEN, without waiting for the answer.
    pub(crate) async fn begin(&self, open: Open) -> Leg {
        let mut leg = soon(self.carrier.open_leg()).await.unwrap();
        leg.send.write_frame(&Frame::Open(open)).await.unwrap();
        leg
    }

    /// Opens a leg and waits for the answer.
    pub(crate) async fn open(&self, open: Open) -> Result<Leg, fairlead_hop::Refusal> {
        let mut leg = self.begin(open).await;
        answer(&mut leg).await.map(|()| leg)
    }

    /// Takes the next leg with its INCOMING; not answered yet.
    pub(crate) async fn incoming(&self) -> (Incoming, Leg) {
        let mut leg = soon(self.carrier.accept_leg()).await.unwrap();
        match soon(leg.recv.read_frame()).await.unwrap() {
            Some(Frame::Incoming(incoming)) => (incoming, leg),
            other => panic!("{other:?}"),
        }
    }

    /// Takes the next leg and answers OK.
    pub(crate) async fn accept(&self) -> (Incoming, Leg) {
        let (incoming, mut leg) = self.incoming().await;
        leg.send.write_frame(&Frame::Answer(Answer::Ok)).await.unwrap();
        (incoming, leg)
    }
}

/// Reads the answer of a leg.
pub(crate) async fn answer(leg: &mut Leg) -> Result<(), fairlead_hop::Refusal> {
    match soon(leg.recv.read_frame()).await.unwrap() {
        Some(Frame::Answer(Answer::Ok)) => Ok(()),
        Some(Frame::Answer(Answer::Refused(refusal))) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// The code of a refused open.
pub(crate) fn code(opened: Result<Leg, fairlead_hop::Refusal>) -> RefusalCode {
    match opened {
        Ok(_) => panic!("it was admitted"),
        Err(refusal) => refusal.code,
    }
}

//! The keeper against a worker whose process is a `sleep` and whose socket is served by the test.

use super::*;
use bytes::Bytes;
use fairlead_host::member::{MemberConfig, MemberFolder, MemberRole};
use fairlead_host::{Clock, SystemClock};
use fairlead_model::{CaPin, Identity, RelayId, TrustDomain};
use fairlead_rpc::pb::worker_control_server::{WorkerControl, WorkerControlServer};
use fairlead_transport::{MemberTls, TlsMaterial};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use std::pin::Pin;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(20);

/// What a relay's folder is made of.
pub(crate) struct Enrolled {
    pub(crate) chain_pem: String,
    key_pem: String,
    ca_pem: String,
    domain: TrustDomain,
    relay: RelayId,
}

/// Leaves a relay's files as enrolment does.
pub(crate) fn enrolled(dir: &std::path::Path) -> Enrolled {
    let domain: TrustDomain = "pool.example".parse().unwrap();
    let relay = RelayId::from_bytes([7; 16]);
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::default();
    let uri = Identity::Relay(relay).to_spiffe(&domain);
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    let key = KeyPair::generate().unwrap();
    let chain_pem = params.signed_by(&key, &ca).unwrap().pem();
    let key_pem = key.serialize_pem();
    let folder = MemberFolder::new(dir.to_owned());
    folder.create().unwrap();
    folder
        .save_identity(key_pem.as_bytes(), &chain_pem, &ca.pem())
        .unwrap();
    Enrolled {
        chain_pem,
        key_pem,
        ca_pem: ca.pem(),
        domain,
        relay,
    }
}

pub(crate) fn shared(dir: &std::path::Path) -> Arc<Shared> {
    let enrolled = enrolled(dir);
    let material = TlsMaterial {
        chain_pem: &enrolled.chain_pem,
        key_pem: enrolled.key_pem.as_bytes(),
        roots_pem: &enrolled.ca_pem,
        domain: enrolled.domain.clone(),
    };
    let tls = Arc::new(MemberTls::new(&material, Identity::Relay(enrolled.relay)).unwrap());
    let member = MemberConfig {
        role: MemberRole::Relay(enrolled.relay),
        name: "paris-1".parse().unwrap(),
        trust_domain: enrolled.domain,
        control: "127.0.0.1:1".parse().unwrap(),
        ca_pin: CaPin([0; 32]),
        grpc_server_name: "x".into(),
        advertised_address: None,
        listen: None,
    };
    let folder = MemberFolder::new(dir.to_owned());
    std::fs::create_dir(folder.worker_dir()).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Arc::new(Shared::new(folder, member, tls, clock, "1.0.0", 1))
}

/// What the supervisor asked of the worker.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Watch,
    Policy(Bytes),
    Lease(Bytes),
    Reload,
    Stop,
}

/// A worker's socket. It never says goodbye by itself.
struct Fake(mpsc::Sender<Asked>);

type Statuses = Pin<Box<dyn tokio_stream::Stream<Item = Result<pb::WorkerStatusResponse, Status>> + Send>>;

fn applied() -> Response<pb::ApplyPolicyResponse> {
    Response::new(pb::ApplyPolicyResponse {
        applied: true,
        ..Default::default()
    })
}

#[tonic::async_trait]
impl WorkerControl for Fake {
    type WatchStream = Statuses;

    async fn status(
        &self,
        _: Request<pb::WorkerStatusRequest>,
    ) -> Result<Response<pb::WorkerStatusResponse>, Status> {
        // No process stands behind this socket that could be adopted.
        Err(Status::unavailable("not yet"))
    }

    async fn watch(&self, _: Request<pb::WorkerStatusRequest>) -> Result<Response<Statuses>, Status> {
        let gone = |_| Status::unavailable("nobody asks any more");
        self.0.send(Asked::Watch).await.map_err(gone)?;
        let status = pb::WorkerStatusResponse {
            listening: "127.0.0.1:9443".into(),
            ..Default::default()
        };
        let (send, statuses) = mpsc::channel(1);
        send.send(Ok(status)).await.unwrap();
        let asked = self.0.clone();
        // The stream stays open as long as the test listens.
        tokio::task::spawn(async move {
            asked.closed().await;
            drop(send);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(statuses))))
    }

    async fn apply_policy(
        &self,
        request: Request<pb::SignedPolicy>,
    ) -> Result<Response<pb::ApplyPolicyResponse>, Status> {
        let policy = request.into_inner().policy_envelope;
        self.0.send(Asked::Policy(policy)).await.unwrap();
        Ok(applied())
    }

    async fn apply_lease(
        &self,
        request: Request<pb::ApplyLeaseRequest>,
    ) -> Result<Response<pb::ApplyPolicyResponse>, Status> {
        let lease = request.into_inner().lease_envelope;
        self.0.send(Asked::Lease(lease)).await.unwrap();
        Ok(applied())
    }

    async fn reload_identity(
        &self,
        _: Request<pb::ReloadIdentityRequest>,
    ) -> Result<Response<pb::ReloadIdentityResponse>, Status> {
        self.0.send(Asked::Reload).await.unwrap();
        Ok(Response::new(Default::default()))
    }

    async fn stop(&self, _: Request<pb::StopRequest>) -> Result<Response<pb::StopResponse>, Status> {
        self.0.send(Asked::Stop).await.unwrap();
        Ok(Response::new(Default::default()))
    }
}

async fn next(asked: &mut mpsc::Receiver<Asked>) -> Asked {
    tokio::time::timeout(LIMIT, asked.recv()).await.unwrap().unwrap()
}

fn policy(text: &'static str) -> pb::SignedPolicy {
    pb::SignedPolicy {
        policy_envelope: Bytes::from_static(text.as_bytes()),
        lease_envelope: Bytes::from_static(b"l"),
    }
}

/// Serves a worker's socket; what it is asked comes back.
fn worker(shared: &Shared) -> (JoinSet<()>, mpsc::Receiver<Asked>) {
    let listener = UnixListener::bind(shared.folder.worker_dir().join("worker.sock")).unwrap();
    let (send, asked) = mpsc::channel(16);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        tonic::transport::Server::builder()
            .add_service(WorkerControlServer::new(Fake(send)))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .unwrap();
    });
    (tasks, asked)
}

fn sleeper() -> WorkerCommand {
    WorkerCommand {
        program: "/bin/sleep".into(),
        arguments: vec!["60".into()],
    }
}

/// A worker that was there and no longer answers is not shown as one that starts.
#[tokio::test]
async fn a_worker_that_falls_silent_is_unresponsive() {
    let dir = tempfile::tempdir().unwrap();
    let shared = shared(dir.path());
    let (_tasks, asked) = worker(&shared);
    let cancel = CancellationToken::new();
    let mut observed = shared.watch_observed();
    let mut keeper = JoinSet::new();
    keeper.spawn(keep(shared.clone(), sleeper(), cancel.clone()));
    let listening = observed.wait_for(|o| o.phase == WorkerPhase::Listening);
    drop(tokio::time::timeout(LIMIT, listening).await.unwrap().unwrap());
    drop(asked);
    let silent = tokio::time::timeout(LIMIT, observed.wait_for(|o| o.phase == WorkerPhase::Unresponsive));
    let silent = silent.await.unwrap().unwrap().clone();
    assert!(silent.pid.is_some() && silent.status.is_none(), "{silent:?}");
    cancel.cancel();
    tokio::time::timeout(LIMIT, keeper.join_next()).await.unwrap();
}

/// R-POL-07: a worker that is started again gets the newest policy again, whatever it has kept.
#[tokio::test]
async fn a_worker_is_fed_started_again_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let shared = shared(dir.path());
    let (_tasks, mut asked) = worker(&shared);
    let command = sleeper();
    let cancel = CancellationToken::new();
    let mut observed = shared.watch_observed();
    shared.want(|w| w.policy = Some(policy("one")));
    let mut keeper = JoinSet::new();
    keeper.spawn(keep(shared.clone(), command, cancel.clone()));

    assert_eq!(next(&mut asked).await, Asked::Watch);
    assert_eq!(next(&mut asked).await, Asked::Policy(Bytes::from_static(b"one")));
    observed
        .wait_for(|o| o.phase == WorkerPhase::Listening)
        .await
        .unwrap();
    shared.want(|w| w.lease = Some(Bytes::from_static(b"later")));
    assert_eq!(next(&mut asked).await, Asked::Lease(Bytes::from_static(b"later")));
    shared.want(|w| w.identity += 1);
    assert_eq!(next(&mut asked).await, Asked::Reload);

    let first = shared.observed().pid.unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let again = observed
        .wait_for(|o| o.pid.is_some_and(|p| p != first))
        .await
        .unwrap()
        .clone();
    assert_eq!(
        (again.restarts, again.last_exit.as_str()),
        (1, "killed by signal 9")
    );
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.push(next(&mut asked).await);
    }
    assert!(
        seen.contains(&Asked::Policy(Bytes::from_static(b"one"))),
        "{seen:?}"
    );
    assert!(
        seen.contains(&Asked::Lease(Bytes::from_static(b"later"))),
        "{seen:?}"
    );

    cancel.cancel();
    assert_eq!(next(&mut asked).await, Asked::Stop);
    // A worker that does not heed its socket gets a SIGTERM.
    tokio::time::timeout(LIMIT, keeper.join_next()).await.unwrap();
    assert!(Process::adopt(again.pid.unwrap()).is_err());
}

/// R-POL-05: a clock that is set back is told of once, and once more when it is right again.
#[test]
fn a_clock_is_news_when_it_changes() {
    let mut news = ClockNews::default();
    let told: Vec<Option<bool>> = [0, 0, 90_000, 91_000, 0, 0, 61_000]
        .map(|ms| news.change(ms))
        .to_vec();
    assert_eq!(
        told,
        [None, None, Some(true), None, Some(false), None, Some(true)]
    );
}

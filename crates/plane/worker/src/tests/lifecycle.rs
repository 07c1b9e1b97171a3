//! Starts, restarts and ends of a worker.

use super::pool::{ALPHA, BETA, ENDPOINT, Node, Pool, RELAY, soon};
use crate::{WorkerError, run};
use fairlead_model::{Identity, RefusalCode};
use fairlead_rpc::pb;
use fairlead_transport::{CarrierConfig, CarrierEnd, Dialler, LegError};
use fairlead_trust::SigningKey;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(3600);

/// R-GEN-04, R-POL-04: a worker that died admits again by what it had acknowledged, without its
/// supervisor, and refuses what is older.
#[tokio::test]
async fn a_killed_worker_comes_back_with_its_policy() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    worker.apply(pool.signed(&pool.policy(7), 7, HOUR)).await.unwrap();
    let address = worker.address;
    worker.kill().await;
    drop((alpha, beta));
    let mut worker = pool.start_on(&address.to_string()).await;
    assert_eq!(worker.status().await.applied.unwrap().revision, 7);
    let alpha = Node::connect(&pool, worker.address, ALPHA).await;
    let beta = Node::connect(&pool, worker.address, BETA).await;
    beta.publish(&[(ENDPOINT, 1)]).await;
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    assert!(opened.is_ok());
    let refused = worker
        .apply(pool.signed(&pool.policy(6), 8, HOUR))
        .await
        .unwrap_err();
    assert!(refused.contains("below 7"), "{refused}");
}

/// The supervisor's Stop: nothing new, live tunnels until the deadline, then everybody is told.
#[tokio::test]
async fn a_stop_lets_tunnels_end_and_admits_none() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let (near, (_, far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let (mut near, mut far) = (near.unwrap(), far);
    worker
        .control
        .stop(pb::StopRequest { grace_ms: 20_000 })
        .await
        .unwrap();
    let begun = Instant::now();
    loop {
        let mut leg = alpha.begin(pool.open()).await;
        tokio::select! {
            refused = super::pool::answer(&mut leg) => {
                assert_eq!(refused.unwrap_err().code, RefusalCode::ShuttingDown);
                break;
            }
            _ = beta.incoming() => assert!(begun.elapsed() < Duration::from_secs(5)),
        }
    }
    near.send.write_all(b"last words").await.unwrap();
    let mut word = [0; 10];
    soon(far.recv.read_exact(&mut word)).await.unwrap();
    near.send.finish();
    far.send.finish();
    let mut chunks = [bytes::Bytes::new()];
    assert_eq!(soon(near.recv.read_chunks(&mut chunks)).await, Ok(None));
    // The last tunnel's end is the worker's, long before the deadline.
    worker.ended().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert_eq!(
        soon(alpha.carrier.closed()).await,
        CarrierEnd::Peer(RefusalCode::ShuttingDown.into())
    );
    assert!(!pool.folder.worker_dir().join("runtime.json").exists());
}

/// SIGTERM's way: tunnels that do not end are cut after 2 s, with the reason (R-UPD-08).
#[tokio::test]
async fn a_cancelled_worker_ends_soon() {
    let pool = Pool::new();
    let (worker, alpha, beta) = pool.ready().await;
    let (near, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let mut near = near.unwrap();
    let begun = Instant::now();
    worker.cancel.cancel();
    let mut chunks = [bytes::Bytes::new()];
    let end = soon(near.recv.read_chunks(&mut chunks)).await.unwrap_err();
    assert!(
        matches!(
            &end,
            LegError::Reset(code) | LegError::Carrier(CarrierEnd::Peer(code))
                if *code == RefusalCode::ShuttingDown.into()
        ),
        "{end:?}"
    );
    worker.ended().await.unwrap();
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_millis(1_900) && took < Duration::from_secs(5),
        "{took:?}"
    );
}

/// Only the worker's own user reaches its socket, and a dead worker's socket is in nobody's way.
#[tokio::test]
async fn the_socket_is_private_and_replaced() {
    let pool = Pool::new();
    let worker = pool.start().await;
    let socket = pool.folder.worker_dir().join("worker.sock");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&pool.folder.worker_dir()), 0o700);
    assert_eq!(mode(&pool.folder.worker_dir().join("reset.key")), 0o600);
    // A second worker in the folder is refused by name.
    let second = run(pool.config("127.0.0.1:0"), CancellationToken::new()).await;
    let error = second.unwrap_err();
    assert!(matches!(error, WorkerError::Locked(_)), "{error}");
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
    let key = std::fs::read(pool.folder.worker_dir().join("reset.key")).unwrap();
    worker.kill().await;
    assert!(socket.exists());
    let mut worker = pool.start().await;
    worker.status().await;
    assert_eq!(
        std::fs::read(pool.folder.worker_dir().join("reset.key")).unwrap(),
        key,
        "the reset key must outlive the process"
    );
}

/// R-ENR-08: a renewed certificate and a new trust bundle are taken without a restart.
#[tokio::test]
async fn reload_takes_new_identity_and_keys() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    pool.write_identity();
    let new_key = SigningKey::from_seed(&[77; 32]);
    pool.write_trust(&[&pool.key, &new_key]);
    worker
        .control
        .reload_identity(pb::ReloadIdentityRequest {})
        .await
        .unwrap();
    // Live sessions stay, new handshakes go through.
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    assert!(opened.is_ok());
    Node::connect(&pool, worker.address, ALPHA).await;
    // A policy by the new key is taken.
    let payload = fairlead_rpc::signed::encode_relay_policy(&pool.policy(2));
    let mut signed = pool.signed(&pool.policy(2), 2, HOUR);
    signed.policy_envelope =
        fairlead_trust::seal(&new_key, fairlead_trust::PayloadType::RelayPolicy, &payload).unwrap();
    let refused = worker.apply(signed).await;
    // The lease beside it names the root of another encoding only if the two differ.
    assert!(
        refused.is_ok() || refused.unwrap_err().contains("lease"),
        "new key unknown"
    );
    // Broken files are refused and change nothing.
    std::fs::write(pool.folder.cert_path(), "no certificate").unwrap();
    let error = worker
        .control
        .reload_identity(pb::ReloadIdentityRequest {})
        .await
        .unwrap_err();
    assert!(error.message().contains("identity/"), "{error}");
    Node::connect(&pool, worker.address, ALPHA).await;
}

/// Watch tells at once and on every change of policy; its end means that the worker is gone.
#[tokio::test]
async fn watch_follows_policy() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let mut watch = worker
        .control
        .watch(pb::WorkerStatusRequest {})
        .await
        .unwrap()
        .into_inner();
    let first = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!((first.applied, first.pid), (None, std::process::id()));
    assert_eq!(first.listening, worker.address.to_string());
    assert_eq!(first.metrics, worker.metrics);
    worker.apply(pool.signed(&pool.policy(1), 1, HOUR)).await.unwrap();
    let begun = Instant::now();
    while soon(watch.message()).await.unwrap().unwrap().applied.is_none() {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    worker.cancel.cancel();
    while let Ok(Some(_)) = soon(watch.message()).await {}
    worker.ended().await.unwrap();
}

/// A member folder that is not a relay's, or a damaged state, is refused before any port opens.
#[tokio::test]
async fn what_cannot_start_says_why() {
    let pool = Pool::new();
    std::fs::create_dir_all(pool.folder.worker_dir()).unwrap();
    std::fs::write(pool.folder.worker_dir().join("policy.state"), b"rubbish").unwrap();
    let error = run(pool.config("127.0.0.1:0"), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("policy.state"), "{error}");
    std::fs::remove_file(pool.folder.worker_dir().join("policy.state")).unwrap();
    let worker = pool.start().await;
    let taken = Pool::new();
    let error = run(
        taken.config(&worker.address.to_string()),
        CancellationToken::new(),
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains(&worker.address.to_string()), "{error}");
}

/// R-NOD-01's ground: nodes notice a killed worker as soon as the next one listens.
#[tokio::test]
async fn nodes_notice_a_restarted_worker() {
    let pool = Pool::new();
    let worker = pool.start().await;
    let address = worker.address;
    let dialler = Dialler::new(pool.member(Identity::Node(ALPHA)), &CarrierConfig::default()).unwrap();
    let carrier = soon(dialler.dial(&address.into(), Identity::Relay(RELAY)))
        .await
        .unwrap();
    let again = soon(dialler.dial(&address.into(), Identity::Relay(RELAY)))
        .await
        .unwrap();
    assert_ne!(carrier.number(), again.number());
    worker.kill().await;
    let _worker = pool.start_on(&address.to_string()).await;
    let begun = Instant::now();
    soon(carrier.closed()).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(
        soon(dialler.dial(&address.into(), Identity::Relay(RELAY)))
            .await
            .is_ok()
    );
}

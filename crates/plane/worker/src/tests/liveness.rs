//! Liveness connections at the relay (R-ADM-02, R-ADM-03, R-ADM-04, F-08).

use super::pool::{ALPHA, BETA, ENDPOINT, Node, Pool, RELAY, code, soon};
use fairlead_hop::liveness::BindRefusal;
use fairlead_model::{Identity, NodeId, RefusalCode, SessionId};
use fairlead_transport::{CarrierConfig, Dialler, LiveAnswer, LiveConnection, LiveDialError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(10);

async fn dial(
    pool: &Pool,
    address: SocketAddr,
    node: NodeId,
    session: SessionId,
) -> Result<LiveAnswer, LiveDialError> {
    let tls = pool.member(Identity::Node(node));
    let dialler = Dialler::new(tls, &CarrierConfig::default()).unwrap();
    soon(dialler.dial_live(address, Identity::Relay(RELAY), session, LIMIT)).await
}

async fn bound(pool: &Pool, address: SocketAddr, id: NodeId, node: &Node) -> LiveConnection {
    match dial(pool, address, id, node.session).await.unwrap() {
        LiveAnswer::Bound(connection, _) => connection,
        LiveAnswer::Refused(why, _) => panic!("{why:?}"),
    }
}

/// A connection is bound by the identity in its certificate and the session's id, both.
#[tokio::test]
async fn a_connection_is_bound_to_its_own_session() {
    let pool = Pool::new();
    let (mut worker, alpha, _beta) = pool.ready().await;
    let boot = worker.status().await.process_boot_id;
    let mut first = bound(&pool, worker.address, ALPHA, &alpha).await;
    // Pings are answered.
    assert_eq!(soon(first.pings()).await, Ok(1));
    assert_eq!(soon(first.pings()).await, Ok(0));
    for (node, session) in [(BETA, alpha.session), (ALPHA, SessionId::from_bytes([9; 16]))] {
        match dial(&pool, worker.address, node, session).await.unwrap() {
            LiveAnswer::Refused(BindRefusal::NoSession, said) => assert_eq!(said.to_bytes()[..], boot[..]),
            other => panic!("{other:?}"),
        }
    }
    assert!(worker.scrape().await.contains("fairlead_liveness_connections 1"));
    // A newer one takes the place of the old.
    let _second = bound(&pool, worker.address, ALPHA, &alpha).await;
    soon(async { while first.pings().await.is_ok() {} }).await;
    assert!(worker.scrape().await.contains("fairlead_liveness_connections 1"));
    assert_eq!(alpha.carrier.end(), None);
}

/// R-ADM-02: the liveness connection's end and QUIC's silence together end a session, within the
/// time that a vanished host is given; its tunnels and registrations end with it.
#[tokio::test]
async fn a_dead_node_loses_its_session() {
    let pool = Arc::new(Pool::new());
    let (mut worker, alpha, before) = pool.ready().await;
    // A runtime of its own: its sudden end is a daemon's that says nothing.
    let home = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (its_pool, address) = (Arc::clone(&pool), worker.address);
    let beta = home.spawn(async move {
        let beta = Node::connect(&its_pool, address, BETA).await;
        beta.publish(&[(ENDPOINT, 1)]).await;
        beta
    });
    let beta = beta.await.unwrap();
    drop(before);
    worker.until(|s| s.hop_sessions == 2).await;
    let connection = bound(&pool, worker.address, BETA, &beta).await;
    let (near, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let mut near = near.unwrap();
    let began = Instant::now();
    home.shutdown_background();
    drop(connection);
    worker.until(|s| s.hop_sessions == 1).await;
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(1_500) && took < Duration::from_secs(5),
        "{took:?}"
    );
    let mut chunks = [bytes::Bytes::new()];
    assert!(soon(near.recv.read_chunks(&mut chunks)).await.is_err());
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::NotRegistered);
    let page = worker.scrape().await;
    assert!(
        page.contains(r#"fairlead_sessions_dead_total{cause="process_gone"} 1"#),
        "{page}"
    );
}

/// Bytes that are no handshake, and a member that says something else first, cost a place for a
/// while and nothing more.
#[tokio::test]
async fn strangers_are_cut_off() {
    let pool = Pool::new();
    let (mut worker, alpha, _beta) = pool.ready().await;
    let mut stranger = TcpStream::connect(worker.address).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    // An alert, or nothing: then the end.
    let mut answer = Vec::new();
    let _ = soon(stranger.read_to_end(&mut answer)).await;
    assert!(answer.len() < 64);
    // A relay's identity has no session to bind.
    let tls = pool.member(Identity::Relay(fairlead_model::RelayId::from_bytes([8; 16])));
    let dialler = Dialler::new(tls, &CarrierConfig::default()).unwrap();
    let answer = soon(dialler.dial_live(worker.address, Identity::Relay(RELAY), alpha.session, LIMIT)).await;
    assert!(
        matches!(answer, Ok(LiveAnswer::Refused(BindRefusal::NoSession, _))),
        "{answer:?}"
    );
    // The expected relay is the exact one.
    let dialler = Dialler::new(pool.member(Identity::Node(ALPHA)), &CarrierConfig::default()).unwrap();
    let other = Identity::Relay(fairlead_model::RelayId::from_bytes([8; 16]));
    let answer = soon(dialler.dial_live(worker.address, other, alpha.session, LIMIT)).await;
    assert!(matches!(answer, Err(LiveDialError::Handshake(_))), "{answer:?}");
    assert_eq!(worker.status().await.hop_sessions, 2);
}

/// R-ADM-03: from the announcement on, before the session ends, an open is told to wait, at once.
#[tokio::test]
async fn an_announced_restart_counts_at_once() {
    let pool = Pool::new();
    let (worker, alpha, beta) = pool.ready().await;
    beta.announce_restart();
    let began = Instant::now();
    loop {
        let mut leg = alpha.begin(pool.open()).await;
        tokio::select! {
            refused = super::pool::answer(&mut leg) => {
                let refusal = refused.unwrap_err();
                assert_eq!(refusal.code, RefusalCode::EndpointRestarting);
                assert!(refusal.retry_after.unwrap() <= Duration::from_secs(15));
                break;
            }
            _ = beta.incoming() => assert!(began.elapsed() < Duration::from_secs(5)),
        }
    }
    assert!(began.elapsed() < Duration::from_secs(1), "F-08: in time");
    assert_eq!(beta.carrier.end(), None);
    // It thought better of it.
    let again = Node::connect(&pool, worker.address, BETA).await;
    again.publish(&[(ENDPOINT, 1)]).await;
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), again.accept());
    assert!(opened.is_ok());
}

/// R-ADM-04, F-05: two sessions of one node converge to one registration: the newer one's, and the
/// older session goes, so that no open waits on it.
#[tokio::test]
async fn two_sessions_of_a_node_become_one() {
    let pool = Pool::new();
    let (mut worker, alpha, older) = pool.ready().await;
    // On its way to the older one, which will never answer.
    let mut waiting = alpha.begin(pool.open()).await;
    let _unanswered = older.incoming().await;
    let newer = Node::connect(&pool, worker.address, BETA).await;
    newer.publish(&[(ENDPOINT, 1)]).await;
    older.closed_by(RefusalCode::ShuttingDown).await;
    let refused = super::pool::answer(&mut waiting).await.unwrap_err();
    assert_eq!(refused.code, RefusalCode::PublisherUnreachable);
    worker.until(|s| s.hop_sessions == 2).await;
    assert!(worker.scrape().await.contains("fairlead_registrations 1"));
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), newer.accept());
    assert!(opened.is_ok());
}

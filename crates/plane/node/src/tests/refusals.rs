//! Who and what is refused (R-STR-05, R-STR-07, F-08, R-REV-01).

use super::pool::{BETA, PATIENCE, Pool, eventually, keyring};
use super::traffic::{echo, exchange};
use super::wire::Wire;
use crate::control;
use crate::metrics::StreamRole;
use fairlead_host::{Clock as _, SystemClock};
use fairlead_model::{RefusalCode, WallTime};
use fairlead_trust::SigningKey;
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A connection to the link ends in an error, in time: at the first read, or already while
/// connecting.
async fn is_reset(pool: &Pool, link: usize) -> Duration {
    let started = Instant::now();
    let error = match TcpStream::connect(pool.links[link].listen).await {
        Ok(socket) => reads_reset(socket).await,
        Err(error) => error.kind(),
    };
    assert_eq!(error, ErrorKind::ConnectionReset);
    started.elapsed()
}

async fn reads_reset(mut socket: TcpStream) -> ErrorKind {
    let read = tokio::time::timeout(PATIENCE, socket.read(&mut [0; 1])).await;
    read.unwrap().unwrap_err().kind()
}

/// F-08: a closed port and a missing socket have their own codes, in under a second, and leak no
/// stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn targets_fail_by_code() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let pool = Pool::start(1, &[address, "unix:/nonexistent/socket".to_owned()]).await;
    for (link, code) in [
        (0, RefusalCode::TargetRefused),
        (1, RefusalCode::TargetUnreachable),
    ] {
        let took = is_reset(&pool, link).await;
        assert!(took < Duration::from_secs(1), "{code}: {took:?}");
        eventually("the refusal to be counted", || {
            pool.alpha.refused(StreamRole::Consumer, code) == 1
                && pool.beta.refused(StreamRole::Publisher, code) == 1
        })
        .await;
        // What the control plane is told of the link's listener.
        let told = || {
            let mut listeners = control::listener_states(&pool.alpha.started.listeners);
            let listener = listeners.swap_remove(link);
            assert_eq!(&listener.route_id[..], pool.links[link].route.to_bytes());
            listener.last_refusal
        };
        eventually("the refusal to be told", || told().is_some()).await;
        let refusal = told().unwrap();
        assert_eq!((refusal.code, refusal.count), (u32::from(code.number()), 1));
        let age = SystemClock::new().wall().since(WallTime(refusal.at_ms));
        assert!(age < PATIENCE, "{age:?}");
    }
    eventually("the streams to be forgotten", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
}

/// A link whose target was away works once it is there, and no refusal is told of it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refusal_that_is_overcome_is_not_told() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let pool = Pool::start(1, &[address.to_string()]).await;
    let told = || control::listener_states(&pool.alpha.started.listeners)[0].last_refusal;
    is_reset(&pool, 0).await;
    eventually("the refusal to be told", || told().is_some()).await;
    let target = TcpListener::bind(address).await.unwrap();
    let connection = pool.connect(0).await;
    let _accepted = target.accept().await.unwrap();
    eventually("the refusal to be overcome", || told().is_none()).await;
    drop(connection);
}

/// F-08: an endpoint that the publisher does not know, although a relay still sends to it, has its
/// own code, in under a second and for good; nothing is left of the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_unknown_endpoint_has_its_code() {
    let echo = echo().await;
    let mut pool = Pool::start(1, &[echo.clone(), echo]).await;
    // The publisher's goodbye takes this long to the relay, which sends to it meanwhile.
    let wire = Wire::to(pool.workers[0].address, Duration::from_millis(150)).await;
    pool.detours = vec![(BETA, pool.workers[0].id, wire.address)];
    pool.redial().await;
    assert_eq!(exchange(pool.connect(1).await, b"known").await.unwrap(), b"known");
    let mut policy = pool.next_beta_policy();
    policy
        .publications
        .retain(|p| p.endpoint != pool.links[1].endpoint);
    pool.beta.offer_policy(&pool.authority.node_policy(&policy));
    let took = is_reset(&pool, 1).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let code = RefusalCode::UnknownEndpoint;
    eventually("the refusal to be counted", || {
        pool.alpha.refused(StreamRole::Consumer, code) == 1
    })
    .await;
    assert_eq!(exchange(pool.connect(0).await, b"other").await.unwrap(), b"other");
    eventually("the streams to be forgotten", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
}

/// R-STR-05: without a grant nothing is dialled; the connection is held for the grant that may be
/// on its way, then reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_a_grant_nothing_is_dialled() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut pool = Pool::start(1, &[target.local_addr().unwrap().to_string()]).await;
    pool.links[0].granted = false;
    pool.publish().await;
    is_reset(&pool, 0).await;
    let dialled = tokio::time::timeout(Duration::from_millis(200), target.accept()).await;
    assert!(dialled.is_err(), "the target was dialled");
}

/// R-STR-05: the relay is not trusted for authorisation. A publisher whose policy knows other grant
/// keys refuses what the relay admitted, before it dials.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_publisher_judges_grants_itself() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut pool = Pool::start(1, &[target.local_addr().unwrap().to_string()]).await;
    pool.beta_grant_keys = keyring(&SigningKey::from_seed(&[77; 32]));
    pool.publish().await;
    is_reset(&pool, 0).await;
    eventually("the refusal to be counted", || {
        pool.alpha.refused(StreamRole::Consumer, RefusalCode::BadGrant) == 1
    })
    .await;
    let dialled = tokio::time::timeout(Duration::from_millis(200), target.accept()).await;
    assert!(dialled.is_err(), "the target was dialled");
}

/// R-REV-01: the publisher's daemon resets the live streams of a revoked route itself; those of
/// others go on, and the listener is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revocation_resets_live_streams() {
    let mut pool = Pool::start(1, &[echo().await, echo().await]).await;
    let (mut doomed, mut other) = (pool.connect(0).await, pool.connect(1).await);
    for socket in [&mut doomed, &mut other] {
        socket.write_all(b"x").await.unwrap();
        socket.read_exact(&mut [0; 1]).await.unwrap();
    }
    pool.links[0].revoked = true;
    // Only beta learns of it: the relay and the consumer are out of reach of the control plane.
    let policy = pool.next_beta_policy();
    let policy = pool.authority.node_policy(&policy);
    pool.beta.offer_policy(&policy);
    assert_eq!(reads_reset(doomed).await, ErrorKind::ConnectionReset);
    assert_eq!(exchange(other, b"still here").await.unwrap(), b"still here");
    pool.publish().await;
    pool.ready().await;
    let refused = TcpStream::connect(pool.links[0].listen).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// R-REV-01, F-15: the nodes are cut off from the control plane, and the relays close what is of a
/// revoked route. Their refusals keep the publisher's sealed word away: that all of them say so is the
/// end of the streams at both ends, long before their hold, while another link's go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_every_relay_has_revoked_ends_at_nodes_that_are_cut_off() {
    let mut pool = Pool::start(2, &[echo().await, echo().await]).await;
    let mut doomed = Vec::new();
    for _ in 0..4 {
        doomed.push(pool.connect(0).await);
    }
    let mut other = pool.connect(1).await;
    for socket in doomed.iter_mut().chain([&mut other]) {
        socket.write_all(b"x").await.unwrap();
        socket.read_exact(&mut [0; 1]).await.unwrap();
    }
    pool.links[0].revoked = true;
    let started = Instant::now();
    pool.publish_to_relays().await;
    for socket in doomed {
        assert_eq!(reads_reset(socket).await, ErrorKind::ConnectionReset);
    }
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    // Each relay had legs of the route, and closed them at the publisher too.
    eventually("the publisher's halves to end", || {
        pool.beta.started.live.len() == 1
    })
    .await;
    assert_eq!(exchange(other, b"still here").await.unwrap(), b"still here");
}

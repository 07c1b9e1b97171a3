//! What comes back by itself, without a control plane (R-GEN-04, R-NOD-01, R-NOD-02).

use super::pool::{PATIENCE, Pool, eventually};
use super::traffic::{echo, exchange, pattern};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// R-NOD-01, R-NOD-02, R-STR-01: the only relay's worker is killed and comes back: sessions and
/// registrations return, a connection made while it was away is held and served, and a live stream
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_worker_comes_back() {
    let mut pool = Pool::start(1, &[echo().await]).await;
    let mut live = pool.connect(0).await;
    live.write_all(b"x").await.unwrap();
    live.read_exact(&mut [0; 1]).await.unwrap();
    pool.workers[0].kill().await;
    let held = pool.connect(0).await;
    pool.workers[0].restart().await;
    let listening = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, exchange(held, b"held"))
        .await
        .unwrap();
    assert_eq!(answer.unwrap(), b"held");
    assert!(
        listening.elapsed() < Duration::from_secs(5),
        "{:?} after the worker listened",
        listening.elapsed()
    );
    pool.ready().await;
    live.write_all(b"y").await.unwrap();
    let read = tokio::time::timeout(PATIENCE, live.read_u8()).await.unwrap();
    assert_eq!(read.unwrap(), b'y');
}

/// One of two relays dies: new streams go through the other at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn new_streams_use_the_relay_that_is_left() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    assert_eq!(exchange(pool.connect(0).await, b"first").await.unwrap(), b"first");
    pool.workers[0].kill().await;
    for n in 0..6 {
        let bytes = pattern(n, 5000);
        let socket = pool.connect(0).await;
        let answer = tokio::time::timeout(PATIENCE, exchange(socket, &bytes))
            .await
            .unwrap();
        assert!(answer.unwrap() == bytes, "stream {n}");
    }
}

/// R-GEN-04: both daemons are killed and start from their folders alone; streams open again under
/// the documents they kept. The consumer's association is unknown to the new publisher, which only
/// starts a new handshake.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_daemons_start_from_their_folders() {
    let mut pool = Pool::start(1, &[echo().await]).await;
    assert_eq!(exchange(pool.connect(0).await, b"one").await.unwrap(), b"one");
    pool.beta.kill_and_restart().await;
    pool.ready().await;
    assert_eq!(exchange(pool.connect(0).await, b"two").await.unwrap(), b"two");
    pool.alpha.kill_and_restart().await;
    pool.ready().await;
    assert_eq!(exchange(pool.connect(0).await, b"three").await.unwrap(), b"three");
}

/// The daemon ends in order: its streams get an error at once, its runtime file goes, and the relay
/// is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopped_daemon_leaves_in_order() {
    let mut pool = Pool::start(1, &[echo().await]).await;
    let mut live = pool.connect(0).await;
    live.write_all(b"x").await.unwrap();
    live.read_exact(&mut [0; 1]).await.unwrap();
    assert!(pool.beta.folder().read_runtime().unwrap().is_some());
    let started = Instant::now();
    pool.beta.stop().await;
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    assert!(pool.beta.folder().read_runtime().unwrap().is_none());
    let ended = tokio::time::timeout(PATIENCE, live.read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
    eventually("alpha to forget the stream", || {
        pool.alpha.started.live.len() == 0
    })
    .await;
}

/// R-ADM-03: a publisher that restarts in order says so; a connection made meanwhile is held for
/// longer than an unannounced absence, and served when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_announced_restart_is_waited_for() {
    let mut pool = Pool::start(1, &[echo().await]).await;
    assert_eq!(exchange(pool.connect(0).await, b"one").await.unwrap(), b"one");
    pool.beta.stop().await;
    let held = pool.connect(0).await;
    let waiting = tokio::spawn(exchange(held, b"two"));
    // Longer than the hold of an unannounced absence.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!waiting.is_finished(), "the connection was not held");
    pool.beta.kill_and_restart().await;
    let answer = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(answer.unwrap(), b"two");
}

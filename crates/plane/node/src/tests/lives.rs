//! Associations and daemons that change while streams live (R-STR-01, R-STR-05).

use super::pool::{PATIENCE, Pool, eventually};
use super::traffic::{echo, exchange, pattern};
use fairlead_model::Name;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A target that hands each connection to the test.
async fn manual() -> (String, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if sender.send(socket).await.is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

/// R-STR-01, R-STR-05: associations are renewed while their streams move: live streams keep the
/// secret they have, new ones use the new one, and every byte arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_association_is_renewed_during_a_move() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    let mut old = Vec::new();
    for n in 0..20 {
        let mut socket = pool.connect(0).await;
        socket.write_u8(n).await.unwrap();
        assert_eq!(socket.read_u8().await.unwrap(), n);
        old.push(socket);
    }
    let made = |pool: &Pool| pool.alpha.started.metrics.association_count();
    for round in 0..3u64 {
        let before = made(&pool);
        pool.alpha.started.associations.renew_all();
        let dead = round as usize % 2;
        let fresh = pool.connect(0).await;
        let fresh = tokio::spawn(async move {
            let bytes = pattern(round, 200_000);
            assert!(
                exchange(fresh, &bytes).await.unwrap() == bytes,
                "a new stream, round {round}"
            );
        });
        pool.workers[dead].kill().await;
        let mut tasks = tokio::task::JoinSet::new();
        for (n, mut socket) in (0..).zip(std::mem::take(&mut old)) {
            tasks.spawn(async move {
                let bytes = pattern(n + 100 * round, 20_000);
                let mut answer = vec![0; bytes.len()];
                socket.write_all(&bytes).await.unwrap();
                socket.read_exact(&mut answer).await.unwrap();
                assert!(answer == bytes, "stream {n}, round {round}");
                socket
            });
        }
        let all = async {
            while let Some(socket) = tasks.join_next().await {
                old.push(socket.unwrap());
            }
            fresh.await.unwrap();
        };
        tokio::time::timeout(PATIENCE * 2, all).await.unwrap();
        pool.workers[dead].restart().await;
        pool.ready().await;
        // A renewal that died with its relay is begun again by the next stream.
        let renewed = async {
            while made(&pool) == before {
                let socket = pool.connect(0).await;
                assert_eq!(exchange(socket, b"next").await.unwrap(), b"next");
            }
        };
        tokio::time::timeout(PATIENCE, renewed).await.unwrap();
    }
    let made = made(&pool);
    assert!(
        (4..=7).contains(&made),
        "{made} associations: one per renewal, and at most one per relay"
    );
    for socket in old {
        assert_eq!(exchange(socket, b"the end").await.unwrap(), b"the end");
    }
}

/// R-GEN-04, I8: both daemons are killed in turn under traffic. What the dead run carried ends with an
/// error at the end that lives, nothing is delivered or dialled twice, and new streams open each
/// time, under another association.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn daemons_restart_in_turn_under_traffic() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(2, &[target]).await;
    let mut opened = 0;
    for turn in 0..4u64 {
        let mut near = pool.connect(0).await;
        let far = tokio::time::timeout(PATIENCE, accepted.recv()).await.unwrap();
        let mut far = far.unwrap();
        opened += 1;
        let bytes = pattern(turn, 100_000);
        let mut got = vec![0; bytes.len()];
        let (sent, read) = tokio::join!(near.write_all(&bytes), far.read_exact(&mut got));
        sent.unwrap();
        read.unwrap();
        assert!(got == bytes, "turn {turn}");
        // More is on its way when the daemon dies.
        let _ = near.write_all(&bytes).await;
        let living = if turn % 2 == 0 {
            pool.beta.kill_and_restart().await;
            &mut near
        } else {
            pool.alpha.kill_and_restart().await;
            &mut far
        };
        let mut rest = Vec::new();
        let end = tokio::time::timeout(PATIENCE, living.read_to_end(&mut rest))
            .await
            .unwrap();
        assert!(end.is_err(), "turn {turn}: a clean end");
        assert!(
            bytes.starts_with(&rest),
            "turn {turn}: other bytes than were sent"
        );
        eventually("the old streams to be forgotten", || {
            pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
        })
        .await;
        pool.ready().await;
    }
    assert!(
        opened == 4 && accepted.try_recv().is_err(),
        "a target was dialled twice"
    );
}

/// R-REV-01, R-STR-05: relay and publisher have revoked a route and its only relay is lost: the
/// consumer believes no relay, and ends the stream as soon as its own policy says so, long before the
/// hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revocation_ends_a_suspended_stream_by_the_consumers_own_policy() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(1, &[target]).await;
    let mut near = pool.connect(0).await;
    let mut far = accepted.recv().await.unwrap();
    // The target is dialled before the consumer is told so: without an answer the stream is a new one,
    // which fails and is not suspended.
    far.write_u8(1).await.unwrap();
    assert_eq!(near.read_u8().await.unwrap(), 1);
    pool.workers[0].kill().await;
    eventually("the stream to be suspended", || {
        let suspended = &pool.alpha.started.metrics.streams_suspended;
        suspended
            .get_or_create(&crate::metrics::StreamRole::Consumer.into())
            .get()
            == 1
    })
    .await;
    let quiet = tokio::time::timeout(Duration::from_millis(300), near.read(&mut [0; 1])).await;
    assert!(quiet.is_err(), "nobody has told the consumer yet: {quiet:?}");
    pool.workers[0].restart().await;
    pool.links[0].revoked = true;
    pool.publish().await;
    let ended = tokio::time::timeout(PATIENCE, near.read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
}

/// R-UI-03: a relay that has left the policy is missed by nobody: its series end, and with them any
/// alarm about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_relay_that_left_the_policy_leaves_no_series() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    let gone = pool.workers.pop().unwrap();
    let name: Name = format!("relay-{}", gone.id.to_bytes()[0]).parse().unwrap();
    let label = crate::metrics::RelayLabel::of(&name);
    let reached = pool.alpha.started.metrics.hop_connected.clone();
    assert_eq!(reached.get(&label).map(|gauge| gauge.get()), Some(1));
    pool.publish().await;
    eventually("the relay's series to end", || reached.get(&label).is_none()).await;
}

/// The runtime file only informs: a daemon that cannot write it serves all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_daemon_without_its_runtime_file_serves() {
    let mut pool = Pool::start(1, &[echo().await]).await;
    let runtime = pool.alpha.folder().runtime_path();
    eventually("the runtime file", || runtime.is_file()).await;
    // Nothing can be renamed over a folder with something in it.
    std::fs::remove_file(&runtime).unwrap();
    std::fs::create_dir(&runtime).unwrap();
    std::fs::write(runtime.join("in the way"), "").unwrap();
    pool.alpha.kill_and_restart().await;
    pool.ready().await;
    let bytes = pattern(1, 20_000);
    assert!(exchange(pool.connect(0).await, &bytes).await.unwrap() == bytes);
    // The end of the daemon would be the error's.
    pool.alpha.stop().await;
}

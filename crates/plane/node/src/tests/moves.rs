//! Streams that survive their relay (R-STR-01 to R-STR-05).

use super::pool::{PATIENCE, Pool, eventually};
use super::traffic::{echo, exchange, pattern};
use crate::config::StreamHold;
use crate::driver::MoveKind;
use crate::old_runs::BACK_WITHIN;
use crate::socket::EndSocket;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Longest gap after a relay dies, where suspicion moves the stream; the machine may be busy.
const GAP_MAX: Duration = Duration::from_secs(3);

/// A target that hands each connection to the test.
async fn manual() -> (String, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if sender.send(socket).await.is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

/// Asks for an echo every few milliseconds until stopped; gives the longest gap and how many rounds.
fn ping_pong(mut socket: TcpStream) -> (tokio::sync::watch::Sender<bool>, JoinHandle<(Duration, u32)>) {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let task = tokio::spawn(async move {
        let (mut longest, mut rounds) = (Duration::ZERO, 0u32);
        while !*stopped.borrow() {
            let started = Instant::now();
            socket.write_u32(rounds).await.unwrap();
            assert_eq!(socket.read_u32().await.unwrap(), rounds);
            longest = longest.max(started.elapsed());
            rounds += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        (longest, rounds)
    });
    (stop, task)
}

fn moves(pool: &Pool) -> u64 {
    let metrics = &pool.alpha.started.metrics;
    [MoveKind::Failure, MoveKind::Suspicion]
        .iter()
        .map(|kind| metrics.move_count(*kind))
        .sum()
}

/// R-STR-01, F-04: bytes flow both ways at once while the relay that carries them is killed again
/// and again; every byte arrives once and in order, and no socket notices. One association serves
/// throughout, though the relay over which it was made dies first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bytes_survive_kill_after_kill() {
    const KILLS: usize = 6;
    let mut pool = Pool::start(2, &[echo().await]).await;
    let (stop, gaps) = ping_pong(pool.connect(0).await);
    let (mut read, mut write) = pool.connect(0).await.into_split();
    let (halt, halted) = tokio::sync::watch::channel(false);
    let writer = tokio::spawn(async move {
        let mut sent = 0u64;
        while !*halted.borrow() {
            write.write_all(&pattern(sent, 64 * 1024)).await.unwrap();
            sent += 1;
        }
        write.shutdown().await.unwrap();
        sent
    });
    let reader = tokio::spawn(async move {
        let mut blocks = 0u64;
        let mut block = vec![0; 64 * 1024];
        loop {
            match read.read_exact(&mut block[..1]).await {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return blocks,
                Err(error) => panic!("{error}"),
            }
            read.read_exact(&mut block[1..]).await.unwrap();
            assert!(block == pattern(blocks, block.len()), "block {blocks}");
            blocks += 1;
        }
    });
    for kill in 0..KILLS {
        let at = kill % 2;
        tokio::time::sleep(Duration::from_millis(700)).await;
        pool.workers[at].kill().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        pool.workers[at].restart().await;
        pool.ready().await;
    }
    halt.send_replace(true);
    let sent = writer.await.unwrap();
    let received = tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap();
    assert_eq!(received, sent);
    stop.send_replace(true);
    let (longest, rounds) = tokio::time::timeout(PATIENCE, gaps).await.unwrap().unwrap();
    println!(
        "{sent} blocks, {} moves, longest gap {longest:?} of {rounds} rounds",
        moves(&pool)
    );
    assert!(moves(&pool) as usize >= KILLS, "{} moves", moves(&pool));
    assert!(longest < GAP_MAX, "{longest:?}");
    assert_eq!(pool.alpha.started.metrics.association_count(), 1);
    eventually("the streams to be forgotten", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
}

/// F-01, R-STR-02: the relay dies between the consumer's FIN and the answer; EOF arrives in order
/// both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_half_close_survives_its_relay() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(2, &[target]).await;
    for round in 0..4 {
        let mut near = pool.connect(0).await;
        let mut far = accepted.recv().await.unwrap();
        let question = pattern(round, 1 << 20);
        let (sent, heard) = tokio::join!(
            async {
                near.write_all(&question).await?;
                near.shutdown().await
            },
            async {
                let mut heard = Vec::new();
                far.read_to_end(&mut heard).await.map(|_| heard)
            }
        );
        sent.unwrap();
        assert!(heard.unwrap() == question);
        let at = round as usize % 2;
        pool.workers[at].kill().await;
        let answer = pattern(round + 100, 1 << 20);
        let (sent, heard) = tokio::time::timeout(PATIENCE, async {
            tokio::join!(
                async {
                    far.write_all(&answer).await?;
                    far.shutdown().await
                },
                async {
                    let mut heard = Vec::new();
                    near.read_to_end(&mut heard).await.map(|_| heard)
                }
            )
        })
        .await
        .unwrap();
        sent.unwrap();
        assert!(heard.unwrap() == answer, "round {round}");
        pool.workers[at].restart().await;
        pool.ready().await;
    }
}

/// F-02, R-STR-02: a target resets while its relay is dead: the consumer gets an error, never a clean
/// end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reset_crosses_a_move() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(2, &[target]).await;
    for round in 0..4 {
        let mut near = pool.connect(0).await;
        let mut far = accepted.recv().await.unwrap();
        near.write_all(b"ask").await.unwrap();
        far.read_exact(&mut [0; 3]).await.unwrap();
        let at = round % 2;
        pool.workers[at].kill().await;
        far.write_all(b"some").await.unwrap();
        EndSocket::tcp(far).unwrap().reset();
        let mut heard = Vec::new();
        let end = tokio::time::timeout(PATIENCE, near.read_to_end(&mut heard))
            .await
            .unwrap();
        assert!(end.is_err(), "round {round}: {end:?}");
        pool.workers[at].restart().await;
        pool.ready().await;
    }
}

/// R-STR-01: 200 live streams on two relays, one of which is killed: all continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_live_stream_continues() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    let mut sockets = Vec::new();
    for _ in 0..200 {
        let mut socket = pool.connect(0).await;
        socket.write_u8(1).await.unwrap();
        socket.read_u8().await.unwrap();
        sockets.push(socket);
    }
    pool.workers[0].kill().await;
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (n, socket) in (0..).zip(sockets) {
        tasks.spawn(async move {
            let bytes = pattern(n, 50_000);
            assert!(exchange(socket, &bytes).await.unwrap() == bytes, "stream {n}");
        });
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap()
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    println!("200 streams, {} moves, {:?}", moves(&pool), started.elapsed());
    assert!(moves(&pool) >= 50, "{}", moves(&pool));
}

/// R-STR-04: without any relay a stream is held, then both its sockets are reset, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_hold_ends_in_a_reset() {
    let hold = StreamHold::of_test(Duration::from_millis(1500));
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start_with_hold(1, &[target], hold).await;
    let mut near = pool.connect(0).await;
    let mut far = accepted.recv().await.unwrap();
    near.write_all(b"ask").await.unwrap();
    far.read_exact(&mut [0; 3]).await.unwrap();
    pool.workers[0].kill().await;
    let (near, far) = tokio::time::timeout(Duration::from_secs(30), async {
        let (mut one, mut two) = ([0; 1], [0; 1]);
        tokio::join!(near.read(&mut one), far.read(&mut two))
    })
    .await
    .unwrap();
    assert!(near.is_err() && far.is_err(), "{near:?}, {far:?}");
    eventually("the streams to be forgotten", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
}

/// A relay that is frozen keeps its sockets; with bytes outstanding in one direction only, each in
/// turn, and with none, streams move in about 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_frozen_relay_is_left() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(2, &[target]).await;
    for up in [true, false] {
        pool.consumed_through = Some(vec![pool.workers[0].id]);
        pool.publish().await;
        let mut near = pool.connect(0).await;
        let mut far = accepted.recv().await.unwrap();
        near.write_all(b"ask").await.unwrap();
        far.read_exact(&mut [0; 3]).await.unwrap();
        pool.consumed_through = None;
        pool.publish().await;
        let frozen = pool.workers[0].freeze();
        let started = Instant::now();
        let (from, to) = if up {
            (&mut near, &mut far)
        } else {
            (&mut far, &mut near)
        };
        from.write_all(b"through").await.unwrap();
        let mut through = [0; 7];
        tokio::time::timeout(PATIENCE, to.read_exact(&mut through))
            .await
            .unwrap()
            .unwrap();
        println!("up {up}: moved after {:?}", started.elapsed());
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
        drop(frozen);
        drop((near, far));
        pool.ready().await;
    }
}

/// R-STR-03: when policy takes a relay away, streams leave it make-before-break: nobody waits for a
/// timeout, and the relay carries them no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_planned_move_makes_before_it_breaks() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    pool.consumed_through = Some(vec![pool.workers[0].id]);
    pool.publish().await;
    let (stop, gaps) = ping_pong(pool.connect(0).await);
    let idle = pool.connect(0).await;
    eventually("both streams to be open", || pool.beta.started.live.len() == 2).await;
    for n in [1, 0, 1] {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = pool.alpha.started.metrics.move_count(MoveKind::Planned);
        pool.consumed_through = Some(vec![pool.workers[n].id]);
        pool.publish().await;
        eventually("both streams to move", || {
            pool.alpha.started.metrics.move_count(MoveKind::Planned) == before + 2
        })
        .await;
    }
    pool.workers[0].kill().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.send_replace(true);
    let (longest, rounds) = tokio::time::timeout(PATIENCE, gaps).await.unwrap().unwrap();
    println!("longest gap {longest:?} of {rounds} rounds");
    assert!(longest < Duration::from_millis(500), "{longest:?}");
    assert_eq!(moves(&pool), 0, "the killed relay carried nothing");
    let answer = exchange(idle, b"still here").await.unwrap();
    assert_eq!(answer, b"still here");
}

/// R-STR-03, R-OPS-01: a relay that stops in order says so, and is left make-before-break.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopping_relay_is_left_without_a_gap() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    let (stop, gaps) = ping_pong(pool.connect(0).await);
    let mut idle = Vec::new();
    for _ in 0..100 {
        let mut socket = pool.connect(0).await;
        socket.write_u8(1).await.unwrap();
        socket.read_u8().await.unwrap();
        idle.push(socket);
    }
    pool.workers[0].stop().await;
    stop.send_replace(true);
    let (longest, rounds) = tokio::time::timeout(PATIENCE, gaps).await.unwrap().unwrap();
    let planned = pool.alpha.started.metrics.move_count(MoveKind::Planned);
    println!("{planned} planned moves, longest gap {longest:?} of {rounds} rounds");
    assert!(planned >= 40, "{planned}");
    assert_eq!(moves(&pool), 0, "nothing was lost");
    assert!(longest < Duration::from_millis(500), "{longest:?}");
    for (n, socket) in (0..).zip(idle) {
        let bytes = pattern(n, 1000);
        assert!(exchange(socket, &bytes).await.unwrap() == bytes, "stream {n}");
    }
}

/// A consumer's daemon that starts anew says so to its publishers by itself: what its last run had
/// open ends at the target too, long before the hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_consumer_ends_its_streams_at_the_publisher() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(2, &[target]).await;
    let mut near = pool.connect(0).await;
    let mut far = accepted.recv().await.unwrap();
    near.write_all(b"ask").await.unwrap();
    far.read_exact(&mut [0; 3]).await.unwrap();
    pool.alpha.kill_and_restart().await;
    let ended = tokio::time::timeout(PATIENCE, far.read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
    eventually("beta to forget the stream", || pool.beta.started.live.len() == 0).await;
}

/// R-GEN-04: a publisher's daemon that starts anew knows no stream; the consumer learns it from the
/// daemon itself and resets, and new streams open. It does not wait for the hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_publisher_ends_its_streams() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    let mut live = pool.connect(0).await;
    live.write_u8(1).await.unwrap();
    live.read_u8().await.unwrap();
    pool.beta.kill_and_restart().await;
    let started = Instant::now();
    let ended = tokio::time::timeout(PATIENCE, live.read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
    let took = started.elapsed();
    println!("ended after {took:?}");
    assert!(took < BACK_WITHIN, "its lock proves that the earlier run is dead");
    pool.ready().await;
    assert_eq!(exchange(pool.connect(0).await, b"new").await.unwrap(), b"new");
}

/// R-REV-01, R-STR-05: a route revoked while its stream has no relay: the stream ends at once at both
/// ends, and no resume brings it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revoked_stream_is_not_resumed() {
    let (target, mut accepted) = manual().await;
    let mut pool = Pool::start(1, &[target]).await;
    let mut near = pool.connect(0).await;
    let mut far = accepted.recv().await.unwrap();
    near.write_all(b"ask").await.unwrap();
    far.read_exact(&mut [0; 3]).await.unwrap();
    pool.workers[0].kill().await;
    let mut policy = pool.next_beta_policy();
    policy.revoked_routes.push(pool.links[0].route);
    let envelope = pool.authority.node_policy(&policy);
    pool.beta.offer_policy(&envelope);
    let ended = tokio::time::timeout(PATIENCE, far.read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
    // Alpha and the relay know nothing of it: the publisher alone refuses.
    pool.workers[0].restart().await;
    let ended = tokio::time::timeout(PATIENCE, near.read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(ended.is_err(), "{ended:?}");
}

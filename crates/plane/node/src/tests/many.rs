//! Many streams on a relay that dies: where they go, how fast, and with how many attempts (R-STR-01,
//! R-STR-03, F-07).

use super::pool::{ALPHA, BETA, PATIENCE, Pool, eventually};
use super::traffic::{echo, pattern};
use super::wire::Wire;
use crate::driver::MoveKind;
use crate::metrics::StreamRole;
use crate::paths::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

const STREAMS: usize = 1000;
/// Attempts per stream that are no storm: one each, and a tenth for those that met a full moment.
const ATTEMPTS_PER_TEN: u64 = 11;

/// Streams that speak now and then, each with its own bytes, verified by each answer.
struct Talkers {
    stop: watch::Sender<bool>,
    tasks: JoinSet<u64>,
}

impl Talkers {
    async fn start(pool: &Pool, count: usize) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for n in 0..count {
            let mut socket = pool.connect(0).await;
            say(&mut socket, n as u64).await;
            let mut stopped = stopped.clone();
            tasks.spawn(async move {
                let mut said = 1;
                // Spread, so that at any moment some have bytes on the way.
                let pause = Duration::from_millis(1000 + n as u64 % 500);
                while tokio::time::timeout(pause, stopped.wait_for(|stop| *stop))
                    .await
                    .is_err()
                {
                    say(&mut socket, n as u64 * 1_000_000 + said).await;
                    said += 1;
                }
                // After everything: the stream still lives and nothing is left over in it.
                say(&mut socket, n as u64).await;
                socket.shutdown().await.unwrap();
                assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0, "stream {n}");
                said
            });
        }
        Self { stop, tasks }
    }

    /// How many messages were said and verified.
    async fn end(mut self) -> u64 {
        self.stop.send_replace(true);
        let mut all = 0;
        while let Some(said) = tokio::time::timeout(PATIENCE * 3, self.tasks.join_next())
            .await
            .unwrap()
        {
            all += said.unwrap();
        }
        all
    }
}

async fn say(socket: &mut TcpStream, seed: u64) {
    let bytes = pattern(seed, 300);
    socket.write_all(&bytes).await.unwrap();
    let mut answer = vec![0; bytes.len()];
    tokio::time::timeout(PATIENCE * 3, socket.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer == bytes, "message {seed}");
}

/// Opens all streams through the first relay, then lets them use every one.
async fn talkers_on_the_first(pool: &mut Pool, count: usize) -> Talkers {
    pool.consumed_through = Some(vec![pool.workers[0].id]);
    pool.publish().await;
    let talkers = Talkers::start(pool, count).await;
    pool.consumed_through = None;
    pool.publish().await;
    talkers
}

fn is_proven(pool: &Pool, worker: usize) -> bool {
    let relay = pool.workers[worker].id;
    let sessions = pool.alpha.started.relays.sessions();
    sessions.get(&relay).is_some_and(|session| {
        let path = Path {
            publisher: BETA,
            relay,
            session: session.number,
        };
        let now = pool.alpha.started.clock.mono();
        pool.alpha.started.paths.proven(path, now).is_some()
    })
}

/// Kills a worker and says at once what the liveness connection would: it is dead.
async fn kill(pool: &mut Pool, worker: usize) -> Instant {
    let relay = pool.workers[worker].id;
    let number = pool.alpha.started.relays.sessions()[&relay].number;
    pool.workers[worker].kill().await;
    let killed = Instant::now();
    pool.alpha
        .started
        .relays
        .down(relay, number, "killed by the test".into());
    killed
}

fn moved(pool: &Pool) -> u64 {
    let metrics = &pool.alpha.started.metrics;
    metrics.move_count(MoveKind::Failure) + metrics.move_count(MoveKind::Suspicion)
}

fn attempts(pool: &Pool, worker: usize) -> u64 {
    let name = format!("relay-{}", worker + 1);
    pool.alpha.started.metrics.move_attempts(&name)
}

/// R-STR-01, R-STR-03: 1,000 streams on a killed relay move at once, to the relay that was proven
/// before, with about one attempt each, one association and no further hop session.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_streams_leave_a_dead_relay_at_once() {
    let mut pool = Pool::start(2, &[echo().await]).await;
    let talkers = talkers_on_the_first(&mut pool, STREAMS).await;
    eventually("the other relay to be proven", || is_proven(&pool, 1)).await;
    assert_eq!(moved(&pool), 0);
    let sessions = pool.alpha.started.metrics.hop_session_count("relay-2");
    let killed = kill(&mut pool, 0).await;
    eventually("all streams to move", || moved(&pool) >= STREAMS as u64).await;
    let took = killed.elapsed();
    let said = talkers.end().await;
    let (first, second) = (attempts(&pool, 0), attempts(&pool, 1));
    println!("{STREAMS} streams moved in {took:?}, {second} attempts, {said} messages verified");
    assert_eq!(first, 0, "a dead relay is not asked");
    assert!(
        second * 10 <= STREAMS as u64 * ATTEMPTS_PER_TEN,
        "{second} attempts"
    );
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(pool.alpha.started.metrics.association_count(), 1);
    assert_eq!(pool.alpha.started.metrics.hop_session_count("relay-2"), sessions);
}

/// F-07: a relay dies with 1,000 streams while a second is slow (300 ms there and back) and a third
/// never answered a probe: every stream goes to the slow one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_stream_goes_to_the_dead_or_the_unproven() {
    let mut pool = Pool::start(3, &[echo().await]).await;
    let far = Duration::from_millis(75);
    let (slow, unproven) = (pool.workers[1].address, pool.workers[2].address);
    let wires = (
        Wire::to(slow, far).await,
        Wire::to(slow, far).await,
        Wire::to(unproven, Duration::ZERO).await,
    );
    pool.detours = vec![
        (ALPHA, pool.workers[1].id, wires.0.address),
        (BETA, pool.workers[1].id, wires.1.address),
        (BETA, pool.workers[2].id, wires.2.address),
    ];
    pool.redial().await;
    // The third takes streams and carries them nowhere.
    wires.2.cut(true);
    let talkers = talkers_on_the_first(&mut pool, STREAMS).await;
    eventually("the slow relay to be proven", || is_proven(&pool, 1)).await;
    assert!(!is_proven(&pool, 2));
    let killed = kill(&mut pool, 0).await;
    eventually("all streams to move", || moved(&pool) >= STREAMS as u64).await;
    let took = killed.elapsed();
    let said = talkers.end().await;
    let asked: Vec<u64> = (0..3).map(|n| attempts(&pool, n)).collect();
    println!("{STREAMS} streams moved in {took:?}, attempts by relay {asked:?}, {said} messages verified");
    assert_eq!((asked[0], asked[2]), (0, 0), "the dead and the unproven");
    assert!(asked[1] * 10 <= STREAMS as u64 * ATTEMPTS_PER_TEN, "{asked:?}");
}

/// F-07: while no path answers, streams are held, and one probe at a time looks for one: no stream
/// makes an attempt of its own. The first answer moves them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_wait_for_one_answer() {
    const FEW: usize = 200;
    let mut pool = Pool::start(2, &[echo().await]).await;
    let wire = Wire::to(pool.workers[1].address, Duration::ZERO).await;
    pool.detours = vec![(BETA, pool.workers[1].id, wire.address)];
    pool.redial().await;
    wire.cut(true);
    let talkers = talkers_on_the_first(&mut pool, FEW).await;
    kill(&mut pool, 0).await;
    eventually("the streams to be suspended", || {
        let suspended = &pool.alpha.started.metrics.streams_suspended;
        suspended.get_or_create(&StreamRole::Consumer.into()).get() == FEW as i64
    })
    .await;
    assert_eq!(attempts(&pool, 0) + attempts(&pool, 1), 0);
    wire.cut(false);
    let back = Instant::now();
    eventually("all streams to move", || moved(&pool) >= FEW as u64).await;
    println!("{FEW} streams moved {:?} after the path was back", back.elapsed());
    talkers.end().await;
    let tried = attempts(&pool, 1);
    assert!(tried * 10 <= FEW as u64 * ATTEMPTS_PER_TEN, "{tried} attempts");
}

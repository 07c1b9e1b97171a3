//! Who is dead and who is not, and how soon sessions are back (R-ADM-02, R-ADM-04, R-NOD-01,
//! R-UPD-08, F-05, F-06).

use super::pool::{ALPHA, BETA, Pool, Worker, eventually};
use super::starved::starved;
use super::traffic::{echo, exchange};
use super::wire::Wire;
use crate::metrics::{CauseLabel, RelayLabel, StreamRole};
use crate::publisher::{AnswerError, answer_within};
use crate::relays::{Doubt, Relays, Session};
use fairlead_hop::frame::Answer;
use fairlead_hop::liveness::LostCause;
use fairlead_rpc::pb;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// What a death or a return may take in a test on a machine that does other things too.
const SOON: Duration = Duration::from_secs(2);

/// Alpha's session with the first relay: its number, and what it is thought of.
fn session(pool: &Pool) -> Option<(u32, Doubt)> {
    let sessions = pool.alpha.started.relays.sessions();
    sessions
        .get(&pool.workers[0].id)
        .map(|session| (session.number, session.doubt))
}

fn name(worker: &Worker) -> String {
    format!("relay-{}", worker.id.to_bytes()[0])
}

/// How many liveness connections of alpha to the first relay were lost.
fn lost(pool: &Pool) -> u64 {
    let lost = |cause: LostCause| {
        let label = CauseLabel::of(&name(&pool.workers[0]), cause.as_str());
        pool.alpha
            .started
            .metrics
            .liveness_lost
            .get_or_create(&label)
            .get()
    };
    lost(LostCause::Closed) + lost(LostCause::Unacknowledged) + lost(LostCause::Protocol)
}

/// A pool of one relay to which alpha has a wire.
async fn wired() -> (Pool, Wire) {
    let mut pool = Pool::start(1, &[echo().await]).await;
    let wire = Wire::to(pool.workers[0].address, Duration::ZERO).await;
    pool.detours = vec![(ALPHA, pool.workers[0].id, wire.address)];
    pool.redial().await;
    eventually("the liveness connection", || live(&pool)).await;
    (pool, wire)
}

fn live(pool: &Pool) -> bool {
    pool.workers.iter().all(|worker| {
        let label = RelayLabel::of(&name(worker));
        let connected = &pool.alpha.started.metrics.liveness_connected;
        connected.get_or_create(&label).get() == 1
    })
}

/// R-ADM-02: a killed worker is known dead at once, long before QUIC could tell; R-NOD-01, R-UPD-08:
/// its node is back a fraction of a second after the next worker listens, however long that took.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_worker_is_known_at_once_and_found_again_at_once() {
    let mut pool = Pool::start(1, &[echo().await]).await;
    for away in [0, 100, 400, 1500] {
        eventually("the liveness connection", || live(&pool)).await;
        let mut sessions = pool.alpha.started.relays.subscribe();
        let gone = tokio::spawn(async move {
            sessions.wait_for(|s| s.is_empty()).await.unwrap();
            Instant::now()
        });
        let before = Instant::now();
        pool.workers[0].kill().await;
        let known = gone.await.unwrap().duration_since(before);
        tokio::time::sleep(Duration::from_millis(away)).await;
        pool.workers[0].restart().await;
        let listening = Instant::now();
        eventually("the session", || session(&pool).is_some()).await;
        let back = listening.elapsed();
        println!(
            "killed: known dead after {known:?} (the kill included); away {away} ms: back after {back:?}"
        );
        assert!(known < SOON && back < SOON, "{known:?}, {back:?}");
    }
    pool.ready().await;
    assert_eq!(exchange(pool.connect(0).await, b"back").await.unwrap(), b"back");
}

/// One forged reset kills nothing: the session stays and gets a new liveness connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_forged_reset_kills_nothing() {
    let (pool, wire) = wired().await;
    let (number, _) = session(&pool).unwrap();
    for n in 1..=5 {
        wire.sever_tcp(Duration::ZERO);
        eventually("the loss to be seen", || lost(&pool) == n).await;
        eventually("another connection", || live(&pool)).await;
    }
    eventually("no doubt", || session(&pool) == Some((number, Doubt::None))).await;
}

/// Only UDP passes, from the start or from some time on: the session lives by QUIC alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_udp_is_enough() {
    let (mut pool, wire) = wired().await;
    let (number, _) = session(&pool).unwrap();
    wire.refuse_tcp(true);
    wire.sever_tcp(Duration::ZERO);
    eventually("the loss to be seen", || lost(&pool) == 1).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(session(&pool), Some((number, Doubt::None)));
    pool.redial().await;
    assert_eq!(exchange(pool.connect(0).await, b"udp").await.unwrap(), b"udp");
    wire.refuse_tcp(false);
    eventually("a liveness connection once TCP passes", || live(&pool)).await;
}

/// F-06: a relay that is stopped for longer than QUIC alone would bear is doubted, and keeps its
/// session: its kernel acknowledges.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopped_relay_keeps_its_session() {
    let pool = Pool::start(1, &[echo().await]).await;
    eventually("the liveness connection", || live(&pool)).await;
    let (number, _) = session(&pool).unwrap();
    let frozen = pool.workers[0].freeze();
    let began = Instant::now();
    eventually("the doubt", || session(&pool) == Some((number, Doubt::Silent))).await;
    // The control plane is told of it, and of no round trip that nobody makes any more.
    let told = || {
        let reach = pool.alpha.started.relays.reach().remove(0).1;
        (reach.connected, reach.rtt.is_some(), reach.error.contains("UDP"))
    };
    eventually("the word to the control plane", || told() == (true, false, true)).await;
    while began.elapsed() < Duration::from_secs(12) {
        assert_eq!(session(&pool).map(|(n, _)| n), Some(number));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(frozen);
    eventually("no doubt", || session(&pool) == Some((number, Doubt::None))).await;
    eventually("the word is taken back", || !told().2).await;
    assert_eq!(
        exchange(pool.connect(0).await, b"thawed").await.unwrap(),
        b"thawed"
    );
}

/// F-05, R-ADM-04: the publisher's link flaps 200 times with gaps of 0 to 300 ms: silent, or with
/// its connections reset and their ends seen late by the relay, or refused meanwhile, from another
/// port each time. Each time it is registered exactly once and reachable within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flapping_link_is_registered_once() {
    const FLAPS: u32 = 200;
    /// From the link's return to a connection's first answer, without what other load on the cores takes.
    const REACHABLE: Duration = Duration::from_secs(1);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut pool = Pool::start(1, &[echo().await]).await;
    let wire = Wire::to(pool.workers[0].address, Duration::ZERO).await;
    pool.detours = vec![(BETA, pool.workers[0].id, wire.address)];
    pool.redial().await;
    let (mut slowest, mut late) = (Duration::ZERO, 0);
    let most_foreign = Cell::new(Duration::ZERO);
    for flap in 0..FLAPS {
        let gap = Duration::from_millis(rng.u64(0..=300));
        let (resets, refuses) = (rng.bool(), rng.bool());
        wire.cut(true);
        if resets {
            wire.refuse_tcp(refuses);
            wire.sever_tcp(Duration::from_millis(rng.u64(0..=600)));
        }
        wire.change_path();
        tokio::time::sleep(gap).await;
        wire.refuse_tcp(false);
        wire.cut(false);
        let (back, starved_before) = (Instant::now(), starved());
        let reached = async {
            loop {
                if exchange(pool.connect(0).await, b"flap")
                    .await
                    .is_ok_and(|b| b == b"flap")
                {
                    let foreign = starved().saturating_sub(starved_before);
                    most_foreign.set(foreign.max(most_foreign.get()));
                    return back.elapsed().saturating_sub(foreign);
                }
            }
        };
        let took = tokio::time::timeout(Duration::from_secs(10), reached)
            .await
            .unwrap_or_else(|_| panic!("flap {flap} of seed {seed}: not reachable again"));
        slowest = slowest.max(took);
        late += u32::from(took > REACHABLE);
        eventually("one registration", || {
            let reach = pool.beta.started.relays.reach();
            reach.iter().map(|(_, r)| r.registered.len()).sum::<usize>() == 1
        })
        .await;
        assert_eq!(
            pool.workers[0].registrations().await,
            1,
            "flap {flap} of seed {seed}"
        );
    }
    println!(
        "{FLAPS} flaps: slowest return {slowest:?}; at most {:?} of one went to others",
        most_foreign.get()
    );
    assert_eq!(
        late, 0,
        "seed {seed}: {late} of {FLAPS} took more than {REACHABLE:?}, one {slowest:?}"
    );
}

/// Streams that upload at once: more than fill what a carrier may have unacknowledged (16 MiB), at 64 KiB each.
const UPLOADS: usize = 320;
/// How long the relay is stopped: longer than a PING and a short wait for its place take.
const STOPPED_FOR: Duration = Duration::from_secs(17);

/// F-06: the only relay is stopped under uploads that fill the carrier's window, so that not even a PING can be
/// sent: the session and its streams stay, as long as the relay's host acknowledges.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopped_relay_is_kept_behind_a_full_window() {
    let pool = Pool::start(1, &[sink().await, echo().await]).await;
    eventually("the liveness connection", || live(&pool)).await;
    let (number, _) = session(&pool).unwrap();
    let metrics = &pool.alpha.started.metrics;
    let opened = metrics
        .streams_opened
        .get_or_create(&StreamRole::Consumer.into())
        .clone();
    let mut sockets = Vec::new();
    for n in 1..=UPLOADS {
        sockets.push(pool.connect(0).await);
        eventually("its stream", || opened.get() == n as u64).await;
    }
    let frozen = pool.workers[0].freeze();
    let mut uploads = tokio::task::JoinSet::new();
    for mut socket in sockets {
        uploads.spawn(async move {
            let block = vec![7; 64 * 1024];
            // It ends with the test.
            while socket.write_all(&block).await.is_ok() {}
        });
    }
    let sent = || metrics.bytes_sent.get();
    tokio::time::sleep(STOPPED_FOR).await;
    assert_eq!(session(&pool).map(|(number, _)| number), Some(number), "stopped");
    let before = sent();
    drop(frozen);
    eventually("the uploads to go on", || sent() > before + (16 << 20)).await;
    assert_eq!(session(&pool).map(|(number, _)| number), Some(number), "and back");
    assert_eq!(exchange(pool.connect(1).await, b"good").await.unwrap(), b"good");
    assert_eq!(uploads.len(), UPLOADS);
    assert!(uploads.try_join_next().is_none(), "an upload ended");
}

/// A target that reads and says nothing.
async fn sink() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move { tokio::io::copy(&mut socket, &mut tokio::io::sink()).await });
        }
    });
    address
}

/// R-UI-03, R-UI-04: checks of a path are not the daemon's own sessions: whatever they find, its metrics say
/// what they said before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_leave_the_metrics_as_they_are() {
    let pool = Pool::start(1, &[echo().await]).await;
    eventually("the liveness connection", || live(&pool)).await;
    let metrics = &pool.alpha.started.metrics;
    eventually("the daemon's own association", || {
        metrics.association_count() == 1
    })
    .await;
    let relay = name(&pool.workers[0]);
    let label = RelayLabel::of(&relay);
    let sessions = metrics.hop_session_count(&relay);
    let associations = metrics.association_count();
    for n in 0..3 {
        let checker = pool.alpha.started.checker.upgrade().unwrap();
        let check = pb::PathCheck {
            check_id: vec![n].into(),
            route_id: pool.links[0].route.to_bytes().to_vec().into(),
            relay_id: pool.workers[0].id.to_bytes().to_vec().into(),
        };
        let report = checker.run(check).await;
        assert_eq!(
            (&*report.failed, &*report.target),
            ("", "CONNECTED"),
            "{report:?}"
        );
    }
    assert_eq!(metrics.hop_session_count(&relay), sessions);
    assert_eq!(metrics.association_count(), associations);
    assert_eq!(metrics.liveness_connected.get_or_create(&label).get(), 1);
    assert_eq!(metrics.hop_connected.get_or_create(&label).get(), 1);
}

/// F-05: a session's end that comes late says nothing of the next one: not that it is down, nor what it heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_late_end_leaves_the_next_session_alone() {
    let pool = Pool::start(1, &[echo().await]).await;
    let relay = pool.workers[0].id;
    let real = pool.alpha.started.relays.sessions().get(&relay).unwrap().clone();
    let numbered = |number| Session {
        number,
        ..real.clone()
    };
    let relays = Relays::new(Arc::new(Notify::new()));
    relays.add(relay);
    let reach = || relays.reach().pop().unwrap().1;
    relays.down(relay, 0, "never up".to_owned());
    assert_eq!((reach().connected, &*reach().error), (false, "never up"));
    relays.up(relay, numbered(1));
    relays.up(relay, numbered(2));
    let rtt = Some(Duration::from_millis(2));
    relays.note(relay, 2, |reach| reach.rtt = rtt);
    relays.down(relay, 1, "late".to_owned());
    relays.note(relay, 1, |reach| reach.rtt = None);
    assert_eq!((reach().connected, &*reach().error, reach().rtt), (true, "", rtt));
    assert_eq!(relays.standing(relay), Some(2));
    relays.down(relay, 2, "over".to_owned());
    assert_eq!(
        (reach().connected, &*reach().error, reach().rtt),
        (false, "over", None)
    );
    assert_eq!(relays.standing(relay), None);
}

/// R-STR-04: a relay that takes no answer on a leg it has brought is not waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_that_is_not_taken_is_given_up() {
    let pool = Pool::start(1, &[echo().await]).await;
    let sessions = pool.alpha.started.relays.sessions();
    let carrier = &sessions.get(&pool.workers[0].id).unwrap().carrier;
    let mut leg = carrier.open_leg().await.unwrap();
    let _frozen = pool.workers[0].freeze();
    let limit = Duration::from_millis(300);
    // Until its window is full.
    let filling = async { while leg.send.write_all(&[0; 64 * 1024]).await.is_ok() {} };
    assert!(tokio::time::timeout(limit, filling).await.is_err());
    let answered = answer_within(&mut leg.send, Answer::Ok, limit).await;
    assert!(matches!(answered, Err(AnswerError::Untaken(_))), "{answered:?}");
}

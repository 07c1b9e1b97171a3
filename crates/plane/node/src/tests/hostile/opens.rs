//! Relays that do not answer the opens of new streams, or whose legs the targets' failures do not get past.

use super::tricks::Trick;
use super::{Scene, finish, round, sha256};
use crate::metrics::StreamRole;
use crate::open::HOLD;
use crate::tests::pool::{PATIENCE, eventually};
use crate::tests::traffic::{exchange, pattern};
use fairlead_model::RefusalCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Connections that are made at once: some begin with each relay.
const AT_ONCE: u64 = 8;
/// What a connection may take whose first relay does not answer: the wait for it, and the other's answer on
/// a busy machine.
const SERVED_WITHIN: Duration = Duration::from_secs(2);
const _: () = assert!(SERVED_WITHIN.as_millis() < HOLD.as_millis(), "within the hold");

/// Connections at once, each from its first byte to its end; half of them say nothing before their target is
/// there. The longest time until what was said first was heard back.
async fn at_once(scene: &mut Scene, what: &str, count: u64) -> Duration {
    let mut all = tokio::task::JoinSet::new();
    for n in 0..count {
        let mut socket = scene.connect().await;
        let (accepted, connected) = (scene.accepted.clone(), scene.connected);
        let what = what.to_owned();
        all.spawn(async move {
            let started = Instant::now();
            if n % 2 == 0 {
                let bytes = pattern(n, 200_000);
                let answer = exchange(socket, &bytes).await.unwrap();
                assert!(sha256(&answer) == sha256(&bytes), "{what}: other bytes");
                return started.elapsed();
            }
            let all_there = || accepted.load(Ordering::Relaxed) >= connected;
            eventually("the target to be dialled", all_there).await;
            round(&mut socket, n, 10_000).await;
            let took = started.elapsed();
            assert_eq!(finish(socket).await.unwrap(), 0, "{what}: more than was sent");
            took
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(took) = tokio::time::timeout(PATIENCE, all.join_next()).await.unwrap() {
        longest = longest.max(took.unwrap());
    }
    longest
}

/// R-NOD-02, I8: a relay that takes the OPENs of new streams and says nothing: beside it another one is asked
/// in time, the leg that is of no use is given up, and who comes next is not led there first. Opens of
/// associations that are swallowed too change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_open_without_an_answer_is_not_waited_for() {
    let mut scene = Scene::start().await;
    for trick in [Trick::SwallowsOpens, Trick::SwallowsLegs] {
        let what = format!("{trick:?}");
        scene.plays_all(trick);
        if trick == Trick::SwallowsLegs {
            // No association is left, and what was found of the relay is forgotten.
            scene.pool.alpha.kill_and_restart().await;
            scene.pool.publish().await;
            scene.pool.ready().await;
        }
        let before = scene.counts().1;
        let longest = at_once(&mut scene, &what, AT_ONCE).await;
        let asked = scene.counts().1 - before;
        assert!(asked > 0, "{what}: it did nothing");
        println!("{what}: longest {longest:?}, {asked} legs swallowed");
        assert!(longest < SERVED_WITHIN, "{what}: {longest:?}");
        scene.all_dialled_once(&what);
        if trick == Trick::SwallowsOpens {
            eventually("the legs to be given up", || scene.hostiles[0].held_open() == 0).await;
        }
        let mut later = Duration::ZERO;
        for n in 0..AT_ONCE {
            later = later.max(scene.new_stream(&what, n).await);
        }
        println!("{what}: then {later:?}");
        assert!(
            later < SERVED_WITHIN / 2,
            "{what}: it is asked first again: {later:?}"
        );
        scene.all_dialled_once(&what);
    }
}

/// R-NOD-02: two of three relays that swallow: the third is asked within the hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_opens_without_an_answer_are_not_waited_for() {
    let mut scene = Scene::start_with(2, &[]).await;
    scene.plays_all(Trick::SwallowsOpens);
    let longest = at_once(&mut scene, "two swallow", AT_ONCE).await;
    println!("two of three swallow: longest {longest:?}");
    assert!(longest < HOLD, "{longest:?}");
    assert!(scene.counts().1 > 0, "they did nothing");
    scene.all_dialled_once("two swallow");
}

/// R-NOD-02: a relay that comes while the only other one swallows an open is asked beside it: nobody waits for the
/// time that a relay has which is asked alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_relay_that_comes_meanwhile_is_asked() {
    let mut scene = Scene::start().await;
    let honest = scene.pool.workers[0].id;
    scene.pool.workers[0].stop().await;
    let relays = scene.pool.alpha.started.relays.clone();
    eventually("the honest relay to be missed", || {
        !relays.sessions().contains_key(&honest)
    })
    .await;
    scene.plays_all(Trick::SwallowsOpens);
    let before = scene.counts().1;
    let mut socket = scene.connect().await;
    eventually("the open to be swallowed", || scene.counts().1 > before).await;
    scene.pool.workers[0].restart().await;
    eventually("the honest relay to be back", || {
        relays.sessions().contains_key(&honest)
    })
    .await;
    let back = Instant::now();
    round(&mut socket, 1, 500).await;
    let took = back.elapsed();
    println!("asked beside it, and open after {took:?}");
    assert!(took < SERVED_WITHIN * 2, "{took:?}");
    scene.all_dialled_once("who comes meanwhile");
}

/// I5, I8, R-POL-10: relays that are slow and carry all in the end, in whatever order: no connection fails, no
/// target is dialled twice and no byte arrives twice; and who is slow alone is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_relays_are_no_failures() {
    let mut scene = Scene::start_with(2, &[]).await;
    let ids = [scene.hostiles[0].id, scene.hostiles[1].id];
    for (relays, expected) in [(&ids[..], 2), (&ids[..1], 1)] {
        scene.through(Some(relays)).await;
        for quiet in [false, true] {
            scene.plays_all(Trick::HoldsOpens);
            let before = scene.counts().1;
            let bytes = pattern(7, 150_000);
            let socket = scene.connect().await;
            let (mut read, mut write) = socket.into_split();
            let said = if quiet { 0 } else { 10_000 };
            write.write_all(&bytes[..said]).await.unwrap();
            eventually("all relays to be asked", || scene.counts().1 >= before + expected).await;
            // Both let go at once.
            scene.plays_all(Trick::Honest);
            let exchanged = async {
                let mut answer = Vec::new();
                let (sent, heard) = tokio::join!(
                    async {
                        write.write_all(&bytes[said..]).await?;
                        write.shutdown().await
                    },
                    read.read_to_end(&mut answer)
                );
                sent.and(heard).map(|_| answer)
            };
            let answer = tokio::time::timeout(PATIENCE, exchanged).await.unwrap();
            assert!(sha256(&answer.unwrap()) == sha256(&bytes), "other bytes");
            scene.all_dialled_once("slow relays");
        }
    }
}

/// The connection's end, once its target has failed.
async fn reset(mut socket: TcpStream) {
    let mut nothing = [0; 1];
    let end = tokio::time::timeout(PATIENCE, socket.read(&mut nothing)).await;
    assert!(end.expect("an end").is_err(), "no reset");
}

/// R-STR-07: a target that refuses, or does not answer, and a relay that carries the stream there and stalls
/// what the publisher says of it: the consumer is told the target's own code through the other relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_targets_failure_gets_past_a_stalled_leg() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refuses = closed.local_addr().unwrap().to_string();
    drop(closed);
    // Its backlog is full: whoever comes next gets no answer.
    let full = tokio::net::TcpSocket::new_v4().unwrap();
    full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = full.listen(1).unwrap();
    let swallows = full.local_addr().unwrap();
    let mut filling = Vec::new();
    loop {
        let filler = TcpStream::connect(swallows);
        match tokio::time::timeout(Duration::from_millis(300), filler).await {
            Ok(filler) => filling.push(filler.unwrap()),
            Err(_) => break,
        }
    }
    let scene = Scene::start_with(1, &[refuses, swallows.to_string()]).await;
    let liar = scene.hostiles[0].id;
    for (link, code) in [(1, RefusalCode::TargetRefused), (2, RefusalCode::TargetTimeout)] {
        scene.plays_all(Trick::StallsAnswers);
        let before = scene.counts().1;
        for told in 1..=4 {
            let mut socket = scene.pool.connect(link).await;
            if told % 2 == 0 {
                socket.write_all(b"hello").await.unwrap();
            }
            let started = Instant::now();
            reset(socket).await;
            let alpha = &scene.pool.alpha;
            eventually("the refusal to be counted", || {
                alpha.refused(StreamRole::Consumer, code) == told
            })
            .await;
            println!("{code:?} after {:?}", started.elapsed());
            if scene.counts().1 > before {
                break;
            }
        }
        assert!(scene.counts().1 > before, "{liar} did nothing");
        let unknown = scene
            .pool
            .alpha
            .refused(StreamRole::Consumer, RefusalCode::UnknownStream);
        assert_eq!(unknown, 0, "{code:?}: the target's failure came as another one");
    }
    drop((full, filling));
}

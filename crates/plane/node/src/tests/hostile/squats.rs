//! Relays that take what others are to have: names of streams, epochs, handshakes, and the sign of life.

use super::relay::SQUATTED;
use super::stalls::speaker;
use super::tricks::Trick;
use super::{Scene, finish, round, sha256};
use crate::open::HOLD;
use crate::tests::pool::{PATIENCE, eventually};
use crate::tests::traffic::pattern;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;

/// R-NOD-02, R-STR-05: a relay says that the publisher does not know the association and swallows every
/// handshake: connections through the other relay go on by the association that there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_denied_association_stays_in_use_through_the_other_relay() {
    let mut scene = Scene::start().await;
    let honest = scene.pool.workers[0].id;
    // While a stream lives, the other path of its route is asked once a second.
    let mut live = scene.stream_through(&[honest]).await;
    let made = scene.pool.alpha.started.metrics.association_count();
    scene.plays_all(Trick::DeniesAssociations);
    scene.through(None).await;
    eventually("a handshake to be swallowed", || {
        let (asked, done) = scene.counts();
        let refused = scene.hostiles[0].refused();
        asked > 0 && done > refused.0 + refused.1
    })
    .await;
    let mut longest = Duration::ZERO;
    for n in 0..6 {
        longest = longest.max(scene.new_stream("denied", n).await);
    }
    println!("a denied association: longest {longest:?}");
    assert!(longest < HOLD, "{longest:?}");
    assert_eq!(
        scene.pool.alpha.started.metrics.association_count(),
        made,
        "the association was good"
    );
    round(&mut live, 1, 50_000).await;
    assert_eq!(finish(live).await.unwrap(), 0);
    scene.all_dialled_once("denied");
}

/// R-NOD-02, R-STR-05: the publisher has restarted and knows the association no longer; one relay swallows the
/// handshake for the next, and the other carries it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_swallowed_handshake_is_made_through_the_other_relay() {
    let mut scene = Scene::start().await;
    scene.new_stream("before", 0).await;
    scene.plays_all(Trick::DeniesAssociations);
    scene.pool.beta.kill_and_restart().await;
    scene.pool.publish().await;
    scene.pool.ready().await;
    let mut longest = Duration::ZERO;
    for n in 0..6 {
        longest = longest.max(scene.new_stream("swallowed", n).await);
    }
    println!("a swallowed handshake: longest {longest:?}");
    assert!(longest < HOLD, "{longest:?}");
    scene.all_dialled_once("swallowed");
}

/// R-STR-05: a relay tells the publisher of streams that are to come, and is silent: they open through the other
/// relay as if nothing had been, whatever route it named.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn squatted_streams_open_through_the_other_relay() {
    let mut scene = Scene::start().await;
    let (liar, honest) = (scene.hostiles[0].id, scene.pool.workers[0].id);
    scene.through(Some(&[liar])).await;
    scene.plays_all(Trick::SquatsNames);
    scene.new_stream("squats", 0).await;
    let squatted = usize::try_from(SQUATTED).unwrap();
    eventually("the names to be taken", || scene.counts().1 >= squatted).await;
    scene.through(Some(&[honest])).await;
    let attempts = scene.pool.alpha.started.metrics.move_attempts("relay-1");
    let mut longest = Duration::ZERO;
    for n in 0..SQUATTED {
        longest = longest.max(scene.new_stream("squatted", n).await);
    }
    println!("squatted streams: longest {longest:?}");
    let further = scene.pool.alpha.started.metrics.move_attempts("relay-1") - attempts;
    assert_eq!(further, 0, "the first leg is the stream's");
    scene.all_dialled_once("squatted streams");
}

/// R-STR-03, R-STR-05, I5: a relay stalls a stream, tells the publisher of the leg that is to come, and is
/// silent on it: the move through the other relay succeeds at the first attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_squatted_epoch_stops_no_move() {
    let mut scene = Scene::start().await;
    let liar = scene.hostiles[0].id;
    let metrics = scene.pool.alpha.started.metrics.clone();
    let attempts = || metrics.move_attempts("relay-1");
    let mut squatted = 0;
    for n in 0..3 {
        scene.plays_all(Trick::Honest);
        let mut live = scene.stream_through(&[liar]).await;
        let before = attempts();
        scene.through(None).await;
        // A slow machine may have been taken for a stalled relay already.
        squatted += usize::from(attempts() == before);
        let done = scene.counts().1;
        scene.plays_all(Trick::SquatsEpochs);
        let started = Instant::now();
        round(&mut live, n, 100_000).await;
        println!("a squatted epoch: {:?}", started.elapsed());
        assert!(scene.counts().1 > done, "it did nothing");
        assert_eq!(attempts() - before, 1);
        assert_eq!(finish(live).await.unwrap(), 0);
    }
    assert!(squatted > 0, "no stream was at the liar when it began");
    scene.all_dialled_once("squatted epochs");
}

/// Bytes of a target that says them when it is told to.
const SAID: usize = 1 << 20;

/// F-06, R-STR-01: of a stream that only downloads a relay carries nothing, and lets bytes come that open as
/// nothing: they are no sign of life, and the stream moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bytes_that_drip_are_no_sign_of_life() {
    let (target, start) = speaker(SAID).await;
    let mut scene = Scene::start_with(1, &[target]).await;
    scene.through(Some(&[scene.hostiles[0].id])).await;
    let mut reader = scene.pool.connect(1).await;
    let mut all = vec![0; 1];
    reader.read_exact(&mut all).await.unwrap();
    scene.through(None).await;
    let before = scene.counts().1;
    scene.plays_all(Trick::Drips);
    start.send(()).unwrap();
    let started = Instant::now();
    let read = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut all)).await;
    assert_eq!(read.expect("the stream goes on").unwrap(), SAID - 1);
    println!("a dripping relay: all after {:?}", started.elapsed());
    assert!(sha256(&all) == sha256(&pattern(4, SAID)), "other bytes");
    assert!(scene.counts().1 > before + 5, "it did nothing");
}

//! A relay that does not send a publisher's copy away (R-ENR-10), beside one that does.

use super::{DELAY_MAX, Scene, finish, round};
use crate::tests::hostile::tricks::Trick;
use crate::tests::pool::eventually;
use fairlead_model::RefusalCode;

/// R-ENR-10, R-STR-01: a publisher's folder runs twice, and one relay leads to the copy: a later run, that knows none
/// of the streams. What it says is the failure of a leg: the run that holds the streams keeps them, also those
/// that lose their leg, and the consumer goes on with the run that it reaches.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_publishers_copy_ends_no_stream() {
    let mut scene = Scene::start().await;
    let (liar, honest) = (scene.hostiles[0].id, scene.pool.workers[0].id);
    let mut there = scene.stream_through(&[liar]).await;
    let mut here = scene.stream_through(&[honest]).await;
    scene.through(None).await;
    let made = |scene: &Scene| scene.pool.alpha.started.metrics.association_count();
    assert_eq!(made(&scene), 1);

    let mut copy = scene.pool.beta.start_copy().await;
    let told = RefusalCode::IdentityInUse.message();
    eventually("the honest relay to send the copy away", || {
        let reach = copy.started.relays.reach();
        reach
            .iter()
            .any(|(relay, reach)| *relay == honest && reach.error.contains(told))
    })
    .await;
    eventually("the copy to be met", || made(&scene) > 1).await;
    let doubted = &scene.pool.alpha.started.old_runs;
    eventually("its word to cast doubt", || doubted.len() > 0).await;
    // One stream loses its leg, and finds the copy where it had it.
    scene.plays_all(Trick::CutsLegs);
    round(&mut there, 1, 50_000).await;
    scene.plays_all(Trick::Honest);
    let mut n = 2;
    while scene.pool.alpha.started.old_runs.len() > 0 {
        round(&mut here, n, 10_000).await;
        round(&mut there, n, 10_000).await;
        n += 1;
    }
    println!("{n} rounds beside a copy");

    // Through the honest relay the original is reached, by one more handshake for all.
    scene.through(Some(&[honest])).await;
    let before = made(&scene);
    for n in 0..6 {
        let took = scene.new_stream("beside a copy", n).await;
        assert!(took < DELAY_MAX, "{took:?}");
    }
    let after = made(&scene);
    assert!(after <= before + 2, "{before} associations, then {after}");
    for live in [here, there] {
        assert_eq!(finish(live).await.unwrap(), 0);
    }
    scene.all_dialled_once("beside a copy");
    copy.stop().await;
}

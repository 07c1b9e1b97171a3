//! Relays that refuse: every code that there is, to new streams and to those that resume.
//!
//! A relay's word is not sealed. Whatever it says, of whatever class, and however long it says to wait:
//! a stream that lives goes on through another relay as soon as there is one, and a new one is opened there.

use super::tricks::Trick;
use super::{Scene, finish, round};
use crate::metrics::StreamRole;
use crate::tests::pool::{PATIENCE, eventually};
use fairlead_hop::frame::Refusal;
use fairlead_model::{RefusalCode, RetryClass};
use std::time::Duration;

/// A wait that no honest relay asks for.
const FOR_EVER: Duration = Duration::from_secs(7 * 24 * 3600);
/// New streams until each relay was asked first by one.
const ASKED_BY: u64 = 8;

/// What `class` of refusals does: nothing that an application sees.
async fn refusals_end_nothing(class: RetryClass) {
    let mut scene = Scene::start_with(2, &[]).await;
    let ids = [scene.hostiles[0].id, scene.hostiles[1].id];
    for (n, &code) in RefusalCode::ALL
        .iter()
        .enumerate()
        .filter(|(_, c)| c.class() == class)
    {
        // Some say how long to wait, some do not.
        let refusal = Refusal {
            code,
            retry_after: (n % 2 == 0).then_some(FOR_EVER),
        };
        scene.plays_all(Trick::Honest);
        let mut live = scene.stream_through(&ids[1..]).await;
        scene.through(Some(&ids)).await;
        scene.hostiles[0].plays(Trick::RefusesStreams(refusal));
        resumes_are_refused(&scene, refusal).await;
        round(&mut live, 1, 50_000).await;
        let new_before = scene.hostiles[0].refused().0;
        for n in 0..ASKED_BY {
            scene.new_stream(code.as_str(), n).await;
            if scene.hostiles[0].refused().0 > new_before {
                break;
            }
        }
        assert!(
            scene.hostiles[0].refused().0 > new_before,
            "{code:?}: no new stream was refused"
        );
        let rest = tokio::time::timeout(PATIENCE, finish(live)).await.unwrap();
        assert_eq!(rest.unwrap(), 0, "{code:?}: more than was sent");
        scene.all_dialled_once(code.as_str());
        let ended = scene.pool.alpha.refused(StreamRole::Consumer, code);
        assert_eq!(ended, 0, "{code:?}: a relay's word was the end of a stream");
    }
}

/// The live stream's relay cuts it off and is gone, the other refuses its resume, then both do; then the
/// first, which asked for no wait, carries again.
async fn resumes_are_refused(scene: &Scene, refusal: Refusal) {
    let [refusing, carrying] = &scene.hostiles[..] else {
        panic!("two relays")
    };
    let resumes = || [refusing.refused().1, carrying.refused().1];
    let before = resumes();
    carrying.plays(Trick::CutsLegs);
    eventually("the resume to be refused", || resumes()[0] > before[0]).await;
    // What all connected relays say of a revocation is the end (R-REV-01), what one of them says is not.
    if refusal.code != RefusalCode::Revoked {
        carrying.plays(Trick::RefusesStreams(Refusal::from(refusal.code)));
        eventually("the resume to be refused by both", || resumes()[1] > before[1]).await;
    }
    carrying.plays(Trick::Honest);
}

/// R-ADM-05, R-STR-05: every code that says "elsewhere".
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_relay_refuses_for_elsewhere_goes_on() {
    refusals_end_nothing(RetryClass::Elsewhere).await;
}

/// R-ADM-05, R-STR-05: every code that says "wait".
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_relay_refuses_for_a_while_goes_on() {
    refusals_end_nothing(RetryClass::Wait).await;
}

/// R-ADM-05, R-STR-05: every code that says "never": unsealed, it ends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_relay_refuses_for_good_goes_on() {
    refusals_end_nothing(RetryClass::Never).await;
}

/// R-STR-05: a relay that denies the association ends no new stream that has said something and waits for
/// another relay's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_denied_association_ends_no_stream_that_waits_for_its_first_answer() {
    let mut scene = Scene::start_with(2, &[]).await;
    let denial = Refusal::from(RefusalCode::UnknownAssociation);
    scene.hostiles[0].plays(Trick::StallsFirstLegs);
    scene.hostiles[1].plays(Trick::RefusesStreams(denial));
    let both = |scene: &Scene| scene.hostiles[0].counts().1 > 1 && scene.hostiles[1].refused().0 > 1;
    for n in 0..4 * ASKED_BY {
        scene.new_stream("stalled and denied", n).await;
        if both(&scene) {
            break;
        }
    }
    assert!(both(&scene), "one of them did nothing");
    scene.all_dialled_once("stalled and denied");
}

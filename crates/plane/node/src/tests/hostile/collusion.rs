//! Two relays of the pool that lie together, beside an honest one.

use super::Scene;
use super::tricks::Trick;

/// New streams for each trick: with three relays in turn, each liar gets some.
const FRESH: u64 = 6;

/// R-STR-05, I7: what one relay carries is worth nothing at another, whoever brings it and whenever: legs
/// that are played by the other while they live and afterwards, legs that the other brings to the
/// publisher, legs of which the other tells it as well. Keys and ATTACH are bound to the relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leg_of_one_relay_is_worth_nothing_at_another() {
    let mut scene = Scene::start_with(2, &[]).await;
    for trick in [Trick::ReplaysFriends, Trick::SwapsLegs, Trick::TeesLegs] {
        scene.plays_to(trick, FRESH).await;
    }
}

/// R-STR-05, R-STR-06: records that two relays exchange between their legs end the legs, not the streams, and no
/// byte of one stream appears in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn records_of_one_relay_are_not_opened_on_a_leg_of_another() {
    let mut scene = Scene::start_with(2, &[]).await;
    scene.plays_to(Trick::TradesRecords, FRESH).await;
}

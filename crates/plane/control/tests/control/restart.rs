//! A control plane that is opened again goes on where it was.

use crate::fixture::{Node, Plane, Relay};
use fairlead_control::api::{LinkState, RelayState};
use fairlead_control::{Control, ControlSettings, OpenError};
use fairlead_trust::OpenClaim;
use fairlead_trust::admission::Verdict;
use std::sync::Arc;
use std::time::Duration;

async fn go_on(graceful: bool) {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (pin, domain) = (plane.control.ca_pin(), plane.control.trust_domain().clone());
    let (one, alpha, beta) = (
        plane.relay("one").await,
        plane.node("alpha").await,
        plane.node("beta").await,
    );
    let relay = Relay::connect(&plane, &one).await;
    let consumer = Node::connect(&plane, &alpha).await;
    let publisher = Node::connect(&plane, &beta).await;
    plane
        .until("it is ready", async |c| c.relay("one").await.unwrap().capacity)
        .await;
    let first = plane.link("db", "alpha", "beta", 15_432).await;
    plane
        .until("the link is ready", async |c| {
            c.link("db").await.unwrap().state == LinkState::Ready
        })
        .await;
    plane
        .until("all hold what is signed", async |c| {
            c.relays().await.iter().all(|r| r.policy.is_current())
                && c.nodes().await.iter().all(|n| n.policy.is_current())
        })
        .await;
    let before = plane.control.status().await;
    let clock = Arc::clone(&plane.clock);
    // Acknowledged just before the end.
    plane
        .control
        .set_setting(&plane.admin, "placement.spread", "3")
        .await
        .unwrap();
    if graceful {
        plane.stop().await;
    } else {
        plane.kill().await;
    }
    let (relay_held, consumer_held) = (relay.vanish().await, consumer.vanish().await);
    let publisher_held = publisher.vanish().await;
    let head = relay_held.head().unwrap();

    let plane = Plane::start_with(dir.path(), true, clock).await;
    assert_eq!(
        (plane.control.ca_pin(), plane.control.trust_domain().clone()),
        (pin, domain)
    );
    let status = plane.control.status().await;
    assert!(status.leader_term > before.leader_term);
    assert_eq!(status.policy_epoch, before.policy_epoch);
    assert!(status.policy_revision >= before.policy_revision);
    assert_eq!(
        plane.control.setting("placement.spread").await.unwrap().value,
        "3"
    );
    assert_eq!(plane.control.links().await.len(), 1);
    plane.control.verify_audit().await.unwrap();
    assert!(
        plane.control.relay("one").await.unwrap().capacity,
        "placement does not wait for a new probe"
    );

    // Members come back with what they hold: the same numbers and bytes, so nothing is refused and
    // no policy is sent again; the grants the consumer held are replaced, never taken away.
    let relay = Relay::connect_with(&plane, &one, relay_held).await;
    let consumer = Node::connect_with(&plane, &alpha, consumer_held.clone()).await;
    let _publisher = Node::connect_with(&plane, &beta, publisher_held).await;
    plane
        .until("all is ready again", async |c| {
            c.link("db").await.unwrap().state == LinkState::Ready
                && c.relay("one").await.unwrap().state == RelayState::Ready
        })
        .await;
    let renewed = relay
        .until("a lease of the new term", |v| {
            v.admission.head().unwrap().lease_seq > head.lease_seq
        })
        .await;
    assert!(renewed.refused.is_empty(), "{:?}", renewed.refused);
    assert_eq!(renewed.policies, 0);
    let now = renewed.admission.head().unwrap();
    assert_eq!(
        (now.epoch, now.revision, now.root),
        (head.epoch, head.revision, head.root)
    );
    let held = consumer
        .until("grants", |v| v.grant_sets > consumer_held.grant_sets)
        .await;
    assert!(held.grants.contains_key(&first));
    assert_eq!(held.policies, consumer_held.policies);

    // And it goes on: the next revision is a higher one.
    let second = plane.link("web", "alpha", "beta", 18_080).await;
    let held = consumer
        .until("the next grant", |v| v.grants.contains_key(&second))
        .await;
    let grant = &held.grants[&second];
    let claim = OpenClaim {
        consumer: consumer.id(),
        route: second,
        grant,
        resume: false,
        waited: Duration::ZERO,
        held_by_consumer: 0,
    };
    let view = relay
        .until("it is admitted", |v| {
            matches!(v.admission.verdict(&claim, relay.now()), Verdict::Admit(_))
        })
        .await;
    assert!(view.admission.head().unwrap().revision > head.revision);
    assert!(view.refused.is_empty(), "{:?}", view.refused);
    plane.stop().await;
}

/// R-POL-04: revisions rise over a restart, and what did not change keeps its number and bytes.
#[tokio::test]
async fn a_stopped_control_plane_goes_on() {
    go_on(true).await;
}

/// The same after an end without good-byes: nothing that was acknowledged is lost.
#[tokio::test]
async fn a_killed_control_plane_goes_on() {
    go_on(false).await;
}

/// One control plane per folder; the refusal names who has it.
#[tokio::test]
async fn a_folder_has_one_control_plane() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let settings = ControlSettings::new(dir.path().to_owned(), plane.address.clone());
    let refused = Control::open(settings, plane.clock.clone()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Lock(_)), "{refused:?}");
    assert!(
        refused.to_string().contains(&std::process::id().to_string()),
        "{refused}"
    );
    plane.stop().await;
}

//! A control plane that is opened again goes on where it was.

use crate::fixture::{Node, NodeView, Plane, Relay};
use fairlead_control::api::{LinkState, RelayState};
use fairlead_control::{Control, ControlSettings, OpenError};
use fairlead_trust::OpenClaim;
use fairlead_trust::admission::Verdict;
use std::sync::Arc;
use std::time::Duration;

/// R-UI-05: a start serves whatever the audit log holds, and says which entry was altered.
#[tokio::test]
async fn an_altered_audit_entry_is_said_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    plane.add_relay("one").await;
    plane.control.watch_audit().await;
    assert_eq!(plane.control.status().await.audit_broken, 0);
    plane
        .until("the room on its disk is known", async |c| {
            c.status().await.store_free.is_some_and(|free| free > 0)
        })
        .await;
    let clock = Arc::clone(&plane.clock);
    plane.stop().await;
    let folder = dir.path().join("store");
    let store = fairlead_store::open(fairlead_store::Backend::Redb, &folder).unwrap();
    let entry = store.scan("audit/", None, 2).await.unwrap().remove(1);
    let altered = String::from_utf8(entry.value.to_vec())
        .unwrap()
        .replace("token", "tokem");
    let put = fairlead_store::Op::put(entry.key, altered.into_bytes());
    store.apply(Vec::new(), vec![put]).await.unwrap();
    store.close().await;
    drop(store);
    let plane = Plane::start_with(dir.path(), true, clock).await;
    plane
        .until("the altered entry is said", async |c| {
            c.status().await.audit_broken == 2
        })
        .await;
    let error = plane.control.verify_audit().await.unwrap_err();
    assert!(error.message.contains("entry 2"), "{}", error.message);
    plane.stop().await;
}

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

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// R-POL-04: members refuse what a control plane signs that was restored from an older copy: its revisions, its
/// leader terms and its leases are below theirs. It goes above them by itself, without a change and without a
/// restart, and says so in the audit log.
#[tokio::test]
async fn a_restored_control_plane_goes_above_what_its_members_hold() {
    let (dir, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plane = Plane::start(dir.path()).await;
    let clock = Arc::clone(&plane.clock);
    let (one, alpha, _beta) = (
        plane.relay("one").await,
        plane.node("alpha").await,
        plane.node("beta").await,
    );
    let relay = Relay::connect(&plane, &one).await;
    let node = Node::connect(&plane, &alpha).await;
    let current = async |c: &Control| {
        let (relay, node) = (c.relay("one").await.unwrap(), c.node("alpha").await.unwrap());
        relay.capacity && relay.policy.is_current() && node.policy.is_current()
    };
    plane.until("both hold what is signed", current).await;
    plane.stop().await;
    let (mut relay_held, mut node_held) = (relay.vanish().await, node.vanish().await);
    copy(dir.path(), &backup.path().join("control"));

    // After the copy: two starts, with changes and leases.
    for (links, port) in (1..).zip([15_432, 15_433]) {
        let plane = Plane::start_with(dir.path(), true, Arc::clone(&clock)).await;
        let relay = Relay::connect_with(&plane, &one, relay_held).await;
        let node = Node::connect_with(&plane, &alpha, node_held).await;
        plane.until("both hold what is signed", current).await;
        plane.link(&format!("db-{port}"), "alpha", "beta", port).await;
        // What is current may be what was before the link: its policies come behind it.
        let term = plane.control.status().await.leader_term;
        node.until("the link, under this run's term", |v| {
            let policy = v.policy.as_ref();
            policy.is_some_and(|p| p.leader_term.0 == term && p.consumptions.len() == links)
        })
        .await;
        relay
            .until("a policy of this run", |v| {
                v.admission.head().is_some_and(|head| head.leader_term.0 == term)
            })
            .await;
        plane.until("both hold the change", current).await;
        plane.stop().await;
        (relay_held, node_held) = (relay.vanish().await, node.vanish().await);
    }
    let head = relay_held.head().unwrap();
    let node_head = node_held
        .policy
        .as_ref()
        .map(|p| (p.revision, p.leader_term))
        .unwrap();

    let plane = Plane::start_with(&backup.path().join("control"), true, clock).await;
    let before = plane.control.status().await;
    assert!(before.leader_term < head.leader_term.0 && before.policy_revision < head.revision.0);
    let relay = Relay::connect_with(&plane, &one, relay_held).await;
    node_held.refuses_older = true;
    let node = Node::connect_with(&plane, &alpha, node_held).await;
    let held = relay
        .until("a policy above the held one", |v| {
            v.admission.head().unwrap().revision > head.revision
        })
        .await;
    let now = held.admission.head().unwrap();
    assert!(
        now.leader_term > head.leader_term && now.lease_seq > head.lease_seq,
        "{now:?}"
    );
    let held = node
        .until("a policy above the held one", |v| {
            v.policy
                .as_ref()
                .is_some_and(|p| p.revision > node_head.0 && p.leader_term > node_head.1)
        })
        .await;
    assert!(
        held.policy.unwrap().consumptions.is_empty(),
        "the links are those of the copy"
    );
    plane.until("both hold what is signed", current).await;
    let raised = plane
        .actions()
        .await
        .iter()
        .filter(|a| *a == "policy.numbers.raise")
        .count();
    assert!((1..=2).contains(&raised), "{raised}");
    plane.stop().await;
}

/// R-POL-04: a node alone says by which leader term it refuses what a restored control plane signs, in a field:
/// the words of its refusal are for people.
#[tokio::test]
async fn a_restored_control_plane_goes_above_a_nodes_leader_term() {
    let (dir, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plane = Plane::start(dir.path()).await;
    let clock = Arc::clone(&plane.clock);
    let (alpha, _beta) = (plane.node("alpha").await, plane.node("beta").await);
    plane.stop().await;
    copy(dir.path(), &backup.path().join("control"));
    let mut held = NodeView::default();
    for port in [15_432, 15_433] {
        let plane = Plane::start_with(dir.path(), true, Arc::clone(&clock)).await;
        plane.link(&format!("db-{port}"), "alpha", "beta", port).await;
        let node = Node::connect_with(&plane, &alpha, held).await;
        // An earlier term's policy may have the same epoch and revision.
        let term = plane.control.status().await.leader_term;
        node.until("a policy of this run", |v| {
            v.policy.as_ref().is_some_and(|p| p.leader_term.0 == term)
        })
        .await;
        plane
            .until("it holds the change", async |c| {
                c.node("alpha").await.unwrap().policy.is_current()
            })
            .await;
        plane.stop().await;
        held = node.vanish().await;
    }
    let term = held.policy.as_ref().unwrap().leader_term;
    held.refuses_older = true;
    let plane = Plane::start_with(&backup.path().join("control"), true, clock).await;
    assert!(plane.control.status().await.leader_term < term.0);
    let node = Node::connect_with(&plane, &alpha, held).await;
    node.until("a policy of a higher term", |v| {
        v.policy.as_ref().is_some_and(|p| p.leader_term > term)
    })
    .await;
    plane.stop().await;
}

/// R-POL-04: who refuses its policy since it holds something newer is known by the numbers that it reports; one whose
/// disk is full is not.
#[tokio::test]
async fn a_member_of_a_later_epoch_holds_something_newer() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (one, alpha) = (plane.relay("one").await, plane.node("alpha").await);
    let relay = Relay::connect(&plane, &one).await;
    let node = Node::connect(&plane, &alpha).await;
    for (epoch, newer) in [(9, true), (0, false)] {
        plane
            .until("both have said so", async |c| {
                // Again: what they are given meanwhile is answered by a report of its own.
                node.report_with(|status| {
                    (status.policy_epoch, status.policy_refused) = (epoch, "no".to_owned());
                })
                .await;
                relay
                    .report_with(|status| {
                        status.policy_refused = "no".to_owned();
                        if let Some(head) = &mut status.applied {
                            head.epoch = epoch;
                        }
                    })
                    .await;
                let (relay, node) = (c.relay("one").await.unwrap(), c.node("alpha").await.unwrap());
                [relay.policy, node.policy]
                    .iter()
                    .all(|policy| policy.refused == "no" && policy.holds_newer == newer)
            })
            .await;
    }
    plane.stop().await;
}

//! A link's life: from enrolment to revocation, as its relays and nodes see it.

use crate::fixture::{Node, NodeView, Plane, Relay, RelayView};
use fairlead_control::Control;
use fairlead_control::api::{LinkState, NodeState, RelayState};
use fairlead_model::{RefusalCode, RouteId};
use fairlead_trust::admission::{LeaseState, LiveTunnel, LiveVerdict, Verdict};
use fairlead_trust::{GrantCheck, GrantRefused, OpenClaim};
use std::time::Duration;

fn holds(view: &RelayView, relay: &Relay, consumer: &Node, route: RouteId) -> Option<Verdict> {
    let held = consumer.view.borrow().clone();
    let grant = held.grants.get(&route)?;
    let claim = OpenClaim {
        consumer: consumer.id(),
        route,
        grant,
        resume: false,
        waited: Duration::ZERO,
        held_by_consumer: 0,
    };
    Some(view.admission.verdict(&claim, relay.now()))
}

/// R-ENR-07, R-POL-01, R-POL-02, R-REV-01, R-PLC-05, R-NOD-01: enrolled members connect, relays
/// become ready by each other's probes, a link is admitted by every relay of its placement, and
/// after its removal by none.
#[tokio::test]
async fn from_enrolment_to_revocation() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (one, two) = (plane.relay("one").await, plane.relay("two").await);
    let (alpha, beta) = (plane.node("alpha").await, plane.node("beta").await);
    assert!(plane.control.relays().await.iter().all(|r| !r.capacity));
    let relays = [
        Relay::connect(&plane, &one).await,
        Relay::connect(&plane, &two).await,
    ];
    let (alpha, beta) = (
        Node::connect(&plane, &alpha).await,
        Node::connect(&plane, &beta).await,
    );
    plane
        .until("all members are ready", async |control| {
            control
                .relays()
                .await
                .iter()
                .all(|r| r.state == RelayState::Ready && r.capacity)
                && control.nodes().await.iter().all(|n| n.state == NodeState::Ready)
        })
        .await;

    let route = plane.link("db", "alpha", "beta", 15_432).await;
    let held = alpha
        .until("alpha has its grant", |v| v.grants.contains_key(&route))
        .await;
    let policy = held.policy.as_ref().unwrap();
    assert_eq!(policy.relays.len(), 2);
    assert_eq!(policy.consumptions[0].relays.len(), 2);
    let published = beta
        .until("beta publishes", |v| {
            v.policy.as_ref().is_some_and(|p| !p.publications.is_empty())
        })
        .await;
    let published = published.policy.unwrap();
    assert_eq!(published.publications[0].routes[0].route, route);
    let grant = &held.grants[&route];
    assert_eq!(
        grant.not_after.since(grant.not_before),
        Duration::from_secs(96 * 3600),
        "R-POL-02: 4/3 of the lease"
    );
    let checked = GrantCheck::new(&published).check(grant, alpha.id(), route, false, relays[0].now().wall);
    assert_eq!(checked.unwrap().link.as_str(), "db");
    for relay in &relays {
        let view = relay
            .until("the relay admits", |v| {
                matches!(holds(v, relay, &alpha, route), Some(Verdict::Admit(_)))
            })
            .await;
        assert!(view.refused.is_empty(), "{:?}", view.refused);
        let LeaseState::Valid(left) = view.admission.lease_state(relay.now()) else {
            panic!("no lease")
        };
        assert!(left > Duration::from_secs(72 * 3600 - 60), "{left:?}");
        let publisher = view.admission.registration_verdict(
            beta.id(),
            published.publications[0].endpoint,
            published.publications[0].generation,
        );
        assert_eq!(publisher, Ok(()));
        assert!(
            !view.probed.contains(&relay.id()) || view.probed.len() > 1,
            "another one probes"
        );
    }
    plane
        .until("the link is ready", async |c| {
            c.link("db").await.unwrap().state == LinkState::Ready
        })
        .await;
    let view = plane.control.link("db").await.unwrap();
    assert_eq!(view.relays.len(), 2);
    let metrics = plane
        .metrics
        .encode(fairlead_telemetry::metric::Exposition::OpenMetrics);
    for line in [
        "fairlead_relays_ready 2",
        "fairlead_nodes 2",
        "fairlead_links_ready 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }
    assert!(
        view.placement_reason
            .contains("on 2 of 2 ready relays (spread 2)"),
        "{}",
        view.placement_reason
    );
    plane
        .until("the relays are current", async |c| {
            let mut relays = c.relays().await.into_iter();
            relays.all(|r| r.endpoints == 1 && r.policy.is_current())
        })
        .await;

    plane.control.remove_link(&plane.admin, "db").await.unwrap();
    let tunnel = LiveTunnel {
        route,
        consumer: alpha.id(),
        endpoint: published.publications[0].endpoint,
        publisher: beta.id(),
    };
    for relay in &relays {
        let claim = OpenClaim {
            consumer: alpha.id(),
            route,
            grant,
            resume: true,
            waited: Duration::ZERO,
            held_by_consumer: 0,
        };
        let view = relay
            .until("the relay refuses", |v| {
                v.admission.verdict(&claim, relay.now()) == Verdict::Refuse(RefusalCode::Revoked)
            })
            .await;
        let live = view.admission.live_verdict(&tunnel, relay.now());
        assert_eq!(live, LiveVerdict::Close(RefusalCode::Revoked));
    }
    let after = beta
        .until("beta resets", |v| {
            v.policy
                .as_ref()
                .is_some_and(|p| p.revoked_routes.contains(&route))
        })
        .await;
    let after = after.policy.unwrap();
    let refused = GrantCheck::new(&after).check(grant, alpha.id(), route, true, relays[0].now().wall);
    assert_eq!(refused.unwrap_err(), GrantRefused::Revoked(route));
    alpha
        .until("alpha's grant is taken away", |v| v.grants.is_empty())
        .await;
    assert!(plane.control.verify_audit().await.unwrap() > 0);
    let actions = plane.actions().await;
    for action in [
        "relay.add",
        "relay.enrol",
        "relay.capacity.gain",
        "node.enrol",
        "link.add",
        "link.remove",
    ] {
        assert!(
            actions.iter().any(|a| a == action),
            "{action} is not in {actions:?}"
        );
    }
    plane.stop().await;
}

/// R-ENR-07: the port is probed from another relay's host; where there is none, its own supervisor
/// does it; a port that does not answer is no capacity, and says why.
#[tokio::test]
async fn a_relay_is_ready_by_another_relays_probe() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let first = Relay::connect(&plane, &plane.relay("one").await).await;
    first
        .until("it probes itself", |v| v.probed == [first.id()])
        .await;
    plane
        .until("the first is ready", async |c| {
            c.relay("one").await.unwrap().capacity
        })
        .await;
    let second = plane.relay("two").await;
    let second_id = second.relay_id();
    first.closed.send_modify(|closed| {
        closed.insert(second_id);
    });
    let second = Relay::connect(&plane, &second).await;
    first
        .until("the first probes the second", |v| v.probed.contains(&second_id))
        .await;
    second
        .until("the second confirms the first", |v| {
            v.probed.contains(&first.id())
        })
        .await;
    plane
        .until("the reason is shown", async |c| {
            let view = c.relay("two").await.unwrap();
            view.state == RelayState::NotReady && view.state_reason.contains("relay one: nobody answers")
        })
        .await;
    assert!(!plane.control.relay("two").await.unwrap().capacity);
    let policies = second.view.borrow().policies;
    assert!(policies > 0, "it has a policy, or it could never be ready");

    first.closed.send_modify(std::collections::BTreeSet::clear);
    plane.clock.pass(Duration::from_secs(15));
    plane
        .until("it is ready when the port answers", async |c| {
            c.relay("two").await.unwrap().capacity
        })
        .await;
    assert!(
        !second.view.borrow().probed.contains(&second_id),
        "its own word is not asked for"
    );
    plane.stop().await;
}

/// R-POL-01: leases are renewed every 10 minutes, for the policy that is held, with rising numbers;
/// a policy is not sent again.
#[tokio::test]
async fn leases_are_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let relay = Relay::connect(&plane, &plane.relay("one").await).await;
    plane
        .until("it is ready", async |c| {
            c.relay("one").await.unwrap().state == RelayState::Ready
        })
        .await;
    relay.report().await;
    let before = relay.view.borrow().clone();
    let head = before.admission.head().unwrap();
    plane.clock.pass(Duration::from_secs(601));
    relay.report().await;
    let after = relay
        .until("a lease alone comes", |v| v.leases > before.leases)
        .await;
    let renewed = relay
        .until("it is applied", |v| {
            v.admission.head().unwrap().lease_seq > head.lease_seq
        })
        .await
        .admission
        .head()
        .unwrap();
    assert_eq!(after.policies, before.policies);
    assert_eq!((renewed.revision, renewed.root), (head.revision, head.root));
    assert!(renewed.lease_not_after.since(head.lease_not_after) >= Duration::from_secs(600));

    // Another length is sent at once.
    plane
        .control
        .set_setting(&plane.admin, "policy.lease", "1h")
        .await
        .unwrap();
    let short = relay
        .until("the shorter lease", |v| {
            v.admission.head().unwrap().lease_not_after < renewed.lease_not_after
        })
        .await;
    assert!(short.refused.is_empty(), "{:?}", short.refused);
    plane.stop().await;
}

/// R-POL-02: grants are renewed while they outlast every lease that is out, and at once where a
/// longer lease is set.
#[tokio::test]
async fn grants_are_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    plane
        .control
        .set_setting(&plane.admin, "policy.lease", "1h")
        .await
        .unwrap();
    let relay = Relay::connect(&plane, &plane.relay("one").await).await;
    let alpha = Node::connect(&plane, &plane.node("alpha").await).await;
    let _beta = plane.node("beta").await;
    plane
        .until("it is ready", async |c| c.relay("one").await.unwrap().capacity)
        .await;
    let route = plane.link("db", "alpha", "beta", 15_432).await;
    let first = alpha
        .until("the grant", |v| v.grants.contains_key(&route))
        .await
        .grants[&route]
        .clone();
    assert_eq!(
        first.not_after.since(first.not_before),
        Duration::from_secs(4 * 3600)
    );
    // Half of the 3 h that it exceeds the lease by.
    plane.clock.pass(Duration::from_secs(3600 + 1800 + 60));
    relay.report().await;
    let second = alpha
        .until("its renewal", |v| v.grants[&route].not_after > first.not_after)
        .await
        .grants[&route]
        .clone();
    plane
        .control
        .set_setting(&plane.admin, "policy.lease", "168h")
        .await
        .unwrap();
    let third = alpha
        .until("the longer one", |v| {
            v.grants[&route].not_after > second.not_after
        })
        .await
        .grants[&route]
        .clone();
    assert_eq!(
        third.not_after.since(third.not_before),
        Duration::from_secs(224 * 3600)
    );
    plane.stop().await;
}

/// R-POL-09, R-POL-02: grants that a node could not keep come again, and until then its link is not
/// ready.
#[tokio::test]
async fn lost_grants_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let relay = plane.relay("one").await;
    let (alpha, beta) = (plane.node("alpha").await, plane.node("beta").await);
    let _relay = Relay::connect(&plane, &relay).await;
    let full = NodeView {
        loses_grants: 2,
        ..NodeView::default()
    };
    let alpha = Node::connect_with(&plane, &alpha, full).await;
    let _beta = Node::connect(&plane, &beta).await;
    let route = plane.link("db", "alpha", "beta", 15_432).await;
    plane
        .until("the link waits for grants", async |control| {
            let link = control.link("db").await.unwrap();
            link.state == LinkState::Pending && link.waiting_for.iter().any(|w| w.contains("grants"))
        })
        .await;
    alpha
        .until("alpha keeps its grant", |v| v.grants.contains_key(&route))
        .await;
    plane
        .until("the link is ready", async |control| {
            control.link("db").await.unwrap().state == LinkState::Ready
        })
        .await;
    plane.stop().await;
}

/// A link says what it waits for, and nothing that only follows from that.
#[tokio::test]
async fn a_link_says_what_it_waits_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    plane.control.add_node(&plane.admin, "alpha").await.unwrap();
    let beta = plane.node("beta").await;
    plane.link("db", "alpha", "beta", 15_432).await;
    let waits = async || plane.control.link("db").await.unwrap().waiting_for;
    let expected = [
        "no relay is ready to carry it",
        "consumer alpha has not enrolled yet",
        "publisher beta is not connected",
    ];
    assert_eq!(waits().await, expected);
    let _beta = Node::connect(&plane, &beta).await;
    plane
        .until("the publisher is there", async |control| {
            control.link("db").await.unwrap().waiting_for.len() < expected.len()
        })
        .await;
    assert_eq!(waits().await, expected[..2]);
    plane.stop().await;
}

/// Where every relay is gone, that is what the link waits for, and nobody who only follows from it is blamed.
#[tokio::test]
async fn a_link_whose_relays_are_gone_waits_for_a_relay() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let one = plane.relay("one").await;
    let (alpha, beta) = (plane.node("alpha").await, plane.node("beta").await);
    let relay = Relay::connect(&plane, &one).await;
    let alpha = Node::connect(&plane, &alpha).await;
    let beta = Node::connect(&plane, &beta).await;
    plane.link("db", "alpha", "beta", 15_432).await;
    plane
        .until("the link is ready", async |control| {
            control.link("db").await.unwrap().state == LinkState::Ready
        })
        .await;
    relay.vanish().await;
    for node in [&alpha, &beta] {
        node.unreachable.send_replace([one.relay_id()].into());
        node.report().await;
    }
    plane
        .until("the link waits for a relay, and nothing else", async |control| {
            let why = "no relay is ready to carry it (relay one: none of 2 nodes reaches it; node ";
            let waits = control.link("db").await.unwrap().waiting_for;
            matches!(waits.as_slice(), [one] if one.starts_with(why) && one.ends_with(": timed out)"))
        })
        .await;
    plane.stop().await;
}

/// R-UI-01: a link that was just added, and a node that has just connected, are starting; where what they lack does
/// not come within a while, they are not.
#[tokio::test]
async fn what_is_new_is_starting_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (alpha, beta) = (plane.node("alpha").await, plane.node("beta").await);
    let away = async |c: &Control| c.link("db").await.unwrap().starting;
    plane.link("db", "alpha", "beta", 15_432).await;
    assert!(!away(&plane.control).await, "its ends are not there");
    let _nodes = (
        Node::connect(&plane, &alpha).await,
        Node::connect(&plane, &beta).await,
    );
    let starting = async |c: &Control| {
        let (node, link) = (c.node("alpha").await.unwrap(), c.link("db").await.unwrap());
        assert_ne!(link.state, LinkState::Ready, "there is no relay");
        (node.starting, link.starting)
    };
    plane
        .until("both are starting", async |c| starting(c).await == (true, true))
        .await;
    plane.clock.pass(Duration::from_secs(15));
    plane
        .until("both lack a relay", async |c| starting(c).await == (false, false))
        .await;
    plane.stop().await;
}

/// R-UI-01: while a change is on its way to a node, the node and the links that it does not touch are as ready as they
/// were; the new link is settling.
#[tokio::test]
async fn a_change_on_its_way_takes_nothing_from_what_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let one = plane.relay("one").await;
    let (alpha, beta) = (plane.node("alpha").await, plane.node("beta").await);
    let _relay = Relay::connect(&plane, &one).await;
    let hears = Node::connect(&plane, &alpha).await;
    let _beta = Node::connect(&plane, &beta).await;
    plane.link("db", "alpha", "beta", 15_432).await;
    let stands = async |c: &Control| {
        let (node, link) = (c.node("alpha").await.unwrap(), c.link("db").await.unwrap());
        (node.state, link.state)
    };
    let ready = (NodeState::Ready, LinkState::Ready);
    plane
        .until("all is ready", async |c| stands(c).await == ready)
        .await;
    let deaf = NodeView {
        is_deaf: true,
        ..hears.vanish().await
    };
    let _deaf = Node::connect_with(&plane, &alpha, deaf).await;
    plane
        .until("all is ready again", async |c| stands(c).await == ready)
        .await;
    plane.clock.pass(Duration::from_secs(60));
    plane.link("web", "alpha", "beta", 15_433).await;
    plane
        .until("a newer policy is signed", async |c| {
            !c.node("alpha").await.unwrap().policy.is_current()
        })
        .await;
    let node = plane.control.node("alpha").await.unwrap();
    assert_eq!((node.state, node.state_reason.as_str()), (NodeState::Ready, ""));
    let link = plane.control.link("db").await.unwrap();
    assert_eq!((link.state, link.waiting_for), (LinkState::Ready, Vec::new()));
    let new = plane.control.link("web").await.unwrap();
    assert_eq!((new.state, new.starting), (LinkState::Pending, true));
    // A policy that does not arrive is a fault of the node; what the link needs, it holds.
    plane.clock.pass(Duration::from_secs(16));
    assert_eq!(
        stands(&plane.control).await,
        (NodeState::NotReady, LinkState::Ready)
    );
    plane.stop().await;
}

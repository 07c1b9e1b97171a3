//! Members that are away: what is shown, what moves, and what does not.

use crate::fixture::{Node, Plane, Relay, once, refusal};
use fairlead_control::Control;
use fairlead_control::api::{NodeState, RelayState};
use fairlead_rpc::pb::{self, node_up, relay_up};
use std::collections::BTreeSet;
use std::time::Duration;

/// R-GEN-04, R-PLC-05: a supervisor that is away for an hour moves no link while a node is connected
/// to its relay. When no node is, the link moves, and the relay that it leaves keeps its tunnels.
#[tokio::test]
async fn a_link_stays_while_its_relay_serves() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let mut relays = Vec::new();
    for name in ["one", "two", "three"] {
        relays.push(Relay::connect(&plane, &plane.relay(name).await).await);
    }
    let alpha = Node::connect(&plane, &plane.node("alpha").await).await;
    let beta = Node::connect(&plane, &plane.node("beta").await).await;
    plane
        .until("all are ready", async |c| {
            c.relays().await.iter().all(|r| r.capacity)
        })
        .await;
    let route = plane.link("db", "alpha", "beta", 15_432).await;
    let held = alpha
        .until("alpha has its grant", |v| v.grants.contains_key(&route))
        .await;
    let placed = held.policy.unwrap().consumptions[0].relays.clone();
    let lost = relays.iter().position(|r| placed.contains(&r.id())).unwrap();
    let lost = relays.remove(lost);
    let lost_id = lost.id();
    let name = lost.member.enrolled.name.to_string();
    lost.vanish().await;

    plane
        .until("its session ended", async |c| {
            plane.clock.pass(Duration::from_secs(6));
            c.relay(&name).await.unwrap().state == RelayState::Offline
        })
        .await;
    plane.clock.pass(Duration::from_secs(3600));
    for node in [&alpha, &beta] {
        node.report().await;
    }
    relays[0].report().await;
    // A change of another link is planned after all that: the link has not moved with it.
    let other = plane.link("web", "alpha", "beta", 18_080).await;
    let held = alpha
        .until("the other link", |v| v.grants.contains_key(&other))
        .await;
    let consumption = |held: &crate::fixture::NodeView| {
        let policy = held.policy.as_ref().unwrap();
        policy
            .consumptions
            .iter()
            .find(|c| c.route == route)
            .unwrap()
            .relays
            .clone()
    };
    assert_eq!(consumption(&held), placed);
    assert!(plane.control.relay(&name).await.unwrap().capacity);

    for node in [&alpha, &beta] {
        node.unreachable.send_replace(BTreeSet::from([lost_id]));
        node.report().await;
    }
    let held = alpha
        .until("the link moves", |v| !consumption(v).contains(&lost_id))
        .await;
    assert_eq!(consumption(&held).len(), 2);
    let sessions: Vec<_> = held.policy.unwrap().relays.iter().map(|r| r.relay).collect();
    assert!(sessions.contains(&lost_id), "live tunnels keep their session");
    let view = plane.control.relay(&name).await.unwrap();
    assert!(!view.capacity);
    assert!(plane.actions().await.contains(&"relay.capacity.loss".to_owned()));
    plane.stop().await;
}

/// R-POL-07, R-POL-08, R-POL-09: a relay that comes back gets what it missed, and the outage goes
/// into the audit log with its beginning and its end.
#[tokio::test]
async fn a_relay_that_returns_gets_what_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let member = plane.relay("one").await;
    let relay = Relay::connect(&plane, &member).await;
    let alpha = Node::connect(&plane, &plane.node("alpha").await).await;
    let _beta = plane.node("beta").await;
    plane
        .until("it is ready", async |c| c.relay("one").await.unwrap().capacity)
        .await;
    let held = relay.vanish().await;
    // The end is recorded once the session has ended, whatever the clocks say meanwhile.
    plane
        .until_away(async |c| c.relay("one").await.unwrap().last_seen)
        .await;
    plane.clock.pass(Duration::from_secs(3600));
    let route = plane.link("db", "alpha", "beta", 15_432).await;
    alpha
        .until("the policy goes on without the relay", |v| {
            v.grants.contains_key(&route)
        })
        .await;
    let before = held.head().unwrap();
    let relay = Relay::connect_with(&plane, &member, held).await;
    let view = relay
        .until("the newer policy", |v| {
            v.admission.head().unwrap().revision > before.revision
        })
        .await;
    assert!(view.refused.is_empty(), "{:?}", view.refused);
    let entries = plane.control.audit(0, 1000).await.unwrap();
    let stale = entries
        .iter()
        .find(|e| e.action == "relay.instance.policy.stale_period")
        .expect("the outage is not in the audit log");
    assert_eq!(stale.object, "relay one");
    let after = stale.after.as_ref().unwrap();
    let period: serde_json::Value = serde_json::from_str(after).unwrap();
    let at = |end: &str| -> jiff::Timestamp { period[end].as_str().unwrap().parse().unwrap() };
    let passed = at("to").as_second() - at("from").as_second();
    assert!((3600..3600 + 60).contains(&passed), "{period}");
    relay.vanish().await;

    // A worker whose disk was lost gets its policy again.
    let relay = Relay::connect(&plane, &member).await;
    relay
        .until("the policy again", |v| v.admission.head().is_some())
        .await;
    plane.stop().await;
}

/// R-NOD-06: a node is shown offline after 5 s, not before.
#[tokio::test]
async fn a_node_is_offline_after_five_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let _relay = Relay::connect(&plane, &plane.relay("one").await).await;
    let member = plane.node("alpha").await;
    let alpha = Node::connect(&plane, &member).await;
    plane
        .until("it is ready", async |c| {
            c.node("alpha").await.unwrap().state == NodeState::Ready
        })
        .await;
    alpha.vanish().await;
    plane
        .until_away(async |c| c.node("alpha").await.unwrap().last_seen)
        .await;
    assert_ne!(
        plane.control.node("alpha").await.unwrap().state,
        NodeState::Offline
    );
    plane.clock.pass(Duration::from_secs(5));
    assert_eq!(
        plane.control.node("alpha").await.unwrap().state,
        NodeState::Offline
    );
    let away = plane.control.node("alpha").await.unwrap();
    assert!(
        away.relays.len() == 1 && !away.relays[0].connected && away.relays[0].rtt_us.is_none(),
        "what it reaches is not known: {away:?}"
    );
    let _back = Node::connect(&plane, &member).await;
    plane
        .until("it is back", async |c| {
            c.node("alpha").await.unwrap().state == NodeState::Ready
        })
        .await;
    plane.stop().await;
}

/// R-UI-01, R-NOD-06: who was stopped is offline at once, with the reason; who comes back is not. The
/// clock stands still.
#[tokio::test]
async fn a_member_that_says_goodbye_is_offline_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (one, alpha) = (plane.relay("one").await, plane.node("alpha").await);
    let relay = Relay::connect(&plane, &one).await;
    let node = Node::connect(&plane, &alpha).await;
    let states = async |c: &Control| {
        let (relay, node) = (c.relay("one").await.unwrap(), c.node("alpha").await.unwrap());
        ((relay.state, relay.state_reason), (node.state, node.state_reason))
    };
    let ready = async |c: &Control| {
        let (relay, node) = states(c).await;
        (relay.0, node.0) == (RelayState::Ready, NodeState::Ready)
    };
    plane.until("both are ready", ready).await;
    relay.say_goodbye().await;
    node.unreachable.send_replace([one.relay_id()].into());
    plane
        .until("the node's path says why", async |c| {
            node.report().await;
            let relays = c.node("alpha").await.unwrap().relays;
            matches!(relays.as_slice(), [path] if !path.connected && path.error == "the relay was stopped")
        })
        .await;
    node.say_goodbye().await;
    plane
        .until("both are offline", async |c| {
            let (relay, node) = states(c).await;
            (relay.0, node.0) == (RelayState::Offline, NodeState::Offline)
        })
        .await;
    let (relay, node) = states(&plane.control).await;
    assert_eq!(relay.1, "its supervisor was stopped");
    let worker = plane.control.relay("one").await.unwrap().worker.unwrap();
    assert_eq!(
        (worker.state, worker.pid, worker.hop_sessions, worker.live_tunnels),
        ("stopped", 0, 0, 0),
        "it ended with its supervisor"
    );
    assert_eq!(node.1, "its daemon was stopped");
    // What was known is known after a restart too.
    plane.stop().await;
    let plane = Plane::start(dir.path()).await;
    let (relay, node) = states(&plane.control).await;
    assert_eq!(relay.1, "its supervisor was stopped");
    assert_eq!(node.1, "its daemon was stopped");
    let worker = plane.control.relay("one").await.unwrap().worker.unwrap();
    assert_eq!(worker.state, "stopped");
    assert!(plane.control.node("alpha").await.unwrap().last_seen.is_some());
    let _back = (
        Relay::connect(&plane, &one).await,
        Node::connect(&plane, &alpha).await,
    );
    plane.until("both are back", ready).await;
    plane.stop().await;
}

/// R-UI-01: what a relay said before it vanished is not shown as what it does.
#[tokio::test]
async fn the_figures_of_a_relay_that_vanished_are_not_known() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let member = plane.relay("one").await;
    let relay = Relay::connect(&plane, &member).await;
    let worker = async |c: &Control| c.relay("one").await.unwrap().worker;
    // No report of its own comes between: it has its policy.
    plane
        .until("it is ready", async |c| {
            c.relay("one").await.unwrap().state == RelayState::Ready
        })
        .await;
    relay
        .report_with(|status| (status.live_tunnels, status.bytes_relayed) = (5, 9))
        .await;
    plane
        .until("it has said so", async |c| {
            worker(c).await.is_some_and(|w| w.live_tunnels == 5)
        })
        .await;
    relay.vanish().await;
    plane
        .until("it is away", async |c| {
            let last_seen = c.relay("one").await.unwrap().last_seen;
            last_seen.is_some_and(|at| at < plane.clock_wall())
        })
        .await;
    let before = worker(&plane.control).await.unwrap();
    assert_eq!(before.live_tunnels, 5, "a moment is no loss");
    plane.clock.pass(Duration::from_secs(5));
    let after = worker(&plane.control).await.unwrap();
    assert_eq!(
        (after.state, after.pid, after.live_tunnels, after.bytes_relayed),
        ("unknown", 0, 0, 9)
    );
    plane.stop().await;
}

/// R-UI-01: a relay that comes back after an hour is starting, and after a while it should have started.
#[tokio::test]
async fn a_relay_that_comes_back_is_starting_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let member = plane.relay("one").await;
    let relay = Relay::connect(&plane, &member).await;
    let stands = async |c: &Control| {
        let relay = c.relay("one").await.unwrap();
        (relay.state, relay.starting)
    };
    plane
        .until("it is ready", async |c| {
            stands(c).await == (RelayState::Ready, false)
        })
        .await;
    relay.say_goodbye().await;
    plane
        .until("it is offline", async |c| {
            stands(c).await == (RelayState::Offline, false)
        })
        .await;
    plane.clock.pass(Duration::from_secs(3600));
    let relay = Relay::connect(&plane, &member).await;
    let starts = |status: &mut fairlead_rpc::pb::RelayStatus| {
        status.worker_state = fairlead_rpc::pb::WorkerState::Starting.into();
    };
    plane
        .until("it is starting", async |c| {
            // Again: a policy that comes is answered by a report of its own.
            relay.report_with(starts).await;
            stands(c).await == (RelayState::NotReady, true)
        })
        .await;
    plane.clock.pass(Duration::from_secs(15));
    plane
        .until("it takes too long", async |c| {
            relay.report_with(starts).await;
            stands(c).await == (RelayState::NotReady, false)
        })
        .await;
    plane.stop().await;
}

/// A relay that says goodbye has its links placed elsewhere within seconds, not after the half minute that a
/// relay without a word gets; one that comes back sooner keeps them.
#[tokio::test]
async fn the_links_of_a_relay_that_says_goodbye_move_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let members = [
        plane.relay("one").await,
        plane.relay("two").await,
        plane.relay("three").await,
    ];
    let mut relays = Vec::new();
    for member in &members {
        relays.push(Relay::connect(&plane, member).await);
    }
    let (alpha, _beta) = (plane.node("alpha").await, plane.node("beta").await);
    let alpha = Node::connect(&plane, &alpha).await;
    plane
        .until("all are ready", async |c| {
            let relays = c.relays().await;
            relays.iter().all(|r| r.state == RelayState::Ready)
        })
        .await;
    plane.link("db", "alpha", "beta", 15_432).await;
    let on = async |c: &Control| {
        let relays = c.link("db").await.unwrap().relays;
        relays.into_iter().map(|r| r.id).collect::<Vec<_>>()
    };
    plane
        .until("it is placed", async |c| on(c).await.len() == 2)
        .await;
    let before = on(&plane.control).await;
    let place = members.iter().position(|m| m.relay_id() == before[0]).unwrap();
    let stopped = relays.remove(place);
    stopped.say_goodbye().await;
    alpha.unreachable.send_replace([before[0]].into());
    alpha.report().await;
    let name = members[place].enrolled.name.to_string();
    plane
        .until("it is offline", async |c| {
            c.relay(&name).await.unwrap().state == RelayState::Offline
        })
        .await;
    plane.clock.pass(Duration::from_secs(4));
    for relay in &relays {
        relay.report().await;
    }
    assert_eq!(on(&plane.control).await, before, "a restart moves nothing");
    plane.clock.pass(Duration::from_secs(2));
    plane
        .until("the third carries it", async |c| {
            let on = on(c).await;
            on.len() == 2 && !on.contains(&before[0])
        })
        .await;
    plane.stop().await;
}

/// A relay that nodes reach no more is shown so by their word, long before its port is tried again. A node
/// that reaches nothing at all is no witness.
#[tokio::test]
async fn a_relay_that_no_node_reaches_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (one, two) = (plane.relay("one").await, plane.relay("two").await);
    let _relays = (
        Relay::connect(&plane, &one).await,
        Relay::connect(&plane, &two).await,
    );
    let alpha = Node::connect(&plane, &plane.node("alpha").await).await;
    let state = async |c: &Control, name: &str| {
        let relay = c.relay(name).await.unwrap();
        (relay.state, relay.state_reason)
    };
    let ready = async |c: &Control| {
        let both = (state(c, "one").await.0, state(c, "two").await.0);
        both == (RelayState::Ready, RelayState::Ready)
    };
    plane.until("both are ready", ready).await;
    alpha
        .until("it has both", |v| {
            v.policy.as_ref().is_some_and(|p| p.relays.len() == 2)
        })
        .await;
    alpha.unreachable.send_replace([one.relay_id()].into());
    alpha.report().await;
    plane
        .until("the node's word is shown", async |c| {
            let why = "node alpha does not reach it: timed out".to_owned();
            state(c, "one").await == (RelayState::NotReady, why)
        })
        .await;
    let by = plane.control.relay("one").await.unwrap().unreached_by;
    assert_eq!(by.iter().map(|n| n.as_str()).collect::<Vec<_>>(), ["alpha"]);
    assert_eq!(state(&plane.control, "two").await.0, RelayState::Ready);
    assert!(
        plane.control.relay("one").await.unwrap().capacity,
        "it moves nothing"
    );
    alpha
        .unreachable
        .send_replace([one.relay_id(), two.relay_id()].into());
    alpha.report().await;
    plane.until("its own network may be the reason", ready).await;
    plane.stop().await;
}

/// R-POL-05, R-UI-01: a member whose hello is refused is not said to be stopped, whatever it said before; when it does
/// not try any more, it is.
#[tokio::test]
async fn a_member_that_is_refused_for_its_clock_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (one, alpha) = (plane.relay("one").await, plane.node("alpha").await);
    let (relay, node) = (
        Relay::connect(&plane, &one).await,
        Node::connect(&plane, &alpha).await,
    );
    let reasons = async |c: &Control| {
        let (relay, node) = (c.relay("one").await.unwrap(), c.node("alpha").await.unwrap());
        (relay.state_reason, node.state_reason)
    };
    relay.say_goodbye().await;
    node.say_goodbye().await;
    let stopped = (
        "its supervisor was stopped".to_owned(),
        "its daemon was stopped".to_owned(),
    );
    plane
        .until("both were stopped", async |c| reasons(c).await == stopped)
        .await;
    let wall_clock_ms = plane.clock_wall().0 + 600_000;
    let (request, _open) = once(pb::RelayUp {
        body: Some(relay_up::Body::Hello(pb::RelayHello {
            wall_clock_ms,
            ..pb::RelayHello::default()
        })),
    });
    let mut client = one.client(&plane).await;
    let mut downs = client.relay_session(request).await.unwrap().into_inner();
    refusal(downs.message().await);
    let (request, _open) = once(pb::NodeUp {
        body: Some(node_up::Body::Hello(pb::NodeHello {
            wall_clock_ms,
            ..pb::NodeHello::default()
        })),
    });
    let mut client = alpha.client(&plane).await;
    let mut downs = client.node_session(request).await.unwrap().into_inner();
    refusal(downs.message().await);
    let (relay, node) = reasons(&plane.control).await;
    assert!(
        relay.starts_with("its supervisor's session is refused: clock differs by "),
        "{relay}"
    );
    assert!(
        node.starts_with("its daemon's session is refused: clock differs by "),
        "{node}"
    );
    let view = plane.control.relay("one").await.unwrap();
    assert_eq!(view.refused.unwrap().code, "CLOCK_DIFFERS");
    assert_eq!(view.worker.unwrap().state, "unknown");
    plane.clock.pass(Duration::from_secs(30));
    assert_eq!(reasons(&plane.control).await, stopped);
    plane.stop().await;
}

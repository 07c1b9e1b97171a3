//! Members that leave: removed ones, and those that begin their enrolment anew.

use crate::fixture::{Member, Node, Plane, Relay, once, refusal};
use fairlead_control::api::{AddRelay, LinkState, MemberRole, RelayState};
use fairlead_model::{ApiCode, Name, RefusalCode};
use fairlead_rpc::pb::{self, node_up};
use std::time::Duration;
use tonic::{Code, Status};

/// What a node daemon with this identity is told.
async fn attempt(plane: &Plane, member: &Member) -> Status {
    let hello = pb::NodeHello {
        wall_clock_ms: plane.clock_wall().0,
        ..pb::NodeHello::default()
    };
    let (request, _open) = once(pb::NodeUp {
        body: Some(node_up::Body::Hello(hello)),
    });
    let mut client = member.client(plane).await;
    match client.node_session(request).await {
        Ok(mut downs) => refusal(downs.get_mut().message().await),
        Err(refused) => refused,
    }
}

/// R-OPS-03, R-UI-05: a node goes only when no link uses it; then its session ends at once, its
/// certificate is good for nothing, and its name is free.
#[tokio::test]
async fn a_node_is_removed_when_no_link_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    plane.node("beta").await;
    let alpha = plane.node("alpha").await;
    let node = Node::connect(&plane, &alpha).await;
    node.until("alpha has a policy", |v| v.policy.is_some()).await;
    plane.link("db", "alpha", "beta", 15_432).await;
    plane.link("web", "beta", "alpha", 15_433).await;

    let refused = plane.control.relay("alpha").await.unwrap_err().message;
    assert_eq!(refused, "there is no relay `alpha`: it is a node");

    let refused = plane
        .control
        .remove_node(&plane.admin, "alpha")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ApiCode::InUse);
    assert_eq!(refused.details["links"], "db, web");
    assert!(refused.message.contains("links db, web"), "{refused}");
    assert_eq!(plane.control.nodes().await.len(), 2, "nothing was removed");

    assert!(refused.message.contains("remove them first"), "{refused}");
    plane.control.remove_link(&plane.admin, "db").await.unwrap();
    let remove = plane.control.remove_node(&plane.admin, "alpha");
    let refused = remove.await.unwrap_err();
    // One is not spoken of as several.
    let told = "in use by link web; remove it first";
    assert!(refused.message.contains(told), "{refused}");
    plane.control.remove_link(&plane.admin, "web").await.unwrap();
    let removed = plane.control.remove_node(&plane.admin, "alpha").await.unwrap();
    assert_eq!(removed.id, alpha.node_id());
    node.until("its session has ended", |v| v.ended.is_some()).await;
    let refused = attempt(&plane, &alpha).await;
    assert_eq!(refused.code(), Code::PermissionDenied);
    // It may also be that its store never heard of it.
    for words in [
        "does not know this member: it was removed",
        "restored from a backup",
    ] {
        assert!(refused.message().contains(words), "{words}: {refused}");
    }
    let gone = plane.control.node("alpha").await.unwrap_err();
    assert_eq!(gone.code, ApiCode::NotFound);

    let entries = plane.control.audit(0, 1000).await.unwrap();
    let entry = entries.iter().find(|e| e.action == "node.remove").unwrap();
    assert_eq!(
        (entry.object.as_str(), entry.after.as_deref()),
        ("node alpha", None)
    );
    assert!(
        entry
            .before
            .as_ref()
            .unwrap()
            .contains(&alpha.node_id().to_string())
    );
    // The name is free, the id is another one, and the old certificate stays refused.
    let again = plane.node("alpha").await;
    assert_ne!(again.node_id(), alpha.node_id());
    assert_eq!(attempt(&plane, &alpha).await.code(), Code::PermissionDenied);
    plane.stop().await;
}

/// A removed node's control plane goes on after a restart: nothing of the node was left behind.
#[tokio::test]
async fn a_removal_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (alpha, _) = (plane.node("alpha").await, plane.add_relay("typo").await);
    plane.control.remove_node(&plane.admin, "alpha").await.unwrap();
    plane.control.remove_relay(&plane.admin, "typo").await.unwrap();
    plane.stop().await;
    let plane = Plane::start(dir.path()).await;
    assert!(plane.control.nodes().await.is_empty() && plane.control.relays().await.is_empty());
    // The control plane is at another address; the certificate is of the same pool.
    assert_eq!(attempt(&plane, &alpha).await.code(), Code::PermissionDenied);
    plane.control.verify_audit().await.unwrap();
    plane.stop().await;
}

/// R-ENR-02: a member whose host was killed before it kept what enrolment gave it gets another
/// token. From then on the lost key is refused; once its host has connected, there is none.
#[tokio::test]
async fn an_enrolment_that_was_lost_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    for role in [MemberRole::Node, MemberRole::Relay] {
        let lost = match role {
            MemberRole::Node => plane.node("alpha").await,
            MemberRole::Relay => plane.relay("alpha").await,
        };
        let token = plane
            .control
            .reissue(&plane.admin, role, "alpha")
            .await
            .unwrap()
            .token;
        let refused = plane.control.authenticate(&token).await.unwrap_err();
        assert!(
            refused.message.contains("`fairlead enrol`"),
            "{refused}: no admin's token"
        );
        let is_node = role == MemberRole::Node;
        if is_node {
            let refused = attempt(&plane, &lost).await;
            assert!(
                refused.message().contains("was superseded by a newer token"),
                "{refused}"
            );
        }
        let found = Member::enrol(&plane, role.as_str(), &token).await;
        assert_eq!(found.enrolled.identity, lost.enrolled.identity);
        if is_node {
            let refused = attempt(&plane, &lost).await;
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert!(refused.message().contains("another key"), "{refused}");
        }
        // The lost key renews nothing either.
        let csr = rcgen::CertificateParams::default()
            .serialize_request(&*lost.key)
            .unwrap();
        let request = pb::RenewCertificateRequest {
            csr: bytes::Bytes::copy_from_slice(csr.der()),
        };
        let refused = refusal(lost.client(&plane).await.renew_certificate(request).await);
        assert_eq!(refused.code(), Code::PermissionDenied);

        match role {
            MemberRole::Node => {
                let node = Node::connect(&plane, &found).await;
                node.until("it is served", |v| v.policy.is_some()).await;
            }
            MemberRole::Relay => {
                let relay = Relay::connect(&plane, &found).await;
                relay.until("it is served", |v| v.policies > 0).await;
            }
        }
        let refused = plane
            .control
            .reissue(&plane.admin, role, "alpha")
            .await
            .unwrap_err();
        assert_eq!(refused.code, ApiCode::HasConnected);
        assert!(
            refused.message.contains("has enrolled and connected"),
            "{refused}"
        );
    }
    plane.stop().await;
    let plane = Plane::start(dir.path()).await;
    let refused = plane
        .control
        .reissue(&plane.admin, MemberRole::Node, "alpha")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ApiCode::HasConnected, "a restart forgets nothing");
    plane.stop().await;
}

/// R-OPS-03: a relay that nodes never heard of, since its port never answered, is removed at once: connected
/// or not, with its lease out, after a restart too. Its host is free for another one.
#[tokio::test]
async fn a_relay_that_never_served_is_removed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let good = Relay::connect(&plane, &plane.relay("good").await).await;
    let alpha = plane.node("alpha").await;
    let alpha_id = alpha.node_id();
    let alpha = Node::connect(&plane, &alpha).await;
    let typos = [plane.relay("typo").await, plane.relay("wrong").await];
    good.closed
        .send_replace(typos.iter().map(Member::relay_id).collect());
    let [typo, wrong] = &typos;
    let relay_typo = Relay::connect(&plane, typo).await;
    let relay_wrong = Relay::connect(&plane, wrong).await;
    for (name, relay) in [("typo", &relay_typo), ("wrong", &relay_wrong)] {
        relay.until("it holds a lease", |v| v.policies > 0).await;
        plane
            .until("its port is known to be closed", async |c| {
                let view = c.relay(name).await.unwrap();
                view.state_reason.contains("did not answer") && view.policy.lease_not_after.is_some()
            })
            .await;
        let shown = plane.control.relay(name).await.unwrap();
        assert_eq!(shown.removable_after, None);
        let lets_in = relay.view.borrow().admission.session_verdict(alpha_id);
        assert!(lets_in.is_err(), "its policy lets nobody in");
    }
    plane.control.remove_relay(&plane.admin, "typo").await.unwrap();
    relay_typo
        .until("its session has ended", |v| v.ended.is_some())
        .await;
    // The good one has served, and waits for its lease.
    plane
        .until("links may be placed on it", async |c| {
            c.relay("good").await.unwrap().capacity
        })
        .await;
    alpha.until("it knows the good one", |v| v.policy.is_some()).await;
    relay_wrong.vanish().await;
    good.vanish().await;
    plane.stop().await;

    let plane = Plane::start(dir.path()).await;
    plane.control.remove_relay(&plane.admin, "wrong").await.unwrap();
    plane
        .until("the good one is known to be offline", async |c| {
            plane.clock.pass(Duration::from_secs(1));
            c.relay("good").await.unwrap().state == RelayState::Offline
        })
        .await;
    let refused = plane
        .control
        .remove_relay(&plane.admin, "good")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ApiCode::RelayOfflineRemovalUnsafe, "{refused}");
    plane.stop().await;
}

/// R-OPS-03: the local relay stays once it has served; added with a wrong address, it goes like another one.
#[tokio::test]
async fn the_local_relay_stays_once_it_has_served() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let add = async || {
        let local = AddRelay {
            name: "local".to_owned(),
            address: "127.0.2.1:9443".to_owned(),
            local: true,
            ..AddRelay::default()
        };
        let token = plane.control.add_relay(&plane.admin, local).await.unwrap().token;
        Member::enrol(&plane, "relay", &token).await
    };
    add().await;
    plane.control.remove_relay(&plane.admin, "local").await.unwrap();
    let relay = Relay::connect(&plane, &add().await).await;
    plane
        .until("links may be placed on it", async |c| {
            c.relay("local").await.unwrap().capacity
        })
        .await;
    let refused = plane
        .control
        .remove_relay(&plane.admin, "local")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ApiCode::LocalRelay);
    assert!(refused.message.contains("local relay"), "{refused}");
    relay.vanish().await;
    plane.stop().await;
}

/// R-OPS-03: a relay that never enrolled, or never came after that, goes at once; a connected one, one that
/// orphans a link and one whose lease is out do not, and each refusal says why.
#[tokio::test]
async fn a_relay_is_removed_when_nothing_can_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    plane.add_relay("typo").await;
    let removed = plane.control.remove_relay(&plane.admin, "typo").await.unwrap();
    assert_eq!(removed.state, RelayState::Pending);
    let remove = async |name: &str| plane.control.remove_relay(&plane.admin, name).await;
    assert_eq!(remove("typo").await.unwrap_err().code, ApiCode::NotFound);
    plane.relay("idle").await;
    remove("idle").await.unwrap();

    let (one, two) = (plane.relay("one").await, plane.relay("two").await);
    let (relay_one, relay_two) = (
        Relay::connect(&plane, &one).await,
        Relay::connect(&plane, &two).await,
    );
    let (_alpha, _beta) = (plane.node("alpha").await, plane.node("beta").await);
    plane
        .until("both relays are ready", async |c| {
            let relays = c.relays().await;
            relays.iter().filter(|r| r.state == RelayState::Ready).count() == 2
        })
        .await;
    plane.link("db", "alpha", "beta", 15_432).await;
    plane
        .until("the link is on both", async |c| {
            c.link("db").await.unwrap().relays.len() == 2
        })
        .await;
    let refused = remove("one").await.unwrap_err();
    assert_eq!(refused.code, ApiCode::InUse);
    assert!(refused.message.contains("is connected"), "{refused}");
    let after = &refused.details["removableAfter"];
    assert!(refused.message.contains(after.as_str()), "{refused}");
    let shown = plane.control.relay("one").await.unwrap();
    let longest = shown.removable_after.unwrap();
    assert!(longest >= shown.policy.lease_not_after.unwrap());
    // A shorter lease from here on: the longer one is out still, and counts.
    plane
        .control
        .set_setting(&plane.admin, "policy.lease", "1h")
        .await
        .unwrap();
    plane
        .until("the relay holds a shorter lease", async |c| {
            let lease = c.relay("one").await.unwrap().policy.lease_not_after.unwrap();
            lease < plane.clock_wall().plus(Duration::from_secs(2 * 3600))
        })
        .await;
    assert_eq!(
        plane.control.relay("one").await.unwrap().removable_after,
        Some(longest)
    );

    relay_one.vanish().await;
    plane
        .until("its session has ended", async |_| {
            remove("one").await.unwrap_err().code == ApiCode::RelayOfflineRemovalUnsafe
        })
        .await;
    let refused = remove("one").await.unwrap_err();
    let after = &refused.details["removableAfter"];
    assert!(refused.message.contains(after.as_str()), "{refused}");
    let shown = plane.control.relay("one").await.unwrap().removable_after;
    assert_eq!(shown.unwrap(), longest, "`relay show` says the same");
    // How long that is, and what to do until then.
    for words in [", in 7", "Nothing forces it", "another name", "Removing a relay"] {
        assert!(refused.message.contains(words), "{words}: {refused}");
    }
    let after: jiff::Timestamp = after.parse().unwrap();
    let wait = after.as_millisecond() - plane.clock_wall().0;
    let hour = 3_600_000;
    assert!(
        (71 * hour..73 * hour).contains(&wait),
        "R-POL-01: a lease of 72 h, not {wait} ms"
    );
    // One moment before it is still unsafe; then it goes.
    let wait = Duration::from_millis(u64::try_from(wait).unwrap());
    plane.clock.pass(wait - Duration::from_secs(60));
    relay_two.report().await;
    assert_eq!(
        remove("one").await.unwrap_err().code,
        ApiCode::RelayOfflineRemovalUnsafe
    );
    plane.clock.pass(Duration::from_secs(61));
    relay_two.report().await;
    plane
        .until("the other relay is ready", async |c| {
            c.relay("two").await.unwrap().state == RelayState::Ready
        })
        .await;
    remove("one").await.unwrap();
    plane
        .until("the link is where it can be", async |c| {
            c.link("db").await.unwrap().relays.len() == 1
        })
        .await;

    // The last one orphans the link, however long it has been away.
    relay_two.vanish().await;
    plane
        .until("its session has ended", async |c| {
            plane.clock.pass(Duration::from_secs(6));
            c.relay("two").await.unwrap().state == RelayState::Offline
        })
        .await;
    plane.clock.pass(Duration::from_secs(96 * 3600));
    let refused = remove("two").await.unwrap_err();
    assert_eq!(
        (refused.code, refused.details["links"].as_str()),
        (ApiCode::InUse, "db")
    );
    let told = "carries link db, which no other relay carries that is ready; start another relay and wait until it \
                has moved, or remove it";
    assert!(refused.message.ends_with(told), "{refused}");
    plane.control.remove_link(&plane.admin, "db").await.unwrap();
    plane
        .until("nothing is placed on it", async |_| remove("two").await.is_ok())
        .await;
    let actions = plane.actions().await;
    assert_eq!(actions.iter().filter(|a| *a == "relay.remove").count(), 4);
    assert_eq!(one.enrolled.name.as_str(), "one");
    plane.stop().await;
}

/// A link whose connections are turned away says so, with the code, when, and how often.
#[tokio::test]
async fn a_link_shows_its_last_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (alpha, _beta) = (plane.node("alpha").await, plane.node("beta").await);
    let route = plane.link("db", "alpha", "beta", 15_432).await;
    assert_eq!(plane.control.link("db").await.unwrap().last_refusal, None);
    let hello = pb::NodeHello {
        wall_clock_ms: plane.clock_wall().0,
        ..pb::NodeHello::default()
    };
    let (request, up) = once(pb::NodeUp {
        body: Some(node_up::Body::Hello(hello)),
    });
    let mut client = alpha.client(&plane).await;
    let _downs = client.node_session(request).await.unwrap();
    let at_ms = plane.clock_wall().0;
    for (code, shown) in [
        (u32::from(RefusalCode::TargetRefused.number()), "TARGET_REFUSED"),
        (70_000, "UNKNOWN"),
    ] {
        let status = pb::NodeStatus {
            listeners: vec![pb::ListenerState {
                route_id: bytes::Bytes::copy_from_slice(&route.to_bytes()),
                listening: true,
                error: String::new(),
                last_refusal: Some(pb::LastRefusal {
                    code,
                    at_ms,
                    count: 3,
                }),
            }],
            ..pb::NodeStatus::default()
        };
        let body = Some(node_up::Body::Status(status));
        up.send(pb::NodeUp { body }).await.unwrap();
        plane
            .until("the refusal is shown", async |c| {
                let refusal = c.link("db").await.unwrap().last_refusal;
                refusal.is_some_and(|r| (r.code, r.at.0, r.count) == (shown, at_ms, 3))
            })
            .await;
    }
    assert_eq!(plane.control.link("db").await.unwrap().state, LinkState::Pending);
    plane.stop().await;
}

/// R-REV-02: a removal names the relays and nodes that are not connected: they have not heard of it.
#[tokio::test]
async fn a_removed_link_names_who_has_not_heard_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (one, two) = (plane.relay("one").await, plane.relay("two").await);
    let (alpha, beta) = (plane.node("alpha").await, plane.node("beta").await);
    let (_one, two) = (
        Relay::connect(&plane, &one).await,
        Relay::connect(&plane, &two).await,
    );
    let _alpha = Node::connect(&plane, &alpha).await;
    let beta = Node::connect(&plane, &beta).await;
    for (link, port) in [("db", 15_432), ("web", 15_433)] {
        plane.link(link, "alpha", "beta", port).await;
    }
    plane
        .until("both relays carry both", async |c| {
            c.relays().await.iter().all(|relay| relay.endpoints == 2)
        })
        .await;
    let removed = plane.control.remove_link(&plane.admin, "db").await.unwrap();
    assert_eq!(removed.link.name.as_str(), "db");
    assert!(removed.unheard_relays.is_empty() && removed.unheard_nodes.is_empty());
    two.vanish().await;
    beta.vanish().await;
    plane
        .until_away(async |c| c.relay("two").await.unwrap().last_seen)
        .await;
    plane
        .until_away(async |c| c.node("beta").await.unwrap().last_seen)
        .await;
    let removed = plane.control.remove_link(&plane.admin, "web").await.unwrap();
    let names = |names: &[Name]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&removed.unheard_relays), ["two"]);
    assert_eq!(names(&removed.unheard_nodes), ["beta"]);
    plane.stop().await;
}

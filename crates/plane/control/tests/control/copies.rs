//! R-ENR-10: a member's identity on two hosts is found, bounded, and named with both; and paths that
//! an admin has tried (R-UI-04).

use crate::fixture::{Member, Plane, once};
use bytes::Bytes;
use fairlead_control::api::PathReportView;
use fairlead_model::ApiCode;
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_rpc::pb::{self, node_down, node_up};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

type Client = MemberControlClient<Channel>;

/// A process with the member's identity, in a session. Its version is its host's name.
struct Copy {
    up: mpsc::Sender<pb::NodeUp>,
    downs: Streaming<pb::NodeDown>,
}

impl Copy {
    async fn connect(plane: &Plane, member: &Member, boot: u8, host_name: &str) -> Self {
        let client = member.client(plane).await;
        Self::greet(plane, client, boot, host_name).await
    }

    /// Says hello on a connection that stands.
    async fn greet(plane: &Plane, mut client: Client, boot: u8, host_name: &str) -> Self {
        let hello = pb::NodeHello {
            wall_clock_ms: plane.clock_wall().0,
            process: Some(pb::Process {
                boot_id: Bytes::copy_from_slice(&[boot; 16]),
                host_name: host_name.to_owned(),
                machine: format!("{boot:02x}").repeat(32),
                product: String::new(),
            }),
            version: host_name.to_owned(),
            ..pb::NodeHello::default()
        };
        let (request, up) = once(pb::NodeUp {
            body: Some(node_up::Body::Hello(hello)),
        });
        let downs = client.node_session(request).await.unwrap().into_inner();
        Self { up, downs }
    }

    async fn welcomed(mut self) -> Self {
        let first = self.downs.message().await.unwrap().unwrap();
        assert!(
            matches!(first.body, Some(node_down::Body::Welcome(_))),
            "{first:?}"
        );
        self
    }

    /// Its session was taken from it.
    async fn replaced(mut self) {
        while self.downs.message().await.unwrap().is_some() {}
    }
}

/// R-ENR-10: the second process looks like a restart; when the first comes back there are two. It is
/// kept, the other refused for as long as it lives, and the audit log names both, once.
#[tokio::test]
async fn a_cloned_identity_is_refused_and_both_hosts_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let alpha = plane.node("alpha").await;
    let original = Copy::connect(&plane, &alpha, 1, "db-host").await.welcomed().await;
    let copy = Copy::connect(&plane, &alpha, 2, "thief").await.welcomed().await;
    original.replaced().await;
    assert_eq!(
        plane.control.node("alpha").await.unwrap().copies,
        None,
        "a restart is no clone"
    );
    let original = Copy::connect(&plane, &alpha, 1, "db-host").await.welcomed().await;
    copy.replaced().await;
    for _ in 0..3 {
        let mut copy = Copy::connect(&plane, &alpha, 2, "thief").await;
        let refused = copy.downs.message().await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused:?}");
        assert!(
            refused.message().contains("host `db-host` at 127.0.0.1"),
            "{refused:?}"
        );
    }
    let entries = plane.control.audit(0, 1000).await.unwrap();
    let alerts: Vec<_> = entries
        .iter()
        .filter(|e| e.action == "member.identity.cloned")
        .collect();
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    let after = alerts[0].after.clone().unwrap();
    assert!(after.contains("db-host") && after.contains("thief"), "{after}");
    assert_eq!(alerts[0].object, "node alpha");
    let copies = plane.control.node("alpha").await.unwrap().copies.unwrap();
    assert!(
        copies.kept.contains("db-host") && copies.refused.contains("thief"),
        "{copies:?}"
    );
    // Ten minutes without the copy: the member is one again.
    plane.clock.pass(Duration::from_secs(601));
    assert_eq!(plane.control.node("alpha").await.unwrap().copies, None);
    drop(original);
    // A restart that finds the same again within a day notes it no second time.
    plane.stop().await;
    let plane = Plane::start(dir.path()).await;
    for (boot, host) in [(1, "db-host"), (2, "thief")] {
        Copy::connect(&plane, &alpha, boot, host).await.welcomed().await;
    }
    let _original = Copy::connect(&plane, &alpha, 1, "db-host").await.welcomed().await;
    assert!(plane.control.node("alpha").await.unwrap().copies.is_some());
    let cloned = |actions: Vec<String>| actions.iter().filter(|a| *a == "member.identity.cloned").count();
    assert_eq!(cloned(plane.actions().await), 1);
    plane.stop().await;
}

/// R-ENR-10: when a relay met the copy last is when it came, not when somebody asks.
#[tokio::test]
async fn a_copy_that_a_relay_met_was_seen_when_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let alpha = plane.node("alpha").await;
    let one = plane.relay("one").await;
    let relay = crate::fixture::Relay::connect(&plane, &one).await;
    let _alpha = Copy::connect(&plane, &alpha, 1, "db-host").await.welcomed().await;
    plane
        .until("the relay reports nothing else", async |c| {
            let relay = c.relay("one").await.unwrap();
            relay.state == fairlead_control::api::RelayState::Ready
                && relay.policy.wanted == relay.policy.applied
        })
        .await;
    let came_at = plane.clock_wall();
    plane.clock.pass(Duration::from_secs(20));
    let seen = async |c: &fairlead_control::Control| {
        let copies = c.node("alpha").await.unwrap().copies;
        copies.map(|copies| copies.last_seen.since(came_at))
    };
    let soon = |seen: Option<Duration>| seen.is_some_and(|seen| seen < Duration::from_secs(5));
    plane
        .until("the report is known", async |c| {
            // Again: a report that answers a lease may come behind it, and names no copy.
            relay
                .report_with(|status| {
                    status.cloned_nodes.push(pb::ClonedNode {
                        node_id: Bytes::copy_from_slice(&alpha.node_id().to_bytes()),
                        kept: "192.0.2.1".to_owned(),
                        refused: "192.0.2.2".to_owned(),
                        refused_ago_ms: 20_000,
                    });
                })
                .await;
            seen(c).await.is_some()
        })
        .await;
    assert!(soon(seen(&plane.control).await));
    plane.clock.pass(Duration::from_secs(9));
    assert!(soon(seen(&plane.control).await), "asked later, it came no later");
    plane.stop().await;
}

/// R-ENR-10, R-UI-01: a dead run's hello that is heard only after its successor's is no copy's, ends no session,
/// and shows no version; nor does an earlier one of the same run.
#[tokio::test]
async fn a_late_hello_of_a_dead_run_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let alpha = plane.node("alpha").await;
    // Its connection stands when the next run's does not exist yet.
    let early = [alpha.client(&plane).await, alpha.client(&plane).await];
    let successor = Copy::connect(&plane, &alpha, 2, "second").await.welcomed().await;
    for (boot, early) in [1, 2].into_iter().zip(early) {
        let mut late = Copy::greet(&plane, early, boot, "first").await;
        let refused = late.downs.message().await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "run {boot}: {refused:?}");
        let shown = plane.control.node("alpha").await.unwrap();
        assert_eq!((shown.version.as_str(), shown.copies), ("second", None));
    }
    // The successor has its session still.
    let status = node_up::Body::Status(pb::NodeStatus {
        live_streams: 7,
        ..pb::NodeStatus::default()
    });
    let up = pb::NodeUp { body: Some(status) };
    successor.up.send(up).await.unwrap();
    plane
        .until("the successor is heard", async |c| {
            c.node("alpha").await.unwrap().live_streams == 7
        })
        .await;
    plane.stop().await;
}

/// R-UI-04: the consumer is asked, its report comes back; a consumer that is away is told so.
#[tokio::test]
async fn a_path_is_tried_by_its_consumer() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let relay = plane.relay("local").await;
    let relay = crate::fixture::Relay::connect(&plane, &relay).await;
    relay.until("it holds a policy", |view| view.policies > 0).await;
    let (alpha, _beta) = (plane.node("alpha").await, plane.node("beta").await);
    plane.link("db", "alpha", "beta", 15_432).await;
    plane
        .until("the link is placed", async |c| {
            !c.link("db").await.unwrap().relays.is_empty()
        })
        .await;
    let away = plane.control.check_link("db", None).await.unwrap_err();
    assert_eq!(away.code, ApiCode::NodeNotConnected, "{away}");
    let unknown = plane.control.check_link("db", Some("nope")).await.unwrap_err();
    assert_eq!(unknown.code, ApiCode::NotFound, "{unknown}");
    let mut session = Copy::connect(&plane, &alpha, 1, "a").await.welcomed().await;
    let control = plane.control.clone();
    let (checked, ()) = tokio::join!(control.check_link("db", Some("local")), async {
        let asked = loop {
            let down = session.downs.message().await.unwrap().unwrap();
            if let Some(node_down::Body::PathCheck(asked)) = down.body {
                break asked;
            }
        };
        for check_id in [Bytes::from_static(b"another one's"), asked.check_id] {
            let report = pb::PathReport {
                bytes_verified: check_id.len() as u64,
                check_id,
                target: "CONNECTED".to_owned(),
                ..pb::PathReport::default()
            };
            let body = Some(node_up::Body::PathReport(report));
            session.up.send(pb::NodeUp { body }).await.unwrap();
        }
    });
    let checked = checked.unwrap();
    assert_eq!(checked.relay.name.as_str(), "local");
    assert_eq!(
        checked.report,
        PathReportView {
            session_us: 0,
            tunnel_us: 0,
            bytes_verified: 16,
            failed: String::new(),
            detail: String::new(),
            target: "CONNECTED".to_owned(),
        }
    );
    plane.stop().await;
}

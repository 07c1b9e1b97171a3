//! Who may call what: the certificate's role decides, and the member has to be there still.

use crate::fixture::{Member, Plane, client_config, once, refusal};
use fairlead_rpc::GRPC_SERVER_NAME;
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_rpc::pb::{self, node_up, relay_up};
use rcgen::{CertificateParams, KeyPair};
use tonic::transport::Channel;
use tonic::{Code, Status};

fn relay_hello(plane: &Plane) -> pb::RelayUp {
    use fairlead_host::Clock;
    let hello = pb::RelayHello {
        wall_clock_ms: plane.clock.wall().0,
        ..pb::RelayHello::default()
    };
    pb::RelayUp {
        body: Some(relay_up::Body::Hello(hello)),
    }
}

fn node_hello(plane: &Plane) -> pb::NodeUp {
    use fairlead_host::Clock;
    let hello = pb::NodeHello {
        wall_clock_ms: plane.clock.wall().0,
        ..pb::NodeHello::default()
    };
    pb::NodeUp {
        body: Some(node_up::Body::Hello(hello)),
    }
}

/// Each method refuses the wrong role, over the connection that proved it.
#[tokio::test]
async fn each_method_checks_the_role() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (relay, node) = (plane.relay("one").await, plane.node("alpha").await);
    let mut as_relay = relay.client(&plane).await;
    let mut as_node = node.client(&plane).await;

    let (request, _open) = once(node_hello(&plane));
    let refused = refusal(as_relay.node_session(request).await.map(|_| ()));
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(
        refused.message().contains("NodeSession is for a node"),
        "{refused}"
    );
    let (request, _open) = once(relay_hello(&plane));
    let refused = refusal(as_node.relay_session(request).await.map(|_| ()));
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(
        refused.message().contains("RelaySession is for a relay"),
        "{refused}"
    );

    // The right role is served.
    let (request, _open) = once(relay_hello(&plane));
    let mut downs = as_relay.relay_session(request).await.unwrap().into_inner();
    assert!(downs.message().await.unwrap().is_some());
    let (request, _open) = once(node_hello(&plane));
    let mut downs = as_node.node_session(request).await.unwrap().into_inner();
    assert!(downs.message().await.unwrap().is_some());
    plane.stop().await;
}

/// R-ENR-08: a member renews its own certificate for the key it has, whatever names the request
/// says; another key, and what is no request, are refused. The renewed certificate is accepted.
#[tokio::test]
async fn a_certificate_is_renewed_for_its_own_holder() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    for member in [plane.relay("one").await, plane.node("alpha").await] {
        let mut client = member.client(&plane).await;
        let params = CertificateParams::new(vec!["somebody.else".to_owned()]).unwrap();
        let request = |key: &KeyPair| pb::RenewCertificateRequest {
            csr: bytes::Bytes::copy_from_slice(params.serialize_request(key).unwrap().der()),
        };
        let other = request(&KeyPair::generate().unwrap());
        let refused = refusal(client.renew_certificate(other).await);
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("keeps the member's key"), "{refused}");
        let request = request(&member.key);
        let reply = client
            .renew_certificate(request.clone())
            .await
            .unwrap()
            .into_inner();
        let domain = plane.control.trust_domain();
        let (identity, _) =
            fairlead_trust::certificate::identity_of(&reply.certificate_chain[0], domain).unwrap();
        assert_eq!(identity, member.enrolled.identity);
        assert!(reply.trust_bundle.is_some());
        let renewed = pem::encode(&pem::Pem::new("CERTIFICATE", reply.certificate_chain[0].to_vec()));
        let renewed = Member {
            tls: client_config(&member.enrolled.ca_pem, Some((&renewed, &member.key))),
            ..member.clone()
        };
        renewed
            .client(&plane)
            .await
            .renew_certificate(request)
            .await
            .unwrap();
        let garbage = pb::RenewCertificateRequest {
            csr: bytes::Bytes::from_static(b"no request"),
        };
        let refused = refusal(client.renew_certificate(garbage).await);
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    let actions = plane.actions().await;
    assert!(
        actions.contains(&"relay.certificate.renew".to_owned()),
        "{actions:?}"
    );
    assert!(
        actions.contains(&"node.certificate.renew".to_owned()),
        "{actions:?}"
    );
    plane.stop().await;
}

/// The refusal of a session that may not be.
async fn attempt(plane: &Plane, channel: Channel) -> Status {
    let (request, _open) = once(relay_hello(plane));
    let mut client = MemberControlClient::new(channel);
    match client.relay_session(request).await {
        Ok(mut downs) => refusal(downs.get_mut().message().await),
        Err(refused) => refused,
    }
}

/// The gRPC face serves nobody without a certificate of this pool, and the REST face, where
/// none is asked for, serves no gRPC.
#[tokio::test]
async fn strangers_are_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let other_dir = tempfile::tempdir().unwrap();
    let other = Plane::start(other_dir.path()).await;
    let ca = plane.control.ca_pem();

    let key = KeyPair::generate().unwrap();
    let token = other.add_relay("one").await;
    let request = crate::fixture::request(&other, "relay", &token, "host", &key);
    let foreign = other.control.enrol(request, crate::fixture::FROM).await.unwrap();
    let foreign = client_config(&ca, Some((&foreign.certificate_chain_pem, &key)));
    for tls in [client_config(&ca, None), foreign] {
        let Ok(channel) = fairlead_rpc::channel::connect(&plane.address, tls, GRPC_SERVER_NAME).await else {
            continue;
        };
        let refused = attempt(&plane, channel).await;
        assert_ne!(
            refused.code(),
            Code::PermissionDenied,
            "it came as far as the service"
        );
    }
    let member: Member = plane.relay("two").await;
    let channel = fairlead_rpc::channel::connect(&plane.address, member.tls.clone(), "127.0.0.1")
        .await
        .unwrap();
    let refused = attempt(&plane, channel).await;
    assert_eq!(refused.code(), Code::Unimplemented, "REST answers 404");
    plane.stop().await;
    other.stop().await;
}

/// The first message is a hello, of a member whose clock is right (R-POL-05).
#[tokio::test]
async fn sessions_begin_with_a_hello_and_a_right_clock() {
    use fairlead_host::Clock;
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let (relay, node) = (plane.relay("one").await, plane.node("alpha").await);
    let mut as_relay = relay.client(&plane).await;
    let mut as_node = node.client(&plane).await;

    let status = pb::RelayUp {
        body: Some(relay_up::Body::Status(pb::RelayStatus::default())),
    };
    let (request, _open) = once(status);
    let mut downs = as_relay.relay_session(request).await.unwrap().into_inner();
    assert_eq!(refusal(downs.message().await).code(), Code::InvalidArgument);

    for (difference, how) in [(61_000, "ahead of"), (-61_000, "behind")] {
        let hello = pb::NodeHello {
            wall_clock_ms: plane.clock.wall().0 + difference,
            ..pb::NodeHello::default()
        };
        let (request, _open) = once(pb::NodeUp {
            body: Some(node_up::Body::Hello(hello)),
        });
        let mut downs = as_node.node_session(request).await.unwrap().into_inner();
        let refused = refusal(downs.message().await);
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let expected = format!("the member's clock is {how}");
        assert!(refused.message().contains("clock differs by 1m"), "{refused}");
        assert!(refused.message().contains(&expected), "{refused}");
    }
    plane.stop().await;
}

/// A session of the same member that comes later takes the place of the earlier one.
#[tokio::test]
async fn the_newest_session_counts() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let node = plane.node("alpha").await;
    let mut client = node.client(&plane).await;
    let (request, _first) = once(node_hello(&plane));
    let mut first = client.node_session(request).await.unwrap().into_inner();
    assert!(first.message().await.unwrap().is_some());
    let (request, _second) = once(node_hello(&plane));
    let mut second = client.node_session(request).await.unwrap().into_inner();
    assert!(second.message().await.unwrap().is_some());
    // The first ends; whatever was under way comes before.
    while let Ok(Some(_)) = first.message().await {}
    plane.stop().await;
}

/// F-10: half-sent hellos from many addresses keep no member out.
#[tokio::test]
async fn f10_half_handshakes_keep_nobody_out() {
    use tokio::io::AsyncWriteExt;
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let member = plane.node("alpha").await;
    let target = plane.address.as_socket_addr().unwrap();
    let mut stalled = Vec::new();
    for host in 2..8 {
        for _ in 0..64 {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, host], 0).into()).unwrap();
            let mut stream = socket.connect(target).await.unwrap();
            // A record's head, and no record.
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
            stalled.push(stream);
        }
    }
    let began = std::time::Instant::now();
    let mut client = member.client(&plane).await;
    let (request, _open) = once(node_hello(&plane));
    let mut downs = client.node_session(request).await.unwrap().into_inner();
    assert!(downs.message().await.unwrap().is_some());
    assert!(
        began.elapsed() < std::time::Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    drop(stalled);
    plane.stop().await;
}

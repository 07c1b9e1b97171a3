//! Who is accepted, and with which cryptography.

use super::authority::Authority;
use super::{Bench, dialler, node_id, relay_id, soon};
use crate::tls::{Peer, grpc_client_config};
use crate::{LegError, MemberTls, TlsError};
use fairlead_hop::ALPN;
use fairlead_model::Identity;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn control() -> Identity {
    Identity::Control
}

/// Runs one TLS handshake in memory; gives both ends or the error of either.
async fn handshake(
    client: Arc<rustls::ClientConfig>,
    server: rustls::ServerConfig,
) -> std::io::Result<(
    tokio_rustls::client::TlsStream<tokio::io::DuplexStream>,
    tokio_rustls::server::TlsStream<tokio::io::DuplexStream>,
)> {
    let (a, b) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from("grpc.fairlead.internal").unwrap();
    let (client, server) = tokio::join!(
        TlsConnector::from(client).connect(name, a),
        TlsAcceptor::from(Arc::new(server)).accept(b)
    );
    Ok((client?, server?))
}

/// ARCHITECTURE.md, Identity and keys: TLS 1.3 with X25519MLKEM768, no ticket, no resumption.
#[tokio::test]
async fn handshakes_are_hybrid_and_never_resumed() {
    let authority = Authority::new();
    let node = authority.member(Identity::Node(node_id(1)));
    let server = authority.member(control());
    let client = grpc_client_config(&node, control()).unwrap();
    for _ in 0..2 {
        let server = server.server_config(Peer::AnyMember, b"h2").unwrap();
        let (client, server) = handshake(Arc::clone(&client), server).await.unwrap();
        let client = client.get_ref().1;
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(
            client.negotiated_key_exchange_group().unwrap().name(),
            rustls::NamedGroup::X25519MLKEM768
        );
        assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(client.tls13_tickets_received(), 0);
        assert_eq!(client.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(server.get_ref().1.server_name(), Some("grpc.fairlead.internal"));
    }
}

/// "Some certificate of our CA" is not enough: the identity has to be the expected one.
#[tokio::test]
async fn the_grpc_client_takes_the_control_plane_only() {
    let authority = Authority::new();
    let node = authority.member(Identity::Node(node_id(1)));
    let client = grpc_client_config(&node, control()).unwrap();
    for impostor in [Identity::Relay(relay_id(1)), Identity::Node(node_id(2))] {
        let server = authority
            .member(impostor)
            .server_config(Peer::AnyMember, b"h2")
            .unwrap();
        let error = handshake(Arc::clone(&client), server).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("the peer is {impostor}, expected control")),
            "{impostor}: {error}"
        );
    }
}

/// A dialler that meets another relay says so, and at once.
#[tokio::test]
async fn a_dialler_refuses_another_relay() {
    let bench = Bench::new();
    let wanted = Identity::Relay(relay_id(7));
    let dial = bench.dialler.dial(&bench.address, wanted);
    let accept = async {
        let _ = bench.listener.accept().await.unwrap().finish().await;
    };
    let (error, ()) = soon(async { tokio::join!(dial, accept) }).await;
    let mismatch = error.unwrap_err().identity().expect("an identity mismatch");
    assert_eq!(mismatch.expected, Peer::Exactly(wanted));
    assert_eq!(mismatch.found, bench.relay);
}

/// A relay of another pool is refused, and a node of another pool is.
#[tokio::test]
async fn other_authorities_are_refused_by_both_ends() {
    let bench = Bench::new();
    let foreign = Authority::new();
    // Same names, same trust domain, another CA.
    let stranger = dialler(foreign.member(Identity::Node(node_id(1))));
    let (dialled, taken) = soon(async {
        tokio::join!(stranger.dial(&bench.address, bench.relay), async {
            bench.listener.accept().await.unwrap().finish().await
        })
    })
    .await;
    let error = dialled.unwrap_err();
    assert!(error.to_string().contains("certificate is not valid"), "{error}");
    assert!(taken.is_err());
    // The other way round: the stranger trusts the relay's CA, the relay does not trust his.
    let files = foreign.files(&Identity::Node(node_id(1)).to_spiffe(&foreign.domain));
    let mut material = foreign.material(&files);
    material.roots_pem = &bench.authority.ca_pem;
    let stranger = dialler(Arc::new(
        MemberTls::new(&material, Identity::Node(node_id(1))).unwrap(),
    ));
    let (dialled, taken) = soon(async {
        tokio::join!(stranger.dial(&bench.address, bench.relay), async {
            bench.listener.accept().await.unwrap().finish().await
        })
    })
    .await;
    assert!(taken.is_err(), "the relay took a stranger");
    // QUIC tells the client after its own side is done: the first read has the refusal.
    if let Ok(carrier) = dialled {
        let mut leg = soon(carrier.open_leg()).await;
        if let Ok(leg) = &mut leg {
            let _ = leg.send.write_all(b"hello").await;
            let read = soon(leg.recv.read_chunks(&mut [bytes::Bytes::new()])).await;
            assert!(matches!(read, Err(LegError::Carrier(_))), "{read:?}");
        }
    }
}

/// The control plane has no business on a relay's port.
#[tokio::test]
async fn a_listener_refuses_roles_that_have_no_hop_session() {
    let bench = Bench::new();
    let intruder = dialler(bench.authority.member(control()));
    let (_, taken) = soon(async {
        tokio::join!(intruder.dial(&bench.address, bench.relay), async {
            bench.listener.accept().await.unwrap().finish().await
        })
    })
    .await;
    assert!(taken.is_err());
}

/// R-ENR-08: later handshakes use renewed material; live carriers stay.
#[tokio::test]
async fn reload_reaches_later_handshakes_only() {
    let bench = Bench::new();
    let (first, _taken) = soon(bench.carriers()).await;
    let own = Identity::Node(node_id(1));
    let other_ca = Authority::new();
    let files = other_ca.files(&own.to_spiffe(&other_ca.domain));
    bench.dialler.tls().reload(&other_ca.material(&files)).unwrap();
    assert!(
        soon(bench.dialler.dial(&bench.address, bench.relay))
            .await
            .is_err(),
        "the old root is still trusted"
    );
    assert_eq!(first.end(), None, "a live carrier was dropped");
    let files = bench.authority.files(&own.to_spiffe(&bench.authority.domain));
    bench
        .dialler
        .tls()
        .reload(&bench.authority.material(&files))
        .unwrap();
    soon(bench.carriers()).await;
}

/// Material that does not fit is refused, and what was in use stays.
#[test]
fn material_is_checked() {
    let authority = Authority::new();
    let node = Identity::Node(node_id(1));
    let files = authority.files(&node.to_spiffe(&authority.domain));
    let other = authority.files(&Identity::Node(node_id(2)).to_spiffe(&authority.domain));
    let tls = MemberTls::new(&authority.material(&files), node).unwrap();
    assert!(tls.not_after().0 > 0);
    let mut wrong_key = authority.material(&files);
    wrong_key.key_pem = other.key_pem.as_bytes();
    let mut no_key = authority.material(&files);
    no_key.key_pem = b"";
    let mut no_roots = authority.material(&files);
    no_roots.roots_pem = "";
    for (material, want) in [
        (authority.material(&other), "speaks for"),
        (wrong_key, "does not fit"),
        (no_key, "key file"),
        (no_roots, "CA file"),
    ] {
        let error: TlsError = tls.reload(&material).unwrap_err();
        assert!(error.to_string().contains(want), "{error}, expected {want}");
    }
    let client = tls.client_config(Peer::AnyMember, ALPN).unwrap().0;
    assert!(!client.enable_early_data);
}

//! Bounds on peers that have proved nothing.

use super::{Bench, SOON, dialler, listener, node_id, relay_id, soon, taken};
use crate::listen::{INCOMING_MAX, WAITING_MAX};
use crate::tls::{NO_NAME, Peer};
use crate::{AcceptError, CarrierEnd, ListenerConfig, ResetKey};
use fairlead_model::{HostPort, Identity};
use futures_util::FutureExt as _;
use quinn::crypto::rustls::QuicClientConfig;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

/// R-GEN-02: whatever is thrown at the port, it goes on serving members.
#[tokio::test]
async fn garbage_on_the_port_changes_nothing() {
    let bench = Bench::new();
    let to = bench.listener.local_address().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    for length in 0..1_500usize {
        let mut bytes: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
        // Every other one looks like the head of a QUIC packet of version 1.
        if length % 2 == 0 && length >= 5 {
            bytes[..5].copy_from_slice(&[0xc0 | (rng.u8(..) & 0x3f), 0, 0, 0, 1]);
        }
        socket.send_to(&bytes, to).await.unwrap();
    }
    soon(bench.carriers()).await;
}

/// F-10: a handshake that does not go on ends at the deadline and gives its place back.
#[tokio::test]
async fn stalled_handshakes_end_at_the_deadline() {
    let bench = Bench::new();
    let to = bench.listener.local_address().unwrap();
    // A way that carries the client's first packets and none back.
    let one_way = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address: HostPort = one_way.local_addr().unwrap().into();
    let out = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let forward = async {
        let mut packet = [0; 2048];
        for _ in 0..4 {
            let (length, _) = one_way.recv_from(&mut packet).await.unwrap();
            out.send_to(&packet[..length], to).await.unwrap();
        }
        std::future::pending().await
    };
    let dialling = async {
        let _ = bench.dialler.dial(&address, bench.relay).await;
        std::future::pending().await
    };
    let begun = Instant::now();
    let arriving = async {
        let arriving = bench.listener.accept().await.unwrap();
        assert_eq!(bench.listener.stats().pending, 1);
        arriving.finish().await
    };
    let error = soon(async {
        tokio::select! {
            () = forward => unreachable!(),
            () = dialling => unreachable!(),
            taken = arriving => taken,
        }
    })
    .await
    .unwrap_err();
    // The carrier's idle timeout is as long: either ends it.
    assert!(
        matches!(
            error,
            AcceptError::Deadline | AcceptError::Failed(CarrierEnd::Silent)
        ),
        "{error}"
    );
    assert!(begun.elapsed() >= Duration::from_secs(9) && begun.elapsed() < SOON);
    assert_eq!(bench.listener.stats().pending, 0);
    soon(bench.carriers()).await;
}

/// F-10: one address has a share of the handshakes, must prove itself first, and others get in.
#[tokio::test]
async fn one_address_cannot_take_all_handshakes() {
    let bench = Bench::new();
    let relay = Identity::Relay(relay_id(5));
    let mut config = ListenerConfig::new("127.0.0.1:0".parse().unwrap(), ResetKey::from_bytes([1; 32]));
    config.handshakes_per_address_max = 6;
    let target = crate::Listener::bind(config, bench.authority.member(relay)).unwrap();
    let address: HostPort = target.local_address().unwrap().into();
    let (mut held, mut dials) = (Vec::new(), tokio::task::JoinSet::new());
    for n in 0..6 {
        let dialler = dialler(bench.authority.member(Identity::Node(node_id(n))));
        let address = address.clone();
        dials.spawn(async move { dialler.dial(&address, relay).await });
        held.push(soon(target.accept()).await.unwrap());
    }
    assert_eq!(target.stats().pending, 6);
    // The seventh proves its address and gets in at once; the oldest makes room.
    let seventh = dialler(bench.authority.member(Identity::Node(node_id(9))));
    let (dialled, carrier) =
        soon(async { tokio::join!(seventh.dial(&address, relay), taken(&target)) }).await;
    dialled.unwrap();
    assert_eq!(carrier.peer(), Identity::Node(node_id(9)));
    let stats = target.stats();
    assert!(stats.refused == 1 && stats.retried > 0, "{stats:?}");
    let oldest = held.remove(0).finish().await;
    assert!(matches!(oldest, Err(AcceptError::Evicted)), "{oldest:?}");
    dials.shutdown().await;
    drop(held);
    assert_eq!(target.stats().pending, 0);
}

/// F-10: handshakes that were given up count until they are gone, so that a storm which evicts its own
/// costs no more than the bound; a member gets in behind them.
#[tokio::test]
async fn handshakes_that_are_given_up_are_bounded_too() {
    const HANDSHAKES: usize = 4;
    // The head of a Retry (RFC 9000, 17.2.5).
    const RETRY: u8 = 0xf0;
    // Several times what an arrival may wait for its place.
    const A_WHILE: Duration = Duration::from_secs(1);
    let bench = Bench::new();
    let relay = Identity::Relay(relay_id(5));
    let mut config = ListenerConfig::new("127.0.0.1:0".parse().unwrap(), ResetKey::from_bytes([1; 32]));
    config.handshakes_max = HANDSHAKES;
    let target = crate::Listener::bind(config, bench.authority.member(relay)).unwrap();
    let address: HostPort = target.local_address().unwrap().into();
    let mut dials = tokio::task::JoinSet::new();
    for n in 0..20 {
        let dialler = dialler(bench.authority.member(Identity::Node(node_id(n))));
        let address = address.clone();
        dials.spawn(async move { dialler.dial(&address, relay).await });
    }
    // Arrivals that are no connections yet count as well: the eighth waits for one to be finished.
    let mut arrived = Vec::new();
    while let Ok(next) = tokio::time::timeout(A_WHILE, target.accept()).await {
        arrived.push(next.unwrap());
    }
    assert_eq!((arrived.len(), target.unproven()), (7, 7));
    // Who comes meanwhile is told at once to prove its address.
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to = target.local_address().unwrap();
    stranger.send_to(&first_packet(&bench, to), to).await.unwrap();
    let mut answer = [0; 2048];
    tokio::select! {
        _ = target.accept() => panic!("one too many"),
        answered = soon(stranger.recv(&mut answer)) => assert!(answered.unwrap() > 0),
    }
    assert_eq!(answer[0] & 0xf0, RETRY);
    drop(arrived);
    let mut most = 0;
    for _ in 0..13 {
        let finish = soon(target.accept()).await.unwrap().finish();
        // Begun, and given up at once.
        assert!(finish.now_or_never().is_none());
        most = most.max(target.unproven());
    }
    assert_eq!(most, HANDSHAKES + HANDSHAKES * 3 / 4);
    soon(taken(&target)).await;
    dials.shutdown().await;
}

/// F-10, R-GEN-02: of first packets that nobody takes, no more wait than the bound: they would keep a good
/// node waiting behind them, and cost memory.
#[tokio::test]
async fn first_packets_that_wait_are_bounded() {
    let bench = Bench::new();
    let to = bench.listener.local_address().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for n in 0..2 * INCOMING_MAX {
        socket.send_to(&first_packet(&bench, to), to).await.unwrap();
        // Far fewer than its socket holds: the listener reads them all.
        if n % 16 == 15 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let mut taken = 0;
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(200), bench.listener.accept()).await {
        assert!(next.is_some());
        taken += 1;
    }
    assert_eq!(taken, INCOMING_MAX);
}

/// R-GEN-02: of peers that need not prove their addresses, no more wait for a place than the bound.
#[tokio::test]
async fn peers_that_wait_for_places_are_bounded() {
    let bench = Bench::new();
    let mut config = ListenerConfig::new("127.0.0.1:0".parse().unwrap(), ResetKey::from_bytes([1; 32]));
    config.handshakes_max = 4;
    let tls = bench.authority.member(Identity::Relay(relay_id(5)));
    let target = crate::Listener::bind(config, tls).unwrap();
    let to = target.local_address().unwrap();
    let say = async |host: usize| {
        let from = Ipv4Addr::new(127, 1, 0, u8::try_from(host).unwrap());
        let socket = UdpSocket::bind((from, 0)).await.unwrap();
        socket.send_to(&first_packet(&bench, to), to).await.unwrap();
    };
    let mut arrived = Vec::new();
    for host in 1..=7 {
        say(host).await;
        arrived.push(soon(target.accept()).await.unwrap());
    }
    // One waits for its place, and more come behind it than may wait.
    let more = async {
        for host in 8..=8 + WAITING_MAX + 8 {
            say(host).await;
            // The listener reads it.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        _ = target.accept() => panic!("one too many"),
        () = more => {}
    }
    assert_eq!(target.waiting().len(), WAITING_MAX);
    assert_eq!((arrived.len(), target.unproven()), (7, 7));
}

/// The first datagram of a client's hello.
fn first_packet(bench: &Bench, to: SocketAddr) -> Vec<u8> {
    let member = bench.authority.member(Identity::Node(node_id(1)));
    let (tls, _) = member
        .client_config(Peer::Exactly(bench.relay), fairlead_hop::ALPN)
        .unwrap();
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, true, None);
    let (_, mut client) = endpoint.connect(Instant::now(), config, to, NO_NAME).unwrap();
    let mut packet = Vec::new();
    let sent = client.poll_transmit(Instant::now(), 1, &mut packet);
    assert!(sent.is_some());
    packet
}

/// A taken port is refused with its address.
#[tokio::test]
async fn a_taken_port_is_named() {
    let bench = Bench::new();
    let address = bench.listener.local_address().unwrap();
    let config = ListenerConfig::new(address, ResetKey::from_bytes([1; 32]));
    let tls = bench.authority.member(Identity::Relay(relay_id(2)));
    let error = crate::Listener::bind(config, Arc::clone(&tls)).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    drop(listener(tls, "127.0.0.1:0"));
}

//! Strangers at the port of liveness connections.

use super::{authority::Authority, node_id, relay_id, soon};
use crate::live::SESSIONS_MAX;
use crate::tls::{NO_NAME, Peer};
use crate::{LiveAcceptError, LiveListener, Sockets};
use fairlead_hop::liveness::ALPN;
use fairlead_model::Identity;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// A listener, and the handshakes that it has begun.
struct Door {
    listener: LiveListener,
    address: SocketAddr,
    hello: Vec<u8>,
    near: JoinSet<Result<(), LiveAcceptError>>,
    far: Vec<TcpStream>,
}

impl Door {
    fn new() -> Self {
        let authority = Authority::new();
        let relay = Identity::Relay(relay_id(1));
        let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = sockets.tcp.local_addr().unwrap();
        let node = authority.member(Identity::Node(node_id(1)));
        let (config, _) = node.client_config(Peer::Exactly(relay), ALPN).unwrap();
        let mut client =
            rustls::ClientConnection::new(Arc::new(config), NO_NAME.try_into().unwrap()).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        Self {
            listener: LiveListener::on(sockets.tcp, authority.member(relay), 64).unwrap(),
            address,
            hello,
            near: JoinSet::new(),
            far: Vec::new(),
        }
    }

    /// Somebody of a new address comes and says `bytes`.
    async fn comes(&mut self, bytes: &[u8]) {
        let [_, _, high, low] = u32::try_from(self.far.len()).unwrap().to_be_bytes();
        let socket = TcpSocket::new_v4().unwrap();
        let from = Ipv4Addr::new(127, 9, high, low + 1);
        socket.bind((from, 0).into()).unwrap();
        let (far, near) = tokio::join!(socket.connect(self.address), soon(self.listener.accept()));
        let (mut far, near) = (far.unwrap(), near.unwrap());
        assert_eq!(near.remote_address().ip(), from);
        self.near.spawn(async move { near.finish().await.map(drop) });
        far.write_all(bytes).await.unwrap();
        self.far.push(far);
    }

    /// Waits until so many handshakes have a TLS session.
    async fn sessions(&self, count: usize) {
        soon(async {
            while self.listener.sessions() != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// F-10: who has not said its hello has no TLS session; whoever says the rest of it gets one.
#[tokio::test]
async fn half_a_hello_costs_no_session() {
    let mut door = Door::new();
    let hello = door.hello.clone();
    let (all_but_one, last) = hello.split_at(hello.len() - 1);
    for part in [&[][..], &hello[..1], all_but_one].repeat(8) {
        door.comes(part).await;
    }
    door.comes(&hello).await;
    door.sessions(1).await;
    door.far[2].write_all(last).await.unwrap();
    door.sessions(2).await;
    assert_eq!(door.listener.stats().pending, 25);
    // Who says what is no hello, or leaves, is gone at once.
    door.far[1].write_all(&[0; 5]).await.unwrap();
    door.far.remove(0);
    for _ in 0..2 {
        let ended = soon(door.near.join_next()).await.unwrap().unwrap();
        assert!(matches!(ended, Err(LiveAcceptError::Failed(_))), "{ended:?}");
    }
}

/// F-10: of those that have said their hello, so many have a session: the oldest makes room for the next.
#[tokio::test]
async fn sessions_of_strangers_are_bounded() {
    let mut door = Door::new();
    let hello = door.hello.clone();
    for _ in 0..SESSIONS_MAX {
        door.comes(&hello).await;
    }
    door.sessions(SESSIONS_MAX).await;
    for _ in 0..8 {
        door.comes(&hello).await;
        let ended = soon(door.near.join_next()).await.unwrap().unwrap();
        assert!(matches!(ended, Err(LiveAcceptError::Evicted)), "{ended:?}");
        assert!(door.listener.sessions() <= SESSIONS_MAX);
    }
    assert_eq!(door.listener.stats().refused, 8);
}

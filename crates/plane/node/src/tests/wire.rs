//! A wire between a daemon and a relay: UDP that it delays or loses, TCP that it stalls, ends or
//! refuses.

use fairlead_transport::Sockets;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Packets on their way, each direction of each client; what finds no room is lost.
const QUEUE: usize = 4096;

/// The wire; it is cut when dropped.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    delay_ms: AtomicU64,
    cut: AtomicBool,
    /// Counts changes of the path: each gives every client a new port towards the relay.
    path: AtomicU64,
    tcp: watch::Sender<Tcp>,
}

/// What TCP does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tcp {
    /// Nothing passes, and nothing ends.
    stalled: bool,
    /// Nobody listens.
    refused: bool,
    /// Connections of an earlier count are ended: at the daemon at once, at the relay after the
    /// time.
    severed: u64,
    late: Duration,
}

type Packet = (Instant, Vec<u8>);

impl Wire {
    /// A wire to `relay` that takes `delay` each way.
    pub(crate) async fn to(relay: SocketAddr, delay: Duration) -> Self {
        let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let near = Arc::new(UdpSocket::from_std(sockets.udp).unwrap());
        let address = near.local_addr().unwrap();
        let state = Arc::new(State::default());
        state.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(near, relay, state.clone()));
        tasks.spawn(listen(sockets.tcp, relay, state.tcp.subscribe()));
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    /// Loses every packet from now on, or none.
    pub(crate) fn cut(&self, cut: bool) {
        self.state.cut.store(cut, Ordering::Relaxed);
        self.state.tcp.send_modify(|tcp| tcp.stalled = cut);
    }

    /// Refuses TCP connections from now on, or takes them again.
    pub(crate) fn refuse_tcp(&self, refused: bool) {
        self.state.tcp.send_modify(|tcp| tcp.refused = refused);
    }

    /// Resets every TCP connection at the daemon; the relay sees its end after `late`.
    pub(crate) fn sever_tcp(&self, late: Duration) {
        self.state.tcp.send_modify(|tcp| {
            tcp.severed += 1;
            tcp.late = late;
        });
    }

    /// Packets come to the relay from other ports from now on.
    pub(crate) fn change_path(&self) {
        self.state.path.fetch_add(1, Ordering::Relaxed);
    }
}

async fn accept(near: Arc<UdpSocket>, relay: SocketAddr, state: Arc<State>) {
    let mut clients: HashMap<SocketAddr, tokio::sync::mpsc::Sender<Packet>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    let mut path = 0;
    loop {
        let Ok((len, from)) = near.recv_from(&mut buffer).await else {
            continue;
        };
        let path_now = state.path.load(Ordering::Relaxed);
        if std::mem::replace(&mut path, path_now) != path_now {
            clients.clear();
            tasks.abort_all();
        }
        if let Entry::Vacant(place) = clients.entry(from) {
            let far = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            far.connect(relay).await.unwrap();
            let (there, mut to_relay) = tokio::sync::mpsc::channel::<Packet>(QUEUE);
            let (back, mut to_client) = tokio::sync::mpsc::channel::<Packet>(QUEUE);
            let (sender, receiver, held) = (far.clone(), far, state.clone());
            tasks.spawn(async move {
                while let Some((at, packet)) = to_relay.recv().await {
                    tokio::time::sleep_until(at).await;
                    let _ = sender.send(&packet).await;
                }
            });
            tasks.spawn(async move {
                let mut buffer = vec![0; 65_536];
                loop {
                    if let Ok(len) = receiver.recv(&mut buffer).await {
                        held.pass(&back, &buffer[..len]);
                    }
                }
            });
            let near = near.clone();
            tasks.spawn(async move {
                while let Some((at, packet)) = to_client.recv().await {
                    tokio::time::sleep_until(at).await;
                    let _ = near.send_to(&packet, from).await;
                }
            });
            place.insert(there);
        }
        state.pass(&clients[&from], &buffer[..len]);
    }
}

impl State {
    fn pass(&self, queue: &tokio::sync::mpsc::Sender<Packet>, packet: &[u8]) {
        if !self.cut.load(Ordering::Relaxed) {
            let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed));
            let _ = queue.try_send((Instant::now() + delay, packet.to_vec()));
        }
    }
}

async fn listen(socket: std::net::TcpListener, relay: SocketAddr, mut state: watch::Receiver<Tcp>) {
    let address = socket.local_addr().unwrap();
    let mut listener = Some(TcpListener::from_std(socket).unwrap());
    let mut tasks = JoinSet::new();
    loop {
        let refused = state.borrow_and_update().refused;
        if refused {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.unwrap());
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accepted => if let Ok((near, _)) = accepted {
                tasks.spawn(carry(near, relay, state.clone()));
            },
            changed = state.changed() => if changed.is_err() { return },
        }
    }
}

async fn carry(near: TcpStream, relay: SocketAddr, mut state: watch::Receiver<Tcp>) {
    let before = state.borrow().severed;
    let _ = state.wait_for(|tcp| !tcp.stalled).await;
    let Ok(far) = TcpStream::connect(relay).await else {
        return;
    };
    let socket = socket2::SockRef::from(&near).try_clone().unwrap();
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let (there, back) = (state.clone(), state.clone());
    let (mut far_write, mut near_write) = (far_write, near_write);
    let late = {
        let pumping = async {
            tokio::join!(
                pump(near_read, &mut far_write, there),
                pump(far_read, &mut near_write, back)
            )
        };
        tokio::select! {
            _ = pumping => return,
            severed = state.wait_for(|tcp| tcp.severed != before) => match severed {
                Ok(tcp) => tcp.late,
                Err(_) => return,
            },
        }
    };
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop((socket, near_write));
    tokio::time::sleep(late).await;
    drop(far_write);
}

async fn pump(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, mut state: watch::Receiver<Tcp>) {
    let mut buffer = vec![0; 4096];
    while let Ok(len) = from.read(&mut buffer).await {
        let _ = state.wait_for(|tcp| !tcp.stalled).await;
        if len == 0 || to.write_all(&buffer[..len]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

//! A wire between a daemon and a relay, that delays packets or loses them all.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;
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
}

type Packet = (Instant, Vec<u8>);

impl Wire {
    /// A wire to `relay` that takes `delay` each way.
    pub(crate) async fn to(relay: SocketAddr, delay: Duration) -> Self {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = near.local_addr().unwrap();
        let state = Arc::new(State::default());
        state.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(near, relay, state.clone()));
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    /// Loses every packet from now on, or none.
    pub(crate) fn cut(&self, cut: bool) {
        self.state.cut.store(cut, Ordering::Relaxed);
    }
}

async fn accept(near: Arc<UdpSocket>, relay: SocketAddr, state: Arc<State>) {
    let mut clients: HashMap<SocketAddr, tokio::sync::mpsc::Sender<Packet>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok((len, from)) = near.recv_from(&mut buffer).await else {
            continue;
        };
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

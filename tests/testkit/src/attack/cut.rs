//! A wire that is cut after so many bytes: what a connection goes through in the worst moment.

use anyhow::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes connections on to one address, and cuts each after a number of bytes, both ways together.
#[derive(Debug)]
pub struct Cutter {
    address: SocketAddr,
    carried: Arc<AtomicU64>,
    // Dropped with the cutter, which ends every connection.
    _tasks: JoinSet<()>,
}

impl Cutter {
    /// Cuts each connection to `to` after `bytes`; the last of them is not passed on.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(to: SocketAddr, bytes: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let carried = Arc::<AtomicU64>::default();
        let total = carried.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let total = total.clone();
                connections.spawn(async move {
                    if let Ok(far) = TcpStream::connect(to).await {
                        carry(near, far, bytes, &total).await;
                    }
                });
            }
        });
        Ok(Self {
            address,
            carried,
            _tasks: tasks,
        })
    }

    /// Where to connect.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes it has carried.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

/// Ends, and with it both connections, at the cut.
async fn carry(near: TcpStream, far: TcpStream, bytes: u64, total: &AtomicU64) {
    let left = AtomicU64::new(bytes);
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
        (near.into_split(), far.into_split());
    tokio::select! {
        () = one_way(&mut near_read, &mut far_write, &left, total) => {}
        () = one_way(&mut far_read, &mut near_write, &left, total) => {}
    }
}

async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    left: &AtomicU64,
    total: &AtomicU64,
) {
    let mut buffer = vec![0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let length = length as u64;
        let before = left.fetch_sub(length.min(left.load(Ordering::Relaxed)), Ordering::Relaxed);
        let passes = length.min(before);
        let piece = buffer
            .get(..usize::try_from(passes).unwrap_or(0))
            .unwrap_or_default();
        if to.write_all(piece).await.is_err() {
            return;
        }
        total.fetch_add(passes, Ordering::Relaxed);
        if before <= length {
            return;
        }
    }
}

//! What a stranger with time sends: thousands of connections from as many addresses of 127/8 that
//! say nothing, too little or nonsense.

pub mod cut;
pub mod h2;
pub mod newcomer;
pub mod quic;
pub mod tls;

use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::task::JoinSet;

/// Connections that are opened at once: more would time the attacker's own queues.
const OPENING_MAX: usize = 256;

/// Hosts of one 127.b.c.0/24: neither .0 nor .255.
const HOSTS: u32 = 254;

/// The `number`th of many source addresses, all of this host; each number has one of its own, up to
/// some 15 million.
#[must_use]
pub fn source(number: usize) -> Ipv4Addr {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    let [_, b, c, d] = (number / HOSTS * 256 + number % HOSTS + 1).to_be_bytes();
    // 127.0.x.y is left to the pool itself.
    Ipv4Addr::new(127, b.saturating_add(8), c, d)
}

/// A connection from `from` to `to`.
///
/// # Errors
/// When it is refused.
pub async fn connect_from(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket
        .connect(to)
        .await
        .with_context(|| format!("from {from} to {to}"))
}

/// How a connection under attack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The other end closed it after this time.
    Closed(Duration),
    /// It was never taken.
    NotTaken,
    /// It was still open when the patience ended.
    Open,
}

/// What many connections came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Closed by the other end.
    pub closed: usize,
    /// Never taken.
    pub not_taken: usize,
    /// Still open in the end.
    pub open: usize,
    /// The longest time to a close.
    pub slowest: Duration,
}

impl Tally {
    fn count(&mut self, end: End) {
        match end {
            End::Closed(after) => {
                self.closed += 1;
                self.slowest = self.slowest.max(after);
            }
            End::NotTaken => self.not_taken += 1,
            End::Open => self.open += 1,
        }
    }
}

/// Opens `count` connections, each from an address of its own; the `n`th sends `parts[n % len]` and
/// waits until it is closed, at most `patience`.
pub async fn storm(to: SocketAddr, count: usize, parts: &[Vec<u8>], patience: Duration) -> Tally {
    let opening = std::sync::Arc::new(tokio::sync::Semaphore::new(OPENING_MAX));
    let mut ends = JoinSet::new();
    for number in 0..count {
        let part = parts
            .get(number % parts.len().max(1))
            .cloned()
            .unwrap_or_default();
        let opening = opening.clone();
        ends.spawn(async move {
            let turn = opening.acquire_owned().await;
            let connected = tokio::time::timeout(patience, connect_from(source(number), to)).await;
            let Ok(Ok(stream)) = connected else {
                return End::NotTaken;
            };
            drop(turn);
            say_and_wait(stream, &part, patience).await
        });
    }
    let mut tally = Tally::default();
    while let Some(end) = ends.join_next().await {
        tally.count(end.unwrap_or(End::NotTaken));
    }
    tally
}

/// Sends `bytes` and waits until the other end closes.
pub async fn say_and_wait(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &[u8],
    patience: Duration,
) -> End {
    let began = Instant::now();
    let talk = async {
        // Closed in the middle of it is closed.
        if stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok() {
            drain(&mut stream).await;
        }
    };
    match tokio::time::timeout(patience, talk).await {
        Ok(()) => End::Closed(began.elapsed()),
        Err(_) => End::Open,
    }
}

/// Sends `head`, then `drop` again and again with pauses, until the other end closes.
pub async fn drip(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    head: &[u8],
    drop: &[u8],
    every: Duration,
    patience: Duration,
) -> End {
    let began = Instant::now();
    let (mut read, mut write) = tokio::io::split(stream);
    let talk = async {
        if write.write_all(head).await.is_err() {
            return;
        }
        loop {
            if write.write_all(drop).await.is_err() || write.flush().await.is_err() {
                return;
            }
            tokio::time::sleep(every).await;
        }
    };
    let ended = async {
        tokio::select! {
            () = talk => {}
            () = drain(&mut read) => {}
        }
    };
    match tokio::time::timeout(patience, ended).await {
        Ok(()) => End::Closed(began.elapsed()),
        Err(_) => End::Open,
    }
}

/// Reads until the end, whatever comes.
async fn drain(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

/// A connection to a Unix socket.
///
/// # Errors
/// When it is refused.
pub async fn connect_unix(path: &Path) -> Result<UnixStream> {
    UnixStream::connect(path)
        .await
        .with_context(|| format!("connect {}", path.display()))
}

/// Bytes of no protocol.
#[must_use]
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use tokio::net::TcpListener;

    #[test]
    fn each_number_has_an_address_of_its_own() {
        let all: BTreeSet<Ipv4Addr> = (0..100_000).map(source).collect();
        assert_eq!(all.len(), 100_000);
        assert!(all.iter().all(|address| {
            let [a, b, _, d] = address.octets();
            a == 127 && b >= 8 && d != 0 && d != 255
        }));
    }

    #[tokio::test]
    async fn a_storm_comes_from_many_addresses_and_tells_who_was_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut held, mut from) = (Vec::new(), BTreeSet::<IpAddr>::new());
            for number in 0..40 {
                let (stream, peer) = listener.accept().await.unwrap();
                from.insert(peer.ip());
                if number % 2 == 0 {
                    held.push(stream);
                }
            }
            // What is held stays open until the storm is over and this is asked for.
            (held, from)
        });
        let tally = storm(to, 40, &[vec![], vec![1]], Duration::from_secs(1)).await;
        assert_eq!((tally.closed, tally.open, tally.not_taken), (20, 20, 0));
        let (held, from) = server.await.unwrap();
        assert_eq!(
            (held.len(), from),
            (20, (0..40).map(|n| source(n).into()).collect())
        );
    }
}

//! Bytes through a pool.

use super::pool::{PATIENCE, Pool, TestLink, eventually};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinSet;

/// `len` bytes that differ from stream to stream and from place to place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// A target that answers with what it gets, EOF included.
pub(crate) async fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

/// Sends `bytes` and FIN, and reads the answer to its end.
pub(crate) async fn exchange(socket: TcpStream, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let (mut read, mut write) = socket.into_split();
    let mut answer = Vec::new();
    let (sent, received) = tokio::join!(
        async {
            write.write_all(bytes).await?;
            write.shutdown().await
        },
        read.read_to_end(&mut answer)
    );
    sent?;
    received?;
    Ok(answer)
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// R-STR-01, R-STR-02: bytes arrive once and in order, both ways at once, and EOF after them; over
/// IPv4 and IPv6 listeners, to TCP and Unix targets, through two relays.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bytes_arrive_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    let unix = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = unix.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    let mut pool = Pool::start(2, &[echo().await, format!("unix:{}", path.display())]).await;
    pool.links.push(TestLink::new(3, &echo().await, "[::1]:0"));
    pool.publish().await;
    pool.ready().await;
    let mut tasks = JoinSet::new();
    for (seed, len) in [0, 1, 16_384, 100_000, 1 << 20, 4 << 20].into_iter().enumerate() {
        for link in 0..3 {
            let socket = pool.connect(link).await;
            let bytes = pattern((seed * 3 + link) as u64, len);
            tasks.spawn(async move {
                assert!(
                    exchange(socket, &bytes).await.unwrap() == bytes,
                    "{len} bytes, link {link}"
                );
            });
        }
    }
    while let Some(done) = in_time(tasks.join_next()).await {
        done.unwrap();
    }
    eventually("the streams to be forgotten", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
}

/// 500 simultaneous connects through a link never used before: all are held while the first
/// association is made, and all are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_on_a_fresh_link_is_served() {
    let pool = Pool::start(2, &[echo().await]).await;
    let address = pool.links[0].listen;
    let mut tasks = JoinSet::new();
    for n in 0..500 {
        tasks.spawn(async move {
            let socket = TcpStream::connect(address).await.unwrap();
            let bytes = pattern(n, 1000);
            assert!(exchange(socket, &bytes).await.unwrap() == bytes);
        });
    }
    while let Some(done) = in_time(tasks.join_next()).await {
        done.unwrap();
    }
    assert_eq!(
        pool.alpha.started.metrics.association_count(),
        1,
        "one handshake serves them all"
    );
}

/// F-03, R-STR-04: one reader that sleeps while its target pushes costs its window and no more, and
/// its neighbours do not feel it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sleeping_reader_costs_its_window_only() {
    let pusher = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = pusher.local_addr().unwrap().to_string();
    let (count, mut counted) = tokio::sync::watch::channel(0usize);
    tokio::spawn(async move {
        let (mut socket, _) = pusher.accept().await.unwrap();
        let block = pattern(7, 64 * 1024);
        while let Ok(n) = socket.write(&block).await {
            count.send_modify(|c| *c += n);
        }
    });
    let pool = Pool::start(1, &[address, echo().await]).await;
    let sleeper = pool.connect(0).await;
    // Until nothing more goes in for a while.
    while let Ok(changed) = tokio::time::timeout(Duration::from_millis(500), counted.changed()).await {
        changed.unwrap();
    }
    let pushed = *counted.borrow();
    assert!(pushed > 64 * 1024, "{pushed} bytes were taken");
    // Windows of the stream at both ends, and the sockets' own buffers (at most 6 MiB and 4 MiB by
    // tcp_rmem and tcp_wmem, at two places).
    assert!(pushed < 32 << 20, "{pushed} bytes were taken");
    for n in 0..20 {
        let bytes = pattern(n, 20_000);
        let started = std::time::Instant::now();
        let answer = in_time(exchange(pool.connect(1).await, &bytes)).await.unwrap();
        assert!(answer == bytes);
        assert!(
            started.elapsed() < Duration::from_secs(1),
            "{:?}",
            started.elapsed()
        );
    }
    drop(sleeper);
}

/// Streams that idle and then speak.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn idle_streams_wake_up() {
    let pool = Pool::start(2, &[echo().await]).await;
    let mut sockets = Vec::new();
    for _ in 0..200 {
        sockets.push(pool.connect(0).await);
    }
    eventually("all streams to be open", || pool.beta.started.live.len() == 200).await;
    let mut tasks = JoinSet::new();
    for (n, socket) in (0..).zip(sockets) {
        tasks.spawn(async move {
            let bytes = pattern(n, 64 * 1024);
            assert!(exchange(socket, &bytes).await.unwrap() == bytes);
        });
    }
    while let Some(done) = in_time(tasks.join_next()).await {
        done.unwrap();
    }
}

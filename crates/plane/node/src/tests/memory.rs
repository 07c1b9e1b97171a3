//! What streams may hold in memory (I9, R-STR-04).

use super::pool::{PATIENCE, Pool, eventually};
use super::traffic::{echo, exchange, pattern};
use crate::config::{StreamHold, StreamMemory};
use crate::metrics::StreamRole;
use fairlead_model::RefusalCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Little enough that a few dozen streams fill it.
const SMALL: u64 = 8 << 20;
/// What each target pushes before it ends: more than sockets and windows hold.
const PUSHED: usize = 16 << 20;

/// A target that pushes a pattern as fast as it is taken, then ends.
async fn pusher() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let block = pattern(7, 64 * 1024);
        while let Ok((mut socket, _)) = listener.accept().await {
            let block = block.clone();
            tokio::spawn(async move {
                for _ in 0..PUSHED / block.len() {
                    if socket.write_all(&block).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads a pushed stream to its end.
async fn read_all(mut socket: TcpStream) {
    let block = pattern(7, 64 * 1024);
    let mut got = vec![0; block.len()];
    for n in 0..PUSHED / block.len() {
        let read = tokio::time::timeout(PATIENCE * 3, socket.read_exact(&mut got));
        read.await.unwrap().unwrap();
        assert!(got == block, "block {n}");
    }
    assert_eq!(socket.read(&mut got).await.unwrap(), 0);
}

fn used(pool: &Pool) -> [i64; 2] {
    [&pool.alpha, &pool.beta].map(|node| node.started.metrics.stream_memory.get())
}

/// I9, R-STR-04: targets push into many streams whose applications do not read: neither daemon takes
/// more than its memory for streams; when it is used up, the publisher refuses by its code; those
/// who read get every byte; and what is given back serves new streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_budget_holds_with_stalled_readers() {
    const ASKED: usize = 100;
    let memory = [StreamMemory::of_test(16 * SMALL), StreamMemory::of_test(SMALL)];
    let targets = [pusher().await, echo().await];
    let pool = Pool::start_with(2, &targets, StreamHold::DEFAULT, memory).await;
    let mut sockets = Vec::new();
    for _ in 0..ASKED {
        sockets.push(pool.connect(0).await);
        let [alpha, beta] = used(&pool);
        assert!(
            alpha <= 16 * SMALL as i64 && beta <= SMALL as i64,
            "{alpha}, {beta}"
        );
    }
    let refused = || {
        pool.alpha
            .refused(StreamRole::Consumer, RefusalCode::PublisherOverloaded)
    };
    let live = || pool.beta.started.live.len();
    eventually("every stream to be open or refused", || {
        live() + refused() as usize == ASKED
    })
    .await;
    // Until windows and sockets are full.
    let mut before = u64::MAX;
    while before != pool.beta.started.metrics.bytes_sent.get() {
        before = pool.beta.started.metrics.bytes_sent.get();
        let [alpha, beta] = used(&pool);
        assert!(
            alpha <= 16 * SMALL as i64 && beta <= SMALL as i64,
            "{alpha}, {beta}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!(
        "{} streams, {} refused, {:?} bytes reserved",
        live(),
        refused(),
        used(&pool)
    );
    assert!(live() >= 30, "{} streams", live());
    assert!(refused() > 0, "nothing was refused");
    // Some read on, and get everything.
    let mut readers = tokio::task::JoinSet::new();
    let mut stalled = Vec::new();
    for mut socket in sockets {
        let mut first = [0; 1];
        match tokio::time::timeout(PATIENCE, socket.peek(&mut first))
            .await
            .unwrap()
        {
            Ok(1) if readers.len() < 4 => drop(readers.spawn(read_all(socket))),
            Ok(1) => stalled.push(socket),
            // The refused ones: reset.
            Ok(_) => panic!("a clean end"),
            Err(_) => drop(socket.shutdown().await),
        }
    }
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
    drop(stalled);
    eventually("the memory to be given back", || used(&pool) == [0, 0]).await;
    let bytes = pattern(1, 3 << 20);
    assert!(exchange(pool.connect(1).await, &bytes).await.unwrap() == bytes);
}

/// R-STR-04: what an idle stream costs, everything in one process and not optimised: two daemons, a
/// relay, the application and its target, which holds 8 KiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_idle_stream_costs_little() {
    println!(
        "stream {} B, driver {} B, leg {} B",
        size_of::<fairlead_stream::Stream>(),
        size_of::<crate::driver::Driver>(),
        size_of::<crate::driver::LegIo>()
    );
    let pool = Pool::start(1, &[echo().await]).await;
    let open = async |count: usize| {
        let mut sockets = Vec::new();
        for _ in 0..count {
            let mut socket = pool.connect(0).await;
            socket.write_u8(1).await.unwrap();
            socket.read_u8().await.unwrap();
            sockets.push(socket);
        }
        sockets
    };
    // What is allocated once.
    drop(open(200).await);
    let rss = || fairlead_host::resources().rss_bytes;
    let before = rss();
    let sockets = open(1000).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = rss();
    println!(
        "{} B per idle stream, all parts",
        after.saturating_sub(before) / 1000
    );
    drop(sockets);
}

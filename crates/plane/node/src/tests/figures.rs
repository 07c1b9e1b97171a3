//! Figures of the data path, for people: `cargo test --profile e2e -p fairlead-node figures -- --ignored --nocapture`.

use super::pool::{PATIENCE, Pool};
use super::traffic::echo;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn cpu() -> Duration {
    fairlead_host::resources().cpu
}

/// One stream, one way, then both ways at once; opens one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "prints figures, judges nothing"]
async fn figures() {
    const BYTES: usize = 1 << 30;
    let sink = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = sink.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = sink.accept().await.unwrap();
            let mut block = vec![0; 256 * 1024];
            while socket.read(&mut block).await.unwrap() > 0 {}
            socket.write_all(b"done").await.unwrap();
        }
    });
    let pool = Pool::start(1, &[address, echo().await]).await;
    let block = vec![7; 256 * 1024];

    let mut socket = pool.connect(0).await;
    let (started, used) = (Instant::now(), cpu());
    for _ in 0..BYTES / block.len() {
        socket.write_all(&block).await.unwrap();
    }
    socket.shutdown().await.unwrap();
    let mut done = Vec::new();
    socket.read_to_end(&mut done).await.unwrap();
    report("one way", BYTES, started.elapsed(), cpu() - used);

    let (mut read, mut write) = pool.connect(1).await.into_split();
    let (started, used) = (Instant::now(), cpu());
    let writer = async {
        for _ in 0..BYTES / 2 / block.len() {
            write.write_all(&block).await.unwrap();
        }
        write.shutdown().await.unwrap();
    };
    let reader = async {
        let mut block = vec![0; 256 * 1024];
        while read.read(&mut block).await.unwrap() > 0 {}
    };
    tokio::join!(writer, reader);
    report("there and back", BYTES, started.elapsed(), cpu() - used);

    let (started, used) = (Instant::now(), cpu());
    const OPENS: u32 = 1000;
    for _ in 0..OPENS {
        let mut socket = pool.connect(1).await;
        socket.write_all(b"x").await.unwrap();
        let read = socket.read_exact(&mut done[..1]);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    }
    println!(
        "opens: {:?} each, {:?} of CPU",
        started.elapsed() / OPENS,
        (cpu() - used) / OPENS
    );
    let mut socket = pool.connect(1).await;
    let (started, used) = (Instant::now(), cpu());
    for _ in 0..OPENS {
        socket.write_all(b"x").await.unwrap();
        socket.read_exact(&mut done[..1]).await.unwrap();
    }
    println!(
        "round trips: {:?} each, {:?} of CPU",
        started.elapsed() / OPENS,
        (cpu() - used) / OPENS
    );
}

fn report(what: &str, bytes: usize, wall: Duration, cpu: Duration) {
    let gigabits = bytes as f64 * 8.0 / 1e9 / wall.as_secs_f64();
    let per_gb = cpu.as_secs_f64() / (bytes as f64 / 1e9);
    println!("{what}: {gigabits:.2} Gbit/s, {per_gb:.2} CPU s/GB (everything in one process)");
}

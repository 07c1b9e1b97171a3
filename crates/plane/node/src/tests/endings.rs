//! How streams end: half-close, FIN, RST (R-STR-02, F-01, F-02).

use super::pool::{PATIENCE, Pool, eventually};
use super::traffic::pattern;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A target that serves one connection with `serve`.
async fn target<F, R>(serve: F) -> (String, tokio::task::JoinHandle<R::Output>)
where
    F: FnOnce(TcpStream) -> R + Send + 'static,
    R: Future + Send + 'static,
    R::Output: Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        serve(socket).await
    });
    (address, task)
}

fn reset(socket: TcpStream) {
    socket2::SockRef::from(&socket)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// F-01: the target answers only after EOF; the answer is complete and EOF arrives both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_answer_comes_after_eof() {
    let (address, task) = target(|mut socket| async move {
        let mut request = Vec::new();
        socket.read_to_end(&mut request).await.unwrap();
        socket.write_all(&pattern(2, 3 << 20)).await.unwrap();
        request
    })
    .await;
    let pool = Pool::start(1, &[address]).await;
    let mut socket = pool.connect(0).await;
    let request = pattern(1, 1 << 20);
    socket.write_all(&request).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    in_time(socket.read_to_end(&mut answer)).await.unwrap();
    assert!(answer == pattern(2, 3 << 20));
    assert!(task.await.unwrap() == request);
}

/// F-01: the target half-closes first, while the application goes on writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_target_may_half_close_first() {
    let (address, task) = target(|mut socket| async move {
        socket.write_all(b"greeting").await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
        rest
    })
    .await;
    let pool = Pool::start(1, &[address]).await;
    let mut socket = pool.connect(0).await;
    let mut greeting = Vec::new();
    in_time(socket.read_to_end(&mut greeting)).await.unwrap();
    assert_eq!(greeting, b"greeting");
    let rest = pattern(3, 2 << 20);
    socket.write_all(&rest).await.unwrap();
    socket.shutdown().await.unwrap();
    assert!(in_time(task).await.unwrap() == rest);
}

/// F-02: a target that sends and then resets: the consumer gets an error, never a clean EOF.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_targets_reset_is_an_error() {
    let (address, task) = target(|mut socket| async move {
        socket.write_all(&pattern(4, 100_000)).await.unwrap();
        // Until the application has seen something, so that the reset cuts into a live stream.
        let mut one = [0; 1];
        socket.read_exact(&mut one).await.unwrap();
        reset(socket);
    })
    .await;
    let pool = Pool::start(1, &[address]).await;
    let mut socket = pool.connect(0).await;
    let mut got = vec![0; 100_000];
    in_time(socket.read_exact(&mut got)).await.unwrap();
    assert!(got == pattern(4, 100_000));
    socket.write_all(b"x").await.unwrap();
    let error = in_time(socket.read(&mut [0; 10])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    task.await.unwrap();
}

/// R-STR-02: an application's reset reaches the target as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_applications_reset_is_an_error() {
    let (address, task) = target(|mut socket| async move {
        let mut one = [0; 1];
        socket.read_exact(&mut one).await.unwrap();
        socket.write_all(&one).await.unwrap();
        socket.read(&mut one).await
    })
    .await;
    let pool = Pool::start(1, &[address]).await;
    let mut socket = pool.connect(0).await;
    socket.write_all(b"x").await.unwrap();
    socket.read_exact(&mut [0; 1]).await.unwrap();
    reset(socket);
    let error = in_time(task).await.unwrap().unwrap_err();
    assert!(is_reset(error.kind()), "{error}");
    eventually("the streams to be forgotten", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
}

/// R-STR-02: a reset is noticed although the socket is not read, because the window is full; the
/// target learns of it although it has not read what came before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reset_behind_a_full_window_is_noticed() {
    let (read_on, wait) = tokio::sync::oneshot::channel::<()>();
    let (address, task) = target(|mut socket| async move {
        wait.await.unwrap();
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await
    })
    .await;
    let pool = Pool::start(1, &[address]).await;
    let mut socket = pool.connect(0).await;
    let block = pattern(5, 64 * 1024);
    // Until nothing more goes in for a while.
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(500), socket.write_all(&block)).await {
        written.unwrap();
    }
    assert_eq!(pool.alpha.started.live.len(), 1);
    reset(socket);
    eventually("both halves to notice", || {
        pool.alpha.started.live.len() == 0 && pool.beta.started.live.len() == 0
    })
    .await;
    read_on.send(()).unwrap();
    let error = in_time(task).await.unwrap().unwrap_err();
    assert!(is_reset(error.kind()), "{error}");
}

/// F-02: a target that sends and closes at once, to a slow reader: every byte arrives, then EOF.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_bytes_before_a_close_reach_a_slow_reader() {
    const LEN: usize = 3 << 20;
    let (address, task) = target(|mut socket| async move {
        socket.write_all(&pattern(6, LEN)).await.unwrap();
    })
    .await;
    let pool = Pool::start(1, &[address]).await;
    let mut socket = pool.connect(0).await;
    let mut got = Vec::new();
    let mut block = vec![0; 100_000];
    loop {
        // The slowness is the point: data is in every buffer on the way meanwhile.
        tokio::time::sleep(Duration::from_millis(10)).await;
        match in_time(socket.read(&mut block)).await.unwrap() {
            0 => break,
            n => got.extend_from_slice(&block[..n]),
        }
    }
    assert!(got == pattern(6, LEN));
    task.await.unwrap();
}

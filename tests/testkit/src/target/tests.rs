//! Each behaviour is seen from a plain TCP client, with nothing between.

use super::*;
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(5);

async fn connect(target: &Target) -> TcpStream {
    TcpStream::connect(target.socket().unwrap()).await.unwrap()
}

#[tokio::test]
async fn echo_gives_back_bytes_and_end() {
    let target = Target::echo().await.unwrap();
    let mut stream = connect(&target).await;
    verified::echo_on(&mut stream, 1, 300_000).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    let outcome = target.outcome(LIMIT).await.unwrap();
    assert!(outcome.error.is_none() && outcome.received == 300_000 && target.accepted() == 1);
}

#[tokio::test]
async fn a_unix_target_echoes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.sock");
    let target = Target::unix_echo(&path).await.unwrap();
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(&answer == b"hello" && target.address().starts_with("unix:/"));
}

#[tokio::test]
async fn the_answer_comes_only_after_the_end_of_the_question() {
    let behaviour = Behaviour::AnswerAfterEof {
        question: 1,
        answer: 2,
        len: 100_000,
    };
    let target = Target::start(behaviour).await.unwrap();
    let mut stream = connect(&target).await;
    verified::send(&mut stream, 1, 50_000).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut [0])).await;
    assert!(early.is_err(), "it answered before the end");
    stream.shutdown().await.unwrap();
    verified::receive_to_end(&mut stream, 2, 100_000).await.unwrap();
    assert_eq!(target.outcome(LIMIT).await.unwrap().received, 50_000);
}

#[tokio::test]
async fn a_target_that_closes_first_reads_on() {
    let behaviour = Behaviour::CloseFirst {
        seed: 4,
        len: 1000,
        question: 5,
    };
    let target = Target::start(behaviour).await.unwrap();
    let mut stream = connect(&target).await;
    verified::receive_to_end(&mut stream, 4, 1000).await.unwrap();
    verified::send(&mut stream, 5, 70_000).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(target.outcome(LIMIT).await.unwrap().received, 70_000);
}

#[tokio::test]
async fn a_reset_is_an_error_and_a_close_is_none() {
    let target = Target::start(Behaviour::BytesThenReset { seed: 1, len: 1000 })
        .await
        .unwrap();
    let (_, error) = verified::receive_what_comes(&mut connect(&target).await, 1)
        .await
        .unwrap();
    assert_eq!(error.unwrap().kind(), std::io::ErrorKind::ConnectionReset);

    let target = Target::start(Behaviour::BytesThenClose { seed: 1, len: 1000 })
        .await
        .unwrap();
    let (received, error) = verified::receive_what_comes(&mut connect(&target).await, 1)
        .await
        .unwrap();
    assert!(received.bytes == 1000 && error.is_none());
}

#[tokio::test]
async fn both_ways_at_once() {
    let behaviour = Behaviour::BothWays {
        send: 1,
        expect: 2,
        len: 3_000_000,
    };
    let target = Target::start(behaviour).await.unwrap();
    let mut stream = connect(&target).await;
    let (mut read, mut write) = stream.split();
    let ours = async {
        verified::send(&mut write, 2, 3_000_000).await?;
        write.shutdown().await.context("shutdown")
    };
    tokio::try_join!(ours, verified::receive_to_end(&mut read, 1, 3_000_000)).unwrap();
    assert!(target.outcome(LIMIT).await.unwrap().error.is_none());
}

#[tokio::test]
async fn a_pusher_fills_every_buffer_and_a_silent_one_sends_nothing() {
    let target = Target::start(Behaviour::Push { seed: 9 }).await.unwrap();
    verified::receive(&mut connect(&target).await, 9, 20_000_000)
        .await
        .unwrap();
    let target = Target::start(Behaviour::Silent).await.unwrap();
    let mut stream = connect(&target).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(50), stream.read(&mut [0]))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_blackhole_does_not_answer_and_a_closed_port_refuses() {
    let hole = Target::blackhole().unwrap();
    let start = Instant::now();
    let connect = TcpStream::connect(hole.socket().unwrap());
    assert!(
        tokio::time::timeout(Duration::from_millis(700), connect)
            .await
            .is_err()
    );
    assert!(start.elapsed() >= Duration::from_millis(700));

    let error = TcpStream::connect(closed_port().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

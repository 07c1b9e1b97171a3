//! What a tunnel does to bytes and ends.

use super::pool::{ALPHA, ENDPOINT, Node, Pool, ROUTE, answer, soon};
use bytes::Bytes;
use fairlead_model::{PolicyEpoch, RefusalCode, Revision};
use fairlead_transport::{Leg, LegCode, LegError, LegRecv, LegSend};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

/// A tunnel from both ends.
async fn tunnel(pool: &Pool, alpha: &Node, beta: &Node) -> (Leg, Leg) {
    let (near, (_, far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
    (near.unwrap(), far)
}

/// Sends `total` seeded bytes and the end; gives their digest.
async fn send(to: &mut LegSend, seed: u64, total: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut digest = Sha256::new();
    let mut left = total;
    while left > 0 {
        let length = rng.usize(1..32_768).min(left);
        let block: Bytes = std::iter::repeat_with(|| rng.u8(..)).take(length).collect();
        digest.update(&block);
        to.write_all_chunks(&mut [block]).await.unwrap();
        left -= length;
    }
    to.finish();
    digest.finalize().to_vec()
}

/// Reads to the clean end; the digest and the count.
async fn receive(from: &mut LegRecv) -> (Vec<u8>, usize) {
    let mut digest = Sha256::new();
    let mut total = 0;
    let mut chunks = vec![Bytes::new(); 16];
    while let Some(read) = from.read_chunks(&mut chunks).await.unwrap() {
        for chunk in &chunks[..read] {
            digest.update(chunk);
            total += chunk.len();
        }
    }
    (digest.finalize().to_vec(), total)
}

/// R-STR-01's ground: raw bytes pass both ways at once, unchanged, to their ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_pass_both_ways_unchanged() {
    const TOTAL: usize = 6 * 1024 * 1024;
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let opening = alpha.open(pool.open());
    let (near, (incoming, mut far)) = tokio::join!(opening, beta.accept());
    let mut near = near.unwrap();
    assert_eq!(
        (incoming.consumer, incoming.route, incoming.endpoint),
        (ALPHA, ROUTE, ENDPOINT)
    );
    assert_eq!(incoming.policy, (PolicyEpoch(1), Revision(1)));
    let (sent_there, sent_back, there, back) = soon(async {
        tokio::join!(
            send(&mut near.send, 1, TOTAL),
            send(&mut far.send, 2, TOTAL),
            receive(&mut far.recv),
            receive(&mut near.recv)
        )
    })
    .await;
    assert_eq!(there, (sent_there, TOTAL));
    assert_eq!(back, (sent_back, TOTAL));
    worker.until(|s| s.live_tunnels == 0).await;
    assert_eq!(worker.status().await.bytes_relayed, 2 * TOTAL as u64);
}

/// ARCHITECTURE.md, Hop sessions and legs: the consumer's bytes reach the publisher before it answers.
#[tokio::test]
async fn early_bytes_do_not_wait_for_the_answer() {
    let pool = Pool::new();
    let (_worker, alpha, beta) = pool.ready().await;
    let mut near = alpha.begin(pool.open()).await;
    near.send.write_all(b"early").await.unwrap();
    let (_, mut far) = beta.incoming().await;
    let mut word = [0; 5];
    soon(far.recv.read_exact(&mut word)).await.unwrap();
    assert_eq!(&word, b"early");
    // The publisher may send right behind its answer, too.
    let mut behind = bytes::BytesMut::new();
    fairlead_hop::Frame::Answer(fairlead_hop::Answer::Ok)
        .encode(&mut behind)
        .unwrap();
    behind.extend_from_slice(b"reply");
    far.send.write_all(&behind).await.unwrap();
    answer(&mut near).await.unwrap();
    soon(near.recv.read_exact(&mut word)).await.unwrap();
    assert_eq!(&word, b"reply");
}

/// F-01: a half-close passes, and the other direction goes on for as long as it likes.
#[tokio::test]
async fn half_closes_pass() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    for consumer_first in [true, false] {
        let (mut near, mut far) = tunnel(&pool, &alpha, &beta).await;
        let (first, second) = if consumer_first {
            (&mut near, &mut far)
        } else {
            (&mut far, &mut near)
        };
        first.send.write_all(b"question").await.unwrap();
        first.send.finish();
        let mut text = String::new();
        soon(second.recv.read_to_string(&mut text)).await.unwrap();
        assert_eq!(text, "question");
        for _ in 0..10 {
            second.send.write_all(b"answer").await.unwrap();
            let mut word = [0; 6];
            soon(first.recv.read_exact(&mut word)).await.unwrap();
        }
        second.send.finish();
        let mut chunks = [Bytes::new()];
        assert_eq!(soon(first.recv.read_chunks(&mut chunks)).await, Ok(None));
        worker.until(|s| s.live_tunnels == 0).await;
    }
}

/// F-02: a reset stays a reset with its code, and a stop reaches a sender that is silent.
#[tokio::test]
async fn resets_and_stops_pass_with_their_code() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let mut chunks = [Bytes::new()];
    let (mut near, mut far) = tunnel(&pool, &alpha, &beta).await;
    far.send.reset(LegCode(0x77));
    let end = soon(near.recv.read_chunks(&mut chunks)).await.unwrap_err();
    assert_eq!(end, LegError::Reset(LegCode(0x77)));
    near.recv.stop(LegCode::CANCELLED);
    // Idle in the other direction: the stop has to come through all the same.
    far.recv.stop(LegCode(0x78));
    assert_eq!(
        soon(near.send.drained()).await,
        Err(LegError::Stopped(LegCode(0x78)))
    );
    worker.until(|s| s.live_tunnels == 0).await;
    // A receiver that slept gets bytes, then the reset: never a clean end.
    let (mut near, mut far) = tunnel(&pool, &alpha, &beta).await;
    let block = Bytes::from(vec![0; 64 * 1024]);
    while let Ok(written) = tokio::time::timeout(
        Duration::from_millis(300),
        near.send.write_chunks(&mut [block.clone()]),
    )
    .await
    {
        written.unwrap();
    }
    near.send.reset(LegCode(0x79));
    let mut got = 0;
    let end = loop {
        match soon(far.recv.read_chunks(&mut chunks)).await {
            Ok(Some(_)) => got += chunks[0].len(),
            other => break other,
        }
    };
    assert_eq!(end, Err(LegError::Reset(LegCode(0x79))));
    assert!(got > 0);
}

/// R-STR-04: what a stalled tunnel holds is bounded, and it stops no other tunnel.
#[tokio::test]
async fn a_stalled_tunnel_is_bounded_and_alone() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let (mut stalled, _sleeper) = tunnel(&pool, &alpha, &beta).await;
    let block = Bytes::from(vec![0; 16 * 1024]);
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(
        Duration::from_millis(400),
        stalled.send.write_chunks(&mut [block.clone()]),
    )
    .await
    {
        sent += written.unwrap().bytes;
        assert!(sent < 4 * 1024 * 1024, "unbounded");
    }
    // One window of each leg, and a batch in the relay's hands.
    assert!((256 * 1024..=3 * 256 * 1024).contains(&sent), "{sent}");
    for _ in 0..20 {
        let (mut near, mut far) = tunnel(&pool, &alpha, &beta).await;
        near.send.write_all(b"ping").await.unwrap();
        let mut word = [0; 4];
        soon(far.recv.read_exact(&mut word)).await.unwrap();
        far.send.write_all(b"pong").await.unwrap();
        soon(near.recv.read_exact(&mut word)).await.unwrap();
        assert_eq!(&word, b"pong");
    }
    worker.until(|s| s.live_tunnels == 1).await;
}

/// What a tunnel may hold is policy's to set; sessions that come later follow it.
#[tokio::test]
async fn the_splice_buffer_is_policys() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let mut policy = pool.policy(1);
    policy.settings.splice_buffer_bytes = 16 * 1024;
    let signed = pool.signed(&policy, 1, Duration::from_secs(3600));
    worker.apply(signed).await.unwrap();
    let alpha = Node::connect(&pool, worker.address, ALPHA).await;
    let beta = Node::connect(&pool, worker.address, super::pool::BETA).await;
    beta.publish(&[(ENDPOINT, 1)]).await;
    let mut near = alpha.begin(pool.open()).await;
    let (_, _unread) = beta.incoming().await;
    // The publisher's own window is its daemon's; it takes that much before the relay's fills up.
    let block = Bytes::from(vec![0; 4 * 1024]);
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(
        Duration::from_millis(400),
        near.send.write_chunks(&mut [block.clone()]),
    )
    .await
    {
        sent += written.unwrap().bytes;
    }
    assert!(
        (256 * 1024..=256 * 1024 + 3 * 16 * 1024).contains(&sent),
        "{sent}"
    );
}

/// A node that vanishes ends its tunnels at the other node, with a reason.
#[tokio::test]
async fn a_lost_node_ends_its_tunnels() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let (mut near, _far) = tunnel(&pool, &alpha, &beta).await;
    beta.carrier.close(RefusalCode::ShuttingDown);
    let mut chunks = [Bytes::new()];
    let end = soon(near.recv.read_chunks(&mut chunks)).await.unwrap_err();
    assert_eq!(end, LegError::Reset(RefusalCode::PublisherUnreachable.into()));
    worker.until(|s| s.live_tunnels == 0 && s.hop_sessions == 1).await;
}

/// Issue: 500 simultaneous opens through a relay that has carried nothing, none refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_opens_at_once() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let beta = std::sync::Arc::new(beta);
    let echo = tokio::spawn({
        let beta = std::sync::Arc::clone(&beta);
        async move {
            let mut echoes = tokio::task::JoinSet::new();
            for _ in 0..500 {
                let (_, mut leg) = beta.accept().await;
                echoes.spawn(async move {
                    let mut chunks = vec![Bytes::new(); 4];
                    while let Some(read) = leg.recv.read_chunks(&mut chunks).await.unwrap() {
                        leg.send.write_all_chunks(&mut chunks[..read]).await.unwrap();
                    }
                    leg.send.finish();
                    leg.send.drained().await.unwrap();
                });
            }
            echoes.join_all().await;
        }
    });
    let all = futures_util::future::join_all((0..500u32).map(|n| {
        let open = pool.open();
        let alpha = &alpha;
        async move {
            let mut leg = alpha.open(open).await.unwrap();
            leg.send.write_all(&n.to_be_bytes()).await.unwrap();
            leg.send.finish();
            let mut word = [0; 4];
            leg.recv.read_exact(&mut word).await.unwrap();
            assert_eq!(word, n.to_be_bytes());
            let mut chunks = [Bytes::new()];
            assert_eq!(leg.recv.read_chunks(&mut chunks).await, Ok(None));
        }
    }));
    soon(all).await;
    soon(echo).await.unwrap();
    worker.until(|s| s.live_tunnels == 0).await;
    let page = worker.scrape().await;
    assert!(page.contains("fairlead_opens_admitted_total 500"), "{page}");
    assert!(!page.contains("fairlead_opens_refused_total{"), "{page}");
}

/// R-GEN-02: strangers' packets harm no tunnel.
#[tokio::test]
async fn garbage_on_the_port_harms_no_tunnel() {
    let pool = Pool::new();
    let (worker, alpha, beta) = pool.ready().await;
    let (mut near, mut far) = tunnel(&pool, &alpha, &beta).await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    for n in 0..2_000usize {
        let mut packet: Vec<u8> = (0..n % 1_400).map(|_| rng.u8(..)).collect();
        if n % 2 == 0 && packet.len() > 5 {
            packet[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
        }
        socket.send_to(&packet, worker.address).await.unwrap();
        if n % 100 == 0 {
            near.send.write_all(b"x").await.unwrap();
            let mut one = [0];
            soon(far.recv.read_exact(&mut one)).await.unwrap();
        }
    }
    let (_near, _far) = tunnel(&pool, &alpha, &beta).await;
}

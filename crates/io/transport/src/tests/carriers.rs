//! Carriers and legs: bytes, ends, restarts.

use super::{Bench, SOON, dialler, listener, node_id, relay_id, soon};
use crate::{Carrier, CarrierEnd, Leg, LegCode, LegError};
use bytes::Bytes;
use fairlead_hop::frame::{Answer, Frame, Ping};
use fairlead_model::{HostPort, Identity, RefusalCode};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;

/// Frames and raw bytes share a leg: raw bytes begin right behind the frame.
#[tokio::test]
async fn raw_bytes_follow_a_frame_on_the_same_leg() {
    let bench = Bench::new();
    let (node, relay) = soon(bench.carriers()).await;
    assert_eq!(node.peer(), bench.relay);
    assert_eq!(relay.peer(), Identity::Node(node_id(1)));
    let mut leg = soon(node.open_leg()).await.unwrap();
    // One write holds the frame and what follows it.
    let mut buffer = bytes::BytesMut::new();
    Frame::Answer(Answer::Ok).encode(&mut buffer).unwrap();
    buffer.extend_from_slice(b"raw");
    leg.send.write_all(&buffer).await.unwrap();
    leg.send.write_all(b" bytes").await.unwrap();
    leg.send.finish();
    let mut far = soon(relay.accept_leg()).await.unwrap();
    let frame = soon(far.recv.read_frame()).await.unwrap();
    assert_eq!(frame, Some(Frame::Answer(Answer::Ok)));
    let mut text = String::new();
    soon(far.recv.read_to_string(&mut text)).await.unwrap();
    assert_eq!(text, "raw bytes");
}

/// A frame that arrives in many pieces is one frame; a cut one is an error.
#[tokio::test]
async fn frames_are_reassembled() {
    let bench = Bench::new();
    let (node, relay) = soon(bench.carriers()).await;
    let frame = Frame::Ping(Ping {
        number: 7,
        padding: Bytes::from(vec![5; 40_000]),
    });
    let mut buffer = bytes::BytesMut::new();
    frame.encode(&mut buffer).unwrap();
    let mut leg = soon(node.open_leg()).await.unwrap();
    leg.send.write_all(&buffer[..2]).await.unwrap();
    let mut far = soon(relay.accept_leg()).await.unwrap();
    let (read, ()) = soon(async {
        tokio::join!(far.recv.read_frame(), async {
            for piece in buffer[2..].chunks(9_000) {
                leg.send.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        })
    })
    .await;
    assert_eq!(read.unwrap(), Some(frame));
    leg.send.write_all(&buffer[..100]).await.unwrap();
    leg.send.finish();
    let cut = soon(far.recv.read_frame()).await.unwrap_err();
    assert!(matches!(cut, crate::FrameReadError::Truncated), "{cut}");
}

/// Ends of a direction are told apart: finish, reset, stop, drop (R-STR-02).
#[tokio::test]
async fn ends_of_a_direction_keep_their_meaning() {
    let bench = Bench::new();
    let (node, relay) = soon(bench.carriers()).await;
    let mut legs = Vec::new();
    for _ in 0..4 {
        let mut leg = soon(node.open_leg()).await.unwrap();
        leg.send.write_all(b"x").await.unwrap();
        let mut far = soon(relay.accept_leg()).await.unwrap();
        let mut one = [0; 1];
        soon(far.recv.read_exact(&mut one)).await.unwrap();
        legs.push((leg, far));
    }
    let mut chunks = [Bytes::new()];
    let (mut finished, mut far) = legs.pop().unwrap();
    finished.send.finish();
    assert_eq!(soon(far.recv.read_chunks(&mut chunks)).await, Ok(None));
    // Half-close: the other direction goes on.
    far.send.write_all(b"late").await.unwrap();
    assert_eq!(soon(finished.recv.read_chunks(&mut chunks)).await, Ok(Some(1)));
    assert_eq!(chunks[0], "late");
    soon(finished.send.drained()).await.unwrap();

    let (mut reset, mut far) = legs.pop().unwrap();
    reset.send.reset(RefusalCode::Revoked.into());
    let end = soon(far.recv.read_chunks(&mut chunks)).await.unwrap_err();
    assert_eq!(end, LegError::Reset(RefusalCode::Revoked.into()));

    let (stopped, mut far) = legs.pop().unwrap();
    far.recv.stop(RefusalCode::Draining.into());
    assert_eq!(
        soon(stopped.send.drained()).await,
        Err(LegError::Stopped(RefusalCode::Draining.into()))
    );
    let mut stopped = stopped;
    assert_eq!(
        stopped.send.look(),
        Err(LegError::Stopped(RefusalCode::Draining.into()))
    );

    let (dropped, mut far) = legs.pop().unwrap();
    drop(dropped);
    let end = soon(far.recv.read_chunks(&mut chunks)).await.unwrap_err();
    assert_eq!(end, LegError::Reset(LegCode::CANCELLED));
    assert_eq!(
        soon(far.send.drained()).await,
        Err(LegError::Stopped(LegCode::CANCELLED))
    );
}

/// F-03's ground: a leg whose reader sleeps costs its window and stops no other leg.
#[tokio::test]
async fn a_full_leg_stops_nobody_else() {
    let bench = Bench::new();
    let (node, relay) = soon(bench.carriers()).await;
    let mut sleeper = soon(node.open_leg()).await.unwrap();
    let mut sent = 0usize;
    let block = Bytes::from(vec![1; 64 * 1024]);
    while let Ok(Ok(written)) = tokio::time::timeout(
        Duration::from_millis(500),
        sleeper.send.write_chunks(&mut [block.clone()]),
    )
    .await
    {
        sent += written.bytes;
        assert!(sent <= 4 * 1024 * 1024, "unbounded");
    }
    assert_eq!(sent, 256 * 1024, "the leg's window");
    let _sleeping = soon(relay.accept_leg()).await.unwrap();
    for _ in 0..50 {
        let mut leg = soon(node.open_leg()).await.unwrap();
        leg.send.write_all(b"ping").await.unwrap();
        let mut far = soon(relay.accept_leg()).await.unwrap();
        let mut word = [0; 4];
        soon(far.recv.read_exact(&mut word)).await.unwrap();
        far.send.write_all(&word).await.unwrap();
        soon(leg.recv.read_exact(&mut word)).await.unwrap();
        assert_eq!(&word, b"ping");
    }
}

/// Many chunks written at once arrive whole and in order, both ways at the same time.
#[tokio::test]
async fn batches_carry_bulk_both_ways() {
    const TOTAL: usize = 8 * 1024 * 1024;
    let bench = Bench::new();
    let (node, relay) = soon(bench.carriers()).await;
    let mut near = soon(node.open_leg()).await.unwrap();
    near.send.write_all(&[0]).await.unwrap();
    let mut far = soon(relay.accept_leg()).await.unwrap();
    let mut first = [9];
    soon(far.recv.read_exact(&mut first)).await.unwrap();
    async fn pump(leg: &mut crate::LegSend) {
        let mut at = 0usize;
        while at < TOTAL {
            let mut batch: Vec<Bytes> = (0..16)
                .map(|i| {
                    let start = at + i * 4096;
                    (start..start + 4096).map(|n| (n % 251) as u8).collect()
                })
                .collect();
            leg.write_all_chunks(&mut batch).await.unwrap();
            at += 16 * 4096;
        }
        leg.finish();
    }
    async fn drain(leg: &mut crate::LegRecv) {
        let mut at = 0usize;
        let mut chunks = vec![Bytes::new(); 32];
        while let Some(read) = leg.read_chunks(&mut chunks).await.unwrap() {
            for byte in chunks[..read].iter().flat_map(|c| c.iter()) {
                assert_eq!(usize::from(*byte), at % 251);
                at += 1;
            }
        }
        assert_eq!(at, TOTAL);
    }
    soon(async {
        tokio::join!(
            pump(&mut near.send),
            pump(&mut far.send),
            drain(&mut near.recv),
            drain(&mut far.recv)
        )
    })
    .await;
}

/// With the persisted key, a restarted relay tells its old peers at once.
#[test]
fn a_restarted_relay_is_noticed_by_its_reset_key() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let node_side = runtime();
    let relay_side = runtime();
    let authority = super::Authority::new();
    let relay = Identity::Relay(relay_id(1));
    let tls = authority.member(relay);
    let (first, address) = relay_side.block_on(async {
        let first = listener(std::sync::Arc::clone(&tls), "127.0.0.1:0");
        let address = first.local_address().unwrap();
        (first, address)
    });
    let taken = relay_side.spawn(async move {
        let carrier = first.accept().await.unwrap().finish().await.unwrap();
        carrier.closed().await;
        drop(first);
    });
    let node = authority.member(Identity::Node(node_id(1)));
    let carrier = node_side.block_on(async {
        let dialler = dialler(node);
        let carrier = soon(dialler.dial(&address.into(), relay)).await.unwrap();
        // The handshake is confirmed once something came back.
        tokio::time::sleep(Duration::from_millis(100)).await;
        (dialler, carrier)
    });
    // The end of a process: nobody says goodbye.
    relay_side.shutdown_background();
    drop(taken);
    let again = runtime();
    let _second = again.block_on(async {
        let begun = Instant::now();
        loop {
            let config = crate::ListenerConfig::new(address, crate::ResetKey::from_bytes([9; 32]));
            match crate::Listener::bind(config, std::sync::Arc::clone(&tls)) {
                Ok(listener) => return listener,
                Err(error) => assert!(begun.elapsed() < SOON, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let begun = Instant::now();
    let end = node_side.block_on(soon(carrier.1.closed()));
    assert_eq!(end, CarrierEnd::Restarted);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// R-NOD-01: a dial under way finds a relay that begins to listen within a fraction of a second.
#[tokio::test]
async fn a_dial_finds_a_relay_that_comes_up() {
    let bench = Bench::new();
    // A port that was free a moment ago.
    let port = std::net::UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let relay = Identity::Relay(relay_id(3));
    let tls = bench.authority.member(relay);
    let late = async {
        tokio::time::sleep(Duration::from_millis(1_700)).await;
        let up = Instant::now();
        let late = listener(tls, &port.to_string());
        let carrier = late.accept().await.unwrap().finish().await.unwrap();
        (up, carrier)
    };
    let address = HostPort::from(port);
    let (dialled, (up, _)) = soon(async { tokio::join!(bench.dialler.dial(&address, relay), late) }).await;
    dialled.unwrap();
    assert!(up.elapsed() < Duration::from_millis(900), "{:?}", up.elapsed());
}

/// R-NOD-05: names are resolved at each dial, and all their addresses tried, IPv4 and IPv6.
#[tokio::test]
async fn names_and_both_families_are_dialled() {
    let bench = Bench::new();
    let relay = Identity::Relay(relay_id(4));
    for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let target = listener(bench.authority.member(relay), bind);
        let port = target.local_address().unwrap().port();
        let names: &[&str] = match bind {
            "127.0.0.1:0" => &["127.0.0.1", "localhost"],
            "[::1]:0" => &["[::1]"],
            _ => &["127.0.0.1", "[::1]"],
        };
        for name in names {
            let address: HostPort = format!("{name}:{port}").parse().unwrap();
            let (dialled, taken) = soon(async {
                tokio::join!(bench.dialler.dial(&address, relay), async {
                    target.accept().await.unwrap().finish().await
                })
            })
            .await;
            assert!(dialled.is_ok() && taken.is_ok(), "{bind} by {name}");
        }
    }
    let unknown: HostPort = "no-such-relay.invalid:9443".parse().unwrap();
    let error = soon(bench.dialler.dial(&unknown, relay)).await.unwrap_err();
    assert!(error.to_string().contains("no-such-relay.invalid"), "{error}");
}

/// The peer learns why a carrier was closed.
#[tokio::test]
async fn closes_carry_their_code() {
    let bench = Bench::new();
    let (node, relay) = soon(bench.carriers()).await;
    relay.close(RefusalCode::UnknownNode);
    assert_eq!(
        soon(node.closed()).await,
        CarrierEnd::Peer(RefusalCode::UnknownNode.into())
    );
    assert_eq!(relay.end(), Some(CarrierEnd::Local));
}

/// Leaves bytes on many legs that fill the congestion window many times over: what is left of them is
/// pending when the carrier is closed.
async fn fill(from: &Carrier) -> Vec<Leg> {
    let mut legs = Vec::new();
    for _ in 0..32 {
        let mut leg = soon(from.open_leg()).await.unwrap();
        soon(leg.send.write_all(&[7; 200_000])).await.unwrap();
        legs.push(leg);
    }
    legs
}

/// R-REV-01, R-ADM-05: a close reaches its peer with its code in the midst of bulk that the congestion
/// window holds back, whichever end closes and whether it closes one carrier or all.
#[tokio::test]
async fn a_close_is_not_held_back_by_bulk() {
    for round in 0..4 {
        let bench = Bench::new();
        let (node, relay) = soon(bench.carriers()).await;
        let began = Instant::now();
        let (end, code) = match round {
            0 => {
                let _legs = fill(&relay).await;
                relay.close(RefusalCode::UnknownNode);
                (soon(node.closed()).await, RefusalCode::UnknownNode.into())
            }
            1 => {
                let _legs = fill(&node).await;
                node.close(RefusalCode::TooMany);
                (soon(relay.closed()).await, RefusalCode::TooMany.into())
            }
            2 => {
                let _legs = fill(&relay).await;
                bench.listener.close(RefusalCode::ShuttingDown);
                bench.listener.drained(SOON).await;
                (soon(node.closed()).await, RefusalCode::ShuttingDown.into())
            }
            _ => {
                let _legs = fill(&node).await;
                bench.dialler.close().await;
                (soon(relay.closed()).await, LegCode::CANCELLED)
            }
        };
        assert_eq!(end, CarrierEnd::Peer(code), "round {round}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

/// Memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// R-STR-04: a carrier costs what is open on it, and little for the 8,192 legs that either end may
/// open; as many as are used can be opened all the same.
#[tokio::test]
async fn a_carrier_costs_little_for_legs_that_nobody_opens() {
    const CARRIERS: usize = 30;
    let bench = Bench::new();
    let _first = soon(bench.carriers()).await;
    let before = resident_kib();
    let mut held = Vec::new();
    for _ in 0..CARRIERS {
        held.push(soon(bench.carriers()).await);
    }
    let each = resident_kib().saturating_sub(before) / CARRIERS as u64;
    println!("{each} KiB for both ends of a carrier");
    assert!(each < 500, "{each} KiB for both ends of a carrier");
    let (node, relay) = &held[0];
    let taking = async {
        let mut taken = Vec::new();
        while taken.len() < 3_000 {
            taken.push(relay.accept_leg().await.unwrap());
        }
        taken
    };
    let opening = async {
        let mut opened = Vec::new();
        for _ in 0..3_000 {
            let mut leg = node.open_leg().await.unwrap();
            leg.send.write_all(&[1]).await.unwrap();
            opened.push(leg);
        }
        opened
    };
    let (opened, taken) = soon(async { tokio::join!(opening, taking) }).await;
    assert_eq!((opened.len(), taken.len()), (3_000, 3_000));
}

//! Each piece of the kit is measured: what a test relies on has been seen to hold.

use super::*;
use crate::verified;
use anyhow::Result;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

fn pair(number: u8) -> (Host, Host, Wire) {
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    let wire = Wire::between(&a, &b, number).unwrap();
    (a, b, wire)
}

fn at(wire: &Wire, side: Side, port: u16) -> SocketAddr {
    (wire.address(side), port).into()
}

/// UDP sockets at both ends, connected to each other; reads give up after `patience`.
fn sockets(a: &Host, b: &Host, wire: &Wire, patience: Duration) -> (UdpSocket, UdpSocket) {
    let open = |host: &Host, own: SocketAddr, far: SocketAddr| {
        host.run(|| {
            let socket = UdpSocket::bind(own).unwrap();
            socket.connect(far).unwrap();
            socket.set_read_timeout(Some(patience)).unwrap();
            socket
        })
        .unwrap()
    };
    let (at_a, at_b) = (at(wire, Side::A, 7000), at(wire, Side::B, 7000));
    (open(a, at_a, at_b), open(b, at_b, at_a))
}

/// The median way of 101 datagrams, sent in one process and so on one clock.
fn one_way(from: &UdpSocket, to: &UdpSocket) -> Duration {
    let mut buffer = [0; 64];
    let mut ways: Vec<Duration> = (0..101)
        .map(|_| {
            let start = Instant::now();
            from.send(&[0; 32]).unwrap();
            to.recv(&mut buffer).unwrap();
            start.elapsed()
        })
        .collect();
    ways.sort();
    ways[50]
}

#[test]
fn wire_delay_is_held_each_way() {
    let (a, b, wire) = pair(11);
    let (at_a, at_b) = sockets(&a, &b, &wire, Duration::from_secs(2));
    wire.set_both(Weather::clear().delay(Duration::from_millis(10)));
    for (from, to) in [(&at_a, &at_b), (&at_b, &at_a)] {
        let way = one_way(from, to);
        assert!(
            way >= Duration::from_micros(10_000) && way < Duration::from_micros(10_500),
            "{way:?}"
        );
    }
    // A direction has its own weather.
    wire.set(Side::B, Weather::clear().delay(Duration::from_millis(3)));
    let (there, back) = (one_way(&at_a, &at_b), one_way(&at_b, &at_a));
    assert!(
        there >= Duration::from_millis(10) && back < Duration::from_micros(3_500),
        "{there:?} {back:?}"
    );
}

/// Sends TCP bytes from one host to the other for a second and returns bits per second.
fn tcp_rate(a: &Host, b: &Host, wire: &Wire, bytes: u64) -> f64 {
    let listener = b
        .run(|| TcpListener::bind(at(wire, Side::B, 0)).unwrap())
        .unwrap();
    let address = listener.local_addr().unwrap();
    let sender = a.run(|| TcpStream::connect(address).unwrap()).unwrap();
    let mut receiver = listener.accept().unwrap().0;
    let start = Instant::now();
    let writer = std::thread::spawn(move || {
        let (mut sender, chunk) = (sender, vec![7; 256 * 1024]);
        let mut left = bytes;
        while left > 0 {
            let count = chunk.len().min(left as usize);
            sender.write_all(&chunk[..count]).unwrap();
            left -= count as u64;
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    let mut total = 0;
    while total < bytes {
        let read = receiver.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended early");
        total += read as u64;
    }
    writer.join().unwrap();
    total as f64 * 8.0 / start.elapsed().as_secs_f64()
}

#[test]
fn wire_carries_a_gigabit_of_tcp() {
    let (a, b, wire) = pair(12);
    tcp_rate(&a, &b, &wire, 20_000_000);
    // The best of three: other work on the machine can only make it slower.
    let rates: Vec<f64> = (0..3).map(|_| tcp_rate(&a, &b, &wire, 250_000_000)).collect();
    let best = rates.iter().copied().fold(0.0, f64::max);
    assert!(best >= 1e9, "{rates:?}");
}

#[test]
fn wire_rate_is_held() {
    let (a, b, wire) = pair(13);
    wire.set_both(Weather::clear().rate_mbit(50).delay(Duration::from_millis(2)));
    let rate = tcp_rate(&a, &b, &wire, 10_000_000);
    // Headers are part of the line's rate, not of what TCP carries.
    assert!((40e6..50e6).contains(&rate), "{rate}");
}

/// How many of `count` datagrams arrive. They go in groups that fit into a socket's buffer, each
/// closed by a pause longer than their way.
fn arrivals(from: &UdpSocket, to: &UdpSocket, count: usize) -> usize {
    to.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    let mut arrived = 0;
    for _ in 0..count / 100 {
        for _ in 0..100 {
            from.send(&[0; 32]).unwrap();
        }
        while to.recv(&mut [0; 64]).is_ok() {
            arrived += 1;
        }
    }
    to.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    arrived
}

#[test]
fn wire_loss_takes_its_share_and_jitter_spreads() {
    let (a, b, wire) = pair(14);
    let (at_a, at_b) = sockets(&a, &b, &wire, Duration::from_millis(300));
    wire.set(Side::A, Weather::clear().loss(0.2));
    let mut buffer = [0; 64];
    let arrived = arrivals(&at_a, &at_b, 2000);
    assert!((1500..1700).contains(&arrived), "{arrived}");
    let counts = wire.counts(Side::A);
    assert!(counts.lost >= 300 && counts.overflowed == 0, "{counts:?}");

    wire.set(Side::A, Weather::clear().jitter(Duration::from_millis(6)));
    let ways: Vec<Duration> = (0..60)
        .map(|_| {
            let start = Instant::now();
            at_a.send(&[0; 32]).unwrap();
            at_b.recv(&mut buffer).unwrap();
            start.elapsed()
        })
        .collect();
    let (least, most) = (ways.iter().min().unwrap(), ways.iter().max().unwrap());
    assert!(
        *least < Duration::from_millis(2) && *most > Duration::from_millis(4),
        "{least:?} {most:?}"
    );
}

#[test]
fn wire_cut_is_one_way_and_heals() {
    let (a, b, wire) = pair(15);
    let (at_a, at_b) = sockets(&a, &b, &wire, Duration::from_millis(200));
    let mut buffer = [0; 64];
    let mut passes = |from: &UdpSocket, to: &UdpSocket| {
        from.send(&[1; 32]).unwrap();
        to.recv(&mut buffer).is_ok()
    };
    wire.set(Side::A, Weather::clear().cut());
    assert!(!passes(&at_a, &at_b) && passes(&at_b, &at_a));
    wire.set(Side::A, Weather::clear());
    assert!(passes(&at_a, &at_b));
    wire.link_down(&b).unwrap();
    assert!(!passes(&at_a, &at_b));
    wire.link_up(&b).unwrap();
    assert!(passes(&at_a, &at_b));
}

#[test]
fn wire_carries_verified_streams_through_loss() -> Result<()> {
    let (a, b, wire) = pair(16);
    wire.set_both(Weather::clear().loss(0.01).delay(Duration::from_millis(1)));
    let listener = b.run(|| TcpListener::bind(at(&wire, Side::B, 0)))??;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> Result<()> {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async {
                let (mut stream, _) = tokio::net::TcpListener::from_std(listener)?.accept().await?;
                verified::receive_to_end(&mut stream, 5, 2_000_000)
                    .await
                    .map(drop)
            })
    });
    a.block_on(async move {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        verified::send(&mut stream, 5, 2_000_000).await?;
        Ok(())
    })?;
    server.join().unwrap()
}

#[test]
fn hosts_have_their_own_ports_and_nft_drops_its_share() {
    let (a, b, wire) = pair(17);
    let port = 9443;
    let held: Vec<TcpListener> = [&a, &b]
        .iter()
        .map(|host| {
            host.run(|| TcpListener::bind(("127.0.0.1", port)).unwrap())
                .unwrap()
        })
        .collect();
    assert_eq!(held.len(), 2);
    let error = a
        .run(|| TcpListener::bind(("127.0.0.1", port)))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);

    b.nft("table inet t { chain i { type filter hook input priority 0; udp dport 7000 numgen random mod 100 < 30 drop; }; }")
        .unwrap();
    let (at_a, at_b) = sockets(&a, &b, &wire, Duration::from_millis(300));
    let arrived = arrivals(&at_a, &at_b, 1000);
    assert!((620..780).contains(&arrived), "{arrived}");
}

#[test]
fn a_namespace_ends_with_its_host() {
    let host = Host::new("short-lived").unwrap();
    let pid = host.pid();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let host = host;
        host.run(|| panic!("a test fails")).unwrap();
    }));
    assert!(panicked.is_err());
    assert!(!crate::process::alive(pid), "the holder lives on after a panic");
}

//! A relay's port as this machine sees it, without any identity.

use fairlead_host::rng;
use fairlead_model::HostPort;
use fairlead_model::address::Host;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

/// How long one question may be open.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Questions that are asked before a port counts as silent: single packets get lost.
const ASKED_MAX: u32 = 3;
/// How long a name may take to resolve.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// A QUIC version that nobody speaks: those of the form 0x?a?a?a?a are reserved to be refused
/// (RFC 9000, section 15).
const NO_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
/// A server answers no shorter datagram (RFC 9000, section 14.1).
const DATAGRAM_LEN: usize = 1200;

/// The addresses of a relay's name.
pub(crate) async fn resolve(address: &HostPort) -> io::Result<Vec<SocketAddr>> {
    let name = match address.host() {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, address.port())]),
        Host::Dns(name) => name.as_str(),
    };
    let found = tokio::time::timeout(RESOLVE_MAX, tokio::net::lookup_host((name, address.port())))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let found: Vec<SocketAddr> = found.take(8).collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// Whether a QUIC server answers: it is asked for a version that does not exist, and says which it
/// speaks (RFC 9000, section 6). How long it took; `None` where nothing came.
pub(crate) async fn quic(address: SocketAddr) -> io::Result<Option<Duration>> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    for _ in 0..ASKED_MAX {
        let ids = rng::bytes::<16>();
        let (to, from) = ids.split_at(8);
        let mut packet = vec![0xc0];
        packet.extend_from_slice(&NO_VERSION);
        for id in [to, from] {
            packet.push(8);
            packet.extend_from_slice(id);
        }
        packet.resize(DATAGRAM_LEN, 0);
        let began = Instant::now();
        socket.send(&packet).await?;
        let mut answer = [0; 2048];
        match tokio::time::timeout(ANSWER_MAX, socket.recv(&mut answer)).await {
            Ok(Ok(len)) if is_refusal(answer.get(..len).unwrap_or_default(), from) => {
                return Ok(Some(began.elapsed()));
            }
            Ok(Ok(_)) | Err(_) => {}
            // An ICMP answer: nothing listens there.
            Ok(Err(error)) => return Err(error),
        }
    }
    Ok(None)
}

/// Version negotiation, addressed to the connection id that the question came from.
fn is_refusal(packet: &[u8], to: &[u8]) -> bool {
    let long_header = packet.first().is_some_and(|first| first & 0x80 != 0);
    long_header
        && packet.get(1..5) == Some(&[0; 4])
        && packet.get(5) == Some(&8)
        && packet.get(6..14) == Some(to)
}

/// Whether something listens on the TCP port.
pub(crate) async fn tcp(address: SocketAddr) -> io::Result<()> {
    tokio::time::timeout(ANSWER_MAX * ASKED_MAX, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_port_and_a_closed_one_are_told_apart() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(quic(address).await.unwrap(), None);
        drop(silent);
        let closed = quic(address).await.unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let id = [7; 8];
        let mut packet = vec![0xca, 0, 0, 0, 0, 8];
        packet.extend_from_slice(&id);
        assert!(is_refusal(&packet, &id));
        assert!(!is_refusal(&packet, &[8; 8]));
        packet[4] = 1;
        assert!(!is_refusal(&packet, &id));
        assert!(!is_refusal(&[], &id));
    }
}

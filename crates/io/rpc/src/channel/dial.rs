//! One TCP connection to whichever address of a host answers first.

use super::ConnectError;
use fairlead_model::HostPort;
use fairlead_model::address::Host;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

/// How long an address may stay silent before the next is tried beside it (RFC 8305 section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Most addresses tried of one name.
pub(super) const ADDRESSES_MAX: usize = 16;

/// Connects to `address`. All attempts but the first to succeed are dropped.
pub(super) async fn any(address: &HostPort) -> Result<TcpStream, ConnectError> {
    let mut waiting = VecDeque::from(resolve(address).await?);
    let mut attempts = JoinSet::new();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    loop {
        match waiting.pop_front() {
            Some(next) => {
                attempts.spawn(TcpStream::connect(next));
            }
            None if attempts.is_empty() => return Err(failed(address, last)),
            None => {}
        }
        let silence = async {
            if waiting.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(ATTEMPT_DELAY).await;
        };
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(stream))) => {
                    // Sessions are small messages: none waits for an acknowledgement.
                    return match stream.set_nodelay(true) {
                        Ok(()) => Ok(stream),
                        Err(e) => Err(failed(address, e)),
                    };
                }
                Some(Ok(Err(e))) => last = e,
                Some(Err(e)) => last = io::Error::other(e),
                None => {}
            },
            () = silence => {}
        }
    }
}

async fn resolve(address: &HostPort) -> Result<Vec<SocketAddr>, ConnectError> {
    let unresolved = |source| ConnectError::Unresolved {
        address: address.clone(),
        source,
    };
    let found: Vec<SocketAddr> = match address.host() {
        Host::Ip(ip) => vec![SocketAddr::new(*ip, address.port())],
        Host::Dns(name) => lookup_host((name.as_str(), address.port()))
            .await
            .map_err(unresolved)?
            .collect(),
    };
    if found.is_empty() {
        return Err(unresolved(io::Error::from(io::ErrorKind::NotFound)));
    }
    Ok(interleaved(found))
}

/// IPv6 and IPv4 in turn, each in the resolver's order (RFC 8305 section 4).
pub(super) fn interleaved(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut out = Vec::new();
    while out.len() < ADDRESSES_MAX {
        let before = out.len();
        out.extend(v6.next());
        out.extend(v4.next());
        if out.len() == before {
            break;
        }
    }
    out.truncate(ADDRESSES_MAX);
    out
}

fn failed(address: &HostPort, source: io::Error) -> ConnectError {
    let address = address.clone();
    if source.kind() == io::ErrorKind::ConnectionRefused {
        ConnectError::Refused { address }
    } else {
        ConnectError::Unreachable { address, source }
    }
}

//! Dials what a publication points at (R-STR-07).

use crate::check::{ECHO_BYTES_MAX, ECHO_MAX};
use crate::socket::EndSocket;
use fairlead_host::descriptors::is_exhaustion;
use fairlead_model::address::Host;
use fairlead_model::{HostPort, RefusalCode, TargetAddress};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

/// How long a target may take in all, its name's resolution and every address included.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Most addresses of a name that are tried; the rest would not be reached within the timeout.
const ADDRESSES_MAX: usize = 16;

/// The least share of the timeout an address gets while others wait behind it.
const SHARE_MIN: Duration = Duration::from_millis(250);

/// Why a target was not reached. Each variant has its own code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// Nobody listens there.
    #[error("the target refused the connection")]
    Refused(#[source] io::Error),
    /// No answer in time.
    #[error("the target did not answer within {} s", DIAL_TIMEOUT.as_secs())]
    Timeout,
    /// No way there: no route, no such socket file, no permission.
    #[error("the target cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The name has no address.
    #[error("the target's name does not resolve")]
    Unresolved(#[source] io::Error),
    /// This host has no descriptor or memory left.
    #[error("this host has no room for another connection")]
    Exhausted(#[source] io::Error),
}

impl DialError {
    /// The code that the consumer gets.
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Refused(_) => RefusalCode::TargetRefused,
            Self::Timeout => RefusalCode::TargetTimeout,
            Self::Unreachable(_) => RefusalCode::TargetUnreachable,
            Self::Unresolved(_) => RefusalCode::TargetUnresolved,
            Self::Exhausted(_) => RefusalCode::PublisherOverloaded,
        }
    }
}

/// Dials `target` within [`DIAL_TIMEOUT`].
///
/// Cancel safe: a dropped dial closes its socket.
pub(crate) async fn dial(target: &TargetAddress) -> Result<EndSocket, DialError> {
    dial_within(target, DIAL_TIMEOUT).await
}

/// A target of this daemon's own, for checks: it sends back what comes, within bounds (R-UI-04).
pub(crate) fn echo(tasks: &TaskTracker) -> Result<EndSocket, DialError> {
    let (near, mut far) = UnixStream::pair().map_err(judge)?;
    tasks.spawn(async move {
        let (from, mut to) = far.split();
        let mut from = from.take(ECHO_BYTES_MAX);
        let copied = async {
            tokio::io::copy(&mut from, &mut to).await?;
            to.shutdown().await
        };
        // A consumer that went away needs no answer.
        let _ = tokio::time::timeout(ECHO_MAX, copied).await;
    });
    Ok(EndSocket::unix(near))
}

async fn dial_within(target: &TargetAddress, limit: Duration) -> Result<EndSocket, DialError> {
    let deadline = Instant::now() + limit;
    match target {
        TargetAddress::Tcp(address) => dial_tcp(address, deadline).await,
        TargetAddress::Unix(path) => dial_unix(path, deadline).await,
    }
}

async fn dial_tcp(address: &HostPort, deadline: Instant) -> Result<EndSocket, DialError> {
    let addresses = resolve(address, deadline).await?;
    let mut last = DialError::Timeout;
    for (index, &address) in addresses.iter().enumerate() {
        // An address that swallows packets must leave time for those behind it.
        let left = deadline.saturating_duration_since(Instant::now());
        let behind = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = (left / behind).max(SHARE_MIN).min(left);
        last = match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return EndSocket::tcp(socket).map_err(DialError::Unreachable),
            Ok(Err(error)) => judge(error),
            Err(_) => DialError::Timeout,
        };
        if matches!(last, DialError::Exhausted(_)) {
            break;
        }
    }
    Err(last)
}

async fn resolve(address: &HostPort, deadline: Instant) -> Result<Vec<SocketAddr>, DialError> {
    let name = match address.host() {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, address.port())]),
        Host::Dns(name) => name.as_str(),
    };
    let found = timeout_at(deadline, tokio::net::lookup_host((name, address.port())))
        .await
        .map_err(|_| DialError::Timeout)?
        .map_err(DialError::Unresolved)?;
    let addresses: Vec<_> = found.take(ADDRESSES_MAX).collect();
    if addresses.is_empty() {
        return Err(DialError::Unresolved(io::ErrorKind::NotFound.into()));
    }
    Ok(addresses)
}

async fn dial_unix(path: &Path, deadline: Instant) -> Result<EndSocket, DialError> {
    match timeout_at(deadline, UnixStream::connect(path)).await {
        Ok(Ok(socket)) => Ok(EndSocket::unix(socket)),
        Ok(Err(error)) => Err(judge(error)),
        Err(_) => Err(DialError::Timeout),
    }
}

fn judge(error: io::Error) -> DialError {
    if is_exhaustion(&error) {
        return DialError::Exhausted(error);
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => DialError::Refused(error),
        // A full backlog of a Unix listener says WouldBlock: it is there and does not answer.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => DialError::Timeout,
        _ => DialError::Unreachable(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, UnixListener};

    async fn code(target: &str) -> RefusalCode {
        dial_within(&target.parse().unwrap(), Duration::from_millis(500))
            .await
            .unwrap_err()
            .code()
    }

    /// F-08, R-STR-07: each way to fail has its own code.
    #[tokio::test]
    async fn failures_have_codes() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        assert_eq!(code(&address.to_string()).await, RefusalCode::TargetRefused);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let unix = format!("unix:{}", path.display());
        assert_eq!(code(&unix).await, RefusalCode::TargetUnreachable);
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(code(&unix).await, RefusalCode::TargetRefused);
        // A host without a resolver may say so only at the timeout.
        let unresolved = code("no-such-name.invalid:1").await;
        assert!(
            matches!(
                unresolved,
                RefusalCode::TargetUnresolved | RefusalCode::TargetTimeout
            ),
            "{unresolved}"
        );
    }

    /// F-08: a target whose backlog is full answers nothing; the dial ends in time.
    #[tokio::test]
    async fn silence_ends_at_the_timeout() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let target: TargetAddress = address.to_string().parse().unwrap();
        // The first connections fill the backlog; then SYNs are dropped.
        let mut held = Vec::new();
        let started = Instant::now();
        let error = loop {
            match dial_within(&target, Duration::from_millis(300)).await {
                Ok(socket) => held.push(socket),
                Err(error) => break error,
            }
            assert!(held.len() < 16, "the backlog never filled");
        };
        assert_eq!(error.code(), RefusalCode::TargetTimeout);
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn tcp_and_unix_targets_answer() {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string().parse().unwrap();
        assert!(matches!(dial(&target).await, Ok(EndSocket::Tcp(_))));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let target = TargetAddress::Unix(path);
        assert!(matches!(dial(&target).await, Ok(EndSocket::Unix(_))));
    }
}

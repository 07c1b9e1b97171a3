//! The gRPC channel that members dial: one connection over our own TLS, to whichever of the
//! host's addresses answers first.
//!
//! A channel here is one connection. When it ends, calls fail with `Unavailable` and the caller
//! connects again: a session must know that its connection is new, and back-off is its business.

mod dial;
mod reason;

use fairlead_model::HostPort;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::AlertDescription;
use rustls_pki_types::ServerName;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

pub use reason::reason;

/// Why no channel came about; each says where it failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name has no address.
    #[error("{address} does not resolve")]
    Unresolved {
        /// What was to be dialled.
        address: HostPort,
        /// The resolver's answer.
        #[source]
        source: io::Error,
    },
    /// The host answered that nothing listens there.
    #[error("{address} refused the connection: nothing listens on that port")]
    Refused {
        /// What was dialled.
        address: HostPort,
    },
    /// No address of the host answered.
    #[error("{address} cannot be reached")]
    Unreachable {
        /// What was dialled.
        address: HostPort,
        /// The last address's error.
        #[source]
        source: io::Error,
    },
    /// Connection or handshake took too long.
    #[error("{address} did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut {
        /// What was dialled.
        address: HostPort,
    },
    /// The peer's certificate does not prove who it must be.
    #[error("{address} did not prove to be the control plane of this pool")]
    Identity {
        /// What was dialled.
        address: HostPort,
        /// What is wrong with its certificate.
        #[source]
        source: rustls::Error,
    },
    /// The TLS handshake failed.
    #[error("the TLS handshake with {address} failed")]
    Tls {
        /// What was dialled.
        address: HostPort,
        /// What TLS says.
        #[source]
        source: io::Error,
    },
    /// The peer speaks TLS, not gRPC.
    #[error("{address} does not speak gRPC (no HTTP/2 was agreed)")]
    NotGrpc {
        /// What was dialled.
        address: HostPort,
    },
    /// The server name is no DNS name.
    #[error("`{0}` is not a TLS server name")]
    ServerName(String),
    /// The socket cannot be opened.
    #[error("the socket {} cannot be opened", path.display())]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// HTTP/2 could not begin.
    #[error("HTTP/2 could not begin with {peer}")]
    Http {
        /// What was dialled.
        peer: String,
        /// What the client says.
        #[source]
        source: tonic::transport::Error,
    },
}

/// Longest time for name, connection and TLS handshake together: the server's handshake deadline.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A ping goes out after this much silence, so that a peer whose host vanished is missed within
/// [`KEEP_ALIVE_INTERVAL`] + [`KEEP_ALIVE_TIMEOUT`].
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The connection ends when a ping stays unanswered for this long.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to `address` by TLS with `tls` (roots, client certificate, verifier) and asks for
/// `server_name`. All addresses of the name are tried, IPv6 and IPv4 in turn.
///
/// Cancel safe: dropped, it leaves no connection.
///
/// # Errors
/// Where it failed: name, connection, handshake, identity.
pub async fn connect(
    address: &HostPort,
    tls: Arc<rustls::ClientConfig>,
    server_name: &str,
) -> Result<Channel, ConnectError> {
    let name = ServerName::try_from(server_name.to_owned())
        .map_err(|_| ConnectError::ServerName(server_name.to_owned()))?;
    let timed_out = |_| ConnectError::TimedOut {
        address: address.clone(),
    };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake(address, tls, name))
        .await
        .map_err(timed_out)??;
    over(stream, server_name, &address.to_string()).await
}

/// Connects to the Unix socket at `path`.
///
/// Cancel safe: dropped, it leaves no connection.
///
/// # Errors
/// The socket cannot be opened, or does not speak HTTP/2.
pub async fn unix(path: &Path) -> Result<Channel, ConnectError> {
    let stream = UnixStream::connect(path)
        .await
        .map_err(|source| ConnectError::Socket {
            path: path.to_owned(),
            source,
        })?;
    over(stream, "localhost", &path.display().to_string()).await
}

async fn handshake(
    address: &HostPort,
    tls: Arc<rustls::ClientConfig>,
    name: ServerName<'static>,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static, ConnectError> {
    let tcp = dial::any(address).await?;
    let mut config = Arc::unwrap_or_clone(tls);
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .map_err(|e| handshake_error(address, e))?;
    if stream.get_ref().1.alpn_protocol() == Some(ALPN_H2) {
        Ok(stream)
    } else {
        Err(ConnectError::NotGrpc {
            address: address.clone(),
        })
    }
}

fn handshake_error(address: &HostPort, source: io::Error) -> ConnectError {
    let address = address.clone();
    let tls = source
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>())
        .cloned();
    match tls {
        Some(source @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)) => {
            ConnectError::Identity { address, source }
        }
        Some(
            rustls::Error::NoApplicationProtocol
            | rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol),
        ) => ConnectError::NotGrpc { address },
        Some(_) | None => ConnectError::Tls { address, source },
    }
}

/// HTTP/2 over one stream that is connected already.
async fn over<S>(stream: S, authority: &str, peer: &str) -> Result<Channel, ConnectError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let once = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.lock().unwrap_or_else(|e| e.into_inner()).take();
        async move {
            stream
                .map(TokioIo::new)
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the connection has ended"))
        }
    });
    let http = |source| ConnectError::Http {
        peer: peer.to_owned(),
        source,
    };
    // The connector has done TLS: `http` keeps the library from adding its own.
    Endpoint::from_shared(format!("http://{authority}"))
        .map_err(http)?
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector(connector)
        .await
        .map_err(http)
}

const ALPN_H2: &[u8] = b"h2";

#[cfg(test)]
mod tests;

//! The node's side.

use super::{LiveConnection, SERVE_MAX, no_answer, set_up};
use crate::dial::Dialler;
use crate::tls::{NO_NAME, Peer, TlsError};
use fairlead_hop::liveness::{ALPN, AttemptFailure, BindRefusal, LiveMessage, MESSAGE_LEN, MessageFault};
use fairlead_model::{Identity, ProcessBootId, SessionId};
use rustls_pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// What the relay answered.
#[derive(Debug)]
pub enum LiveAnswer {
    /// It holds the session.
    Bound(LiveConnection, ProcessBootId),
    /// It does not.
    Refused(BindRefusal, ProcessBootId),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LiveDialError {
    /// The relay's host did not take the connection.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The relay's host said nothing.
    #[error("the host does not answer")]
    NoAnswer,
    /// The relay's process said nothing.
    #[error("the relay does not answer within {} s", SERVE_MAX.as_secs())]
    Unserved,
    /// The handshake failed: certificates, or the connection was cut.
    #[error("the handshake failed")]
    Handshake(#[source] io::Error),
    /// The answer is none.
    #[error(transparent)]
    Message(#[from] MessageFault),
    /// This end cannot set up its TLS.
    #[error("cannot set up TLS")]
    Setup(#[source] TlsError),
}

impl LiveDialError {
    /// What it says about the relay.
    #[must_use]
    pub fn failure(&self) -> AttemptFailure {
        match self {
            Self::Connect(error) | Self::Handshake(error) if no_answer(error) => AttemptFailure::NoAnswer,
            Self::Connect(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => AttemptFailure::Refused,
                io::ErrorKind::ConnectionReset => AttemptFailure::Cut,
                _ => AttemptFailure::Unable,
            },
            Self::Handshake(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => AttemptFailure::Cut,
                _ => AttemptFailure::Unable,
            },
            Self::NoAnswer => AttemptFailure::NoAnswer,
            Self::Unserved => AttemptFailure::Unserved,
            Self::Message(_) | Self::Setup(_) => AttemptFailure::Unable,
        }
    }
}

impl Dialler {
    /// Makes a liveness connection for `session` to `expect` at `address`, whose host must take it
    /// within `limit`. Cancel-safe.
    ///
    /// # Errors
    /// The relay did not answer; [`LiveDialError::failure`] says what that means.
    pub async fn dial_live(
        &self,
        address: SocketAddr,
        expect: Identity,
        session: SessionId,
        limit: Duration,
    ) -> Result<LiveAnswer, LiveDialError> {
        let tcp = timeout(limit, TcpStream::connect(address))
            .await
            .map_err(|_| LiveDialError::NoAnswer)?
            .map_err(LiveDialError::Connect)?;
        set_up(&tcp).map_err(LiveDialError::Connect)?;
        let (config, _) = self
            .tls()
            .client_config(Peer::Exactly(expect), ALPN)
            .map_err(LiveDialError::Setup)?;
        let connector = TlsConnector::from(Arc::new(config));
        // Boxed before it is held: a TLS session is large.
        let served = Box::pin(async move {
            let name = ServerName::try_from(NO_NAME).map_err(|_| {
                LiveDialError::Setup(TlsError::Setup(rustls::Error::General(NO_NAME.to_owned())))
            })?;
            let mut tls = connector
                .connect(name, tcp)
                .await
                .map_err(LiveDialError::Handshake)?;
            tls.write_all(&LiveMessage::Bind(session).encode())
                .await
                .map_err(LiveDialError::Handshake)?;
            tls.flush().await.map_err(LiveDialError::Handshake)?;
            let mut answer = [0; MESSAGE_LEN];
            tls.read_exact(&mut answer)
                .await
                .map_err(LiveDialError::Handshake)?;
            match LiveMessage::decode(&answer)? {
                LiveMessage::Bound(boot) => {
                    Ok(LiveAnswer::Bound(LiveConnection::new(Box::new(tls.into())), boot))
                }
                LiveMessage::Refused(why, boot) => Ok(LiveAnswer::Refused(why, boot)),
                LiveMessage::Bind(_) | LiveMessage::Ping(_) | LiveMessage::Pong(_) => {
                    Err(MessageFault { kind: answer[0] }.into())
                }
            }
        });
        timeout(SERVE_MAX, served)
            .await
            .unwrap_or(Err(LiveDialError::Unserved))
    }
}

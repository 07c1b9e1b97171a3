//! The relay's side.

use super::hello::first_record;
use super::{LiveConnection, set_up};
use crate::carrier::canonical;
use crate::gate::{Gate, ListenerStats};
use crate::listen::HANDSHAKE_DEADLINE;
use crate::tls::{MemberTls, Peer, TlsError, identity_of_chain};
use fairlead_hop::liveness::{ALPN, BindRefusal, LiveMessage, MESSAGE_LEN, MessageFault};
use fairlead_model::{Identity, ProcessBootId, SessionId};
use fairlead_room::Place;
use rustls_pki_types::CertificateDer;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsStream};

/// Most handshakes at once, as of QUIC's listener. Until its hello is there, one is little more than its
/// socket.
const HANDSHAKES_MAX: usize = 512;
/// Most of them that have a TLS session, some 10 KiB each: beside a storm at QUIC's listener they leave
/// the process within what a storm may cost it (R-GEN-02).
pub(crate) const SESSIONS_MAX: usize = 128;
/// How long a refusal may take to leave.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Takes liveness connections. Finish each arrival in a task of its own.
#[derive(Debug)]
pub struct LiveListener {
    socket: TcpListener,
    config: Arc<rustls::ServerConfig>,
    tls: Arc<MemberTls>,
    gate: Arc<Gate>,
    sessions: Arc<Gate>,
}

/// A peer that has connected and passed the bounds.
#[derive(Debug)]
pub struct LiveArriving {
    tcp: TcpStream,
    remote: SocketAddr,
    config: Arc<rustls::ServerConfig>,
    tls: Arc<MemberTls>,
    place: Place<IpAddr>,
    sessions: Arc<Gate>,
}

/// A peer that has proved who it is and named its session; not answered yet.
#[derive(Debug)]
pub struct LiveBinding {
    /// Who it is.
    pub peer: Identity,
    /// The hop session that it names.
    pub session: SessionId,
    tls: Box<TlsStream<TcpStream>>,
    _places: [Arc<Place<IpAddr>>; 2],
}

/// Why an arrival came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LiveAcceptError {
    /// It took longer than the deadline.
    #[error("no complete handshake within {} s", HANDSHAKE_DEADLINE.as_secs())]
    Deadline,
    /// It failed.
    #[error("the handshake failed")]
    Failed(#[source] io::Error),
    /// The certificate names nobody, or there is none, or the protocol is another.
    #[error("the peer is no member, or speaks another protocol")]
    NoMember,
    /// The first message names no session.
    #[error(transparent)]
    Message(#[from] MessageFault),
    /// There were too many handshakes at once, and others had begun later.
    #[error("a newer handshake took its place")]
    Evicted,
}

impl LiveListener {
    /// Listens on a socket that [`Sockets`](crate::Sockets) has bound. Needs a tokio runtime.
    ///
    /// # Errors
    /// TLS cannot be set up, or the runtime does not take the socket.
    pub fn on(
        socket: std::net::TcpListener,
        tls: Arc<MemberTls>,
        per_address_max: usize,
    ) -> Result<Self, TlsError> {
        let config = tls.server_config(Peer::AnyMember, ALPN)?;
        let general = |error: io::Error| TlsError::Setup(rustls::Error::General(error.to_string()));
        Ok(Self {
            socket: TcpListener::from_std(socket).map_err(general)?,
            config: Arc::new(config),
            tls,
            gate: Arc::new(Gate::new(HANDSHAKES_MAX, per_address_max)),
            sessions: Arc::new(Gate::new(SESSIONS_MAX, per_address_max)),
        })
    }

    /// The next peer; where there are too many, an older one makes room. Cancelled, it may drop one
    /// connection, whose peer tries again.
    ///
    /// # Errors
    /// The system gives no connection at this moment: it has no descriptor left, say. Call again
    /// after a while.
    pub async fn accept(&self) -> io::Result<LiveArriving> {
        loop {
            let (tcp, remote) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                // The peer's business: it left before it was taken.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            return Ok(LiveArriving {
                tcp,
                remote: canonical(remote),
                config: Arc::clone(&self.config),
                tls: Arc::clone(&self.tls),
                // It has answered a SYN-ACK: its address is its own.
                place: self.gate.enter(remote.ip()).await,
                sessions: Arc::clone(&self.sessions),
            });
        }
    }

    /// Ends one handshake, for a process that is short of descriptors; whether there was one.
    pub fn make_room(&self) -> bool {
        self.gate.make_room()
    }

    /// Changes the bound per address (policy has a setting for it).
    pub fn set_handshakes_per_address_max(&self, max: usize) {
        self.gate.set_per_address_max(max);
        self.sessions.set_per_address_max(max);
    }

    /// How many of the handshakes have a TLS session.
    #[cfg(test)]
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.stats().pending
    }

    /// What it has done to peers.
    #[must_use]
    pub fn stats(&self) -> ListenerStats {
        let all = self.gate.stats();
        ListenerStats {
            refused: all.refused + self.sessions.stats().refused,
            ..all
        }
    }
}

impl AsFd for LiveArriving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl LiveArriving {
    /// Where the peer is.
    #[must_use]
    pub const fn remote_address(&self) -> SocketAddr {
        self.remote
    }

    /// Completes the handshake and reads which session it is for, within 10 s.
    ///
    /// # Errors
    /// The peer was too slow, or is nobody of this pool.
    pub async fn finish(self) -> Result<LiveBinding, LiveAcceptError> {
        set_up(&self.tcp).map_err(LiveAcceptError::Failed)?;
        let place = Arc::new(self.place);
        let from = self.remote.ip();
        let binding = async {
            first_record(&self.tcp).await.map_err(LiveAcceptError::Failed)?;
            let session = Arc::new(self.sessions.enter(from).await);
            let places = [Arc::clone(&place), Arc::clone(&session)];
            // Boxed once it is needed: a TLS session is large, and most of a storm have none.
            let shaking = Box::pin(bind(self.config, self.tcp, self.tls, places));
            tokio::select! {
                bound = shaking => bound,
                () = session.evicted() => Err(LiveAcceptError::Evicted),
            }
        };
        tokio::select! {
            bound = timeout(HANDSHAKE_DEADLINE, binding) => bound.unwrap_or(Err(LiveAcceptError::Deadline)),
            () = place.evicted() => Err(LiveAcceptError::Evicted),
        }
    }
}

/// The TLS handshake, and the message that names a session.
async fn bind(
    config: Arc<rustls::ServerConfig>,
    tcp: TcpStream,
    member: Arc<MemberTls>,
    places: [Arc<Place<IpAddr>>; 2],
) -> Result<LiveBinding, LiveAcceptError> {
    let acceptor = TlsAcceptor::from(config);
    let mut tls = acceptor.accept(tcp).await.map_err(LiveAcceptError::Failed)?;
    let session = tls.get_ref().1;
    let chain: &[CertificateDer<'_>] = session.peer_certificates().ok_or(LiveAcceptError::NoMember)?;
    let (peer, _) = identity_of_chain(chain, member.domain()).map_err(|_| LiveAcceptError::NoMember)?;
    if session.alpn_protocol() != Some(ALPN) {
        return Err(LiveAcceptError::NoMember);
    }
    let mut message = [0; MESSAGE_LEN];
    tls.read_exact(&mut message)
        .await
        .map_err(LiveAcceptError::Failed)?;
    match LiveMessage::decode(&message)? {
        LiveMessage::Bind(session) => Ok(LiveBinding {
            peer,
            session,
            tls: Box::new(tls.into()),
            _places: places,
        }),
        LiveMessage::Bound(_) | LiveMessage::Refused(..) | LiveMessage::Ping(_) | LiveMessage::Pong(_) => {
            Err(MessageFault { kind: message[0] }.into())
        }
    }
}

impl LiveBinding {
    /// Answers that the session is held by this run. The answer leaves with the first
    /// [`LiveConnection::pings`].
    #[must_use]
    pub fn bind(self, boot: ProcessBootId) -> LiveConnection {
        let mut connection = LiveConnection::new(self.tls);
        connection.queue(LiveMessage::Bound(boot));
        connection
    }

    /// Answers that it is not, and ends the connection.
    pub async fn refuse(mut self, why: BindRefusal, boot: ProcessBootId) {
        let answer = LiveMessage::Refused(why, boot).encode();
        // A peer that does not take it is refused all the same.
        let _ = timeout(REFUSAL_MAX, async {
            self.tls.write_all(&answer).await?;
            self.tls.shutdown().await
        })
        .await;
    }
}

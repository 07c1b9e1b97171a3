//! The association between two daemons: TLS 1.3 with both node certificates, run over a leg that
//! a relay carries, for one shared secret (ARCHITECTURE.md, Streams).
//!
//! ```text
//! dialler ── ClientHello … Finished ──► acceptor      ALPN fairlead-pair/1, no tickets
//! dialler ── version, association, boot counter ──► acceptor
//! dialler ◄── version, boot counter, dead run ── acceptor
//! both: secret = exporter(label, association ‖ boot ‖ boot)
//! ```
//! The relay sees a TLS session and can neither read nor answer it. Streams of the association are
//! sealed with keys drawn from the secret, without another handshake.

use crate::leg::{FrameReadError, Leg, LegCode, LegRecv, LegSend};
use crate::listen::HANDSHAKE_DEADLINE;
use crate::tls::{IdentityMismatch, MemberTls, NO_NAME, Peer, TlsError, VerifyFault, identity_of_chain};
use fairlead_codec::{ReadError, Reader};
use fairlead_hop::frame::{Answer, Frame, Refusal};
use fairlead_model::{AssociationId, BootCounter, Identity, NodeId};
use rustls_pki_types::{CertificateDer, ServerName};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// ALPN of an association.
pub const ALPN: &[u8] = b"fairlead-pair/1";
/// The exporter's label (RFC 8446 section 7.5).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-fairlead-pair-1";
/// The only version of the messages inside.
const VERSION: u8 = 1;
/// version, association, boot counter.
const HELLO_LEN: usize = 1 + 16 + 8;
/// version, boot counter.
const REPLY_LEN: usize = 1 + 8;
/// The dead run's boot counter, 0 for none. Acceptors of an older version say nothing behind their own.
const DEAD_LEN: usize = 8;

/// What two daemons share. Wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PairSecret([u8; 32]);

impl PairSecret {
    /// A secret that two ends have got otherwise, in a simulation say.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret itself.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for PairSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairSecret(…)")
    }
}

/// What the dialler says of itself, inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairHello {
    /// The association's id, chosen by the dialler, fresh for each.
    pub association: AssociationId,
    /// How often the dialling daemon has started.
    pub boot: BootCounter,
}

/// What the acceptor says of itself, inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairRun {
    /// How often the accepting daemon has started.
    pub boot: BootCounter,
    /// An earlier run of which this one knows that it is dead.
    pub dead: Option<BootCounter>,
}

/// An association from the dialler's side.
#[derive(Debug)]
pub struct Paired {
    /// The shared secret.
    pub secret: PairSecret,
    /// The publisher's node: the one expected.
    pub peer: NodeId,
    /// How often its daemon has started.
    pub peer_boot: BootCounter,
    /// An earlier run of the daemon that is dead, as it says: one of any other may be alive, in a copy of its
    /// folder.
    pub peer_dead: Option<BootCounter>,
}

/// An association from the acceptor's side.
#[derive(Debug)]
pub struct Accepted {
    /// The shared secret.
    pub secret: PairSecret,
    /// The dialling node, as proved by its certificate.
    pub peer: NodeId,
    /// How often its daemon has started.
    pub peer_boot: BootCounter,
    /// The association's id.
    pub association: AssociationId,
}

/// Why two daemons did not pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The relay or the publisher said no.
    #[error("the leg for the pair was refused: {}", .0.code)]
    Refused(Refusal),
    /// The leg's answer could not be read.
    #[error("the leg for the pair failed")]
    Leg(#[source] FrameReadError),
    /// The leg ended, or carried another frame than an answer.
    #[error("the leg for the pair ended before it was answered")]
    Unanswered,
    /// The peer proved to be another node.
    #[error(transparent)]
    Identity(IdentityMismatch),
    /// TLS failed: the peer's certificate, or bytes that the relay changed.
    #[error("the handshake with the peer failed")]
    Handshake(#[source] io::Error),
    /// The peer's message is malformed.
    #[error("the peer sent a malformed pair message")]
    Message(#[source] ReadError),
    /// The peer speaks another version.
    #[error("the peer speaks version {0} of the pair messages, this end speaks {VERSION}")]
    Version(u8),
    /// No end within the deadline.
    #[error("no association within {} s", HANDSHAKE_DEADLINE.as_secs())]
    Deadline,
    /// This end cannot set up its TLS.
    #[error("cannot set up TLS")]
    Setup(#[source] TlsError),
    /// The secret could not be drawn from the session.
    #[error("cannot draw the pair secret")]
    Exporter(#[source] rustls::Error),
}

/// Pairs with `expect` over `leg`, on which an OPEN for a pair has just been written: the
/// ClientHello goes out before the answer is in. Not cancel-safe: cancelled, the leg is lost.
///
/// # Errors
/// The leg was refused or failed, or the peer is not `expect`.
pub async fn dial(
    leg: Leg,
    tls: &Arc<MemberTls>,
    expect: NodeId,
    hello: PairHello,
) -> Result<Paired, PairError> {
    let (config, verifier) = tls
        .client_config(Peer::Exactly(Identity::Node(expect)), ALPN)
        .map_err(PairError::Setup)?;
    let connector = TlsConnector::from(Arc::new(config));
    let io = LegIo {
        send: leg.send,
        recv: leg.recv,
        answer: AnswerState::Awaited,
    };
    within_deadline(async move {
        let name = ServerName::try_from(NO_NAME)
            .map_err(|_| PairError::Setup(TlsError::Setup(rustls::Error::General(NO_NAME.to_owned()))))?;
        let mut tls = match connector.connect(name, io).into_fallible().await {
            Ok(tls) => tls,
            Err((error, io)) => {
                let fault = match verifier.take_fault() {
                    Some(VerifyFault::Mismatch(mismatch)) => PairError::Identity(mismatch),
                    Some(VerifyFault::Chain(_) | VerifyFault::NoIdentity(_)) | None => io.answer.fault(error),
                };
                return Err(fault);
            }
        };
        let mut message = Vec::with_capacity(HELLO_LEN);
        message.push(VERSION);
        message.extend_from_slice(&hello.association.to_bytes());
        message.extend_from_slice(&hello.boot.0.to_be_bytes());
        tls.write_all(&message).await.map_err(PairError::Handshake)?;
        tls.flush().await.map_err(PairError::Handshake)?;
        let mut reply = [0; REPLY_LEN];
        tls.read_exact(&mut reply).await.map_err(PairError::Handshake)?;
        let mut reader = Reader::new(&reply);
        version(&mut reader)?;
        let peer_boot = BootCounter(reader.u64().map_err(PairError::Message)?);
        let mut dead = [0; DEAD_LEN];
        // The end of the message, or of the leg: nothing is said of an earlier run.
        let said = tls.read_exact(&mut dead).await.is_ok();
        let dead = BootCounter(u64::from_be_bytes(dead));
        let secret = PairSecret(
            tls.get_ref()
                .1
                .export_keying_material([0; 32], EXPORTER_LABEL, Some(&context(hello, peer_boot)))
                .map_err(PairError::Exporter)?,
        );
        tls.get_mut().0.send.finish();
        Ok(Paired {
            secret,
            peer: expect,
            peer_boot,
            peer_dead: (said && dead != BootCounter(0) && dead < peer_boot).then_some(dead),
        })
    })
    .await
}

/// Pairs with whoever dials over `leg`, which has been answered with OK. Any node of the
/// pool may pair: what it may reach is decided by the grant that each stream brings. Not
/// cancel-safe: cancelled, the leg is lost.
///
/// # Errors
/// The leg failed, or the peer is no node of this pool.
pub async fn accept(leg: Leg, tls: &Arc<MemberTls>, run: PairRun) -> Result<Accepted, PairError> {
    accept_saying(leg, tls, run.boot, reply(run)).await
}

fn reply(run: PairRun) -> Vec<u8> {
    let mut reply = Vec::with_capacity(REPLY_LEN + DEAD_LEN);
    reply.push(VERSION);
    reply.extend_from_slice(&run.boot.0.to_be_bytes());
    reply.extend_from_slice(&run.dead.unwrap_or_default().0.to_be_bytes());
    reply
}

/// The same with another reply, in tests.
pub(crate) async fn accept_saying(
    leg: Leg,
    tls: &Arc<MemberTls>,
    boot: BootCounter,
    reply: Vec<u8>,
) -> Result<Accepted, PairError> {
    let config = tls.server_config(Peer::AnyNode, ALPN).map_err(PairError::Setup)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let domain = tls.domain().clone();
    let io = LegIo {
        send: leg.send,
        recv: leg.recv,
        answer: AnswerState::Over,
    };
    within_deadline(async move {
        let mut tls = acceptor.accept(io).await.map_err(PairError::Handshake)?;
        let no_node = || PairError::Handshake(io::Error::other("the peer has no node certificate"));
        let chain: &[CertificateDer<'_>] = tls.get_ref().1.peer_certificates().ok_or_else(no_node)?;
        let peer = match identity_of_chain(chain, &domain) {
            Ok((Identity::Node(node), _)) => node,
            Ok((Identity::Control | Identity::Relay(_), _)) | Err(_) => return Err(no_node()),
        };
        let mut message = [0; HELLO_LEN];
        tls.read_exact(&mut message).await.map_err(PairError::Handshake)?;
        let mut reader = Reader::new(&message);
        version(&mut reader)?;
        let association = AssociationId::from_bytes(reader.array().map_err(PairError::Message)?);
        let peer_boot = BootCounter(reader.u64().map_err(PairError::Message)?);
        let hello = PairHello {
            association,
            boot: peer_boot,
        };
        let secret = PairSecret(
            tls.get_ref()
                .1
                .export_keying_material([0; 32], EXPORTER_LABEL, Some(&context(hello, boot)))
                .map_err(PairError::Exporter)?,
        );
        tls.write_all(&reply).await.map_err(PairError::Handshake)?;
        tls.flush().await.map_err(PairError::Handshake)?;
        // The reply is in the leg: finishing sends it whole.
        tls.get_mut().0.send.finish();
        Ok(Accepted {
            secret,
            peer,
            peer_boot,
            association,
        })
    })
    .await
}

/// Boxes the handshake before anything holds it: a TLS session is large, and pairs are rare.
fn within_deadline<T>(
    pair: impl Future<Output = Result<T, PairError>>,
) -> impl Future<Output = Result<T, PairError>> {
    let pair = tokio::time::timeout(HANDSHAKE_DEADLINE, Box::pin(pair));
    async { pair.await.unwrap_or(Err(PairError::Deadline)) }
}

fn version(reader: &mut Reader<'_>) -> Result<(), PairError> {
    match reader.u8().map_err(PairError::Message)? {
        VERSION => Ok(()),
        other => Err(PairError::Version(other)),
    }
}

/// Binds the secret to the association and to both runs.
fn context(hello: PairHello, acceptor_boot: BootCounter) -> [u8; 32] {
    let mut context = [0; 32];
    let parts = hello
        .association
        .to_bytes()
        .into_iter()
        .chain(hello.boot.0.to_be_bytes())
        .chain(acceptor_boot.0.to_be_bytes());
    for (to, from) in context.iter_mut().zip(parts) {
        *to = from;
    }
    context
}

/// A leg as one reader and writer, for TLS. While the leg's answer is awaited, reading reads that
/// first.
struct LegIo {
    send: LegSend,
    recv: LegRecv,
    answer: AnswerState,
}

enum AnswerState {
    Awaited,
    Over,
    Failed(PairError),
}

impl AnswerState {
    /// The leg's own failure, or else that of the TLS above it.
    fn fault(self, error: io::Error) -> PairError {
        match self {
            Self::Failed(fault) => fault,
            Self::Awaited | Self::Over => PairError::Handshake(error),
        }
    }
}

impl AsyncRead for LegIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.answer, AnswerState::Awaited) {
            // Cancel-safe, so a fresh future takes up where the last one was.
            let answer = std::task::ready!(std::pin::pin!(this.recv.read_frame()).poll(cx));
            let fault = match answer {
                Ok(Some(Frame::Answer(Answer::Ok))) => None,
                Ok(Some(Frame::Answer(Answer::Refused(refusal)))) => Some(PairError::Refused(refusal)),
                Ok(Some(_) | None) => Some(PairError::Unanswered),
                Err(error) => Some(PairError::Leg(error)),
            };
            match fault {
                None => this.answer = AnswerState::Over,
                Some(fault) => {
                    this.send.reset(LegCode::CANCELLED);
                    this.answer = AnswerState::Failed(fault);
                }
            }
        }
        match this.answer {
            AnswerState::Failed(_) => Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into())),
            AnswerState::Awaited | AnswerState::Over => Pin::new(&mut this.recv).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for LegIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().send).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().send).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().send).poll_shutdown(cx)
    }
}

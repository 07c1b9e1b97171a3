//! Sessions of supervisors and node daemons: wanted flows down, observed flows up.
//!
//! A session's task holds what it has sent and compares it with what is signed: a change that comes
//! while the member is slow is not queued but seen at the next turn. The only queue is the one to
//! tonic, of [`DOWN_QUEUED_MAX`] messages; a member that does not take them for [`SEND_WAIT_MAX`]
//! is cut off and comes again.

mod copies;
mod node;
mod relay;

pub(crate) use copies::Processes;

use crate::audit::AuditNote;
use crate::authority::{Csr, Issuance};
use crate::control::Inner;
use crate::ledger::Change;
use crate::observed::{Closed, Refused};
use crate::record::{EnrolledRecord, MemberKey, NodeRecord, RelayRecord, Text, key};
use crate::state::State;
use fairlead_model::{Identity, MonoTime, WallTime};
use fairlead_rpc::pb;
use fairlead_rpc::pb::member_control_server::{MemberControl, MemberControlServer};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Messages that wait for the connection: a welcome, a bundle, a policy, a lease, and probes.
const DOWN_QUEUED_MAX: usize = 16;
/// How long a member may take none of them.
const SEND_WAIT_MAX: Duration = Duration::from_secs(15);
/// How long a member may take to say hello.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(10);
/// Silence after which a session is over: members report every 10 s.
const SILENCE_MAX: Duration = Duration::from_secs(35);
/// Greatest message of a member: a status with 4,096 registrations and listeners is below it.
const MESSAGE_LEN_MAX: usize = 1024 * 1024;
/// Greatest text that is kept of a report.
const TEXT_LEN_MAX: usize = 512;

/// Who is at the other end of a gRPC connection: proven by its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    /// SHA-256 of the public key that it proved to have.
    pub(crate) key_hash: [u8; 32],
    /// Where its connection comes from.
    pub(crate) address: IpAddr,
    /// Rises from connection to connection. Drawn before the handshake was answered: a process that has done
    /// the handshake lived then.
    pub(crate) arrival: u64,
}

impl Caller {
    /// Whether it proved the key that the member enrolled with last.
    fn has_key_of(self, enrolled: &EnrolledRecord) -> bool {
        enrolled.key_hash == hex::encode(self.key_hash)
    }
}

/// The gRPC service.
#[derive(Debug, Clone)]
pub(crate) struct Members(Arc<Inner>);

/// The service, with its bounds.
pub(crate) fn service(inner: Arc<Inner>) -> MemberControlServer<Members> {
    MemberControlServer::new(Members(inner))
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        // A policy with its lease.
        .max_encoding_message_size(4 * 1024 * 1024)
}

type Down<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl MemberControl for Members {
    type RelaySessionStream = Down<pb::RelayDown>;
    type NodeSessionStream = Down<pb::NodeDown>;

    async fn relay_session(
        &self,
        request: Request<Streaming<pb::RelayUp>>,
    ) -> Result<Response<Self::RelaySessionStream>, Status> {
        let caller = caller(&request)?;
        let Identity::Relay(id) = caller.identity else {
            return Err(wrong_role("RelaySession", "a relay"));
        };
        enrolled(&self.0.ledger.state(), MemberKey::Relay(Text(id)), caller)?;
        let (down, stream) = mpsc::channel(DOWN_QUEUED_MAX);
        let inner = Arc::clone(&self.0);
        self.0
            .sessions
            .spawn(relay::run(inner, id, caller, request.into_inner(), down));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn node_session(
        &self,
        request: Request<Streaming<pb::NodeUp>>,
    ) -> Result<Response<Self::NodeSessionStream>, Status> {
        let caller = caller(&request)?;
        let Identity::Node(id) = caller.identity else {
            return Err(wrong_role("NodeSession", "a node"));
        };
        enrolled(&self.0.ledger.state(), MemberKey::Node(Text(id)), caller)?;
        let (down, stream) = mpsc::channel(DOWN_QUEUED_MAX);
        let inner = Arc::clone(&self.0);
        self.0
            .sessions
            .spawn(node::run(inner, id, caller, request.into_inner(), down));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn renew_certificate(
        &self,
        request: Request<pb::RenewCertificateRequest>,
    ) -> Result<Response<pb::RenewCertificateResponse>, Status> {
        let caller = caller(&request)?;
        let csr = Csr::from_der(&request.get_ref().csr)
            .map_err(|e| Status::invalid_argument(format!("the signing request: {e}")))?;
        // With the key it has, no crash parts a member's key and its certificate; another key comes
        // with another enrolment.
        if csr.key_hash != caller.key_hash {
            return Err(Status::invalid_argument(
                "the signing request: a renewal keeps the member's key",
            ));
        }
        let issuance = self.renew(caller, &csr).await?;
        Ok(Response::new(pb::RenewCertificateResponse {
            certificate_chain: vec![bytes::Bytes::copy_from_slice(&issuance.der)],
            trust_bundle: Some(pb::TrustBundle::from(&self.0.bundle)),
        }))
    }
}

impl Members {
    /// Records the member's new certificate, then signs it (R-ENR-08).
    async fn renew(&self, caller: Caller, csr: &Csr) -> Result<Issuance, Status> {
        let inner = &self.0;
        let member = match caller.identity {
            Identity::Relay(id) => MemberKey::Relay(Text(id)),
            Identity::Node(id) => MemberKey::Node(Text(id)),
            Identity::Control => return Err(wrong_role("RenewCertificate", "a relay or a node")),
        };
        let issuance = inner
            .authority
            .issue(csr, caller.identity, &inner.domain, inner.clock.wall())
            .map_err(internal)?;
        let turn = inner.ledger.turn().await.map_err(unavailable)?;
        enrolled(turn.state(), member, caller)?;
        let renewed = |before: &EnrolledRecord| EnrolledRecord {
            certificate_not_after: issuance.not_after.into(),
            ..before.clone()
        };
        let mut change = Change::default();
        match member {
            MemberKey::Relay(id) => {
                let before = turn.state().relay(id.0).ok_or_else(gone)?;
                let after = RelayRecord {
                    enrolled: Some(renewed(before.enrolled.as_ref().ok_or_else(gone)?)),
                    ..before.clone()
                };
                let object = format!("relay {}", before.name.0);
                change.note(
                    AuditNote::new(object.clone(), "relay.certificate.renew", object)
                        .before(before)
                        .after(&after),
                );
                change.put(key::relay(id.0), &after);
            }
            MemberKey::Node(id) => {
                let before = turn.state().node(id.0).ok_or_else(gone)?;
                let after = NodeRecord {
                    enrolled: Some(renewed(before.enrolled.as_ref().ok_or_else(gone)?)),
                    ..before.clone()
                };
                let object = format!("node {}", before.name.0);
                change.note(
                    AuditNote::new(object.clone(), "node.certificate.renew", object)
                        .before(before)
                        .after(&after),
                );
                change.put(key::node(id.0), &after);
            }
        }
        turn.commit(change).await.map_err(unavailable)?;
        Ok(issuance)
    }
}

/// A certificate of ours is not enough: the member must be there still, and the key must be the one
/// that it enrolled with last.
fn enrolled(state: &State, member: MemberKey, caller: Caller) -> Result<(), Status> {
    let enrolled = match member {
        MemberKey::Relay(id) => state.relay(id.0).map(|r| r.enrolled.as_ref()),
        MemberKey::Node(id) => state.node(id.0).map(|n| n.enrolled.as_ref()),
    };
    let enrolled = enrolled.ok_or_else(gone)?.ok_or_else(superseded)?;
    if caller.has_key_of(enrolled) {
        Ok(())
    } else {
        Err(Status::permission_denied(
            "this control plane knows this member by another key: its host enrolled again since, or this control plane was restored \
             from a backup that is older than the enrolment; stop this daemon, or remove the member, add it again and \
             enrol the host into an empty folder",
        ))
    }
}

/// Not there is all that is known: a store that was restored has never heard of what came after its backup.
fn gone() -> Status {
    Status::permission_denied(
        "this control plane does not know this member: it was removed, or the control plane was restored from a backup \
         that is older than the member; stop its daemon, or add it again and enrol its host into an empty folder",
    )
}

/// Mostly a new token was made for a member that had not come yet: its older enrolment ended with that.
fn superseded() -> Status {
    Status::permission_denied(
        "this enrolment does not count here: it was superseded by a newer token that was made for the member before this \
         host connected, or this control plane was restored from a backup that is older than the enrolment; stop this \
         daemon, and enrol the host with a new token into an empty folder",
    )
}

/// The caller that the connection's TLS proved. Without one nothing is served: the service is
/// never mounted where client certificates are not asked for.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    request
        .extensions()
        .get::<Caller>()
        .copied()
        .ok_or_else(|| Status::unauthenticated("no client certificate"))
}

fn wrong_role(method: &str, expected: &str) -> Status {
    Status::permission_denied(format!(
        "{method} is for {expected}; the certificate says another role"
    ))
}

fn internal(error: impl std::error::Error) -> Status {
    Status::internal(fairlead_telemetry::chain(&error))
}

fn unavailable(error: impl std::error::Error) -> Status {
    Status::unavailable(fairlead_telemetry::chain(&error))
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The member closed it, or its connection broke.
    Gone,
    /// The member said that it stops.
    Goodbye,
    /// The member broke the order of messages.
    Protocol,
    /// The member takes no messages.
    Stuck,
    /// The member says nothing.
    Silent,
    /// A newer session of the same member took its place, or the member was removed.
    Replaced,
    /// The control plane stops.
    Stopping,
}

impl Ended {
    /// Why a session was cancelled.
    fn cancelled(stopping: &CancellationToken) -> Self {
        if stopping.is_cancelled() {
            Self::Stopping
        } else {
            Self::Replaced
        }
    }

    /// For the log.
    const fn words(self) -> &'static str {
        match self {
            Self::Gone => "the member closed it, or its connection broke",
            Self::Goodbye => "the member stops",
            Self::Protocol => "the member broke the order of messages",
            Self::Stuck => "the member takes no messages",
            Self::Silent => "the member says nothing",
            Self::Replaced => "a newer session took its place, or the member was removed",
            Self::Stopping => "the control plane stops",
        }
    }
}

impl Closed {
    /// How a session is closed that ended so.
    fn by(ended: Ended, at: MonoTime) -> Self {
        let stopped = match ended {
            Ended::Goodbye => true,
            Ended::Gone
            | Ended::Protocol
            | Ended::Stuck
            | Ended::Silent
            | Ended::Replaced
            | Ended::Stopping => false,
        };
        Self { at, stopped }
    }
}

impl Refused {
    /// A hello whose clock differs.
    fn by_clock(fault: &str, at: MonoTime) -> Self {
        Self {
            code: Self::CLOCK_DIFFERS,
            words: fault.to_owned(),
            at,
        }
    }
}

/// Sends one message; bounded in time.
async fn send<T>(down: &mpsc::Sender<Result<T, Status>>, message: T) -> Result<(), Ended> {
    send_result(down, Ok(message)).await
}

async fn send_result<T>(
    down: &mpsc::Sender<Result<T, Status>>,
    message: Result<T, Status>,
) -> Result<(), Ended> {
    match tokio::time::timeout(SEND_WAIT_MAX, down.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Ended::Gone),
        Err(_) => Err(Ended::Stuck),
    }
}

/// A text of a report, cut to its bound.
fn text(mut text: String) -> String {
    if text.len() > TEXT_LEN_MAX {
        let end = (0..=TEXT_LEN_MAX)
            .rev()
            .find(|n| text.is_char_boundary(*n))
            .unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// Says how far the clocks differ, where it is too far.
fn clock_fault(theirs_ms: i64, ours: WallTime) -> Option<String> {
    let theirs = WallTime(theirs_ms);
    let (difference, how) = if theirs > ours {
        (theirs.since(ours), "ahead of")
    } else {
        (ours.since(theirs), "behind")
    };
    (difference > crate::enrol::CLOCK_SKEW_MAX).then(|| {
        format!(
            "clock differs by {}: the member's clock is {how} the control plane's",
            crate::enrol::about(difference)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stop of the control plane cancels every session: none of them was replaced by another.
    #[test]
    fn a_stop_is_not_said_to_be_a_replacement() {
        let stopping = CancellationToken::new();
        assert_eq!(Ended::cancelled(&stopping), Ended::Replaced);
        stopping.cancel();
        assert_eq!(Ended::cancelled(&stopping), Ended::Stopping);
        assert_eq!(Ended::Stopping.words(), "the control plane stops");
    }

    /// R-POL-05: 60 s in either direction are tolerated, and not a millisecond more.
    #[test]
    fn a_clock_may_differ_by_a_minute_and_no_more() {
        let ours = WallTime(1_800_000_000_000);
        for difference in [0, 1, 59_999, 60_000] {
            assert_eq!(clock_fault(ours.0 + difference, ours), None);
            assert_eq!(clock_fault(ours.0 - difference, ours), None);
        }
        let ahead = clock_fault(ours.0 + 60_001, ours).unwrap();
        assert!(
            ahead.starts_with("clock differs by 1m") && ahead.contains("ahead of"),
            "{ahead}"
        );
        let behind = clock_fault(ours.0 - 60_001, ours).unwrap();
        assert!(
            behind.starts_with("clock differs by 1m") && behind.contains("behind"),
            "{behind}"
        );
        assert!(clock_fault(i64::MIN, ours).is_some() && clock_fault(i64::MAX, ours).is_some());
    }
}

//! Why a session was ended by its other end.

use std::time::Duration;
use tonic::{Status, Streaming};

/// How long a reason that is on its way is waited for. It comes before the end of the stream, with
/// what is in the connection already.
const REASON_MAX: Duration = Duration::from_secs(1);

/// The status with which a session's other end has closed it, if it comes within a second.
///
/// A message that cannot go up any more tells nothing of why: that is said in what still comes down.
pub async fn reason<T>(down: &mut Streaming<T>) -> Option<Status> {
    let said = async {
        loop {
            match down.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    tokio::time::timeout(REASON_MAX, said).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb;
    use crate::pb::member_control_client::MemberControlClient;
    use crate::pb::member_control_server::{MemberControl, MemberControlServer};
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;
    use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
    use tonic::transport::Server;
    use tonic::{Code, Request, Response};

    const LIMIT: Duration = Duration::from_secs(20);
    const FAULT: &str = "clock differs by 10m";

    /// Reads no session: a node's ends with a reason after a message, a relay's without.
    struct Refusing;

    type Downs<T> = ReceiverStream<Result<T, Status>>;

    fn downs<T>(messages: impl IntoIterator<Item = Result<T, Status>>) -> Downs<T> {
        let (send, downs) = mpsc::channel(2);
        for message in messages {
            send.try_send(message).unwrap();
        }
        ReceiverStream::new(downs)
    }

    #[tonic::async_trait]
    impl MemberControl for Refusing {
        type NodeSessionStream = Downs<pb::NodeDown>;
        type RelaySessionStream = Downs<pb::RelayDown>;

        async fn node_session(
            &self,
            _unread: Request<Streaming<pb::NodeUp>>,
        ) -> Result<Response<Downs<pb::NodeDown>>, Status> {
            let refused = Status::failed_precondition(FAULT);
            Ok(Response::new(downs([Ok(pb::NodeDown::default()), Err(refused)])))
        }

        async fn relay_session(
            &self,
            _unread: Request<Streaming<pb::RelayUp>>,
        ) -> Result<Response<Downs<pb::RelayDown>>, Status> {
            Ok(Response::new(downs([])))
        }

        async fn renew_certificate(
            &self,
            _: Request<pb::RenewCertificateRequest>,
        ) -> Result<Response<pb::RenewCertificateResponse>, Status> {
            Err(Status::unimplemented("not here"))
        }
    }

    /// R-POL-05: once nothing can go up any more, the reason is still heard, behind what came before it; an
    /// end without one is told as such.
    #[tokio::test]
    async fn a_reason_is_heard_when_nothing_goes_up_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = Server::builder()
                .add_service(MemberControlServer::new(Refusing))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await;
        });
        let mut client = MemberControlClient::new(super::super::unix(&path).await.unwrap());
        let (up, outbox) = mpsc::channel(1);
        let opened = client.node_session(ReceiverStream::new(outbox)).await.unwrap();
        let mut down = opened.into_inner();
        tokio::time::timeout(LIMIT, up.closed()).await.unwrap();
        assert!(up.send(pb::NodeUp::default()).await.is_err());
        let said = reason(&mut down).await.unwrap();
        assert_eq!((said.code(), said.message()), (Code::FailedPrecondition, FAULT));

        let (_up, outbox) = mpsc::channel(1);
        let opened = client.relay_session(ReceiverStream::new(outbox)).await.unwrap();
        assert!(reason(&mut opened.into_inner()).await.is_none());
    }
}

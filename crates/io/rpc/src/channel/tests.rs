//! The channel against real TLS servers on loopback.

use super::*;
use crate::GRPC_SERVER_NAME;
use crate::pb::WorkerStatusRequest;
use crate::pb::worker_control_client::WorkerControlClient;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::Server;

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    fn issue(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn server_config(ca: &Ca, alpn: &[u8]) -> ServerConfig {
    let clients = WebPkiClientVerifier::builder_with_provider(ca.roots(), provider())
        .build()
        .unwrap();
    let (chain, key) = ca.issue(GRPC_SERVER_NAME);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

fn client_config(ca: &Ca) -> Arc<ClientConfig> {
    let (chain, key) = ca.issue("member");
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(ca.roots())
        .with_client_auth_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

/// A gRPC server without a service: it answers every call with `Unimplemented`, which only a whole
/// round trip brings back.
struct GrpcServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    accepts: JoinSet<()>,
    serves: JoinSet<()>,
}

impl GrpcServer {
    async fn start(config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let (send, accepted) = tokio::sync::mpsc::channel(4);
        let mut accepts = JoinSet::new();
        accepts.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                if let Ok(tls) = acceptor.accept(tcp).await {
                    assert_eq!(tls.get_ref().1.server_name(), Some(GRPC_SERVER_NAME));
                    assert!(tls.get_ref().1.peer_certificates().is_some());
                    let _ = send.send(Ok::<_, io::Error>(tls)).await;
                }
            }
        });
        let incoming = tokio_stream::wrappers::ReceiverStream::new(accepted);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut serves = JoinSet::new();
        serves.spawn(async move {
            let _ = Server::builder()
                .add_routes(Routes::default())
                .serve_with_incoming_shutdown(incoming, async {
                    let _ = stopped.await;
                })
                .await;
        });
        Self {
            address,
            connections,
            stop,
            accepts,
            serves,
        }
    }

    /// Closes listener and connections, and waits until they are closed.
    async fn stop(mut self) {
        self.accepts.shutdown().await;
        let _ = self.stop.send(());
        while self.serves.join_next().await.is_some() {}
    }
}

async fn call(channel: Channel) -> Code {
    let mut client = WorkerControlClient::new(channel);
    client.status(WorkerStatusRequest {}).await.unwrap_err().code()
}

async fn connect_to(address: SocketAddr, tls: Arc<ClientConfig>) -> Result<Channel, ConnectError> {
    connect(&address.into(), tls, GRPC_SERVER_NAME).await
}

#[tokio::test]
async fn a_call_goes_through_with_both_certificates() {
    let ca = Ca::new();
    let server = GrpcServer::start(server_config(&ca, b"h2")).await;
    let channel = connect_to(server.address, client_config(&ca)).await.unwrap();
    assert_eq!(call(channel.clone()).await, Code::Unimplemented);
    assert_eq!(call(channel).await, Code::Unimplemented);
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

/// A name is tried at all its addresses: `localhost` is often `::1` too, where nothing listens.
#[tokio::test]
async fn a_name_is_tried_at_all_its_addresses() {
    let ca = Ca::new();
    let server = GrpcServer::start(server_config(&ca, b"h2")).await;
    let address = HostPort::parse("localhost", Some(server.address.port())).unwrap();
    let channel = connect(&address, client_config(&ca), GRPC_SERVER_NAME)
        .await
        .unwrap();
    assert_eq!(call(channel).await, Code::Unimplemented);
}

/// A channel is one connection: when it ends, calls fail and nothing dials behind the caller's back.
#[tokio::test]
async fn an_ended_connection_is_not_dialled_again() {
    let ca = Ca::new();
    let server = GrpcServer::start(server_config(&ca, b"h2")).await;
    let address = server.address;
    let channel = connect_to(address, client_config(&ca)).await.unwrap();
    assert_eq!(call(channel.clone()).await, Code::Unimplemented);
    server.stop().await;
    // The same port, alive again.
    let listener = TcpListener::bind(address).await.unwrap();
    for _ in 0..3 {
        let code = call(channel.clone()).await;
        assert!(matches!(code, Code::Unavailable | Code::Unknown), "{code:?}");
    }
    let dialled = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(dialled.is_err(), "it dialled again");
}

#[tokio::test]
async fn another_ca_is_an_identity_error() {
    let (ours, theirs) = (Ca::new(), Ca::new());
    let server = GrpcServer::start(server_config(&theirs, b"h2")).await;
    let error = connect_to(server.address, client_config(&ours))
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Identity { .. }), "{error:?}");
    assert!(error.to_string().contains(&server.address.to_string()));
}

#[tokio::test]
async fn a_closed_port_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = connect_to(address, client_config(&Ca::new())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

/// RFC 6761: `.invalid` names never resolve.
#[tokio::test]
async fn a_name_without_address_is_unresolved() {
    let address = HostPort::parse("control.invalid", Some(8443)).unwrap();
    let error = connect(&address, client_config(&Ca::new()), GRPC_SERVER_NAME)
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Unresolved { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .starts_with("control.invalid:8443 does not resolve")
    );
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_a_tls_error() {
    use tokio::io::AsyncWriteExt;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = async {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        tcp
    };
    let (error, _tcp) = tokio::join!(connect_to(address, client_config(&Ca::new())), server);
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_without_http2_is_named_so() {
    let ca = Ca::new();
    let server = GrpcServer::start(server_config(&ca, b"http/1.1")).await;
    let error = connect_to(server.address, client_config(&ca)).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotGrpc { .. }), "{error:?}");
}

/// The paused clock jumps to the deadline as soon as nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = connect_to(address, client_config(&Ca::new())).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_name_is_a_dns_name() {
    let address = HostPort::parse("127.0.0.1:1", None).unwrap();
    let error = connect(&address, client_config(&Ca::new()), "no name")
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::ServerName(_)), "{error:?}");
}

#[tokio::test]
async fn a_unix_socket_carries_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("worker.sock");
    let error = unix(&path).await.unwrap_err();
    assert!(matches!(error, ConnectError::Socket { .. }), "{error:?}");
    assert!(error.to_string().contains("worker.sock"));

    let listener = UnixListener::bind(&path).unwrap();
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = Server::builder()
            .add_routes(Routes::default())
            .serve_with_incoming(incoming)
            .await;
    });
    let channel = unix(&path).await.unwrap();
    assert_eq!(call(channel).await, Code::Unimplemented);
}

/// RFC 8305: the families take turns, so that one broken family costs one attempt's delay.
#[test]
fn address_families_take_turns() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let found = ["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1"].map(address);
    let expected = ["[::1]:1", "127.0.0.1:1", "[::2]:1", "[::3]:1"].map(address);
    assert_eq!(dial::interleaved(found.to_vec()), expected);
    let many = vec![address("127.0.0.1:1"); 40];
    assert_eq!(dial::interleaved(many).len(), dial::ADDRESSES_MAX);
}

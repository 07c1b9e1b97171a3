//! Once over real TLS: the router behind the control plane's own port.

use super::{Subject, request};
use crate::limit::FAILURES_MAX;
use axum::body::Body;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Streams end with the control plane: it does not wait for them.
const STOPPED_WITHIN: Duration = Duration::from_secs(4);

/// Trusts what the pool's CA signed, whatever its names: the control plane's certificate has an
/// identity and no host name.
#[derive(Debug)]
struct SignedByCa {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SignedByCa {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, chain, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, leaf, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

async fn connect(subject: &Subject, address: SocketAddr, alpn: &[&str]) -> TlsStream<TcpStream> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(subject.control.ca_pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(SignedByCa { roots, provider }))
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    let tcp = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .unwrap()
}

/// A subject's router behind a port of its own.
struct Served {
    address: SocketAddr,
    cancel: CancellationToken,
    serving: JoinSet<Result<(), fairlead_control::ServeError>>,
}

impl Served {
    async fn start(subject: &Subject) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let (control, router) = (subject.control.clone(), subject.router.clone());
        let mut serving = JoinSet::new();
        serving.spawn(fairlead_control::serve(control, router, listener, cancel.clone()));
        Self {
            address,
            cancel,
            serving,
        }
    }

    /// Ends it; streams do not hold it up.
    async fn stop(mut self) {
        self.cancel.cancel();
        let stopped = tokio::time::timeout(STOPPED_WITHIN, self.serving.join_next());
        stopped.await.unwrap().unwrap().unwrap().unwrap();
    }
}

/// One request on a connection of its own.
async fn exchange(
    subject: &Subject,
    address: SocketAddr,
    alpn: &[&str],
    path: &str,
    token: &str,
) -> Response<Incoming> {
    let io = TokioIo::new(connect(subject, address, alpn).await);
    let mut sent = request(Method::GET, path, Some(token), None);
    let mut tasks = JoinSet::new();
    let answer = if alpn.contains(&"h2") {
        // The authority takes the place of the Host header.
        sent.headers_mut().remove(http::header::HOST);
        *sent.uri_mut() = format!("https://{address}{path}").parse().unwrap();
        let (mut sender, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
            .await
            .unwrap();
        tasks.spawn(async move { drop(driver.await) });
        sender.send_request(sent).await.unwrap()
    } else {
        let (mut sender, driver) = hyper::client::conn::http1::handshake::<_, Body>(io)
            .await
            .unwrap();
        tasks.spawn(async move { drop(driver.await) });
        sender.send_request(sent).await.unwrap()
    };
    tasks.detach_all();
    answer
}

#[tokio::test]
async fn over_tls_with_both_http_versions() {
    let subject = Subject::start().await;
    let served = Served::start(&subject).await;
    let address = served.address;
    for alpn in [&[][..], &["http/1.1"], &["h2"]] {
        let answer = exchange(&subject, address, alpn, "/v1/whoami", &subject.token).await;
        assert_eq!(answer.status(), StatusCode::OK, "{alpn:?}");
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let who: crate::json::WhoAmI = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(who.scopes, ["admin:system"]);
    }
    // The limit knows the peer's address through the real listener.
    for _ in 0..FAILURES_MAX {
        let answer = exchange(&subject, address, &[], "/v1/whoami", "guess").await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
    let answer = exchange(&subject, address, &[], "/v1/whoami", "guess").await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let elsewhere = request(Method::GET, "/v1/whoami", Some(&subject.token), None);
    assert_eq!(subject.send(elsewhere).await.status, StatusCode::OK);

    served.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

/// A subscriber that takes nothing of what it is sent loses its connection; one that reads goes on.
#[tokio::test]
async fn a_reader_that_stops_reading_is_cut_off() {
    let subject = Subject::start().await;
    let served = Served::start(&subject).await;
    let address = served.address;
    let mut drivers = JoinSet::new();
    let mut bodies = Vec::new();
    // The first has room for less than the first event; the second reads.
    for window in [100, 1 << 20] {
        let io = TokioIo::new(connect(&subject, address, &["h2"]).await);
        let (mut sender, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(io)
            .await
            .unwrap();
        drivers.spawn(async move {
            let _ = driver.await;
            window
        });
        let mut sent = request(Method::GET, "/v1/events", Some(&subject.token), None);
        sent.headers_mut().remove(http::header::HOST);
        *sent.uri_mut() = format!("https://{address}/v1/events").parse().unwrap();
        let answer = sender.send_request(sent).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        bodies.push((sender, answer.into_body()));
    }
    let (_kept, reading) = bodies.last_mut().unwrap();
    assert!(reading.frame().await.unwrap().is_ok());
    // The first piece lies in the connection's buffer, the second (a beat at the latest) waits for
    // it, and the third look finds that it has waited for long.
    let mut ended = None;
    for _ in 0..20 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(21)).await;
        tokio::time::resume();
        let moment = Duration::from_secs(1);
        if let Ok(one) = tokio::time::timeout(moment, drivers.join_next()).await {
            ended = one;
            break;
        }
    }
    assert_eq!(ended.unwrap().unwrap(), 100, "the one that reads was cut off");
    subject
        .post("/v1/nodes", serde_json::json!({"name": "a"}))
        .await
        .ok();
    let (_kept, reading) = bodies.last_mut().unwrap();
    assert!(reading.frame().await.unwrap().is_ok());
    served.stop().await;
}

/// A client that sends its whole body before it reads gets the answer, not a reset.
#[tokio::test]
async fn a_huge_body_gets_its_answer() {
    let subject = Subject::start().await;
    let served = Served::start(&subject).await;
    let address = served.address;
    let mut stream = connect(&subject, address, &["http/1.1"]).await;
    let len = 20_000_000;
    let head = format!(
        "POST /v1/nodes HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nContent-Type: \
         application/json\r\nContent-Length: {len}\r\n\r\n",
        subject.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; len]).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    served.stop().await;
}

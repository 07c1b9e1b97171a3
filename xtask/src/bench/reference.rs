//! The reference: TCP, quinn, relay, quinn, TCP, as three processes and nothing more. Default
//! transport settings, the same TLS provider and key exchange as ours; no admission, no resumption,
//! and the relay reads everything.

use super::load::{self, Subject};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Streams of one connection; quinn's default of 100 would end the measurement of idle tunnels.
const STREAMS: u32 = 10_000;
/// Bytes of one read from a socket, and chunks of one read from a stream.
const READ_BYTES: usize = 64 * 1024;
const READ_CHUNKS: usize = 32;
/// How long a part may take to start.
const START: Duration = Duration::from_secs(10);

/// One process of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    Relay,
    Consumer,
    Publisher,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Consumer => "consumer",
            Self::Publisher => "publisher",
        }
    }
}

/// The three processes.
pub(super) struct Tunnel {
    _folder: tempfile::TempDir,
    parts: Vec<Child>,
    address: SocketAddr,
}

impl Tunnel {
    pub(super) fn start(service: SocketAddr) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("quinn-reference-").tempdir()?;
        let mut tunnel = Self {
            address: service,
            parts: Vec::new(),
            _folder: folder,
        };
        for part in [Part::Relay, Part::Publisher, Part::Consumer] {
            let folder = tunnel._folder.path();
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args(["bench", "--part", part.name(), "--folder"])
                .arg(folder);
            command
                .args(["--target", &service.to_string()])
                .stdin(Stdio::null());
            tunnel.parts.push(command.spawn()?);
            tunnel.address = address_of(tunnel._folder.path(), part)?;
        }
        load::until_served(tunnel.address)?;
        Ok(tunnel)
    }

    pub(super) fn subject(&self) -> Subject {
        let pids: Vec<u32> = self.parts.iter().map(Child::id).collect();
        let (relays, nodes) = pids.split_at(1);
        Subject {
            name: "quinn",
            address: self.address,
            relays: relays.to_vec(),
            nodes: nodes.to_vec(),
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for part in &mut self.parts {
            // A part that is gone already is what is wanted.
            let _ = part.kill();
            let _ = part.wait();
        }
    }
}

/// Where a part listens, from the file that it writes when it does.
fn address_of(folder: &Path, part: Part) -> Result<SocketAddr> {
    let file = folder.join(part.name());
    let limit = Instant::now() + START;
    loop {
        match std::fs::read_to_string(&file) {
            Ok(text) => return Ok(text.parse()?),
            Err(_) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error).with_context(|| format!("{} did not start", part.name())),
        }
    }
}

fn announce(folder: &Path, part: Part, address: SocketAddr) -> Result<()> {
    let fresh = folder.join(format!("{}.new", part.name()));
    std::fs::write(&fresh, address.to_string())?;
    Ok(std::fs::rename(fresh, folder.join(part.name()))?)
}

fn certificate_file(folder: &Path) -> PathBuf {
    folder.join("certificate.der")
}

/// Runs as one part until killed; ends with the process that started it.
pub(super) fn run(part: Part, folder: &Path, target: Option<SocketAddr>) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match part {
            Part::Relay => relay(folder).await,
            Part::Consumer => consumer(folder).await,
            Part::Publisher => publisher(folder, target.context("--target is missing")?).await,
        }
    })
}

fn transport() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport.max_concurrent_bidi_streams(VarInt::from_u32(STREAMS));
    // It waits while the other subjects are measured, longer than quinn's idle timeout of 30 s.
    transport.keep_alive_interval(Some(Duration::from_secs(5)));
    Arc::new(transport)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

async fn relay(folder: &Path) -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(vec!["relay".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    std::fs::write(certificate_file(folder), certified.cert.der())?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    tls.alpn_protocols = [Part::Consumer, Part::Publisher]
        .map(|p| p.name().as_bytes().to_vec())
        .to_vec();
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, "127.0.0.1:0".parse()?)?;
    announce(folder, Part::Relay, endpoint.local_addr()?)?;
    let publisher = accept(&endpoint, Part::Publisher).await?;
    let consumer = accept(&endpoint, Part::Consumer).await?;
    let mut tunnels = tokio::task::JoinSet::new();
    loop {
        let (to_consumer, from_consumer) = consumer.accept_bi().await?;
        let publisher = publisher.clone();
        tunnels.spawn(async move {
            let Ok((to_publisher, from_publisher)) = publisher.open_bi().await else {
                return;
            };
            tokio::join!(
                forward(from_consumer, to_publisher),
                forward(from_publisher, to_consumer)
            );
        });
        while tunnels.try_join_next().is_some() {}
    }
}

async fn accept(endpoint: &Endpoint, part: Part) -> Result<Connection> {
    let connection = endpoint.accept().await.context("the endpoint is closed")?.await?;
    let data = connection.handshake_data().context("no handshake")?;
    let data = data
        .downcast::<quinn::crypto::rustls::HandshakeData>()
        .ok()
        .context("no TLS")?;
    if data.protocol.as_deref() != Some(part.name().as_bytes()) {
        bail!("another part than {} connected", part.name());
    }
    Ok(connection)
}

/// One direction through the relay, in batches; an error ends both streams of the direction.
async fn forward(mut from: RecvStream, mut to: SendStream) {
    let mut chunks: [Bytes; READ_CHUNKS] = std::array::from_fn(|_| Bytes::new());
    loop {
        match from.read_chunks(&mut chunks).await {
            Ok(Some(n)) => {
                let Some(batch) = chunks.get_mut(..n) else { return };
                if to.write_all_chunks(batch).await.is_err() {
                    return;
                }
            }
            Ok(None) => {
                let _ = to.finish();
                return;
            }
            Err(_) => {
                let _ = to.reset(VarInt::from_u32(1));
                return;
            }
        }
    }
}

/// A connection of one of the ends to the relay.
async fn dial(folder: &Path, part: Part) -> Result<Connection> {
    let relay = address_of(folder, Part::Relay)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(std::fs::read(certificate_file(folder))?))?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![part.name().as_bytes().to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport());
    let mut endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
    endpoint.set_default_client_config(config);
    Ok(endpoint.connect(relay, "relay")?.await?)
}

async fn consumer(folder: &Path) -> Result<()> {
    let connection = dial(folder, Part::Consumer).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(folder, Part::Consumer, listener.local_addr()?)?;
    let mut tunnels = tokio::task::JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        let connection = connection.clone();
        tunnels.spawn(async move {
            let Ok((mut to, from)) = connection.open_bi().await else {
                return;
            };
            // A stream shows at the far end with its first byte.
            if to.write_all(&[0]).await.is_ok() {
                join(socket, to, from).await;
            }
        });
        while tunnels.try_join_next().is_some() {}
    }
}

async fn publisher(folder: &Path, target: SocketAddr) -> Result<()> {
    let connection = dial(folder, Part::Publisher).await?;
    announce(folder, Part::Publisher, target)?;
    let mut tunnels = tokio::task::JoinSet::new();
    loop {
        let (to, mut from) = connection.accept_bi().await?;
        tunnels.spawn(async move {
            if from.read_exact(&mut [0]).await.is_err() {
                return;
            }
            if let Ok(socket) = TcpStream::connect(target).await {
                join(socket, to, from).await;
            }
        });
        while tunnels.try_join_next().is_some() {}
    }
}

/// Joins a socket and a stream, each direction by itself.
async fn join(socket: TcpStream, mut to: SendStream, mut from: RecvStream) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let (mut reading, mut writing) = socket.into_split();
    let outward = async {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match reading.read(&mut buffer).await {
                Ok(0) => {
                    let _ = to.finish();
                    return;
                }
                Ok(n) if to.write_all(buffer.get(..n).unwrap_or_default()).await.is_ok() => {}
                Ok(_) | Err(_) => {
                    let _ = to.reset(VarInt::from_u32(1));
                    return;
                }
            }
        }
    };
    let inward = async {
        let mut chunks: [Bytes; READ_CHUNKS] = std::array::from_fn(|_| Bytes::new());
        while let Ok(Some(n)) = from.read_chunks(&mut chunks).await {
            if write_all(&mut writing, chunks.get_mut(..n).unwrap_or_default())
                .await
                .is_err()
            {
                return;
            }
        }
        let _ = writing.shutdown().await;
    };
    tokio::join!(outward, inward);
}

async fn write_all(to: &mut tokio::net::tcp::OwnedWriteHalf, chunks: &mut [Bytes]) -> std::io::Result<()> {
    let mut first = 0;
    while let Some(left) = chunks.get_mut(first..).filter(|l| !l.is_empty()) {
        let slices: Vec<IoSlice<'_>> = left.iter().map(|c| IoSlice::new(c)).collect();
        let mut written = to.write_vectored(&slices).await?;
        for chunk in left {
            let step = written.min(chunk.len());
            drop(chunk.split_to(step));
            written -= step;
            if !chunk.is_empty() {
                break;
            }
            first += 1;
        }
    }
    Ok(())
}

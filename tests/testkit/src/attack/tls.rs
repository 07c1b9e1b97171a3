//! TLS as an attacker speaks it: any certificate is taken, and a hello can be cut.

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Takes any certificate.
#[derive(Debug)]
struct Anything(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client's settings, with the certificate and key of a member's `identity` folder if given.
///
/// # Errors
/// When the folder cannot be read.
pub fn client(alpn: &[&[u8]], identity: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anything(provider)));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(folder) => {
            let chain = CertificateDer::pem_file_iter(folder.join("cert.pem"))
                .context("cert.pem")?
                .collect::<Result<Vec<_>, _>>()
                .context("cert.pem")?;
            let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).context("key.pem")?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// The bytes of a whole ClientHello.
///
/// # Errors
/// When the name is none.
pub fn hello(server_name: &str) -> Result<Vec<u8>> {
    let name = ServerName::try_from(server_name.to_owned())?;
    let mut connection = ClientConnection::new(client(&[b"h2"], None)?, name)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// A connection through its whole handshake.
///
/// # Errors
/// When it does not come about.
pub async fn connect(
    from: Ipv4Addr,
    to: SocketAddr,
    server_name: &str,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let stream = super::connect_from(from, to).await?;
    let name = ServerName::try_from(server_name.to_owned())?;
    Ok(tokio_rustls::TlsConnector::from(config)
        .connect(name, stream)
        .await?)
}

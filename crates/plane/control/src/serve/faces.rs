//! The TLS settings of the port's two faces.

use super::ServeError;
use crate::authority::ServerIdentity;
use crate::control::Inner;
use rustls::RootCertStore;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls_pki_types::CertificateDer;
use std::sync::Arc;

/// TLS settings of the two faces.
pub(super) struct Faces {
    pub(super) grpc: Arc<ServerConfig>,
    pub(super) rest: Arc<ServerConfig>,
}

impl Faces {
    pub(super) fn new(inner: &Inner) -> Result<Self, ServeError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let identity = inner.server_identity();
        let mut roots = RootCertStore::empty();
        roots
            .add(inner.authority.ca_der().clone())
            .map_err(ServeError::Tls)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(ServeError::Verifier)?;
        let builder = || {
            ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(ServeError::Tls)
        };
        let grpc = builder()?.with_client_cert_verifier(verifier);
        let rest = builder()?.with_no_client_auth();
        Ok(Self {
            grpc: finish(grpc, &identity, inner.authority.ca_der(), &[b"h2"])?,
            rest: finish(rest, &identity, inner.authority.ca_der(), &[b"h2", b"http/1.1"])?,
        })
    }
}

/// The chain includes the CA: an enrolling host checks it against its pin.
fn finish(
    builder: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    identity: &ServerIdentity,
    ca: &CertificateDer<'static>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, ServeError> {
    let mut chain = identity.chain.clone();
    chain.push(ca.clone());
    let mut config = builder
        .with_single_cert(chain, identity.key.clone_key())
        .map_err(ServeError::Tls)?;
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    // No resumption: each handshake proves identity and revocation anew.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

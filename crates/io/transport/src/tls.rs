//! A member's certificate, key and roots, and what it demands of a peer.
//!
//! TLS 1.3 only, X25519MLKEM768 first, no resumption and no 0-RTT: each handshake proves identity
//! anew (ARCHITECTURE.md, Identity and keys). A peer is accepted by the one SPIFFE id in its leaf, never because it
//! has some certificate of the CA. All configurations read the current material at each handshake,
//! so that [`MemberTls::reload`] reaches every later one.

mod verify;

pub use verify::{IdentityMismatch, Peer};
pub(crate) use verify::{PeerVerifier, VerifyFault, identity_of_chain};

use arc_swap::ArcSwap;
use fairlead_model::{Identity, IdentityFile, TrustDomain, WallTime};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs as provider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// ALPN of gRPC.
const ALPN_GRPC: &[u8] = b"h2";
/// Most certificates in a chain or bundle file: a leaf, its CA, and two CAs during a rotation,
/// with room.
const CERTIFICATES_MAX: usize = 16;
/// The name that certificates are never checked against; rustls wants one for its calls.
pub(crate) const NO_NAME: &str = "member.fairlead.internal";

/// What a member holds, as its files have it.
#[derive(Clone)]
pub struct TlsMaterial<'a> {
    /// Certificate chain, leaf first.
    pub chain_pem: &'a str,
    /// Private key, PKCS#8.
    pub key_pem: &'a [u8],
    /// CA certificates.
    pub roots_pem: &'a str,
    /// The pool's trust domain.
    pub domain: TrustDomain,
}

impl fmt::Debug for TlsMaterial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMaterial")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Why a member's material cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file holds no PEM of the right kind.
    #[error("the {0} holds no PEM of its kind, or malformed PEM")]
    Pem(IdentityFile),
    /// More certificates than the bound.
    #[error("the {what} holds more than {CERTIFICATES_MAX} certificates")]
    TooMany {
        /// Which file.
        what: IdentityFile,
    },
    /// The leaf's identity cannot be read.
    #[error("the certificate has no identity of this pool")]
    Certificate(#[source] fairlead_trust::certificate::CertificateError),
    /// The leaf speaks for somebody else.
    #[error("the certificate speaks for {found}, not for {expected}")]
    Identity {
        /// Who the member is.
        expected: Identity,
        /// Who the certificate names.
        found: Identity,
    },
    /// The key is of no kind that TLS takes, or does not belong to the certificate.
    #[error("the private key does not fit the certificate")]
    Key(#[source] rustls::Error),
    /// A CA certificate that is none.
    #[error("the CA file holds a certificate that is malformed")]
    Root(#[source] rustls::Error),
    /// The member's own certificate is not of the CAs that it trusts: one of the two is damaged.
    #[error("the CA file's certificates did not sign the member's own: the one or the other is damaged")]
    Unproven(#[source] rustls::Error),
    /// rustls refuses a setting.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

impl TlsError {
    /// The file whose content is at fault, for who knows its path: of a pair that does not fit, the
    /// one to look at first.
    #[must_use]
    pub const fn file(&self) -> Option<IdentityFile> {
        match self {
            Self::Pem(file) | Self::TooMany { what: file } => Some(*file),
            Self::Certificate(_) | Self::Identity { .. } => Some(IdentityFile::Chain),
            Self::Key(_) => Some(IdentityFile::Key),
            Self::Root(_) | Self::Unproven(_) => Some(IdentityFile::Roots),
            Self::Setup(_) => None,
        }
    }
}

/// The material in use.
#[derive(Debug)]
pub(crate) struct Material {
    certified: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn rustls::server::danger::ClientCertVerifier>,
    not_after: WallTime,
}

/// Material that a member can use ([`MemberTls::check`]).
#[derive(Debug)]
pub struct CheckedMaterial(Material);

/// A member's TLS: its own certificate and what it trusts. Share it in an `Arc`; everything built
/// from it follows [`reload`](Self::reload).
pub struct MemberTls {
    own: Identity,
    domain: TrustDomain,
    provider: Arc<CryptoProvider>,
    material: Arc<ArcSwap<Material>>,
}

impl fmt::Debug for MemberTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberTls")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl MemberTls {
    /// Takes the member's material.
    ///
    /// # Errors
    /// A file is malformed, the certificate is not `own`'s, or the key is another's.
    pub fn new(material: &TlsMaterial<'_>, own: Identity) -> Result<Self, TlsError> {
        let provider = Arc::new(crypto_provider());
        let loaded = load(material, own, &provider)?;
        Ok(Self {
            own,
            domain: material.domain.clone(),
            provider,
            material: Arc::new(ArcSwap::from_pointee(loaded)),
        })
    }

    /// Takes the material that a daemon starts with, the member's own certificate checked as well: every fault
    /// of it is found before anything listens.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`check_own`](Self::check_own).
    pub fn proven(material: &TlsMaterial<'_>, own: Identity) -> Result<Arc<Self>, TlsError> {
        let tls = Self::new(material, own)?;
        tls.check_own()?;
        Ok(Arc::new(tls))
    }

    /// Checks that the CAs in use signed the member's own certificate, whatever the clock says: where
    /// they did not, no peer would be believed, and nobody would believe the member.
    ///
    /// # Errors
    /// [`TlsError::Unproven`].
    pub fn check_own(&self) -> Result<(), TlsError> {
        let material = self.material.load();
        let Some((leaf, rest)) = material.certified.cert.split_first() else {
            return Ok(());
        };
        let last = u64::try_from(material.not_after.0 / 1000).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(last.saturating_sub(1)));
        material
            .clients
            .verify_client_cert(leaf, rest, now)
            .map(drop)
            .map_err(TlsError::Unproven)
    }

    /// Takes renewed material: later handshakes use it, live connections keep theirs (R-ENR-08).
    ///
    /// # Errors
    /// As [`new`](Self::new); what was in use stays in use.
    pub fn reload(&self, material: &TlsMaterial<'_>) -> Result<(), TlsError> {
        self.take(self.check(material)?);
        Ok(())
    }

    /// Whether the member could use this material. Nothing of what is in use changes: who has files
    /// to write first checks, writes, and then [`take`](Self::take)s, which cannot fail.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn check(&self, material: &TlsMaterial<'_>) -> Result<CheckedMaterial, TlsError> {
        load(material, self.own, &self.provider).map(CheckedMaterial)
    }

    /// Takes what was checked: as [`reload`](Self::reload).
    pub fn take(&self, checked: CheckedMaterial) {
        self.material.store(Arc::new(checked.0));
    }

    /// Who the member is.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.own
    }

    /// The pool's trust domain.
    #[must_use]
    pub const fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    /// When the certificate in use ends.
    #[must_use]
    pub fn not_after(&self) -> WallTime {
        self.material.load().not_after
    }

    /// A client that accepts exactly `expect`. The verifier keeps the reason of a failure.
    pub(crate) fn client_config(
        &self,
        expect: Peer,
        alpn: &[u8],
    ) -> Result<(ClientConfig, Arc<PeerVerifier>), TlsError> {
        let verifier = Arc::new(PeerVerifier::new(self, expect));
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(TlsError::Setup)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
            .with_client_cert_resolver(Arc::new(Resolver(Arc::clone(&self.material))));
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.enable_sni = false;
        Ok((config, verifier))
    }

    /// A server that demands a certificate of `expect`.
    pub(crate) fn server_config(&self, expect: Peer, alpn: &[u8]) -> Result<ServerConfig, TlsError> {
        let verifier = Arc::new(PeerVerifier::new(self, expect));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(TlsError::Setup)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(Resolver(Arc::clone(&self.material))));
        config.alpn_protocols = vec![alpn.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(config)
    }
}

/// The TLS of a member's gRPC connection to `expect` (the control plane). Follows
/// [`MemberTls::reload`]; the server name only chooses the listener's face, the peer is checked by
/// its identity.
///
/// # Errors
/// rustls refuses a setting.
pub fn grpc_client_config(tls: &Arc<MemberTls>, expect: Identity) -> Result<Arc<ClientConfig>, TlsError> {
    let (mut config, _) = tls.client_config(Peer::Exactly(expect), ALPN_GRPC)?;
    config.enable_sni = true;
    Ok(Arc::new(config))
}

/// AES-128-GCM first: the fastest here, and its strength is that of the key exchange. X25519MLKEM768
/// first, so that traffic recorded today stays safe; X25519 for peers without it.
fn crypto_provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
            provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![provider::kx_group::X25519MLKEM768, provider::kx_group::X25519],
        ..provider::default_provider()
    }
}

fn load(
    material: &TlsMaterial<'_>,
    own: Identity,
    provider: &Arc<CryptoProvider>,
) -> Result<Material, TlsError> {
    let chain = certificates(material.chain_pem, IdentityFile::Chain)?;
    let (found, validity) = identity_of_chain(&chain, &material.domain).map_err(TlsError::Certificate)?;
    if found != own {
        return Err(TlsError::Identity { expected: own, found });
    }
    let key =
        PrivateKeyDer::from_pem_slice(material.key_pem).map_err(|_| TlsError::Pem(IdentityFile::Key))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(TlsError::Key)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(error) => return Err(TlsError::Key(error)),
    }
    let mut roots = RootCertStore::empty();
    for root in certificates(material.roots_pem, IdentityFile::Roots)? {
        roots.add(root).map_err(TlsError::Root)?;
    }
    let roots = Arc::new(roots);
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
        .build()
        .map_err(|error| TlsError::Setup(rustls::Error::General(error.to_string())))?;
    Ok(Material {
        certified: Arc::new(certified),
        roots,
        clients,
        not_after: validity.not_after,
    })
}

fn certificates(pem: &str, what: IdentityFile) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .take(CERTIFICATES_MAX + 1)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::Pem(what))?;
    match certificates.len() {
        0 => Err(TlsError::Pem(what)),
        1..=CERTIFICATES_MAX => Ok(certificates),
        _ => Err(TlsError::TooMany { what }),
    }
}

/// Gives the certificate in use, whatever was asked for.
#[derive(Debug)]
struct Resolver(Arc<ArcSwap<Material>>);

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().certified))
    }
}

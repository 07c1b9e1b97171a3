//! The daemon's own identity and what it trusts: loads them from the member folder, takes new
//! trust bundles, and renews the certificate in time (R-ENR-08).

use crate::association::Associations;
use bytes::Bytes;
use fairlead_host::member::{
    IdentityFiles, MEND, MemberConfig, MemberError, MemberFolder, TrustBundle as HeldBundle,
};
use fairlead_host::{FileError, file, rng};
use fairlead_model::{TrustDomain, WallTime};
use fairlead_rpc::pb;
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_rpc::{DecodeError, TrustBundle};
use fairlead_transport::{MemberTls, TlsError, TlsMaterial};
use fairlead_trust::{Keyring, VerifyingKey};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tonic::transport::Channel;

/// Certificates live 30 days and are renewed with 12 days left: longer than the longest lease.
const RENEW_WITH_LEFT: Duration = Duration::from_secs(12 * 24 * 60 * 60);
/// Spread of the renewals of a pool whose members enrolled together.
const RENEW_JITTER: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the control plane may take to sign.
const RENEW_MAX: Duration = Duration::from_secs(30);
/// Certificates of a chain.
const CHAIN_MAX: usize = 8;
/// Certificates hold no secret.
const PUBLIC_MODE: u32 = 0o644;

/// Keeps the identity's files and everything made from them in step.
#[derive(Debug)]
pub(crate) struct IdentityKeeper {
    folder: MemberFolder,
    domain: TrustDomain,
    tls: Arc<MemberTls>,
    bundle_version: AtomicU64,
    /// How much earlier than [`RENEW_WITH_LEFT`] this daemon renews.
    jitter: Duration,
    /// Told of a new certificate, so that associations are made anew with it.
    associations: OnceLock<Arc<Associations>>,
}

/// Why the identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFault {
    /// A file of the member folder.
    #[error(transparent)]
    Folder(#[from] MemberError),
    /// Certificate, key or roots.
    #[error("{} cannot be used; {MEND}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: TlsError,
    },
    /// A key of the trust bundle.
    #[error("{} holds a key that is none; {MEND}", .0.display())]
    Keys(PathBuf),
}

/// Why a trust bundle was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error("the bundle is malformed")]
    Decode(#[from] DecodeError),
    #[error("the bundle is of trust domain {0}")]
    OtherDomain(TrustDomain),
    #[error("the bundle cannot be used")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Folder(#[from] MemberError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a certificate was not renewed. The old one stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewError {
    #[error("a certificate request cannot be made")]
    Request(#[source] rcgen::Error),
    #[error("the member's key is not text")]
    KeyText,
    #[error("the control plane refused: {}", .0.message())]
    Refused(tonic::Status),
    #[error("the control plane did not sign within {} s", RENEW_MAX.as_secs())]
    TimedOut,
    #[error("the control plane sent {0} certificates")]
    Chain(usize),
    #[error("the renewed certificate cannot be used")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Folder(#[from] MemberError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the renewal was cut short")]
    Stopped,
}

impl IdentityKeeper {
    /// Reads the folder's identity. Blocking. Also gives the keys that sign policy.
    pub(crate) fn load(
        folder: MemberFolder,
        config: &MemberConfig,
    ) -> Result<(Self, Keyring), IdentityFault> {
        let files = folder.identity()?;
        let tls = MemberTls::proven(&material(&files, &config.trust_domain), config.identity());
        let tls = tls.map_err(|source| IdentityFault::Tls {
            path: folder.identity_path(source.file()),
            source,
        })?;
        let bundle = folder.load_trust()?;
        let keys = keyring(&bundle).ok_or_else(|| IdentityFault::Keys(folder.trust_path()))?;
        let keeper = Self {
            folder,
            domain: config.trust_domain.clone(),
            tls,
            bundle_version: AtomicU64::new(bundle.version),
            jitter: rng::jitter(RENEW_JITTER),
            associations: OnceLock::new(),
        };
        Ok((keeper, keys))
    }

    /// The daemon's TLS, which follows every renewal.
    pub(crate) fn tls(&self) -> Arc<MemberTls> {
        self.tls.clone()
    }

    /// Whom to tell of a new certificate.
    pub(crate) fn tell(&self, associations: Arc<Associations>) {
        let _ = self.associations.set(associations);
    }

    /// The trust bundle's number.
    pub(crate) fn bundle_version(&self) -> u64 {
        self.bundle_version.load(Ordering::Relaxed)
    }

    /// Takes a newer bundle: files first, then use. Gives its policy keys, or `None` for one that
    /// is not newer. Blocking.
    pub(crate) fn take_bundle(&self, bundle: pb::TrustBundle) -> Result<Option<Keyring>, TrustError> {
        let bundle = TrustBundle::try_from(bundle)?;
        if bundle.trust_domain != self.domain {
            return Err(TrustError::OtherDomain(bundle.trust_domain));
        }
        if bundle.version <= self.bundle_version() {
            return Ok(None);
        }
        let roots = to_pem(&bundle.ca_certificates);
        // First that it can be used: a bundle that TLS does not take must not be on disk.
        let files = self.folder.identity_with(None, Some(roots))?;
        let checked = self.tls.check(&material(&files, &self.domain))?;
        file::write_atomic(&self.folder.ca_path(), PUBLIC_MODE, files.roots_pem.as_bytes())?;
        self.folder.save_trust(&HeldBundle {
            version: bundle.version,
            policy_keys: bundle.policy_keys.keys().map(VerifyingKey::to_bytes).collect(),
        })?;
        self.tls.take(checked);
        self.bundle_version.store(bundle.version, Ordering::Relaxed);
        Ok(Some(bundle.policy_keys))
    }

    /// Whether it is time to renew.
    pub(crate) fn renewal_due(&self, wall: WallTime) -> bool {
        wall.plus(RENEW_WITH_LEFT + self.jitter) >= self.tls.not_after()
    }

    /// Has a new certificate signed for the same key, so that one atomic replacement of one file is
    /// all that changes on disk.
    pub(crate) async fn renew(self: &Arc<Self>, channel: Channel) -> Result<(), RenewError> {
        let this = self.clone();
        let csr = blocking(move || this.request()).await?;
        let mut client = MemberControlClient::new(channel);
        let call = client.renew_certificate(pb::RenewCertificateRequest { csr });
        let response = tokio::time::timeout(RENEW_MAX, call)
            .await
            .map_err(|_| RenewError::TimedOut)?
            .map_err(RenewError::Refused)?
            .into_inner();
        let chain = response.certificate_chain;
        if chain.is_empty() || chain.len() > CHAIN_MAX {
            return Err(RenewError::Chain(chain.len()));
        }
        let this = self.clone();
        blocking(move || this.take_chain(&chain)).await
    }

    fn request(&self) -> Result<Bytes, RenewError> {
        let key = self.folder.key()?;
        let text = std::str::from_utf8(&key).map_err(|_| RenewError::KeyText)?;
        let key = rcgen::KeyPair::from_pem(text).map_err(RenewError::Request)?;
        let csr = rcgen::CertificateParams::default()
            .serialize_request(&key)
            .map_err(RenewError::Request)?;
        Ok(Bytes::copy_from_slice(csr.der()))
    }

    /// Takes a signed chain: checked, on disk, in use, in that order. One that cannot be written is
    /// not in use either, so that it stays due and is tried again.
    fn take_chain(&self, chain: &[Bytes]) -> Result<(), RenewError> {
        let files = self.folder.identity_with(Some(to_pem(chain)), None)?;
        let checked = self.tls.check(&material(&files, &self.domain))?;
        file::write_atomic(&self.folder.cert_path(), PUBLIC_MODE, files.chain_pem.as_bytes())?;
        self.tls.take(checked);
        if let Some(associations) = self.associations.get() {
            associations.renew_all();
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RenewError> + Send + 'static,
) -> Result<T, RenewError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or(Err(RenewError::Stopped))
}

fn keyring(bundle: &HeldBundle) -> Option<Keyring> {
    let keys: Option<Vec<VerifyingKey>> = bundle
        .policy_keys
        .iter()
        .map(|key| VerifyingKey::from_bytes(key).ok())
        .collect();
    Keyring::new(keys?).ok()
}

fn material<'a>(files: &'a IdentityFiles, domain: &TrustDomain) -> TlsMaterial<'a> {
    TlsMaterial {
        chain_pem: &files.chain_pem,
        key_pem: &files.key_pem,
        roots_pem: &files.roots_pem,
        domain: domain.clone(),
    }
}

fn to_pem(certificates: &[Bytes]) -> String {
    IdentityFiles::pem(certificates.iter().map(AsRef::as_ref))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::authority::Authority;
    use fairlead_host::member::MemberRole;
    use fairlead_model::NodeId;

    const DAY_MS: i64 = 24 * 60 * 60 * 1000;

    /// R-ENR-08: a certificate that cannot be written is not in use either: it stays due, the next
    /// look tries again, and a restart finds what the daemon uses.
    #[test]
    fn a_renewal_that_cannot_be_written_stays_due() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.enrol(dir.path(), MemberRole::Node(NodeId::from_bytes([3; 16])), None);
        let folder = MemberFolder::new(dir.path().to_owned());
        let load = || {
            IdentityKeeper::load(folder.clone(), &folder.load().unwrap())
                .unwrap()
                .0
        };
        let keeper = load();
        let first = authority.renewed(&folder, (2090, 1, 20));
        keeper.take_chain(&[first]).unwrap();
        let due = WallTime(keeper.tls.not_after().0 - 11 * DAY_MS);
        assert!(keeper.renewal_due(due));
        let renewed = authority.renewed(&folder, (2090, 2, 20));
        // The file cannot be replaced, whoever runs this: a folder is in its place.
        let aside = dir.path().join("aside");
        std::fs::rename(folder.cert_path(), &aside).unwrap();
        std::fs::create_dir(folder.cert_path()).unwrap();
        let error = keeper.take_chain(std::slice::from_ref(&renewed)).unwrap_err();
        assert!(matches!(error, RenewError::File(_)), "{error}");
        assert!(keeper.renewal_due(due), "it is not tried again");
        std::fs::remove_dir(folder.cert_path()).unwrap();
        std::fs::rename(&aside, folder.cert_path()).unwrap();
        assert_eq!(load().tls.not_after(), keeper.tls.not_after());
        keeper.take_chain(&[renewed]).unwrap();
        assert!(!keeper.renewal_due(due));
        assert_eq!(load().tls.not_after(), keeper.tls.not_after());
    }

    /// A damaged file is named with what to do, the CA file too where its damage is in a signature.
    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.enrol(dir.path(), MemberRole::Node(NodeId::from_bytes([3; 16])), None);
        let folder = MemberFolder::new(dir.path().to_owned());
        let load = || IdentityKeeper::load(folder.clone(), &folder.load().unwrap()).map(drop);
        load().unwrap();
        let mut ca = pem::parse(folder.ca_pem().unwrap()).unwrap().into_contents();
        // A byte of the CA's public key, in the middle of its certificate.
        let bits = [0x03, 0x21, 0x00];
        let at = ca.windows(bits.len()).position(|w| w == bits).unwrap();
        ca[at + 8] ^= 1;
        let other_ca = pem::encode(&pem::Pem::new("CERTIFICATE", ca));
        let rows: [(PathBuf, &[u8]); 5] = [
            (folder.ca_path(), other_ca.as_bytes()),
            (folder.ca_path(), b"junk"),
            (folder.cert_path(), b"junk"),
            (folder.key_path(), b"junk"),
            (folder.trust_path(), b"junk"),
        ];
        for (path, bytes) in rows {
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let error = fairlead_telemetry::chain(&load().unwrap_err());
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("enrol this host"), "{error}");
            std::fs::write(&path, whole).unwrap();
        }
        load().unwrap();
    }

    /// R-ENR-08: what TLS does not take is neither written nor used.
    #[test]
    fn a_useless_renewal_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.enrol(dir.path(), MemberRole::Node(NodeId::from_bytes([3; 16])), None);
        let folder = MemberFolder::new(dir.path().to_owned());
        let (keeper, _) = IdentityKeeper::load(folder.clone(), &folder.load().unwrap()).unwrap();
        let before = folder.cert_chain_pem().unwrap();
        for chain in [Vec::new(), vec![Bytes::from_static(b"no certificate")]] {
            assert!(matches!(keeper.take_chain(&chain), Err(RenewError::Tls(_))));
            assert_eq!(folder.cert_chain_pem().unwrap(), before);
        }
    }
}

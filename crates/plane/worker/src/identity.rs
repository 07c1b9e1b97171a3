//! The worker's certificate, key and roots, read from the relay's member folder.

use crate::policy::PolicyStateError;
use fairlead_host::member::{MemberError, MemberFolder};
use fairlead_model::{Identity, TrustDomain};
use fairlead_transport::{MemberTls, TlsError, TlsMaterial};
use std::sync::Arc;

/// The files, and what was made of them last.
#[derive(Debug)]
pub(crate) struct Identities {
    folder: MemberFolder,
    domain: TrustDomain,
    tls: Arc<MemberTls>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A file cannot be read.
    #[error(transparent)]
    Files(#[from] MemberError),
    /// Their content does not fit.
    #[error("the files in identity/ cannot be used")]
    Tls(#[source] TlsError),
    /// The policy keys cannot be read.
    #[error(transparent)]
    Keys(PolicyStateError),
}

impl Identities {
    pub(crate) fn load(
        folder: &MemberFolder,
        domain: TrustDomain,
        own: Identity,
    ) -> Result<Self, ReloadError> {
        let tls = with_material(folder, &domain, |material| MemberTls::new(material, own))?;
        Ok(Self {
            folder: folder.clone(),
            domain,
            tls: Arc::new(tls),
        })
    }

    /// Reads the files anew; later handshakes use them (R-ENR-08).
    pub(crate) fn reload(&self) -> Result<(), ReloadError> {
        with_material(&self.folder, &self.domain, |material| self.tls.reload(material))
    }

    pub(crate) const fn tls(&self) -> &Arc<MemberTls> {
        &self.tls
    }
}

fn with_material<T>(
    folder: &MemberFolder,
    domain: &TrustDomain,
    take: impl FnOnce(&TlsMaterial<'_>) -> Result<T, TlsError>,
) -> Result<T, ReloadError> {
    let files = folder.identity()?;
    take(&TlsMaterial {
        chain_pem: &files.chain_pem,
        key_pem: &files.key_pem,
        roots_pem: &files.roots_pem,
        domain: domain.clone(),
    })
    .map_err(ReloadError::Tls)
}

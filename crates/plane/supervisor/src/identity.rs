//! The relay's certificate, key and trusted CAs: loading, renewal, trust bundles.

use crate::shared::Shared;
use bytes::Bytes;
use fairlead_host::file;
use fairlead_host::member::{IdentityFiles, MemberConfig, MemberError, MemberFolder, TrustBundle};
use fairlead_model::WallTime;
use fairlead_rpc::pb;
use fairlead_rpc::pb::member_control_client::MemberControlClient;
use fairlead_transport::{MemberTls, TlsError, TlsMaterial};
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;

/// A certificate is renewed when less than this is left (30 days of life, renewed with 12
/// left, longer than the longest lease of 7 days).
pub(crate) const RENEW_WITH_LEFT: Duration = Duration::from_secs(12 * 86_400);
/// Spread of the renewals of many members.
pub(crate) const RENEW_JITTER: Duration = Duration::from_secs(86_400);
/// Certificates of a chain.
const CHAIN_MAX: usize = 8;
/// Files that hold no secret.
const PUBLIC_MODE: u32 = 0o644;

/// Why certificate or trust could not be changed; what was in use stays in use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("the relay's files cannot be read or written")]
    Member(#[from] MemberError),
    #[error("the relay's files cannot be written")]
    File(#[from] file::FileError),
    #[error("the new certificate or trust cannot be used")]
    Tls(#[from] TlsError),
    #[error("the signing request cannot be made: {0}")]
    Request(String),
    #[error("the control plane sent {0} certificates")]
    Chain(usize),
    #[error("the control plane refused the renewal")]
    Refused(#[source] tonic::Status),
    #[error("the trust bundle is malformed")]
    Bundle(#[source] fairlead_rpc::DecodeError),
    #[error("the trust bundle is for the trust domain `{0}`")]
    OtherDomain(String),
}

/// Loads the member's TLS material.
pub(crate) fn load(
    folder: &MemberFolder,
    member: &MemberConfig,
) -> Result<Arc<MemberTls>, crate::SupervisorError> {
    let files = folder.identity()?;
    let tls = MemberTls::proven(&material(&files, member), member.identity());
    tls.map_err(|source| crate::SupervisorError::Tls {
        path: folder.identity_path(source.file()),
        source,
    })
}

fn material<'a>(files: &'a IdentityFiles, member: &MemberConfig) -> TlsMaterial<'a> {
    TlsMaterial {
        chain_pem: &files.chain_pem,
        key_pem: &files.key_pem,
        roots_pem: &files.roots_pem,
        domain: member.trust_domain.clone(),
    }
}

/// Takes a new chain or new roots, the other being what the files hold: checked, then on disk by
/// `write`, then in use, here and in the worker. Whatever fails leaves what was in use in use, and
/// what the next start reads usable.
fn take(
    shared: &Shared,
    chain: Option<&str>,
    roots: Option<&str>,
    write: impl FnOnce() -> Result<(), IdentityError>,
) -> Result<(), IdentityError> {
    let (chain, roots) = (chain.map(str::to_owned), roots.map(str::to_owned));
    let files = shared.folder.identity_with(chain, roots)?;
    let checked = shared.tls.check(&material(&files, &shared.member))?;
    write()?;
    shared.tls.take(checked);
    shared.want(|wanted| wanted.identity = wanted.identity.saturating_add(1));
    Ok(())
}

/// How long until the certificate is due for renewal; zero when it is due.
pub(crate) fn renewal_due_in(not_after: WallTime, now: WallTime, jitter: Duration) -> Duration {
    not_after.minus(RENEW_WITH_LEFT).minus(jitter).since(now)
}

/// Asks for a new certificate for the same key (R-ENR-08): the key never changes under a
/// certificate, so that a crash between two files cannot part them.
pub(crate) async fn renew(
    shared: &Shared,
    mut client: MemberControlClient<Channel>,
) -> Result<(), IdentityError> {
    let csr = request(shared)?;
    let answer = client
        .renew_certificate(pb::RenewCertificateRequest { csr })
        .await
        .map_err(IdentityError::Refused)?
        .into_inner();
    take_renewed(shared, answer)
}

fn take_renewed(shared: &Shared, answer: pb::RenewCertificateResponse) -> Result<(), IdentityError> {
    let chain = answer.certificate_chain;
    if chain.is_empty() || chain.len() > CHAIN_MAX {
        return Err(IdentityError::Chain(chain.len()));
    }
    let chain = to_pem(&chain);
    take(shared, Some(&chain), None, || {
        let path = shared.folder.cert_path();
        Ok(file::write_atomic(&path, PUBLIC_MODE, chain.as_bytes())?)
    })?;
    match answer.trust_bundle {
        Some(bundle) => take_bundle(shared, bundle),
        None => Ok(()),
    }
}

fn request(shared: &Shared) -> Result<Bytes, IdentityError> {
    let fail = |e: rcgen::Error| IdentityError::Request(e.to_string());
    let key = shared.folder.key()?;
    let text = std::str::from_utf8(&key).map_err(|e| IdentityError::Request(e.to_string()))?;
    let key = rcgen::KeyPair::from_pem(text).map_err(fail)?;
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .map_err(fail)?;
    Ok(Bytes::copy_from_slice(csr.der()))
}

/// Takes a trust bundle into the files; one that is not newer changes nothing but is read again.
pub(crate) fn take_bundle(shared: &Shared, wire: pb::TrustBundle) -> Result<(), IdentityError> {
    let bundle = fairlead_rpc::TrustBundle::try_from(wire).map_err(IdentityError::Bundle)?;
    if bundle.trust_domain != shared.member.trust_domain {
        return Err(IdentityError::OtherDomain(bundle.trust_domain.to_string()));
    }
    if bundle.version <= shared.bundle_version() {
        return take(shared, None, None, || Ok(()));
    }
    let roots = to_pem(&bundle.ca_certificates);
    take(shared, None, Some(&roots), || {
        file::write_atomic(&shared.folder.ca_path(), PUBLIC_MODE, roots.as_bytes())?;
        Ok(shared.folder.save_trust(&TrustBundle {
            version: bundle.version,
            policy_keys: bundle.policy_keys.keys().map(|k| k.to_bytes()).collect(),
        })?)
    })?;
    shared.set_bundle_version(bundle.version);
    tracing::info!(version = bundle.version, "trust bundle taken");
    Ok(())
}

fn to_pem(certificates: &[Bytes]) -> String {
    IdentityFiles::pem(certificates.iter().map(AsRef::as_ref))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::tests::{enrolled, shared};
    use fairlead_model::TrustDomain;
    use fairlead_trust::SigningKey;

    fn chain(shared: &Shared) -> String {
        shared.folder.cert_chain_pem().unwrap()
    }

    fn answer(certificate_chain: Vec<Bytes>) -> pb::RenewCertificateResponse {
        pb::RenewCertificateResponse {
            certificate_chain,
            trust_bundle: None,
        }
    }

    /// R-ENR-08: an answer that cannot be used costs the relay nothing: the file from which its next
    /// start comes is as it was.
    #[test]
    fn a_useless_certificate_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared(dir.path());
        let of_another = enrolled(&tempfile::tempdir().unwrap().path().join("r"));
        let other = pem::parse(of_another.chain_pem).unwrap().into_contents();
        let before = chain(&shared);
        for (certificates, why) in [
            (vec![], "0 certificates"),
            (vec![Bytes::from_static(b"no certificate")], "cannot be used"),
            (vec![Bytes::from(other)], "cannot be used"),
            (vec![Bytes::from_static(b"x"); CHAIN_MAX + 1], "9 certificates"),
        ] {
            let error = take_renewed(&shared, answer(certificates)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(chain(&shared), before);
        }
        let wanted = shared.watch_wanted().borrow().identity;
        assert_eq!(wanted, 0, "the worker is not told either");
        // The one it has is one that it could be given.
        let same = pem::parse(&before).unwrap().into_contents();
        take_renewed(&shared, answer(vec![Bytes::from(same)])).unwrap();
        assert_eq!(shared.watch_wanted().borrow().identity, 1);
    }

    /// A bundle whose CA is none is not written either.
    #[test]
    fn a_useless_bundle_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared(dir.path());
        let domain: TrustDomain = shared.member.trust_domain.clone();
        let key = SigningKey::from_seed(&[9; 32]).verifying_key();
        let before = shared.folder.ca_pem().unwrap();
        let bundle = |ca: &[u8]| pb::TrustBundle {
            version: 2,
            ca_certificates: vec![Bytes::copy_from_slice(ca)],
            policy_keys: vec![Bytes::copy_from_slice(&key.to_bytes())],
            trust_domain: domain.to_string(),
        };
        take_bundle(&shared, bundle(b"no certificate")).unwrap_err();
        assert_eq!(shared.folder.ca_pem().unwrap(), before);
        assert_eq!(shared.bundle_version(), 1);
        let ca = pem::parse(&before).unwrap().into_contents();
        take_bundle(&shared, bundle(&ca)).unwrap();
        assert_eq!(shared.bundle_version(), 2);
    }

    /// R-ENR-08: renewal is due 12 days before the end, earlier by the jitter, never late.
    #[test]
    fn renewal_is_due_with_twelve_days_left() {
        let day = 86_400_000;
        let end = WallTime(30 * day);
        let days = |n: u64| Duration::from_secs(n * 86_400);
        assert_eq!(renewal_due_in(end, WallTime(0), Duration::ZERO), days(18));
        assert_eq!(renewal_due_in(end, WallTime(0), RENEW_JITTER), days(17));
        assert_eq!(
            renewal_due_in(end, WallTime(18 * day), Duration::ZERO),
            Duration::ZERO
        );
        assert_eq!(
            renewal_due_in(end, WallTime(40 * day), Duration::ZERO),
            Duration::ZERO
        );
    }
}

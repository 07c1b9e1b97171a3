//! The relay's certificate, key and trusted CAs: loading, renewal, trust bundles.

use crate::shared::Shared;
use bytes::Bytes;
use fairlead_host::file;
use fairlead_host::member::{MemberConfig, MemberError, MemberFolder, TrustBundle};
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
    let key = folder.key()?;
    let chain = folder.cert_chain_pem()?;
    let roots = folder.ca_pem()?;
    let tls = MemberTls::new(
        &TlsMaterial {
            chain_pem: &chain,
            key_pem: &key,
            roots_pem: &roots,
            domain: member.trust_domain.clone(),
        },
        member.identity(),
    )?;
    Ok(Arc::new(tls))
}

/// Reads the files again, in this process and in the worker.
fn reload(shared: &Shared) -> Result<(), IdentityError> {
    let key = shared.folder.key()?;
    let chain = shared.folder.cert_chain_pem()?;
    let roots = shared.folder.ca_pem()?;
    shared.tls.reload(&TlsMaterial {
        chain_pem: &chain,
        key_pem: &key,
        roots_pem: &roots,
        domain: shared.member.trust_domain.clone(),
    })?;
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
    let chain: String = answer
        .certificate_chain
        .iter()
        .map(|der| certificate_pem(der))
        .collect();
    file::write_atomic(&shared.folder.cert_path(), PUBLIC_MODE, chain.as_bytes())?;
    if let Some(bundle) = answer.trust_bundle {
        return take_bundle(shared, bundle);
    }
    reload(shared)
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
    if bundle.version > shared.bundle_version() {
        let roots: String = bundle
            .ca_certificates
            .iter()
            .map(|der| certificate_pem(der))
            .collect();
        file::write_atomic(&shared.folder.ca_path(), PUBLIC_MODE, roots.as_bytes())?;
        shared.folder.save_trust(&TrustBundle {
            version: bundle.version,
            policy_keys: bundle.policy_keys.keys().map(|k| k.to_bytes()).collect(),
        })?;
        shared.set_bundle_version(bundle.version);
        tracing::info!(version = bundle.version, "trust bundle taken");
    }
    reload(shared)
}

fn certificate_pem(der: &[u8]) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", der))
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! The CA and the signing keys: three keys, each with its one purpose and its own file.
//!
//! The CA signs certificates, the policy key policies and leases, the grant key grants. Names in a
//! signing request are ignored: a certificate says what the control plane knows of its holder.

use crate::enrol::CLOCK_SKEW_MAX;
use crate::folder::ControlFolder;
use crate::record::KeysRecord;
use fairlead_host::{FileError, file, rng, secret};
use fairlead_model::{CaPin, HostPort, Identity, TrustDomain, WallTime, address::Host};
use fairlead_rpc::GRPC_SERVER_NAME;
use fairlead_trust::SigningKey;
use fairlead_trust::certificate::{self, CertificateError};
use fairlead_trust::key::KeyError;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a certificate lives: longer than the longest lease (168 h) with margin (R-ENR-08).
pub const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(30 * 86_400);
/// With how much left it is renewed.
pub const CERTIFICATE_RENEW_LEFT: Duration = Duration::from_secs(12 * 86_400);
/// How long the CA's own certificate lives.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How far before now a certificate begins: hosts whose clock is behind take it.
const BACKDATE: Duration = Duration::from_secs(3_600);
const _: () = assert!(
    BACKDATE.as_secs() > CLOCK_SKEW_MAX.as_secs(),
    "a member whose clock is behind by what is tolerated takes a new certificate (R-POL-05)"
);
/// Greatest length of a key or certificate file.
const FILE_LEN_MAX: usize = 16 * 1024;
/// Greatest length of a signing request.
const CSR_LEN_MAX: usize = 16 * 1024;

const _: () = assert!(
    CERTIFICATE_RENEW_LEFT.as_secs() > 168 * 3_600,
    "a certificate outlasts a lease that begins when its renewal does"
);

/// Why a key or a certificate could not be had.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A signing key's file is damaged.
    #[error("{path} is not a signing key; restore it from a backup", path = path.display())]
    SigningKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KeyError,
    },
    /// The CA's key or certificate is damaged, or a certificate cannot be made.
    #[error("{what}")]
    Certificate {
        /// What was attempted.
        what: String,
        /// What went wrong.
        #[source]
        source: rcgen::Error,
    },
    /// The CA certificate cannot be read back.
    #[error("{path} is not a CA certificate; restore it from a backup", path = path.display())]
    CaPin {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: CertificateError,
    },
    /// One of the CA's two files is missing.
    #[error("{missing} is missing, yet {present} is there; restore both from a backup",
        missing = missing.display(), present = present.display())]
    HalfCa {
        /// The file that is missing.
        missing: PathBuf,
        /// The file that is there.
        present: PathBuf,
    },
    /// A key file is missing, and this is no first start: a new key in its place would be refused by
    /// every member.
    #[error(
        "{missing} is missing, yet the store has a pool: restore keys and store together from one \
         backup",
        missing = missing.display()
    )]
    Missing {
        /// The file.
        missing: PathBuf,
    },
    /// A key is not the one that the store's pool has.
    #[error(
        "{path} holds another key than the store's pool has: restore keys and store together from \
         one backup",
        path = path.display()
    )]
    OtherKey {
        /// The file.
        path: PathBuf,
    },
    /// A time outside what certificates can hold.
    #[error("the clock says {0} ms since 1970, which no certificate can hold; set the clock")]
    Clock(i64),
}

/// Why a signing request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsrError {
    #[error("it is longer than {CSR_LEN_MAX} bytes")]
    TooLong,
    #[error("it is not PEM of one CERTIFICATE REQUEST")]
    Pem,
    #[error("it is malformed, or its signature does not match its key ({0})")]
    Malformed(rcgen::Error),
}

/// A request whose signature by its own key has been verified.
pub(crate) struct Csr {
    public_key: rcgen::PublicKey,
    /// SHA-256 of the public key.
    pub(crate) key_hash: [u8; 32],
}

impl Csr {
    pub(crate) fn from_pem(text: &str) -> Result<Self, CsrError> {
        if text.len() > CSR_LEN_MAX {
            return Err(CsrError::TooLong);
        }
        let block = pem::parse(text).map_err(|_| CsrError::Pem)?;
        if !["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"].contains(&block.tag()) {
            return Err(CsrError::Pem);
        }
        Self::from_der(block.contents())
    }

    pub(crate) fn from_der(der: &[u8]) -> Result<Self, CsrError> {
        if der.len() > CSR_LEN_MAX {
            return Err(CsrError::TooLong);
        }
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der))
            .map_err(CsrError::Malformed)?;
        let key_hash = Sha256::digest(request.public_key.der_bytes()).into();
        Ok(Self {
            public_key: request.public_key,
            key_hash,
        })
    }
}

/// A certificate that was issued.
pub(crate) struct Issuance {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) not_after: WallTime,
}

/// The control plane's own certificate and key, made anew at each start.
pub(crate) struct ServerIdentity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) not_after: WallTime,
}

/// Whether keys may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// At a first start: those that are missing are made.
    Make,
    /// The pool has them: one that is missing is a fault.
    Have,
}

/// The CA and the signing keys.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
    ca_der: CertificateDer<'static>,
    ca_pin: CaPin,
    /// Signs policies and leases.
    pub(crate) policy: SigningKey,
    /// Signs grants.
    pub(crate) grant: SigningKey,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("ca_pin", &self.ca_pin)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the keys, or makes them at a first start.
    pub(crate) fn open(folder: &ControlFolder, keys: Keys, now: WallTime) -> Result<Self, AuthorityError> {
        file::make_folder(&folder.keys_dir(), 0o700)?;
        if keys == Keys::Have {
            let files = [
                folder.ca_key_path(),
                folder.ca_path(),
                folder.policy_key_path(),
                folder.grant_key_path(),
            ];
            // One that cannot be looked for is explained by its reader.
            if let Some(missing) = files.into_iter().find(|f| matches!(f.try_exists(), Ok(false))) {
                return Err(AuthorityError::Missing { missing });
            }
        }
        let (key, ca_pem) = open_ca(folder, now)?;
        let path = folder.ca_path();
        let ca_der = CertificateDer::from(
            pem::parse(&ca_pem)
                .map_err(|_| certificate(&path, rcgen::Error::CouldNotParseCertificate))?
                .into_contents(),
        );
        let ca_pin = certificate::ca_pin_of(&ca_der).map_err(|source| AuthorityError::CaPin {
            path: path.clone(),
            source,
        })?;
        let issuer = Issuer::from_ca_cert_der(&ca_der, key).map_err(|source| certificate(&path, source))?;
        Ok(Self {
            issuer,
            ca_pem,
            ca_der,
            ca_pin,
            policy: open_signing_key(&folder.policy_key_path())?,
            grant: open_signing_key(&folder.grant_key_path())?,
        })
    }

    /// What the store keeps of the keys.
    pub(crate) fn record(&self) -> KeysRecord {
        KeysRecord {
            ca: self.ca_pin.to_string(),
            policy: self.policy.verifying_key().to_hex(),
            grant: self.grant.verifying_key().to_hex(),
        }
    }

    /// Compares the keys with those of the pool.
    pub(crate) fn check(&self, folder: &ControlFolder, want: &KeysRecord) -> Result<(), AuthorityError> {
        let have = self.record();
        for (have, want, path) in [
            (&have.ca, &want.ca, folder.ca_key_path()),
            (&have.policy, &want.policy, folder.policy_key_path()),
            (&have.grant, &want.grant, folder.grant_key_path()),
        ] {
            if have != want {
                return Err(AuthorityError::OtherKey { path });
            }
        }
        Ok(())
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(crate) const fn ca_der(&self) -> &CertificateDer<'static> {
        &self.ca_der
    }

    pub(crate) const fn ca_pin(&self) -> &CaPin {
        &self.ca_pin
    }

    /// A certificate for a member. Nodes are TLS servers to each other, so both usages are there.
    pub(crate) fn issue(
        &self,
        csr: &Csr,
        identity: Identity,
        domain: &TrustDomain,
        now: WallTime,
    ) -> Result<Issuance, AuthorityError> {
        let not_after = now.plus(CERTIFICATE_LIFETIME);
        let params = leaf(&identity.to_spiffe(domain), now, not_after)?;
        let signed = params
            .signed_by(&csr.public_key, &self.issuer)
            .map_err(|source| AuthorityError::Certificate {
                what: format!("signing the certificate of {identity}"),
                source,
            })?;
        Ok(Issuance {
            der: signed.der().clone(),
            not_after,
        })
    }

    /// The control plane's own certificate: for the gRPC name, for `advertise`, and for loopback.
    pub(crate) fn issue_server(
        &self,
        domain: &TrustDomain,
        advertise: &HostPort,
        now: WallTime,
    ) -> Result<ServerIdentity, AuthorityError> {
        let fail = |source| AuthorityError::Certificate {
            what: "making the control plane's own certificate".to_owned(),
            source,
        };
        let not_after = now.plus(CERTIFICATE_LIFETIME);
        let mut params = leaf(&Identity::Control.to_spiffe(domain), now, not_after)?;
        let mut names = vec![GRPC_SERVER_NAME.to_owned(), "localhost".to_owned()];
        let mut addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        match advertise.host() {
            Host::Dns(name) if !names.contains(name) => names.push(name.clone()),
            Host::Ip(ip) if !addresses.contains(ip) => addresses.push(*ip),
            Host::Dns(_) | Host::Ip(_) => {}
        }
        for name in names {
            let name = name.try_into().map_err(fail)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        params
            .subject_alt_names
            .extend(addresses.into_iter().map(SanType::IpAddress));
        let key = KeyPair::generate().map_err(fail)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(fail)?;
        Ok(ServerIdentity {
            chain: vec![signed.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            not_after,
        })
    }
}

fn certificate(path: &Path, source: rcgen::Error) -> AuthorityError {
    AuthorityError::Certificate {
        what: format!("{} is damaged; restore it from a backup", path.display()),
        source,
    }
}

fn time(at: WallTime) -> Result<time::OffsetDateTime, AuthorityError> {
    time::OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1_000)).map_err(|_| AuthorityError::Clock(at.0))
}

/// A leaf with one URI SAN, its identity.
fn leaf(spiffe: &str, now: WallTime, not_after: WallTime) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = time(now.minus(BACKDATE))?;
    params.not_after = time(not_after)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    let uri = spiffe
        .to_owned()
        .try_into()
        .map_err(|source| AuthorityError::Certificate {
            what: format!("`{spiffe}` cannot stand in a certificate"),
            source,
        })?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    Ok(params)
}

/// The CA's key and certificate. The key is written first: an end between the two leaves a key
/// without a certificate, which is made good, never a certificate without its key.
fn open_ca(folder: &ControlFolder, now: WallTime) -> Result<(KeyPair, String), AuthorityError> {
    let (key_path, ca_path) = (folder.ca_key_path(), folder.ca_path());
    let have_cert = file::read_optional(&ca_path, FILE_LEN_MAX)?.is_some();
    if file::is_free(&key_path) {
        if have_cert {
            return Err(AuthorityError::HalfCa {
                missing: key_path,
                present: ca_path,
            });
        }
        let key = KeyPair::generate().map_err(|source| certificate(&key_path, source))?;
        secret::write(&key_path, Zeroizing::new(key.serialize_pem()).as_bytes())?;
    }
    let text = secret::read(&key_path, FILE_LEN_MAX)?;
    let text =
        std::str::from_utf8(&text).map_err(|_| certificate(&key_path, rcgen::Error::CouldNotParseKeyPair))?;
    let key = KeyPair::from_pem(text).map_err(|source| certificate(&key_path, source))?;
    if !have_cert {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = format!("Fairlead CA {}", hex::encode(rng::bytes::<4>()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = time(now.minus(BACKDATE))?;
        params.not_after = time(now.plus(CA_LIFETIME))?;
        let signed = params
            .self_signed(&key)
            .map_err(|source| certificate(&ca_path, source))?;
        file::write_atomic(&ca_path, 0o644, signed.pem().as_bytes())?;
    }
    Ok((key, file::read_text(&ca_path, FILE_LEN_MAX)?))
}

fn open_signing_key(path: &Path) -> Result<SigningKey, AuthorityError> {
    let fail = |source| AuthorityError::SigningKey {
        path: path.to_owned(),
        source,
    };
    if file::is_free(path) {
        let seed = Zeroizing::new(rng::bytes::<32>());
        let pem = SigningKey::from_seed(&seed).to_pkcs8_pem().map_err(fail)?;
        secret::write(path, pem.as_bytes())?;
    }
    let text = secret::read(path, FILE_LEN_MAX)?;
    let text = std::str::from_utf8(&text).unwrap_or_default();
    SigningKey::from_pkcs8_pem(text).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_model::NodeId;
    use fairlead_trust::certificate::identity_of;
    use std::os::unix::fs::PermissionsExt;

    const NOW: WallTime = WallTime(1_800_000_000_000);

    /// A key that is there and cannot be read is not made anew.
    #[test]
    fn a_key_that_cannot_be_read_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(dir.path());
        drop(Authority::open(&folder, Keys::Make, NOW).unwrap());
        for path in [
            folder.policy_key_path(),
            folder.grant_key_path(),
            folder.ca_key_path(),
        ] {
            let kept = dir.path().join("kept");
            std::fs::rename(&path, &kept).unwrap();
            std::os::unix::fs::symlink(&path, &path).unwrap();
            for keys in [Keys::Have, Keys::Make] {
                assert!(Authority::open(&folder, keys, NOW).is_err(), "{}", path.display());
            }
            assert!(
                path.symlink_metadata().unwrap().is_symlink(),
                "{}",
                path.display()
            );
            std::fs::rename(&kept, &path).unwrap();
        }
        drop(Authority::open(&folder, Keys::Have, NOW).unwrap());
    }

    #[test]
    fn names_of_a_request_are_ignored_and_keys_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(dir.path());
        let authority = Authority::open(&folder, Keys::Make, NOW).unwrap();
        let domain: TrustDomain = "pool.example".parse().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
        let uri = "spiffe://pool.example/control".to_owned().try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        let csr = Csr::from_pem(&params.serialize_request(&key).unwrap().pem().unwrap()).unwrap();
        let identity = Identity::Node(NodeId::from_bytes([3; 16]));
        let issued = authority.issue(&csr, identity, &domain, NOW).unwrap();
        let (found, validity) = identity_of(&issued.der, &domain).unwrap();
        assert_eq!(found, identity);
        assert_eq!(validity.not_after, NOW.plus(CERTIFICATE_LIFETIME));
        assert!(!String::from_utf8_lossy(&issued.der).contains("evil"));
        for path in [
            folder.ca_key_path(),
            folder.policy_key_path(),
            folder.grant_key_path(),
        ] {
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
        // Another start has the same keys.
        let again = Authority::open(&folder, Keys::Make, NOW).unwrap();
        assert_eq!(again.ca_pin(), authority.ca_pin());
        assert_eq!(again.policy.verifying_key(), authority.policy.verifying_key());
        assert_ne!(again.policy.verifying_key(), again.grant.verifying_key());
    }

    #[test]
    fn bad_requests_and_damaged_files_are_named() {
        assert!(matches!(Csr::from_pem("no"), Err(CsrError::Pem)));
        assert!(matches!(Csr::from_der(&[1, 2, 3]), Err(CsrError::Malformed(_))));
        assert!(matches!(
            Csr::from_der(&vec![0; CSR_LEN_MAX + 1]),
            Err(CsrError::TooLong)
        ));
        let dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(dir.path());
        Authority::open(&folder, Keys::Make, NOW).unwrap();
        secret::write(&folder.policy_key_path(), b"junk").unwrap();
        let error = Authority::open(&folder, Keys::Make, NOW).unwrap_err();
        assert!(error.to_string().contains("policy.key.pem"), "{error}");
        std::fs::remove_file(folder.ca_key_path()).unwrap();
        assert!(matches!(
            Authority::open(&folder, Keys::Make, NOW),
            Err(AuthorityError::HalfCa { .. })
        ));
    }
}

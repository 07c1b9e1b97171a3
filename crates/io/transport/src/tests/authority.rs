//! A certificate authority that lives for one test.

use crate::{MemberTls, TlsMaterial};
use fairlead_model::{Identity, TrustDomain};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, SanType,
};
use std::sync::Arc;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) ca_pem: String,
    pub(crate) domain: TrustDomain,
}

/// What a member would find in its folder.
pub(crate) struct Files {
    pub(crate) chain_pem: String,
    pub(crate) key_pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            ca_pem,
            domain: "pool.test".parse().unwrap(),
        }
    }

    pub(crate) fn files(&self, spiffe: &str) -> Files {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(spiffe.try_into().unwrap())];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        Files {
            chain_pem: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key_pem: key.serialize_pem(),
        }
    }

    pub(crate) fn material<'a>(&'a self, files: &'a Files) -> TlsMaterial<'a> {
        TlsMaterial {
            chain_pem: &files.chain_pem,
            key_pem: files.key_pem.as_bytes(),
            roots_pem: &self.ca_pem,
            domain: self.domain.clone(),
        }
    }

    pub(crate) fn member(&self, identity: Identity) -> Arc<MemberTls> {
        let files = self.files(&identity.to_spiffe(&self.domain));
        Arc::new(MemberTls::new(&self.material(&files), identity).unwrap())
    }
}

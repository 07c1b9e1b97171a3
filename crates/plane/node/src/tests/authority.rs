//! Signs what a control plane signs: certificates, policies, leases, grants.

use fairlead_host::member::{MemberConfig, MemberFolder, MemberRole, TrustBundle};
use fairlead_model::{CaPin, HostPort, TrustDomain};
use fairlead_rpc::signed;
use fairlead_trust::{Grant, NodePolicy, PayloadType, PolicyLease, RelayPolicy, SigningKey, seal};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, SanType,
};
use std::net::SocketAddr;
use std::path::Path;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
    domain: TrustDomain,
    pub(crate) policy_key: SigningKey,
    pub(crate) grant_key: SigningKey,
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
            policy_key: SigningKey::from_seed(&[1; 32]),
            grant_key: SigningKey::from_seed(&[2; 32]),
        }
    }

    /// Leaves a member folder as enrolment does. The control plane's address leads nowhere.
    pub(crate) fn enrol(&self, dir: &Path, role: MemberRole, listen: Option<SocketAddr>) {
        let config = MemberConfig {
            role,
            name: "member".parse().unwrap(),
            trust_domain: self.domain.clone(),
            control: HostPort::from_ip("127.0.0.1".parse().unwrap(), 1),
            ca_pin: CaPin([0; 32]),
            grpc_server_name: fairlead_rpc::GRPC_SERVER_NAME.to_owned(),
            advertised_address: None,
            listen,
        };
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        let spiffe = config.identity().to_spiffe(&self.domain);
        params.subject_alt_names = vec![SanType::URI(spiffe.try_into().unwrap())];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        let folder = MemberFolder::new(dir.to_owned());
        folder
            .save_identity(key.serialize_pem().as_bytes(), &chain, &self.ca_pem)
            .unwrap();
        folder
            .save_trust(&TrustBundle {
                version: 1,
                policy_keys: vec![self.policy_key.verifying_key().to_bytes()],
            })
            .unwrap();
        folder.save(&config).unwrap();
    }

    /// A certificate for the member's own key, which ends on that day.
    pub(crate) fn renewed(&self, folder: &MemberFolder, (year, month, day): (i32, u8, u8)) -> bytes::Bytes {
        let pem = folder.key().unwrap();
        let key = KeyPair::from_pem(std::str::from_utf8(&pem).unwrap()).unwrap();
        let mut params = CertificateParams::default();
        let spiffe = folder.load().unwrap().identity().to_spiffe(&self.domain);
        params.subject_alt_names = vec![SanType::URI(spiffe.try_into().unwrap())];
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        bytes::Bytes::copy_from_slice(signed.der())
    }

    pub(crate) fn node_policy(&self, policy: &NodePolicy) -> bytes::Bytes {
        let payload = signed::encode_node_policy(policy);
        seal(&self.policy_key, PayloadType::NodePolicy, &payload).unwrap()
    }

    pub(crate) fn relay_policy(&self, policy: &RelayPolicy) -> (bytes::Bytes, fairlead_trust::PolicyRoot) {
        let payload = signed::encode_relay_policy(policy);
        let root = fairlead_trust::PolicyRoot::of(&payload);
        (
            seal(&self.policy_key, PayloadType::RelayPolicy, &payload).unwrap(),
            root,
        )
    }

    pub(crate) fn lease(&self, lease: &PolicyLease) -> bytes::Bytes {
        let payload = signed::encode_policy_lease(lease);
        seal(&self.policy_key, PayloadType::PolicyLease, &payload).unwrap()
    }

    pub(crate) fn grant(&self, grant: &Grant) -> bytes::Bytes {
        seal(&self.grant_key, PayloadType::Grant, &signed::encode_grant(grant)).unwrap()
    }
}

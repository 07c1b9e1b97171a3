//! Checks the control plane's answer and puts the member's folder in its place, whole or not at
//! all.

use super::{EnrolError, Role};
use crate::tls::{self, Seen};
use fairlead_admin::json::EnrolResponse;
use fairlead_host::member::{MemberConfig, MemberError, MemberFolder, MemberRole, TrustBundle};
use fairlead_model::{CaPin, HostPort, Name, TrustDomain};
use fairlead_trust::certificate;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt::Display;
use std::fs;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;

/// All that a member's folder is made of.
pub(super) struct Material<'a> {
    pub(super) role: Role,
    pub(super) control: HostPort,
    pub(super) pin: CaPin,
    pub(super) listen: Option<SocketAddr>,
    pub(super) key: &'a rcgen::KeyPair,
    pub(super) response: &'a EnrolResponse,
    pub(super) seen: &'a Seen,
}

/// Refuses a folder that is a member's or holds something else, before a token is spent.
pub(super) fn check_place(dir: &Path) -> Result<(), EnrolError> {
    let folder = MemberFolder::new(dir.to_owned());
    if folder.is_enrolled() {
        let who = folder.load().map_or_else(
            |_| "a member whose member.json cannot be read".to_owned(),
            |config| format!("{} {}", role_of(&config), config.name),
        );
        return Err(EnrolError::AlreadyEnrolled {
            dir: dir.to_owned(),
            who,
        });
    }
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(EnrolError::NotEmpty(dir.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(EnrolError::Folder {
            dir: dir.to_owned(),
            what: "it cannot be read",
            source,
        }),
    }
}

const fn role_of(config: &MemberConfig) -> &'static str {
    match config.role {
        MemberRole::Relay(_) => "relay",
        MemberRole::Node(_) => "node",
    }
}

/// Checks the answer and writes the member's files below `dir`, `member.json` last.
pub(super) fn write(dir: &Path, material: &Material<'_>) -> Result<(), EnrolError> {
    let (config, trust) = check(material)?;
    let folder = MemberFolder::new(dir.to_owned());
    write_files(&folder, &config, &trust, material).map_err(EnrolError::Files)
}

fn write_files(
    folder: &MemberFolder,
    config: &MemberConfig,
    trust: &TrustBundle,
    material: &Material<'_>,
) -> Result<(), MemberError> {
    let key = zeroize::Zeroizing::new(material.key.serialize_pem());
    folder.save_identity(
        key.as_bytes(),
        &material.response.certificate_chain_pem,
        &material.response.ca_pem,
    )?;
    folder.save_trust(trust)?;
    folder.save(config)
}

fn bad(field: &str, why: impl Display) -> EnrolError {
    EnrolError::Answer(format!("{field}: {why}"))
}

/// Checks every part of the answer against what was asked and pinned.
fn check(material: &Material<'_>) -> Result<(MemberConfig, TrustBundle), EnrolError> {
    let response = material.response;
    if response.role != material.role.as_str() {
        return Err(bad(
            "role",
            format!("`{}`, not {}", response.role, material.role.as_str()),
        ));
    }
    let role = match material.role {
        Role::Relay => MemberRole::Relay(response.id.parse().map_err(|e| bad("id", e))?),
        Role::Node => MemberRole::Node(response.id.parse().map_err(|e| bad("id", e))?),
    };
    let name: Name = response.name.parse().map_err(|e| bad("name", e))?;
    let trust_domain: TrustDomain = response
        .trust_domain
        .parse()
        .map_err(|e| bad("trust_domain", e))?;
    if trust_domain != material.seen.domain {
        return Err(bad(
            "trust_domain",
            "not the one of the control plane's certificate",
        ));
    }
    let ca = CertificateDer::from_pem_slice(response.ca_pem.as_bytes()).map_err(|e| bad("ca_pem", e))?;
    if tls::pin_of(&ca) != Some(material.pin) {
        return Err(bad("ca_pem", "not the pinned CA"));
    }
    let advertised_address = match (material.role, &response.advertised_address) {
        (Role::Relay, Some(text)) => {
            let address: HostPort = text.parse().map_err(|e| bad("advertised_address", e))?;
            Some(address)
        }
        (Role::Relay, None) => return Err(bad("advertised_address", "is missing")),
        (Role::Node, _) => None,
    };
    // Where nodes come to is where the worker listens, unless something forwards between them.
    let listen = material.listen.or_else(|| {
        let port = advertised_address.as_ref()?.port();
        Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
    });
    let config = MemberConfig {
        role,
        name,
        trust_domain,
        control: material.control.clone(),
        ca_pin: material.pin,
        grpc_server_name: response.grpc_server_name.clone(),
        advertised_address,
        listen,
    };
    check_certificate(&config, material)?;
    Ok((config, trust(response)?))
}

fn trust(response: &EnrolResponse) -> Result<TrustBundle, EnrolError> {
    let mut policy_keys = Vec::with_capacity(response.policy_keys.len());
    for text in &response.policy_keys {
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).map_err(|e| bad("policy_keys", e))?;
        policy_keys.push(key);
    }
    if policy_keys.is_empty() {
        return Err(bad("policy_keys", "there is none"));
    }
    Ok(TrustBundle {
        version: response.trust_bundle_version,
        policy_keys,
    })
}

/// The certificate must speak for this member and for the key made here.
fn check_certificate(config: &MemberConfig, material: &Material<'_>) -> Result<(), EnrolError> {
    const FIELD: &str = "certificate_chain_pem";
    let pem = material.response.certificate_chain_pem.as_bytes();
    let leaf = CertificateDer::from_pem_slice(pem).map_err(|e| bad(FIELD, e))?;
    let (identity, _) = certificate::identity_of(&leaf, &config.trust_domain).map_err(|e| bad(FIELD, e))?;
    if identity != config.identity() {
        return Err(bad(
            FIELD,
            format!("it is {identity}'s, not {}'s", config.identity()),
        ));
    }
    let own = tls::pin_of_key(&rcgen::PublicKeyData::subject_public_key_info(material.key));
    if tls::pin_of(&leaf) != Some(own) {
        return Err(bad(FIELD, "it is for another key"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_or_empty_folder_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        check_place(dir.path()).unwrap();
        check_place(&dir.path().join("new")).unwrap();
        fs::write(dir.path().join("x"), "").unwrap();
        assert!(matches!(check_place(dir.path()), Err(EnrolError::NotEmpty(_))));
        fs::write(dir.path().join("member.json"), "{").unwrap();
        assert!(matches!(
            check_place(dir.path()),
            Err(EnrolError::AlreadyEnrolled { .. })
        ));
    }
}

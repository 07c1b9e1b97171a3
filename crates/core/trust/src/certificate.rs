//! Identities in X.509 certificates. Chains and signatures are checked by TLS; this reads what a
//! certificate says.

use fairlead_model::identity::IdentityError;
use fairlead_model::{CaPin, Identity, TrustDomain, WallTime};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// From when to when a certificate is valid, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub not_before: WallTime,
    /// Its last second.
    pub not_after: WallTime,
}

/// Why a certificate names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The bytes are no X.509 certificate, or others follow it.
    #[error("not an X.509 certificate")]
    Malformed,
    /// A CA speaks for nobody.
    #[error("a CA certificate where a member's is due")]
    IsCa,
    /// SPIFFE allows exactly one URI (X.509-SVID section 2).
    #[error("{0} URIs among its subject alternative names, where there must be one")]
    UriCount(usize),
    /// The URI is no identity of this trust domain.
    #[error("its URI names no identity of this pool")]
    Identity(#[source] IdentityError),
}

/// Who the leaf certificate `der` speaks for in `domain`, and how long.
///
/// # Errors
/// It is malformed, a CA, names not exactly one URI, or another domain's.
pub fn identity_of(der: &[u8], domain: &TrustDomain) -> Result<(Identity, Validity), CertificateError> {
    let certificate = parse(der)?;
    let identity =
        Identity::from_spiffe(leaf_uri(&certificate)?, domain).map_err(CertificateError::Identity)?;
    Ok((identity, validity(&certificate)))
}

/// The trust domain of the control plane's leaf certificate `der`, for an enrolling host that does
/// not know it yet: the chain must have been held against the pinned CA.
///
/// # Errors
/// As [`identity_of`], or it is a member's.
pub fn control_domain_of(der: &[u8]) -> Result<(TrustDomain, Validity), CertificateError> {
    let certificate = parse(der)?;
    let uri = leaf_uri(&certificate)?;
    let form = || CertificateError::Identity(IdentityError::Form(uri.chars().take(160).collect()));
    let domain: TrustDomain = uri
        .strip_prefix("spiffe://")
        .and_then(|rest| rest.strip_suffix("/control"))
        .ok_or_else(form)?
        .parse()
        .map_err(CertificateError::Identity)?;
    Ok((domain, validity(&certificate)))
}

/// The one URI of a leaf.
fn leaf_uri<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, CertificateError> {
    if certificate.is_ca() {
        return Err(CertificateError::IsCa);
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| CertificateError::Malformed)?
        .ok_or(CertificateError::UriCount(0))?;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let (first, more) = (uris.next(), uris.count());
    let uri = first.ok_or(CertificateError::UriCount(0))?;
    if more > 0 {
        return Err(CertificateError::UriCount(more.saturating_add(1)));
    }
    Ok(uri)
}

/// SHA-256 of the public key in the certificate `der`: the bits of the key alone, without its
/// algorithm, as a signing request's key is hashed.
///
/// # Errors
/// It is malformed.
pub fn key_hash_of(der: &[u8]) -> Result<[u8; 32], CertificateError> {
    let certificate = parse(der)?;
    Ok(Sha256::digest(&certificate.public_key().subject_public_key.data).into())
}

/// How long the certificate `der` is valid, whoever it names.
///
/// # Errors
/// It is malformed.
pub fn validity_of(der: &[u8]) -> Result<Validity, CertificateError> {
    Ok(validity(&parse(der)?))
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err(CertificateError::Malformed),
    }
}

fn validity(certificate: &X509Certificate<'_>) -> Validity {
    let milliseconds = |seconds: i64| WallTime(seconds.saturating_mul(1000));
    Validity {
        not_before: milliseconds(certificate.validity().not_before.timestamp()),
        not_after: milliseconds(certificate.validity().not_after.timestamp()),
    }
}

/// The pin of the CA certificate `der`.
///
/// # Errors
/// It is malformed.
pub fn ca_pin_of(der: &[u8]) -> Result<CaPin, CertificateError> {
    Ok(CaPin(Sha256::digest(parse(der)?.public_key().raw).into()))
}

#[cfg(test)]
mod tests;

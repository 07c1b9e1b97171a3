//! TLS towards the control plane's REST face: the certificate must end in the CA that is pinned
//! or given as a file, and its leaf must be the control plane's own (`spiffe://…/control`). The
//! host name plays no part: the CA issues such a leaf to the control plane only.

use fairlead_host::Clock;
use fairlead_model::{CaPin, TrustDomain, WallTime};
use fairlead_trust::certificate;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the control plane's chain must end in.
#[derive(Debug, Clone)]
pub(crate) enum Anchor {
    /// A CA with this public key, taken from the chain itself.
    Pin(CaPin),
    /// One of these CAs.
    Certificates(Vec<CertificateDer<'static>>),
}

/// Why the presented certificate was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ControlCertError {
    /// No certificate of the chain has the pinned key.
    #[error(
        "it presents a CA with the pin {presented}, not {expected}: this is another pool, or something \
         stands between it and this host; compare --ca-pin with the install command"
    )]
    Pin { expected: CaPin, presented: String },
    /// The clock stands outside the certificate's validity.
    #[error(
        "this host's clock says {now}, but the control plane's certificate is valid from {from} to {to}: clock \
         differs by {difference} or more; set this host's clock"
    )]
    Clock {
        now: String,
        from: String,
        to: String,
        difference: String,
    },
    /// The leaf is some member's.
    #[error("the certificate is not the control plane's: {0}")]
    Leaf(String),
    /// No CA of the file has issued it.
    #[error(
        "no CA of the CA file has issued its certificate: compare the file (--ca-file, FAIRLEAD_CA_FILE or the \
         profile's) with ca.pem in the control plane's folder; the CA presented has the pin {presented}"
    )]
    Issuer { presented: String },
    /// The chain does not verify.
    #[error("the certificate does not verify: {0}")]
    Chain(String),
}

/// What a handshake has shown.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The CA that the chain ends in, where it came with the chain.
    pub(crate) ca: Option<CertificateDer<'static>>,
    /// The pool's trust domain.
    pub(crate) domain: TrustDomain,
}

/// Verifies the control plane and remembers the outcome of the last handshake.
#[derive(Debug)]
pub(crate) struct ControlVerifier {
    anchor: Anchor,
    clock: Arc<dyn Clock>,
    provider: Arc<CryptoProvider>,
    outcome: Mutex<Option<Result<Seen, ControlCertError>>>,
}

impl ControlVerifier {
    pub(crate) fn new(anchor: Anchor, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            anchor,
            clock,
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            outcome: Mutex::new(None),
        })
    }

    /// The last handshake's outcome.
    pub(crate) fn outcome(&self) -> Option<Result<Seen, ControlCertError>> {
        self.outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A client configuration with this verifier: TLS 1.3 only, no resumption.
    pub(crate) fn client_config(self: &Arc<Self>) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self.clone())
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<Seen, ControlCertError> {
        let (anchors, ca) = self.anchors(leaf, intermediates)?;
        let chain = |e: &dyn std::fmt::Display| ControlCertError::Chain(e.to_string());
        let mut roots = RootCertStore::empty();
        for anchor in anchors {
            roots.add(anchor).map_err(|e| chain(&e))?;
        }
        let (domain, validity) =
            certificate::control_domain_of(leaf).map_err(|e| ControlCertError::Leaf(e.to_string()))?;
        let now = self.clock.wall();
        check_clock(now, validity.not_before, validity.not_after)?;
        let parsed = ParsedCertificate::try_from(leaf).map_err(|e| chain(&e))?;
        let now = UnixTime::since_unix_epoch(Duration::from_millis(u64::try_from(now.0).unwrap_or(0)));
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )
        .map_err(|e| match (&self.anchor, &e) {
            (Anchor::Certificates(_), Error::InvalidCertificate(why)) if is_stranger(why) => {
                ControlCertError::Issuer {
                    presented: presented_pin(leaf, intermediates),
                }
            }
            (_, _) => chain(&e),
        })?;
        Ok(Seen { ca, domain })
    }

    fn anchors(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(Vec<CertificateDer<'static>>, Option<CertificateDer<'static>>), ControlCertError> {
        match &self.anchor {
            Anchor::Certificates(cas) => Ok((cas.clone(), None)),
            Anchor::Pin(pin) => {
                let ca = intermediates
                    .iter()
                    .find(|c| pin_of(c).as_ref() == Some(pin))
                    .map(|c| c.clone().into_owned())
                    .ok_or_else(|| ControlCertError::Pin {
                        expected: *pin,
                        presented: presented_pin(leaf, intermediates),
                    })?;
                Ok((vec![ca.clone()], Some(ca)))
            }
        }
    }
}

/// Whether the certificate is another CA's; one of the same name differs by its signature only.
fn is_stranger(why: &CertificateError) -> bool {
    matches!(
        why,
        CertificateError::UnknownIssuer | CertificateError::BadSignature
    )
}

/// The pin of what a chain ends in.
fn presented_pin(leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> String {
    pin_of(intermediates.last().unwrap_or(leaf)).map_or_else(|| "none".to_owned(), |pin| pin.to_string())
}

/// The pin of a certificate: SHA-256 of its public key.
pub(crate) fn pin_of(certificate: &CertificateDer<'_>) -> Option<CaPin> {
    certificate::ca_pin_of(certificate).ok()
}

/// The pin of a public key, given as SubjectPublicKeyInfo in DER.
pub(crate) fn pin_of_key(spki: &[u8]) -> CaPin {
    CaPin(Sha256::digest(spki).into())
}

/// A clock outside the certificate's validity gets its own message: a host whose clock is a day
/// off would else be told that a certificate is "not valid yet".
fn check_clock(now: WallTime, from: WallTime, to: WallTime) -> Result<(), ControlCertError> {
    let difference = if now < from {
        from.since(now)
    } else if now > to {
        now.since(to)
    } else {
        return Ok(());
    };
    Err(ControlCertError::Clock {
        now: crate::table::time(now),
        from: crate::table::time(from),
        to: crate::table::time(to),
        difference: fairlead_model::duration::format(Duration::from_secs(difference.as_secs())),
    })
}

impl ServerCertVerifier for ControlVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let outcome = self.check(end_entity, intermediates);
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
        outcome
            .map(|_| ServerCertVerified::assertion())
            .map_err(|error| Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error)))))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests;

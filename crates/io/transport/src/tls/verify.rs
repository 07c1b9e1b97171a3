//! Checks a peer's certificate: chain, time, use, and the identity it speaks for.

use super::{Material, MemberTls};
use arc_swap::ArcSwap;
use fairlead_model::{Identity, TrustDomain};
use fairlead_trust::certificate::{CertificateError, Validity, identity_of};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Whom this end accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// This one only.
    Exactly(Identity),
    /// Any node or relay of the pool: policy decides what it may do.
    AnyMember,
    /// Any node of the pool.
    AnyNode,
}

/// The peer proved an identity, but not one that is accepted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer is {found}, expected {expected}")]
pub struct IdentityMismatch {
    /// Who is accepted.
    pub expected: Peer,
    /// Who it is.
    pub found: Identity,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(identity) => identity.fmt(f),
            Self::AnyMember => f.write_str("a node or relay"),
            Self::AnyNode => f.write_str("a node"),
        }
    }
}

impl Peer {
    fn accepts(self, identity: Identity) -> bool {
        match (self, identity) {
            (Self::Exactly(expected), found) => expected == found,
            (Self::AnyMember, Identity::Node(_) | Identity::Relay(_)) => true,
            (Self::AnyNode, Identity::Node(_)) => true,
            (Self::AnyMember, Identity::Control)
            | (Self::AnyNode, Identity::Control | Identity::Relay(_)) => false,
        }
    }
}

/// Why a peer's certificate was not accepted.
#[derive(Clone, thiserror::Error)]
pub(crate) enum VerifyFault {
    /// Chain, time or use.
    #[error("the peer's certificate is not valid: {0}")]
    Chain(rustls::Error),
    /// No identity of this pool.
    #[error("the peer's certificate names no identity of this pool: {0}")]
    NoIdentity(Arc<CertificateError>),
    /// Another identity.
    #[error(transparent)]
    Mismatch(IdentityMismatch),
}

/// rustls prints the reasons of a verifier by their `Debug`; this one is for people either way.
impl fmt::Debug for VerifyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity of a chain's leaf.
pub(crate) fn identity_of_chain(
    chain: &[CertificateDer<'_>],
    domain: &TrustDomain,
) -> Result<(Identity, Validity), CertificateError> {
    // A handshake without a certificate does not get here; empty bytes are refused like any.
    identity_of(chain.first().map_or(&[], |leaf| leaf.as_ref()), domain)
}

/// Verifies peers of either side against the roots in use.
pub(crate) struct PeerVerifier {
    expect: Peer,
    domain: TrustDomain,
    provider: Arc<CryptoProvider>,
    material: Arc<ArcSwap<Material>>,
    fault: Mutex<Option<VerifyFault>>,
}

impl fmt::Debug for PeerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerVerifier")
            .field("expect", &self.expect)
            .finish_non_exhaustive()
    }
}

impl PeerVerifier {
    pub(crate) fn new(tls: &MemberTls, expect: Peer) -> Self {
        Self {
            expect,
            domain: tls.domain.clone(),
            provider: Arc::clone(&tls.provider),
            material: Arc::clone(&tls.material),
            fault: Mutex::new(None),
        }
    }

    /// Why the last peer of this verifier was refused, if one was. Meaningful where the verifier
    /// belongs to one dial.
    pub(crate) fn take_fault(&self) -> Option<VerifyFault> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn check_identity(&self, leaf: &CertificateDer<'_>) -> Result<(), VerifyFault> {
        let (found, _) =
            identity_of(leaf, &self.domain).map_err(|error| VerifyFault::NoIdentity(Arc::new(error)))?;
        if self.expect.accepts(found) {
            Ok(())
        } else {
            Err(VerifyFault::Mismatch(IdentityMismatch {
                expected: self.expect,
                found,
            }))
        }
    }

    fn refuse(&self, fault: VerifyFault) -> rustls::Error {
        let error = match &fault {
            VerifyFault::Chain(error) => error.clone(),
            VerifyFault::NoIdentity(_) | VerifyFault::Mismatch(_) => rustls::Error::InvalidCertificate(
                rustls::CertificateError::Other(OtherError(Arc::new(fault.clone()))),
            ),
        };
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        error
    }

    fn signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn no_tls12() -> rustls::Error {
        rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls13RequiredForQuic)
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let material = self.material.load();
        ParsedCertificate::try_from(end_entity)
            .and_then(|leaf| {
                rustls::client::verify_server_cert_signed_by_trust_anchor(
                    &leaf,
                    &material.roots,
                    intermediates,
                    now,
                    self.provider.signature_verification_algorithms.all,
                )
            })
            .map_err(VerifyFault::Chain)
            .and_then(|()| self.check_identity(end_entity))
            .map_err(|fault| self.refuse(fault))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Self::no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl ClientCertVerifier for PeerVerifier {
    /// No hints: a member has one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let clients = Arc::clone(&self.material.load().clients);
        clients
            .verify_client_cert(end_entity, intermediates, now)
            .map_err(VerifyFault::Chain)
            .and_then(|verified| self.check_identity(end_entity).map(|()| verified))
            .map_err(|fault| self.refuse(fault))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Self::no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

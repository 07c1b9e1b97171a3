//! Parts of session messages that have a model type.

use crate::field::{DecodeError, Fault, Place, WireId, keyring, keyring_to_wire};
use crate::pb;
use bytes::Bytes;
use fairlead_model::{HostPort, LeaderTerm, LeaseSeq, PolicyEpoch, RelayId, Revision, TrustDomain};
use fairlead_trust::admission::PolicyHead;
use fairlead_trust::{Keyring, PolicyRoot};

/// The keys and CAs that a member trusts. It comes over the authenticated control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustBundle {
    /// Its number; rises with each change.
    pub version: u64,
    /// CA certificates in DER, at least one.
    pub ca_certificates: Vec<Bytes>,
    /// Keys that sign policies and leases, at least one.
    pub policy_keys: Keyring,
    /// The pool's trust domain.
    pub trust_domain: TrustDomain,
}

/// A wish that this supervisor try another relay's port (R-ENR-07).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Names the report that answers it.
    pub request: [u8; 16],
    /// Whose certificate the port must prove.
    pub relay: RelayId,
    /// Where to dial.
    pub address: HostPort,
}

/// Most CA certificates of a bundle: a rotation needs two.
pub const CA_CERTIFICATES_MAX: usize = 8;
/// Greatest CA certificate in bytes; one with an RSA-4096 key and long names has 2 KiB.
pub const CA_CERTIFICATE_LEN_MAX: usize = 16 * 1024;

impl TryFrom<pb::TrustBundle> for TrustBundle {
    type Error = DecodeError;

    fn try_from(wire: pb::TrustBundle) -> Result<Self, DecodeError> {
        let cas = Place::root("ca_certificates");
        if wire.ca_certificates.is_empty() {
            return Err(cas.fault(Fault::Missing));
        }
        if wire.ca_certificates.len() > CA_CERTIFICATES_MAX {
            return Err(cas.value(format_args!("more than {CA_CERTIFICATES_MAX} certificates")));
        }
        for (index, der) in wire.ca_certificates.iter().enumerate() {
            if !(1..=CA_CERTIFICATE_LEN_MAX).contains(&der.len()) {
                return Err(Place::item("ca_certificates", index).value(format_args!(
                    "{} bytes, not 1 to {CA_CERTIFICATE_LEN_MAX}",
                    der.len()
                )));
            }
        }
        let policy_keys = keyring(&wire.policy_keys, "policy_keys")?;
        if policy_keys.is_empty() {
            return Err(Place::root("policy_keys").fault(Fault::Missing));
        }
        Ok(Self {
            version: wire.version,
            ca_certificates: wire.ca_certificates,
            policy_keys,
            trust_domain: Place::root("trust_domain").text(&wire.trust_domain)?,
        })
    }
}

impl From<&TrustBundle> for pb::TrustBundle {
    fn from(bundle: &TrustBundle) -> Self {
        Self {
            version: bundle.version,
            ca_certificates: bundle.ca_certificates.clone(),
            policy_keys: keyring_to_wire(&bundle.policy_keys),
            trust_domain: bundle.trust_domain.to_string(),
        }
    }
}

impl From<PolicyHead> for pb::PolicyHead {
    fn from(head: PolicyHead) -> Self {
        Self {
            epoch: head.epoch.0,
            revision: head.revision.0,
            root: Bytes::copy_from_slice(&head.root.0),
            lease_seq: head.lease_seq.0,
            lease_not_after_ms: head.lease_not_after.0,
            leader_term: head.leader_term.0,
        }
    }
}

impl TryFrom<pb::PolicyHead> for PolicyHead {
    type Error = DecodeError;

    fn try_from(wire: pb::PolicyHead) -> Result<Self, DecodeError> {
        Ok(Self {
            epoch: PolicyEpoch(wire.epoch),
            revision: Revision(wire.revision),
            root: PolicyRoot(Place::root("root").digest(&wire.root)?),
            leader_term: LeaderTerm(wire.leader_term),
            lease_seq: LeaseSeq(wire.lease_seq),
            lease_not_after: Place::root("lease_not_after_ms").wall(wire.lease_not_after_ms)?,
        })
    }
}

impl TryFrom<pb::ProbeRequest> for ProbeRequest {
    type Error = DecodeError;

    fn try_from(wire: pb::ProbeRequest) -> Result<Self, DecodeError> {
        let place = Place::root("request_id");
        let given = wire.request_id.len();
        let request = wire.request_id.as_ref().try_into();
        Ok(Self {
            request: request.map_err(|_| place.fault(Fault::Length { given, due: 16 }))?,
            relay: Place::root("relay_id").id(&wire.relay_id)?,
            address: Place::root("address").text(&wire.address)?,
        })
    }
}

impl From<&ProbeRequest> for pb::ProbeRequest {
    fn from(probe: &ProbeRequest) -> Self {
        Self {
            request_id: Bytes::copy_from_slice(&probe.request),
            relay_id: probe.relay.to_wire(),
            address: probe.address.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;

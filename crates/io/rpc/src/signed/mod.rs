//! Signed documents: out of verified bytes, and into bytes to sign.

mod decode;
mod encode;

pub use decode::{decode_grant, decode_node_policy, decode_policy_lease, decode_relay_policy};
pub use encode::{encode_grant, encode_node_policy, encode_policy_lease, encode_relay_policy};

use crate::field::DecodeError;
use fairlead_model::RelayId;
use fairlead_trust::admission::{HostBoot, Now, Snapshot, SnapshotError};
use fairlead_trust::{
    Grant, Keyring, NodePolicy, PayloadType, PolicyLease, RelayAdmission, RelayPolicy, Verified, VerifyError,
    verify,
};

/// Why bytes are no signed document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No trusted key signed them as such a document.
    #[error("its signature does not hold")]
    Verify(#[from] VerifyError),
    /// A trusted key signed something that makes no sense.
    #[error("it was signed, and has a fault")]
    Decode(#[from] DecodeError),
}

/// Why a relay's saved policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The bytes are no snapshot.
    #[error("the saved policy cannot be read")]
    Snapshot(#[from] SnapshotError),
    /// It is another relay's.
    #[error("the saved policy is that of relay {found}, not of {expected}")]
    OtherRelay {
        /// Whose it is.
        found: RelayId,
        /// Who reads it.
        expected: RelayId,
    },
}

/// Verifies and parses a relay's policy.
///
/// # Errors
/// The signature does not hold, or a field has a fault.
pub fn open_relay_policy(keys: &Keyring, envelope: &[u8]) -> Result<Verified<RelayPolicy>, OpenError> {
    Ok(decode_relay_policy(&verify(
        keys,
        PayloadType::RelayPolicy,
        envelope,
    )?)?)
}

/// Verifies and parses a policy lease.
///
/// # Errors
/// The signature does not hold, or a field has a fault.
pub fn open_policy_lease(keys: &Keyring, envelope: &[u8]) -> Result<Verified<PolicyLease>, OpenError> {
    Ok(decode_policy_lease(&verify(
        keys,
        PayloadType::PolicyLease,
        envelope,
    )?)?)
}

/// Verifies and parses a node's policy.
///
/// # Errors
/// The signature does not hold, or a field has a fault.
pub fn open_node_policy(keys: &Keyring, envelope: &[u8]) -> Result<Verified<NodePolicy>, OpenError> {
    Ok(decode_node_policy(&verify(
        keys,
        PayloadType::NodePolicy,
        envelope,
    )?)?)
}

/// Verifies and parses a grant.
///
/// # Errors
/// The signature does not hold, or a field has a fault.
pub fn open_grant(keys: &Keyring, envelope: &[u8]) -> Result<Verified<Grant>, OpenError> {
    Ok(decode_grant(&verify(keys, PayloadType::Grant, envelope)?)?)
}

/// What a relay knew when `snapshot` was saved. Its envelopes are verified with today's `keys`; one
/// that no longer holds is left out, while the remembered head still stands (R-POL-04).
///
/// # Errors
/// The bytes are no snapshot, or another relay's.
pub fn restore_admission(
    snapshot: &[u8],
    keys: &Keyring,
    relay: RelayId,
    host_boot: HostBoot,
    now: Now,
) -> Result<RelayAdmission, RestoreError> {
    let snapshot = Snapshot::decode(snapshot)?;
    if snapshot.relay != relay {
        return Err(RestoreError::OtherRelay {
            found: snapshot.relay,
            expected: relay,
        });
    }
    let policy = open_relay_policy(keys, &snapshot.policy_envelope).ok();
    let lease = open_policy_lease(keys, &snapshot.lease_envelope).ok();
    Ok(RelayAdmission::restore(&snapshot, policy, lease, host_boot, now))
}

#[cfg(test)]
mod tests;

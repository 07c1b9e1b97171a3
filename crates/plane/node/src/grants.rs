//! Grants whose signatures hold, so that the same grant is verified once and not for every stream.

use bytes::Bytes;
use fairlead_model::RouteId;
use fairlead_rpc::signed::{self, OpenError};
use fairlead_trust::{Grant, Keyring, Verified};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Most grants remembered; the publications of a node have fewer routes.
const REMEMBERED_MAX: usize = 4096;

/// The last verified grant of each route, with the keys that it was verified by. Everything but
/// the signature is judged anew for each stream.
#[derive(Debug, Default)]
pub(crate) struct VerifiedGrants(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    keys: Keyring,
    grants: BTreeMap<RouteId, Verified<Grant>>,
}

impl VerifiedGrants {
    /// The grant in `envelope`, verified by `keys`.
    pub(crate) fn open(
        &self,
        keys: &Keyring,
        route: RouteId,
        envelope: &Bytes,
    ) -> Result<Verified<Grant>, OpenError> {
        {
            let remembered = self.lock();
            if remembered.keys == *keys
                && let Some(grant) = remembered.grants.get(&route)
                && grant.envelope() == envelope
            {
                return Ok(grant.clone());
            }
        }
        let grant = signed::open_grant(keys, envelope)?;
        let mut remembered = self.lock();
        if remembered.keys != *keys || remembered.grants.len() >= REMEMBERED_MAX {
            remembered.grants.clear();
            remembered.keys = keys.clone();
        }
        remembered.grants.insert(route, grant.clone());
        Ok(grant)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Grants that were verified under the policy in force.
//!
//! A consumer sends the same grant with every OPEN of a route, and verifying one costs more than
//! everything else that an OPEN does. What is kept is compared byte for byte and forgotten with
//! the policy whose keys verified it.

use bytes::Bytes;
use fairlead_model::RouteId;
use fairlead_rpc::signed::open_grant;
use fairlead_trust::{Grant, RelayAdmission, Verified};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most grants that are kept. A relay carries a few hundred endpoints with a few routes each; above
/// that, others are verified each time.
const GRANTS_MAX: usize = 4_096;

/// Verified grants, one for each route.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Under which policy they were verified.
    under: Option<Arc<RelayAdmission>>,
    by_route: HashMap<RouteId, (Bytes, Arc<Verified<Grant>>)>,
}

impl Grants {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The grant in `envelope`, verified with `policy`'s keys; `None` if they do not sign it.
    pub(crate) fn verify(
        &self,
        policy: &Arc<RelayAdmission>,
        route: RouteId,
        envelope: &Bytes,
    ) -> Option<Arc<Verified<Grant>>> {
        {
            let kept = self.lock();
            if kept.is_under(policy)
                && let Some((bytes, grant)) = kept.by_route.get(&route)
                && bytes == envelope
            {
                return Some(Arc::clone(grant));
            }
        }
        let grant = Arc::new(open_grant(policy.grant_keys(), envelope).ok()?);
        // A grant of another route is refused anyway: it must not push out the right one.
        if grant.route == route {
            let mut kept = self.lock();
            if !kept.is_under(policy) {
                *kept = Kept {
                    under: Some(Arc::clone(policy)),
                    by_route: HashMap::new(),
                };
            }
            if kept.by_route.len() < GRANTS_MAX || kept.by_route.contains_key(&route) {
                kept.by_route
                    .insert(route, (envelope.clone(), Arc::clone(&grant)));
            }
        }
        Some(grant)
    }
}

impl Kept {
    fn is_under(&self, policy: &Arc<RelayAdmission>) -> bool {
        self.under
            .as_ref()
            .is_some_and(|under| Arc::ptr_eq(under, policy))
    }
}

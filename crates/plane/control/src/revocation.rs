//! How long a revocation takes to each relay (R-REV-03): from the change that took the route away to
//! the relay's word that it enforces a policy without it.
//!
//! It is counted from this process's plans on: what was revoked before it started and is still on its
//! way is shown by `relay_policy_pending` alone.

use fairlead_model::{PolicyEpoch, RelayId, Revision, RouteId, WallTime};
use fairlead_telemetry::Metrics;
use fairlead_telemetry::metric::{Family, Histogram};
use fairlead_trust::admission::PolicyHead;
use fairlead_trust::{RelayPolicy, Verified};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Around what is promised: 5 s where the relay is reachable (R-REV-01), stale after 90 s (R-REV-02),
/// and outages of an hour and a day.
const BUCKETS: [f64; 12] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 90.0, 600.0, 3_600.0, 86_400.0,
];

type ByRelay = Family<Vec<(&'static str, String)>, Histogram, fn() -> Histogram>;

/// Revocations on their way to relays.
#[derive(Debug)]
pub(crate) struct Revocations {
    relays: Mutex<BTreeMap<RelayId, Relay>>,
    seconds: ByRelay,
}

#[derive(Debug, Default)]
struct Relay {
    pending: BTreeMap<RouteId, Pending>,
    /// Under what name it is in the histogram.
    label: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    /// When the route was taken away.
    at: WallTime,
    /// The first policy of this relay that says so.
    from: (PolicyEpoch, Revision),
}

impl Default for Revocations {
    fn default() -> Self {
        Self {
            relays: Mutex::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }
}

impl Revocations {
    /// Shows the latencies in `registry`.
    pub(crate) fn register(&self, registry: &Metrics) {
        registry.register_by(
            "relay_revocation_seconds",
            &["relay"],
            "From the revocation of a route to the relay's word that it enforces it",
            self.seconds.clone(),
        );
    }

    /// Policies are about to be published: what they revoke and the ones before did not is on its way.
    /// A relay's first policy of this process is compared with none.
    pub(crate) fn published(
        &self,
        before: &BTreeMap<RelayId, Arc<Verified<RelayPolicy>>>,
        next: &BTreeMap<RelayId, Arc<Verified<RelayPolicy>>>,
        revoked_at: impl Fn(RouteId) -> Option<WallTime>,
    ) {
        let mut relays = self.lock();
        relays.retain(|id, relay| {
            let is_there = next.contains_key(id);
            if let Some(label) = relay.label.take_if(|_| !is_there) {
                self.seconds.remove(&vec![("relay", label)]);
            }
            is_there
        });
        for (id, policy) in next {
            let Some(last) = before.get(id).filter(|last| !Arc::ptr_eq(last, policy)) else {
                continue;
            };
            let known: BTreeSet<RouteId> = last.revoked_routes.iter().copied().collect();
            let new = policy
                .revoked_routes
                .iter()
                .filter(|route| !known.contains(*route));
            for route in new {
                if let Some(at) = revoked_at(*route) {
                    let from = (policy.epoch, policy.revision);
                    let relay = relays.entry(*id).or_default();
                    relay.pending.insert(*route, Pending { at, from });
                }
            }
        }
    }

    /// A relay enforces the policy of this head.
    pub(crate) fn applied(&self, id: RelayId, name: &str, head: &PolicyHead, now: WallTime) {
        let mut relays = self.lock();
        let Some(relay) = relays.get_mut(&id) else { return };
        let held = (head.epoch, head.revision);
        let done = relay.pending.extract_if(.., |_, pending| pending.from <= held);
        let waits: Vec<f64> = done
            .map(|(_, pending)| now.since(pending.at).as_secs_f64())
            .collect();
        if waits.is_empty() {
            return;
        }
        let label = relay.label.get_or_insert_with(|| name.to_owned()).clone();
        let seconds = self.seconds.get_or_create(&vec![("relay", label)]);
        for wait in waits {
            seconds.observe(wait);
        }
    }

    /// How many revocations a relay has not confirmed.
    pub(crate) fn pending(&self, id: RelayId) -> usize {
        self.lock().get(&id).map_or(0, |relay| relay.pending.len())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RelayId, Relay>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

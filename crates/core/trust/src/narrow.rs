//! What a node may do while its newer policy cannot be kept: what both policies allow.

use crate::document::{Consumption, NodePolicy, Publication, PublishedRoute};
use crate::key::Keyring;
use std::collections::BTreeMap;

impl NodePolicy {
    /// This policy without what `newer` takes away: its revoked routes, and the relays, publications,
    /// consumptions, routes and keys that it does not have or has otherwise (R-REV-01). Nothing that
    /// only `newer` has is added, since that waits for the disk (R-POL-04); the number stays this
    /// policy's. What says no more than where and how (listen addresses, relays of a link,
    /// generations) stays too.
    #[must_use]
    pub fn narrowed_by(&self, newer: &Self) -> Self {
        let mut narrowed = self.clone();
        narrowed.issued_at = self.issued_at.max(newer.issued_at);
        narrowed
            .relays
            .retain(|r| newer.relays.iter().any(|n| n.relay == r.relay));
        let published: BTreeMap<_, &Publication> =
            newer.publications.iter().map(|p| (p.endpoint, p)).collect();
        narrowed.publications.retain_mut(|p| {
            let Some(newer_publication) = published.get(&p.endpoint).filter(|n| n.target == p.target) else {
                return false;
            };
            p.routes = common_routes(p, newer_publication, self.epoch == newer.epoch);
            true
        });
        let consumed: BTreeMap<_, &Consumption> = newer.consumptions.iter().map(|c| (c.route, c)).collect();
        narrowed.consumptions.retain(|c| {
            consumed
                .get(&c.route)
                .is_some_and(|n| n.endpoint == c.endpoint && n.publisher == c.publisher)
        });
        narrowed.revoked_routes.extend(&newer.revoked_routes);
        narrowed.revoked_routes.sort_unstable();
        narrowed.revoked_routes.dedup();
        let held_by_both = |key: &crate::VerifyingKey| newer.grant_keys.keys().any(|k| k.id() == key.id());
        // No more keys than this policy's ring holds already.
        narrowed.grant_keys =
            Keyring::new(self.grant_keys.keys().filter(held_by_both)).unwrap_or(Keyring::EMPTY);
        narrowed
    }
}

/// The routes that both have; revisions are comparable within an epoch.
fn common_routes(held: &Publication, newer: &Publication, one_epoch: bool) -> Vec<PublishedRoute> {
    let both = held.routes.iter().filter_map(|route| {
        let mut same = newer.routes.iter();
        let other = same.find(|n| n.route == route.route && n.consumer == route.consumer)?;
        let revision_min = if one_epoch {
            route.revision_min.max(other.revision_min)
        } else {
            route.revision_min
        };
        Some(PublishedRoute {
            revision_min,
            ..*route
        })
    });
    both.collect()
}

#[cfg(test)]
mod tests {
    use crate::document::{Consumption, NodePolicy, NodeRelay};
    use crate::fixture::{CONSUMER, PUBLISHER, RELAY, ROUTE, node_policy};
    use crate::key::Keyring;
    use fairlead_model::{NodeId, RouteId};
    use proptest::prelude::*;

    /// What a policy lets its node do, as the daemon asks.
    fn allowed(policy: &NodePolicy) -> [bool; 4] {
        let live = !policy.revoked_routes.contains(&ROUTE);
        let mut published = policy.publications.iter().flat_map(|p| &p.routes);
        [
            live && published.any(|r| r.route == ROUTE && r.consumer == CONSUMER),
            live && policy
                .consumptions
                .iter()
                .any(|c| c.route == ROUTE && c.publisher == PUBLISHER),
            policy.relays.iter().any(|r| r.relay == RELAY),
            !policy.grant_keys.is_empty(),
        ]
    }

    fn policy(parts: [bool; 8], revision: u64) -> NodePolicy {
        let [
            publishes,
            route,
            consumes,
            publisher,
            relay,
            is_revoked,
            key,
            target,
        ] = parts;
        let mut policy = node_policy();
        policy.revision.0 = revision;
        policy.publications.retain(|_| publishes);
        for publication in &mut policy.publications {
            publication.routes.retain(|_| route);
            if target {
                publication.target = "127.0.0.1:9".parse().unwrap();
            }
        }
        if consumes {
            policy.consumptions.push(Consumption {
                route: ROUTE,
                endpoint: crate::fixture::ENDPOINT,
                generation: fairlead_model::Generation(3),
                publisher: if publisher {
                    PUBLISHER
                } else {
                    NodeId::from_bytes([77; 16])
                },
                link: "db".parse().unwrap(),
                listen: "127.0.0.1:7".parse().unwrap(),
                class: fairlead_model::ServiceClass::Database,
                relays: vec![RELAY],
            });
        }
        policy.relays.clear();
        if relay {
            policy.relays.push(NodeRelay {
                relay: RELAY,
                name: "r1".parse().unwrap(),
                address: "127.0.0.1:1".parse().unwrap(),
                failure_domain: "a".parse().unwrap(),
            });
        }
        if is_revoked {
            policy.revoked_routes.push(ROUTE);
        }
        if !key {
            policy.grant_keys = Keyring::EMPTY;
        }
        policy
    }

    proptest! {
        /// R-REV-01, R-POL-04: nothing is allowed that either policy refuses.
        #[test]
        fn both_policies_must_allow(held: [bool; 8], newer: [bool; 8]) {
            let (held, newer) = (policy(held, 10), policy(newer, 11));
            let narrowed = held.narrowed_by(&newer);
            let each = allowed(&held).into_iter().zip(allowed(&newer));
            for (is, (old, new)) in allowed(&narrowed).into_iter().zip(each) {
                prop_assert!(!is || (old && new));
            }
            prop_assert_eq!(narrowed.revision, held.revision);
            prop_assert_eq!(held.narrowed_by(&held), held);
        }
    }

    #[test]
    fn revoked_routes_of_both_count_once() {
        let other = RouteId::from_bytes([88; 16]);
        let (mut held, mut newer) = (node_policy(), node_policy());
        held.revoked_routes = vec![other];
        newer.revoked_routes = vec![ROUTE, other];
        assert_eq!(held.narrowed_by(&newer).revoked_routes.len(), 2);
    }
}

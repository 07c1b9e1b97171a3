//! What the daemon may do: the verified node policy and grants, and the one place that lets newer
//! ones in.

use crate::state::{Documents, DocumentsError, GRANT_LEN_MAX, GRANTS_MAX, NodeState};
use bytes::Bytes;
use fairlead_model::{LeaderTerm, NodeId, PolicyEpoch, RelayId, Revision, RouteId, WallTime};
use fairlead_rpc::signed::{self, OpenError};
use fairlead_trust::{Consumption, Grant, Keyring, NodePolicy, Verified, VerifyError};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The verified documents in force. Immutable; a change makes another one.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// As it is on disk, without what a newer one takes away that could not be kept.
    policy: Option<NodePolicy>,
    grants: BTreeMap<RouteId, Verified<Grant>>,
}

/// How every module follows the view.
pub(crate) type ViewReceiver = watch::Receiver<Arc<View>>;

impl View {
    /// The node policy, once one has come.
    pub(crate) fn policy(&self) -> Option<&NodePolicy> {
        self.policy.as_ref()
    }

    /// The grant for a route that this node consumes.
    pub(crate) fn grant(&self, route: RouteId) -> Option<&Verified<Grant>> {
        self.grants.get(&route)
    }

    /// How many grants are in force.
    pub(crate) fn grant_count(&self) -> usize {
        self.grants.len()
    }

    /// When the first of the grants ends.
    pub(crate) fn grants_end(&self) -> Option<WallTime> {
        self.grants.values().map(|grant| grant.not_after).min()
    }

    /// Whether a live stream that this node consumes may go on (R-REV-01).
    pub(crate) fn consumes(&self, route: RouteId) -> bool {
        self.policy().is_some_and(|p| {
            p.consumptions.iter().any(|c| c.route == route) && !p.revoked_routes.contains(&route)
        })
    }

    /// The consumption of a route, while policy has it.
    pub(crate) fn consumption(&self, route: RouteId) -> Option<&Consumption> {
        let mut consumptions = self.policy().into_iter().flat_map(|p| &p.consumptions);
        consumptions.find(|c| c.route == route)
    }

    /// Whether policy has the route and names other relays for it.
    pub(crate) fn has_left(&self, route: RouteId, relay: RelayId) -> bool {
        self.consumption(route)
            .is_some_and(|c| !c.relays.contains(&relay))
    }

    /// Whether a live stream that this node publishes to `consumer` may go on (R-REV-01).
    pub(crate) fn publishes(&self, route: RouteId, consumer: NodeId) -> bool {
        self.policy().is_some_and(|p| {
            let mut routes = p.publications.iter().flat_map(|p| &p.routes);
            routes.any(|r| r.route == route && r.consumer == consumer) && !p.revoked_routes.contains(&route)
        })
    }

    /// The relays that a route of this node's is published through, while policy has it.
    pub(crate) fn published_through(&self, route: RouteId) -> &[RelayId] {
        let mut publications = self.policy().into_iter().flat_map(|p| &p.publications);
        let found = publications.find(|p| p.routes.iter().any(|r| r.route == route));
        found.map_or(&[], |p| &p.relays)
    }

    /// Whether `peer` consumes anything that this node publishes.
    pub(crate) fn has_consumer(&self, peer: NodeId) -> bool {
        self.policy().is_some_and(|p| {
            let mut routes = p.publications.iter().flat_map(|p| &p.routes);
            routes.any(|r| r.consumer == peer)
        })
    }
}

/// Why a policy or grants were refused. The daemon goes on with what it holds.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// Not signed by a key of the trust bundle, or malformed.
    #[error("the node policy cannot be verified")]
    Policy(#[source] OpenError),
    /// Another node's.
    #[error("the node policy is for {0}")]
    OtherNode(NodeId),
    /// A leader that was succeeded.
    #[error("the node policy is of leader term {offered}, held is {held}")]
    OlderTerm {
        /// As offered.
        offered: LeaderTerm,
        /// As held.
        held: LeaderTerm,
    },
    /// An older policy (R-POL-04).
    #[error("the node policy is revision {} of epoch {}, held is revision {} of epoch {}", .offered.1, .offered.0, .held.1, .held.0)]
    Older {
        /// As offered.
        offered: (PolicyEpoch, Revision),
        /// As held.
        held: (PolicyEpoch, Revision),
    },
    /// The same number with other content (R-POL-04).
    #[error("the node policy, revision {} of epoch {}, has other content than the one held", .0.1, .0.0)]
    OtherContent((PolicyEpoch, Revision)),
    /// More or larger grants than a node holds.
    #[error("{count} grants, or one above {GRANT_LEN_MAX} bytes; at most {GRANTS_MAX} are held")]
    TooMany {
        /// As offered.
        count: usize,
    },
    /// The state file.
    #[error("the documents cannot be kept")]
    State(#[from] DocumentsError),
}

/// Lets newer documents in: verifies, persists, then publishes the new view.
///
/// Contract: a document is on disk before anything acts on what it gives. What it takes away is gone
/// at once, whether it can be kept or not (R-REV-01). Methods block on the disk.
#[derive(Debug)]
pub(crate) struct ViewKeeper {
    node: NodeId,
    keys: Keyring,
    state: NodeState,
    /// What is on disk.
    kept: Held,
    /// What is newer and could not be written.
    unkept: Option<Held>,
    view: watch::Sender<Arc<View>>,
}

/// Documents as they came, with the policy verified.
#[derive(Debug, Clone, Default)]
struct Held {
    documents: Documents,
    policy: Option<Verified<NodePolicy>>,
}

impl Held {
    /// The grants of `node`, verified by the policy's keys. One that does not verify waits: the policy
    /// that brings its key may be on the way.
    fn grants(&self, node: NodeId) -> BTreeMap<RouteId, Verified<Grant>> {
        let mut grants = BTreeMap::new();
        let Some(policy) = &self.policy else {
            return grants;
        };
        for envelope in &self.documents.grants {
            match signed::open_grant(&policy.grant_keys, envelope) {
                Ok(grant) if grant.consumer == node => {
                    grants.insert(grant.route, grant);
                }
                Ok(grant) => {
                    tracing::warn!(consumer = %grant.consumer, "a grant for another node is ignored")
                }
                Err(error) => tracing::debug!(
                    error = fairlead_telemetry::chain(&error),
                    "a grant is not verifiable under this policy"
                ),
            }
        }
        grants
    }
}

impl ViewKeeper {
    /// Loads what was kept and verifies it again. Documents that are damaged or not verifiable are
    /// set aside with a warning: the control plane sends them anew. A damaged file is kept beside
    /// under another name, so that the next save does not make it the previous state.
    pub(crate) fn load(node: NodeId, keys: Keyring, state: NodeState) -> Self {
        let mut keeper = Self {
            node,
            keys,
            state,
            kept: Held::default(),
            unkept: None,
            view: watch::Sender::new(Arc::default()),
        };
        match keeper.state.load() {
            Ok(documents) => keeper.take_kept(documents),
            Err(error) => {
                tracing::warn!(
                    error = fairlead_telemetry::chain(&error),
                    "the kept node policy cannot be read; waiting for the control plane's"
                );
                if let Err(error) = keeper.state.set_aside() {
                    tracing::warn!(
                        error = fairlead_telemetry::chain(&error),
                        "the damaged file stays in place"
                    );
                }
            }
        }
        keeper
    }

    fn take_kept(&mut self, documents: Documents) {
        self.kept.documents.grants = documents.grants;
        let Some(bytes) = documents.policy else { return };
        match self.check_policy(&bytes) {
            Ok(policy) => {
                self.kept.documents.policy = Some(bytes);
                self.kept.policy = Some(policy);
                self.publish();
            }
            // It was verified when it was saved: the keys are suspect, not the policy. It is kept, for
            // keys that come or are restored.
            Err(error @ Refused::Policy(OpenError::Verify(VerifyError::Signature { .. }))) => {
                tracing::warn!(
                    error = fairlead_telemetry::chain(&error),
                    "no key in trust.json made the kept node policy's signature: trust.json is damaged, or the \
                     policy's key was withdrawn; waiting for the control plane. If its policies are refused too, \
                     remove this member, add it again and enrol this host anew"
                );
                self.kept.documents.policy = Some(bytes);
            }
            Err(error) => tracing::warn!(
                error = fairlead_telemetry::chain(&error),
                "the kept node policy is set aside"
            ),
        }
    }

    /// Follows the view.
    pub(crate) fn subscribe(&self) -> ViewReceiver {
        self.view.subscribe()
    }

    /// The number of the policy that is on disk; zeros before the first.
    pub(crate) fn head(&self) -> (PolicyEpoch, Revision) {
        let policy = self.kept.policy.as_ref();
        policy.map_or((PolicyEpoch(0), Revision(0)), |p| (p.epoch, p.revision))
    }

    /// The leader term below which a policy is refused; 0 without a policy.
    pub(crate) fn leader_term(&self) -> LeaderTerm {
        let policy = self.newest().policy.as_ref();
        policy.map_or(LeaderTerm(0), |p| p.leader_term)
    }

    /// The digest of the grants that are on disk.
    pub(crate) fn grants_digest(&self) -> [u8; 32] {
        fairlead_trust::grants_digest(self.kept.documents.grants.iter().map(AsRef::as_ref))
    }

    /// Replaces the keys that policies are verified with.
    pub(crate) fn set_keys(&mut self, keys: Keyring) {
        self.keys = keys;
    }

    /// Takes a signed node policy. True if it is a new one.
    pub(crate) fn offer_policy(&mut self, envelope: Bytes) -> Result<bool, Refused> {
        let policy = self.check_policy(&envelope)?;
        let newest = self.newest();
        if let Some(held) = &newest.policy {
            // A control plane restored from backup raises the epoch and may have forgotten terms.
            if policy.epoch == held.epoch && policy.leader_term < held.leader_term {
                return Err(Refused::OlderTerm {
                    offered: policy.leader_term,
                    held: held.leader_term,
                });
            }
            let (offered, kept) = ((policy.epoch, policy.revision), (held.epoch, held.revision));
            if offered < kept {
                return Err(Refused::Older { offered, held: kept });
            }
            if offered == kept {
                return if policy.digest() == held.digest() {
                    self.save_unkept()
                } else {
                    Err(Refused::OtherContent(offered))
                };
            }
        }
        let documents = Documents {
            policy: Some(envelope),
            grants: newest.documents.grants.clone(),
        };
        self.keep(Held {
            documents,
            policy: Some(policy),
        })
    }

    /// Takes the whole set of grants. True if it differs from the one held.
    pub(crate) fn offer_grants(&mut self, grants: Vec<Bytes>) -> Result<bool, Refused> {
        if grants.len() > GRANTS_MAX || grants.iter().any(|g| g.len() > GRANT_LEN_MAX) {
            return Err(Refused::TooMany { count: grants.len() });
        }
        if grants == self.newest().documents.grants {
            return self.save_unkept();
        }
        let mut newer = self.newest().clone();
        newer.documents.grants = grants;
        self.keep(newer)
    }

    /// Whether something newer than what is on disk waits for it.
    pub(crate) const fn has_unkept(&self) -> bool {
        self.unkept.is_some()
    }

    /// Tries once more to write what could not be written. True if it is in force now.
    pub(crate) fn save_unkept(&mut self) -> Result<bool, Refused> {
        self.unkept.take().map_or(Ok(false), |held| self.keep(held))
    }

    fn newest(&self) -> &Held {
        self.unkept.as_ref().unwrap_or(&self.kept)
    }

    /// Writes `held` and puts it into force; if it cannot be written, only what it takes away.
    fn keep(&mut self, held: Held) -> Result<bool, Refused> {
        let saved = self.state.save(&held.documents);
        if saved.is_ok() {
            self.kept = held;
            self.unkept = None;
        } else {
            self.unkept = Some(held);
        }
        self.publish();
        saved?;
        Ok(true)
    }

    fn check_policy(&self, envelope: &Bytes) -> Result<Verified<NodePolicy>, Refused> {
        let policy = signed::open_node_policy(&self.keys, envelope).map_err(Refused::Policy)?;
        if policy.node == self.node {
            Ok(policy)
        } else {
            Err(Refused::OtherNode(policy.node))
        }
    }

    /// Publishes what is on disk, less what is newer and takes away.
    fn publish(&self) {
        let Some(kept) = self.kept.policy.as_deref() else {
            return;
        };
        let mut policy = kept.clone();
        let mut grants = self.kept.grants(self.node);
        if let Some(unkept) = &self.unkept {
            if let Some(newer) = unkept.policy.as_deref() {
                policy = policy.narrowed_by(newer);
            }
            let newer = unkept.grants(self.node);
            grants.retain(|route, _| newer.contains_key(route));
        }
        self.view.send_replace(Arc::new(View {
            policy: Some(policy),
            grants,
        }));
    }
}

#[cfg(test)]
mod tests;

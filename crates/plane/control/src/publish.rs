//! Signed documents: made after their number and root are committed, handed to the sessions.

use crate::plan::{GrantContents, NodeContents, Numbering, RelayContents};
use crate::record::{HeadRecord, MemberKey, Text};
use bytes::Bytes;
use fairlead_model::{LinkId, NodeId, RelayId, Revision, RouteId};
use fairlead_placement::Placement;
use fairlead_rpc::signed::{self, OpenError, encode_grant, encode_node_policy, encode_relay_policy};
use fairlead_trust::{
    Document, Grant, Keyring, NodePolicy, PayloadType, PolicyRoot, RelayPolicy, SealError, SigningKey,
    Verified, seal,
};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Everything that is signed, of one plan. Cheap to clone, never changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Documents {
    pub(crate) relays: Arc<BTreeMap<RelayId, Arc<Verified<RelayPolicy>>>>,
    pub(crate) nodes: Arc<BTreeMap<NodeId, Arc<Verified<NodePolicy>>>>,
    /// By consumer. Every node has an entry once there is a plan, an empty one where it consumes
    /// nothing.
    pub(crate) grants: Arc<BTreeMap<NodeId, Arc<GrantSet>>>,
    pub(crate) placements: Arc<BTreeMap<LinkId, Placement>>,
}

impl Documents {
    /// Whether they are the same: no document was signed anew, no link was placed elsewhere.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        fn same<K: Ord, T>(a: &BTreeMap<K, Arc<T>>, b: &BTreeMap<K, Arc<T>>) -> bool {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|((ka, a), (kb, b))| ka == kb && Arc::ptr_eq(a, b))
        }
        same(&self.relays, &other.relays)
            && same(&self.nodes, &other.nodes)
            && same(&self.grants, &other.grants)
            && self.placements == other.placements
    }
}

/// The grants of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GrantSet {
    pub(crate) grants: BTreeMap<RouteId, SignedGrant>,
}

impl GrantSet {
    /// What a node that keeps these grants says of them.
    pub(crate) fn digest(&self) -> [u8; 32] {
        fairlead_trust::grants_digest(self.grants.values().map(|g| g.envelope.as_ref()))
    }
}

/// One grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedGrant {
    pub(crate) grant: Grant,
    pub(crate) envelope: Bytes,
}

/// The newest documents, for every session.
#[derive(Debug)]
pub(crate) struct Published {
    documents: RwLock<Documents>,
    changes: watch::Sender<u64>,
}

impl Published {
    /// Counts changes.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The newest documents.
    pub(crate) fn snapshot(&self) -> Documents {
        self.documents
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces all documents at once.
    pub(crate) fn publish(&self, documents: Documents) {
        *self.documents.write().unwrap_or_else(PoisonError::into_inner) = documents;
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }
}

impl Default for Published {
    fn default() -> Self {
        Self {
            documents: RwLock::default(),
            changes: watch::Sender::new(0),
        }
    }
}

/// Why a document could not be signed. Plans are bounded so that it does not happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignError {
    /// It is too large.
    #[error("the document is too large")]
    Seal(#[from] SealError),
    /// No receiver would take it: it is not published.
    #[error("the signed document does not open")]
    Open(#[from] OpenError),
}

/// A policy that is to be signed: its payload, so that its root can be committed first.
#[derive(Debug)]
pub(crate) struct Draft<T> {
    payload: Vec<u8>,
    document: std::marker::PhantomData<T>,
}

impl<T> Draft<T> {
    fn new(payload: Vec<u8>) -> Self {
        Self {
            payload,
            document: std::marker::PhantomData,
        }
    }

    /// SHA-256 of the payload, as it is kept.
    pub(crate) fn root(&self) -> String {
        PolicyRoot::of(&self.payload).to_string()
    }
}

/// What a policy is made of.
pub(crate) trait Contents: PartialEq {
    type Id: Copy + Ord;
    type Document: Document;

    /// Whose it is.
    fn member(id: Self::Id) -> MemberKey;

    /// A document's revision.
    fn revision(document: &Self::Document) -> Revision;

    /// The payload under a number.
    fn draft(&self, id: Self::Id, numbering: Numbering, grant_keys: &Keyring) -> Draft<Self::Document>;

    /// Opens what was sealed, as every receiver does.
    fn open(keys: &Keyring, envelope: &[u8]) -> Result<Verified<Self::Document>, OpenError>;
}

impl Contents for RelayContents {
    type Id = RelayId;
    type Document = RelayPolicy;

    fn member(id: RelayId) -> MemberKey {
        MemberKey::Relay(Text(id))
    }

    fn revision(document: &RelayPolicy) -> Revision {
        document.revision
    }

    fn draft(&self, id: RelayId, numbering: Numbering, grant_keys: &Keyring) -> Draft<RelayPolicy> {
        let policy = self.policy(id, numbering, grant_keys);
        Draft::new(encode_relay_policy(&policy))
    }

    fn open(keys: &Keyring, envelope: &[u8]) -> Result<Verified<RelayPolicy>, OpenError> {
        signed::open_relay_policy(keys, envelope)
    }
}

impl Contents for NodeContents {
    type Id = NodeId;
    type Document = NodePolicy;

    fn member(id: NodeId) -> MemberKey {
        MemberKey::Node(Text(id))
    }

    fn revision(document: &NodePolicy) -> Revision {
        document.revision
    }

    fn draft(&self, id: NodeId, numbering: Numbering, grant_keys: &Keyring) -> Draft<NodePolicy> {
        let policy = self.policy(id, numbering, grant_keys);
        Draft::new(encode_node_policy(&policy))
    }

    fn open(keys: &Keyring, envelope: &[u8]) -> Result<Verified<NodePolicy>, OpenError> {
        signed::open_node_policy(keys, envelope)
    }
}

/// Signs a draft whose number and root are committed. The document is opened again, as its receiver
/// will do: what nobody could read is not published.
pub(crate) fn sign<C: Contents>(
    key: &SigningKey,
    keys: &Keyring,
    draft: &Draft<C::Document>,
) -> Result<Arc<Verified<C::Document>>, SignError> {
    let envelope = seal(key, C::Document::PAYLOAD_TYPE, &draft.payload)?;
    Ok(Arc::new(C::open(keys, &envelope)?))
}

/// Signs a grant.
pub(crate) fn sign_grant(key: &SigningKey, grant: Grant) -> Result<SignedGrant, SignError> {
    let envelope = seal(key, PayloadType::Grant, &encode_grant(&grant))?;
    Ok(SignedGrant { grant, envelope })
}

impl SignedGrant {
    /// Whether it says what the plan says, but for its time.
    pub(crate) fn says(&self, contents: &GrantContents) -> bool {
        let Grant {
            epoch,
            not_before,
            not_after,
            ..
        } = self.grant;
        self.grant == contents.grant(epoch, not_before, not_after)
    }

    /// Whether one admits to what the other does: they differ in their time at most.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let grant = Grant {
            not_before: other.grant.not_before,
            not_after: other.grant.not_after,
            ..self.grant
        };
        grant == other.grant
    }
}

/// Whether a policy is the one whose number and root were committed last.
pub(crate) fn is_of_head(policy: &Verified<RelayPolicy>, head: &HeadRecord) -> bool {
    policy.epoch.0 == head.epoch
        && policy.revision.0 == head.revision
        && policy.root().to_string() == head.root
}

#[cfg(test)]
mod tests;

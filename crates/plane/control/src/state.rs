//! Everything that is wanted, as the store holds it: read once at start, then kept in step by the
//! ledger, commit by commit. Audit entries stay in the store.

use crate::api::ApiError;
use crate::audit::AuditHead;
use crate::record::{
    CounterRecord, EnrolmentRecord, HeadRecord, LeaderRecord, LinkRecord, MemberKey, NodeRecord, PlaceRecord,
    PoolRecord, PulseRecord, RelayRecord, RevokedRecord, SettingRecord, TokenRecord, key,
};
use crate::seal::is_intact;
use fairlead_model::{ApiCode, LinkId, NodeId, RelayId, RouteId};
use fairlead_store::{Entry, ReadError, SCAN_LIMIT_MAX, Store, StoreRevision};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::str::FromStr;

/// A record with the store revision that wrote it last.
#[derive(Debug, Clone)]
pub(crate) struct Kept<T> {
    pub(crate) record: T,
    pub(crate) revision: StoreRevision,
}

/// The state as of one store revision.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) relays: BTreeMap<RelayId, Kept<RelayRecord>>,
    pub(crate) nodes: BTreeMap<NodeId, Kept<NodeRecord>>,
    pub(crate) links: BTreeMap<LinkId, Kept<LinkRecord>>,
    pub(crate) revoked: BTreeMap<RouteId, Kept<RevokedRecord>>,
    /// By the hash of the secret.
    pub(crate) enrolments: BTreeMap<String, Kept<EnrolmentRecord>>,
    /// By the hash of the secret.
    pub(crate) tokens: BTreeMap<String, Kept<TokenRecord>>,
    pub(crate) settings: BTreeMap<String, Kept<SettingRecord>>,
    pub(crate) heads: BTreeMap<MemberKey, Kept<HeadRecord>>,
    pub(crate) places: BTreeMap<LinkId, Kept<PlaceRecord>>,
    pub(crate) audit_head: Option<Kept<AuditHead>>,
    pub(crate) counter: Option<Kept<CounterRecord>>,
    pub(crate) pulse: Option<Kept<PulseRecord>>,
    pub(crate) pool: Option<Kept<PoolRecord>>,
    pub(crate) leader: Option<Kept<LeaderRecord>>,
}

/// Why the store's content could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store cannot be read.
    #[error("the store cannot be read")]
    Read(#[from] ReadError),
    /// A record is not what its key says.
    #[error(
        "the store's record `{key}` is not readable; restore the store's folder from a backup, or run the \
         version that wrote it"
    )]
    Record {
        /// Its key.
        key: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A record has changed since it was written.
    #[error(
        "the store's record `{key}` is not what was written there: the disk, or who else wrote to it, has changed \
         it; restore the control plane's folder from a backup"
    )]
    Changed {
        /// Its key.
        key: String,
    },
    /// A key that this version does not know.
    #[error("the store's record `{key}` is unknown: a newer version wrote it")]
    UnknownKey {
        /// The key.
        key: String,
    },
}

/// A text that is one object's id and another one's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is the id of {what} {name} and the name of the {what} with the id {id}: say `{name}` for the one, \
     `{id}` for the other"
)]
pub(crate) struct Ambiguous {
    what: &'static str,
    text: String,
    /// The name of the one with this id.
    name: String,
    /// The id of the one with this name.
    id: String,
}

impl From<Ambiguous> for ApiError {
    fn from(error: Ambiguous) -> Self {
        Self::new(ApiCode::Conflict, error.to_string())
    }
}

/// The one object whose name or id the text is; `naming` gives both of an object.
pub(crate) fn find<'a, T: Copy>(
    what: &'static str,
    objects: impl IntoIterator<Item = T>,
    text: &str,
    naming: impl Fn(T) -> (&'a str, String),
) -> Result<Option<T>, Ambiguous> {
    let (mut named, mut with_id) = (None, None);
    for object in objects {
        let (name, id) = naming(object);
        if id == text {
            with_id = Some((object, name));
        } else if name == text {
            named = Some((object, id));
        }
    }
    match (named, with_id) {
        (Some((_, id)), Some((_, name))) => Err(Ambiguous {
            what,
            text: text.to_owned(),
            name: name.to_owned(),
            id,
        }),
        (named, with_id) => Ok(named
            .map(|(object, _)| object)
            .or(with_id.map(|(object, _)| object))),
    }
}

impl State {
    /// Reads the whole store but the audit log.
    pub(crate) async fn load(store: &dyn Store) -> Result<Self, LoadError> {
        let mut state = Self::default();
        for prefix in [
            key::RELAY,
            key::NODE,
            key::LINK,
            key::REVOKED,
            key::ENROLMENT,
            key::TOKEN,
            key::SETTING,
            key::HEAD,
            key::PLACE,
            "meta/",
        ] {
            let mut after: Option<String> = None;
            loop {
                let page = store.scan(prefix, after.as_deref(), SCAN_LIMIT_MAX).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.key.clone());
                let full = page.len() == SCAN_LIMIT_MAX;
                for entry in &page {
                    state.take_entry(entry)?;
                }
                if !full {
                    break;
                }
            }
        }
        Ok(state)
    }

    fn take_entry(&mut self, entry: &Entry) -> Result<(), LoadError> {
        self.take(&entry.key, Some(&entry.value), entry.revision)
    }

    /// Takes in one key's new value, or its removal.
    pub(crate) fn take(
        &mut self,
        key: &str,
        value: Option<&[u8]>,
        revision: StoreRevision,
    ) -> Result<(), LoadError> {
        let unknown = || LoadError::UnknownKey { key: key.to_owned() };
        match key {
            key::AUDIT_HEAD => return one(&mut self.audit_head, key, value, revision),
            key::COUNTER => return one(&mut self.counter, key, value, revision),
            key::PULSE => return one(&mut self.pulse, key, value, revision),
            key::POOL => return one(&mut self.pool, key, value, revision),
            key::LEADER => return one(&mut self.leader, key, value, revision),
            _ => {}
        }
        // The longest prefix first: `head/relay/…` is no relay.
        if let Some(id) = key.strip_prefix(key::HEAD) {
            many(&mut self.heads, id, key, value, revision)
        } else if let Some(id) = key.strip_prefix(key::RELAY) {
            many(&mut self.relays, id, key, value, revision)
        } else if let Some(id) = key.strip_prefix(key::NODE) {
            many(&mut self.nodes, id, key, value, revision)
        } else if let Some(id) = key.strip_prefix(key::LINK) {
            many(&mut self.links, id, key, value, revision)
        } else if let Some(id) = key.strip_prefix(key::REVOKED) {
            many(&mut self.revoked, id, key, value, revision)
        } else if let Some(hash) = key.strip_prefix(key::ENROLMENT) {
            many(&mut self.enrolments, hash, key, value, revision)
        } else if let Some(hash) = key.strip_prefix(key::TOKEN) {
            many(&mut self.tokens, hash, key, value, revision)
        } else if let Some(name) = key.strip_prefix(key::SETTING) {
            many(&mut self.settings, name, key, value, revision)
        } else if let Some(id) = key.strip_prefix(key::PLACE) {
            many(&mut self.places, id, key, value, revision)
        } else if key.starts_with(key::AUDIT) {
            Ok(())
        } else {
            Err(unknown())
        }
    }

    /// The revision that last wrote a key; `None` if it is absent.
    pub(crate) fn revision_of(&self, key: &str) -> Option<StoreRevision> {
        fn of<K: Ord + FromStr, T>(map: &BTreeMap<K, Kept<T>>, id: &str) -> Option<StoreRevision> {
            map.get(&id.parse().ok()?).map(|k| k.revision)
        }
        match key {
            key::AUDIT_HEAD => return self.audit_head.as_ref().map(|k| k.revision),
            key::COUNTER => return self.counter.as_ref().map(|k| k.revision),
            key::PULSE => return self.pulse.as_ref().map(|k| k.revision),
            key::POOL => return self.pool.as_ref().map(|k| k.revision),
            key::LEADER => return self.leader.as_ref().map(|k| k.revision),
            _ => {}
        }
        let (prefix, id) = key.split_once('/')?;
        match prefix {
            "head" => of(&self.heads, id),
            "relay" => of(&self.relays, id),
            "node" => of(&self.nodes, id),
            "link" => of(&self.links, id),
            "revoked" => of(&self.revoked, id),
            "enrolment" => of(&self.enrolments, id),
            "token" => of(&self.tokens, id),
            "setting" => of(&self.settings, id),
            "place" => of(&self.places, id),
            _ => None,
        }
    }

    pub(crate) fn relay(&self, id: RelayId) -> Option<&RelayRecord> {
        self.relays.get(&id).map(|k| &k.record)
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes.get(&id).map(|k| &k.record)
    }

    pub(crate) fn has(&self, member: MemberKey) -> bool {
        match member {
            MemberKey::Relay(id) => self.relays.contains_key(&id.0),
            MemberKey::Node(id) => self.nodes.contains_key(&id.0),
        }
    }

    /// A relay by name or id.
    pub(crate) fn find_relay(&self, name_or_id: &str) -> Result<Option<&RelayRecord>, Ambiguous> {
        let relays = self.relays.values().map(|k| &k.record);
        find("relay", relays, name_or_id, |r| {
            (r.name.0.as_str(), r.id.0.to_string())
        })
    }

    /// A node by name or id.
    pub(crate) fn find_node(&self, name_or_id: &str) -> Result<Option<&NodeRecord>, Ambiguous> {
        let nodes = self.nodes.values().map(|k| &k.record);
        find("node", nodes, name_or_id, |n| {
            (n.name.0.as_str(), n.id.0.to_string())
        })
    }

    /// A link by name or id.
    pub(crate) fn find_link(&self, name_or_id: &str) -> Result<Option<&LinkRecord>, Ambiguous> {
        let links = self.links.values().map(|k| &k.record);
        find("link", links, name_or_id, |l| {
            (l.name.0.as_str(), l.id.0.to_string())
        })
    }

    /// The highest policy revision taken; 0 before the first.
    pub(crate) fn policy_revision(&self) -> u64 {
        self.counter.as_ref().map_or(0, |k| k.record.revision)
    }
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, LoadError> {
    if !is_intact(key, value) {
        return Err(LoadError::Changed { key: key.to_owned() });
    }
    serde_json::from_slice(value).map_err(|source| LoadError::Record {
        key: key.to_owned(),
        source,
    })
}

fn one<T: DeserializeOwned>(
    slot: &mut Option<Kept<T>>,
    key: &str,
    value: Option<&[u8]>,
    revision: StoreRevision,
) -> Result<(), LoadError> {
    *slot = match value {
        Some(value) => Some(Kept {
            record: decode(key, value)?,
            revision,
        }),
        None => None,
    };
    Ok(())
}

fn many<K: Ord + FromStr, T: DeserializeOwned>(
    map: &mut BTreeMap<K, Kept<T>>,
    id: &str,
    key: &str,
    value: Option<&[u8]>,
    revision: StoreRevision,
) -> Result<(), LoadError> {
    let id: K = id
        .parse()
        .map_err(|_| LoadError::UnknownKey { key: key.to_owned() })?;
    match value {
        Some(value) => {
            map.insert(
                id,
                Kept {
                    record: decode(key, value)?,
                    revision,
                },
            );
        }
        None => {
            map.remove(&id);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{At, Text};
    use fairlead_model::WallTime;

    /// A store may hold a name that is another's id: neither is taken for the other.
    #[test]
    fn a_name_that_is_anothers_id_stands_for_neither() {
        let mut state = State::default();
        let mut add = |n: u8, name: &str| {
            let id = NodeId::from_bytes([n; 16]);
            let record = NodeRecord {
                id: Text(id),
                name: Text(name.parse().unwrap()),
                created_at: At::from(WallTime(0)),
                enrolled: None,
                stopped_at: None,
            };
            let revision = StoreRevision(1);
            state.nodes.insert(id, Kept { record, revision });
            id
        };
        // In either order of their ids, and one that is its own name.
        let (late, early) = (NodeId::from_bytes([9; 16]), NodeId::from_bytes([2; 16]));
        let (thief, other) = (add(1, &late.to_string()), add(10, &early.to_string()));
        add(9, "late");
        add(2, "early");
        let own = NodeId::from_bytes([5; 16]);
        add(5, &own.to_string());
        for (text, name, id) in [(late, "late", thief), (early, "early", other)] {
            let error = state.find_node(&text.to_string()).unwrap_err();
            assert_eq!(
                (error.name.as_str(), error.id.as_str()),
                (name, id.to_string().as_str())
            );
            let error = ApiError::from(error);
            assert_eq!(error.code, ApiCode::Conflict);
            // What the message advises does name one.
            for (said, found) in [(name.to_owned(), text), (id.to_string(), id)] {
                assert!(error.message.contains(&said), "{}", error.message);
                assert_eq!(state.find_node(&said).unwrap().unwrap().id.0, found);
            }
        }
        assert_eq!(state.find_node(&own.to_string()).unwrap().unwrap().id.0, own);
        assert!(state.find_node("none").unwrap().is_none());
    }
}

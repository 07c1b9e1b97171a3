//! The audit log: who did what, when, before and after, each entry bound to the one before it by
//! its hash (R-UI-05). An entry is committed in the transaction of the change it speaks of.

use crate::api::AuditView;
use crate::record::{At, Text};
use fairlead_model::{AuditId, WallTime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The previous hash of the first entry.
pub(crate) const FIRST_PREVIOUS_HASH: &str =
    "0000000000000000000000000000000000000000000000000000000000000000";
/// Greatest length of a before or after: three of them and the rest fit a stored value.
const OBJECT_LEN_MAX: usize = 1_700;
/// Greatest length of actor, action and object.
const TEXT_LEN_MAX: usize = 160;

/// What is noted of a change.
#[derive(Debug, Clone)]
pub(crate) struct AuditNote {
    actor: String,
    action: String,
    object: String,
    before: Option<String>,
    after: Option<String>,
}

impl AuditNote {
    pub(crate) fn new(actor: impl Into<String>, action: &str, object: impl Into<String>) -> Self {
        Self {
            actor: cut(actor.into(), TEXT_LEN_MAX),
            action: action.to_owned(),
            object: cut(object.into(), TEXT_LEN_MAX),
            before: None,
            after: None,
        }
    }

    /// What was there before.
    pub(crate) fn before(mut self, record: &impl Serialize) -> Self {
        self.before = json(record);
        self
    }

    /// What is there afterwards.
    pub(crate) fn after(mut self, record: &impl Serialize) -> Self {
        self.after = json(record);
        self
    }

    /// The entry that follows `head`.
    pub(crate) fn entry(
        self,
        head: &AuditHead,
        id: AuditId,
        at: WallTime,
    ) -> Result<AuditRecord, serde_json::Error> {
        let body = AuditBody {
            seq: head.seq.saturating_add(1),
            id: Text(id),
            at: at.into(),
            actor: self.actor,
            action: self.action,
            object: self.object,
            before: self.before,
            after: self.after,
            previous_hash: head.hash.clone(),
        };
        let hash = body.hash()?;
        Ok(AuditRecord { body, hash })
    }
}

fn json(record: &impl Serialize) -> Option<String> {
    let text = serde_json::to_string(record).ok()?;
    if text.len() <= OBJECT_LEN_MAX {
        return Some(text);
    }
    // Still JSON, and it says that it is not the whole.
    let head = cut(text, OBJECT_LEN_MAX / 4);
    serde_json::to_string(&serde_json::json!({ "truncated": head })).ok()
}

fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// The newest entry's place and hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditHead {
    pub(crate) seq: u64,
    pub(crate) hash: String,
}

impl AuditHead {
    /// Before the first entry.
    pub(crate) fn none() -> Self {
        Self {
            seq: 0,
            hash: FIRST_PREVIOUS_HASH.to_owned(),
        }
    }
}

/// What an entry's hash is taken over, in this order of fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AuditBody {
    seq: u64,
    id: Text<AuditId>,
    at: At,
    actor: String,
    action: String,
    object: String,
    before: Option<String>,
    after: Option<String>,
    previous_hash: String,
}

impl AuditBody {
    fn hash(&self) -> Result<String, serde_json::Error> {
        Ok(hex::encode(Sha256::digest(serde_json::to_vec(self)?)))
    }
}

/// An entry as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditRecord {
    body: AuditBody,
    hash: String,
}

impl AuditRecord {
    pub(crate) fn head(&self) -> AuditHead {
        AuditHead {
            seq: self.body.seq,
            hash: self.hash.clone(),
        }
    }

    /// Whether this entry follows `head` unaltered.
    pub(crate) fn follows(&self, head: &AuditHead) -> bool {
        self.body.seq == head.seq.saturating_add(1)
            && self.body.previous_hash == head.hash
            && self.body.hash().is_ok_and(|hash| hash == self.hash)
    }

    pub(crate) fn view(self) -> AuditView {
        let AuditRecord { body, hash } = self;
        AuditView {
            seq: body.seq,
            id: body.id.0,
            at: body.at.into(),
            actor: body.actor,
            action: body.action,
            object: body.object,
            before: body.before,
            after: body.after,
            hash,
            previous_hash: body.previous_hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Vec<AuditRecord> {
        let mut head = AuditHead::none();
        (0u8..3)
            .map(|n| {
                let note = AuditNote::new("token ops", "link.add", format!("link {n}")).after(&n);
                let entry = note
                    .entry(&head, AuditId::from_bytes([n; 16]), WallTime(i64::from(n)))
                    .unwrap();
                head = entry.head();
                entry
            })
            .collect()
    }

    fn verify(entries: &[AuditRecord]) -> bool {
        let mut head = AuditHead::none();
        entries.iter().all(|entry| {
            let follows = entry.follows(&head);
            head = entry.head();
            follows
        })
    }

    /// R-UI-05: an altered, removed or reordered entry breaks the chain.
    #[test]
    fn the_chain_shows_tampering() {
        assert!(verify(&chain()));
        let mut altered = chain();
        altered[1].body.actor = "token other".to_owned();
        assert!(!verify(&altered));
        let mut removed = chain();
        removed.remove(1);
        assert!(!verify(&removed));
        let mut swapped = chain();
        swapped.swap(0, 1);
        assert!(!verify(&swapped));
    }

    #[test]
    fn an_entry_always_fits_a_stored_value() {
        let long = "\u{1}".repeat(10_000);
        let note = AuditNote::new(long.clone(), "setting.set", long.clone())
            .before(&long)
            .after(&long);
        let entry = note
            .entry(&AuditHead::none(), AuditId::from_bytes([1; 16]), WallTime(0))
            .unwrap();
        let len = serde_json::to_vec(&entry).unwrap().len();
        // Control characters grow sixfold at each of two encodings: far beyond what names allow.
        assert!(len < 20_000, "{len}");
        let plain = "x".repeat(10_000);
        let note = AuditNote::new(plain.clone(), "setting.set", plain.clone())
            .before(&plain)
            .after(&plain);
        let entry = note
            .entry(&AuditHead::none(), AuditId::from_bytes([1; 16]), WallTime(0))
            .unwrap();
        assert!(serde_json::to_vec(&entry).unwrap().len() <= fairlead_store::VALUE_LEN_MAX);
    }
}

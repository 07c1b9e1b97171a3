//! The one way to change what is wanted: a turn reads the state, a change is committed with its
//! audit entry in one transaction, and the state follows.
//!
//! Turns are taken one after another. Each written key carries the revision that it was read at,
//! and every commit depends on the leader's record: where another control plane has taken the lead,
//! nothing of this one's is written any more.

use crate::api::ApiError;
use crate::audit::{AuditHead, AuditNote};
use crate::record::key;
use crate::seal::seal;
use crate::state::{LoadError, State};
use fairlead_host::{Clock, rng};
use fairlead_model::ApiCode;
use fairlead_store::{ApplyError, Op, Precondition, Store};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::task::TaskTracker;

/// Why nothing was committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The store refused or failed.
    #[error("the store did not take the change")]
    Store(#[source] ApplyError),
    /// Another control plane wrote in between: it leads.
    #[error("another control plane has taken the lead of this store")]
    LostLead,
    /// A record could not be written as JSON.
    #[error("a record could not be encoded")]
    Encode(#[source] serde_json::Error),
    /// What was committed could not be read back into the state.
    #[error("the committed change could not be taken in")]
    Load(#[source] LoadError),
    /// The control plane stops.
    #[error("the control plane is stopping")]
    Stopping,
}

impl From<CommitError> for ApiError {
    fn from(error: CommitError) -> Self {
        let message = fairlead_telemetry::chain(&error);
        let code = match error {
            CommitError::Store(_) | CommitError::LostLead | CommitError::Stopping => ApiCode::Unavailable,
            CommitError::Encode(_) | CommitError::Load(_) => ApiCode::Internal,
        };
        Self::new(code, message)
    }
}

/// What is to be written, with what is noted of it.
#[derive(Debug, Default)]
pub(crate) struct Change {
    writes: BTreeMap<String, Option<Vec<u8>>>,
    notes: Vec<AuditNote>,
    fault: Option<serde_json::Error>,
}

impl Change {
    /// Writes a record.
    pub(crate) fn put(&mut self, key: impl Into<String>, record: &impl Serialize) {
        match serde_json::to_vec(record) {
            Ok(value) => {
                let key = key.into();
                let value = seal(&key, value);
                self.writes.insert(key, Some(value));
            }
            Err(error) => self.fault = Some(error),
        }
    }

    /// Removes a record.
    pub(crate) fn delete(&mut self, key: impl Into<String>) {
        self.writes.insert(key.into(), None);
    }

    /// Notes the change in the audit log.
    pub(crate) fn note(&mut self, note: AuditNote) {
        self.notes.push(note);
    }

    /// Whether there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.notes.is_empty() && self.fault.is_none()
    }
}

/// The ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    state: RwLock<Arc<State>>,
    /// Held by the one turn that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
    changes: watch::Sender<u64>,
    /// Commits run to their end here, whatever becomes of who asked for them.
    commits: TaskTracker,
}

/// One turn: nobody else changes the state while it lasts.
pub(crate) struct Turn {
    ledger: Arc<Ledger>,
    state: Arc<State>,
    guard: OwnedMutexGuard<()>,
}

impl Ledger {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, state: State) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock,
            state: RwLock::new(Arc::new(state)),
            turn: Arc::default(),
            changes: watch::Sender::new(0),
            commits: TaskTracker::new(),
        })
    }

    /// The state as of the last commit.
    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts commits.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The store, for the audit log's entries.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Takes the next turn. Cancel-safe.
    pub(crate) async fn turn(self: &Arc<Self>) -> Result<Turn, CommitError> {
        if self.commits.is_closed() {
            return Err(CommitError::Stopping);
        }
        let guard = Arc::clone(&self.turn).lock_owned().await;
        Ok(Turn {
            ledger: Arc::clone(self),
            state: self.state(),
            guard,
        })
    }

    /// Waits for commits under way, then closes the store.
    pub(crate) async fn close(&self) {
        self.commits.close();
        self.commits.wait().await;
        self.store.close().await;
    }

    async fn write(&self, state: &State, change: Change) -> Result<(), CommitError> {
        if let Some(error) = change.fault {
            return Err(CommitError::Encode(error));
        }
        let mut writes = change.writes;
        let mut head = state
            .audit_head
            .as_ref()
            .map_or_else(AuditHead::none, |k| k.record.clone());
        let noted = !change.notes.is_empty();
        for note in change.notes {
            let entry = note
                .entry(&head, rng::new_id(), self.clock.wall())
                .map_err(CommitError::Encode)?;
            head = entry.head();
            let value = serde_json::to_vec(&entry).map_err(CommitError::Encode)?;
            writes.insert(key::audit(head.seq), Some(value));
        }
        if noted {
            let value = serde_json::to_vec(&head).map_err(CommitError::Encode)?;
            let value = seal(key::AUDIT_HEAD, value);
            writes.insert(key::AUDIT_HEAD.to_owned(), Some(value));
        }
        let mut preconditions: Vec<Precondition> = writes
            .keys()
            .map(|key| match state.revision_of(key) {
                Some(revision) => Precondition::Unchanged {
                    key: key.clone(),
                    revision,
                },
                None => Precondition::Absent(key.clone()),
            })
            .collect();
        if let Some(leader) = &state.leader
            && !writes.contains_key(key::LEADER)
        {
            preconditions.push(Precondition::Unchanged {
                key: key::LEADER.to_owned(),
                revision: leader.revision,
            });
        }
        let ops = writes
            .iter()
            .map(|(key, value)| match value {
                Some(value) => Op::put(key.clone(), value.clone()),
                None => Op::delete(key.clone()),
            })
            .collect();
        let revision = self.store.apply(preconditions, ops).await.map_err(|error| {
            if error.is_conflict() {
                CommitError::LostLead
            } else {
                CommitError::Store(error)
            }
        })?;
        let mut next = state.clone();
        for (key, value) in &writes {
            next.take(key, value.as_deref(), revision)
                .map_err(CommitError::Load)?;
        }
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
        Ok(())
    }
}

impl Turn {
    /// The state at the turn's beginning.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Commits the change and ends the turn. When the future is dropped, the commit goes on.
    pub(crate) async fn commit(self, change: Change) -> Result<(), CommitError> {
        if change.is_empty() {
            return Ok(());
        }
        let Self { ledger, state, guard } = self;
        let tasks = ledger.commits.clone();
        let commit = tasks.spawn(async move {
            let _turn = guard;
            ledger.write(&state, change).await
        });
        commit.await.unwrap_or(Err(CommitError::Stopping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SettingRecord;
    use fairlead_host::SystemClock;
    use fairlead_store::Backend;

    async fn ledger(dir: &std::path::Path) -> Arc<Ledger> {
        let store = fairlead_store::open(Backend::Redb, dir).unwrap();
        let state = State::load(&*store).await.unwrap();
        Ledger::new(store, Arc::new(SystemClock::new()), state)
    }

    fn setting(value: &str) -> Change {
        let mut change = Change::default();
        let record = SettingRecord {
            value: value.to_owned(),
        };
        change.note(AuditNote::new("token ops", "setting.set", "setting x").after(&record));
        change.put(key::setting("x"), &record);
        change
    }

    #[tokio::test]
    async fn a_change_and_its_entry_are_one_and_survive() {
        let dir = tempfile::tempdir().unwrap();
        let one = ledger(dir.path()).await;
        let changes = one.watch();
        one.turn().await.unwrap().commit(setting("1")).await.unwrap();
        one.turn().await.unwrap().commit(setting("2")).await.unwrap();
        assert!(changes.has_changed().unwrap());
        assert_eq!(one.state().audit_head.as_ref().unwrap().record.seq, 2);
        one.close().await;
        assert!(matches!(one.turn().await, Err(CommitError::Stopping)));
        drop(one);
        let again = ledger(dir.path()).await;
        assert_eq!(again.state().settings["x"].record.value, "2");
        assert_eq!(again.state().audit_head.as_ref().unwrap().record.seq, 2);
    }

    /// A record that the disk has changed keeps the control plane from opening, and is named; one
    /// of a version that wrote no sums is taken.
    #[tokio::test]
    async fn a_record_that_was_changed_is_told_at_load() {
        let dir = tempfile::tempdir().unwrap();
        let one = ledger(dir.path()).await;
        one.turn().await.unwrap().commit(setting("1")).await.unwrap();
        let stored = one.store.scan(key::SETTING, None, 1).await.unwrap().remove(0);
        let text = String::from_utf8(stored.value.to_vec()).unwrap();
        assert!(text.contains(r#""value":"1""#), "{text}");
        let changed = text.replace(r#""value":"1""#, r#""value":"9""#);
        let put = |value: &str| vec![Op::put(stored.key.clone(), value.as_bytes().to_vec())];
        one.store.apply(Vec::new(), put(&changed)).await.unwrap();
        let error = State::load(&*one.store).await.unwrap_err();
        assert!(
            matches!(&error, LoadError::Changed { key } if *key == stored.key),
            "{error}"
        );
        assert!(error.to_string().contains("restore"), "{error}");
        one.store
            .apply(Vec::new(), put(r#"{"value":"9"}"#))
            .await
            .unwrap();
        let state = State::load(&*one.store).await.unwrap();
        assert_eq!(state.settings["x"].record.value, "9");
    }

    #[tokio::test]
    async fn a_second_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let one = ledger(dir.path()).await;
        let two = Ledger::new(
            Arc::clone(&one.store),
            Arc::new(SystemClock::new()),
            State::default(),
        );
        one.turn().await.unwrap().commit(setting("1")).await.unwrap();
        let refused = two.turn().await.unwrap().commit(setting("2")).await;
        assert!(matches!(refused, Err(CommitError::LostLead)));
        assert_eq!(one.state().settings["x"].record.value, "1");
    }
}

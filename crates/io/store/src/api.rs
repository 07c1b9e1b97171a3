//! The trait, its values and its errors.

use crate::engine::EngineError;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use tokio::sync::watch;

/// A key's greatest length in bytes: an object's kind, two ids and room.
pub const KEY_LEN_MAX: usize = 256;
/// A value's greatest length in bytes. sled writes larger items to files that it never syncs: up
/// to 8 kB made none in trials, 12 kB did.
pub const VALUE_LEN_MAX: usize = 4_000;
/// Puts and deletes in one commit: a value of 1 MiB in chunks, and what goes with it.
pub const OPS_MAX: usize = 1_024;
/// Preconditions of one commit.
pub const PRECONDITIONS_MAX: usize = 1_024;
/// Entries of one page of a scan: at most 4 MB.
pub const SCAN_LIMIT_MAX: usize = 1_000;

/// A future of the store's methods.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The number of a commit: 0 before the first, one more with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreRevision(pub u64);

impl fmt::Display for StoreRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub value: Bytes,
    /// The commit that wrote it.
    pub revision: StoreRevision,
}

/// What must hold for a commit to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// The key has no value.
    Absent(String),
    /// The key has a value.
    Present(String),
    /// The key's value is the one that commit `revision` wrote.
    Unchanged {
        /// The key.
        key: String,
        /// The revision that was read with the value.
        revision: StoreRevision,
    },
}

impl Precondition {
    /// The key it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Absent(key) | Self::Present(key) | Self::Unchanged { key, .. } => key,
        }
    }

    /// Whether it holds for a key whose value, if any, is of revision `found`.
    pub(crate) fn holds(&self, found: Option<StoreRevision>) -> bool {
        match self {
            Self::Absent(_) => found.is_none(),
            Self::Present(_) => found.is_some(),
            Self::Unchanged { revision, .. } => found == Some(*revision),
        }
    }
}

/// One change of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Sets a value.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Bytes,
    },
    /// Removes a value, if there is one.
    Delete {
        /// The key.
        key: String,
    },
}

impl Op {
    /// Sets `key` to `value`.
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
        }
    }

    /// Removes `key`.
    pub fn delete(key: impl Into<String>) -> Self {
        Self::Delete { key: key.into() }
    }

    /// The key it changes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Why a commit did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A precondition does not hold: somebody else was faster, or the caller read old data.
    #[error("precondition {index} does not hold for `{key}`")]
    PreconditionFailed {
        /// Its place in the caller's list.
        index: usize,
        /// Its key.
        key: String,
    },
    /// Misuse: a key is empty.
    #[error("a key is empty")]
    KeyEmpty,
    /// Misuse: a key is too long.
    #[error("a key has {len} bytes, at most {KEY_LEN_MAX} are allowed: `{key}`…")]
    KeyTooLong {
        /// Its beginning.
        key: String,
        /// Its bytes.
        len: usize,
    },
    /// Misuse: a value is too large; see [`crate::chunk`].
    #[error("the value of `{key}` has {len} bytes, at most {VALUE_LEN_MAX} are allowed")]
    ValueTooLarge {
        /// Its key.
        key: String,
        /// Its bytes.
        len: usize,
    },
    /// Misuse: two changes of one key have no order.
    #[error("`{key}` is changed twice in one commit")]
    RepeatedKey {
        /// The key.
        key: String,
    },
    /// Misuse: too many of something.
    #[error("a commit has {count} {what}, at most {max} are allowed")]
    TooMany {
        /// `changes` or `preconditions`.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The environment: no space is left. Nothing of the commit is kept; the next one tries again.
    #[error(
        "the disk is full: {} cannot grow; make room on its file system, and changes are taken again",
        dir.display()
    )]
    DiskFull {
        /// The store's folder.
        dir: PathBuf,
    },
    /// The environment: the engine failed. Whether the commit is kept is unknown where the
    /// failure was in its last step, the sync: read before repeating.
    #[error("the store in {} failed", dir.display())]
    Engine {
        /// The store's folder.
        dir: PathBuf,
        /// The engine's reason.
        #[source]
        source: EngineError,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl ApplyError {
    /// Whether a precondition failed: read again, decide again.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::PreconditionFailed { .. })
    }
}

/// Why a value could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The environment: the engine failed.
    #[error("the store in {} cannot be read", dir.display())]
    Engine {
        /// The store's folder.
        dir: PathBuf,
        /// The engine's reason.
        #[source]
        source: EngineError,
    },
    /// What is on the disk is not what was written.
    #[error("{} is damaged: restore it from a backup, together with the keys of that backup", file.display())]
    Damaged {
        /// The engine's file or folder.
        file: PathBuf,
        /// What the engine found.
        #[source]
        source: EngineError,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// A transactional key-value store. Dyn-safe: the control plane holds `Arc<dyn Store>`.
///
/// Reads see every commit that was acknowledged before they began. They run on the caller's
/// thread: an embedded store of the control plane's size is in the page cache.
pub trait Store: Send + Sync + fmt::Debug {
    /// Commits `ops` if every precondition holds, and returns the commit's number once it is
    /// durable. With no ops it checks the preconditions and returns the current number.
    ///
    /// A dropped future may still commit.
    fn apply(
        &self,
        preconditions: Vec<Precondition>,
        ops: Vec<Op>,
    ) -> StoreFuture<'_, Result<StoreRevision, ApplyError>>;

    /// Reads one value. Cancel-safe.
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Result<Option<Entry>, ReadError>>;

    /// Reads up to `limit` (1 to [`SCAN_LIMIT_MAX`], else the nearest of these) values whose keys
    /// begin with `prefix`, in ascending order of keys, from the first key after `after`. One call
    /// sees one state of the store. Cancel-safe.
    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Result<Vec<Entry>, ReadError>>;

    /// The number of the last commit.
    fn revision(&self) -> StoreRevision;

    /// Watches for commits.
    fn watch(&self) -> Watch;

    /// Finishes the commits that wait, refuses new ones and releases the files.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// Waits for commits; several that come together are seen as one.
#[derive(Debug, Clone)]
pub struct Watch {
    pub(crate) receiver: watch::Receiver<StoreRevision>,
}

/// The store was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is closed")]
pub struct Closed;

impl Watch {
    /// Waits until the last commit is after `seen`, and returns its number. Cancel-safe.
    ///
    /// # Errors
    /// The store was closed.
    pub async fn after(&mut self, seen: StoreRevision) -> Result<StoreRevision, Closed> {
        self.receiver
            .wait_for(|last| *last > seen)
            .await
            .map(|last| *last)
            .map_err(|_| Closed)
    }
}

/// Refuses what no backend takes, before it reaches one.
pub(crate) fn check(preconditions: &[Precondition], ops: &[Op]) -> Result<(), ApplyError> {
    for (what, count, max) in [
        ("changes", ops.len(), OPS_MAX),
        ("preconditions", preconditions.len(), PRECONDITIONS_MAX),
    ] {
        if count > max {
            return Err(ApplyError::TooMany { what, count, max });
        }
    }
    let mut changed = BTreeSet::new();
    for key in preconditions
        .iter()
        .map(Precondition::key)
        .chain(ops.iter().map(Op::key))
    {
        if key.is_empty() {
            return Err(ApplyError::KeyEmpty);
        }
        if key.len() > KEY_LEN_MAX {
            return Err(ApplyError::KeyTooLong {
                key: key.chars().take(64).collect(),
                len: key.len(),
            });
        }
    }
    for op in ops {
        if !changed.insert(op.key()) {
            return Err(ApplyError::RepeatedKey {
                key: op.key().to_owned(),
            });
        }
        if let Op::Put { key, value } = op
            && value.len() > VALUE_LEN_MAX
        {
            return Err(ApplyError::ValueTooLarge {
                key: key.clone(),
                len: value.len(),
            });
        }
    }
    Ok(())
}

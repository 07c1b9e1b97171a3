//! What a backend does for the committer.

use crate::api::{Entry, StoreRevision};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

/// A value with the commit that wrote it.
pub(crate) type Versioned = (StoreRevision, Bytes);

/// The changes of a group of commits, and the number of the last of them.
#[derive(Debug)]
pub(crate) struct Group {
    /// Key to its new value, or to none.
    pub(crate) changes: BTreeMap<String, Option<Versioned>>,
    /// The store's revision once the group is committed.
    pub(crate) last: StoreRevision,
}

/// An embedded engine, opened. Only the committer's thread calls `commit`.
pub(crate) trait Engine: Send + Sync + fmt::Debug {
    /// Reads one value.
    fn get(&self, key: &str) -> Result<Option<Versioned>, EngineError>;

    /// Reads a page, from one state of the store; `limit` is checked.
    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Entry>, EngineError>;

    /// The revision of the last committed group.
    fn revision(&self) -> Result<StoreRevision, EngineError>;

    /// Commits a group, all or nothing; durable when it returns. After an error the engine is
    /// dropped and opened anew.
    fn commit(&self, group: &Group) -> Result<(), EngineError>;
}

/// What went wrong in an engine.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    message: String,
    disk_full: bool,
    damaged: bool,
}

impl EngineError {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            disk_full: false,
            damaged: false,
        }
    }

    /// What is on the disk is not what was written.
    pub(crate) fn damage(message: impl fmt::Display) -> Self {
        Self {
            damaged: true,
            ..Self::new(message)
        }
    }

    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        Self {
            message: format!("{what}: {error}"),
            disk_full: is_disk_full(error),
            damaged: matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ),
        }
    }

    /// Fewer than `free_bytes_min` bytes are free on the store's file system.
    pub(crate) fn no_room(dir: &Path, free_bytes_min: u64) -> Self {
        Self {
            message: format!(
                "fewer than {} KiB are free on the file system of {}; once there is room, commits go on by themselves",
                free_bytes_min >> 10,
                dir.display()
            ),
            disk_full: true,
            damaged: false,
        }
    }

    /// Whether no space is left, or a quota is reached.
    #[must_use]
    pub const fn is_disk_full(&self) -> bool {
        self.disk_full
    }

    /// Whether what is on the disk is not what was written: only a backup helps.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        self.damaged
    }
}

/// No space, over quota, or over the process's file size limit.
fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// The stored form of a value: its revision, 8 bytes big endian, before its bytes.
pub(crate) fn encode(revision: StoreRevision, value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(8 + value.len());
    stored.extend_from_slice(&revision.0.to_be_bytes());
    stored.extend_from_slice(value);
    stored
}

/// Reads the stored form.
pub(crate) fn decode(key: &str, stored: &[u8]) -> Result<Versioned, EngineError> {
    let (revision, value) = stored.split_first_chunk::<8>().ok_or_else(|| {
        EngineError::damage(format_args!(
            "the value of `{key}` is damaged: it has no revision"
        ))
    })?;
    Ok((
        StoreRevision(u64::from_be_bytes(*revision)),
        Bytes::copy_from_slice(value),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log's sentence for a disk without room begins with what is wrong, names the place and says how
    /// it ends.
    #[test]
    fn a_disk_without_room_is_told_in_a_sentence() {
        let error = EngineError::no_room(Path::new("/d/control/store"), 1 << 20);
        assert!(error.is_disk_full());
        assert_eq!(
            error.to_string(),
            "fewer than 1024 KiB are free on the file system of /d/control/store; once there is room, commits go on \
             by themselves"
        );
    }
}

//! The default backend: redb, one file, one writer, readers that see snapshots.

use crate::api::{Entry, StoreRevision};
use crate::engine::{Engine, EngineError, Group, Versioned, decode, encode};
use redb::{Builder, Database, ReadableDatabase as _, TableDefinition};
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::path::Path;

/// The file's name in the store's folder.
pub(crate) const FILE: &str = "store.redb";
/// A new store until it is whole: redb does not open again what a kill left half made.
const NEW_FILE: &str = "store.redb.new";
/// The page cache. The whole store of a pool of hundreds of members is a few MiB; redb's own
/// default of 1 GiB is for databases.
const CACHE_BYTES: usize = 16 << 20;

const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const REVISION: &str = "revision";

pub(crate) struct RedbEngine {
    database: Database,
}

impl std::fmt::Debug for RedbEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbEngine").finish_non_exhaustive()
    }
}

impl RedbEngine {
    pub(crate) fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(FILE);
        let io = |what: &'static str| move |e: io::Error| EngineError::io(what, &e);
        if !path.try_exists().map_err(io("cannot look for store.redb"))? {
            let new = dir.join(NEW_FILE);
            match fs::remove_file(&new) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(io("cannot remove store.redb.new")(e));
                }
                Ok(()) | Err(_) => {}
            }
            make(&new)?;
            // Its name comes with its content: an empty file of that name was emptied by another.
            fs::rename(&new, &path)
                .and_then(|()| File::open(dir)?.sync_all())
                .map_err(io("cannot name the new store"))?;
        }
        let database = builder().open(path).map_err(error)?;
        Ok(Self { database })
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Makes an empty store. Tables exist from its first commit on, so that readers need no case for
/// their absence.
fn make(path: &Path) -> Result<(), EngineError> {
    let database = builder().create(path).map_err(error)?;
    let write = database.begin_write().map_err(error)?;
    write.open_table(ENTRIES).map_err(error)?;
    write.open_table(META).map_err(error)?;
    write.commit().map_err(error)
}

impl Engine for RedbEngine {
    fn get(&self, key: &str) -> Result<Option<Versioned>, EngineError> {
        let table = self
            .database
            .begin_read()
            .map_err(error)?
            .open_table(ENTRIES)
            .map_err(error)?;
        let stored = table.get(key).map_err(error)?;
        stored.map(|guard| decode(key, guard.value())).transpose()
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Entry>, EngineError> {
        let table = self
            .database
            .begin_read()
            .map_err(error)?
            .open_table(ENTRIES)
            .map_err(error)?;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let mut entries = Vec::new();
        for item in table.range::<&str>((from, Bound::Unbounded)).map_err(error)? {
            let (key, stored) = item.map_err(error)?;
            let key = key.value();
            if entries.len() == limit || !key.starts_with(prefix) {
                break;
            }
            let (revision, value) = decode(key, stored.value())?;
            entries.push(Entry {
                key: key.to_owned(),
                value,
                revision,
            });
        }
        Ok(entries)
    }

    fn revision(&self) -> Result<StoreRevision, EngineError> {
        let table = self
            .database
            .begin_read()
            .map_err(error)?
            .open_table(META)
            .map_err(error)?;
        let revision = table.get(REVISION).map_err(error)?;
        Ok(StoreRevision(revision.map_or(0, |guard| guard.value())))
    }

    fn commit(&self, group: &Group) -> Result<(), EngineError> {
        let write = self.database.begin_write().map_err(error)?;
        {
            let mut entries = write.open_table(ENTRIES).map_err(error)?;
            for (key, change) in &group.changes {
                match change {
                    Some((revision, value)) => {
                        let stored = encode(*revision, value);
                        entries.insert(key.as_str(), stored.as_slice()).map_err(error)?;
                    }
                    None => {
                        entries.remove(key.as_str()).map_err(error)?;
                    }
                }
            }
            let mut meta = write.open_table(META).map_err(error)?;
            meta.insert(REVISION, group.last.0).map_err(error)?;
        }
        // Immediate durability is redb's default: it returns after fdatasync.
        write.commit().map_err(error)
    }
}

fn error(error: impl Into<redb::Error>) -> EngineError {
    match error.into() {
        redb::Error::Io(io) => EngineError::io("redb", &io),
        // A table or a value of another type is not what was written either.
        damage @ (redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableDoesNotExist(_)) => EngineError::damage(format_args!("redb: {damage}")),
        other => EngineError::new(format_args!("redb: {other}")),
    }
}

//! The selectable backend: sled 0.34.7, with the syncs that it leaves out.
//!
//! sled's own flush is `sync_file_range`, which writes neither metadata nor the disk's cache, and
//! its blob files are never synced: as shipped it lost acknowledged commits in power cuts. So
//! every commit here ends with an fsync of new blob files and their folder and `fdatasync` of the
//! log file, before it is acknowledged.

use crate::api::{Entry, StoreRevision};
use crate::engine::{Engine, EngineError, Group, Versioned, decode, encode};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// sled's folder inside the store's.
pub(crate) const FOLDER: &str = "sled";
/// sled's log, inside its folder.
const LOG_FILE: &str = "db";
/// sled's folder of large items, inside its folder; absent until the first of them.
const BLOB_FOLDER: &str = "blobs";
/// The page cache; see the redb backend.
const CACHE_BYTES: u64 = 16 << 20;
/// sled's own flush period, with which the syncs were proven.
const FLUSH_EVERY_MS: u64 = 500;
/// The store's own lock is held by then: sled's is still that of the engine that this process has just closed,
/// whose threads let it go a moment later.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
const LOCK_AGAIN: Duration = Duration::from_millis(10);
/// One tree holds all, since a batch is atomic within one tree: entries under this byte, …
const ENTRY: u8 = b'e';
/// … and the revision under this key.
const REVISION: &[u8] = b"r";

/// Whether somebody holds sled's lock; it says so in words only.
fn is_lock(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(io) if io.to_string().contains("could not acquire lock"))
}

pub(crate) struct SledEngine {
    db: sled::Db,
    dir: PathBuf,
    log: File,
    synced_blobs: Mutex<BTreeSet<OsString>>,
    /// sled shows a batch before it is durable, and a scan is no snapshot: readers wait for the
    /// commit.
    visible: RwLock<()>,
}

impl std::fmt::Debug for SledEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SledEngine").finish_non_exhaustive()
    }
}

impl SledEngine {
    /// Opens or makes the store. A damaged one may panic inside sled: the caller catches that.
    pub(crate) fn open(dir: &Path) -> Result<Self, EngineError> {
        let folder = dir.join(FOLDER);
        let config = sled::Config::new()
            .path(&folder)
            .mode(sled::Mode::LowSpace)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSH_EVERY_MS));
        let began = Instant::now();
        let db = loop {
            match config.open() {
                Err(held) if is_lock(&held) && began.elapsed() < LOCK_WAIT_MAX => {
                    std::thread::sleep(LOCK_AGAIN);
                }
                opened => break opened.map_err(error)?,
            }
        };
        let log = File::open(folder.join(LOG_FILE)).map_err(|e| EngineError::io("sled's log", &e))?;
        let engine = Self {
            db,
            dir: folder,
            log,
            synced_blobs: Mutex::default(),
            visible: RwLock::new(()),
        };
        engine.sync()?;
        sync_folder(&engine.dir)?;
        sync_folder(dir)?;
        Ok(engine)
    }

    /// Makes all that was applied durable.
    fn sync(&self) -> Result<(), EngineError> {
        self.db.flush().map_err(error)?;
        self.sync_blobs()?;
        self.log
            .sync_data()
            .map_err(|e| EngineError::io("cannot sync sled's log", &e))
    }

    fn sync_blobs(&self) -> Result<(), EngineError> {
        let folder = self.dir.join(BLOB_FOLDER);
        let fail = |e: &io::Error| EngineError::io("cannot sync sled's blobs", e);
        let listing = match fs::read_dir(&folder) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(fail(&error)),
        };
        let mut synced = self.synced_blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = BTreeSet::new();
        for item in listing {
            let item = item.map_err(|e| fail(&e))?;
            if !synced.contains(&item.file_name()) {
                match File::open(item.path()).and_then(|file| file.sync_all()) {
                    Ok(()) => {}
                    // sled removes blobs that it has rewritten.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(fail(&error)),
                }
            }
            found.insert(item.file_name());
        }
        if found != *synced {
            sync_folder(&folder)?;
            *synced = found;
        }
        Ok(())
    }
}

impl Engine for SledEngine {
    fn get(&self, key: &str) -> Result<Option<Versioned>, EngineError> {
        let _visible = self.visible.read().unwrap_or_else(PoisonError::into_inner);
        let stored = self.db.get(entry_key(key)).map_err(error)?;
        stored.map(|stored| decode(key, &stored)).transpose()
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Entry>, EngineError> {
        let _visible = self.visible.read().unwrap_or_else(PoisonError::into_inner);
        let prefix_key = entry_key(prefix);
        let mut from = entry_key(after.unwrap_or(""));
        if after.is_some() {
            // The least key above `after`.
            from.push(0);
        }
        let mut entries = Vec::new();
        for item in self.db.range(from.max(prefix_key.clone())..) {
            let (key, stored) = item.map_err(error)?;
            if entries.len() == limit || !key.starts_with(&prefix_key) {
                break;
            }
            let key = std::str::from_utf8(key.get(1..).unwrap_or_default())
                .map_err(|_| EngineError::new("a key is damaged: it is not text"))?;
            let (revision, value) = decode(key, &stored)?;
            entries.push(Entry {
                key: key.to_owned(),
                value,
                revision,
            });
        }
        Ok(entries)
    }

    fn revision(&self) -> Result<StoreRevision, EngineError> {
        let stored = self.db.get(REVISION).map_err(error)?;
        stored.map_or(Ok(StoreRevision(0)), |stored| {
            <[u8; 8]>::try_from(&*stored)
                .map(|bytes| StoreRevision(u64::from_be_bytes(bytes)))
                .map_err(|_| EngineError::new("the store's revision is damaged"))
        })
    }

    fn commit(&self, group: &Group) -> Result<(), EngineError> {
        let mut batch = sled::Batch::default();
        for (key, change) in &group.changes {
            match change {
                Some((revision, value)) => batch.insert(entry_key(key), encode(*revision, value)),
                None => batch.remove(entry_key(key)),
            }
        }
        batch.insert(REVISION, &group.last.0.to_be_bytes());
        let _visible = self.visible.write().unwrap_or_else(PoisonError::into_inner);
        self.db.apply_batch(batch).map_err(error)?;
        self.sync()
    }
}

fn entry_key(key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.len() + 1);
    bytes.push(ENTRY);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

fn sync_folder(folder: &Path) -> Result<(), EngineError> {
    File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(|e| EngineError::io("cannot sync sled's folder", &e))
}

fn error(error: sled::Error) -> EngineError {
    match error {
        sled::Error::Io(io) => EngineError::io("sled", &io),
        corrupt @ sled::Error::Corruption { .. } => EngineError::damage(format_args!("sled: {corrupt}")),
        other => EngineError::new(format_args!("sled: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine whose threads have not let its lock go yet is waited for; a lock that stays is told of.
    #[test]
    fn a_lock_that_is_about_to_go_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        drop(SledEngine::open(dir.path()).unwrap());
        let held = File::open(dir.path().join(FOLDER).join(LOG_FILE)).unwrap();
        held.lock().unwrap();
        let freed = std::thread::spawn(move || {
            std::thread::sleep(10 * LOCK_AGAIN);
            drop(held);
        });
        drop(SledEngine::open(dir.path()).unwrap());
        freed.join().unwrap();
    }
}

//! Opening a store's folder.

use crate::api::Store;
use crate::committer::Committed;
use crate::engine::{Engine, EngineError};
use crate::redb::RedbEngine;
use crate::sled::SledEngine;
use rustix::fs::{FlockOperation, flock};
use std::any::Any;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Which engine a store uses. A folder belongs to one of them for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// redb: the default.
    #[default]
    Redb,
    /// sled, with our own syncs.
    Sled,
}

/// Text that is not a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a store: expected redb or sled")]
pub struct BackendError(String);

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 2] = [Self::Redb, Self::Sled];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Redb => "redb",
            Self::Sled => "sled",
        }
    }

    /// Opens the engine. A panic of a damaged store becomes an error.
    pub(crate) fn open_engine(self, dir: &Path) -> Result<Box<dyn Engine>, EngineError> {
        guarded(|| {
            Ok(match self {
                Self::Redb => Box::new(RedbEngine::open(dir)?) as Box<dyn Engine>,
                Self::Sled => Box::new(SledEngine::open(dir)?),
            })
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Backend {
    type Err = BackendError;
    fn from_str(text: &str) -> Result<Self, BackendError> {
        Self::ALL
            .into_iter()
            .find(|b| b.as_str() == text)
            .ok_or_else(|| BackendError(text.chars().take(40).collect()))
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be made or used.
    #[error("cannot use {} as the store's folder", dir.display())]
    Io {
        /// The folder.
        dir: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the store in {} is in use by another process", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// It was made by another backend.
    #[error("the store in {} belongs to {found}, not to {asked}: start it with `store = \"{found}\"`", dir.display())]
    OtherBackend {
        /// The folder.
        dir: PathBuf,
        /// What its marker says.
        found: String,
        /// What was asked for.
        asked: Backend,
    },
    /// The engine cannot read what is there, or cannot write.
    #[error("the store in {} cannot be opened", dir.display())]
    Engine {
        /// The folder.
        dir: PathBuf,
        /// The engine's reason.
        #[source]
        source: EngineError,
    },
}

/// The store's own lock, beside those of the engines: sled releases its lock late.
const LOCK_FILE: &str = "store.lock";
/// Names the backend that the folder belongs to.
const MARKER_FILE: &str = "backend";
/// The marker is one word.
const MARKER_LEN_MAX: u64 = 64;

/// Opens the store in `dir`, which is made (0700) if absent. Blocks: a store that was not closed
/// cleanly is repaired first.
///
/// # Errors
/// Says whether the folder, another process or the engine is to blame.
pub fn open(backend: Backend, dir: &Path) -> Result<Arc<dyn Store>, OpenError> {
    open_with(backend, dir, crate::committer::FREE_BYTES_MIN)
}

/// As [`open`], with the free space below which commits are refused.
pub(crate) fn open_with(
    backend: Backend,
    dir: &Path,
    free_bytes_min: u64,
) -> Result<Arc<dyn Store>, OpenError> {
    let io = |source| OpenError::Io {
        dir: dir.to_owned(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(io)?;
    let lock = lock(dir)?;
    check_marker(backend, dir)?;
    let engine = backend.open_engine(dir).map_err(|source| OpenError::Engine {
        dir: dir.to_owned(),
        source,
    })?;
    sync_folder(dir).map_err(io)?;
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        sync_folder(parent).map_err(io)?;
    }
    let store =
        Committed::start(backend, dir, engine, lock, free_bytes_min).map_err(|source| OpenError::Engine {
            dir: dir.to_owned(),
            source,
        })?;
    Ok(Arc::new(store))
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        dir: dir.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse { dir: dir.to_owned() }),
        Err(errno) => Err(io(errno.into())),
    }
}

/// Refuses a folder of another backend; marks a new one before the engine writes to it.
fn check_marker(backend: Backend, dir: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io {
        dir: dir.to_owned(),
        source,
    };
    let path = dir.join(MARKER_FILE);
    match File::open(&path) {
        Ok(file) => {
            let found = io::read_to_string(io::Read::take(file, MARKER_LEN_MAX)).map_err(io)?;
            let found = found.trim();
            if found == backend.as_str() {
                return Ok(());
            }
            Err(OpenError::OtherBackend {
                dir: dir.to_owned(),
                found: found.escape_default().collect(),
                asked: backend,
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let temp = dir.join("backend.tmp");
            File::create(&temp)
                .and_then(|mut file| {
                    writeln!(file, "{backend}")?;
                    file.sync_all()
                })
                .and_then(|()| fs::rename(&temp, &path))
                .and_then(|()| sync_folder(dir))
                .map_err(io)
        }
        Err(error) => Err(io(error)),
    }
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Runs engine code that may panic on a damaged store.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    // What the closure touches is dropped or opened anew after an error.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(EngineError::new(format_args!(
            "the engine panicked: {}",
            panic_text(&*panic)
        )))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no reason given")
}

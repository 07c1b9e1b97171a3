//! Opening a store's folder.

use crate::api::Store;
use crate::committer::Committed;
use crate::engine::{Engine, EngineError};
use crate::redb::RedbEngine;
use crate::sled::SledEngine;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Once};

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

    /// Whether the store's folder has the engine's file or folder; one that cannot be looked for
    /// counts as there: opening it tells why.
    #[must_use]
    pub fn is_made(self, dir: &Path) -> bool {
        self.path(dir).try_exists().unwrap_or(true)
    }

    /// The engine's file or folder in the store's folder.
    #[must_use]
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(match self {
            Self::Redb => crate::redb::FILE,
            Self::Sled => crate::sled::FOLDER,
        })
    }

    /// Whether it keeps its data in a folder; otherwise in a file.
    const fn is_folder(self) -> bool {
        match self {
            Self::Redb => false,
            Self::Sled => true,
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
    #[error(
        "the store in {} was made with {found}, not with {asked} ({} says so): start with `--store {found}`, or \
         `store = \"{found}\"` in the settings",
        dir.display(),
        marker.display()
    )]
    OtherBackend {
        /// The folder.
        dir: PathBuf,
        /// What says so: the marker, or the engine's file.
        marker: PathBuf,
        /// What it says.
        found: Backend,
        /// What was asked for.
        asked: Backend,
    },
    /// The file that names its backend does not.
    #[error(
        "{} is damaged: it must hold one word, the engine that made this store: redb where `store.redb` is \
         beside it, sled where the folder `sled` is",
        file.display()
    )]
    Marker {
        /// The file.
        file: PathBuf,
    },
    /// Something else stands in the place of a file or folder of the store.
    #[error("{} is {found}: move it away, and put what the store or its backup had there in its place", file.display())]
    Kind {
        /// What stands there.
        file: PathBuf,
        /// What it is.
        found: &'static str,
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
    /// The engine cannot read what is there, or cannot write.
    #[error("{} cannot be opened or made; it and its folder must belong to who runs this", file.display())]
    Engine {
        /// The engine's file or folder.
        file: PathBuf,
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
    check_kind(&backend.path(dir), backend.is_folder())?;
    check_marker(backend, dir, true)?;
    let failed = |source: EngineError| {
        let file = backend.path(dir);
        if source.is_damage() {
            OpenError::Damaged { file, source }
        } else {
            OpenError::Engine { file, source }
        }
    };
    let engine = backend.open_engine(dir).map_err(failed)?;
    sync_folder(dir).map_err(io)?;
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        sync_folder(parent).map_err(io)?;
    }
    let store = Committed::start(backend, dir, engine, lock, free_bytes_min).map_err(failed)?;
    Ok(Arc::new(store))
}

/// Whether a folder may be opened with this backend, as far as is seen without touching it: one that another
/// one made must not be taken for lost.
///
/// # Errors
/// [`OpenError::OtherBackend`]; the marker is damaged or cannot be read.
pub fn check_backend(backend: Backend, dir: &Path) -> Result<(), OpenError> {
    check_marker(backend, dir, false)
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        dir: dir.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        // For reading too: a pipe in its place would wait for a reader.
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK_FILE));
    check_kind(&dir.join(LOCK_FILE), false)?;
    let file = file.map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse { dir: dir.to_owned() }),
        Err(errno) => Err(io(errno.into())),
    }
}

/// Refuses what stands in the place of a file, or of a folder: an engine would wait for a pipe, say. What is absent,
/// or cannot be looked at, is for whoever opens it.
fn check_kind(path: &Path, is_folder: bool) -> Result<(), OpenError> {
    let found = match fs::metadata(path) {
        Ok(meta) => match kind(meta.file_type()) {
            FOLDER if is_folder => None,
            FILE if !is_folder => None,
            other => Some(other),
        },
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Some("a symbolic link that leads back to itself, or behind one")
        }
        Err(_) => None,
    };
    match found {
        Some(found) => Err(OpenError::Kind {
            file: path.to_owned(),
            found,
        }),
        None => Ok(()),
    }
}

const FOLDER: &str = "a folder";
const FILE: &str = "a file";

fn kind(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        FOLDER
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_file() {
        FILE
    } else {
        "a device"
    }
}

/// Refuses a folder of another backend; marks a new one, where it may, before the engine writes to it.
fn check_marker(backend: Backend, dir: &Path, may_mark: bool) -> Result<(), OpenError> {
    let io = |source| OpenError::Io {
        dir: dir.to_owned(),
        source,
    };
    let path = dir.join(MARKER_FILE);
    check_kind(&path, false)?;
    let is_own = |found: Backend, marker: &Path| {
        if found == backend {
            return Ok(());
        }
        Err(OpenError::OtherBackend {
            dir: dir.to_owned(),
            marker: marker.to_owned(),
            found,
            asked: backend,
        })
    };
    // A pipe in its place would wait for a writer.
    let mut opening = OpenOptions::new();
    opening
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    match opening.open(&path) {
        Ok(file) => {
            if !file.metadata().map_err(io)?.is_file() {
                return Err(OpenError::Marker { file: path });
            }
            let mut found = Vec::new();
            file.take(MARKER_LEN_MAX).read_to_end(&mut found).map_err(io)?;
            let found = std::str::from_utf8(&found).ok().map(str::trim);
            match found.and_then(|word| word.parse().ok()) {
                Some(found) => is_own(found, &path),
                None => Err(OpenError::Marker { file: path }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // One that was lost is written anew, yet never against the files that are there.
            for made in Backend::ALL {
                if made.path(dir).try_exists().map_err(io)? {
                    is_own(made, &made.path(dir))?;
                }
            }
            if !may_mark {
                return Ok(());
            }
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
    keep_caught_panics_quiet();
    IN_ENGINE.set(IN_ENGINE.get().saturating_add(1));
    // What the closure touches is dropped or opened anew after an error.
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(EngineError::damage(format_args!(
            "its engine stopped at: {}",
            panic_text(&*panic)
        )))
    });
    IN_ENGINE.set(IN_ENGINE.get().saturating_sub(1));
    result
}

thread_local! {
    /// How many [`guarded`] calls this thread is in.
    static IN_ENGINE: Cell<u32> = const { Cell::new(0) };
}

/// A panic that [`guarded`] catches is told as an error, in one line: the process's hook, which
/// prints what a defect of ours needs, is left out for it alone.
fn keep_caught_panics_quiet() {
    static ONCE: Once = Once::new();
    // The hook cannot be changed while a thread panics.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_ENGINE.try_with(Cell::get).is_ok_and(|depth| depth > 0) {
                tracing::debug!(%info, "the store's engine panicked");
            } else {
                before(info);
            }
        }));
    });
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .and_then(|text| text.lines().next())
        .unwrap_or("no reason given")
}

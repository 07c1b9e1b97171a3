//! Files that are whole or not there: written aside, synced, renamed; read up to a bound.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Why a file could not be read or written. The environment failed, unless the variant says
/// otherwise.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A system call failed.
    #[error("cannot {action} {}{}", path.display(), mend(source))]
    Io {
        /// What was tried: `read`, `write`, `rename`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is larger than its reader takes.
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound in bytes.
        max: usize,
    },
    /// What is there is no file: a pipe, a socket or a device, which might never end, or never begin; or a
    /// symbolic link without an end.
    #[error("{} is {kind}, no regular file: move it away and put the file in its place", path.display())]
    NotRegular {
        /// What stands in the file's place.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file is not UTF-8.
    #[error("{} is not UTF-8 text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// A secret that others may read.
    #[error(
        "{} has mode {mode:04o}: others than its owner may use it (run `chmod 600 {}`)",
        path.display(),
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

impl FileError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Why a file could not be opened: where something else stands in its place, that is said.
    pub(crate) fn opening(path: &Path, source: io::Error) -> Self {
        let kind = match source.raw_os_error().map(Errno::from_raw_os_error) {
            // A path through a loop has no end, wherever on it that is.
            Some(Errno::LOOP) => Some("a symbolic link that leads back to itself, or behind one"),
            // Sockets, and devices without a driver.
            Some(Errno::NXIO) => fs::metadata(path).ok().and_then(|m| other_kind(m.file_type())),
            Some(_) | None => None,
        };
        match kind {
            Some(kind) => Self::NotRegular {
                path: path.to_owned(),
                kind,
            },
            None => Self::io("open", path, source),
        }
    }

    /// Whether the file is not there.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What stands in a file's place; `None` for a file or a folder.
fn other_kind(kind: fs::FileType) -> Option<&'static str> {
    if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else if kind.is_char_device() || kind.is_block_device() {
        Some("a device")
    } else {
        None
    }
}

/// Random bytes in the name of a temporary file.
const TEMP_RANDOM_LEN: usize = 8;
/// How the names of temporary files end.
const TEMP_SUFFIX: &str = ".tmp";

/// What to do about the system's reason, where that is not in the reason itself.
fn mend(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (make room on its file system)",
        io::ErrorKind::PermissionDenied => " (this user may not: run it as the owner, or as root)",
        _ => "",
    }
}

/// Replaces `path` by a file of these bytes and permission bits. After a crash at any point the
/// old or the new file is there, whole; what was written aside by then stays until
/// [`remove_stale`]. Durable when it returns.
///
/// # Errors
/// Names the step and the path; the old file is untouched.
pub fn write_atomic(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), FileError> {
    let folder = folder_of(path);
    // Two writers of one file (two threads, say) must not share a temporary one.
    let temp = folder.join(format!(
        ".{}.{}{TEMP_SUFFIX}",
        path.file_name().unwrap_or_default().to_string_lossy(),
        hex::encode(crate::rng::bytes::<TEMP_RANDOM_LEN>())
    ));
    let written = write_new(&temp, path, mode, bytes).and_then(|held| {
        let renamed = fs::rename(&temp, path).map_err(|e| FileError::io("rename to", path, e));
        drop(held);
        renamed
    });
    if let Err(error) = written {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_file(&temp);
        return Err(error);
    }
    sync_folder(folder)
}

/// Gives the file open and locked: who cleans up knows by the lock that its writer lives. Errors
/// name `path`: nobody looks for the temporary file, which is gone by then.
fn write_new(temp: &Path, path: &Path, mode: u32, bytes: &[u8]) -> Result<File, FileError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(temp)
        .map_err(|e| FileError::io("write", path, e))?;
    // Where the file system has no locks, nothing cleans up beside a writer: one daemon per folder.
    let _ = flock(&file, FlockOperation::LockExclusive);
    // The umask takes bits away from `mode`; a mode is meant as written.
    file.set_permissions(fs::Permissions::from_mode(mode))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .map_err(|e| FileError::io("write", path, e))?;
    Ok(file)
}

/// Removes what writers that were killed in the middle of [`write_atomic`] left in `folder` and in
/// the folders directly in it: each is as large, and as secret, as the file that it was to be. What a
/// live writer holds stays. Best effort: a leftover that cannot be removed is in nobody's way.
pub fn remove_stale(folder: &Path) {
    for entry in remove_stale_in(folder) {
        remove_stale_in(&entry);
    }
}

/// Gives the folders in `folder`.
fn remove_stale_in(folder: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        // Links are not followed.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => folders.push(entry.path()),
            Ok(kind) if kind.is_file() && entry.file_name().to_str().is_some_and(is_temp) => {
                remove_unless_held(&entry.path());
            }
            Ok(_) | Err(_) => {}
        }
    }
    folders
}

fn remove_unless_held(temp: &Path) {
    // Writable, since some file systems lock nothing else; not to be read: it may be a secret.
    let Ok(file) = OpenOptions::new().write(true).open(temp) else {
        return;
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = fs::remove_file(temp);
    }
}

/// Whether [`write_atomic`] makes such names: `.NAME.<random>.tmp`.
fn is_temp(name: &str) -> bool {
    let random = name
        .strip_prefix('.')
        .and_then(|rest| rest.strip_suffix(TEMP_SUFFIX))
        .and_then(|rest| rest.rsplit_once('.'))
        .map_or("", |(_, random)| random);
    random.len() == 2 * TEMP_RANDOM_LEN
        && random
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads a whole file of at most `max` bytes. Never waits for anybody who writes into a pipe.
///
/// # Errors
/// The file is absent, unreadable, too large, or none.
pub fn read_bounded(path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    read_open(&open_regular(path)?, path, max)
}

/// Opens a file for reading. What else may stand in its place is not waited for.
pub(crate) fn open_regular(path: &Path) -> Result<File, FileError> {
    let file = OpenOptions::new()
        .read(true)
        // Opening a pipe that nobody writes into would hang.
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|e| FileError::opening(path, e))?;
    check_regular(&file, path)?;
    Ok(file)
}

/// Refuses what is open and no file.
pub(crate) fn check_regular(file: &File, path: &Path) -> Result<(), FileError> {
    let kind = file
        .metadata()
        .map_err(|e| FileError::io("read", path, e))?
        .file_type();
    if kind.is_dir() {
        return Err(FileError::io("read", path, io::ErrorKind::IsADirectory.into()));
    }
    match other_kind(kind) {
        Some(kind) => Err(FileError::NotRegular {
            path: path.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

/// Reads a text of at most `max` bytes that somebody names on a command line: a pipe will do.
///
/// # Errors
/// As [`read_text`], but for what is no regular file.
pub fn read_given(path: &Path, max: usize) -> Result<String, FileError> {
    let file = File::open(path).map_err(|e| FileError::opening(path, e))?;
    text(read_open(&file, path, max)?, path)
}

pub(crate) fn read_open(file: &File, path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    file.take(u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| FileError::io("read", path, e))?;
    if bytes.len() > max {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
            max,
        });
    }
    Ok(bytes)
}

/// Reads a text file of at most `max` bytes.
///
/// # Errors
/// As [`read_bounded`]; and the file is not UTF-8.
pub fn read_text(path: &Path, max: usize) -> Result<String, FileError> {
    text(read_bounded(path, max)?, path)
}

fn text(bytes: Vec<u8>, path: &Path) -> Result<String, FileError> {
    String::from_utf8(bytes).map_err(|_| FileError::NotText {
        path: path.to_owned(),
    })
}

/// Reads a file that need not exist.
///
/// # Errors
/// As [`read_bounded`], except that an absent file is `None`.
pub fn read_optional(path: &Path, max: usize) -> Result<Option<Vec<u8>>, FileError> {
    match read_bounded(path, max) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether nothing at all has this name: what would be made may be made. A link without an end, or a name that
/// cannot be looked up, is something, which its reader explains.
#[must_use]
pub fn is_free(path: &Path) -> bool {
    path.symlink_metadata()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Makes a folder and those above it; `mode` is set on a folder that this call makes.
///
/// # Errors
/// Names the folder.
pub fn make_folder(path: &Path, mode: u32) -> Result<(), FileError> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|e| FileError::io("create folder", path, e))?;
    sync_folder(folder_of(path))
}

/// Removes a file; an absent one is fine. Durable when it returns.
///
/// # Errors
/// Names the file.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder(folder_of(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::io("remove", path, error)),
    }
}

/// Makes renames and removals inside `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), FileError> {
    File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|e| FileError::io("sync folder", folder, e))
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        Some(_) | None => Path::new("."),
    }
}

#[cfg(test)]
mod tests;

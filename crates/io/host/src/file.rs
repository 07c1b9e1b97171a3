//! Files that are whole or not there: written aside, synced, renamed; read up to a bound.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
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

    /// Whether the file is not there.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
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

/// Reads a whole file of at most `max` bytes.
///
/// # Errors
/// The file is absent, unreadable or too large.
pub fn read_bounded(path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    let file = File::open(path).map_err(|e| FileError::io("open", path, e))?;
    read_open(&file, path, max)
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
    String::from_utf8(read_bounded(path, max)?).map_err(|_| FileError::NotText {
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
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn replaced_whole_with_the_mode_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_atomic(&path, 0o640, b"one").unwrap();
        write_atomic(&path, 0o666, b"two").unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(names(dir.path()), ["f"], "no temporary file stays");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        let error = write_atomic(&path, 0o600, b"one").unwrap_err().to_string();
        assert!(error.contains("rename") && error.contains("/f"), "{error}");
        assert_eq!(names(dir.path()), ["f"]);
    }

    /// A full disk is said with the file that was wanted and with what to do.
    #[test]
    fn a_file_that_cannot_be_written_is_named_and_not_the_one_beside_it() {
        let path = Path::new("/d/boot.state");
        let full = FileError::io("write", path, io::ErrorKind::StorageFull.into()).to_string();
        assert_eq!(full, "cannot write /d/boot.state (make room on its file system)");
        let denied = FileError::io("write", path, io::ErrorKind::PermissionDenied.into()).to_string();
        assert_eq!(denied, "cannot write /d/boot.state");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none").join("f");
        let error = write_atomic(&path, 0o600, b"one").unwrap_err().to_string();
        assert_eq!(error, format!("cannot write {}", path.display()));
    }

    #[test]
    fn only_what_no_writer_holds_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        let held = write_new(
            &dir.path().join(".key.0123456789abcdef.tmp"),
            &dir.path().join("key"),
            0o600,
            b"x",
        )
        .unwrap();
        let stays = [
            ".key.0123456789abcdef.tmp",
            ".key.0123456789ABCDEF.tmp",
            ".key.0123.tmp",
            ".0123456789abcdef.tmp",
            "key.0123456789abcdef.tmp",
            ".key.0123456789abcdef",
            "key",
        ];
        for name in stays.iter().skip(1) {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        fs::write(dir.path().join(".a.b.fedcba9876543210.tmp"), "x").unwrap();
        fs::create_dir(dir.path().join(".folder.0123456789abcdef.tmp")).unwrap();
        // As identities and keys are kept.
        let inner = dir.path().join("keys");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join(".key.pem.fedcba9876543210.tmp"), "x").unwrap();
        remove_stale(dir.path());
        assert!(names(&inner).is_empty());
        let mut expected = stays.to_vec();
        expected.extend([".folder.0123456789abcdef.tmp", "keys"]);
        expected.sort_unstable();
        assert_eq!(names(dir.path()), expected);
        drop(held);
        remove_stale(dir.path());
        assert!(!names(dir.path()).contains(&stays[0].to_owned()));
        remove_stale(&dir.path().join("none"));
    }

    /// Names the folder in which the child writes.
    const CHILD_ENV: &str = "FAIRLEAD_FILE_TEST_CHILD";

    /// The process that `killed_writers_leave_nothing_behind` kills; by itself it does nothing.
    #[test]
    fn killed_writer() {
        let Some(dir) = std::env::var_os(CHILD_ENV) else {
            return;
        };
        loop {
            crate::secret::write(&Path::new(&dir).join("key"), &vec![7; 8 << 20]).unwrap();
        }
    }

    /// What a killed daemon had begun to write, its keys among it, goes when the next one takes
    /// the folder.
    #[test]
    fn killed_writers_leave_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let has_temp = || names(dir.path()).iter().any(|name| is_temp(name));
        for _ in 0..50 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "file::tests::killed_writer", "--nocapture"])
                .env(CHILD_ENV, dir.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            while !has_temp() {
                assert!(child.try_wait().unwrap().is_none(), "the writer ended");
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            if has_temp() {
                break;
            }
        }
        assert!(has_temp(), "no kill hit a write");
        let _lock = crate::FolderLock::acquire(dir.path()).unwrap();
        let left: Vec<String> = names(dir.path());
        assert!(!left.iter().any(|name| is_temp(name)), "{left:?}");
    }

    #[test]
    fn reads_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, [0xff; 11]).unwrap();
        assert!(matches!(
            read_bounded(&path, 10),
            Err(FileError::TooLarge { max: 10, .. })
        ));
        assert!(matches!(read_text(&path, 11), Err(FileError::NotText { .. })));
        assert!(read_optional(&dir.path().join("none"), 1).unwrap().is_none());
        assert!(read_bounded(&dir.path().join("none"), 1).unwrap_err().is_absent());
        // A file without an end does not hang or exhaust memory.
        assert!(matches!(
            read_bounded(Path::new("/dev/zero"), 10),
            Err(FileError::TooLarge { .. })
        ));
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(names(dir.path()).is_empty());
    }
}

//! One process per folder.

use crate::clock::boot_id;
use crate::file::{self, FileError};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The exclusive right to a daemon's folder, held until dropped or until the process ends.
#[derive(Debug)]
pub struct FolderLock {
    /// The open file is the lock.
    file: File,
}

/// What is locked, as long as the host is not booted anew: of two processes that locked the same, the
/// earlier has ended. A copy of the folder, on whatever host, is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockPlace([u8; LockPlace::LEN]);

impl LockPlace {
    /// Its bytes: a SHA-256.
    pub const LEN: usize = 32;

    /// A place that was kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// For keeping.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }
}

/// Why a folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error(
        "{} is in use by {}",
        path.display(),
        pid.map_or_else(|| "another process".to_owned(), |p| format!("process {p}"))
    )]
    Held {
        /// The folder.
        path: PathBuf,
        /// The holder, where it wrote its id.
        pid: Option<i32>,
    },
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The lock file's name in its folder.
const LOCK_FILE: &str = "lock";
/// How long the threads of a killed holder may take to end. The kernel shows it as a zombie while
/// they do, and keeps its lock; milliseconds on an idle host.
const ENDING_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often the lock of an ending holder is tried again.
const ENDING_LOOK: Duration = Duration::from_millis(10);
/// A process id in decimal and a newline.
const PID_LEN_MAX: usize = 24;

impl FolderLock {
    /// Locks `dir`, which must exist, and clears away what earlier holders that were killed had begun
    /// to write. Waits only for a holder that is ending: whoever starts a daemon again right after it
    /// was killed is not refused for it.
    ///
    /// # Errors
    /// Names the folder and, where known, the process that holds it.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| FileError::opening(&path, e))?;
        file::check_regular(&file, &path)?;
        let started = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(FileError::io("lock", &path, errno.into()).into()),
            }
            let pid: Option<i32> = file::read_text(&path, PID_LEN_MAX)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            if started.elapsed() >= ENDING_WAIT_MAX || !pid.is_some_and(has_ended) {
                return Err(LockError::Held {
                    path: dir.to_owned(),
                    pid,
                });
            }
            std::thread::sleep(ENDING_LOOK);
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|e| FileError::io("write", &path, e))?;
        file::remove_stale(dir);
        Ok(Self { file })
    }

    /// What is locked; `None` where the host does not say.
    #[must_use]
    pub fn place(&self) -> Option<LockPlace> {
        let boot = boot_id().ok()?;
        let file = self.file.metadata().ok()?;
        let digest = Sha256::new()
            .chain_update(file.dev().to_be_bytes())
            .chain_update(file.ino().to_be_bytes())
            .chain_update(boot)
            .finalize();
        Some(LockPlace(digest.into()))
    }
}

/// Whether a process is gone, or a zombie (proc(5)): then it holds its lock for a moment at most.
fn has_ended(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The name stands in brackets and may hold any character.
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_with_the_holders_pid() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(dir.path()).unwrap();
        let error = FolderLock::acquire(dir.path()).unwrap_err();
        assert!(
            matches!(&error, LockError::Held { pid: Some(p), .. } if *p == std::process::id().cast_signed()),
            "{error}"
        );
        drop(first);
        FolderLock::acquire(dir.path()).unwrap();
    }

    /// R-ENR-10: the next holder of a folder finds its place again; one of a copy of it does not.
    #[test]
    fn a_place_is_one_folders() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = FolderLock::acquire(dir.path()).unwrap().place().unwrap();
        std::fs::copy(dir.path().join(LOCK_FILE), copy.path().join(LOCK_FILE)).unwrap();
        let next = FolderLock::acquire(dir.path()).unwrap().place().unwrap();
        assert_eq!(first, next);
        let other = FolderLock::acquire(copy.path()).unwrap().place().unwrap();
        assert_ne!(first, other);
    }

    /// A holder that was killed may keep its lock for a moment: it is waited for.
    #[test]
    fn an_ending_holder_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let held = FolderLock::acquire(dir.path()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(has_ended(child.id().cast_signed()));
        assert!(!has_ended(std::process::id().cast_signed()));
        std::fs::write(dir.path().join(LOCK_FILE), format!("{}\n", child.id())).unwrap();
        let waiter = std::thread::spawn({
            let dir = dir.path().to_owned();
            move || FolderLock::acquire(&dir).is_ok()
        });
        std::thread::sleep(ENDING_LOOK * 5);
        drop(held);
        assert!(waiter.join().unwrap());
    }
}

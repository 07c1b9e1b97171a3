//! One process per folder.

use crate::file::{self, FileError};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// The exclusive right to a daemon's folder, held until dropped or until the process ends.
#[derive(Debug)]
pub struct FolderLock {
    /// The open file is the lock.
    _file: File,
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
/// A process id in decimal and a newline.
const PID_LEN_MAX: usize = 24;

impl FolderLock {
    /// Locks `dir`, which must exist. Does not wait.
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
            .map_err(|e| FileError::io("open", &path, e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = file::read_text(&path, PID_LEN_MAX)
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
                return Err(LockError::Held {
                    path: dir.to_owned(),
                    pid,
                });
            }
            Err(errno) => return Err(FileError::io("lock", &path, errno.into()).into()),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|e| FileError::io("write", &path, e))?;
        Ok(Self { _file: file })
    }
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
}

//! Files that only their owner may read: keys and tokens.

use crate::file::{self, FileError};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// Permission bits of a secret file: its owner only.
pub const SECRET_MODE: u32 = 0o600;

/// Replaces a secret file, as [`file::write_atomic`] with mode 0600.
///
/// # Errors
/// Names the step and the path.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    file::write_atomic(path, SECRET_MODE, bytes)
}

/// Reads a secret file of at most `max` bytes; the buffer is wiped when dropped.
///
/// # Errors
/// As [`file::read_bounded`]; and the group or others have any permission on the file.
pub fn read(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    // A folder's mode, or a pipe's, is not what is wrong.
    let file = file::open_regular(path)?;
    let meta = file.metadata().map_err(|e| FileError::io("read", path, e))?;
    let mode = meta.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FileError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    file::read_open(&file, path, max).map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_folder_in_its_place_is_called_one() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path(), 10).unwrap_err();
        let FileError::Io { source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn exposed_secrets_are_refused_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write(&path, b"secret").unwrap();
        assert_eq!(read(&path, 10).unwrap().as_slice(), b"secret");
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path, 10).unwrap_err().to_string();
            assert!(
                error.contains("chmod 600") && error.contains(&format!("{mode:04o}")),
                "{error}"
            );
        }
    }
}

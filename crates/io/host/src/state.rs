//! A small state file with a checksum: what a daemon must not lose and must not misread.
//!
//! Layout: magic (8 bytes), length (u64, big endian), SHA-256 of the payload, payload. The last
//! but one content is kept beside it as `NAME.prev`, to be read by people and by recovery only:
//! state such as a highest seen revision must not fall back by itself (R-POL-04).

use crate::file::{self, FileError};
use crate::secret;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes before the payload: magic, length, checksum.
const HEADER_LEN: usize = 8 + 8 + 32;

/// A checksummed file of one kind. Mode 0600.
///
/// It has one owner, who saves one content at a time: two that save at once could leave the older
/// one on disk behind an answer about the newer.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    magic: [u8; 8],
    max: usize,
}

/// Why a state file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is there but is not what was written.
    #[error(
        "state file {} is damaged: {what}; restore it from {}.prev or remove it, knowing what it held",
        path.display(),
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The caller's payload is larger than this file takes.
    #[error("{len} bytes are too many for state file {}: at most {max}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

impl StateFile {
    /// The state file at `path` with payloads of at most `max` bytes; `magic` tells its kind and
    /// format version.
    #[must_use]
    pub const fn new(path: PathBuf, magic: [u8; 8], max: usize) -> Self {
        Self { path, magic, max }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content. Durable when it returns.
    ///
    /// # Errors
    /// The old content is untouched.
    pub fn save(&mut self, payload: &[u8]) -> Result<(), StateError> {
        if payload.len() > self.max {
            return Err(StateError::TooLarge {
                path: self.path.clone(),
                len: payload.len(),
                max: self.max,
            });
        }
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        bytes.extend_from_slice(&self.magic);
        bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        bytes.extend_from_slice(&Sha256::digest(payload));
        bytes.extend_from_slice(payload);
        self.keep_previous()?;
        secret::write(&self.path, &bytes)?;
        Ok(())
    }

    /// Reads the content; `None` if it was never saved.
    ///
    /// # Errors
    /// A damaged file is an error, never an empty state.
    pub fn load(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.load_from(&self.path)
    }

    /// Reads the last but one content, for a recovery that was asked for.
    ///
    /// # Errors
    /// As [`StateFile::load`].
    pub fn load_previous(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.load_from(&self.previous())
    }

    /// Renames a damaged file to `NAME.damaged`: for a state that can be had anew, whose owner goes
    /// on without it. An absent one is fine.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn set_aside(&self) -> Result<(), StateError> {
        let mut name = self.path.clone().into_os_string();
        name.push(".damaged");
        match fs::rename(&self.path, &name) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(FileError::io("set aside the state as", Path::new(&name), error).into()),
        }
    }

    fn load_from(&self, path: &Path) -> Result<Option<Vec<u8>>, StateError> {
        let damaged = |what| StateError::Damaged {
            path: path.to_owned(),
            what,
        };
        let bytes = match file::read_optional(path, self.max.saturating_add(HEADER_LEN)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            // This program writes none of that size.
            Err(FileError::TooLarge { .. }) => return Err(damaged("it is larger than it can be")),
            Err(error) => return Err(error.into()),
        };
        self.decode(&bytes).map(Some).map_err(damaged)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (magic, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or("it is shorter than its header")?;
        let (len, rest) = rest
            .split_first_chunk::<8>()
            .ok_or("it is shorter than its header")?;
        let (digest, payload) = rest
            .split_first_chunk::<32>()
            .ok_or("it is shorter than its header")?;
        if *magic != self.magic {
            return Err("it is of another kind or format version");
        }
        if u64::from_be_bytes(*len) != payload.len() as u64 {
            return Err("it is shorter or longer than it says");
        }
        if Sha256::digest(payload).as_slice() != digest.as_slice() {
            return Err("its checksum is wrong");
        }
        Ok(payload.to_vec())
    }

    fn previous(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".prev");
        PathBuf::from(name)
    }

    /// Links the file as `NAME.prev`. A crash between the two steps leaves no `.prev`, and the
    /// file itself as it was.
    fn keep_previous(&self) -> Result<(), FileError> {
        let previous = self.previous();
        for result in [fs::remove_file(&previous), fs::hard_link(&self.path, &previous)] {
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FileError::io("keep the previous state as", &previous, error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"FLTEST\0\x01";

    #[test]
    fn saved_and_loaded_with_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StateFile::new(dir.path().join("s"), MAGIC, 100);
        assert!(file.load().unwrap().is_none());
        file.save(b"one").unwrap();
        assert!(file.load_previous().unwrap().is_none());
        file.save(b"two").unwrap();
        file.save(b"").unwrap();
        assert_eq!(file.load().unwrap().unwrap(), b"");
        assert_eq!(file.load_previous().unwrap().unwrap(), b"two");
        assert!(matches!(
            file.save(&[0; 101]),
            Err(StateError::TooLarge { len: 101, .. })
        ));
    }

    #[test]
    fn what_is_set_aside_never_becomes_the_previous_state() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StateFile::new(dir.path().join("s"), MAGIC, 100);
        file.set_aside().unwrap();
        file.save(b"one").unwrap();
        file.save(b"two").unwrap();
        fs::write(file.path(), b"junk").unwrap();
        file.set_aside().unwrap();
        assert!(file.load().unwrap().is_none());
        assert_eq!(fs::read(dir.path().join("s.damaged")).unwrap(), b"junk");
        file.save(b"three").unwrap();
        file.save(b"four").unwrap();
        assert_eq!(file.load_previous().unwrap().unwrap(), b"three");
    }

    /// R-POL-04: a damaged head is never taken for "no head yet".
    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StateFile::new(dir.path().join("s"), MAGIC, 100);
        file.save(b"revision 101").unwrap();
        let good = fs::read(file.path()).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                fs::write(file.path(), &bad).unwrap();
                assert!(
                    matches!(file.load(), Err(StateError::Damaged { .. })),
                    "byte {at}"
                );
            }
            fs::write(file.path(), &good[..at]).unwrap();
            assert!(
                matches!(file.load(), Err(StateError::Damaged { .. })),
                "cut at {at}"
            );
        }
        fs::write(file.path(), [7; 4096]).unwrap();
        assert!(matches!(file.load(), Err(StateError::Damaged { .. })));
        fs::write(file.path(), [&good[..], b"x"].concat()).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains("longer") && error.contains("/s"), "{error}");
    }
}

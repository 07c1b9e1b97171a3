//! Where a member's folder is built: beside its place, so that one rename puts it there.
//!
//! The key is on disk before the request leaves. A process that is killed between the control
//! plane's commit and the rename leaves key and folder, and the next enrolment into the same place
//! goes on with them: the same token with the same key is the same enrolment (R-ENR-02).

use super::error::EnrolError;
use fairlead_host::member::MemberFolder;
use fairlead_host::{FolderLock, file, secret};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder will hold a key.
const FOLDER_MODE: u32 = 0o700;
/// A P-256 key in PEM has about 240 bytes.
const KEY_LEN_MAX: usize = 16 * 1024;

/// The folder beside its place. Dropped, it is removed, unless it is kept or was put in place.
#[derive(Debug)]
pub(super) struct Staging {
    place: PathBuf,
    parent: PathBuf,
    folder: MemberFolder,
    kept: bool,
    /// Held to the end: one enrolment into a place at a time.
    _lock: FolderLock,
    /// Those that were not there. Dropped last, when what stood in them is gone or stays.
    _parents: Parents,
}

/// Folders that this enrolment made on the way to the place. Dropped, those in which nothing is are removed.
#[derive(Debug, Default)]
struct Parents {
    /// From the top down.
    made: Vec<PathBuf>,
}

impl Parents {
    fn make(folder: &Path) -> io::Result<Self> {
        let mut parents = Self::default();
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
        for path in missing.into_iter().rev() {
            match fs::create_dir(path) {
                Ok(()) => parents.made.push(path.to_owned()),
                // Another's.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        // A file of that name, or a link to nowhere.
        if folder.is_dir() {
            Ok(parents)
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            // One that is not empty is refused, and so is each above it.
            let _ = fs::remove_dir(path);
        }
    }
}

impl Staging {
    /// Makes the folder, or takes up the one of an enrolment that was cut short.
    ///
    /// # Errors
    /// The place's parent cannot be made or written; the place cannot be replaced; another
    /// enrolment into it is running.
    pub(super) fn open(place: &Path) -> Result<Self, EnrolError> {
        let failed = |what, source| EnrolError::Folder {
            dir: place.to_owned(),
            what,
            source,
        };
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            Some(_) | None => PathBuf::from("."),
        };
        let parents = Parents::make(&parent).map_err(|e| failed("its parent cannot be made", e))?;
        let device = |path: &Path| fs::metadata(path).map(|m| m.dev());
        let other_device = |of_place| device(&parent).is_ok_and(|of_parent| of_parent != of_place);
        if device(place).is_ok_and(other_device) {
            let error = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(failed("it is a mount point; give a new folder inside it", error));
        }
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let path = parent.join(format!(".{name}.enrol"));
        file::make_folder(&path, FOLDER_MODE).map_err(EnrolError::Staging)?;
        let lock = FolderLock::acquire(&path).map_err(EnrolError::lock)?;
        let folder = MemberFolder::new(path);
        Ok(Self {
            place: place.to_owned(),
            parent,
            kept: folder.key_path().exists(),
            folder,
            _lock: lock,
            _parents: parents,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.dir()
    }

    /// The key of the enrolment that was cut short, or a new one; on disk.
    ///
    /// # Errors
    /// It cannot be made, read or written.
    pub(super) fn key(&self) -> Result<rcgen::KeyPair, EnrolError> {
        let path = self.folder.key_path();
        if path.exists() {
            let pem = secret::read(&path, KEY_LEN_MAX).map_err(EnrolError::Staging)?;
            let text = std::str::from_utf8(&pem).unwrap_or_default();
            if let Ok(key) = rcgen::KeyPair::from_pem(text) {
                return Ok(key);
            }
        }
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .map_err(|e| EnrolError::Key(e.to_string()))?;
        self.folder.create().map_err(EnrolError::Files)?;
        let pem = zeroize::Zeroizing::new(key.serialize_pem());
        secret::write(&path, pem.as_bytes()).map_err(EnrolError::Staging)?;
        Ok(key)
    }

    /// Keeps the folder: the token may be spent.
    pub(super) const fn keep(&mut self) {
        self.kept = true;
    }

    /// Does not keep it: its key is of no use.
    pub(super) const fn forget(&mut self) {
        self.kept = false;
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.kept
    }

    /// Moves the folder to its place, in one step.
    ///
    /// # Errors
    /// The file system failed; the folder stays where it is.
    pub(super) fn put_in_place(&self) -> Result<(), EnrolError> {
        let failed = |what, source| EnrolError::Folder {
            dir: self.place.clone(),
            what,
            source,
        };
        // rename(2) replaces an empty directory.
        fs::rename(self.path(), &self.place).map_err(|e| failed("it cannot be put in place", e))?;
        fs::File::open(&self.parent)
            .and_then(|folder| folder.sync_all())
            .map_err(|e| failed("its parent cannot be synced", e))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_dir_all(self.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-ENR-02: what was cut short goes on with its key; what was not begun leaves nothing.
    #[test]
    fn a_kept_folder_gives_the_same_key_again_and_another_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/member");
        let first = Staging::open(&place).unwrap();
        let path = first.path().to_owned();
        let key = first.key().unwrap().serialize_pem();
        drop(first);
        assert!(!path.exists() && !dir.path().join("a").exists());

        let mut first = Staging::open(&place).unwrap();
        let other = first.key().unwrap().serialize_pem();
        assert_ne!(key, other);
        first.keep();
        drop(first);
        let again = Staging::open(&place).unwrap();
        assert!(again.is_kept());
        assert_eq!(again.key().unwrap().serialize_pem(), other);
        again.put_in_place().unwrap();
        assert!(place.join("identity/key.pem").exists() && !path.exists());
    }

    /// What it made on the way goes, and what was there stays; so does what another put there meanwhile.
    #[test]
    fn parents_that_were_made_go_with_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        fs::create_dir(&there).unwrap();
        let place = there.join("a/b/member");
        drop(Staging::open(&place).unwrap());
        assert_eq!(fs::read_dir(&there).unwrap().count(), 0);
        let staging = Staging::open(&place).unwrap();
        fs::write(there.join("a/note"), "").unwrap();
        drop(staging);
        assert!(there.join("a/note").exists() && !there.join("a/b").exists());
        fs::write(there.join("file"), "").unwrap();
        Staging::open(&there.join("file/member")).unwrap_err();
        Staging::open(&there.join("file/x/member")).unwrap_err();
        // What is not begun at all leaves nothing either.
        let long = "x".repeat(300);
        Staging::open(&there.join("c").join(long)).unwrap_err();
        assert!(!there.join("c").exists());
    }

    #[test]
    fn one_enrolment_into_a_place_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("member");
        let _first = Staging::open(&place).unwrap();
        let error = Staging::open(&place).unwrap_err();
        assert!(matches!(error, EnrolError::Running(_)), "{error}");
    }
}

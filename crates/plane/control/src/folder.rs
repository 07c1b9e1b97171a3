//! Where the control plane keeps what in its folder.

use std::io;
use std::path::{Path, PathBuf};

/// The control plane's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlFolder(PathBuf);

impl ControlFolder {
    /// The folder at `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// The folder itself, mode 0700.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// The first admin token, made at the first start; mode 0600.
    #[must_use]
    pub fn admin_token_path(&self) -> PathBuf {
        self.0.join("admin.token")
    }

    /// The CA certificate, PEM.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// The store's folder.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Bytes that may still be written to the folder's disk. Blocks.
    pub(crate) fn free(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(self.store_dir())?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// What the running process says of itself.
    #[must_use]
    pub fn runtime_path(&self) -> PathBuf {
        self.0.join("runtime.json")
    }

    /// Something in the folder that no control plane has put there, where none has begun in it: a folder that
    /// was given by mistake. Hidden files and settings may lie in it beforehand.
    pub(crate) fn stranger(&self) -> Option<String> {
        let ours = [
            self.keys_dir(),
            self.store_dir(),
            self.ca_path(),
            self.admin_token_path(),
        ];
        if ours.iter().any(|path| path.exists()) {
            return None;
        }
        let names = std::fs::read_dir(&self.0).ok()?.flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut strange: Vec<String> = names
            .filter(|name| {
                let is_ours = ["lock", "runtime.json", "lost+found"].contains(&name.as_str());
                let is_settings = name.ends_with(".toml");
                !is_ours && !is_settings && !name.starts_with('.')
            })
            .collect();
        strange.sort();
        strange.into_iter().next()
    }

    /// The folder of private keys, mode 0700.
    pub(crate) fn keys_dir(&self) -> PathBuf {
        self.0.join("keys")
    }

    /// Is there from before the first key is made until the store holds the pool: a first
    /// start that was killed goes on, and a folder that lost its keys or its store is none.
    pub(crate) fn begun_path(&self) -> PathBuf {
        self.keys_dir().join("begun")
    }

    pub(crate) fn ca_key_path(&self) -> PathBuf {
        self.keys_dir().join("ca.key.pem")
    }

    pub(crate) fn policy_key_path(&self) -> PathBuf {
        self.keys_dir().join("policy.key.pem")
    }

    pub(crate) fn grant_key_path(&self) -> PathBuf {
        self.keys_dir().join("grant.key.pem")
    }
}

//! A member's folder: what enrolment leaves behind for the daemons of a relay or node.
//!
//! `identity/*` and `trust.json` are written first; `member.json` is written last, so that its
//! presence means "enrolled".

mod json;
mod session;

pub use session::{ControlSession, SessionTeller};

use crate::file::{self, FileError};
use crate::secret;
use fairlead_model::CaPin;
use fairlead_model::address::HostPort;
use fairlead_model::id::{NodeId, RelayId};
use fairlead_model::identity::{Identity, IdentityFile, TrustDomain};
use fairlead_model::name::Name;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

/// Which member the folder belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRole {
    /// A relay of the pool.
    Relay(RelayId),
    /// A node.
    Node(NodeId),
}

/// A member's identity as its files have it.
pub struct IdentityFiles {
    /// The private key.
    pub key_pem: Zeroizing<Vec<u8>>,
    /// The certificate chain, leaf first.
    pub chain_pem: String,
    /// The roots to trust.
    pub roots_pem: String,
}

impl IdentityFiles {
    /// DER certificates as such a file's text.
    #[must_use]
    pub fn pem<'a>(certificates: impl IntoIterator<Item = &'a [u8]>) -> String {
        let blocks = certificates
            .into_iter()
            .map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der)));
        blocks.collect()
    }
}

impl std::fmt::Debug for IdentityFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityFiles").finish_non_exhaustive()
    }
}

/// Who this member is and where its control plane is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberConfig {
    /// Relay or node, with its id.
    pub role: MemberRole,
    /// Display name.
    pub name: Name,
    /// The pool.
    pub trust_domain: TrustDomain,
    /// Where the control plane answers.
    pub control: HostPort,
    /// The CA that enrolment verified.
    pub ca_pin: CaPin,
    /// SNI that selects the gRPC face of the control plane's port.
    pub grpc_server_name: String,
    /// Where nodes reach this relay; relays only.
    pub advertised_address: Option<HostPort>,
    /// Where this relay's worker listens; relays only.
    pub listen: Option<SocketAddr>,
}

/// The keys that sign policy, as this member last accepted them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustBundle {
    /// Rises with every change of the bundle.
    pub version: u64,
    /// Ed25519 public keys.
    pub policy_keys: Vec<[u8; 32]>,
}

/// What a running daemon says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Its process id.
    pub pid: u32,
    /// Where its metrics are.
    pub metrics_url: Option<String>,
    /// Where it listens for peers.
    pub listen: Option<String>,
}

/// One fault of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    /// The field.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// What to do about a damaged file of a member's folder.
pub const MEND: &str = "a member's folder is not mended: remove the member, add it again, and enrol this host with the \
                        new token into an empty folder";

/// Why a member's folder could not be used.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that enrolment wrote is gone.
    #[error("{} is missing; {MEND}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is not the JSON that it should be.
    #[error("{} is malformed; {MEND}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        #[source]
        source: serde_json::Error,
    },
    /// Fields have faults; all of them are listed.
    #[error(
        "{} is not valid; {MEND}: {}",
        path.display(),
        faults.iter().map(|f| format!("{}: {}", f.field, f.message)).collect::<Vec<_>>().join("; ")
    )]
    Faults {
        /// The file.
        path: PathBuf,
        /// Every fault.
        faults: Vec<FieldFault>,
    },
}

impl MemberError {
    /// Of a file that an enrolled member has.
    fn of_enrolled(error: FileError) -> Self {
        match error {
            FileError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Self::Missing { path }
            }
            error => Self::File(error),
        }
    }
}

/// The folder of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberFolder {
    dir: PathBuf,
}

/// Folders of a member are its user's only.
const FOLDER_MODE: u32 = 0o700;
/// Files that hold no secret.
const PUBLIC_MODE: u32 = 0o644;
/// A member.json is below 2 KiB; a bundle of 16 keys too.
const JSON_LEN_MAX: usize = 64 << 10;
/// How often a runtime file that could not be written is tried again.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);
/// A key or a chain of a few certificates in PEM.
const PEM_LEN_MAX: usize = 256 << 10;

impl MemberFolder {
    /// The member's folder at `dir`; nothing is read or made yet.
    #[must_use]
    pub const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The folder itself.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// `member.json`.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.dir.join("member.json")
    }
    /// `identity/key.pem`, 0600.
    #[must_use]
    pub fn key_path(&self) -> PathBuf {
        self.dir.join("identity/key.pem")
    }
    /// `identity/cert.pem`: leaf first.
    #[must_use]
    pub fn cert_path(&self) -> PathBuf {
        self.dir.join("identity/cert.pem")
    }
    /// `identity/ca.pem`: the roots to trust.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        self.dir.join("identity/ca.pem")
    }
    /// `trust.json`.
    #[must_use]
    pub fn trust_path(&self) -> PathBuf {
        self.dir.join("trust.json")
    }
    /// `runtime.json`.
    #[must_use]
    pub fn runtime_path(&self) -> PathBuf {
        self.dir.join("runtime.json")
    }
    /// `worker/`: the worker's own folder.
    #[must_use]
    pub fn worker_dir(&self) -> PathBuf {
        self.dir.join("worker")
    }
    /// `host.key`: the host's own key, kept over re-enrolment.
    #[must_use]
    pub fn host_key_path(&self) -> PathBuf {
        self.dir.join("host.key")
    }

    /// Whether a member is enrolled here. A link without an end in its file's place counts: reading it says why.
    #[must_use]
    pub fn is_enrolled(&self) -> bool {
        self.config_path().symlink_metadata().is_ok()
    }

    /// Makes the folder and its `identity/`, mode 0700.
    ///
    /// # Errors
    /// Names the folder.
    pub fn create(&self) -> Result<(), MemberError> {
        file::make_folder(&self.dir, FOLDER_MODE)?;
        file::make_folder(&self.dir.join("identity"), FOLDER_MODE)?;
        Ok(())
    }

    /// Writes `member.json`: the commit point of an enrolment.
    ///
    /// # Errors
    /// The file system failed.
    pub fn save(&self, config: &MemberConfig) -> Result<(), MemberError> {
        self.create()?;
        self.write(&self.config_path(), &json::config_to_json(config))
    }

    /// Reads `member.json`.
    ///
    /// # Errors
    /// Names the file and every field with a fault.
    pub fn load(&self) -> Result<MemberConfig, MemberError> {
        MemberConfig::parse(&self.config_path(), &self.read(&self.config_path())?)
    }

    /// Writes `trust.json`.
    ///
    /// # Errors
    /// The file system failed.
    pub fn save_trust(&self, bundle: &TrustBundle) -> Result<(), MemberError> {
        self.create()?;
        self.write(&self.trust_path(), &json::trust_to_json(bundle))
    }

    /// Reads `trust.json`.
    ///
    /// # Errors
    /// Names the file and every field with a fault.
    pub fn load_trust(&self) -> Result<TrustBundle, MemberError> {
        let bytes = file::read_bounded(&self.trust_path(), JSON_LEN_MAX).map_err(MemberError::of_enrolled)?;
        TrustBundle::parse(&self.trust_path(), &bytes)
    }

    /// Writes key, certificate chain and roots; the key first, so that a crash never leaves a
    /// certificate without its key where none was before.
    ///
    /// # Errors
    /// The file system failed.
    pub fn save_identity(
        &self,
        key_pem: &[u8],
        cert_chain_pem: &str,
        ca_pem: &str,
    ) -> Result<(), MemberError> {
        self.create()?;
        secret::write(&self.key_path(), key_pem)?;
        file::write_atomic(&self.ca_path(), PUBLIC_MODE, ca_pem.as_bytes())?;
        file::write_atomic(&self.cert_path(), PUBLIC_MODE, cert_chain_pem.as_bytes())?;
        Ok(())
    }

    /// What `identity/` holds.
    ///
    /// # Errors
    /// A file is absent or too large, or the key is readable by others.
    pub fn identity(&self) -> Result<IdentityFiles, MemberError> {
        self.identity_with(None, None)
    }

    /// What `identity/` is to hold: with this chain and these roots, where they are given. What they are to
    /// replace is not read: it may be damaged.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn identity_with(
        &self,
        chain_pem: Option<String>,
        roots_pem: Option<String>,
    ) -> Result<IdentityFiles, MemberError> {
        Ok(IdentityFiles {
            key_pem: self.key()?,
            chain_pem: chain_pem.map_or_else(|| self.cert_chain_pem(), Ok)?,
            roots_pem: roots_pem.map_or_else(|| self.ca_pem(), Ok)?,
        })
    }

    /// Where one of its files stands; without one, `identity/` itself.
    #[must_use]
    pub fn identity_path(&self, file: Option<IdentityFile>) -> PathBuf {
        match file {
            Some(IdentityFile::Chain) => self.cert_path(),
            Some(IdentityFile::Key) => self.key_path(),
            Some(IdentityFile::Roots) => self.ca_path(),
            None => self.dir.join("identity"),
        }
    }

    /// The private key, PEM.
    ///
    /// # Errors
    /// The file is absent, too large or readable by others.
    pub fn key(&self) -> Result<Zeroizing<Vec<u8>>, MemberError> {
        secret::read(&self.key_path(), PEM_LEN_MAX).map_err(MemberError::of_enrolled)
    }

    /// The certificate chain, PEM, leaf first.
    ///
    /// # Errors
    /// The file is absent or too large.
    pub fn cert_chain_pem(&self) -> Result<String, MemberError> {
        file::read_text(&self.cert_path(), PEM_LEN_MAX).map_err(MemberError::of_enrolled)
    }

    /// The roots, PEM.
    ///
    /// # Errors
    /// The file is absent or too large.
    pub fn ca_pem(&self) -> Result<String, MemberError> {
        file::read_text(&self.ca_path(), PEM_LEN_MAX).map_err(MemberError::of_enrolled)
    }

    /// Writes `runtime.json`, when the daemon is ready; a failure is a warning.
    pub fn announce(&self, info: RuntimeInfo) -> Announced {
        announce(self.runtime_path(), info)
    }

    /// Reads `runtime.json`; `None` if no daemon has written it. The process may be gone.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn read_runtime(&self) -> Result<Option<RuntimeInfo>, MemberError> {
        read_runtime(&self.runtime_path())
    }

    /// Removes `runtime.json`.
    ///
    /// # Errors
    /// The file system failed.
    pub fn remove_runtime(&self) -> Result<(), MemberError> {
        Ok(file::remove(&self.runtime_path())?)
    }

    /// Removes all that enrolment writes, `member.json` first, and the folder itself if it is
    /// empty then. For an enrolment that failed: nothing stays behind.
    ///
    /// # Errors
    /// The file system failed.
    pub fn remove_all(&self) -> Result<(), MemberError> {
        if !self.dir.exists() {
            return Ok(());
        }
        for path in [
            self.config_path(),
            self.trust_path(),
            self.runtime_path(),
            self.control_session_path(),
            self.host_key_path(),
        ] {
            file::remove(&path)?;
        }
        for folder in [self.dir.join("identity"), self.worker_dir()] {
            match fs::remove_dir_all(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FileError::io("remove folder", &folder, error).into()),
            }
        }
        match fs::remove_dir(&self.dir) {
            Ok(()) => Ok(()),
            // Another's files are in it: the folder stays, and is theirs.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) => Err(FileError::io("remove folder", &self.dir, error).into()),
        }
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), MemberError> {
        Ok(file::write_atomic(path, PUBLIC_MODE, text.as_bytes())?)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, MemberError> {
        Ok(file::read_bounded(path, JSON_LEN_MAX)?)
    }
}

/// Writes a daemon's runtime file, wherever its folder keeps it.
///
/// # Errors
/// The file system failed.
pub fn write_runtime(path: &Path, info: &RuntimeInfo) -> Result<(), MemberError> {
    Ok(file::write_atomic(
        path,
        PUBLIC_MODE,
        json::runtime_to_json(info).as_bytes(),
    )?)
}

/// Keeps trying to write a runtime file, for as long as it is held.
#[derive(Debug)]
#[must_use = "what could not be written is tried again only while this is held"]
pub struct Announced(JoinSet<()>);

impl Announced {
    /// Ends the tries: afterwards nothing is written.
    pub async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// Writes a daemon's runtime file, or warns and tries again until it is written: it only informs, and
/// a daemon on a full disk runs without it. What an earlier process said of itself does not stay.
/// Runs in a tokio runtime.
pub fn announce(path: PathBuf, info: RuntimeInfo) -> Announced {
    let mut tries = JoinSet::new();
    let Err(error) = write_runtime(&path, &info) else {
        return Announced(tries);
    };
    tracing::warn!(
        error = &error as &(dyn std::error::Error + 'static),
        path = %path.display(),
        "the runtime file cannot be written and is tried again; until then doctor and up do not see this daemon"
    );
    if let Err(error) = file::remove(&path) {
        tracing::warn!(
            error = &error as &(dyn std::error::Error + 'static),
            path = %path.display(),
            "the runtime file of an earlier process stays behind"
        );
    }
    tries.spawn(async move {
        loop {
            tokio::time::sleep(ANNOUNCE_AGAIN).await;
            if write_runtime(&path, &info).is_ok() {
                tracing::info!(path = %path.display(), "the runtime file is written");
                return;
            }
        }
    });
    Announced(tries)
}

/// Reads a daemon's runtime file; `None` if there is none.
///
/// # Errors
/// The file is malformed.
pub fn read_runtime(path: &Path) -> Result<Option<RuntimeInfo>, MemberError> {
    file::read_optional(path, JSON_LEN_MAX)?
        .map(|bytes| json::runtime_from_json(path, &bytes))
        .transpose()
}

impl MemberConfig {
    /// Reads the content of a `member.json`; `path` is for messages only.
    ///
    /// # Errors
    /// Names the file and every field with a fault.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, MemberError> {
        json::config_from_json(path, bytes)
    }

    /// The member's identity in its trust domain.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        match self.role {
            MemberRole::Relay(id) => Identity::Relay(id),
            MemberRole::Node(id) => Identity::Node(id),
        }
    }
}

impl TrustBundle {
    /// Reads the content of a `trust.json`; `path` is for messages only.
    ///
    /// # Errors
    /// Names the file and every field with a fault.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, MemberError> {
        json::trust_from_json(path, bytes)
    }
}

#[cfg(test)]
mod tests;

//! Why `up` could not run, or ended.

use crate::exit::{Exit, Failing, Failure};
use crate::ports::{self, PortError, Protocol};
use crate::rest::RestError;
use fairlead_host::LockError;
use fairlead_host::file::FileError;
use fairlead_model::ListenAddress;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why `up` could not run, or ended. All that it started has been stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpError {
    #[error("signals cannot be watched")]
    Signals(#[source] io::Error),
    #[error("a pool runs here already; stop it first, or give another --dir")]
    Lock(#[source] LockError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} cannot be used", path.display())]
    Path {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}: {reason}; remove the folder to begin anew", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error("not every address of the pool can be used; nothing was started:{}", list(.0))]
    Ports(Vec<PortError>),
    #[error(
        "not every address of the pool can be used; nothing was started:{}\nwith `--ports auto`, free ports are \
         chosen for what is new", list(.0)
    )]
    NewPorts(Vec<PortError>),
    #[error("alpha cannot listen for a link; free the address, or give the link another one:{}", list(.0))]
    Listen(Vec<PortError>),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("the program's own path or process is unknown")]
    Program(#[source] io::Error),
    #[error("{what} cannot be started")]
    Spawn {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("{name} keeps ending ({how}); the end of {}:\n{tail}", log.display())]
    KeepsEnding {
        name: String,
        how: String,
        log: PathBuf,
        tail: String,
    },
    #[error("{name} could not enrol ({status}): {output}")]
    Enrol {
        name: String,
        status: ExitStatus,
        output: String,
    },
    #[error(transparent)]
    Rest(#[from] RestError),
    #[error("the control plane's files cannot be used: {0}")]
    Client(String),
    #[error(
        "the control plane does not take the token in {}: it was revoked, or the file is damaged. Put \
         another admin token with the scope admin:system there",
        .0.display()
    )]
    Revoked(PathBuf),
    #[error(
        "{} is missing, and the control plane makes it only once: put an admin token with the scope admin:system \
         there, or remove the pool's folder to begin anew",
        .0.display()
    )]
    TokenGone(PathBuf),
    #[error("link {name} cannot be added")]
    Link {
        name: String,
        #[source]
        source: RestError,
    },
    #[error("the pool was not ready after {seconds} s; still waiting for:{waiting}\nlogs: {}", logs.display())]
    NotReady {
        seconds: u64,
        waiting: String,
        logs: PathBuf,
    },
}

fn list(errors: &[PortError]) -> String {
    errors
        .iter()
        .map(|e| format!("\n  {}", fairlead_telemetry::chain(e)))
        .collect()
}

impl UpError {
    /// A folder that is in use is told from one that cannot be locked, such as one on a full disk.
    pub(super) fn lock(error: LockError) -> Self {
        match error {
            LockError::Held { .. } => Self::Lock(error),
            LockError::File(error) => Self::File(error),
        }
    }

    /// Alpha does not get these addresses; who has them is looked up.
    pub(super) fn listen(addresses: &[ListenAddress]) -> Self {
        let error = |a: &ListenAddress| ports::explain(a.0, Protocol::Tcp, io::ErrorKind::AddrInUse.into());
        let errors = addresses
            .iter()
            .map(|a| ports::check(a.0, Protocol::Tcp).err().unwrap_or_else(|| error(a)));
        Self::Listen(errors.collect())
    }

    /// The client's error, in words: it is a failure of `up`'s own files.
    pub(super) fn client(failure: &Failure) -> Self {
        Self::Client(fairlead_telemetry::chain(failure.as_error()))
    }
}

impl Failing for UpError {
    fn exit(&self) -> Exit {
        match self {
            Self::Lock(error) => Exit::of_lock(error),
            Self::Port(error) => error.exit(),
            Self::Ports(errors) | Self::NewPorts(errors) | Self::Listen(errors) => {
                match errors.iter().any(|e| e.exit() == Exit::Conflict) {
                    true => Exit::Conflict,
                    false => Exit::Failed,
                }
            }
            Self::Revoked(_) => Exit::Refused,
            Self::Rest(error) | Self::Link { source: error, .. } => error.exit(),
            Self::Signals(_)
            | Self::File(_)
            | Self::Path { .. }
            | Self::Malformed { .. }
            | Self::Program(_)
            | Self::Spawn { .. }
            | Self::KeepsEnding { .. }
            | Self::Enrol { .. }
            | Self::Client(_)
            | Self::TokenGone(_)
            | Self::NotReady { .. } => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_host::FolderLock;

    /// Of several `--link`s, the one that was refused is named, with the reason and its exit.
    #[test]
    fn a_link_that_cannot_be_added_is_named() {
        let body = serde_json::json!({"error": {
            "code": "LISTEN_TAKEN", "message": "`127.0.0.1:5` is link web's", "faults": [], "details": {},
        }});
        let error = UpError::Link {
            name: "db".to_owned(),
            source: RestError::Api {
                code: fairlead_model::ApiCode::ListenTaken,
                error: Box::new(serde_json::from_value(body).unwrap()),
            },
        };
        assert_eq!(
            fairlead_telemetry::chain(&error),
            "link db cannot be added: `127.0.0.1:5` is link web's (LISTEN_TAKEN)"
        );
        assert_eq!(error.exit(), Exit::Conflict);
    }

    /// A lock file that cannot be written, as on a full disk, is no other pool.
    #[test]
    fn a_folder_that_cannot_be_locked_is_told_from_one_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let told = |error: &UpError| fairlead_telemetry::chain(error);
        let _held = FolderLock::acquire(dir.path()).unwrap();
        let held = UpError::lock(FolderLock::acquire(dir.path()).unwrap_err());
        assert_eq!(held.exit(), Exit::Conflict);
        assert!(
            told(&held).contains("a pool runs here already"),
            "{}",
            told(&held)
        );
        let none = UpError::lock(FolderLock::acquire(&dir.path().join("none")).unwrap_err());
        assert_eq!(none.exit(), Exit::Failed);
        assert!(!told(&none).contains("a pool runs here"), "{}", told(&none));
    }
}

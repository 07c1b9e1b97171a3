//! Why an enrolment failed: each reason its own words and exit code.

use crate::exit::{Exit, Failing};
use crate::rest::RestError;
use crate::token::TokenError;
use fairlead_host::LockError;
use fairlead_host::file::FileError;
use fairlead_host::member::MemberError;
use std::io;
use std::path::PathBuf;

/// Why this host did not enrol. Nothing was left in the folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrolError {
    /// The folder is a member's already.
    #[error(
        "{} is already enrolled as {who}: use another --dir; if that enrolment is to end, move the folder away",
        dir.display()
    )]
    AlreadyEnrolled { dir: PathBuf, who: String },
    /// The folder holds something else.
    #[error("--dir {} is not empty and not a member's folder: give an empty or new one", .0.display())]
    NotEmpty(PathBuf),
    /// The folder cannot be made.
    #[error("--dir {}: {what}", dir.display())]
    Folder {
        dir: PathBuf,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// The folder beside it, where the member's folder is built.
    #[error("--dir cannot be used, and the token was not spent{}", mend(.0))]
    Staging(#[source] FileError),
    /// Somebody else enrols into it.
    #[error("another enrolment into this --dir is running")]
    Running(#[source] LockError),
    /// There is no token, or it cannot be read.
    #[error("--token-file")]
    Token(#[from] TokenError),
    /// The host's fingerprint.
    #[error("the host's key cannot be read or made (another place: --host-key-file)")]
    Host(#[source] FileError),
    /// Key or signing request.
    #[error("the key cannot be made: {0}")]
    Key(String),
    /// The control plane cannot be reached, is another, or said no.
    #[error("not enrolled")]
    Rest(#[from] RestError),
    /// The control plane's answer is not usable.
    #[error("not enrolled: the control plane's answer is not usable: {0}")]
    Answer(String),
    /// The member's files.
    #[error("not enrolled: the member's files cannot be written")]
    Files(#[source] MemberError),
}

/// What to do where the folder beside the member's cannot be made or written.
fn mend(error: &FileError) -> &'static str {
    let FileError::Io { source, .. } = error else {
        return "";
    };
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": make room on its file system, or give a --dir on another one"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": its parent must be writable (any other --dir will do)"
        }
        _ => " (any other --dir will do)",
    }
}

impl EnrolError {
    /// A place that is in use is told from one that cannot be locked.
    pub(super) fn lock(error: LockError) -> Self {
        match error {
            LockError::Held { .. } => Self::Running(error),
            LockError::File(error) => Self::Staging(error),
        }
    }
}

impl Failing for EnrolError {
    fn exit(&self) -> Exit {
        match self {
            Self::AlreadyEnrolled { .. } => Exit::Conflict,
            Self::NotEmpty(_) | Self::Token(_) => Exit::Usage,
            Self::Rest(error) => error.exit(),
            Self::Running(error) => Exit::of_lock(error),
            Self::Folder { .. }
            | Self::Staging(_)
            | Self::Host(_)
            | Self::Key(_)
            | Self::Answer(_)
            | Self::Files(_) => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk is told from a folder without the right to write.
    #[test]
    fn the_advice_for_a_folder_fits_its_reason() {
        let told = |kind: io::ErrorKind| {
            let error = FileError::Io {
                action: "write",
                path: "/d/.alpha.enrol/lock".into(),
                source: kind.into(),
            };
            EnrolError::lock(LockError::File(error)).to_string()
        };
        let full = told(io::ErrorKind::StorageFull);
        assert!(full.contains("make room") && full.contains("not spent"), "{full}");
        let denied = told(io::ErrorKind::PermissionDenied);
        assert!(denied.contains("must be writable"), "{denied}");
        assert!(!denied.contains("make room") && !full.contains("writable"));
    }
}

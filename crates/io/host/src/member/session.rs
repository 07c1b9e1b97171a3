//! How a daemon's session with the control plane stands, told beside `runtime.json` for whoever asks on the
//! host: metrics say that there is none, not why, and a daemon may serve none.

use super::{JSON_LEN_MAX, MemberError, MemberFolder, PUBLIC_MODE, json};
use crate::file;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What a daemon last said of its session with the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlSession {
    /// The daemon's process.
    pub pid: u32,
    /// Why it has none; `None` while it has one.
    pub missing: Option<String>,
}

/// Tells it, where it has changed.
#[derive(Debug)]
pub struct SessionTeller {
    path: PathBuf,
    told: Mutex<Option<ControlSession>>,
}

impl MemberFolder {
    /// `control.json`.
    #[must_use]
    pub fn control_session_path(&self) -> PathBuf {
        self.dir.join("control.json")
    }

    /// Where this process tells of its session.
    #[must_use]
    pub fn session_teller(&self) -> SessionTeller {
        SessionTeller {
            path: self.control_session_path(),
            told: Mutex::default(),
        }
    }

    /// What a daemon told last; `None` if none has. The process may be gone.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn read_control_session(&self) -> Result<Option<ControlSession>, MemberError> {
        let path = self.control_session_path();
        file::read_optional(&path, JSON_LEN_MAX)?
            .map(|bytes| json::session_from_json(&path, &bytes))
            .transpose()
    }
}

impl SessionTeller {
    /// Tells that there is a session, or why there is none. It only informs: what cannot be written is told
    /// at the next change. Cancel safe.
    pub async fn tell(&self, missing: Option<String>) {
        let now = ControlSession {
            pid: std::process::id(),
            missing,
        };
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.as_ref() == Some(&now) {
                return;
            }
            *told = Some(now.clone());
        }
        let path = self.path.clone();
        let write = move || file::write_atomic(&path, PUBLIC_MODE, json::session_to_json(&now).as_bytes());
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::debug!(error = %error, "how the session stands cannot be written");
        }
    }
}

//! Signals that end a daemon, and word to the service manager.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Turns SIGTERM and SIGINT into a cancelled token. A second signal ends the process at once, for
/// a graceful stop that hangs.
#[derive(Debug)]
pub struct Shutdown {
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Shutdown {
    /// Installs the handlers; to be called inside a tokio runtime, once per process.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn install() -> Result<Self, io::Error> {
        let token = CancellationToken::new();
        let term = signal(SignalKind::terminate())?;
        let int = signal(SignalKind::interrupt())?;
        let task = tokio::spawn(watch(term, int, token.clone()));
        Ok(Self { token, task })
    }

    /// A token that is cancelled by the first signal.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}

impl Drop for Shutdown {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(mut term: Signal, mut int: Signal, token: CancellationToken) {
    loop {
        let (name, number) = tokio::select! {
            _ = term.recv() => ("SIGTERM", 15),
            _ = int.recv() => ("SIGINT", 2),
        };
        if token.is_cancelled() {
            tracing::warn!(signal = name, "second signal: ending at once");
            // The shell's convention for a process that a signal ended.
            std::process::exit(128 + number);
        }
        tracing::info!(signal = name, "stopping");
        token.cancel();
    }
}

/// Tells systemd that the daemon is ready; elsewhere it does nothing.
pub fn notify_ready() {
    notify(sd_notify::NotifyState::Ready);
}

/// Tells systemd that the daemon stops; elsewhere it does nothing.
pub fn notify_stopping() {
    notify(sd_notify::NotifyState::Stopping);
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not notified");
    }
}

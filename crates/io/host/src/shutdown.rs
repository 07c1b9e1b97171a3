//! Signals that end a daemon, and word to the service manager.

use rustix::process::{Signal as Kill, getpid, kill_process};
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Signals this soon after the first are the same wish: `timeout` and terminals signal a process and
/// its group, one right after the other.
const SAME_WISH: Duration = Duration::from_millis(300);

/// Turns SIGTERM and SIGINT into a cancelled token. A second signal, a moment later, ends the process
/// at once, for a graceful stop that hangs.
#[derive(Debug)]
pub struct Shutdown {
    token: CancellationToken,
    /// The task that waits for signals; dropped, it ends.
    _task: JoinSet<()>,
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
        let mut task = JoinSet::new();
        task.spawn(watch(term, int, token.clone()));
        Ok(Self { token, _task: task })
    }

    /// A token that is cancelled by the first signal.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}

async fn watch(mut term: Signal, mut int: Signal, token: CancellationToken) {
    let mut first = None;
    loop {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        let since = first.get_or_insert_with(Instant::now).elapsed();
        if token.is_cancelled() {
            if since < SAME_WISH {
                continue;
            }
            tracing::warn!(signal = name, "second signal: ending at once");
            // What is on disk is safe at every instant, so nothing is lost by it.
            if let Err(error) = kill_process(getpid(), Kill::KILL) {
                tracing::error!(%error, "the process cannot end itself");
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    const CHILD_ENV: &str = "FAIRLEAD_HOST_TEST_CHILD";

    /// The process that the test below signals; by itself it does nothing.
    #[tokio::test]
    async fn child() {
        if std::env::var_os(CHILD_ENV).is_none() {
            return;
        }
        let shutdown = Shutdown::install().unwrap();
        println!("installed");
        shutdown.token().cancelled().await;
        println!("cancelled");
        // A graceful stop that hangs.
        std::future::pending::<()>().await;
    }

    #[test]
    fn the_first_signal_asks_and_a_later_one_ends() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shutdown::tests::child", "--nocapture"])
            .env(CHILD_ENV, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut wait_for = |word: &str| {
            let found = lines.by_ref().any(|line| line.unwrap().contains(word));
            assert!(found, "the child never said {word}");
        };
        wait_for("installed");
        kill_process(pid, Kill::INT).unwrap();
        wait_for("cancelled");
        // At once it is the same wish; a moment later it is another one.
        kill_process(pid, Kill::TERM).unwrap();
        std::thread::sleep(SAME_WISH);
        assert_eq!(child.try_wait().unwrap(), None, "one Ctrl-C told twice");
        kill_process(pid, Kill::TERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}

//! The worker's process: started by this supervisor, or adopted from one that died.

use crate::WorkerCommand;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, ChildStdout, Command};

/// Most of a worker's reason that is kept: a sentence with an address, a path or a program in it. With
/// how it ended it fits into what the control plane keeps of a report's text.
const REASON_LEN_MAX: usize = 384;
/// How long the rest of a reason is waited for once the process is gone: it is in the pipe by then.
const REASON_WAIT_MAX: Duration = Duration::from_secs(1);

/// A running worker.
#[derive(Debug)]
pub(crate) enum Process {
    /// Ours.
    Child {
        /// Its handle.
        child: Box<Child>,
        /// Its id.
        pid: u32,
        /// Why it ends, if it says so.
        reason: Reason,
    },
    /// Started by an earlier supervisor.
    Adopted {
        /// Readable once the process has ended (pidfd_open(2)).
        fd: AsyncFd<OwnedFd>,
        /// Its id.
        pid: u32,
    },
}

/// What a worker says on its standard output: nothing while it runs, and why when it fails. A pipe, not a
/// file: it also tells of a full disk, and is never an earlier run's.
#[derive(Debug)]
pub(crate) struct Reason {
    pipe: Option<ChildStdout>,
    text: Vec<u8>,
}

impl Reason {
    /// Reads to the end of the pipe and keeps the beginning. Cancel safe.
    async fn hear(&mut self) {
        let mut piece = [0; REASON_LEN_MAX];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut piece).await {
                Ok(0) | Err(_) => self.pipe = None,
                Ok(count) => {
                    let room = REASON_LEN_MAX.saturating_sub(self.text.len());
                    let heard = piece.get(..count.min(room)).unwrap_or_default();
                    self.text.extend_from_slice(heard);
                }
            }
        }
    }

    /// In one line.
    fn line(&self) -> String {
        let text = String::from_utf8_lossy(&self.text);
        let words = text.split(|c: char| c.is_whitespace() || c.is_control());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        words.join(" ")
    }
}

/// The variable that tells a worker that its standard output is a supervisor's: there it says why it ends. One
/// that is run by hand says it on standard error alone.
pub const SUPERVISED: &str = "FAIRLEAD_SUPERVISED";

impl Process {
    /// Starts the worker in its own process group, so that a Ctrl-C in a terminal reaches it only
    /// through the supervisor. It keeps running if this process dies.
    pub(crate) fn start(command: &WorkerCommand, listen: Option<SocketAddr>) -> io::Result<Self> {
        let mut process = Command::new(&command.program);
        process.args(&command.arguments);
        if let Some(listen) = listen {
            process.arg("--listen").arg(listen.to_string());
        }
        // The service manager waits for this process's word; the worker's would be refused and logged.
        let mut child = process
            .env_remove("NOTIFY_SOCKET")
            .env(SUPERVISED, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(false)
            .process_group(0)
            .spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("it ended at once"))?;
        let reason = Reason {
            pipe: child.stdout.take(),
            text: Vec::new(),
        };
        Ok(Self::Child {
            child: Box::new(child),
            pid,
            reason,
        })
    }

    /// Takes over the running process `pid`.
    pub(crate) fn adopt(pid: u32) -> io::Result<Self> {
        let raw = to_pid(pid).ok_or_else(|| io::Error::other("no such process id"))?;
        #[expect(
            deprecated,
            reason = "unsound only for types that do not own their descriptor, as OwnedFd does"
        )]
        let fd = AsyncFd::new(pidfd_open(raw, PidfdFlags::NONBLOCK)?)?;
        Ok(Self::Adopted { fd, pid })
    }

    pub(crate) const fn pid(&self) -> u32 {
        match self {
            Self::Child { pid, .. } | Self::Adopted { pid, .. } => *pid,
        }
    }

    /// Waits for the end; how it ended, in words, with the reason that it gave. Cancel safe.
    pub(crate) async fn ended(&mut self) -> String {
        match self {
            Self::Child { child, reason, .. } => {
                // A full pipe would hold the worker up.
                let hear = async {
                    reason.hear().await;
                    std::future::pending::<Infallible>().await
                };
                let status = tokio::select! {
                    status = child.wait() => status,
                    never = hear => match never {},
                };
                let words = match status {
                    Ok(status) => in_words(status),
                    Err(error) => format!("how is unknown: {error}"),
                };
                // Without its end, what has come so far counts.
                let _ = tokio::time::timeout(REASON_WAIT_MAX, reason.hear()).await;
                match reason.line() {
                    line if line.is_empty() => words,
                    line => format!("{words}: {line}"),
                }
            }
            Self::Adopted { fd, .. } => match fd.readable().await {
                Ok(_) => "how is unknown, since an earlier supervisor had started it".to_owned(),
                Err(error) => format!("lost from sight: {error}"),
            },
        }
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        let Some(pid) = to_pid(self.pid()) else { return };
        match kill_process(pid, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(pid = self.pid(), %error, "the worker cannot be signalled"),
        }
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn shell(script: &str) -> WorkerCommand {
        WorkerCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "sh".into()],
        }
    }

    #[tokio::test]
    async fn ends_are_told_in_words() {
        let mut process = Process::start(&shell("exit 3"), None).unwrap();
        assert_eq!(process.ended().await, "exited with code 3");
        let mut process = Process::start(&shell("kill -9 $$"), None).unwrap();
        assert_eq!(process.ended().await, "killed by signal 9");
        let mut process = Process::start(&shell("exec sleep 60"), None).unwrap();
        process.terminate();
        assert_eq!(process.ended().await, "killed by signal 15");
    }

    /// Why a worker does not start is known beyond its host: what it says at its end goes up with how it
    /// ended, in one bounded line, and none that says much is held up by it.
    #[tokio::test]
    async fn a_reason_is_told_with_the_end() {
        let script = "printf '10.0.0.1:9443/udp is taken\n  by nginx (pid 5)\n'; exit 4";
        let mut process = Process::start(&shell(script), None).unwrap();
        let told = "exited with code 4: 10.0.0.1:9443/udp is taken by nginx (pid 5)";
        assert_eq!(process.ended().await, told);
        // More than a pipe takes in.
        let script = "head -c 300000 /dev/zero | tr '\\0' x; exit 1";
        let mut process = Process::start(&shell(script), None).unwrap();
        let told = process.ended().await;
        assert_eq!(
            told,
            format!("exited with code 1: {}", "x".repeat(REASON_LEN_MAX))
        );
        // Its end does not wait for another one that holds the pipe.
        let mut process = Process::start(&shell("sleep 3 2>/dev/null & echo why; exit 1"), None).unwrap();
        assert_eq!(process.ended().await, "exited with code 1: why");
    }

    #[tokio::test]
    async fn the_worker_knows_that_its_output_is_heard() {
        let mut process = Process::start(&shell("[ \"$FAIRLEAD_SUPERVISED\" = 1 ]"), None).unwrap();
        assert_eq!(process.ended().await, "exited with code 0");
    }

    #[tokio::test]
    async fn the_listen_address_is_the_last_argument() {
        let script = "[ \"$1 $2\" = '--listen 127.0.0.1:9443' ]";
        let mut process = Process::start(&shell(script), Some("127.0.0.1:9443".parse().unwrap())).unwrap();
        assert_eq!(process.ended().await, "exited with code 0");
    }

    const CHILD_ENV: &str = "FAIRLEAD_SUPERVISOR_TEST_CHILD";
    const CHILD_TEST: &str = "process::tests::the_worker_does_not_know_the_service_manager";

    /// A unit hears its main process only: a worker's word would be refused, with a warning each time.
    #[tokio::test]
    async fn the_worker_does_not_know_the_service_manager() {
        if std::env::var_os(CHILD_ENV).is_some() {
            assert!(std::env::var_os("NOTIFY_SOCKET").is_some());
            let mut process = Process::start(&shell("[ -z \"$NOTIFY_SOCKET\" ]"), None).unwrap();
            assert_eq!(process.ended().await, "exited with code 0");
            return;
        }
        // Once more, in a process that a service manager has started: this one runs other tests too.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD_TEST])
            .env(CHILD_ENV, "1")
            .env("NOTIFY_SOCKET", "/nowhere")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[tokio::test]
    async fn an_adopted_process_is_seen_to_end() {
        let Process::Child { mut child, pid, .. } = Process::start(&shell("exec sleep 60"), None).unwrap()
        else {
            panic!("not a child")
        };
        let mut adopted = Process::adopt(pid).unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(50), adopted.ended())
                .await
                .is_err()
        );
        adopted.kill();
        tokio::time::timeout(Duration::from_secs(5), adopted.ended())
            .await
            .unwrap();
        child.wait().await.unwrap();
        assert!(Process::adopt(pid).is_err());
    }
}

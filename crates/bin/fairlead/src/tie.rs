//! Ties a daemon's life to another process: `fairlead up` gives itself to each daemon it starts,
//! and supervisors pass it on to their workers, so that a pool ends when its `up` does, however it
//! ends. A tie survives re-parenting, which the kernel's parent-death signal does not: a worker
//! whose supervisor was killed lives on, as it should, until `up` ends.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

/// A process by id and start time; the latter tells it from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tie {
    pid: i32,
    /// In clock ticks since boot: field 22 of `/proc/PID/stat` (proc(5)).
    start: u64,
}

/// Text that is not a tie.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a process: write PID:START, START being field 22 of /proc/PID/stat")]
pub struct TieError(String);

impl Tie {
    /// This process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn to_self() -> io::Result<Self> {
        let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let start = start_time(pid)?;
        Ok(Self { pid, start })
    }

    /// Waits until the process has ended; at once if it is gone already. Cancel safe.
    pub async fn ended(self) {
        let Some(fd) = self.open() else { return };
        #[expect(
            deprecated,
            reason = "unsound only for types that do not own their descriptor, as OwnedFd does"
        )]
        let fd = AsyncFd::new(fd);
        match fd {
            // A pidfd is readable once its process has ended (pidfd_open(2)).
            Ok(fd) => drop(fd.readable().await),
            Err(error) => {
                tracing::warn!(pid = self.pid, %error, "cannot watch the process this daemon is tied to");
                std::future::pending::<()>().await;
            }
        }
    }

    fn open(self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::NONBLOCK).ok()?;
        (start_time(self.pid).ok() == Some(self.start)).then_some(fd)
    }
}

/// A process's start time in clock ticks since boot.
fn start_time(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command's name is in brackets and may hold spaces; fields are counted after it.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after
        .split_whitespace()
        .nth(19)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "malformed /proc/PID/stat"))
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.start)
    }
}

impl FromStr for Tie {
    type Err = TieError;
    fn from_str(text: &str) -> Result<Self, TieError> {
        let fail = || TieError(text.chars().take(64).collect());
        let (pid, start) = text.split_once(':').ok_or_else(fail)?;
        let pid: i32 = pid.parse().map_err(|_| fail())?;
        let start = start.parse().map_err(|_| fail())?;
        if pid <= 0 {
            return Err(fail());
        }
        Ok(Self { pid, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn text_round_trips() {
        let tie = Tie::to_self().unwrap();
        assert_eq!(tie.to_string().parse::<Tie>().unwrap(), tie);
        for bad in ["", "1", "0:1", "-1:1", "1:", "a:1"] {
            assert!(bad.parse::<Tie>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn the_end_of_the_process_is_seen_before_it_is_reaped() {
        let within = |d| Duration::from_millis(d);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start = start_time(pid).unwrap();
        let tie = Tie { pid, start };
        assert!(tokio::time::timeout(within(100), tie.ended()).await.is_err());
        child.kill().unwrap();
        tokio::time::timeout(within(5000), tie.ended()).await.unwrap();
        child.wait().unwrap();
        // Gone, or another process under the same id: at once.
        tokio::time::timeout(within(5000), tie.ended()).await.unwrap();
        let other = Tie {
            start: 1,
            ..Tie::to_self().unwrap()
        };
        tokio::time::timeout(within(5000), other.ended()).await.unwrap();
    }
}

//! Other processes: signals, limits and what `/proc` tells about them.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::path::PathBuf;
use std::time::Duration;

fn pid_of(pid: u32) -> Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is no process id"))
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    kill_process(pid_of(pid)?, signal).with_context(|| format!("cannot signal process {pid}"))
}

/// Ends a process with SIGKILL: it runs no line of its own after this.
///
/// # Errors
/// When there is no such process.
pub fn kill9(pid: u32) -> Result<()> {
    send(pid, Signal::KILL)
}

/// Asks a process to end (SIGTERM).
///
/// # Errors
/// When there is no such process.
pub fn terminate(pid: u32) -> Result<()> {
    send(pid, Signal::TERM)
}

/// Interrupts a process as Ctrl-C does (SIGINT).
///
/// # Errors
/// When there is no such process.
pub fn interrupt(pid: u32) -> Result<()> {
    send(pid, Signal::INT)
}

/// A process that SIGSTOP holds; it goes on when this is dropped.
#[derive(Debug)]
pub struct Stopped(u32);

/// Stops a process where it is: its kernel goes on acknowledging (F-06).
///
/// # Errors
/// When there is no such process.
pub fn stop(pid: u32) -> Result<Stopped> {
    send(pid, Signal::STOP)?;
    Ok(Stopped(pid))
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = send(self.0, Signal::CONT);
    }
}

/// Whether the process exists and is no zombie.
#[must_use]
pub fn alive(pid: u32) -> bool {
    stat(pid).is_ok_and(|fields| fields.first().is_some_and(|state| state != "Z" && state != "X"))
}

/// Sets the limit of open descriptors of a running process (F-09): the soft one, so that it can be
/// raised again.
///
/// # Errors
/// When there is no such process, or it may not be limited.
pub fn limit_descriptors(pid: u32, limit: u64) -> Result<()> {
    let limit = Rlimit {
        current: Some(limit),
        maximum: descriptor_limits(pid)?.1,
    };
    prlimit(Some(pid_of(pid)?), Resource::Nofile, limit).context("prlimit")?;
    Ok(())
}

/// How many descriptors a process may hold.
///
/// # Errors
/// When there is no such process.
pub fn descriptor_limit(pid: u32) -> Result<u64> {
    Ok(descriptor_limits(pid)?.0.unwrap_or(u64::MAX))
}

/// The soft and the hard limit; `None` is none.
fn descriptor_limits(pid: u32) -> Result<(Option<u64>, Option<u64>)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text
        .lines()
        .find(|l| l.starts_with("Max open files"))
        .context("no limit")?;
    let mut limits = line.split_whitespace().skip(3).map(|word| word.parse().ok());
    Ok((
        limits.next().context("short line")?,
        limits.next().context("short line")?,
    ))
}

/// How much of a core a process uses while `of` passes, in percent.
///
/// # Errors
/// When there is no such process.
pub async fn cpu_percent(pid: u32, of: Duration) -> Result<f64> {
    let (before, began) = (cpu_time(pid)?, std::time::Instant::now());
    tokio::time::sleep(of).await;
    let used = cpu_time(pid)?.saturating_sub(before);
    Ok(100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64())
}

/// The soft limit of this process's descriptors, raised to the hard one: tests of thousands of
/// sockets hold both ends here.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_own_descriptors() -> Result<u64> {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(Resource::Nofile, limit).context("setrlimit")?;
    Ok(limit.current.unwrap_or(u64::MAX))
}

/// How many descriptors a process holds.
///
/// # Errors
/// When there is no such process.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))
        .with_context(|| format!("process {pid}"))?
        .count())
}

/// Resident memory in bytes.
///
/// # Errors
/// When there is no such process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Processor time spent so far, user and system.
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let fields = stat(pid)?;
    let ticks = |at: usize| -> Result<u64> { Ok(fields.get(at).context("short stat")?.parse()?) };
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(
        (ticks(11)? + ticks(12)?) * 1000 / per_second.max(1),
    ))
}

/// When the process started, in kernel ticks since boot: with the pid, its identity.
///
/// # Errors
/// When there is no such process.
pub fn start_time(pid: u32) -> Result<u64> {
    Ok(stat(pid)?.get(19).context("short stat")?.parse()?)
}

/// For how long the process has run, to a tick (10 ms).
///
/// # Errors
/// When there is no such process.
pub fn age(pid: u32) -> Result<Duration> {
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    let uptime: f64 = uptime.split(' ').next().context("no uptime")?.parse()?;
    let started = start_time(pid)? as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(Duration::from_secs_f64((uptime - started).max(0.0)))
}

/// How many threads a process has.
///
/// # Errors
/// When there is no such process.
pub fn threads(pid: u32) -> Result<usize> {
    stat(pid)?
        .get(17)
        .context("short stat")?
        .parse()
        .context("threads")
}

/// The processes whose command line contains `text`, this one left out.
#[must_use]
pub fn with_argument(text: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != std::process::id() && alive(pid))
        .filter(|&pid| command_line(pid).is_some_and(|line| line.contains(text)))
        .collect()
}

/// The command line of a process, its arguments joined by spaces.
#[must_use]
pub fn command_line(pid: u32) -> Option<String> {
    let bytes = std::fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).ok()?;
    Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
}

/// The fields of `/proc/PID/stat` after the command's name: the state is field 0.
fn stat(pid: u32) -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    let Some((_, rest)) = text.rsplit_once(") ") else {
        bail!("unreadable /proc/{pid}/stat")
    };
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_stopped_process_goes_on_when_released_and_dies_of_sigkill() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let state = |pid| stat(pid).unwrap()[0].clone();
        let held = stop(pid).unwrap();
        while state(pid) != "T" {
            std::thread::yield_now();
        }
        drop(held);
        while state(pid) == "T" {
            std::thread::yield_now();
        }
        limit_descriptors(pid, 17).unwrap();
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        assert!(
            limits
                .lines()
                .any(|l| l.starts_with("Max open files") && l.contains(" 17 ")),
            "{limits}"
        );
        kill9(pid).unwrap();
        child.wait().unwrap();
        assert!(!alive(pid));
    }

    #[test]
    fn the_own_process_is_read() {
        let pid = std::process::id();
        assert!(alive(pid) && descriptors(pid).unwrap() >= 3);
        assert!(resident_bytes(pid).unwrap() > 100_000 && start_time(pid).unwrap() > 0);
        cpu_time(pid).unwrap();
        assert!(age(pid).unwrap() < Duration::from_secs(3600) && threads(pid).unwrap() >= 1);
    }
}

//! Readings of what the process uses, for metrics and admission.

use std::fs;
use std::time::Duration;

/// What this process uses. A reading that `/proc` does not give is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Open file descriptors.
    pub fds_open: u64,
    /// How many descriptors it may open (soft limit).
    pub fds_limit: u64,
    /// Threads.
    pub threads: u64,
    /// CPU time used since start, user and system.
    pub cpu: Duration,
}

/// Resident memory in bytes; 0 if `/proc` does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmRSS:").saturating_mul(1024)
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Reads the process's resources.
#[must_use]
pub fn resources() -> Resources {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Resources {
        rss_bytes: field(&status, "VmRSS:").saturating_mul(1024),
        // The reading itself has one descriptor open.
        fds_open: fs::read_dir("/proc/self/fd").map_or(0, |d| (d.count() as u64).saturating_sub(1)),
        fds_limit: limit.unwrap_or(u64::MAX),
        threads: field(&status, "Threads:"),
        cpu: Duration::new(
            u64::try_from(cpu.tv_sec).unwrap_or(0),
            u32::try_from(cpu.tv_nsec).unwrap_or(0),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opened_file_is_counted() {
        let before = resources();
        assert!(before.rss_bytes > 100_000 && before.threads > 0 && before.fds_limit > 0);
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let after = resources();
        assert!(after.fds_open >= before.fds_open + 40, "{before:?} {after:?}");
        drop(files);
    }
}

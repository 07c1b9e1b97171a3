//! The memory that the process may use, and whether it is short of it: what exceeds the limit of a
//! cgroup is killed, with every tunnel that it carries.

use crate::resources::resident_bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often the memory is looked at: opens of so long may be in flight beyond the threshold.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Short from this share of the limit on: an eighth is left to what lives already, whose windows
/// fill and empty.
const SHORT_FROM: (u64, u64) = (7, 8);
/// Version 1 writes "no limit" as the greatest multiple of a page.
const NO_LIMIT_FROM: u64 = 1 << 60;
/// How often a lasting shortage is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Something new is taken on again below this share of what was there when memory became short: an
/// allocator keeps what was freed and uses it again, so that resident memory need not fall.
const AGAIN_BELOW: (u64, u64) = (7, 8);

/// Whether the process is near its limit. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryWatch {
    short: Arc<AtomicBool>,
    /// How much was going on when memory became short; 0 is not known.
    full_at: Arc<AtomicU64>,
}

impl MemoryWatch {
    /// Whether nothing new should be taken on by a process that carries `load` tunnels, streams or
    /// whatever it counts.
    #[must_use]
    pub fn is_short(&self, load: u64) -> bool {
        if !self.short.load(Ordering::Relaxed) {
            return false;
        }
        let full_at = self
            .full_at
            .compare_exchange(0, load.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|known| known, |_| load.max(1));
        load >= full_at.saturating_mul(AGAIN_BELOW.0) / AGAIN_BELOW.1
    }

    fn set(&self, is_short: bool) {
        self.short.store(is_short, Ordering::Relaxed);
        if !is_short {
            self.full_at.store(0, Ordering::Relaxed);
        }
    }

    /// Looks again and again until `cancel`. Reads files of `/proc` and `/sys`, which do not block.
    pub async fn run(self, cancel: CancellationToken) {
        let mut logged: Option<Instant> = None;
        loop {
            let (used, limit) = (resident_bytes(), memory_limit());
            let is_short = limit.is_some_and(|limit| is_short(used, limit));
            self.set(is_short);
            if is_short && logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                logged = Some(Instant::now());
                tracing::warn!(
                    used,
                    limit,
                    "memory is near its limit: nothing new is taken on (raise MemoryMax)"
                );
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

fn is_short(used: u64, limit: u64) -> bool {
    used >= limit / SHORT_FROM.1 * SHORT_FROM.0
}

/// The least limit of the process's cgroups, of either version; `None` where there is none.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_of(Path::new("/sys/fs/cgroup"), &groups)
}

fn limit_of(root: &Path, groups: &str) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (mounts, file): (&[&str], &str) = if controllers.is_empty() {
            (&["", "unified"], "memory.max")
        } else if controllers.split(',').any(|c| c == "memory") {
            (&["memory"], "memory.limit_in_bytes")
        } else {
            continue;
        };
        for mount in mounts {
            // In a container the path may be one of the host: then the mount's root is the group.
            let mut group: PathBuf = root.join(mount);
            let mut groups = vec![group.clone()];
            for name in path.split('/').filter(|name| !name.is_empty() && *name != "..") {
                group.push(name);
                groups.push(group.clone());
            }
            for group in groups {
                let limit = fs::read_to_string(group.join(file))
                    .ok()
                    .and_then(|text| text.trim().parse::<u64>().ok())
                    .filter(|limit| *limit < NO_LIMIT_FROM);
                least = [least, limit].into_iter().flatten().min();
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_either_version_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |groups| limit_of(dir.path(), groups);
        assert_eq!(limit("0::/a.slice/b.service\n"), None);
        write("a.slice/b.service/memory.max", "max\n");
        assert_eq!(limit("0::/a.slice/b.service\n"), None);
        write("a.slice/memory.max", "5000000\n");
        write("a.slice/b.service/memory.max", "6000000\n");
        assert_eq!(limit("0::/a.slice/b.service\n"), Some(5_000_000));
        write("memory/x/memory.limit_in_bytes", "3000000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let both = "9:cpu,cpuacct:/x\n4:memory:/x\n0::/a.slice\nnonsense\n";
        assert_eq!(limit(both), Some(3_000_000));
        assert_eq!(limit("4:memory:/not/seen/here\n"), None);
    }

    #[tokio::test]
    async fn short_is_near_the_limit() {
        assert!(!is_short(860, 1000) && is_short(880, 1000));
        assert!(resident_bytes() > 100_000);
        let (watch, cancel) = (MemoryWatch::default(), CancellationToken::new());
        cancel.cancel();
        watch.clone().run(cancel).await;
        assert!(!watch.is_short(0), "a test does not run at its limit");
    }

    /// F-09: what was full takes on again when enough of it is gone, although the allocator keeps the
    /// memory.
    #[test]
    fn less_load_is_taken_on_again() {
        let watch = MemoryWatch::default();
        watch.set(true);
        assert!(watch.is_short(800), "full at 800");
        assert!(watch.is_short(700) && !watch.is_short(699) && watch.is_short(900));
        watch.set(false);
        assert!(!watch.is_short(900));
        watch.set(true);
        assert!(watch.is_short(100) && !watch.is_short(80), "full at 100");
    }
}

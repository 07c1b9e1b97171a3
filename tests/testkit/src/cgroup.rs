//! A limit of memory as a service manager sets it.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A cgroup of its own; its processes go back to the root group when it is dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    root: PathBuf,
}

impl MemoryGroup {
    /// A group that may use `bytes`; `None` where this machine's cgroups cannot be written or do not
    /// count memory.
    ///
    /// # Errors
    /// When the group is there and cannot be limited.
    pub fn new(bytes: u64) -> Result<Option<Self>> {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let controllers = std::fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
        let (root, file) = if v1.join("memory.limit_in_bytes").exists() {
            (v1, "memory.limit_in_bytes")
        } else if controllers.contains("memory") {
            (v2, "memory.max")
        } else {
            return Ok(None);
        };
        let path = root.join(format!("fairlead-test-{}", std::process::id()));
        if std::fs::create_dir(&path).is_err() {
            return Ok(None);
        }
        let group = Self {
            path,
            root: root.to_owned(),
        };
        std::fs::write(group.path.join(file), bytes.to_string()).context(file)?;
        Ok(Some(group))
    }

    /// Moves a process into the group.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn add(&self, pid: u32) -> Result<()> {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("process {pid}"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let pids = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = std::fs::write(self.root.join("cgroup.procs"), pid);
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}

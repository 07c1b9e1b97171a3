//! The warden: cleans up after a test whose process is gone, however it went.

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process of its own group that waits until its standard input closes, then kills every process
/// whose command line names the folder, and removes the folder.
///
/// The input closes when the warden is dropped and when this process dies, of SIGKILL too.
#[derive(Debug)]
pub struct Warden {
    child: Child,
    dir: PathBuf,
}

const SCRIPT: &str = r#"
cat >/dev/null
for try in 1 2 3 4 5; do
  found=
  for file in $(grep -laF -- "$1" /proc/[0-9]*/cmdline 2>/dev/null); do
    pid=${file#/proc/}
    pid=${pid%/cmdline}
    [ "$pid" = "$$" ] && continue
    kill -9 "$pid" 2>/dev/null && found=1
  done
  [ -z "$found" ] && break
  sleep 0.1
done
[ -z "$2" ] && rm -rf -- "$1"
exit 0
"#;

impl Warden {
    /// Watches over `dir`, which must be a folder that only one test uses. It is kept, its processes
    /// are not, when the variable `FAIRLEAD_KEEP` is set.
    ///
    /// # Errors
    /// When no shell can be started.
    pub fn over(dir: &Path) -> Result<Self> {
        let keep = std::env::var("FAIRLEAD_KEEP").unwrap_or_default();
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "warden"])
            .arg(dir)
            .arg(keep)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the warden's shell")?;
        Ok(Self {
            child,
            dir: dir.to_owned(),
        })
    }

    /// The folder that it watches over.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn processes_and_folder_are_gone_after_the_warden() {
        let dir = tempfile::Builder::new().prefix("flt-").tempdir().unwrap().keep();
        let warden = Warden::over(&dir).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "read line; :"])
            .arg(&dir)
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        assert!(process::with_argument(dir.to_str().unwrap()).contains(&child.id()));
        drop(warden);
        child.wait().unwrap();
        assert!(!dir.exists());
    }
}

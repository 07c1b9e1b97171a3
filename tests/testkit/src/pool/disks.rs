//! Folders of a pool on file systems so small that they can be filled.

use super::Pool;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What fills a small disk.
const BALLAST: &str = "ballast";

/// A folder of the pool that lies on a file system of its own.
#[derive(Debug, Clone)]
pub(super) struct SmallDisk {
    folder: String,
    bytes: u64,
}

/// Gives each folder a tmpfs with what was in it, in a mount namespace of the pool's own, then runs
/// the rest. Arguments: how many pairs of folder and size, the pairs, the command.
const SMALL_DISKS: &str = r#"
set -e
count=$1; shift
while [ "$count" -gt 0 ]; do
    mkdir "$1.disk"
    mount -t tmpfs -o "size=$2,mode=0700" none "$1.disk"
    cp -a "$1/." "$1.disk/"
    mount --move "$1.disk" "$1"
    rmdir "$1.disk"
    shift 2; count=$((count - 1))
done
exec "$@"
"#;

/// The command that runs `program` with `dir`'s folders on small disks.
pub(super) fn command(disks: &[SmallDisk], dir: &Path, program: PathBuf) -> Command {
    if disks.is_empty() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        SMALL_DISKS,
        "sh",
    ]);
    command.arg(disks.len().to_string());
    for disk in disks {
        command.arg(dir.join(&disk.folder)).arg(disk.bytes.to_string());
    }
    command.arg(program);
    command
}

/// Lets a file grow until its disk has no byte left.
///
/// # Errors
/// When something else fails than the room.
pub fn fill_up(file: &Path) -> Result<()> {
    use std::io::Write as _;
    let mut ballast = std::fs::File::options().create(true).append(true).open(file)?;
    for size in [64 * 1024, 4096, 1] {
        let piece = vec![0; size];
        loop {
            match ballast.write(&piece) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

impl Pool {
    /// Puts folders of the stopped pool on file systems of `bytes` each, from its next start on. What
    /// is written there is gone with that run.
    pub fn set_small_disks(&mut self, folders: &[&str], bytes: u64) {
        self.builder.disks = folders
            .iter()
            .map(|folder| SmallDisk {
                folder: (*folder).to_owned(),
                bytes,
            })
            .collect();
    }

    /// A path of the pool's folder as the pool's own processes see it.
    #[must_use]
    pub fn inside(&self, path: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.up.id()));
        let dir = self.dir.strip_prefix("/").unwrap_or(&self.dir);
        root.join(dir).join(path)
    }

    /// Fills the small disk under a folder to its last byte; [`Pool::free_disk`] undoes it.
    ///
    /// # Errors
    /// When something else fails than the room.
    pub fn fill_disk(&self, folder: &str) -> Result<()> {
        fill_up(&self.inside(folder).join(BALLAST))
    }

    /// Makes room again.
    ///
    /// # Errors
    /// When nothing was filled.
    pub fn free_disk(&self, folder: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.inside(folder).join(BALLAST))?)
    }
}

//! A machine that boots: a Debian root under a systemd of its own, with a network of its own
//! (systemd-nspawn; needs root).

use anyhow::{Context, Result, bail};
use fairlead_testkit::{Host, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A container boots in seconds; a busy machine has more to do.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Where control groups of processes may hang: the second and third where version 1 is mounted too.
const HIERARCHIES: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/systemd",
];
/// Writes its own id into the files before `--`, then becomes the command behind it.
const INTO_GROUPS: &str = r#"while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@""#;

/// A booted machine. Dropped, it is gone, with all its processes; so it is when this process dies.
#[derive(Debug)]
pub(super) struct Machine {
    name: &'static str,
    root: PathBuf,
    host: Host,
    outer: Child,
    groups: Vec<PathBuf>,
}

impl Machine {
    /// Boots a root, which it changes: as a new machine, with an id of its own. Its network is `host`.
    pub(super) async fn boot(name: &'static str, root: &Path, host: Host) -> Result<Self> {
        std::fs::write(root.join("etc/hostname"), format!("{name}\n"))?;
        // Made by systemd it would be that of this machine, for both: two hosts that pass for one.
        let id: u128 = fastrand::u128(1..);
        std::fs::write(root.join("etc/machine-id"), format!("{id:032x}\n"))?;
        // Each systemd manages a group of its own.
        let mut groups = Vec::new();
        for hierarchy in HIERARCHIES.map(Path::new) {
            if hierarchy.join("cgroup.procs").exists() {
                let group = hierarchy.join(format!("fairlead-{}-{name}", std::process::id()));
                std::fs::create_dir(&group).with_context(|| format!("{}", group.display()))?;
                groups.push(group);
            }
        }
        let outer = start(name, root, &host, &groups)?;
        let root = root.to_owned();
        let machine = Self {
            name,
            root,
            host,
            outer,
            groups,
        };
        machine.booted().await?;
        Ok(machine)
    }

    /// Its network.
    pub(super) const fn host(&self) -> &Host {
        &self.host
    }

    /// A file of its.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    async fn booted(&self) -> Result<()> {
        let state = || async {
            // Both say what state it is; an odd one is listed.
            let said = self.run(&["systemctl", "is-system-running", "--wait"]);
            said.map_err(|error| match self.run(&["systemctl", "--failed", "--no-pager"]) {
                Ok(failed) => error.context(failed),
                Err(_) => error,
            })
        };
        let what = format!(
            "{} has booted (systemd-nspawn, of Debian's package systemd-container)",
            self.name
        );
        wait::until(&what, BOOT_LIMIT, state).await?;
        Ok(())
    }

    /// Boots again: with `--keep-unit`, systemd-nspawn leaves the start to who started it.
    pub(super) async fn reboot(&mut self) -> Result<()> {
        self.run(&["systemctl", "reboot"])?;
        let outer = &mut self.outer;
        wait::until_true("the machine goes down", BOOT_LIMIT, || {
            matches!(outer.try_wait(), Ok(Some(_)))
        })
        .await?;
        self.outer = start(self.name, &self.root, &self.host, &self.groups)?;
        self.booted().await
    }

    /// Its first process: that of systemd-nspawn, which is the child of `unshare`.
    fn init(&self) -> Result<u32> {
        only_child(only_child(self.outer.id())?)
    }

    /// Runs a command as its root; what it said.
    pub(super) fn run(&self, command: &[&str]) -> Result<String> {
        self.run_with(command, "")
    }

    /// [`Machine::run`], with standard input.
    pub(super) fn run_with(&self, command: &[&str], input: &str) -> Result<String> {
        let output = self.output(command, input)?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !output.status.success() {
            bail!(
                "{}: {}: {}: {}",
                self.name,
                command.join(" "),
                output.status,
                said.trim()
            );
        }
        Ok(said)
    }

    /// Runs a command that answers in JSON on standard output.
    pub(super) fn json(&self, command: &[&str]) -> Result<serde_json::Value> {
        let output = self.output(command, "")?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("{}: {}: {}", self.name, command.join(" "), error.trim())
        })
    }

    fn output(&self, command: &[&str], input: &str) -> Result<Output> {
        let mut child = Command::new("nsenter")
            .args(["--target", &self.init()?.to_string()])
            .args(["--mount", "--uts", "--ipc", "--pid", "--net", "--cgroup", "--"])
            .args(command)
            .env_clear()
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", "/root")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run `nsenter`")?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        stdin.write_all(input.as_bytes())?;
        drop(stdin);
        Ok(child.wait_with_output()?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // With its first process all others of a machine end, and systemd-nspawn after them.
        let first = self.init().ok().and_then(|pid| i32::try_from(pid).ok());
        let ended = match first.and_then(Pid::from_raw) {
            Some(first) => kill_process(first, Signal::KILL).is_ok(),
            None => false,
        };
        if !ended {
            let _ = self.outer.kill();
        }
        let _ = self.outer.wait();
        for group in &self.groups {
            remove_group(group);
        }
    }
}

/// Starts a machine; the process is systemd-nspawn's parent, and ends with the machine.
fn start(name: &str, root: &Path, host: &Host, groups: &[PathBuf]) -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", INTO_GROUPS, "sh"]);
    command.args(groups.iter().map(|group| group.join("cgroup.procs")));
    // In a process namespace of its own, whose first process dies with this one.
    command.args(["--", "setpriv", "--pdeathsig", "KILL", "nsenter"]);
    command.arg(format!("--net=/proc/{}/ns/net", host.pid()));
    command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "systemd-nspawn", "--boot", "--quiet"]);
    command.args(["--keep-unit", "--register=no", "--console=read-only"]);
    command.arg(format!("--machine={name}")).arg("-D").arg(root);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run `sh`")
}

fn only_child(pid: u32) -> Result<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let first = children
        .split_whitespace()
        .next()
        .with_context(|| format!("{path}: none"))?;
    Ok(first.parse()?)
}

/// The files of a group go with its folder, its sub-groups do not.
fn remove_group(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}

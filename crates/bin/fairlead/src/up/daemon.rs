//! The pool's processes: started, started again when they die, stopped in order.

use super::error::UpError;
use super::layout::Layout;
use super::progress::Progress;
use crate::tie::Tie;
use fairlead_host::{Clock, SystemClock};
use fairlead_supervisor::restart::RestartRule;
use fairlead_telemetry::LogFormat;
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a daemon may take to stop: a supervisor gives its worker 8 s.
const STOP_GRACE: Duration = Duration::from_secs(12);
/// How long what an earlier `up` left behind may take to end: its daemons stop by themselves.
const LEFTOVER_GRACE: Duration = Duration::from_secs(15);
/// A daemon that ended this often before the pool was ready keeps the pool from it.
pub(super) const ENDS_MAX: u32 = 3;
/// What is shown of a log.
const TAIL_LINES: usize = 12;
/// What is read of a log for that.
const TAIL_LEN: u64 = 8 * 1024;

/// When a daemon is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// With the others at the edge: supervisors and nodes.
    Edge,
    /// After them: the control plane.
    Core,
}

/// How one daemon stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) pid: Option<u32>,
    /// How often it has ended by itself.
    pub(super) ends: u32,
    /// How it ended last, in words.
    pub(super) how: String,
}

/// All daemons of the pool. They end when this process does, however it ends.
#[derive(Debug)]
pub(super) struct Daemons {
    program: PathBuf,
    tie: Tie,
    log_format: LogFormat,
    layout: Layout,
    states: RefCell<BTreeMap<String, watch::Receiver<State>>>,
    edge: RefCell<Group>,
    core: RefCell<Group>,
}

#[derive(Debug, Default)]
struct Group {
    tasks: JoinSet<()>,
    cancel: CancellationToken,
}

impl Daemons {
    pub(super) fn new(layout: &Layout, log_format: LogFormat) -> Result<Self, UpError> {
        // Workers whose supervisor died become this process's children, so that their ends are
        // collected; not being able to costs a zombie at most.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Ok(Self {
            program: std::env::current_exe().map_err(UpError::Program)?,
            tie: Tie::to_self().map_err(UpError::Program)?,
            log_format,
            layout: layout.clone(),
            states: RefCell::default(),
            edge: RefCell::default(),
            core: RefCell::default(),
        })
    }

    /// This program.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts `fairlead run ROLE --dir DIR …` and keeps it running. `name` names its log.
    pub(super) fn start(&self, name: &str, stage: Stage, role: &str, dir: &Path, more: &[OsString]) {
        let mut arguments: Vec<OsString> = vec!["run".into(), role.into(), "--dir".into(), dir.into()];
        arguments.extend_from_slice(more);
        arguments.extend(["--metrics", "127.0.0.1:0", "--log-format"].map(OsString::from));
        arguments.push(self.log_format.to_string().into());
        arguments.push("--until-exit-of".into());
        arguments.push(self.tie.to_string().into());
        let (state, watch) = watch::channel(State::default());
        self.states.borrow_mut().insert(name.to_owned(), watch);
        let mut group = match stage {
            Stage::Edge => self.edge.borrow_mut(),
            Stage::Core => self.core.borrow_mut(),
        };
        let spec = Spec {
            program: self.program.clone(),
            arguments,
            log: self.layout.log(name),
        };
        let cancel = group.cancel.clone();
        group.tasks.spawn(keep(spec, state, cancel));
    }

    /// How the daemon stands.
    pub(super) fn state(&self, name: &str) -> State {
        self.states
            .borrow()
            .get(name)
            .map(|state| state.borrow().clone())
            .unwrap_or_default()
    }

    /// How all stand, by name.
    pub(super) fn all(&self) -> BTreeMap<String, State> {
        self.states
            .borrow()
            .iter()
            .map(|(name, state)| (name.clone(), state.borrow().clone()))
            .collect()
    }

    /// Fails if a daemon keeps ending, with the end of its log.
    pub(super) fn check(&self) -> Result<(), UpError> {
        for (name, state) in self.all() {
            if state.ends >= ENDS_MAX {
                let log = self.layout.log(&name);
                return Err(UpError::KeepsEnding {
                    tail: tail(&log),
                    how: state.how,
                    name,
                    log,
                });
            }
        }
        Ok(())
    }

    /// Stops all: the edge first, so that it can say goodbye to the control plane; then what a
    /// killed supervisor may have left.
    pub(super) async fn stop(&mut self, layout: &Layout) {
        for group in [self.edge.get_mut(), self.core.get_mut()] {
            group.cancel.cancel();
            while group.tasks.join_next().await.is_some() {}
        }
        let strays = strays(layout.dir());
        for pid in &strays {
            signal(*pid, Signal::TERM);
        }
        if !gone(&strays, STOP_GRACE).await {
            for pid in &strays {
                signal(*pid, Signal::KILL);
            }
            gone(&strays, STOP_GRACE).await;
        }
    }
}

struct Spec {
    program: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
}

impl Spec {
    /// Starts the daemon in a process group of its own, so that Ctrl-C reaches it through `up`
    /// only, in order.
    fn spawn(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
    }
}

/// Keeps one daemon running until `cancel`, then stops it.
async fn keep(spec: Spec, state: watch::Sender<State>, cancel: CancellationToken) {
    let clock = SystemClock::new();
    let mut rule = RestartRule::default();
    loop {
        let began = clock.mono();
        let how = match spec.spawn() {
            Ok(mut child) => {
                state.send_modify(|s| s.pid = child.id());
                tokio::select! {
                    status = child.wait() => match status {
                        Ok(status) => in_words(status),
                        Err(error) => format!("lost from sight: {error}"),
                    },
                    () = cancel.cancelled() => {
                        stop_child(&mut child).await;
                        state.send_modify(|s| s.pid = None);
                        return;
                    }
                }
            }
            Err(error) => format!("could not be started: {error}"),
        };
        let delay = rule.ended(began, clock.mono()).delay();
        state.send_modify(|s| {
            s.pid = None;
            s.ends = s.ends.saturating_add(1);
            s.how = how;
        });
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = cancel.cancelled() => return,
        }
    }
}

async fn stop_child(child: &mut Child) {
    if let Some(pid) = child.id() {
        signal(pid, Signal::TERM);
    }
    if tokio::time::timeout(STOP_GRACE, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that is gone needs no signal.
        let _ = kill_process(pid, signal);
    }
}

pub(super) fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The end of a log.
pub(super) fn tail(log: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL_LEN)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_LEN).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().saturating_sub(TAIL_LINES);
    let end: Vec<String> = lines.iter().skip(start).map(|l| format!("  {l}")).collect();
    end.join("\n")
}

/// Waits for the daemons of an earlier `up` that was killed: they end by themselves.
pub(super) async fn await_leftovers(dir: &Path, progress: &Progress) {
    let left = strays(dir);
    if left.is_empty() {
        return;
    }
    progress.say(&format!(
        "waiting for {} daemons of an earlier run to end",
        left.len()
    ));
    if !gone(&left, LEFTOVER_GRACE).await {
        for pid in &left {
            signal(*pid, Signal::KILL);
        }
        gone(&left, LEFTOVER_GRACE).await;
    }
}

/// Daemons of this program that work in a folder below `dir`.
fn strays(dir: &Path) -> Vec<u32> {
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_daemon_below(&line, dir)
        })
        .collect()
}

/// Whether a command line (arguments ended by NUL) is `… run|enrol ROLE --dir DIR/…`.
fn is_daemon_below(line: &[u8], dir: &Path) -> bool {
    let arguments: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let run = arguments.get(1).is_some_and(|a| *a == b"run" || *a == b"enrol");
    let below = arguments
        .iter()
        .zip(arguments.iter().skip(1))
        .any(|(flag, value)| {
            *flag == b"--dir" && Path::new(std::ffi::OsStr::from_bytes(value)).starts_with(dir)
        });
    run && below
}

/// Waits until none of the processes is left.
async fn gone(pids: &[u32], limit: Duration) -> bool {
    let began = Instant::now();
    while pids.iter().any(|pid| is_alive(*pid)) {
        if began.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    true
}

/// Whether the process runs; one that ended and awaits its parent does not. If it is this
/// process's to collect, it is.
pub(super) fn is_alive(pid: u32) -> bool {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_daemons_below_the_folder_are_strays() {
        let dir = Path::new("/p/pool");
        let line = |arguments: &[&str]| arguments.join("\0").into_bytes();
        assert!(is_daemon_below(
            &line(&[
                "/x/fairlead",
                "run",
                "worker",
                "--dir",
                "/p/pool/relays/local",
                ""
            ]),
            dir
        ));
        for other in [
            &["/x/fairlead", "run", "worker", "--dir", "/p/pool2/relays/local"][..],
            &["/x/fairlead", "up", "--dir", "/p/pool"],
            &["vi", "run", "/p/pool/x"],
            &[""],
        ] {
            assert!(!is_daemon_below(&line(other), dir), "{other:?}");
        }
    }

    #[test]
    fn a_log_is_shown_by_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        std::fs::write(&log, (0..1000).map(|i| format!("line {i}\n")).collect::<String>()).unwrap();
        let text = tail(&log);
        assert_eq!(text.lines().count(), TAIL_LINES);
        assert!(text.ends_with("line 999"), "{text}");
        assert_eq!(tail(&dir.path().join("none")), "");
    }

    #[tokio::test]
    async fn a_daemon_that_dies_is_started_again_and_stops_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let spec = Spec {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "exec sleep 60".into()],
            log: dir.path().join("a.log"),
        };
        let (state, mut watch) = watch::channel(State::default());
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(keep(spec, state, cancel.clone()));
        let first = watch.wait_for(|s| s.pid.is_some()).await.unwrap().pid.unwrap();
        signal(first, Signal::KILL);
        let again = watch
            .wait_for(|s| s.pid.is_some_and(|p| p != first))
            .await
            .unwrap()
            .clone();
        assert_eq!((again.ends, again.how.as_str()), (1, "killed by signal 9"));
        cancel.cancel();
        tasks.join_next().await.unwrap().unwrap();
        assert!(!is_alive(again.pid.unwrap()));
    }
}

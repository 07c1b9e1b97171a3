//! Settings of the daemons: one table per daemon says what each means; flags and a TOML file are
//! read into checked types, with all faults listed together, before anything starts.

mod raw;

use crate::cli::daemon::{Control, Daemon, Node, Supervisor, Worker};
use crate::faults::{Faults, SettingsError};
use crate::tie::Tie;
use fairlead_host::member::{MemberFolder, MemberRole};
use fairlead_model::HostPort;
use fairlead_model::address::CONTROL_PORT;
use fairlead_node::{StreamHold, StreamMemory};
use fairlead_store::Backend;
use fairlead_telemetry::LogFormat;
use raw::{Raw, display, socket_address};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What a setting's value is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// `true` or `false`; the flag alone means true.
    Switch,
}

/// One setting: everything that `--help`, the reference page and the file's check know of it.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Key in the file; the flag is the same with `-` for `_`.
    pub key: &'static str,
    /// The value's kind.
    pub kind: Kind,
    /// Value when neither flag nor file gives one; `None` where it is required or stays unset.
    pub default: Option<&'static str>,
    /// Whether the daemon cannot start without it.
    pub required: bool,
    /// What it means, and what is allowed.
    pub meaning: &'static str,
}

const fn text(
    key: &'static str,
    default: Option<&'static str>,
    required: bool,
    meaning: &'static str,
) -> Setting {
    Setting {
        key,
        kind: Kind::Text,
        default,
        required,
        meaning,
    }
}

const fn switch(key: &'static str, meaning: &'static str) -> Setting {
    Setting {
        key,
        kind: Kind::Switch,
        default: Some("false"),
        required: false,
        meaning,
    }
}

const DIR: Setting = text("dir", None, true, "Folder of the daemon's identity and state.");
const METRICS: Setting = text(
    "metrics",
    None,
    false,
    "IP:PORT where metrics and health are served over HTTP; port 0 picks one; none if not given.",
);
const LOG_FORMAT: Setting = text(
    "log_format",
    Some("text"),
    false,
    "Log format on standard error: text or json.",
);

/// Settings of `run control`.
pub const CONTROL: &[Setting] = &[
    DIR,
    text(
        "listen",
        Some("[::]:8443"),
        false,
        "IP:PORT where REST and gRPC are served.",
    ),
    text(
        "advertise",
        None,
        true,
        "HOST:PORT at which members and admins reach this control plane; the port of listen if none is given.",
    ),
    switch(
        "lab",
        // R-ENR-04.
        "Laboratory mode: allows several relays on one host. Never for production.",
    ),
    text("store", Some("redb"), false, "Store engine: redb or sled."),
    METRICS,
    LOG_FORMAT,
];
/// Settings of `run supervisor`.
pub const SUPERVISOR: &[Setting] = &[
    DIR,
    METRICS,
    text(
        "worker_metrics",
        None,
        false,
        "IP:PORT where the worker serves its metrics; as metrics.",
    ),
    LOG_FORMAT,
];
/// Settings of `run worker`.
pub const WORKER: &[Setting] = &[
    DIR,
    text(
        "listen",
        Some("[::]:9443"),
        false,
        // R-GEN-02.
        "IP:PORT where hop sessions (UDP) and liveness connections (TCP) are served.",
    ),
    METRICS,
    LOG_FORMAT,
];
/// Settings of `run node`.
pub const NODE: &[Setting] = &[
    DIR,
    METRICS,
    text(
        "stream_hold",
        Some("60s"),
        false,
        // R-STR-04.
        "How long a stream without any path is held before both its sockets are reset: 10s to 300s.",
    ),
    text(
        "stream_memory",
        Some("1GiB"),
        false,
        // R-STR-04.
        "Memory that all streams of the daemon may hold: their buffers, and what their far ends may still send; 64MiB to 1024GiB. When it runs short windows shrink, then new streams are refused.",
    ),
    LOG_FORMAT,
];

/// What every daemon has.
#[derive(Debug, Clone)]
pub struct Common {
    /// Folder of identity and state.
    pub dir: PathBuf,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Log format.
    pub log_format: LogFormat,
    /// The process whose end ends this daemon.
    pub tie: Option<Tie>,
}

/// Checked settings of the control plane.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// Shared.
    pub common: Common,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where others reach it.
    pub advertise: HostPort,
    /// Laboratory mode.
    pub lab: bool,
    /// Store engine.
    pub store: Backend,
}

/// Checked settings of a supervisor.
#[derive(Debug, Clone)]
pub struct SupervisorSettings {
    /// Shared.
    pub common: Common,
    /// The worker's metrics address.
    pub worker_metrics: Option<SocketAddr>,
}

/// Checked settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Shared.
    pub common: Common,
    /// Where it listens.
    pub listen: SocketAddr,
}

/// Checked settings of a node daemon.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Shared.
    pub common: Common,
    /// How long streams are held.
    pub stream_hold: StreamHold,
    /// What they may hold in memory.
    pub stream_memory: StreamMemory,
}

fn read<'a>(
    table: &'static [Setting],
    daemon: &'a Daemon,
    own: &[(&'static str, Option<&'a str>)],
    faults: &mut Faults,
) -> Raw {
    let mut flags = vec![
        ("dir", daemon.dir.as_deref()),
        ("metrics", daemon.metrics.as_deref()),
        ("log_format", daemon.log_format.as_deref()),
    ];
    flags.extend_from_slice(own);
    Raw::read(table, daemon.settings.as_deref(), &flags, faults)
}

/// A role, and the daemon that runs for it.
const fn role_of(role: &MemberRole) -> (&'static str, &'static str) {
    match role {
        MemberRole::Relay(_) => ("relay", "supervisor"),
        MemberRole::Node(_) => ("node", "node"),
    }
}

impl Common {
    /// Checks that the folder is a member's.
    ///
    /// # Errors
    /// There is no such folder, nobody has enrolled into it, or one of the other role has.
    pub fn check_member(&self, role: &str) -> Result<(), SettingsError> {
        let mut faults = Faults::default();
        let dir = self.dir.display();
        let folder = MemberFolder::new(self.dir.clone());
        let new = format!("`fairlead enrol {role} --dir {dir} …` makes it");
        let why = match self.dir.try_exists() {
            Ok(false) => format!("there is no such folder; {new}"),
            Ok(true) if matches!(folder.config_path().try_exists(), Ok(false)) => {
                format!("no member has enrolled into it; {new}")
            }
            // One that cannot be looked into or read is the daemon's to explain.
            Ok(true) | Err(_) => match folder.load() {
                Ok(member) if role_of(&member.role).0 != role => {
                    let (other, daemon) = role_of(&member.role);
                    let name = member.name;
                    format!("it is {other} {name}'s folder; run `fairlead run {daemon} --dir {dir}`")
                }
                Ok(_) | Err(_) => return Ok(()),
            },
        };
        faults.add("--dir", format!("{dir}: {why}"));
        faults.finish(None)
    }

    fn of(raw: &Raw, tie: Option<&str>, faults: &mut Faults) -> Option<Self> {
        let dir = raw.get("dir", faults, |text| match text {
            "" => Err("is empty".to_owned()),
            _ => Ok(PathBuf::from(text)),
        });
        let metrics = raw.get("metrics", faults, socket_address);
        let log_format = raw.get("log_format", faults, |t| t.parse().map_err(display));
        let tie = tie.and_then(|t| faults.parse("--until-exit-of", t));
        Some(Self {
            dir: dir?,
            metrics,
            log_format: log_format?,
            tie,
        })
    }
}

impl ControlSettings {
    /// Checks flags and file.
    ///
    /// # Errors
    /// Every fault.
    pub fn check(flags: &Control) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let own = [
            ("listen", flags.listen.as_deref()),
            ("advertise", flags.advertise.as_deref()),
            ("lab", flags.lab.then_some("true")),
            ("store", flags.store.as_deref()),
        ];
        let raw = read(CONTROL, &flags.daemon, &own, &mut faults);
        let value = Self::of(&raw, flags.daemon.until_exit_of.as_deref(), &mut faults);
        faults.finish(value)
    }

    /// Checks a settings file's contents alone; fuzzed.
    ///
    /// # Errors
    /// Every fault.
    pub fn parse(contents: &str) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let raw = Raw::of_contents("settings", contents, CONTROL, &mut faults);
        let value = Self::of(&raw, None, &mut faults);
        faults.finish(value)
    }

    fn of(raw: &Raw, tie: Option<&str>, faults: &mut Faults) -> Option<Self> {
        let common = Common::of(raw, tie, faults);
        let listen = raw.get("listen", faults, socket_address);
        // Who gives no port reaches it where it listens.
        let port = listen.map_or(CONTROL_PORT, |l| l.port());
        let advertise = raw.get("advertise", faults, |t| {
            HostPort::parse(t, Some(port).filter(|p| *p != 0)).map_err(display)
        });
        let lab = raw.get("lab", faults, |t| Ok(t == "true"));
        let store = raw.get("store", faults, |t| t.parse().map_err(display));
        Some(Self {
            common: common?,
            listen: listen?,
            advertise: advertise?,
            lab: lab?,
            store: store?,
        })
    }
}

impl SupervisorSettings {
    /// Checks flags and file.
    ///
    /// # Errors
    /// Every fault.
    pub fn check(flags: &Supervisor) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let own = [("worker_metrics", flags.worker_metrics.as_deref())];
        let raw = read(SUPERVISOR, &flags.daemon, &own, &mut faults);
        let common = Common::of(&raw, flags.daemon.until_exit_of.as_deref(), &mut faults);
        let worker_metrics = raw.get("worker_metrics", &mut faults, socket_address);
        faults.finish(common.map(|common| Self {
            common,
            worker_metrics,
        }))
    }
}

impl WorkerSettings {
    /// Checks flags and file.
    ///
    /// # Errors
    /// Every fault.
    pub fn check(flags: &Worker) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let own = [("listen", flags.listen.as_deref())];
        let raw = read(WORKER, &flags.daemon, &own, &mut faults);
        let common = Common::of(&raw, flags.daemon.until_exit_of.as_deref(), &mut faults);
        let listen = raw.get("listen", &mut faults, socket_address);
        let value = common.zip(listen).map(|(common, listen)| Self { common, listen });
        faults.finish(value)
    }
}

impl NodeSettings {
    /// Checks flags and file.
    ///
    /// # Errors
    /// Every fault.
    pub fn check(flags: &Node) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let own = [
            ("stream_hold", flags.streams.stream_hold.as_deref()),
            ("stream_memory", flags.streams.stream_memory.as_deref()),
        ];
        let raw = read(NODE, &flags.daemon, &own, &mut faults);
        let common = Common::of(&raw, flags.daemon.until_exit_of.as_deref(), &mut faults);
        let stream_hold = raw.get("stream_hold", &mut faults, |text| {
            let hold = fairlead_model::duration::parse(text).map_err(display)?;
            StreamHold::new(hold).map_err(display)
        });
        let stream_memory = raw.get("stream_memory", &mut faults, |text| {
            let memory = text.parse::<StreamMemory>();
            memory.map_err(|error| format!("`{text}`: {error}"))
        });
        let value = common.zip(stream_hold).zip(stream_memory);
        faults.finish(value.map(|((common, stream_hold), stream_memory)| Self {
            common,
            stream_hold,
            stream_memory,
        }))
    }
}

#[cfg(test)]
mod tests;

//! Command line of the daemons and of enrolment.

use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// The daemons.
#[derive(Debug, Subcommand)]
pub enum Run {
    /// The control plane: decides, signs, serves REST and gRPC on one port
    Control(Control),
    /// A relay's manager: holds the session with the control plane, keeps the worker running
    Supervisor(Supervisor),
    /// A relay's traffic process; the supervisor starts it
    Worker(Worker),
    /// A node's daemon: listens for consumers, dials published services
    Node(Node),
}

/// Flags that every daemon has. Each may stand in the settings file under the same name with `_`
/// for `-`; a flag wins.
#[derive(Debug, Args, Default)]
pub struct Daemon {
    /// Folder of the daemon's identity and state
    #[arg(long, value_name = "DIR")]
    pub dir: Option<String>,
    /// TOML file with these settings, keys named like the flags with `_` for `-`; flags win
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Where metrics and health are served over HTTP, e.g. 127.0.0.1:9100; port 0 picks one; none if
    /// not given
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<String>,
    /// Log format on standard error: text or json [default: text]. What is logged: FAIRLEAD_LOG, e.g.
    /// info or fairlead_node=debug
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// End when this process ends; `fairlead up` uses it
    #[arg(long, value_name = "PID:START", hide = true)]
    pub until_exit_of: Option<String>,
}

/// `run control`.
#[derive(Debug, Args)]
pub struct Control {
    /// Shared flags.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Where to listen for REST and gRPC [default: [::]:8443]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// The address at which members and admins reach this control plane; it goes into install
    /// commands and the certificate; the port of --listen if none is given
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Laboratory mode: allows several relays on one host. Never for production
    #[arg(long)]
    pub lab: bool,
    /// Store engine: redb or sled [default: redb]
    #[arg(long, value_name = "ENGINE")]
    pub store: Option<String>,
}

/// `run supervisor`.
#[derive(Debug, Args)]
pub struct Supervisor {
    /// Shared flags.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Where the worker serves its metrics; as --metrics
    #[arg(long, value_name = "IP:PORT")]
    pub worker_metrics: Option<String>,
}

/// `run worker`.
#[derive(Debug, Args)]
pub struct Worker {
    /// Shared flags; `--dir` is the relay's folder, the worker keeps its state in `worker/` there.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Where to listen for hop sessions (UDP) and liveness connections (TCP) [default: [::]:9443]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
}

/// `run node`.
#[derive(Debug, Args)]
pub struct Node {
    /// Shared flags.
    #[command(flatten)]
    pub daemon: Daemon,
    /// What it does with streams.
    #[command(flatten)]
    pub streams: Streams,
}

/// What a node does with streams: of `run node`, and of both nodes of `up`.
#[derive(Debug, Args, Default, Clone)]
pub struct Streams {
    /// How long a stream without any path is held, 10s to 300s [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub stream_hold: Option<String>,
    /// Memory that all streams of a node may hold, 64MiB to 1024GiB [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub stream_memory: Option<String>,
}

impl Streams {
    /// The same, for the command line of a daemon.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let Self {
            stream_hold,
            stream_memory,
        } = self;
        let flags = [("--stream-hold", stream_hold), ("--stream-memory", stream_memory)];
        let given = flags
            .into_iter()
            .filter_map(|(flag, value)| Some((flag, value.as_ref()?)));
        given
            .flat_map(|(flag, value)| [flag.into(), value.into()])
            .collect()
    }
}

/// What to enrol as.
#[derive(Debug, Subcommand)]
pub enum Enrol {
    /// Join as a relay
    #[command(after_help = crate::exit::Exit::enrol_help())]
    Relay(EnrolRelay),
    /// Join as a node
    #[command(after_help = crate::exit::Exit::enrol_help())]
    Node(EnrolNode),
}

/// Flags of both roles.
#[derive(Debug, Args)]
pub struct EnrolMember {
    /// The control plane's address; port 8443 if none is given
    #[arg(long, value_name = "HOST[:PORT]")]
    pub control: String,
    /// The CA's pin: SHA-256 of its public key, as the install command gives it
    #[arg(long, value_name = "sha256:HEX")]
    pub ca_pin: String,
    /// Folder to create for the member's identity and state. Nothing is left in it on failure
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// File that holds the one-shot token, `-` for standard input. Never given as an argument, where
    /// other users could see it
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub token_file: String,
    /// File of the key that stands for this host; made if absent [default: host.key in
    /// /var/lib/fairlead for root, else in the user's state folder]
    #[arg(long, value_name = "FILE")]
    pub host_key_file: Option<PathBuf>,
}

/// `enrol relay`.
#[derive(Debug, Args)]
pub struct EnrolRelay {
    /// Flags of both roles.
    #[command(flatten)]
    pub member: EnrolMember,
    /// Where the relay's worker will listen (UDP) [default: [::] and the port of the relay's address]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
}

/// `enrol node`.
#[derive(Debug, Args)]
pub struct EnrolNode {
    /// Flags of both roles.
    #[command(flatten)]
    pub member: EnrolMember,
}

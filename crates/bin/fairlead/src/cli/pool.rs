//! Command line of `up`.

use super::daemon::Streams;
use clap::Args;
use std::path::PathBuf;

/// `up`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  fairlead up --demo
  fairlead up --link db=127.0.0.1:15432,to=127.0.0.1:5432,class=database
  fairlead up --link api=[::1]:18080,to=[::1]:8080
  fairlead up --link pg=127.0.0.1:15433,to=unix:/run/postgresql/.s.PGSQL.5432

When all is ready, DIR/pool.json describes the pool: processes, addresses, metrics, links. \
The logs are in DIR/logs. Ctrl-C, or `kill -TERM` of its process id, stops all of it.")]
pub struct Up {
    /// Folder of the pool's state [default: fairlead/pool in $XDG_STATE_HOME or ~/.local/state, or
    /// ./.fairlead/pool without a home]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Relays besides the local one, 0 to 16
    #[arg(long, value_name = "N", default_value = "2", allow_negative_numbers = true)]
    pub relays: String,
    /// `fixed`: the control plane takes 127.0.0.1:8443, relays 127.0.0.1, 127.0.0.2, ... port 9443.
    /// `auto`: free ports. A folder keeps the ports of its first run
    #[arg(long, value_name = "fixed|auto", default_value = "fixed")]
    pub ports: String,
    /// A link to publish, repeatable. LISTEN: IP:PORT or [v6]:PORT on alpha. TARGET: HOST:PORT,
    /// [v6]:PORT or unix:/PATH, dialled by beta. CLASS: standard, database or storage
    #[arg(long = "link", value_name = "NAME=LISTEN,to=TARGET[,class=CLASS]")]
    pub links: Vec<String>,
    /// Keep a verified byte stream running through a built-in echo service, kill a relay every few
    /// seconds, and show what the stream notices of it
    #[arg(long)]
    pub demo: bool,
    /// Log format of the daemons: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: String,
    /// Store engine of the control plane: redb or sled
    #[arg(long, value_name = "ENGINE", default_value = "redb")]
    pub store: String,
    /// Of both nodes.
    #[command(flatten)]
    pub streams: Streams,
}

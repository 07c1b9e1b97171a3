//! Command line of the admin's verbs.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// How to reach the control plane, and how to print.
#[derive(Debug, Args, Clone, Default)]
pub struct Connection {
    /// The control plane's address; port 8443 if none is given
    #[arg(
        long,
        global = true,
        value_name = "HOST[:PORT]",
        env = "FAIRLEAD_CONTROL",
        help_heading = "Connection"
    )]
    pub control: Option<String>,
    /// PEM file of the pool's CA
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FAIRLEAD_CA_FILE",
        value_parser = path(),
        help_heading = "Connection"
    )]
    pub ca_file: Option<PathBuf>,
    /// File that holds an admin token
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FAIRLEAD_TOKEN_FILE",
        value_parser = path(),
        help_heading = "Connection"
    )]
    pub token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

/// A path that may be empty, as a variable that is set to nothing is: it counts as not given.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl Connection {
    /// The same, less what is empty.
    #[must_use]
    pub fn given(&self) -> Self {
        let path = |path: &Option<PathBuf>| path.clone().filter(|p| !p.as_os_str().is_empty());
        Self {
            control: self.control.clone().filter(|text| !text.is_empty()),
            ca_file: path(&self.ca_file),
            token_file: path(&self.token_file),
            json: self.json,
        }
    }
}

/// Reading again and again.
#[derive(Debug, Args, Clone, Default)]
pub struct Watch {
    /// Read again every 2 s, or TIME (500ms to 1h; `5s`, `1m`), until Ctrl-C: it never ends by itself.
    /// Where standard output is no terminal, only what has changed is printed
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        help_heading = "Output"
    )]
    pub watch: Option<String>,
}

macro_rules! groups {
    ($($(#[$doc:meta])* $name:ident, $verbs:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Args)]
        pub struct $name {
            /// The verb.
            #[command(subcommand)]
            pub verb: $verbs,
            /// How to reach the control plane.
            #[command(flatten)]
            pub connection: Connection,
        }
    )*};
}

groups! {
    /// `relay`.
    Relay, RelayVerb;
    /// `node`.
    Node, NodeVerb;
    /// `link`.
    Link, LinkVerb;
    /// `audit`.
    Audit, AuditVerb;
    /// `settings`.
    Settings, SettingsVerb;
    /// `token`.
    Token, TokenVerb;
}

/// Verbs of `relay`.
#[derive(Debug, Subcommand)]
pub enum RelayVerb {
    /// Add a relay to the pool; prints the one-shot command to run on its host
    #[command(
        after_help = "Example:\n  fairlead relay add paris-1 --address paris-1.example --failure-domain rack-1"
    )]
    Add {
        /// Display name, e.g. paris-1
        name: String,
        /// Address at which nodes reach the relay; port 9443 if none is given
        #[arg(long, value_name = "HOST[:PORT]")]
        address: String,
        /// What fails together: a host label such as rack-1, or labels
        /// host=h1,power=p1,firewall=f1,route=r1
        #[arg(long, value_name = "LABELS")]
        failure_domain: String,
        /// The relay on the control plane's own host. It is for ever: once it has been ready it is not
        /// removed, and a pool has one
        #[arg(long)]
        local: bool,
    },
    /// List relays
    Ls {
        /// Reading again and again.
        #[command(flatten)]
        watch: Watch,
    },
    /// Show one relay
    Show {
        /// Name or id
        relay: String,
        /// Reading again and again.
        #[command(flatten)]
        watch: Watch,
    },
    /// Give a relay that has not connected yet a new one-shot token; its older one ends
    Token {
        /// Name or id
        relay: String,
    },
    /// Remove a relay from the pool: at once one that never was ready, another one after its lease
    Rm {
        /// Name or id
        relay: String,
    },
}

/// Verbs of `node`.
#[derive(Debug, Subcommand)]
pub enum NodeVerb {
    /// Add a node; prints the one-shot command to run on its host
    #[command(after_help = "Example:\n  fairlead node add db-host")]
    Add {
        /// Display name, e.g. db-host
        name: String,
    },
    /// List nodes
    Ls {
        /// Reading again and again.
        #[command(flatten)]
        watch: Watch,
    },
    /// Show one node
    Show {
        /// Name or id
        node: String,
        /// Reading again and again.
        #[command(flatten)]
        watch: Watch,
    },
    /// Give a node that has not connected yet a new one-shot token; its older one ends
    Token {
        /// Name or id
        node: String,
    },
    /// Remove a node; its links must have been removed first
    Rm {
        /// Name or id
        node: String,
    },
}

/// Verbs of `link`.
#[derive(Debug, Subcommand)]
pub enum LinkVerb {
    /// Let a consumer's node reach a service of a publisher's node
    #[command(
        after_help = "Example:\n  fairlead link add db --from alpha --to beta \\\n    --target 127.0.0.1:5432 \
                      --listen 127.0.0.1:15432 --class database"
    )]
    Add {
        /// Display name, e.g. db
        name: String,
        /// The consumer's node: its applications connect to --listen
        #[arg(long, value_name = "NODE")]
        from: String,
        /// The publisher's node: it dials --target
        #[arg(long, value_name = "NODE")]
        to: String,
        /// The service, as the publisher's node reaches it
        #[arg(long, value_name = "HOST:PORT|[v6]:PORT|unix:/PATH")]
        target: String,
        /// Where the consumer's node listens
        #[arg(long, value_name = "IP:PORT|[v6]:PORT")]
        listen: String,
        /// What it carries: standard, database or storage. Shown, and decides nothing yet
        #[arg(long, value_name = "CLASS", default_value = "standard")]
        class: String,
    },
    /// List links
    Ls {
        /// Reading again and again.
        #[command(flatten)]
        watch: Watch,
    },
    /// Show one link
    Show {
        /// Name or id
        link: String,
        /// Reading again and again.
        #[command(flatten)]
        watch: Watch,
    },
    /// Remove a link; its tunnels are closed wherever its relays and nodes are connected
    Rm {
        /// Name or id
        link: String,
    },
}

/// Verbs of `audit`.
#[derive(Debug, Subcommand)]
pub enum AuditVerb {
    /// List entries, oldest first
    #[command(
        after_help = "Examples:\n  fairlead audit ls --last 20\n  fairlead audit ls --json --after 100 --limit 1000"
    )]
    Ls {
        /// Only entries after this number
        #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true)]
        after: String,
        /// At most this many, 1 to 1000
        #[arg(long, value_name = "N", default_value = "100", allow_negative_numbers = true)]
        limit: String,
        /// The newest N entries, 1 to 1000
        #[arg(long, value_name = "N", conflicts_with_all = ["after", "limit"], allow_negative_numbers = true)]
        last: Option<String>,
    },
}

/// Verbs of `settings`.
#[derive(Debug, Subcommand)]
pub enum SettingsVerb {
    /// List settings with their values, defaults and ranges
    Ls,
    /// Show one setting
    Get {
        /// E.g. policy.lease
        key: String,
    },
    /// Change one setting
    #[command(after_help = "Example:\n  fairlead settings set policy.lease 48h")]
    Set {
        /// E.g. policy.lease; or KEY=VALUE
        key: String,
        /// E.g. 72h
        #[arg(allow_negative_numbers = true)]
        value: Option<String>,
    },
}

/// Verbs of `token`.
#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Make an admin token; it is printed once, on standard output
    #[command(
        after_help = "Example:\n  (umask 077; fairlead token add dashboard --scope read > dashboard.token)"
    )]
    Add {
        /// What it is for
        name: String,
        /// What it may do: read or admin:system
        #[arg(long, value_name = "SCOPE", default_value = "read")]
        scope: Vec<String>,
    },
    /// List tokens, without their secrets
    Ls,
    /// Revoke a token
    Rm {
        /// Name or id
        token: String,
        /// Even if it is the one that this command uses
        #[arg(long)]
        force: bool,
    },
}

/// `login`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fairlead login --control control.example --ca-file ca.pem
  fairlead login --control control.example --ca-pin sha256:… < admin.token")]
pub struct Login {
    /// How to reach the control plane; `--token-file -` or none reads the token from standard input.
    #[command(flatten)]
    pub connection: Connection,
    /// The CA's pin, where there is no CA file
    #[arg(long, value_name = "sha256:HEX")]
    pub ca_pin: Option<String>,
}

/// `status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fairlead status
  fairlead status --watch")]
pub struct Status {
    /// Reading again and again.
    #[command(flatten)]
    pub watch: Watch,
    /// How to reach the control plane.
    #[command(flatten)]
    pub connection: Connection,
}

/// `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fairlead doctor                                the whole pool
  fairlead doctor paris-1                        one relay, node or link
  fairlead doctor node/paris-1                   the node, where a relay is called paris-1 too
  fairlead doctor --no-tunnel --json             without new tunnels, for a program
  fairlead doctor --dir /var/lib/fairlead/node   a member's own host, whether or not its control plane answers

What a change has under way is waited for first, 10 s at most; what is still on its way then is a warning.

Exit codes: 0 nothing failed, 1 something failed, 3 nothing failed but not all could be checked.")]
pub struct Doctor {
    /// A relay, node or link, by name or id; all where none is given. Where several have one name:
    /// relay/NAME, node/NAME or link/NAME
    pub name: Option<String>,
    /// Open no tunnel: a check opens a new hop session and two new tunnels for each path, of which
    /// one is connected to the link's target and closed at once
    #[arg(long)]
    pub no_tunnel: bool,
    /// Check the member whose folder this is, on its own host
    #[arg(long, value_name = "DIR", conflicts_with_all = ["name", "no_tunnel"])]
    pub dir: Option<PathBuf>,
    /// How to reach the control plane.
    #[command(flatten)]
    pub connection: Connection,
}

/// `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fairlead completions bash > /etc/bash_completion.d/fairlead
  fairlead completions zsh > /usr/local/share/zsh/site-functions/_fairlead
  fairlead completions fish > ~/.config/fish/completions/fairlead.fish")]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fairlead man | man -l -                            this program's page
  fairlead man --dir /usr/local/share/man/man1       a page for each command")]
pub struct Man {
    /// Write a page for each command into this folder, which is made if absent
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

//! The command line. Values are taken as text here and checked in [`crate::settings`] and beside
//! each verb, so that all faults of a command are listed together.

pub mod daemon;
pub mod pool;
pub mod verbs;

use clap::{Parser, Subcommand};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "fairlead",
    version,
    about = "A pool of relays that carries private TCP traffic between hosts which only connect outwards",
    long_about = "Fairlead carries private TCP traffic (databases, APIs, storage) between hosts that can only \
                  connect outwards, through a pool of relays that cannot read it.\n\n\
                  New here? `fairlead up --demo` runs a whole pool on this machine, with a demo service. With a \
                  pool at hand, begin with `fairlead login`, then `fairlead status`.\n\n\
                  Words: a relay joins tunnels; a node is a host that publishes or consumes a service; a \
                  link is your wish that one node reaches a service of another; the control plane decides \
                  and signs.",
    after_long_help = crate::exit::Exit::help(),
    subcommand_required = true,
    arg_required_else_help = true,
    propagate_version = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole pool on this machine: control plane, relays, two nodes, a demo service
    ///
    /// The daemons are real processes that enrol in the ordinary way: the control plane, the local
    /// relay, N more relays, and two nodes, alpha (consumers' side) and beta (publishers' side). `up`
    /// stays in the foreground; Ctrl-C stops everything. Daemons that die are started again. State
    /// stays in DIR: the next `up` there goes on with it.
    Up(pool::Up),
    /// Run one daemon: control, supervisor, worker or node
    #[command(subcommand)]
    Run(daemon::Run),
    /// Join this host to a pool as a relay or a node, with a one-shot token
    #[command(subcommand, after_help = crate::exit::Exit::enrol_help())]
    Enrol(daemon::Enrol),
    /// Relays of the pool: add, ls, show, token, rm
    Relay(verbs::Relay),
    /// Nodes: add, ls, show, token, rm
    Node(verbs::Node),
    /// Links from a consumer's node to a publisher's service: add, ls, show, rm
    Link(verbs::Link),
    /// The audit log: who changed what
    Audit(verbs::Audit),
    /// Settings of the pool: ls, get, set
    Settings(verbs::Settings),
    /// Admin tokens: add, ls, rm
    Token(verbs::Token),
    /// Store the control plane's address, CA and your token as this user's profile
    ///
    /// Checks the control plane's certificate and your token first. The profile is kept in fairlead/
    /// in $XDG_CONFIG_HOME or ~/.config, readable by you only. The CA comes from --ca-file, or is
    /// fetched and checked against --ca-pin; the token from --token-file, or standard input; on a
    /// terminal it is asked for.
    Login(verbs::Login),
    /// The state of the pool in a few lines, and what needs attention
    Status(verbs::Status),
    /// Check the pool, one member or one link, with new tunnels through it
    ///
    /// Shows for each relay its worker, identity and certificate, the policy it keeps, its address and
    /// listeners, and which nodes reach it; and opens a new hop session and a new tunnel through it,
    /// whose bytes are compared: old long streams can hide that nothing new is admitted. Each check is
    /// ok, a warning, failed or not measured, with what to do. Needs a token with admin:system for the
    /// tunnels.
    Doctor(verbs::Doctor),
    /// Print the completions of a shell: bash, zsh, fish, elvish or powershell
    Completions(verbs::Completions),
    /// Print the man page, or write a page for each command
    Man(verbs::Man),
}

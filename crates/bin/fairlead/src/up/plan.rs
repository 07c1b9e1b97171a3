//! What `up` is asked for, checked.

use crate::cli::daemon::{Daemon, Node};
use crate::cli::pool::Up;
use crate::faults::{Faults, SettingsError};
use crate::settings::NodeSettings;
use fairlead_model::{ListenAddress, Name, ServiceClass, TargetAddress};
use fairlead_store::Backend;
use fairlead_telemetry::LogFormat;
use std::ffi::OsString;
use std::path::PathBuf;

/// Most relays besides the local one: each has three addresses' worth of processes on one machine.
const RELAYS_MAX: u8 = 16;
/// Greatest length of the folder's path: a worker's socket path (`sun_path`, 107 bytes) less
/// `/relays/relay-16/worker/worker.sock`.
const DIR_LEN_MAX: usize = 107 - 35;
/// Name of the link to the built-in echo service.
pub(super) const DEMO_LINK: &str = "demo";
/// The consumers' node.
pub(super) const CONSUMER: &str = "alpha";
/// The publishers' node.
pub(super) const PUBLISHER: &str = "beta";

/// How ports are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ports {
    /// The documented ones.
    Fixed,
    /// Free ones.
    Auto,
}

/// A link to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkPlan {
    pub(super) name: Name,
    pub(super) listen: ListenAddress,
    pub(super) target: TargetAddress,
    pub(super) class: ServiceClass,
}

/// The whole wish.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Absolute.
    pub(super) dir: PathBuf,
    /// Relays besides the local one.
    pub(super) relays: u8,
    pub(super) ports: Ports,
    pub(super) links: Vec<LinkPlan>,
    pub(super) demo: bool,
    pub(super) log_format: LogFormat,
    pub(super) store: Backend,
    /// Arguments of both node daemons.
    pub(super) node: Vec<OsString>,
}

impl Plan {
    /// Checks the flags.
    ///
    /// # Errors
    /// Every fault.
    pub(super) fn check(flags: &Up) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let value = Self::of(flags, &mut faults);
        faults.finish(value)
    }

    fn of(flags: &Up, faults: &mut Faults) -> Option<Self> {
        let dir = flags
            .dir
            .clone()
            .unwrap_or_else(|| crate::profile::state_folder().join("pool"));
        let dir = faults.take("--dir", std::path::absolute(&dir));
        if let Some(len) = dir
            .as_ref()
            .map(|d| d.as_os_str().len())
            .filter(|n| *n > DIR_LEN_MAX)
        {
            faults.add(
                "--dir",
                format!("its path has {len} bytes; sockets in it allow {DIR_LEN_MAX}: give a shorter one"),
            );
        }
        let relays = match flags.relays.parse::<u8>() {
            Ok(n) if n <= RELAYS_MAX => Some(n),
            Ok(_) | Err(_) => {
                let message = format!("`{}` is not a number from 0 to {RELAYS_MAX}", flags.relays);
                faults.add("--relays", message);
                None
            }
        };
        let ports = match flags.ports.as_str() {
            "fixed" => Some(Ports::Fixed),
            "auto" => Some(Ports::Auto),
            other => {
                faults.add("--ports", format!("`{other}` is neither fixed nor auto"));
                None
            }
        };
        let links = links(&flags.links, flags.demo, faults);
        let log_format = faults.parse("--log-format", &flags.log_format);
        let store = faults.parse("--store", &flags.store);
        let node = faults.take_all(NodeSettings::check(&Node {
            daemon: Daemon {
                dir: Some("checked above".into()),
                ..Daemon::default()
            },
            streams: flags.streams.clone(),
        }));
        Some(Self {
            dir: dir?,
            relays: relays?,
            ports: ports?,
            links: links?,
            demo: flags.demo,
            log_format: log_format?,
            store: store?,
            node: node.map(|_| flags.streams.arguments())?,
        })
    }

    /// Whether the built-in echo service is published.
    pub(super) fn needs_echo(&self) -> bool {
        self.demo || self.links.is_empty()
    }

    /// Names of the relays, the local one first.
    pub(super) fn relay_names(&self) -> Vec<String> {
        let numbered = (1..=self.relays).map(|n| format!("relay-{n}"));
        std::iter::once("local".to_owned()).chain(numbered).collect()
    }
}

/// Checks every link and that no two clash.
fn links(texts: &[String], demo: bool, faults: &mut Faults) -> Option<Vec<LinkPlan>> {
    let mut links: Vec<LinkPlan> = Vec::with_capacity(texts.len());
    let mut whole = true;
    for text in texts {
        let place = format!("--link {}", text.split('=').next().unwrap_or(text));
        let Some(link) = link(&place, text, faults) else {
            whole = false;
            continue;
        };
        if links.iter().any(|other| other.name == link.name) {
            faults.add(&*place, "is given twice");
        }
        if let Some(other) = links.iter().find(|other| other.listen == link.listen) {
            faults.add(
                &*place,
                format!("listens on {}, as {} does", link.listen, other.name),
            );
        }
        if demo && link.name.as_str() == DEMO_LINK {
            faults.add(&*place, "with --demo, this name is the built-in service's");
        }
        links.push(link);
    }
    whole.then_some(links)
}

/// Parses `NAME=LISTEN,to=TARGET[,class=CLASS]`.
fn link(place: &str, text: &str, faults: &mut Faults) -> Option<LinkPlan> {
    const FORM: &str = "write NAME=LISTEN,to=TARGET[,class=CLASS]";
    let Some((name, rest)) = text.split_once('=') else {
        faults.add(place, format!("has no `=`: {FORM}"));
        return None;
    };
    let mut parts = rest.split(',');
    let name = faults.take(place, Name::requested(name));
    let listen = faults.parse(place, parts.next().unwrap_or_default());
    let mut target = None;
    let mut class = None;
    let mut known = true;
    for part in parts {
        match part.split_once('=') {
            Some(("to", value)) if target.is_none() => target = Some(value),
            Some(("class", value)) if class.is_none() => class = Some(value),
            Some(_) | None => {
                faults.add(place, format!("`{part}` is unknown or given twice: {FORM}"));
                known = false;
            }
        }
    }
    if target.is_none() {
        faults.add(place, format!("its target is missing: {FORM}"));
    }
    let target = target.and_then(|t| faults.parse(place, t));
    let class = match class {
        Some(text) => faults.parse(place, text),
        None => Some(ServiceClass::default()),
    };
    Some(LinkPlan {
        name: name?,
        listen: listen?,
        target: target?,
        class: class?,
    })
    .filter(|_| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn plan(arguments: &[&str]) -> Result<Plan, SettingsError> {
        let line = ["fairlead", "up", "--dir", "/p"].iter().chain(arguments);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Up(flags) => Plan::check(&flags),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let plan = plan(&[]).unwrap();
        assert_eq!(plan.relay_names(), ["local", "relay-1", "relay-2"]);
        assert!(plan.needs_echo() && !plan.demo);
        assert_eq!(plan.ports, Ports::Fixed);
        assert!(plan.node.is_empty());
    }

    #[test]
    fn what_nodes_do_with_streams_is_passed_on() {
        let given = ["--stream-hold", "30s", "--stream-memory", "2GiB"];
        assert_eq!(plan(&given).unwrap().node, given);
    }

    #[test]
    fn links_take_names_ipv6_and_unix_targets() {
        let plan = plan(&[
            "--link",
            "db=127.0.0.1:15432,to=db.internal:5432,class=database",
            "--link",
            "api=[::1]:8080,to=[2001:db8::1]:80",
            "--link",
            "pg=127.0.0.1:1,class=storage,to=unix:/run/pg=x/s",
        ])
        .unwrap();
        let texts: Vec<_> = plan
            .links
            .iter()
            .map(|l| format!("{} {} {} {}", l.name, l.listen, l.target, l.class))
            .collect();
        assert_eq!(
            texts,
            [
                "db 127.0.0.1:15432 db.internal:5432 database",
                "api [::1]:8080 [2001:db8::1]:80 standard",
                "pg 127.0.0.1:1 unix:/run/pg=x/s storage",
            ]
        );
        assert!(!plan.needs_echo());
    }

    #[test]
    fn all_faults_are_listed_together() {
        let long = format!("/{}", "d".repeat(90));
        let text = plan(&[
            "--relays",
            "17",
            "--ports",
            "some",
            "--link",
            "nolisten",
            "--link",
            "DB=host:1,to=::1:5,class=x",
            "--link",
            "a=127.0.0.1:1",
            "--link",
            "b=127.0.0.1:1,to=h:1,color=red",
            "--store",
            "mysql",
            "--stream-memory",
            "1MiB",
            "--stream-hold",
            "1h",
        ])
        .unwrap_err()
        .to_string();
        for part in [
            "--relays: `17`",
            "--ports: `some`",
            "--link nolisten: has no `=`",
            "--link DB: `DB` is not a name",
            "--link DB: `host:1` is not a listen address",
            "--link DB: `::1:5` is not a target",
            "--link DB: `x` is not a class",
            "--link a: its target is missing",
            "--link b: `color=red` is unknown",
            "--store: ",
            "--stream-memory: `1MiB`: give 64MiB",
            "--stream-hold: ",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let line = ["fairlead", "up", "--dir", &long];
        let Command::Up(flags) = Cli::try_parse_from(line).unwrap().command else {
            panic!()
        };
        assert!(Plan::check(&flags).unwrap_err().to_string().contains("91 bytes"));
    }

    #[test]
    fn links_that_clash_are_refused() {
        let error = plan(&[
            "--demo",
            "--link",
            "a=127.0.0.1:1,to=h:1",
            "--link",
            "a=127.0.0.1:1,to=h:1",
            "--link",
            "demo=127.0.0.1:2,to=h:1",
        ])
        .unwrap_err();
        assert_eq!(error.faults().len(), 3, "{error}");
    }
}

//! Keeps `pool.json` true: processes that were started again, links that an admin added.

use super::daemon::{Daemons, State, is_alive};
use super::error::UpError;
use super::layout::{Addresses, Layout};
use super::plan::{CONSUMER, PUBLISHER};
use super::pool_file::{ControlEntry, LinkEntry, NodeEntry, PoolFile, RelayEntry};
use super::progress::Progress;
use super::ready::cannot_listen;
use crate::rest::{RestClient, RestError};
use fairlead_admin::json;
use fairlead_control::ControlFolder;
use fairlead_host::member::{MemberFolder, RuntimeInfo, read_runtime};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Pause between looks at the processes: a handful of small files.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Links are asked for every so many looks.
const LOOKS_PER_LINKS: u32 = 10;

/// What was said already and still holds.
#[derive(Debug, Default)]
struct Warned {
    token: bool,
    file: bool,
    /// Why links cannot be listened for, by their names.
    listen: BTreeMap<String, String>,
}

/// What is watched.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    pub(super) layout: &'a Layout,
    pub(super) addresses: &'a Addresses,
    pub(super) daemons: &'a Daemons,
    pub(super) progress: &'a Progress,
    pub(super) client: RestClient,
    pub(super) relays: Vec<String>,
}

impl Watch<'_> {
    /// Writes the first file, once every process has told its part.
    pub(super) async fn first_file(&self) -> Result<PoolFile, UpError> {
        let relays: json::List<json::Relay> = self.client.get("/v1/relays").await?;
        let nodes: json::List<json::Node> = self.client.get("/v1/nodes").await?;
        let mut file = PoolFile {
            version: crate::run::VERSION.to_owned(),
            up_pid: std::process::id(),
            control: self.control(),
            relays: self
                .relays
                .iter()
                .filter_map(|name| relays.items.iter().find(|r| r.name == *name))
                .map(|r| self.relay(r))
                .collect(),
            nodes: [CONSUMER, PUBLISHER]
                .iter()
                .filter_map(|name| nodes.items.iter().find(|n| n.name == *name))
                .map(|n| self.node(n))
                .collect(),
            links: entries(&self.links().await?),
        };
        while !self.refresh(&mut file) {
            self.daemons.check()?;
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        file.write(self.layout)?;
        Ok(file)
    }

    /// Keeps the file true, for ever.
    pub(super) async fn keep(&self, first: PoolFile) -> Result<(), UpError> {
        let mut written = first;
        let mut known = self.daemons.all();
        let mut looks = 0u32;
        let mut warned = Warned::default();
        let mut workers = BTreeMap::new();
        self.tell_workers(&mut workers, &written);
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            self.tell(&mut known);
            let mut file = written.clone();
            self.refresh(&mut file);
            self.tell_workers(&mut workers, &file);
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_LINKS) {
                match self.links().await {
                    Ok(links) => {
                        self.tell_listeners(&mut warned.listen, &links);
                        file.links = entries(&links);
                        warned.token = false;
                    }
                    Err(error) if error.is_refused_token() => {
                        let path = ControlFolder::new(self.layout.control()).admin_token_path();
                        self.warn(&mut warned.token, &UpError::Revoked(path));
                    }
                    // A control plane that is being started again is asked again later.
                    Err(_) => {}
                }
            }
            if file != written {
                // A full disk is no reason to stop a pool that carries traffic.
                match file.write(self.layout) {
                    Ok(()) => {
                        written = file;
                        warned.file = false;
                    }
                    Err(error) => self.warn(&mut warned.file, &error),
                }
            }
        }
    }

    /// Says once what is wrong.
    fn warn(&self, warned: &mut bool, error: &UpError) {
        if !std::mem::replace(warned, true) {
            let text = fairlead_telemetry::chain(error);
            self.progress.say(&format!("the pool goes on, but {text}"));
        }
    }

    /// Says what ended and what was started again.
    fn tell(&self, known: &mut BTreeMap<String, State>) {
        let now = self.daemons.all();
        for (name, state) in &now {
            let before = known.get(name).cloned().unwrap_or_default();
            if state.ends > before.ends {
                self.progress
                    .say(&format!("{name} ended ({}): starting it again", state.how));
            }
            if let (Some(pid), true) = (state.pid, state.pid != before.pid && before.ends > 0) {
                self.progress.say(&format!("{name} runs as process {pid}"));
            }
        }
        *known = now;
    }

    /// Says which workers are others than before: their supervisors started them again.
    fn tell_workers(&self, known: &mut BTreeMap<String, u32>, file: &PoolFile) {
        for relay in &file.relays {
            let (name, pid) = (&relay.name, relay.worker_pid);
            let before = known.insert(name.clone(), pid).filter(|before| *before != pid);
            if let Some(before) = before {
                self.progress.say(&format!(
                    "the worker of relay {name} ended (process {before}) and is back as process {pid}"
                ));
            }
        }
    }

    /// Says which links cannot be listened for, and which can again.
    fn tell_listeners(&self, told: &mut BTreeMap<String, String>, links: &[json::Link]) {
        let mut kept = BTreeMap::new();
        for link in links {
            let before = told.remove(&link.name);
            match (cannot_listen(link), before) {
                (Some(why), before) => {
                    if before.as_ref() != Some(&why) {
                        self.progress.say(&format!("link {}: {why}", link.name));
                    }
                    kept.insert(link.name.clone(), why);
                }
                (None, Some(_)) if link.state == "ready" => self.progress.say(&format!(
                    "link {}: {} listens on {}",
                    link.name, link.from.name, link.listen
                )),
                // Its consumer is away: neither is known.
                (None, Some(why)) => {
                    kept.insert(link.name.clone(), why);
                }
                (None, None) => {}
            }
        }
        *told = kept;
    }

    fn control(&self) -> ControlEntry {
        let folder = ControlFolder::new(self.layout.control());
        ControlEntry {
            pid: 0,
            url: format!("https://{}", self.addresses.control),
            ca_file: folder.ca_path(),
            admin_token_file: folder.admin_token_path(),
            metrics: String::new(),
            log: self.layout.log("control"),
        }
    }

    fn relay(&self, relay: &json::Relay) -> RelayEntry {
        RelayEntry {
            id: relay.id.clone(),
            name: relay.name.clone(),
            address: relay.address.clone(),
            failure_domain: relay.failure_domain.clone(),
            local: relay.local,
            supervisor_pid: 0,
            worker_pid: 0,
            metrics: String::new(),
            supervisor_metrics: String::new(),
            dir: self.layout.relay(&relay.name),
            log: self.layout.log(&relay.name),
        }
    }

    fn node(&self, node: &json::Node) -> NodeEntry {
        NodeEntry {
            id: node.id.clone(),
            name: node.name.clone(),
            pid: 0,
            metrics: String::new(),
            dir: self.layout.node(&node.name),
            log: self.layout.log(&node.name),
        }
    }

    async fn links(&self) -> Result<Vec<json::Link>, RestError> {
        let links: json::List<json::Link> = self.client.get("/v1/links").await?;
        Ok(links.items)
    }

    /// Brings processes and metrics up to date; whether every process is known and ready to be
    /// scraped. What is not known at the moment keeps its last value.
    fn refresh(&self, file: &mut PoolFile) -> bool {
        let mut whole = true;
        let runtime = ControlFolder::new(self.layout.control()).runtime_path();
        let (pid, info) = self.own(&runtime, "control");
        whole &= take(pid, info, &mut file.control.pid, &mut file.control.metrics);
        for relay in &mut file.relays {
            let folder = MemberFolder::new(self.layout.relay(&relay.name));
            let (pid, info) = self.own(&folder.runtime_path(), &relay.name);
            whole &= take(
                pid,
                info,
                &mut relay.supervisor_pid,
                &mut relay.supervisor_metrics,
            );
            let worker = runtime_of(&folder.worker_dir().join("runtime.json")).filter(|i| is_alive(i.pid));
            let pid = worker.as_ref().map(|i| i.pid);
            whole &= take(pid, worker, &mut relay.worker_pid, &mut relay.metrics);
        }
        for node in &mut file.nodes {
            let folder = MemberFolder::new(self.layout.node(&node.name));
            let (pid, info) = self.own(&folder.runtime_path(), &node.name);
            whole &= take(pid, info, &mut node.pid, &mut node.metrics);
        }
        whole
    }

    /// The process of a daemon, and its runtime file if that process wrote it.
    fn own(&self, runtime: &Path, daemon: &str) -> (Option<u32>, Option<RuntimeInfo>) {
        let pid = self.daemons.state(daemon).pid;
        let info = runtime_of(runtime).filter(|i| Some(i.pid) == pid);
        (pid, info)
    }
}

fn entries(links: &[json::Link]) -> Vec<LinkEntry> {
    let entry = |l: &json::Link| LinkEntry {
        id: l.id.clone(),
        name: l.name.clone(),
        class: l.class.clone(),
        listen: l.listen.clone(),
        target: l.target.clone(),
        consumer: l.from.name.clone(),
        publisher: l.to.name.clone(),
    };
    links.iter().map(entry).collect()
}

fn runtime_of(path: &Path) -> Option<RuntimeInfo> {
    read_runtime(path).ok().flatten()
}

fn take(pid: Option<u32>, info: Option<RuntimeInfo>, known_pid: &mut u32, known_url: &mut String) -> bool {
    if let Some(pid) = pid {
        *known_pid = pid;
    }
    match info.and_then(|i| i.metrics_url) {
        Some(url) => {
            *known_url = url;
            true
        }
        None => false,
    }
}

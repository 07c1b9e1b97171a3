//! The pool's folder and addresses.

use super::error::UpError;
use super::plan::{Plan, Ports};
use crate::ports::{self, PortError, Protocol};
use fairlead_host::file;
use fairlead_model::address::{CONTROL_PORT, RELAY_PORT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Port of the built-in echo service's link: echo is port 7 (RFC 862).
const DEMO_PORT: u16 = 7007;
/// The addresses' file is below 2 KiB.
const FILE_LEN_MAX: usize = 64 * 1024;
/// The folder holds keys and tokens.
const DIR_MODE: u32 = 0o700;
/// Files that hold no secret.
pub(super) const FILE_MODE: u32 = 0o644;

/// Where everything is.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
    pub(super) fn pool_file(&self) -> PathBuf {
        self.dir.join("pool.json")
    }
    pub(super) fn control(&self) -> PathBuf {
        self.dir.join("control")
    }
    pub(super) fn relay(&self, name: &str) -> PathBuf {
        self.dir.join("relays").join(name)
    }
    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.dir.join("nodes").join(name)
    }
    pub(super) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }
    pub(super) fn log(&self, daemon: &str) -> PathBuf {
        self.logs().join(format!("{daemon}.log"))
    }
    pub(super) fn host_key(&self) -> PathBuf {
        self.dir.join("host.key")
    }
    pub(super) fn demo_socket(&self) -> PathBuf {
        self.dir.join("demo.sock")
    }
    /// Whether the pool here has been ready once.
    pub(super) fn is_settled(&self) -> bool {
        self.settled().exists()
    }
    /// Notes that it has.
    pub(super) fn settle(&self) -> Result<(), UpError> {
        match self.is_settled() {
            true => Ok(()),
            false => Ok(file::write_atomic(&self.settled(), FILE_MODE, b"")?),
        }
    }
    fn settled(&self) -> PathBuf {
        self.dir.join("settled")
    }
    fn addresses(&self) -> PathBuf {
        self.dir.join("addresses.json")
    }

    /// Removes what a run that was refused made: empty folders, and their lock.
    pub(super) fn undo(&self, before: bool) {
        if before {
            return;
        }
        // Each is removed only if it is empty.
        for folder in ["relays", "nodes", "logs"] {
            let _ = fs::remove_dir(self.dir.join(folder));
        }
        let _ = fs::remove_file(self.dir.join("lock"));
        let _ = fs::remove_dir(&self.dir);
    }

    /// Makes the folders.
    pub(super) fn create(&self) -> Result<(), UpError> {
        for folder in [
            self.dir.clone(),
            self.dir.join("relays"),
            self.dir.join("nodes"),
            self.logs(),
        ] {
            file::make_folder(&folder, DIR_MODE)?;
        }
        Ok(())
    }

    /// Keeps the logs of the run before as `NAME.log.old`, and no older ones.
    pub(super) fn rotate_logs(&self) -> Result<(), UpError> {
        let failed = |path: &Path, source: io::Error| UpError::Path {
            path: path.to_owned(),
            source,
        };
        let logs = self.logs();
        for entry in fs::read_dir(&logs).map_err(|e| failed(&logs, e))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "log") {
                fs::rename(&path, path.with_extension("log.old")).map_err(|e| failed(&path, e))?;
            }
        }
        Ok(())
    }
}

/// The addresses of a pool, chosen at its first run and kept: they stand in certificates, member
/// folders and the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Addresses {
    /// Where the control plane listens.
    pub(super) control: SocketAddr,
    /// Where the relays listen, by name.
    relays: BTreeMap<String, SocketAddr>,
    /// Where alpha listens for the built-in echo service.
    pub(super) demo_listen: SocketAddr,
}

impl Addresses {
    /// Those of the run before, with new ones for new relays.
    pub(super) fn load_or_choose(layout: &Layout, plan: &Plan) -> Result<Self, UpError> {
        let path = layout.addresses();
        let before: Option<Self> = match file::read_optional(&path, FILE_LEN_MAX)? {
            None => None,
            Some(bytes) => Some(serde_json::from_slice(&bytes).map_err(|e| UpError::Malformed {
                path: path.clone(),
                reason: e.to_string(),
            })?),
        };
        // Nobody listens there yet: that a port is free does not show that it is another's.
        let mut given: Vec<u16> = plan.links.iter().map(|link| link.listen.0.port()).collect();
        given.extend(before.iter().flat_map(Self::ports));
        let mut choose = |ip, fixed, protocols: &[Protocol]| {
            let address = choose(plan.ports, ip, fixed, protocols, &given)?;
            given.push(address.port());
            Ok::<_, PortError>(address)
        };
        let mut addresses = match &before {
            Some(before) => before.clone(),
            None => Self {
                control: choose(loopback(1), CONTROL_PORT, &[Protocol::Tcp])?,
                relays: BTreeMap::new(),
                demo_listen: choose(loopback(1), DEMO_PORT, &[Protocol::Tcp])?,
            },
        };
        for (name, host) in plan.relay_names().into_iter().zip(1u8..) {
            if let Entry::Vacant(place) = addresses.relays.entry(name) {
                place.insert(choose(loopback(host), RELAY_PORT, &RELAY_PROTOCOLS)?);
            }
        }
        if before.as_ref() != Some(&addresses) {
            let text = serde_json::to_string_pretty(&addresses).map_err(|e| UpError::Malformed {
                path: path.clone(),
                reason: e.to_string(),
            })?;
            // Ports that turn out to be taken are chosen anew next time.
            addresses.check_free(plan).map_err(|error| match error {
                UpError::Ports(errors) if plan.ports == Ports::Fixed => UpError::NewPorts(errors),
                error => error,
            })?;
            file::write_atomic(&path, FILE_MODE, text.as_bytes())?;
        }
        Ok(addresses)
    }

    fn ports(&self) -> impl Iterator<Item = u16> {
        let own = [self.control, self.demo_listen].into_iter();
        own.chain(self.relays.values().copied())
            .map(|address| address.port())
    }

    /// Where the relay listens.
    pub(super) fn relay(&self, name: &str) -> Result<SocketAddr, UpError> {
        self.relays.get(name).copied().ok_or_else(|| UpError::Malformed {
            path: PathBuf::from("addresses.json"),
            reason: format!("there is no address of {name}"),
        })
    }

    /// Checks that every address can be listened on; all that cannot are listed.
    pub(super) fn check_free(&self, plan: &Plan) -> Result<(), UpError> {
        let mut wanted = vec![(self.control, Protocol::Tcp)];
        for name in plan.relay_names() {
            let address = self.relay(&name)?;
            wanted.extend(RELAY_PROTOCOLS.map(|protocol| (address, protocol)));
        }
        // Later it may have been removed, and its address be another's.
        if plan.demo || (plan.links.is_empty() && !Layout::new(&plan.dir).is_settled()) {
            wanted.push((self.demo_listen, Protocol::Tcp));
        }
        wanted.extend(plan.links.iter().map(|link| (link.listen.0, Protocol::Tcp)));
        let taken: Vec<PortError> = wanted
            .into_iter()
            .filter_map(|(address, protocol)| ports::check(address, protocol).err())
            .collect();
        if taken.is_empty() {
            Ok(())
        } else {
            Err(UpError::Ports(taken))
        }
    }
}

/// What a relay's port carries: hop sessions, and liveness connections beside them.
const RELAY_PROTOCOLS: [Protocol; 2] = [Protocol::Udp, Protocol::Tcp];

/// 127.0.0.N: all of 127/8 is this machine's on Linux.
fn loopback(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, host))
}

fn choose(
    ports: Ports,
    ip: IpAddr,
    fixed: u16,
    protocols: &[Protocol],
    given: &[u16],
) -> Result<SocketAddr, PortError> {
    match ports {
        Ports::Fixed => Ok(SocketAddr::new(ip, fixed)),
        Ports::Auto => ports::free(ip, protocols, given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::up::plan::LinkPlan;
    use fairlead_model::{ListenAddress, ServiceClass};
    use fairlead_store::Backend;
    use fairlead_telemetry::LogFormat;

    fn plan(dir: &Path, relays: u8) -> Plan {
        Plan {
            dir: dir.to_owned(),
            relays,
            ports: Ports::Auto,
            links: Vec::new(),
            demo: false,
            log_format: LogFormat::Text,
            store: Backend::Redb,
            node: Vec::new(),
        }
    }

    #[test]
    fn a_folder_keeps_its_addresses_and_gains_those_of_new_relays() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let first = Addresses::load_or_choose(&layout, &plan(dir.path(), 1)).unwrap();
        let second = Addresses::load_or_choose(&layout, &plan(dir.path(), 2)).unwrap();
        assert_eq!(first.control, second.control);
        assert_eq!(first.relay("relay-1").unwrap(), second.relay("relay-1").unwrap());
        assert_eq!(second.relay("relay-2").unwrap().ip(), loopback(3));
        assert!(first.relay("relay-2").is_err());
    }

    #[test]
    fn every_taken_address_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let plan = plan(dir.path(), 1);
        let addresses = Addresses::load_or_choose(&layout, &plan).unwrap();
        addresses.check_free(&plan).unwrap();
        let _control = std::net::TcpListener::bind(addresses.control).unwrap();
        let _relay = std::net::UdpSocket::bind(addresses.relay("relay-1").unwrap()).unwrap();
        let text = addresses.check_free(&plan).unwrap_err().to_string();
        assert_eq!(text.matches("is taken by").count(), 2, "{text}");
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    }

    /// Who meets a taken port at first is told how to have others, and keeps none that is taken; who has
    /// asked for free ones, or has this address already, is not.
    #[test]
    fn taken_ports_of_a_new_pool_come_with_the_hint() {
        let hint = "with `--ports auto`, free ports are chosen for what is new";
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let held = std::net::TcpListener::bind((loopback(1), 0)).unwrap();
        let address = held.local_addr().unwrap();
        let link = LinkPlan {
            name: "db".parse().unwrap(),
            listen: ListenAddress(address),
            target: "127.0.0.1:5432".parse().unwrap(),
            class: ServiceClass::Standard,
        };
        let fixed = Plan {
            ports: Ports::Fixed,
            links: vec![link],
            ..plan(dir.path(), 0)
        };
        let told = Addresses::load_or_choose(&layout, &fixed).unwrap_err();
        assert!(matches!(told, UpError::NewPorts(_)), "{told:?}");
        let told = told.to_string();
        let taken = format!("{address}/tcp is taken by");
        assert!(told.contains(&taken) && told.ends_with(hint), "{told}");
        assert!(!layout.addresses().exists(), "what is taken is not kept");
        let auto = plan(dir.path(), 0);
        let addresses = Addresses::load_or_choose(&layout, &auto).unwrap();
        let told = addresses.check_free(&fixed).unwrap_err().to_string();
        assert!(told.contains(&taken) && !told.contains(hint), "{told}");
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("addresses.json"), "{").unwrap();
        let error = Addresses::load_or_choose(&Layout::new(dir.path()), &plan(dir.path(), 0)).unwrap_err();
        assert!(error.to_string().contains("addresses.json"), "{error}");
    }

    #[test]
    fn logs_of_the_run_before_are_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        layout.create().unwrap();
        std::fs::write(layout.log("control"), "1").unwrap();
        layout.rotate_logs().unwrap();
        assert!(!layout.log("control").exists());
        assert!(layout.logs().join("control.log.old").exists());
        layout.rotate_logs().unwrap();
        assert_eq!(std::fs::read_dir(layout.logs()).unwrap().count(), 1);
    }
}

//! A pool as an admin builds it on hosts of their own: the control plane in the centre, each relay
//! and each node on a host that one wire joins to it. The centre routes between them, but not from
//! node to node: those have no way to each other except relays.

mod traffic;

use crate::{Answer, Host, Warden, Weather, Wire, binary, net::Side, pool, process, wait};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The centre's address for all of its neighbours.
const CENTRE: &str = "10.9.0.1";
const CONTROL: &str = "10.9.0.1:8443";
/// The link that an estate is built with, and where applications of `alpha` reach it.
pub const LINK: &str = "link";
const LISTEN: &str = "127.0.0.1:15432";
/// The numbers of the nodes' wires; relays' wires follow from [`RELAY_WIRE`] on.
const ALPHA_WIRE: u8 = 21;
const BETA_WIRE: u8 = 22;
const RELAY_WIRE: u8 = 31;
/// Start, enrolment and readiness of one daemon on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
/// How much of each log a failed test shows.
const LOG_TAIL_LINES: usize = 20;

/// A member of the pool and its host.
#[derive(Debug)]
pub struct Member {
    /// Its name: `relay-1`, …, `alpha`, `beta`.
    pub name: String,
    /// Its host.
    pub host: Host,
    /// The wire to the centre; the member is at [`Side::A`].
    pub wire: Wire,
    dir: PathBuf,
    daemon: Mutex<Option<Child>>,
}

/// A pool on hosts of its own. Dropped, it shows the tail of its logs and is gone.
#[derive(Debug)]
pub struct Estate {
    /// The host of the control plane.
    pub centre: Host,
    /// The relays, `relay-1` first.
    pub relays: Vec<Member>,
    /// The consumers' node.
    pub alpha: Member,
    /// The publishers' node.
    pub beta: Member,
    control: Mutex<Option<Child>>,
    dir: PathBuf,
    _warden: Warden,
}

impl Estate {
    /// Makes the hosts and the wires; nothing runs yet. A target may be started on `beta` before
    /// [`Estate::build`].
    ///
    /// # Errors
    /// When namespaces or devices cannot be made.
    pub fn new(relays: u8) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("fle-").tempdir()?.keep();
        let warden = Warden::over(&dir)?;
        let centre = Host::new("centre")?;
        centre.ip(&format!("addr add {CENTRE}/32 dev lo"))?;
        centre.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        let member = |name: String, number: u8| -> Result<Member> {
            let host = Host::new(&name)?;
            let wire = Wire::between(&host, &centre, number)?;
            host.ip(&format!("route add default via {}", wire.address(Side::B)))?;
            let dir = dir.join(&name);
            Ok(Member {
                name,
                host,
                wire,
                dir,
                daemon: Mutex::new(None),
            })
        };
        let (alpha, beta) = (
            member("alpha".into(), ALPHA_WIRE)?,
            member("beta".into(), BETA_WIRE)?,
        );
        let (from, to) = (ALPHA_WIRE, BETA_WIRE);
        centre.ip(&format!(
            "rule add from 10.{from}.0.0/24 to 10.{to}.0.0/24 unreachable"
        ))?;
        centre.ip(&format!(
            "rule add from 10.{to}.0.0/24 to 10.{from}.0.0/24 unreachable"
        ))?;
        let relays = (0..relays)
            .map(|n| member(format!("relay-{}", n + 1), RELAY_WIRE + n))
            .collect::<Result<_>>()?;
        Ok(Self {
            centre,
            relays,
            alpha,
            beta,
            control: Mutex::new(None),
            dir,
            _warden: warden,
        })
    }

    /// Everything up, with one link from `alpha` to `target` on `beta`'s host, over every relay.
    ///
    /// # Errors
    /// When a member does not enrol, or the link is not ready in time.
    pub async fn build(&self, target: &str) -> Result<()> {
        self.start_control_at(0).await?;
        let spread = self.relays.len().to_string();
        self.admin(&["settings", "set", "placement.spread", &spread])?
            .ok()?;
        for relay in &self.relays {
            let address = relay.wire.address(Side::A).to_string();
            let domain = format!("host={}", relay.name);
            let add = ["relay", "add", &relay.name, "--address", &address];
            self.enrol(relay, &[&add[..], &["--failure-domain", &domain]].concat())?;
            self.start(relay)?;
        }
        for node in [&self.alpha, &self.beta] {
            self.enrol(node, &["node", "add", &node.name])?;
            self.start(node)?;
        }
        let ends = ["link", "add", LINK, "--from", "alpha", "--to", "beta"];
        let rest = ["--listen", LISTEN, "--target", target];
        self.admin(&[&ends[..], &rest[..]].concat())?.ok()?;
        for relay in &self.relays {
            self.state("relay", &relay.name, "ready").await?;
        }
        self.state("link", LINK, "ready").await
    }

    /// Where applications on `alpha` reach the link.
    ///
    /// # Errors
    /// Never.
    pub fn listen(&self) -> Result<SocketAddr> {
        Ok(LISTEN.parse()?)
    }

    /// Starts a member's daemon.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, member: &Member) -> Result<()> {
        self.start_at(member, 0)
    }

    /// Starts a member's daemon on a host whose wall clock is ahead by so much, or behind.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_at(&self, member: &Member, ahead_ms: i64) -> Result<()> {
        let local = "127.0.0.1:0";
        let child = if self.relays.iter().any(|r| r.name == member.name) {
            let more = ["--metrics", local, "--worker-metrics", local];
            self.spawn(&member.host, "supervisor", &member.name, &more, ahead_ms)?
        } else {
            self.spawn(
                &member.host,
                "node",
                &member.name,
                &["--metrics", local],
                ahead_ms,
            )?
        };
        *member.daemon.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(())
    }

    /// Kills all of a member's processes and starts its daemon as [`Estate::start_at`] does.
    ///
    /// # Errors
    /// When it does not run, or cannot be started.
    pub async fn restart_at(&self, member: &Member, ahead_ms: i64) -> Result<()> {
        let pid = member.pid()?;
        member.kill_daemon()?;
        if process::alive(pid) {
            process::kill9(pid)?;
        }
        wait::until_true("the process is gone", LIMIT, || !process::alive(pid)).await?;
        self.start_at(member, ahead_ms)?;
        wait::until("its successor runs", LIMIT, || async { member.pid() }).await?;
        Ok(())
    }

    /// What a daemon has logged: a member's name, or `control`.
    ///
    /// # Errors
    /// When there is no such log.
    pub fn log(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.dir.join(format!("{name}.log"))).with_context(|| name.to_owned())
    }

    async fn start_control_at(&self, ahead_ms: i64) -> Result<()> {
        let control = ["--listen", CONTROL, "--advertise", CONTROL, "--lab"];
        let child = self.spawn(&self.centre, "control", "control", &control, ahead_ms)?;
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        let answers = || async { self.admin(&["relay", "ls"])?.ok().map(drop) };
        wait::until("the control plane answers", LIMIT, answers).await?;
        Ok(())
    }

    /// Kills the control plane and starts it on a host whose wall clock is ahead by so much, or behind.
    ///
    /// # Errors
    /// When it does not run, or does not answer again in time.
    pub async fn restart_control_at(&self, ahead_ms: i64) -> Result<()> {
        self.kill_control()?;
        self.start_control_at(ahead_ms).await
    }

    /// Kills the control plane; it stays dead.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_control(&self) -> Result<()> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = control.take().context("the control plane does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn spawn(&self, host: &Host, role: &str, name: &str, more: &[&str], ahead_ms: i64) -> Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{name}.log")))?;
        let mut command = Command::new(binary::fairlead()?);
        command
            .args(["run", role, "--dir"])
            .arg(self.dir.join(name))
            .args(more)
            .env("FAIRLEAD_TEST_WALL_OFFSET_MS", ahead_ms.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(host.run(|| command.spawn())??)
    }

    /// Runs the CLI as the admin, on the centre.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn admin(&self, arguments: &[&str]) -> Result<Answer> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("path");
        let ca = text(&self.dir.join("control/ca.pem"))?;
        let token = text(&self.dir.join("control/admin.token"))?;
        let environment = [
            ("FAIRLEAD_CONTROL", CONTROL),
            ("FAIRLEAD_CA_FILE", ca.as_str()),
            ("FAIRLEAD_TOKEN_FILE", token.as_str()),
        ];
        self.centre.run(|| pool::run(arguments, "", &environment))?
    }

    /// Adds a member and runs the command that this prints on the member's host.
    fn enrol(&self, member: &Member, add: &[&str]) -> Result<()> {
        let issued = self.admin(&[add, &["--json"]].concat())?.json()?;
        let text = |key: &str| issued.get(key).and_then(Value::as_str).context("no command");
        let (command, token) = (text("install_command")?, text("token")?);
        let folder = member.dir.to_str().context("path")?;
        let command = command
            .replace("/var/lib/fairlead/relay", folder)
            .replace("/var/lib/fairlead/node", folder);
        let answer = member.host.run(|| pool::run_printed(&command, token))??;
        ensure!(answer.code == Some(0), "{}: {answer:?}", member.name);
        Ok(())
    }

    /// Waits until a relay or link is in a state.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn state(&self, kind: &str, name: &str, wanted: &str) -> Result<()> {
        wait::until(&format!("{kind} {name} is {wanted}"), LIMIT, || async {
            let shown = self.admin(&[kind, "show", name, "--json"])?.json()?;
            let state = shown.get("state").and_then(Value::as_str).unwrap_or_default();
            ensure!(state == wanted, "{shown}");
            Ok(())
        })
        .await?;
        Ok(())
    }
}

impl Member {
    /// The process that carries or ends traffic: a relay's worker, a node's daemon.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        let pid = self
            .runtime()?
            .get("pid")
            .and_then(Value::as_u64)
            .context("no pid")?;
        let pid = u32::try_from(pid)?;
        ensure!(process::alive(pid), "process {pid} of {} is gone", self.name);
        Ok(pid)
    }

    fn runtime(&self) -> Result<Value> {
        let worker = self.dir.join("worker/runtime.json");
        let path = if self.dir.join("worker").exists() {
            worker
        } else {
            self.dir.join("runtime.json")
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Nothing passes the member's wire any more, either way: its host has vanished.
    pub fn cut(&self) {
        self.wire.set_both(Weather::clear().cut());
    }

    /// Makes the weather of the member's wire.
    pub fn weather(&self, weather: Weather) {
        self.wire.set_both(weather);
    }

    /// Kills the member's daemon with SIGKILL: a relay's worker lives on without its supervisor.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_daemon(&self) -> Result<()> {
        let mut child = self.taken()?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks a node's daemon to end and waits for it; starts no other.
    ///
    /// # Errors
    /// When it does not run, or cannot be waited for.
    pub fn stop(&self) -> Result<()> {
        let mut child = self.taken()?;
        process::terminate(child.id())?;
        child.wait()?;
        Ok(())
    }

    fn taken(&self) -> Result<Child> {
        let child = self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take();
        child.with_context(|| format!("{} does not run", self.name))
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        let members = self.relays.iter().chain([&self.alpha, &self.beta]);
        for name in members.map(|m| m.name.as_str()).chain(["control"]) {
            let log = std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.get(lines.len().saturating_sub(LOG_TAIL_LINES)..);
            eprintln!("--- {name}\n{}", tail.unwrap_or_default().join("\n"));
        }
    }
}

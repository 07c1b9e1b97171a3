//! The package on machines that boot: a pool is built by the guide's steps on two of them, carries
//! bytes, and is hurt as service managers and operators do it.

use super::machine::Machine;
use anyhow::{Context, Result, ensure};
use fairlead_testkit::net::Side;
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Host, PingPong, Target, Wire, verified, wait};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Start, enrolment and readiness of a daemon on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Where programs on `one` reach the link.
const LISTEN: &str = "127.0.0.1:15432";
/// The number of the wire between the machines: its subnet.
const WIRE: u8 = 41;
/// What is said of each daemon: its unit, and the bound of its stop that the unit sets.
const UNITS: [(&str, Duration); 3] = [
    ("control", Duration::from_secs(30)),
    ("relay", Duration::from_secs(60)),
    ("node", Duration::from_secs(30)),
];

/// Two machines: the control plane is on the first, a relay and a node are on both. The link leads
/// from the first's node to the second's.
struct Pool {
    one: Machine,
    two: Machine,
    _wire: Wire,
    target: Target,
}

/// Boots two machines on copies of a root and goes through a pool's life on them.
pub(super) fn run(package: &Path, root: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(story(package, root))
}

async fn story(package: &Path, root: &Path) -> Result<()> {
    let began = Instant::now();
    let (one, two) = (Host::new("one")?, Host::new("two")?);
    let wire = Wire::between(&one, &two, WIRE)?;
    let target = Target::start_in(&two, Behaviour::Echo)?;
    let control = format!("{}:8443", wire.address(Side::A));
    let addresses = [Side::A, Side::B].map(|side| wire.address(side).to_string());
    let mut pool = Pool {
        one: machine("one", package, root, one).await?,
        two: machine("two", package, root, two).await?,
        _wire: wire,
        target,
    };
    say(began, "two machines have booted and have the package");
    pool.build(&control, &addresses).await?;
    say(began, "a pool is built by the guide's steps and passes `doctor`");
    pool.is_hardened()?;
    pool.relays_are_hurt().await?;
    pool.nodes_are_hurt().await?;
    pool.logs_are_json().await?;
    pool.is_upgraded()?;
    say(began, "an upgrade restarts nothing");
    pool.two.reboot().await?;
    pool.carries("after a reboot").await?;
    say(began, "a machine that boots again comes back by itself");
    pool.stops()?;
    pool.is_purged()?;
    say(began, "a purge ends the daemons and keeps their keys");
    Ok(())
}

fn say(began: Instant, what: &str) {
    println!("boot: {:>5.1} s: {what}", began.elapsed().as_secs_f64());
}

/// A machine with the package: installed, nothing started.
async fn machine(name: &'static str, package: &Path, root: &Path, host: Host) -> Result<Machine> {
    let own = root.with_file_name(format!("root-{name}"));
    super::copy(root, &own)?;
    let machine = Machine::boot(name, &own, host).await?;
    std::fs::copy(package, machine.path("fairlead.deb"))?;
    machine.run(&["dpkg", "-i", "/fairlead.deb"])?;
    let all = ["systemctl", "list-units", "--all", "--plain", "--no-legend"];
    let started = machine.run(&[&all[..], &["fairlead-*"]].concat())?;
    ensure!(started.is_empty(), "the package started something: {started}");
    Ok(machine)
}

impl Pool {
    /// The guide's "First pool".
    async fn build(&self, control: &str, addresses: &[String; 2]) -> Result<()> {
        let one = &self.one;
        set(one, "control", "advertise", control)?;
        one.run(&["systemctl", "enable", "--now", "fairlead-control"])?;
        let folder = "/var/lib/fairlead/control";
        let (ca, token) = (format!("{folder}/ca.pem"), format!("{folder}/admin.token"));
        let login = ["fairlead", "login", "--control", control];
        let files = ["--ca-file", &ca, "--token-file", &token];
        one.run(&[&login[..], &files[..]].concat())?;
        for (machine, number) in [(one, 1), (&self.two, 2)] {
            let (relay, rack) = (format!("relay-{number}"), format!("rack-{number}"));
            let address = addresses.get(number - 1).context("an address")?;
            let place = ["--address", address.as_str(), "--failure-domain", &rack];
            self.enrol(machine, &[&["relay", "add", &relay][..], &place[..]].concat())?;
            self.enrol(machine, &["node", "add", &format!("node-{number}")])?;
            let start = ["systemctl", "enable", "--now"];
            machine.run(&[&start[..], &["fairlead-relay", "fairlead-node"]].concat())?;
        }
        let ends = [
            "fairlead", "link", "add", "echo", "--from", "node-1", "--to", "node-2",
        ];
        let rest = ["--target", self.target.address(), "--listen", LISTEN];
        one.run(&[&ends[..], &rest[..], &["--class", "database"]].concat())?;
        self.stands().await?;
        one.run(&["fairlead", "doctor"])?;
        // Not a word of systemd's about units or daemons that behave oddly.
        for machine in [one, &self.two] {
            let warnings = ["journalctl", "--quiet", "--priority", "warning"];
            let said = machine.run(&[&warnings[..], &["--unit", "fairlead-*"]].concat())?;
            ensure!(said.is_empty(), "{said}");
        }
        Ok(())
    }

    /// Adds a member, and runs the command that this prints on the member's machine.
    fn enrol(&self, machine: &Machine, add: &[&str]) -> Result<()> {
        let issued = self.one.json(&[&["fairlead"], add, &["--json"]].concat())?;
        let text = |key: &str| issued.get(key).and_then(|v| v.as_str()).context("no command");
        let (command, token) = (text("install_command")?, text("token")?);
        let words: Vec<&str> = command.split_whitespace().collect();
        machine.run_with(&words, token)?;
        Ok(())
    }

    /// Waits until nothing needs attention.
    async fn stands(&self) -> Result<()> {
        wait::until("nothing needs attention", LIMIT, || async {
            let status = self.one.run(&["fairlead", "status"])?;
            ensure!(status.contains("nothing needs attention"), "{status}");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        Ok(())
    }

    fn connect(&self) -> Result<TcpStream> {
        let address: SocketAddr = LISTEN.parse()?;
        Ok(self.one.host().run(|| TcpStream::connect(address))??)
    }

    /// A new connection carries bytes, now or soon.
    async fn carries(&self, when: &str) -> Result<()> {
        let (_, took) = wait::until(&format!("the link carries bytes {when}"), LIMIT, || async {
            let stream = self.connect()?;
            stream.set_nonblocking(true)?;
            let mut stream = tokio::net::TcpStream::from_std(stream)?;
            tokio::time::timeout(Duration::from_secs(5), verified::echo_on(&mut stream, 7, 300_000)).await?
        })
        .await?;
        println!("boot: {when}: bytes after {took:?}");
        Ok(())
    }

    /// R-ENR-05: what the units forbid is forbidden to the processes.
    fn is_hardened(&self) -> Result<()> {
        for (unit, _) in UNITS {
            let pid = main_pid(&self.one, unit)?;
            let status = self.one.run(&["cat", &format!("/proc/{pid}/status")])?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.map(|rest| rest.split_whitespace().next().unwrap_or_default().to_owned())
                    .with_context(|| format!("{unit}: no {name} in {status}"))
            };
            ensure!(field("Uid:")? != "0", "{unit} runs as root");
            for set in ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
                let value = field(set)?;
                ensure!(value.trim_matches('0').is_empty(), "{unit}: {set} {value}");
            }
            ensure!(
                field("NoNewPrivs:")? == "1" && field("Seccomp:")? == "2",
                "{unit}: {status}"
            );
            let mounts = self.one.run(&["cat", &format!("/proc/{pid}/mountinfo")])?;
            let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/"));
            ensure!(
                root.is_some_and(|line| line.contains(" / ro,")),
                "{unit}: the root can be written: {root:?}"
            );
        }
        Ok(())
    }

    /// R-UPD-08 and F-04 under a service manager: restarts and kills of relays and of the control
    /// plane, each with one connection that lives through all of them.
    async fn relays_are_hurt(&self) -> Result<()> {
        let pings = PingPong::start(self.connect()?)?;
        pings.until_even(LIMIT).await?;
        let (one, two) = (&self.one, &self.two);
        let worker = worker_pid(one)?;
        self.hurt(&pings, "kill -9 of a supervisor", || {
            kill(one, &main_pid(one, "relay")?)
        })
        .await?;
        ensure!(worker_pid(one)? == worker, "the worker died with its supervisor");
        for (machine, name) in [(one, "one"), (two, "two")] {
            let restart = || machine.run(&["systemctl", "restart", "fairlead-relay"]).map(drop);
            self.hurt(&pings, &format!("restart of the relay on {name}"), restart)
                .await?;
            let kill = || kill(machine, &worker_pid(machine)?);
            self.hurt(&pings, &format!("kill -9 of the worker on {name}"), kill)
                .await?;
        }
        let restart = || one.run(&["systemctl", "restart", "fairlead-control"]).map(drop);
        self.hurt(&pings, "restart of the control plane", restart).await?;
        self.hurt(&pings, "kill -9 of the control plane", || {
            kill(one, &main_pid(one, "control")?)
        })
        .await?;
        two.run(&["systemctl", "stop", "fairlead-relay"])?;
        pings.until_even(LIMIT).await?;
        pings.begin();
        one.run(&["systemctl", "restart", "fairlead-relay"])?;
        pings.until_even(LIMIT).await?;
        println!("boot: restart of the only relay: gap of {:?}", pings.longest());
        self.carries("after the restart of the only relay").await?;
        two.run(&["systemctl", "start", "fairlead-relay"])?;
        self.stands().await?;
        pings.sound()
    }

    /// One blow: the connection goes on, and the pool stands again.
    async fn hurt(&self, pings: &PingPong, what: &str, blow: impl FnOnce() -> Result<()>) -> Result<()> {
        pings.begin();
        let began = Instant::now();
        blow().with_context(|| what.to_owned())?;
        pings
            .until_even(LIMIT)
            .await
            .with_context(|| format!("after the {what}"))?;
        // What is dead is noticed a moment later than it died: only then does standing mean a thing.
        for machine in [&self.one, &self.two] {
            active(machine, "fairlead-relay").await?;
        }
        active(&self.one, "fairlead-control").await?;
        self.stands().await.with_context(|| format!("after the {what}"))?;
        let (gap, whole) = (pings.longest(), began.elapsed());
        println!("boot: {what}: gap of {gap:?}, all stands after {whole:?}");
        pings.sound().with_context(|| format!("after the {what}"))
    }

    /// A node's own streams end with it; new ones work as soon as it is back.
    async fn nodes_are_hurt(&self) -> Result<()> {
        for (machine, name) in [(&self.one, "consumer"), (&self.two, "publisher")] {
            machine.run(&["systemctl", "restart", "fairlead-node"])?;
            self.carries(&format!("after a restart of the {name}")).await?;
            kill(machine, &main_pid(machine, "node")?)?;
            active(machine, "fairlead-node").await?;
            self.carries(&format!("after kill -9 of the {name}")).await?;
        }
        self.stands().await
    }

    /// The guide's "Logs": text by default, one JSON object a line where it is asked for.
    async fn logs_are_json(&self) -> Result<()> {
        for (unit, _) in UNITS {
            let name = format!("fairlead-{unit}");
            set(&self.one, unit, "log_format", "json")?;
            self.one.run(&["systemctl", "restart", &name])?;
            let invocation = self
                .one
                .run(&["systemctl", "show", "-p", "InvocationID", "--value", &name])?;
            let since = format!("_SYSTEMD_INVOCATION_ID={}", invocation.trim());
            let said = self.one.run(&["journalctl", "--output", "cat", &since])?;
            ensure!(said.lines().count() > 1, "{name} says nothing: {said}");
            for line in said.lines() {
                let object: serde_json::Value =
                    serde_json::from_str(line).with_context(|| format!("{name}: {line}"))?;
                for key in ["timestamp", "level", "target", "message"] {
                    ensure!(object.get(key).is_some_and(|v| v.is_string()), "no {key}: {line}");
                }
            }
        }
        self.carries("with logs in JSON").await
    }

    /// The guide's "Upgrade": the package restarts nothing by itself.
    fn is_upgraded(&self) -> Result<()> {
        let pids = || {
            UNITS
                .iter()
                .map(|(unit, _)| main_pid(&self.one, unit))
                .collect::<Result<Vec<_>>>()
        };
        let before = pids()?;
        self.one
            .run(&["dpkg", "-i", "--force-confold", "/fairlead.deb"])?;
        ensure!(pids()? == before, "an upgrade restarted a daemon");
        Ok(())
    }

    /// Every daemon stops by itself, in the time that its unit gives it, and leaves no process.
    fn stops(&self) -> Result<()> {
        for (unit, limit) in UNITS {
            let name = format!("fairlead-{unit}");
            let began = Instant::now();
            self.one.run(&["systemctl", "stop", &name])?;
            let took = began.elapsed();
            println!("boot: stop of {name}: {took:?}");
            ensure!(took < limit, "{name} took {took:?} to stop");
            let result = self
                .one
                .run(&["systemctl", "show", "-p", "Result", "--value", &name])?;
            ensure!(result.trim() == "success", "{name}: {result}");
        }
        no_process(&self.one)
    }

    fn is_purged(&self) -> Result<()> {
        ensure!(
            no_process(&self.two).is_err(),
            "nothing runs that a purge could end"
        );
        for machine in [&self.one, &self.two] {
            machine.run(&["dpkg", "--purge", "fairlead"])?;
            no_process(machine)?;
            // It fails where it lists nothing.
            let units = "systemctl list-unit-files --no-legend 'fairlead-*' || true";
            let left = machine.run(&["sh", "-c", units])?;
            ensure!(left.is_empty(), "a purge left units: {left}");
            for key in ["relay/identity/key.pem", "node/identity/key.pem", "host.key"] {
                let key = machine.path("var/lib/fairlead").join(key);
                ensure!(key.exists(), "{}: a purge took it", key.display());
            }
        }
        Ok(())
    }
}

/// A setting in the file of a daemon, in place of its default.
fn set(machine: &Machine, daemon: &str, key: &str, value: &str) -> Result<()> {
    let path = machine.path(&format!("etc/fairlead/{daemon}.toml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let others = text.lines().filter(|line| !line.starts_with(key));
    let mut lines: Vec<String> = others.map(str::to_owned).collect();
    lines.push(format!("{key} = \"{value}\"\n"));
    Ok(std::fs::write(&path, lines.join("\n"))?)
}

fn main_pid(machine: &Machine, unit: &str) -> Result<String> {
    let unit = format!("fairlead-{unit}");
    let pid = machine.run(&["systemctl", "show", "-p", "MainPID", "--value", &unit])?;
    ensure!(pid.trim() != "0", "{unit} does not run");
    Ok(pid.trim().to_owned())
}

fn worker_pid(machine: &Machine) -> Result<String> {
    let path = machine.path("var/lib/fairlead/relay/worker/runtime.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let runtime: serde_json::Value = serde_json::from_str(&text)?;
    let pid = runtime.get("pid").and_then(|pid| pid.as_u64());
    Ok(pid.context("no pid")?.to_string())
}

fn kill(machine: &Machine, pid: &str) -> Result<()> {
    machine.run(&["sh", "-c", &format!("kill -9 {pid}")]).map(drop)
}

/// Waits until a unit runs.
async fn active(machine: &Machine, unit: &str) -> Result<()> {
    wait::until(&format!("{unit} is active"), LIMIT, || async {
        machine.run(&["systemctl", "is-active", unit])
    })
    .await?;
    Ok(())
}

fn no_process(machine: &Machine) -> Result<()> {
    let script = "for p in /proc/[0-9]*; do readlink $p/exe; done | grep fairlead || true";
    let left = machine.run(&["sh", "-c", script])?;
    ensure!(left.is_empty(), "processes are left: {left}");
    Ok(())
}

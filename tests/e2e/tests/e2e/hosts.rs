//! Three hosts, each in a network of its own, joined by bad wires: what `up` does on one machine, done
//! by hand as an admin does it. The two nodes have no way to each other but the relay.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Answer, Host, Warden, Weather, Wire, binary, net::Side, pool, verified, wait};
use serde_json::Value;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The relay's host, at one address for both of its neighbours.
const CENTRE: &str = "10.9.0.1";
const CONTROL: &str = "10.9.0.1:8443";
const LISTEN: &str = "127.0.0.1:15432";
/// Start, enrolment and readiness of one daemon on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// A node tries again after 15 s at most (R-NOD-01); the rest is handshakes over a bad wire.
const BACK_LIMIT: Duration = Duration::from_secs(20);

struct Estate {
    centre: Host,
    alpha: Host,
    beta: Host,
    to_alpha: Wire,
    to_beta: Wire,
    dir: PathBuf,
    _warden: Warden,
}

impl Estate {
    fn new() -> Result<Self> {
        let (centre, alpha, beta) = (Host::new("centre")?, Host::new("alpha")?, Host::new("beta")?);
        let to_alpha = Wire::between(&alpha, &centre, 21)?;
        let to_beta = Wire::between(&beta, &centre, 22)?;
        centre.ip(&format!("addr add {CENTRE}/32 dev lo"))?;
        alpha.ip(&format!("route add {CENTRE} via 10.21.0.2"))?;
        beta.ip(&format!("route add {CENTRE} via 10.22.0.2"))?;
        let dir = tempfile::Builder::new().prefix("flh-").tempdir()?.keep();
        let _warden = Warden::over(&dir)?;
        Ok(Self {
            centre,
            alpha,
            beta,
            to_alpha,
            to_beta,
            dir,
            _warden,
        })
    }

    /// Starts a daemon on a host; the warden ends it.
    fn daemon(&self, host: &Host, role: &str, name: &str, more: &[&str]) -> Result<()> {
        let log = File::create(self.dir.join(format!("{name}.log")))?;
        let mut command = Command::new(binary::fairlead()?);
        command
            .args(["run", role, "--dir"])
            .arg(self.dir.join(name))
            .args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        host.run(|| command.spawn())??;
        Ok(())
    }

    fn admin(&self, arguments: &[&str]) -> Result<Answer> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("path");
        let (ca, token) = (
            self.dir.join("control/ca.pem"),
            self.dir.join("control/admin.token"),
        );
        let (ca, token) = (text(&ca)?, text(&token)?);
        let environment = [
            ("FAIRLEAD_CONTROL", CONTROL),
            ("FAIRLEAD_CA_FILE", ca.as_str()),
            ("FAIRLEAD_TOKEN_FILE", token.as_str()),
        ];
        self.centre.run(|| pool::run(arguments, "", &environment))?
    }

    /// Adds a member and runs the command that this prints on the member's host.
    fn enrol(&self, host: &Host, name: &str, add: &[&str]) -> Result<()> {
        let issued = self.admin(&[add, &["--json"]].concat())?.json()?;
        let command = issued
            .get("install_command")
            .and_then(Value::as_str)
            .context("no command")?;
        let folder = self.dir.join(name);
        let folder = folder.to_str().context("path")?;
        let command = command
            .replace("/var/lib/fairlead/relay", folder)
            .replace("/var/lib/fairlead/node", folder);
        let programs = binary::fairlead()?.parent().context("no folder")?.to_owned();
        let path = format!(
            "{}:{}",
            programs.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let output = host.run(|| {
            Command::new("sh")
                .args(["-c", &command])
                .env("PATH", path)
                .output()
        })??;
        ensure!(output.status.success(), "{name}: {output:?}");
        Ok(())
    }

    async fn state(&self, kind: &str, name: &str, wanted: &str) -> Result<()> {
        wait::until(&format!("{kind} {name} is {wanted}"), LIMIT, || async {
            let shown = self.admin(&[kind, "show", name, "--json"])?.json()?;
            let state = shown
                .get("state")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            ensure!(state == wanted, "{shown}");
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Everything up, with one link from alpha to a target on beta's host.
    async fn build(&self, target: &Target) -> Result<()> {
        self.daemon(
            &self.centre,
            "control",
            "control",
            &["--listen", CONTROL, "--advertise", CONTROL],
        )?;
        let answers = || async { self.admin(&["relay", "ls"])?.ok().map(drop) };
        wait::until("the control plane answers", LIMIT, answers).await?;
        let relay = [
            "relay",
            "add",
            "local",
            "--address",
            CENTRE,
            "--failure-domain",
            "centre",
            "--local",
        ];
        self.enrol(&self.centre, "local", &relay)?;
        self.daemon(&self.centre, "supervisor", "local", &[])?;
        for (host, name) in [(&self.alpha, "alpha"), (&self.beta, "beta")] {
            self.enrol(host, name, &["node", "add", name])?;
            self.daemon(host, "node", name, &[])?;
        }
        let target = target.address();
        let ends = [
            "link", "add", "db", "--from", "alpha", "--to", "beta", "--listen", LISTEN, "--target", target,
        ];
        self.admin(&ends)?.ok()?;
        self.state("relay", "local", "ready").await?;
        self.state("link", "db", "ready").await
    }

    /// One good connection from an application on alpha's host.
    async fn echo(&self, seed: u64, len: u64) -> Result<()> {
        let listen: SocketAddr = LISTEN.parse()?;
        verified::echo_on(&mut self.alpha.connect(listen)?, seed, len).await
    }

    async fn echo_within(&self, what: &str, limit: Duration) -> Result<()> {
        let ((), took) = wait::until(what, limit, || async {
            tokio::time::timeout(Duration::from_secs(4), self.echo(7, 1000)).await?
        })
        .await?;
        println!("{what}: {took:?}");
        Ok(())
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        for name in ["control", "local", "alpha", "beta"] {
            let log = std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.get(lines.len().saturating_sub(20)..).unwrap_or_default();
            eprintln!("--- {name}\n{}", tail.join("\n"));
        }
    }
}

/// R-GEN-02, R-NOD-01: nodes need an outbound way to their relay and no other; bytes are whole over
/// wires with delay and loss; a wire that was cut, one way or both, or unplugged, heals by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_on_hosts_of_their_own_reach_each_other_over_bad_wires() -> Result<()> {
    let estate = Estate::new()?;
    let target = Target::start_in(&estate.beta, Behaviour::Echo)?;
    estate.build(&target).await?;
    let between = estate.alpha.run(|| {
        let beta: SocketAddr = "10.22.0.1:22".parse()?;
        anyhow::Ok(std::net::TcpStream::connect_timeout(&beta, Duration::from_millis(300)).is_ok())
    })??;
    ensure!(!between, "alpha has a way to beta past the relay");

    let bad = Weather::clear()
        .delay(Duration::from_millis(10))
        .jitter(Duration::from_millis(2))
        .loss(0.005);
    estate.to_alpha.set_both(bad);
    estate.to_beta.set_both(bad);
    estate
        .echo(1, 5_000_000)
        .await
        .context("over 10 ms and 0.5 % loss")?;
    for wire in [&estate.to_alpha, &estate.to_beta] {
        let counts = wire.counts(Side::A);
        ensure!(
            counts.lost > 0 && counts.passed > 1000,
            "the wire did nothing: {counts:?}"
        );
    }
    estate.to_alpha.set_both(Weather::clear());
    estate.to_beta.set_both(Weather::clear());

    // Neither cut may outlast its end: first what beta says, then what it hears, then the plug.
    estate.to_beta.set(Side::A, Weather::clear().cut());
    tokio::time::sleep(Duration::from_secs(3)).await;
    estate.to_beta.set(Side::A, Weather::clear());
    estate
        .echo_within("after beta could not be heard", BACK_LIMIT)
        .await?;
    estate.to_beta.set(Side::B, Weather::clear().cut());
    tokio::time::sleep(Duration::from_secs(3)).await;
    estate.to_beta.set(Side::B, Weather::clear());
    estate
        .echo_within("after beta could not hear", BACK_LIMIT)
        .await?;
    estate.to_alpha.link_down(&estate.alpha)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    estate.to_alpha.link_up(&estate.alpha)?;
    // What a pulled plug takes with it is the route.
    estate
        .alpha
        .ip(&format!("route replace {CENTRE} via 10.21.0.2"))?;
    estate.echo_within("after the plug was pulled", BACK_LIMIT).await
}

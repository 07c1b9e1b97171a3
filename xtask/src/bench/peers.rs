//! What users would pick instead: bore, and rathole with its Noise transport, from the registry.

use super::load::Subject;
use crate::{release, steps};
use anyhow::{Context, Result, bail};
use fairlead_testkit::target;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The names of their columns.
pub(super) const NAMES: [&str; 2] = ["bore", "rathole"];
/// The port that bore's client goes to; it cannot be chosen.
const BORE_CONTROL: u16 = 7835;
/// From the start of a tunnel's server to its port, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running tunnel of another maker. Dropped, its processes are killed.
pub(super) struct Peer {
    name: &'static str,
    address: SocketAddr,
    relay: Child,
    node: Child,
    _folder: tempfile::TempDir,
}

impl Peer {
    /// Starts it in front of `service`.
    pub(super) fn start(name: &'static str, service: SocketAddr) -> Result<Self> {
        match name {
            "bore" => bore(service),
            "rathole" => rathole(service),
            other => bail!("no peer `{other}`"),
        }
        .with_context(|| name.to_owned())
    }

    /// The tunnel once it reaches the service.
    pub(super) fn served(self) -> Result<Self> {
        super::load::until_served(self.address)?;
        Ok(self)
    }

    pub(super) fn subject(&self) -> Subject {
        Subject {
            name: self.name,
            address: self.address,
            relays: vec![self.relay.id()],
            nodes: vec![self.node.id()],
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for child in [&mut self.node, &mut self.relay] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn bore(service: SocketAddr) -> Result<Peer> {
    let program = installed("bore", &["bore-cli", "--locked"])?;
    if std::net::TcpListener::bind(("127.0.0.1", BORE_CONTROL)).is_err() {
        bail!("port {BORE_CONTROL}, which it needs, is taken");
    }
    let port = target::closed_port()?.port();
    let number = port.to_string();
    let relay = spawn(Command::new(&program).args(["server", "--min-port", "1024", "--max-port", "65535"]))?;
    let relay = until_listens(relay, ([127, 0, 0, 1], BORE_CONTROL).into())?;
    let ends = [
        "local",
        &service.port().to_string(),
        "--to",
        "127.0.0.1",
        "--port",
        &number,
    ];
    let node = spawn(Command::new(&program).args(ends))?;
    Ok(Peer {
        name: "bore",
        address: ([127, 0, 0, 1], port).into(),
        relay,
        node,
        _folder: tempfile::tempdir()?,
    })
}

fn rathole(service: SocketAddr) -> Result<Peer> {
    let only = [
        "rathole",
        "--no-default-features",
        "--features",
        "server,client,noise",
    ];
    let program = installed("rathole", &only)?;
    let keys = Command::new(&program).arg("--genkey").output()?;
    let keys = String::from_utf8_lossy(&keys.stdout).into_owned();
    let after = |title: &str| -> Result<String> {
        let mut lines = keys.lines().skip_while(|line| !line.starts_with(title)).skip(1);
        Ok(lines
            .next()
            .with_context(|| format!("no {title} from --genkey"))?
            .to_owned())
    };
    let (private, public) = (after("Private Key")?, after("Public Key")?);
    let (control, address) = (target::closed_port()?, target::closed_port()?);
    let folder = tempfile::tempdir()?;
    let server = format!(
        "[server]\nbind_addr = \"{control}\"\ndefault_token = \"bench\"\n\
         [server.transport]\ntype = \"noise\"\n[server.transport.noise]\nlocal_private_key = \"{private}\"\n\
         [server.services.bench]\nbind_addr = \"{address}\"\n"
    );
    let client = format!(
        "[client]\nremote_addr = \"{control}\"\ndefault_token = \"bench\"\n\
         [client.transport]\ntype = \"noise\"\n[client.transport.noise]\nremote_public_key = \"{public}\"\n\
         [client.services.bench]\nlocal_addr = \"{service}\"\n"
    );
    let start = |role: &str, settings: &str| -> Result<Child> {
        let path = folder.path().join(format!("{role}.toml"));
        std::fs::write(&path, settings)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        spawn(Command::new(&program).arg(format!("--{role}")).arg(&path))
    };
    let relay = until_listens(start("server", &server)?, control)?;
    let node = start("client", &client)?;
    Ok(Peer {
        name: "rathole",
        address,
        relay,
        node,
        _folder: folder,
    })
}

/// The program in the target folder; installed there from the registry when it is not.
fn installed(program: &str, package: &[&str]) -> Result<PathBuf> {
    let root = release::target_folder()?.join("peers");
    let path = root.join("bin").join(program);
    if !path.exists() {
        eprintln!("bench: installing {program} (once, a few minutes)");
        let mut install = Command::new(release::cargo());
        install
            .args(["install", "--quiet", "--root"])
            .arg(&root)
            .args(package);
        install.env("CARGO_TARGET_DIR", root.join("build"));
        // Below nobody's work tree: their settings for cargo are not ours.
        install.current_dir(existing(&root)?);
        steps::run_command(&mut install)?;
    }
    Ok(path)
}

fn existing(folder: &Path) -> Result<&Path> {
    std::fs::create_dir_all(folder)?;
    Ok(folder)
}

fn spawn(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().with_context(|| format!("{command:?}"))
}

fn until_listens(mut child: Child, address: SocketAddr) -> Result<Child> {
    let start = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("ended with {status}");
        }
        if start.elapsed() > START_LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            bail!("does not listen on {address}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

//! A pool of real processes: `fairlead up`, driven through its contract.

mod cli;
mod disks;
mod file;
mod rest;
mod traffic;

pub use cli::{Answer, run, run_command, run_printed};
pub use disks::fill_up;
pub use file::{ControlEntry, LinkEntry, NodeEntry, PoolFile, RelayEntry};
pub use rest::Rest;
pub use traffic::Kills;

use crate::{Warden, binary, process, wait};
use anyhow::{Context, Result, bail};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A pool is ready within this on two busy cores, or something is wrong with it.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// A process that was killed is back within this: its manager's first back-off and its start.
pub const BACK_LIMIT: Duration = Duration::from_secs(15);

/// How many lines of each log a failed test shows.
const LOG_TAIL_LINES: usize = 25;

/// A process of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role<'a> {
    /// The control plane.
    Control,
    /// The supervisor of the named relay.
    Supervisor(&'a str),
    /// The worker of the named relay.
    Worker(&'a str),
    /// The daemon of the named node.
    Node(&'a str),
}

/// What kind of pool a test wants.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    relays: usize,
    links: Vec<String>,
    auto_ports: bool,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    program: Option<PathBuf>,
    disks: Vec<disks::SmallDisk>,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            relays: 2,
            links: Vec::new(),
            auto_ports: true,
            environment: Vec::new(),
            arguments: Vec::new(),
            program: None,
            disks: Vec::new(),
        }
    }
}

impl PoolBuilder {
    /// How many relays beside the local one; 2 by default.
    #[must_use]
    pub fn relays(mut self, count: usize) -> Self {
        self.relays = count;
        self
    }

    /// Adds a link from `alpha` to `beta`: applications connect to `listen`, `beta` dials `target`.
    #[must_use]
    pub fn link(mut self, name: &str, listen: &str, target: &str) -> Self {
        self.links.push(format!("{name}={listen},to={target}"));
        self
    }

    /// Adds a link to `target` that listens on a free port: [`Pool::listen`] tells which.
    ///
    /// # Errors
    /// When no port is free.
    pub fn to(self, name: &str, target: &str) -> Result<Self> {
        let listen = crate::target::closed_port()?;
        Ok(self.link(name, &listen.to_string(), target))
    }

    /// [`PoolBuilder::link`] with a service class.
    #[must_use]
    pub fn link_of_class(mut self, name: &str, listen: &str, target: &str, class: &str) -> Self {
        self.links
            .push(format!("{name}={listen},to={target},class={class}"));
        self
    }

    /// The ports of a real pool (8443, 9443): for tests in a network namespace of their own.
    #[must_use]
    pub fn fixed_ports(mut self) -> Self {
        self.auto_ports = false;
        self
    }

    /// A variable of every process of the pool.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Another argument of `fairlead up`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Another build than the one under test.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// Starts the pool and returns when `pool.json` says that it is ready.
    ///
    /// # Errors
    /// When it is not ready within [`READY_LIMIT`], with the tail of its logs.
    pub async fn start(self) -> Result<Pool> {
        let dir = tempfile::Builder::new().prefix("flp-").tempdir()?.keep();
        let warden = Warden::over(&dir)?;
        let up = self.spawn(&dir)?;
        let mut pool = Pool {
            up,
            dir,
            builder: self,
            hushed: false,
            _warden: warden,
        };
        let start = std::time::Instant::now();
        while !pool.pool_file_path().exists() {
            if let Some(status) = pool.up.try_wait()? {
                bail!("`fairlead up` ended with {status}\n{}", pool.log_tails());
            }
            if start.elapsed() > READY_LIMIT {
                bail!(
                    "the pool is not ready after {READY_LIMIT:?}\n{}",
                    pool.log_tails()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(pool)
    }

    fn spawn(&self, dir: &Path) -> Result<Child> {
        let out = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("up.out"))?;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => binary::fairlead()?,
        };
        let mut command = disks::command(&self.disks, dir, program);
        command
            .arg("up")
            .arg("--dir")
            .arg(dir)
            .args(["--relays", &self.relays.to_string()]);
        if self.auto_ports {
            command.args(["--ports", "auto"]);
        }
        for link in &self.links {
            command.arg("--link").arg(link);
        }
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        command.spawn().context("cannot start `fairlead up`")
    }
}

/// A running pool. Dropped, it shows the tail of its logs, is killed, and its folder removed.
#[derive(Debug)]
pub struct Pool {
    up: Child,
    dir: PathBuf,
    builder: PoolBuilder,
    hushed: bool,
    // After `up`: it kills what `up` left behind, and removes the folder.
    _warden: Warden,
}

impl Pool {
    /// A pool to be described.
    #[must_use]
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// The pool's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process of `fairlead up`.
    #[must_use]
    pub fn up_pid(&self) -> u32 {
        self.up.id()
    }

    fn pool_file_path(&self) -> PathBuf {
        self.dir.join("pool.json")
    }

    /// The pool's file as it is at this moment.
    ///
    /// # Errors
    /// When it breaks its contract.
    pub fn file(&self) -> Result<PoolFile> {
        PoolFile::read(&self.pool_file_path())
    }

    /// Where applications reach a link.
    ///
    /// # Errors
    /// When there is no such link, or its listener has no address.
    pub fn listen(&self, link: &str) -> Result<SocketAddr> {
        self.file()?.listen(link)
    }

    /// A REST client with the first admin's token.
    ///
    /// # Errors
    /// When CA or token cannot be read.
    pub fn rest(&self) -> Result<Rest> {
        Rest::new(&self.file()?)
    }

    /// The control plane's `HOST:PORT`.
    ///
    /// # Errors
    /// When the pool's file has no such URL.
    pub fn control_address(&self) -> Result<SocketAddr> {
        let file = self.file()?;
        let rest = file
            .control
            .url
            .strip_prefix("https://")
            .context("no https URL")?;
        rest.trim_end_matches('/')
            .to_socket_addrs()?
            .next()
            .context("no address")
    }

    /// Runs the CLI as this pool's admin.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn cli(&self, arguments: &[&str]) -> Result<Answer> {
        self.cli_with(arguments, "", &[])
    }

    /// [`Pool::cli`] with standard input and variables.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn cli_with(&self, arguments: &[&str], input: &str, env: &[(&str, &str)]) -> Result<Answer> {
        let control = self.file()?.control;
        let mut command = Command::new(binary::fairlead()?);
        command.args(arguments);
        command.env("FAIRLEAD_CONTROL", self.control_address()?.to_string());
        command.env("FAIRLEAD_CA_FILE", control.ca_file);
        command.env("FAIRLEAD_TOKEN_FILE", control.admin_token_file);
        command.envs(env.iter().copied());
        cli::run_command(command, input)
    }

    /// The process that plays a role at this moment.
    ///
    /// # Errors
    /// When the pool's file has none.
    pub fn pid(&self, role: Role<'_>) -> Result<u32> {
        let file = self.file()?;
        Ok(match role {
            Role::Control => file.control.pid,
            Role::Supervisor(name) => file.relay(name)?.supervisor_pid,
            Role::Worker(name) => file.relay(name)?.worker_pid,
            Role::Node(name) => file.node(name)?.pid,
        })
    }

    /// Kills the process of a role with SIGKILL and returns its pid.
    ///
    /// # Errors
    /// When it is not there.
    pub fn kill9(&self, role: Role<'_>) -> Result<u32> {
        let pid = self.pid(role)?;
        process::kill9(pid)?;
        Ok(pid)
    }

    /// Waits until another process than `old` plays the role and lives.
    ///
    /// # Errors
    /// When none does within [`BACK_LIMIT`].
    pub async fn back(&self, role: Role<'_>, old: u32) -> Result<u32> {
        let (pid, _) = wait::until(&format!("{role:?} is back"), BACK_LIMIT, || async {
            match self.pid(role) {
                Ok(pid) if pid != old && process::alive(pid) => Ok(pid),
                Ok(pid) => Err(format!("pid {pid}, was {old}")),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        Ok(pid)
    }

    /// Waits until nodes have what a link needs, from the first byte to the echo of `probe`.
    ///
    /// # Errors
    /// When `probe` does not succeed within `limit`.
    pub async fn until_echo(&self, link: &str, limit: Duration) -> Result<Duration> {
        let ((), took) = wait::until(&format!("link {link} echoes"), limit, || async {
            let address = self.listen(link)?;
            crate::verified::echo_once(address, 1, 64).await
        })
        .await?;
        Ok(took)
    }

    /// Stops the pool as Ctrl-C does and returns how `up` ended.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub async fn stop(&mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        process::interrupt(self.up.id())?;
        self.ended(limit).await
    }

    /// Waits for `up` to end.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub async fn ended(&mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.up.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!("`fairlead up` still runs after {limit:?}\n{}", self.log_tails());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A variable of every process of the pool from its next start on.
    pub fn set_env(&mut self, key: &str, value: &str) {
        self.builder.environment.push((key.to_owned(), value.to_owned()));
    }

    /// Other links, each a name, a listen address and a target, from the pool's next start on.
    pub fn set_links(&mut self, links: &[(&str, &str, &str)]) {
        let link = |(name, listen, target): &(&str, &str, &str)| format!("{name}={listen},to={target}");
        self.builder.links = links.iter().map(link).collect();
    }

    /// Starts the stopped pool again in its folder.
    ///
    /// # Errors
    /// As [`PoolBuilder::start`].
    pub async fn start_again(&mut self) -> Result<()> {
        let _ = std::fs::remove_file(self.pool_file_path());
        self.up = self.builder.spawn(&self.dir)?;
        let (path, up) = (self.pool_file_path(), self.up.id());
        wait::until_true("the pool is ready again", READY_LIMIT, || {
            path.exists() || !process::alive(up)
        })
        .await?;
        if !process::alive(up) {
            bail!("`fairlead up` ended\n{}", self.log_tails());
        }
        Ok(())
    }

    /// All went well with it: its logs are not shown when it goes.
    pub fn hush(&mut self) {
        self.hushed = true;
    }

    /// The last lines of every log of the pool.
    #[must_use]
    pub fn log_tails(&self) -> String {
        let mut text = String::new();
        let logs = std::fs::read_dir(self.dir.join("logs"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path());
        let mut logs: Vec<PathBuf> = logs.chain([self.dir.join("up.out")]).collect();
        logs.sort();
        for log in logs {
            let content = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = content.lines().collect();
            let tail = lines
                .get(lines.len().saturating_sub(LOG_TAIL_LINES)..)
                .unwrap_or_default();
            text.push_str(&format!("--- {}\n{}\n", log.display(), tail.join("\n")));
        }
        text
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.hushed {
            // Test runners show this for tests that failed, and for them only.
            eprintln!("{}", self.log_tails());
        }
        // `up` first, so that it starts nothing again; the warden ends the rest.
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

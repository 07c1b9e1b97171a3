//! A host of its own: a network namespace with its own addresses, ports and loopback device.

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

/// A connection takes a round trip, or is refused; ten seconds are four lost SYNs.
const CONNECT_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// A host in a network namespace.
///
/// A small process holds the namespace and ends when its standard input closes, so that the
/// namespace is gone with the process that made it, even one that died of SIGKILL.
#[derive(Debug)]
pub struct Host {
    name: String,
    holder: Child,
    namespace: File,
}

impl Host {
    /// Makes a host with its loopback device up. `name` is for messages only.
    ///
    /// # Errors
    /// When namespaces are not allowed here: root is needed, or user namespaces
    /// (`unshare --user --map-root-user --net`).
    pub fn new(name: &str) -> Result<Self> {
        let script = "ip link set lo up && echo up && exec cat >/dev/null";
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run `unshare`")?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().context("no stdout")?).read_line(&mut line)?;
        if line.trim() != "up" {
            let output = holder.wait_with_output()?;
            bail!(
                "no network namespace for `{name}`: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let namespace = File::open(format!("/proc/{}/ns/net", holder.id()))?;
        Ok(Self {
            name: name.to_owned(),
            holder,
            namespace,
        })
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process that holds the namespace: `ip link set DEVICE netns PID`.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Runs `work` on a thread in this host and returns what it returns. Sockets that it makes, and
    /// processes and threads that it starts (those of a runtime too), belong to this host for ever.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.namespace.as_fd(), network).context("setns")?;
                Ok(work())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Connects from this host; the connection is served by the runtime of the caller.
    ///
    /// # Errors
    /// When the host cannot be entered, or nobody answers within 10 s.
    pub fn connect(&self, address: std::net::SocketAddr) -> Result<tokio::net::TcpStream> {
        let stream = self.run(|| std::net::TcpStream::connect_timeout(&address, CONNECT_LIMIT))??;
        stream.set_nonblocking(true)?;
        Ok(tokio::net::TcpStream::from_std(stream)?)
    }

    /// Runs a test's future on a runtime of its own in this host.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the future fails.
    pub fn block_on<T: Send>(&self, future: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(future)
        })?
    }

    /// Runs `ip` in this host.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        self.command("ip", &arguments.split_whitespace().collect::<Vec<_>>())
    }

    /// Loads nftables rules in this host: loss by `numgen`, drops by port or address.
    ///
    /// # Errors
    /// When `nft` is missing or refuses them.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.command("nft", &[rules])
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let output = self.run(|| Command::new(program).args(arguments).output())??;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{}: {program} {}: {}",
                self.name,
                arguments.join(" "),
                error.trim()
            );
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

//! A PostgreSQL server of its own for one test: a fresh cluster, a free port, gone afterwards.

mod workload;

pub use workload::{Ended, Workload};

use crate::{Warden, wait};
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A start on a busy machine, with recovery, takes a second or two.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Where Debian keeps the servers, one folder a version.
const SERVERS: &str = "/usr/lib/postgresql";

/// A running server; `postgres` without a password is its superuser.
#[derive(Debug)]
pub struct Postgres {
    address: SocketAddr,
    bin: PathBuf,
    _warden: Warden,
}

impl Postgres {
    /// Makes a cluster below the system's folder of temporary files and starts it on a free port.
    ///
    /// # Errors
    /// When PostgreSQL is not installed, or does not start.
    pub async fn start() -> Result<Self> {
        let bin = bin_folder()?;
        let dir = tempfile::Builder::new().prefix("flpg-").tempdir()?.keep();
        let warden = Warden::over(&dir)?;
        if Owner::here() == Owner::ServersUser {
            run(Command::new("chown").arg("postgres:postgres").arg(&dir))?;
        }
        let port = crate::target::closed_port()?.port();
        let data = dir.join("data");
        run(as_owner(&bin.join("initdb"), &dir).arg("-D").arg(&data).args([
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        ]))?;
        let log = std::fs::File::create(dir.join("postgres.log"))?;
        let server = as_owner(&bin.join("postgres"), &dir)
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={port}")])
            .args(["-c", &format!("unix_socket_directories={}", dir.display())])
            .args([
                "-c",
                "shared_buffers=64MB",
                "-c",
                "max_connections=120",
                "-c",
                "fsync=off",
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let pid = server.id();
        let postgres = Self {
            address,
            bin,
            _warden: warden,
        };
        let ready = wait::until("PostgreSQL answers", START_LIMIT, || async {
            postgres.query(address, "select 1").map(drop)
        });
        if let Err(error) = ready.await {
            let log = std::fs::read_to_string(dir.join("postgres.log")).unwrap_or_default();
            bail!("{error:#}; process {pid}\n{log}");
        }
        Ok(postgres)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs SQL with `psql` through `address` and returns what it prints, unaligned.
    ///
    /// # Errors
    /// When `psql` fails, with what it said.
    pub fn query(&self, address: SocketAddr, sql: &str) -> Result<String> {
        let mut psql = self.client("psql", address);
        let output = run(psql.args(["-d", "postgres", "-v", "ON_ERROR_STOP=1", "-Atqc", sql]))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// `pgbench` through `address`, to be given its arguments.
    #[must_use]
    pub fn pgbench(&self, address: SocketAddr) -> Command {
        self.client("pgbench", address)
    }

    /// A client program that connects to `address` as the superuser.
    #[must_use]
    pub fn client(&self, program: &str, address: SocketAddr) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.args([
            "-h",
            &address.ip().to_string(),
            "-p",
            &address.port().to_string(),
            "-U",
            "postgres",
        ]);
        command.env("PGCONNECT_TIMEOUT", "20").env("PGSSLMODE", "prefer");
        command
    }
}

/// The newest server's programs.
fn bin_folder() -> Result<PathBuf> {
    let versions = std::fs::read_dir(SERVERS).into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|e| Some((e.file_name().to_str()?.parse::<u32>().ok()?, e.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists() && bin.join("pgbench").exists())
        .max();
    Ok(newest
        .with_context(|| format!("no PostgreSQL below {SERVERS}: install `postgresql`"))?
        .1)
}

/// Who runs the server, which refuses to run as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This process's own user, who is not root.
    Myself,
    /// Root on a whole machine lends it to the user that the package made.
    ServersUser,
    /// Root of a user namespace with no other user: a namespace inside, where it has another number.
    AnotherNumber,
}

impl Owner {
    fn here() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self::Myself;
        }
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let users: u64 = map
            .lines()
            .filter_map(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok())
            .sum();
        if users > 1 {
            Self::ServersUser
        } else {
            Self::AnotherNumber
        }
    }
}

fn as_owner(program: &Path, home: &Path) -> Command {
    let mut command = match Owner::here() {
        Owner::Myself => Command::new("env"),
        Owner::ServersUser => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "env"]);
            command
        }
        Owner::AnotherNumber => {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-user=1000", "--map-group=1000", "env"]);
            command
        }
    };
    command
        .arg("LC_ALL=C")
        .arg(format!("HOME={}", home.display()))
        .arg(program);
    command
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {error}", output.status);
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_answers_and_leaves_nothing_behind() {
        let postgres = Postgres::start().await.unwrap();
        assert_eq!(postgres.query(postgres.address(), "select 6 * 7").unwrap(), "42");
        assert!(
            postgres
                .query(postgres.address(), "select no_such_thing")
                .is_err()
        );
        let dir = postgres._warden.dir().to_owned();
        drop(postgres);
        assert!(!dir.exists() && crate::process::with_argument(dir.to_str().unwrap()).is_empty());
    }
}

//! `pgbench` and an open transaction beside it, and the criterion that both came through: no client
//! aborts, and the database holds what the clients were told.

use super::{Postgres, run};
use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::thread::JoinHandle;

/// Clients of `pgbench`, and its scale: few enough rows that clients meet, and enough to move.
const CLIENTS: &str = "8";
const SCALE: &str = "2";

/// A running workload.
#[derive(Debug)]
pub struct Workload {
    bench: JoinHandle<std::io::Result<Output>>,
    open: JoinHandle<std::io::Result<Output>>,
}

/// How a workload ended, without a fault of any client.
#[derive(Debug)]
pub struct Ended {
    /// What `pgbench` printed.
    pub report: String,
    /// How many transactions it was told are committed.
    pub processed: u64,
}

impl Workload {
    /// Makes the tables through `address` and starts both, for `seconds`. On a host of its own this is
    /// to be called within [`crate::Host::run`].
    ///
    /// # Errors
    /// When the tables cannot be made.
    pub fn start(postgres: &Postgres, address: SocketAddr, seconds: u32) -> Result<Self> {
        run(postgres
            .pgbench(address)
            .args(["-i", "-s", SCALE, "-q", "postgres"]))?;
        let mut bench = postgres.pgbench(address);
        bench.args(["-c", CLIENTS, "-j", "2", "--no-vacuum"]);
        bench.args(["-T", &seconds.to_string(), "postgres"]);
        let mut open = postgres.client("psql", address);
        let slow = format!(
            "begin; create table kept (n int); insert into kept values (1); \
             select pg_sleep({}); insert into kept values (2); commit",
            seconds.saturating_sub(5)
        );
        open.args(["-d", "postgres", "-v", "ON_ERROR_STOP=1", "-qc", &slow]);
        let start = |mut command: Command| std::thread::spawn(move || command.output());
        Ok(Self {
            bench: start(bench),
            open: start(open),
        })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        !self.bench.is_finished()
    }

    /// Waits for both to end.
    ///
    /// # Errors
    /// When either fails, or a client of `pgbench` aborts.
    pub fn finish(self) -> Result<Ended> {
        let done = |thread: JoinHandle<std::io::Result<Output>>| -> Result<Output> {
            let output = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client's thread ended"))??;
            ensure!(output.status.success(), "{output:?}");
            Ok(output)
        };
        let (bench, _) = (done(self.bench)?, done(self.open)?);
        let report = String::from_utf8_lossy(&bench.stdout).into_owned();
        ensure!(!report.contains("aborted"), "{report}");
        ensure!(count(&report, "number of failed transactions:")? == 0, "{report}");
        let processed = count(&report, "number of transactions actually processed:")?;
        Ok(Ended { report, processed })
    }
}

impl Postgres {
    /// Asks the server, past any link, whether it holds what the workload's clients were told.
    ///
    /// # Errors
    /// When a transaction is missing or there twice.
    pub fn holds_what_was_told(&self, ended: &Ended) -> Result<()> {
        let ask = |sql| self.query(self.address(), sql);
        let rows = ask("select count(*) from pgbench_history")?;
        ensure!(
            rows == ended.processed.to_string(),
            "{rows} rows of {}",
            ended.processed
        );
        let deltas = ask("select sum(delta) from pgbench_history")?;
        let balances = ask("select sum(abalance) from pgbench_accounts")?;
        ensure!(
            deltas == balances,
            "sum(delta) {deltas}, sum(abalance) {balances}"
        );
        ensure!(
            ask("select count(*) from kept")? == "2",
            "the open transaction is not there"
        );
        Ok(())
    }
}

fn count(report: &str, label: &str) -> Result<u64> {
    let line = report.lines().find_map(|l| l.strip_prefix(label));
    let line = line.with_context(|| report.to_owned())?.trim();
    let number = line
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap_or_default();
    number.parse().with_context(|| line.to_owned())
}

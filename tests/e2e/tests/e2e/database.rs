//! `psql` and `pgbench` through a `database` link to a real PostgreSQL.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Postgres, target};
use std::net::SocketAddr;
use std::time::Duration;

async fn pool_with_database(postgres: &Postgres) -> Result<(Pool, SocketAddr)> {
    let listen = target::closed_port()?;
    let target = postgres.address().to_string();
    let builder = Pool::builder().link_of_class("db", &listen.to_string(), &target, "database");
    Ok((builder.start().await?, listen))
}

/// R-GEN-01: supported private traffic; a database's wire protocol passes unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_and_pgbench_pass_through_a_database_link() -> Result<()> {
    let postgres = Postgres::start().await?;
    let (pool, link) = pool_with_database(&postgres).await?;
    ensure!(
        pool.file()?
            .links
            .iter()
            .any(|l| l.name == "db" && l.class == "database")
    );
    ensure!(postgres.query(link, "select 6 * 7")? == "42");
    // A result much larger than any buffer on the way.
    let rows =
        "select sum(length(t)) from (select repeat(md5(i::text), 100) t from generate_series(1, 20000) i) s";
    ensure!(postgres.query(link, rows)? == "64000000");

    run(postgres.pgbench(link).args(["-i", "-s", "2", "-q", "postgres"]))?;
    let report =
        run(postgres
            .pgbench(link)
            .args(["-c", "8", "-j", "2", "-T", "10", "--no-vacuum", "postgres"]))?;
    let count = |label: &str| -> Result<u64> {
        let line = report
            .lines()
            .find_map(|l| l.strip_prefix(label))
            .with_context(|| report.clone())?;
        let number = line
            .trim()
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap_or_default();
        number.parse().with_context(|| line.to_owned())
    };
    let processed = count("number of transactions actually processed:")?;
    ensure!(processed > 100, "{report}");
    ensure!(count("number of failed transactions:")? == 0, "{report}");
    ensure!(!report.contains("aborted"), "{report}");
    // Asked past the link: what the database holds is what the clients were told.
    let direct = postgres.address();
    ensure!(postgres.query(direct, "select count(*) from pgbench_history")? == processed.to_string());
    let deltas = postgres.query(direct, "select sum(delta) from pgbench_history")?;
    let balances = postgres.query(direct, "select sum(abalance) from pgbench_accounts")?;
    ensure!(
        deltas == balances,
        "sum(delta) {deltas}, sum(abalance) {balances}"
    );
    Ok(())
}

/// A client that is killed in the middle of a query is noticed by the server, and the link goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_client_ends_its_session_at_the_server() -> Result<()> {
    let postgres = Postgres::start().await?;
    let (_pool, link) = pool_with_database(&postgres).await?;
    let mut client = postgres
        .client("psql", link)
        .args(["-d", "postgres", "-c", "select pg_sleep(60)"])
        .spawn()?;
    let sleeping = || -> Result<bool> {
        let count = postgres.query(
            postgres.address(),
            "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'",
        )?;
        Ok(count != "0")
    };
    let limit = Duration::from_secs(20);
    fairlead_testkit::wait::until_true("the query runs", limit, || sleeping().unwrap_or(false)).await?;
    client.kill()?;
    client.wait()?;
    // The server looks at its socket when it is told to check; the sleep itself does not.
    let ended =
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where query = 'select pg_sleep(60)'";
    postgres.query(postgres.address(), ended)?;
    fairlead_testkit::wait::until_true("the session ends", limit, || !sleeping().unwrap_or(true)).await?;
    ensure!(postgres.query(link, "select 1")? == "1");
    Ok(())
}

fn run(command: &mut std::process::Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{error}",
        output.status
    );
    Ok(text)
}

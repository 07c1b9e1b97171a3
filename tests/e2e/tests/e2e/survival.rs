//! Streams that survive their relay: two sockets that notice nothing of a killed or stopped worker.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Pool, Postgres, Role, Target, process, target, verified};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const GIB: u64 = 1 << 30;
/// Between two kills: one worker of two dies at most every 8 s, which is no crash loop.
const KILL_EVERY: Duration = Duration::from_secs(4);
/// F-04: no gap is longer.
const GAP_MAX: Duration = Duration::from_secs(3);

/// How often alpha's streams were moved.
async fn moves(pool: &Pool) -> Result<f64> {
    let metrics = Scrape::of(&pool.file()?.node("alpha")?.metrics).await?;
    Ok(metrics
        .sum("fairlead_stream_moves_total", &[])
        .unwrap_or_default())
}

/// The relay that carries most at this moment.
async fn carrying(pool: &Pool) -> Result<String> {
    let look = async || -> Result<Vec<(String, f64)>> {
        let mut carried = Vec::new();
        for relay in pool.file()?.relays {
            // One that is being started again carries nothing.
            let bytes = match Scrape::of(&relay.metrics).await {
                Ok(metrics) => metrics
                    .sum("fairlead_relayed_bytes_total", &[])
                    .unwrap_or_default(),
                Err(_) => 0.0,
            };
            carried.push((relay.name, bytes));
        }
        Ok(carried)
    };
    let before = look().await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let grown = look().await?.into_iter().zip(before);
    let grown = grown.map(|((name, after), (_, before))| (name, after - before));
    let most = grown.max_by(|a, b| a.1.total_cmp(&b.1));
    Ok(most.context("no relay")?.0)
}

/// Kills the carrying worker every few seconds for as long as `traffic` lasts; gives its result and
/// how many were killed.
async fn under_kills<T>(pool: &Pool, traffic: impl Future<Output = Result<T>>) -> Result<(T, usize)> {
    let kills = Cell::new(0);
    let done = tokio::select! {
        done = traffic => done?,
        ended = kill_for_ever(pool, &kills) => match ended? {},
    };
    Ok((done, kills.get()))
}

async fn kill_for_ever(pool: &Pool, kills: &Cell<usize>) -> Result<Infallible> {
    loop {
        tokio::time::sleep(KILL_EVERY).await;
        let relay = carrying(pool).await?;
        let old = pool.kill9(Role::Worker(&relay))?;
        kills.set(kills.get() + 1);
        println!("killed the worker of {relay}");
        pool.back(Role::Worker(&relay), old).await?;
    }
}

/// F-04, R-STR-01: a gibibyte both ways at once while the carrying worker is killed every few seconds:
/// hashes equal, no socket error, no long gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_gibibyte_each_way_survives_kills() -> Result<()> {
    let behaviour = Behaviour::BothWays {
        send: 31,
        expect: 32,
        len: GIB,
    };
    let target = Target::start(behaviour).await?;
    let pool = Pool::builder()
        .relays(2)
        .to("bulk", target.address())?
        .start()
        .await?;
    let mut stream = TcpStream::connect(pool.listen("bulk")?).await?;
    let start = Instant::now();
    let (mut read, mut write) = stream.split();
    let traffic = async {
        let sending = async {
            let hash = verified::send(&mut write, 32, GIB).await?;
            write.shutdown().await.context("shutdown")?;
            Ok(hash)
        };
        let (_, received) = tokio::try_join!(sending, verified::receive_to_end(&mut read, 31, GIB))?;
        Ok(received)
    };
    let (received, kills) = under_kills(&pool, traffic).await?;
    let outcome = target.outcome(Duration::from_secs(20)).await?;
    ensure!(outcome.error.is_none() && outcome.received == GIB, "{outcome:?}");
    ensure!(received.bytes == GIB);
    let moves = moves(&pool).await?;
    println!(
        "{kills} kills, {moves} moves, {:.1} s, longest gap {:?}",
        start.elapsed().as_secs_f64(),
        received.longest_gap
    );
    ensure!(kills >= 1, "too fast to be killed");
    ensure!(moves >= kills as f64, "{moves} moves for {kills} kills");
    ensure!(
        received.longest_gap < GAP_MAX,
        "a gap of {:?}",
        received.longest_gap
    );
    Ok(())
}

/// `pgbench` lives through kill -9 of the carrying worker, again and again, and so does a transaction
/// that is open throughout: no client aborts, and the database holds what the clients were told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_pgbench_survives_kills() -> Result<()> {
    let postgres = Postgres::start().await?;
    let listen = target::closed_port()?;
    let pool = Pool::builder()
        .relays(2)
        .link_of_class(
            "db",
            &listen.to_string(),
            &postgres.address().to_string(),
            "database",
        )
        .start()
        .await?;
    let init = postgres
        .pgbench(listen)
        .args(["-i", "-s", "2", "-q", "postgres"])
        .output()?;
    ensure!(init.status.success(), "{init:?}");
    let mut bench = postgres.pgbench(listen);
    bench.args(["-c", "8", "-j", "2", "-T", "25", "--no-vacuum", "postgres"]);
    let mut open = postgres.client("psql", listen);
    let slow = "begin; create table kept (n int); insert into kept values (1); select pg_sleep(20); \
                insert into kept values (2); commit";
    open.args(["-d", "postgres", "-v", "ON_ERROR_STOP=1", "-qc", slow]);
    let traffic = async {
        let bench = tokio::task::spawn_blocking(move || bench.output());
        let open = tokio::task::spawn_blocking(move || open.output());
        Ok((bench.await??, open.await??))
    };
    let ((bench, open), kills) = under_kills(&pool, traffic).await?;
    let report = String::from_utf8_lossy(&bench.stdout).into_owned();
    println!("{kills} kills, {} moves\n{report}", moves(&pool).await?);
    ensure!(bench.status.success(), "{bench:?}");
    ensure!(open.status.success(), "{open:?}");
    ensure!(kills >= 3, "{kills} kills");
    ensure!(!report.contains("aborted"), "{report}");
    let processed = report
        .lines()
        .find_map(|l| l.strip_prefix("number of transactions actually processed:"))
        .map(|l| {
            l.trim()
                .chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        })
        .context("no count")?;
    // Asked past the link.
    let direct = postgres.address();
    ensure!(postgres.query(direct, "select count(*) from pgbench_history")? == processed);
    let deltas = postgres.query(direct, "select sum(delta) from pgbench_history")?;
    let balances = postgres.query(direct, "select sum(abalance) from pgbench_accounts")?;
    ensure!(
        deltas == balances,
        "sum(delta) {deltas}, sum(abalance) {balances}"
    );
    ensure!(postgres.query(direct, "select count(*) from kept")? == "2");
    Ok(())
}

/// A worker that is stopped keeps its sockets, and its kernel goes on acknowledging: streams leave it
/// in about 3 s. When it goes on, they do not notice either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_left() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(2)
        .to("echo", echo.address())?
        .start()
        .await?;
    let mut stream = TcpStream::connect(pool.listen("echo")?).await?;
    stream.set_nodelay(true)?;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let talk = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        for round in 0_u64.. {
            if *stopping.borrow() {
                break;
            }
            let asked = Instant::now();
            stream.write_u64(round).await?;
            ensure!(stream.read_u64().await? == round);
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(longest)
    });
    for _ in 0..3 {
        let relay = carrying(&pool).await?;
        println!("stopping the worker of {relay}");
        let stopped = process::stop(pool.pid(Role::Worker(&relay))?)?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(stopped);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    stop.send_replace(true);
    let longest = talk.await??;
    let moves = moves(&pool).await?;
    println!("longest gap {longest:?}, {moves} moves");
    ensure!(moves >= 3.0, "{moves} moves");
    ensure!(longest < Duration::from_secs(4), "a gap of {longest:?}");
    Ok(())
}

/// R-NOD-01, R-UPD-08: the only relay's worker is killed; its streams wait for it and go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_relay_is_waited_for() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("echo", echo.address())?
        .start()
        .await?;
    let mut stream = TcpStream::connect(pool.listen("echo")?).await?;
    let mut gaps = Vec::new();
    for round in 0..3 {
        verified::echo_on(&mut stream, round, 1_000_000).await?;
        let old = pool.kill9(Role::Worker("local"))?;
        let killed = Instant::now();
        verified::echo_on(&mut stream, round, 1000)
            .await
            .context("after the kill")?;
        gaps.push(killed.elapsed());
        pool.back(Role::Worker("local"), old).await?;
    }
    println!("gaps {gaps:?}");
    pool.until_echo("echo", Duration::from_secs(5)).await?;
    Ok(())
}

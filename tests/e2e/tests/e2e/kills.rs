//! kill -9 of each process in turn, during traffic: it is back by itself with its state, new tunnels
//! open within 5 s, and nothing is lost that the API had acknowledged.

use anyhow::{Context, Result, bail, ensure};
use fairlead_testkit::{Pool, Role, Target, verified};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// From the process being back to the next good tunnel.
const NEW_TUNNEL_LIMIT: Duration = Duration::from_secs(5);

/// Traffic that goes on while something dies: it may fail then, but never carry a wrong byte.
struct Traffic {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    loops: JoinSet<Result<()>>,
}

impl Traffic {
    fn start(address: SocketAddr) -> Self {
        let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut loops = JoinSet::new();
        for number in 0..4 {
            let (stop, good) = (Arc::clone(&stop), Arc::clone(&good));
            loops.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    match tokio::time::timeout(NEW_TUNNEL_LIMIT, verified::echo_once(address, number, 50_000))
                        .await
                    {
                        Ok(Ok(())) => _ = good.fetch_add(1, Ordering::SeqCst),
                        Ok(Err(error)) if format!("{error:#}").contains("wrong byte") => return Err(error),
                        Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
                Ok(())
            });
        }
        Self { stop, good, loops }
    }

    fn good(&self) -> u64 {
        self.good.load(Ordering::SeqCst)
    }

    async fn finish(mut self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(result) = self.loops.join_next().await {
            result??;
        }
        Ok(())
    }
}

async fn echo_pool(relays: usize) -> Result<(Pool, Target)> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(relays)
        .to("echo", echo.address())?
        .start()
        .await?;
    Ok((pool, echo))
}

/// Kills the role's process during traffic, `rounds` times, and wants new tunnels soon after each.
async fn kill_during_traffic(pool: &Pool, role: Role<'_>, rounds: usize) -> Result<()> {
    let traffic = Traffic::start(pool.listen("echo")?);
    for round in 0..rounds {
        let before = traffic.good();
        while traffic.good() < before + 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let old = pool.kill9(role)?;
        pool.back(role, old).await?;
        let took = pool
            .until_echo("echo", NEW_TUNNEL_LIMIT)
            .await
            .with_context(|| format!("round {round}"))?;
        println!("{role:?}, round {round}: a new tunnel {took:?} after it was back");
    }
    traffic.finish().await
}

/// R-GEN-04: the control plane's death touches no traffic; what it had acknowledged is all there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_killed_loses_nothing_that_was_acknowledged() -> Result<()> {
    let (pool, echo) = echo_pool(1).await?;
    let rest = pool.rest()?;
    let traffic = Traffic::start(pool.listen("echo")?);
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..3 {
        let killed = AtomicBool::new(false);
        // Writes go on until the kill cuts one off: those that were answered before must be there.
        let writing = async {
            for number in 0..1000 {
                let name = format!("token-{round}-{number}");
                let body = json!({"name": name, "scopes": ["read"]});
                match rest.post("/v1/tokens", &body).await {
                    Ok(_) => acknowledged.push(name),
                    Err(error) if killed.load(Ordering::SeqCst) => {
                        println!("cut off: {error:#}");
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                if killed.load(Ordering::SeqCst) {
                    return Ok(());
                }
            }
            bail!("a thousand writes and no kill")
        };
        let killing = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            killed.store(true, Ordering::SeqCst);
            pool.kill9(Role::Control)
        };
        let ((), old) = tokio::try_join!(writing, killing)?;
        pool.back(Role::Control, old).await?;
        fairlead_testkit::wait::until("the API answers", NEW_TUNNEL_LIMIT, || rest.get("/v1/whoami")).await?;
        let kept = names(&rest.get("/v1/tokens").await?);
        let lost: Vec<&String> = acknowledged.iter().filter(|name| !kept.contains(name)).collect();
        ensure!(lost.is_empty(), "round {round}: acknowledged and lost: {lost:?}");
    }
    println!("{} acknowledged writes kept over three kills", acknowledged.len());
    ensure!(acknowledged.len() > 10);

    // The log has each of them, its numbers have no gap.
    let audit = all_audit(&rest).await?;
    let sequence: Vec<u64> = audit
        .iter()
        .filter_map(|e| e.get("seq").and_then(Value::as_u64))
        .collect();
    ensure!(
        sequence.windows(2).all(|w| matches!(w, [a, b] if a + 1 == *b)),
        "the log has gaps: {sequence:?}"
    );
    let text = Value::Array(audit).to_string();
    let unlogged: Vec<&String> = acknowledged
        .iter()
        .filter(|name| !text.contains(name.as_str()))
        .collect();
    ensure!(unlogged.is_empty(), "not in the log: {unlogged:?}");

    // Management works again: a new link carries bytes.
    let listen = fairlead_testkit::target::closed_port()?;
    let body = json!({"name": "after", "from": "alpha", "to": "beta",
                      "target": echo.address(), "listen": listen.to_string()});
    rest.post("/v1/links", &body).await?;
    fairlead_testkit::wait::until("the new link", Duration::from_secs(10), || {
        verified::echo_once(listen, 9, 1000)
    })
    .await?;
    traffic.finish().await
}

/// The supervisor's death leaves its worker running: it is adopted, and no tunnel ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisor_killed_leaves_its_worker_and_every_tunnel() -> Result<()> {
    let (pool, _echo) = echo_pool(0).await?;
    let worker = pool.pid(Role::Worker("local"))?;
    let mut live = tokio::net::TcpStream::connect(pool.listen("echo")?).await?;
    verified::echo_on(&mut live, 1, 1000).await?;
    kill_during_traffic(&pool, Role::Supervisor("local"), 3).await?;
    verified::echo_on(&mut live, 2, 100_000)
        .await
        .context("a tunnel older than the kills")?;
    ensure!(
        pool.pid(Role::Worker("local"))? == worker,
        "the worker is another process"
    );
    // The new supervisor is its keeper: a worker that dies comes back.
    let old = pool.kill9(Role::Worker("local"))?;
    pool.back(Role::Worker("local"), old).await?;
    pool.until_echo("echo", NEW_TUNNEL_LIMIT).await?;
    Ok(())
}

/// R-NOD-01, R-POL-07: the only relay's worker dies; nodes are back on the next one by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_killed_is_back_with_its_policy() -> Result<()> {
    let (pool, _echo) = echo_pool(0).await?;
    kill_during_traffic(&pool, Role::Worker("local"), 3).await
}

/// R-NOD-01: both daemons of a link die in turn; sessions, registrations and listeners come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_killed_are_back_with_listeners_and_registrations() -> Result<()> {
    let (pool, _echo) = echo_pool(1).await?;
    kill_during_traffic(&pool, Role::Node("alpha"), 2).await?;
    kill_during_traffic(&pool, Role::Node("beta"), 2).await
}

fn names(list: &Value) -> Vec<String> {
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    items
        .filter_map(|t| Some(t.get("name")?.as_str()?.to_owned()))
        .collect()
}

async fn all_audit(rest: &fairlead_testkit::Rest) -> Result<Vec<Value>> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = rest.get(&format!("/v1/audit?after={after}&limit=500")).await?;
        let items = page
            .get("items")
            .and_then(Value::as_array)
            .context("items")?
            .clone();
        let Some(last) = items.last() else {
            return Ok(entries);
        };
        after = last.get("seq").and_then(Value::as_u64).context("seq")?;
        entries.extend(items);
    }
}

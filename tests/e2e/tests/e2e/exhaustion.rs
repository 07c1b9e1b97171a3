//! What runs out: descriptors, memory, disks. Live tunnels are untouched, new ones are refused by
//! code or wait, the processes say what is wrong and come back by themselves (F-09).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::cgroup::MemoryGroup;
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::{Pool, Role, Target, process, verified, wait};
use reqwest::Method;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// F-09's limit of descriptors.
const FEW: u64 = 256;
/// F-09's tunnels.
const MANY: usize = 1_000;
/// F-09's processor time, in percent of a core.
const CPU_PERCENT_MAX: f64 = 20.0;
/// Lines of log that 1,000 refused tunnels may cost: a place in the code says at most 100 in 10 s.
const LOG_LINES_MAX: usize = 700;
/// What a worker may take beside what it has, in a small cgroup.
const MEMORY_ROOM: u64 = 12 << 20;
/// What was short comes back within this.
const BACK_LIMIT: Duration = Duration::from_secs(20);

/// Tunnels that live through it all.
struct Live(Vec<TcpStream>);

impl Live {
    async fn open(address: SocketAddr, count: usize) -> Result<Self> {
        let mut streams = Vec::new();
        for number in 0..count {
            let mut stream = TcpStream::connect(address).await?;
            verified::echo_on(&mut stream, number as u64, 100).await?;
            streams.push(stream);
        }
        Ok(Self(streams))
    }

    /// Each carries its bytes still.
    async fn untouched(&mut self) -> Result<()> {
        let began = Instant::now();
        for (number, stream) in self.0.iter_mut().enumerate() {
            tokio::time::timeout(
                Duration::from_secs(10),
                verified::echo_on(stream, number as u64, 3_000),
            )
            .await
            .with_context(|| format!("live tunnel {number} stalls"))?
            .with_context(|| format!("live tunnel {number}"))?;
        }
        println!("{} live tunnels answer in {:?}", self.0.len(), began.elapsed());
        Ok(())
    }
}

/// Asks for many tunnels at once; those that were served, and how many were not within `patience`.
async fn ask(address: SocketAddr, count: usize, patience: Duration) -> Result<(Vec<TcpStream>, usize)> {
    let mut asked = JoinSet::new();
    for number in 0..count {
        asked.spawn(async move {
            let one = async {
                let mut stream = TcpStream::connect(address).await?;
                verified::echo_on(&mut stream, number as u64, 100).await?;
                anyhow::Ok(stream)
            };
            tokio::time::timeout(patience, one).await.ok()?.ok()
        });
    }
    let (mut served, mut not) = (Vec::new(), 0);
    while let Some(one) = asked.join_next().await {
        match one? {
            Some(stream) => served.push(stream),
            None => not += 1,
        }
    }
    Ok((served, not))
}

fn log_lines(pool: &Pool, name: &str) -> Result<usize> {
    let path = pool.dir().join("logs").join(format!("{name}.log"));
    Ok(std::fs::read_to_string(&path)
        .with_context(|| path.display().to_string())?
        .lines()
        .count())
}

/// Live tunnels, metrics and processor while a process is short.
async fn bears_it(pid: u32, metrics: &str, live: &mut Live) -> Result<Scrape> {
    live.untouched().await?;
    let percent = process::cpu_percent(pid, Duration::from_secs(3)).await?;
    println!(
        "process {pid}: {percent:.1} % of a core, {} descriptors",
        process::descriptors(pid)?
    );
    ensure!(percent < CPU_PERCENT_MAX, "{percent} % of a core");
    Scrape::of(metrics).await
}

/// F-09: a worker with few descriptors. Tunnels over QUIC need none; strangers who take all that are
/// to be had keep neither metrics nor live tunnels from going on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_short_of_descriptors_serves_on() -> Result<()> {
    process::raise_own_descriptors()?;
    let target = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("echo", target.address())?
        .start()
        .await?;
    let address = pool.listen("echo")?;
    let mut live = Live::open(address, 50).await?;
    let (pid, metrics) = (
        pool.pid(Role::Worker("local"))?,
        pool.file()?.relay("local")?.metrics.clone(),
    );
    let before = process::descriptors(pid)?;
    process::limit_descriptors(pid, FEW)?;
    let limit = Scrape::of(&metrics).await?.sum("process_max_fds", &[]);
    ensure!(limit == Some(FEW as f64), "{limit:?}");

    // Whoever can, connects.
    let socket = pool.dir().join("relays/local/worker/worker.sock");
    let doors = [metrics_address(&metrics)?];
    let mut strangers = Vec::new();
    for _ in 0..150 {
        for door in doors {
            strangers.push(TcpStream::connect(door).await?);
        }
    }
    let mut local = Vec::new();
    for _ in 0..150 {
        if let Ok(Ok(stream)) = tokio::time::timeout(
            Duration::from_millis(50),
            tokio::net::UnixStream::connect(&socket),
        )
        .await
        {
            local.push(stream);
        }
    }
    let (served, not) = ask(address, MANY, Duration::from_secs(20)).await?;
    println!("{} of {MANY} tunnels served, {not} not", served.len());
    let scrape = bears_it(pid, &metrics, &mut live).await?;
    let refused = scrape.sum("fairlead_opens_refused_total", &[]).unwrap_or(0.0);
    ensure!(not == 0 || refused > 0.0, "{not} were neither served nor refused");
    ensure!(pool.cli(&["relay", "ls"])?.code == Some(0));
    drop((served, strangers, local));
    wait::until("descriptors come back", BACK_LIMIT, || async {
        let open = process::descriptors(pid)?;
        ensure!(open <= before + 8, "{open} open, {before} before");
        Ok(())
    })
    .await?;
    let lines = log_lines(&pool, "local")?;
    println!("{lines} lines of log");

    // None left at all, not even one to accept with: nothing ends, and all is well once there are.
    process::limit_descriptors(pid, 3)?;
    let _waiting = TcpStream::connect(metrics_address(&metrics)?).await?;
    let stranger = tokio::net::UnixStream::connect(&socket).await;
    live.untouched().await?;
    let percent = process::cpu_percent(pid, Duration::from_secs(2)).await?;
    ensure!(percent < CPU_PERCENT_MAX, "{percent} % of a core");
    verified::echo_once(address, 9, 1000)
        .await
        .context("a new tunnel")?;
    process::limit_descriptors(pid, 1024)?;
    drop(stranger);
    wait::until("metrics answer again", BACK_LIMIT, || Scrape::of(&metrics)).await?;
    // The supervisor's socket has outlived it: a policy gets through.
    let second = Target::echo().await?;
    add_link(&pool, "later", second.address()).await?;
    live.untouched().await
}

fn metrics_address(url: &str) -> Result<SocketAddr> {
    let text = url.trim_start_matches("http://").trim_end_matches("/metrics");
    text.parse().with_context(|| url.to_owned())
}

/// Adds a link and waits until it echoes.
async fn add_link(pool: &Pool, name: &str, target: &str) -> Result<()> {
    let listen = fairlead_testkit::target::closed_port()?;
    let body =
        json!({"name": name, "from": "alpha", "to": "beta", "target": target, "listen": listen.to_string()});
    let (status, answer) = pool.rest()?.send(Method::POST, "/v1/links", Some(&body)).await?;
    ensure!(status < 300, "{status} {answer}");
    wait::until(&format!("link {name} echoes"), BACK_LIMIT, || {
        verified::echo_once(listen, 5, 1000)
    })
    .await?;
    Ok(())
}

/// F-09 at a node's two halves: a publisher refuses by code, a consumer lets its backlog wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_short_of_descriptors_serves_on() -> Result<()> {
    process::raise_own_descriptors()?;
    let target = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("echo", target.address())?
        .start()
        .await?;
    let address = pool.listen("echo")?;
    let mut live = Live::open(address, 50).await?;
    for (name, is_publisher) in [("beta", true), ("alpha", false)] {
        let (pid, metrics) = (
            pool.pid(Role::Node(name))?,
            pool.file()?.node(name)?.metrics.clone(),
        );
        let limit = process::descriptor_limit(pid)?;
        let lines = log_lines(&pool, name)?;
        process::limit_descriptors(pid, FEW)?;
        let (served, not) = ask(address, MANY, Duration::from_secs(12)).await?;
        println!("{name}: {} of {MANY} tunnels served, {not} not", served.len());
        ensure!(not > 0 && served.len() < FEW as usize, "{} served", served.len());
        ensure!(served.len() > 50, "only {} served", served.len());
        let scrape = bears_it(pid, &metrics, &mut live).await?;
        if is_publisher {
            let refused = scrape.sum(
                "fairlead_streams_refused_total",
                &[("code", "PUBLISHER_OVERLOADED")],
            );
            ensure!(refused > Some(0.0), "nothing was refused by code: {refused:?}");
        } else {
            let paused = scrape.sum("fairlead_accept_pauses_total", &[]);
            ensure!(paused > Some(0.0), "accepting never paused: {paused:?}");
        }
        drop(served);
        wait::until("new tunnels are served as descriptors return", BACK_LIMIT, || {
            verified::echo_once(address, 7, 1000)
        })
        .await?;
        let new = log_lines(&pool, name)? - lines;
        println!("{name}: {new} new lines of log");
        ensure!(new < LOG_LINES_MAX, "{new} lines of log");
        // None left at all: streams that live need none.
        process::limit_descriptors(pid, 3)?;
        live.untouched().await?;
        process::limit_descriptors(pid, limit)?;
        wait::until("new tunnels again", BACK_LIMIT, || {
            verified::echo_once(address, 8, 1000)
        })
        .await?;
        Scrape::of(&metrics).await?;
    }
    live.untouched().await
}

/// F-09 at the control plane: strangers take what there is; members stay, admins are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_short_of_descriptors_serves_on() -> Result<()> {
    process::raise_own_descriptors()?;
    let target = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("echo", target.address())?
        .start()
        .await?;
    let mut live = Live::open(pool.listen("echo")?, 10).await?;
    let (pid, metrics) = (pool.pid(Role::Control)?, pool.file()?.control.metrics);
    let control = pool.control_address()?;
    let limit = process::descriptor_limit(pid)?;
    ensure!(limit >= 1024, "the soft limit was not raised: {limit}");
    process::limit_descriptors(pid, FEW)?;
    let mut strangers = Vec::new();
    for number in 0..400 {
        strangers.push(
            fairlead_testkit::attack::connect_from(fairlead_testkit::attack::source(number), control).await?,
        );
    }
    bears_it(pid, &metrics, &mut live).await?;
    let nodes = pool.cli(&["node", "ls"])?;
    ensure!(nodes.code == Some(0), "{nodes:?}");
    let second = Target::echo().await?;
    add_link(&pool, "second", second.address()).await?;
    drop(strangers);
    process::limit_descriptors(pid, 3)?;
    let _waiting = TcpStream::connect(control).await?;
    live.untouched().await?;
    let percent = process::cpu_percent(pid, Duration::from_secs(2)).await?;
    ensure!(percent < CPU_PERCENT_MAX, "{percent} % of a core");
    process::limit_descriptors(pid, limit)?;
    wait::until("admins are served again", BACK_LIMIT, || async {
        pool.rest()?.get("/v1/links").await
    })
    .await?;
    Ok(())
}

/// R-SHD-01 in its present part: a worker near the limit of its cgroup refuses new tunnels, which go
/// elsewhere, before the kernel ends the live ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_short_of_memory_refuses_before_the_kernel_kills_it() -> Result<()> {
    process::raise_own_descriptors()?;
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let mut live = Live::open(pool.listen("echo")?, 20).await?;
    let (pid, metrics) = (
        pool.pid(Role::Worker("local"))?,
        pool.file()?.relay("local")?.metrics.clone(),
    );
    let before = process::resident_bytes(pid)?;
    let Some(group) = MemoryGroup::new(before + MEMORY_ROOM)? else {
        println!("no cgroup counts memory here: nothing is tried");
        return Ok(());
    };
    group.add(pid)?;
    let refused = || async {
        let scrape = Scrape::of(&metrics).await?;
        anyhow::Ok(
            scrape
                .sum("fairlead_opens_refused_total", &[("code", "OVERLOADED")])
                .unwrap_or(0.0),
        )
    };
    // Idle tunnels, more and more.
    let mut hogs = Vec::new();
    while refused().await? == 0.0 {
        ensure!(
            hogs.len() < 4_000,
            "{} tunnels, and nothing was refused",
            hogs.len()
        );
        let (served, _) = ask(pool.listen("echo")?, 100, Duration::from_secs(10)).await?;
        hogs.extend(served);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    println!(
        "refused after {} tunnels, at {} KiB of {}",
        hogs.len(),
        process::resident_bytes(pid)? / 1024,
        (before + MEMORY_ROOM) / 1024
    );
    // What is refused here is served by the other relay.
    live.untouched().await?;
    verified::echo_once(pool.listen("echo")?, 1, 1000).await?;
    ensure!(
        pool.pid(Role::Worker("local"))? == pid && process::alive(pid),
        "the worker was killed"
    );
    drop(hogs);
    wait::until("the worker admits again", BACK_LIMIT, || async {
        let before = refused().await?;
        for number in 0..4 {
            verified::echo_once(pool.listen("echo")?, number, 1000).await?;
        }
        let kib = process::resident_bytes(pid)? / 1024;
        ensure!(refused().await? == before, "refused at {kib} KiB");
        Ok(())
    })
    .await?;
    println!("admits again at {} KiB", process::resident_bytes(pid)? / 1024);
    live.untouched().await
}

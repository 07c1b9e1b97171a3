//! `fairlead up`: a whole pool on one machine, and its contract.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Host, Pool, Target, binary, process, verified, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

const STOP_LIMIT: Duration = Duration::from_secs(20);
/// `up` looks once a second; a busy machine takes its time.
const SAID_LIMIT: Duration = Duration::from_secs(15);

fn pids(pool: &Pool) -> Result<Vec<u32>> {
    let file = pool.file()?;
    let mut pids = vec![file.control.pid];
    pids.extend(file.relays.iter().flat_map(|r| [r.supervisor_pid, r.worker_pid]));
    pids.extend(file.nodes.iter().map(|n| n.pid));
    Ok(pids)
}

/// The contract of pool.json, with real processes behind every entry; Ctrl-C ends them all; the next
/// run in the folder has the same members and links.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_is_as_its_file_says_stops_cleanly_and_starts_again() -> Result<()> {
    let echo = Target::echo().await?;
    let mut pool = Pool::builder()
        .relays(2)
        .to("echo", echo.address())?
        .start()
        .await?;
    let file = pool.file()?;
    let names: BTreeSet<&str> = file.relays.iter().map(|r| r.name.as_str()).collect();
    ensure!(
        file.relays.len() == 3 && names.len() == 3 && names.contains("local"),
        "{names:?}"
    );
    ensure!(file.relays.iter().filter(|r| r.local).count() == 1 && file.relay("local")?.local);
    // Laboratory: each relay is its own failure domain.
    let domains: BTreeSet<&str> = file.relays.iter().map(|r| r.failure_domain.as_str()).collect();
    ensure!(domains.len() == 3, "{domains:?}");
    ensure!(file.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>() == ["alpha", "beta"]);
    let link = file.links.first().context("no link")?;
    ensure!(link.consumer == "alpha" && link.publisher == "beta" && link.target == echo.address());
    let running = pids(&pool)?;
    ensure!(running.iter().collect::<BTreeSet<_>>().len() == 9 && running.iter().all(|&p| process::alive(p)));
    for metrics in file
        .relays
        .iter()
        .map(|r| &r.metrics)
        .chain(file.nodes.iter().map(|n| &n.metrics))
    {
        fairlead_testkit::metrics::Scrape::of(metrics).await?;
    }
    fairlead_testkit::metrics::Scrape::of(&file.control.metrics).await?;
    let token = std::fs::metadata(&file.control.admin_token_file)?;
    ensure!(
        std::os::unix::fs::PermissionsExt::mode(&token.permissions()) & 0o077 == 0,
        "others read the token"
    );
    verified::echo_once(pool.listen("echo")?, 1, 10_000).await?;

    let status = pool.stop(STOP_LIMIT).await?;
    ensure!(status.success(), "Ctrl-C: {status}");
    let alive: Vec<&u32> = running.iter().filter(|&&pid| process::alive(pid)).collect();
    ensure!(alive.is_empty(), "still running after Ctrl-C: {alive:?}");

    pool.start_again().await?;
    let again = pool.file()?;
    let ids = |f: &fairlead_testkit::PoolFile| -> BTreeSet<String> {
        f.relays
            .iter()
            .map(|r| r.id.clone())
            .chain(f.nodes.iter().map(|n| n.id.clone()))
            .collect()
    };
    ensure!(ids(&file) == ids(&again), "members changed their ids");
    verified::echo_once(pool.listen("echo")?, 2, 10_000).await
}

/// A second `up` in the same folder is refused with the reason, and the first goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_run_in_one_folder_is_refused() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("echo", echo.address())?
        .start()
        .await?;
    let second = Command::new(binary::fairlead()?)
        .args(["up", "--relays", "0", "--ports", "auto", "--dir"])
        .arg(pool.dir())
        .stdin(Stdio::null())
        .output()?;
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    ensure!(second.status.code().is_some_and(|code| code != 0), "{second:?}");
    ensure!(
        message.contains(&pool.up_pid().to_string()),
        "the message names no holder: {message}"
    );
    verified::echo_once(pool.listen("echo")?, 1, 1000).await
}

/// With no link, a small service of its own is published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_link_a_demo_service_is_published() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let file = pool.file()?;
    let link = file.links.first().context("no link")?;
    tokio::net::TcpStream::connect(link.listen.as_str())
        .await
        .context("the demo's listener")?;
    Ok(())
}

/// `up` killed with SIGKILL leaves no process behind, and its folder can be used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_it_leaves_no_process_and_starts_again() -> Result<()> {
    let echo = Target::echo().await?;
    let mut pool = Pool::builder()
        .relays(0)
        .to("echo", echo.address())?
        .start()
        .await?;
    let running = pids(&pool)?;
    process::kill9(pool.up_pid())?;
    pool.ended(Duration::from_secs(5)).await?;
    let gone = || running.iter().all(|&pid| !process::alive(pid));
    fairlead_testkit::wait::until_true("all processes end", STOP_LIMIT, gone).await?;
    pool.start_again().await?;
    verified::echo_once(pool.listen("echo")?, 2, 10_000).await
}

/// Fixed ports: two hosts, each in a namespace, hold pools side by side; on one host the second is
/// refused, and the message names the port and who holds it.
#[test]
fn fixed_ports_are_held_side_by_side_and_refused_if_taken() -> Result<()> {
    let (one, two) = (Host::new("one")?, Host::new("two")?);
    let start = |host: &Host| {
        host.block_on(async {
            let echo = Target::echo().await?;
            let builder = Pool::builder().relays(1).fixed_ports();
            let pool = builder
                .link("echo", "127.0.0.1:15432", echo.address())
                .start()
                .await?;
            verified::echo_once(pool.listen("echo")?, 1, 1000).await?;
            Ok((pool, echo))
        })
    };
    let (first, _echo) = start(&one)?;
    let file = first.file()?;
    ensure!(
        file.control.url == "https://127.0.0.1:8443",
        "{}",
        file.control.url
    );
    ensure!(
        file.relay("local")?.address == "127.0.0.1:9443",
        "{:?}",
        file.relays
    );
    ensure!(
        file.relays.iter().any(|r| r.address == "127.0.0.2:9443"),
        "{:?}",
        file.relays
    );
    let (second, _echo) = start(&two)?;
    ensure!(second.file()?.control.url == file.control.url);

    let dir = tempfile::tempdir()?;
    let refused = one.run(|| {
        let mut command = Command::new(binary::fairlead()?);
        command
            .args(["up", "--relays", "1", "--dir"])
            .arg(dir.path())
            .stdin(Stdio::null());
        anyhow::Ok(command.output()?)
    })??;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code().is_some_and(|code| code != 0), "{refused:?}");
    ensure!(
        message.contains("8443") && message.contains("9443"),
        "not all ports are named: {message}"
    );
    ensure!(message.contains("fairlead"), "the holder is not named: {message}");
    Ok(())
}

/// What `up` has said so far.
fn said(pool: &Pool) -> Result<String> {
    Ok(std::fs::read_to_string(pool.dir().join("up.out"))?)
}

async fn until_said(pool: &Pool, words: &[&str]) -> Result<()> {
    wait::until(&format!("`up` says {words:?}"), SAID_LIMIT, || async {
        let text = said(pool)?;
        let missing: Vec<&&str> = words.iter().filter(|w| !text.contains(**w)).collect();
        ensure!(missing.is_empty(), "{missing:?} is missing:\n{text}");
        Ok(())
    })
    .await?;
    Ok(())
}

/// A link whose port another program has is no link that settles: status, warnings and `up` name the
/// port and what to do, the cause is said once, and the link works as soon as the port is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_link_port_is_told_and_heals() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder().relays(0).start().await?;
    let squatter = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = squatter.local_addr()?;
    let listen = port.to_string();
    let add = [
        "link",
        "add",
        "web",
        "--from",
        "alpha",
        "--to",
        "beta",
        "--target",
        echo.address(),
        "--listen",
    ];
    pool.cli(&[&add[..], &[&listen]].concat())?.ok()?;
    wait::until("the port is warned of", SAID_LIMIT, || async {
        let status = pool.cli(&["status"])?.ok()?.stdout;
        let row = status.lines().find(|line| line.starts_with("link web"));
        let row = row.with_context(|| format!("no such row: {status}"))?;
        ensure!(row.contains(&listen) && row.contains("ss -ltnp"), "{status}");
        ensure!(!status.contains("settling: link web"), "{status}");
        Ok(())
    })
    .await?;
    let link = pool.rest()?.get("/v1/links/web").await?;
    ensure!(link.to_string().matches("cannot listen").count() == 1, "{link}");
    let warnings = pool.rest()?.get("/v1/warnings").await?.to_string();
    ensure!(
        warnings.contains("LISTEN_FAILED") && !warnings.contains("LINK_NOT_READY"),
        "{warnings}"
    );
    let told = format!("link web: alpha cannot listen on {listen}");
    until_said(&pool, &[&told, "fairlead link rm web"]).await?;

    drop(squatter);
    wait::until("the link echoes", SAID_LIMIT, || {
        verified::echo_once(port, 1, 1000)
    })
    .await?;
    until_said(&pool, &[&format!("link web: alpha listens on {listen}")]).await?;
    ensure!(said(&pool)?.matches(&told).count() == 1, "{}", said(&pool)?);
    Ok(())
}

/// Another `--link` at a listener's name replaces the one before, and `up` says which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_replaced_is_told() -> Result<()> {
    let (before, after) = (Target::echo().await?, Target::echo().await?);
    let listen = fairlead_testkit::target::closed_port()?;
    let builder = Pool::builder().relays(0);
    let mut pool = builder
        .link("web", &listen.to_string(), before.address())
        .start()
        .await?;
    pool.stop(STOP_LIMIT).await?;
    pool.set_links(&[("web", &listen.to_string(), after.address())]);
    pool.start_again().await?;
    let was = format!(
        "link web was {listen} on alpha, to {} of beta (standard): it is replaced",
        before.address()
    );
    let told = said(&pool)?;
    ensure!(told.contains(&was), "{told}");
    let links = pool.rest()?.get("/v1/links").await?.to_string();
    ensure!(
        links.contains(after.address()) && !links.contains(before.address()),
        "{links}"
    );
    drop(before);
    verified::echo_once(listen, 1, 1000).await
}

/// A pool whose admin token was revoked goes on and says so once; its next start names the file, ends
/// as refused, and works again with a token that counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_is_told() -> Result<()> {
    let mut pool = Pool::builder().relays(0).start().await?;
    let file = pool.file()?.control.admin_token_file;
    let add = ["token", "add", "second", "--scope", "admin:system", "--json"];
    let made = pool.cli(&add)?.json()?;
    let secret = made
        .get("secret")
        .and_then(Value::as_str)
        .context("no secret")?
        .to_owned();
    pool.cli(&["token", "rm", "first", "--force"])?.ok()?;
    let name = file.display().to_string();
    until_said(&pool, &["the pool goes on, but", &name, "revoked"]).await?;
    let demo = pool.file()?.links.first().context("no link")?.listen.parse()?;
    verified::echo_once(demo, 1, 1000).await?;
    ensure!(said(&pool)?.matches("the pool goes on, but").count() == 1);
    pool.stop(STOP_LIMIT).await?;

    let refused = Command::new(binary::fairlead()?)
        .args(["up", "--relays", "0", "--ports", "auto", "--dir"])
        .arg(pool.dir())
        .stdin(Stdio::null())
        .output()?;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(2), "{refused:?}");
    ensure!(
        message.contains(&name) && message.contains("scope admin:system"),
        "{message}"
    );
    ensure!(process::with_argument(&format!("{}/", pool.dir().display())).is_empty());
    std::fs::write(&file, secret)?;
    pool.start_again().await?;
    pool.until_echo("demo", STOP_LIMIT).await?;
    Ok(())
}

//! Wires cut in the worst moment, and processes that stand still: nothing is lost, nothing stays half
//! done.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::attack::cut::Cutter;
use fairlead_testkit::{Answer, Pool, Role, Target, pool, process, verified, wait};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpStream;

/// A whole enrolment takes some 9 kB on the wire: every so many bytes from the first to the last, in
/// the full form (`FAIRLEAD_SOAK=1`) and otherwise.
const CUT_EVERY: [u64; 2] = [700, 1_300];
/// How long each process stands still: longer than a relay is doubted, shorter than a session's end.
const STILL: Duration = Duration::from_secs(4);
const BACK_LIMIT: Duration = Duration::from_secs(30);

fn enrol(control: &str, pin: &str, token: &str, dir: &Path) -> Result<Answer> {
    let dir = dir.to_str().context("path")?;
    let arguments = [
        "enrol",
        "node",
        "--control",
        control,
        "--ca-pin",
        pin,
        "--dir",
        dir,
    ];
    pool::run(&arguments, token, &[])
}

/// R-ENR-02: an enrolment that is cut off at any byte fails with a code, leaves no half member, and
/// the same command ends it well, with the same token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enrolment_cut_at_any_point_goes_on_with_the_same_token() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let folder = tempfile::tempdir()?;
    let control = pool.control_address()?;
    let mut cut_off = 0;
    let [full, short] = CUT_EVERY;
    let every = match std::env::var_os("FAIRLEAD_SOAK") {
        Some(_) => full,
        None => short,
    };
    for number in 0..64 {
        let name = format!("cut-{number}");
        let answer = pool.cli(&["node", "add", &name, "--json"])?.json()?;
        let text = |key: &str| answer.get(key).and_then(Value::as_str).context("no such key");
        let (token, command) = (text("token")?, text("install_command")?);
        let pin = command
            .split_once("--ca-pin ")
            .and_then(|(_, rest)| rest.split([' ', '\'', '"', '\n']).next())
            .context("no pin")?;
        let dir = folder.path().join(&name);
        let cutter = Cutter::start(control, every * number).await?;
        let address = cutter.address().to_string();
        let first = {
            let (pin, token, dir) = (pin.to_owned(), token.to_owned(), dir.clone());
            tokio::task::spawn_blocking(move || enrol(&address, &pin, &token, &dir)).await??
        };
        let whole = first.code == Some(0);
        if !whole {
            cut_off += 1;
            ensure!(first.code == Some(5), "cut after {}: {first:?}", cutter.carried());
            ensure!(!dir.join("member.json").exists(), "half a member is there");
            let second = enrol(&control.to_string(), pin, token, &dir)?;
            ensure!(
                second.code == Some(0),
                "after a cut at {} bytes: {second:?}",
                cutter.carried()
            );
        }
        ensure!(dir.join("member.json").exists());
        if whole {
            println!(
                "{cut_off} cuts; a whole enrolment carries {} bytes",
                cutter.carried()
            );
            ensure!(cut_off >= 5, "the wire was hardly cut");
            return Ok(());
        }
    }
    anyhow::bail!("no enrolment ended well")
}

/// F-06, R-GEN-02: each daemon stands still for a while in turn; live tunnels lose nothing, and new
/// ones are served afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stands_still_loses_nothing() -> Result<()> {
    let target = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", target.address())?
        .start()
        .await?;
    let address = pool.listen("echo")?;
    let mut live = Vec::new();
    for number in 0..10 {
        let mut stream = TcpStream::connect(address).await?;
        verified::echo_on(&mut stream, number, 1000).await?;
        live.push(stream);
    }
    for role in [
        Role::Control,
        Role::Supervisor("local"),
        Role::Worker("local"),
        Role::Node("alpha"),
        Role::Node("beta"),
    ] {
        let pid = pool.pid(role)?;
        let still = process::stop(pid)?;
        // Bytes under way meanwhile.
        let mut echoes = tokio::task::JoinSet::new();
        for (number, mut stream) in live.drain(..).enumerate() {
            echoes.spawn(async move {
                verified::echo_on(&mut stream, number as u64, 300_000).await?;
                anyhow::Ok(stream)
            });
        }
        tokio::time::sleep(STILL).await;
        drop(still);
        while let Some(echo) = tokio::time::timeout(BACK_LIMIT, echoes.join_next())
            .await
            .with_context(|| format!("{role:?} stood still: a tunnel stalls"))?
        {
            live.push(echo?.with_context(|| format!("{role:?} stood still: a live tunnel"))?);
        }
        ensure!(pool.pid(role)? == pid, "{role:?} was given up");
        wait::until("a new tunnel", BACK_LIMIT, || {
            verified::echo_once(address, 1, 1000)
        })
        .await?;
        println!("{role:?} stood still for {STILL:?}: nothing lost");
    }
    let nodes = pool.cli(&["node", "ls"])?;
    ensure!(nodes.code == Some(0), "{nodes:?}");
    Ok(())
}

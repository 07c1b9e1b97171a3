//! R-GEN-04, F-16: with the control plane dead, new tunnels are admitted; a relay and a node restart.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Role, Target, binary, process, verified, wait};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::task::JoinSet;

/// R-GEN-04: admission, a worker's restart and a node's restart need no control plane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tunnels_are_admitted_and_members_restart_without_a_control_plane() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("echo", echo.address())?
        .start()
        .await?;
    let link = pool.listen("echo")?;
    let mut live = tokio::net::TcpStream::connect(link).await?;
    verified::echo_on(&mut live, 1, 1000).await?;

    // `up` is stopped, so that nobody starts the control plane again.
    let held = process::stop(pool.up_pid())?;
    let control = pool.kill9(Role::Control)?;
    wait::until_true("the control plane is dead", Duration::from_secs(5), || {
        !process::alive(control)
    })
    .await?;
    let mut tunnels = JoinSet::new();
    for number in 0..200 {
        tunnels.spawn(async move { verified::echo_once(link, number, 5000).await });
    }
    while let Some(result) = tunnels.join_next().await {
        result?.context("a new tunnel without a control plane")?;
    }
    verified::echo_on(&mut live, 2, 1000)
        .await
        .context("a tunnel from before")?;

    // Each worker in turn: its supervisor starts it again, and it admits by what it stored.
    for relay in pool.file()?.relays {
        process::kill9(relay.worker_pid)?;
        wait::until_true("the worker is dead", Duration::from_secs(5), || {
            !process::alive(relay.worker_pid)
        })
        .await?;
        pool.until_echo("echo", Duration::from_secs(10))
            .await
            .context("after a worker's restart")?;
    }
    for number in 0..50 {
        verified::echo_once(link, number, 1000)
            .await
            .context("on restarted workers")?;
    }

    // A node: its policy and grants are on its disk.
    let alpha = pool.kill9(Role::Node("alpha"))?;
    wait::until_true("the node is dead", Duration::from_secs(5), || {
        !process::alive(alpha)
    })
    .await?;
    let mut by_hand = Command::new(binary::fairlead()?)
        .args(["run", "node", "--dir"])
        .arg(pool.dir().join("nodes/alpha"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(pool.dir().join("logs/alpha-by-hand.log"))?)
        .spawn()?;
    pool.until_echo("echo", Duration::from_secs(10))
        .await
        .context("after the node's restart")?;
    by_hand.kill()?;
    by_hand.wait()?;

    drop(held);
    pool.back(Role::Control, control).await?;
    pool.back(Role::Node("alpha"), alpha).await?;
    pool.until_echo("echo", Duration::from_secs(10))
        .await
        .context("with the control plane again")?;
    ensure!(
        pool.cli(&["link", "ls", "--json"])?
            .json()?
            .to_string()
            .contains("echo")
    );
    Ok(())
}

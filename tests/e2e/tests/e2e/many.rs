//! Many tunnels: a burst on a link that nobody has used, and thousands that sleep.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Target, process, verified};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// R-NOD-02: the first burst finds neither association nor leg; every connection is held, not failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_connects_at_once_on_an_unused_link_are_all_served() -> Result<()> {
    process::raise_own_descriptors()?;
    let target = Target::echo().await?;
    let pool = Pool::builder().to("burst", target.address())?.start().await?;
    let address = pool.listen("burst")?;
    ensure!(target.accepted() == 0, "the link was used before");
    let mut connections = JoinSet::new();
    for number in 0..500 {
        connections.spawn(async move {
            let mut stream = TcpStream::connect(address).await.context("connect")?;
            verified::echo_on(&mut stream, number, 1000).await?;
            anyhow::Ok(stream)
        });
    }
    let start = Instant::now();
    let mut open = Vec::new();
    while let Some(result) = connections.join_next().await {
        open.push(result?.with_context(|| format!("after {} good ones", open.len()))?);
    }
    println!("500 connections served in {:?}", start.elapsed());
    ensure!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    // All of them at once, again, on the open tunnels.
    let mut again = JoinSet::new();
    for (number, mut stream) in open.into_iter().enumerate() {
        again.spawn(async move { verified::echo_on(&mut stream, number as u64, 5000).await });
    }
    while let Some(result) = again.join_next().await {
        result??;
    }
    Ok(())
}

/// R-STR-04: 2,000 idle tunnels cost little, and each still carries its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_two_thousand_idle_tunnels_then_echo() -> Result<()> {
    process::raise_own_descriptors()?;
    let target = Target::echo().await?;
    let pool = Pool::builder().to("idle", target.address())?.start().await?;
    let address = pool.listen("idle")?;
    let nodes: Vec<u32> = pool.file()?.nodes.iter().map(|n| n.pid).collect();
    let before: Vec<u64> = nodes
        .iter()
        .map(|&pid| process::resident_bytes(pid))
        .collect::<Result<_>>()?;

    // At most 100 opens at once: the burst is the other test.
    let opening = Arc::new(Semaphore::new(100));
    let mut connections = JoinSet::new();
    for number in 0..2000_u64 {
        let opening = Arc::clone(&opening);
        connections.spawn(async move {
            let _turn = opening.acquire().await?;
            let mut stream = TcpStream::connect(address).await.context("connect")?;
            verified::echo_on(&mut stream, number, 1)
                .await
                .context("first byte")?;
            anyhow::Ok((number, stream))
        });
    }
    let mut idle = Vec::new();
    while let Some(result) = connections.join_next().await {
        idle.push(result??);
    }
    ensure!(idle.len() == 2000 && target.accepted() == 2000);
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (&pid, before) in nodes.iter().zip(&before) {
        let each = process::resident_bytes(pid)?.saturating_sub(*before) / 2000;
        println!("node process {pid}: {each} bytes a tunnel");
        ensure!(each < 64 * 1024, "{each} bytes an idle tunnel in process {pid}");
    }

    let mut echoes = JoinSet::new();
    for (number, mut stream) in idle {
        echoes.spawn(async move { verified::echo_on(&mut stream, number, 64 * 1024).await });
    }
    while let Some(result) = echoes.join_next().await {
        result??;
    }
    Ok(())
}

//! A link that is removed: its tunnels end, new ones are refused (R-REV-01).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Target, verified};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// R-REV-01: live tunnels of a removed link are closed in under 5 s, those of others are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_links_live_tunnels_are_closed_and_no_others() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("gone", echo.address())?
        .to("kept", echo.address())?
        .start()
        .await?;
    let gone_at = pool.listen("gone")?;
    let (mut gone, mut kept) = (
        TcpStream::connect(gone_at).await?,
        TcpStream::connect(pool.listen("kept")?).await?,
    );
    verified::echo_on(&mut gone, 1, 1000).await?;
    verified::echo_on(&mut kept, 1, 1000).await?;

    let start = Instant::now();
    pool.cli(&["link", "rm", "gone"])?.ok()?;
    let ended = verified::receive_what_comes(&mut gone, 0);
    let (_, error) = tokio::time::timeout(Duration::from_secs(5), ended)
        .await
        .context("still open after 5 s")??;
    println!("closed after {:?}: {error:?}", start.elapsed());
    ensure!(
        error.is_some(),
        "a revoked stream ended cleanly: its reader takes it for whole"
    );
    verified::echo_on(&mut kept, 2, 100_000)
        .await
        .context("the other link's tunnel")?;
    ensure!(
        verified::echo_once(gone_at, 3, 10).await.is_err(),
        "a removed link carries bytes"
    );
    Ok(())
}

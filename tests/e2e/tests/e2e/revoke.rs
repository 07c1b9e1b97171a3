//! A link that is removed: its tunnels end, new ones are refused (R-REV-01), and how long that took is
//! told (R-REV-03).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::metrics::Scrape;
use fairlead_testkit::{Pool, Target, verified, wait};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Relays report what they enforce as they do it; the page is read again and again.
const TOLD_LIMIT: Duration = Duration::from_secs(15);

/// R-REV-01, R-REV-03: live tunnels of a removed link are closed in under 5 s, those of others are not;
/// the control plane counts for each relay how long it took.
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

    let file = pool.file()?;
    let (control, relays) = (file.control.metrics, file.relays.len());
    wait::until("each relay's revocation is counted", TOLD_LIMIT, || async {
        let page = Scrape::of(&control).await?;
        for relay in &file.relays {
            let labels = [("relay", relay.name.as_str())];
            let count = page.sum("fairlead_relay_revocation_seconds_count", &labels);
            ensure!(count == Some(1.0), "{}: {count:?}", relay.name);
        }
        let pending = page.sum("fairlead_relay_revocations_pending", &[]);
        ensure!(pending == Some(0.0), "{pending:?} pending");
        Ok(())
    })
    .await?;
    let page = Scrape::of(&control).await?;
    let sum = page.sum("fairlead_relay_revocation_seconds_sum", &[]);
    println!("latencies of {relays} relays: {sum:?} s in all");
    ensure!(sum.is_some_and(|sum| sum < 5.0), "{sum:?}");
    Ok(())
}

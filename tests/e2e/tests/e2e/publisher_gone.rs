//! F-08: an endpoint whose publisher's daemon is gone.

use anyhow::{Result, ensure};
use fairlead_testkit::{Estate, Target, process, target, verified, wait};
use std::time::{Duration, Instant};

/// F-08, R-ADM-03, R-NOD-02: the publisher's daemon is gone. Unannounced, connections are held 3 s and
/// told that nobody has registered the endpoint; announced, 15 s and told that it restarts. Whoever comes
/// when it is back is served, and every descriptor comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_without_its_publisher_has_its_codes() -> Result<()> {
    let estate = Estate::new(1)?;
    let echo = Target::start_in(&estate.beta.host, target::Behaviour::Echo)?;
    estate.build(echo.address()).await?;
    let (alpha, beta, link) = (&estate.alpha, &estate.beta, estate.listen()?);
    let [relay] = &estate.relays[..] else {
        anyhow::bail!("not one relay");
    };
    let good = || async { verified::echo_on(&mut alpha.host.connect(link)?, 1, 100).await };
    good().await?;
    let descriptors = || -> Result<(usize, usize)> {
        Ok((
            process::descriptors(alpha.pid()?)?,
            process::descriptors(relay.pid()?)?,
        ))
    };
    let before = descriptors()?;
    // Held for as long as they are, connections end as the registration does: by either code.
    const CODES: [&str; 2] = ["NOT_REGISTERED", "ENDPOINT_RESTARTING"];
    let told = || async {
        let scrape = alpha.scrape().await?;
        anyhow::Ok(
            CODES
                .map(|code| scrape.sum_of_label_value(code))
                .iter()
                .sum::<f64>(),
        )
    };
    for (announced, range) in [(false, 2..8), (true, 10..25)] {
        match announced {
            true => beta.stop()?,
            false => beta.kill_daemon()?,
        }
        let before = told().await?;
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let mut stream = alpha.host.connect(link)?;
            asking.spawn(async move {
                let start = Instant::now();
                let (received, error) = verified::receive_what_comes(&mut stream, 0).await?;
                ensure!(received.bytes == 0 && error.is_some(), "{received:?}, {error:?}");
                Ok(start.elapsed())
            });
        }
        while let Some(ended) = asking.join_next().await {
            let took = ended??;
            ensure!(
                range.contains(&took.as_secs()),
                "announced: {announced}, told after {took:?}"
            );
        }
        let total = told().await? - before;
        ensure!(
            total >= 5.0,
            "announced: {announced}, {CODES:?} counted {total} times"
        );
        estate.start(beta)?;
        wait::until("the endpoint is back", Duration::from_secs(20), good).await?;
    }
    let limit = Duration::from_secs(15);
    wait::until_true(&format!("descriptors, {before:?} before"), limit, || {
        descriptors().is_ok_and(|now| now.0 <= before.0 + 4 && now.1 <= before.1 + 4)
    })
    .await?;
    Ok(())
}

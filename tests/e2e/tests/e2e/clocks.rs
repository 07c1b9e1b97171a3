//! Hosts whose wall clocks are wrong by what is tolerated (R-POL-05).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, verified, wait};
use std::time::Duration;

/// Just inside of the 60 s that are tolerated: the test's own time is not to count.
const TOLERATED_MS: i64 = 55_000;
/// Sessions, registrations and a first connection after a daemon's start, on a busy machine.
const LIMIT: Duration = Duration::from_secs(40);
async fn echo(estate: &Estate, seed: u64) -> Result<()> {
    let mut stream = estate.alpha.host.connect(estate.listen()?)?;
    verified::echo_on(&mut stream, seed, 10_000).await
}

/// R-POL-05: relays and nodes whose clocks are off by nearly 60 s, each in its own direction and so
/// nearly two minutes from each other, get policies, leases and grants, and carry bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_off_by_a_minute_do_no_harm() -> Result<()> {
    let estate = Estate::new(2)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    let [first, second] = &estate.relays[..] else {
        anyhow::bail!("not two relays");
    };
    for sign in [1, -1] {
        let ahead = sign * TOLERATED_MS;
        for (member, ahead) in [
            (first, ahead),
            (second, -ahead),
            (&estate.alpha, -ahead),
            (&estate.beta, ahead),
        ] {
            estate.restart_at(member, ahead).await?;
        }
        estate.until_connected(LIMIT).await?;
        for relay in &estate.relays {
            estate.state("relay", &relay.name, "ready").await?;
        }
        // A link that is added meanwhile: its grant begins later than some of these clocks show.
        let name = format!("late{}", if sign > 0 { "-ahead" } else { "-behind" });
        let at = format!("127.0.0.1:{}", 16_000 + sign);
        let add = ["link", "add", &name, "--from", "alpha", "--to", "beta"];
        estate
            .admin(&[&add[..], &["--listen", &at, "--target", target.address()]].concat())?
            .ok()?;
        let at = at.parse()?;
        wait::until(&format!("{name} carries bytes"), LIMIT, || async {
            let mut stream = estate.alpha.host.connect(at)?;
            verified::echo_on(&mut stream, 3, 10_000).await
        })
        .await?;
        // Each begins at another relay.
        for seed in 0..4 {
            echo(&estate, seed).await.context("a tolerated clock")?;
        }
    }
    for name in ["relay-1", "relay-2", "alpha", "beta", "control"] {
        let log = estate.log(name)?;
        ensure!(!log.contains("clock differs by"), "{name} tells of a clock");
    }
    Ok(())
}

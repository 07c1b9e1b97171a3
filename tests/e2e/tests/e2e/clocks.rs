//! Hosts whose wall clocks are wrong: what is tolerated works, and what is more says so, by its code
//! and in both logs (R-POL-05).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::estate::Member;
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, verified, wait};
use std::time::Duration;

/// Just inside of the 60 s that are tolerated: the test's own time is not to count.
const TOLERATED_MS: i64 = 55_000;
/// Outside of them, and longer than any grant of this estate has existed.
const WRONG_MS: i64 = 600_000;
const HOUR_MS: i64 = 3_600_000;
/// Sessions, registrations and a first connection after a daemon's start, on a busy machine.
const LIMIT: Duration = Duration::from_secs(40);
/// A connection that is held and refused in the end.
const REFUSED_LIMIT: Duration = Duration::from_secs(20);

async fn echo(estate: &Estate, seed: u64) -> Result<()> {
    let mut stream = estate.alpha.host.connect(estate.listen()?)?;
    verified::echo_on(&mut stream, seed, 10_000).await
}

async fn until_echo(estate: &Estate, when: &str) -> Result<()> {
    let what = format!("the link carries bytes {when}");
    wait::until(&what, LIMIT, || async {
        tokio::time::timeout(REFUSED_LIMIT, echo(estate, 7)).await?
    })
    .await?;
    Ok(())
}

/// How often the consumer has turned connections away with `code`.
async fn turned_away(estate: &Estate, code: &str) -> Result<f64> {
    let scrape = estate.alpha.scrape().await?;
    let of = |metric| scrape.sum(metric, &[("role", "consumer"), ("code", code)]);
    Ok(of("fairlead_streams_refused_total").unwrap_or(0.0)
        + of("fairlead_streams_failed_total").unwrap_or(0.0))
}

/// Connections come to nothing, with this code. One that began while a daemon was still on its way up
/// may have another.
async fn until_turned_away(estate: &Estate, code: &str) -> Result<()> {
    let what = format!("connections are turned away with {code}");
    wait::until(&what, LIMIT, || async {
        let ended = tokio::time::timeout(REFUSED_LIMIT, echo(estate, 1)).await;
        let carried = ended.context("neither carried nor refused")?.is_ok();
        let counted = turned_away(estate, code).await?;
        ensure!(
            !carried && counted > 0.0,
            "carried: {carried}, counted: {counted}"
        );
        Ok(())
    })
    .await?;
    let log = estate.log("alpha")?;
    let is_logged = log.lines().any(|line| line.contains(code));
    ensure!(is_logged, "{code} is not in the consumer's log");
    Ok(())
}

/// Both logs tell of the clock, in the same words: the member's, and the control plane's of a member
/// of its kind (`role`).
async fn until_told(estate: &Estate, member: &Member, role: &str) -> Result<()> {
    let refused = format!("a {role}'s session was refused");
    wait::until("both ends tell of the clock", LIMIT, || async {
        for (log, with) in [(member.name.as_str(), ""), ("control", refused.as_str())] {
            let log_text = estate.log(log)?;
            let mut lines = log_text.lines();
            let tells = lines.any(|line| line.contains("clock differs by") && line.contains(with));
            ensure!(tells, "{log} does not");
        }
        Ok(())
    })
    .await?;
    Ok(())
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

/// R-POL-05, R-POL-06, R-ADM-05: clocks beyond that. What a grant's or lease's time refuses has its
/// code; a relay whose clock is behind its floor goes on; both ends tell of the clock; the right clock
/// mends everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_off_by_more_are_refused_by_their_code() -> Result<()> {
    let estate = Estate::new(1)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    until_echo(&estate, "before").await?;
    let (alpha, beta, relay) = (
        &estate.alpha,
        &estate.beta,
        estate.relays.first().context("no relay")?,
    );

    // The publisher judges the grant by its own clock.
    estate.restart_at(beta, -WRONG_MS).await?;
    until_turned_away(&estate, "GRANT_NOT_YET_VALID").await?;
    until_told(&estate, beta, "node").await?;
    // Grants outlast a lease by a third: 96 h.
    estate.restart_at(beta, 100 * HOUR_MS).await?;
    until_turned_away(&estate, "GRANT_EXPIRED").await?;
    estate.restart_at(beta, 0).await?;
    until_echo(&estate, "with the publisher's clock mended").await?;

    // A relay counts time as no earlier than what was signed last: it goes on, and says so.
    estate.restart_at(relay, -WRONG_MS).await?;
    until_echo(&estate, "through a relay whose clock is behind").await?;
    until_told(&estate, relay, "relay").await?;
    // Its lease of 72 h has ended by its clock, and a wrong clock gets no other.
    estate.restart_at(relay, 73 * HOUR_MS).await?;
    until_turned_away(&estate, "LEASE_ENDED").await?;
    estate.restart_at(relay, 0).await?;
    until_echo(&estate, "with the relay's clock mended").await?;

    // The consumer does not even ask with a grant that has ended by its clock.
    estate.restart_at(alpha, 100 * HOUR_MS).await?;
    until_turned_away(&estate, "NO_GRANT").await?;
    until_told(&estate, alpha, "node").await?;
    estate.restart_at(alpha, 0).await?;
    until_echo(&estate, "with the consumer's clock mended").await?;
    Ok(())
}

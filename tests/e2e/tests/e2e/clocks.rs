//! Hosts whose wall clocks are wrong: what is tolerated works; what is more is refused by its code where
//! a time decides, said at both ends, and mended by the right clock (R-POL-05).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::estate::Member;
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, verified, wait};
use serde_json::Value;
use std::time::Duration;

/// Just inside of the 60 s that are tolerated: the test's own time is not to count.
const TOLERATED_MS: i64 = 55_000;
/// Outside of them, and longer than anything that this estate has signed has existed.
const WRONG_MS: i64 = 600_000;
const HOUR_MS: i64 = 3_600_000;
/// Grants outlast a lease by a third: 96 h.
const BEYOND_GRANTS_MS: i64 = 100 * HOUR_MS;
/// A lease is of 72 h, and a grant still holds then.
const BEYOND_LEASES_MS: i64 = 73 * HOUR_MS;
/// Sessions, registrations and a first connection after a daemon's start, on a busy machine.
const LIMIT: Duration = Duration::from_secs(40);
/// A connection that is held and refused in the end.
const REFUSED_LIMIT: Duration = Duration::from_secs(20);

/// What a wrong clock is said to be, at both ends.
const BEHIND: &str = "the member's clock is behind the control plane's";
const AHEAD: &str = "the member's clock is ahead of the control plane's";

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
    let refused = of("fairlead_streams_refused_total").unwrap_or(0.0);
    Ok(refused + of("fairlead_streams_failed_total").unwrap_or(0.0))
}

/// Connections come to nothing, with this code in the consumer's metrics and log. One that began while a
/// daemon was still on its way up may have another.
async fn until_turned_away(estate: &Estate, code: &str) -> Result<()> {
    let what = format!("connections are turned away with {code}");
    wait::until(&what, LIMIT, || async {
        let before = turned_away(estate, code).await?;
        let ended = tokio::time::timeout(REFUSED_LIMIT, echo(estate, 1)).await;
        let carried = ended.context("neither carried nor refused")?.is_ok();
        let after = turned_away(estate, code).await?;
        ensure!(
            !carried && after > before,
            "carried: {carried}, counted: {before}, then {after}"
        );
        Ok(())
    })
    .await?;
    let log = estate.log("alpha")?;
    let is_logged = log.lines().any(|line| line.contains(code));
    ensure!(is_logged, "{code} is not in the consumer's log");
    Ok(())
}

/// Both logs tell of the clock, in the same words: the member's, and the control plane's of this member.
async fn until_told(estate: &Estate, kind: &str, member: &Member, how: &str) -> Result<()> {
    let shown = estate.admin(&[kind, "show", &member.name, "--json"])?.json()?;
    let id = shown.get("id").and_then(Value::as_str).context("no id")?;
    let refused = format!("a {kind}'s session was refused");
    let what = format!("{} and the control plane tell of the clock", member.name);
    wait::until(&what, LIMIT, || async {
        for (log, with) in [
            (member.name.as_str(), &["no session with the control plane"][..]),
            ("control", &[refused.as_str(), id]),
        ] {
            let log_text = estate.log(log)?;
            let mut lines = log_text.lines();
            let tells = lines.any(|line| {
                let of_clock = line.contains("clock differs by") && line.contains(how);
                of_clock && with.iter().all(|words| line.contains(words))
            });
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

/// R-POL-05, R-POL-06, R-ADM-05: clocks that are off by more. One that is behind keeps nobody out: what was
/// signed last says how late it is at least. One that is ahead ends what the control plane gave by its
/// time, with its code. Both ends tell of the clock, and the right clock mends everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_off_by_more_are_refused_by_their_code() -> Result<()> {
    let estate = Estate::new(1)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    until_echo(&estate, "before").await?;
    let relay = estate.relays.first().context("no relay")?;
    for (kind, member, beyond_ms, code) in [
        ("node", &estate.beta, BEYOND_GRANTS_MS, "GRANT_EXPIRED"),
        ("relay", relay, BEYOND_LEASES_MS, "LEASE_ENDED"),
        // It does not even ask with a grant that has ended by its clock.
        ("node", &estate.alpha, BEYOND_GRANTS_MS, "NO_GRANT"),
    ] {
        let name = &member.name;
        estate.restart_at(member, -WRONG_MS).await?;
        until_echo(&estate, &format!("with {name}'s clock behind")).await?;
        until_told(&estate, kind, member, BEHIND).await?;
        estate.restart_at(member, beyond_ms).await?;
        until_turned_away(&estate, code).await?;
        until_told(&estate, kind, member, AHEAD).await?;
        estate.restart_at(member, 0).await?;
        until_echo(&estate, &format!("with {name}'s clock mended")).await?;
    }
    let early = turned_away(&estate, "GRANT_NOT_YET_VALID").await?;
    ensure!(early == 0.0, "{early} grants were taken for early");
    Ok(())
}

/// R-POL-05, R-ADM-05: a publisher whose clock is behind, and which hears nothing newer for it, takes a
/// grant that was renewed meanwhile for one of the future, and says so. The right clock mends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_newer_than_a_publishers_time_is_not_yet_valid() -> Result<()> {
    let estate = Estate::new(1)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    until_echo(&estate, "before").await?;
    // Ten minutes pass for everybody but the publisher; a control plane signs grants anew when it starts.
    estate.restart_control_at(WRONG_MS).await?;
    let relay = estate.relays.first().context("no relay")?;
    for member in [relay, &estate.alpha] {
        estate.restart_at(member, WRONG_MS).await?;
    }
    estate.restart_at(&estate.beta, 0).await?;
    until_told(&estate, "node", &estate.beta, BEHIND).await?;
    until_turned_away(&estate, "GRANT_NOT_YET_VALID").await?;
    estate.restart_at(&estate.beta, WRONG_MS).await?;
    until_echo(&estate, "with the publisher's clock mended").await?;
    Ok(())
}

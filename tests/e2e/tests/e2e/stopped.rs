//! A daemon that is stopped says goodbye: it is shown offline at once, not when it is missed (R-UI-01).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Role, process, wait};
use serde_json::Value;
use std::time::Duration;

/// At once: long before a member that is only missed is shown offline, 5 s (R-NOD-06).
const AT_ONCE: Duration = Duration::from_secs(3);
/// What was stopped is ready again.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// State and reason of a member, as the CLI has them.
fn standing(pool: &Pool, kind: &str, name: &str) -> Result<(String, String)> {
    let member = pool.cli(&[kind, "show", name, "--json"])?.json()?;
    let text = |key: &str| {
        let text = member.get(key).and_then(Value::as_str);
        text.map(str::to_owned)
            .with_context(|| format!("no {key}: {member}"))
    };
    Ok((text("state")?, text("state_reason")?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_member_is_offline_at_once_and_ready_again_later() -> Result<()> {
    let pool = Pool::builder().relays(1).start().await?;
    for (role, kind, name, reason) in [
        (
            Role::Supervisor("relay-1"),
            "relay",
            "relay-1",
            "its supervisor was stopped",
        ),
        (Role::Node("alpha"), "node", "alpha", "its daemon was stopped"),
    ] {
        // Who would start it again holds still.
        let service_manager = process::stop(pool.up_pid())?;
        process::terminate(pool.pid(role)?)?;
        let (_, took) = wait::until(&format!("{name} is offline"), AT_ONCE, || async {
            let (state, why) = standing(&pool, kind, name)?;
            ensure!((&*state, &*why) == ("offline", reason), "{state}: {why}");
            Ok(())
        })
        .await?;
        println!("{kind} {name}: offline after {took:?}");
        let row = pool.cli(&[kind, "ls"])?.ok()?.stdout;
        let row = row
            .lines()
            .find(|line| line.starts_with(name))
            .context("no row")?
            .to_owned();
        ensure!(row.contains("offline") && row.contains(reason), "{row}");
        drop(service_manager);
        wait::until(&format!("{name} is ready"), READY_LIMIT, || async {
            let (state, why) = standing(&pool, kind, name)?;
            ensure!(state == "ready", "{state}: {why}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

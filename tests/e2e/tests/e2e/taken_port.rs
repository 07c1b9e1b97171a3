//! A relay whose port another program has.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::target::{Behaviour, Target};
use fairlead_testkit::{Estate, wait};
use serde_json::Value;
use std::net::UdpSocket;
use std::time::Duration;

/// Where a relay listens, unless it is told otherwise.
const PORT: &str = "[::]:9443";
/// A worker that keeps ending is started again after 30 s; then its port is probed.
const LIMIT: Duration = Duration::from_secs(70);

/// R-ENR-07, R-UI-02: why a worker does not start is seen without its host: in the list, in the relay's own
/// page, in JSON and in the warnings. It starts by itself once the port is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_port_is_taken_is_shown_with_the_reason() -> Result<()> {
    let estate = Estate::new(1)?;
    let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
    estate.build(target.address()).await?;
    let relay = estate.relays.first().context("no relay")?;
    relay.stop()?;
    let held = relay.host.run(|| UdpSocket::bind(PORT))??;
    estate.start(relay)?;
    let told = format!("exited with code 4: {PORT}/udp is taken by ");
    wait::until("the relay's reason is known", LIMIT, || async {
        let shown = estate.admin(&["relay", "show", &relay.name, "--json"])?.json()?;
        let text = |pointer: &str| shown.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        ensure!(text("/worker/last_exit").starts_with(&told), "{shown}");
        ensure!(text("/state_reason").contains(&told), "{shown}");
        Ok(())
    })
    .await?;
    for arguments in [
        &["relay", "ls"][..],
        &["relay", "show", &relay.name],
        &["relay", "ls", "--json"],
        &["status"],
    ] {
        let answer = estate.admin(arguments)?;
        ensure!(answer.stdout.contains(&told), "{arguments:?}: {answer:?}");
    }
    drop(held);
    wait::until("the relay is ready", LIMIT, || async {
        let shown = estate.admin(&["relay", "show", &relay.name, "--json"])?.json()?;
        let state = shown.get("state").and_then(Value::as_str);
        ensure!(state == Some("ready"), "{shown}");
        Ok(())
    })
    .await?;
    Ok(())
}

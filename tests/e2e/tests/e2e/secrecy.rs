//! A relay cannot read payload: a search of its memory finds none of it (R-STR-06).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::memory::{self, Marker};
use fairlead_testkit::{Pool, Role};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const MARKERS: usize = 32;

/// No write for this long: every buffer on the way is full.
const BLOCKED: Duration = Duration::from_secs(1);

/// Writes markers, over and over, until nothing takes any more; nobody reads at the other end.
async fn write_until_blocked(stream: &mut TcpStream, markers: &[Marker]) -> Result<u64> {
    let bytes = markers.concat().repeat(64);
    let mut written = 0;
    loop {
        match tokio::time::timeout(BLOCKED, stream.write_all(&bytes)).await {
            Ok(result) => result.with_context(|| format!("after {written} bytes"))?,
            Err(_) => return Ok(written),
        }
        written += bytes.len() as u64;
    }
}

/// R-STR-06: both ways are full of markers; the nodes hold them, the relay that carries them does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relays_memory_holds_no_payload() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let target = listener.local_addr()?.to_string();
    let pool = Pool::builder().relays(0).to("secret", &target)?.start().await?;
    let (there, back) = (memory::markers(MARKERS), memory::markers(MARKERS));

    let mut application = TcpStream::connect(pool.listen("secret")?).await?;
    let (mut served, _) = listener.accept().await?;
    let mut writers = JoinSet::new();
    let (one, two) = (there.clone(), back.clone());
    writers.spawn(async move {
        write_until_blocked(&mut application, &one)
            .await
            .map(|n| (n, application))
    });
    writers.spawn(async move { write_until_blocked(&mut served, &two).await.map(|n| (n, served)) });
    let mut open = Vec::new();
    while let Some(result) = writers.join_next().await {
        let (written, stream) = result??;
        ensure!(written > 100_000, "only {written} bytes went in");
        open.push(stream);
    }

    let all = [there, back].concat();
    for name in ["alpha", "beta"] {
        let search = memory::search(pool.pid(Role::Node(name))?, &all)?;
        let (sent, received) = (
            search.found.range(..MARKERS).count(),
            search.found.range(MARKERS..).count(),
        );
        println!(
            "node {name}: {sent} and {received} of {MARKERS} markers in {} bytes",
            search.bytes
        );
        ensure!(
            sent == MARKERS && received == MARKERS,
            "the search misses markers where they must be"
        );
    }
    for role in [Role::Worker("local"), Role::Supervisor("local"), Role::Control] {
        let search = memory::search(pool.pid(role)?, &all)?;
        println!(
            "{role:?}: {} markers in {} bytes",
            search.found.len(),
            search.bytes
        );
        ensure!(
            search.bytes > 1_000_000,
            "{role:?}: only {} bytes were searched",
            search.bytes
        );
        ensure!(
            search.found.is_empty(),
            "{role:?} holds payload: {:?}",
            search.found
        );
    }
    drop(open);
    Ok(())
}

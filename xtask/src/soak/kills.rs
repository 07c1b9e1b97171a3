//! F-04: bytes both ways at once on one connection while the relay that carries it is killed every few
//! seconds. Hashes are equal, no socket errs, no gap is long, memory is bounded, writers wait.

use super::watch;
use anyhow::{Context as _, Result, ensure};
use fairlead_testkit::{Ends, Pool, process, verified};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// F-04: every gap is shorter.
const GAP_MAX: Duration = Duration::from_secs(3);
/// Bytes that were written and not yet read: a stream's window (4 MiB at most) at each end, the legs',
/// and two pairs of sockets, whose buffers the kernel lets grow to 36 MiB a pair (`tcp_rmem`,
/// `tcp_wmem`). A writer that gets further ahead is not held back; memory of daemons has its own limit.
const AHEAD_MAX: u64 = 96 << 20;
/// Resident memory of any one daemon: about 10 MiB and a few windows.
const RESIDENT_MAX: u64 = 128 << 20;
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
/// GiB each way of a smoke run.
const SMOKE_GIB: f64 = 0.1;
const SHOW_EVERY: Duration = Duration::from_secs(5);

/// Arguments of `cargo xtask soak kills`.
#[derive(Debug, clap::Args)]
pub(crate) struct KillsArgs {
    /// A short run, of whatever build, that shows that everything works; its figures mean nothing.
    #[arg(long)]
    pub(super) smoke: bool,
    /// GiB each way.
    #[arg(long, default_value_t = 5.0)]
    gib: f64,
    /// Between two kills.
    #[arg(long, default_value = "7s", value_parser = super::seconds)]
    every: Duration,
    /// Relays beside the local one.
    #[arg(long, default_value_t = 2)]
    relays: usize,
}

/// What both directions have done so far.
#[derive(Debug, Default)]
struct Counts {
    up_sent: Arc<AtomicU64>,
    up_received: Arc<AtomicU64>,
    down_sent: Arc<AtomicU64>,
    down_received: Arc<AtomicU64>,
}

/// What was greatest while it ran.
#[derive(Debug, Default)]
struct Most {
    ahead: u64,
    resident: BTreeMap<String, u64>,
}

pub(super) async fn run(arguments: &KillsArgs) -> Result<()> {
    let gib = if arguments.smoke { SMOKE_GIB } else { arguments.gib };
    let len = (gib * f64::from(1 << 30)) as u64;
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(arguments.relays)
        .to("soak", &ends.address())?
        .start()
        .await?;
    let (near, far) = ends.open(pool.listen("soak")?).await?;
    let counts = Counts::default();
    let start = Instant::now();
    let most = RefCell::new(Most::default());
    let killed = RefCell::new(BTreeMap::new());
    let traffic = async {
        let c = &counts;
        let up = one_end(near, (81, 82), len, c.up_sent.clone(), c.down_received.clone());
        let down = one_end(far, (82, 81), len, c.down_sent.clone(), c.up_received.clone());
        let both = async { tokio::try_join!(up, down) };
        tokio::select! {
            done = both => done,
            ended = sample(&pool, c, &most, len) => Err(ended.err().context("sampling ended")?),
        }
    };
    let told = |relay: &str| {
        *killed.borrow_mut().entry(relay.to_owned()).or_insert(0_u32) += 1;
        println!(
            "{:7.1} s  killed the worker of {relay}",
            start.elapsed().as_secs_f64()
        );
    };
    let ((near, far), kills) = pool.under_kills(arguments.every, traffic, told).await?;
    let took = start.elapsed();
    let most = most.into_inner();
    let gap = near.longest_gap.max(far.longest_gap);
    let rate = 2.0 * len as f64 * 8.0 / 1e9 / took.as_secs_f64();
    println!("\n| | |\n|---|---|");
    println!("| bytes each way | {len}, hashes equal |");
    println!(
        "| time | {:.1} s, {rate:.2} Gbit/s both ways together |",
        took.as_secs_f64()
    );
    println!("| workers killed | {} ({:?}) |", kills.count, killed.into_inner());
    println!("| moves | {} |", kills.moves);
    println!(
        "| longest gap | {:.3} s to the consumer, {:.3} s to the publisher |",
        near.longest_gap.as_secs_f64(),
        far.longest_gap.as_secs_f64()
    );
    println!(
        "| most bytes between a writer and its reader | {:.1} MiB |",
        mib(most.ahead)
    );
    for (name, resident) in &most.resident {
        println!("| most memory, {name} | {:.1} MiB |", mib(*resident));
    }
    ensure!(near.bytes == len && far.bytes == len);
    ensure!(kills.count >= 1 || took < arguments.every, "no worker was killed");
    ensure!(kills.moves >= kills.count as u64, "{kills:?}");
    ensure!(gap < GAP_MAX, "a gap of {gap:?}");
    ensure!(most.ahead < AHEAD_MAX, "a writer was {} bytes ahead", most.ahead);
    for (name, resident) in &most.resident {
        ensure!(*resident < RESIDENT_MAX, "{name} had {:.1} MiB", mib(*resident));
    }
    Ok(())
}

/// Sends and receives at one end at once, `len` bytes each way, to the ends of both.
/// Both halves, each in a task of its own: on one task a half that is always ready takes the other's
/// turns, and the gap measured would be that of the load generator.
async fn one_end(
    stream: TcpStream,
    (out, back): (u64, u64),
    len: u64,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
) -> Result<verified::Received> {
    let (read, write) = stream.into_split();
    let mut halves = JoinSet::new();
    halves.spawn(async move {
        let mut write = Counted(write, sent);
        verified::send(&mut write, out, len).await?;
        write.shutdown().await.context("shutdown")?;
        anyhow::Ok(None)
    });
    halves.spawn(async move {
        let mut read = Counted(read, received);
        Ok(Some(verified::receive_to_end(&mut read, back, len).await?))
    });
    let mut whole = None;
    while let Some(half) = halves.join_next().await {
        whole = half??.or(whole);
    }
    whole.context("nothing was received")
}

/// Watches for ever.
async fn sample(pool: &Pool, counts: &Counts, most: &RefCell<Most>, len: u64) -> Result<()> {
    let (mut shown, start) = (Instant::now(), Instant::now());
    loop {
        tokio::time::sleep(SAMPLE_EVERY).await;
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        // The reader first: what it reads meanwhile only makes the writer look less far ahead.
        let (up, down) = (load(&counts.up_received), load(&counts.down_received));
        let ahead = load(&counts.up_sent).saturating_sub(up);
        let ahead = ahead.max(load(&counts.down_sent).saturating_sub(down));
        let mut most = most.borrow_mut();
        most.ahead = most.ahead.max(ahead);
        for subject in watch::subjects(pool)? {
            // A worker that has just died is not there.
            let resident = process::resident_bytes(subject.pid).unwrap_or_default();
            let before = most.resident.entry(subject.name).or_default();
            *before = (*before).max(resident);
        }
        if shown.elapsed() >= SHOW_EVERY {
            shown = Instant::now();
            let percent = |n: u64| 100.0 * n as f64 / len as f64;
            let at = start.elapsed().as_secs_f64();
            println!(
                "{at:7.1} s  {:5.1} % up, {:5.1} % down",
                percent(up),
                percent(down)
            );
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Half a socket that counts.
struct Counted<T>(T, Arc<AtomicU64>);

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let done = Pin::new(&mut self.0).poll_read(context, buffer);
        self.1
            .fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        done
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let done = Pin::new(&mut self.0).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &done {
            self.1.fetch_add(*count as u64, Ordering::Relaxed);
        }
        done
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

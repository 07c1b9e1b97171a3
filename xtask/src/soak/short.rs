//! Many short tunnels: connect, one byte there and back, close; a third are reset. Afterwards memory,
//! descriptors and tasks of every process are back where they were.

use super::watch::{self, Subject, Usage};
use anyhow::{Context, Result, bail};
use fairlead_testkit::{Pool, Target, target};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Tunnels at once.
const WORKERS: u64 = 32;
/// Tunnels before the first look: pools, caches and allocators have what they keep.
const WARM_UP: u64 = 5_000;
/// Tunnels of a smoke run, and of its warm-up.
const SMOKE_TUNNELS: u64 = 1_000;
/// After the warm-up and before the first look, for what ends later.
const SETTLE: Duration = Duration::from_secs(10);
/// Until all is back.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// How far above the first look counts as back: 5 %, and a little for what comes and goes by itself
/// (a scrape's connection, a page of an allocator).
const SHARE: f64 = 0.05;
const SLACK: Usage = Usage {
    resident: 1 << 20,
    descriptors: 4,
    tasks: 4,
};
/// One tunnel, on a busy machine.
const TUNNEL_LIMIT: Duration = Duration::from_secs(20);
const SHOW_EVERY: Duration = Duration::from_secs(10);

/// Arguments of `cargo xtask soak short`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShortArgs {
    /// A short run, of whatever build, that shows that everything works; its figures mean nothing.
    #[arg(long)]
    pub(super) smoke: bool,
    /// How many tunnels in all.
    #[arg(long, default_value_t = 200_000)]
    tunnels: u64,
    /// Over how long they are spread; 0 is as fast as it goes.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

pub(super) async fn run(arguments: &ShortArgs) -> Result<()> {
    let target = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("short", target.address())?
        .start()
        .await?;
    let link = pool.listen("short")?;
    let (count, minutes, warm_up) = match arguments.smoke {
        true => (SMOKE_TUNNELS, 0.0, SMOKE_TUNNELS),
        false => (arguments.tunnels, arguments.minutes, WARM_UP),
    };
    let every = Duration::from_secs_f64(minutes * 60.0 / count.max(1) as f64);
    println!("warming up: {warm_up} tunnels");
    tunnels(link, warm_up, every).await?;
    tokio::time::sleep(SETTLE).await;
    let subjects = watch::subjects(&pool)?;
    let before = usages(&subjects)?;
    let start = Instant::now();
    let longest = tunnels(link, count, every).await?;
    let took = start.elapsed();
    let at_end = usages(&subjects)?;
    println!(
        "{} tunnels in {:.0} s ({:.0} a second), the longest took {longest:?}",
        count,
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64()
    );
    let ended = Instant::now();
    let (after, left) = loop {
        let after = usages(&subjects)?;
        let left = not_back(&subjects, &before, &after);
        if left.is_empty() || ended.elapsed() > BACK_WITHIN {
            break (after, left);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    println!(
        "looked at again {:.0} s after the last tunnel",
        ended.elapsed().as_secs_f64()
    );
    let columns = [
        ("before", &before[..]),
        ("at the end", &at_end),
        ("after", &after),
    ];
    println!("{}", watch::table(&subjects, &columns));
    if !left.is_empty() {
        bail!("not back within {BACK_WITHIN:?}: {}", left.join("; "));
    }
    Ok(())
}

fn usages(subjects: &[Subject]) -> Result<Vec<Usage>> {
    let usage = |subject: &Subject| subject.usage().with_context(|| subject.name.clone());
    subjects.iter().map(usage).collect()
}

/// What is more than 5 % above where it was.
fn not_back(subjects: &[Subject], before: &[Usage], after: &[Usage]) -> Vec<String> {
    let mut left = Vec::new();
    for ((subject, before), after) in subjects.iter().zip(before).zip(after) {
        let mut hold = |what: &str, before: f64, after: f64, slack: f64| {
            if after > before * (1.0 + SHARE) && after > before + slack {
                left.push(format!("{}: {what} {before} before, {after} after", subject.name));
            }
        };
        hold(
            "bytes",
            before.resident as f64,
            after.resident as f64,
            SLACK.resident as f64,
        );
        let count = |n: usize| n as f64;
        let slack = count(SLACK.descriptors);
        hold(
            "descriptors",
            count(before.descriptors),
            count(after.descriptors),
            slack,
        );
        hold(
            "tasks",
            count(before.tasks),
            count(after.tasks),
            count(SLACK.tasks),
        );
    }
    left
}

/// Opens `count` tunnels, one every `every`; the longest time that one took.
async fn tunnels(link: std::net::SocketAddr, count: u64, every: Duration) -> Result<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let next = Arc::clone(&next);
        workers.spawn(async move {
            let (mut longest, mut shown) = (Duration::ZERO, Instant::now());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(longest);
                }
                let due = every.mul_f64(number as f64);
                tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
                let began = Instant::now();
                tokio::time::timeout(TUNNEL_LIMIT, tunnel(link, number % 3 == 2))
                    .await
                    .with_context(|| format!("tunnel {number}: no answer"))?
                    .with_context(|| format!("tunnel {number}"))?;
                longest = longest.max(began.elapsed());
                if worker == 0 && shown.elapsed() > SHOW_EVERY {
                    shown = Instant::now();
                    println!("{:6.0} s  {number} of {count}", start.elapsed().as_secs_f64());
                }
            }
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(ended) = workers.join_next().await {
        longest = longest.max(ended??);
    }
    Ok(longest)
}

async fn tunnel(link: std::net::SocketAddr, reset: bool) -> Result<()> {
    let mut stream = TcpStream::connect(link).await.context("connect")?;
    stream.write_all(b"!").await?;
    let answer = stream.read_u8().await?;
    if answer != b'!' {
        bail!("the echo is wrong");
    }
    if reset {
        target::reset_on_close(&stream)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_grown_is_named() {
        let usage = |resident, descriptors, tasks| Usage {
            resident,
            descriptors,
            tasks,
        };
        let subjects = watch::subjects_of_test(&["a", "b"]);
        let before = [usage(100 << 20, 20, 10), usage(10 << 20, 100, 10)];
        let same = [usage(104 << 20, 23, 10), usage(10 << 20, 100, 12)];
        assert!(not_back(&subjects, &before, &same).is_empty());
        let grown = [usage(106 << 20, 25, 10), usage(10 << 20, 106, 15)];
        let left = not_back(&subjects, &before, &grown);
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(
            left[0].starts_with("a: bytes") && left[3].starts_with("b: tasks"),
            "{left:?}"
        );
    }
}

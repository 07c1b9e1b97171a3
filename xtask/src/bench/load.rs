//! The load: bulk, ping-pong, opens, idle tunnels.

use super::service::send_for;
use super::table::Table;
use anyhow::{Context, Result, bail};
use fairlead_testkit::process;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a ping, as a small query has.
const PING_BYTES: usize = 64;
/// Threads that open tunnels at once.
const OPENERS: usize = 32;
/// How long one read may take before the subject counts as broken.
const STALLED: Duration = Duration::from_secs(20);

/// One thing to measure.
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// Where the service is reached through it.
    pub(super) address: SocketAddr,
    /// Processes that carry at the relay, and at both ends.
    pub(super) relays: Vec<u32>,
    pub(super) nodes: Vec<u32>,
}

/// How much is done.
pub(super) struct Plan {
    bulk: Duration,
    pings: usize,
    opens: usize,
    opening: Duration,
    idle: usize,
}

impl Plan {
    pub(super) const FULL: Self = Self {
        bulk: Duration::from_secs(2),
        pings: 4000,
        opens: 400,
        opening: Duration::from_secs(2),
        idle: 1000,
    };
    pub(super) const SMOKE: Self = Self {
        bulk: Duration::from_millis(200),
        pings: 100,
        opens: 20,
        opening: Duration::from_millis(200),
        idle: 50,
    };
}

/// Measures everything but idle memory once.
pub(super) fn round(subject: &Subject, plan: &Plan, table: &mut Table) -> Result<()> {
    let mut moved = 0.0;
    let before = Cpu::of(subject)?;
    for streams in [1, 8] {
        for (way, up, down) in [
            ("up", true, false),
            ("down", false, true),
            ("both ways", true, true),
        ] {
            let row = format!("{streams} stream{} {way}", if streams == 1 { "" } else { "s" });
            let bulk = bulk(subject.address, streams, up, down, plan.bulk).with_context(|| row.clone())?;
            moved += bulk.bytes / 1e9;
            table.add(
                &row,
                "Gbit/s",
                subject.name,
                bulk.bytes * 8.0 / 1e9 / bulk.seconds,
            );
        }
    }
    let after = Cpu::of(subject)?;
    if !subject.relays.is_empty() {
        table.add(
            "CPU, relay",
            "s/GB",
            subject.name,
            (after.relays - before.relays) / moved,
        );
        table.add(
            "CPU, both nodes",
            "s/GB",
            subject.name,
            (after.nodes - before.nodes) / moved,
        );
    }
    let mut times = pings(subject.address, plan.pings).context("ping-pong")?;
    table.add("ping-pong p50", "µs", subject.name, percentile(&mut times, 50));
    table.add("ping-pong p99", "µs", subject.name, percentile(&mut times, 99));
    let mut times = opens(subject.address, plan.opens).context("opens")?;
    table.add("open p50", "µs", subject.name, percentile(&mut times, 50));
    table.add("open p99", "µs", subject.name, percentile(&mut times, 99));
    let rate = opening(subject.address, plan.opening).context("opens at once")?;
    table.add(&format!("opens, {OPENERS} at once"), "1/s", subject.name, rate);
    Ok(())
}

/// Measures what an idle tunnel costs: before anything else, because memory that was used once is
/// kept.
pub(super) fn idle(subject: &Subject, plan: &Plan, table: &mut Table) -> Result<()> {
    if subject.relays.is_empty() {
        return Ok(());
    }
    let resident = |pids: &[u32]| {
        pids.iter().try_fold(0, |sum, p| {
            Ok::<_, anyhow::Error>(sum + process::resident_bytes(*p)?)
        })
    };
    // A few first, so that pools and caches are there.
    let warm: Vec<TcpStream> = (0..20)
        .map(|_| echo_once(subject.address))
        .collect::<Result<_>>()?;
    let before = (resident(&subject.relays)?, resident(&subject.nodes)?);
    let idle: Vec<TcpStream> = (0..plan.idle)
        .map(|_| echo_once(subject.address))
        .collect::<Result<_>>()?;
    std::thread::sleep(Duration::from_millis(500));
    let after = (resident(&subject.relays)?, resident(&subject.nodes)?);
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1024.0 / idle.len() as f64;
    table.add("idle tunnel, relay", "KiB", subject.name, each(before.0, after.0));
    table.add(
        "idle tunnel, both nodes",
        "KiB",
        subject.name,
        each(before.1, after.1),
    );
    drop((warm, idle));
    Ok(())
}

/// Waits until the service answers through `address`.
pub(super) fn until_served(address: SocketAddr) -> Result<()> {
    let limit = Instant::now() + STALLED;
    loop {
        match echo_once(address) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > limit => return Err(error.context("the service is not reached")),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

struct Cpu {
    relays: f64,
    nodes: f64,
}

impl Cpu {
    fn of(subject: &Subject) -> Result<Self> {
        let sum = |pids: &[u32]| {
            pids.iter().try_fold(0.0, |sum, pid| {
                Ok::<_, anyhow::Error>(sum + process::cpu_time(*pid)?.as_secs_f64())
            })
        };
        Ok(Self {
            relays: sum(&subject.relays)?,
            nodes: sum(&subject.nodes)?,
        })
    }
}

struct Bulk {
    bytes: f64,
    seconds: f64,
}

/// Moves bytes for `time` over `streams` connections; counted where they arrive, until the last has.
fn bulk(address: SocketAddr, streams: usize, up: bool, down: bool, time: Duration) -> Result<Bulk> {
    let start = Instant::now();
    let one = move || -> Result<u64> {
        let mut socket = connect(address)?;
        let mut command = [b'S', 0, 0, 0, 0];
        let milliseconds = if down { u32::try_from(time.as_millis())? } else { 0 };
        if let Some(field) = command.last_chunk_mut::<4>() {
            *field = milliseconds.to_be_bytes();
        }
        socket.write_all(&command)?;
        let mut writing = socket.try_clone()?;
        let sender = std::thread::spawn(move || -> std::io::Result<()> {
            if up {
                send_for(&mut writing, time)?;
            }
            writing.shutdown(Shutdown::Write)
        });
        let (received, counted) = read_with_count(&mut socket)?;
        sender
            .join()
            .map_err(|_| anyhow::anyhow!("the sender ended early"))??;
        Ok(received + counted)
    };
    let threads: Vec<_> = (0..streams).map(|_| std::thread::spawn(one)).collect();
    let mut bytes = 0;
    for thread in threads {
        bytes += thread
            .join()
            .map_err(|_| anyhow::anyhow!("a stream ended early"))??;
    }
    if bytes == 0 {
        bail!("nothing arrived");
    }
    Ok(Bulk {
        bytes: bytes as f64,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Reads to the end; the last eight bytes are the service's count. Returns what arrived here, and
/// what arrived there.
fn read_with_count(socket: &mut TcpStream) -> Result<(u64, u64)> {
    let mut last = [0; 8];
    let mut buffer = vec![0; super::service::CHUNK_BYTES];
    let mut received = 0u64;
    loop {
        let n = socket.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        received += n as u64;
        let bytes = buffer.get(..n).unwrap_or_default();
        last.rotate_left(n.min(8));
        for (to, from) in last.iter_mut().rev().zip(bytes.iter().rev()) {
            *to = *from;
        }
    }
    let received = received
        .checked_sub(8)
        .context("the stream ended before the count")?;
    Ok((received, u64::from_be_bytes(last)))
}

fn pings(address: SocketAddr, count: usize) -> Result<Vec<f64>> {
    let mut socket = echo_once(address)?;
    let mut times = Vec::with_capacity(count);
    let mut buffer = [1; PING_BYTES];
    for _ in 0..count {
        let start = Instant::now();
        socket.write_all(&buffer)?;
        socket.read_exact(&mut buffer)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

fn opens(address: SocketAddr, count: usize) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let socket = echo_once(address)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        drop(socket);
    }
    Ok(times)
}

/// Opens as many tunnels as possible for `time`, from several threads, each used once.
fn opening(address: SocketAddr, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let one = move || -> Result<usize> {
        let mut count = 0;
        while start.elapsed() < time {
            echo_once(address)?;
            count += 1;
        }
        Ok(count)
    };
    let threads: Vec<_> = (0..OPENERS).map(|_| std::thread::spawn(one)).collect();
    let mut count = 0;
    for thread in threads {
        count += thread
            .join()
            .map_err(|_| anyhow::anyhow!("an opener ended early"))??;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// A connection that has echoed one byte: the tunnel is open to its far end.
fn echo_once(address: SocketAddr) -> Result<TcpStream> {
    let mut socket = connect(address)?;
    socket.write_all(b"E!")?;
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    if &answer != b"!" {
        bail!("the echo is wrong");
    }
    Ok(socket)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(STALLED))?;
    socket.set_write_timeout(Some(STALLED))?;
    Ok(socket)
}

fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times
        .get(times.len() * percent / 100)
        .copied()
        .unwrap_or(f64::NAN)
}

//! The built-in echo service, and a verified byte stream through it that outlives its relays.

use super::error::UpError;
use super::layout::Layout;
use super::plan::CONSUMER;
use super::progress::Progress;
use fairlead_host::member::{MemberFolder, read_runtime};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections of the echo service at once: far more than people open by hand.
const ECHOES_MAX: usize = 256;
/// What the stream sends at a time.
const CHUNK_LEN: usize = 16 * 1024;
/// Pause between chunks: about 3 MB/s, so that a demo leaves the machine usable.
const CHUNK_PAUSE: Duration = Duration::from_millis(5);
/// Pause before a broken stream is begun anew; it doubles while streams break without a byte.
const AGAIN_PAUSE: Duration = Duration::from_millis(500);
/// The pause's greatest length.
const AGAIN_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A relay's worker is killed this often, each in turn.
const KILL_PAUSE: Duration = Duration::from_secs(6);
/// One worker is not killed more often than this: its supervisor would take it for a crash loop.
const KILL_AGAIN: Duration = Duration::from_secs(18);
/// How often the figures are shown.
const SHOW_PAUSE: Duration = Duration::from_secs(1);
/// A metrics page is below 1 MiB.
const METRICS_LEN_MAX: u64 = 1024 * 1024;
/// Metrics come from this machine.
const METRICS_TIMEOUT: Duration = Duration::from_secs(1);

/// The echo service on a Unix socket.
#[derive(Debug)]
pub(super) struct Echo(Option<UnixListener>);

impl Echo {
    /// Listens at `path` if the service is wanted.
    pub(super) fn start(path: &Path, wanted: bool) -> Result<Self, UpError> {
        let failed = |source| UpError::Path {
            path: path.to_owned(),
            source,
        };
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        if !wanted {
            return Ok(Self(None));
        }
        UnixListener::bind(path).map(|l| Self(Some(l))).map_err(failed)
    }

    /// Serves for ever.
    pub(super) async fn serve(&self) {
        let Some(listener) = &self.0 else {
            return std::future::pending().await;
        };
        let room = Arc::new(Semaphore::new(ECHOES_MAX));
        let mut echoes = JoinSet::new();
        loop {
            let Ok(permit) = room.clone().acquire_owned().await else {
                return;
            };
            while echoes.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    echoes.spawn(async move {
                        let _ = echo(stream).await;
                        drop(permit);
                    });
                }
                // Out of descriptors, say: others may be returned soon.
                Err(_) => tokio::time::sleep(AGAIN_PAUSE).await,
            }
        }
    }
}

async fn echo(mut stream: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    tokio::io::copy(&mut reader, &mut writer).await?;
    writer.shutdown().await
}

/// What the stream has shown so far.
#[derive(Debug, Default)]
pub(super) struct Figures {
    verified: Cell<u64>,
    longest_gap: Cell<Duration>,
    breaks: Cell<u64>,
    kills: Cell<u64>,
    moves: Cell<u64>,
}

impl Figures {
    /// All of them, for the end; `None` where no stream has carried anything.
    pub(super) fn totals(&self) -> Option<String> {
        (self.verified.get() > 0).then(|| format!("demo, in all: {}", self.line()))
    }

    fn line(&self) -> String {
        format!(
            "{:.1} MiB verified, {} killed, {}, longest gap {} ms, {} broken",
            mebibytes(self.verified.get()),
            counted(self.kills.get(), "relay"),
            counted(self.moves.get(), "move"),
            self.longest_gap.get().as_millis(),
            counted(self.breaks.get(), "stream"),
        )
    }
}

/// `1 relay`, `2 relays`.
fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// When a broken stream is tried again.
#[derive(Debug, PartialEq, Eq)]
struct Again {
    pause: Duration,
    told: bool,
}

impl Default for Again {
    fn default() -> Self {
        Self {
            pause: AGAIN_PAUSE,
            told: false,
        }
    }
}

impl Again {
    /// A stream broke, having carried something or not; whether to say so. Attempts that carry
    /// nothing are said once and come ever less often.
    fn broke(&mut self, carried: bool) -> bool {
        if carried {
            *self = Self::default();
        } else if self.told {
            self.pause = (self.pause * 2).min(AGAIN_PAUSE_MAX);
        }
        !std::mem::replace(&mut self.told, true) || carried
    }
}

/// Keeps a verified stream running through the link, kills the workers of `relays` in turn, and shows
/// the figures, for ever.
pub(super) async fn show(
    listen: SocketAddr,
    relays: &[String],
    layout: &Layout,
    progress: &Progress,
    figures: &Figures,
) {
    let stream = async {
        let mut again = Again::default();
        loop {
            let before = figures.verified.get();
            let Err(error) = run_stream(listen, figures).await;
            let carried = figures.verified.get() > before;
            if again.broke(carried) {
                figures.breaks.set(figures.breaks.get().saturating_add(1));
                progress.say(&format!("demo: the stream broke ({error}); it is tried again"));
            }
            tokio::time::sleep(again.pause).await;
        }
    };
    let show = async {
        loop {
            tokio::time::sleep(SHOW_PAUSE).await;
            // A daemon that does not tell at the moment has not moved less.
            figures.moves.set(figures.moves.get().max(moves(layout).await));
            progress.live(&format!("demo: {}", figures.line()));
        }
    };
    tokio::join!(stream, show, kill_in_turn(relays, layout, progress, figures));
}

/// Kills the workers in turn, for ever; their supervisors start them again.
async fn kill_in_turn(relays: &[String], layout: &Layout, progress: &Progress, figures: &Figures) {
    let count = u32::try_from(relays.len()).unwrap_or(u32::MAX).max(1);
    let pause = KILL_PAUSE.max(KILL_AGAIN / count);
    for relay in relays.iter().cycle() {
        tokio::time::sleep(pause).await;
        let runtime = MemberFolder::new(layout.relay(relay))
            .worker_dir()
            .join("runtime.json");
        let worker = read_runtime(&runtime).ok().flatten();
        let pid = worker.and_then(|info| Pid::from_raw(i32::try_from(info.pid).ok()?));
        // One that is away already comes back without a kill.
        if let Some(pid) = pid
            && kill_process(pid, Signal::KILL).is_ok()
        {
            figures.kills.set(figures.kills.get().saturating_add(1));
            progress.say(&format!(
                "demo: killed the worker of relay {relay} (process {pid})"
            ));
        }
    }
    std::future::pending::<()>().await;
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal place")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// One stream, until it breaks.
async fn run_stream(listen: SocketAddr, figures: &Figures) -> io::Result<Infallible> {
    let mut stream = TcpStream::connect(listen).await?;
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.split();
    let send = async {
        let mut offset = 0u64;
        let mut chunk = vec![0; CHUNK_LEN];
        loop {
            fill(offset, &mut chunk);
            writer.write_all(&chunk).await?;
            offset = offset.wrapping_add(CHUNK_LEN as u64);
            tokio::time::sleep(CHUNK_PAUSE).await;
        }
    };
    let receive = async {
        let mut offset = 0u64;
        let mut got = vec![0; CHUNK_LEN];
        let mut want = vec![0; CHUNK_LEN];
        let mut last = Instant::now();
        loop {
            let n = reader.read(&mut got).await?;
            let (got, want) = match (got.get(..n), want.get_mut(..n)) {
                (Some(got), Some(want)) if n > 0 => (got, want),
                (_, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            fill(offset, want);
            if got != want {
                let text = format!("bytes {offset} to {} are not those sent", offset + n as u64);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            offset = offset.wrapping_add(n as u64);
            figures
                .verified
                .set(figures.verified.get().saturating_add(n as u64));
            figures
                .longest_gap
                .set(figures.longest_gap.get().max(last.elapsed()));
            last = Instant::now();
        }
    };
    // Both go on for ever: only an error ends them.
    tokio::select! {
        result = send => result,
        result = receive => result,
    }
}

/// The byte at each place of the stream, so that a lost, doubled or swapped byte shows: one byte
/// of splitmix64's output per place.
fn fill(offset: u64, chunk: &mut [u8]) {
    for (place, byte) in (offset..).zip(chunk) {
        let mut z = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *byte = z.to_le_bytes()[3];
    }
}

/// How often streams were moved, as alpha counts; 0 while it does not tell.
async fn moves(layout: &Layout) -> u64 {
    let url = MemberFolder::new(layout.node(CONSUMER))
        .read_runtime()
        .ok()
        .flatten()
        .and_then(|info| info.metrics_url);
    let Some(address) = url.as_deref().and_then(address_of) else {
        return 0;
    };
    let page = tokio::time::timeout(METRICS_TIMEOUT, scrape(address)).await;
    page.ok().and_then(Result::ok).map_or(0, |page| sum_moves(&page))
}

/// The address in `http://ADDRESS/metrics`.
fn address_of(url: &str) -> Option<SocketAddr> {
    url.strip_prefix("http://")?.split('/').next()?.parse().ok()
}

async fn scrape(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    stream.take(METRICS_LEN_MAX).read_to_string(&mut page).await?;
    Ok(page)
}

fn sum_moves(page: &str) -> u64 {
    page.lines()
        .filter(|line| line.starts_with("fairlead_stream_moves_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_depends_on_its_place_alone() {
        let mut whole = [0; 100];
        fill(7, &mut whole);
        let mut part = [0; 40];
        fill(37, &mut part);
        assert_eq!(whole[30..70], part);
        assert_ne!(whole[..40], part);
    }

    #[test]
    fn totals_are_said_of_a_stream_that_carried_something() {
        let figures = Figures::default();
        assert_eq!(figures.totals(), None);
        figures.verified.set(3 << 20);
        figures.kills.set(1);
        figures.moves.set(2);
        assert_eq!(
            figures.totals().unwrap(),
            "demo, in all: 3.0 MiB verified, 1 relay killed, 2 moves, longest gap 0 ms, 0 streams broken"
        );
    }

    #[test]
    fn moves_are_summed_over_labels() {
        let page = "# HELP x\nfairlead_stream_moves_total{kind=\"planned\"} 2\nfairlead_stream_moves_total{kind=\"failure\"} 3\nother 9\n";
        assert_eq!(sum_moves(page), 5);
        assert_eq!(
            address_of("http://127.0.0.1:9/metrics"),
            Some("127.0.0.1:9".parse().unwrap())
        );
        assert_eq!(address_of("x"), None);
    }

    #[test]
    fn a_link_that_is_gone_is_said_once_and_tried_ever_less_often() {
        let mut again = Again::default();
        assert!(again.broke(true));
        assert!(!again.broke(false));
        let said = (0..20).filter(|_| again.broke(false)).count();
        assert_eq!((said, again.pause), (0, AGAIN_PAUSE_MAX));
        assert!(again.broke(true));
        assert_eq!(again.pause, AGAIN_PAUSE);
    }

    #[tokio::test]
    async fn the_echo_service_echoes_and_half_closes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let echo = Echo::start(&path, true).unwrap();
        let client = async {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        tokio::select! {
            text = client => assert_eq!(text, "hello"),
            () = echo.serve() => panic!("the service ended"),
        }
        // A socket left behind by a run that was killed is replaced.
        drop(echo);
        Echo::start(&path, true).unwrap();
        Echo::start(&path, false).unwrap();
        assert!(!path.exists());
    }
}

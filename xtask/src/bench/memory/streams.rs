//! Streams of a link, held at both ends.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::verified;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Streams that are opened at once.
const OPENING: usize = 64;
/// What each end of a suspended stream says: the window of a fresh stream.
const WINDOW: u64 = 256 << 10;
/// Most passes over all suspended streams: in each, sockets take some, and daemons what they can of it.
const PASSES_MAX: usize = 30;
/// Bytes that are said at once.
const PIECE: u64 = 16 << 10;
/// Streams between two looks at the kernel's memory.
const LOOK_EVERY: usize = 100;
/// Between two passes.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for an end of a stream to say something.
const LIMIT: Duration = Duration::from_secs(60);
/// What the kernel takes of an application beyond what a daemon does: little, so that what was said is in
/// the daemons.
const SEND_BUFFER: u32 = 16 << 10;

/// Streams to one target.
pub(super) struct Streams {
    target: Arc<TcpListener>,
    open: Vec<Stream>,
}

/// One stream, known at both ends by its number.
struct Stream {
    number: u64,
    near: TcpStream,
    far: TcpStream,
    /// What was said into it: at the near end, and at the far one.
    said: [u64; 2],
}

impl Streams {
    /// None yet, to a target that is made for them.
    pub(super) fn to_a_target() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        // Its connections have it from the listener.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(([127, 0, 0, 1], 0).into())?;
        Ok(Self {
            target: Arc::new(socket.listen(1024)?),
            open: Vec::new(),
        })
    }

    /// None yet, to the same target.
    pub(super) fn more(&self) -> Self {
        Self {
            target: Arc::clone(&self.target),
            open: Vec::new(),
        }
    }

    /// Where the target is.
    pub(super) fn target(&self) -> Result<SocketAddr> {
        Ok(self.target.local_addr()?)
    }

    /// How many are open.
    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    /// What was said into all of them, both ways.
    pub(super) fn said(&self) -> u64 {
        self.open.iter().flat_map(|stream| stream.said).sum()
    }

    /// Opens streams; how many were refused.
    pub(super) async fn open(&mut self, link: SocketAddr, count: usize) -> Result<u64> {
        let turns = Arc::new(Semaphore::new(OPENING));
        let mut nears = JoinSet::new();
        for number in 0..count as u64 {
            let turns = Arc::clone(&turns);
            nears.spawn(async move {
                let _turn = turns.acquire().await?;
                anyhow::Ok((number, tokio::time::timeout(LIMIT, near(link, number)).await??))
            });
        }
        let (mut fars, mut refused) = (BTreeMap::new(), 0);
        loop {
            tokio::select! {
                arrived = self.target.accept() => {
                    let far = tokio::time::timeout(LIMIT, far(arrived?.0)).await??;
                    fars.extend(far);
                }
                near = nears.join_next() => match near {
                    None => break,
                    Some(near) => match near?? {
                        (_, None) => refused += 1,
                        (number, Some(near)) => {
                            let far = fars.remove(&number).context("the target knows no such stream")?;
                            self.open.push(Stream { number, near, far, said: [0; 2] });
                        }
                    },
                },
            }
        }
        Ok(refused)
    }

    /// Says up to a window at both ends of each stream, until nothing more is taken, or the kernel holds
    /// half of what it may for TCP: near all of it, it drops what arrives for sockets that nobody reads
    /// yet, and later sends it again ever more slowly. How much was said, 1 is all.
    pub(super) async fn fill(&mut self) -> Result<f64> {
        for _ in 0..PASSES_MAX {
            let before = self.said();
            for (number, stream) in self.open.iter_mut().enumerate() {
                if number % LOOK_EVERY == 0 && kernel_is_half_full()? {
                    break;
                }
                let [up, down] = &mut stream.said;
                *up = say(&stream.near, stream.number, *up)?;
                *down = say(&stream.far, stream.number, *down)?;
            }
            if self.said() == before {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let windows = 2 * WINDOW * self.open.len().max(1) as u64;
        Ok(self.said() as f64 / windows as f64)
    }

    /// Reads all that was said, in both directions.
    pub(super) async fn check(&mut self) -> Result<()> {
        for stream in &mut self.open {
            let (number, [up, down]) = (stream.number, stream.said);
            for (way, end, said) in [("up", &mut stream.far, up), ("down", &mut stream.near, down)] {
                heard(end, number, said)
                    .await
                    .with_context(|| format!("stream {number}, {way}, of {said} bytes"))?;
            }
        }
        Ok(())
    }
}

/// Reads what was said into one direction; whoever waits for [`LIMIT`] for a byte fails.
async fn heard(from: &mut TcpStream, number: u64, said: u64) -> Result<()> {
    let mut at = 0;
    while at < said {
        let next = said.min(at + PIECE);
        let piece = verified::receive_on(from, number, at, next);
        tokio::time::timeout(LIMIT, piece)
            .await
            .with_context(|| format!("no bytes after {at}"))??;
        at = next;
    }
    Ok(())
}

/// An application's end, once the far end has said its number back; none if the stream was refused.
async fn near(link: SocketAddr, number: u64) -> Result<Option<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    let opening = async {
        let mut near = socket.connect(link).await?;
        near.write_u64(number).await?;
        Ok((near.read_u64().await?, near))
    };
    match opening.await {
        Ok((said, near)) => {
            ensure!(said == number, "another stream's number");
            Ok(Some(near))
        }
        // Also while it connects: a refusal may be that fast.
        Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error).with_context(|| format!("stream {number}")),
    }
}

/// The target's end; none if the stream was ended before it said anything.
async fn far(mut far: TcpStream) -> Result<Option<(u64, TcpStream)>> {
    let Ok(number) = far.read_u64().await else {
        return Ok(None);
    };
    far.write_u64(number).await?;
    Ok(Some((number, far)))
}

/// Whether the kernel's TCP memory is half used up to where it begins to save.
fn kernel_is_half_full() -> Result<bool> {
    let sockets = std::fs::read_to_string("/proc/net/sockstat").context("/proc/net/sockstat")?;
    let tcp = sockets.lines().find_map(|line| line.strip_prefix("TCP: "));
    let used = tcp
        .and_then(|line| line.split_once("mem "))
        .map(|(_, pages)| pages);
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").context("tcp_mem")?;
    let pressure = limits.split_whitespace().nth(1);
    let (used, pressure) = used.zip(pressure).context("the kernel's TCP memory")?;
    Ok(used.trim().parse::<u64>()? * 2 >= pressure.parse::<u64>()?)
}

fn say(socket: &TcpStream, seed: u64, from: u64) -> Result<u64> {
    let mut at = from;
    while at < WINDOW {
        let bytes = verified::Pattern::new(seed).bytes(at, usize::try_from((WINDOW - at).min(PIECE))?);
        match socket.try_write(&bytes) {
            Ok(count) => at += count as u64,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).with_context(|| format!("stream {seed} at {at}")),
        }
    }
    Ok(at)
}

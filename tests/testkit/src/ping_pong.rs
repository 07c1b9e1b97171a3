//! A thousand verified pings a second on one connection, whatever comes back, and the longest time
//! between two echoes: the gap that an application sees.

use crate::verified::Pattern;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two pings: a gap is known to about this.
const EVERY: Duration = Duration::from_millis(1);
/// A ping: small, as a query is.
const PING_BYTES: usize = 16;
/// Echoes come evenly again when this many looks in a row found new ones.
const LOOKS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running ping-pong. Dropped, it ends its connection.
#[derive(Debug)]
pub struct PingPong {
    shared: Arc<Shared>,
    stream: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// Of the last echo, in nanoseconds since `began`.
    last: AtomicU64,
    longest: Mutex<Longest>,
    received: AtomicU64,
    fault: Mutex<Option<String>>,
}

/// The longest gap and where it began, in nanoseconds; the latter since `Shared::began`.
#[derive(Debug, Clone, Copy, Default)]
struct Longest {
    /// When it was forgotten last.
    since: u64,
    from: u64,
    length: u64,
}

impl PingPong {
    /// Starts on a connection to something that echoes.
    ///
    /// # Errors
    /// When the socket cannot be shared by two threads.
    pub fn start(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let shared = Arc::new(Shared {
            began: Instant::now(),
            last: AtomicU64::new(0),
            longest: Mutex::default(),
            received: AtomicU64::new(0),
            fault: Mutex::new(None),
        });
        let (out, back, seen) = (stream.try_clone()?, stream.try_clone()?, Arc::clone(&shared));
        let threads = vec![
            start("ping", &shared, move || ping(out))?,
            start("pong", &shared, move || pong(back, &seen))?,
        ];
        Ok(Self {
            shared,
            stream,
            threads,
        })
    }

    /// Forgets the gaps so far.
    pub fn begin(&self) {
        *self.shared.longest() = Longest {
            since: self.shared.now(),
            ..Longest::default()
        };
    }

    /// The longest gap since [`PingPong::begin`], one that still lasts included.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let last = self.shared.last.load(Ordering::SeqCst);
        let lasting = self.shared.now().saturating_sub(last);
        Duration::from_nanos(lasting.max(self.shared.longest().length))
    }

    /// How long after [`PingPong::begin`] the longest gap began.
    #[must_use]
    pub fn longest_after(&self) -> Duration {
        let longest = *self.shared.longest();
        Duration::from_nanos(longest.from.saturating_sub(longest.since))
    }

    /// How many echoes have come.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Waits until echoes come evenly.
    ///
    /// # Errors
    /// When they do not within `limit`, or the connection broke, or an echo was wrong.
    pub async fn until_even(&self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let mut even = 0;
        let mut before = self.received();
        while even < LOOKS {
            tokio::time::sleep(LOOK_EVERY).await;
            self.sound()?;
            let now = self.received();
            even = if now > before { even + 1 } else { 0 };
            before = now;
            if start.elapsed() > limit {
                bail!("echoes do not come evenly within {limit:?}: {now} in all");
            }
        }
        Ok(())
    }

    /// Whether every echo so far was right.
    ///
    /// # Errors
    /// With what was wrong.
    pub fn sound(&self) -> Result<()> {
        let fault = self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match fault.as_ref() {
            None => Ok(()),
            Some(fault) => bail!("{fault}"),
        }
    }
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn longest(&self) -> MutexGuard<'_, Longest> {
        self.longest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn start(
    name: &'static str,
    shared: &Arc<Shared>,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(name.to_owned());
    Ok(thread.spawn(move || {
        if let Err(error) = work() {
            let mut fault = shared.fault.lock().unwrap_or_else(PoisonError::into_inner);
            fault.get_or_insert(format!("{name}: {error:#}"));
        }
    })?)
}

fn record(number: u64) -> Vec<u8> {
    Pattern::new(number).bytes(0, PING_BYTES)
}

fn ping(mut stream: TcpStream) -> Result<()> {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut due = Instant::now();
    for number in 0_u64.. {
        stream
            .write_all(&record(number))
            .with_context(|| format!("number {number}"))?;
        // A write that waited is not made up for by a burst.
        due = (due + EVERY).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn pong(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    let mut buffer = [0; PING_BYTES];
    for number in 0_u64.. {
        stream
            .read_exact(&mut buffer)
            .with_context(|| format!("number {number}"))?;
        ensure!(buffer[..] == record(number)[..], "echo {number} is wrong");
        let now = shared.now();
        let from = shared.last.swap(now, Ordering::SeqCst);
        let length = now.saturating_sub(from);
        let mut longest = shared.longest();
        if length > longest.length {
            (longest.from, longest.length) = (from, length);
        }
        drop(longest);
        shared.received.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_gap_is_seen_and_a_break_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let echo = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut buffer = [0; PING_BYTES];
            for number in 0..600 {
                stream.read_exact(&mut buffer).unwrap();
                if number == 300 {
                    std::thread::sleep(Duration::from_millis(150));
                }
                stream.write_all(&buffer).unwrap();
            }
        });
        let pings = PingPong::start(TcpStream::connect(address).unwrap()).unwrap();
        pings.until_even(Duration::from_secs(5)).await.unwrap();
        pings.begin();
        echo.join().unwrap();
        assert!(
            pings.longest() >= Duration::from_millis(149),
            "{:?}",
            pings.longest()
        );
        // The target has closed: no echo comes any more.
        assert!(pings.until_even(Duration::from_secs(5)).await.is_err());

        let target = Target::echo().await.unwrap();
        let pings = PingPong::start(TcpStream::connect(target.socket().unwrap()).unwrap()).unwrap();
        pings.until_even(Duration::from_secs(5)).await.unwrap();
        pings.sound().unwrap();
    }
}

//! A wire between two hosts: a TUN device at each end and a forwarder in user space between them,
//! which gives delay, jitter, loss, rate and one-way cuts to TCP and UDP alike.

use super::queue::{Fate, Queue};
use super::{Host, tun};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// As Ethernet has it.
const MTU: usize = 1500;

/// Packets waiting in the kernel for the forwarder: a burst of a 4 MiB window, and more.
const DEVICE_QUEUE: u32 = 10_000;

/// Packets taken from a device before the due ones are written again.
const BATCH: usize = 64;

/// An end of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first host's.
    A,
    /// The second host's.
    B,
}

/// What a direction of a wire does to packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weather {
    /// Added to every packet's way.
    pub delay: Duration,
    /// Up to this much more, evenly; packets stay in order.
    pub jitter: Duration,
    /// The share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// The line's rate in bits per second; `None` is as fast as the forwarder.
    pub rate_bits: Option<u64>,
    /// Nothing passes.
    pub cut: bool,
}

impl Weather {
    /// Nothing but the forwarder's own few microseconds.
    #[must_use]
    pub const fn clear() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            rate_bits: None,
            cut: false,
        }
    }

    /// With a delay.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// With jitter.
    #[must_use]
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// With loss, 0 to 1.
    #[must_use]
    pub const fn loss(mut self, loss: f64) -> Self {
        self.loss = loss;
        self
    }

    /// With a rate.
    #[must_use]
    pub const fn rate_mbit(mut self, mbit: u64) -> Self {
        self.rate_bits = Some(mbit * 1_000_000);
        self
    }

    /// Cut.
    #[must_use]
    pub const fn cut(mut self) -> Self {
        self.cut = true;
        self
    }
}

/// What a direction has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireCounts {
    /// Packets that arrived at the far device.
    pub passed: u64,
    /// Packets that the weather took.
    pub lost: u64,
    /// Packets for which a queue had no room.
    pub overflowed: u64,
}

/// A wire between two hosts. Dropped, both devices are gone.
#[derive(Debug)]
pub struct Wire {
    name: String,
    a: Ipv4Addr,
    b: Ipv4Addr,
    from_a: Arc<Direction>,
    from_b: Arc<Direction>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Direction {
    weather: Mutex<Weather>,
    passed: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    /// Readable when the forwarder is to end.
    stop: OwnedFd,
}

impl Wire {
    /// Joins two hosts by the subnet `10.NUMBER.0.0/24`: the first is `10.NUMBER.0.1`, the second `.2`.
    ///
    /// # Errors
    /// When a device cannot be made: root is needed, and `/dev/net/tun`.
    pub fn between(a: &Host, b: &Host, number: u8) -> Result<Self> {
        let name = format!("wire{number}");
        let end = |host: &Host, last: u8| -> Result<File> {
            let device = host.run(|| tun::open(&name))??;
            host.ip(&format!("addr add 10.{number}.0.{last}/24 dev {name}"))?;
            host.ip(&format!(
                "-6 addr add fd00:{number:x}::{last}/64 dev {name} nodad"
            ))?;
            host.ip(&format!("link set {name} mtu {MTU} txqueuelen {DEVICE_QUEUE} up"))?;
            Ok(device)
        };
        let (device_a, device_b) = (end(a, 1)?, end(b, 2)?);
        let (from_a, from_b) = (Arc::new(Direction::new()?), Arc::new(Direction::new()?));
        let threads = vec![
            forward(
                &name,
                device_a.try_clone()?,
                device_b.try_clone()?,
                Arc::clone(&from_a),
                1,
            )?,
            forward(&name, device_b, device_a, Arc::clone(&from_b), 2)?,
        ];
        let address = |last| Ipv4Addr::new(10, number, 0, last);
        Ok(Self {
            name,
            a: address(1),
            b: address(2),
            from_a,
            from_b,
            threads,
        })
    }

    /// The address of an end.
    #[must_use]
    pub fn address(&self, side: Side) -> Ipv4Addr {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }

    /// The device's name in both hosts.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.name
    }

    /// Makes the weather for what `side` sends. Packets on their way keep the weather they met,
    /// except that a cut takes them too.
    pub fn set(&self, side: Side, weather: Weather) {
        *self
            .direction(side)
            .weather
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// Makes the weather in both directions.
    pub fn set_both(&self, weather: Weather) {
        self.set(Side::A, weather);
        self.set(Side::B, weather);
    }

    /// What happened to the packets that `side` sent.
    #[must_use]
    pub fn counts(&self, side: Side) -> WireCounts {
        let direction = self.direction(side);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WireCounts {
            passed: read(&direction.passed),
            lost: read(&direction.lost),
            overflowed: read(&direction.overflowed),
        }
    }

    /// Takes the device of a host down, as a pulled plug does; [`Wire::link_up`] brings it back.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn link_down(&self, host: &Host) -> Result<()> {
        host.ip(&format!("link set {} down", self.name))
    }

    /// Brings the device of a host up again.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn link_up(&self, host: &Host) -> Result<()> {
        host.ip(&format!("link set {} up", self.name))
    }

    fn direction(&self, side: Side) -> &Direction {
        match side {
            Side::A => &self.from_a,
            Side::B => &self.from_b,
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for direction in [&self.from_a, &self.from_b] {
            let _ = rustix::io::write(&direction.stop, &1u64.to_ne_bytes());
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Direction {
    fn new() -> Result<Self> {
        let stop = eventfd(0, rustix::event::EventfdFlags::CLOEXEC).context("eventfd")?;
        let weather = Mutex::new(Weather::clear());
        let (passed, lost, overflowed) = Default::default();
        Ok(Self {
            weather,
            passed,
            lost,
            overflowed,
            stop,
        })
    }
}

fn forward(name: &str, from: File, to: File, direction: Arc<Direction>, seed: u64) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(format!("{name}-{seed}"));
    Ok(thread.spawn(move || {
        Forwarder {
            from,
            to,
            direction,
            queue: Queue::new(seed, Instant::now()),
        }
        .run()
    })?)
}

struct Forwarder {
    from: File,
    to: File,
    direction: Arc<Direction>,
    queue: Queue,
}

impl Forwarder {
    fn run(mut self) {
        // The kernel may round a sleep up by the thread's timer slack, 50 µs unless set: the delay's
        // error would be as large.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut packet = vec![0; MTU];
        loop {
            self.write_due();
            if self.wait() {
                return;
            }
            let weather = *self
                .direction
                .weather
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if weather.cut {
                self.queue.clear();
            }
            for _ in 0..BATCH {
                let Ok(read) = self.from.read(&mut packet) else {
                    break;
                };
                let fate = self
                    .queue
                    .push(Instant::now(), packet.get(..read).unwrap_or_default(), &weather);
                match fate {
                    Fate::Queued => {}
                    Fate::Lost => _ = self.direction.lost.fetch_add(1, Ordering::Relaxed),
                    Fate::Overflow => _ = self.direction.overflowed.fetch_add(1, Ordering::Relaxed),
                }
            }
        }
    }

    fn write_due(&mut self) {
        let now = Instant::now();
        while let Some(packet) = self.queue.pop(now) {
            // A device that is down, or whose queue is full, loses the packet as a real one does.
            match self.to.write(&packet) {
                Ok(_) => _ = self.direction.passed.fetch_add(1, Ordering::Relaxed),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => _ = self.direction.overflowed.fetch_add(1, Ordering::Relaxed),
            }
            self.queue.done(packet);
        }
    }

    /// Waits for a packet, the next due time or the end; true at the end.
    fn wait(&self) -> bool {
        let limit = self
            .queue
            .next_due()
            .map(|due| due.saturating_duration_since(Instant::now()));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut waits = [
            PollFd::new(&self.from, PollFlags::IN),
            PollFd::new(&self.direction.stop, PollFlags::IN),
        ];
        match poll(&mut waits, limit.as_ref()) {
            Ok(_) => waits
                .last()
                .is_some_and(|stop| stop.revents().contains(PollFlags::IN)),
            Err(error) => error != rustix::io::Errno::INTR,
        }
    }
}

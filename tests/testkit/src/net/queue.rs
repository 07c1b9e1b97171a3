//! One direction of a wire as a pure machine: packets in with the time, packets out when due.

use super::Weather;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What a direction holds at most: 100 ms of 2 Gbit/s. A real router's queue ends too.
const BYTES_MAX: usize = 25 * 1024 * 1024;

/// With a rate, what waits for the line at most, in time on that line: a queue of a fair router.
const LINE_QUEUE: Duration = Duration::from_millis(100);

/// Packets on their way in one direction.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    line_free: Instant,
    random: fastrand::Rng,
    spare: Vec<Vec<u8>>,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It will arrive.
    Queued,
    /// The weather took it.
    Lost,
    /// The queue was full.
    Overflow,
}

impl Queue {
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        let (waiting, random) = (VecDeque::new(), fastrand::Rng::with_seed(seed));
        Self {
            waiting,
            bytes: 0,
            line_free: now,
            random,
            spare: Vec::new(),
        }
    }

    /// Takes a packet from the near device.
    pub(super) fn push(&mut self, now: Instant, packet: &[u8], weather: &Weather) -> Fate {
        if weather.cut || (weather.loss > 0.0 && self.random.f64() < weather.loss) {
            return Fate::Lost;
        }
        let mut leaves = now;
        if let Some(rate) = weather.rate_bits {
            leaves = leaves.max(self.line_free);
            if leaves - now > LINE_QUEUE {
                return Fate::Overflow;
            }
            leaves += Duration::from_secs_f64(packet.len() as f64 * 8.0 / rate.max(1) as f64);
            self.line_free = leaves;
        }
        if self.bytes + packet.len() > BYTES_MAX {
            return Fate::Overflow;
        }
        let jitter = weather.jitter.mul_f64(self.random.f64());
        let mut due = leaves + weather.delay + jitter;
        // Jitter never reorders: a packet leaves no earlier than the one before it.
        if let Some((last, _)) = self.waiting.back() {
            due = due.max(*last);
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(packet);
        self.bytes += buffer.len();
        self.waiting.push_back((due, buffer));
        Fate::Queued
    }

    /// When the next packet is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, _)| *due)
    }

    /// The next packet if it is due; give it back with [`Queue::done`].
    pub(super) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_due()? > now {
            return None;
        }
        let (_, packet) = self.waiting.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// Keeps the buffer of a delivered packet for the next one.
    pub(super) fn done(&mut self, packet: Vec<u8>) {
        if self.spare.len() < 4096 {
            self.spare.push(packet);
        }
    }

    /// Forgets all that is on its way: the line was cut.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> (Queue, Instant) {
        let now = Instant::now();
        (Queue::new(1, now), now)
    }

    #[test]
    fn a_packet_is_due_after_delay_and_line_time_and_in_order() {
        let (mut queue, now) = queue();
        let weather = Weather::clear().delay(Duration::from_millis(10)).rate_mbit(8);
        for _ in 0..3 {
            assert_eq!(queue.push(now, &[0; 1000], &weather), Fate::Queued);
        }
        // 1000 bytes at 8 Mbit/s take 1 ms.
        let due: Vec<u128> = queue
            .waiting
            .iter()
            .map(|(due, _)| (*due - now).as_micros())
            .collect();
        assert_eq!(due, [11_000, 12_000, 13_000]);
        assert!(queue.pop(now).is_none());
        let first = queue.pop(now + Duration::from_millis(11)).unwrap();
        assert_eq!(first.len(), 1000);
    }

    #[test]
    fn a_full_line_drops_and_a_cut_loses_all() {
        let (mut queue, now) = queue();
        let weather = Weather::clear().rate_mbit(8);
        let fates: Vec<Fate> = (0..300).map(|_| queue.push(now, &[0; 1000], &weather)).collect();
        let queued = fates.iter().filter(|f| **f == Fate::Queued).count();
        assert!((100..=102).contains(&queued), "{queued}");
        assert_eq!(queue.push(now, &[0; 10], &Weather::clear().cut()), Fate::Lost);
        queue.clear();
        assert!(queue.next_due().is_none() && queue.bytes == 0);
    }

    #[test]
    fn loss_takes_its_share_and_jitter_keeps_the_order() {
        let (mut queue, now) = queue();
        let weather = Weather::clear().loss(0.2).jitter(Duration::from_millis(5));
        let lost = (0..10_000)
            .filter(|_| queue.push(now, &[0; 10], &weather) == Fate::Lost)
            .count();
        assert!((1800..2200).contains(&lost), "{lost}");
        assert!(
            queue
                .waiting
                .iter()
                .zip(queue.waiting.iter().skip(1))
                .all(|(a, b)| a.0 <= b.0)
        );
    }
}

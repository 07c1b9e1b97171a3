//! Carriers: frames in order over datagrams that are lost, doubled and overtaken.

use super::plan::ms;
use super::world::{Timer, Who};
use fairlead_hop::Frame;
use fairlead_hop::liveness::{FROZEN_MAX, Passed};
use fairlead_model::{MonoTime, RefusalCode};
use std::collections::VecDeque;
use std::time::Duration;

pub(super) type CarrierId = u64;

/// Most items of one packet.
const ITEMS_MAX: usize = 16;
/// Longest wait until something unacknowledged is sent again: the wait doubles each time, as QUIC's does
/// (RFC 9002, section 6.2.1).
const AGAIN_MAX: Duration = FROZEN_MAX;

/// One direction's sending half and the other's receiving half: items in order, each once.
#[derive(Debug)]
pub(super) struct Pipe<T> {
    out: VecDeque<T>,
    base: u64,
    pub(super) next_in: u64,
}

impl<T> Default for Pipe<T> {
    fn default() -> Self {
        Self {
            out: VecDeque::new(),
            base: 0,
            next_in: 0,
        }
    }
}

impl<T: Clone> Pipe<T> {
    pub(super) fn push(&mut self, item: T) {
        self.out.push_back(item);
    }

    pub(super) fn is_acked(&self) -> bool {
        self.out.is_empty()
    }

    pub(super) fn unacked(&self) -> (u64, Vec<T>) {
        (self.base, self.out.iter().take(ITEMS_MAX).cloned().collect())
    }

    /// The peer has all below `ack`. Whether that is news.
    pub(super) fn acked(&mut self, ack: u64) -> bool {
        let news = ack > self.base;
        while self.base < ack && self.out.pop_front().is_some() {
            self.base += 1;
        }
        news
    }

    /// What of a packet's items is new.
    pub(super) fn take(&mut self, first: u64, items: Vec<T>) -> Vec<T> {
        if first > self.next_in {
            return Vec::new();
        }
        let known = usize::try_from(self.next_in - first).unwrap();
        let fresh: Vec<T> = items.into_iter().skip(known).collect();
        self.next_in += fresh.len() as u64;
        fresh
    }
}

/// What a datagram says.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// A dial's first packet.
    Initial,
    /// Its answer.
    Reply,
    /// Frames from `first` on, all that is unacknowledged; `asks` for an answer, or `answers`.
    Data {
        first: u64,
        frames: Vec<Frame>,
        ack: u64,
        asks: bool,
        answers: bool,
    },
    /// The end, with its code.
    Close(RefusalCode),
    /// The sender knows no such carrier.
    Reset,
}

#[derive(Debug, Clone)]
pub(super) struct Datagram {
    pub(super) from: Who,
    pub(super) to: Who,
    /// The sender's process.
    pub(super) run: u64,
    pub(super) carrier: CarrierId,
    pub(super) body: Body,
}

/// One end of a carrier.
#[derive(Debug)]
pub(super) struct End {
    pub(super) carrier: CarrierId,
    pub(super) pipe: Pipe<Frame>,
    /// Datagrams that the process has read.
    received: u64,
    /// Those of them that acknowledged something.
    acks: u64,
    /// Datagrams sent that ask for an acknowledgement.
    asking: u64,
    heard: MonoTime,
    keep_alive: Duration,
    asked: MonoTime,
    again: Duration,
    again_at: Option<MonoTime>,
    /// It carries so much that what is unacknowledged for long fills its window: nothing new goes out then.
    laden: bool,
    pub(super) rtt: Duration,
    pub(super) timer: Timer,
}

impl End {
    pub(super) fn new(
        carrier: CarrierId,
        keep_alive: Duration,
        laden: bool,
        rtt: Duration,
        now: MonoTime,
    ) -> Self {
        Self {
            carrier,
            pipe: Pipe::default(),
            received: 1,
            acks: 0,
            asking: 0,
            heard: now,
            keep_alive,
            asked: now,
            again: Self::patience(rtt),
            again_at: None,
            laden,
            rtt,
            timer: Timer::default(),
        }
    }

    fn patience(rtt: Duration) -> Duration {
        rtt * 2 + ms(10)
    }

    /// Whether the window is full of what was sent again and is not acknowledged.
    fn is_full(&self) -> bool {
        self.laden && self.again_at.is_some() && self.again > Self::patience(self.rtt)
    }

    /// A datagram with what is new, if the window has room.
    pub(super) fn news(&mut self, now: MonoTime) -> Option<Body> {
        (!self.is_full()).then(|| self.body(now, true))
    }

    /// A datagram to send now: an answer, unless it `asks` for one.
    pub(super) fn body(&mut self, now: MonoTime, asks: bool) -> Body {
        let answers = !asks;
        let (first, mut frames) = self.pipe.unacked();
        if answers && self.is_full() {
            frames.clear();
        }
        let asks = asks || !frames.is_empty();
        if asks {
            self.asking += 1;
            self.asked = now;
            self.again_at.get_or_insert(now.plus(self.again));
        }
        let ack = self.pipe.next_in;
        Body::Data {
            first,
            frames,
            ack,
            asks,
            answers,
        }
    }

    /// What has passed so far, as the process knows it.
    pub(super) const fn passed(&self) -> Passed {
        Passed {
            received_bytes: self.received,
            asking_frames: self.asking,
            // Each acknowledgement measures another one.
            rtt: self.rtt.saturating_add(Duration::from_nanos(self.acks & 1)),
        }
    }

    /// Takes what a datagram brought; gives the frames that are new. `answers`: it acknowledges a question.
    pub(super) fn receive(
        &mut self,
        now: MonoTime,
        first: u64,
        frames: Vec<Frame>,
        ack: u64,
        answers: bool,
    ) -> Vec<Frame> {
        self.received += 1;
        self.acks += u64::from(answers);
        self.heard = now;
        if self.pipe.acked(ack) || answers {
            self.again = Self::patience(self.rtt);
            self.again_at = (!self.pipe.is_acked()).then(|| now.plus(self.again));
        }
        self.pipe.take(first, frames)
    }

    /// When something is to be sent: what is unacknowledged again, or a keep-alive, which is acknowledged too.
    fn due_at(&self) -> MonoTime {
        self.again_at.unwrap_or_else(|| self.asked.plus(self.keep_alive))
    }

    /// When [`due`](Self::due) is to be asked.
    pub(super) fn wake(&self) -> MonoTime {
        self.due_at().min(self.heard.plus(FROZEN_MAX))
    }

    /// A datagram that is due, if any.
    pub(super) fn due(&mut self, now: MonoTime) -> Option<Body> {
        if now < self.due_at() {
            return None;
        }
        if self.again_at.is_some() {
            self.again = (self.again * 2).min(AGAIN_MAX);
            self.again_at = Some(now.plus(self.again));
        }
        Some(self.body(now, true))
    }

    /// Whether QUIC itself gives the carrier up.
    pub(super) fn is_idle(&self, now: MonoTime) -> bool {
        now >= self.heard.plus(FROZEN_MAX)
    }
}

//! What the hostile relay does.

use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::Refusal;
use fairlead_model::{RefusalCode, StreamNumber};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trick {
    /// Nothing: it carries as it should.
    Honest,
    /// It changes what it carries.
    Tampers(How),
    /// It takes bytes and carries none.
    Stalls,
    /// It refuses every OPEN.
    Refuses(RefusalCode),
    /// It answers OPENs of streams itself, with bytes of its own.
    AnswersForThePublisher,
    /// It tells the publisher of legs that nobody opened.
    Invents,
    /// It plays legs again that it once carried.
    Replays,
    /// It says that new streams are resumed, and resumed ones new.
    MisstatesResumes,
    /// It keeps the first leg of a new stream, refuses it, and plays it as a resume.
    WithholdsFirstLegs,
    /// It names another stream than the consumer did.
    MisnamesStreams,
    /// It brings handshakes to another node than they are for.
    MisdirectsHandshakes,
    /// It lets the publisher answer the first leg of a new stream, and carries nothing more of it.
    StallsFirstLegs,
    /// It answers the first leg of a new stream itself and keeps what is said on it.
    KeepsFirstLegs,
    /// It takes the first leg of a new stream, and neither answers nor carries it.
    SwallowsOpens,
    /// It takes every leg so.
    SwallowsLegs,
    /// It keeps the first leg of a new stream back until it plays something else, and carries it then.
    HoldsOpens,
    /// It carries the first leg of a new stream there, and nothing back but the publisher's answer to it.
    StallsAnswers,
    /// It carries nothing more of one stream, and all others.
    StallsStream(StreamNumber),
    /// It passes no end of a leg on.
    KeepsLegsOpen,
    /// It refuses the legs of streams, and lets associations and probes pass.
    RefusesStreams(Refusal),
    /// It ends every leg that it has or gets.
    CutsLegs,
    /// It plays legs that another relay carries, as its own.
    ReplaysFriends,
    /// It gives legs to another relay, which brings them to the publisher.
    SwapsLegs,
    /// Another relay tells the publisher of its legs too, and carries what is said on them.
    TeesLegs,
    /// It sends on what another relay got for its own legs, now and then.
    TradesRecords,
    /// It says that the publisher does not know the association, and swallows the handshake for another.
    DeniesAssociations,
    /// It tells the publisher of the streams that come next, of their route and of another, and says nothing
    /// on their legs.
    SquatsNames,
    /// It carries nothing more of a stream, tells the publisher of the leg that comes next, and says nothing
    /// on it.
    SquatsEpochs,
    /// It carries nothing to the consumer, and lets a record come in drops instead.
    Drips,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Flips,
    Drops,
    Doubles,
    Swaps,
    Injects,
    Cuts,
}

/// Changes one chunk in a few, behind the first bytes of a direction.
#[derive(Default)]
pub(super) struct Tamper {
    chunks: u32,
    held: Option<Bytes>,
    done: bool,
}

/// A record of 16 KiB that never comes to its end: a byte now and then.
pub(super) struct Drops {
    count: usize,
    due: tokio::time::Interval,
}

impl Drops {
    /// Between two bytes: less than any silence that is noticed.
    const EVERY: Duration = Duration::from_millis(200);
    const HEADER: [u8; 5] = [23, 3, 3, 0x40, 0];

    pub(super) fn new() -> Self {
        Self {
            count: 0,
            due: tokio::time::interval(Self::EVERY),
        }
    }

    /// The next byte, when it is its time. Cancel safe.
    pub(super) async fn next(&mut self) -> u8 {
        self.due.tick().await;
        self.count += 1;
        Self::HEADER.get(self.count - 1).copied().unwrap_or(7)
    }
}

/// Every so many chunks one is changed or traded.
const ONE_IN: u32 = 5;

impl Tamper {
    /// Whether it is the turn of a chunk to be traded.
    pub(super) const fn trades(&mut self) -> bool {
        self.chunks += 1;
        self.chunks % ONE_IN == 3
    }

    pub(super) fn apply(&mut self, how: How, chunk: Bytes) -> Vec<Bytes> {
        self.chunks += 1;
        if let Some(held) = self.held.take() {
            return vec![chunk, held];
        }
        if self.chunks % ONE_IN != 3 {
            return vec![chunk];
        }
        self.done = true;
        match how {
            How::Flips => {
                let mut flipped = BytesMut::from(&chunk[..]);
                let middle = flipped.len() / 2;
                flipped[middle] ^= 1;
                vec![flipped.freeze()]
            }
            How::Drops => Vec::new(),
            How::Doubles => vec![chunk.clone(), chunk],
            How::Swaps => {
                self.held = Some(chunk);
                Vec::new()
            }
            How::Injects => vec![Bytes::from_static(&[0x17; 57]), chunk],
            How::Cuts => vec![chunk.slice(..chunk.len() / 2)],
        }
    }

    /// Whether it did something since the last call.
    pub(super) const fn take_done(&mut self) -> bool {
        std::mem::replace(&mut self.done, false)
    }
}

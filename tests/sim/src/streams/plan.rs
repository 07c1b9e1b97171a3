//! What kind of world a seed makes.

use fairlead_model::MonoTime;
use fairlead_stream::{Config, TRANSMIT_BATCH};
use std::time::Duration;

/// Where the simulated clock starts.
pub(super) const START: MonoTime = MonoTime(1_000_000_000);

/// Something that may be done to a world. Each seed allows some of them only, so that rare kinds meet
/// undisturbed as well as all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// One leg breaks; both ends notice, each in its time.
    LegLost,
    /// A relay dies with all its legs and comes back.
    RelayKilled,
    /// A relay carries nothing for a while, and nobody is told.
    RelayFrozen,
    /// One direction between a node and a relay is cut for a while.
    OneWayCut,
    /// A node and a relay do not reach each other for a while.
    Partition,
    /// A daemon is stopped for a while: it reads and sends nothing.
    DaemonStalled,
    /// A daemon dies with its streams and starts anew.
    DaemonCrashed,
    /// A relay damages, drops, doubles, swaps and makes up what it carries, for a while.
    RelayHostile,
    /// A relay refuses to open legs for a while.
    RelayRefuses,
    /// A relay plays a leg again that it once carried, or a made-up one.
    Replay,
    /// The dialler moves a stream in a planned way.
    PlannedMove,
    /// The dialler moves a stream on a suspicion, right or wrong.
    SuspectedMove,
    /// The acceptor asks for a move.
    MovePlease,
    /// A PING on some leg.
    Ping,
    /// An application stops reading or writing for a while.
    ApplicationStalled,
    /// An application resets its connection.
    ApplicationReset,
    /// The publisher's policy refuses an attach.
    AttachRefused,
    /// The daemon's budget shrinks or grows the windows.
    WindowChanged,
}

impl Fault {
    const ALL: [Self; 18] = [
        Self::LegLost,
        Self::RelayKilled,
        Self::RelayFrozen,
        Self::OneWayCut,
        Self::Partition,
        Self::DaemonStalled,
        Self::DaemonCrashed,
        Self::RelayHostile,
        Self::RelayRefuses,
        Self::Replay,
        Self::PlannedMove,
        Self::SuspectedMove,
        Self::MovePlease,
        Self::Ping,
        Self::ApplicationStalled,
        Self::ApplicationReset,
        Self::AttachRefused,
        Self::WindowChanged,
    ];

    /// One in this many seeds that allow others allows this one: what ends streams is rarer.
    const fn rarity(self) -> u8 {
        match self {
            Self::DaemonCrashed | Self::AttachRefused => 6,
            Self::ApplicationReset => 4,
            Self::LegLost
            | Self::RelayKilled
            | Self::RelayFrozen
            | Self::OneWayCut
            | Self::Partition
            | Self::DaemonStalled
            | Self::RelayHostile
            | Self::RelayRefuses
            | Self::Replay
            | Self::PlannedMove
            | Self::SuspectedMove
            | Self::MovePlease
            | Self::Ping
            | Self::ApplicationStalled
            | Self::WindowChanged => 2,
        }
    }
}

pub(super) struct Plan {
    pub(super) relays: usize,
    pub(super) streams: usize,
    /// From here on nothing is done to the world, and everything heals.
    pub(super) calm_at: MonoTime,
    pub(super) config: [Config; 2],
    /// Longest piece in which bytes arrive.
    pub(super) chunk_max: usize,
    pub(super) batch: usize,
    /// Bytes that one segment of a leg takes before its sender waits.
    pub(super) segment_bytes: usize,
    /// One way between a node and a relay.
    pub(super) latency: [Vec<Duration>; 2],
    pub(super) jitter_ms: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) fault_every_ms: u64,
    /// Longest time until an end notices that a leg is gone.
    pub(super) notice_ms_max: u64,
    /// Silence after which the dialler suspects a path.
    pub(super) patience: Duration,
    /// Most bytes that an application writes in all.
    pub(super) bytes_max: u64,
    /// Two relays work together against the nodes.
    pub(super) collusion: bool,
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Plan {
    pub(super) fn draw(rng: &mut fastrand::Rng) -> Self {
        let relays = rng.usize(1..=4);
        let path_ms_max = [1, 5, 40, 150][rng.usize(0..4)];
        let mut latencies = || (0..relays).map(|_| ms(rng.u64(0..=path_ms_max))).collect();
        let latency = [latencies(), latencies()];
        let hold = [0, 2_000, 10_000, 60_000][[1, 2, 2, 3, 3, 3, 3, 0][rng.usize(0..8)]];
        let config = |rng: &mut fastrand::Rng| Config {
            window_max: [1, 256 << 10, 1 << 20, 4 << 20][rng.usize(0..4)],
            hold: ms(hold),
        };
        let config = [config(rng), config(rng)];
        let faulty = rng.u8(0..8) > 0;
        let faults: Vec<Fault> = Fault::ALL
            .into_iter()
            .filter(|f| faulty && rng.u8(0..f.rarity()) == 0)
            .collect();
        let bytes_max = [0, 300, 60_000, 60_000, 400_000, 2_000_000][rng.usize(0..6)];
        // Tiny pieces of long streams would only cost time.
        let chunk_min = usize::try_from(bytes_max / 400).unwrap();
        Self {
            relays,
            streams: rng.usize(1..=3),
            calm_at: START.plus(ms([500, 3_000, 12_000][rng.usize(0..3)])),
            config,
            chunk_max: [1, 40, 1500, 70_000][rng.usize(0..4)].max(chunk_min),
            batch: [1, 20_000, TRANSMIT_BATCH][rng.usize(0..3)],
            segment_bytes: [4 << 10, 64 << 10, 256 << 10][rng.usize(0..3)],
            latency,
            jitter_ms: [0, 0, 3, 30][rng.usize(0..4)],
            faults,
            fault_every_ms: [15, 100, 700][rng.usize(0..3)],
            notice_ms_max: [2, 400, 4_000][rng.usize(0..3)],
            patience: ms([100, 400, 3_000][rng.usize(0..3)]),
            bytes_max,
            collusion: rng.u8(0..4) == 0,
        }
    }
}

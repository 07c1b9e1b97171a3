//! What kind of world a seed makes.

use fairlead_model::MonoTime;
use std::time::Duration;

/// Where the simulated clock starts.
pub(super) const START: MonoTime = MonoTime(1_000_000_000);

/// Something that may be done to a world. Each seed allows some of them only, so that rare kinds meet
/// undisturbed as well as all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A daemon dies; its host tells its peers.
    NodeKilled,
    /// A daemon announces its restart, and comes back or does not for long.
    NodeRestarts,
    /// A daemon is stopped for a while.
    NodeFrozen,
    /// A node's host is gone at once, and boots.
    NodeVanished,
    /// A worker dies; its host tells its peers.
    RelayKilled,
    /// A worker is stopped for a while.
    RelayFrozen,
    /// A relay's host is gone at once, and boots.
    RelayVanished,
    /// Nothing passes between a node and a relay for a while, one way or both.
    Cut,
    /// UDP does not pass for a while, one way or both.
    UdpCut,
    /// UDP does not pass for so long that QUIC's own probes become rare, one way or both, whatever else happens.
    UdpGone,
    /// TCP does not pass for a while, one way or both.
    TcpCut,
    /// Packets are lost for a while.
    Loss,
    /// A path comes and goes, many times (F-05).
    Flapping,
    /// Somebody forges the end of a liveness connection, at one end or both.
    ForgedReset,
    /// A daemon drops its session and makes a new one; the relay may not hear of it.
    SessionDropped,
    /// An endpoint gets a new generation.
    NewGeneration,
    /// An endpoint moves to another node.
    EndpointMoved,
    /// An endpoint goes or comes back.
    EndpointToggled,
    /// An endpoint is assigned to a relay, or no longer.
    Reassigned,
    /// A relay enters or leaves a node's policy.
    RelayToggled,
    /// A node's wall clock jumps; from it the boot counter is drawn where its file is lost.
    WallJump,
}

impl Fault {
    const ALL: [Self; 21] = [
        Self::NodeKilled,
        Self::NodeRestarts,
        Self::NodeFrozen,
        Self::NodeVanished,
        Self::RelayKilled,
        Self::RelayFrozen,
        Self::RelayVanished,
        Self::Cut,
        Self::UdpCut,
        Self::UdpGone,
        Self::TcpCut,
        Self::Loss,
        Self::Flapping,
        Self::ForgedReset,
        Self::SessionDropped,
        Self::NewGeneration,
        Self::EndpointMoved,
        Self::EndpointToggled,
        Self::Reassigned,
        Self::RelayToggled,
        Self::WallJump,
    ];
}

pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) relays: usize,
    pub(super) endpoints: usize,
    /// From here on nothing is done to the world, and everything heals.
    pub(super) peace_at: MonoTime,
    /// One way, by node and relay.
    pub(super) latency: Vec<Vec<Duration>>,
    pub(super) jitter_us: u64,
    /// Datagrams in a thousand that come twice, the second much later.
    pub(super) doubled: u32,
    pub(super) faults: Vec<Fault>,
    /// Carriers carry much beside what is modelled.
    pub(super) laden: bool,
    pub(super) fault_every_ms: u64,
    /// How long a policy takes to its receivers at most.
    pub(super) policy_ms_max: u64,
    /// How long processes take at least to start.
    pub(super) start_ms_min: u64,
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Plan {
    /// `stage`: nothing else is done to the world.
    pub(super) fn draw(rng: &mut fastrand::Rng, stage: Option<&[Fault]>) -> Self {
        let (nodes, relays) = (rng.usize(1..=3), rng.usize(1..=3));
        let path_us_max = [300, 2_000, 20_000, 100_000][rng.usize(0..4)];
        let latency = (0..nodes)
            .map(|_| {
                let one = |rng: &mut fastrand::Rng| Duration::from_micros(rng.u64(50..=path_us_max));
                (0..relays).map(|_| one(rng)).collect()
            })
            .collect();
        let share = rng.usize(1..=4);
        let drawn = Fault::ALL.into_iter().filter(|_| rng.usize(0..4) < share);
        let faults = stage.map_or_else(|| drawn.collect(), <[Fault]>::to_vec);
        Self {
            nodes,
            relays,
            endpoints: rng.usize(1..=5),
            peace_at: START.plus(ms([6_000, 20_000, 45_000][rng.usize(0..3)])),
            latency,
            jitter_us: [0, 100, 3_000, 30_000][rng.usize(0..4)],
            doubled: [0, 0, 20, 200][rng.usize(0..4)],
            faults,
            laden: rng.bool(),
            fault_every_ms: [100, 700, 3_000][rng.usize(0..3)],
            policy_ms_max: [10, 500, 4_000][rng.usize(0..3)],
            start_ms_min: [20, 200, 2_000][rng.usize(0..3)],
        }
    }
}

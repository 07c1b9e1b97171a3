//! What a daemon may set about its streams.

use std::time::Duration;

/// Settings of one end of a stream. Both ends may differ: none of them is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Most bytes that the peer may have in flight to this end, in bytes. Default 4 MiB, at least
    /// [`INITIAL_WINDOW`](crate::INITIAL_WINDOW), below which it has no effect. Each stream may cost
    /// that much memory; larger windows also mean queueing delay (ARCHITECTURE.md, Traps: 16 MiB gave
    /// 230 to 450 ms of silence on the way back).
    pub window_max: u64,
    /// How long a stream without a leg is held before both sockets are reset. Default 60 s
    /// (R-STR-04: 10 to 300 s). Zero ends a stream with its last leg.
    pub hold: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window_max: 4 * 1024 * 1024,
            hold: Duration::from_secs(60),
        }
    }
}

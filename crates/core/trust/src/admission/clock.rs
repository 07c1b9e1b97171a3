//! The two clocks of a relay, and what a lease makes of them (R-POL-05).
//!
//! The wall clock may be turned; the boot clock counts suspended time and never jumps, but means
//! nothing after a reboot. A lease ends by whichever says so first. The *floor* holds the wall
//! clock up: the control plane signed something at that time, so it is that late at least.

use fairlead_model::{BootTime, WallTime};
use std::time::Duration;

/// Both clocks, read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The wall clock.
    pub wall: WallTime,
    /// Time since the host booted, suspend included.
    pub boot: BootTime,
}

/// One boot of the host (Linux: `/proc/sys/kernel/random/boot_id`). Times of the boot clock compare
/// within one boot only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostBoot(pub [u8; 16]);

/// The latest time at which the control plane signed something, and when that came. Local clocks
/// never raise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Floor {
    wall: WallTime,
    at: BootTime,
}

impl Floor {
    pub(super) const fn new(wall: WallTime, at: BootTime) -> Self {
        Self { wall, at }
    }

    /// The least that the wall clock can be now.
    pub(super) fn wall(self, boot: BootTime) -> WallTime {
        self.wall.plus(boot.since(self.at))
    }

    /// The floor once a document signed at `issued_at` has come.
    pub(super) fn raised(floor: Option<Self>, issued_at: WallTime, boot: BootTime) -> Self {
        let held = floor.map_or(issued_at, |f| f.wall(boot));
        Self::new(held.max(issued_at), boot)
    }
}

/// The wall clock, not below the floor.
pub(super) fn floored(floor: Option<Floor>, now: Now) -> WallTime {
    floor.map_or(now.wall, |f| f.wall(now.boot).max(now.wall))
}

/// How far the wall clock lies below the floor, where that is more than is tolerated.
pub(super) fn behind(floor: Option<Floor>, now: Now) -> Option<Duration> {
    let by = floored(floor, now).since(now.wall);
    (by > crate::grant::CLOCK_SKEW_MAX).then_some(by)
}

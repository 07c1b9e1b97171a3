//! The only place that reads a clock.

use crate::FileError;
use fairlead_model::time::{BootTime, MonoTime, WallTime};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clocks of one host. Loops hold it as `Arc<dyn Clock>` and hand its readings to the cores.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The wall clock; may jump in both directions.
    fn wall(&self) -> WallTime;
    /// Time since boot, suspend included: leases are measured by it (R-POL-05).
    fn boot(&self) -> BootTime;
    /// Time since this clock was made: for timers and round-trip times.
    fn mono(&self) -> MonoTime;
}

/// The kernel's clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
    wall_offset_ms: i64,
}

impl SystemClock {
    /// Clocks whose monotonic time counts from this call.
    ///
    /// With the feature `test-clock`, `FAIRLEAD_TEST_WALL_OFFSET_MS` shifts the wall clock.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            wall_offset_ms: wall_offset_ms(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> WallTime {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => ms(after),
            Err(before) => -ms(before.duration()),
        };
        WallTime(wall.saturating_add(self.wall_offset_ms))
    }

    fn boot(&self) -> BootTime {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let millis = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
        BootTime(seconds.saturating_mul(1000).saturating_add(millis))
    }

    fn mono(&self) -> MonoTime {
        MonoTime(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(feature = "test-clock")]
fn wall_offset_ms() -> i64 {
    std::env::var("FAIRLEAD_TEST_WALL_OFFSET_MS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(not(feature = "test-clock"))]
const fn wall_offset_ms() -> i64 {
    0
}

/// The kernel's id of this boot. A receipt by the boot-time clock means something only beside it.
///
/// # Errors
/// `/proc` is not mounted.
pub fn boot_id() -> Result<String, FileError> {
    const BOOT_ID_LEN_MAX: usize = 64; // 36 characters and a newline
    crate::file::read_text(Path::new("/proc/sys/kernel/random/boot_id"), BOOT_ID_LEN_MAX)
        .map(|text| text.trim().to_owned())
}

/// Clocks that stand still until a test moves them.
#[cfg(any(test, feature = "test-clock"))]
#[derive(Debug)]
pub struct ManualClock {
    now: std::sync::Mutex<(WallTime, BootTime, MonoTime)>,
}

#[cfg(any(test, feature = "test-clock"))]
impl ManualClock {
    /// A clock that shows `wall`, one hour after boot.
    #[must_use]
    pub fn new(wall: WallTime) -> Self {
        Self {
            now: std::sync::Mutex::new((wall, BootTime(3_600_000), MonoTime(0))),
        }
    }

    /// Moves all clocks on.
    pub fn advance(&self, by: Duration) {
        let mut now = self.lock();
        *now = (now.0.plus(by), now.1.plus(by), now.2.plus(by));
    }

    /// Turns the wall clock, as an admin or NTP would.
    pub fn set_wall(&self, wall: WallTime) {
        self.lock().0 = wall;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (WallTime, BootTime, MonoTime)> {
        self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(any(test, feature = "test-clock"))]
impl Clock for ManualClock {
    fn wall(&self) -> WallTime {
        self.lock().0
    }
    fn boot(&self) -> BootTime {
        self.lock().1
    }
    fn mono(&self) -> MonoTime {
        self.lock().2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-POL-05: boot time goes on while the wall clock is turned back.
    #[test]
    fn turning_the_wall_clock_back_leaves_boot_time() {
        let clock = ManualClock::new(WallTime(1_000_000));
        let boot = clock.boot();
        clock.advance(Duration::from_secs(5));
        clock.set_wall(WallTime(0));
        assert_eq!(clock.boot().since(boot), Duration::from_secs(5));
        assert_eq!(clock.wall(), WallTime(0));
    }

    #[test]
    fn system_clocks_are_plausible() {
        let clock = SystemClock::new();
        assert!(clock.wall().0 > 1_700_000_000_000);
        assert!(clock.boot().0 > 0);
        let before = clock.mono();
        assert!(clock.mono() >= before);
        assert_eq!(boot_id().unwrap().len(), 36);
    }
}

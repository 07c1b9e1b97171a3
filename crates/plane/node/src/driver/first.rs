//! The first leg of a consumer's stream, until the publisher has accepted it.
//!
//! Its OPEN is answered when the driver takes it over, and that answer may be a relay's invention. One
//! that carries nothing more is not waited for until the connection's hold ends (R-NOD-02): the stream
//! attaches a second leg through another relay. The first is not torn down for that: it may be slow, and
//! there may be no other. Whichever the publisher accepts carries the stream. Both bear one stream
//! number, so that the target is dialled once (I8), and the lower epoch is refused once the higher is
//! attached (I5).

use super::CONNECT_MAX;
use crate::paths::Path;
use fairlead_model::{LegEpoch, MonoTime};
use std::time::Duration;

/// How long the answer to an OPEN, and behind it to the first ATTACH, may take: far longer than that of an
/// honest relay on a busy machine, since both come from the publisher's daemon and not from its target.
const ANSWER_WAIT_MIN: Duration = Duration::from_secs(1);
/// The same in round trips of its path.
const ANSWER_WAIT_RTTS: u32 = 4;
/// Longest: on a path that is slower than this, the second leg would come too late to be of use.
const ANSWER_WAIT_LONGEST: Duration = Duration::from_millis(1_500);
const _: () = assert!(
    ANSWER_WAIT_LONGEST.as_millis() * 2 <= CONNECT_MAX.as_millis(),
    "a second leg has as long as the first had"
);

/// The first leg of a stream that was never attached.
#[derive(Debug)]
pub(super) struct FirstLeg {
    epoch: LegEpoch,
    path: Path,
    late_at: MonoTime,
}

impl FirstLeg {
    /// A leg on `path`, whose round trip is `rtt` as far as is known.
    pub(super) fn new(epoch: LegEpoch, path: Path, rtt: Option<Duration>, now: MonoTime) -> Self {
        Self {
            epoch,
            path,
            late_at: now.plus(answer_wait(rtt)),
        }
    }

    /// The leg's epoch.
    pub(super) const fn epoch(&self) -> LegEpoch {
        self.epoch
    }

    /// The path that it takes.
    pub(super) const fn path(&self) -> Path {
        self.path
    }

    /// From when on another relay is asked as well.
    pub(super) const fn late_at(&self) -> MonoTime {
        self.late_at
    }
}

/// How long an answer on a path may take before another relay is asked as well; `rtt` is the path's round
/// trip as far as is known.
pub(crate) fn answer_wait(rtt: Option<Duration>) -> Duration {
    let round_trips = rtt.unwrap_or_default().saturating_mul(ANSWER_WAIT_RTTS);
    round_trips.clamp(ANSWER_WAIT_MIN, ANSWER_WAIT_LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-NOD-02: however slow the first path is, or says to be, a second one has time within the hold; and
    /// a slow path has its round trips before it is thought to be silent.
    #[test]
    fn a_second_leg_has_time_within_the_hold() {
        let rtts = (0..=u32::BITS).map(|n| Duration::from_micros(1 << n));
        for rtt in rtts
            .map(Some)
            .chain([None, Some(Duration::ZERO), Some(Duration::MAX)])
        {
            let wait = answer_wait(rtt);
            assert!(wait >= ANSWER_WAIT_MIN, "{rtt:?}: {wait:?}");
            assert!(wait * 2 <= CONNECT_MAX, "{rtt:?}: {wait:?}");
            let fair = rtt.unwrap_or_default().saturating_mul(ANSWER_WAIT_RTTS);
            assert!(wait >= fair.min(ANSWER_WAIT_LONGEST), "{rtt:?}: {wait:?}");
        }
        assert_eq!(answer_wait(None), Duration::from_secs(1));
        assert_eq!(
            answer_wait(Some(Duration::from_millis(300))),
            Duration::from_millis(1_200)
        );
    }
}

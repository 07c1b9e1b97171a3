//! How long grants live, and when they are renewed (R-POL-02).
//!
//! A relay admits to the end of its lease. A grant that ended before would close a door that the
//! policy holds open, 71 hours into an outage. So a grant lives longer than a lease, and is renewed
//! while what is left of it is longer than any lease that may be signed until then.

use fairlead_model::WallTime;
use std::time::Duration;

/// What the settings say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// `grant.lifetime`.
    pub lifetime: Duration,
    /// `policy.lease`.
    pub lease: Duration,
}

/// What a grant outlasts a lease by at least, so that clocks that differ by the tolerated 60 s and a
/// slow delivery leave no gap.
pub const MARGIN: Duration = Duration::from_secs(180);

/// Shortest lease that can be set (R-POL-01).
const LEASE_MIN: Duration = Duration::from_secs(3600);
/// Longest lease that can be set (R-POL-01).
const LEASE_MAX: Duration = fairlead_trust::admission::LEASE_MAX;
/// Longest life of a grant (R-POL-02): 4/3 of the longest lease.
pub const LIFETIME_MAX: Duration = Duration::from_secs(224 * 3600);

const _: () = assert!(
    LEASE_MIN.as_secs() / 3 / 2 > 2 * MARGIN.as_secs(),
    "the shortest lease leaves time to renew"
);
const _: () = assert!(
    LEASE_MAX.as_secs() * 4 == LIFETIME_MAX.as_secs() * 3,
    "4/3 of the longest lease"
);

impl Terms {
    /// How long a new grant lives: the setting, and at least 4/3 of the lease.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.lifetime.max(self.lease.saturating_mul(4) / 3)
    }

    /// The end of a grant that is signed at `now` for relays whose leases end at `lease_end` at the
    /// latest: one that was signed while the setting was longer is outlasted too.
    #[must_use]
    pub fn not_after(&self, now: WallTime, lease_end: Option<WallTime>) -> WallTime {
        let end = now.plus(self.lifetime());
        // Twice: once to outlast it, once so that it is not due again at once.
        lease_end.map_or(end, |lease| end.max(lease.plus(2 * MARGIN)))
    }

    /// When a grant that ends at `not_after` is due to be renewed. A lease signed just before ends
    /// [`Self::spare`] before it.
    #[must_use]
    pub fn renew_at(&self, not_after: WallTime) -> WallTime {
        not_after.minus(self.lease.saturating_add(self.spare()))
    }

    /// Half of what a new grant's life exceeds the lease by: the other half is the time between two
    /// renewals.
    fn spare(&self) -> Duration {
        (self.lifetime().saturating_sub(self.lease) / 2).max(MARGIN)
    }

    /// Whether a grant has to be signed anew: its time has come, it ends before a lease that is
    /// out, or the clock was set back to before it began.
    #[must_use]
    pub fn is_due(&self, grant: Term, now: WallTime, lease_end: Option<WallTime>) -> bool {
        now < grant.not_before
            || now >= self.renew_at(grant.not_after)
            || lease_end.is_some_and(|lease| grant.not_after < lease.plus(MARGIN))
    }
}

/// From when to when a grant holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Its beginning.
    pub not_before: WallTime,
    /// Its end.
    pub not_after: WallTime,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NOW: WallTime = WallTime(1_800_000_000_000);

    fn terms(lifetime: u32, lease: u32) -> Terms {
        Terms {
            lifetime: HOUR * lifetime,
            lease: HOUR * lease,
        }
    }

    /// R-POL-02: 96 h at defaults, 224 h for the longest lease, the setting where it is longer.
    #[test]
    fn lifetimes() {
        assert_eq!(terms(4, 72).lifetime(), HOUR * 96);
        assert_eq!(terms(4, 168).lifetime(), LIFETIME_MAX);
        assert_eq!(terms(4, 1).lifetime(), HOUR * 4);
        assert_eq!(terms(1, 1).lifetime(), HOUR * 4 / 3);
        assert_eq!(terms(224, 72).lifetime(), HOUR * 224);
    }

    /// R-POL-02: a lease that was signed under a longer setting is outlasted, and the grant that
    /// outlasts it is not due again at once.
    #[test]
    fn a_longer_lease_that_is_out_is_outlasted() {
        let terms = terms(1, 1);
        let lease_end = Some(NOW.plus(HOUR * 168));
        let short = Term {
            not_before: NOW,
            not_after: terms.not_after(NOW, None),
        };
        assert!(!terms.is_due(short, NOW, None));
        assert!(terms.is_due(short, NOW, lease_end));
        let long = Term {
            not_before: NOW,
            not_after: terms.not_after(NOW, lease_end),
        };
        assert!(long.not_after > NOW.plus(HOUR * 168));
        assert!(!terms.is_due(long, NOW, lease_end));
    }

    /// A clock that was set back makes grants that have not begun.
    #[test]
    fn a_grant_that_has_not_begun_is_signed_anew() {
        let terms = terms(4, 72);
        let grant = Term {
            not_before: NOW,
            not_after: terms.not_after(NOW, None),
        };
        assert!(!terms.is_due(grant, NOW, None));
        assert!(terms.is_due(grant, WallTime(NOW.0 - 1), None));
    }

    proptest! {
        /// R-POL-02: whatever the settings, at every instant each grant outlasts every lease that
        /// was signed until then; renewals do not follow each other at once.
        #[test]
        fn a_grant_outlasts_every_lease(
            lifetime in 1u32..=224,
            lease in 1u32..=168,
            steps in proptest::collection::vec(1u64..40_000, 1..60),
        ) {
            let terms = terms(lifetime, lease);
            let mut now = NOW;
            let mut grant = Term { not_before: now, not_after: terms.not_after(now, None) };
            prop_assert!(grant.not_after.since(now) >= terms.lifetime);
            let mut lease_end = now;
            for step in steps {
                // The control plane renews a grant as soon as it is due, and a lease whenever it likes.
                let renew_at = terms.renew_at(grant.not_after);
                let next = now.plus(Duration::from_secs(step));
                if renew_at <= next {
                    prop_assert!(renew_at.since(grant.not_before) >= Duration::from_secs(500));
                    now = renew_at;
                    prop_assert!(terms.is_due(grant, now, Some(lease_end)));
                    grant = Term { not_before: now, not_after: terms.not_after(now, Some(lease_end)) };
                } else {
                    now = next;
                    prop_assert!(!terms.is_due(grant, now, Some(lease_end)));
                }
                lease_end = now.plus(terms.lease);
                prop_assert!(grant.not_after >= lease_end.plus(MARGIN), "{:?} {:?}", grant, lease_end);
                prop_assert!(grant.not_after.since(grant.not_before) <= LIFETIME_MAX);
            }
        }
    }
}

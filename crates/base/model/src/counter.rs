//! Counters that only rise. Each is its own type, so that a revision is never compared with a
//! generation.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The counter's next value; it stays at the top instead of wrapping to a lower one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

counters! {
    /// Version of an endpoint: rises when its target or class changes (R-ADM-01).
    Generation;
    /// Version of one member's policy within a [`PolicyEpoch`].
    Revision;
    /// One reign of policy numbering; a control plane restored from backup starts a higher one
    /// (R-POL-04).
    PolicyEpoch;
    /// Number of a policy lease; rises with each renewal.
    LeaseSeq;
    /// Term of the control plane's leader; receivers refuse lower terms.
    LeaderTerm;
    /// A node's registration of an endpoint at one relay; the higher wins (R-ADM-04).
    RegistrationEpoch;
    /// One leg of a stream; allocated by the dialling daemon only, burnt by each OPEN.
    LegEpoch;
    /// A stream within its association; never reused.
    StreamNumber;
    /// How often a node daemon has started; persisted, only an authenticated higher one ends old
    /// streams.
    BootCounter;
}

/// A start of a node daemon, as its registrations name it: a [`BootCounter`] that fits into the upper half of
/// their epoch, so that the epochs of a later start are above all of an earlier one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistrationBoot(u32);

impl RegistrationBoot {
    /// A start by its number.
    #[must_use]
    pub const fn new(boot: u32) -> Self {
        Self(boot)
    }

    /// The start; `None` where its count does not fit.
    #[must_use]
    pub fn of(boot: BootCounter) -> Option<Self> {
        u32::try_from(boot.0).ok().map(Self)
    }
}

impl RegistrationEpoch {
    /// That of a start's hop session: sessions of one start are numbered in their order.
    #[must_use]
    pub fn of(boot: RegistrationBoot, session: u32) -> Self {
        Self(u64::from(boot.0) << 32 | u64::from(session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-ADM-04: no count is cut to fit, and a later start is above every session of an earlier one.
    #[test]
    fn later_starts_and_sessions_register_above_earlier_ones() {
        let boot = |count: u64| RegistrationBoot::of(BootCounter(count));
        let top = u64::from(u32::MAX);
        assert_eq!(boot(top), Some(RegistrationBoot::new(u32::MAX)));
        assert_eq!([boot(top + 1), boot(u64::MAX)], [None, None]);
        let epoch = |count, session| RegistrationEpoch::of(RegistrationBoot::new(count), session);
        assert!(epoch(1, 1) < epoch(1, 2) && epoch(1, u32::MAX) < epoch(2, 0));
        assert_eq!(epoch(3, 4), RegistrationEpoch(0x0000_0003_0000_0004));
    }
}

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

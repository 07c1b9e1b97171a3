//! Whether a node or link that is not ready is only just starting: it has begun, or something new was asked of
//! it, so short a time ago that nothing is wrong yet. Pure: ages in, answers out. Relays: [`crate::readiness`].

use crate::readiness::{REACH_MAX, START_MAX};
use std::time::Duration;

/// What keeps a node from being ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeLack {
    /// Its word: its daemon has not connected, or has not reported.
    Word,
    /// Its newest policy.
    Policy,
    /// A policy that it takes.
    Refused,
    /// A relay that is ready. Whether it has tried, and what of the relay is new.
    Relay {
        /// Whether it has tried and failed.
        tried: bool,
        /// How new the relay is.
        relay: Carrier,
    },
    /// Any relay. How new those of its policy are.
    Relays(Carrier),
}

/// How new what is to carry is: one relay, or the newest of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Carrier {
    /// Whether it is only just starting.
    pub(super) starting: bool,
    /// For how long it has been ready; `None` where it is not.
    pub(super) ready: Option<Duration>,
}

impl Carrier {
    fn is_new(self) -> bool {
        self.starting || self.ready.is_some_and(|ready| ready < REACH_MAX)
    }

    /// The newer one of two.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            starting: self.starting || other.starting,
            ready: [self.ready, other.ready].into_iter().flatten().min(),
        }
    }
}

/// Since when a node has had what it is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ages {
    /// Since its daemon's session was opened; `None` while it has none.
    pub(super) session: Option<Duration>,
    /// Since its newest policy was signed; `None` before the first.
    pub(super) policy: Option<Duration>,
}

impl Ages {
    fn has_new_session(self) -> bool {
        self.session.is_none_or(is_short)
    }

    /// Whether its newest policy was signed a moment ago.
    pub(super) fn has_new_policy(self) -> bool {
        self.policy.is_some_and(is_short)
    }

    /// Whether its daemon or its policy is new.
    fn is_new(self) -> bool {
        self.has_new_session() || self.has_new_policy()
    }
}

fn is_short(age: Duration) -> bool {
    age < START_MAX
}

/// Whether a node that is not offline lacks only what comes by itself.
pub(super) fn node(lack: NodeLack, ages: Ages) -> bool {
    match lack {
        NodeLack::Refused => false,
        NodeLack::Word => ages.has_new_session(),
        NodeLack::Policy => ages.is_new(),
        // One that has tried does not reach it for a reason, which no new policy mends.
        NodeLack::Relay { tried: true, relay } => ages.has_new_session() || relay.is_new(),
        NodeLack::Relay {
            tried: false,
            relay: carrier,
        }
        | NodeLack::Relays(carrier) => ages.is_new() || carrier.is_new(),
    }
}

/// Whether a link lacks only what comes by itself: it, one of its ends or a relay of it is new. `age` is the
/// link's or its grant's; ends that are not connected have none.
pub(super) fn link(age: Duration, ends: [Option<Ages>; 2], relays: Carrier) -> bool {
    let [Some(consumer), Some(publisher)] = ends else {
        return false;
    };
    is_short(age) || consumer.is_new() || publisher.is_new() || relays.is_new()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Duration = Duration::from_secs(3600);
    const NEW: Duration = Duration::from_secs(1);

    fn ages(session: Duration, policy: Duration) -> Ages {
        Ages {
            session: Some(session),
            policy: Some(policy),
        }
    }

    fn carrier(ready: Duration) -> Carrier {
        Carrier {
            starting: false,
            ready: Some(ready),
        }
    }

    /// Everything has its time, and no more: what is new excuses what follows from it, and nothing else.
    #[test]
    fn what_is_new_is_no_fault_yet() {
        let relay = |tried, ready| NodeLack::Relay {
            tried,
            relay: carrier(ready),
        };
        for (lack, session, policy, starting) in [
            (NodeLack::Word, NEW, OLD, true),
            (NodeLack::Word, START_MAX, NEW, false),
            (NodeLack::Policy, OLD, NEW, true),
            (NodeLack::Policy, OLD, START_MAX, false),
            (NodeLack::Refused, NEW, NEW, false),
            (relay(false, OLD), OLD, NEW, true),
            (relay(true, OLD), OLD, NEW, false),
            (relay(true, OLD), NEW, OLD, true),
            (relay(true, NEW), OLD, OLD, true),
            (relay(true, REACH_MAX), OLD, OLD, false),
            (NodeLack::Relays(carrier(OLD)), OLD, OLD, false),
        ] {
            assert_eq!(node(lack, ages(session, policy)), starting, "{lack:?}");
        }
        let starts = Carrier {
            starting: true,
            ready: None,
        };
        let either = carrier(OLD).or(starts);
        assert!(node(NodeLack::Relays(either), ages(OLD, OLD)));
        assert_eq!(carrier(OLD).or(carrier(NEW)), carrier(NEW));
    }

    #[test]
    fn a_link_starts_with_what_it_needs() {
        let old = Some(ages(OLD, OLD));
        let idle = carrier(OLD);
        assert!(!link(OLD, [old, old], idle));
        assert!(link(NEW, [old, old], idle));
        assert!(link(OLD, [old, Some(ages(NEW, OLD))], idle));
        assert!(link(OLD, [Some(ages(OLD, NEW)), old], idle));
        assert!(link(OLD, [old, old], carrier(NEW)));
        assert!(!link(NEW, [None, old], idle), "an end is away");
    }
}

//! The rules by which an acceptor takes an ATTACH (I5, I7): pure, so that the model in `tests/model` can
//! leave one out and see what breaks.

use fairlead_model::{LegEpoch, RelayId};

/// A leg's place: its epoch, and the relay that it runs over.
pub(crate) type Place = (LegEpoch, RelayId);

/// Which rules are in force: all of them, in every build but this crate's own tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct AttachRules {
    /// Keys and ATTACH do not name the relay.
    #[cfg(test)]
    pub(crate) without_relay: bool,
    /// Epochs need not rise.
    #[cfg(test)]
    pub(crate) without_epoch: bool,
}

impl AttachRules {
    /// Whether a leg of `epoch` may be attached after one of `attached` was (I5).
    pub(crate) const fn is_new(self, epoch: LegEpoch, attached: LegEpoch) -> bool {
        epoch.0 > attached.0 || !self.orders_epochs()
    }

    /// The relay that a leg's keys are bound to (I7).
    pub(crate) const fn key_relay(self, relay: RelayId) -> RelayId {
        if self.binds_relay() {
            relay
        } else {
            RelayId::from_bytes([0; 16])
        }
    }

    /// Whether an ATTACH that opened under the leg's keys is for this very leg, and a new one.
    pub(crate) fn takes(self, claimed: Place, leg: Place, attached: LegEpoch) -> bool {
        let same_relay = claimed.1 == leg.1 || !self.binds_relay();
        claimed.0 == leg.0 && same_relay && self.is_new(claimed.0, attached)
    }

    #[cfg(test)]
    const fn binds_relay(self) -> bool {
        !self.without_relay
    }

    #[cfg(test)]
    const fn orders_epochs(self) -> bool {
        !self.without_epoch
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the tests' rules have a choice")]
    const fn binds_relay(self) -> bool {
        true
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the tests' rules have a choice")]
    const fn orders_epochs(self) -> bool {
        true
    }
}

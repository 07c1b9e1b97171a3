//! Finds the live stream that an incoming leg is for.
//!
//! A stream is named by all that its secret is drawn from: consumer, association, number and route.
//! What a relay says of a leg decides only whose driver looks at it: the secret, bound to relay and
//! epoch too, decides whether it is taken (R-STR-05). A relay that names another route, or is silent,
//! stands in no other relay's way.

use crate::waiting::WaitingLegs;
use fairlead_model::{AssociationId, LegEpoch, NodeId, RelayId, RouteId, StreamNumber};
use fairlead_transport::Leg;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedSemaphorePermit;

/// A stream's name at the publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamName {
    pub(crate) consumer: NodeId,
    pub(crate) association: AssociationId,
    pub(crate) number: StreamNumber,
    pub(crate) route: RouteId,
}

/// A further leg of a stream, answered towards the relay.
#[derive(Debug)]
pub(crate) struct FurtherLeg {
    pub(crate) leg: Leg,
    pub(crate) relay: RelayId,
    pub(crate) epoch: LegEpoch,
    /// Given back when the leg's consumer is known.
    pub(crate) pending: OwnedSemaphorePermit,
}

/// The way to a stream's driver.
pub(crate) type ToDriver = Arc<WaitingLegs<FurtherLeg>>;

/// The publisher's live streams, by name. Clones share them. As many as there are live streams, which
/// are bounded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resumable {
    streams: Arc<Mutex<BTreeMap<StreamName, ToDriver>>>,
}

/// Where a stream's driver gets its further legs; the stream is no longer found when it is dropped.
#[derive(Debug)]
pub(crate) struct Mailbox {
    table: Resumable,
    name: StreamName,
    legs: ToDriver,
    is_closed: bool,
}

impl Resumable {
    /// The way to the stream's driver, if it lives here.
    pub(crate) fn find(&self, name: StreamName) -> Option<ToDriver> {
        self.lock().get(&name).cloned()
    }

    /// Enters a new stream.
    ///
    /// # Errors
    /// It lives already: the way to its driver.
    pub(crate) fn enter(&self, name: StreamName) -> Result<Mailbox, ToDriver> {
        let mut streams = self.lock();
        if let Some(live) = streams.get(&name) {
            return Err(live.clone());
        }
        let legs = ToDriver::default();
        streams.insert(name, legs.clone());
        Ok(Mailbox {
            table: self.clone(),
            name,
            legs,
            is_closed: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamName, ToDriver>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    /// The next leg; registers the task to be woken when there is one.
    pub(crate) fn poll_leg(&self, cx: &std::task::Context<'_>) -> Option<FurtherLeg> {
        self.legs.poll(cx)
    }

    /// The stream is no longer found; legs that wait for it are reset.
    pub(crate) fn close(&mut self) {
        // Another stream of the name may be entered by the time that this mailbox is dropped.
        if !std::mem::replace(&mut self.is_closed, true) {
            self.table.lock().remove(&self.name);
            drop(self.legs.close());
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I8: a name lives once, and is free again when its driver is gone.
    #[test]
    fn a_stream_lives_once() {
        let table = Resumable::default();
        let name = StreamName {
            consumer: NodeId::from_bytes([1; 16]),
            association: AssociationId::from_bytes([2; 16]),
            number: StreamNumber(3),
            route: RouteId::from_bytes([4; 16]),
        };
        let mailbox = table.enter(name).unwrap();
        assert!(table.enter(name).is_err());
        assert!(table.find(name).is_some());
        let other = StreamName {
            number: StreamNumber(4),
            ..name
        };
        assert!(table.find(other).is_none());
        let elsewhere = StreamName {
            route: RouteId::from_bytes([5; 16]),
            ..name
        };
        let beside = table.enter(elsewhere).unwrap();
        assert!(table.find(name).is_some());
        drop(beside);
        assert!(table.find(name).is_some(), "each has its own place");
        drop(mailbox);
        assert!(table.find(name).is_none());
        let mut mailbox = table.enter(name).unwrap();
        mailbox.close();
        assert!(table.find(name).is_none());
        let next = table.enter(name).unwrap();
        drop(mailbox);
        assert!(table.find(name).is_some(), "it is the next one's name");
        drop(next);
        assert!(table.find(name).is_none());
    }
}

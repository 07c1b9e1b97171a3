//! Associations that consumers have made with this daemon.

use crate::association::FORGET_AFTER;
use fairlead_model::{AssociationId, BootCounter, MonoTime, NodeId, RelayId, StreamNumber};
use fairlead_stream::NumberWindow;
use fairlead_transport::PairSecret;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Most associations of one consumer: the one in use, its predecessor, and room for a consumer
/// that restarts over and over. The oldest gives way to one that has proved the consumer's key,
/// never to a relay's mere claim.
const PER_CONSUMER_MAX: usize = 8;
/// Most handshakes in one consumer's name through one relay: a relay that makes them up keeps no
/// other relay's out.
const PENDING_PER_RELAY_MAX: usize = 4;
/// Most associations in all, handshakes included: each costs about 1 KiB.
const TOTAL_MAX: usize = 16 * 1024;

/// A secret shared with one consumer, which proved its key.
pub(crate) struct AcceptedAssociation {
    peer: NodeId,
    peer_boot: BootCounter,
    secret: PairSecret,
    made: MonoTime,
    numbers: Mutex<NumberWindow>,
}

/// By the consumer that the relay names and the association that the consumer chose.
type Key = (NodeId, AssociationId);

/// The table. A consumer's name that a relay made up finds nothing: the entry was made under the
/// proved one.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcceptedAssociations {
    entries: Arc<Mutex<BTreeMap<Key, Entry>>>,
}

#[derive(Debug)]
enum Entry {
    /// A handshake runs through a relay; the sender is dropped when it has ended, well or not.
    Pending(RelayId, watch::Receiver<()>),
    Ready(Arc<AcceptedAssociation>),
}

/// A handshake's place in the table; taken back when dropped unfilled.
#[derive(Debug)]
pub(crate) struct Slot {
    table: AcceptedAssociations,
    key: Key,
    /// Wakes those who wait for the handshake, by being dropped.
    _done: watch::Sender<()>,
}

impl std::fmt::Debug for AcceptedAssociation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcceptedAssociation")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl AcceptedAssociation {
    /// The consumer, by its proved key.
    pub(crate) const fn peer(&self) -> NodeId {
        self.peer
    }

    /// The consumer's run.
    pub(crate) const fn peer_boot(&self) -> BootCounter {
        self.peer_boot
    }

    /// The secret that streams derive theirs from.
    pub(crate) const fn secret(&self) -> &[u8; 32] {
        self.secret.expose()
    }

    /// Takes a stream number; false if it was used before (I8).
    pub(crate) fn admit(&self, stream: StreamNumber) -> bool {
        self.numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(stream)
    }
}

impl AcceptedAssociations {
    /// Begins a handshake that `relay` says `consumer` wants; `None` if the table is full, the id is
    /// in use, or that relay has too many under way in the consumer's name.
    pub(crate) fn begin(&self, relay: RelayId, consumer: NodeId, association: AssociationId) -> Option<Slot> {
        let key = (consumer, association);
        let mut entries = self.lock();
        if entries.len() >= TOTAL_MAX || entries.contains_key(&key) {
            return None;
        }
        let through_relay = of_consumer(&entries, consumer)
            .filter(|(_, entry)| matches!(entry, Entry::Pending(through, _) if *through == relay))
            .count();
        if through_relay >= PENDING_PER_RELAY_MAX {
            return None;
        }
        let (done, pending) = watch::channel(());
        entries.insert(key, Entry::Pending(relay, pending));
        drop(entries);
        Some(Slot {
            table: self.clone(),
            key,
            _done: done,
        })
    }

    /// The association, if it is made and not too old. One whose handshake runs is awaited.
    ///
    /// Cancel safe.
    pub(crate) async fn find(
        &self,
        consumer: NodeId,
        association: AssociationId,
        now: MonoTime,
        wait: Duration,
    ) -> Option<Arc<AcceptedAssociation>> {
        let key = (consumer, association);
        let mut pending = match self.lock().get(&key)? {
            Entry::Ready(association) => return fresh(association, now),
            Entry::Pending(_, pending) => pending.clone(),
        };
        // An error is the sender's end: the handshake is over.
        let _ = tokio::time::timeout(wait, pending.changed()).await;
        match self.lock().get(&key)? {
            Entry::Ready(association) => fresh(association, now),
            Entry::Pending(..) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything in one consumer's name.
fn of_consumer(entries: &BTreeMap<Key, Entry>, consumer: NodeId) -> impl Iterator<Item = (&Key, &Entry)> {
    let first = (consumer, AssociationId::from_bytes([0; 16]));
    let last = (consumer, AssociationId::from_bytes([0xff; 16]));
    entries.range(first..=last)
}

/// Lets the consumer's oldest association go if there is no room for one more.
fn make_room(entries: &mut BTreeMap<Key, Entry>, consumer: NodeId) {
    let made: Vec<(MonoTime, Key)> = of_consumer(entries, consumer)
        .filter_map(|(key, entry)| match entry {
            Entry::Ready(association) => Some((association.made, *key)),
            Entry::Pending(..) => None,
        })
        .collect();
    if made.len() >= PER_CONSUMER_MAX
        && let Some((_, oldest)) = made.iter().min()
    {
        entries.remove(oldest);
    }
}

fn fresh(association: &Arc<AcceptedAssociation>, now: MonoTime) -> Option<Arc<AcceptedAssociation>> {
    (now.since(association.made) < FORGET_AFTER).then(|| association.clone())
}

impl Slot {
    /// The handshake has proved the consumer's key.
    pub(crate) fn fill(self, secret: PairSecret, peer_boot: BootCounter, now: MonoTime) {
        let association = AcceptedAssociation {
            peer: self.key.0,
            peer_boot,
            secret,
            made: now,
            numbers: Mutex::new(NumberWindow::new()),
        };
        let mut entries = self.table.lock();
        make_room(&mut entries, self.key.0);
        entries.insert(self.key, Entry::Ready(Arc::new(association)));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut entries = self.table.lock();
        if matches!(entries.get(&self.key), Some(Entry::Pending(..))) {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 16])
    }

    fn association(n: u8) -> AssociationId {
        AssociationId::from_bytes([n; 16])
    }

    fn relay(n: u8) -> RelayId {
        RelayId::from_bytes([n; 16])
    }

    const WAIT: Duration = Duration::from_secs(5);

    /// An open that overtakes its association's handshake waits for it; one whose handshake fails
    /// does not wait for the timeout.
    #[tokio::test]
    async fn a_handshake_is_awaited_and_its_failure_is_told() {
        let table = AcceptedAssociations::default();
        let slot = table.begin(relay(1), node(1), association(1)).unwrap();
        assert!(
            table.begin(relay(1), node(1), association(1)).is_none(),
            "the id is in use"
        );
        let started = std::time::Instant::now();
        let (found, ()) = tokio::join!(table.find(node(1), association(1), MonoTime(0), WAIT), async {
            tokio::task::yield_now().await;
            drop(slot);
        });
        assert!(found.is_none());
        assert!(started.elapsed() < WAIT);
        assert!(
            table.begin(relay(1), node(1), association(1)).is_some(),
            "the place is free again"
        );
    }

    /// A relay that makes up handshakes in a consumer's name keeps no other relay's out, and costs
    /// the consumer no association that it has.
    #[test]
    fn a_relays_claims_cost_the_consumer_nothing() {
        let table = AcceptedAssociations::default();
        for n in 0..u8::try_from(PER_CONSUMER_MAX).unwrap() {
            let slot = table.begin(relay(1), node(1), association(n)).unwrap();
            slot.fill(
                PairSecret::from_bytes([n; 32]),
                BootCounter(1),
                MonoTime(u64::from(n)),
            );
        }
        let made_up: Vec<_> = (100..200)
            .filter_map(|n| table.begin(relay(6), node(1), association(n)))
            .collect();
        assert_eq!(made_up.len(), PENDING_PER_RELAY_MAX);
        for n in 0..u8::try_from(PER_CONSUMER_MAX).unwrap() {
            let entries = table.lock();
            assert!(
                matches!(entries.get(&(node(1), association(n))), Some(Entry::Ready(_))),
                "{n}"
            );
        }
        // A proved one takes the oldest one's place.
        let slot = table.begin(relay(1), node(1), association(0xee)).unwrap();
        slot.fill(PairSecret::from_bytes([9; 32]), BootCounter(1), MonoTime(99));
        let entries = table.lock();
        assert!(entries.get(&(node(1), association(0))).is_none());
        assert!(matches!(
            entries.get(&(node(1), association(1))),
            Some(Entry::Ready(_))
        ));
        drop(entries);
        drop(made_up);
        assert!(table.begin(relay(6), node(1), association(0xef)).is_some());
    }
}

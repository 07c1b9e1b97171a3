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
/// Most associations in all, handshakes included: each costs about 1 KiB. Those that are too old for any open
/// make room.
const TOTAL_MAX: usize = 16 * 1024;
/// Least time between two looks for old ones: one takes about a millisecond in a full table.
const PURGE_EVERY: Duration = Duration::from_secs(1);

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
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<Key, Entry>,
    /// When there may be something to forget.
    purge_at: MonoTime,
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
    /// Begins a handshake that `relay` says `consumer` wants; `None` if the table is full of associations that
    /// are in use, the id is in use, or that relay has too many under way in the consumer's name.
    pub(crate) fn begin(
        &self,
        relay: RelayId,
        consumer: NodeId,
        association: AssociationId,
        now: MonoTime,
    ) -> Option<Slot> {
        let key = (consumer, association);
        let mut inner = self.lock();
        inner.purge(now);
        let entries = &mut inner.entries;
        if entries.len() >= TOTAL_MAX || entries.contains_key(&key) {
            return None;
        }
        let through_relay = of_consumer(entries, consumer)
            .filter(|(_, entry)| matches!(entry, Entry::Pending(through, _) if *through == relay))
            .count();
        if through_relay >= PENDING_PER_RELAY_MAX {
            return None;
        }
        let (done, pending) = watch::channel(());
        entries.insert(key, Entry::Pending(relay, pending));
        drop(inner);
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
        let mut pending = match self.lock().entries.get(&key)? {
            Entry::Ready(association) => return fresh(association, now),
            Entry::Pending(_, pending) => pending.clone(),
        };
        // An error is the sender's end: the handshake is over.
        let _ = tokio::time::timeout(wait, pending.changed()).await;
        match self.lock().entries.get(&key)? {
            Entry::Ready(association) => fresh(association, now),
            Entry::Pending(..) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Forgets what is too old to be found.
    fn purge(&mut self, now: MonoTime) {
        if now < self.purge_at {
            return;
        }
        let mut oldest = now;
        self.entries.retain(|_, entry| match entry {
            Entry::Ready(association) if is_fresh(association, now) => {
                oldest = oldest.min(association.made);
                true
            }
            Entry::Ready(_) => false,
            Entry::Pending(..) => true,
        });
        self.purge_at = oldest.plus(FORGET_AFTER).max(now.plus(PURGE_EVERY));
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
    is_fresh(association, now).then(|| association.clone())
}

fn is_fresh(association: &AcceptedAssociation, now: MonoTime) -> bool {
    now.since(association.made) < FORGET_AFTER
}

impl Slot {
    /// The handshake has proved the consumer's key. True if it is of a later run than any association that
    /// the consumer has here.
    pub(crate) fn fill(self, secret: PairSecret, peer_boot: BootCounter, now: MonoTime) -> bool {
        let association = AcceptedAssociation {
            peer: self.key.0,
            peer_boot,
            secret,
            made: now,
            numbers: Mutex::new(NumberWindow::new()),
        };
        let mut inner = self.table.lock();
        let is_later = of_consumer(&inner.entries, self.key.0).all(|(_, entry)| match entry {
            Entry::Ready(known) => known.peer_boot < peer_boot,
            Entry::Pending(..) => true,
        });
        make_room(&mut inner.entries, self.key.0);
        inner
            .entries
            .insert(self.key, Entry::Ready(Arc::new(association)));
        is_later
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let entries = &mut self.table.lock().entries;
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
        let slot = table
            .begin(relay(1), node(1), association(1), MonoTime(0))
            .unwrap();
        assert!(
            table
                .begin(relay(1), node(1), association(1), MonoTime(0))
                .is_none(),
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
            table
                .begin(relay(1), node(1), association(1), MonoTime(0))
                .is_some(),
            "the place is free again"
        );
    }

    /// A relay that makes up handshakes in a consumer's name keeps no other relay's out, and costs
    /// the consumer no association that it has.
    #[test]
    fn a_relays_claims_cost_the_consumer_nothing() {
        let table = AcceptedAssociations::default();
        for n in 0..u8::try_from(PER_CONSUMER_MAX).unwrap() {
            let slot = table
                .begin(relay(1), node(1), association(n), MonoTime(0))
                .unwrap();
            slot.fill(
                PairSecret::from_bytes([n; 32]),
                BootCounter(1),
                MonoTime(u64::from(n)),
            );
        }
        let made_up: Vec<_> = (100..200)
            .filter_map(|n| table.begin(relay(6), node(1), association(n), MonoTime(0)))
            .collect();
        assert_eq!(made_up.len(), PENDING_PER_RELAY_MAX);
        for n in 0..u8::try_from(PER_CONSUMER_MAX).unwrap() {
            let entries = &table.lock().entries;
            assert!(
                matches!(entries.get(&(node(1), association(n))), Some(Entry::Ready(_))),
                "{n}"
            );
        }
        // A proved one takes the oldest one's place.
        let slot = table
            .begin(relay(1), node(1), association(0xee), MonoTime(0))
            .unwrap();
        slot.fill(PairSecret::from_bytes([9; 32]), BootCounter(1), MonoTime(99));
        let inner = table.lock();
        let entries = &inner.entries;
        assert!(entries.get(&(node(1), association(0))).is_none());
        assert!(matches!(
            entries.get(&(node(1), association(1))),
            Some(Entry::Ready(_))
        ));
        drop(inner);
        drop(made_up);
        assert!(
            table
                .begin(relay(6), node(1), association(0xef), MonoTime(0))
                .is_some()
        );
    }

    /// R-ENR-10: a later run is told from another association of a run that is known, and from that of an
    /// earlier one, which its copy is.
    #[test]
    fn a_later_run_is_told_once() {
        let table = AcceptedAssociations::default();
        let fill = |n: u8, boot| {
            let slot = table
                .begin(relay(1), node(1), association(n), MonoTime(0))
                .unwrap();
            slot.fill(PairSecret::from_bytes([n; 32]), BootCounter(boot), MonoTime(0))
        };
        let told: Vec<bool> = (1..)
            .zip([5, 5, 6, 5, 6, 7])
            .map(|(n, boot)| fill(n, boot))
            .collect();
        assert_eq!(told, [true, false, true, false, false, true]);
    }

    /// A table that is full of associations which no open can use any more takes new ones: the old are
    /// forgotten, and no other.
    #[test]
    fn a_full_table_forgets_what_is_too_old() {
        let table = AcceptedAssociations::default();
        let begin = |n: usize, now| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(n as u64).to_be_bytes());
            table.begin(relay(1), NodeId::from_bytes(id), association(1), now)
        };
        // Each of another consumer: none makes room for another.
        let second = Duration::from_secs(1);
        let made = |n: usize| MonoTime(0).plus(second * u32::from(n >= TOTAL_MAX / 2));
        for n in 0..TOTAL_MAX {
            let slot = begin(n, made(n)).unwrap();
            slot.fill(PairSecret::from_bytes([9; 32]), BootCounter(1), made(n));
        }
        let ended = MonoTime(0).plus(FORGET_AFTER);
        assert!(
            begin(TOTAL_MAX, MonoTime(ended.0 - 1)).is_none(),
            "all are in use"
        );
        assert!(begin(TOTAL_MAX, ended).is_some());
        assert_eq!(
            table.lock().entries.len(),
            TOTAL_MAX / 2,
            "the younger half stays"
        );
        assert!(begin(TOTAL_MAX, ended.plus(second * 2)).is_some());
        assert_eq!(table.lock().entries.len(), 0, "the others are as old");
    }
}

//! Relays that let opens go unanswered while another one answered.

use fairlead_model::{MonoTime, RelayId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long such a relay is asked behind the others: as long as one that refuses under load (R-NOD-03). Then
/// one connection finds out anew, in a second.
const ASKED_LATER_FOR: Duration = Duration::from_secs(30);

/// What a daemon's opens found. At most one entry for each relay of the policies so far.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    /// The session, and until when it counts.
    relays: Mutex<BTreeMap<RelayId, (u32, MonoTime)>>,
}

impl Unanswered {
    /// The relay was late with its answer through this session, and another one answered.
    pub(super) fn note(&self, relay: RelayId, session: u32, now: MonoTime) {
        let mut relays = self.lock();
        relays.retain(|_, (_, until)| *until > now);
        let until = now.plus(ASKED_LATER_FOR);
        if relays.insert(relay, (session, until)).is_none() {
            tracing::debug!(%relay, "a relay does not answer opens; others are asked first");
        }
    }

    /// Whether that is so.
    pub(super) fn is_noted(&self, relay: RelayId, session: u32, now: MonoTime) -> bool {
        let relays = self.lock();
        relays
            .get(&relay)
            .is_some_and(|(of, until)| *of == session && now < *until)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RelayId, (u32, MonoTime)>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-NOD-02: a relay that did not answer comes last for a while, and its next session does not.
    #[test]
    fn it_counts_for_a_while_and_for_one_session() {
        let unanswered = Unanswered::default();
        let (relay, other) = (RelayId::from_bytes([1; 16]), RelayId::from_bytes([2; 16]));
        let now = MonoTime(0);
        unanswered.note(relay, 7, now);
        assert!(unanswered.is_noted(relay, 7, now));
        assert!(!unanswered.is_noted(relay, 8, now));
        assert!(!unanswered.is_noted(other, 7, now));
        let later = now.plus(ASKED_LATER_FOR);
        assert!(!unanswered.is_noted(relay, 7, later));
        unanswered.note(other, 1, later);
        assert_eq!(unanswered.lock().len(), 1, "what is over is forgotten");
    }
}

//! Connection ids, and how soon an unknown one is answered with a stateless reset.
//!
//! An id of an earlier run is answered at once: its peer is to know within a packet that this end was
//! restarted. An id of this run that is unknown was a connection's that has ended, most often because
//! this end closed it: the peer has been told why, and packets that crossed the close are answered with
//! it again for three probe timeouts. A peer that was stalled for longer finds that close and a reset
//! in one batch, and quinn tells it of the later one alone. So such an id is answered with silence for
//! [`QUIET`]; a peer that still uses it after that has not got the close, and needs the reset.

use aws_lc_rs::{hmac, rand};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a peer may be stalled with the reason of its end unread. Longer would leave one that has
/// missed it in doubt for as long.
const QUIET: Duration = Duration::from_secs(1);
/// Ids that are remembered as asked for. Of more, the reset goes out at once: a peer is better told
/// too early than never.
const ASKED_MAX: usize = 4_096;

/// Bytes of an id, and of its parts: random, then what ids of every run of the key have, then what
/// only those of this run have. What passes by chance (1 in 65,536) gets an answer too much or too late.
const RANDOM_LEN: usize = 4;
const MARK_LEN: usize = 2;
const LEN: usize = RANDOM_LEN + 2 * MARK_LEN;

/// Makes and knows the ids of one endpoint.
pub(crate) struct Ids {
    any_run: hmac::Key,
    this_run: hmac::Key,
    /// When an unknown id of this run was asked for first.
    asked: Mutex<HashMap<ConnectionId, Instant>>,
}

impl Ids {
    /// Ids that later runs with the same key know.
    pub(crate) fn new(any_run: hmac::Key) -> Self {
        Self {
            any_run,
            this_run: random_key(),
            asked: Mutex::default(),
        }
    }

    /// Whether a packet for this id, which is no connection's, is answered with a reset.
    fn is_answered(&self, id: &ConnectionId, now: Instant) -> bool {
        let Some((head, of_run)) = id.split_at_checked(LEN - MARK_LEN) else {
            return false;
        };
        let Some((random, of_any)) = head.split_at_checked(RANDOM_LEN) else {
            return false;
        };
        if mark(&self.any_run, random) != of_any {
            return false;
        }
        mark(&self.this_run, random) != of_run || self.has_waited(*id, now)
    }

    fn has_waited(&self, id: ConnectionId, now: Instant) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.len() >= ASKED_MAX {
            // Whoever goes on after its reset begins anew, which costs it a wait.
            asked.retain(|_, first| now.saturating_duration_since(*first) < 2 * QUIET);
        }
        if asked.len() >= ASKED_MAX && !asked.contains_key(&id) {
            return true;
        }
        let first = *asked.entry(id).or_insert(now);
        now.saturating_duration_since(first) >= QUIET
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LEN];
        let mut random = [0; RANDOM_LEN];
        fill(&mut random);
        let parts = [
            random.as_slice(),
            &mark(&self.any_run, &random),
            &mark(&self.this_run, &random),
        ];
        for (to, from) in id.iter_mut().zip(parts.concat()) {
            *to = from;
        }
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if self.is_answered(id, Instant::now()) {
            Ok(())
        } else {
            Err(InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A key that nobody else has.
pub(crate) fn random_key() -> hmac::Key {
    let mut bytes = [0; 32];
    fill(&mut bytes);
    hmac::Key::new(hmac::HMAC_SHA256, &bytes)
}

/// Random bytes. Where the system gives none, no TLS handshake succeeds either, and ids that repeat
/// meet no connection.
fn fill(bytes: &mut [u8]) {
    let _ = rand::fill(bytes);
}

fn mark(key: &hmac::Key, random: &[u8]) -> [u8; MARK_LEN] {
    let tag = hmac::sign(key, random);
    let mut mark = [0; MARK_LEN];
    for (to, from) in mark.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Ids {
        Ids::new(hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]))
    }

    /// R-NOD-01: an id of an earlier run is answered at once, one of this run only when its peer has
    /// had time to read its close, and garbage never.
    #[test]
    fn a_reset_waits_for_the_close_and_for_no_restart() {
        let (mut run, mut before) = (ids(), ids());
        let now = Instant::now();
        let (its, earlier) = (run.generate_cid(), before.generate_cid());
        assert_eq!((its.len(), run.cid_len()), (LEN, LEN));
        assert!(run.is_answered(&earlier, now));
        assert!(!run.is_answered(&its, now));
        assert!(!run.is_answered(&its, now + QUIET - Duration::from_millis(1)));
        assert!(run.is_answered(&its, now + QUIET));
        let mut garbage = its.to_vec();
        garbage[RANDOM_LEN] ^= 1;
        assert!(!run.is_answered(&ConnectionId::new(&garbage), now));
        assert!(!run.is_answered(&ConnectionId::new(&its[..5]), now));
        let mut other = Ids::new(random_key());
        assert!(!run.is_answered(&other.generate_cid(), now));
    }

    /// What is remembered is bounded, and a full table answers at once.
    #[test]
    fn what_was_asked_for_is_bounded() {
        let mut run = ids();
        let now = Instant::now();
        let mut taken = std::collections::BTreeSet::new();
        while taken.len() < ASKED_MAX {
            let id = run.generate_cid();
            if taken.insert(id.to_vec()) {
                assert!(!run.is_answered(&id, now));
            }
        }
        let one_more = run.generate_cid();
        assert!(run.is_answered(&one_more, now));
        assert_eq!(run.asked.lock().unwrap().len(), ASKED_MAX);
        let later = now + 2 * QUIET;
        assert!(!run.is_answered(&one_more, later), "room was made");
        assert_eq!(run.asked.lock().unwrap().len(), 1);
    }
}

//! Makes an association with each publisher as soon as one can be reached.
//!
//! The first application then waits for no handshake. And a publisher learns that this daemon has
//! started anew: what the last run had open ends there soon, without waiting for the hold.

use crate::association::{Associations, PairRequest};
use crate::backoff::Backoff;
use crate::relays::Relays;
use crate::view::ViewReceiver;
use fairlead_host::rng;
use fairlead_model::NodeId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// First wait before publishers that could not be reached are tried again, and the longest.
const AGAIN_FIRST: Duration = Duration::from_millis(500);
const AGAIN_LONGEST: Duration = Duration::from_secs(30);

/// How long one handshake is waited for: it goes on, and a relay that swallows it keeps no other publisher's
/// waiting.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Goes through the publishers of the policy, one handshake at a time, until `cancel`.
pub(crate) async fn keep(
    associations: Arc<Associations>,
    relays: Relays,
    mut view: ViewReceiver,
    cancel: CancellationToken,
) {
    let mut sessions = relays.subscribe();
    let mut reached = BTreeSet::new();
    let mut backoff = Backoff::new(AGAIN_FIRST, AGAIN_LONGEST);
    for turn in 0.. {
        sessions.mark_unchanged();
        view.mark_unchanged();
        let requests = missing(&view, &relays, &reached, turn);
        let mut failed = false;
        for request in requests {
            let made = tokio::select! {
                made = tokio::time::timeout(WAIT_MAX, associations.get(&request)) => {
                    made.is_ok_and(|made| made.is_ok())
                }
                () = cancel.cancelled() => return,
            };
            failed |= !made;
            if made {
                reached.insert(request.publisher);
            }
        }
        if !failed {
            backoff.reset();
        }
        let again = async {
            match failed {
                true => tokio::time::sleep(backoff.next(rng::jitter)).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = again => {}
            changed = sessions.changed(), if !failed => if changed.is_err() { return },
            changed = view.changed(), if !failed => if changed.is_err() { return },
            () = cancel.cancelled() => return,
        }
    }
}

/// One request for each publisher that was not reached in this run and can be asked for now, each
/// turn through another relay.
fn missing(
    view: &ViewReceiver,
    relays: &Relays,
    reached: &BTreeSet<NodeId>,
    turn: usize,
) -> Vec<PairRequest> {
    let view = view.borrow().clone();
    let sessions = relays.sessions();
    let mut asked = reached.clone();
    let consumptions = view.policy().into_iter().flat_map(|p| &p.consumptions);
    let requests = consumptions.filter_map(|consumption| {
        let publisher = consumption.publisher;
        if asked.contains(&publisher) {
            return None;
        }
        let usable = |relay| sessions.get(relay).filter(|s| !s.doubt.any() && !s.draining);
        let count = consumption.relays.len();
        let in_turn = consumption.relays.iter().cycle();
        let mut in_turn = in_turn.skip(turn.checked_rem(count)?).take(count);
        let request = PairRequest {
            publisher,
            route: consumption.route,
            grant: view.grant(consumption.route)?.envelope().clone(),
            session: in_turn.find_map(usable)?.clone(),
            unknown: None,
        };
        asked.insert(publisher);
        Some(request)
    });
    requests.collect()
}

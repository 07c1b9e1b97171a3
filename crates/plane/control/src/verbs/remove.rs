//! Removing members (R-OPS-03, as far as it goes without drain).

use super::{actor, missing};
use crate::api::{ApiError, NodeView, Principal, RelayState, RelayView};
use crate::audit::AuditNote;
use crate::control::Control;
use crate::enrol::{CLOCK_SKEW_MAX, about};
use crate::ledger::Change;
use crate::record::{MemberKey, RelayRecord, key, time_text};
use crate::state::State;
use crate::view::Viewer;
use fairlead_model::{ApiCode, Name, WallTime};
use std::time::Duration;

/// How long an offline relay must have been unseen (R-OPS-03).
const UNSEEN_MIN: Duration = Duration::from_secs(90);
/// Names that a message lists; `details` has all that fit into it.
const NAMES_SHOWN_MAX: usize = 8;
/// Names that `details` lists.
const NAMES_DETAILED_MAX: usize = 100;

impl Control {
    /// Removes a node; the node as it was. Its session and its certificate end at once.
    ///
    /// # Errors
    /// No such node; links use it.
    pub async fn remove_node(&self, by: &Principal, name_or_id: &str) -> Result<NodeView, ApiError> {
        let turn = self.0.ledger.turn().await?;
        let state = turn.state();
        let record = state
            .find_node(name_or_id)?
            .cloned()
            .ok_or_else(|| missing(state, "node", name_or_id))?;
        let id = record.id.0;
        let name = &record.name.0;
        let links = state.links.values().map(|k| &k.record);
        let mut uses: Vec<&Name> = links
            .filter(|l| l.consumer.0 == id || l.publisher.0 == id)
            .map(|l| &l.name.0)
            .collect();
        if !uses.is_empty() {
            let them = if uses.len() == 1 { "it" } else { "them" };
            return Err(in_use(&mut uses, |links| {
                format!("node {name} is in use by {links}; remove {them} first with `fairlead link rm`")
            }));
        }
        let view = Viewer::new(&self.0).node(&record);
        let mut change = Change::default();
        change.note(AuditNote::new(actor(by), "node.remove", format!("node {name}")).before(&record));
        change.delete(key::node(id));
        forget(&mut change, state, MemberKey::Node(record.id));
        turn.commit(change).await?;
        self.0.observed.forget_node(id);
        Ok(view)
    }

    /// Removes a relay; the relay as it was. One that never had capacity goes at once, connected or
    /// not, whatever lease it holds: no node's policy has ever named it, so none dials it, and its own
    /// names no node, so it admits none. Another one goes only when nothing depends on it and nobody
    /// can use it any more (R-OPS-03).
    ///
    /// # Errors
    /// No such relay; it is the local relay, it is connected, or links would lose their last relay
    /// ([`ApiCode::InUse`], [`ApiCode::LocalRelay`]); it is offline and may serve still
    /// ([`ApiCode::RelayOfflineRemovalUnsafe`], with `removableAfter` where a time is the reason).
    pub async fn remove_relay(&self, by: &Principal, name_or_id: &str) -> Result<RelayView, ApiError> {
        let turn = self.0.ledger.turn().await?;
        let state = turn.state();
        let record = state
            .find_relay(name_or_id)?
            .cloned()
            .ok_or_else(|| missing(state, "relay", name_or_id))?;
        let id = record.id.0;
        if record.served {
            self.check_removal(state, &record)?;
        }
        let view = Viewer::new(&self.0).relay(&record);
        let mut change = Change::default();
        let object = format!("relay {}", record.name.0);
        change.note(AuditNote::new(actor(by), "relay.remove", object).before(&record));
        change.delete(key::relay(id));
        forget(&mut change, state, MemberKey::Relay(record.id));
        turn.commit(change).await?;
        self.0.observed.forget_relay(id);
        Ok(view)
    }

    /// Whether a relay that has served may be removed.
    fn check_removal(&self, state: &State, record: &RelayRecord) -> Result<(), ApiError> {
        let name = &record.name.0;
        if record.local {
            return Err(ApiError::new(
                ApiCode::LocalRelay,
                format!("relay {name} is the local relay, which stays with its control plane"),
            ));
        }
        let viewer = Viewer::new(&self.0);
        let after = viewer.removable_after(record);
        if viewer.is_connected(record.id.0) {
            let when = after.map_or_else(String::new, |at| format!(", not before {}", time_text(at)));
            let error = ApiError::new(
                ApiCode::InUse,
                format!(
                    "relay {name} is connected; stop its supervisor, which stops its worker too, and remove the \
                     relay when it is offline and its longest lease has ended{when}; that moves on with each \
                     lease that it renews: `fairlead relay show {name}` says it when it is stopped"
                ),
            );
            return Err(match after {
                Some(at) => error.with_detail("removableAfter", time_text(at)),
                None => error,
            });
        }
        let mut orphans = orphans(state, &viewer, record);
        if !orphans.is_empty() {
            let (moved, them) = match orphans.len() {
                1 => ("it has", "it"),
                _ => ("they have", "them"),
            };
            return Err(in_use(&mut orphans, |links| {
                format!(
                    "relay {name} carries {links}, which no other relay carries that is ready; start another relay \
                     and wait until {moved} moved, or remove {them}"
                )
            }));
        }
        let nodes = viewer.nodes_on(record.id.0);
        if nodes > 0 {
            let what = if nodes == 1 { "node" } else { "nodes" };
            return Err(ApiError::new(
                ApiCode::RelayOfflineRemovalUnsafe,
                format!(
                    "relay {name} is offline, but its worker is still reached by {nodes} connected {what}; stop it \
                     on its host first"
                ),
            )
            .with_detail("nodes", nodes));
        }
        if let Some(after) = after.filter(|after| self.0.clock.wall() < *after) {
            let (left, after) = (about(after.since(self.0.clock.wall())), time_text(after));
            return Err(ApiError::new(
                ApiCode::RelayOfflineRemovalUnsafe,
                format!(
                    "relay {name} is offline, but a worker that is started from its disk may serve until its lease \
                     has ended; remove it after {after}, in {left}. Nothing forces it: links are placed on other \
                     relays meanwhile, and a new relay takes its place under another name (see Removing a relay in \
                     the guide)"
                ),
            )
            .with_detail("removableAfter", after));
        }
        Ok(())
    }
}

/// From when on an offline relay may be removed: it has been unseen for long enough, and its latest
/// lease has ended by its own clock too, which may be behind. One that never came for a lease has
/// admitted nothing: at once, `None`.
pub(crate) fn removable_after(state: &State, record: &RelayRecord, seen: WallTime) -> Option<WallTime> {
    let lease_end = state
        .heads
        .get(&MemberKey::Relay(record.id))
        .and_then(|head| head.record.lease_not_after)
        .map(|end| WallTime::from(end).plus(CLOCK_SKEW_MAX));
    let unseen = seen.plus(UNSEEN_MIN);
    let came = record.enrolled.as_ref().is_some_and(|e| e.connected);
    match lease_end {
        Some(end) => Some(end.max(unseen)),
        None if came => Some(unseen),
        None => None,
    }
}

/// Links that are placed on this relay and on no other one that is ready.
fn orphans<'a>(state: &'a State, viewer: &Viewer<'_>, relay: &RelayRecord) -> Vec<&'a Name> {
    let is_ready = |id| {
        state
            .relay(id)
            .is_some_and(|other| viewer.standing(other).state == RelayState::Ready)
    };
    let placed = state
        .places
        .iter()
        .filter(|(_, place)| place.record.relays.contains(&relay.id));
    placed
        .filter(|(_, place)| {
            let mut others = place.record.relays.iter().filter(|id| **id != relay.id);
            !others.any(|id| is_ready(id.0))
        })
        .filter_map(|(link, _)| state.links.get(link))
        .map(|link| &link.record.name.0)
        .collect()
}

/// Removes what is kept of a member beside its record.
fn forget(change: &mut Change, state: &State, member: MemberKey) {
    if state.heads.contains_key(&member) {
        change.delete(key::head(member));
    }
    let tokens = state.enrolments.iter();
    for (hash, _) in tokens.filter(|(_, kept)| kept.record.member == member) {
        change.delete(key::enrolment(hash));
    }
}

/// Says which links stand in the way.
fn in_use(links: &mut [&Name], message: impl FnOnce(String) -> String) -> ApiError {
    links.sort_unstable();
    let listed = |max: usize| {
        let names: Vec<&str> = links.iter().take(max).map(|name| name.as_str()).collect();
        names.join(", ")
    };
    let shown = listed(NAMES_SHOWN_MAX);
    let shown = match links.len() {
        1 => format!("link {shown}"),
        n if n > NAMES_SHOWN_MAX => format!("links {shown} and {} more", n - NAMES_SHOWN_MAX),
        _ => format!("links {shown}"),
    };
    ApiError::new(ApiCode::InUse, message(shown)).with_detail("links", listed(NAMES_DETAILED_MAX))
}

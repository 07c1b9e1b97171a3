//! Members that hold something newer than this control plane gives: it was restored from an older copy
//! (R-POL-04). Pure.
//!
//! A member is authenticated, and what it holds was signed by our key, but the number is its own word. It only
//! ever lifts a counter, by a bounded step: a member that lies spends numbers, of which there are enough.

use crate::observed::Members;
use crate::publish::Documents;
use crate::record::{MemberKey, Text};
use fairlead_model::PolicyEpoch;
use std::collections::BTreeSet;

/// The greatest step of a counter that a member's word makes: 2^32 of them fit into it.
const STEP_MAX: u64 = 1 << 32;

/// What is to be done for them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ahead {
    /// The highest revision that one holds; 0 where none is above the published one.
    pub(super) revision: u64,
    /// The highest leader term that one holds; 0 where none is above ours.
    pub(super) term: u64,
    /// Whose policies are to be signed under a new number.
    pub(super) members: BTreeSet<MemberKey>,
}

/// Looks for them. `term` is our leader's, `revision` the highest one taken.
pub(super) fn ahead(
    members: &Members,
    documents: &Documents,
    epoch: PolicyEpoch,
    revision: u64,
    term: u64,
) -> Ahead {
    let mut ahead = Ahead::default();
    for (id, relay) in members.relays.iter().filter(|(_, relay)| relay.session.is_some()) {
        let (Some(status), Some(policy)) = (&relay.status, documents.relays.get(id)) else {
            continue;
        };
        let Some(head) = status.applied.filter(|head| head.epoch == epoch) else {
            continue;
        };
        let (held, held_term) = (head.revision.0, head.leader_term.0);
        let is_other = held == policy.revision.0 && head.root != policy.root();
        let is_ahead = held > policy.revision.0 || is_other || held_term > term;
        let is_older = !status.policy_refused.is_empty() && policy.leader_term.0 < term;
        if is_ahead || is_older {
            ahead.take(MemberKey::Relay(Text(*id)), held, held_term);
        }
    }
    for (id, node) in members.nodes.iter().filter(|(_, node)| node.session.is_some()) {
        let (Some(status), Some(policy)) = (&node.status, documents.nodes.get(id)) else {
            continue;
        };
        let Some((_, held)) = status.policy.filter(|(of, _)| *of == epoch.0) else {
            continue;
        };
        let held_term = status.leader_term;
        let is_ahead = held > policy.revision.0 || held_term > term;
        let is_older = !status.policy_refused.is_empty() && policy.leader_term.0 < term;
        if is_ahead || is_older {
            ahead.take(MemberKey::Node(Text(*id)), held, held_term);
        }
    }
    ahead.revision = within(ahead.revision, revision);
    ahead.term = within(ahead.term, term);
    ahead
}

impl Ahead {
    fn take(&mut self, member: MemberKey, revision: u64, term: u64) {
        self.members.insert(member);
        self.revision = self.revision.max(revision);
        self.term = self.term.max(term);
    }
}

/// What is above ours, by a step that is believed; 0 otherwise.
fn within(theirs: u64, ours: u64) -> u64 {
    let is_step = theirs > ours && theirs - ours <= STEP_MAX;
    if is_step { theirs } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member's word lifts a counter by a bounded step, and never back.
    #[test]
    fn a_step_is_bounded() {
        assert_eq!([within(4, 5), within(5, 5), within(6, 5)], [0, 0, 6]);
        assert_eq!(
            [within(5 + STEP_MAX, 5), within(6 + STEP_MAX, 5)],
            [5 + STEP_MAX, 0]
        );
        assert_eq!(within(u64::MAX, 5), 0);
    }
}

//! Whether a member that refuses its policy holds something newer (R-POL-04): this control plane's store is older than
//! the member. By the numbers that both name, not by the words of the refusal. Pure.

use fairlead_model::{LeaderTerm, LeaseSeq, PolicyEpoch, Revision};
use fairlead_trust::PolicyRoot;
use fairlead_trust::admission::PolicyHead;

/// What was signed last for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) epoch: PolicyEpoch,
    pub(super) revision: Revision,
    pub(super) leader_term: LeaderTerm,
}

impl Signed {
    /// Whether a relay's head is above it. `root` is its content's, `lease_seq` the last lease's that was given out.
    pub(super) fn is_below(self, held: &PolicyHead, root: PolicyRoot, lease_seq: LeaseSeq) -> bool {
        let (own, theirs) = ((self.epoch, self.revision), (held.epoch, held.revision));
        let is_other = own == theirs && held.root != root;
        let in_epoch = self.epoch == held.epoch;
        theirs > own
            || is_other
            || in_epoch && (held.leader_term > self.leader_term || held.lease_seq > lease_seq)
    }

    /// Whether a node, which holds this policy and refuses ours, is above it: it does not say what its policy holds,
    /// yet refuses one of the same number only for that.
    pub(super) fn is_refused_by(self, epoch: u64, revision: u64, leader_term: u64) -> bool {
        let in_epoch = self.epoch.0 == epoch;
        (epoch, revision) >= (self.epoch.0, self.revision.0) || in_epoch && leader_term > self.leader_term.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_model::WallTime;

    const SIGNED: Signed = Signed {
        epoch: PolicyEpoch(2),
        revision: Revision(10),
        leader_term: LeaderTerm(3),
    };
    const ROOT: PolicyRoot = PolicyRoot([1; 32]);

    fn head(change: impl FnOnce(&mut PolicyHead)) -> PolicyHead {
        let mut head = PolicyHead {
            epoch: SIGNED.epoch,
            revision: SIGNED.revision,
            root: ROOT,
            leader_term: SIGNED.leader_term,
            lease_seq: LeaseSeq(7),
            lease_not_after: WallTime(0),
        };
        change(&mut head);
        head
    }

    /// R-POL-04: each number that a relay compares; one that is below or equal is refused for something else.
    #[test]
    fn a_relay_that_holds_something_newer_is_known_by_its_numbers() {
        let is_newer = |change: fn(&mut PolicyHead)| SIGNED.is_below(&head(change), ROOT, LeaseSeq(7));
        assert!(!is_newer(|_| {}), "a full disk, say");
        assert!(is_newer(|h| h.epoch = PolicyEpoch(3)));
        assert!(is_newer(|h| h.revision = Revision(11)));
        assert!(is_newer(|h| h.root = PolicyRoot([2; 32])));
        assert!(is_newer(|h| h.leader_term = LeaderTerm(4)));
        assert!(is_newer(|h| h.lease_seq = LeaseSeq(8)));
        assert!(!is_newer(|h| {
            // Of an epoch before ours, terms and leases count from their own beginning.
            (h.epoch, h.leader_term, h.lease_seq) = (PolicyEpoch(1), LeaderTerm(9), LeaseSeq(9));
        }));
        assert!(!is_newer(|h| h.revision = Revision(9)));
    }

    #[test]
    fn a_node_that_refuses_what_it_is_above_holds_something_newer() {
        for (epoch, revision, term, newer) in [
            (2, 9, 3, false),
            (2, 10, 3, true),
            (2, 11, 3, true),
            (3, 1, 1, true),
            (2, 9, 4, true),
            (1, 99, 9, false),
            (0, 0, 0, false),
        ] {
            assert_eq!(
                SIGNED.is_refused_by(epoch, revision, term),
                newer,
                "{epoch} {revision} {term}"
            );
        }
    }
}

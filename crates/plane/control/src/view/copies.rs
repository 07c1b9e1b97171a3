//! Copies of identities (R-ENR-10), for people.

use super::Viewer;
use crate::api::CopiesView;
use crate::observed::NodeObserved;
use crate::session::Processes;
use fairlead_model::NodeId;

impl Viewer<'_> {
    pub(super) fn copies(&self, processes: &Processes) -> Option<CopiesView> {
        let (copies, since) = processes.copies(self.mono)?;
        Some(CopiesView {
            kept: copies.kept.to_string(),
            refused: copies.refused.to_string(),
            since: Some(since),
            last_seen: self.wall.minus(self.mono.since(copies.refused_at)),
            met_by: Vec::new(),
        })
    }

    /// Copies of a node: what its own sessions show, and what relays have met.
    pub(super) fn node_copies(&self, id: NodeId, observed: Option<&NodeObserved>) -> Option<CopiesView> {
        let mut copies = observed.and_then(|o| self.copies(&o.processes));
        for (relay, seen) in &self.members.relays {
            let Some(status) = seen.status.as_ref().filter(|_| seen.session.is_some()) else {
                continue;
            };
            let Some(cloned) = status.cloned.iter().find(|cloned| cloned.node == id) else {
                continue;
            };
            let came_at = self.wall.minus(self.mono.since(cloned.told_at)).minus(cloned.ago);
            let copies = copies.get_or_insert_with(|| CopiesView {
                kept: cloned.kept.clone(),
                refused: cloned.refused.clone(),
                since: None,
                last_seen: came_at,
                met_by: Vec::new(),
            });
            copies.last_seen = copies.last_seen.max(came_at);
            copies
                .met_by
                .extend(self.state.relay(*relay).map(|r| r.name.0.clone()));
        }
        copies
    }
}

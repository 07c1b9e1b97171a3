//! Copies of identities (R-ENR-10), for people.

use super::Viewer;
use crate::api::CopiesView;
use crate::observed::NodeObserved;
use crate::session::Processes;
use fairlead_model::NodeId;

impl Viewer<'_> {
    pub(super) fn copies(&self, processes: &Processes) -> Option<CopiesView> {
        let (kept, refused, since) = processes.copies(self.mono)?;
        Some(CopiesView {
            kept: kept.to_string(),
            refused: refused.to_string(),
            since: Some(since),
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
            let Some((_, kept, refused)) = status.cloned.iter().find(|(node, ..)| *node == id) else {
                continue;
            };
            let copies = copies.get_or_insert_with(|| CopiesView {
                kept: kept.clone(),
                refused: refused.clone(),
                since: None,
                met_by: Vec::new(),
            });
            copies
                .met_by
                .extend(self.state.relay(*relay).map(|r| r.name.0.clone()));
        }
        copies
    }
}

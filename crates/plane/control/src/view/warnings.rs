//! What an admin should look at, drawn from what is seen.

use super::Viewer;
use crate::api::{CopiesView, WarningView};
use crate::observed::NodeObserved;
use crate::session::Processes;
use fairlead_model::{NodeId, WallTime};
use std::time::Duration;

/// A certificate that has less left should have been renewed a week ago: members renew theirs with
/// 12 days left (R-ENR-08).
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(5 * 86_400);

/// All warnings, members in the order of their ids.
pub(super) fn of(viewer: &Viewer<'_>) -> Vec<WarningView> {
    let mut warnings = Vec::new();
    for kept in viewer.state.relays.values() {
        let relay = viewer.relay(&kept.record);
        let object = format!("relay {}", relay.name);
        warnings.extend(relay.copies.map(|copies| cloned(&object, &copies)));
        warnings.extend(viewer.ending(&object, relay.certificate_not_after));
    }
    for kept in viewer.state.nodes.values() {
        let node = viewer.node(&kept.record);
        let object = format!("node {}", node.name);
        warnings.extend(node.copies.map(|copies| cloned(&object, &copies)));
        warnings.extend(viewer.ending(&object, node.certificate_not_after));
    }
    warnings
}

fn cloned(object: &str, copies: &CopiesView) -> WarningView {
    WarningView {
        code: "IDENTITY_CLONED",
        object: object.to_owned(),
        message: format!(
            "two processes use its key: {} is kept, {} is refused",
            copies.kept, copies.refused
        ),
        advice:
            "stop one of them; if a copy is not yours, remove the member and add it again under a new key"
                .to_owned(),
    }
}

impl Viewer<'_> {
    fn ending(&self, object: &str, not_after: Option<WallTime>) -> Option<WarningView> {
        let left = not_after?.since(self.wall);
        (left < CERTIFICATE_LEFT_MIN).then(|| WarningView {
            code: "CERTIFICATE_ENDING",
            object: object.to_owned(),
            message: if left.is_zero() {
                "its certificate has ended".to_owned()
            } else {
                format!(
                    "its certificate ends in {} h and was not renewed",
                    left.as_secs() / 3600
                )
            },
            advice:
                "see that its daemon runs and reaches the control plane; its log says why it was not renewed"
                    .to_owned(),
        })
    }

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

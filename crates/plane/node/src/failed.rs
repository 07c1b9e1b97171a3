//! Streams whose target was not reached, for consumers that have not heard it.
//!
//! The publisher seals the code of a target that failed and has done with the stream. Where the leg that was
//! to carry it is stalled, the consumer asks on another one, for a stream that is over: it is told the same
//! code again (R-STR-07), not that the stream is unknown.

use crate::resumable::StreamName;
use fairlead_model::RefusalCode;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Streams that are remembered, the latest: 1,000 a second through a target that is down, for as long as a
/// connection is held (3 s) and a second leg may take. About 100 bytes each.
const REMEMBERED_MAX: usize = 4_096;

/// The latest streams whose target failed. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedTargets {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    codes: BTreeMap<StreamName, RefusalCode>,
    /// The oldest first.
    names: VecDeque<StreamName>,
}

impl FailedTargets {
    /// The stream's target failed.
    pub(crate) fn note(&self, name: StreamName, code: RefusalCode) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.codes.insert(name, code).is_some() {
            return;
        }
        if inner.names.len() >= REMEMBERED_MAX
            && let Some(oldest) = inner.names.pop_front()
        {
            inner.codes.remove(&oldest);
        }
        inner.names.push_back(name);
    }

    /// How the stream's target failed, if it did lately.
    pub(crate) fn code(&self, name: StreamName) -> Option<RefusalCode> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.codes.get(&name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_model::{AssociationId, NodeId, RouteId, StreamNumber};

    /// R-STR-07: the latest are remembered, and no more of them.
    #[test]
    fn the_latest_are_remembered() {
        let failed = FailedTargets::default();
        let name = |n: usize| StreamName {
            consumer: NodeId::from_bytes([1; 16]),
            association: AssociationId::from_bytes([2; 16]),
            number: StreamNumber(n as u64),
            route: RouteId::from_bytes([3; 16]),
        };
        for n in 0..=REMEMBERED_MAX {
            failed.note(name(n), RefusalCode::TargetRefused);
            failed.note(name(n), RefusalCode::TargetTimeout);
        }
        assert_eq!(failed.code(name(0)), None);
        assert_eq!(failed.code(name(1)), Some(RefusalCode::TargetTimeout));
        assert_eq!(
            failed.code(name(REMEMBERED_MAX)),
            Some(RefusalCode::TargetTimeout)
        );
        assert_eq!(failed.inner.lock().unwrap().codes.len(), REMEMBERED_MAX);
    }
}

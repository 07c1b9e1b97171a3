//! What each node uses of the relay, counted with guards.

use fairlead_model::{NodeId, RefusalCode};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts per node; a node that uses nothing has no entry.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    nodes: Mutex<HashMap<NodeId, Counts>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    legs: usize,
    pending: usize,
    held: usize,
}

/// What a guard counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A leg of a tunnel, as consumer or publisher.
    Leg,
    /// An OPEN that is not answered yet.
    Pending,
    /// An OPEN that waits for a late policy (R-POL-10).
    Held,
}

/// One unit in use, until dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    budget: Arc<Budget>,
    node: NodeId,
    what: Use,
}

impl Counts {
    const fn of(&mut self, what: Use) -> &mut usize {
        match what {
            Use::Leg => &mut self.legs,
            Use::Pending => &mut self.pending,
            Use::Held => &mut self.held,
        }
    }
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Counts>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one unit if fewer than `max` are in use.
    pub(crate) fn take(self: &Arc<Self>, node: NodeId, what: Use, max: usize) -> Result<InUse, RefusalCode> {
        let mut nodes = self.lock();
        let count = nodes.entry(node).or_default().of(what);
        if *count >= max {
            return Err(RefusalCode::TooMany);
        }
        *count += 1;
        Ok(InUse {
            budget: Arc::clone(self),
            node,
            what,
        })
    }

    /// The most that one node uses of `what`.
    pub(crate) fn most(&self, what: Use) -> usize {
        let mut nodes = self.lock();
        nodes
            .values_mut()
            .map(|counts| *counts.of(what))
            .max()
            .unwrap_or(0)
    }

    /// How many units of `what` a node uses.
    pub(crate) fn used(&self, node: NodeId, what: Use) -> usize {
        *self.lock().get(&node).copied().unwrap_or_default().of(what)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut nodes = self.budget.lock();
        if let Some(counts) = nodes.get_mut(&self.node) {
            let count = counts.of(self.what);
            *count = count.saturating_sub(1);
            if counts.legs == 0 && counts.pending == 0 && counts.held == 0 {
                nodes.remove(&self.node);
            }
        }
    }
}

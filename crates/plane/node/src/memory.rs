//! The daemon's memory for streams, shared by their tasks (I9, R-STR-04).

use crate::config::StreamMemory;
use fairlead_stream::{Budget, Share, Stream};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    budget: Mutex<Budget>,
    /// [`Budget::window_limit`], where streams look without the lock.
    window_limit: AtomicU64,
    used: Gauge,
}

/// One stream's part; given back when dropped.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    memory: Memory,
    share: Share,
}

impl Memory {
    /// All of it is free. `used` shows how much is not.
    pub(crate) fn new(total: StreamMemory, used: Gauge) -> Self {
        let budget = Budget::new(total.get());
        Self {
            shared: Arc::new(Shared {
                window_limit: AtomicU64::new(budget.window_limit()),
                budget: Mutex::new(budget),
                used,
            }),
        }
    }

    /// Takes in a stream; `None` if there is no room for another.
    pub(crate) fn admit(&self) -> Option<MemoryShare> {
        let share = self.with(Budget::admit)?;
        Some(MemoryShare {
            memory: self.clone(),
            share,
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Budget) -> T) -> T {
        let shared = &*self.shared;
        let mut budget = shared.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut budget);
        shared
            .window_limit
            .store(budget.window_limit(), Ordering::Relaxed);
        shared.used.set(i64::try_from(budget.used()).unwrap_or(i64::MAX));
        result
    }
}

impl MemoryShare {
    /// Tells a new stream what it may hold.
    pub(crate) fn begin(&self, stream: &mut Stream) {
        self.share.apply(stream);
    }

    /// Fits stream and share to each other. True if the share has changed.
    pub(crate) fn balance(&mut self, stream: &mut Stream) -> bool {
        let window_limit = self.memory.shared.window_limit.load(Ordering::Relaxed);
        if !self.share.needs(stream, window_limit) {
            return false;
        }
        let before = self.share;
        let share = &mut self.share;
        self.memory.with(|budget| budget.balance(share, stream));
        self.share != before
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory.with(|budget| budget.release(&self.share));
    }
}

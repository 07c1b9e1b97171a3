//! Whether the process can take on something new: a descriptor beside the reserve, and memory.

use crate::descriptors::{DescriptorBudget, DescriptorPlace, traffic_max};
use crate::memory::{MemoryWatch, memory_limit};
use crate::resources::Resources;

/// What a process has left. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Headroom {
    /// Descriptors of traffic.
    pub descriptors: DescriptorBudget,
    /// To be run by the daemon: without it, memory never counts as short.
    pub memory: MemoryWatch,
}

/// What of the process's own limits is in use, as shares of 1: descriptors against what traffic may take,
/// memory against the least limit of its cgroups, where there is one.
#[must_use]
pub fn used_shares(used: &Resources) -> Vec<(&'static str, f64)> {
    let mut shares = vec![("descriptors", share(used.fds_open, traffic_max(used.fds_limit)))];
    if let Some(limit) = memory_limit() {
        shares.push(("memory", share(used.rss_bytes, limit)));
    }
    shares
}

/// `used` of `max`, as a share of 1; of nothing, all is used.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a share needs no 53 bits")]
pub fn share(used: u64, max: u64) -> f64 {
    if max == 0 { 1.0 } else { used as f64 / max as f64 }
}

/// What is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Short {
    /// Only the reserve is left.
    #[error("only the reserve of descriptors is left (raise LimitNOFILE)")]
    Descriptors,
    /// The process is near its limit.
    #[error("memory is near its limit (raise MemoryMax)")]
    Memory,
}

impl Headroom {
    /// Takes a descriptor for something new.
    ///
    /// # Errors
    /// What is short.
    pub fn take(&self) -> Result<DescriptorPlace, Short> {
        if self.memory.is_short(self.descriptors.taken()) {
            return Err(Short::Memory);
        }
        self.descriptors.take().ok_or(Short::Descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-UI-03: a share says how near a limit is; the reserve is no traffic's.
    #[test]
    fn shares_are_of_what_traffic_may_take() {
        let used = Resources {
            fds_open: 96,
            fds_limit: 256,
            ..Resources::default()
        };
        let shares = used_shares(&used);
        assert_eq!(shares.first(), Some(&("descriptors", 0.5)));
        assert_eq!((share(0, 10), share(5, 10), share(3, 0)), (0.0, 0.5, 1.0));
    }
}

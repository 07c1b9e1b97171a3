//! Whether the process can take on something new: a descriptor beside the reserve, and memory.

use crate::descriptors::{DescriptorBudget, DescriptorPlace};
use crate::memory::MemoryWatch;

/// What a process has left. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Headroom {
    /// Descriptors of traffic.
    pub descriptors: DescriptorBudget,
    /// To be run by the daemon: without it, memory never counts as short.
    pub memory: MemoryWatch,
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

//! What a daemon needs from its host: clocks, randomness, files that survive a crash, signals, the
//! host's identity and its resources.
//!
//! Every function blocks unless its documentation says otherwise; the files are small, and callers
//! write them at state changes, not per stream.

mod clock;
pub mod descriptors;
pub mod file;
mod fingerprint;
pub mod headroom;
mod lock;
pub mod member;
mod memory;
mod resources;
pub mod rng;
pub mod secret;
mod shutdown;
mod state;

#[cfg(any(test, feature = "test-clock"))]
pub use clock::ManualClock;
pub use clock::{Clock, SystemClock, boot_id};
pub use descriptors::{DescriptorBudget, DescriptorPlace};
pub use file::FileError;
pub use fingerprint::{HostFingerprint, fingerprint, host_name, host_parts};
pub use headroom::{Headroom, Short};
pub use lock::{FolderLock, LockError, LockPlace};
pub use memory::{MemoryWatch, memory_limit};
pub use resources::{Resources, resources};
pub use shutdown::{Shutdown, notify_ready, notify_stopping};
pub use state::{StateError, StateFile};

//! The control plane's store: one narrow trait over embedded engines.
//!
//! A commit is a batch of puts and deletes under preconditions: all of it or nothing, and durable
//! when [`Store::apply`] returns. Keys are short texts, values at most [`VALUE_LEN_MAX`] bytes
//! ([`chunk`] splits larger ones); each value carries the revision of the commit that wrote it.
//! This is the narrowest shape that redb, sled and a serializable SQL transaction have in common.
//!
//! What the backends share (checks, group commit, revisions, watching, recovery from a full disk)
//! is in the committer; a backend only reads, and applies checked groups durably.

mod api;
pub mod chunk;
mod committer;
mod engine;
mod open;
mod redb;
mod sled;

pub use api::{
    ApplyError, Closed, Entry, KEY_LEN_MAX, OPS_MAX, Op, PRECONDITIONS_MAX, Precondition, ReadError,
    SCAN_LIMIT_MAX, Store, StoreFuture, StoreRevision, VALUE_LEN_MAX, Watch,
};
pub use engine::EngineError;
pub use open::{Backend, BackendError, OpenError, check_backend, open};

#[cfg(test)]
mod tests;

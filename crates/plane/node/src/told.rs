//! Log lines that a peer or a user can cause at will, each kind a few times a minute.

use fairlead_telemetry::RateLimitedLog;
use std::time::{Duration, Instant};

/// The period of the limits below.
const EVERY: Duration = Duration::from_secs(10);

/// Streams that were refused or broke, by code: twenty of a kind tell as much as a thousand.
static STREAMS: RateLimitedLog = RateLimitedLog::new(EVERY).with_burst(20);
/// Associations made and not made; a node with many peers makes many at its start.
static ASSOCIATIONS: RateLimitedLog = RateLimitedLog::new(EVERY).with_burst(50);
/// What a relay does against the protocol.
static FAULTS: RateLimitedLog = RateLimitedLog::new(EVERY);

/// Whether to tell of a stream that ended with this code, with how many lines were held back.
pub(crate) fn stream(code: &'static str) -> Option<u64> {
    STREAMS.allow_kind(code, Instant::now())
}

/// The same of an association.
pub(crate) fn association(kind: &'static str) -> Option<u64> {
    ASSOCIATIONS.allow_kind(kind, Instant::now())
}

/// The same of a relay's fault.
pub(crate) fn fault(kind: &'static str) -> Option<u64> {
    FAULTS.allow_kind(kind, Instant::now())
}

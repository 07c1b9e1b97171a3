//! Log lines that a peer can cause at will, each kind a few times a minute.

use fairlead_telemetry::RateLimitedLog;
use std::time::{Duration, Instant};

/// The period of the limits below.
const EVERY: Duration = Duration::from_secs(10);

/// Opens that came to nothing, by code: twenty of a kind tell as much as a thousand.
static OPENS: RateLimitedLog = RateLimitedLog::new(EVERY).with_burst(20);
/// Sessions and registrations: all nodes of a large pool come within seconds of a start.
static SESSIONS: RateLimitedLog = RateLimitedLog::new(EVERY).with_burst(500);

/// Whether to tell of an open that ended with this code, with how many lines were held back.
pub(crate) fn open(code: &'static str) -> Option<u64> {
    OPENS.allow_kind(code, Instant::now())
}

/// The same of a session's turn.
pub(crate) fn session(kind: &'static str) -> Option<u64> {
    SESSIONS.allow_kind(kind, Instant::now())
}

//! Log lines that a member or a stranger can cause at will, each kind a few times a minute.

use fairlead_telemetry::RateLimitedLog;
use std::time::{Duration, Instant};

/// The period of the limits below.
const EVERY: Duration = Duration::from_secs(10);

/// Enrolments that were refused, by code.
static ENROLMENTS: RateLimitedLog = RateLimitedLog::new(EVERY).with_burst(10);
/// Sessions: all members of a large pool come back within seconds of a restart.
static SESSIONS: RateLimitedLog = RateLimitedLog::new(EVERY).with_burst(500);

/// Whether to tell of a refused enrolment, with how many lines were held back.
pub(crate) fn enrolment(code: &'static str) -> Option<u64> {
    ENROLMENTS.allow_kind(code, Instant::now())
}

/// The same of a session's turn.
pub(crate) fn session(kind: &'static str) -> Option<u64> {
    SESSIONS.allow_kind(kind, Instant::now())
}

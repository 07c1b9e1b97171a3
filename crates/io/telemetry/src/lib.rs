//! Logs, metrics and error chains: the same for every daemon.

mod chain;
mod log;
pub mod metric;
mod serve;

pub use chain::chain;
pub use log::{InitError, LogFormat, LogFormatError, RateLimitedLog, init, lines_lost};
pub use metric::{Metrics, ProcessUse};
pub use serve::{Health, HealthFn, ServeError, Served, serve};

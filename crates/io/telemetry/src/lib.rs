//! Logs, metrics and error chains: the same for every daemon.

mod burst;
mod chain;
mod log;
pub mod metric;
mod serve;

pub use burst::lines_held_back;
pub use chain::chain;
pub use log::{InitError, LogFormat, LogFormatError, RateLimitedLog, init, lines_lost};
pub use metric::{Metrics, ProcessUse};
pub use serve::{Health, HealthFn, ServeError, Served, serve};

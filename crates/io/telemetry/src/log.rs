//! Log output of a daemon: to standard error, as text or JSON lines.

use crate::burst::Bounded;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

/// Text that is not a log format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a log format: expected text or json")]
pub struct LogFormatError(String);

impl FromStr for LogFormat {
    type Err = LogFormatError;
    fn from_str(text: &str) -> Result<Self, LogFormatError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LogFormatError(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The filter is malformed.
    #[error("`{filter}` is not a log filter (write a level such as info, or crate=level, with commas)")]
    Filter {
        /// The text.
        filter: String,
        /// The reason.
        #[source]
        source: ParseError,
    },
    /// A subscriber is set already.
    #[error("logging is set up already")]
    Twice,
}

/// What is logged where no filter is given.
const DEFAULT_FILTER: &str = "info";

/// Sets up logging for the process, once. `filter` is in `tracing`'s syntax: `info`,
/// `fairlead_worker=debug,info`.
///
/// # Errors
/// The filter is malformed, or logging is set up already.
pub fn init(format: LogFormat, filter: Option<&str>) -> Result<(), InitError> {
    let text = filter
        .map(str::trim)
        .filter(|f| !f.is_empty())
        .unwrap_or(DEFAULT_FILTER);
    let filter = EnvFilter::builder()
        .parse(text)
        .map_err(|source| InitError::Filter {
            filter: text.chars().take(128).collect(),
            source,
        })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would be told on standard error, by a macro that panics where that cannot be written.
        .log_internal_errors(false)
        .with_writer(Bounded::new(|| Lossy(std::io::stderr())));
    match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| InitError::Twice)
}

/// Log lines that could not be written.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// How many log lines of this process could not be written, to a full disk say.
#[must_use]
pub fn lines_lost() -> u64 {
    LINES_LOST.load(Ordering::Relaxed)
}

/// A writer that never fails: a log that cannot be written ends no task (R-SHD-03).
struct Lossy<W>(W);

impl<W: Write> Write for Lossy<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.write_all(line).is_err() {
            LINES_LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Lets a few log lines through per period, and counts those it holds back: for conditions that a
/// peer or a user can repeat at will.
#[derive(Debug)]
pub struct RateLimitedLog {
    every: Duration,
    burst: u32,
    /// By the kind of line, so that a frequent kind hides no rare one.
    windows: Mutex<BTreeMap<&'static str, Window>>,
}

/// One kind of line within one period.
#[derive(Debug)]
struct Window {
    start: Instant,
    lines: u32,
    held_back: u64,
}

impl RateLimitedLog {
    /// At most one line of a kind every `every`.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self {
            every,
            burst: 1,
            windows: Mutex::new(BTreeMap::new()),
        }
    }

    /// The same with `burst` lines of a kind in each period: for events that come in crowds when
    /// all is well.
    #[must_use]
    pub const fn with_burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// Whether to log at `now`: with how many lines were held back since the last one.
    #[must_use]
    pub fn allow(&self, now: Instant) -> Option<u64> {
        self.allow_kind("", now)
    }

    /// The same for one kind of line among several, a stable code for instance.
    #[must_use]
    pub fn allow_kind(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut windows = self
            .windows
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let window = windows.entry(kind).or_insert(Window {
            start: now,
            lines: 0,
            held_back: 0,
        });
        if now.saturating_duration_since(window.start) >= self.every {
            window.start = now;
            window.lines = 0;
        }
        if window.lines >= self.burst {
            window.held_back = window.held_back.saturating_add(1);
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_period_with_the_count_held_back() {
        let log = RateLimitedLog::new(Duration::from_secs(10));
        let start = Instant::now();
        assert_eq!(log.allow(start), Some(0));
        for s in 1..10 {
            assert_eq!(log.allow(start + Duration::from_secs(s)), None);
        }
        assert_eq!(log.allow(start + Duration::from_secs(10)), Some(9));
        assert_eq!(log.allow(start + Duration::from_secs(11)), None);
        assert_eq!(log.allow_kind("REVOKED", start), Some(0));
        let crowd = RateLimitedLog::new(Duration::from_secs(10)).with_burst(3);
        let let_through = (0..10).filter(|_| crowd.allow(start).is_some()).count();
        assert_eq!(let_through, 3);
        assert_eq!(crowd.allow(start + Duration::from_secs(10)), Some(7));
    }

    /// R-SHD-03: a disk that is full costs log lines, which are counted, and nothing else.
    #[test]
    fn a_full_disk_costs_lines_only() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let before = lines_lost();
        let subscriber = tracing_subscriber::fmt()
            .log_internal_errors(false)
            .with_writer(move || Lossy(full.try_clone().unwrap()))
            .finish();
        tracing::subscriber::with_default(subscriber, || tracing::info!("nobody reads this"));
        assert_eq!(lines_lost() - before, 1);
    }

    #[test]
    fn a_bad_filter_names_itself() {
        let error = init(LogFormat::Text, Some("=nonsense=/")).unwrap_err();
        assert!(
            matches!(&error, InitError::Filter { .. }) && error.to_string().contains("nonsense"),
            "{error}"
        );
        assert!(
            "xml"
                .parse::<LogFormat>()
                .unwrap_err()
                .to_string()
                .contains("text or json")
        );
    }
}

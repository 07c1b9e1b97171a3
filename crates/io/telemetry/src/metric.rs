//! The metrics registry of a process.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
pub use prometheus_client::registry::Metric;

/// The prefix of every metric's name.
const PREFIX: &str = "fairlead";

type Hook = Arc<dyn Fn() + Send + Sync>;

/// A process's metrics, by reference: clones are one registry.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    registry: Registry,
    hooks: Vec<Hook>,
}

impl Metrics {
    /// A registry with `fairlead_build_info{version, role}` and `fairlead_log_lines_lost` in it.
    #[must_use]
    pub fn new(role: &str) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register(
            "build",
            "Version and role of the process",
            Info::new(vec![
                ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
                ("role".to_owned(), role.to_owned()),
            ]),
        );
        let lost: Gauge = Gauge::default();
        registry.register(
            "log_lines_lost",
            "Log lines of the process that could not be written",
            lost.clone(),
        );
        let read_lost: Hook = Arc::new(move || {
            lost.set(i64::try_from(crate::lines_lost()).unwrap_or(i64::MAX));
        });
        Self {
            inner: Arc::new(Mutex::new(Inner {
                registry,
                hooks: vec![read_lost],
            })),
        }
    }

    /// Registers a metric as `fairlead_<name>`; the caller keeps a clone to count with. A counter
    /// gets `_total` in the text by itself, and `help` its full stop.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.lock().registry.register(name, help, metric);
    }

    /// Calls `hook` before each scrape, to set gauges that are read rather than counted. It must
    /// not block.
    pub fn on_scrape(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.lock().hooks.push(Arc::new(hook));
    }

    /// The metrics in OpenMetrics text.
    #[must_use]
    pub fn encode(&self) -> String {
        // Hooks run without the lock: one may register what it has seen for the first time.
        let hooks = self.lock().hooks.clone();
        for hook in hooks {
            hook();
        }
        let mut text = String::new();
        if encode(&mut text, &self.lock().registry).is_err() {
            // Writing to a String fails only where a label's own encoder does.
            tracing::error!("a metric cannot be encoded");
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-UI-03: names carry the prefix, labels and hooks work.
    #[test]
    fn encoded_with_prefix_labels_and_hooks() {
        let metrics = Metrics::new("worker");
        let refused = Family::<Vec<(String, String)>, Counter>::default();
        metrics.register("tunnels_refused", "Tunnels refused", refused.clone());
        refused
            .get_or_create(&vec![("code".to_owned(), "REVOKED".to_owned())])
            .inc();
        let open: Gauge = Gauge::default();
        metrics.register("fds_open", "Open descriptors", open.clone());
        metrics.on_scrape(move || {
            open.set(7);
        });
        let text = metrics.encode();
        for line in [
            "fairlead_tunnels_refused_total{code=\"REVOKED\"} 1",
            "fairlead_fds_open 7",
            "role=\"worker\"",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("fairlead_build_info{"), "{text}");
    }
}

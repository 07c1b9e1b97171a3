//! The metrics registry of a process.

use prometheus_client::encoding::prometheus_text;
use prometheus_client::encoding::text;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

pub use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
pub use prometheus_client::registry::Metric;

/// The prefix of every metric of ours. Those of the process as such have the names that every
/// Prometheus client library gives them.
const PREFIX: &str = "fairlead_";

/// A gauge of fractions: seconds, mostly.
pub type SecondsGauge = Gauge<f64, AtomicU64>;

type Hook = Arc<dyn Fn() + Send + Sync>;

/// A process's metrics, by reference: clones are one registry.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Mutex<Inner>>,
    /// One scrape at a time: hooks may empty a family and fill it again.
    scrape: Arc<Mutex<()>>,
}

struct Inner {
    registry: Registry,
    hooks: Vec<Hook>,
    described: Vec<Described>,
}

/// What the reference page tells of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its whole name, as queries write it.
    pub name: String,
    /// counter, gauge, histogram or info.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: String,
}

/// How a page of metrics is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus text 0.0.4: what is sent to a reader that does not ask for OpenMetrics.
    Text,
}

/// What a process uses of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessUse {
    /// Memory in RAM.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub descriptors_open: u64,
    /// How many it may open.
    pub descriptors_max: u64,
    /// Threads.
    pub threads: u64,
    /// CPU time, user and system.
    pub cpu: Duration,
}

impl Metrics {
    /// A registry with `fairlead_build_info{version, role}`, `fairlead_log_lines_lost_total` and
    /// `process_start_time_seconds` in it.
    #[must_use]
    pub fn new(role: &str) -> Self {
        let metrics = Self {
            inner: Arc::new(Mutex::new(Inner {
                registry: Registry::default(),
                hooks: Vec::new(),
                described: Vec::new(),
            })),
            scrape: Arc::default(),
        };
        let build = Info::new(vec![
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("role".to_owned(), role.to_owned()),
        ]);
        let of_build = &["version", "role"];
        metrics.register_by("build", of_build, "Version and role of the process", build);
        let lost = Counter::default();
        metrics.register(
            "log_lines_lost",
            "Log lines of the process that could not be written",
            lost.clone(),
        );
        let held_back = Counter::default();
        metrics.register(
            "log_lines_held_back",
            "Log lines of the process that were held back because their like came too often",
            held_back.clone(),
        );
        metrics.on_scrape(move || {
            set(&lost, crate::lines_lost());
            set(&held_back, crate::lines_held_back());
        });
        let started = SecondsGauge::default();
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        started.set(since_epoch.unwrap_or_default().as_secs_f64());
        metrics.add(
            "process_start_time_seconds",
            &[],
            "When the process started, in Unix time",
            started,
        );
        metrics
    }

    /// Registers a metric as `fairlead_<name>`; the caller keeps a clone to count with. A name that
    /// ends in `_seconds` or `_bytes` tells its unit so; a counter gets `_total` in the text by
    /// itself, and `help` its full stop.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.register_by(name, &[], help, metric);
    }

    /// The same for a family with these labels.
    pub fn register_by(&self, name: &str, labels: &'static [&'static str], help: &str, metric: impl Metric) {
        self.add(&format!("{PREFIX}{name}"), labels, help, metric);
    }

    /// Shows what the process uses, under the names that every client library gives it; `read` is
    /// asked at each scrape.
    pub fn watch_process(&self, read: impl Fn() -> ProcessUse + Send + Sync + 'static) {
        let memory: Gauge = Gauge::default();
        let open: Gauge = Gauge::default();
        let max: Gauge = Gauge::default();
        let threads: Gauge = Gauge::default();
        let cpu = Counter::<f64, AtomicU64>::default();
        for (name, help, gauge) in [
            (
                "process_resident_memory_bytes",
                "Memory of the process in RAM",
                &memory,
            ),
            ("process_open_fds", "Open file descriptors of the process", &open),
            (
                "process_max_fds",
                "File descriptors that the process may open",
                &max,
            ),
            ("process_threads", "Threads of the process", &threads),
        ] {
            self.add(name, &[], help, gauge.clone());
        }
        let of_cpu = "CPU time of the process, user and system";
        self.add("process_cpu_seconds", &[], of_cpu, cpu.clone());
        self.on_scrape(move || {
            let used = read();
            let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            memory.set(gauge(used.resident_bytes));
            open.set(gauge(used.descriptors_open));
            max.set(gauge(used.descriptors_max));
            threads.set(gauge(used.threads));
            let seconds = used.cpu.as_secs_f64();
            cpu.inner().store(seconds.to_bits(), Ordering::Relaxed);
        });
    }

    /// Calls `hook` before each scrape, to set gauges that are read rather than counted. It must
    /// not block, nor ask for a scrape.
    pub fn on_scrape(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.lock().hooks.push(Arc::new(hook));
    }

    /// The metrics as a page.
    #[must_use]
    pub fn encode(&self, exposition: Exposition) -> String {
        let _scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        // Hooks run without the registry's lock: one may register what it has seen for the first time.
        let hooks = self.lock().hooks.clone();
        for hook in hooks {
            hook();
        }
        let mut page = String::new();
        let registry = &self.lock().registry;
        let encoded = match exposition {
            Exposition::OpenMetrics => text::encode(&mut page, registry),
            Exposition::Text => prometheus_text::encode(&mut page, registry),
        };
        if encoded.is_err() {
            // Writing to a String fails only where a label's own encoder does.
            tracing::error!("a metric cannot be encoded");
        }
        page
    }

    /// Every metric that is registered, in the order of registration.
    #[must_use]
    pub fn described(&self) -> Vec<Described> {
        self.lock().described.clone()
    }

    fn add(&self, name: &str, labels: &'static [&'static str], help: &str, metric: impl Metric) {
        let kind = match metric.metric_type() {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info => "info",
            MetricType::Unknown => "unknown",
        };
        let mut inner = self.lock();
        inner.described.push(Described {
            name: match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            },
            kind,
            labels,
            help: format!("{help}."),
        });
        match unit(name) {
            Some((bare, unit)) => inner.registry.register_with_unit(bare, help, unit, metric),
            None => inner.registry.register(name, help, metric),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The unit that a name ends in, and the name without it.
fn unit(name: &str) -> Option<(&str, Unit)> {
    [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)]
        .into_iter()
        .find_map(|(end, unit)| Some((name.strip_suffix(end)?, unit)))
}

/// Sets a counter whose total is kept elsewhere; a total never falls while the process lives.
pub fn set(counter: &Counter, total: u64) {
    counter.inner().store(total, Ordering::Relaxed);
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
        metrics.register_by("tunnels_refused", &["code"], "Tunnels refused", refused.clone());
        refused
            .get_or_create(&vec![("code".to_owned(), "REVOKED".to_owned())])
            .inc();
        let open: Gauge = Gauge::default();
        metrics.register("fds_open", "Open descriptors", open.clone());
        metrics.on_scrape(move || {
            open.set(7);
        });
        metrics.watch_process(ProcessUse::default);
        let left = SecondsGauge::default();
        metrics.register("lease_left_seconds", "Left", left.clone());
        left.set(1.5);
        let text = metrics.encode(Exposition::OpenMetrics);
        for line in [
            "fairlead_tunnels_refused_total{code=\"REVOKED\"} 1",
            "fairlead_fds_open 7",
            "role=\"worker\"",
            "# UNIT fairlead_lease_left_seconds seconds",
            "fairlead_lease_left_seconds 1.5",
            "# UNIT process_resident_memory_bytes bytes",
            "process_cpu_seconds_total 0",
            "# EOF",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("fairlead_build_info{"), "{text}");
        let plain = metrics.encode(Exposition::Text);
        assert!(
            plain.contains("# TYPE fairlead_tunnels_refused_total counter") && !plain.contains("# UNIT"),
            "{plain}"
        );
        let described = metrics.described();
        let refused = described
            .iter()
            .find(|d| d.name == "fairlead_tunnels_refused_total")
            .unwrap();
        assert_eq!(
            (refused.kind, refused.labels, refused.help.as_str()),
            ("counter", &["code"][..], "Tunnels refused.")
        );
    }
}

//! What an estate's traffic does, by the members' own metrics.

use super::{Estate, Member};
use crate::metrics::Scrape;
use crate::{process, wait};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::Duration;

/// Between two looks at what relays have carried: a ping-pong of 1 kHz is seen in less.
const LOOK: Duration = Duration::from_millis(60);

impl Member {
    /// The metrics of the process that [`Member::pid`] names.
    ///
    /// # Errors
    /// When it does not run or does not answer.
    pub async fn scrape(&self) -> Result<Scrape> {
        let runtime = self.runtime()?;
        let url = runtime
            .get("metrics_url")
            .and_then(Value::as_str)
            .with_context(|| format!("no metrics in {runtime}"))?;
        Scrape::of_host(&self.host, url).await
    }

    /// One of them, summed over its labels; 0 when it has no sample yet.
    ///
    /// # Errors
    /// As [`Member::scrape`].
    pub async fn count(&self, metric: &str) -> Result<f64> {
        Ok(self.scrape().await?.sum(metric, &[]).unwrap_or_default())
    }

    /// Waits until another worker than `old` serves this relay.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn back(&self, old: u32) -> Result<u32> {
        let what = format!("the worker of {} is back", self.name);
        let (pid, _) = wait::until(&what, crate::pool::BACK_LIMIT, || async {
            let pid = self.pid()?;
            ensure!(pid != old, "pid {pid}");
            Ok(pid)
        })
        .await?;
        Ok(pid)
    }

    /// For how long the process has run.
    ///
    /// # Errors
    /// When it does not run.
    pub fn age(&self) -> Result<Duration> {
        process::age(self.pid()?)
    }
}

impl Estate {
    /// The relay that carries most at this moment.
    ///
    /// # Errors
    /// When none carries anything.
    pub async fn carrying(&self) -> Result<&Member> {
        let mut before = Vec::new();
        for relay in &self.relays {
            before.push(self.carried(relay).await);
        }
        tokio::time::sleep(LOOK).await;
        let mut most: Option<(&Member, f64)> = None;
        for (relay, before) in self.relays.iter().zip(before) {
            let grown = self.carried(relay).await - before;
            if grown > most.map_or(0.0, |(_, most)| most) {
                most = Some((relay, grown));
            }
        }
        Ok(most.context("no relay carries anything")?.0)
    }

    async fn carried(&self, relay: &Member) -> f64 {
        // A relay that is being started again, or that was just killed, carries nothing.
        relay
            .count("fairlead_relayed_bytes_total")
            .await
            .unwrap_or_default()
    }

    /// Waits until both nodes have sessions on every relay, and each relay knows the endpoint.
    ///
    /// # Errors
    /// When they do not within `limit`.
    pub async fn until_connected(&self, limit: Duration) -> Result<Duration> {
        let ((), took) = wait::until("both nodes are on every relay", limit, || async {
            for relay in &self.relays {
                let scrape = relay.scrape().await?;
                let count = |name| scrape.sum(name, &[]).unwrap_or_default();
                let (sessions, endpoints) = (count("fairlead_hop_sessions"), count("fairlead_registrations"));
                let what = format!("{}: {sessions} sessions, {endpoints} endpoints", relay.name);
                ensure!(sessions >= 2.0 && endpoints >= 1.0, "{what}");
            }
            for node in [&self.alpha, &self.beta] {
                let up = node.count("fairlead_hop_connected").await?;
                ensure!(up >= self.relays.len() as f64, "{} is on {up} relays", node.name);
            }
            anyhow::Ok(())
        })
        .await?;
        Ok(took)
    }
}

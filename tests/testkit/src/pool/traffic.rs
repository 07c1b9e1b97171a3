//! Which relay of a pool carries, and kills that follow it.

use super::{Pool, Role};
use crate::metrics::Scrape;
use anyhow::{Context, Result};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

/// Between two looks at what relays have carried.
const LOOK: Duration = Duration::from_millis(200);

/// What kills did to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kills {
    /// How many workers were killed.
    pub count: usize,
    /// How often the consumer's node moved a stream meanwhile.
    pub moves: u64,
}

impl Pool {
    /// A counter of a node, summed over its labels; 0 when it has no sample yet.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn node_count(&self, node: &str, metric: &str) -> Result<f64> {
        let metrics = Scrape::of(&self.file()?.node(node)?.metrics).await?;
        Ok(metrics.sum(metric, &[]).unwrap_or_default())
    }

    /// A counter of a relay's worker, summed over its labels; 0 when it has no sample yet.
    ///
    /// # Errors
    /// When the worker does not answer.
    pub async fn relay_count(&self, relay: &str, metric: &str) -> Result<f64> {
        let metrics = Scrape::of(&self.file()?.relay(relay)?.metrics).await?;
        Ok(metrics.sum(metric, &[]).unwrap_or_default())
    }

    /// The relay that carries most at this moment.
    ///
    /// # Errors
    /// When the pool's file breaks its contract.
    pub async fn carrying(&self) -> Result<String> {
        const BYTES: &str = "fairlead_relayed_bytes_total";
        let look = async || -> Result<Vec<(String, f64)>> {
            let mut carried = Vec::new();
            for relay in self.file()?.relays {
                // One that is being started again carries nothing.
                let bytes = self.relay_count(&relay.name, BYTES).await.unwrap_or_default();
                carried.push((relay.name, bytes));
            }
            Ok(carried)
        };
        let before = look().await?;
        tokio::time::sleep(LOOK).await;
        let grown = look().await?.into_iter().zip(before);
        let grown = grown.map(|((name, after), (_, before))| (name, after - before));
        let most = grown.max_by(|a, b| a.1.total_cmp(&b.1));
        Ok(most.context("no relay")?.0)
    }

    /// Kills the carrying worker whenever `every` has passed, for as long as `traffic` lasts; `told`
    /// hears of each kill. Gives what the traffic gave.
    ///
    /// # Errors
    /// When the traffic fails, or a worker does not come back.
    pub async fn under_kills<T>(
        &self,
        every: Duration,
        traffic: impl Future<Output = Result<T>>,
        told: impl Fn(&str),
    ) -> Result<(T, Kills)> {
        const MOVES: &str = "fairlead_stream_moves_total";
        let before = self.node_count("alpha", MOVES).await?;
        let count = Cell::new(0);
        let killing = async {
            loop {
                tokio::time::sleep(every).await;
                let relay = self.carrying().await?;
                let old = self.kill9(Role::Worker(&relay))?;
                count.set(count.get() + 1);
                told(&relay);
                self.back(Role::Worker(&relay), old).await?;
            }
        };
        let done = tokio::select! {
            done = traffic => done?,
            ended = killing => { let never: Result<Infallible> = ended; match never? {} },
        };
        let moves = self.node_count("alpha", MOVES).await? - before;
        let kills = Kills {
            count: count.get(),
            moves: moves as u64,
        };
        Ok((done, kills))
    }
}

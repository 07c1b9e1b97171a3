//! Waits until the pool is ready, and tells what it waits for.

use super::build::{Builder, LOOK_PAUSE};
use super::error::UpError;
use super::plan::{CONSUMER, DEMO_LINK, PUBLISHER};
use crate::rest::{RestClient, RestError};
use crate::verbs::once;
use fairlead_admin::json;
use std::time::{Duration, Instant};

/// How long members and links may take to be ready once all run.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// A start that takes longer says once, in full, what it waits for.
const SLOW: Duration = Duration::from_secs(5);
/// How long what this pool does not run may take after that, before `up` goes on without it.
const OTHERS_LIMIT: Duration = Duration::from_secs(3);

/// What is not ready.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    /// What this run starts itself: its relays and nodes, its own links.
    pub(super) own: Vec<String>,
    /// What an admin added: it may wait for a host that nobody has turned on, or for good.
    pub(super) others: Vec<String>,
}

impl Waiting {
    /// Looks at the lists; `own_link` tells the links of this run.
    fn of(
        relays: &[json::Relay],
        nodes: &[json::Node],
        links: &[json::Link],
        own_relays: &[String],
        own_link: impl Fn(&json::Link) -> bool,
    ) -> Self {
        let mut waiting = Self::default();
        for relay in relays.iter().filter(|r| r.state != "ready") {
            let own = own_relays.contains(&relay.name);
            waiting.add(own, ("relay", &relay.name, &relay.state), &relay.state_reason);
        }
        for node in nodes.iter().filter(|n| n.state != "ready") {
            let own = [CONSUMER, PUBLISHER].contains(&node.name.as_str());
            waiting.add(own, ("node", &node.name, &node.state), &node.state_reason);
        }
        for link in links.iter().filter(|l| l.state != "ready") {
            let reason = once(&link.waiting_for.join("; "));
            waiting.add(own_link(link), ("link", &link.name, &link.state), &reason);
        }
        waiting
    }

    fn add(&mut self, own: bool, (kind, name, state): (&str, &str, &str), reason: &str) {
        let text = match reason {
            "" => format!("{kind} {name}: {state}"),
            _ => format!("{kind} {name}: {state}, {reason}"),
        };
        match own {
            true => self.own.push(text),
            false => self.others.push(text),
        }
    }
}

impl Builder<'_> {
    /// Waits until all that this run starts is ready; what else is not, a moment later. It does not
    /// hold the pool up.
    pub(super) async fn ready(&self, client: &RestClient) -> Result<Vec<String>, UpError> {
        let began = Instant::now();
        let mut told = false;
        let mut own_ready: Option<Instant> = None;
        loop {
            self.daemons.check()?;
            let waiting = match self.waiting(client).await {
                Ok(waiting) => waiting,
                Err(error) => Waiting {
                    own: vec![fairlead_telemetry::chain(&error)],
                    others: Vec::new(),
                },
            };
            if waiting.own.is_empty() {
                let since = own_ready.get_or_insert_with(Instant::now).elapsed();
                if waiting.others.is_empty() || since > OTHERS_LIMIT {
                    return Ok(waiting.others);
                }
                self.progress
                    .live(&format!("waiting for {}", waiting.others.join(" · ")));
            } else {
                own_ready = None;
                if began.elapsed() > READY_LIMIT {
                    return Err(self.not_ready(READY_LIMIT, &waiting.own));
                }
                if began.elapsed() > SLOW && !told {
                    told = true;
                    self.progress.say(&format!(
                        "waiting for {} since {} s:{}",
                        waiting.own.len(),
                        SLOW.as_secs(),
                        lines(&waiting.own)
                    ));
                }
                self.progress
                    .live(&format!("waiting for {}", waiting.own.join(" · ")));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn waiting(&self, client: &RestClient) -> Result<Waiting, RestError> {
        let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
        let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
        let links: json::List<json::Link> = client.get("/v1/links").await?;
        Ok(Waiting::of(
            &relays.items,
            &nodes.items,
            &links.items,
            &self.plan.relay_names(),
            // A demo link that is not this run's has been removed.
            |link| {
                link.name == DEMO_LINK || self.plan.links.iter().any(|wish| wish.name.as_str() == link.name)
            },
        ))
    }

    pub(super) fn not_ready(&self, limit: Duration, waiting: &[String]) -> UpError {
        UpError::NotReady {
            seconds: limit.as_secs(),
            waiting: lines(waiting),
            logs: self.layout.logs(),
        }
    }
}

pub(super) fn lines(texts: &[String]) -> String {
    texts.iter().map(|t| format!("\n  {t}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: &str) -> json::Node {
        serde_json::from_value(serde_json::json!({
            "id": "", "name": name, "state": state, "state_reason": "", "created_at": "",
            "enrolled_at": null, "last_seen": null, "version": "", "relays": [],
            "policy": {"wanted": null, "applied": null, "refused": "", "lease_not_after": null},
            "live_streams": 0, "memory_bytes": 0, "metrics": "", "certificate_not_after": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_node_that_an_admin_added_holds_nothing_up() {
        let nodes = [
            node("alpha", "offline"),
            node("delta", "pending"),
            node("beta", "ready"),
        ];
        let waiting = Waiting::of(&[], &nodes, &[], &[], |_| false);
        assert_eq!(waiting.own, ["node alpha: offline"]);
        assert_eq!(waiting.others, ["node delta: pending"]);
    }
}

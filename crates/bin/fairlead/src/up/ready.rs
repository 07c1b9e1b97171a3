//! Waits until the pool is ready, and tells what it waits for.

use super::build::{Builder, LOOK_PAUSE};
use super::error::UpError;
use super::plan::{CONSUMER, DEMO_LINK, PUBLISHER};
use crate::rest::{RestClient, RestError};
use crate::verbs::once;
use fairlead_admin::json;
use fairlead_model::ListenAddress;
use std::time::{Duration, Instant};

/// How long members and links may take to be ready once all run.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// A start that takes longer says once, in full, what it waits for.
const SLOW: Duration = Duration::from_secs(5);
/// How long what this pool does not run may take after that, before `up` goes on without it; and how
/// long an address that alpha cannot have may be another's: of a process that is about to end, say.
const OTHERS_LIMIT: Duration = Duration::from_secs(3);

/// What is not ready.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    /// What this run starts itself: its relays and nodes, its own links.
    pub(super) own: Vec<String>,
    /// What an admin added: it may wait for a host that nobody has turned on, or for good.
    pub(super) others: Vec<String>,
    /// Addresses of links that were asked for and that alpha cannot have.
    taken: Vec<ListenAddress>,
}

impl Waiting {
    /// Looks at the lists; `asked` tells the links that this run was asked for. The built-in service's
    /// holds it up as well, unless its address is another's.
    fn of(
        relays: &[json::Relay],
        nodes: &[json::Node],
        links: &[json::Link],
        own_relays: &[String],
        asked: impl Fn(&json::Link) -> bool,
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
            let reason = match cannot_listen(link) {
                Some(reason) => reason,
                None => once(&link.waiting_for.join("; ")),
            };
            let (asked, taken) = (asked(link), !link.listen_error.is_empty());
            let own = asked || (link.name == DEMO_LINK && !taken);
            waiting.add(own, ("link", &link.name, &link.state), &reason);
            if asked && taken {
                waiting.taken.extend(link.listen.parse::<ListenAddress>());
            }
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

/// Why a link's consumer cannot listen, and what to do.
pub(super) fn cannot_listen(link: &json::Link) -> Option<String> {
    (!link.listen_error.is_empty()).then(|| {
        format!(
            "{} cannot listen on {}: {}; free that address, or remove the link: fairlead link rm {}",
            link.from.name, link.listen, link.listen_error, link.name
        )
    })
}

impl Builder<'_> {
    /// Waits until all that this run starts is ready; what else is not, a moment later. It does not
    /// hold the pool up.
    pub(super) async fn ready(&self, client: &RestClient) -> Result<Vec<String>, UpError> {
        let began = Instant::now();
        let mut told = false;
        let mut own_ready: Option<Instant> = None;
        let mut taken: Option<Instant> = None;
        loop {
            self.daemons.check()?;
            let waiting = match self.waiting(client).await {
                Ok(waiting) => waiting,
                Err(error) => Waiting {
                    own: vec![fairlead_telemetry::chain(&error)],
                    ..Waiting::default()
                },
            };
            if waiting.taken.is_empty() {
                taken = None;
            } else if taken.get_or_insert_with(Instant::now).elapsed() > OTHERS_LIMIT {
                return Err(UpError::listen(&waiting.taken));
            }
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
            |link| {
                let demo = self.plan.demo && link.name == DEMO_LINK;
                demo || self.plan.links.iter().any(|wish| wish.name.as_str() == link.name)
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

    fn link(name: &str, listen_error: &str) -> json::Link {
        let end = serde_json::json!({"id": "", "name": "alpha"});
        serde_json::from_value(serde_json::json!({
            "id": "", "name": name, "from": end, "to": end, "target": "127.0.0.1:5", "listen": "127.0.0.1:4",
            "class": "standard", "endpoint": "", "generation": 1, "route": "", "created_at": "", "relays": [],
            "placement_reason": "", "state": "pending", "waiting_for": ["a grant"], "listen_error": listen_error,
        }))
        .unwrap()
    }

    /// A port that another program has keeps a link from its pool only where the link was asked for.
    #[test]
    fn a_taken_port_is_named_with_what_to_do() {
        let links = [link("web", "in use"), link("db", ""), link(DEMO_LINK, "in use")];
        let waiting = Waiting::of(&[], &[], &links, &[], |link| link.name != DEMO_LINK);
        let told = "alpha cannot listen on 127.0.0.1:4: in use; free that address, or remove the link: fairlead link rm";
        assert_eq!(
            waiting.own,
            [
                format!("link web: pending, {told} web"),
                "link db: pending, a grant".to_owned()
            ]
        );
        assert_eq!(waiting.others, [format!("link demo: pending, {told} demo")]);
        assert_eq!(waiting.taken, ["127.0.0.1:4".parse().unwrap()]);
        let free = Waiting::of(&[], &[], &[link(DEMO_LINK, "")], &[], |_| false);
        assert_eq!(free.own, ["link demo: pending, a grant"]);
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

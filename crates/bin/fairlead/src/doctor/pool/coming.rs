//! What a change has under way to members: it is there within seconds, and is waited for, so that what is checked is
//! what came of the change.

use super::Pool;
use crate::rest::{RestClient, RestError};
use crate::table;
use fairlead_admin::json;
use std::time::Duration;
use tokio::time::Instant;

/// How long it is waited for. A change is at its members within two seconds, a relay that was started is ready within
/// about three.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// So many are named.
const NAMES_MAX: usize = 4;

/// Reads the pool once nothing is under way, or after a while as it is then. On standard error stands what is waited
/// for.
pub(super) async fn settled(client: &RestClient) -> Result<Pool, RestError> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let pool = super::read(client).await?;
        let coming = coming(&pool);
        if coming.is_empty() || began.elapsed() >= WAIT_MAX {
            return Ok(pool);
        }
        if !told {
            told = true;
            table::complain(&format!(
                "waiting up to {} s for what is on its way: {}",
                WAIT_MAX.as_secs(),
                listed(&coming)
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn listed(coming: &[String]) -> String {
    let shown = coming.get(..NAMES_MAX).unwrap_or(coming).join("; ");
    match coming.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// What is under way, one text each.
fn coming(pool: &Pool) -> Vec<String> {
    let mut coming = Vec::new();
    for relay in &pool.relays {
        let listens = relay.live_worker().is_some_and(|w| w.state == "listening");
        if relay.starting {
            coming.push(format!("relay {}: {}", relay.name, relay.state_reason));
        } else if listens && is_behind(&relay.policy) {
            coming.push(format!("relay {}: its newest policy", relay.name));
        }
    }
    for node in &pool.nodes {
        if node.starting {
            coming.push(format!("node {}: {}", node.name, node.state_reason));
        } else if node.is_live() && is_behind(&node.policy) {
            coming.push(format!("node {}: its newest policy", node.name));
        }
    }
    let links = pool.links.iter().filter(|link| link.starting);
    coming.extend(links.map(|link| format!("link {}: {}", link.name, link.waiting_for.join("; "))));
    coming
}

/// Whether a member that refuses nothing does not hold its newest policy.
fn is_behind(policy: &json::Policy) -> bool {
    policy.refused.is_empty() && policy.wanted.is_some() && policy.applied != policy.wanted
}

#[cfg(test)]
mod tests {
    use super::super::tests::{link, node, pool, relay};
    use super::*;

    fn head(revision: u64) -> Option<json::PolicyHead> {
        Some(json::PolicyHead { epoch: 1, revision })
    }

    /// Only what comes by itself is waited for: nobody is made to wait for a fault.
    #[test]
    fn what_is_under_way_is_told_from_what_is_broken() {
        let of = |relay: json::Relay, node: json::Node, link: json::Link| coming(&pool(relay, node, link));
        let well = || (relay(|_| {}), node(|_| {}), link("", &[]));
        let (r, n, l) = well();
        assert_eq!(of(r, n, l), [""; 0]);
        let behind = |policy: &mut json::Policy| (policy.wanted, policy.applied) = (head(2), head(1));
        let (mut r, mut n, mut l) = well();
        behind(&mut r.policy);
        (n.starting, n.state_reason) = (true, "its daemon has not reported yet".to_owned());
        (l.starting, l.waiting_for) = (true, vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            of(r, n, l),
            [
                "relay relay-1: its newest policy",
                "node alpha: its daemon has not reported yet",
                "link db: a; b"
            ]
        );
        // One that is away gets nothing, and one that refuses it takes nothing.
        let (mut r, mut n, l) = well();
        behind(&mut r.policy);
        behind(&mut n.policy);
        r.state = "offline".to_owned();
        n.policy.refused = "it cannot be kept".to_owned();
        assert_eq!(of(r, n, l), [""; 0]);
        let many: Vec<String> = (0..6).map(|n| n.to_string()).collect();
        assert_eq!(listed(&many), "0; 1; 2; 3; and 2 more");
    }
}

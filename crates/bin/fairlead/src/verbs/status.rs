//! `fairlead status`: the installation in a few lines, and what needs attention.

use super::page::page;
use crate::cli::verbs::Connection;
use crate::exit::Failure;
use crate::rest::RestClient;
use crate::table;
use fairlead_admin::json;

/// So many things that need attention are listed; `ls` has all.
const LISTED_MAX: usize = 20;

/// What needs attention: on what, and why.
type Attention = (String, String);

pub(super) async fn show(connection: &Connection, client: &RestClient) -> Result<(), Failure> {
    let status: json::Status = client.get("/v1/status").await?;
    if connection.json {
        table::json(&status);
        return Ok(());
    }
    let attention = attention(client, &status).await?;
    summary(&status);
    if attention.is_empty() {
        table::line("\nnothing needs attention");
        return Ok(());
    }
    table::line("");
    let rows = attention.iter().take(LISTED_MAX);
    let rows = rows.map(|(object, reason)| vec![object.clone(), reason.clone()]);
    table::print(&["NEEDS ATTENTION", "WHY"], rows.collect());
    if let Some(more) = attention.len().checked_sub(LISTED_MAX).filter(|n| *n > 0) {
        table::line(&format!("… and {more} more"));
    }
    Ok(())
}

async fn attention(client: &RestClient, status: &json::Status) -> Result<Vec<Attention>, Failure> {
    let warnings = status.warnings.iter();
    let mut found: Vec<Attention> = warnings
        .map(|w| (w.object.clone(), format!("{}: {}", w.message, w.advice)))
        .collect();
    if status.relays_ready < status.relays {
        let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
        let unready = relays.items.into_iter().filter(|r| r.state != "ready");
        found.extend(unready.map(|r| {
            (
                format!("relay {}", r.name),
                format!("{}: {}", r.state, r.state_reason),
            )
        }));
    }
    if status.nodes_ready < status.nodes {
        let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
        let unready = nodes.items.into_iter().filter(|n| n.state != "ready");
        found.extend(unready.map(|n| {
            (
                format!("node {}", n.name),
                format!("{}: {}", n.state, n.state_reason),
            )
        }));
    }
    if status.links_ready < status.links {
        let links: json::List<json::Link> = client.get("/v1/links").await?;
        let unready = links.items.into_iter().filter(|l| l.state != "ready");
        found.extend(unready.map(|l| (format!("link {}", l.name), l.waiting_for.join("; "))));
    }
    Ok(found)
}

fn summary(s: &json::Status) {
    page(&[
        ("control plane", s.advertised.clone()),
        ("version", s.version.clone()),
        ("running for", s.uptime.clone()),
        ("lab mode", s.lab.to_string()),
        ("trust domain", s.trust_domain.clone()),
        ("CA pin", s.ca_pin.clone()),
        ("relays ready", format!("{} of {}", s.relays_ready, s.relays)),
        ("nodes ready", format!("{} of {}", s.nodes_ready, s.nodes)),
        ("links ready", format!("{} of {}", s.links_ready, s.links)),
        ("policy", format!("{}.{}", s.policy_epoch, s.policy_revision)),
        ("audit entries", s.audit_seq.to_string()),
    ]);
}

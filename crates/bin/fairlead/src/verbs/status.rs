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

/// The control plane's warnings, and what has not enrolled yet.
async fn attention(client: &RestClient, status: &json::Status) -> Result<Vec<Attention>, Failure> {
    let warnings: json::List<json::Warning> = client.get("/v1/warnings").await?;
    let warnings = warnings.items.into_iter();
    let mut found: Vec<Attention> = warnings
        .map(|w| {
            let object = match w.kind.as_str() {
                "pool" => w.kind.clone(),
                kind => format!("{kind} {}", w.name),
            };
            (object, format!("{} {}", w.message, w.action))
        })
        .collect();
    let pending = |state: &str| state == "pending";
    if status.relays_ready < status.relays {
        let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
        let new = relays.items.into_iter().filter(|r| pending(&r.state));
        found.extend(new.map(|r| (format!("relay {}", r.name), r.state_reason)));
    }
    if status.nodes_ready < status.nodes {
        let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
        let new = nodes.items.into_iter().filter(|n| pending(&n.state));
        found.extend(new.map(|n| (format!("node {}", n.name), n.state_reason)));
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

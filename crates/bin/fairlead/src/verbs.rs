//! The admin's verbs: each a request to the control plane, shown as a table, a page or JSON.

mod find;
mod list;
mod page;
mod status;

use crate::cli::verbs as cli;
use crate::cli::verbs::{AuditVerb, LinkVerb, NodeVerb, RelayVerb, SettingsVerb, TokenVerb};
use crate::exit::Failure;
use crate::faults::{Faults, SettingsError};
use crate::profile;
use crate::table;
use crate::watch;
use fairlead_admin::json;
use fairlead_model::address::RELAY_PORT;
use fairlead_model::{FailureDomain, HostPort, ListenAddress, Name, ServiceClass, TargetAddress};
use find::One;
pub(crate) use find::said;
#[cfg(test)]
pub(crate) use list::RELAYS;
pub(crate) use page::{copies, head, numbered, once, show};
use page::{or_dash, short_time};
use std::ops::RangeInclusive;

/// Most entries one request may ask for; the API's own bound.
const AUDIT_LIMIT_MAX: u64 = 1000;

fn names(references: &[json::Reference]) -> String {
    let names: Vec<&str> = references.iter().map(|r| r.name.as_str()).collect();
    or_dash(&names.join(", "))
}

const fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

pub(crate) async fn relay(group: &cli::Relay) -> Result<(), Failure> {
    let connection = &group.connection;
    match &group.verb {
        RelayVerb::Add {
            name,
            address,
            failure_domain,
            local,
        } => {
            let mut faults = Faults::default();
            faults.take("NAME", Name::requested(name));
            faults.take("--address", HostPort::parse(address, Some(RELAY_PORT)));
            faults.parse::<FailureDomain>("--failure-domain", failure_domain);
            faults.finish(Some(()))?;
            let body = json::AddRelay {
                name: name.clone(),
                address: address.clone(),
                failure_domain: Some(failure_domain.clone()),
                local: *local,
            };
            let issued: json::Issued = profile::client(connection)?.post("/v1/relays", &body).await?;
            show(connection, &issued, page::issued);
        }
        RelayVerb::Ls { watch } => {
            let client = profile::client(connection)?;
            watch::repeat(watch, async || {
                let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
                show(connection, &relays, list::relays);
                Ok(())
            })
            .await?;
        }
        RelayVerb::Show { relay, watch } => {
            let one = One::of("relays", relay)?;
            let client = profile::client(connection)?;
            watch::repeat(watch, async || {
                let relay: json::Relay = one.known(&client, client.get(&one.path()).await).await?;
                show(connection, &relay, page::relay);
                Ok(())
            })
            .await?;
        }
        RelayVerb::Token { relay } => reissue(connection, "relays", relay).await?,
        RelayVerb::Rm { relay } => remove(connection, "relays", relay).await?,
    }
    Ok(())
}

/// A new one-shot token for a member.
async fn reissue(connection: &cli::Connection, kind: &'static str, text: &str) -> Result<(), Failure> {
    let one = One::of(kind, text)?;
    let client = profile::client(connection)?;
    let path = format!("{}/token", one.path());
    let issued = client.post(&path, &serde_json::json!({})).await;
    let issued: json::Issued = one.known(&client, issued).await?;
    show(connection, &issued, page::issued_again);
    Ok(())
}

/// Removes a member.
async fn remove(connection: &cli::Connection, kind: &'static str, text: &str) -> Result<(), Failure> {
    let one = One::of(kind, text)?;
    let client = profile::client(connection)?;
    let removed: serde_json::Value = one.known(&client, client.delete(&one.path()).await).await?;
    show(connection, &removed, |member| {
        let name = member.get("name").and_then(|n| n.as_str()).unwrap_or(text);
        let has_folder = member.get("enrolled_at").is_some_and(|at| !at.is_null());
        let left = if has_folder {
            "; on its host, stop its service and delete its folder"
        } else {
            ""
        };
        table::line(&format!("{} {name} removed{left}", one.noun()));
    });
    Ok(())
}

pub(crate) async fn node(group: &cli::Node) -> Result<(), Failure> {
    let connection = &group.connection;
    match &group.verb {
        NodeVerb::Add { name } => {
            let mut faults = Faults::default();
            faults.take("NAME", Name::requested(name));
            faults.finish(Some(()))?;
            let body = json::AddNode { name: name.clone() };
            let issued: json::Issued = profile::client(connection)?.post("/v1/nodes", &body).await?;
            show(connection, &issued, page::issued);
        }
        NodeVerb::Ls { watch } => {
            let client = profile::client(connection)?;
            watch::repeat(watch, async || {
                let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
                show(connection, &nodes, list::nodes);
                Ok(())
            })
            .await?;
        }
        NodeVerb::Show { node, watch } => {
            let one = One::of("nodes", node)?;
            let client = profile::client(connection)?;
            watch::repeat(watch, async || {
                let node: json::Node = one.known(&client, client.get(&one.path()).await).await?;
                show(connection, &node, page::node);
                Ok(())
            })
            .await?;
        }
        NodeVerb::Token { node } => reissue(connection, "nodes", node).await?,
        NodeVerb::Rm { node } => remove(connection, "nodes", node).await?,
    }
    Ok(())
}

/// A consumer's listener asks nobody who they are: one on every address is open to whoever reaches the host.
fn open_to_all(from: &str, listen: &str, target: &str) -> Option<String> {
    let listen: ListenAddress = listen.parse().ok()?;
    listen.0.ip().to_canonical().is_unspecified().then(|| {
        let port = listen.0.port();
        format!(
            "note: it listens on every address of {from}, so whoever reaches {from} reaches {target}; \
             127.0.0.1:{port} is for {from}'s own applications only"
        )
    })
}

pub(crate) async fn link(group: &cli::Link) -> Result<(), Failure> {
    let connection = &group.connection;
    match &group.verb {
        LinkVerb::Add {
            name,
            from,
            to,
            target,
            listen,
            class,
        } => {
            let mut faults = Faults::default();
            faults.take("NAME", Name::requested(name));
            faults.parse::<TargetAddress>("--target", target);
            faults.take("--listen", ListenAddress::requested(listen));
            faults.parse::<ServiceClass>("--class", class);
            faults.finish(Some(()))?;
            let body = json::AddLink {
                name: name.clone(),
                from: from.clone(),
                to: to.clone(),
                target: target.clone(),
                listen: listen.clone(),
                class: Some(class.clone()),
            };
            let link: json::Link = profile::client(connection)?.post("/v1/links", &body).await?;
            show(connection, &link, |l| {
                table::line(&format!(
                    "link {} added: {} is to listen on {} for {} of {}; `fairlead link show {0}` says how it stands",
                    l.name, l.from.name, l.listen, l.target, l.to.name
                ));
                if let Some(note) = open_to_all(&l.from.name, &l.listen, &l.target) {
                    table::line(&note);
                }
            });
        }
        LinkVerb::Ls { watch } => {
            let client = profile::client(connection)?;
            watch::repeat(watch, async || {
                let links: json::List<json::Link> = client.get("/v1/links").await?;
                show(connection, &links, list::links);
                Ok(())
            })
            .await?;
        }
        LinkVerb::Show { link, watch } => {
            let one = One::of("links", link)?;
            let client = profile::client(connection)?;
            watch::repeat(watch, async || {
                let link: json::Link = one.known(&client, client.get(&one.path()).await).await?;
                show(connection, &link, page::link);
                Ok(())
            })
            .await?;
        }
        LinkVerb::Rm { link } => {
            let one = One::of("links", link)?;
            let client = profile::client(connection)?;
            let removed: json::RemovedLink = one.known(&client, client.delete(&one.path()).await).await?;
            show(connection, &removed, |removed| {
                table::line(&removed_text(removed))
            });
        }
    }
    Ok(())
}

/// That a link is removed, and who has not heard of it: there, it goes on.
fn removed_text(removed: &json::RemovedLink) -> String {
    let name = &removed.link.name;
    let count = |kind: &str, names: &[String]| match names {
        [] => None,
        [one] => Some(format!("{kind} {one}")),
        names => Some(format!("{} {kind}s", names.len())),
    };
    let unheard = [
        count("relay", &removed.unheard_relays),
        count("node", &removed.unheard_nodes),
    ];
    let who: Vec<String> = unheard.into_iter().flatten().collect();
    if who.is_empty() {
        return format!("link {name} removed; its tunnels are closed");
    }
    let is_one = removed.unheard_relays.len() + removed.unheard_nodes.len() == 1;
    let (verb, has, it) = if is_one {
        ("is", "has", "it is")
    } else {
        ("are", "have", "they are")
    };
    format!(
        "link {name} removed; {} {verb} not connected and {has} not heard of it yet: tunnels there may go on until {it}",
        who.join(" and ")
    )
}

pub(crate) async fn audit(group: &cli::Audit) -> Result<(), Failure> {
    let AuditVerb::Ls { after, limit, last } = &group.verb;
    let (after, limit) = audit_range(after, last.as_ref().unwrap_or(limit), last.is_some())?;
    let client = profile::client(&group.connection)?;
    let after = match last {
        None => after,
        Some(_) => {
            let status: json::Status = client.get("/v1/status").await?;
            status.audit_seq.saturating_sub(limit)
        }
    };
    let path = format!("/v1/audit?after={after}&limit={limit}");
    let entries: json::List<json::AuditEntry> = client.get(&path).await?;
    show(&group.connection, &entries, |entries| {
        let rows = entries.items.iter().map(|e| {
            vec![
                e.seq.to_string(),
                short_time(&e.at),
                e.actor.clone(),
                e.action.clone(),
                e.object.clone(),
                page::change(e.before.as_ref(), e.after.as_ref()),
            ]
        });
        table::print(
            &["SEQ", "AT", "WHO", "WHAT", "ON", "CHANGE"],
            &rows.collect::<Vec<_>>(),
            "no audit entry in that range",
        );
    });
    Ok(())
}

fn audit_range(after: &str, limit: &str, last: bool) -> Result<(u64, u64), SettingsError> {
    let mut faults = Faults::default();
    let place = if last { "--last" } else { "--limit" };
    let after = number("--after", after, 0..=u64::MAX, &mut faults);
    let limit = number(place, limit, 1..=AUDIT_LIMIT_MAX, &mut faults);
    faults.finish(after.zip(limit))
}

/// A whole number in its range.
fn number(place: &str, text: &str, range: RangeInclusive<u64>, faults: &mut Faults) -> Option<u64> {
    let value = text.parse().ok().filter(|n| range.contains(n));
    if value.is_none() {
        let allowed = match *range.end() {
            u64::MAX => format!("{} or more", range.start()),
            end => format!("{} to {end}", range.start()),
        };
        faults.add(place, format!("`{text}` is not a whole number, {allowed}"));
    }
    value
}

pub(crate) async fn settings(group: &cli::Settings) -> Result<(), Failure> {
    let connection = &group.connection;
    let client = profile::client(connection)?;
    let setting: json::Setting = match &group.verb {
        SettingsVerb::Ls => {
            let settings: json::List<json::Setting> = client.get("/v1/settings").await?;
            show(connection, &settings, |settings| {
                let rows = settings.items.iter().map(|s| {
                    vec![
                        s.key.clone(),
                        s.value.clone(),
                        s.default.clone(),
                        s.range.clone(),
                        s.meaning.clone(),
                    ]
                });
                table::print(
                    &["KEY", "VALUE", "DEFAULT", "RANGE", "MEANING"],
                    &rows.collect::<Vec<_>>(),
                    "no setting",
                );
            });
            return Ok(());
        }
        SettingsVerb::Get { key } => {
            let one = One::of("settings", key)?;
            one.known(&client, client.get(&one.path()).await).await?
        }
        SettingsVerb::Set { key, value } => {
            let (key, value) = assignment(key, value.as_ref())?;
            let one = One::of("settings", &key)?;
            let body = json::SetSetting { value };
            let setting = client.put(&one.path(), &body).await;
            let setting: json::Setting = one.known(&client, setting).await?;
            show(connection, &setting, |s| {
                table::line(&format!("{} is {} now (default {})", s.key, s.value, s.default));
            });
            return Ok(());
        }
    };
    show(connection, &setting, page::setting);
    Ok(())
}

/// KEY VALUE, or KEY=VALUE.
fn assignment(key: &str, value: Option<&String>) -> Result<(String, String), SettingsError> {
    let mut faults = Faults::default();
    let pair = match (value, key.split_once('=')) {
        (Some(value), _) => Some((key.to_owned(), value.clone())),
        (None, Some((key, value))) => Some((key.to_owned(), value.to_owned())),
        (None, None) => {
            faults.add("VALUE", "is missing: write KEY VALUE, or KEY=VALUE");
            None
        }
    };
    if pair.as_ref().is_some_and(|(key, _)| key.is_empty()) {
        faults.add("KEY", "is empty");
    }
    faults.finish(pair)
}

pub(crate) async fn token(group: &cli::Token) -> Result<(), Failure> {
    let connection = &group.connection;
    let client = profile::client(connection)?;
    match &group.verb {
        TokenVerb::Add { name, scope } => {
            let body = json::AddToken {
                name: name.clone(),
                scopes: scope.clone(),
            };
            let token: json::IssuedToken = client.post("/v1/tokens", &body).await?;
            show(connection, &token, |issued| {
                let scopes = issued.token.scopes.join(", ");
                table::complain(&format!(
                    "token {} ({scopes}) made; it is shown once:",
                    issued.token.name
                ));
                table::line(&issued.secret);
            });
        }
        TokenVerb::Ls => {
            let tokens: json::List<json::Token> = client.get("/v1/tokens").await?;
            show(connection, &tokens, |tokens| {
                let rows = tokens.items.iter().map(|t| {
                    vec![
                        t.name.clone(),
                        t.id.clone(),
                        t.scopes.join(", "),
                        short_time(&t.created_at),
                    ]
                });
                table::print(
                    &["NAME", "ID", "SCOPES", "MADE"],
                    &rows.collect::<Vec<_>>(),
                    "no token",
                );
            });
        }
        TokenVerb::Rm { token, force } => {
            let one = One::of("tokens", token)?;
            let path = match force {
                true => format!("{}?force=true", one.path()),
                false => one.path(),
            };
            let token: json::Token = one.known(&client, client.delete(&path).await).await?;
            show(connection, &token, |t| {
                table::line(&format!("token {} revoked", t.name))
            });
        }
    }
    Ok(())
}

pub(crate) async fn status(flags: &cli::Status) -> Result<(), Failure> {
    let client = profile::client(&flags.connection)?;
    watch::repeat(&flags.watch, async || {
        status::show(&flags.connection, &client).await
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_ranges_are_checked_together() {
        assert_eq!(audit_range("0", "1000", false), Ok((0, 1000)));
        let error = audit_range("-1", "0", false).unwrap_err();
        assert_eq!(error.faults().len(), 2, "{error}");
        let error = audit_range("0", "5000", true).unwrap_err().to_string();
        assert!(
            error.contains("--last: `5000`") && error.contains("1 to 1000"),
            "{error}"
        );
    }

    /// R-REV-02: who cannot have heard of a removal is said, and not that all tunnels are closed.
    #[test]
    fn a_removal_says_who_has_not_heard_of_it() {
        let removed = |relays: &[&str], nodes: &[&str]| {
            let end = serde_json::json!({ "id": "1", "name": "n" });
            let removed: json::RemovedLink = serde_json::from_value(serde_json::json!({
                "id": "1", "name": "db", "from": end, "to": end, "target": "t:1", "listen": "127.0.0.1:1",
                "class": "standard", "endpoint": "1", "generation": 1, "route": "1", "created_at": "", "relays": [],
                "placement_reason": "", "state": "ready", "waiting_for": [],
                "unheard_relays": relays, "unheard_nodes": nodes,
            }))
            .unwrap();
            removed_text(&removed)
        };
        assert_eq!(removed(&[], &[]), "link db removed; its tunnels are closed");
        let one = "link db removed; node b is not connected and has not heard of it yet: tunnels there may go on until it is";
        assert_eq!(removed(&[], &["b"]), one);
        let many = "link db removed; 2 relays and node b are not connected and have not heard of it yet: ";
        assert!(removed(&["r", "s"], &["b"]).starts_with(many));
    }

    #[test]
    fn a_listener_on_every_address_is_told_of() {
        for listen in ["0.0.0.0:5432", "[::]:5432", "[::ffff:0.0.0.0]:5432"] {
            let note = open_to_all("alpha", listen, "10.0.0.5:5432").unwrap();
            assert!(note.contains("127.0.0.1:5432"), "{note}");
        }
        for listen in ["127.0.0.1:5432", "[::1]:5432", "192.0.2.1:5432"] {
            assert_eq!(open_to_all("alpha", listen, "10.0.0.5:5432"), None);
        }
    }

    #[test]
    fn a_setting_is_two_words_or_one_with_an_equals_sign() {
        let pair = |key: &str, value: Option<&str>| assignment(key, value.map(str::to_owned).as_ref());
        let wanted = Ok(("policy.lease".to_owned(), "48h".to_owned()));
        assert_eq!(pair("policy.lease", Some("48h")), wanted);
        assert_eq!(pair("policy.lease=48h", None), wanted);
        assert!(pair("policy.lease", None).is_err() && pair("", Some("48h")).is_err());
    }
}

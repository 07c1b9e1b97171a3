//! Verbs on members: adding relays and nodes, new enrolment tokens.

use super::{actor, full, missing, taken};
use crate::api::{AddRelay, ApiError, Faults, Issued, MemberRole, NodeView, Principal, RelayView};
use crate::audit::AuditNote;
use crate::control::Control;
use crate::ledger::{Change, Turn};
use crate::plan::{NODES_MAX, RELAYS_MAX};
use crate::record::{At, EnrolledRecord, EnrolmentRecord, MemberKey, NodeRecord, RelayRecord, Text, key};
use crate::setting::Settings;
use crate::token::hash;
use crate::view::Viewer;
use fairlead_host::rng;
use fairlead_model::address::{Host, RELAY_PORT};
use fairlead_model::{ApiCode, FailureDomain, HostPort, Name};

impl Control {
    /// Adds a relay that is to enrol (R-ENR-01).
    ///
    /// # Errors
    /// Faults of the input; the name or the address is taken; there is a local relay already.
    pub async fn add_relay(&self, by: &Principal, input: AddRelay) -> Result<Issued, ApiError> {
        let mut faults = Faults::default();
        let name = faults.take("name", Name::requested(&input.name));
        let address = HostPort::parse(&input.address, Some(RELAY_PORT))
            .map_err(|e| faults.add("address", e))
            .ok();
        let host = address.as_ref().map(HostPort::host);
        if let Some(fault) = host.and_then(|host| unreachable(host, self.is_lab())) {
            faults.add("address", fault);
        }
        // Without labels of its own a relay fails alone: its name is its host's label.
        let labels = input
            .failure_domain
            .as_deref()
            .or(name.as_ref().map(Name::as_str));
        let failure_domain: Option<FailureDomain> = labels.and_then(|l| faults.parse("failure_domain", l));
        let parts = name.zip(address).zip(failure_domain);
        let ((name, address), failure_domain) = faults.into_result(parts)?;
        let turn = self.0.ledger.turn().await?;
        let relays = &turn.state().relays;
        if relays.values().any(|k| k.record.name.0 == name) {
            return Err(taken("relay", name.as_str()));
        }
        if let Some(other) = relays.values().find(|k| k.record.address.0 == address) {
            let message = format!("`{address}` is relay {}'s address", other.record.name.0);
            return Err(ApiError::new(ApiCode::Conflict, message.clone()).with_fault("address", message));
        }
        if let Some(other) = relays.values().find(|k| k.record.local && input.local) {
            let message = format!("relay {} is the local relay already", other.record.name.0);
            return Err(ApiError::new(ApiCode::Conflict, message.clone()).with_fault("local", message));
        }
        if relays.len() >= RELAYS_MAX {
            return Err(full("relays", RELAYS_MAX));
        }
        let record = RelayRecord {
            id: Text(rng::new_id()),
            name: Text(name),
            address: Text(address),
            failure_domain: Text(failure_domain),
            local: input.local,
            created_at: At::from(self.0.clock.wall()),
            enrolled: None,
            lost_at: None,
            stopped: false,
            capacity: false,
            served: false,
        };
        let mut change = Change::default();
        change
            .note(AuditNote::new(actor(by), "relay.add", format!("relay {}", record.name.0)).after(&record));
        change.put(key::relay(record.id.0), &record);
        let subject = Subject::relay(&record);
        self.issue(turn, change, subject).await
    }

    /// Adds a node that is to enrol.
    ///
    /// # Errors
    /// The name is malformed or taken.
    pub async fn add_node(&self, by: &Principal, name: &str) -> Result<Issued, ApiError> {
        let mut faults = Faults::default();
        let name = faults.take("name", Name::requested(name));
        let name = faults.into_result(name)?;
        let turn = self.0.ledger.turn().await?;
        let nodes = &turn.state().nodes;
        if nodes.values().any(|k| k.record.name.0 == name) {
            return Err(taken("node", name.as_str()));
        }
        if nodes.len() >= NODES_MAX {
            return Err(full("nodes", NODES_MAX));
        }
        let record = NodeRecord {
            id: Text(rng::new_id()),
            name: Text(name),
            created_at: At::from(self.0.clock.wall()),
            enrolled: None,
            stopped_at: None,
        };
        let mut change = Change::default();
        change.note(AuditNote::new(actor(by), "node.add", format!("node {}", record.name.0)).after(&record));
        change.put(key::node(record.id.0), &record);
        let subject = Subject::node(&record);
        self.issue(turn, change, subject).await
    }

    /// A new token for a member whose host has not had a session yet; its older token ends, and so
    /// does its enrolment: a host that lost what enrolment gave it begins anew, and the key of the
    /// lost one is refused.
    ///
    /// # Errors
    /// No such member; it has connected.
    pub async fn reissue(
        &self,
        by: &Principal,
        role: MemberRole,
        name_or_id: &str,
    ) -> Result<Issued, ApiError> {
        let turn = self.0.ledger.turn().await?;
        let state = turn.state();
        let missing = || missing(state, role.as_str(), name_or_id);
        let mut change = Change::default();
        let subject = match role {
            MemberRole::Relay => {
                let before = state.find_relay(name_or_id)?.ok_or_else(missing)?;
                if let Some(enrolled) = &before.enrolled {
                    refuse_connected(role, &before.name.0, enrolled)?;
                    change.put(
                        key::relay(before.id.0),
                        &RelayRecord {
                            enrolled: None,
                            ..before.clone()
                        },
                    );
                }
                Subject::relay(before)
            }
            MemberRole::Node => {
                let before = state.find_node(name_or_id)?.ok_or_else(missing)?;
                if let Some(enrolled) = &before.enrolled {
                    refuse_connected(role, &before.name.0, enrolled)?;
                    change.put(
                        key::node(before.id.0),
                        &NodeRecord {
                            enrolled: None,
                            ..before.clone()
                        },
                    );
                }
                Subject::node(before)
            }
        };
        let replaces_enrolment = !change.is_empty();
        let note = AuditNote::new(actor(by), "enrolment.reissue", format!("{role} {}", subject.name));
        change.note(note.after(&serde_json::json!({ "replaces_enrolment": replaces_enrolment })));
        self.issue(turn, change, subject).await
    }

    /// Adds a new token for the member to the change, ends its older ones, and commits (R-ENR-02).
    async fn issue(&self, turn: Turn, mut change: Change, subject: Subject) -> Result<Issued, ApiError> {
        let Subject { member, name, listen } = subject;
        let role = match member {
            MemberKey::Relay(_) => MemberRole::Relay,
            MemberKey::Node(_) => MemberRole::Node,
        };
        for (older, kept) in &turn.state().enrolments {
            if kept.record.member == member {
                change.delete(key::enrolment(older));
            }
        }
        let now = self.0.clock.wall();
        let expires_at = now.plus(Settings::of(turn.state()).token_lifetime);
        let token = rng::token();
        change.put(
            key::enrolment(&hash(token.expose())),
            &EnrolmentRecord {
                member,
                issued_at: At::from(now),
                expires_at: At::from(expires_at),
                used: None,
                refused: 0,
            },
        );
        turn.commit(change).await?;
        let id = match member {
            MemberKey::Relay(id) => id.0.to_string(),
            MemberKey::Node(id) => id.0.to_string(),
        };
        // The token stays apart: a command goes into the shell's history, and its standard input does not.
        let mut install_command = format!(
            "fairlead enrol {role} --control {} --ca-pin {} --dir /var/lib/fairlead/{role}",
            self.advertised(),
            self.ca_pin(),
        );
        if let Some(listen) = listen {
            install_command.push_str(&format!(" --listen {listen}"));
        }
        Ok(Issued {
            role,
            id,
            name,
            install_command,
            token: token.expose().to_owned(),
            expires_at,
        })
    }

    /// Every relay, by name.
    pub async fn relays(&self) -> Vec<RelayView> {
        let viewer = Viewer::new(&self.0);
        let mut views: Vec<RelayView> = viewer
            .state
            .relays
            .values()
            .map(|k| viewer.relay(&k.record))
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// One relay, by name or id.
    ///
    /// # Errors
    /// No such relay.
    pub async fn relay(&self, name_or_id: &str) -> Result<RelayView, ApiError> {
        let viewer = Viewer::new(&self.0);
        let record = viewer.state.find_relay(name_or_id)?;
        record
            .map(|r| viewer.relay(r))
            .ok_or_else(|| missing(&viewer.state, "relay", name_or_id))
    }

    /// Every node, by name.
    pub async fn nodes(&self) -> Vec<NodeView> {
        let viewer = Viewer::new(&self.0);
        let mut views: Vec<NodeView> = viewer
            .state
            .nodes
            .values()
            .map(|k| viewer.node(&k.record))
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// One node, by name or id.
    ///
    /// # Errors
    /// No such node.
    pub async fn node(&self, name_or_id: &str) -> Result<NodeView, ApiError> {
        let viewer = Viewer::new(&self.0);
        let record = viewer.state.find_node(name_or_id)?;
        record
            .map(|n| viewer.node(n))
            .ok_or_else(|| missing(&viewer.state, "node", name_or_id))
    }
}

/// A member that is to enrol.
struct Subject {
    member: MemberKey,
    name: Name,
    /// Where its worker is to listen, where that is not every address of its host.
    listen: Option<HostPort>,
}

impl Subject {
    fn relay(record: &RelayRecord) -> Self {
        // Relays of one host have one address of it each: none may take them all.
        let is_own = |host: &Host| matches!(host, Host::Ip(ip) if ip.to_canonical().is_loopback());
        Self {
            member: MemberKey::Relay(record.id),
            name: record.name.0.clone(),
            listen: Some(&record.address.0)
                .filter(|address| is_own(address.host()))
                .cloned(),
        }
    }

    fn node(record: &NodeRecord) -> Self {
        Self {
            member: MemberKey::Node(record.id),
            name: record.name.0.clone(),
            listen: None,
        }
    }
}

/// A member that has connected holds its identity: a new one is re-enrolment (R-ENR-06).
fn refuse_connected(role: MemberRole, name: &Name, enrolled: &EnrolledRecord) -> Result<(), ApiError> {
    if !enrolled.connected {
        return Ok(());
    }
    Err(ApiError::new(
        ApiCode::HasConnected,
        format!(
            "{role} {name} has enrolled and connected: a new token is only for a member whose host has never \
             connected; to begin anew, remove it with `fairlead {role} rm {name}` and add it again"
        ),
    ))
}

/// Why nodes cannot reach a relay at `host`, if that is known before anybody tries.
fn unreachable(host: &Host, lab: bool) -> Option<String> {
    let (shown, is_unspecified, is_loopback) = match host {
        Host::Ip(ip) => (
            ip.to_string(),
            ip.is_unspecified(),
            ip.to_canonical().is_loopback(),
        ),
        // These names are every host's own (RFC 6761 section 6.3).
        Host::Dns(name) => (
            name.clone(),
            false,
            name == "localhost" || name.ends_with(".localhost"),
        ),
    };
    if is_unspecified {
        // It is where a relay may listen, not where anybody reaches it.
        return Some(format!(
            "`{shown}` is no host's address: give the one at which nodes reach the relay"
        ));
    }
    (is_loopback && !lab).then(|| {
        format!(
            "`{shown}` is reached from its own host only: give the address at which nodes reach the relay. For a pool \
             on one host, `fairlead up` starts one, or run the control plane with `--lab`"
        )
    })
}

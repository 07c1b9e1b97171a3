//! Endpoints → relays (R-PLC).
//!
//! A placement is a pure function of the endpoint, the relays and the spread: equal inputs give
//! equal placements on every control plane and after every restart, and a relay that joins or
//! leaves moves only the endpoints that it wins or held. Until nodes have reported round-trip times
//! (R-PLC-05), relays are ordered by a rendezvous hash; no relay is nearer than another, so every
//! place of the spread is a primary.

mod rendezvous;

pub use rendezvous::weight;

use fairlead_model::{EndpointId, FailureDomain, NodeId, RelayId};
use std::fmt;

/// A relay as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayCandidate {
    /// Who it is.
    pub id: RelayId,
    /// Whether it counts as capacity: verified, and not lost (R-ENR-07). Others are never placed.
    pub ready: bool,
    /// What it fails with (R-GEN-03).
    pub failure_domain: FailureDomain,
    /// Whether it is the local relay, on the control plane's own host.
    pub local: bool,
}

/// Where one endpoint is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Relays that share the new connections, best first.
    pub primaries: Vec<RelayId>,
    /// Relays that are used when no primary admits, best first.
    pub standbys: Vec<RelayId>,
    /// Why these.
    pub reason: Reason,
}

/// Why a placement is as it is; shown to admins (R-PLC-08).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// No relay is ready.
    NoneReady,
    /// Ordered by the rendezvous hash (R-PLC-05).
    Hash {
        /// How many relays are ready.
        ready: usize,
        /// How many were wanted.
        spread: usize,
        /// How many of the chosen are in failure domains of their own.
        domains: usize,
        /// Whether the last place went to a relay off the control host (R-PLC-07).
        off_host: bool,
    },
}

impl Placement {
    /// Every relay of the placement, primaries first.
    pub fn relays(&self) -> impl Iterator<Item = RelayId> {
        self.primaries.iter().chain(&self.standbys).copied()
    }
}

/// Places an endpoint on up to `spread` ready relays: distinct failure domains first, then by
/// weight; at least one off the control host where one is ready (R-PLC-07).
#[must_use]
pub fn place(endpoint: EndpointId, candidates: &[RelayCandidate], spread: usize) -> Placement {
    let ordered = rendezvous::order(endpoint.to_bytes(), ready(candidates));
    if ordered.is_empty() {
        return Placement {
            primaries: Vec::new(),
            standbys: Vec::new(),
            reason: Reason::NoneReady,
        };
    }
    let mut chosen = choose(&ordered, &[], spread);
    let off_host = chosen.iter().all(|c| c.local) && {
        let best = ordered.iter().find(|c| !c.local);
        if let Some(best) = best {
            chosen.pop();
            chosen.push(best);
        }
        best.is_some()
    };
    Placement {
        reason: Reason::Hash {
            ready: ordered.len(),
            spread,
            domains: domains(&chosen),
            off_host,
        },
        primaries: chosen.iter().map(|c| c.id).collect(),
        standbys: Vec::new(),
    }
}

/// How many relays a node keeps hop sessions to at least, in different failure domains where there
/// are (R-NOD-01).
pub const SESSIONS_MIN: usize = 2;

/// The relays that a node keeps hop sessions to: those that its endpoints and routes need, and
/// further ones until it has [`SESSIONS_MIN`] in different failure domains, as far as there are.
#[must_use]
pub fn sessions(node: NodeId, needed: &[RelayId], candidates: &[RelayCandidate]) -> Vec<RelayId> {
    let ordered = rendezvous::order(node.to_bytes(), ready(candidates));
    let held: Vec<&RelayCandidate> = candidates.iter().filter(|c| needed.contains(&c.id)).collect();
    let missing = SESSIONS_MIN.saturating_sub(held.len());
    let alone = domains(&held) < SESSIONS_MIN;
    let wanted = held.len() + missing.max(usize::from(alone));
    let mut relays: Vec<RelayId> = held.iter().map(|c| c.id).collect();
    for candidate in choose(&ordered, &held, wanted) {
        // A further relay that adds no domain is taken only where sessions are missing.
        let adds = held
            .iter()
            .all(|h| !h.failure_domain.shares_with(&candidate.failure_domain));
        if !relays.contains(&candidate.id) && (adds || relays.len() < SESSIONS_MIN) {
            relays.push(candidate.id);
        }
    }
    relays
}

fn ready(candidates: &[RelayCandidate]) -> impl Iterator<Item = &RelayCandidate> {
    candidates.iter().filter(|c| c.ready)
}

/// `held`, then the best of `ordered` that share no failure domain with those chosen before, then
/// the best of the rest, `count` in all.
///
/// The first is passed over if it shares a domain with every other while two others do not share
/// one: two domains are worth more than the best weight.
fn choose<'a>(
    ordered: &[&'a RelayCandidate],
    held: &[&'a RelayCandidate],
    count: usize,
) -> Vec<&'a RelayCandidate> {
    let apart = |a: &RelayCandidate, b: &RelayCandidate| !a.failure_domain.shares_with(&b.failure_domain);
    let mut chosen: Vec<&RelayCandidate> = held.to_vec();
    if chosen.is_empty() && count >= 2 {
        let paired = ordered.iter().find(|a| ordered.iter().any(|b| apart(a, b)));
        chosen.extend(paired);
    }
    for candidate in ordered {
        if chosen.len() < count && chosen.iter().all(|c| apart(c, candidate)) {
            chosen.push(candidate);
        }
    }
    for candidate in ordered {
        if chosen.len() < count && chosen.iter().all(|c| c.id != candidate.id) {
            chosen.push(candidate);
        }
    }
    chosen
}

/// How many of `relays` share no failure domain with one before them.
fn domains(relays: &[&RelayCandidate]) -> usize {
    let mut apart: Vec<&RelayCandidate> = Vec::new();
    for relay in relays {
        if apart
            .iter()
            .all(|a| !a.failure_domain.shares_with(&relay.failure_domain))
        {
            apart.push(relay);
        }
    }
    apart.len()
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoneReady => f.write_str("no relay is ready"),
            Self::Hash {
                ready,
                spread,
                domains,
                off_host,
            } => {
                write!(
                    f,
                    "on {} of {ready} ready {} (spread {spread}), in {domains} failure {}, by the endpoint's hash \
                     until round-trip times are measured",
                    spread.min(ready),
                    if *ready == 1 { "relay" } else { "relays" },
                    if *domains == 1 { "domain" } else { "domains" },
                )?;
                if *off_host {
                    f.write_str("; the last is there because it is off the control host")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;

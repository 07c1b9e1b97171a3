//! The plan: which relays carry which link, and what every member's policy and every grant says.
//! Pure: equal [`Wanted`] give equal [`Plan`]s, and a plan is complete; whoever applies it decides
//! nothing.
//!
//! A link that moves to other relays stays in the policies of those that it leaves, for
//! [`FORMER_KEPT`]: a relay closes the tunnels of a route that leaves its policy, and a node ends
//! its session with a relay that leaves its own.

mod contents;

pub use contents::{GrantContents, NodeContents, Numbering, RelayContents};

use fairlead_model::{
    EndpointId, FailureDomain, Generation, HostPort, LinkId, ListenAddress, Name, NodeId, RelayId, Revision,
    RouteId, ServiceClass, TargetAddress, WallTime,
};
use fairlead_placement::{Placement, Reason, RelayCandidate, place, sessions};
use fairlead_trust::{
    Consumption, NodeRelay, PolicyEndpoint, PolicyRoute, Publication, PublishedRoute, RelaySettings,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most nodes of a pool: their 16-byte ids take 74 KiB of every relay's policy.
pub const NODES_MAX: usize = 4_096;
/// Most relays of the pool.
pub const RELAYS_MAX: usize = 64;
/// Most links of a pool. All of them fit into the 1 MiB of one relay's policy, as they
/// must where it is the only relay: an endpoint and its route take 101 bytes.
pub const LINKS_MAX: usize = 4_096;
/// Most links that one node publishes and consumes. All of them fit into the 1 MiB of its policy: a
/// publication with the longest name and target on 16 relays takes 800 bytes.
pub const LINKS_PER_NODE_MAX: usize = 1_024;
/// Most revoked routes that policies carry, the newest. One that is left out stays refused: its
/// route stands in no policy, only the reason is a weaker one.
pub const REVOKED_MAX: usize = 4_096;
/// Longest spread that can be set.
pub const SPREAD_MAX: usize = 16;
/// Most relays that a link has left and that still carry its old tunnels, the newest.
pub const FORMER_MAX: usize = 16;
/// How long a relay that a link has left stays in its policies: streams do not move to another
/// relay by themselves, and a session of a working day outlasts no more than this.
pub const FORMER_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long a revoked route stays in policies: the longest life of a grant (R-POL-02) and an hour.
pub const REVOKED_KEPT: Duration = Duration::from_secs(225 * 3600);

const _: () = assert!(
    NODES_MAX * 18 + LINKS_MAX * 101 + REVOKED_MAX * 19 + 64 * 1024
        <= fairlead_trust::envelope::PAYLOAD_LEN_MAX,
    "the largest policy of a relay can be signed"
);
const _: () = assert!(
    LINKS_PER_NODE_MAX * 800 + REVOKED_MAX * 19 + RELAYS_MAX * 700
        <= fairlead_trust::envelope::PAYLOAD_LEN_MAX,
    "the largest policy of a node can be signed"
);

/// What admins want and members are: the plan's only input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Every relay.
    pub relays: BTreeMap<RelayId, WantedRelay>,
    /// Every node.
    pub nodes: BTreeSet<NodeId>,
    /// Every link.
    pub links: BTreeMap<LinkId, WantedLink>,
    /// Routes that were taken away.
    pub revoked: BTreeMap<RouteId, Revoked>,
    /// Where links are, as the plan before left it.
    pub places: BTreeMap<LinkId, Place>,
    /// How many relays carry a link.
    pub spread: usize,
    /// Bounds of every relay.
    pub settings: RelaySettings,
    /// The wall clock.
    pub now: WallTime,
    /// The revision of the documents that this plan changes.
    pub next: Revision,
}

/// A relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRelay {
    /// Display name.
    pub name: Name,
    /// Where nodes reach it.
    pub address: HostPort,
    /// What it fails with.
    pub failure_domain: FailureDomain,
    /// Whether it is on the control plane's host.
    pub local: bool,
    /// Whether links are placed on it (R-ENR-07).
    pub capacity: bool,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedLink {
    /// Display name.
    pub name: Name,
    /// Who may open it.
    pub consumer: NodeId,
    /// Who publishes it.
    pub publisher: NodeId,
    /// What the publisher's daemon dials.
    pub target: TargetAddress,
    /// Where the consumer's daemon listens.
    pub listen: ListenAddress,
    /// Class.
    pub class: ServiceClass,
    /// The published service.
    pub endpoint: EndpointId,
    /// Its version.
    pub generation: Generation,
    /// The consumer's permission.
    pub route: RouteId,
}

/// A route that was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revoked {
    /// Who was allowed.
    pub consumer: NodeId,
    /// Who published.
    pub publisher: NodeId,
    /// When it was taken away.
    pub at: WallTime,
}

/// Where a link is, to be kept from plan to plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Relays that carry it, best first.
    pub relays: Vec<RelayId>,
    /// Relays that it has left, and when.
    pub former: BTreeMap<RelayId, WallTime>,
    /// The first revision that holds its route.
    pub since: Revision,
    /// The first revision that holds it on all its relays: a relay with an older policy waits for
    /// its own (R-POL-10).
    pub widened: Revision,
}

/// What every member should hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Of every relay.
    pub relays: BTreeMap<RelayId, RelayContents>,
    /// Of every node.
    pub nodes: BTreeMap<NodeId, NodeContents>,
    /// One per route.
    pub grants: BTreeMap<RouteId, GrantContents>,
    /// Where each link is, with the reason.
    pub placements: BTreeMap<LinkId, Placement>,
    /// What the next plan is to be given.
    pub places: BTreeMap<LinkId, Place>,
    /// Revoked routes that no grant can name any more: nothing has to be kept of them.
    pub forgotten: Vec<RouteId>,
    /// When time alone changes the plan.
    pub again: Option<WallTime>,
}

/// Makes the plan.
///
/// Order inside documents: ids ascending; relays of a link best first.
#[must_use]
pub fn plan(wanted: &Wanted) -> Plan {
    let mut plan = Plan::default();
    let candidates = candidates(wanted);
    for (id, link) in &wanted.links {
        let placement = placed(link.endpoint, &candidates, wanted, wanted.places.get(id));
        let place = follow(wanted.places.get(id), &placement, wanted);
        plan.grants.insert(link.route, grant(link, &place));
        plan.placements.insert(*id, placement);
        plan.places.insert(*id, place);
    }
    let revoked = revoked(wanted);
    for id in wanted.relays.keys() {
        plan.relays
            .insert(*id, relay_contents(*id, wanted, &plan.places, &revoked));
    }
    let ends = ends(wanted, &plan.places);
    for id in &wanted.nodes {
        let links = ends.get(id).map_or(&[][..], Vec::as_slice);
        let contents = node_contents(*id, wanted, &candidates, links, &revoked);
        for relay in &contents.relays {
            if let Some(relay) = plan.relays.get_mut(&relay.relay) {
                relay.nodes.push(*id);
            }
        }
        plan.nodes.insert(*id, contents);
    }
    plan.forgotten = wanted
        .revoked
        .iter()
        .filter(|(_, revoked)| !is_kept(revoked.at, REVOKED_KEPT, wanted.now))
        .map(|(route, _)| *route)
        .collect();
    plan.again = again(wanted, &plan.places, &revoked);
    plan
}

/// How many links are placed on a relay.
#[must_use]
pub fn endpoints_on(placements: &BTreeMap<LinkId, Placement>, relay: RelayId) -> u64 {
    let on = placements.values().filter(|p| p.relays().any(|id| id == relay));
    u64::try_from(on.count()).unwrap_or(u64::MAX)
}

fn candidates(wanted: &Wanted) -> Vec<RelayCandidate> {
    let candidate = |(id, relay): (&RelayId, &WantedRelay)| RelayCandidate {
        id: *id,
        ready: relay.capacity,
        failure_domain: relay.failure_domain.clone(),
        local: relay.local,
    };
    wanted.relays.iter().map(candidate).collect()
}

/// The placement of one endpoint. Where no relay is ready, it stays where it was: nothing better
/// is known, and its relays may be serving out of the control plane's sight (R-GEN-04).
fn placed(
    endpoint: EndpointId,
    candidates: &[RelayCandidate],
    wanted: &Wanted,
    before: Option<&Place>,
) -> Placement {
    let placement = place(endpoint, candidates, wanted.spread);
    match (&placement.reason, before) {
        (Reason::NoneReady, Some(before)) => Placement {
            primaries: existing(&before.relays, wanted).collect(),
            ..placement
        },
        (Reason::NoneReady | Reason::Hash { .. }, _) => placement,
    }
}

fn existing<'a>(relays: &'a [RelayId], wanted: &'a Wanted) -> impl Iterator<Item = RelayId> + 'a {
    relays.iter().copied().filter(|id| wanted.relays.contains_key(id))
}

/// The place after the one before.
fn follow(before: Option<&Place>, placement: &Placement, wanted: &Wanted) -> Place {
    let relays: Vec<RelayId> = placement.relays().collect();
    let Some(before) = before else {
        return Place {
            relays,
            former: BTreeMap::new(),
            since: wanted.next,
            widened: wanted.next,
        };
    };
    let is_new = |id: &RelayId| !before.relays.contains(id) && !before.former.contains_key(id);
    let widened = if relays.iter().any(is_new) {
        wanted.next
    } else {
        before.widened
    };
    let left = existing(&before.relays, wanted).map(|id| (id, wanted.now));
    let mut former: BTreeMap<RelayId, WallTime> = before
        .former
        .iter()
        .map(|(id, at)| (*id, *at))
        .filter(|(id, at)| wanted.relays.contains_key(id) && is_kept(*at, FORMER_KEPT, wanted.now))
        .chain(left)
        .filter(|(id, _)| !relays.contains(id))
        .collect();
    while former.len() > FORMER_MAX {
        let oldest = former
            .iter()
            .min_by_key(|(id, at)| (**at, **id))
            .map(|(id, _)| *id);
        oldest.and_then(|id| former.remove(&id));
    }
    Place {
        relays,
        former,
        since: before.since,
        widened,
    }
}

/// Whether something that began at `at` and is kept for `kept` still stands.
fn is_kept(at: WallTime, kept: Duration, now: WallTime) -> bool {
    now < at.plus(kept)
}

/// Revoked routes that policies carry: those that a grant may still name, the newest of them.
fn revoked(wanted: &Wanted) -> BTreeMap<RouteId, Revoked> {
    let mut kept: Vec<(RouteId, Revoked)> = wanted
        .revoked
        .iter()
        .map(|(id, revoked)| (*id, *revoked))
        .filter(|(_, revoked)| is_kept(revoked.at, REVOKED_KEPT, wanted.now))
        .collect();
    kept.sort_by_key(|(id, revoked)| (std::cmp::Reverse(revoked.at), *id));
    kept.truncate(REVOKED_MAX);
    kept.into_iter().collect()
}

fn grant(link: &WantedLink, place: &Place) -> GrantContents {
    GrantContents {
        consumer: link.consumer,
        publisher: link.publisher,
        endpoint: link.endpoint,
        route: link.route,
        generation: link.generation,
        revision: place.widened,
        relays: place.relays.iter().chain(place.former.keys()).copied().collect(),
    }
}

/// A relay's policy, but for its nodes.
fn relay_contents(
    id: RelayId,
    wanted: &Wanted,
    places: &BTreeMap<LinkId, Place>,
    revoked: &BTreeMap<RouteId, Revoked>,
) -> RelayContents {
    let mut endpoints = BTreeMap::new();
    let mut routes = BTreeMap::new();
    for (link, place) in places {
        let Some(link) = wanted.links.get(link) else {
            continue;
        };
        if !place.relays.contains(&id) && !place.former.contains_key(&id) {
            continue;
        }
        endpoints.insert(
            link.endpoint,
            PolicyEndpoint {
                endpoint: link.endpoint,
                generation: link.generation,
                publisher: link.publisher,
                class: link.class,
            },
        );
        routes.insert(
            link.route,
            PolicyRoute {
                route: link.route,
                consumer: link.consumer,
                endpoint: link.endpoint,
            },
        );
    }
    RelayContents {
        endpoints: endpoints.into_values().collect(),
        routes: routes.into_values().collect(),
        nodes: Vec::new(),
        revoked_routes: revoked.keys().copied().collect(),
        settings: wanted.settings,
    }
}

/// A link with its place.
type Placed<'a> = (&'a WantedLink, &'a Place);

/// The links of each node, publisher's and consumer's.
fn ends<'a>(wanted: &'a Wanted, places: &'a BTreeMap<LinkId, Place>) -> BTreeMap<NodeId, Vec<Placed<'a>>> {
    let mut ends: BTreeMap<NodeId, Vec<Placed<'a>>> = BTreeMap::new();
    for (id, link) in &wanted.links {
        let Some(place) = places.get(id) else {
            continue;
        };
        for node in BTreeSet::from([link.publisher, link.consumer]) {
            ends.entry(node).or_default().push((link, place));
        }
    }
    ends
}

fn node_contents(
    id: NodeId,
    wanted: &Wanted,
    candidates: &[RelayCandidate],
    links: &[Placed<'_>],
    revoked: &BTreeMap<RouteId, Revoked>,
) -> NodeContents {
    let mut needed = BTreeSet::new();
    let mut former = BTreeSet::new();
    let mut publications: BTreeMap<EndpointId, Publication> = BTreeMap::new();
    let mut consumptions = BTreeMap::new();
    for (link, place) in links {
        if link.publisher == id {
            publish(&mut publications, link, place);
        }
        if link.consumer == id {
            consumptions.insert(link.route, consumption(link, place));
        }
        needed.extend(&place.relays);
        former.extend(place.former.keys());
    }
    let needed: Vec<RelayId> = needed.into_iter().collect();
    let relays: BTreeSet<RelayId> = sessions(id, &needed, candidates)
        .into_iter()
        .chain(former)
        .collect();
    NodeContents {
        relays: relays
            .into_iter()
            .filter_map(|id| node_relay(id, wanted))
            .collect(),
        publications: publications.into_values().collect(),
        consumptions: consumptions.into_values().collect(),
        revoked_routes: revoked
            .iter()
            .filter(|(_, r)| r.consumer == id || r.publisher == id)
            .map(|(route, _)| *route)
            .collect(),
    }
}

fn publish(publications: &mut BTreeMap<EndpointId, Publication>, link: &WantedLink, place: &Place) {
    let publication = publications.entry(link.endpoint).or_insert_with(|| Publication {
        endpoint: link.endpoint,
        generation: link.generation,
        link: link.name.clone(),
        target: link.target.clone(),
        class: link.class,
        relays: place.relays.clone(),
        routes: Vec::new(),
    });
    publication.routes.push(PublishedRoute {
        route: link.route,
        consumer: link.consumer,
        revision_min: place.since,
    });
    publication.routes.sort_by_key(|r| r.route);
}

fn consumption(link: &WantedLink, place: &Place) -> Consumption {
    Consumption {
        route: link.route,
        endpoint: link.endpoint,
        generation: link.generation,
        publisher: link.publisher,
        link: link.name.clone(),
        listen: link.listen,
        class: link.class,
        relays: place.relays.clone(),
    }
}

fn node_relay(id: RelayId, wanted: &Wanted) -> Option<NodeRelay> {
    wanted.relays.get(&id).map(|relay| NodeRelay {
        relay: id,
        name: relay.name.clone(),
        address: relay.address.clone(),
        failure_domain: relay.failure_domain.clone(),
    })
}

/// The earliest end of what is kept for a while.
fn again(
    wanted: &Wanted,
    places: &BTreeMap<LinkId, Place>,
    revoked: &BTreeMap<RouteId, Revoked>,
) -> Option<WallTime> {
    let former = places
        .values()
        .flat_map(|p| p.former.values())
        .map(|at| at.plus(FORMER_KEPT));
    let revoked = revoked.values().map(|r| r.at.plus(REVOKED_KEPT));
    former.chain(revoked).filter(|at| *at > wanted.now).min()
}

#[cfg(test)]
mod tests;

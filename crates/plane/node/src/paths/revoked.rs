//! What relays say of routes that they have revoked, where the publisher cannot be asked.
//!
//! A relay's word is not sealed: one alone ends no stream (R-STR-05). Those that know of a revocation
//! carry nothing of its route any more, the publisher's sealed word included. So a stream without a leg
//! is over when every relay says so that is connected and could carry it (R-REV-01), as it is for opens.

use super::Path;
use fairlead_model::{RelayId, RouteId};
use std::collections::BTreeMap;

/// Paths whose relay has last said of a route that it is revoked.
#[derive(Debug, Default)]
pub(super) struct SaidRevoked {
    /// Of routes in use, at most one session of each relay.
    said: BTreeMap<RouteId, BTreeMap<RelayId, Path>>,
}

impl SaidRevoked {
    /// The relay has refused or closed something of the route as revoked.
    pub(super) fn note(&mut self, route: RouteId, path: Path) {
        self.said.entry(route).or_default().insert(path.relay, path);
    }

    /// The relay has carried something of the route to its publisher and back.
    pub(super) fn carried(&mut self, route: RouteId, path: Path) {
        if let Some(said) = self.said.get_mut(&route) {
            said.retain(|_, of| *of != path);
        }
    }

    /// Nothing of the route lives any more.
    pub(super) fn forget(&mut self, route: RouteId) {
        self.said.remove(&route);
    }

    /// The routes of which every path that `connected` names has said it. One that has said nothing
    /// yet, or in an earlier session, is another opinion; and so is none at all.
    pub(super) fn by_all(&self, connected: impl Fn(RouteId) -> Option<Vec<Path>>) -> Vec<RouteId> {
        let by_all = self.said.iter().filter(|(route, said)| {
            let paths = connected(**route).unwrap_or_default();
            let says = |path: &Path| said.get(&path.relay) == Some(path);
            !paths.is_empty() && paths.iter().all(says)
        });
        by_all.map(|(route, _)| *route).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_model::NodeId;

    const ROUTE: RouteId = RouteId::from_bytes([3; 16]);

    fn path(relay: u8, session: u32) -> Path {
        Path {
            publisher: NodeId::from_bytes([2; 16]),
            relay: RelayId::from_bytes([relay; 16]),
            session,
        }
    }

    /// R-REV-01, R-STR-05: all that are connected must say so, each in the session that it has.
    #[test]
    fn one_relay_alone_says_nothing() {
        let mut said = SaidRevoked::default();
        let by_all = |said: &SaidRevoked, paths: &[Path]| said.by_all(|_| Some(paths.to_vec()));
        let both = [path(1, 1), path(2, 1)];
        said.note(ROUTE, path(1, 1));
        assert!(by_all(&said, &both).is_empty());
        said.note(ROUTE, path(2, 1));
        assert_eq!(by_all(&said, &both), [ROUTE]);
        assert!(by_all(&said, &[]).is_empty(), "nobody is connected");
        assert!(said.by_all(|_| None).is_empty());
        // Another session knows what it says by itself.
        assert!(by_all(&said, &[path(1, 1), path(2, 2)]).is_empty());
        said.carried(ROUTE, path(1, 1));
        assert!(by_all(&said, &both).is_empty());
        said.note(ROUTE, path(1, 1));
        said.forget(ROUTE);
        assert!(by_all(&said, &both).is_empty());
    }
}

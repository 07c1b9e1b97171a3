//! What must be true of a relay's registrations, told as the history of each endpoint.
//!
//! Nothing is ever removed from a history: the last claim that was taken is in force, until something
//! that has happened to it says otherwise.

use super::policy::endpoint_id;
use fairlead_hop::{Lookup, Register};
use fairlead_model::{EndpointId, Generation, MonoTime, NodeId, RegistrationEpoch};
use std::collections::BTreeMap;
use std::time::Duration;

/// R-ADM-03.
const RESTART_HOLD: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Serves,
    /// Since its announcement.
    Restarts(MonoTime),
    Gone,
}

#[derive(Debug)]
struct Claim {
    session: u64,
    node: NodeId,
    generation: Generation,
    epoch: RegistrationEpoch,
    standing: Standing,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    histories: BTreeMap<EndpointId, Vec<Claim>>,
}

impl Model {
    /// A registration that policy admits was taken or refused.
    pub(super) fn registered(&mut self, session: u64, node: NodeId, register: Register, taken: bool) {
        let history = self.histories.entry(register.endpoint).or_default();
        let fenced = history
            .iter()
            .any(|c| c.node == node && c.session > session && c.epoch > register.epoch);
        assert!(
            !(fenced && taken),
            "H1, R-ADM-04: a newer session has registered, and the older one's registration is taken"
        );
        let in_force = history.last().filter(|c| c.standing != Standing::Gone);
        let newer = in_force.is_none_or(|held| Self::is_newer(held, session, node, register));
        assert!(
            newer || !taken,
            "R-ADM-01, R-ADM-04: an older registration is taken: {register:?}"
        );
        assert!(
            taken || !newer || fenced,
            "R-ADM-01, R-ADM-04: a newer registration is refused: {register:?}"
        );
        if taken {
            history.push(Claim {
                session,
                node,
                generation: register.generation,
                epoch: register.epoch,
                standing: Standing::Serves,
            });
        }
    }

    fn is_newer(held: &Claim, session: u64, node: NodeId, register: Register) -> bool {
        let again = held.session == session && held.epoch == register.epoch;
        let by_epoch = register.epoch > held.epoch || again;
        match register.generation.cmp(&held.generation) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => held.node == node && by_epoch,
            std::cmp::Ordering::Greater => held.node != node || register.epoch >= held.epoch,
        }
    }

    /// A session gives up an endpoint: whether it had it.
    pub(super) fn goodbye(&mut self, session: u64, register: Register) -> bool {
        let last = self
            .histories
            .get_mut(&register.endpoint)
            .and_then(|h| h.last_mut());
        let of_it = |c: &&mut Claim| {
            c.standing != Standing::Gone && c.session == session && c.epoch == register.epoch
        };
        last.filter(of_it)
            .map(|claim| claim.standing = Standing::Gone)
            .is_some()
    }

    fn of(&mut self, session: u64) -> impl Iterator<Item = &mut Claim> {
        let last = self.histories.values_mut().filter_map(|h| h.last_mut());
        last.filter(move |c| c.session == session && c.standing != Standing::Gone)
    }

    pub(super) fn announced(&mut self, session: u64, now: MonoTime) {
        self.of(session)
            .for_each(|claim| claim.standing = Standing::Restarts(now));
    }

    pub(super) fn ended(&mut self, session: u64, announced: bool) {
        if !announced {
            self.of(session).for_each(|claim| claim.standing = Standing::Gone);
        }
    }

    pub(super) fn retain(&mut self, now: MonoTime, keep: impl Fn(EndpointId, NodeId, Generation) -> bool) {
        for (endpoint, history) in &mut self.histories {
            if let Some(claim) = history.last_mut()
                && (!keep(*endpoint, claim.node, claim.generation) || Self::is_over(claim, now))
            {
                claim.standing = Standing::Gone;
            }
        }
    }

    fn is_over(claim: &Claim, now: MonoTime) -> bool {
        matches!(claim.standing, Standing::Restarts(since) if now >= since.plus(RESTART_HOLD))
    }

    /// Where an open for the endpoint is to go.
    pub(super) fn lookup(&self, endpoint: usize, now: MonoTime) -> Lookup<u64> {
        let history = self.histories.get(&endpoint_id(endpoint));
        match history.and_then(|h| h.last()) {
            None => Lookup::NotRegistered,
            Some(claim) if Self::is_over(claim, now) => Lookup::NotRegistered,
            Some(claim) => match claim.standing {
                Standing::Gone => Lookup::NotRegistered,
                Standing::Restarts(since) => Lookup::Restarting {
                    until: since.plus(RESTART_HOLD),
                },
                Standing::Serves => Lookup::Served {
                    session: claim.session,
                    node: claim.node,
                    generation: claim.generation,
                },
            },
        }
    }
}

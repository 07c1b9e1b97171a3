//! Which session serves an endpoint at a relay.

use crate::frame::Register;
use fairlead_model::{EndpointId, Generation, MonoTime, NodeId, RegistrationEpoch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long registrations are kept for a daemon that announced its restart (R-ADM-03).
pub const RESTART_HOLD: Duration = Duration::from_secs(15);
/// Most registrations of one session. Ten times the "few hundred endpoints" of a relay
/// (ARCHITECTURE.md, Policy, lease, grant).
pub const REGISTRATIONS_PER_SESSION_MAX: usize = 4_096;

/// A registration that the registry does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegistryFault {
    /// A newer registration is in force (R-ADM-04).
    #[error("a newer registration of the endpoint is in force")]
    Stale,
    /// Another node serves this generation of the endpoint.
    #[error("another node serves the endpoint")]
    OtherNode,
    /// The session holds as many as it may.
    #[error("the session has {REGISTRATIONS_PER_SESSION_MAX} registrations already")]
    TooMany,
}

/// A registration that came into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered<S> {
    /// The session that served the endpoint before, where it was another one, and what it had
    /// registered: it is to be told.
    pub replaced: Option<(S, Register)>,
}

/// Who serves an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<S> {
    /// This session.
    Served {
        /// The session.
        session: S,
        /// The publisher's node.
        node: NodeId,
        /// The generation that it registered.
        generation: Generation,
    },
    /// Its daemon announced a restart and is not back (R-ADM-03).
    Restarting {
        /// When the relay gives it up.
        until: MonoTime,
    },
    /// Nobody.
    NotRegistered,
}

#[derive(Debug, Clone)]
struct Entry<S> {
    session: S,
    node: NodeId,
    generation: Generation,
    epoch: RegistrationEpoch,
    /// Set while its daemon restarts: the session is gone.
    restarting_until: Option<MonoTime>,
}

impl<S> Entry<S> {
    /// The session, and what it had registered.
    fn held(self, endpoint: EndpointId) -> (S, Register) {
        let register = Register {
            endpoint,
            generation: self.generation,
            epoch: self.epoch,
        };
        (self.session, register)
    }
}

/// The registrations of a relay. `S` names a session.
///
/// A later generation of an endpoint replaces an earlier one only when it registers (R-ADM-01);
/// within a generation the higher epoch wins at once, and a goodbye counts only if its session and
/// epoch are the ones in force (R-ADM-04).
#[derive(Debug, Clone)]
pub struct Registry<S> {
    endpoints: BTreeMap<EndpointId, Entry<S>>,
    sessions: BTreeMap<S, BTreeSet<EndpointId>>,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }
}

impl<S: Copy + Ord> Registry<S> {
    /// Puts a registration into force. The caller has asked policy whether `node` may serve it.
    ///
    /// # Errors
    /// An older or foreign registration, or one too many.
    pub fn register(
        &mut self,
        session: S,
        node: NodeId,
        register: Register,
    ) -> Result<Registered<S>, RegistryFault> {
        let held = self.sessions.get(&session);
        if held.is_some_and(|held| {
            held.len() >= REGISTRATIONS_PER_SESSION_MAX && !held.contains(&register.endpoint)
        }) {
            return Err(RegistryFault::TooMany);
        }
        if let Some(entry) = self.endpoints.get(&register.endpoint) {
            if register.generation < entry.generation {
                return Err(RegistryFault::Stale);
            }
            if register.generation == entry.generation {
                if node != entry.node {
                    return Err(RegistryFault::OtherNode);
                }
                let again = register.epoch == entry.epoch && session == entry.session;
                if register.epoch <= entry.epoch && !again {
                    return Err(RegistryFault::Stale);
                }
            } else if node == entry.node && register.epoch < entry.epoch {
                return Err(RegistryFault::Stale);
            }
        }
        let before = self
            .remove(register.endpoint)
            .map(|entry| entry.held(register.endpoint));
        self.endpoints.insert(
            register.endpoint,
            Entry {
                session,
                node,
                generation: register.generation,
                epoch: register.epoch,
                restarting_until: None,
            },
        );
        self.sessions
            .entry(session)
            .or_default()
            .insert(register.endpoint);
        Ok(Registered {
            replaced: before.filter(|(before, _)| *before != session),
        })
    }

    /// A daemon's goodbye to one endpoint. Whether it removed anything.
    pub fn unregister(&mut self, session: S, register: Register) -> bool {
        let in_force = self
            .endpoints
            .get(&register.endpoint)
            .is_some_and(|entry| entry.session == session && entry.epoch == register.epoch);
        if in_force {
            self.remove(register.endpoint);
        }
        in_force
    }

    /// The session ended. Its registrations go, or are kept for [`RESTART_HOLD`] if its daemon
    /// announced a restart.
    pub fn session_ended(&mut self, session: S, announced_restart: bool, now: MonoTime) {
        for endpoint in self.sessions.remove(&session).unwrap_or_default() {
            if announced_restart {
                if let Some(entry) = self.endpoints.get_mut(&endpoint) {
                    entry.restarting_until.get_or_insert(now.plus(RESTART_HOLD));
                }
            } else {
                self.endpoints.remove(&endpoint);
            }
        }
    }

    /// Who serves `endpoint`.
    #[must_use]
    pub fn lookup(&self, endpoint: EndpointId, now: MonoTime) -> Lookup<S> {
        match self.endpoints.get(&endpoint) {
            None => Lookup::NotRegistered,
            Some(entry) => match entry.restarting_until {
                None => Lookup::Served {
                    session: entry.session,
                    node: entry.node,
                    generation: entry.generation,
                },
                Some(until) if now < until => Lookup::Restarting { until },
                Some(_) => Lookup::NotRegistered,
            },
        }
    }

    /// Drops registrations that `keep` does not want (the policy changed), and those whose daemon
    /// did not come back in time. Gives those that a session still held: it is to be told, since its
    /// daemon may never hear of the policy that dropped them, only of one that wants them again.
    pub fn retain(
        &mut self,
        now: MonoTime,
        mut keep: impl FnMut(EndpointId, NodeId, Generation) -> bool,
    ) -> Vec<(S, Register)> {
        let gone: Vec<EndpointId> = self
            .endpoints
            .iter()
            .filter(|(endpoint, entry)| {
                entry.restarting_until.is_some_and(|until| now >= until)
                    || !keep(**endpoint, entry.node, entry.generation)
            })
            .map(|(endpoint, _)| *endpoint)
            .collect();
        let dropped = gone.into_iter().filter_map(|endpoint| {
            let entry = self.remove(endpoint)?;
            entry.restarting_until.is_none().then(|| entry.held(endpoint))
        });
        dropped.collect()
    }

    /// How many endpoints are registered, those of restarting daemons included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether nothing is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// The session's daemon goes away and comes back: nobody is sent to it any more (R-ADM-03).
    pub fn announce_restart(&mut self, session: S, now: MonoTime) {
        for endpoint in self.sessions.get(&session).into_iter().flatten() {
            if let Some(entry) = self.endpoints.get_mut(endpoint) {
                entry.restarting_until = Some(now.plus(RESTART_HOLD));
            }
        }
    }

    fn remove(&mut self, endpoint: EndpointId) -> Option<Entry<S>> {
        let entry = self.endpoints.remove(&endpoint)?;
        if let Some(held) = self.sessions.get_mut(&entry.session) {
            held.remove(&endpoint);
            if held.is_empty() {
                self.sessions.remove(&entry.session);
            }
        }
        Some(entry)
    }
}

//! Which relays the daemon reaches at this moment, and what is told about the others.

pub(crate) use fairlead_hop::liveness::Doubt;
use fairlead_model::{EndpointId, RelayId};
use fairlead_transport::Carrier;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// An established hop session, as those who open legs see it.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// Where legs are opened.
    pub(crate) carrier: Carrier,
    /// Which session of this daemon it is: tells a new one from its predecessor.
    pub(crate) number: u32,
    /// The relay asks that new legs go elsewhere (R-OPS-01).
    pub(crate) draining: bool,
    /// How much speaks against the relay: new legs go to the least doubted. Whoever is
    /// [`Doubt::LivenessLost`] is dead but for the probe that decides within a few round trips:
    /// streams may attach a second leg elsewhere at once; the verdict is [`Relays::down`], or the
    /// doubt goes again.
    pub(crate) doubt: Doubt,
}

/// How the node reaches one relay (R-PLC-01).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Whether the hop session is up.
    pub(crate) connected: bool,
    /// Round trip, once measured.
    pub(crate) rtt: Option<Duration>,
    /// Why it is not connected, or what speaks against a session that stands still; empty while nothing
    /// does, and before the first attempt.
    pub(crate) error: String,
    /// Endpoints in force at the relay.
    pub(crate) registered: Vec<EndpointId>,
}

/// The established sessions, by relay.
pub(crate) type Sessions = Arc<BTreeMap<RelayId, Session>>;

/// The relays' table. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Relays {
    sessions: watch::Sender<Sessions>,
    reach: Arc<Mutex<BTreeMap<RelayId, Reach>>>,
    /// Woken on every change that the control plane is told of.
    changed: Arc<Notify>,
}

impl Relays {
    /// No relay known. `changed` is notified of every change.
    pub(crate) fn new(changed: Arc<Notify>) -> Self {
        Self {
            sessions: watch::Sender::new(Arc::default()),
            reach: Arc::default(),
            changed,
        }
    }

    /// Follows the established sessions.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Sessions> {
        self.sessions.subscribe()
    }

    /// The established sessions.
    pub(crate) fn sessions(&self) -> Sessions {
        self.sessions.borrow().clone()
    }

    /// A relay of the policy.
    pub(crate) fn add(&self, relay: RelayId) {
        self.lock().entry(relay).or_default();
    }

    /// Whether the relay is in the policy.
    pub(crate) fn wanted(&self, relay: RelayId) -> bool {
        self.lock().contains_key(&relay)
    }

    /// A relay that left the policy.
    pub(crate) fn remove(&self, relay: RelayId) {
        self.lock().remove(&relay);
        self.sessions.send_if_modified(|sessions| {
            sessions.contains_key(&relay) && Arc::make_mut(sessions).remove(&relay).is_some()
        });
        self.changed.notify_one();
    }

    /// A session is up.
    pub(crate) fn up(&self, relay: RelayId, session: Session) {
        self.sessions.send_modify(|sessions| {
            Arc::make_mut(sessions).insert(relay, session);
            self.update(relay, |reach| {
                *reach = Reach {
                    connected: true,
                    rtt: reach.rtt,
                    ..Reach::default()
                };
            });
        });
    }

    /// The session `number` is over or was never up; another one that stands stays, and what is known of it.
    pub(crate) fn down(&self, relay: RelayId, number: u32, why: String) {
        self.sessions.send_if_modified(|sessions| {
            let standing = sessions.get(&relay).map(|session| session.number);
            if standing.is_some_and(|standing| standing != number) {
                return false;
            }
            // Within the table's lock: a session that comes up meanwhile is told of after this one.
            self.update(relay, |reach| {
                *reach = Reach {
                    error: why,
                    ..Reach::default()
                };
            });
            standing.is_some() && Arc::make_mut(sessions).remove(&relay).is_some()
        });
    }

    /// Notes something about the session `number`, if it stands; what is only a new measurement wakes
    /// nobody.
    pub(crate) fn note(&self, relay: RelayId, number: u32, change: impl FnOnce(&mut Reach)) {
        let sessions = self.sessions.borrow();
        if sessions.get(&relay).is_some_and(|s| s.number == number) {
            self.update(relay, change);
        }
    }

    /// The number of the relay's session that stands.
    pub(crate) fn standing(&self, relay: RelayId) -> Option<u32> {
        self.sessions.borrow().get(&relay).map(|session| session.number)
    }

    /// Changes how the session `number` is to be used.
    pub(crate) fn mark(&self, relay: RelayId, number: u32, change: impl FnOnce(&mut Session)) {
        self.sessions.send_if_modified(|sessions| {
            let session = Arc::make_mut(sessions).get_mut(&relay);
            let session = session.filter(|s| s.number == number);
            let found = session.is_some();
            session.map(change);
            found
        });
    }

    /// The reach's lock is taken last, behind the table's.
    fn update(&self, relay: RelayId, change: impl FnOnce(&mut Reach)) {
        let mut table = self.lock();
        let Some(reach) = table.get_mut(&relay) else {
            return;
        };
        let mut before = reach.clone();
        change(reach);
        before.rtt = reach.rtt;
        if before != *reach {
            self.changed.notify_one();
        }
    }

    /// What is known of each relay.
    pub(crate) fn reach(&self) -> Vec<(RelayId, Reach)> {
        let table = self.lock();
        table
            .iter()
            .map(|(relay, reach)| (*relay, reach.clone()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RelayId, Reach>> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

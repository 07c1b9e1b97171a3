//! Relays: sessions, registrations, and who is dead.

use super::Mutation;
use super::carrier::{Body, CarrierId, Datagram, End};
use super::kernel::{ConnId, LiveInput};
use super::model::Model;
use super::plan::ms;
use super::policy::node_id;
use super::session::boot_id;
use super::world::{Host, Input, Timer, Who, World};
use fairlead_hop::liveness::{
    BindRefusal, Death, KEEP_ALIVE, LiveMessage, PING_INTERVAL, RelayAction, RelayLiveness,
};
use fairlead_hop::{Frame, Hello, Refusal, Register, Registry, RegistryFault, RelayControl, RelayEvent};
use fairlead_model::{
    EndpointId, MonoTime, ProcessBootId, RefusalCode, RegistrationEpoch, RelayId, SessionId,
};
use fairlead_trust::{RunVerdict, Runs};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most hop sessions of one node; the oldest goes first.
pub(super) const SESSIONS_PER_NODE_MAX: usize = 4;
/// Time for a handshake, and for HELLO.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How often registrations that nobody came back for are swept.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Relay {
    pub(super) host: Host,
    handshakes: BTreeMap<CarrierId, Handshake>,
    /// Carriers that a handshake was begun for, in this run or an earlier one.
    dialled: BTreeSet<CarrierId>,
    last: u64,
    pub(super) sessions: BTreeMap<u64, RelaySession>,
    pub(super) registry: Registry<u64>,
    pub(super) model: Model,
    runs: BTreeMap<usize, Runs<u64>>,
    /// Whether the registrations changed.
    pub(super) touched: bool,
    /// For the mutation that ignores epochs: which session last registered, and as of which.
    false_epochs: BTreeMap<EndpointId, (u64, RegistrationEpoch)>,
    /// Nodes, and their runs, that had a session when the process went.
    pub(super) had: Vec<(usize, u64)>,
}

/// A handshake that is not complete.
#[derive(Debug, Clone, Copy)]
struct Handshake {
    node: usize,
    node_run: u64,
    since: MonoTime,
    /// The session's number, drawn as the dial arrived.
    number: u64,
}

/// A hop session as the relay has it.
pub(super) struct RelaySession {
    pub(super) node: usize,
    pub(super) node_run: u64,
    pub(super) end: End,
    control: RelayControl,
    live: RelayLiveness,
    pub(super) conn: Option<ConnId>,
    pub(super) greeted: Option<(SessionId, ProcessBootId)>,
    pub(super) restarting: bool,
    /// Its carrier is closed: it goes as soon as its task runs.
    pub(super) closed: bool,
    pub(super) since: MonoTime,
    timer: Timer,
}

impl Relay {
    pub(super) fn new(host: Host) -> Self {
        Self {
            host,
            handshakes: BTreeMap::new(),
            dialled: BTreeSet::new(),
            last: 0,
            sessions: BTreeMap::new(),
            registry: Registry::default(),
            model: Model::default(),
            runs: BTreeMap::new(),
            touched: false,
            false_epochs: BTreeMap::new(),
            had: Vec::new(),
        }
    }

    /// The process is gone with all it knew.
    pub(super) fn forget(&mut self) {
        self.handshakes.clear();
        self.sessions.clear();
        self.registry = Registry::default();
        self.model = Model::default();
        self.runs.clear();
        self.false_epochs.clear();
    }

    /// Whether a liveness connection stands for the session on this carrier.
    pub(super) fn stands(&self, carrier: CarrierId) -> bool {
        let mut of = self.sessions.values().filter(|s| s.end.carrier == carrier);
        of.any(|s| s.conn.is_some())
    }

    fn number(&self, carrier: CarrierId) -> Option<u64> {
        let mut found = self
            .sessions
            .iter()
            .filter(|(_, s)| s.end.carrier == carrier && !s.closed);
        found.next().map(|(number, _)| *number)
    }

    pub(super) fn handshakes(&self) -> usize {
        self.handshakes.len()
    }
}

impl World<'_> {
    pub(super) fn relay_starts(&mut self, r: usize) {
        self.input_at(self.now.plus(SWEEP_EVERY), Who::Relay(r), Input::Sweep);
        self.expect_returns(r);
    }

    pub(super) fn relay_input(&mut self, r: usize, input: Input) {
        match input {
            Input::Datagram(datagram) => self.relay_datagram(r, datagram),
            Input::Carrier(carrier) => {
                if let Some(number) = self.relays[r].number(carrier) {
                    self.relay_carrier_timer(r, number);
                }
            }
            Input::RelayLive(number) => self.relay_live_timer(r, number),
            Input::Live(conn, input) => self.relay_live(r, conn, input),
            Input::PingTick(conn) => {
                if self.relays[r].sessions.values().any(|s| s.conn == Some(conn)) {
                    self.live_ping(conn, 1);
                    self.input_at(self.now.plus(PING_INTERVAL), Who::Relay(r), Input::PingTick(conn));
                }
            }
            Input::Gone(number) => self.remove_session(r, number),
            Input::PolicyChanged => {
                let version = self.relays[r].host.policy.version;
                self.note(format_args!("relay {r}: policy {version}"));
                self.sweep(r);
            }
            Input::Sweep => {
                self.sweep(r);
                self.input_at(self.now.plus(SWEEP_EVERY), Who::Relay(r), Input::Sweep);
            }
            Input::NodeControl(..)
            | Input::NodeLive(..)
            | Input::Dial(..)
            | Input::Waited(..)
            | Input::Knock(..)
            | Input::Knocked(..)
            | Input::Attempt(_)
            | Input::Farewell => panic!("not for a relay"),
        }
    }

    /// Drops what policy does not want, and tells who held it.
    fn sweep(&mut self, r: usize) {
        let (now, relay) = (self.now, &mut self.relays[r]);
        let policy = &relay.host.policy;
        let keep = |endpoint, node, generation| policy.admits(r, node, endpoint, generation);
        let dropped = relay.registry.retain(now, keep);
        relay.model.retain(now, keep);
        relay.touched = true;
        relay
            .handshakes
            .retain(|_, handshake| now < handshake.since.plus(HANDSHAKE_MAX));
        if self.mutation == Some(Mutation::SilentSweeps) {
            return;
        }
        for (number, held) in dropped {
            self.withdraw(r, number, held);
        }
    }

    fn withdraw(&mut self, r: usize, number: u64, held: Register) {
        let session = self.relays[r].sessions.get_mut(&number);
        if let Some(session) = session.filter(|s| !s.closed) {
            let told = session
                .control
                .refuse(held, Refusal::from(RefusalCode::RegistrationMismatch));
            told.expect("the outbox is drained");
            self.settle_relay(r, number);
        }
    }

    fn relay_datagram(&mut self, r: usize, datagram: Datagram) {
        let Who::Node(n) = datagram.from else { return };
        let (carrier, now) = (datagram.carrier, self.now);
        let known = self.relays[r].number(carrier);
        let me = Who::Relay(r);
        match (datagram.body, known) {
            (Body::Initial, None) => {
                let relay = &mut self.relays[r];
                // One that was forgotten has other keys the second time: what its node said to the
                // first completes nothing.
                if !relay.handshakes.contains_key(&carrier) && !relay.dialled.insert(carrier) {
                    return;
                }
                let number = relay.last + 1;
                let handshake = relay.handshakes.entry(carrier).or_insert(Handshake {
                    node: n,
                    node_run: datagram.run,
                    since: now,
                    number,
                });
                relay.last = relay.last.max(handshake.number);
                self.say(me, datagram.from, carrier, Body::Reply);
            }
            (Body::Initial, Some(_)) => self.say(me, datagram.from, carrier, Body::Reply),
            (Body::Reply, _) => panic!("a node does not answer dials"),
            (Body::Close(_) | Body::Reset, None) => {
                self.relays[r].handshakes.remove(&carrier);
            }
            (Body::Close(_) | Body::Reset, Some(number)) => {
                self.end_relay_session(r, number, "closed by the node")
            }
            (
                Body::Data {
                    first,
                    frames,
                    ack,
                    asks,
                    answers,
                },
                known,
            ) => {
                let number = known.or_else(|| self.add_session(r, carrier));
                let Some(number) = number else {
                    self.say(me, datagram.from, carrier, Body::Reset);
                    return;
                };
                self.read(carrier, 1);
                let fresh = self.relays[r]
                    .sessions
                    .get_mut(&number)
                    .unwrap()
                    .end
                    .receive(now, first, frames, ack, answers);
                for frame in fresh {
                    self.relay_frame(r, number, frame);
                }
                if asks && let Some(s) = self.relays[r].sessions.get_mut(&number).filter(|s| !s.closed) {
                    let body = s.end.body(now, false);
                    self.say(me, datagram.from, carrier, body);
                }
                self.settle_relay(r, number);
            }
        }
    }

    /// A handshake is complete.
    fn add_session(&mut self, r: usize, carrier: CarrierId) -> Option<u64> {
        let now = self.now;
        let Handshake {
            node,
            node_run,
            number,
            ..
        } = self.relays[r].handshakes.remove(&carrier)?;
        let same = self.relays[r].sessions.iter().filter(|(_, s)| s.node == node);
        let same: Vec<u64> = same.map(|(number, _)| *number).collect();
        if same.len() >= SESSIONS_PER_NODE_MAX {
            self.close_carrier(r, same[0], RefusalCode::TooMany);
        }
        let rtt = self.rtt(node, r);
        let run = self.relays[r].host.run;
        let laden = self.plan.laden;
        let relay = &mut self.relays[r];
        let session = RelaySession {
            node,
            node_run,
            end: End::new(carrier, KEEP_ALIVE, laden, rtt, now),
            control: RelayControl::new(RelayId::from_bytes([r as u8 + 1; 16]), boot_id(run), 100),
            live: RelayLiveness::new(1, now),
            conn: None,
            greeted: None,
            restarting: false,
            closed: false,
            since: now,
            timer: Timer::default(),
        };
        relay.sessions.insert(number, session);
        self.note(format_args!(
            "relay {r}: session {number} of node {node} on carrier {carrier}"
        ));
        Some(number)
    }

    fn relay_frame(&mut self, r: usize, number: u64, frame: Frame) {
        let Some(session) = self.relays[r].sessions.get_mut(&number).filter(|s| !s.closed) else {
            return;
        };
        let event = session.control.handle_frame(frame);
        match event.expect("an honest node broke the protocol") {
            None => {}
            Some(RelayEvent::Hello(hello)) => self.greeted(r, number, &hello),
            Some(RelayEvent::Register(register)) => self.register(r, number, register),
            Some(RelayEvent::Unregister(register)) => {
                let relay = &mut self.relays[r];
                let mut given = register;
                if let Some((of, epoch)) = relay.false_epochs.get(&register.endpoint)
                    && *of == number
                {
                    given.epoch = *epoch;
                }
                let removed = relay.registry.unregister(number, given);
                let expected = relay.model.goodbye(number, register);
                assert_eq!(removed, expected, "R-ADM-04: what a goodbye removes");
                relay.touched = true;
            }
            Some(RelayEvent::Restarting) => {
                let (now, relay) = (self.now, &mut self.relays[r]);
                relay.sessions.get_mut(&number).unwrap().restarting = true;
                relay.registry.announce_restart(number, now);
                relay.model.announced(number, now);
                relay.touched = true;
                self.note(format_args!("relay {r}: session {number} restarts"));
            }
            Some(RelayEvent::Closed(_)) => self.end_relay_session(r, number, "closed by the node"),
        }
    }

    fn greeted(&mut self, r: usize, number: u64, hello: &Hello) {
        let now = self.now;
        let relay = &mut self.relays[r];
        let session = relay.sessions.get_mut(&number).unwrap();
        let (node, run) = (session.node, session.node_run);
        session.greeted = Some((hello.session, hello.process_boot));
        let sessions = &relay.sessions;
        let lives = |boot| {
            let mut of = sessions.values().filter(|s| s.node == node);
            of.any(|s| s.greeted.is_some_and(|(_, its)| its == boot))
        };
        let runs = relay.runs.entry(node).or_default();
        let verdict = runs.hello(hello.process_boot, number, run, false, now, lives);
        if verdict == RunVerdict::Late {
            return self.close_carrier(r, number, RefusalCode::ShuttingDown);
        }
        assert_eq!(verdict, RunVerdict::Alone, "H6: a restart was taken for a copy");
        let dead: Vec<u64> = relay
            .sessions
            .range(..number)
            .filter(|(_, s)| {
                let other = s.greeted.is_some_and(|(_, boot)| boot != hello.process_boot);
                s.node == node && !s.restarting && other
            })
            .map(|(number, _)| *number)
            .collect();
        for earlier in dead {
            self.close_carrier(r, earlier, RefusalCode::ShuttingDown);
        }
    }

    fn register(&mut self, r: usize, number: u64, register: Register) {
        let mutation = self.mutation;
        let relay = &mut self.relays[r];
        let node = relay.sessions[&number].node;
        let admitted = relay
            .host
            .policy
            .admits(r, node_id(node), register.endpoint, register.generation);
        let result = if admitted {
            let mut given = register;
            if mutation == Some(Mutation::EpochsIgnored) {
                let last = relay.false_epochs.get(&register.endpoint);
                given.epoch = last.map_or(register.epoch, |(_, last)| last.next());
                relay
                    .false_epochs
                    .insert(register.endpoint, (number, given.epoch));
            }
            let result = relay.registry.register(number, node_id(node), given);
            relay
                .model
                .registered(number, node_id(node), register, result.is_ok());
            result
        } else {
            Err(RegistryFault::OtherNode)
        };
        relay.touched = true;
        let control = &mut relay.sessions.get_mut(&number).unwrap().control;
        let answer = match result {
            Ok(_) => control.registered(register),
            Err(_) => control.refuse(register, Refusal::from(RefusalCode::RegistrationMismatch)),
        };
        answer.expect("the outbox is drained");
        let Register {
            endpoint,
            generation,
            epoch,
        } = register;
        self.note(format_args!(
            "relay {r}: session {number} registers {endpoint} {generation} {epoch}: {}",
            if result.is_ok() { "taken" } else { "refused" }
        ));
        if let Ok(registered) = result
            && let Some((before, held)) = registered.replaced
        {
            self.replaced(r, node, before, held);
        }
    }

    /// The session that served before is closed, if it is the node's own, else told.
    fn replaced(&mut self, r: usize, node: usize, before: u64, held: Register) {
        let of = self.relays[r].sessions.get(&before).map(|s| s.node);
        if of == Some(node) {
            self.close_carrier(r, before, RefusalCode::ShuttingDown);
        } else {
            self.withdraw(r, before, held);
        }
    }

    fn relay_carrier_timer(&mut self, r: usize, number: u64) {
        let now = self.now;
        let session = self.relays[r].sessions.get_mut(&number).unwrap();
        if !session.end.timer.fires(now) {
            return;
        }
        let (carrier, node) = (session.end.carrier, session.node);
        if session.end.is_idle(now) {
            self.end_relay_session(r, number, "idle");
            return;
        }
        if session.greeted.is_none() && now >= session.since.plus(HANDSHAKE_MAX) {
            self.end_relay_session(r, number, "no greeting");
            return;
        }
        if let Some(body) = session.end.due(now) {
            self.say(Who::Relay(r), Who::Node(node), carrier, body);
        }
        self.settle_relay(r, number);
    }

    fn relay_live_timer(&mut self, r: usize, number: u64) {
        let (now, mutation) = (self.now, self.mutation);
        let missed = self.relays[r].host.missed_looks(now);
        let Some(session) = self.relays[r].sessions.get_mut(&number).filter(|s| !s.closed) else {
            return;
        };
        if session.timer.fires(now) {
            let (received, rtt) = (session.end.passed().received_bytes, session.end.rtt);
            if mutation == Some(Mutation::PausesCount) {
                missed.for_each(|at| session.live.datagrams(received, rtt, at));
            }
            session.live.datagrams(received, rtt, now);
            session.live.handle_timeout(now);
            self.settle_relay(r, number);
        }
    }

    fn relay_live(&mut self, r: usize, id: ConnId, input: LiveInput) {
        let now = self.now;
        let mutation = self.mutation;
        let bound = self.relays[r]
            .sessions
            .iter()
            .find(|(_, s)| s.conn == Some(id) && !s.closed);
        let bound = bound.map(|(number, _)| *number);
        match (input, bound) {
            (LiveInput::Message(LiveMessage::Bind(session)), None) => self.bind(r, id, session),
            (LiveInput::Message(LiveMessage::Ping(n)), _) => self.live_say(id, 1, LiveMessage::Pong(n)),
            // What a node does not answer is the node's load.
            (LiveInput::Message(LiveMessage::Pong(_)), _) => {}
            (LiveInput::Ended(cause), Some(number)) => {
                let session = self.relays[r].sessions.get_mut(&number).unwrap();
                session.conn = None;
                session
                    .live
                    .datagrams(session.end.passed().received_bytes, session.end.rtt, now);
                session.live.lost(cause, now);
                self.live_close(id, 1);
                self.note(format_args!(
                    "relay {r}: liveness connection of session {number} lost: {cause:?}"
                ));
                if mutation == Some(Mutation::LivenessAlone) {
                    self.check_relay_verdict(r, number, Death::ProcessGone);
                    self.end_relay_session(r, number, "dead");
                }
                self.settle_relay(r, number);
            }
            (LiveInput::Ended(_), None) => self.live_close(id, 1),
            (LiveInput::Message(_) | LiveInput::Taken | LiveInput::Failed(_), _) => panic!("not for a relay"),
        }
    }

    fn bind(&mut self, r: usize, id: ConnId, wanted: SessionId) {
        let now = self.now;
        let boot = boot_id(self.relays[r].host.run);
        let Some((node, _)) = self.conns.get(&id).map(|c| c.pair) else {
            return;
        };
        let named = self.relays[r]
            .sessions
            .iter_mut()
            .find(|(_, s)| s.node == node && s.greeted.is_some_and(|(session, _)| session == wanted));
        let Some((&number, session)) = named.filter(|(_, s)| !s.closed) else {
            self.live_say(id, 1, LiveMessage::Refused(BindRefusal::NoSession, boot));
            self.live_close(id, 1);
            return;
        };
        let before = session.conn.replace(id);
        session
            .live
            .datagrams(session.end.passed().received_bytes, session.end.rtt, now);
        if self.mutation != Some(Mutation::QuicAlone) {
            session.live.bound();
        }
        if let Some(before) = before {
            self.live_close(before, 1);
        }
        self.live_say(id, 1, LiveMessage::Bound(boot));
        self.input_at(now, Who::Relay(r), Input::PingTick(id));
        self.settle_relay(r, number);
    }

    /// Does all that the machines of a session want.
    fn settle_relay(&mut self, r: usize, number: u64) {
        let now = self.now;
        let Some(session) = self.relays[r].sessions.get_mut(&number).filter(|s| !s.closed) else {
            return;
        };
        while let Some(action) = session.live.poll_action() {
            match action {
                RelayAction::Probe => session.control.probe().expect("the outbox is drained"),
                RelayAction::Dead(death) => {
                    self.check_relay_verdict(r, number, death);
                    self.end_relay_session(r, number, "dead");
                    return;
                }
            }
        }
        let mut news = false;
        while let Some(frame) = session.control.poll_transmit() {
            session.end.pipe.push(frame);
            news = true;
        }
        let (carrier, node) = (session.end.carrier, session.node);
        let body = if news { session.end.news(now) } else { None };
        let (wake, look) = (session.end.wake(), session.live.poll_timeout(now));
        if let Some(body) = body {
            self.say(Who::Relay(r), Who::Node(node), carrier, body);
        }
        let who = Who::Relay(r);
        self.arm(who, wake, Input::Carrier(carrier), |w| {
            w.relays[r].sessions.get_mut(&number).map(|s| &mut s.end.timer)
        });
        if let Some(at) = look {
            self.arm(who, at, Input::RelayLive(number), |w| {
                w.relays[r].sessions.get_mut(&number).map(|s| &mut s.timer)
            });
        }
    }

    /// Closes a session's carrier; its task takes it off soon.
    fn close_carrier(&mut self, r: usize, number: u64, code: RefusalCode) {
        let Some(session) = self.relays[r].sessions.get_mut(&number).filter(|s| !s.closed) else {
            return;
        };
        session.closed = true;
        let (carrier, node) = (session.end.carrier, session.node);
        self.say(Who::Relay(r), Who::Node(node), carrier, Body::Close(code));
        self.end_gone(carrier, 1);
        let at = self.now.plus(ms(self.rng.u64(0..=3)));
        self.input_at(at, Who::Relay(r), Input::Gone(number));
        self.note(format_args!("relay {r}: session {number} closed: {code}"));
    }

    fn end_relay_session(&mut self, r: usize, number: u64, why: &str) {
        self.note(format_args!("relay {r}: session {number} over: {why}"));
        self.close_carrier(r, number, RefusalCode::ShuttingDown);
        self.remove_session(r, number);
    }

    fn remove_session(&mut self, r: usize, number: u64) {
        let now = self.now;
        let mutation = self.mutation;
        let relay = &mut self.relays[r];
        let Some(session) = relay.sessions.remove(&number) else {
            return;
        };
        let restarting = session.restarting && mutation != Some(Mutation::RestartsForgotten);
        if mutation == Some(Mutation::LateGoodbyes) {
            relay.remove_all_of(session.node, now);
        }
        relay.registry.session_ended(number, restarting, now);
        relay.model.ended(number, session.restarting);
        relay.touched = true;
        if let Some(conn) = session.conn {
            self.live_close(conn, 1);
        }
    }
}

impl Relay {
    /// What a relay would do that takes a goodbye for the node's and not for the session's.
    fn remove_all_of(&mut self, node: usize, now: MonoTime) {
        let keep = |_: EndpointId, of, _| of != node_id(node);
        self.registry.retain(now, keep);
    }
}

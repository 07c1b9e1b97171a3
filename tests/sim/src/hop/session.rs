//! A daemon's hop session to one relay, from its dial to its end.

use super::Mutation;
use super::carrier::{Body, CarrierId, Datagram, End};
use super::kernel::{ConnId, LiveInput};
use super::node::{Dialling, Phase};
use super::plan::ms;
use super::world::{Input, Timer, Truth, Who, World};
use fairlead_hop::liveness::{
    AttemptFailure, Death, LiveMessage, LostCause, NODE_KEEP_ALIVE, NodeAction, NodeLiveness, PING_INTERVAL,
};
use fairlead_hop::{NodeControl, NodeControlConfig, NodeEvent};
use fairlead_model::{MonoTime, ProcessBootId, RefusalCode, RegistrationBoot, SessionId};
use std::time::Duration;

/// How long a relay's process may take for its part of a liveness connection's handshake.
const SERVE_MAX: Duration = Duration::from_secs(3);

pub(super) struct Session {
    pub(super) end: End,
    pub(super) id: SessionId,
    pub(super) control: NodeControl,
    pub(super) live: Option<NodeLiveness>,
    /// The liveness connection that stands.
    pub(super) conn: Option<ConnId>,
    attempt: Option<ConnId>,
    /// The dial beside it.
    pub(super) beside: Option<Dialling>,
    control_timer: Timer,
    live_timer: Timer,
    pub(super) since: MonoTime,
    /// The daemon goes: it has announced its restart.
    pub(super) leaving: bool,
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The carrier ended.
    Carrier,
    /// The relay said so.
    Closed(RefusalCode),
    Dead(Death),
    /// Another carrier has taken its place.
    Overtaken,
    /// The machine found a fault.
    Fault,
    /// The relay left the policy, the daemon stops, or the simulator wants it.
    Dropped,
}

pub(super) fn boot_id(run: u64) -> ProcessBootId {
    ProcessBootId::from_bytes(u128::from(run).to_be_bytes())
}

impl World<'_> {
    pub(super) fn session(&mut self, n: usize, r: usize) -> Option<&mut Session> {
        match &mut self.nodes[n].links.get_mut(&r)?.phase {
            Phase::Session(session) => Some(session),
            Phase::Waiting(_) | Phase::Dialling(_) => None,
        }
    }

    fn session_of(&mut self, n: usize, r: usize, carrier: CarrierId) -> Option<&mut Session> {
        self.session(n, r).filter(|s| s.end.carrier == carrier)
    }

    /// The relay answered a dial.
    pub(super) fn carrier_up(&mut self, n: usize, r: usize, carrier: CarrierId, number: u32, relay_run: u64) {
        let now = self.now;
        let id = SessionId::from_bytes(u128::from(self.name()).to_be_bytes());
        let run = self.nodes[n].host.run;
        let config = NodeControlConfig {
            session: id,
            process_boot: boot_id(run),
            boot: RegistrationBoot::new(self.nodes[n].boot),
            session_number: number,
            software: String::new(),
        };
        let session = Session {
            end: End::new(carrier, NODE_KEEP_ALIVE, self.plan.laden, self.rtt(n, r), now),
            id,
            control: NodeControl::new(config, now),
            live: None,
            conn: None,
            attempt: None,
            beside: None,
            control_timer: Timer::default(),
            live_timer: Timer::default(),
            since: now,
            leaving: false,
        };
        let truth = Truth {
            pair: (n, r),
            runs: [run, relay_run],
            arrived: [now; 2],
            read: [now; 2],
            unread: [None; 2],
            gone: [None; 2],
            stood: [false; 2],
        };
        self.truths.insert(carrier, truth);
        // A worker that answered may be gone since.
        if self.relays[r].host.run != relay_run {
            self.end_gone(carrier, 1);
        }
        self.note(format_args!(
            "node {n}: carrier {carrier} to relay {r}, session {number}"
        ));
        self.nodes[n].links.get_mut(&r).unwrap().phase = Phase::Session(Box::new(session));
        self.publish(n, r);
    }

    /// What the policy wants is registered.
    pub(super) fn publish(&mut self, n: usize, r: usize) {
        let (now, wanted) = (self.now, self.nodes[n].host.policy.publications(n, r));
        if let Some(session) = self.session(n, r) {
            session.control.set_publications(&wanted, now);
            self.settle_node(n, r);
        }
    }

    pub(super) fn node_datagram(&mut self, n: usize, datagram: Datagram) {
        let Who::Relay(r) = datagram.from else { return };
        let (carrier, now) = (datagram.carrier, self.now);
        let known = self.session_of(n, r, carrier).is_some();
        match datagram.body {
            Body::Initial => {}
            Body::Reply => self.dialled(n, r, carrier, datagram.run),
            Body::Close(code) if known => self.end_session(n, r, SessionEnd::Closed(code)),
            Body::Reset if known => self.end_session(n, r, SessionEnd::Carrier),
            Body::Close(_) | Body::Reset => {}
            Body::Data { .. } if !known => self.say(Who::Node(n), datagram.from, carrier, Body::Reset),
            Body::Data {
                first,
                frames,
                ack,
                asks,
                answers,
            } => {
                self.read(carrier, 0);
                let session = self.session(n, r).unwrap();
                let leaving = session.leaving;
                for frame in session.end.receive(now, first, frames, ack, answers) {
                    // One that says goodbye listens no more.
                    if !leaving && session.control.handle_frame(frame, now).is_err() {
                        self.end_session(n, r, SessionEnd::Fault);
                        return;
                    }
                    // After every input, as the machine wants it.
                    while let Some(answer) = session.control.poll_transmit() {
                        session.end.pipe.push(answer);
                    }
                }
                if asks {
                    let body = session.end.body(now, false);
                    self.say(Who::Node(n), Who::Relay(r), carrier, body);
                }
                let session = self.session(n, r).unwrap();
                if session.leaving && session.end.pipe.is_acked() {
                    self.end_session(n, r, SessionEnd::Dropped);
                    self.left(n);
                    return;
                }
                self.settle_node(n, r);
            }
        }
    }

    pub(super) fn say(&mut self, from: Who, to: Who, carrier: CarrierId, body: Body) {
        let run = self.host(from).run;
        self.send(Datagram {
            from,
            to,
            run,
            carrier,
            body,
        });
    }

    pub(super) fn node_carrier_timer(&mut self, n: usize, carrier: CarrierId) {
        let now = self.now;
        for r in 0..self.plan.relays {
            let Some(session) = self.session_of(n, r, carrier) else {
                continue;
            };
            if !session.end.timer.fires(now) {
                return;
            }
            if session.end.is_idle(now) {
                self.end_session(n, r, SessionEnd::Carrier);
                return;
            }
            if let Some(body) = session.end.due(now) {
                self.say(Who::Node(n), Who::Relay(r), carrier, body);
            }
            self.settle_node(n, r);
        }
    }

    pub(super) fn node_control_timer(&mut self, n: usize, r: usize, carrier: CarrierId) {
        let now = self.now;
        let Some(session) = self.session_of(n, r, carrier) else {
            return;
        };
        if !session.control_timer.fires(now) || session.leaving {
            return;
        }
        match session.control.handle_timeout(now) {
            Ok(()) => self.settle_node(n, r),
            Err(_) => self.end_session(n, r, SessionEnd::Fault),
        }
    }

    pub(super) fn node_live_timer(&mut self, n: usize, r: usize, carrier: CarrierId) {
        let (now, mutation) = (self.now, self.mutation);
        let missed = self.nodes[n].host.missed_looks(now);
        let Some(session) = self.session_of(n, r, carrier) else {
            return;
        };
        if !session.live_timer.fires(now) {
            return;
        }
        if let Some(live) = &mut session.live {
            let passed = session.end.passed();
            if mutation == Some(Mutation::PausesCount) {
                missed.for_each(|at| live.datagrams(passed, at));
            }
            live.datagrams(passed, now);
            live.handle_timeout(now);
            self.settle_node(n, r);
        }
    }

    /// Does all that the machines of a session want.
    pub(super) fn settle_node(&mut self, n: usize, r: usize) {
        let now = self.now;
        loop {
            let Some(session) = self.session(n, r) else {
                return;
            };
            let mut news = false;
            while let Some(frame) = session.control.poll_transmit() {
                session.end.pipe.push(frame);
                news = true;
            }
            if news {
                let carrier = session.end.carrier;
                if let Some(body) = session.end.news(now) {
                    self.say(Who::Node(n), Who::Relay(r), carrier, body);
                }
                continue;
            }
            if let Some(event) = session.control.poll_event() {
                self.node_event(n, r, event);
                continue;
            }
            let action = session.live.as_mut().and_then(NodeLiveness::poll_action);
            let Some(action) = action else { break };
            match action {
                NodeAction::Probe => session.control.probe(now),
                NodeAction::Connect(limit) => {
                    assert!(session.attempt.is_none(), "one attempt at a time");
                    let conn = self.live_connect(n, r);
                    let session = self.session(n, r).unwrap();
                    session.attempt = Some(conn);
                    self.input_at(now.plus(limit), Who::Node(n), Input::Attempt(conn));
                }
                NodeAction::OnlyQuic => {}
                NodeAction::DialBeside if self.mutation == Some(Mutation::NeverBeside) => {}
                NodeAction::DialBeside => self.dial_beside(n, r),
                NodeAction::GiveUpBeside => self.give_up_beside(n, r),
                NodeAction::Dead(death) => {
                    self.check_node_verdict(n, r, death);
                    self.end_session(n, r, SessionEnd::Dead(death));
                    return;
                }
            }
        }
        let Some(session) = self.session(n, r) else {
            return;
        };
        let carrier = session.end.carrier;
        let wakes = (session.end.wake(), session.control.poll_timeout());
        let live = session.live.as_ref().and_then(|l| l.poll_timeout(now));
        let who = Who::Node(n);
        let input = Input::Carrier(carrier);
        self.arm(who, wakes.0, input, |w| w.session(n, r).map(|s| &mut s.end.timer));
        if let Some(at) = wakes.1 {
            let input = Input::NodeControl(r, carrier);
            self.arm(who, at, input, |w| w.session(n, r).map(|s| &mut s.control_timer));
        }
        if let Some(at) = live {
            let input = Input::NodeLive(r, carrier);
            self.arm(who, at, input, |w| w.session(n, r).map(|s| &mut s.live_timer));
        }
    }

    fn node_event(&mut self, n: usize, r: usize, event: NodeEvent) {
        let now = self.now;
        match event {
            NodeEvent::Established { relay_boot, .. } => {
                let session = self.session(n, r).unwrap();
                session.live = Some(NodeLiveness::new(relay_boot, session.end.passed(), now));
                self.nodes[n].links.get_mut(&r).unwrap().established();
                self.note(format_args!("node {n}: established at relay {r}"));
            }
            NodeEvent::Registered { endpoint, generation } => {
                self.note(format_args!(
                    "node {n}: {endpoint} {generation} registered at relay {r}"
                ));
            }
            NodeEvent::RegisterRefused { endpoint, code, .. } => {
                self.note(format_args!("node {n}: {endpoint} refused at relay {r}: {code}"));
            }
            NodeEvent::DrainNotice | NodeEvent::Rtt(_) => {}
            NodeEvent::Closed { code } => self.end_session(n, r, SessionEnd::Closed(code)),
        }
    }

    /// What a node's process learns of a liveness connection.
    pub(super) fn node_live(&mut self, n: usize, id: ConnId, input: LiveInput) {
        let now = self.now;
        let mutation = self.mutation;
        let Some(r) = self
            .conns
            .get(&id)
            .map(|c| c.pair.1)
            .or_else(|| self.link_of_conn(n, id))
        else {
            return;
        };
        let of_session = |s: &&mut Session| s.attempt == Some(id) || s.conn == Some(id);
        let Some(session) = self.session(n, r).filter(of_session) else {
            self.live_close(id, 0);
            return;
        };
        let Some(live) = &mut session.live else { return };
        live.datagrams(session.end.passed(), now);
        let is_attempt = session.attempt == Some(id);
        match input {
            LiveInput::Taken => {
                let bind = LiveMessage::Bind(session.id);
                self.live_say(id, 0, bind);
                self.input_at(now.plus(SERVE_MAX), Who::Node(n), Input::Attempt(id));
            }
            LiveInput::Message(LiveMessage::Bound(boot)) if is_attempt => {
                session.attempt = None;
                session.conn = Some(id);
                if mutation != Some(Mutation::QuicAlone) {
                    live.bound(boot);
                }
                self.input_at(now, Who::Node(n), Input::PingTick(id));
            }
            LiveInput::Message(LiveMessage::Refused(why, boot)) if is_attempt => {
                session.attempt = None;
                live.refused(why, boot, now);
                self.live_close(id, 0);
            }
            LiveInput::Message(LiveMessage::Ping(number)) => self.live_say(id, 0, LiveMessage::Pong(number)),
            LiveInput::Message(LiveMessage::Pong(number)) => {
                if self.conns.contains_key(&id) {
                    let left = self.live_answered(id, 0, number);
                    let live = self.session(n, r).and_then(|s| s.live.as_mut());
                    live.unwrap().pings(left);
                }
            }
            LiveInput::Message(_) => panic!("not a message of a relay's"),
            LiveInput::Failed(failure) => self.attempt_failed(n, r, failure),
            LiveInput::Ended(cause) if is_attempt => {
                let failure = match cause {
                    LostCause::Unacknowledged => AttemptFailure::NoAnswer,
                    LostCause::Closed | LostCause::Protocol => AttemptFailure::Cut,
                };
                self.attempt_failed(n, r, failure);
            }
            LiveInput::Ended(cause) => {
                session.conn = None;
                live.lost(cause, now);
                self.live_close(id, 0);
                self.note(format_args!(
                    "node {n}: liveness connection to relay {r} lost: {cause:?}"
                ));
                if mutation == Some(Mutation::LivenessAlone) {
                    self.check_node_verdict(n, r, Death::ProcessGone);
                    self.end_session(n, r, SessionEnd::Dead(Death::ProcessGone));
                    return;
                }
            }
        }
        self.settle_node(n, r);
    }

    /// An input of the verdict's machine, and what follows.
    pub(super) fn after_live(&mut self, n: usize, r: usize, input: impl FnOnce(&mut NodeLiveness, MonoTime)) {
        let now = self.now;
        let session = self.session(n, r).unwrap();
        let live = session.live.as_mut().unwrap();
        live.datagrams(session.end.passed(), now);
        input(live, now);
        self.settle_node(n, r);
    }

    fn link_of_conn(&mut self, n: usize, id: ConnId) -> Option<usize> {
        (0..self.plan.relays).find(|r| {
            self.session(n, *r)
                .is_some_and(|s| s.attempt == Some(id) || s.conn == Some(id))
        })
    }

    fn attempt_failed(&mut self, n: usize, r: usize, failure: AttemptFailure) {
        let now = self.now;
        let session = self.session(n, r).unwrap();
        let conn = session.attempt.take();
        let live = session.live.as_mut().unwrap();
        live.datagrams(session.end.passed(), now);
        live.attempt_failed(failure, now);
        if let Some(conn) = conn {
            self.live_close(conn, 0);
        }
    }

    /// An attempt's limit: the host's to take it, or the process's to answer.
    pub(super) fn attempt_limit(&mut self, n: usize, id: ConnId) {
        let Some(r) = self.link_of_conn(n, id) else { return };
        let session = self.session(n, r).unwrap();
        if session.attempt != Some(id) {
            return;
        }
        // Of one that is over the process is about to learn.
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let (taken, last) = (conn.is_taken(), conn.limit_passed());
        if taken && !last {
            return;
        }
        let failure = if taken {
            AttemptFailure::Unserved
        } else {
            AttemptFailure::NoAnswer
        };
        self.attempt_failed(n, r, failure);
        self.settle_node(n, r);
    }

    pub(super) fn node_ping(&mut self, n: usize, id: ConnId) {
        let now = self.now;
        let Some(r) = self.link_of_conn(n, id) else { return };
        if !self.conns.contains_key(&id) {
            return;
        }
        self.live_ping(id, 0);
        let left = self.live_unanswered(id, 0);
        let session = self.session(n, r).unwrap();
        if let Some(live) = &mut session.live {
            live.datagrams(session.end.passed(), now);
            live.pings(left);
        }
        self.input_at(now.plus(PING_INTERVAL), Who::Node(n), Input::PingTick(id));
        self.settle_node(n, r);
    }

    /// A session is over: the relay is told, once, and the daemon comes back after a while.
    pub(super) fn end_session(&mut self, n: usize, r: usize, why: SessionEnd) {
        let Some(session) = self.session(n, r) else { return };
        let (carrier, established) = (session.end.carrier, session.live.is_some());
        let conns = [session.conn, session.attempt];
        let beside = session.beside.map(|dial| dial.carrier);
        self.note(format_args!("node {n}: session at relay {r} over: {why:?}"));
        for carrier in [Some(carrier), beside].into_iter().flatten() {
            self.say_close(n, r, carrier);
        }
        self.end_gone(carrier, 0);
        for conn in conns.into_iter().flatten() {
            self.live_close(conn, 0);
        }
        assert!(
            why != SessionEnd::Closed(RefusalCode::IdentityInUse),
            "H6: a restart was taken for a copy"
        );
        assert!(
            why != SessionEnd::Fault || !established,
            "an honest relay broke the protocol"
        );
        let at_once = why == SessionEnd::Dead(Death::OtherBoot);
        self.wait(n, r, at_once.then(|| ms(0)));
    }
}

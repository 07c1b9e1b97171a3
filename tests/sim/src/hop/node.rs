//! Node daemons: their starts and ends, and how they come back to each relay (R-NOD-01).

use super::carrier::{Body, CarrierId};
use super::plan::ms;
use super::session::{Session, SessionEnd};
use super::world::{Host, Input, Who, World};
use fairlead_model::{MonoTime, RefusalCode};
use std::collections::BTreeMap;
use std::time::Duration;

/// Waits between dials, as the daemon has them.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(15);
/// A dial's first packet goes out this often, for so long.
const DIAL_AGAIN: Duration = Duration::from_millis(500);
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Waits between knocks at a closed port, and at one that is open.
const KNOCK_FIRST: Duration = Duration::from_millis(25);
const KNOCK_LONGEST: Duration = Duration::from_secs(1);
const KNOCK_OPEN: Duration = Duration::from_secs(5);
/// How long a knock may take.
const KNOCK_MAX: Duration = Duration::from_millis(500);
/// How long a stopping daemon waits for its goodbye to be taken.
const FAREWELL_MAX: Duration = Duration::from_millis(300);

pub(super) struct Node {
    pub(super) host: Host,
    /// On disk: how often the daemon has started, or the wall clock at a start without the file.
    pub(super) boot: u32,
    pub(super) lost_boot_file: bool,
    /// Seconds that the wall clock is ahead of the simulated time's start.
    pub(super) wall: i64,
    sessions: u32,
    pub(super) links: BTreeMap<usize, Link>,
    /// The version of the policy that it has followed last.
    pub(super) followed: u64,
    leaving: bool,
    /// How long it stays away once it has left.
    away: Duration,
    /// When it last gave a session up of its own accord.
    pub(super) dropped: MonoTime,
}

pub(super) enum Phase {
    /// Until the wait of this name is over.
    Waiting(u64),
    Dialling(Dialling),
    Session(Box<Session>),
}

/// A dial under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialling {
    pub(super) carrier: CarrierId,
    since: MonoTime,
}

/// How one relay is reached.
pub(super) struct Link {
    pub(super) phase: Phase,
    /// Since when the policy wants it.
    pub(super) since: MonoTime,
    step: Duration,
    /// The knocking that counts.
    knock: u64,
    closed: bool,
    knock_wait: Duration,
}

impl Link {
    pub(super) const fn established(&mut self) {
        self.step = RETRY_FIRST;
        self.closed = false;
        self.knock_wait = KNOCK_FIRST;
    }
}

impl Node {
    pub(super) const fn new(host: Host) -> Self {
        Self {
            host,
            boot: 0,
            lost_boot_file: false,
            wall: 1_700_000_000,
            sessions: 0,
            links: BTreeMap::new(),
            followed: 0,
            leaving: false,
            away: Duration::ZERO,
            dropped: MonoTime(0),
        }
    }

    pub(super) const fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Does not stay away for long.
    pub(super) const fn hurry(&mut self) {
        self.away = Duration::ZERO;
    }

    /// Whether a liveness connection stands for the session on this carrier.
    pub(super) fn stands(&self, r: usize, carrier: CarrierId) -> bool {
        match self.links.get(&r).map(|l| &l.phase) {
            Some(Phase::Session(s)) => s.end.carrier == carrier && s.conn.is_some(),
            Some(Phase::Waiting(_) | Phase::Dialling(_)) | None => false,
        }
    }
}

impl World<'_> {
    pub(super) fn start(&mut self, who: Who) {
        if self.host(who).run != 0 {
            return;
        }
        let run = self.name();
        let now = self.now;
        let host = self.host_mut(who);
        host.up = true;
        host.run = run;
        host.started = now;
        host.frozen_until = MonoTime(0);
        host.deaf_until = MonoTime(0);
        self.note(format_args!("{who:?} starts: run {run}"));
        match who {
            Who::Node(n) => {
                let seconds = i64::try_from(self.now.0 / 1_000_000_000).unwrap();
                let node = &mut self.nodes[n];
                let wall = u32::try_from(node.wall + seconds).unwrap();
                let known = if std::mem::take(&mut node.lost_boot_file) {
                    0
                } else {
                    node.boot
                };
                node.boot = (known + 1).max(wall);
                node.sessions = 0;
                node.leaving = false;
                self.follow(n);
            }
            Who::Relay(r) => self.relay_starts(r),
        }
    }

    /// A process is gone, its host with it if `silently`.
    pub(super) fn kill(&mut self, who: Who, silently: bool) {
        if self.host(who).run == 0 {
            return;
        }
        self.note(format_args!("{who:?} is gone"));
        let side = usize::from(matches!(who, Who::Relay(_)));
        let mine: Vec<CarrierId> = self
            .truths
            .iter()
            .filter(|(_, t)| match who {
                Who::Node(n) => t.pair.0 == n,
                Who::Relay(r) => t.pair.1 == r,
            })
            .map(|(id, _)| *id)
            .collect();
        for carrier in mine {
            self.end_gone(carrier, side);
        }
        self.live_orphans(who, silently);
        let now = self.now;
        let host = self.host_mut(who);
        if host.is_frozen(now) {
            host.stopped = now;
            if silently {
                host.mute = now;
            }
        }
        host.run = 0;
        host.up = !silently;
        match who {
            Who::Node(n) => self.nodes[n].links.clear(),
            Who::Relay(r) => self.relays[r].forget(),
        }
    }

    pub(super) fn node_input(&mut self, n: usize, input: Input) {
        match input {
            Input::Datagram(datagram) => self.node_datagram(n, datagram),
            Input::Carrier(carrier) => self.node_carrier_timer(n, carrier),
            Input::NodeControl(r, carrier) => self.node_control_timer(n, r, carrier),
            Input::NodeLive(r, carrier) => self.node_live_timer(n, r, carrier),
            Input::Dial(r, carrier) => self.dial_again(n, r, carrier),
            Input::Waited(r, name) => self.waited(n, r, name),
            Input::Knock(r, name) => self.knock(n, r, name),
            Input::Knocked(r, name, open) => self.knocked(n, r, name, open),
            Input::Live(conn, input) => self.node_live(n, conn, input),
            Input::PingTick(conn) => self.node_ping(n, conn),
            Input::Attempt(conn) => self.attempt_limit(n, conn),
            Input::PolicyChanged => self.follow(n),
            Input::Farewell => {
                for r in 0..self.plan.relays {
                    self.end_session(n, r, SessionEnd::Dropped);
                }
                self.left(n);
            }
            Input::RelayLive(_) | Input::Gone(_) | Input::Sweep => panic!("not for a node"),
        }
    }

    /// Keeps a link to each relay of the policy.
    fn follow(&mut self, n: usize) {
        if self.nodes[n].leaving {
            return;
        }
        self.nodes[n].followed = self.nodes[n].host.policy.version;
        for r in 0..self.plan.relays {
            let wanted = self.nodes[n].host.policy.relays[n][r];
            let kept = self.nodes[n].links.contains_key(&r);
            match (wanted, kept) {
                (true, false) => {
                    let link = Link {
                        phase: Phase::Waiting(0),
                        since: self.now,
                        step: RETRY_FIRST,
                        knock: 0,
                        closed: false,
                        knock_wait: KNOCK_FIRST,
                    };
                    self.nodes[n].links.insert(r, link);
                    self.dial(n, r);
                }
                (true, true) => self.publish(n, r),
                (false, true) => {
                    // It says goodbye as if it restarted; nobody waits for that here.
                    self.end_session(n, r, SessionEnd::Dropped);
                    self.nodes[n].links.remove(&r);
                }
                (false, false) => {}
            }
        }
    }

    fn link(&mut self, n: usize, r: usize) -> Option<&mut Link> {
        self.nodes[n].links.get_mut(&r)
    }

    fn dial(&mut self, n: usize, r: usize) {
        let (carrier, knock, now) = (self.name(), self.name(), self.now);
        let Some(link) = self.link(n, r) else {
            return;
        };
        link.phase = Phase::Dialling(Dialling { carrier, since: now });
        link.knock = knock;
        self.input_at(now, Who::Node(n), Input::Knock(r, knock));
        self.dial_again(n, r, carrier);
    }

    /// Dials the relay of a session beside it.
    pub(super) fn dial_beside(&mut self, n: usize, r: usize) {
        let (carrier, since) = (self.name(), self.now);
        let session = self.session(n, r).unwrap();
        let before = session.beside.replace(Dialling { carrier, since });
        assert!(before.is_none(), "one dial beside a session at a time");
        self.note(format_args!(
            "node {n}: carrier {carrier} to relay {r} is dialled beside the session"
        ));
        self.dial_again(n, r, carrier);
    }

    pub(super) fn give_up_beside(&mut self, n: usize, r: usize) {
        // It may have come to its end just now.
        if let Some(dial) = self.session(n, r).and_then(|s| s.beside.take()) {
            self.say_close(n, r, dial.carrier);
        }
    }

    pub(super) fn say_close(&mut self, n: usize, r: usize, carrier: CarrierId) {
        let close = Body::Close(RefusalCode::ShuttingDown);
        self.say(Who::Node(n), Who::Relay(r), carrier, close);
    }

    /// The dial under way to a relay, for a session or beside one.
    fn dialling(&mut self, n: usize, r: usize) -> Option<Dialling> {
        match &self.link(n, r)?.phase {
            Phase::Dialling(dial) => Some(*dial),
            Phase::Session(session) => session.beside,
            Phase::Waiting(_) => None,
        }
    }

    fn dial_again(&mut self, n: usize, r: usize, of: CarrierId) {
        let now = self.now;
        let Some(dial) = self.dialling(n, r).filter(|dial| dial.carrier == of) else {
            return;
        };
        if now >= dial.since.plus(DIAL_MAX) {
            match self.session(n, r) {
                Some(session) => {
                    session.beside = None;
                    self.after_live(n, r, |live, now| live.beside_failed(now));
                }
                None => self.wait(n, r, None),
            }
            return;
        }
        self.say(Who::Node(n), Who::Relay(r), of, Body::Initial);
        self.input_at(now.plus(DIAL_AGAIN), Who::Node(n), Input::Dial(r, of));
    }

    pub(super) fn dialled(&mut self, n: usize, r: usize, of: CarrierId, relay_run: u64) {
        if self.dialling(n, r).is_none_or(|dial| dial.carrier != of) {
            return;
        }
        if let Some(session) = self.session(n, r) {
            session.beside = None;
            let mut takes = false;
            self.after_live(n, r, |live, now| takes = live.beside_up(now));
            if !takes {
                self.say_close(n, r, of);
                return;
            }
            self.end_session(n, r, SessionEnd::Overtaken);
        }
        let node = &mut self.nodes[n];
        let number = node.sessions;
        node.sessions += 1;
        self.link(n, r).unwrap().knock = 0;
        self.carrier_up(n, r, of, number, relay_run);
    }

    /// The next dial comes after `wait`, or after a while that grows.
    pub(super) fn wait(&mut self, n: usize, r: usize, wait: Option<Duration>) {
        let (name, knock, part) = (self.name(), self.name(), self.rng.u32(0..=1000));
        let Some(link) = self.link(n, r) else { return };
        let half = link.step / 2;
        let wait = wait.unwrap_or_else(|| {
            link.step = (link.step + half).min(RETRY_LONGEST);
            half + half * part / 1000
        });
        link.phase = Phase::Waiting(name);
        link.knock = knock;
        let now = self.now;
        self.input_at(now.plus(wait), Who::Node(n), Input::Waited(r, name));
        self.input_at(now, Who::Node(n), Input::Knock(r, knock));
    }

    fn waited(&mut self, n: usize, r: usize, name: u64) {
        if matches!(self.link(n, r).map(|l| &l.phase), Some(Phase::Waiting(waits)) if *waits == name)
            && !self.nodes[n].leaving
        {
            self.dial(n, r);
        }
    }

    fn knock(&mut self, n: usize, r: usize, name: u64) {
        if self.link(n, r).is_some_and(|l| l.knock == name) {
            let seen = self.knocks(n, r);
            let (at, open) = seen.unwrap_or((self.now.plus(KNOCK_MAX), false));
            let at = at.min(self.now.plus(KNOCK_MAX));
            self.input_at(at, Who::Node(n), Input::Knocked(r, name, open));
        }
    }

    fn knocked(&mut self, n: usize, r: usize, name: u64, open: bool) {
        let now = self.now;
        let Some(link) = self.link(n, r).filter(|l| l.knock == name) else {
            return;
        };
        let wait = match (open, link.closed) {
            (true, true) => {
                link.closed = false;
                link.knock_wait = KNOCK_FIRST;
                self.dial(n, r);
                return;
            }
            (true, false) => KNOCK_OPEN,
            (false, _) => {
                link.closed = true;
                let wait = link.knock_wait;
                link.knock_wait = (wait + wait / 8).min(KNOCK_LONGEST);
                wait
            }
        };
        self.input_at(now.plus(wait), Who::Node(n), Input::Knock(r, name));
    }

    /// The daemon announces its restart, says goodbye and is away for a while (R-ADM-03).
    pub(super) fn leave(&mut self, n: usize, away: Duration) {
        let node = &mut self.nodes[n];
        if node.host.run == 0 || node.leaving || node.host.is_frozen(self.now) {
            return;
        }
        node.leaving = true;
        node.away = away;
        self.note(format_args!("node {n} announces its restart"));
        for r in 0..self.plan.relays {
            let Some(session) = self.session(n, r) else {
                self.nodes[n].links.remove(&r);
                continue;
            };
            session.control.announce_restart();
            session.leaving = true;
            self.settle_node(n, r);
            // One that has not greeted has nothing to say.
            if self.session(n, r).is_some_and(|s| s.end.pipe.is_acked()) {
                self.end_session(n, r, SessionEnd::Dropped);
            }
        }
        self.input_at(self.now.plus(FAREWELL_MAX), Who::Node(n), Input::Farewell);
        self.left(n);
    }

    /// A stopping daemon has ended a session; with the last of them it is gone.
    pub(super) fn left(&mut self, n: usize) {
        let node = &self.nodes[n];
        let any = node.links.values().any(|l| matches!(l.phase, Phase::Session(_)));
        if node.leaving && !any && node.host.run != 0 {
            let away = node.away;
            self.kill(Who::Node(n), false);
            self.start_at(self.now.plus(away).plus(ms(1)), Who::Node(n));
        }
    }
}

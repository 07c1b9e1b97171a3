//! The invariants.

use super::carrier::CarrierId;
use super::kernel::Conn;
use super::node::Phase;
use super::plan::ms;
use super::policy::endpoint_id;
use super::relay::SESSIONS_PER_NODE_MAX;
use super::world::{Truth, Who, World};
use fairlead_hop::liveness::{Death, QUIC_SILENCE_MAX};
use fairlead_hop::{Lookup, RegistrationState};
use fairlead_model::MonoTime;
use std::time::Duration;

/// H5: the longest that peace may take: a silent death (10 s), a dial to its end (10 s), the longest
/// wait between dials (15 s), and a refused registration's (6 s).
pub(super) const PEACE_MAX: Duration = Duration::from_secs(45);
/// For how long peace must last.
const PEACE_LASTS: Duration = Duration::from_secs(3);
/// H2: the longest pause of an end that it may not notice.
const PAUSE_MAX: Duration = Duration::from_millis(750);
/// H2: silence, as far as an end has read, without which nobody is dead.
const SILENCE_MIN: Duration = Duration::from_millis(1_900);
/// H3: a dead end whose liveness connection stood (R-ADM-02: 3.5 s, measured 3.9 s), with the
/// simulator's own looks.
const DEAD_MAX: Duration = Duration::from_millis(4_600);
/// H3 at a relay whose node's host was back just before its silence was known (3.5 s): it ends the connection
/// of the process that went with it, and the relay waits for an answer by QUIC for two seconds from there.
const BACK_MAX: Duration = Duration::from_millis(6_100);
/// H3 at a node whose relay's host went again while its next process was stopped: an attempt that the
/// host has taken is given up after 3 s, the next comes after a second and has 2.5 s in calm, and only
/// then one in a hurry kills (0.3 s); with the looks.
const MUTE_MAX: Duration = Duration::from_millis(7_400);
/// H3 at a relay, where QUIC alone tells, and at a node, which may try connections until then.
const SILENT_MAX: Duration = Duration::from_millis(10_900);
const DOUBTED_MAX: Duration = Duration::from_secs(25);
/// H4: half a second until the old session is known to be gone, a second between knocks, half a second
/// for one that got no answer.
const RETURN_MAX: Duration = Duration::from_secs(2);
/// H8: three seconds until a silence is known, a second between two dials, half of one between two of a dial's
/// packets, and the same again where the liveness connection is to be made anew first.
pub(super) const CARRIES_MAX: Duration = Duration::from_secs(6);
/// H7: dials that a relay holds, of ten seconds each.
const HANDSHAKES_MAX: usize = 256;

/// A daemon that had a session when the relay went, and is to have one again.
#[derive(Debug)]
pub(super) struct Return {
    node: usize,
    relay: usize,
    runs: (u64, u64),
    since: MonoTime,
}

impl World<'_> {
    /// H1 and the model, where registrations have changed.
    pub(super) fn check_changed(&mut self) {
        for r in 0..self.plan.relays {
            if std::mem::take(&mut self.relays[r].touched) {
                self.check_registrations(r);
            }
        }
    }

    fn check_registrations(&self, r: usize) {
        let relay = &self.relays[r];
        for e in 0..self.plan.endpoints {
            let found = relay.registry.lookup(endpoint_id(e), self.now);
            let wanted = relay.model.lookup(e, self.now);
            assert_eq!(
                found, wanted,
                "R-ADM-01, R-ADM-03, R-ADM-04: endpoint {e} at relay {r}, found and wanted"
            );
            let Lookup::Served { session: number, .. } = found else {
                continue;
            };
            let session = relay.sessions.get(&number);
            let session = session.expect("H1: an endpoint is served by a session that is over");
            let boot = |s: &super::relay::RelaySession| s.greeted.map(|(_, boot)| boot);
            let mut later = relay.sessions.range(number + 1..).map(|(_, s)| s);
            let fenced =
                later.any(|s| s.node == session.node && s.greeted.is_some() && boot(s) != boot(session));
            assert!(
                session.closed || !fenced,
                "H1: an open is led to a run of the daemon that another has followed"
            );
        }
    }

    fn stands(&self, conn: Option<u64>) -> bool {
        conn.and_then(|c| self.conns.get(&c)).is_some_and(Conn::stands)
    }

    /// H2 at either end: what has come is read before the other is dead, but for what came during a pause
    /// that is too short to be noticed.
    fn check_unread(&self, truth: &Truth, side: usize, death: Death) {
        let who = [Who::Node(truth.pair.0), Who::Relay(truth.pair.1)][side];
        let host = self.host(who);
        let pause = host.frozen_until.since(host.frozen_since);
        assert!(
            truth.unread[side].is_none() || pause <= PAUSE_MAX,
            "H2, F-06: {who:?} was stopped for {pause:?} and declares the other end dead ({death}) before it reads"
        );
    }

    /// H2 at a relay.
    pub(super) fn check_relay_verdict(&self, r: usize, number: u64, death: Death) {
        let session = &self.relays[r].sessions[&number];
        let Some(truth) = self
            .truths
            .get(&session.end.carrier)
            .filter(|t| t.gone[0].is_none())
        else {
            return;
        };
        self.check_unread(truth, 1, death);
        let silent = self.now.since(truth.read[1]);
        assert!(
            silent >= SILENCE_MIN,
            "H2, R-ADM-02: node {} is declared dead ({death}) at relay {r} and was heard {silent:?} ago",
            session.node
        );
        assert!(
            !self.stands(session.conn),
            "H2, F-06: node {} is declared dead ({death}) at relay {r} and its liveness connection stands",
            session.node
        );
    }

    /// H2 at a node.
    pub(super) fn check_node_verdict(&mut self, n: usize, r: usize, death: Death) {
        let session = self.session(n, r).unwrap();
        let (carrier, conn) = (session.end.carrier, session.conn);
        let Some(truth) = self.truths.get(&carrier).filter(|t| t.gone[1].is_none()) else {
            return;
        };
        assert!(
            !self.stands(conn),
            "H2, F-06: relay {r} is declared dead ({death}) by node {n} and its liveness connection stands"
        );
        self.check_unread(truth, 0, death);
        let silent = self.now.since(truth.read[0]);
        match death {
            Death::OtherBoot | Death::NoSession => {
                panic!("H2: relay {r} has not ended the session of node {n}")
            }
            Death::Silent => assert!(
                silent >= QUIC_SILENCE_MAX,
                "H2: relay {r} is declared silent by node {n} and was heard {silent:?} ago"
            ),
            Death::ProcessGone | Death::HostGone => {
                let quiet = self.paths[n][r].disturbed.plus(ms(5_000)) < self.now;
                let ran = |who| self.host(who).frozen_until.plus(ms(5_000)) < self.now;
                assert!(
                    !(quiet && ran(Who::Node(n)) && ran(Who::Relay(r))),
                    "H2, R-ADM-02: relay {r} is declared dead ({death}) by node {n} over a sound path"
                );
            }
        }
    }

    /// Everything that must hold of the whole world at any moment, and peace.
    pub(super) fn look(&mut self) {
        let now = self.now;
        for r in 0..self.plan.relays {
            self.check_registrations(r);
            self.check_relay(r);
        }
        for n in 0..self.plan.nodes {
            self.check_node(n);
        }
        // Ends that a relay never had a session for are nobody's.
        let relays = &self.relays;
        self.truths.retain(|carrier, truth| {
            let of = |s: &super::relay::RelaySession| s.end.carrier == *carrier;
            truth.gone[0].is_none() || relays[truth.pair.1].sessions.values().any(of)
        });
        if self.peace {
            match self.unrest() {
                None => {
                    self.settled.get_or_insert(now);
                }
                Some(what) => {
                    self.settled = None;
                    assert!(now < self.plan.peace_at.plus(PEACE_MAX), "H5: no peace: {what}");
                }
            }
        }
    }

    fn check_relay(&mut self, r: usize) {
        let relay = &self.relays[r];
        assert!(relay.registry.len() <= self.plan.endpoints, "H7: registrations");
        assert!(relay.handshakes() <= HANDSHAKES_MAX, "H7: handshakes");
        for n in 0..self.plan.nodes {
            let live = relay.sessions.values().filter(|s| s.node == n && !s.closed);
            assert!(live.count() <= SESSIONS_PER_NODE_MAX, "H7: sessions of a node");
        }
        for (number, session) in &relay.sessions {
            let limits = (DEAD_MAX, SILENT_MAX);
            let gone = self
                .truths
                .get(&session.end.carrier)
                .and_then(|t| self.overdue(t, 0, limits));
            assert!(
                session.closed || gone.is_none(),
                "H3, R-ADM-02: relay {r} has session {number}, whose node's end went {gone:?} ago"
            );
        }
    }

    fn check_node(&mut self, n: usize) {
        for r in 0..self.plan.relays {
            let publications = self.nodes[n].host.policy.publications(n, r).len();
            // It may not have come to look at its policy, or does not any more.
            let node = &self.nodes[n];
            let late = node.followed != node.host.policy.version || node.is_leaving();
            let Some(session) = self.session(n, r) else {
                continue;
            };
            let (carrier, since) = (session.end.carrier, session.since);
            let registrations = session.control.registrations().count();
            assert!(
                registrations == publications || late,
                "H7: registrations of a session"
            );
            let limits = (DEAD_MAX, DOUBTED_MAX);
            let gone = self.truths.get(&carrier).and_then(|t| self.overdue(t, 1, limits));
            assert!(
                gone.is_none(),
                "H3, R-ADM-02: node {n} has a session of {since:?} whose relay's end went {gone:?} ago"
            );
            self.check_carries(n, r, carrier, since);
        }
    }

    /// H8 for a session since `since`.
    fn check_carries(&self, n: usize, r: usize, carrier: CarrierId, since: MonoTime) {
        let Some(truth) = self.truths.get(&carrier).filter(|t| t.gone == [None; 2]) else {
            return;
        };
        let [stopped, relay_stopped] = [Who::Node(n), Who::Relay(r)].map(|who| self.host(who).stopped);
        let path = &self.paths[n][r];
        let cut = path.cut_until.iter().flatten().chain(&path.gone_until);
        let passes = cut.copied().fold(path.loss_until, MonoTime::max);
        let read = truth.read[0].min(truth.read[1]);
        let excuses = [passes, stopped, relay_stopped, read];
        let from = excuses.into_iter().fold(since, MonoTime::max);
        let late = self.now.since(from);
        assert!(
            late <= CARRIES_MAX + self.rtt(n, r) * 10,
            "H8: datagrams pass between node {n} and relay {r}, and their session has had none for {late:?}"
        );
    }

    /// H3: for how long an end has been gone for which its peer should know it by now.
    fn overdue(&self, truth: &Truth, side: usize, (stood, else_): (Duration, Duration)) -> Option<Duration> {
        let (n, r) = truth.pair;
        let gone = truth.gone[side]?;
        let rtt = self.rtt(n, r);
        // A stopped process judges nothing; one that has followed and is stopped looks like the one
        // before it, and what it has taken is not answered when its host goes.
        let stopped = [Who::Node(n), Who::Relay(r)].map(|who| self.host(who).stopped);
        let limit = match truth.stood[side] {
            true if side == 1 && self.relays[r].host.mute > gone => MUTE_MAX,
            true if side == 0 && self.nodes[n].host.started > gone => BACK_MAX,
            true => stood,
            false => else_,
        };
        // What it sent may come late.
        let heard = truth.arrived[1 - side];
        let excuses = [self.paths[n][r].disturbed, heard, stopped[0], stopped[1]];
        let since = excuses.into_iter().fold(gone, MonoTime::max);
        (self.now > since.plus(limit + rtt * 10)).then(|| self.now.since(gone))
    }

    /// H4: those that had a session come back.
    pub(super) fn expect_returns(&mut self, r: usize) {
        let had = std::mem::take(&mut self.relays[r].had);
        for (node, node_run) in had {
            let check = Return {
                node,
                relay: r,
                runs: (node_run, self.relays[r].host.run),
                since: self.now,
            };
            let at = self.now.plus(RETURN_MAX + self.rtt(node, r) * 10);
            self.check_at(at, check);
        }
    }

    pub(super) fn check_return(&mut self, check: &Return) {
        let (n, r) = (check.node, check.relay);
        // What the policy does not want is not to come back; what it wants anew has its time from there.
        let Some(wanted) = self.nodes[n].links.get(&r).map(|link| link.since) else {
            return;
        };
        if wanted > check.since {
            let again = Return {
                since: wanted,
                ..*check
            };
            self.check_at(wanted.plus(RETURN_MAX + self.rtt(n, r) * 10), again);
            return;
        }
        let runs = (self.nodes[n].host.run, self.relays[r].host.run);
        let quiet = self.paths[n][r].disturbed.plus(ms(3_000)) < check.since;
        let ran = |who| self.host(who).frozen_until.plus(ms(3_000)) < check.since;
        if runs != check.runs
            || !quiet
            || !ran(Who::Node(n))
            || !ran(Who::Relay(r))
            || self.nodes[n].is_leaving()
            || self.nodes[n].dropped.plus(ms(20_000)) > check.since
        {
            return;
        }
        let back = self.session(n, r).is_some_and(|s| s.live.is_some());
        assert!(
            back,
            "H4, R-UPD-08: node {n} is not back {RETURN_MAX:?} after relay {r} listens again"
        );
    }

    pub(super) fn is_over(&self) -> bool {
        self.settled
            .is_some_and(|since| self.now >= since.plus(PEACE_LASTS))
    }

    /// H5: what is not as it should be.
    fn unrest(&mut self) -> Option<String> {
        for r in 0..self.plan.relays {
            let mut expected = 0;
            for n in 0..self.plan.nodes {
                let wanted = self.policy.publications(n, r);
                expected += wanted.len();
                if let Some(what) = self.unrest_between(n, r) {
                    return Some(format!("node {n} and relay {r}: {what}"));
                }
            }
            if self.relays[r].registry.len() != expected {
                return Some(format!(
                    "relay {r} has {} registrations of {expected}",
                    self.relays[r].registry.len()
                ));
            }
        }
        None
    }

    fn unrest_between(&mut self, n: usize, r: usize) -> Option<&'static str> {
        let now = self.now;
        let policy = self.policy.clone();
        let mut theirs = self.relays[r].sessions.iter().filter(|(_, s)| s.node == n);
        let theirs = match (theirs.next(), theirs.next()) {
            (None, _) => None,
            (Some((number, s)), None) => Some((*number, s.end.carrier, s.conn)),
            (Some(_), Some(_)) => return Some("two sessions"),
        };
        if !policy.relays[n][r] {
            let left = theirs.is_some() || self.nodes[n].links.contains_key(&r);
            return left.then_some("a session that no policy wants");
        }
        let Some((number, carrier, conn)) = theirs else {
            return Some("the relay has no session");
        };
        if !self.stands(conn) {
            return Some("no liveness connection");
        }
        if let Some(Phase::Waiting(_) | Phase::Dialling(_)) = self.nodes[n].links.get(&r).map(|l| &l.phase) {
            return Some("the node has no session");
        }
        let Some(session) = self.session(n, r) else {
            return Some("the node has no link");
        };
        if session.end.carrier != carrier || session.conn != conn {
            return Some("each has another session");
        }
        match &session.live {
            None => return Some("not greeted"),
            Some(live) if live.doubt(now).any() => return Some("the relay is doubted"),
            Some(_) => {}
        }
        let wanted = policy.publications(n, r);
        let registered = session
            .control
            .registrations()
            .filter(|(e, g, state)| *state == RegistrationState::Registered && wanted.get(e) == Some(g));
        if registered.count() != wanted.len() {
            return Some("not all is registered");
        }
        let all = wanted.iter().all(|(endpoint, wanted)| {
            matches!(
                self.relays[r].registry.lookup(*endpoint, now),
                Lookup::Served { session, generation, .. } if session == number && generation == *wanted
            )
        });
        (!all).then_some("the relay leads opens elsewhere")
    }
}

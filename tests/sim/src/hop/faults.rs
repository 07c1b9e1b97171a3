//! What is done to a world.

use super::kernel::Conn;
use super::plan::{Fault, ms};
use super::policy::Policy;
use super::session::SessionEnd;
use super::world::{Who, World};
use fairlead_model::MonoTime;
use std::rc::Rc;
use std::time::Duration;

/// Seconds that a wall clock jumps at most.
const WALL_JUMP_MAX: i64 = 1_000_000;

/// Between two long absences of UDP.
const UDP_BACK_MIN: Duration = Duration::from_secs(15);

impl World<'_> {
    /// Does one of the seed's faults.
    pub(super) fn fault(&mut self) {
        if self.plan.faults.is_empty() {
            return;
        }
        let kind = self.plan.faults[self.rng.usize(0..self.plan.faults.len())];
        let spell = [60, 1_500, 6_000, 25_000][self.rng.usize(0..4)];
        let until = self.after(spell).min(self.plan.peace_at);
        let n = self.rng.usize(0..self.plan.nodes);
        let r = self.rng.usize(0..self.plan.relays);
        let (node, relay) = (Who::Node(n), Who::Relay(r));
        self.note(format_args!("{kind:?} ({n}, {r}) until {}", until.0 / 1_000_000));
        match kind {
            Fault::NodeKilled => self.kill_for(node, false),
            Fault::NodeRestarts => {
                let away = self.away();
                self.leave(n, away);
            }
            Fault::NodeFrozen => self.freeze(node, until),
            Fault::NodeVanished => self.kill_for(node, true),
            Fault::RelayKilled => self.kill_for(relay, false),
            Fault::RelayFrozen => self.freeze(relay, until),
            Fault::RelayVanished => self.kill_for(relay, true),
            Fault::Cut => self.cut(n, r, [true, true], until),
            Fault::UdpCut => self.cut(n, r, [true, false], until),
            Fault::UdpGone => {
                let until = self
                    .now
                    .plus(ms(self.rng.u64(4_000..=40_000)))
                    .min(self.plan.peace_at);
                let ways = self.rng.u8(1..4);
                let path = &mut self.paths[n][r];
                // One at a time: between two of them it is to be seen what has become of the session.
                let last = path.gone_until[0].max(path.gone_until[1]);
                if last == MonoTime(0) || last.plus(UDP_BACK_MIN) < self.now {
                    path.gone_until = [1, 2].map(|way| if ways & way != 0 { until } else { MonoTime(0) });
                }
            }
            Fault::TcpCut => self.cut(n, r, [false, true], until),
            Fault::Loss => {
                let path = &mut self.paths[n][r];
                path.loss = self.rng.u32(10..=400);
                path.loss_until = until;
            }
            Fault::Flapping => {
                let times = self.rng.u32(3..100);
                self.flap(n, r, times);
            }
            Fault::ForgedReset => {
                let standing = self.conns.iter().filter(|(_, c)| c.stands());
                let standing: Vec<u64> = standing.map(|(id, _)| *id).collect();
                if !standing.is_empty() {
                    let id = standing[self.rng.usize(0..standing.len())];
                    let sides = self.rng.u8(1..4);
                    for side in [0, 1] {
                        // The first may have ended it for both.
                        if sides & (1 << side) != 0 && self.conns.get(&id).is_some_and(Conn::stands) {
                            self.live_forged(id, side);
                        }
                    }
                }
            }
            Fault::SessionDropped => self.drop_session(n, r),
            Fault::NewGeneration => self.change(|rng, policy| {
                let e = rng.usize(0..policy.endpoints.len());
                policy.endpoints[e].generation = policy.endpoints[e].generation.next();
            }),
            Fault::EndpointMoved => self.change(|rng, policy| {
                let e = rng.usize(0..policy.endpoints.len());
                policy.endpoints[e].publisher = n;
                policy.endpoints[e].generation = policy.endpoints[e].generation.next();
            }),
            Fault::EndpointToggled => self.change(|rng, policy| {
                let e = rng.usize(0..policy.endpoints.len());
                policy.endpoints[e].wanted ^= true;
            }),
            Fault::Reassigned => self.change(|rng, policy| {
                let e = rng.usize(0..policy.endpoints.len());
                policy.endpoints[e].at[r] ^= true;
            }),
            Fault::RelayToggled => self.change(|_, policy| {
                policy.relays[n][r] ^= true;
                if !policy.relays[n].contains(&true) {
                    policy.relays[n][r] = true;
                }
            }),
            Fault::WallJump => {
                let jump = self.rng.i64(-WALL_JUMP_MAX..=WALL_JUMP_MAX);
                let lost = self.rng.u8(0..3) == 0;
                let node = &mut self.nodes[n];
                node.wall += jump;
                node.lost_boot_file |= lost;
            }
        }
    }

    /// How long a process that is gone stays away.
    fn away(&mut self) -> Duration {
        let most = [100, 3_000, 25_000][self.rng.usize(0..3)];
        ms(self.plan.start_ms_min + self.rng.u64(0..=most))
    }

    fn kill_for(&mut self, who: Who, silently: bool) {
        // A host takes its time to boot.
        let boots = if silently { ms(1_000) } else { ms(0) };
        let away = self.away() + boots;
        if let Who::Relay(r) = who {
            let had = (0..self.plan.nodes).filter(|n| {
                let established = self.session(*n, r).is_some_and(|s| s.live.is_some());
                established && !self.nodes[*n].is_leaving()
            });
            let had: Vec<(usize, u64)> = had
                .collect::<Vec<_>>()
                .into_iter()
                .map(|n| (n, self.nodes[n].host.run))
                .collect();
            if self.relays[r].host.run != 0 {
                self.relays[r].had = had;
            }
        }
        self.kill(who, silently);
        self.start_at(self.now.plus(away), who);
    }

    fn freeze(&mut self, who: Who, until: MonoTime) {
        let late = Duration::from_micros([0, 100, 5_000][self.rng.usize(0..3)]);
        let now = self.now;
        let host = self.host_mut(who);
        if host.run != 0 && until > host.frozen_until {
            if !host.is_frozen(now) {
                host.frozen_since = now;
            }
            host.frozen_until = until;
            host.deaf_until = until.plus(late);
            host.stopped = until;
        }
    }

    fn cut(&mut self, n: usize, r: usize, protocols: [bool; 2], until: MonoTime) {
        let ways = self.rng.u8(1..4);
        for way in [0, 1] {
            for (protocol, cut) in protocols.into_iter().enumerate() {
                if cut && ways & (1 << way) != 0 {
                    self.paths[n][r].cut_until[way][protocol] = until;
                }
            }
        }
    }

    /// One of many short cuts.
    pub(super) fn flap(&mut self, n: usize, r: usize, left: u32) {
        if left == 0 || self.peace {
            return;
        }
        let until = self.after(300).min(self.plan.peace_at);
        self.cut(n, r, [true, true], until);
        let next = until.plus(ms(self.rng.u64(0..=300)));
        self.flap_at(next, n, r, left - 1);
    }

    /// A daemon gives its session up; what it says of that may be lost.
    fn drop_session(&mut self, n: usize, r: usize) {
        if self.session(n, r).is_none()
            || self.nodes[n].host.is_frozen(self.now)
            || self.nodes[n].is_leaving()
        {
            return;
        }
        if self.rng.bool() {
            let just = self.now.plus(Duration::from_nanos(1));
            let cut = &mut self.paths[n][r].cut_until[0];
            *cut = cut.map(|until| until.max(just));
        }
        self.nodes[n].dropped = self.now;
        self.end_session(n, r, SessionEnd::Dropped);
    }

    fn change(&mut self, change: impl FnOnce(&mut fastrand::Rng, &mut Policy)) {
        let mut policy = Policy::clone(&self.policy);
        policy.version += 1;
        change(&mut self.rng, &mut policy);
        self.policy = Rc::new(policy);
        for who in self.everybody() {
            let at = self.after(self.plan.policy_ms_max);
            self.policy_at(at, who, Rc::clone(&self.policy));
        }
    }

    /// Nothing is done to the world any more, and all that was done is over.
    pub(super) fn make_peace(&mut self) {
        self.peace = true;
        self.note(format_args!("peace"));
        let now = self.now;
        for path in self.paths.iter_mut().flatten() {
            let cuts = path.cut_until.iter_mut().flatten().chain(&mut path.gone_until);
            for until in cuts.chain([&mut path.loss_until]) {
                *until = (*until).min(now);
            }
        }
        for node in &mut self.nodes {
            node.hurry();
        }
        for who in self.everybody() {
            let at = self.after(2_000);
            self.start_at(at, who);
            let at = self.after(1_000);
            self.policy_at(at, who, Rc::clone(&self.policy));
        }
    }
}

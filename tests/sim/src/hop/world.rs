//! The event loop: one thing happens at a time, at its time, to a host or to the process on it.

use super::Mutation;
use super::carrier::{Body, CarrierId, Datagram};
use super::kernel::{Conn, ConnId, LiveInput, Segment};
use super::node::Node;
use super::plan::{Plan, START, ms};
use super::policy::Policy;
use super::relay::Relay;
use crate::Transcript;
use crate::agenda::Agenda;
use fairlead_model::MonoTime;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Most events of one world: far above what any needs.
const EVENTS_MAX: u64 = 3_000_000;
/// How often all of the world is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A host, and the process on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Node(usize),
    Relay(usize),
}

/// What reaches a process.
#[derive(Debug, Clone)]
pub(super) enum Input {
    Datagram(Datagram),
    /// Timer of an end of a carrier.
    Carrier(CarrierId),
    /// A node's timers, by relay and carrier.
    NodeControl(usize, CarrierId),
    NodeLive(usize, CarrierId),
    /// A relay's, by session.
    RelayLive(u64),
    /// A node's dial is to be sent again, or given up.
    Dial(usize, CarrierId),
    /// A node's wait for the next dial is over.
    Waited(usize, u64),
    /// A node knocks at a relay's port; or hears whether it is open.
    Knock(usize, u64),
    Knocked(usize, u64, bool),
    Live(ConnId, LiveInput),
    PingTick(ConnId),
    /// An attempt's limit.
    Attempt(ConnId),
    /// A session whose carrier the relay has closed is taken off.
    Gone(u64),
    PolicyChanged,
    /// A stopping daemon's goodbyes had their time.
    Farewell,
    /// A relay sweeps its registry.
    Sweep,
}

/// Something that is due.
#[derive(Debug)]
enum Happening {
    /// To a process of this run.
    Input(Who, u64, Input),
    /// A datagram arrives at a host.
    Datagram(Datagram),
    /// The double of one does. A dial's first packet that a dead run has sent begins a handshake that nobody
    /// completes: it counts as lost.
    Double(Datagram),
    /// A segment arrives at a kernel.
    Segment(Segment),
    /// A kernel's timer.
    Kernel(ConnId, usize),
    /// A process starts, its host too if that is off.
    Start(Who),
    Policy(Who, Rc<Policy>),
    Flap(usize, usize, u32),
    Fault,
    Look,
    Check(super::check::Return),
    Peace,
}

/// When something next wants to be looked at; at most one event of it counts.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<MonoTime>);

impl Timer {
    /// Whether an event for `at` must be made.
    pub(super) fn arm(&mut self, at: MonoTime) -> bool {
        let sooner = self.0.is_none_or(|armed| at < armed);
        if sooner {
            self.0 = Some(at);
        }
        sooner
    }

    /// Whether an event that has come is the one that counts.
    pub(super) fn fires(&mut self, now: MonoTime) -> bool {
        let fires = self.0.is_some_and(|at| at <= now);
        if fires {
            self.0 = None;
        }
        fires
    }
}

/// A host's state.
#[derive(Debug)]
pub(super) struct Host {
    /// Its kernel answers.
    pub(super) up: bool,
    /// Its process; zero while there is none.
    pub(super) run: u64,
    pub(super) frozen_since: MonoTime,
    pub(super) frozen_until: MonoTime,
    /// The same for what comes over TCP, which keeps its order.
    pub(super) deaf_until: MonoTime,
    /// When a process of it was last stopped, the one that runs or one before it.
    pub(super) stopped: MonoTime,
    /// When it last went with a stopped process, which has taken connections and said nothing on them.
    pub(super) mute: MonoTime,
    /// When its process has started.
    pub(super) started: MonoTime,
    pub(super) policy: Rc<Policy>,
}

impl Host {
    pub(super) fn is_frozen(&self, now: MonoTime) -> bool {
        self.frozen_until > now
    }

    /// Looks that the process would have had if it had not been stopped, where it was until just now.
    pub(super) fn missed_looks(&self, now: MonoTime) -> impl Iterator<Item = MonoTime> + use<> {
        let (since, just) = (self.frozen_since, self.frozen_until.plus(ms(3)) >= now);
        let looks = (1..).map(move |n| since.plus(ms(250 * n)));
        looks.take_while(move |at| just && *at < now)
    }
}

/// What passes between a node and a relay, each way (to the relay first) and protocol (UDP first).
#[derive(Debug, Default)]
pub(super) struct Path {
    pub(super) cut_until: [[MonoTime; 2]; 2],
    /// The same for UDP alone, which no other cut shortens.
    pub(super) gone_until: [MonoTime; 2],
    pub(super) loss_until: MonoTime,
    /// In a thousand.
    pub(super) loss: u32,
    /// When something was last lost on it.
    pub(super) disturbed: MonoTime,
}

/// A carrier as nobody but the simulator knows it. The node's end comes first.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) pair: (usize, usize),
    pub(super) runs: [u64; 2],
    /// When the host of each end last received something of it.
    pub(super) arrived: [MonoTime; 2],
    /// When the process of each end last read something of it.
    pub(super) read: [MonoTime; 2],
    /// Since when the host of each end holds something of it of which its process has read nothing.
    pub(super) unread: [Option<MonoTime>; 2],
    /// When each end ceased to be.
    pub(super) gone: [Option<MonoTime>; 2],
    /// Whether a liveness connection stood for the other end when this one ceased.
    pub(super) stood: [bool; 2],
}

pub(super) struct World<'t> {
    pub(super) mutation: Option<Mutation>,
    pub(super) now: MonoTime,
    pub(super) rng: fastrand::Rng,
    pub(super) plan: Plan,
    transcript: &'t mut Transcript,
    agenda: Agenda<Happening>,
    names: u64,
    pub(super) policy: Rc<Policy>,
    pub(super) paths: Vec<Vec<Path>>,
    pub(super) nodes: Vec<Node>,
    pub(super) relays: Vec<Relay>,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    pub(super) truths: BTreeMap<CarrierId, Truth>,
    pub(super) peace: bool,
    /// Since when all is as it should be.
    pub(super) settled: Option<MonoTime>,
}

impl<'t> World<'t> {
    pub(super) fn new(seed: u64, mutation: Option<Mutation>, transcript: &'t mut Transcript) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng, mutation.and_then(Mutation::stage));
        let policy = Rc::new(Policy::draw(&mut rng, plan.nodes, plan.relays, plan.endpoints));
        let host = || Host {
            up: true,
            run: 0,
            frozen_since: MonoTime(0),
            frozen_until: MonoTime(0),
            deaf_until: MonoTime(0),
            stopped: MonoTime(0),
            mute: MonoTime(0),
            started: MonoTime(0),
            policy: Rc::clone(&policy),
        };
        let paths = (0..plan.nodes).map(|_| (0..plan.relays).map(|_| Path::default()).collect());
        let mut world = Self {
            mutation,
            now: START,
            paths: paths.collect(),
            nodes: (0..plan.nodes).map(|_| Node::new(host())).collect(),
            relays: (0..plan.relays).map(|_| Relay::new(host())).collect(),
            rng,
            plan,
            transcript,
            agenda: Agenda::default(),
            names: 0,
            policy,
            conns: BTreeMap::new(),
            truths: BTreeMap::new(),
            peace: false,
            settled: None,
        };
        for who in world.everybody() {
            let at = world.after(500);
            world.at(at, Happening::Start(who));
        }
        world.at(world.plan.peace_at, Happening::Peace);
        world.at(START, Happening::Look);
        let first = world.after(world.plan.fault_every_ms * 4);
        world.at(first, Happening::Fault);
        world
    }

    pub(super) fn everybody(&self) -> Vec<Who> {
        let nodes = (0..self.plan.nodes).map(Who::Node);
        nodes.chain((0..self.plan.relays).map(Who::Relay)).collect()
    }

    pub(super) fn host(&self, who: Who) -> &Host {
        match who {
            Who::Node(n) => &self.nodes[n].host,
            Who::Relay(r) => &self.relays[r].host,
        }
    }

    pub(super) fn host_mut(&mut self, who: Who) -> &mut Host {
        match who {
            Who::Node(n) => &mut self.nodes[n].host,
            Who::Relay(r) => &mut self.relays[r].host,
        }
    }

    /// A random time at most `ms_max` ahead.
    pub(super) fn after(&mut self, ms_max: u64) -> MonoTime {
        self.now
            .plus(Duration::from_micros(self.rng.u64(0..=ms_max * 1000)))
    }

    pub(super) fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(super) fn note(&mut self, event: std::fmt::Arguments<'_>) {
        self.transcript.add(self.now, event);
    }

    fn at(&mut self, at: MonoTime, what: Happening) {
        self.agenda.add(at.max(self.now), what);
    }

    /// Lets something reach the process that runs at this moment.
    pub(super) fn input_at(&mut self, at: MonoTime, who: Who, input: Input) {
        let run = self.host(who).run;
        self.at(at, Happening::Input(who, run, input));
    }

    /// The same of a timer that holds only its soonest event.
    pub(super) fn arm(
        &mut self,
        who: Who,
        at: MonoTime,
        input: Input,
        timer: impl FnOnce(&mut Self) -> Option<&mut Timer>,
    ) {
        if timer(self).is_some_and(|t| t.arm(at)) {
            self.input_at(at, who, input);
        }
    }

    pub(super) fn kernel_at(&mut self, at: MonoTime, conn: ConnId, side: usize) {
        self.at(at, Happening::Kernel(conn, side));
    }

    pub(super) fn start_at(&mut self, at: MonoTime, who: Who) {
        self.at(at, Happening::Start(who));
    }

    pub(super) fn policy_at(&mut self, at: MonoTime, who: Who, policy: Rc<Policy>) {
        self.at(at, Happening::Policy(who, policy));
    }

    pub(super) fn flap_at(&mut self, at: MonoTime, node: usize, relay: usize, left: u32) {
        self.at(at, Happening::Flap(node, relay, left));
    }

    pub(super) fn check_at(&mut self, at: MonoTime, check: super::check::Return) {
        self.at(at, Happening::Check(check));
    }

    /// When a packet arrives that is sent now, if it does.
    fn passes(&mut self, (node, relay): (usize, usize), to_relay: bool, tcp: bool) -> Option<MonoTime> {
        let jitter = Duration::from_micros(self.rng.u64(0..=self.plan.jitter_us));
        let at = self.now.plus(self.plan.latency[node][relay] + jitter);
        let path = &mut self.paths[node][relay];
        let way = usize::from(!to_relay);
        let gone = !tcp && path.gone_until[way] > self.now;
        let cut = gone || path.cut_until[way][usize::from(tcp)] > self.now;
        let lossy = path.loss_until > self.now && self.rng.u32(0..1000) < path.loss;
        if cut || lossy {
            path.disturbed = self.now;
            return None;
        }
        Some(at)
    }

    pub(super) fn rtt(&self, node: usize, relay: usize) -> Duration {
        (self.plan.latency[node][relay] + Duration::from_micros(self.plan.jitter_us)) * 2
    }

    fn pair(a: Who, b: Who) -> (usize, usize) {
        match (a, b) {
            (Who::Node(n), Who::Relay(r)) | (Who::Relay(r), Who::Node(n)) => (n, r),
            (Who::Node(_), Who::Node(_)) | (Who::Relay(_), Who::Relay(_)) => panic!("no such path"),
        }
    }

    pub(super) fn send(&mut self, datagram: Datagram) {
        let (pair, to_relay) = (
            Self::pair(datagram.from, datagram.to),
            matches!(datagram.to, Who::Relay(_)),
        );
        if self.rng.u32(0..1000) < self.plan.doubled
            && let Some(at) = self.passes(pair, to_relay, false)
        {
            let late_max = [50, 300, 3_000][self.rng.usize(0..3)];
            let late = ms(self.rng.u64(0..=late_max));
            self.at(at.plus(late), Happening::Double(datagram.clone()));
        }
        if let Some(at) = self.passes(pair, to_relay, false) {
            self.at(at, Happening::Datagram(datagram));
        }
    }

    pub(super) fn send_segment(&mut self, segment: Segment) {
        let Some(conn) = self.conns.get(&segment.conn) else {
            return;
        };
        if let Some(at) = self.passes(conn.pair, segment.to == 1, true) {
            self.at(at, Happening::Segment(segment));
        }
    }

    /// Whether a knock at the relay's port finds it open, and when the node knows.
    pub(super) fn knocks(&mut self, node: usize, relay: usize) -> Option<(MonoTime, bool)> {
        let there = self.passes((node, relay), true, true)?;
        let back = self.passes((node, relay), false, true)?;
        let host = &self.relays[relay].host;
        host.up.then(|| (there.plus(back.since(self.now)), host.run != 0))
    }

    pub(super) fn run(mut self) {
        let mut events = 0;
        while let Some((at, what)) = self.agenda.next() {
            events += 1;
            assert!(events < EVENTS_MAX, "too many events");
            self.now = at;
            self.happen(what);
            self.check_changed();
            if self.peace && self.is_over() {
                break;
            }
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Input(who, run, input) => self.input(who, run, input),
            Happening::Datagram(datagram) => self.arrive(datagram),
            Happening::Double(datagram) => {
                let lives = self.host(datagram.from).run == datagram.run;
                if lives || !matches!(datagram.body, Body::Initial) {
                    self.arrive(datagram);
                }
            }
            Happening::Segment(segment) => self.segment(segment),
            Happening::Kernel(conn, side) => self.kernel_timer(conn, side),
            Happening::Start(who) => self.start(who),
            Happening::Policy(who, policy) => {
                if policy.version > self.host(who).policy.version {
                    self.host_mut(who).policy = policy;
                    self.input_at(self.now, who, Input::PolicyChanged);
                }
            }
            Happening::Flap(node, relay, left) => self.flap(node, relay, left),
            Happening::Fault => {
                if !self.peace {
                    self.fault();
                    let next = self.after(self.plan.fault_every_ms * 2);
                    self.at(next, Happening::Fault);
                }
            }
            Happening::Look => {
                self.look();
                self.at(self.now.plus(LOOK_EVERY), Happening::Look);
            }
            Happening::Check(check) => self.check_return(&check),
            Happening::Peace => self.make_peace(),
        }
    }

    fn input(&mut self, who: Who, run: u64, input: Input) {
        let host = self.host(who);
        if host.run != run || run == 0 {
            return;
        }
        if matches!(input, Input::Live(..)) {
            if host.deaf_until > self.now {
                let at = host.deaf_until;
                self.at(at, Happening::Input(who, run, input));
                return;
            }
        } else if host.is_frozen(self.now) {
            // What has come meanwhile is found in any order.
            let (at, late) = (host.frozen_until, self.rng.u64(0..2_000));
            self.at(
                at.plus(Duration::from_micros(late)),
                Happening::Input(who, run, input),
            );
            return;
        }
        match who {
            Who::Node(n) => self.node_input(n, input),
            Who::Relay(r) => self.relay_input(r, input),
        }
    }

    fn arrive(&mut self, datagram: Datagram) {
        let to = datagram.to;
        let (up, run) = (self.host(to).up, self.host(to).run);
        if !up || run == 0 {
            return;
        }
        let side = usize::from(matches!(to, Who::Relay(_)));
        if let Some(truth) = self.truths.get_mut(&datagram.carrier)
            && matches!(datagram.body, Body::Data { .. })
            && truth.runs[side] == run
        {
            truth.arrived[side] = self.now;
            truth.unread[side].get_or_insert(self.now);
        }
        self.input(to, run, Input::Datagram(datagram));
    }

    /// The process of an end reads something of a carrier.
    pub(super) fn read(&mut self, carrier: CarrierId, side: usize) {
        if let Some(truth) = self.truths.get_mut(&carrier) {
            truth.unread[side] = None;
            truth.read[side] = self.now;
        }
    }

    /// An end of a carrier ceases to be. `stood`: a liveness connection stands for the other end.
    pub(super) fn end_gone(&mut self, carrier: CarrierId, side: usize) {
        let Some(truth) = self.truths.get(&carrier) else {
            return;
        };
        let (n, r) = truth.pair;
        let stood = match side {
            0 => self.relays[r].stands(carrier),
            _ => self.nodes[n].stands(r, carrier),
        };
        let truth = self.truths.get_mut(&carrier).unwrap();
        if truth.gone[side].is_none() {
            truth.gone[side] = Some(self.now);
            truth.stood[side] = stood;
        }
        if truth.gone.iter().all(Option::is_some) {
            self.truths.remove(&carrier);
        }
    }
}

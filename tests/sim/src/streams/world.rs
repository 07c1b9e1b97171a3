//! The event loop: one thing happens at a time, at its time.

use super::application::Application;
use super::end::End;
use super::faults::Relay;
use super::legs::{Leg, LegId, Notice};
use super::plan::{Plan, START, ms};
use crate::Transcript;
use crate::agenda::Agenda;
use fairlead_model::{LegEpoch, MonoTime};
use fairlead_stream::NumberWindow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) const DIALLER: usize = 0;
pub(super) const ACCEPTOR: usize = 1;

/// Most events of one world: far above what any needs.
const EVENTS_MAX: u64 = 3_000_000;

/// Names one machine of one stream at one daemon.
pub(super) type EndId = u64;

/// Something that is due.
#[derive(Debug, Clone, Copy)]
pub(super) enum Happening {
    /// A consumer's application connects.
    Connect(usize),
    /// An application's turn.
    Application(EndId),
    /// The machine's own timer.
    Timer(EndId),
    /// The dialling daemon looks after its stream's legs.
    Drive(EndId),
    /// Bytes arrive somewhere on a leg.
    Wire(LegId),
    /// An end learns that a leg is gone.
    Noticed(LegId, usize, Notice),
    /// The publisher's verdicts on attaches come late.
    Verdicts(EndId),
    /// A leg of the publisher's is looked at: nothing may have been verified on it.
    Unverified(LegId),
    /// The target's connection succeeds or not.
    Dialled(EndId, bool),
    /// An authenticated handshake tells a side which run of the other it deals with.
    Handshake(usize),
    /// Something is done to the world.
    Fault,
    /// Something may have healed: all legs are looked at.
    Healed,
    /// All faults end.
    Calm,
}

/// A node's daemon.
pub(super) struct Daemon {
    /// How often it has started.
    pub(super) boot: u64,
    pub(super) stalled_until: MonoTime,
    /// Stream numbers that the publisher has seen, per association.
    pub(super) numbers: BTreeMap<(u64, u64), NumberWindow>,
}

/// One stream in the model's eyes.
pub(super) struct Course {
    /// Starts of the two daemons whose association it belongs to.
    pub(super) association: (u64, u64),
    pub(super) dialler: Option<EndId>,
    /// The machine whose target was dialled.
    pub(super) acceptor: Option<EndId>,
    /// The machine that takes further legs: the acceptor's, or one that refuses.
    pub(super) serving: Option<EndId>,
    /// Why it may end in another way than cleanly.
    pub(super) excused: Option<&'static str>,
    /// How often a target was dialled for it (I8).
    pub(super) dialled: u32,
    /// Legs that the dialler has opened: epoch and relay (I7).
    pub(super) opened: BTreeMap<LegEpoch, usize>,
}

pub(super) struct World<'t> {
    pub(super) seed: u64,
    pub(super) now: MonoTime,
    pub(super) rng: fastrand::Rng,
    pub(super) plan: Plan,
    pub(super) transcript: &'t mut Transcript,
    agenda: Agenda<Happening>,
    pub(super) calm: bool,
    pub(super) relays: Vec<Relay>,
    pub(super) daemons: [Daemon; 2],
    pub(super) courses: Vec<Course>,
    pub(super) ends: BTreeMap<EndId, End>,
    pub(super) legs: BTreeMap<LegId, Leg>,
    /// Ends that something has happened to.
    pub(super) dirty: BTreeSet<EndId>,
    pub(super) touched: BTreeSet<usize>,
    names: u64,
}

impl<'t> World<'t> {
    pub(super) fn new(seed: u64, transcript: &'t mut Transcript) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng);
        let daemon = || Daemon {
            boot: 1,
            stalled_until: MonoTime(0),
            numbers: BTreeMap::new(),
        };
        let relays = (0..plan.relays).map(|_| Relay::default()).collect();
        let mut world = Self {
            seed,
            now: START,
            rng,
            plan,
            transcript,
            agenda: Agenda::default(),
            calm: false,
            relays,
            daemons: [daemon(), daemon()],
            courses: Vec::new(),
            ends: BTreeMap::new(),
            legs: BTreeMap::new(),
            dirty: BTreeSet::new(),
            touched: BTreeSet::new(),
            names: 0,
        };
        for stream in 0..world.plan.streams {
            let span = (world.plan.calm_at.since(START).as_millis() / 2) as u64;
            let at = world.after(if stream == 0 { 0 } else { span });
            world.at(at, Happening::Connect(stream));
        }
        world.at(world.plan.calm_at, Happening::Calm);
        let first = world.after(world.plan.fault_every_ms * 4);
        world.at(first, Happening::Fault);
        world
    }

    /// A random time at most `ms_max` ahead.
    pub(super) fn after(&mut self, ms_max: u64) -> MonoTime {
        self.now
            .plus(Duration::from_micros(self.rng.u64(0..=ms_max * 1000)))
    }

    pub(super) fn at(&mut self, at: MonoTime, what: Happening) {
        self.agenda.add(at.max(self.now), what);
    }

    pub(super) fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(super) fn note(&mut self, event: std::fmt::Arguments<'_>) {
        self.transcript.add(self.now, event);
    }

    pub(super) fn run(mut self) {
        let mut events = 0;
        while let Some((at, what)) = self.agenda.next() {
            events += 1;
            assert!(events < EVENTS_MAX, "too many events");
            self.now = at;
            self.happen(what);
            while let Some(end) = self.dirty.pop_first() {
                self.settle(end);
            }
            while let Some(stream) = self.touched.pop_first() {
                self.check(stream);
            }
            if self.calm && self.is_over() {
                break;
            }
            if self.now > self.end_by() {
                self.stuck();
            }
        }
        self.final_check();
    }

    /// When every stream must have come to its end: the longest hold, lingering twice as long, and
    /// time for what was left to say.
    fn end_by(&self) -> MonoTime {
        let hold = self.plan.config.iter().map(|c| c.hold).max().unwrap_or_default();
        self.plan.calm_at.plus(hold * 4 + ms(120_000))
    }

    fn is_over(&self) -> bool {
        self.courses.len() == self.plan.streams && self.ends.values().all(|e| e.is_done())
    }

    fn happen(&mut self, what: Happening) {
        if let Some(side) = self.done_by(what).filter(|side| self.is_stalled(*side)) {
            return self.at(self.daemons[side].stalled_until, what);
        }
        match what {
            Happening::Connect(stream) => self.connect(stream),
            Happening::Application(end) => self.application(end),
            Happening::Timer(end) => {
                if let Some(e) = self.ends.get_mut(&end) {
                    e.timer_at = e.timer_at.filter(|t| *t > self.now);
                    self.dirty.insert(end);
                }
            }
            Happening::Drive(end) => self.drive(end),
            Happening::Wire(leg) => {
                if let Some(l) = self.legs.get_mut(&leg) {
                    l.wake = l.wake.filter(|t| *t > self.now);
                    self.pump(leg);
                }
            }
            Happening::Noticed(leg, side, why) => self.noticed(leg, side, why),
            Happening::Verdicts(end) => self.verdicts(end),
            Happening::Unverified(leg) => self.unverified(leg),
            Happening::Dialled(end, good) => self.dialled(end, good),
            Happening::Handshake(side) => self.handshake(side),
            Happening::Fault => {
                if !self.calm {
                    self.fault();
                    let next = self.after(self.plan.fault_every_ms * 2);
                    self.at(next, Happening::Fault);
                }
            }
            Happening::Healed => self.look_everywhere(),
            Happening::Calm => self.become_calm(),
        }
    }

    /// The daemon that does this itself, and not while it is stalled. Where `None`, what it would do of it
    /// is left out meanwhile.
    fn done_by(&self, what: Happening) -> Option<usize> {
        match what {
            Happening::Verdicts(end) | Happening::Dialled(end, _) => self.ends.get(&end).map(|e| e.side),
            Happening::Unverified(_) => Some(ACCEPTOR),
            Happening::Handshake(side) => Some(side),
            Happening::Connect(_)
            | Happening::Application(_)
            | Happening::Timer(_)
            | Happening::Drive(_)
            | Happening::Wire(_)
            | Happening::Noticed(..)
            | Happening::Fault
            | Happening::Healed
            | Happening::Calm => None,
        }
    }

    /// Looks at all legs and ends: a cut, a freeze or a stall is over.
    pub(super) fn look_everywhere(&mut self) {
        let legs: Vec<LegId> = self.legs.keys().copied().collect();
        for leg in legs {
            self.pump(leg);
        }
        self.dirty.extend(self.ends.keys().copied());
    }

    fn become_calm(&mut self) {
        self.calm = true;
        self.note(format_args!("calm"));
        for relay in &mut self.relays {
            *relay = Relay::default();
        }
        for daemon in &mut self.daemons {
            daemon.stalled_until = MonoTime(0);
        }
        self.ends
            .values_mut()
            .filter_map(|e| e.app.as_mut())
            .for_each(Application::hurry);
        // With the lying relays go the legs that they made up or damaged.
        let false_legs = self
            .legs
            .iter()
            .filter(|(_, l)| l.ends[DIALLER].is_none() || l.tampered);
        let false_legs: Vec<LegId> = false_legs.map(|(id, _)| *id).collect();
        for leg in false_legs {
            self.break_leg(leg);
        }
        self.at(self.now.plus(ms(500)), Happening::Handshake(DIALLER));
        self.at(self.now.plus(ms(500)), Happening::Handshake(ACCEPTOR));
        self.look_everywhere();
    }

    /// Whether a daemon does nothing just now.
    pub(super) fn is_stalled(&self, side: usize) -> bool {
        self.daemons[side].stalled_until > self.now
    }
}

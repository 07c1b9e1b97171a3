//! Every order in which two ends, two relays and a network that owns both can attach legs.
//!
//! The network sees all that is sent, and delivers any of it, any number of times, in any order, over
//! either relay and under any epoch: it redirects, replays, withholds and makes up legs. It cannot
//! forge a record. The states are the real machines, rebuilt from the steps that led to them; two
//! states are one if everything that the rules look at is the same.

use crate::attach::AttachRules;
use crate::*;
use bytes::{Bytes, BytesMut};
use fairlead_model::{LegEpoch, MonoTime, RelayId};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::time::Duration;

/// Epochs that the dialler opens: a move is two.
const EPOCHS: u64 = 2;
const RELAYS: u8 = 2;
/// Legs at the acceptor on which nothing was verified: one per relay, as a daemon keeps them.
const PENDING_MAX: usize = 2;
/// Attaches after which a run is cut off: more than there are epochs, so that a second life shows.
const ACCEPTED_MAX: usize = 3;
const NOW: MonoTime = MonoTime(1);

type At = (u64, u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// The dialler opens its next leg through a relay.
    Open(u8),
    /// A relay announces a leg to the acceptor, as of any epoch.
    Incoming(At),
    /// Something that the dialler has sent on some leg arrives on a leg of the acceptor's.
    Deliver { to: At, sent: usize },
    /// Something that the acceptor has sent on some leg arrives on a leg of the dialler's.
    Answer { to: u64, sent: usize },
    /// The dialler loses a leg.
    DiallerLoses(u64),
    /// The acceptor loses a leg.
    AcceptorLoses(At),
}

/// All that the rules look at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct View {
    /// The relay of each epoch that was opened.
    opened: Vec<u8>,
    /// Epochs of the dialler's live legs, and whether they are attached.
    dialler: Vec<(u64, bool)>,
    /// The acceptor's legs on which nothing was verified.
    pending: Vec<At>,
    /// The acceptor's attached legs.
    attached: Vec<At>,
    /// Every attach that the acceptor took, in order.
    accepted: Vec<At>,
    /// Every answer that the dialler took.
    answered: Vec<u64>,
    /// An end of the dialler's stream, which no relay may bring about.
    ended: bool,
    /// Legs that take new bytes, per end.
    writers: [usize; 2],
}

#[derive(Debug, Clone)]
struct State {
    steps: Vec<Step>,
    view: View,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.view == other.view
    }
}

impl Eq for State {}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.view.hash(state);
    }
}

/// The machines, and what was sent between them.
struct Machines {
    rules: AttachRules,
    dialler: Stream,
    acceptor: Stream,
    /// What the dialler sent on each epoch, and the acceptor on each leg it attached.
    sent: [Vec<Bytes>; 2],
    view: View,
}

fn secret() -> StreamSecret {
    super::sim::secret()
}

fn name((epoch, relay): At) -> LegName {
    path(0, (epoch, relay)).name()
}

fn path(side: u8, (epoch, relay): At) -> LegPath {
    LegPath {
        epoch: LegEpoch(epoch),
        relay: RelayId::from_bytes([relay + 1; 16]),
        salt: [side * 100 + epoch as u8 * 10 + relay; 16],
    }
}

impl Machines {
    fn after(rules: AttachRules, steps: &[Step]) -> Self {
        let dialler = Stream::dial(Config::default(), secret(), Bytes::from_static(b"grant")).unwrap();
        let mut machines = Self {
            rules,
            dialler: dialler.with_rules(rules),
            acceptor: Stream::accept(Config::default(), secret()).with_rules(rules),
            sent: [Vec::new(), Vec::new()],
            view: View::default(),
        };
        for step in steps {
            machines.apply(*step);
        }
        machines.look();
        machines
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Open(relay) => {
                let epoch = self.dialler.next_epoch();
                let opened = self
                    .dialler
                    .open_leg(path(0, (epoch.0, relay)), AttachKind::Resend);
                let mut out = BytesMut::new();
                if opened.is_ok() {
                    let leg = name((epoch.0, relay));
                    self.dialler.poll_transmit(leg, NOW, &mut out, TRANSMIT_BATCH);
                    self.view.dialler.push((epoch.0, false));
                }
                self.view.opened.push(relay);
                self.sent[0].push(out.freeze());
            }
            Step::Incoming(at) => {
                if self.acceptor.open_leg(path(1, at), AttachKind::Resend).is_ok() {
                    self.view.pending.push(at);
                    self.view.pending.sort_unstable();
                }
            }
            Step::Deliver { to, sent } => {
                let bytes = self.sent[0][sent].clone();
                self.view.pending.retain(|at| *at != to);
                if self.acceptor.receive(name(to), NOW, &bytes).is_err() {
                    self.view.attached.retain(|at| *at != to);
                }
                self.acceptor_events(to);
            }
            Step::Answer { to, sent } => {
                let bytes = self.sent[1][sent].clone();
                let leg = self.dialled(to);
                if self.dialler.receive(leg, NOW, &bytes).is_err() {
                    self.view.dialler.retain(|(epoch, _)| *epoch != to);
                }
                while let Some(event) = self.dialler.poll_event() {
                    match event {
                        Event::Attached { leg } => {
                            let epoch = leg.epoch;
                            self.view.answered.push(epoch.0);
                            for leg in self.view.dialler.iter_mut().filter(|l| l.0 == epoch.0) {
                                leg.1 = true;
                            }
                        }
                        Event::Ended(_) => self.view.ended = true,
                        _ => {}
                    }
                }
            }
            Step::DiallerLoses(epoch) => {
                self.dialler.leg_lost(self.dialled(epoch), NOW);
                self.view.dialler.retain(|(e, _)| *e != epoch);
            }
            Step::AcceptorLoses(at) => {
                self.acceptor.leg_lost(name(at), NOW);
                self.view.attached.retain(|a| *a != at);
                self.view.pending.retain(|a| *a != at);
                self.acceptor_events(at);
            }
        }
    }

    /// The dialler's leg of an epoch.
    fn dialled(&self, epoch: u64) -> LegName {
        name((epoch, self.view.opened[epoch as usize - 1]))
    }

    fn acceptor_events(&mut self, at: At) {
        while let Some(event) = self.acceptor.poll_event() {
            match event {
                Event::Attach { leg, first, .. } => {
                    self.view.accepted.push(at);
                    if self.acceptor.accept_attach(leg, NOW).is_ok() {
                        self.view.attached.push(at);
                    }
                    if first {
                        self.acceptor.target_connected();
                    }
                    let mut out = BytesMut::new();
                    self.acceptor.poll_transmit(leg, NOW, &mut out, TRANSMIT_BATCH);
                    self.sent[1].push(out.freeze());
                }
                // The daemon keeps no stream of which nothing was verified.
                Event::Ended(_) if !self.acceptor.ever_attached() => {
                    self.acceptor = Stream::accept(Config::default(), secret()).with_rules(self.rules);
                    self.view.pending.clear();
                }
                _ => {}
            }
        }
    }

    fn look(&mut self) {
        let legs = || (1..=EPOCHS + 1).flat_map(|epoch| (0..RELAYS).map(move |relay| name((epoch, relay))));
        self.view.writers = [
            legs().filter(|l| self.dialler.is_current(*l)).count(),
            legs().filter(|l| self.acceptor.is_current(*l)).count(),
        ];
    }

    /// Whether the dialler gets a leg through relay 0 at the first attempt if that relay carries it as it
    /// should, whatever the other one has told the acceptor.
    fn can_move(mut self) -> bool {
        // The daemons give up what has no answer, and one unverified leg for another of its relay.
        for (epoch, attached) in self.view.dialler.clone() {
            if !attached {
                self.apply(Step::DiallerLoses(epoch));
            }
        }
        let old: Vec<At> = self.view.pending.iter().copied().filter(|at| at.1 == 0).collect();
        self.apply(Step::Open(0));
        let epoch = self.view.opened.len() as u64;
        let (to, sent) = ((epoch, 0), self.sent[0].len() - 1);
        self.apply(Step::Incoming(to));
        for at in old.into_iter().filter(|at| *at != to) {
            self.apply(Step::AcceptorLoses(at));
        }
        self.apply(Step::Deliver { to, sent });
        let sent = self.sent[1].len().saturating_sub(1);
        if self.view.accepted.last() != Some(&to) {
            return false;
        }
        self.apply(Step::Answer { to: epoch, sent });
        self.dialler.is_current(name(to)) && self.acceptor.is_current(name(to))
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Attaches(AttachRules);

impl Model for Attaches {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let view = Machines::after(self.0, &[]).view;
        vec![State {
            steps: Vec::new(),
            view,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        let view = &state.view;
        if (view.opened.len() as u64) < EPOCHS {
            actions.extend((0..RELAYS).map(Step::Open));
        }
        if view.pending.len() < PENDING_MAX {
            for epoch in 1..=EPOCHS {
                actions.extend((0..RELAYS).map(|relay| Step::Incoming((epoch, relay))));
            }
        }
        for to in &view.pending {
            actions.extend((0..view.opened.len()).map(|sent| Step::Deliver { to: *to, sent }));
        }
        // A replay on an attached leg is a bad record: the same as its loss.
        for at in view.pending.iter().chain(&view.attached) {
            actions.push(Step::AcceptorLoses(*at));
        }
        for (to, _) in &view.dialler {
            actions.extend((0..view.accepted.len()).map(|sent| Step::Answer { to: *to, sent }));
            actions.push(Step::DiallerLoses(*to));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut steps = state.steps.clone();
        steps.push(step);
        let view = Machines::after(self.0, &steps).view;
        (view != state.view).then_some(State { steps, view })
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.view.accepted.len() <= ACCEPTED_MAX
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "I7: accepted only where the dialler sealed it",
                |_, state: &State| {
                    let opened =
                        |(epoch, relay): &At| state.view.opened.get(*epoch as usize - 1) == Some(relay);
                    state.view.accepted.iter().all(opened)
                },
            ),
            Property::always("I5: epochs only rise", |_, state: &State| {
                state.view.accepted.is_sorted_by(|a, b| a.0 < b.0)
            }),
            Property::always("an answer is the acceptor's", |_, state: &State| {
                let accepted = |epoch: &u64| state.view.accepted.iter().any(|at| at.0 == *epoch);
                state.view.answered.iter().all(accepted)
            }),
            Property::always("at most one leg takes new bytes", |_, state: &State| {
                state.view.writers.iter().all(|n| *n <= 1)
            }),
            Property::always("no relay ends the stream", |_, state: &State| !state.view.ended),
            Property::always("a move stays possible", |model: &Self, state: &State| {
                Machines::after(model.0, &state.steps).can_move()
            }),
            Property::sometimes("a move", |_, state: &State| {
                state.view.answered.len() > 1 && state.view.dialler.len() == 1
            }),
        ]
    }
}

/// R-STR-03, R-STR-05, I5, I7: whatever the network does, an attach is accepted only on the leg that the
/// peer sealed it for, once, in rising order; and another leg can always be attached.
#[test]
fn attach_holds_against_a_network_that_owns_the_relays() {
    let checker = Attaches::default()
        .checker()
        .threads(2)
        .timeout(Duration::from_secs(100))
        .spawn_bfs()
        .join();
    println!(
        "{} states, depth {}, done {}",
        checker.unique_state_count(),
        checker.max_depth(),
        checker.is_done()
    );
    assert!(checker.unique_state_count() > 500);
    checker.assert_properties();
}

/// The steps to a state in which `property` does not hold.
fn counterexample(rules: AttachRules, property: &'static str) -> Vec<Step> {
    let checker = Attaches(rules)
        .checker()
        .finish_when(HasDiscoveries::AllOf([property].into()))
        .spawn_bfs()
        .join();
    let path = checker.discovery(property).expect("a counterexample");
    path.into_actions()
}

/// The model can fail: keys and ATTACH without the relay let a leg be redirected.
#[test]
fn without_the_relay_binding_a_leg_is_redirected() {
    let rules = AttachRules {
        without_relay: true,
        ..AttachRules::default()
    };
    println!(
        "{:?}",
        counterexample(rules, "I7: accepted only where the dialler sealed it")
    );
}

/// The model can fail: without the epoch rule an old leg lives again.
#[test]
fn without_the_epoch_rule_a_leg_is_replayed() {
    let rules = AttachRules {
        without_epoch: true,
        ..AttachRules::default()
    };
    println!("{:?}", counterexample(rules, "I5: epochs only rise"));
}

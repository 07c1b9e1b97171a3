//! The node's verdict on a relay.

use super::beside::{Beside, LOST_AFTER, Path, Wish};
use super::heard::{Arrived, Heard};
use super::message::BindRefusal;
use super::{AttemptFailure, Death, KEEP_ALIVE, LOOK_EVERY, LostCause, QUIC_SILENCE_MAX, SILENT_TOO};
use fairlead_model::{MonoTime, ProcessBootId};
use std::collections::VecDeque;
use std::time::Duration;

/// Least time that a probe's answer may take: the relay's two tasks that answer, on a machine with
/// something else to do. It only ever adds to a host that says that nobody listens.
const PROBE_MIN: Duration = Duration::from_millis(4);
/// Round trips that a probe's answer may take.
const PROBE_ROUND_TRIPS: u32 = 3;
/// Least time for a host to answer a connection attempt after a loss. Below a second, so that a
/// vanished host is known in 3.9 s (R-ADM-02), although one lost packet of TCP's takes one: QUIC's
/// silence must agree.
const ATTEMPT_MIN: Duration = Duration::from_millis(300);
/// The same while nothing was lost: one retransmission of TCP's.
const ATTEMPT_CALM: Duration = Duration::from_millis(2_500);
/// How often datagrams are looked for while a probe is out.
const LOOK_PROBING: Duration = Duration::from_millis(1);
/// Waits between rounds of probe and attempt while the relay answers the one and not the other:
/// doubled each time from the first. A killed relay's last datagrams are read within the first.
const ROUND_WAIT_FIRST: Duration = Duration::from_millis(20);
/// Rounds until TCP is taken for blocked, so that QUIC alone decides: 0.6 s of contradiction.
const ROUNDS_MAX: u32 = 5;
/// Waits between attempts while QUIC alone decides.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(15);
/// Failed attempts from which on it is worth a warning that only QUIC decides.
const WARN_AFTER: u32 = 3;
/// QUIC's silence from which on the relay is doubted: two keep-alives.
const DOUBT_AFTER: Duration = Duration::from_secs(2);
const _: () = assert!(DOUBT_AFTER.as_millis() == 2 * KEEP_ALIVE.as_millis());
const _: () = assert!(LOST_AFTER.as_millis() > DOUBT_AFTER.as_millis());
/// Unanswered pings of the liveness connection from which on the relay is doubted.
const DOUBT_AFTER_PINGS: u32 = 2;

/// How much speaks against a relay that is not dead. Ordered: the more, the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Nothing.
    None,
    /// It says nothing, or does not hear this end, although its host may be there: busy, frozen, or UDP does
    /// not pass.
    Silent,
    /// Its liveness connection was lost and it was not heard of since.
    LivenessLost,
}

impl Doubt {
    /// Whether anything speaks against the relay.
    #[must_use]
    pub const fn any(self) -> bool {
        match self {
            Self::None => false,
            Self::Silent | Self::LivenessLost => true,
        }
    }
}

/// What has passed on the QUIC connection of a session so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// Bytes of datagrams received.
    pub received_bytes: u64,
    /// Frames sent that the relay acknowledges, keep-alives among them.
    pub asking_frames: u64,
    /// The smoothed round trip.
    pub rtt: Duration,
}

/// What the node's loop is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAction {
    /// Send something over QUIC that the relay answers.
    Probe,
    /// Make a liveness connection, and report what became of it. The host must have taken it
    /// within this.
    Connect(Duration),
    /// Log once that QUIC alone decides.
    OnlyQuic,
    /// Make another QUIC connection to the relay beside the session's, and report what became of it.
    DialBeside,
    /// Give that up.
    GiveUpBeside,
    /// End the session.
    Dead(Death),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No connection has stood, or none can be made: QUIC alone decides.
    OnlyQuic { failures: u32, next: Next },
    /// The connection stands.
    Held { unanswered: u32 },
    /// It was lost; not known yet what that means.
    Broken(Round),
    /// The session is over.
    Dead,
}

/// When a connection is tried next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Running,
    At(MonoTime),
}

/// One probe and one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Round {
    number: u32,
    began: MonoTime,
    /// The relay was heard of since.
    answered: bool,
    attempt: Attempt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Running,
    /// Its host does not take it.
    Failed(Death),
    /// Its host took it, its process does not answer; tried anew at the given time.
    Unserved(MonoTime),
    /// It failed although the relay seems to live: the next round begins at the given time.
    Contradicted(MonoTime),
}

/// The node's end, as a machine, for one hop session that is established.
///
/// **Inputs:** what becomes of connections ([`bound`](Self::bound), [`refused`](Self::refused),
/// [`attempt_failed`](Self::attempt_failed), [`lost`](Self::lost), [`pings`](Self::pings)) and of dials
/// beside the session ([`beside_up`](Self::beside_up), [`beside_failed`](Self::beside_failed)), how
/// much QUIC has received ([`datagrams`](Self::datagrams), before every other input), and
/// [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout). **Outputs:**
/// [`poll_action`](Self::poll_action), drained after every input, and [`doubt`](Self::doubt). At
/// most one attempt and one dial run at a time. After [`NodeAction::Dead`], and once another connection has
/// taken the session's place, nothing more comes.
#[derive(Debug)]
pub struct NodeLiveness {
    relay_boot: ProcessBootId,
    state: State,
    heard: Heard,
    arrived: Arrived,
    beside: Beside,
    rtt: Duration,
    warned: bool,
    actions: VecDeque<NodeAction>,
}

impl NodeLiveness {
    /// A session with this run of the relay's worker, which was heard at `now`. The first action
    /// is to connect.
    #[must_use]
    pub fn new(relay_boot: ProcessBootId, passed: Passed, now: MonoTime) -> Self {
        Self {
            relay_boot,
            state: State::OnlyQuic {
                failures: 0,
                next: Next::Running,
            },
            heard: Heard::new(passed.received_bytes, now),
            arrived: Arrived::new(passed, now),
            beside: Beside::new(now),
            rtt: Duration::ZERO,
            warned: false,
            actions: VecDeque::from([NodeAction::Connect(ATTEMPT_CALM)]),
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<NodeAction> {
        self.actions.pop_front()
    }

    /// How much speaks against the relay.
    #[must_use]
    pub fn doubt(&self, now: MonoTime) -> Doubt {
        let silent = now.since(self.heard.at()) >= DOUBT_AFTER || self.arrived.is_silent(DOUBT_AFTER, now);
        let doubted = match self.state {
            State::OnlyQuic { .. } | State::Dead => false,
            State::Held { unanswered } => unanswered >= DOUBT_AFTER_PINGS,
            State::Broken(round) => match round.attempt {
                Attempt::Unserved(_) => true,
                Attempt::Running | Attempt::Failed(_) | Attempt::Contradicted(_) => {
                    if !round.answered {
                        return Doubt::LivenessLost;
                    }
                    false
                }
            },
        };
        if silent || doubted {
            Doubt::Silent
        } else {
            Doubt::None
        }
    }

    /// Whether the session's datagrams pass, both ways, at a relay that lives.
    fn path(&self, now: MonoTime) -> Path {
        Path {
            alive: match self.state {
                State::OnlyQuic { .. } => true,
                State::Held { unanswered } => unanswered < DOUBT_AFTER_PINGS,
                State::Broken(_) | State::Dead => false,
            },
            silent: self.heard.is_silent(LOST_AFTER, now) || self.arrived.is_silent(LOST_AFTER, now),
        }
    }

    /// What has passed by QUIC so far.
    pub fn datagrams(&mut self, passed: Passed, now: MonoTime) {
        self.rtt = passed.rtt;
        let look = self.heard.look(passed.received_bytes, now);
        self.arrived.look(passed, now);
        if let State::Broken(round) = &mut self.state {
            round.began = round.began.plus(look.paused);
            if look.news {
                round.answered = true;
                if let Attempt::Failed(_) = round.attempt {
                    self.contradicted(now);
                }
            }
        }
        if self.state != State::Dead {
            let action = self.beside.look(self.path(now), now).map(|wish| match wish {
                Wish::Dial => NodeAction::DialBeside,
                Wish::GiveUp => NodeAction::GiveUpBeside,
            });
            self.actions.extend(action);
        }
    }

    /// The dial beside the session came to nothing.
    pub fn beside_failed(&mut self, now: MonoTime) {
        self.beside.failed(now);
    }

    /// The connection beside the session stands. Whether it takes the session's place, which is over then;
    /// otherwise it is not wanted any more.
    #[must_use]
    pub fn beside_up(&mut self, now: MonoTime) -> bool {
        let path = self.path(now);
        let takes = self.beside.up(path, now);
        if takes {
            self.state = State::Dead;
            self.actions.clear();
        }
        takes
    }

    /// The relay answered that it holds the session.
    pub fn bound(&mut self, boot: ProcessBootId) {
        if boot != self.relay_boot {
            self.die(Death::OtherBoot);
        } else if self.state != State::Dead {
            self.state = State::Held { unanswered: 0 };
        }
    }

    /// The relay answered that it does not.
    pub fn refused(&mut self, why: BindRefusal, boot: ProcessBootId, now: MonoTime) {
        match why {
            _ if boot != self.relay_boot => self.die(Death::OtherBoot),
            BindRefusal::NoSession => self.die(Death::NoSession),
            BindRefusal::Busy => self.attempt_failed(AttemptFailure::Unable, now),
        }
    }

    /// An attempt came to nothing.
    pub fn attempt_failed(&mut self, why: AttemptFailure, now: MonoTime) {
        match &mut self.state {
            State::Held { .. } | State::Dead => {}
            State::OnlyQuic { failures, next } => {
                *next = Next::At(now.plus(retry_wait(*failures)));
                *failures = failures.saturating_add(1);
                if *failures >= WARN_AFTER {
                    self.warn();
                }
            }
            State::Broken(round) => match why {
                AttemptFailure::Refused => self.absent(Death::ProcessGone, now),
                AttemptFailure::NoAnswer => self.absent(Death::HostGone, now),
                AttemptFailure::Cut => self.contradicted(now),
                AttemptFailure::Unserved => round.attempt = Attempt::Unserved(now.plus(RETRY_FIRST)),
                AttemptFailure::Unable => self.only_quic(now),
            },
        }
    }

    /// The connection that stood was lost.
    pub fn lost(&mut self, cause: LostCause, now: MonoTime) {
        match self.state {
            State::OnlyQuic { .. } | State::Broken(_) | State::Dead => {}
            State::Held { .. } => match cause {
                LostCause::Unacknowledged if self.heard.is_silent(SILENT_TOO, now) => {
                    self.die(Death::HostGone)
                }
                LostCause::Closed | LostCause::Unacknowledged | LostCause::Protocol => self.round(1, now),
            },
        }
    }

    /// Pings of the connection that are not answered at this moment.
    pub fn pings(&mut self, now_unanswered: u32) {
        if let State::Held { unanswered } = &mut self.state {
            *unanswered = now_unanswered;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        let look = |every| Some(now.plus(every));
        match self.state {
            State::Dead => None,
            State::Held { .. } => look(LOOK_EVERY),
            State::OnlyQuic { next, .. } => {
                let due = match next {
                    Next::Running => None,
                    Next::At(at) => Some(at),
                };
                look(LOOK_EVERY).into_iter().chain(due).min()
            }
            State::Broken(round) => match round.attempt {
                Attempt::Running | Attempt::Failed(_) if !round.answered => look(LOOK_PROBING),
                Attempt::Running | Attempt::Failed(_) => look(LOOK_EVERY),
                Attempt::Unserved(at) | Attempt::Contradicted(at) => Some(at.min(now.plus(LOOK_EVERY))),
            },
        }
    }

    /// Lets the time pass.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        match self.state {
            State::Held { .. } | State::Dead => {}
            State::OnlyQuic { .. } if self.heard.is_silent(QUIC_SILENCE_MAX, now) => self.die(Death::Silent),
            State::OnlyQuic { failures, next } => {
                if matches!(next, Next::At(at) if now >= at) {
                    self.state = State::OnlyQuic {
                        failures,
                        next: Next::Running,
                    };
                    self.actions.push_back(NodeAction::Connect(ATTEMPT_CALM));
                }
            }
            State::Broken(round) => match round.attempt {
                Attempt::Running => {}
                Attempt::Failed(_) => self.judge(now),
                // Its host lives: another attempt at the same round, and no verdict.
                Attempt::Unserved(at) if now >= at => {
                    self.actions.push_back(NodeAction::Connect(ATTEMPT_CALM));
                    self.state = State::Broken(Round {
                        attempt: Attempt::Running,
                        answered: true,
                        ..round
                    });
                }
                Attempt::Contradicted(at) if now >= at => self.round(round.number + 1, now),
                Attempt::Unserved(_) | Attempt::Contradicted(_) => {}
            },
        }
    }

    fn round(&mut self, number: u32, now: MonoTime) {
        self.state = State::Broken(Round {
            number,
            began: now,
            answered: false,
            attempt: Attempt::Running,
        });
        let limit = (self.rtt * PROBE_ROUND_TRIPS).max(ATTEMPT_MIN);
        self.actions
            .extend([NodeAction::Probe, NodeAction::Connect(limit)]);
    }

    /// The peer's host does not take the connection.
    fn absent(&mut self, death: Death, now: MonoTime) {
        let State::Broken(round) = &mut self.state else {
            return;
        };
        round.attempt = Attempt::Failed(death);
        if round.answered {
            self.contradicted(now);
        } else {
            self.judge(now);
        }
    }

    /// The attempt failed: dead, if the probe's time is over too.
    fn judge(&mut self, now: MonoTime) {
        if let State::Broken(round) = self.state
            && let Attempt::Failed(death) = round.attempt
            && !round.answered
            && !self.heard.is_behind(now)
            && now.since(round.began) >= (self.rtt * PROBE_ROUND_TRIPS).max(PROBE_MIN)
        {
            self.die(death);
        }
    }

    /// The relay was heard and its host does not take the connection, or did and it was cut.
    fn contradicted(&mut self, now: MonoTime) {
        let State::Broken(round) = &mut self.state else {
            return;
        };
        if round.number >= ROUNDS_MAX {
            self.only_quic(now);
        } else {
            let wait = ROUND_WAIT_FIRST * (1 << round.number.saturating_sub(1));
            round.attempt = Attempt::Contradicted(now.plus(wait));
        }
    }

    fn only_quic(&mut self, now: MonoTime) {
        self.state = State::OnlyQuic {
            failures: WARN_AFTER,
            next: Next::At(now.plus(retry_wait(0))),
        };
        self.warn();
    }

    fn warn(&mut self) {
        if !std::mem::replace(&mut self.warned, true) {
            self.actions.push_back(NodeAction::OnlyQuic);
        }
    }

    fn die(&mut self, death: Death) {
        // The verdict is told once: an attempt may have been under way, and its answer comes after it.
        if self.state == State::Dead {
            return;
        }
        self.state = State::Dead;
        self.actions.clear();
        self.actions.push_back(NodeAction::Dead(death));
    }
}

fn retry_wait(failures: u32) -> Duration {
    (RETRY_FIRST * (1 << failures.min(4))).min(RETRY_LONGEST)
}

//! Both ends of a liveness connection under any sequence of what happens beside a hop session: messages,
//! lost connections, failed attempts, dials beside the session, datagrams, time. Neither panics, at most one
//! attempt and one dial run at a time, nothing follows a verdict or another connection in the session's place,
//! no verdict falls on an end that was heard of a moment before, except by an authenticated answer, and nothing
//! is dialled beside a session whose datagrams pass.
#![no_main]

use fairlead_hop::liveness::{
    AttemptFailure, BindRefusal, Death, Doubt, LiveMessage, LostCause, MESSAGE_LEN, NodeAction, NodeLiveness,
    Passed, RelayAction, RelayLiveness,
};
use fairlead_model::{MonoTime, ProcessBootId};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

/// Operations of one run: enough for every state several times.
const OPERATIONS_MAX: usize = 400;
/// The relay's run that the session is with; any other is another run.
const BOOT: ProcessBootId = ProcessBootId::from_bytes([7; 16]);
/// Silence that every verdict takes that rests on silence, less the shortest round trips.
const SILENCE_MIN: Duration = Duration::from_millis(4);
/// A wait is never longer: both ends look at what QUIC received, or try again, now and then.
const LOOK_LONGEST: Duration = Duration::from_secs(1);
/// Silence, either way, from which on another connection is dialled.
const LOST_AFTER: Duration = Duration::from_secs(3);

/// What was done to an end, for the checks.
struct Track {
    received: u64,
    asking: u64,
    rtt: Duration,
    heard: MonoTime,
    /// Since when something of it waits for its acknowledgement.
    waits: Option<MonoTime>,
    dead: bool,
}

struct Run<'a> {
    input: &'a [u8],
    now: MonoTime,
    node: NodeLiveness,
    of_node: Track,
    /// The node's attempt under way.
    connecting: bool,
    /// The node's dial beside its session under way.
    dialling: bool,
    /// The node's connection stands.
    stands: bool,
    relay: RelayLiveness,
    of_relay: Track,
}

impl Run<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self
            .input
            .split_first()
            .map_or((0, self.input), |(b, rest)| (*b, rest));
        self.input = rest;
        first
    }

    /// A message as the other end might have sent it, damaged or not.
    fn message(&mut self) -> Option<LiveMessage> {
        let mut bytes = match self.byte() % 6 {
            0 => LiveMessage::Bound(BOOT),
            1 => LiveMessage::Bound(ProcessBootId::from_bytes([self.byte(); 16])),
            2 => LiveMessage::Refused(BindRefusal::NoSession, BOOT),
            3 => LiveMessage::Refused(BindRefusal::Busy, ProcessBootId::from_bytes([self.byte(); 16])),
            4 => LiveMessage::Refused(BindRefusal::Busy, BOOT),
            _ => LiveMessage::Pong(u64::from(self.byte())),
        }
        .encode();
        let at = usize::from(self.byte());
        if at < MESSAGE_LEN {
            bytes[at] ^= self.byte();
        }
        let message = LiveMessage::decode(&bytes).ok()?;
        assert_eq!(message.encode(), bytes, "a message has one encoding");
        Some(message)
    }

    fn step(&mut self) {
        match self.byte() % 9 {
            0 => self.tell_node(),
            1 => self.fail_attempt(),
            2 => {
                let cause = self.cause();
                self.datagrams(false);
                self.stands = false;
                self.node.lost(cause, self.now);
                self.after_node(None);
            }
            3 => {
                self.datagrams(false);
                let unanswered = u32::from(self.byte());
                self.node.pings(unanswered);
                self.after_node(None);
            }
            4 => {
                let asks = self.byte() % 2 == 0;
                if asks {
                    self.of_node.asking += 1;
                }
                self.datagrams(true);
                if asks {
                    self.of_node.waits.get_or_insert(self.now);
                }
            }
            5 => {
                self.datagrams(false);
                self.relay.bound();
                self.after_relay();
            }
            6 => {
                let cause = self.cause();
                self.datagrams(false);
                self.relay.lost(cause, self.now);
                self.after_relay();
            }
            7 => self.dialled(),
            _ => self.wait(),
        }
    }

    fn dialled(&mut self) {
        if !self.dialling {
            return;
        }
        let up = self.byte() % 2 == 0;
        self.datagrams(false);
        // Looking at the datagrams may have given it up: one that stands by then is offered all the same.
        if !up && self.dialling {
            self.node.beside_failed(self.now);
        }
        if up {
            let takes = self.node.beside_up(self.now);
            assert!(!takes || self.dialling, "a dial that was given up takes over");
            assert!(!takes || !self.of_node.dead, "a session that is over is replaced");
            self.of_node.dead |= takes;
        }
        self.dialling = false;
        self.after_node(None);
    }

    fn tell_node(&mut self) {
        if !self.connecting {
            return;
        }
        let Some(message) = self.message() else {
            return;
        };
        self.datagrams(false);
        match message {
            LiveMessage::Bound(boot) => {
                (self.connecting, self.stands) = (false, boot == BOOT);
                self.node.bound(boot);
                self.after_node((boot != BOOT).then_some(Death::OtherBoot));
            }
            LiveMessage::Refused(why, boot) => {
                self.connecting = false;
                let told = match why {
                    _ if boot != BOOT => Some(Death::OtherBoot),
                    BindRefusal::NoSession => Some(Death::NoSession),
                    BindRefusal::Busy => None,
                };
                self.node.refused(why, boot, self.now);
                self.after_node(told);
            }
            LiveMessage::Bind(_) | LiveMessage::Ping(_) | LiveMessage::Pong(_) => {}
        }
    }

    fn fail_attempt(&mut self) {
        if !std::mem::take(&mut self.connecting) {
            return;
        }
        let why = [
            AttemptFailure::Refused,
            AttemptFailure::NoAnswer,
            AttemptFailure::Unserved,
            AttemptFailure::Cut,
            AttemptFailure::Unable,
        ][usize::from(self.byte()) % 5];
        self.datagrams(false);
        self.node.attempt_failed(why, self.now);
        self.after_node(None);
    }

    fn cause(&mut self) -> LostCause {
        [LostCause::Closed, LostCause::Unacknowledged, LostCause::Protocol][usize::from(self.byte()) % 3]
    }

    /// What QUIC has received so far, told to both ends before every other input; `more`: something came.
    fn datagrams(&mut self, more: bool) {
        let rtt = if more {
            Duration::from_millis(u64::from(self.byte()))
        } else {
            self.of_node.rtt
        };
        for track in [&mut self.of_node, &mut self.of_relay] {
            if track.rtt != rtt {
                track.waits = None;
            }
            track.rtt = rtt;
            if more {
                track.received += 1;
                track.heard = self.now;
            }
        }
        let passed = Passed {
            received_bytes: self.of_node.received,
            asking_frames: self.of_node.asking,
            rtt,
        };
        self.node.datagrams(passed, self.now);
        self.after_node(None);
        self.relay.datagrams(self.of_relay.received, rtt, self.now);
        self.after_relay();
    }

    /// Time passes: some, or until the ends want to look.
    fn wait(&mut self) {
        let ms = u64::from(self.byte());
        let wanted = [
            self.node.poll_timeout(self.now),
            self.relay.poll_timeout(self.now),
        ];
        assert_eq!(
            wanted[0].is_none(),
            self.of_node.dead,
            "an end that lives looks again"
        );
        assert_eq!(
            wanted[1].is_none(),
            self.of_relay.dead,
            "an end that lives looks again"
        );
        for at in wanted.into_iter().flatten() {
            assert!(at.since(self.now) <= LOOK_LONGEST, "{:?}", at.since(self.now));
        }
        let next = wanted.into_iter().flatten().min().unwrap_or(self.now);
        self.now = match ms {
            0..64 => next.max(self.now),
            _ => self.now.plus(Duration::from_millis((ms - 64) * (ms - 64) / 2)),
        };
        self.datagrams(false);
        self.node.handle_timeout(self.now);
        self.after_node(None);
        self.relay.handle_timeout(self.now);
        self.after_relay();
    }

    /// Drains the node's actions. `told`: what an authenticated answer has just said of the session.
    fn after_node(&mut self, told: Option<Death>) {
        while let Some(action) = self.node.poll_action() {
            assert!(!self.of_node.dead, "{action:?} after the verdict");
            match action {
                NodeAction::Connect(limit) => {
                    assert!(!self.connecting, "two attempts at once");
                    assert!(!self.stands, "an attempt beside a connection that stands");
                    assert!(!limit.is_zero());
                    self.connecting = true;
                }
                NodeAction::Probe | NodeAction::OnlyQuic => {}
                NodeAction::DialBeside => {
                    assert!(!self.dialling, "two dials at once");
                    let quiet = self.of_node.heard.min(self.of_node.waits.unwrap_or(self.now));
                    assert!(self.now.since(quiet) >= LOST_AFTER, "beside one that passes");
                    self.dialling = true;
                }
                NodeAction::GiveUpBeside => assert!(std::mem::take(&mut self.dialling), "nothing to give up"),
                NodeAction::Dead(death) => {
                    self.of_node.dead = true;
                    if told != Some(death) {
                        assert!(
                            silence(&self.of_node, self.now) >= SILENCE_MIN,
                            "{death:?} of one that speaks"
                        );
                    }
                }
            }
        }
        assert!(
            self.of_node.dead || told.is_none(),
            "an authenticated answer is believed"
        );
        if self.node.doubt(self.now) == Doubt::LivenessLost {
            assert!(!self.stands, "a connection that stands is not lost");
        }
    }

    fn after_relay(&mut self) {
        while let Some(action) = self.relay.poll_action() {
            assert!(!self.of_relay.dead, "{action:?} after the verdict");
            match action {
                RelayAction::Probe => {}
                RelayAction::Dead(death) => {
                    self.of_relay.dead = true;
                    assert!(
                        silence(&self.of_relay, self.now) >= SILENCE_MIN,
                        "{death:?} of one that speaks"
                    );
                }
            }
        }
    }
}

fn silence(of: &Track, now: MonoTime) -> Duration {
    now.since(of.heard)
}

fuzz_target!(|data: &[u8]| {
    let now = MonoTime(1_000_000_000);
    let track = || Track {
        received: 1,
        asking: 0,
        rtt: Duration::ZERO,
        heard: now,
        waits: None,
        dead: false,
    };
    let mut run = Run {
        input: data,
        now,
        node: NodeLiveness::new(
            BOOT,
            Passed {
                received_bytes: 1,
                ..Passed::default()
            },
            now,
        ),
        of_node: track(),
        connecting: false,
        dialling: false,
        stands: false,
        relay: RelayLiveness::new(1, now),
        of_relay: track(),
    };
    run.after_node(None);
    for _ in 0..OPERATIONS_MAX {
        if run.input.is_empty() {
            break;
        }
        run.step();
    }
});

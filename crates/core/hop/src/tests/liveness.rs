//! Who is dead, in tables of what happens and what follows (R-ADM-02, F-06).

use crate::liveness::{
    AttemptFailure, BindRefusal, Death, Doubt, LiveMessage, LostCause, MESSAGE_LEN, NodeAction, NodeLiveness,
    Passed, RelayAction, RelayLiveness,
};
use fairlead_model::{MonoTime, ProcessBootId, SessionId};
use proptest::prelude::*;
use std::time::Duration;

const BOOT: ProcessBootId = ProcessBootId::from_bytes([1; 16]);
const OTHER: ProcessBootId = ProcessBootId::from_bytes([2; 16]);
const RTT: Duration = Duration::from_millis(1);

fn ms(ms: u64) -> MonoTime {
    MonoTime(1_000_000_000).plus(Duration::from_millis(ms))
}

/// A node's machine that is driven as its loop does: time passes up to each input.
struct Node {
    machine: NodeLiveness,
    passed: Passed,
    at: u64,
    done: Vec<(u64, NodeAction)>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self {
            machine: NodeLiveness::new(
                BOOT,
                Passed {
                    rtt: RTT,
                    ..Passed::default()
                },
                ms(0),
            ),
            passed: Passed {
                rtt: RTT,
                ..Passed::default()
            },
            at: 0,
            done: Vec::new(),
        };
        node.drain();
        node.done.clear();
        node
    }

    fn held() -> Self {
        let mut node = Self::new();
        node.machine.bound(BOOT);
        node
    }

    fn drain(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            self.done.push((self.at, action));
        }
    }

    /// Lets time pass until `to` without a datagram.
    fn until(&mut self, to: u64) -> &mut Self {
        while let Some(due) = self.machine.poll_timeout(ms(self.at)) {
            if due > ms(to) {
                break;
            }
            self.at = u64::try_from(due.since(ms(0)).as_millis()).unwrap();
            self.machine.datagrams(self.passed, due);
            self.machine.handle_timeout(due);
            self.drain();
        }
        self.at = to;
        self
    }

    fn input(&mut self, input: impl FnOnce(&mut NodeLiveness, MonoTime)) -> &mut Self {
        let now = ms(self.at);
        self.machine.datagrams(self.passed, now);
        input(&mut self.machine, now);
        self.drain();
        self
    }

    fn datagram(&mut self) -> &mut Self {
        self.passed.received_bytes += 100;
        self.input(|_, _| ())
    }

    /// Something is sent that the relay acknowledges.
    fn asks(&mut self) -> &mut Self {
        self.passed.asking_frames += 1;
        self.input(|_, _| ())
    }

    /// A datagram with an acknowledgement.
    fn acknowledged(&mut self) -> &mut Self {
        self.passed.rtt = RTT + (self.passed.rtt.abs_diff(RTT)).abs_diff(Duration::from_nanos(1));
        self.datagram()
    }

    fn lost(&mut self, cause: LostCause) -> &mut Self {
        self.input(|m, now| m.lost(cause, now))
    }

    fn failed(&mut self, why: AttemptFailure) -> &mut Self {
        self.input(|m, now| m.attempt_failed(why, now))
    }

    fn death(&self) -> Option<(u64, Death)> {
        self.done.iter().find_map(|(at, action)| match action {
            NodeAction::Dead(death) => Some((*at, *death)),
            NodeAction::Probe
            | NodeAction::Connect(_)
            | NodeAction::OnlyQuic
            | NodeAction::DialBeside
            | NodeAction::GiveUpBeside => None,
        })
    }

    fn count(&self, wanted: impl Fn(&NodeAction) -> bool) -> usize {
        self.done.iter().filter(|(_, action)| wanted(action)).count()
    }

    fn doubt(&self) -> Doubt {
        self.machine.doubt(ms(self.at))
    }

    /// What was wanted of a connection beside the session since this was last asked, and when, to the 250 ms
    /// between two looks.
    fn beside(&mut self) -> Vec<(u64, NodeAction)> {
        let of = |action: &NodeAction| matches!(action, NodeAction::DialBeside | NodeAction::GiveUpBeside);
        std::mem::take(&mut self.done)
            .into_iter()
            .filter(|(_, action)| of(action))
            .map(|(at, action)| (at / 250 * 250, action))
            .collect()
    }

    /// The dial beside the session stands. Whether it takes the session's place.
    fn beside_up(&mut self) -> bool {
        let mut takes = false;
        self.input(|m, now| takes = m.beside_up(now));
        takes
    }
}

/// A killed worker: the end of its connection, a refused attempt, a probe's silence.
#[test]
fn a_killed_relay_is_known_within_milliseconds() {
    let mut node = Node::held();
    node.until(2500)
        .acknowledged()
        .until(5000)
        .acknowledged()
        .until(5100);
    node.lost(LostCause::Closed);
    assert!(matches!(
        node.done[..],
        [(5100, NodeAction::Probe), (5100, NodeAction::Connect(_))]
    ));
    assert_eq!(node.doubt(), Doubt::LivenessLost);
    node.until(5101).failed(AttemptFailure::Refused);
    assert_eq!(node.death(), None, "a probe is given its time");
    node.until(5200);
    let (at, death) = node.death().unwrap();
    assert!((5104..5107).contains(&at), "{at}");
    assert_eq!(death, Death::ProcessGone);
    assert_eq!(node.machine.poll_timeout(ms(5200)), None);
}

/// The same with the dead relay's last datagrams still to be read.
#[test]
fn last_datagrams_of_a_killed_relay_do_not_save_it() {
    let mut node = Node::held();
    node.until(100).lost(LostCause::Closed);
    node.until(101).datagram();
    assert_eq!(node.doubt(), Doubt::None, "it was heard of");
    node.until(102).failed(AttemptFailure::Refused).until(121);
    assert_eq!(node.death(), None);
    node.until(122).failed(AttemptFailure::Refused).until(200);
    let (at, death) = node.death().unwrap();
    assert!((122..140).contains(&at), "{at}");
    assert_eq!(death, Death::ProcessGone);
}

/// One forged reset never kills: QUIC answers, the connection is made anew.
#[test]
fn a_forged_reset_kills_nothing() {
    let mut node = Node::held();
    node.until(100).lost(LostCause::Closed).until(102).datagram();
    node.until(110).input(|m, _| m.bound(BOOT)).until(1900);
    assert_eq!((node.death(), node.doubt()), (None, Doubt::None));
    // Even if the probe's answer is lost: the attempt succeeds.
    node.lost(LostCause::Closed)
        .until(2200)
        .input(|m, _| m.bound(BOOT));
    assert_eq!(node.death(), None);
}

/// F-06: its host acknowledges, it says nothing. Doubted for as long as QUIC keeps it, never dead.
#[test]
fn a_frozen_relay_is_doubted_and_not_dead() {
    let mut node = Node::held();
    node.until(1000).datagram().until(2999);
    assert_eq!(node.doubt(), Doubt::None);
    node.until(3000);
    assert_eq!(node.doubt(), Doubt::Silent);
    node.until(59_000);
    assert_eq!((node.death(), node.doubt()), (None, Doubt::Silent));
    node.datagram();
    assert_eq!(node.doubt(), Doubt::None);
    // Silent on the connection only.
    node.input(|m, _| m.pings(2));
    assert_eq!(node.doubt(), Doubt::Silent);
    node.input(|m, _| m.pings(0));
    assert_eq!(node.doubt(), Doubt::None);
    // Frozen, and the connection forged away: its host still takes the next one.
    node.until(60_000).lost(LostCause::Closed);
    for second in 62..100 {
        node.failed(AttemptFailure::Unserved).until(second * 1000);
        assert_eq!((node.death(), node.doubt()), (None, Doubt::Silent));
    }
}

/// Where TCP passes and UDP does not, another connection is tried beside the session, again a second after each
/// that fails, until something passes both ways.
#[test]
fn a_path_that_brings_nothing_is_tried_beside() {
    let dial = |at| vec![(at, NodeAction::DialBeside)];
    let mut node = Node::held();
    node.until(1000).acknowledged().until(3999);
    assert_eq!(node.beside(), []);
    node.until(8000);
    assert_eq!(node.beside(), dial(4000), "one at a time");
    node.input(|m, now| m.beside_failed(now)).until(8999);
    assert_eq!(node.beside(), []);
    node.until(9250);
    assert_eq!(node.beside(), dial(9000));
    assert!(node.beside_up(), "it brings what the session does not");
    node.until(60_000).lost(LostCause::Closed);
    assert_eq!(
        (node.done.len(), node.machine.poll_timeout(ms(60_000))),
        (0, None),
        "the session is over"
    );

    // It is heard, and hears nothing: the way there is cut alone, however much comes.
    let mut node = Node::held();
    node.until(1000).acknowledged().asks();
    for second in 2..7 {
        node.until(second * 1000).datagram();
    }
    assert_eq!(node.beside(), dial(4000));
    assert_eq!(node.doubt(), Doubt::Silent);
    // Also where it is acknowledged again: what the relay sends may wait for its own probes.
    assert!(node.acknowledged().beside_up());

    // Who asks for nothing waits for no acknowledgement.
    let mut node = Node::held();
    for second in 1..9 {
        node.until(second * 1000).datagram();
    }
    assert_eq!((node.beside(), node.doubt()), (vec![], Doubt::None));

    // Its own pause is no silence of the relay's (F-06).
    let mut node = Node::held();
    node.asks();
    node.until(1000).acknowledged();
    node.at = 60_000;
    node.input(|_, _| ()).until(61_000).acknowledged().until(62_000);
    assert_eq!(node.beside(), []);
    node.lost(LostCause::Closed).until(66_000);
    assert_eq!(node.beside(), [], "whether it lives is being found out");
}

/// F-06: a relay whose process stands still keeps its session, and has it when it goes on, whatever was dialled
/// beside it meanwhile; where UDP does not come back with it, another connection takes its place after all.
#[test]
fn a_frozen_relay_keeps_its_session() {
    let frozen = || {
        let mut node = Node::held();
        // Busy for three seconds, then known to be frozen.
        node.until(1000).acknowledged().until(4500);
        node.input(|m, _| m.pings(2)).until(5000);
        let wanted = [(4000, NodeAction::DialBeside), (4750, NodeAction::GiveUpBeside)];
        assert_eq!(node.beside(), wanted);
        node.until(20_000);
        assert_eq!(node.beside(), []);
        node
    };
    assert!(!frozen().beside_up(), "it was given up");
    // It goes on and is silent yet: dialled, and not wanted as soon as the session is heard.
    let mut node = frozen();
    node.input(|m, _| m.pings(0)).until(20_250);
    assert_eq!(node.beside(), [(20_250, NodeAction::DialBeside)]);
    assert!(!node.acknowledged().beside_up());
    node.until(21_000).acknowledged().asks();
    // The next silence is another one.
    for second in 22..25 {
        node.until(second * 1000).datagram();
    }
    assert_eq!(node.beside(), [(24_000, NodeAction::DialBeside)]);
    assert!(node.acknowledged().beside_up());
    // It goes on, and UDP is gone.
    let mut node = frozen();
    node.input(|m, _| m.pings(0)).until(21_000);
    assert!(node.beside_up());
}

/// R-ADM-02: a vanished host is dead as soon as its kernel's silence is known, if QUIC agrees.
#[test]
fn a_vanished_host_is_dead() {
    let mut node = Node::held();
    node.until(1000)
        .datagram()
        .until(3500)
        .lost(LostCause::Unacknowledged);
    assert_eq!(node.death(), Some((3500, Death::HostGone)));
    // QUIC was heard in between: a probe and an attempt decide.
    let mut node = Node::held();
    node.until(2000)
        .datagram()
        .until(3000)
        .lost(LostCause::Unacknowledged);
    assert_eq!((node.death(), node.doubt()), (None, Doubt::LivenessLost));
    node.until(3300).failed(AttemptFailure::NoAnswer);
    assert_eq!(node.death(), Some((3300, Death::HostGone)));
}

/// An authenticated other boot says it all; so does a relay that has no such session.
#[test]
fn another_boot_ends_the_session_at_once() {
    for (answer, boot, death) in [
        (None, OTHER, Death::OtherBoot),
        (Some(BindRefusal::NoSession), OTHER, Death::OtherBoot),
        (Some(BindRefusal::Busy), OTHER, Death::OtherBoot),
        (Some(BindRefusal::NoSession), BOOT, Death::NoSession),
    ] {
        let mut node = Node::held();
        node.until(100).lost(LostCause::Closed).until(103).datagram();
        node.input(|m, now| match answer {
            None => m.bound(boot),
            Some(why) => m.refused(why, boot, now),
        });
        assert_eq!(node.death(), Some((103, death)), "{answer:?}");
    }
}

/// An attempt that was under way at the verdict is answered after it: by the session's own run, another
/// run, or one that has no such session. The verdict stands, told once (found by fuzzing).
#[test]
fn an_answer_after_the_verdict_changes_nothing() {
    for answer in [
        |m: &mut NodeLiveness, _: MonoTime| m.bound(BOOT),
        |m: &mut NodeLiveness, _: MonoTime| m.bound(OTHER),
        |m: &mut NodeLiveness, now: MonoTime| m.refused(BindRefusal::NoSession, BOOT, now),
    ] {
        let mut node = Node::new();
        node.until(15_000);
        let verdict = node.done.clone();
        assert!(
            matches!(verdict.last(), Some((_, NodeAction::Dead(Death::Silent)))),
            "{verdict:?}"
        );
        node.input(answer).input(|m, now| m.lost(LostCause::Closed, now));
        node.until(60_000);
        assert_eq!(node.done, verdict);
        assert_eq!(node.machine.poll_timeout(ms(60_000)), None);
    }
}

/// Only UDP passes: QUIC alone decides, with one warning.
#[test]
fn without_tcp_quic_decides() {
    let mut node = Node::new();
    for tries in 0..20 {
        node.failed(AttemptFailure::NoAnswer).datagram();
        for _ in 0..16 {
            let next = node.at + 1000;
            node.until(next).datagram();
        }
        assert!(tries > 3 || node.count(|a| matches!(a, NodeAction::OnlyQuic)) <= 1);
    }
    assert_eq!(node.count(|a| matches!(a, NodeAction::OnlyQuic)), 1);
    assert_eq!(
        node.count(|a| matches!(a, NodeAction::Connect(_))),
        20,
        "tried on"
    );
    assert_eq!((node.death(), node.doubt()), (None, Doubt::None));
    let silent_from = node.at;
    node.until(silent_from + 11_000);
    let (at, death) = node.death().unwrap();
    assert_eq!(death, Death::Silent);
    assert!((10_000..=10_250).contains(&(at - silent_from)), "{at}");
}

/// TCP is blocked while QUIC lives on: a second of contradiction, then QUIC alone decides.
#[test]
fn blocked_tcp_kills_nothing() {
    let mut node = Node::held();
    node.until(100).lost(LostCause::Closed);
    for _ in 0..10 {
        let connects = node.count(|a| matches!(a, NodeAction::Connect(_)));
        let next = node.at + 1;
        node.until(next).datagram().failed(AttemptFailure::Refused);
        for _ in 0..2000 {
            if node.count(|a| matches!(a, NodeAction::Connect(_))) > connects || node.at > 5000 {
                break;
            }
            let next = node.at + 1;
            node.until(next);
        }
    }
    assert_eq!(node.death(), None);
    assert_eq!(node.count(|a| matches!(a, NodeAction::OnlyQuic)), 1);
    assert!(node.count(|a| matches!(a, NodeAction::Probe)) <= 5);
    // What this host lacks says nothing of the relay.
    let mut node = Node::held();
    node.until(100)
        .lost(LostCause::Closed)
        .failed(AttemptFailure::Unable)
        .until(5000);
    assert_eq!(node.death(), None);
}

/// The relay's end: (what is lost, what is heard after) → dead when.
#[test]
fn a_relay_judges_a_node() {
    use LostCause::{Closed, Unacknowledged};
    let run = |lost: Option<(u64, LostCause)>, heard: &[u64], rebound: Option<u64>, to: u64| {
        let mut relay = RelayLiveness::new(0, ms(0));
        let mut received = 0;
        if lost.is_some() {
            relay.bound();
        }
        let mut probes = 0;
        for at in 1..=to {
            if heard.contains(&at) {
                received += 100;
            }
            relay.datagrams(received, RTT, ms(at));
            if let Some((_, cause)) = lost.filter(|(lost_at, _)| *lost_at == at) {
                relay.lost(cause, ms(at));
            }
            if rebound == Some(at) {
                relay.bound();
            }
            relay.handle_timeout(ms(at));
            match relay.poll_action() {
                Some(RelayAction::Dead(death)) => return (probes, Some((at, death))),
                Some(RelayAction::Probe) => probes += 1,
                None => {}
            }
        }
        (probes, None)
    };
    let each_second: Vec<u64> = (0..60).map(|s| s * 1000 + 7).collect();
    /// Lost when and how; when QUIC was heard; reconnected when; until; probes and verdict.
    type Case<'a> = (
        Option<(u64, LostCause)>,
        &'a [u64],
        Option<u64>,
        u64,
        (usize, Option<(u64, Death)>),
    );
    let cases: [Case<'_>; 9] = [
        // A vanished host.
        (
            Some((3500, Unacknowledged)),
            &[500],
            None,
            9000,
            (0, Some((3500, Death::HostGone))),
        ),
        // It was heard of lately: a probe first.
        (
            Some((3500, Unacknowledged)),
            &[3000],
            None,
            9000,
            (1, Some((5500, Death::HostGone))),
        ),
        // A killed process.
        (
            Some((3000, Closed)),
            &[2500],
            None,
            9000,
            (1, Some((5000, Death::ProcessGone))),
        ),
        // Its last datagrams.
        (
            Some((3000, Closed)),
            &[3010],
            None,
            9000,
            (1, Some((5010, Death::ProcessGone))),
        ),
        // A forged end: it is heard of, or comes back.
        (Some((3000, Closed)), &each_second, None, 59_000, (1, None)),
        (Some((3000, Closed)), &[], Some(4000), 59_000, (1, None)),
        // F-06: held, and silent.
        (Some((99_999, Closed)), &[], None, 60_000, (0, None)),
        // Never a connection: QUIC alone.
        (None, &each_second, None, 59_000, (0, None)),
        (None, &[2000], None, 30_000, (0, Some((12_000, Death::Silent)))),
    ];
    for (n, (lost, heard, rebound, to, expected)) in cases.into_iter().enumerate() {
        assert_eq!(run(lost, heard, rebound, to), expected, "case {n}");
    }
}

/// F-06: an end that was stopped itself finds its timers due before it has read what came meanwhile.
/// That is no silence of the other's, in no state; what was silent before and after is.
#[test]
fn an_own_pause_is_no_silence() {
    let paused = |node: &mut Node| {
        // The clock goes on, and nothing is looked at.
        node.at += 25_000;
        node.input(|m, now| m.handle_timeout(now));
        assert_eq!((node.death(), node.doubt() == Doubt::Silent), (None, false));
        let next = node.at + 100;
        node.until(next);
        assert_eq!(node.death(), None);
    };
    let mut node = Node::new();
    node.failed(AttemptFailure::NoAnswer).until(1000).datagram();
    paused(&mut node);
    node.until(40_000);
    assert_eq!(node.death().unwrap().1, Death::Silent, "it is silent after");
    // Its kernel gave the connection up meanwhile.
    let mut node = Node::held();
    node.until(1000).datagram();
    node.at += 25_000;
    node.lost(LostCause::Unacknowledged);
    assert_eq!(node.death(), None);
    node.until(node.at + 1).datagram().input(|m, _| m.bound(BOOT));
    assert_eq!((node.death(), node.doubt()), (None, Doubt::None));
    // The relay's end, in both states that count silence.
    for lost in [false, true] {
        let mut relay = RelayLiveness::new(0, ms(0));
        if lost {
            relay.bound();
            relay.datagrams(0, RTT, ms(100));
            relay.lost(LostCause::Closed, ms(100));
            assert_eq!(relay.poll_action(), Some(RelayAction::Probe));
        }
        for (received, at) in [(0, 25_000), (0, 25_250), (7, 25_251)] {
            relay.datagrams(received, RTT, ms(at));
            relay.handle_timeout(ms(at));
            assert_eq!(relay.poll_action(), None, "lost: {lost}, at {at}");
        }
    }
}

/// F-06: an end that was stopped learns of the other's end before it has read that the other lives,
/// which had been silent before. It judges by what it has read since, and the dead stay dead.
#[test]
fn what_came_during_a_pause_is_read_before_anybody_is_dead() {
    for reads in [true, false] {
        // Silent for 2.4 s before the pause; its kernel gave the connection up.
        let mut relay = RelayLiveness::new(0, ms(0));
        relay.bound();
        for at in [100, 800, 1500, 2200, 2500, 8000] {
            relay.datagrams(100, RTT, ms(at));
        }
        relay.lost(LostCause::Unacknowledged, ms(8000));
        assert_eq!(relay.poll_action(), Some(RelayAction::Probe), "reads: {reads}");
        let received = if reads { 200 } else { 100 };
        let verdict = (8001..20_000).find_map(|at| {
            relay.datagrams(received, RTT, ms(at));
            relay.handle_timeout(ms(at));
            relay.poll_action().map(|action| (at, action))
        });
        let dead = (10_000 + u64::from(reads), RelayAction::Dead(Death::HostGone));
        assert_eq!(verdict, Some(dead), "reads: {reads}");

        let mut node = Node::held();
        node.until(100).datagram().until(2500);
        node.at = 8000;
        node.lost(LostCause::Unacknowledged);
        assert_eq!(node.death(), None, "reads: {reads}");
        if reads {
            node.until(8002).datagram();
        }
        node.until(8300).failed(AttemptFailure::NoAnswer).until(8310);
        let dead = (!reads).then_some((8300, Death::HostGone));
        assert_eq!(node.death(), dead, "reads: {reads}");

        // The same in a round whose probe was out before the pause, and whose attempt is refused.
        let mut node = Node::held();
        node.until(100).lost(LostCause::Closed).until(200);
        node.at = 8000;
        node.failed(AttemptFailure::Refused);
        if reads {
            node.until(8002).datagram();
        }
        node.until(8300);
        let dead = (!reads).then_some((8250, Death::ProcessGone));
        assert_eq!(node.death(), dead, "reads: {reads}");
    }
}

fn message() -> impl Strategy<Value = LiveMessage> {
    let boot = || any::<[u8; 16]>().prop_map(ProcessBootId::from_bytes);
    prop_oneof![
        any::<[u8; 16]>().prop_map(|id| LiveMessage::Bind(SessionId::from_bytes(id))),
        boot().prop_map(LiveMessage::Bound),
        boot().prop_map(|b| LiveMessage::Refused(BindRefusal::NoSession, b)),
        boot().prop_map(|b| LiveMessage::Refused(BindRefusal::Busy, b)),
        any::<u64>().prop_map(LiveMessage::Ping),
        any::<u64>().prop_map(LiveMessage::Pong),
    ]
}

proptest! {
    /// Every message comes back as it went, and no other bytes are taken.
    #[test]
    fn messages_have_one_encoding(message in message(), at in 0..MESSAGE_LEN, bit in 0..8u8) {
        let mut bytes = message.encode();
        prop_assert_eq!(LiveMessage::decode(&bytes), Ok(message));
        bytes[at] ^= 1u8 << bit;
        if let Ok(other) = LiveMessage::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
        }
    }

    #[test]
    fn strange_bytes_are_refused(bytes in any::<[u8; MESSAGE_LEN]>()) {
        if let Ok(message) = LiveMessage::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }
}

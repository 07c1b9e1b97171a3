//! Both ends of a control stream against each other.

use super::frames::frame;
use crate::frame::{Answer, Frame, Refusal, Register};
use crate::*;
use fairlead_model::{
    EndpointId, Generation, MonoTime, ProcessBootId, RefusalCode, RegistrationBoot, RelayId, SessionId,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn endpoint(n: u8) -> EndpointId {
    EndpointId::from_bytes([n; 16])
}

fn at(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn node() -> NodeControl {
    NodeControl::new(
        NodeControlConfig {
            session: SessionId::from_bytes([1; 16]),
            process_boot: ProcessBootId::from_bytes([2; 16]),
            boot: RegistrationBoot::new(3),
            session_number: 4,
            software: "0.1.0".to_owned(),
        },
        at(0),
    )
}

fn relay() -> RelayControl {
    RelayControl::new(
        RelayId::from_bytes([9; 16]),
        ProcessBootId::from_bytes([8; 16]),
        100,
    )
}

fn wanted(endpoints: &[(u8, u64)]) -> BTreeMap<EndpointId, Generation> {
    endpoints
        .iter()
        .map(|&(n, g)| (endpoint(n), Generation(g)))
        .collect()
}

/// Carries frames both ways until nothing moves; the relay's loop answers with `verdict`.
fn exchange(
    node: &mut NodeControl,
    relay: &mut RelayControl,
    now: MonoTime,
    mut verdict: impl FnMut(Register) -> Option<Refusal>,
) -> Vec<RelayEvent> {
    let mut events = Vec::new();
    loop {
        let mut moved = false;
        while let Some(frame) = node.poll_transmit() {
            moved = true;
            if let Some(event) = relay.handle_frame(frame).unwrap() {
                if let RelayEvent::Register(register) = event {
                    match verdict(register) {
                        None => relay.registered(register).unwrap(),
                        Some(refusal) => relay.refuse(register, refusal).unwrap(),
                    }
                }
                events.push(event);
            }
        }
        while let Some(frame) = relay.poll_transmit() {
            moved = true;
            node.handle_frame(frame, now).unwrap();
        }
        if !moved {
            return events;
        }
    }
}

fn events(node: &mut NodeControl) -> Vec<NodeEvent> {
    std::iter::from_fn(|| node.poll_event()).collect()
}

fn states(node: &NodeControl) -> Vec<(EndpointId, Generation, RegistrationState)> {
    node.registrations().collect()
}

#[test]
fn a_session_registers_what_is_wanted_and_follows_changes() {
    let (mut node, mut relay) = (node(), relay());
    node.set_publications(&wanted(&[(1, 1), (2, 1)]), at(0));
    let seen = exchange(&mut node, &mut relay, at(1), |_| None);
    assert!(matches!(seen[0], RelayEvent::Hello(_)));
    assert_eq!(seen.len(), 3);
    assert!(matches!(
        events(&mut node)[0],
        NodeEvent::Established { legs_max: 100, .. }
    ));
    assert!(states(&node).iter().all(|s| s.2 == RegistrationState::Registered));
    // R-ADM-01: another generation registers anew; what is gone unregisters; the rest is quiet.
    node.set_publications(&wanted(&[(2, 2), (3, 1)]), at(2));
    let seen = exchange(&mut node, &mut relay, at(3), |_| None);
    let kinds: Vec<_> = seen
        .iter()
        .map(|event| match event {
            RelayEvent::Register(r) => (true, r.endpoint, r.generation),
            RelayEvent::Unregister(r) => (false, r.endpoint, r.generation),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            (false, endpoint(1), Generation(1)),
            (true, endpoint(2), Generation(2)),
            (true, endpoint(3), Generation(1)),
        ]
    );
    node.set_publications(&wanted(&[(2, 2), (3, 1)]), at(4));
    assert_eq!(exchange(&mut node, &mut relay, at(5), |_| None), []);
}

/// R-POL-10: a refused registration is tried again every 0.2 to 0.4 s for the first 10 s.
#[test]
fn refused_registrations_are_retried_soon_then_late() {
    let (mut node, mut relay) = (node(), relay());
    node.set_publications(&wanted(&[(1, 1)]), at(0));
    let no = |_| Some(Refusal::from(RefusalCode::RegistrationMismatch));
    exchange(&mut node, &mut relay, at(0), no);
    let mut now = 0;
    let (mut soon, mut late) = (Vec::new(), Vec::new());
    while now < 60_000 {
        let due = node.poll_timeout().unwrap().0.div_ceil(1_000_000);
        assert!(due > now, "the machine spins at {now}");
        now = due;
        node.handle_timeout(at(now)).unwrap();
        let tries = exchange(&mut node, &mut relay, at(now), no);
        for _ in tries.iter().filter(|e| matches!(e, RelayEvent::Register(_))) {
            if now < 10_000 {
                soon.push(now)
            } else {
                late.push(now)
            }
        }
    }
    let gaps = |times: &[u64]| -> Vec<u64> { times.windows(2).map(|w| w[1] - w[0]).collect() };
    assert!((25..=50).contains(&soon.len()), "{soon:?}");
    assert!(
        gaps(&soon).iter().all(|gap| (200..=400).contains(gap)),
        "{soon:?}"
    );
    assert!(
        gaps(&late).iter().all(|gap| (4_000..=6_000).contains(gap)),
        "{late:?}"
    );
    // And then it is let in, and quiet.
    node.handle_timeout(at(70_000)).unwrap();
    exchange(&mut node, &mut relay, at(70_000), |_| None);
    assert_eq!(states(&node)[0].2, RegistrationState::Registered);
}

/// A relay's retry-after is kept where it is longer than the machine's own wait.
#[test]
fn a_retry_after_is_kept() {
    let (mut node, mut relay) = (node(), relay());
    node.set_publications(&wanted(&[(1, 1)]), at(0));
    exchange(&mut node, &mut relay, at(0), |_| {
        Some(Refusal {
            code: RefusalCode::TooMany,
            retry_after: Some(Duration::from_secs(2)),
        })
    });
    let RegistrationState::Refused { retry_at, code } = states(&node)[0].2 else {
        panic!("not refused");
    };
    assert_eq!((retry_at, code), (at(2_000), RefusalCode::TooMany));
}

/// An answer to a generation that is no longer wanted says nothing about the one that is.
#[test]
fn late_answers_to_old_generations_are_ignored() {
    let (mut node, mut relay) = (node(), relay());
    exchange(&mut node, &mut relay, at(0), |_| None);
    node.set_publications(&wanted(&[(1, 1)]), at(1));
    let Some(Frame::Register(old)) = node.poll_transmit() else {
        panic!("no registration");
    };
    node.set_publications(&wanted(&[(1, 2)]), at(2));
    node.handle_frame(Frame::Registered(old), at(3)).unwrap();
    assert_eq!(
        states(&node),
        [(endpoint(1), Generation(2), RegistrationState::Pending)]
    );
}

/// R-ADM-04: later sessions and later runs register with higher epochs.
#[test]
fn registration_epochs_rise_over_sessions_and_starts() {
    let epoch = |boot: u32, session_number: u32| {
        let mut node = NodeControl::new(
            NodeControlConfig {
                session: SessionId::from_bytes([1; 16]),
                process_boot: ProcessBootId::from_bytes([2; 16]),
                boot: RegistrationBoot::new(boot),
                session_number,
                software: String::new(),
            },
            at(0),
        );
        node.set_publications(&wanted(&[(1, 1)]), at(0));
        let mut epoch = None;
        exchange(&mut node, &mut relay(), at(0), |register| {
            epoch = Some(register.epoch);
            None
        });
        epoch.unwrap()
    };
    assert!(epoch(1, 1) < epoch(1, 2));
    assert!(epoch(1, u32::MAX) < epoch(2, 0));
}

#[test]
fn pings_measure_and_silence_ends_the_session() {
    let (mut node, mut relay) = (node(), relay());
    exchange(&mut node, &mut relay, at(0), |_| None);
    events(&mut node);
    node.handle_timeout(at(5_000)).unwrap();
    let ping = node.poll_transmit().unwrap();
    relay.handle_frame(ping).unwrap();
    let pong = relay.poll_transmit().unwrap();
    node.handle_frame(pong, at(5_030)).unwrap();
    assert_eq!(events(&mut node), [NodeEvent::Rtt(Duration::from_millis(30))]);
    assert!(node.handle_timeout(at(75_029)).is_ok());
    let fault = node.handle_timeout(at(75_030)).unwrap_err();
    assert_eq!(fault.code(), RefusalCode::Protocol);
    // A relay that never greets.
    let mut unanswered = super::machines::node();
    assert!(unanswered.handle_timeout(at(9_999)).is_ok());
    assert!(unanswered.handle_timeout(at(10_000)).is_err());
}

#[test]
fn versions_are_agreed_or_refused() {
    let mut hello = match node().poll_transmit() {
        Some(Frame::Hello(hello)) => hello,
        other => panic!("{other:?}"),
    };
    hello.version_max = 99;
    assert!(relay().handle_frame(Frame::Hello(hello.clone())).is_ok());
    hello.version_min = 2;
    let fault = relay().handle_frame(Frame::Hello(hello)).unwrap_err();
    assert_eq!(fault.code(), RefusalCode::Version);
}

/// A peer that asks without reading is cut off, at a bound.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    let (mut node, mut relay) = (node(), relay());
    exchange(&mut node, &mut relay, at(0), |_| None);
    let ping = Frame::Ping(crate::Ping {
        number: 1,
        padding: bytes::Bytes::new(),
    });
    let relay_fault = (0..100_000).find_map(|_| relay.handle_frame(ping.clone()).err());
    let node_fault = (0..100_000).find_map(|_| node.handle_frame(ping.clone(), at(1)).err());
    assert_eq!(relay_fault, Some(SessionFault::Flood("answers")));
    assert_eq!(node_fault, Some(SessionFault::Flood("pongs")));
}

#[test]
fn both_ends_close_with_a_reason() {
    let (mut node_a, mut relay_a) = (node(), relay());
    exchange(&mut node_a, &mut relay_a, at(0), |_| None);
    events(&mut node_a);
    relay_a.close(RefusalCode::ShuttingDown);
    exchange(&mut node_a, &mut relay_a, at(1), |_| None);
    assert_eq!(
        events(&mut node_a),
        [NodeEvent::Closed {
            code: RefusalCode::ShuttingDown
        }]
    );
    assert_eq!(node_a.poll_timeout(), None);
    let (mut node_b, mut relay_b) = (node(), relay());
    exchange(&mut node_b, &mut relay_b, at(0), |_| None);
    node_b.announce_restart();
    node_b.close(RefusalCode::ShuttingDown);
    assert_eq!(
        exchange(&mut node_b, &mut relay_b, at(1), |_| None),
        [
            RelayEvent::Restarting,
            RelayEvent::Closed(RefusalCode::ShuttingDown)
        ]
    );
}

proptest! {
    /// Any frames in any order are taken or refused; neither end panics, spins or grows without
    /// bound, and a leg's frames are never taken on a control stream.
    #[test]
    fn any_frames_are_survived(frames in proptest::collection::vec(frame(), 0..40), greeted: bool) {
        let (mut node, mut relay) = (node(), relay());
        if greeted {
            exchange(&mut node, &mut relay, at(0), |_| None);
        }
        for (n, frame) in frames.into_iter().enumerate() {
            let leg = matches!(frame, Frame::Open(_) | Frame::Incoming(_) | Frame::Answer(Answer::Ok));
            let open = relay.is_established() || !matches!(frame, Frame::Hello(_));
            let taken = relay.handle_frame(frame.clone());
            prop_assert!(!leg || !open || taken.is_err() || taken == Ok(None));
            let _ = node.handle_frame(frame, at(n as u64));
            while node.poll_event().is_some() {}
            prop_assert!(node.poll_timeout().is_none_or(|t| t >= at(0)));
        }
    }
}

/// R-POL-10: a registration that was in force and is withdrawn, long after the session began, is tried
/// again as soon as a new one: the policy that wants it again may be on its way.
#[test]
fn a_withdrawn_registration_is_tried_again_soon() {
    let (mut node, mut relay) = (node(), relay());
    node.set_publications(&wanted(&[(1, 1)]), at(0));
    exchange(&mut node, &mut relay, at(0), |_| None);
    let later = 3_600_000;
    let held = Register {
        endpoint: endpoint(1),
        generation: Generation(1),
        epoch: fairlead_model::RegistrationEpoch((3 << 32) | 4),
    };
    relay
        .refuse(held, Refusal::from(RefusalCode::RegistrationMismatch))
        .unwrap();
    exchange(&mut node, &mut relay, at(later), |_| None);
    let refused = node.registrations().next().unwrap().2;
    let RegistrationState::Refused { retry_at, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(
        (at(later + 200)..=at(later + 400)).contains(&retry_at),
        "{retry_at:?}"
    );
}

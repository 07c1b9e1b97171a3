//! One behaviour a test: what the requirements and the invariants say of a stream.

use super::sim::{A, B, GRANT, World, leg, secret};
use crate::frame::Frame;
use crate::leg::HELD_BYTES_MAX;
use crate::record::{HEADER_BYTES, Sealer};
use crate::window::FIRST_WINDOW;
use crate::*;
use bytes::{Bytes, BytesMut};
use fairlead_codec::Writer;
use fairlead_model::{LegEpoch, MonoTime, RefusalCode, RelayId};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
pub(super) const NOW: MonoTime = MonoTime(5_000_000_000);

fn world(totals: [u64; 2]) -> World {
    World::new(7, Config::default(), totals)
}

/// A world whose first leg (1 ms) is attached and whose target is connected.
fn connected(totals: [u64; 2]) -> World {
    let mut world = world(totals);
    world.ends.iter_mut().for_each(|e| e.finishes = false);
    world.open(1, AttachKind::Resend, MS);
    world.run(20 * MS);
    assert!(world.ends.iter().all(|e| e.connected));
    world
}

/// F-01: A sends 1 MiB and its FIN; the target answers only after the EOF; both ends close.
#[test]
fn half_close_lets_the_answer_through() {
    let mut world = world([1 << 20, 70_000]);
    world.ends[B].finishes = false;
    world.ends[B].total = 0;
    world.open(1, AttachKind::Resend, 5 * MS);
    world.run(2 * S);
    assert_eq!((world.ends[B].read, world.ends[B].eof), (1 << 20, true));
    assert_eq!((world.ends[A].eof, world.ends[A].ended), (false, None));
    world.ends[B].finishes = true;
    world.ends[B].total = 70_000;
    world.run(2 * S);
    assert_eq!((world.ends[A].read, world.ends[A].eof), (70_000, true));
    assert!(world.ends.iter().all(|e| e.ended == Some(End::Closed)));
}

/// F-02: bytes, then RST: the peer gets the bytes, then an error, and never a clean EOF.
#[test]
fn a_reset_follows_its_bytes_and_is_no_eof() {
    for side in [A, B] {
        let mut world = connected([100_000, 100_000]);
        let other = 1 - side;
        world.ends[side].app_write(50_000);
        let sent = world.ends[side].written;
        world.ends[side].stream.reset(ResetCode::Application, world.now);
        assert_eq!(world.ends[side].stream.write_capacity(), 0);
        world.run(S);
        assert_eq!(world.ends[other].peer_reset, Some(ResetCode::Application));
        assert_eq!((world.ends[other].read, world.ends[other].eof), (sent, false));
        for end in &world.ends {
            assert_eq!(end.ended, Some(End::Reset(ResetCode::Application)));
        }
    }
}

/// F-02: an end that resets has no clean end to read any more, even if the peer's FIN came before
/// (found by fuzzing).
#[test]
fn an_own_reset_is_no_eof() {
    let mut world = connected([0, 0]);
    world.ends[B].stream.write(b"unread");
    world.ends[B].stream.finish();
    world.settle();
    world.advance(world.now.plus(MS));
    world.settle();
    world.ends[A].stream.reset(ResetCode::Application, world.now);
    assert!(!world.ends[A].stream.is_read_finished());
    world.run(S);
    assert_eq!(world.ends[A].ended, Some(End::Reset(ResetCode::Application)));
    assert!(!world.ends[A].stream.is_read_finished());
}

/// F-02: a target that sends and closes at once to a slow reader: all bytes arrive.
#[test]
fn a_slow_reader_gets_all_of_a_closed_stream() {
    let mut world = connected([0, 3_000_000]);
    world.ends[B].finishes = true;
    world.ends[A].finishes = true;
    world.ends[A].app_write(0);
    while world.ends[A].read < 3_000_000 {
        world.ends[B].app_write(usize::MAX);
        world.ends[A].app_read(5_000, world.now);
        world.settle();
        world.advance(world.now.plus(MS));
    }
    world.run(S);
    assert!(world.ends[A].eof);
    assert!(world.ends.iter().all(|e| e.ended == Some(End::Closed)));
}

/// R-STR-04, F-03, I3, I9: a reader that sleeps stops the writer at the window, and costs no more.
#[test]
fn a_sleeping_reader_costs_its_window() {
    let mut world = connected([0, 0]);
    world.ends[A].total = 1 << 40;
    for _ in 0..500 {
        world.ends[A].app_write(usize::MAX);
        world.settle();
        world.advance(world.now.plus(MS));
    }
    let taken = world.ends[A].written;
    assert_eq!(world.ends[A].stream.write_capacity(), 0);
    assert!(
        (FIRST_WINDOW..=FIRST_WINDOW + 64 * 1024).contains(&taken),
        "{taken}"
    );
    let charge = world.ends[A].stream.charge() + world.ends[B].stream.charge();
    assert!(charge < 1024 * 1024, "{charge}");
    // It wakes up and everything moves on.
    world.ends[A].total = taken + 500_000;
    world.run(S);
    assert_eq!(world.ends[B].read, taken + 500_000);
}

/// The window grows with the path: 40 ms away, more than the first window is in flight at once.
#[test]
fn the_window_grows_to_bandwidth_times_round_trip() {
    let mut world = world([1 << 40, 0]);
    world.wire_chunks = 1000;
    world.open(1, AttachKind::Resend, 20 * MS);
    world.run(5 * S);
    let credit = world.ends[B].stream.charge();
    assert!(
        (2 * 1024 * 1024..=4 * 1024 * 1024 + 65_536).contains(&credit),
        "{credit}"
    );
    assert!(world.ends[B].stream.rtt().unwrap() >= 40 * MS);
}

/// R-STR-07: a target's failure reaches the dialler as its code, sealed.
#[test]
fn target_failures_arrive_by_code() {
    for code in [
        RefusalCode::TargetRefused,
        RefusalCode::TargetTimeout,
        RefusalCode::UnknownEndpoint,
    ] {
        let mut world = world([1000, 0]);
        world.target = Err(code);
        world.open(1, AttachKind::Resend, MS);
        world.run(S);
        assert!(world.ends.iter().all(|e| e.ended == Some(End::Refused(code))));
        assert!(!world.ends[A].connected);
    }
}

/// R-STR-05: a refused grant ends the stream, and the early data behind it is never readable.
#[test]
fn a_refused_attach_delivers_nothing() {
    let mut world = world([100_000, 0]);
    world.refuse = Some(RefusalCode::Revoked);
    world.open(1, AttachKind::Resend, MS);
    world.run(S);
    assert!(
        world
            .ends
            .iter()
            .all(|e| e.ended == Some(End::Refused(RefusalCode::Revoked)))
    );
    assert_eq!(world.ends[B].read, 0);
}

/// R-STR-05: a refused resume ends the stream too, and delivers nothing more.
#[test]
fn a_refused_resume_ends_the_stream() {
    let mut world = connected([1 << 30, 0]);
    world.ends[A].app_write(10_000);
    world.run(20 * MS);
    world.refuse = Some(RefusalCode::Revoked);
    let first = world.legs[0].name;
    world.kill(first);
    world.run(S);
    let read = world.ends[B].read;
    assert!(world.ends[A].written > read);
    world.open(2, AttachKind::Resend, MS);
    world.run(S);
    assert_eq!(world.ends[A].ended, Some(End::Refused(RefusalCode::Revoked)));
    assert_eq!(world.ends[B].read, read);
    assert_eq!(world.ends[B].legs_done.len(), 1);
}

/// R-STR-06: what a leg carries holds none of the plaintext, in either direction.
#[test]
fn legs_carry_no_plaintext() {
    let mut world = connected([0, 0]);
    world.record = true;
    let marker = b"0123456789abcdef0123456789abcdef";
    for side in [A, B] {
        world.ends[side].stream.write(marker);
    }
    world.settle();
    world.advance(world.now.plus(MS));
    world.settle();
    for side in [A, B] {
        assert_eq!(
            world.ends[side].stream.read(world.now).as_deref(),
            Some(&marker[..])
        );
    }
    assert!(world.carried.len() > 2 * marker.len());
    assert!(
        !world
            .carried
            .windows(8)
            .any(|w| marker.windows(8).any(|m| m == w))
    );
}

/// R-STR-04: with no path a stream is held for exactly the hold, then ends once, by its own code.
#[test]
fn the_hold_ends_a_stream_without_legs() {
    for hold in [60 * S, Duration::ZERO] {
        let config = Config {
            hold,
            ..Config::default()
        };
        let mut world = World::new(1, config, [0, 0]);
        world.ends.iter_mut().for_each(|e| e.finishes = false);
        let epoch = world.open(1, AttachKind::Resend, MS);
        world.run(S);
        world.kill(epoch);
        world.run(S);
        assert_eq!(world.ends.iter().all(|e| e.ended.is_some()), hold.is_zero());
        assert_eq!(world.ends.iter().all(|e| e.suspended == 1), !hold.is_zero());
        world.run(58 * S);
        assert_eq!(world.ends.iter().all(|e| e.ended.is_some()), hold.is_zero());
        world.run(2 * S);
        assert!(world.ends.iter().all(|e| e.ended == Some(End::HoldExpired)));
    }
}

/// R-STR-03: a planned move while bytes flow: no gap, nothing sent twice, the old leg is let go.
#[test]
fn a_planned_move_has_no_gap() {
    let mut world = connected([1 << 40, 1 << 40]);
    world.run(200 * MS);
    let second = world.open(2, AttachKind::Planned, MS);
    for _ in 0..40 {
        let before = [world.ends[A].read, world.ends[B].read];
        world.run(5 * MS);
        assert!(
            world.ends[A].read > before[A] && world.ends[B].read > before[B],
            "a gap of 5 ms"
        );
    }
    for end in &world.ends {
        assert_eq!(end.legs_done, [leg(1, 1)]);
        assert_eq!(end.suspended, 0);
    }
    assert_eq!(second, leg(2, 2));
}

/// R-STR-05, R-NOD-02, I5, I8: a first leg that is slow and a second beside it: whether its ATTACH comes
/// before the second's or long after, and its answer before or after, the target is dialled once and
/// every byte arrives once.
#[test]
fn a_slow_first_leg_and_a_second_are_one_stream() {
    for first_takes in [300 * MS, 700 * MS, 1_003 * MS, 1_500 * MS, 2 * S] {
        let mut world = world([400_000, 300_000]);
        world.ends.iter_mut().for_each(|e| e.finishes = false);
        let first = world.open(1, AttachKind::Resend, first_takes);
        world.run(S);
        world.open(2, AttachKind::Resend, 5 * MS);
        world.run(900 * MS);
        let read = [world.ends[A].read, world.ends[B].read];
        assert_eq!(read, [300_000, 400_000], "{first_takes:?}: through the second");
        world.run(3 * S);
        assert!(
            !world.ends[B].stream.is_attached(first),
            "{first_takes:?}: it was replaced"
        );
        world.ends.iter_mut().for_each(|e| e.finishes = true);
        world.run(10 * S);
        for end in &world.ends {
            assert_eq!(end.ended, Some(End::Closed), "{first_takes:?}");
        }
        assert_eq!(world.ends[B].dials, 1, "{first_takes:?}");
    }
}

/// Nothing is acknowledged in a record of its own while replies carry the ACK.
#[test]
fn replies_carry_the_acks() {
    let mut world = connected([0, 0]);
    // The acceptor measures its round trip with its first ACK.
    world.ends[A].total = 5;
    world.run(S);
    assert!(world.ends[B].stream.rtt().is_some());
    world.record = true;
    for side in [A, B, A, B] {
        let before = world.carried.len();
        world.ends[side].stream.write(b"ping");
        world.settle();
        world.advance(world.now.plus(MS));
        world.settle();
        assert_eq!(
            world.ends[1 - side].stream.read(world.now).as_deref(),
            Some(&b"ping"[..])
        );
        let bytes = world.carried.len() - before;
        assert!(
            0 < bytes && bytes <= 5 + 16 + 17 + 9 + 4,
            "{bytes} bytes for one message"
        );
    }
    world.run(20 * MS);
    let quiet = world.carried.len();
    world.run(10 * S);
    assert_eq!(world.carried.len(), quiet, "an idle stream sends nothing");
}

/// I5, and the bounds on legs.
#[test]
fn epochs_only_rise_and_legs_are_bounded() {
    let mut world = connected([0, 0]);
    let path = world.path(LegEpoch(1), 1);
    assert_eq!(
        world.ends[A].stream.open_leg(path, AttachKind::Resend),
        Err(OpenLegError::StaleEpoch(LegEpoch(1)))
    );
    assert_eq!(
        world.ends[B].stream.open_leg(path, AttachKind::Resend),
        Err(OpenLegError::StaleEpoch(LegEpoch(1)))
    );
    let path = world.path(LegEpoch(9), 1);
    assert_eq!(
        world.ends[A].stream.open_leg(path, AttachKind::Resend),
        Err(OpenLegError::StaleEpoch(LegEpoch(9)))
    );
    for _ in 0..3 {
        world.open(2, AttachKind::Planned, S);
    }
    let epoch = world.ends[A].stream.next_epoch();
    let path = world.path(epoch, 1);
    assert_eq!(
        world.ends[A].stream.open_leg(path, AttachKind::Planned),
        Err(OpenLegError::TooMany(4))
    );
}

/// The bytes that a dialler would send on leg `epoch`, by hand: its salt, then sealed frames.
pub(super) fn forge(epoch: u64, relay: u8, records: &[&[Frame<'_>]]) -> BytesMut {
    let (epoch, relay, salt) = (LegEpoch(epoch), RelayId::from_bytes([relay; 16]), [8; SALT_BYTES]);
    let mut sealer = Sealer::new(secret().traffic(Direction::FromDialler, epoch, relay, &salt));
    let mut out = BytesMut::from(&salt[..]);
    for frames in records {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        for frame in *frames {
            frame.put(&mut Writer::new(&mut out, 16_384)).unwrap();
        }
        assert!(sealer.seal(&mut out, start));
    }
    out
}

pub(super) fn attach(epoch: u64, relay: u8) -> Frame<'static> {
    Frame::Attach {
        epoch: LegEpoch(epoch),
        relay: RelayId::from_bytes([relay; 16]),
        next: 0,
        limit: INITIAL_WINDOW,
        resend: true,
        resume: false,
        grant: GRANT,
    }
}

/// An acceptor with one leg that has seen nothing.
pub(super) fn acceptor(epoch: u64, relay: u8) -> Stream {
    let mut stream = Stream::accept(Config::default(), secret());
    open(&mut stream, epoch, relay);
    stream
}

pub(super) fn open(stream: &mut Stream, epoch: u64, relay: u8) {
    let (epoch, relay) = (LegEpoch(epoch), RelayId::from_bytes([relay; 16]));
    stream
        .open_leg(
            LegPath {
                epoch,
                relay,
                salt: [4; SALT_BYTES],
            },
            AttachKind::Resend,
        )
        .unwrap();
}

/// The verdict is waited for with a bound on what is held.
#[test]
fn bytes_before_the_verdict_are_bounded() {
    let mut stream = acceptor(1, 1);
    stream
        .receive(leg(1, 1), NOW, &forge(1, 1, &[&[attach(1, 1)]]))
        .unwrap();
    let chunk = vec![0; HELD_BYTES_MAX / 2];
    stream.receive(leg(1, 1), NOW, &chunk).unwrap();
    stream.receive(leg(1, 1), NOW, &chunk).unwrap();
    let fault = LegFault::HeldTooMuch { max: HELD_BYTES_MAX };
    assert_eq!(stream.receive(leg(1, 1), NOW, &[0]), Err(fault));
}

/// Each way in which an authenticated peer can break the protocol ends the stream, by name.
#[test]
fn a_peer_that_breaks_the_protocol_ends_the_stream() {
    let other = Frame::Data {
        offset: 0,
        bytes: &[1],
    };
    let cases: &[(&str, &[&[Frame<'_>]])] = &[
        ("start with ATTACH", &[&[Frame::Ping { id: 1 }]]),
        ("a second attach", &[&[attach(1, 1), attach(1, 1)]]),
        (
            "above the limit",
            &[&[
                attach(1, 1),
                Frame::Data {
                    offset: INITIAL_WINDOW,
                    bytes: &[1],
                },
            ]],
        ),
        (
            "above the limit",
            &[&[
                attach(1, 1),
                Frame::Fin {
                    final_offset: INITIAL_WINDOW + 1,
                },
            ]],
        ),
        (
            "beyond the end",
            &[&[attach(1, 1), Frame::Fin { final_offset: 0 }, other]],
        ),
        (
            "beyond the end",
            &[&[
                attach(1, 1),
                Frame::Fin { final_offset: 5 },
                Frame::Fin { final_offset: 6 },
            ]],
        ),
        (
            "beyond the end",
            &[&[attach(1, 1), other], &[Frame::Fin { final_offset: 0 }]],
        ),
        (
            "not sent",
            &[&[
                attach(1, 1),
                Frame::Ack {
                    next: 1,
                    limit: INITIAL_WINDOW,
                },
            ]],
        ),
        (
            "not sent",
            &[&[
                attach(1, 1),
                Frame::Ack {
                    next: 0,
                    limit: u64::MAX,
                },
            ]],
        ),
        (
            "DIAL_RESULT from",
            &[&[attach(1, 1), Frame::DialResult { code: 0 }]],
        ),
        ("MOVE_PLEASE from", &[&[attach(1, 1), Frame::MovePlease]]),
        ("CLOSED before", &[&[attach(1, 1), Frame::Closed]]),
        (
            "RESET beyond",
            &[&[
                attach(1, 1),
                Frame::Reset {
                    code: 1,
                    final_offset: u64::MAX,
                },
            ]],
        ),
        (
            "a second attach",
            &[
                &[attach(1, 1)],
                &[Frame::AttachRefused {
                    epoch: LegEpoch(1),
                    code: 1,
                }],
            ],
        ),
    ];
    for (what, records) in cases {
        let mut stream = acceptor(1, 1);
        let bytes = forge(1, 1, records);
        let received = stream.receive(leg(1, 1), NOW, &bytes);
        let fault = match received {
            Ok(_) => stream.accept_attach(leg(1, 1), NOW).unwrap_err(),
            Err(fault) => fault,
        };
        assert!(
            matches!(fault, LegFault::Protocol(text) if text.contains(what)),
            "{what}: {fault:?}"
        );
        let last = std::iter::from_fn(|| stream.poll_event()).last();
        assert_eq!(last, Some(Event::Ended(End::Protocol)), "{what}");
    }
}

/// Pieces ahead of a gap are bounded: the leg goes, the stream stays.
#[test]
fn pieces_ahead_of_a_gap_are_bounded() {
    let mut stream = acceptor(1, 1);
    let mut records = vec![vec![attach(1, 1)]];
    records.extend((0..2000).map(|i| {
        vec![Frame::Data {
            offset: 1 + 2 * i,
            bytes: &[1],
        }]
    }));
    let records: Vec<&[Frame<'_>]> = records.iter().map(|r| &r[..]).collect();
    stream.receive(leg(1, 1), NOW, &forge(1, 1, &records)).unwrap();
    let fault = stream.accept_attach(leg(1, 1), NOW).unwrap_err();
    assert!(matches!(fault, LegFault::TooManyPieces { .. }), "{fault:?}");
    let events: Vec<_> = std::iter::from_fn(|| stream.poll_event()).collect();
    assert!(
        matches!(events[..], [Event::Attach { .. }, Event::Suspended { .. }]),
        "{events:?}"
    );
    open(&mut stream, 2, 2);
}

/// A peer that never confirms a reset holds the leg for the linger only.
#[test]
fn a_reset_that_is_never_confirmed_ends() {
    let mut world = connected([0, 0]);
    let name = world.legs[0].name;
    world.legs[0].frozen = true;
    world.ends[A].stream.reset(ResetCode::Application, world.now);
    world.run(119 * S);
    assert_eq!(world.ends[A].ended, None);
    world.run(2 * S);
    assert_eq!(world.ends[A].ended, Some(End::Reset(ResetCode::Application)));
    world.kill(name);
}

/// A stream outlives its first grant: later ATTACHes carry the one set last, and one that is too long
/// changes nothing.
#[test]
fn further_legs_carry_the_renewed_grant() {
    let mut world = connected([0, 0]);
    let stream = &mut world.ends[A].stream;
    assert!(stream.set_grant(Bytes::from(vec![0; 64 * 1024])).is_err());
    stream.set_grant(Bytes::from_static(b"renewed")).unwrap();
    let (mut there, epoch) = (BytesMut::new(), stream.next_epoch());
    let path = world.path(epoch, 2);
    world.ends[A].stream.open_leg(path, AttachKind::Resend).unwrap();
    world.ends[A]
        .stream
        .poll_transmit(path.name(), world.now, &mut there, TRANSMIT_BATCH);
    let path = world.path(epoch, 2);
    world.ends[B].stream.open_leg(path, AttachKind::Resend).unwrap();
    world.ends[B]
        .stream
        .receive(path.name(), world.now, &there)
        .unwrap();
    let event = world.ends[B].stream.poll_event();
    let Some(Event::Attach {
        grant, first, resume, ..
    }) = event
    else {
        panic!("{event:?}")
    };
    assert_eq!((&grant[..], first, resume), (&b"renewed"[..], false, true));
}

/// Bytes without an acknowledgement show since when; an acknowledged stream shows nothing, and a new
/// leg begins the wait anew.
#[test]
fn silence_is_measured_from_the_last_progress() {
    let mut world = connected([0, 0]);
    assert_eq!(world.ends[A].stream.unacked_since(), None);
    world.legs[0].frozen = true;
    world.ends[A].total = 1000;
    let sent = world.now;
    world.ends[A].app_write(1000);
    world.settle();
    assert_eq!(world.ends[A].stream.unacked_since(), Some(sent));
    world.now = world.now.plus(S);
    world.settle();
    assert_eq!(
        world.ends[A].stream.unacked_since(),
        Some(sent),
        "time alone changes nothing"
    );
    world.open(2, AttachKind::Resend, MS);
    world.run(20 * MS);
    assert_eq!(world.ends[B].read, world.ends[A].written);
    world.run(S);
    assert_eq!(world.ends[A].stream.unacked_since(), None);
    assert!(!world.ends[A].stream.is_suspended());
}

/// A ping that only asks for a sign of life is answered and measures nothing.
#[test]
fn a_path_ping_is_answered() {
    let mut world = connected([0, 0]);
    let name = world.legs[0].name;
    let rtt = world.ends[A].stream.rtt();
    let mut out = BytesMut::new();
    let quiet = world.ends[A]
        .stream
        .poll_transmit(name, world.now, &mut out, TRANSMIT_BATCH);
    assert_eq!(quiet, 0);
    world.ends[A].stream.request_ping(name);
    world.record = true;
    world.settle();
    let asked = world.carried.len();
    assert!(asked > 0);
    world.run(20 * MS);
    assert!(world.carried.len() > asked, "nothing came back");
    assert_eq!(world.ends[A].stream.rtt(), rtt);
}

//! What an acceptor makes of legs: whose ATTACH it takes, and what it hears.

use super::behaviour::{NOW, acceptor, attach, forge, open};
use super::sim::{GRANT, leg};
use crate::frame::Frame;
use crate::record::HEADER_BYTES;
use crate::*;
use bytes::{Bytes, BytesMut};
use fairlead_model::{LegEpoch, RelayId};

fn transmitted(stream: &mut Stream, epoch: u64, relay: u8) -> usize {
    stream.poll_transmit(leg(epoch, relay), NOW, &mut BytesMut::new(), TRANSMIT_BATCH)
}

/// R-STR-05, I7: a relay that redirects, replays or makes up an attach gets no sealed byte back.
#[test]
fn attaches_of_another_relay_or_epoch_are_worth_nothing() {
    let bytes = forge(1, 1, &[&[attach(1, 1)]]);
    // Carried to a leg over another relay, or of another epoch: other keys.
    for (epoch, relay) in [(1, 2), (2, 1)] {
        let mut stream = acceptor(epoch, relay);
        assert!(matches!(
            stream.receive(leg(epoch, relay), NOW, &bytes),
            Err(LegFault::Record(_))
        ));
        assert_eq!(transmitted(&mut stream, epoch, relay), 0);
        assert_eq!(stream.poll_event(), Some(Event::Ended(End::HoldExpired)));
    }
    // A peer that names another relay or epoch inside than the leg's.
    for claim in [attach(1, 2), attach(2, 1)] {
        let mut stream = acceptor(1, 1);
        let bytes = forge(1, 1, &[&[claim]]);
        assert_eq!(stream.receive(leg(1, 1), NOW, &bytes), Err(LegFault::WrongAttach));
    }
    // Nothing is sealed before the ATTACH is verified, nor before the verdict.
    let mut stream = acceptor(1, 1);
    assert_eq!(transmitted(&mut stream, 1, 1), 0);
    stream.receive(leg(1, 1), NOW, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!((transmitted(&mut stream, 1, 1), stream.poll_event()), (0, None));
    stream.receive(leg(1, 1), NOW, &bytes[bytes.len() - 1..]).unwrap();
    assert_eq!(transmitted(&mut stream, 1, 1), 0);
    let event = Event::Attach {
        leg: leg(1, 1),
        grant: Bytes::from_static(GRANT),
        first: true,
        resume: false,
    };
    assert_eq!(stream.poll_event(), Some(event));
    stream.accept_attach(leg(1, 1), NOW).unwrap();
    assert!(transmitted(&mut stream, 1, 1) > SALT_BYTES);
    // The same bytes again, on a leg that claims the same epoch.
    assert_eq!(
        stream.open_leg(
            LegPath {
                epoch: LegEpoch(1),
                relay: RelayId::from_bytes([1; 16]),
                salt: [5; SALT_BYTES]
            },
            AttachKind::Resend
        ),
        Err(OpenLegError::StaleEpoch(LegEpoch(1)))
    );
}

/// R-STR-05, I5, I7: a relay that says it has the leg of an epoch, and is silent or makes bytes up, keeps it
/// from no other: whoever brings the ATTACH has it, and the other leg is worth nothing from then on. A relay
/// has one leg of an epoch, and legs of which nothing is verified are bounded.
#[test]
fn a_silent_relay_takes_an_epoch_from_nobody() {
    let mut stream = acceptor(1, 1);
    open(&mut stream, 1, 2);
    open(&mut stream, 2, 2);
    assert_eq!(
        stream.receive(leg(1, 1), NOW, &forge(1, 1, &[&[attach(1, 1)]])),
        Ok(true)
    );
    assert!(matches!(
        stream.poll_event(),
        Some(Event::Attach { first: true, .. })
    ));
    stream.accept_attach(leg(1, 1), NOW).unwrap();
    assert!(stream.is_current(leg(1, 1)));
    // The next one, of which relay 2 has told already.
    open(&mut stream, 2, 1);
    let bytes = forge(2, 1, &[&[attach(2, 1)]]);
    assert_eq!(stream.receive(leg(2, 1), NOW, &bytes), Ok(true));
    assert!(matches!(
        stream.poll_event(),
        Some(Event::Attach { first: false, .. })
    ));
    stream.accept_attach(leg(2, 1), NOW).unwrap();
    assert!(stream.is_current(leg(2, 1)));
    // An epoch lives once: neither of the silent legs is taken any more, even for a peer that seals for both.
    for epoch in [1, 2] {
        let late = forge(epoch, 2, &[&[attach(epoch, 2)]]);
        let taken = stream.receive(leg(epoch, 2), NOW, &late);
        assert_eq!(taken, Err(LegFault::WrongAttach));
        assert_eq!(transmitted(&mut stream, epoch, 2), 0);
    }
    for relay in 1..=8 {
        open(&mut stream, 3, relay);
    }
    let path = |relay| LegPath {
        epoch: LegEpoch(3),
        relay: RelayId::from_bytes([relay; 16]),
        salt: [4; SALT_BYTES],
    };
    let stale = Err(OpenLegError::StaleEpoch(LegEpoch(3)));
    assert_eq!(stream.open_leg(path(8), AttachKind::Resend), stale);
    let many = Err(OpenLegError::TooMany(8));
    assert_eq!(stream.open_leg(path(9), AttachKind::Resend), many);
}

/// A peer's attached legs are bounded at the acceptor, whatever it seals: the stream lives.
#[test]
fn attached_legs_are_bounded() {
    let mut stream = acceptor(1, 1);
    for epoch in 1..=5 {
        if epoch > 1 {
            open(&mut stream, epoch, 1);
        }
        let taken = stream.receive(leg(epoch, 1), NOW, &forge(epoch, 1, &[&[attach(epoch, 1)]]));
        if epoch > 4 {
            assert_eq!(taken, Err(LegFault::TooManyLegs { max: 4 }));
        } else {
            assert_eq!(taken, Ok(true));
            stream.accept_attach(leg(epoch, 1), NOW).unwrap();
        }
    }
    assert!(stream.is_current(leg(4, 1)));
}

/// F-06, R-STR-05: bytes that are no record are no sign of the peer, however many come.
#[test]
fn only_an_opened_record_is_heard() {
    let mut stream = acceptor(1, 1);
    let bytes = forge(1, 1, &[&[attach(1, 1)], &[Frame::Ping { id: 1 }]]);
    let (last, most) = bytes.split_last().unwrap();
    for byte in &most[..SALT_BYTES + HEADER_BYTES] {
        assert_eq!(stream.receive(leg(1, 1), NOW, &[*byte]), Ok(false));
    }
    let rest = &most[SALT_BYTES + HEADER_BYTES..];
    assert_eq!(stream.receive(leg(1, 1), NOW, rest), Ok(true), "the ATTACH");
    stream.accept_attach(leg(1, 1), NOW).unwrap();
    assert_eq!(stream.receive(leg(1, 1), NOW, &[*last]), Ok(true), "the PING");
    // A claimed record of 16 KiB that comes in drops.
    for byte in [23, 3, 3, 0x40, 0].iter().chain(&[0; 1000]) {
        assert_eq!(stream.receive(leg(1, 1), NOW, &[*byte]), Ok(false));
    }
}

//! What is written is what is read, and nothing else is.

use crate::frame::*;
use bytes::{Bytes, BytesMut};
use fairlead_model::{
    AssociationId, EndpointId, Generation, LegEpoch, NodeId, PolicyEpoch, ProcessBootId, RefusalCode,
    RegistrationEpoch, RelayId, Revision, RouteId, SessionId, StreamNumber,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::time::Duration;

fn code() -> impl Strategy<Value = RefusalCode> {
    select(RefusalCode::ALL)
}

fn refusal() -> impl Strategy<Value = Refusal> {
    (code(), proptest::option::of(0u32..u32::MAX - 1)).prop_map(|(code, after)| Refusal {
        code,
        retry_after: after.map(|ms| Duration::from_millis(ms.into())),
    })
}

fn register() -> impl Strategy<Value = Register> {
    (any::<[u8; 16]>(), any::<u64>(), any::<u64>()).prop_map(|(endpoint, generation, epoch)| Register {
        endpoint: EndpointId::from_bytes(endpoint),
        generation: Generation(generation),
        epoch: RegistrationEpoch(epoch),
    })
}

fn kind() -> impl Strategy<Value = LegKind> {
    prop_oneof![Just(LegKind::Stream), Just(LegKind::Pair)]
}

fn ping() -> impl Strategy<Value = Ping> {
    (any::<u64>(), vec(any::<u8>(), 0..300)).prop_map(|(number, padding)| Ping {
        number,
        padding: padding.into(),
    })
}

pub(super) fn frame() -> impl Strategy<Value = Frame> {
    let ids = any::<[[u8; 16]; 4]>();
    let words = vec("[a-z0-9_]{0,64}", 0..4);
    prop_oneof![
        (any::<(u16, u16)>(), ids, "[a-z0-9.]{0,64}", words.clone()).prop_map(|(v, ids, software, words)| {
            Frame::Hello(Hello {
                version_min: v.0,
                version_max: v.1,
                session: SessionId::from_bytes(ids[0]),
                process_boot: ProcessBootId::from_bytes(ids[1]),
                software,
                capabilities: words,
            })
        }),
        (any::<(u16, u32)>(), ids, words).prop_map(|(n, ids, words)| {
            Frame::HelloOk(HelloOk {
                version: n.0,
                session: SessionId::from_bytes(ids[0]),
                relay: RelayId::from_bytes(ids[1]),
                process_boot: ProcessBootId::from_bytes(ids[2]),
                legs_max: n.1,
                capabilities: words,
            })
        }),
        register().prop_map(Frame::Register),
        register().prop_map(Frame::Registered),
        register().prop_map(Frame::Unregister),
        (register(), refusal())
            .prop_map(|(register, refusal)| Frame::RegisterRefused(RegisterRefused { register, refusal })),
        Just(Frame::Restarting),
        Just(Frame::DrainNotice),
        ping().prop_map(Frame::Ping),
        ping().prop_map(Frame::Pong),
        code().prop_map(Frame::Close),
        (kind(), ids, any::<(u64, u64, bool)>(), vec(any::<u8>(), 0..400)).prop_map(
            |(kind, ids, n, grant)| {
                Frame::Open(Open {
                    kind,
                    association: AssociationId::from_bytes(ids[0]),
                    route: RouteId::from_bytes(ids[1]),
                    stream: StreamNumber(n.0),
                    epoch: LegEpoch(n.1),
                    resume: n.2,
                    grant: grant.into(),
                })
            }
        ),
        (kind(), ids, any::<(u64, u64, bool, u64, u64)>()).prop_map(|(kind, ids, n)| {
            Frame::Incoming(Incoming {
                kind,
                association: AssociationId::from_bytes(ids[0]),
                route: RouteId::from_bytes(ids[1]),
                stream: StreamNumber(n.0),
                epoch: LegEpoch(n.1),
                resume: n.2,
                endpoint: EndpointId::from_bytes(ids[2]),
                consumer: NodeId::from_bytes(ids[3]),
                policy: (PolicyEpoch(n.3), Revision(n.4)),
            })
        }),
        Just(Frame::Answer(Answer::Ok)),
        refusal().prop_map(|refusal| Frame::Answer(Answer::Refused(refusal))),
    ]
}

fn bytes_of(frame: &Frame) -> BytesMut {
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes).unwrap();
    bytes
}

proptest! {
    /// Every frame reads back as itself, takes exactly its bytes, and is told to be incomplete at
    /// every shorter length.
    #[test]
    fn frames_round_trip(frame in frame(), behind in vec(any::<u8>(), 0..20)) {
        let mut bytes = bytes_of(&frame);
        let length = bytes.len();
        prop_assert!(length <= FRAME_LEN_MAX);
        for cut in 0..length {
            let Decoded::Incomplete { needed } = Frame::decode(&bytes[..cut]).unwrap() else {
                panic!("a frame in {cut} of {length} bytes");
            };
            prop_assert!(needed > cut && needed <= length);
        }
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(Frame::decode(&bytes).unwrap(), Decoded::Frame { frame, consumed: length });
    }

    /// Any bytes give a frame, a fault or a wait; what is read as a frame is written the same way.
    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..200), kind in 0u8..24) {
        for bytes in [bytes.clone(), [&[kind, 0, bytes.len() as u8][..], &bytes].concat()] {
            if let Ok(Decoded::Frame { frame, consumed }) = Frame::decode(&bytes) {
                let again = bytes_of(&frame);
                // A code of a later version reads as another one; all else is one to one.
                if !matches!(
                    frame,
                    Frame::Close(_) | Frame::RegisterRefused(_) | Frame::Answer(Answer::Refused(_))
                ) {
                    prop_assert_eq!(&again[..], &bytes[..consumed]);
                }
                prop_assert_eq!(again.len(), consumed);
            }
        }
    }

    /// A changed byte is never read as the same frame. (Codes of later versions all read as
    /// INTERNAL, so that one is left out.)
    #[test]
    fn a_changed_byte_is_another_frame(frame in frame(), at in any::<proptest::sample::Index>(), bit in 0u8..8) {
        let code = match &frame {
            Frame::Close(code) => Some(*code),
            Frame::RegisterRefused(refused) => Some(refused.refusal.code),
            Frame::Answer(Answer::Refused(refusal)) => Some(refusal.code),
            _ => None,
        };
        prop_assume!(code != Some(RefusalCode::Internal));
        let mut bytes = bytes_of(&frame);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(Decoded::Frame { frame: other, .. }) = Frame::decode(&bytes) {
            prop_assert_ne!(other, frame);
        }
    }
}

/// The wire form of each frame is fixed: a change here is a change of the protocol's version.
#[test]
fn wire_forms_are_pinned() {
    let register = Register {
        endpoint: EndpointId::from_bytes([0xee; 16]),
        generation: Generation(2),
        epoch: RegistrationEpoch(0x0000_0003_0000_0004),
    };
    let ee = "ee".repeat(16);
    for (frame, hex) in [
        (
            Frame::Register(register),
            format!("030020{ee}00000000000000020000000300000004"),
        ),
        (Frame::Restarting, "070000".to_owned()),
        (Frame::DrainNotice, "080000".to_owned()),
        (
            Frame::Ping(Ping {
                number: 1,
                padding: Bytes::from_static(b"ab"),
            }),
            "09000b0000000000000001026162".to_owned(),
        ),
        (Frame::Close(RefusalCode::Draining), "0b00020016".to_owned()),
        (Frame::Answer(Answer::Ok), "12000101".to_owned()),
        (
            Frame::Answer(Answer::Refused(RefusalCode::NotRegistered.into())),
            "120007000014ffffffff".to_owned(),
        ),
        (
            Frame::Open(Open {
                kind: LegKind::Stream,
                association: AssociationId::from_bytes([0xaa; 16]),
                route: RouteId::from_bytes([0xbb; 16]),
                stream: StreamNumber(5),
                epoch: LegEpoch(6),
                resume: true,
                grant: Bytes::from_static(b"g"),
            }),
            format!(
                "10003401{}{}00000000000000050000000000000006010167",
                "aa".repeat(16),
                "bb".repeat(16)
            ),
        ),
    ] {
        let bytes = bytes_of(&frame);
        let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(text, hex, "{}", frame.name());
    }
}

/// The bounds hold at the edge and break one beyond it.
#[test]
fn bounds_are_exact() {
    let ping = |length| {
        Frame::Ping(Ping {
            number: 0,
            padding: Bytes::from(vec![0; length]),
        })
    };
    assert_eq!(bytes_of(&ping(PING_PADDING_MAX)).len(), FRAME_LEN_MAX);
    let mut out = BytesMut::from(&b"before"[..]);
    assert!(ping(PING_PADDING_MAX + 1).encode(&mut out).is_err());
    assert_eq!(&out[..], b"before", "a failed frame left something");
    let open = |length| {
        Frame::Open(Open {
            kind: LegKind::Pair,
            association: AssociationId::from_bytes([1; 16]),
            route: RouteId::from_bytes([1; 16]),
            stream: StreamNumber(0),
            epoch: LegEpoch(0),
            resume: false,
            grant: Bytes::from(vec![0; length]),
        })
    };
    assert!(open(GRANT_LEN_MAX).encode(&mut out).is_ok());
    assert!(open(GRANT_LEN_MAX + 1).encode(&mut out).is_err());
}

/// A later version's optional frames are skipped, its other ones are not.
#[test]
fn unknown_kinds_are_skipped_or_refused() {
    assert_eq!(
        Frame::decode(&[0x80, 0, 2, 1, 2, 9]),
        Ok(Decoded::Skip { consumed: 5 })
    );
    assert_eq!(
        Frame::decode(&[0x80, 0, 2, 1]),
        Ok(Decoded::Incomplete { needed: 5 })
    );
    assert_eq!(Frame::decode(&[0x7f, 0, 2]), Err(DecodeError::Kind(0x7f)));
    assert_eq!(
        Frame::decode(&[kind_of_ping(), 0xff, 0xff]),
        Err(DecodeError::Length(HEADER_LEN + 0xffff))
    );
    // Bytes behind the last field hide nothing.
    assert!(matches!(
        Frame::decode(&[7, 0, 1, 0]),
        Err(DecodeError::Payload {
            frame: "RESTARTING",
            ..
        })
    ));
}

fn kind_of_ping() -> u8 {
    bytes_of(&Frame::Ping(Ping {
        number: 0,
        padding: Bytes::new(),
    }))[0]
}

//! What stands inside a sealed record: control frames, then at most one DATA, which takes the rest.
//!
//! | type | frame | fields |
//! |---|---|---|
//! | 1 | DATA | offset 8, bytes to the record's end |
//! | 2 | ACK | next 8, limit 8 |
//! | 3 | FIN | final 8 |
//! | 4 | RESET | code 2, final 8 |
//! | 5 | ATTACH | epoch 8, relay 16, next 8, limit 8, flags 1, grant (varint length, bytes) |
//! | 6 | ATTACH_OK | epoch 8, next 8, limit 8, connected 1 |
//! | 7 | ATTACH_REFUSED | epoch 8, code 2 |
//! | 8 | DIAL_RESULT | code 2, 0 = connected |
//! | 9 | MOVE_PLEASE | |
//! | 10 | DETACH | |
//! | 11 | PING | id 8 |
//! | 12 | PONG | id 8 |
//! | 13 | CLOSED | |
//!
//! `next` is the first position that the sender of the frame does not hold yet, `limit` the first
//! that its peer may not send. The FIN takes one position: `next = final + 1` acknowledges it.

use bytes::BufMut;
use fairlead_codec::{ReadError, Reader, WriteError, Writer};
use fairlead_model::{LegEpoch, RelayId};

/// Random bytes that each sender puts in clear before its first record.
pub const SALT_BYTES: usize = 16;
/// Most bytes of a grant in an ATTACH. A signed grant has a few hundred; the frame fits a record.
pub const GRANT_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a DATA frame before its payload.
pub const DATA_HEADER_BYTES: usize = 9;
/// Most bytes of any frame but DATA: an ATTACH with the longest grant.
pub const CONTROL_BYTES_MAX: usize = 1 + 8 + 16 + 8 + 8 + 1 + 2 + GRANT_BYTES_MAX;

const _: () = assert!(CONTROL_BYTES_MAX < crate::record::PLAINTEXT_BYTES_MAX);

/// Why a record's plaintext is no sequence of frames. The peer's fault: it was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A type number that is no frame's.
    #[error("frame type {0} is unknown")]
    UnknownType(u8),
    /// A field that is too short, too long or out of range.
    #[error("a field of frame type {frame_type}")]
    Field {
        /// The frame's type number.
        frame_type: u8,
        /// What is wrong with the field.
        #[source]
        source: ReadError,
    },
    /// An ATTACH with a flag that has no meaning.
    #[error("ATTACH with flags {0:#04x}")]
    UnknownFlags(u8),
    /// A DATA frame without a byte, or whose last byte's offset would not fit 62 bits.
    #[error("a DATA frame of {length} bytes at offset {offset}")]
    DataRange {
        /// The frame's offset.
        offset: u64,
        /// The frame's payload length.
        length: usize,
    },
}

/// Flag of ATTACH: unacknowledged bytes are sent again.
const RESEND: u8 = 1;
/// Flag of ATTACH: the stream was attached before.
const RESUME: u8 = 2;

/// Highest position of a stream. Positions stay far from wrapping, so sums of two never do.
pub const POSITION_MAX: u64 = 1 << 62;

/// One frame. Codes are numbers here: a newer peer may send ones this end has no name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Bytes of the stream.
    Data {
        /// Position of the first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: &'a [u8],
    },
    /// What the sender holds and how far its peer may go.
    Ack {
        /// First position not held.
        next: u64,
        /// First position that may not be sent.
        limit: u64,
    },
    /// The sender's direction ends.
    Fin {
        /// How many bytes it has.
        final_offset: u64,
    },
    /// The sender's socket was reset; both directions are over.
    Reset {
        /// A [`ResetCode`](crate::ResetCode) number.
        code: u16,
        /// How many bytes its direction has.
        final_offset: u64,
    },
    /// The dialler binds the stream to this leg.
    Attach {
        /// The leg's epoch.
        epoch: LegEpoch,
        /// The relay that the leg runs over.
        relay: RelayId,
        /// First position the dialler does not hold.
        next: u64,
        /// First position the acceptor may not send.
        limit: u64,
        /// Whether unacknowledged bytes of both ends are to be sent on this leg.
        resend: bool,
        /// Whether the acceptor has accepted a leg of this stream before: it is to dial for none.
        resume: bool,
        /// The signed grant.
        grant: &'a [u8],
    },
    /// The acceptor accepts the leg.
    AttachOk {
        /// The leg's epoch.
        epoch: LegEpoch,
        /// First position the acceptor does not hold.
        next: u64,
        /// First position the dialler may not send.
        limit: u64,
        /// Whether the target is connected already.
        connected: bool,
    },
    /// The acceptor refuses the leg.
    AttachRefused {
        /// The leg's epoch.
        epoch: LegEpoch,
        /// A [`RefusalCode`](fairlead_model::RefusalCode) number.
        code: u16,
    },
    /// How dialling the target went.
    DialResult {
        /// 0 for connected, else a [`RefusalCode`](fairlead_model::RefusalCode) number.
        code: u16,
    },
    /// The acceptor asks for another leg.
    MovePlease,
    /// The sender sends nothing more on this leg.
    Detach,
    /// Asks for a PONG at once.
    Ping {
        /// Comes back in the PONG.
        id: u64,
    },
    /// Answers a PING.
    Pong {
        /// The PING's id.
        id: u64,
    },
    /// The sender has all of both directions, or the end of a reset stream, and forgets it.
    Closed,
}

const DATA: u8 = 1;
const ACK: u8 = 2;
const FIN: u8 = 3;
const RESET: u8 = 4;
const ATTACH: u8 = 5;
const ATTACH_OK: u8 = 6;
const ATTACH_REFUSED: u8 = 7;
const DIAL_RESULT: u8 = 8;
const MOVE_PLEASE: u8 = 9;
const DETACH: u8 = 10;
const PING: u8 = 11;
const PONG: u8 = 12;
const CLOSED: u8 = 13;

impl<'a> Frame<'a> {
    /// Takes the next frame from a record's plaintext; `None` at its end.
    ///
    /// # Errors
    /// The bytes are no frame.
    pub fn take(reader: &mut Reader<'a>) -> Result<Option<Self>, FrameError> {
        if reader.is_empty() {
            return Ok(None);
        }
        let frame_type = reader.u8().map_err(|source| FrameError::Field {
            frame_type: 0,
            source,
        })?;
        let field = |source| FrameError::Field { frame_type, source };
        let r = reader;
        Ok(Some(match frame_type {
            DATA => {
                let offset = r.u64().map_err(field)?;
                let bytes = r.take(r.remaining()).map_err(field)?;
                if bytes.is_empty() || offset.saturating_add(bytes.len() as u64) > POSITION_MAX {
                    return Err(FrameError::DataRange {
                        offset,
                        length: bytes.len(),
                    });
                }
                Self::Data { offset, bytes }
            }
            ACK => Self::Ack {
                next: r.u64().map_err(field)?,
                limit: r.u64().map_err(field)?,
            },
            FIN => Self::Fin {
                final_offset: r.u64().map_err(field)?,
            },
            RESET => Self::Reset {
                code: r.u16().map_err(field)?,
                final_offset: r.u64().map_err(field)?,
            },
            ATTACH => Self::take_attach(r)?,
            ATTACH_OK => Self::AttachOk {
                epoch: LegEpoch(r.u64().map_err(field)?),
                next: r.u64().map_err(field)?,
                limit: r.u64().map_err(field)?,
                connected: r.bool().map_err(field)?,
            },
            ATTACH_REFUSED => Self::AttachRefused {
                epoch: LegEpoch(r.u64().map_err(field)?),
                code: r.u16().map_err(field)?,
            },
            DIAL_RESULT => Self::DialResult {
                code: r.u16().map_err(field)?,
            },
            MOVE_PLEASE => Self::MovePlease,
            DETACH => Self::Detach,
            PING => Self::Ping {
                id: r.u64().map_err(field)?,
            },
            PONG => Self::Pong {
                id: r.u64().map_err(field)?,
            },
            CLOSED => Self::Closed,
            unknown => return Err(FrameError::UnknownType(unknown)),
        }))
    }

    fn take_attach(r: &mut Reader<'a>) -> Result<Self, FrameError> {
        let field = |source| FrameError::Field {
            frame_type: ATTACH,
            source,
        };
        let epoch = LegEpoch(r.u64().map_err(field)?);
        let relay = RelayId::from_bytes(r.array().map_err(field)?);
        let (next, limit) = (r.u64().map_err(field)?, r.u64().map_err(field)?);
        let flags = r.u8().map_err(field)?;
        if flags & !(RESEND | RESUME) != 0 {
            return Err(FrameError::UnknownFlags(flags));
        }
        Ok(Self::Attach {
            epoch,
            relay,
            next,
            limit,
            resend: flags & RESEND != 0,
            resume: flags & RESUME != 0,
            grant: r.bytes(GRANT_BYTES_MAX).map_err(field)?,
        })
    }

    /// Appends the frame. DATA must be the record's last.
    ///
    /// # Errors
    /// The record is full, or the grant is longer than [`GRANT_BYTES_MAX`].
    pub fn put<B: BufMut>(&self, w: &mut Writer<'_, B>) -> Result<(), WriteError> {
        match *self {
            Self::Data { offset, bytes } => {
                Self::put_data_header(offset, w)?;
                w.raw(bytes)
            }
            Self::Ack { next, limit } => {
                w.u8(ACK)?;
                w.u64(next)?;
                w.u64(limit)
            }
            Self::Fin { final_offset } => {
                w.u8(FIN)?;
                w.u64(final_offset)
            }
            Self::Reset { code, final_offset } => {
                w.u8(RESET)?;
                w.u16(code)?;
                w.u64(final_offset)
            }
            Self::Attach {
                epoch,
                relay,
                next,
                limit,
                resend,
                resume,
                grant,
            } => {
                w.u8(ATTACH)?;
                w.u64(epoch.0)?;
                w.raw(&relay.to_bytes())?;
                w.u64(next)?;
                w.u64(limit)?;
                w.u8((u8::from(resend) * RESEND) | (u8::from(resume) * RESUME))?;
                w.bytes(grant, GRANT_BYTES_MAX)
            }
            Self::AttachOk {
                epoch,
                next,
                limit,
                connected,
            } => {
                w.u8(ATTACH_OK)?;
                w.u64(epoch.0)?;
                w.u64(next)?;
                w.u64(limit)?;
                w.bool(connected)
            }
            Self::AttachRefused { epoch, code } => {
                w.u8(ATTACH_REFUSED)?;
                w.u64(epoch.0)?;
                w.u16(code)
            }
            Self::DialResult { code } => {
                w.u8(DIAL_RESULT)?;
                w.u16(code)
            }
            Self::MovePlease => w.u8(MOVE_PLEASE),
            Self::Detach => w.u8(DETACH),
            Self::Ping { id } => {
                w.u8(PING)?;
                w.u64(id)
            }
            Self::Pong { id } => {
                w.u8(PONG)?;
                w.u64(id)
            }
            Self::Closed => w.u8(CLOSED),
        }
    }

    /// Appends what stands before a DATA frame's bytes; the bytes follow by another way.
    ///
    /// # Errors
    /// The record is full.
    pub fn put_data_header<B: BufMut>(offset: u64, w: &mut Writer<'_, B>) -> Result<(), WriteError> {
        w.u8(DATA)?;
        w.u64(offset)
    }
}

/// Walks through all frames of a record's plaintext: the fuzzers' entry.
///
/// # Errors
/// The plaintext is no sequence of frames.
pub fn check(plaintext: &[u8]) -> Result<usize, FrameError> {
    let mut reader = Reader::new(plaintext);
    let mut count = 0;
    while Frame::take(&mut reader)?.is_some() {
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_back(frames: &[Frame<'_>]) {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out, 64 * 1024);
        for frame in frames {
            frame.put(&mut w).unwrap();
        }
        let mut r = Reader::new(&out);
        for frame in frames {
            assert_eq!(Frame::take(&mut r).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::take(&mut r).unwrap(), None);
    }

    proptest! {
        #[test]
        fn frames_round_trip(a in any::<u64>(), b in any::<u64>(), code: u16, flag: bool, id: [u8; 16],
                             bytes in prop::collection::vec(any::<u8>(), 1..300)) {
            let (epoch, relay) = (LegEpoch(a), RelayId::from_bytes(id));
            read_back(&[
                Frame::Ack { next: a, limit: b },
                Frame::Fin { final_offset: a },
                Frame::Reset { code, final_offset: b },
                Frame::Attach { epoch, relay, next: a, limit: b, resend: flag, resume: code > 9, grant: &bytes },
                Frame::AttachOk { epoch, next: a, limit: b, connected: flag },
                Frame::AttachRefused { epoch, code },
                Frame::DialResult { code },
                Frame::MovePlease,
                Frame::Detach,
                Frame::Ping { id: a },
                Frame::Pong { id: b },
                Frame::Closed,
                Frame::Data { offset: a >> 2, bytes: &bytes },
            ]);
        }

        /// One sequence of frames has one encoding, and no bytes panic.
        #[test]
        fn what_reads_writes_back_equal(first in 0u8..16, rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = vec![first];
            bytes.extend(rest);
            let mut r = Reader::new(&bytes);
            let mut out = Vec::new();
            loop {
                let before = bytes.len() - r.remaining();
                prop_assert_eq!(&out[..], &bytes[..before]);
                match Frame::take(&mut r) {
                    Ok(Some(frame)) => frame.put(&mut Writer::new(&mut out, 1024)).unwrap(),
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(check(&[0]), Err(FrameError::UnknownType(0)));
        assert_eq!(check(&[14]), Err(FrameError::UnknownType(14)));
        assert!(matches!(
            check(&[2, 0]),
            Err(FrameError::Field { frame_type: 2, .. })
        ));
        assert_eq!(
            check(&[1, 0, 0, 0, 0, 0, 0, 0, 9]),
            Err(FrameError::DataRange { offset: 9, length: 0 })
        );
        let far = [&[1][..], &u64::MAX.to_be_bytes(), &[0]].concat();
        assert!(matches!(
            check(&far),
            Err(FrameError::DataRange { length: 1, .. })
        ));
        let mut out = Vec::new();
        let grant = vec![0; GRANT_BYTES_MAX + 1];
        let attach = Frame::Attach {
            epoch: LegEpoch(1),
            relay: RelayId::from_bytes([0; 16]),
            next: 0,
            limit: 0,
            resend: true,
            resume: false,
            grant: &grant,
        };
        assert!(matches!(
            attach.put(&mut Writer::new(&mut out, 64 * 1024)),
            Err(WriteError::TooLong { .. })
        ));
    }
}

//! Frames of the hop protocol.
//!
//! ```text
//! kind (1) │ payload length (2, big-endian) │ payload
//! ```
//! A frame is at most 64 KiB. A kind of 0x80 or above that this version does not know is skipped;
//! any other unknown kind is a fault. Within a payload, integers are fixed and big-endian, ids are
//! their 16 bytes, and nothing may follow the last field.

mod wire;

use bytes::{BufMut, Bytes, BytesMut};
use fairlead_codec::{ReadError, Reader, WriteError, Writer};
use fairlead_model::{
    AssociationId, EndpointId, Generation, LegEpoch, NodeId, PolicyEpoch, ProcessBootId, RefusalCode,
    RegistrationEpoch, RelayId, Revision, RouteId, SessionId, StreamNumber, TunnelId,
};
use std::time::Duration;

/// Bytes before a payload.
pub const HEADER_LEN: usize = 3;
/// Greatest frame, header included: the header's two length bytes reach this far and no further.
pub const FRAME_LEN_MAX: usize = u16::MAX as usize;
/// Greatest payload.
pub const PAYLOAD_LEN_MAX: usize = FRAME_LEN_MAX - HEADER_LEN;
/// Greatest signed grant inside an OPEN. A grant is about 250 bytes; the rest is room for fields
/// of later versions.
pub const GRANT_LEN_MAX: usize = 4096;
/// Kinds from here on may be skipped by a version that does not know them.
const SKIPPABLE: u8 = 0x80;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Daemon to relay, first on the control stream.
    Hello(Hello),
    /// The relay's answer to [`Hello`].
    HelloOk(HelloOk),
    /// Daemon to relay: it serves this endpoint.
    Register(Register),
    /// Relay to daemon: the registration is in force.
    Registered(Register),
    /// Relay to daemon: it is not.
    RegisterRefused(RegisterRefused),
    /// Daemon to relay: it serves this endpoint no longer. Ignored unless the epoch is the one in
    /// force (R-ADM-04).
    Unregister(Register),
    /// Daemon to relay: it goes away and comes back; keep its registrations (R-ADM-03).
    Restarting,
    /// Relay to daemon: open new legs elsewhere (R-OPS-01).
    DrainNotice,
    /// Either way. The answer carries the same bytes.
    Ping(Ping),
    /// The answer to [`Frame::Ping`].
    Pong(Ping),
    /// Either way: the session ends.
    Close(RefusalCode),
    /// Consumer to relay, first on a leg.
    Open(Open),
    /// Relay to publisher, first on a leg.
    Incoming(Incoming),
    /// The answer to [`Frame::Open`] or [`Frame::Incoming`].
    Answer(Answer),
}

/// A daemon's greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Lowest protocol version it speaks.
    pub version_min: u16,
    /// Highest protocol version it speaks.
    pub version_max: u16,
    /// The session, chosen by the daemon.
    pub session: SessionId,
    /// The daemon's run.
    pub process_boot: ProcessBootId,
    /// The daemon's software version, for logs.
    pub software: String,
    /// Optional abilities, by name.
    pub capabilities: Vec<String>,
}

/// A relay's greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloOk {
    /// The version both will speak.
    pub version: u16,
    /// The session as the daemon named it.
    pub session: SessionId,
    /// The relay.
    pub relay: RelayId,
    /// The relay worker's run.
    pub process_boot: ProcessBootId,
    /// Most legs that the daemon may have open here.
    pub legs_max: u32,
    /// Optional abilities, by name.
    pub capabilities: Vec<String>,
}

/// One registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register {
    /// What is served.
    pub endpoint: EndpointId,
    /// In which version (R-ADM-01).
    pub generation: Generation,
    /// Which registration of the daemon this is; the highest wins (R-ADM-04).
    pub epoch: RegistrationEpoch,
}

/// A registration that the relay refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterRefused {
    /// The registration.
    pub register: Register,
    /// Why, and when to try again.
    pub refusal: Refusal,
}

/// A correct no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: RefusalCode,
    /// When the same request may succeed, where the refusing side can tell.
    pub retry_after: Option<Duration>,
}

impl From<RefusalCode> for Refusal {
    fn from(code: RefusalCode) -> Self {
        Self {
            code,
            retry_after: None,
        }
    }
}

/// A ping or its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// Tells answers apart.
    pub number: u64,
    /// Any bytes, echoed. A probe fills the frame with them (R-RCH-03).
    pub padding: Bytes,
}

/// Most padding of a ping: it fills the greatest frame.
pub const PING_PADDING_MAX: usize = PAYLOAD_LEN_MAX - 8 - 3;

/// What a leg carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LegKind {
    /// Sealed records of one stream.
    Stream,
    /// The TLS of an association between the two daemons.
    Pair,
}

/// A consumer's request for a leg to a publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// What the leg will carry.
    pub kind: LegKind,
    /// The association whose secret seals the stream; for a pair, the one to be made.
    pub association: AssociationId,
    /// The route to be admitted by.
    pub route: RouteId,
    /// The stream within the association; 0 for a pair.
    pub stream: StreamNumber,
    /// The leg's epoch within the stream, burnt by this request; 0 for a pair.
    pub epoch: LegEpoch,
    /// Whether the stream lives already (R-POL-06, R-SHD-02).
    pub resume: bool,
    /// The signed grant.
    pub grant: Bytes,
}

impl Open {
    /// The tunnel's name in logs.
    #[must_use]
    pub const fn tunnel(&self) -> TunnelId {
        TunnelId {
            association: self.association,
            stream: self.stream,
        }
    }
}

/// A relay's request for a leg to a publisher, on behalf of a consumer. Its claims are advisory:
/// the publisher believes only what the consumer itself sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// What the leg will carry.
    pub kind: LegKind,
    /// As in the OPEN.
    pub association: AssociationId,
    /// As in the OPEN.
    pub route: RouteId,
    /// As in the OPEN.
    pub stream: StreamNumber,
    /// As in the OPEN.
    pub epoch: LegEpoch,
    /// As in the OPEN.
    pub resume: bool,
    /// The endpoint that the route leads to, by the relay's policy.
    pub endpoint: EndpointId,
    /// The consumer, by its certificate at the relay.
    pub consumer: NodeId,
    /// The policy that admitted it (R-REV-02): epoch and revision.
    pub policy: (PolicyEpoch, Revision),
}

impl Incoming {
    /// The tunnel's name in logs.
    #[must_use]
    pub const fn tunnel(&self) -> TunnelId {
        TunnelId {
            association: self.association,
            stream: self.stream,
        }
    }
}

/// The answer to an OPEN or INCOMING.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Raw bytes follow.
    Ok,
    /// Nothing follows.
    Refused(Refusal),
}

/// Why bytes are not a frame. The peer's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A kind that this version does not know and may not skip.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// A length that no frame has.
    #[error("a frame of {0} bytes, at most {FRAME_LEN_MAX} allowed")]
    Length(usize),
    /// A malformed payload.
    #[error("a malformed {frame} frame")]
    Payload {
        /// The frame's name.
        frame: &'static str,
        /// What is wrong with it.
        #[source]
        source: ReadError,
    },
    /// A value outside its table.
    #[error("a {frame} frame with {field} {value}")]
    Value {
        /// The frame's name.
        frame: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Why a frame cannot be written. The caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot write a {frame} frame")]
pub struct EncodeError {
    frame: &'static str,
    #[source]
    source: WriteError,
}

/// What the front of a buffer holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// A frame of `consumed` bytes.
    Frame {
        /// The frame.
        frame: Frame,
        /// Its length, header included.
        consumed: usize,
    },
    /// A frame of a later version that may be skipped.
    Skip {
        /// Its length, header included.
        consumed: usize,
    },
    /// Part of a frame.
    Incomplete {
        /// How many bytes the buffer must hold before the next attempt.
        needed: usize,
    },
}

impl Frame {
    /// The frame's name in logs and faults.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::HelloOk(_) => "HELLO_OK",
            Self::Register(_) => "REGISTER",
            Self::Registered(_) => "REGISTERED",
            Self::RegisterRefused(_) => "REGISTER_REFUSED",
            Self::Unregister(_) => "UNREGISTER",
            Self::Restarting => "RESTARTING",
            Self::DrainNotice => "DRAIN_NOTICE",
            Self::Ping(_) => "PING",
            Self::Pong(_) => "PONG",
            Self::Close(_) => "CLOSE",
            Self::Open(_) => "OPEN",
            Self::Incoming(_) => "INCOMING",
            Self::Answer(_) => "ANSWER",
        }
    }

    /// Appends the frame to `out`. A frame that fails has written nothing.
    ///
    /// # Errors
    /// A field is longer than its reader allows.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        let start = out.len();
        out.put_u8(self.kind());
        out.put_u16(0);
        let mut writer = Writer::new(out, PAYLOAD_LEN_MAX);
        if let Err(source) = self.write_payload(&mut writer) {
            out.truncate(start);
            return Err(EncodeError {
                frame: self.name(),
                source,
            });
        }
        let payload = u16::try_from(out.len() - start - HEADER_LEN).unwrap_or(u16::MAX);
        if let Some(length) = out.get_mut(start + 1..start + HEADER_LEN) {
            length.copy_from_slice(&payload.to_be_bytes());
        }
        Ok(())
    }

    /// Reads the frame at the front of `bytes`. Takes no more memory than the frame has bytes.
    ///
    /// # Errors
    /// The bytes are no frame of this protocol, whatever follows.
    pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
        let Some((&[kind, high, low], after)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Ok(Decoded::Incomplete { needed: HEADER_LEN });
        };
        let payload_len = usize::from(u16::from_be_bytes([high, low]));
        let consumed = HEADER_LEN + payload_len;
        if payload_len > PAYLOAD_LEN_MAX {
            return Err(DecodeError::Length(consumed));
        }
        // An unknown kind is told at once: its payload is not waited for.
        let Some(name) = wire::kind::name(kind) else {
            return match (kind >= SKIPPABLE, after.len() >= payload_len) {
                (false, _) => Err(DecodeError::Kind(kind)),
                (true, true) => Ok(Decoded::Skip { consumed }),
                (true, false) => Ok(Decoded::Incomplete { needed: consumed }),
            };
        };
        let Some(payload) = after.get(..payload_len) else {
            return Ok(Decoded::Incomplete { needed: consumed });
        };
        let mut reader = Reader::new(payload);
        let frame = wire::read_payload(kind, name, &mut reader)?;
        reader
            .finish()
            .map_err(|source| DecodeError::Payload { frame: name, source })?;
        Ok(Decoded::Frame { frame, consumed })
    }
}

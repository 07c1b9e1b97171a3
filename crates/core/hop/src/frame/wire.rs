//! The payload of each frame: how it is written and how it is read, side by side.

use super::{
    Answer, DecodeError, Frame, GRANT_LEN_MAX, Hello, HelloOk, Incoming, LegKind, Open, PING_PADDING_MAX,
    Ping, Refusal, Register, RegisterRefused,
};
use bytes::{Bytes, BytesMut};
use fairlead_codec::{ReadError, Reader, WriteError, Writer};
use fairlead_model::{
    AssociationId, EndpointId, Generation, LegEpoch, NodeId, PolicyEpoch, ProcessBootId, RefusalCode,
    RegistrationEpoch, RelayId, Revision, RouteId, SessionId, StreamNumber,
};
use std::time::Duration;

/// Greatest software version text.
const VERSION_LEN_MAX: usize = 64;
/// Most capabilities a peer may name, and the greatest length of one.
const CAPABILITIES_MAX: usize = 32;
const CAPABILITY_LEN_MAX: usize = 64;

impl Frame {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::HelloOk(_) => kind::HELLO_OK,
            Self::Register(_) => kind::REGISTER,
            Self::Registered(_) => kind::REGISTERED,
            Self::RegisterRefused(_) => kind::REGISTER_REFUSED,
            Self::Unregister(_) => kind::UNREGISTER,
            Self::Restarting => kind::RESTARTING,
            Self::DrainNotice => kind::DRAIN_NOTICE,
            Self::Ping(_) => kind::PING,
            Self::Pong(_) => kind::PONG,
            Self::Close(_) => kind::CLOSE,
            Self::Open(_) => kind::OPEN,
            Self::Incoming(_) => kind::INCOMING,
            Self::Answer(_) => kind::ANSWER,
        }
    }

    pub(super) fn write_payload(&self, w: &mut Writer<'_, BytesMut>) -> Result<(), WriteError> {
        match self {
            Self::Hello(hello) => {
                w.u16(hello.version_min)?;
                w.u16(hello.version_max)?;
                w.raw(&hello.session.to_bytes())?;
                w.raw(&hello.process_boot.to_bytes())?;
                w.text(&hello.software, VERSION_LEN_MAX)?;
                write_capabilities(w, &hello.capabilities)
            }
            Self::HelloOk(ok) => {
                w.u16(ok.version)?;
                w.raw(&ok.session.to_bytes())?;
                w.raw(&ok.relay.to_bytes())?;
                w.raw(&ok.process_boot.to_bytes())?;
                w.u32(ok.legs_max)?;
                write_capabilities(w, &ok.capabilities)
            }
            Self::Register(register) | Self::Registered(register) | Self::Unregister(register) => {
                write_register(w, register)
            }
            Self::RegisterRefused(refused) => {
                write_register(w, &refused.register)?;
                write_refusal(w, &refused.refusal)
            }
            Self::Restarting | Self::DrainNotice => Ok(()),
            Self::Ping(ping) | Self::Pong(ping) => {
                w.u64(ping.number)?;
                w.bytes(&ping.padding, PING_PADDING_MAX)
            }
            Self::Close(code) => w.u16(code.number()),
            Self::Open(open) => {
                w.u8(open.kind.number())?;
                w.raw(&open.association.to_bytes())?;
                w.raw(&open.route.to_bytes())?;
                w.u64(open.stream.0)?;
                w.u64(open.epoch.0)?;
                w.bool(open.resume)?;
                w.bytes(&open.grant, GRANT_LEN_MAX)
            }
            Self::Incoming(incoming) => {
                w.u8(incoming.kind.number())?;
                w.raw(&incoming.association.to_bytes())?;
                w.raw(&incoming.route.to_bytes())?;
                w.u64(incoming.stream.0)?;
                w.u64(incoming.epoch.0)?;
                w.bool(incoming.resume)?;
                w.raw(&incoming.endpoint.to_bytes())?;
                w.raw(&incoming.consumer.to_bytes())?;
                w.u64(incoming.policy.0.0)?;
                w.u64(incoming.policy.1.0)
            }
            Self::Answer(Answer::Ok) => w.bool(true),
            Self::Answer(Answer::Refused(refusal)) => {
                w.bool(false)?;
                write_refusal(w, refusal)
            }
        }
    }
}

impl LegKind {
    const fn number(self) -> u8 {
        match self {
            Self::Stream => 1,
            Self::Pair => 2,
        }
    }

    fn from_number(frame: &'static str, number: u8) -> Result<Self, DecodeError> {
        match number {
            1 => Ok(Self::Stream),
            2 => Ok(Self::Pair),
            other => Err(DecodeError::Value {
                frame,
                field: "leg kind",
                value: other.into(),
            }),
        }
    }
}

fn write_capabilities(w: &mut Writer<'_, BytesMut>, capabilities: &[String]) -> Result<(), WriteError> {
    if capabilities.len() > CAPABILITIES_MAX {
        return Err(WriteError::TooLong {
            length: capabilities.len(),
            max: CAPABILITIES_MAX,
        });
    }
    w.u8(u8::try_from(capabilities.len()).unwrap_or(u8::MAX))?;
    capabilities
        .iter()
        .try_for_each(|c| w.text(c, CAPABILITY_LEN_MAX))
}

fn write_register(w: &mut Writer<'_, BytesMut>, register: &Register) -> Result<(), WriteError> {
    w.raw(&register.endpoint.to_bytes())?;
    w.u64(register.generation.0)?;
    w.u64(register.epoch.0)
}

/// A retry-after of `u32::MAX` milliseconds stands for none.
const RETRY_AFTER_NONE: u32 = u32::MAX;

fn write_refusal(w: &mut Writer<'_, BytesMut>, refusal: &Refusal) -> Result<(), WriteError> {
    w.u16(refusal.code.number())?;
    w.u32(refusal.retry_after.map_or(RETRY_AFTER_NONE, |after| {
        u32::try_from(after.as_millis())
            .unwrap_or(u32::MAX)
            .min(RETRY_AFTER_NONE - 1)
    }))
}

pub(super) fn read_payload(kind: u8, frame: &'static str, r: &mut Reader<'_>) -> Result<Frame, DecodeError> {
    let at = |source| DecodeError::Payload { frame, source };
    Ok(match kind {
        kind::HELLO => Frame::Hello(Hello {
            version_min: r.u16().map_err(at)?,
            version_max: r.u16().map_err(at)?,
            session: SessionId::from_bytes(r.array().map_err(at)?),
            process_boot: ProcessBootId::from_bytes(r.array().map_err(at)?),
            software: r.text(VERSION_LEN_MAX).map_err(at)?.to_owned(),
            capabilities: read_capabilities(frame, r)?,
        }),
        kind::HELLO_OK => Frame::HelloOk(HelloOk {
            version: r.u16().map_err(at)?,
            session: SessionId::from_bytes(r.array().map_err(at)?),
            relay: RelayId::from_bytes(r.array().map_err(at)?),
            process_boot: ProcessBootId::from_bytes(r.array().map_err(at)?),
            legs_max: r.u32().map_err(at)?,
            capabilities: read_capabilities(frame, r)?,
        }),
        kind::REGISTER => Frame::Register(read_register(r).map_err(at)?),
        kind::REGISTERED => Frame::Registered(read_register(r).map_err(at)?),
        kind::UNREGISTER => Frame::Unregister(read_register(r).map_err(at)?),
        kind::REGISTER_REFUSED => Frame::RegisterRefused(RegisterRefused {
            register: read_register(r).map_err(at)?,
            refusal: read_refusal(frame, r)?,
        }),
        kind::RESTARTING => Frame::Restarting,
        kind::DRAIN_NOTICE => Frame::DrainNotice,
        kind::PING => Frame::Ping(read_ping(r).map_err(at)?),
        kind::PONG => Frame::Pong(read_ping(r).map_err(at)?),
        kind::CLOSE => Frame::Close(read_code(frame, r)?),
        kind::OPEN => Frame::Open(Open {
            kind: LegKind::from_number(frame, r.u8().map_err(at)?)?,
            association: AssociationId::from_bytes(r.array().map_err(at)?),
            route: RouteId::from_bytes(r.array().map_err(at)?),
            stream: StreamNumber(r.u64().map_err(at)?),
            epoch: LegEpoch(r.u64().map_err(at)?),
            resume: r.bool().map_err(at)?,
            grant: Bytes::copy_from_slice(r.bytes(GRANT_LEN_MAX).map_err(at)?),
        }),
        kind::INCOMING => Frame::Incoming(Incoming {
            kind: LegKind::from_number(frame, r.u8().map_err(at)?)?,
            association: AssociationId::from_bytes(r.array().map_err(at)?),
            route: RouteId::from_bytes(r.array().map_err(at)?),
            stream: StreamNumber(r.u64().map_err(at)?),
            epoch: LegEpoch(r.u64().map_err(at)?),
            resume: r.bool().map_err(at)?,
            endpoint: EndpointId::from_bytes(r.array().map_err(at)?),
            consumer: NodeId::from_bytes(r.array().map_err(at)?),
            policy: (PolicyEpoch(r.u64().map_err(at)?), Revision(r.u64().map_err(at)?)),
        }),
        kind::ANSWER => Frame::Answer(if r.bool().map_err(at)? {
            Answer::Ok
        } else {
            Answer::Refused(read_refusal(frame, r)?)
        }),
        other => return Err(DecodeError::Kind(other)),
    })
}

fn read_register(r: &mut Reader<'_>) -> Result<Register, ReadError> {
    Ok(Register {
        endpoint: EndpointId::from_bytes(r.array()?),
        generation: Generation(r.u64()?),
        epoch: RegistrationEpoch(r.u64()?),
    })
}

fn read_ping(r: &mut Reader<'_>) -> Result<Ping, ReadError> {
    Ok(Ping {
        number: r.u64()?,
        padding: Bytes::copy_from_slice(r.bytes(PING_PADDING_MAX)?),
    })
}

/// A code of a later version is kept from being an error: the refusal stands, its reason does not.
fn read_code(frame: &'static str, r: &mut Reader<'_>) -> Result<RefusalCode, DecodeError> {
    let number = r.u16().map_err(|source| DecodeError::Payload { frame, source })?;
    Ok(RefusalCode::from_number(number).unwrap_or(RefusalCode::Internal))
}

fn read_refusal(frame: &'static str, r: &mut Reader<'_>) -> Result<Refusal, DecodeError> {
    let code = read_code(frame, r)?;
    let retry_after_ms = r.u32().map_err(|source| DecodeError::Payload { frame, source })?;
    Ok(Refusal {
        code,
        retry_after: (retry_after_ms != RETRY_AFTER_NONE)
            .then(|| Duration::from_millis(retry_after_ms.into())),
    })
}

fn read_capabilities(frame: &'static str, r: &mut Reader<'_>) -> Result<Vec<String>, DecodeError> {
    let at = |source| DecodeError::Payload { frame, source };
    let count = r.u8().map_err(at)?;
    if usize::from(count) > CAPABILITIES_MAX {
        return Err(DecodeError::Value {
            frame,
            field: "a count of capabilities of",
            value: count.into(),
        });
    }
    (0..count)
        .map(|_| r.text(CAPABILITY_LEN_MAX).map(str::to_owned).map_err(at))
        .collect()
}

/// Numbers of the kinds. Never reused.
pub(super) mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const HELLO_OK: u8 = 2;
    pub(super) const REGISTER: u8 = 3;
    pub(super) const REGISTERED: u8 = 4;
    pub(super) const REGISTER_REFUSED: u8 = 5;
    pub(super) const UNREGISTER: u8 = 6;
    pub(super) const RESTARTING: u8 = 7;
    pub(super) const DRAIN_NOTICE: u8 = 8;
    pub(super) const PING: u8 = 9;
    pub(super) const PONG: u8 = 10;
    pub(super) const CLOSE: u8 = 11;
    pub(super) const OPEN: u8 = 16;
    pub(super) const INCOMING: u8 = 17;
    pub(super) const ANSWER: u8 = 18;

    /// The name of a known kind.
    pub(in crate::frame) const fn name(kind: u8) -> Option<&'static str> {
        Some(match kind {
            HELLO => "HELLO",
            HELLO_OK => "HELLO_OK",
            REGISTER => "REGISTER",
            REGISTERED => "REGISTERED",
            REGISTER_REFUSED => "REGISTER_REFUSED",
            UNREGISTER => "UNREGISTER",
            RESTARTING => "RESTARTING",
            DRAIN_NOTICE => "DRAIN_NOTICE",
            PING => "PING",
            PONG => "PONG",
            CLOSE => "CLOSE",
            OPEN => "OPEN",
            INCOMING => "INCOMING",
            ANSWER => "ANSWER",
            _ => return None,
        })
    }
}

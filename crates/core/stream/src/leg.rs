//! One leg of a stream: its keys, its state, and the records that arrive in pieces.

use crate::attach::AttachRules;
use crate::event::LegFault;
use crate::frame::SALT_BYTES;
use crate::record::{HEADER_BYTES, Opener, Sealer, TAG_BYTES, record_length};
use crate::secret::{Direction, StreamSecret};
use crate::send::Span;
use bytes::{Bytes, BytesMut};
use fairlead_model::{LegEpoch, MonoTime, RefusalCode, RelayId};

/// Most raw bytes that are kept of a leg whose ATTACH waits for its verdict: what one turn of a
/// daemon's loop may read of a resume's flight before the verdict is asked for.
pub(crate) const HELD_BYTES_MAX: usize = 512 * 1024;

/// A leg's name at either end. A relay tells the acceptor of legs as it likes: what it says of an epoch
/// takes that epoch from no other relay's leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegName {
    /// The leg's epoch.
    pub epoch: LegEpoch,
    /// The relay that it runs over.
    pub relay: RelayId,
}

/// Where a leg runs, and this end's salt for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegPath {
    /// The leg's epoch, as in its OPEN or INCOMING.
    pub epoch: LegEpoch,
    /// The relay that this end's hop session proved to run over, from its certificate: an ATTACH
    /// that names another one is refused, so no relay can redirect a leg.
    pub relay: RelayId,
    /// 16 fresh random bytes for this leg.
    pub salt: [u8; SALT_BYTES],
}

impl LegPath {
    /// The leg's name.
    #[must_use]
    pub const fn name(&self) -> LegName {
        LegName {
            epoch: self.epoch,
            relay: self.relay,
        }
    }
}

/// Why a dialler opens a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachKind {
    /// The stream's first leg, or one after a loss or on suspicion: it carries data at once, before
    /// any answer, and both ends send again what is not acknowledged.
    Resend,
    /// A planned move: new bytes go on the leg once it is attached, nothing is sent again.
    Planned,
}

/// What a verified ATTACH said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) next: u64,
    pub(crate) limit: u64,
    pub(crate) resend: bool,
}

/// How far a leg has come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LegState {
    /// Dialler: no answer to the ATTACH; `sent` says when it went out.
    Attaching {
        kind: AttachKind,
        sent: Option<MonoTime>,
    },
    /// Acceptor: nothing was verified, so nothing is sealed.
    AwaitAttach,
    /// Acceptor: an ATTACH was verified; the caller decides.
    AwaitVerdict(Claim),
    /// Acceptor: the refusal is to be sent, once; then the leg is over.
    Refusing(Option<RefusalCode>),
    /// Live. `ok_due`: the acceptor's ATTACH_OK is to be sent.
    Attached { ok_due: bool },
}

pub(crate) struct Leg {
    pub(crate) epoch: LegEpoch,
    pub(crate) relay: RelayId,
    /// The relay that the keys are bound to.
    key_relay: RelayId,
    pub(crate) state: LegState,
    /// This end's salt, until it is sent.
    pub(crate) salt: Option<[u8; SALT_BYTES]>,
    pub(crate) sealer: Sealer,
    opener: Option<Opener>,
    /// Raw bytes of a record that is not complete; of any number of records before a verdict.
    input: BytesMut,
    /// Rest of the plaintext of the record whose ATTACH waits for its verdict.
    rest: Bytes,
    /// Covers the positions sent on this leg.
    pub(crate) sent: Option<Span>,
    pub(crate) pong: Option<u64>,
    /// A PING was asked for.
    pub(crate) ping_due: bool,
    /// A PING went out then, and no record has come since.
    pub(crate) pinged: Option<MonoTime>,
    pub(crate) detach_sent: bool,
    pub(crate) detach_received: bool,
    /// When a replaced leg is given up although not all it carried was acknowledged.
    pub(crate) retire_by: Option<MonoTime>,
}

impl Leg {
    pub(crate) fn new(
        path: LegPath,
        state: LegState,
        secret: &StreamSecret,
        out: Direction,
        rules: AttachRules,
    ) -> Self {
        let key_relay = rules.key_relay(path.relay);
        Self {
            epoch: path.epoch,
            relay: path.relay,
            key_relay,
            state,
            salt: Some(path.salt),
            sealer: Sealer::new(secret.traffic(out, path.epoch, key_relay, &path.salt)),
            opener: None,
            input: BytesMut::new(),
            rest: Bytes::new(),
            sent: None,
            pong: None,
            ping_due: false,
            pinged: None,
            detach_sent: false,
            detach_received: false,
            retire_by: None,
        }
    }

    pub(crate) const fn name(&self) -> LegName {
        LegName {
            epoch: self.epoch,
            relay: self.relay,
        }
    }

    /// Whether the acceptor has verified nothing on it.
    pub(crate) const fn is_unverified(&self) -> bool {
        matches!(self.state, LegState::AwaitAttach)
    }

    pub(crate) const fn is_attached(&self) -> bool {
        matches!(self.state, LegState::Attached { .. })
    }

    /// Attached, and this end may still send on it.
    pub(crate) const fn is_usable(&self) -> bool {
        self.is_attached() && !self.detach_sent
    }

    pub(crate) const fn awaits_verdict(&self) -> bool {
        matches!(self.state, LegState::AwaitVerdict(_))
    }

    /// Keeps raw bytes for after the verdict.
    pub(crate) fn hold(&mut self, data: &[u8]) -> Result<(), LegFault> {
        if self.input.len() + data.len() > HELD_BYTES_MAX {
            return Err(LegFault::HeldTooMuch { max: HELD_BYTES_MAX });
        }
        self.input.extend_from_slice(data);
        Ok(())
    }

    /// Keeps the rest of the ATTACH's record for after the verdict.
    pub(crate) fn hold_rest(&mut self, rest: Bytes) {
        self.rest = rest;
    }

    /// What was held: plaintext behind the ATTACH, then raw bytes.
    pub(crate) fn take_held(&mut self) -> (Bytes, BytesMut) {
        (std::mem::take(&mut self.rest), std::mem::take(&mut self.input))
    }

    /// Takes bytes off the front of `data` until a record is complete, and opens it. `None`: all of
    /// `data` is taken.
    pub(crate) fn next_record(
        &mut self,
        data: &mut &[u8],
        secret: &StreamSecret,
        from: Direction,
    ) -> Result<Option<Bytes>, LegFault> {
        let opener = match &mut self.opener {
            Some(opener) => opener,
            None => {
                self.input
                    .extend_from_slice(split(data, SALT_BYTES - self.input.len()));
                let Some(salt) = self.input.first_chunk::<SALT_BYTES>() else {
                    return Ok(None);
                };
                let secret = secret.traffic(from, self.epoch, self.key_relay, salt);
                self.input = BytesMut::new();
                self.opener.insert(Opener::new(secret))
            }
        };
        if self.input.is_empty()
            && let Some(header) = data.first_chunk::<HEADER_BYTES>()
        {
            let length = record_length(header).map_err(LegFault::Record)?;
            if data.len() >= length {
                let plain = opener.open(split(data, length)).map_err(LegFault::Record)?;
                return Ok(Some(plain.into()));
            }
            self.input.reserve(length);
        }
        if self.input.len() < HEADER_BYTES {
            self.input
                .extend_from_slice(split(data, HEADER_BYTES - self.input.len()));
        }
        let Some(header) = self.input.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = record_length(header).map_err(LegFault::Record)?;
        self.input.reserve(length - self.input.len());
        self.input
            .extend_from_slice(split(data, length - self.input.len()));
        if self.input.len() < length {
            return Ok(None);
        }
        let mut record = std::mem::take(&mut self.input);
        opener.open_in_place(&mut record).map_err(LegFault::Record)?;
        Ok(Some(record.freeze().slice(HEADER_BYTES..length - TAG_BYTES)))
    }
}

/// Takes at most `n` bytes off the front.
fn split<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, left) = data.split_at(n.min(data.len()));
    *data = left;
    taken
}

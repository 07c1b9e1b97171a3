//! The stream that an open is to become: one machine for all of its attempts, so that the publisher can tell a
//! second attempt from a second stream (I8).

use super::{OpenFailure, Stop};
use crate::association::Association;
use crate::consumer::{Consumer, Opened};
use crate::driver::LegIo;
use crate::live::{LiveGuard, LiveStream};
use crate::metrics::StreamRole;
use crate::socket::{EndSocket, is_transient};
use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::{Frame, LegKind, Open};
use fairlead_host::rng;
use fairlead_model::{RefusalCode, RelayId, StreamNumber, TunnelId};
use fairlead_stream::{AttachKind, LegName, LegPath, Stream, TRANSMIT_BATCH};
use fairlead_trust::Consumption;
use std::sync::Arc;

/// First bytes of a stream that may ride in the flight of its ATTACH: one record.
const EARLY_BYTES_MAX: usize = 16 * 1024;

/// A stream without a leg that was answered.
pub(super) struct NewStream<'a> {
    consumer: &'a Consumer,
    consumption: &'a Consumption,
    socket: &'a EndSocket,
    machine: Option<Machine>,
    /// What was read from the application already.
    early: Vec<u8>,
    /// An attempt that carried bytes of the application ended without an answer.
    ambiguous: bool,
    /// One that carried none did: the machine's number may be used.
    doubted: bool,
}

/// The stream's machine and its number; made anew only with another association.
struct Machine {
    stream: Stream,
    number: StreamNumber,
    association: Arc<Association>,
    guard: LiveGuard,
}

impl<'a> NewStream<'a> {
    /// Nothing is read of `socket` yet.
    pub(super) const fn new(
        consumer: &'a Consumer,
        consumption: &'a Consumption,
        socket: &'a EndSocket,
    ) -> Self {
        Self {
            consumer,
            consumption,
            socket,
            machine: None,
            early: Vec::new(),
            ambiguous: false,
            doubted: false,
        }
    }

    /// The association that the stream belongs to, while it has a machine.
    pub(super) fn association(&self) -> Option<&Arc<Association>> {
        self.machine.as_ref().map(|machine| &machine.association)
    }

    /// The stream's name at the relays, likewise.
    pub(super) fn tunnel(&self) -> Option<TunnelId> {
        self.machine.as_ref().map(|machine| TunnelId {
            association: machine.association.id(),
            stream: machine.number,
        })
    }

    /// Whether it may be begun anew under another association. `asking`: legs of it wait for their answers, and
    /// may have brought bytes of the application to the publisher.
    pub(super) const fn may_begin_anew(&self, asking: bool) -> bool {
        self.machine.is_some() && (self.early.is_empty() || !asking)
    }

    /// Gives up the machine for one of another association. Legs that wait for their answers are of the machine
    /// that goes.
    pub(super) fn begin_anew(&mut self) -> Result<(), Stop> {
        if self.ambiguous {
            return Err(Stop::Final(OpenFailure::Ambiguous));
        }
        self.machine = None;
        Ok(())
    }

    /// A leg in the stream's machine, which is made of `association` if there is none: its OPEN, its ATTACH, and
    /// what the application has said.
    pub(super) fn flight(
        &mut self,
        association: Arc<Association>,
        grant: &Bytes,
        relay: RelayId,
    ) -> Result<(LegName, Bytes), Stop> {
        let mut machine = match self.machine.take() {
            Some(machine) => machine,
            None => self.machine(association, grant)?,
        };
        // Asked after the stream is listed as live: a revocation finds it either here or there.
        if !self.consumer.view.borrow().consumes(self.consumption.route) {
            return Err(Stop::Final(OpenFailure::Refused(RefusalCode::Revoked)));
        }
        self.early = read_early(self.socket, &mut machine.stream, std::mem::take(&mut self.early))?;
        let epoch = machine.stream.next_epoch();
        let open = Frame::Open(Open {
            kind: LegKind::Stream,
            association: machine.association.id(),
            route: self.consumption.route,
            stream: machine.number,
            epoch,
            resume: false,
            grant: grant.clone(),
        });
        let path = LegPath {
            epoch,
            relay,
            salt: rng::bytes(),
        };
        let internal = Stop::Final(OpenFailure::Refused(RefusalCode::Internal));
        machine
            .stream
            .open_leg(path, AttachKind::Resend)
            .map_err(|_| internal)?;
        let mut flight = BytesMut::new();
        let now = self.consumer.clock.mono();
        if open.encode(&mut flight).is_err() {
            return Err(Stop::Final(OpenFailure::Refused(RefusalCode::BadGrant)));
        }
        while machine
            .stream
            .poll_transmit(path.name(), now, &mut flight, TRANSMIT_BATCH)
            > 0
        {}
        self.machine = Some(machine);
        Ok((path.name(), flight.freeze()))
    }

    fn machine(&self, association: Arc<Association>, grant: &Bytes) -> Result<Machine, Stop> {
        let guard = self.consumer.live.enter(LiveStream {
            role: StreamRole::Consumer,
            route: self.consumption.route,
            peer: self.consumption.publisher,
            peer_boot: association.peer_boot(),
        });
        let guard = guard.ok_or(Stop::Final(OpenFailure::Full))?;
        let (number, secret) = association.new_stream(self.consumption.route, self.consumer.kind);
        let bad_grant = Stop::Final(OpenFailure::Refused(RefusalCode::BadGrant));
        let mut stream =
            Stream::dial(self.consumer.stream_config, secret, grant.clone()).map_err(|_| bad_grant)?;
        guard.begin(&mut stream);
        stream.write(&self.early);
        Ok(Machine {
            stream,
            number,
            association,
            guard,
        })
    }

    /// A leg is lost. `answered`: by a refusal, so that nothing of it can have begun a stream. `asking`: others
    /// wait for their answers.
    pub(super) fn lost(&mut self, leg: LegName, answered: bool, asking: bool) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        machine.stream.leg_lost(leg, self.consumer.clock.mono());
        self.ambiguous |= !answered && !self.early.is_empty();
        // Without bytes of the application a second stream does no harm, while the first, if it did
        // arrive, would make the publisher refuse its own number.
        self.doubted |= !answered && self.early.is_empty();
        if self.doubted && self.early.is_empty() && !asking {
            self.machine = None;
            self.doubted = false;
        }
    }

    /// The stream, with the leg that was answered; `others` are given up.
    pub(super) fn opened(&mut self, leg: LegIo, others: impl Iterator<Item = LegName>) -> Option<Opened> {
        let mut machine = self.machine.take()?;
        let now = self.consumer.clock.mono();
        for other in others {
            machine.stream.leg_lost(other, now);
        }
        Some(Opened {
            stream: machine.stream,
            leg,
            association: machine.association,
            number: machine.number,
            guard: machine.guard,
            taken: !self.early.is_empty(),
        })
    }
}

/// Takes what the application has said already, once.
fn read_early(socket: &EndSocket, stream: &mut Stream, early: Vec<u8>) -> Result<Vec<u8>, Stop> {
    if !early.is_empty() {
        return Ok(early);
    }
    let mut buffer = vec![0; EARLY_BYTES_MAX];
    match socket.try_read(&mut buffer) {
        Ok(count) => {
            // None of them is EOF, which is left to the driver: it will read it again.
            buffer.truncate(count);
            stream.write(&buffer);
            Ok(buffer)
        }
        Err(error) if is_transient(&error) => Ok(Vec::new()),
        Err(_) => Err(Stop::Final(OpenFailure::Gone)),
    }
}

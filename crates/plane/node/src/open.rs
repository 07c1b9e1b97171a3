//! Opens a stream for an application's connection.
//!
//! An open tries the connected relays of its route one after the other; what the answer's class
//! says decides what comes next (R-ADM-05). While no relay can take it, a connection is held for a
//! short time: latency, not an error (R-NOD-02).

use crate::association::{Association, LEG_WAIT_MAX, PairRequest};
use crate::attempt::{AttemptError, answer};
use crate::consumer::{Consumer, Opened};
use crate::driver::{LegIo, Via};
use crate::live::{LiveGuard, LiveStream};
use crate::metrics::StreamRole;
use crate::relays::{Session, Sessions};
use crate::socket::{EndSocket, is_transient};
use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::{Frame, LegKind, Open};
use fairlead_host::rng;
use fairlead_model::{AssociationId, RefusalCode, RelayId, RetryClass, StreamNumber, TunnelId};
use fairlead_stream::{AttachKind, LegPath, Stream, TRANSMIT_BATCH};
use fairlead_telemetry::chain;
use fairlead_trust::Consumption;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a connection is held while a relay or the publisher returns (R-NOD-02).
pub(crate) const HOLD: Duration = Duration::from_secs(3);
/// How long while the publisher has announced its return (R-ADM-03).
const HOLD_RESTARTING: Duration = Duration::from_secs(15);
/// First wait between rounds over the relays, and the longest.
const ROUND_WAIT_FIRST: Duration = Duration::from_millis(50);
const ROUND_WAIT_LONGEST: Duration = Duration::from_millis(400);
/// Rounds that are made in any case.
const ROUNDS_MIN: u32 = 2;
/// How long an answer may take while another relay could be asked. One that falls silent is given
/// up sooner.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long it may take of the only relay: it holds an open for a late policy for 10 s (R-POL-10).
const ANSWER_WAIT_ALONE: Duration = Duration::from_secs(12);
/// How long a handshake may take while another relay could be asked.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(1);
/// First bytes of a stream that may ride in the flight of its ATTACH: one record.
const EARLY_BYTES_MAX: usize = 16 * 1024;

/// Why no stream was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// Refused for good, or until the hold ended.
    Refused(RefusalCode),
    /// No relay of the route was connected.
    NoRelay,
    /// The node holds no valid grant.
    NoGrant,
    /// The daemon has as many streams as it may.
    Full,
    /// The application went away.
    Gone,
    /// An attempt ended without an answer after bytes of the application had been sent; a second
    /// one could deliver them twice.
    Ambiguous,
}

impl OpenFailure {
    /// One sentence for people.
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Refused(code) => code.message(),
            Self::NoRelay => "no relay of the route is connected",
            Self::NoGrant => "the node holds no valid grant for the route",
            Self::Full => "the daemon has as many streams as it may",
            Self::Gone => "the application went away",
            Self::Ambiguous => "an attempt ended without an answer after bytes were sent",
        }
    }

    /// The stable name, in labels and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Refused(code) => code.as_str(),
            Self::NoRelay => "NO_RELAY",
            Self::NoGrant => "NO_GRANT",
            Self::Full => "TOO_MANY_STREAMS",
            Self::Gone => "APPLICATION_GONE",
            Self::Ambiguous => "NO_ANSWER",
        }
    }
}

/// What an attempt's failure means for the open.
enum Stop {
    /// It is over.
    Final(OpenFailure),
    /// A relay says that it is over. It may lie: it is if all others say so too.
    Said(OpenFailure),
    /// Another relay, or another round after this long.
    Next(Option<Duration>),
}

/// An application's connection on its way to a stream.
pub(crate) struct Opening<'a> {
    consumer: &'a Consumer,
    consumption: &'a Consumption,
    socket: &'a EndSocket,
    machine: Option<Machine>,
    /// What was read from the application already.
    early: Vec<u8>,
    ambiguous: bool,
    failure: OpenFailure,
    /// A relay has said that the publisher announced its restart.
    announced: bool,
    started: Instant,
    hold_until: Instant,
}

/// The stream's machine and its number; made anew only with another association.
struct Machine {
    stream: Stream,
    number: StreamNumber,
    association: Arc<Association>,
    guard: LiveGuard,
}

impl<'a> Opening<'a> {
    /// An open of the connection that came at `started`.
    pub(crate) fn new(
        consumer: &'a Consumer,
        consumption: &'a Consumption,
        socket: &'a EndSocket,
        started: Instant,
    ) -> Self {
        Self {
            consumer,
            consumption,
            socket,
            machine: None,
            early: Vec::new(),
            ambiguous: false,
            failure: OpenFailure::NoRelay,
            announced: false,
            started,
            hold_until: started + HOLD,
        }
    }

    /// Rounds over the relays until one answers, a refusal is final, or the hold ends.
    pub(crate) async fn run(mut self) -> Result<Opened, OpenFailure> {
        self.open().await
    }

    async fn open(&mut self) -> Result<Opened, OpenFailure> {
        let mut sessions = self.consumer.relays.subscribe();
        let mut view = self.consumer.view.clone();
        let mut wait = ROUND_WAIT_FIRST;
        for round in 1.. {
            sessions.mark_unchanged();
            view.mark_unchanged();
            let retry_after = match self.round().await {
                Ok(opened) => return Ok(opened),
                Err(Stop::Final(failure) | Stop::Said(failure)) => return Err(failure),
                Err(Stop::Next(after)) => after.unwrap_or(wait),
            };
            let now = Instant::now();
            // One round is no attempt to hold: a publisher that was killed may be back, and all
            // that the relay knew of it was that it did not answer.
            if now >= self.hold_until && round >= ROUNDS_MIN {
                return Err(self.failure);
            }
            let latest = self.hold_until.max(now + ROUND_WAIT_FIRST);
            tokio::select! {
                () = tokio::time::sleep_until((now + retry_after).min(latest)) => {}
                changed = sessions.changed() => if changed.is_err() { return Err(self.failure) },
                changed = view.changed() => if changed.is_err() { return Err(self.failure) },
            }
            wait = (wait * 2).min(ROUND_WAIT_LONGEST);
        }
        Err(self.failure)
    }

    /// Asks each connected relay once.
    async fn round(&mut self) -> Result<Opened, Stop> {
        let Some(grant) = self.grant() else {
            self.failure = OpenFailure::NoGrant;
            return Err(Stop::Next(None));
        };
        let candidates = self.candidates();
        if candidates.is_empty() {
            self.failure = OpenFailure::NoRelay;
        }
        let limit = if candidates.len() > 1 {
            ANSWER_WAIT
        } else {
            ANSWER_WAIT_ALONE
        };
        let mut retry_after = None;
        let mut said = Vec::new();
        let asked = candidates.len();
        for (relay, session) in candidates {
            match self.attempt(relay, &session, &grant, limit).await {
                Ok(opened) => return Ok(opened),
                Err(Stop::Final(failure)) => return Err(Stop::Final(failure)),
                Err(Stop::Said(failure)) => said.push(failure),
                Err(Stop::Next(after)) => retry_after = after.or(retry_after),
            }
        }
        match said.first() {
            Some(failure) if said.len() == asked => Err(Stop::Final(*failure)),
            Some(_) | None => Err(Stop::Next(retry_after)),
        }
    }

    /// The signed grant, if it holds by this node's clock.
    fn grant(&self) -> Option<Bytes> {
        let view = self.consumer.view.borrow().clone();
        let grant = view.grant(self.consumption.route)?;
        let ended = self.consumer.clock.wall() > grant.not_after.plus(fairlead_trust::grant::CLOCK_SKEW_MAX);
        (!ended).then(|| grant.envelope().clone())
    }

    /// The connected relays of the route, in the order to ask them: each stream begins with
    /// another one, those that drain come last, and behind them those that are silent.
    fn candidates(&self) -> Vec<(RelayId, Session)> {
        let sessions = self.consumer.relays.sessions();
        let relays = &self.consumption.relays;
        let turn = self.consumer.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn.checked_rem(relays.len()).unwrap_or(0);
        let in_turn = relays.iter().cycle().skip(start).take(relays.len());
        let mut found: Vec<(RelayId, Session)> = in_turn
            .filter_map(|relay| sessions.get(relay).map(|session| (*relay, session.clone())))
            .collect();
        found.sort_by_key(|(_, session)| (session.doubt, session.draining));
        found
    }

    /// One attempt through one relay; a second one with a new association if the publisher has
    /// lost the old.
    async fn attempt(
        &mut self,
        relay: RelayId,
        session: &Session,
        grant: &Bytes,
        limit: Duration,
    ) -> Result<Opened, Stop> {
        let mut error = match self.once(relay, session, grant, limit, None).await? {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        if error.code() == RefusalCode::UnknownAssociation
            && let Some(machine) = &self.machine
        {
            let unknown = Some(machine.association.id());
            error = match self.once(relay, session, grant, limit, unknown).await? {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
        }
        let tunnel = self.machine.as_ref().map(|machine| {
            tracing::field::display(TunnelId {
                association: machine.association.id(),
                stream: machine.number,
            })
        });
        tracing::debug!(tunnel, %relay, route = %self.consumption.route, error = chain(&*error), "open failed");
        Err(self.judge(&error))
    }

    fn judge(&mut self, error: &AttemptError) -> Stop {
        let code = error.code();
        if code == RefusalCode::EndpointRestarting {
            // Its retry-after is the latest time, not the likely one: the publisher is asked for in
            // every round.
            self.hold_until = self.hold_until.max(self.started + HOLD_RESTARTING);
            self.announced = true;
            self.failure = OpenFailure::Refused(code);
            return Stop::Next(None);
        }
        // A relay forgets the announcement when its time is over, and others never heard of it: what
        // the open came to nothing for is the restart (F-08).
        self.failure = OpenFailure::Refused(match code {
            RefusalCode::NotRegistered if self.announced => RefusalCode::EndpointRestarting,
            code => code,
        });
        match error.class() {
            RetryClass::Never => Stop::Said(self.failure),
            RetryClass::Elsewhere => Stop::Next(None),
            RetryClass::Wait => Stop::Next(error.refusal().and_then(|r| r.retry_after)),
        }
    }

    /// Sends OPEN, ATTACH and what the application has said in one flight, and waits for the
    /// answer.
    async fn once(
        &mut self,
        relay: RelayId,
        session: &Session,
        grant: &Bytes,
        limit: Duration,
        unknown: Option<AssociationId>,
    ) -> Result<Result<Opened, Arc<AttemptError>>, Stop> {
        let request = PairRequest {
            publisher: self.consumption.publisher,
            route: self.consumption.route,
            grant: grant.clone(),
            session: session.clone(),
            unknown,
        };
        let wait = if limit == ANSWER_WAIT {
            HANDSHAKE_WAIT
        } else {
            limit
        };
        let association = match tokio::time::timeout(wait, self.consumer.associations.get(&request)).await {
            Ok(Ok(association)) => association,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(_) => return Ok(Err(AttemptError::Timeout(wait).into())),
        };
        let mut machine = self.machine(association, grant)?;
        // Asked after the stream is listed as live: a revocation finds it either here or there.
        if !self.consumer.view.borrow().consumes(self.consumption.route) {
            return Err(Stop::Final(OpenFailure::Refused(RefusalCode::Revoked)));
        }
        match self.exchange(&mut machine, relay, session, grant, limit).await? {
            Ok(leg) => Ok(Ok(Opened {
                stream: machine.stream,
                leg,
                association: machine.association,
                number: machine.number,
                guard: machine.guard,
                taken: !self.early.is_empty(),
            })),
            Err(error) => {
                // A relay that got no answer of the publisher does not know what arrived there.
                let answered = error.code() != RefusalCode::PublisherUnreachable;
                self.ambiguous |= !answered && !self.early.is_empty();
                // Without bytes of the application a second stream does no harm, while the first,
                // if it did arrive, would make the publisher refuse its own number.
                if answered || !self.early.is_empty() {
                    self.machine = Some(machine);
                }
                Ok(Err(Arc::new(error)))
            }
        }
    }

    /// The stream's machine: the same one for every attempt under one association, so that the
    /// publisher can tell a second attempt from a second stream.
    fn machine(&mut self, association: Arc<Association>, grant: &Bytes) -> Result<Machine, Stop> {
        if let Some(machine) = self.machine.take() {
            if machine.association.id() == association.id() {
                return Ok(machine);
            }
            if self.ambiguous {
                return Err(Stop::Final(OpenFailure::Ambiguous));
            }
        }
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

    async fn exchange(
        &mut self,
        machine: &mut Machine,
        relay: RelayId,
        session: &Session,
        grant: &Bytes,
        limit: Duration,
    ) -> Result<Result<LegIo, AttemptError>, Stop> {
        let clock = &self.consumer.clock;
        let mut leg = match tokio::time::timeout(LEG_WAIT_MAX, session.carrier.open_leg()).await {
            Ok(Ok(leg)) => leg,
            Ok(Err(end)) => return Ok(Err(AttemptError::Leg(end))),
            Err(_) => return Ok(Err(AttemptError::LegTimeout)),
        };
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
        let now = clock.mono();
        if open.encode(&mut flight).is_err() {
            return Err(Stop::Final(OpenFailure::Refused(RefusalCode::BadGrant)));
        }
        while machine
            .stream
            .poll_transmit(path.name(), now, &mut flight, TRANSMIT_BATCH)
            > 0
        {}
        let answered = async {
            leg.send
                .write_all_chunks(&mut [flight.freeze()])
                .await
                .map_err(AttemptError::Send)?;
            let elsewhere = gone_silent(self.consumer.relays.subscribe(), relay, session.number);
            tokio::select! {
                answered = answer(&mut leg, limit) => answered,
                () = elsewhere, if limit == ANSWER_WAIT => Err(AttemptError::Silent),
            }
        }
        .await;
        Ok(match answered {
            Ok(()) => {
                let session = session.number;
                Ok(LegIo::new(leg, epoch, Via { relay, session }))
            }
            Err(error) => {
                machine.stream.leg_lost(path.name(), clock.mono());
                Err(error)
            }
        })
    }
}

/// Waits until the session is over or its relay is not heard of.
async fn gone_silent(mut sessions: watch::Receiver<Sessions>, relay: RelayId, number: u32) {
    let gone = |sessions: &Sessions| {
        let session = sessions.get(&relay).filter(|s| s.number == number);
        session.is_none_or(|s| s.doubt.any())
    };
    // An error is the end of the daemon.
    let _ = sessions.wait_for(gone).await;
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

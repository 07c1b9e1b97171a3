//! Opens a stream for an application's connection.
//!
//! An open tries the connected relays of its route one after the other, and another one beside one that
//! does not answer ([`asking`]); what the answer's class says decides what comes next (R-ADM-05). While no
//! relay can take it, a connection is held for a short time: latency, not an error (R-NOD-02).

mod asking;
mod attempt;
mod unanswered;

use crate::association::{Association, PairRequest};
use crate::attempt::AttemptError;
use crate::consumer::{Consumer, Opened};
use crate::driver::{LegIo, Via};
use crate::live::{LiveGuard, LiveStream};
use crate::metrics::StreamRole;
use crate::paths::Path;
use crate::relays::Session;
use crate::socket::{EndSocket, is_transient};
use asking::{Asking, Next};
use attempt::{Asked, Attempts, Progress};
use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::{Frame, LegKind, Open};
use fairlead_host::rng;
use fairlead_model::{MonoTime, RefusalCode, RelayId, RetryClass, StreamNumber, TunnelId};
use fairlead_stream::{AttachKind, LegName, LegPath, Stream, TRANSMIT_BATCH};
use fairlead_telemetry::chain;
use fairlead_trust::Consumption;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
pub(crate) use unanswered::Unanswered;

/// How long a connection is held while a relay or the publisher returns (R-NOD-02).
pub(crate) const HOLD: Duration = Duration::from_secs(3);
/// How long while the publisher has announced its return (R-ADM-03).
const HOLD_RESTARTING: Duration = Duration::from_secs(15);
/// First wait between rounds over the relays, and the longest.
const ROUND_WAIT_FIRST: Duration = Duration::from_millis(50);
const ROUND_WAIT_LONGEST: Duration = Duration::from_millis(400);
/// Rounds that are made in any case.
const ROUNDS_MIN: u32 = 2;
/// How long an answer may take where several relays are asked. One that falls silent is given up sooner.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long it may take of the only relay: it holds an open for a late policy for 10 s (R-POL-10).
const ANSWER_WAIT_ALONE: Duration = Duration::from_secs(12);
/// Wait after the daemon's ration of suspicions was found used up.
const RATION_WAIT: Duration = Duration::from_millis(125);
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
    /// An attempt that carried bytes of the application ended without an answer.
    ambiguous: bool,
    /// One that carried none did: the machine's number may be used.
    doubted: bool,
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

/// Once over the relays.
struct Round {
    /// In the order to ask them.
    candidates: Vec<(RelayId, Session)>,
    grant: Bytes,
    /// How long an answer may take.
    limit: Duration,
    asking: Asking,
    attempts: Attempts,
    /// Candidates that have said that the publisher does not know the association, and are asked again with
    /// another one. The others go on with the one that there is: it may be good.
    renewed: BTreeSet<usize>,
    retry_after: Option<Duration>,
    said: Vec<OpenFailure>,
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
            doubted: false,
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

    /// Asks each connected relay once, beside one that does not answer the next.
    async fn round(&mut self) -> Result<Opened, Stop> {
        let Some(grant) = self.grant() else {
            self.failure = OpenFailure::NoGrant;
            return Err(Stop::Next(None));
        };
        let candidates = self.candidates();
        if candidates.is_empty() {
            self.failure = OpenFailure::NoRelay;
        }
        let mut round = Round {
            limit: if candidates.len() > 1 {
                ANSWER_WAIT
            } else {
                ANSWER_WAIT_ALONE
            },
            asking: Asking::new(candidates.len()),
            attempts: Attempts::default(),
            renewed: BTreeSet::new(),
            candidates,
            grant,
            retry_after: None,
            said: Vec::new(),
        };
        let clock = self.consumer.clock.clone();
        loop {
            let now = clock.mono();
            let wait = match round.asking.next(now) {
                Next::Ask(candidate) => {
                    if self.may_ask(&round, now) {
                        self.begin(&mut round, candidate, now);
                    } else {
                        let again = RATION_WAIT + rng::jitter(RATION_WAIT);
                        round.asking.postpone(now.plus(again));
                    }
                    continue;
                }
                Next::GiveUp(candidate) => {
                    if let Some(leg) = round.attempts.give_up(candidate) {
                        self.lost(&round, leg, false);
                    }
                    round.asking.ended(candidate);
                    continue;
                }
                Next::WaitUntil(at) => Some(at.since(now)),
                Next::Wait => None,
                Next::Over => break,
            };
            let late = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                (candidate, progress) = round.attempts.next() => {
                    if let Some(opened) = self.progress(&mut round, candidate, progress)? {
                        return Ok(opened);
                    }
                }
                () = late => {}
            }
        }
        match round.said.first() {
            Some(failure) if round.said.len() == round.candidates.len() => Err(Stop::Final(*failure)),
            Some(_) | None => Err(Stop::Next(round.retry_after)),
        }
    }

    /// The signed grant, if it holds by this node's clock.
    fn grant(&self) -> Option<Bytes> {
        let view = self.consumer.view.borrow().clone();
        let grant = view.grant(self.consumption.route)?;
        let ended = self.consumer.clock.wall() > grant.not_after.plus(fairlead_trust::grant::CLOCK_SKEW_MAX);
        (!ended).then(|| grant.envelope().clone())
    }

    /// The connected relays of the route, in the order to ask them: each stream begins with another one,
    /// those that let opens go unanswered come behind, those that drain behind them, and last those that
    /// are silent.
    fn candidates(&self) -> Vec<(RelayId, Session)> {
        let sessions = self.consumer.relays.sessions();
        let relays = &self.consumption.relays;
        let turn = self.consumer.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn.checked_rem(relays.len()).unwrap_or(0);
        let in_turn = relays.iter().cycle().skip(start).take(relays.len());
        let mut found: Vec<(RelayId, Session)> = in_turn
            .filter_map(|relay| sessions.get(relay).map(|session| (*relay, session.clone())))
            .collect();
        let now = self.consumer.clock.mono();
        found.sort_by_key(|(relay, session)| {
            let unanswered = self.consumer.unanswered.is_noted(*relay, session.number, now);
            (session.doubt, session.draining, unanswered)
        });
        found
    }

    /// Whether another relay may be asked beside those that do not answer: by the daemon's ration of
    /// suspicions, so that a host that is slow for all asks for nothing twice, except where one of them is
    /// known to let opens go unanswered, or its path to answer nobody.
    fn may_ask(&self, round: &Round, now: MonoTime) -> bool {
        let mut waiting = round.asking.waiting().peekable();
        if waiting.peek().is_none() {
            return true;
        }
        let (paths, unanswered) = (&self.consumer.paths, &self.consumer.unanswered);
        let mut silent = waiting
            .filter_map(|n| round.candidates.get(n))
            .filter(|(relay, session)| {
                let path = self.path(*relay, session);
                unanswered.is_noted(*relay, session.number, now) || paths.proven(path, now).is_none()
            });
        silent.next().is_some() || paths.may_suspect(now)
    }

    const fn path(&self, relay: RelayId, session: &Session) -> Path {
        Path {
            publisher: self.consumption.publisher,
            relay,
            session: session.number,
        }
    }

    /// Begins an attempt through a candidate: with the association that the stream's machine has, while it
    /// has one.
    fn begin(&self, round: &mut Round, candidate: usize, now: MonoTime) {
        let Some((relay, session)) = round.candidates.get(candidate) else {
            return;
        };
        let association = self.machine.as_ref().map(|machine| &machine.association);
        let is_unknown = round.renewed.contains(&candidate);
        let unknown = association.filter(|_| is_unknown).map(|unknown| unknown.id());
        let request = PairRequest {
            publisher: self.consumption.publisher,
            route: self.consumption.route,
            grant: round.grant.clone(),
            session: session.clone(),
            unknown,
        };
        let rtt = self.consumer.paths.proven(self.path(*relay, session), now);
        let known = association.filter(|_| !is_unknown).cloned();
        let associations = self.consumer.associations.clone();
        round
            .attempts
            .reach(candidate, known, associations, request, round.limit);
        round.asking.asked(candidate, rtt, now);
    }

    /// An attempt has come further: to its OPEN, to a stream, or to its end.
    fn progress(
        &mut self,
        round: &mut Round,
        candidate: usize,
        progress: Progress,
    ) -> Result<Option<Opened>, Stop> {
        let Some((relay, session)) = round.candidates.get(candidate).cloned() else {
            return Ok(None);
        };
        let error = match progress {
            Progress::Reached(Ok((association, leg))) => {
                let (name, flight) = self.flight(round, candidate, association, relay)?;
                let asked = Asked {
                    name,
                    flight,
                    session: session.number,
                    limit: round.limit,
                };
                round.attempts.ask(candidate, asked, leg, &self.consumer.relays);
                return Ok(None);
            }
            Progress::Answered(name, Ok(leg)) => {
                let session = session.number;
                let leg = LegIo::new(leg, name.epoch, Via { relay, session });
                return Ok(self.opened(round, leg));
            }
            Progress::Reached(Err(error)) => error,
            Progress::Answered(name, Err(error)) => {
                // A relay that got no answer of the publisher does not know what arrived there.
                let answered = error.code() != RefusalCode::PublisherUnreachable;
                self.lost(round, name, answered);
                error
            }
        };
        round.asking.ended(candidate);
        if error.code() == RefusalCode::UnknownAssociation && self.renew(round, candidate) {
            self.begin(round, candidate, self.consumer.clock.mono());
            return Ok(None);
        }
        let tunnel = self.machine.as_ref().map(|machine| {
            tracing::field::display(TunnelId {
                association: machine.association.id(),
                stream: machine.number,
            })
        });
        tracing::debug!(tunnel, %relay, route = %self.consumption.route, error = chain(&*error), "open failed");
        match self.judge(&error) {
            Stop::Final(failure) => return Err(Stop::Final(failure)),
            Stop::Said(failure) => round.said.push(failure),
            Stop::Next(after) => round.retry_after = after.or(round.retry_after),
        }
        Ok(None)
    }

    /// Whether the candidate is asked once more, with a new association: the publisher has lost the old, as
    /// the relay says. Not while other legs may have brought bytes of the application to it.
    fn renew(&self, round: &mut Round, candidate: usize) -> bool {
        let may = self.machine.is_some() && (self.early.is_empty() || !round.attempts.is_asking());
        may && round.renewed.insert(candidate)
    }

    /// A leg is lost. `answered`: by a refusal, so that nothing of it can have begun a stream.
    fn lost(&mut self, round: &Round, leg: LegName, answered: bool) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        machine.stream.leg_lost(leg, self.consumer.clock.mono());
        self.ambiguous |= !answered && !self.early.is_empty();
        // Without bytes of the application a second stream does no harm, while the first, if it did
        // arrive, would make the publisher refuse its own number.
        self.doubted |= !answered && self.early.is_empty();
        if self.doubted && self.early.is_empty() && !round.attempts.is_asking() {
            self.machine = None;
            self.doubted = false;
        }
    }

    /// The stream, with the leg that was answered. The others are given up: the publisher takes none with
    /// a lower epoch than one that it has attached (I5), and the driver finds another leg where this
    /// one turns out not to carry.
    fn opened(&mut self, round: &Round, leg: LegIo) -> Option<Opened> {
        let mut machine = self.machine.take()?;
        let now = self.consumer.clock.mono();
        for (relay, session) in round.asking.late(now).filter_map(|n| round.candidates.get(n)) {
            if *relay != leg.via().relay {
                self.consumer.unanswered.note(*relay, session.number, now);
            }
        }
        for lost in round.attempts.legs() {
            machine.stream.leg_lost(lost, now);
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

    /// A leg in the stream's machine: its OPEN, its ATTACH, and what the application has said.
    fn flight(
        &mut self,
        round: &mut Round,
        candidate: usize,
        association: Arc<Association>,
        relay: RelayId,
    ) -> Result<(LegName, Bytes), Stop> {
        let mut machine = self.machine(round, candidate, association)?;
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
            grant: round.grant.clone(),
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

    /// The stream's machine: the same one for every attempt until its association is said to be lost and
    /// there is another one, so that the publisher can tell a second attempt from a second stream.
    fn machine(
        &mut self,
        round: &mut Round,
        candidate: usize,
        association: Arc<Association>,
    ) -> Result<Machine, Stop> {
        if let Some(machine) = self.machine.take() {
            if machine.association.id() == association.id() || !round.renewed.contains(&candidate) {
                return Ok(machine);
            }
            if self.ambiguous {
                return Err(Stop::Final(OpenFailure::Ambiguous));
            }
            // Legs that wait for their answer are of the machine that goes.
            round.abandon();
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
            Stream::dial(self.consumer.stream_config, secret, round.grant.clone()).map_err(|_| bad_grant)?;
        guard.begin(&mut stream);
        stream.write(&self.early);
        Ok(Machine {
            stream,
            number,
            association,
            guard,
        })
    }
}

impl Round {
    /// Gives up the legs whose OPEN went out.
    fn abandon(&mut self) {
        for candidate in self.attempts.give_up_asked() {
            self.asking.ended(candidate);
        }
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

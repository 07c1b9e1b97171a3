//! Opens a stream for an application's connection.
//!
//! An open tries the connected relays of its route one after the other, and another one beside one that
//! does not answer ([`round`], [`asking`]); what the answer's class says decides what comes next (R-ADM-05). While no
//! relay can take it, a connection is held for a short time: latency, not an error (R-NOD-02).

mod asking;
mod attempt;
mod round;
mod stream;
mod unanswered;

use crate::attempt::AttemptError;
use crate::consumer::{Consumer, Opened};
use crate::relays::Session;
use crate::socket::EndSocket;
use bytes::Bytes;
use fairlead_model::{RefusalCode, RelayId, RetryClass};
use fairlead_trust::Consumption;
use round::Round;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stream::NewStream;
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
    stream: NewStream<'a>,
    failure: OpenFailure,
    /// Which relay of the route it begins with, counted on.
    turn: usize,
    /// A relay has said that the publisher announced its restart.
    announced: bool,
    started: Instant,
    hold_until: Instant,
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
            stream: NewStream::new(consumer, consumption, socket),
            turn: consumer.turn.fetch_add(1, Ordering::Relaxed),
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

    /// Once over the connected relays.
    async fn round(&mut self) -> Result<Opened, Stop> {
        let Some(grant) = self.grant() else {
            self.failure = OpenFailure::NoGrant;
            return Err(Stop::Next(None));
        };
        // Before the look: what changes after it is not missed.
        let mut sessions = self.consumer.relays.subscribe();
        sessions.mark_unchanged();
        let candidates = self.candidates();
        if candidates.is_empty() {
            self.failure = OpenFailure::NoRelay;
        }
        let round = Round::new(self.consumer, self.consumption, candidates, sessions, grant);
        round.run(self).await
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
        let start = self.turn.checked_rem(relays.len()).unwrap_or(0);
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
}

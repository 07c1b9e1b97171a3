//! Once over the relays of an open, several of them at once.

use super::asking::{Asking, Next};
use super::attempt::{Asked, Attempts, Progress};
use super::{ANSWER_WAIT, OpenFailure, Opening, Stop};
use crate::association::{Association, PairRequest};
use crate::consumer::{Consumer, Opened};
use crate::driver::{LegIo, Via};
use crate::paths::Path;
use crate::relays::{Session, Sessions};
use bytes::Bytes;
use fairlead_host::rng;
use fairlead_model::{MonoTime, RefusalCode, RelayId};
use fairlead_stream::LegName;
use fairlead_telemetry::chain;
use fairlead_trust::Consumption;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long an answer may take of the only relay: it holds an open for a late policy for 10 s (R-POL-10).
const ANSWER_WAIT_ALONE: Duration = Duration::from_secs(12);
/// Most candidates of a round: sessions that come and go while it lasts make no more.
const CANDIDATES_MAX: usize = 16;
/// Wait after the daemon's ration of suspicions was found used up.
const RATION_WAIT: Duration = Duration::from_millis(125);

/// A round. Its attempts put legs into the open's stream, and the open judges how they fail.
pub(super) struct Round<'a> {
    consumer: &'a Consumer,
    consumption: &'a Consumption,
    /// In the order to ask them.
    candidates: Vec<(RelayId, Session)>,
    /// Sessions that are made meanwhile are candidates too.
    sessions: watch::Receiver<Sessions>,
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

impl<'a> Round<'a> {
    /// Nobody is asked yet. `sessions` shows what has changed since the candidates were found.
    pub(super) fn new(
        consumer: &'a Consumer,
        consumption: &'a Consumption,
        candidates: Vec<(RelayId, Session)>,
        sessions: watch::Receiver<Sessions>,
        grant: Bytes,
    ) -> Self {
        Self {
            consumer,
            consumption,
            limit: if candidates.len() > 1 {
                ANSWER_WAIT
            } else {
                ANSWER_WAIT_ALONE
            },
            asking: Asking::new(candidates.len()),
            attempts: Attempts::default(),
            renewed: BTreeSet::new(),
            candidates,
            sessions,
            grant,
            retry_after: None,
            said: Vec::new(),
        }
    }

    /// Asks each candidate once, beside one that does not answer the next.
    pub(super) async fn run(mut self, opening: &mut Opening<'_>) -> Result<Opened, Stop> {
        loop {
            let now = self.consumer.clock.mono();
            let wait = match self.asking.next(now) {
                Next::Ask(candidate) => {
                    if self.may_ask(now) {
                        self.begin(opening.stream.association(), candidate, now);
                    } else {
                        let again = RATION_WAIT + rng::jitter(RATION_WAIT);
                        self.asking.postpone(now.plus(again));
                    }
                    continue;
                }
                Next::GiveUp(candidate) => {
                    if let Some(leg) = self.attempts.give_up(candidate) {
                        opening.stream.lost(leg, false, self.attempts.is_asking());
                    }
                    self.asking.ended(candidate);
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
                (candidate, progress) = self.attempts.next() => {
                    if let Some(opened) = self.progress(opening, candidate, progress)? {
                        return Ok(opened);
                    }
                }
                // An error is the end of the daemon, which ends the attempts.
                Ok(()) = self.sessions.changed() => self.take_in(opening.candidates()),
                () = late => {}
            }
        }
        match self.said.first() {
            Some(failure) if self.said.len() == self.candidates.len() => Err(Stop::Final(*failure)),
            Some(_) | None => Err(Stop::Next(self.retry_after)),
        }
    }

    /// Takes in sessions that were made since the round began: the one that is waited for may be as good as lost.
    fn take_in(&mut self, found: Vec<(RelayId, Session)>) {
        for (relay, session) in found {
            let mut known = self.candidates.iter();
            let is_new = known.all(|(id, had)| (*id, had.number) != (relay, session.number));
            if is_new && self.candidates.len() < CANDIDATES_MAX {
                self.candidates.push((relay, session));
            }
        }
        self.asking.grow(self.candidates.len());
    }

    /// Whether another relay may be asked beside those that do not answer: by the daemon's ration of
    /// suspicions, so that a host that is slow for all asks for nothing twice, except where one of them is
    /// known to let opens go unanswered, or its path to answer nobody.
    fn may_ask(&self, now: MonoTime) -> bool {
        let mut waiting = self.asking.waiting().peekable();
        if waiting.peek().is_none() {
            return true;
        }
        let (paths, unanswered) = (&self.consumer.paths, &self.consumer.unanswered);
        let mut silent = waiting
            .filter_map(|n| self.candidates.get(n))
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

    /// Begins an attempt through a candidate: with the association of the open's stream, while it has one.
    fn begin(&mut self, association: Option<&Arc<Association>>, candidate: usize, now: MonoTime) {
        let Some((relay, session)) = self.candidates.get(candidate) else {
            return;
        };
        let is_unknown = self.renewed.contains(&candidate);
        let unknown = association.filter(|_| is_unknown).map(|unknown| unknown.id());
        let request = PairRequest {
            publisher: self.consumption.publisher,
            route: self.consumption.route,
            grant: self.grant.clone(),
            session: session.clone(),
            unknown,
        };
        let rtt = self.consumer.paths.proven(self.path(*relay, session), now);
        let known = association.filter(|_| !is_unknown).cloned();
        let associations = self.consumer.associations.clone();
        self.attempts
            .reach(candidate, known, associations, request, self.limit);
        self.asking.asked(candidate, rtt, now);
    }

    /// An attempt has come further: to its OPEN, to a stream, or to its end.
    fn progress(
        &mut self,
        opening: &mut Opening<'_>,
        candidate: usize,
        progress: Progress,
    ) -> Result<Option<Opened>, Stop> {
        let Some((relay, session)) = self.candidates.get(candidate).cloned() else {
            return Ok(None);
        };
        let error = match progress {
            Progress::Reached(Ok((association, leg))) => {
                let (name, flight) = self.flight(opening, candidate, association, relay)?;
                let asked = Asked {
                    name,
                    flight,
                    session: session.number,
                    limit: self.limit,
                };
                self.attempts.ask(candidate, asked, leg, &self.consumer.relays);
                return Ok(None);
            }
            Progress::Answered(name, Ok(leg)) => {
                let session = session.number;
                let leg = LegIo::new(leg, name.epoch, Via { relay, session });
                return Ok(self.opened(opening, leg));
            }
            Progress::Reached(Err(error)) => error,
            Progress::Answered(name, Err(error)) => {
                // A relay that got no answer of the publisher does not know what arrived there.
                let answered = error.code() != RefusalCode::PublisherUnreachable;
                opening.stream.lost(name, answered, self.attempts.is_asking());
                error
            }
        };
        self.asking.ended(candidate);
        if error.code() == RefusalCode::UnknownAssociation && self.renew(opening, candidate) {
            let now = self.consumer.clock.mono();
            self.begin(opening.stream.association(), candidate, now);
            return Ok(None);
        }
        let tunnel = opening.stream.tunnel().map(tracing::field::display);
        tracing::debug!(tunnel, %relay, route = %self.consumption.route, error = chain(&*error), "open failed");
        match opening.judge(&error) {
            Stop::Final(failure) => return Err(Stop::Final(failure)),
            Stop::Said(failure) => self.said.push(failure),
            Stop::Next(after) => self.retry_after = after.or(self.retry_after),
        }
        Ok(None)
    }

    /// Whether the candidate is asked once more, with a new association: the publisher has lost the old, as
    /// the relay says. Not while other legs may have brought bytes of the application to it.
    fn renew(&mut self, opening: &Opening<'_>, candidate: usize) -> bool {
        opening.stream.may_begin_anew(self.attempts.is_asking()) && self.renewed.insert(candidate)
    }

    /// A leg of the open's stream; of one that begins anew, where its association is said to be lost and there
    /// is another one.
    fn flight(
        &mut self,
        opening: &mut Opening<'_>,
        candidate: usize,
        association: Arc<Association>,
        relay: RelayId,
    ) -> Result<(LegName, Bytes), Stop> {
        let before = opening.stream.association().map(|before| before.id());
        let is_another = before.is_some_and(|before| before != association.id());
        if is_another && self.renewed.contains(&candidate) {
            opening.stream.begin_anew()?;
            for asked in self.attempts.give_up_asked() {
                self.asking.ended(asked);
            }
        }
        opening.stream.flight(association, &self.grant, relay)
    }

    /// The stream, with the leg that was answered. The others are given up: the publisher takes none with
    /// a lower epoch than one that it has attached (I5), and the driver finds another leg where this
    /// one turns out not to carry.
    fn opened(&self, opening: &mut Opening<'_>, leg: LegIo) -> Option<Opened> {
        let now = self.consumer.clock.mono();
        for (relay, session) in self.asking.late(now).filter_map(|n| self.candidates.get(n)) {
            if *relay != leg.via().relay {
                self.consumer.unanswered.note(*relay, session.number, now);
            }
        }
        opening.stream.opened(leg, self.attempts.legs())
    }
}

//! The attempts of one round: each a future, as many of them at once as relays are asked.

use super::ANSWER_WAIT;
use crate::association::{Association, Associations, LEG_WAIT_MAX, PairRequest};
use crate::attempt::{AttemptError, answer};
use crate::relays::{Relays, Sessions};
use bytes::Bytes;
use fairlead_model::RelayId;
use fairlead_stream::LegName;
use fairlead_transport::Leg;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// How far an attempt has come.
pub(super) enum Progress {
    /// There is an association, and a leg that nothing was written on; or there is not.
    Reached(Result<(Arc<Association>, Leg), Arc<AttemptError>>),
    /// The OPEN on this leg is answered: well, or it failed.
    Answered(LegName, Result<Leg, Arc<AttemptError>>),
}

type Attempt = Pin<Box<dyn Future<Output = Progress> + Send>>;

/// The attempts that run, by candidate. Dropping one resets its leg.
#[derive(Default)]
pub(super) struct Attempts {
    running: Vec<(usize, Option<LegName>, Attempt)>,
}

impl Attempts {
    /// Gets an association, `known` or made through the request's session, and a leg of that session.
    pub(super) fn reach(
        &mut self,
        candidate: usize,
        known: Option<Arc<Association>>,
        associations: Arc<Associations>,
        request: PairRequest,
        limit: Duration,
    ) {
        let reached = async move {
            let association = match known {
                Some(association) => association,
                None => {
                    let made = tokio::time::timeout(limit, associations.get(&request)).await;
                    made.unwrap_or_else(|_| Err(AttemptError::Timeout(limit).into()))?
                }
            };
            match tokio::time::timeout(LEG_WAIT_MAX, request.session.carrier.open_leg()).await {
                Ok(Ok(leg)) => Ok((association, leg)),
                Ok(Err(end)) => Err(AttemptError::Leg(end).into()),
                Err(_) => Err(AttemptError::LegTimeout.into()),
            }
        };
        let reached = Box::pin(async move { Progress::Reached(reached.await) });
        self.running.push((candidate, None, reached));
    }

    /// Sends `flight` on the leg, and waits for the answer.
    pub(super) fn ask(&mut self, candidate: usize, asked: Asked, mut leg: Leg, relays: &Relays) {
        let Asked {
            name,
            flight,
            session,
            limit,
        } = asked;
        let sessions = relays.subscribe();
        let answered = async move {
            leg.send
                .write_all_chunks(&mut [flight])
                .await
                .map_err(AttemptError::Send)?;
            let elsewhere = gone_silent(sessions, name.relay, session);
            tokio::select! {
                answered = answer(&mut leg, limit) => answered?,
                () = elsewhere, if limit == ANSWER_WAIT => return Err(AttemptError::Silent),
            }
            Ok(leg)
        };
        let answered = Box::pin(async move {
            let answered: Result<Leg, AttemptError> = answered.await;
            Progress::Answered(name, answered.map_err(Arc::new))
        });
        self.running.push((candidate, Some(name), answered));
    }

    /// The next one that has come further. Cancel safe.
    pub(super) async fn next(&mut self) -> (usize, Progress) {
        poll_fn(|cx| {
            for index in 0..self.running.len() {
                let Some((candidate, _, attempt)) = self.running.get_mut(index) else {
                    break;
                };
                if let Poll::Ready(progress) = attempt.as_mut().poll(cx) {
                    let candidate = *candidate;
                    drop(self.running.swap_remove(index));
                    return Poll::Ready((candidate, progress));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Gives up a candidate's attempt; its leg, if its OPEN went out.
    pub(super) fn give_up(&mut self, candidate: usize) -> Option<LegName> {
        let index = self.running.iter().position(|(n, ..)| *n == candidate)?;
        self.running.swap_remove(index).1
    }

    /// Gives up all whose OPEN went out; their candidates.
    pub(super) fn give_up_asked(&mut self) -> Vec<usize> {
        let asked = self.running.extract_if(.., |(_, leg, _)| leg.is_some());
        asked.map(|(candidate, ..)| candidate).collect()
    }

    /// The legs whose OPEN went out.
    pub(super) fn legs(&self) -> impl Iterator<Item = LegName> {
        self.running.iter().filter_map(|(_, leg, _)| *leg)
    }

    /// Whether an OPEN went out that is not answered.
    pub(super) fn is_asking(&self) -> bool {
        self.legs().next().is_some()
    }
}

/// What is asked of a relay.
pub(super) struct Asked {
    pub(super) name: LegName,
    /// OPEN, ATTACH, and what the application has said.
    pub(super) flight: Bytes,
    /// The session's number.
    pub(super) session: u32,
    /// How long the answer may take.
    pub(super) limit: Duration,
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

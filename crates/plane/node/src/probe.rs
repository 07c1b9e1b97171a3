//! Asks a publisher's daemon for a sign of life through a relay that carries none of its streams.
//!
//! A probe is the open of a further leg for a stream that never was. Relay and publisher judge it
//! like a resume: route, grant, lease, revocation. The publisher does not know the stream and says so
//! under seal, bound to this relay and this leg, so no relay can answer in its name (R-STR-05). It
//! dials nothing and keeps nothing, and the relay carries no tunnel between two probes.

use crate::association::CHECK_BIT;
use crate::association::{Association, LEG_WAIT_MAX, PairRequest};
use crate::attempt::{AttemptError, answer};
use crate::consumer::Consumer;
use crate::live::EndReason;
use crate::metrics::StreamRole;
use crate::paths::Path;
use bytes::{Bytes, BytesMut};
use fairlead_hop::frame::{Frame, LegKind, Open};
use fairlead_host::{Clock, rng};
use fairlead_model::{MonoTime, RefusalCode, RelayId, RouteId, StreamNumber};
use fairlead_stream::{
    AttachKind, Config, End, Event, LegName, LegPath, Stream, StreamSecret, TRANSMIT_BATCH,
};
use fairlead_telemetry::chain;
use fairlead_transport::{Leg, LegCode};
use std::sync::Arc;
use std::time::Duration;

/// Stream numbers of probes have this bit, those of streams never do: an association counts them
/// from 0, and the bit below is that of its checks.
const PROBE_BIT: u64 = 1 << 63;
/// A check that is taken for a probe is refused instead of sent back, and a probe that is taken
/// for a check proves nothing.
const _: () = assert!(PROBE_BIT & CHECK_BIT == 0);
/// Longest time for an answer: a path that is slower is no place to move to.
const PROBE_MAX: Duration = Duration::from_secs(3);
/// Chunks of an answer that are read at once; it is one record.
const CHUNKS: usize = 4;
/// Most of an answer that is read: 4 small records.
const ANSWER_BYTES_MAX: usize = 1024;
/// Most of a probe that is read: an ATTACH with its grant.
const PROBE_BYTES_MAX: usize = 32 * 1024;

/// The probe's number that belongs to a stream number of its own.
pub(crate) const fn probe_number(number: StreamNumber) -> StreamNumber {
    StreamNumber(number.0 | PROBE_BIT)
}

/// Whether a number is a probe's.
pub(crate) const fn is_probe(number: StreamNumber) -> bool {
    number.0 & PROBE_BIT != 0
}

/// How long the publisher took to answer on `path`; `None` without the right answer.
pub(crate) async fn probe(consumer: &Consumer, path: Path, route: RouteId) -> Option<Duration> {
    let asked = tokio::time::timeout(PROBE_MAX, ask(consumer, path, route)).await;
    let error = match asked.unwrap_or_else(|_| Err(AttemptError::Timeout(PROBE_MAX).into())) {
        Ok(rtt) => {
            consumer.paths.note_carried(route, path);
            return Some(rtt);
        }
        Err(error) => error,
    };
    if error.code() == RefusalCode::Revoked {
        consumer.paths.note_revoked(route, path);
    }
    tracing::debug!(relay = %path.relay, publisher = %path.publisher, error = chain(&*error), "a path is not proven");
    None
}

async fn ask(consumer: &Consumer, path: Path, route: RouteId) -> Result<Duration, Arc<AttemptError>> {
    let sessions = consumer.relays.sessions();
    let session = sessions.get(&path.relay).filter(|s| s.number == path.session);
    let grant = consumer
        .view
        .borrow()
        .grant(route)
        .map(|grant| grant.envelope().clone());
    // Both are there when a path is asked for, and may be gone a moment later.
    let (Some(session), Some(grant)) = (session, grant) else {
        return Err(AttemptError::GivenUp.into());
    };
    let request = PairRequest {
        publisher: path.publisher,
        route,
        grant: grant.clone(),
        session: session.clone(),
        unknown: None,
    };
    let association = consumer.associations.get(&request).await?;
    let leg = tokio::time::timeout(LEG_WAIT_MAX, session.carrier.open_leg()).await;
    let mut leg = leg
        .map_err(|_| AttemptError::LegTimeout)?
        .map_err(AttemptError::Leg)?;
    let asked = exchange(&mut leg, &*consumer.clock, path.relay, route, &association, grant).await;
    if let Err(error) = &asked
        && error.code() == RefusalCode::UnknownAssociation
    {
        // A relay's word, unsealed: a handshake asks the publisher itself.
        let request = PairRequest {
            unknown: Some(association.id()),
            ..request
        };
        consumer.associations.get(&request).await?;
    }
    let (code, rtt) = asked?;
    if code == RefusalCode::Revoked {
        // Under seal, so final: the publisher has reset its halves of these streams.
        let ended = consumer.live.end(EndReason::Revoked, |s| {
            s.role == StreamRole::Consumer && s.route == route && s.peer == path.publisher
        });
        tracing::info!(%route, publisher = %path.publisher, ended, "the publisher has revoked the route; its streams are reset");
    }
    match code {
        RefusalCode::UnknownStream => Ok(rtt),
        other => Err(AttemptError::Refused(other.into()).into()),
    }
}

/// What the publisher said under seal, and after how long. A relay's refusal is an error.
async fn exchange(
    leg: &mut Leg,
    clock: &dyn Clock,
    relay: RelayId,
    route: RouteId,
    association: &Association,
    grant: Bytes,
) -> Result<(RefusalCode, Duration), AttemptError> {
    let refused = |code: RefusalCode| AttemptError::Refused(code.into());
    let (number, secret) = association.new_probe(route);
    let config = Config {
        hold: Duration::ZERO,
        ..Config::default()
    };
    let mut stream =
        Stream::dial(config, secret, grant.clone()).map_err(|_| refused(RefusalCode::BadGrant))?;
    let epoch = stream.next_epoch();
    let path = LegPath {
        epoch,
        relay,
        salt: rng::bytes(),
    };
    let internal = || refused(RefusalCode::Internal);
    stream
        .open_leg(path, AttachKind::Resend)
        .map_err(|_| internal())?;
    let open = Frame::Open(Open {
        kind: LegKind::Stream,
        association: association.id(),
        route,
        stream: number,
        epoch,
        resume: true,
        grant,
    });
    let mut flight = BytesMut::new();
    open.encode(&mut flight).map_err(|_| internal())?;
    let sent = clock.mono();
    while stream.poll_transmit(path.name(), sent, &mut flight, TRANSMIT_BATCH) > 0 {}
    let written = leg.send.write_all_chunks(&mut [flight.freeze()]).await;
    written.map_err(AttemptError::Send)?;
    answer(leg, PROBE_MAX).await?;
    let code = sealed_answer(leg, &mut stream, path.name(), clock).await?;
    leg.send.finish();
    Ok((code, clock.mono().since(sent)))
}

/// The code that the publisher has sealed.
async fn sealed_answer(
    leg: &mut Leg,
    stream: &mut Stream,
    name: LegName,
    clock: &dyn Clock,
) -> Result<RefusalCode, AttemptError> {
    let mut left = ANSWER_BYTES_MAX;
    loop {
        let mut chunks: [Bytes; CHUNKS] = Default::default();
        let read = leg.recv.read_chunks(&mut chunks).await;
        let count = read
            .map_err(|error| AttemptError::Read(error.into()))?
            .ok_or(AttemptError::NoAnswer)?;
        for chunk in chunks.iter().take(count) {
            left = left.checked_sub(chunk.len()).ok_or(AttemptError::NoAnswer)?;
            let received = stream.receive(name, clock.mono(), chunk);
            received.map_err(|_| AttemptError::NoAnswer)?;
        }
        while let Some(event) = stream.poll_event() {
            if let Event::Ended(end) = event {
                return match end {
                    End::Refused(code) => Ok(code),
                    End::Closed | End::Reset(_) | End::HoldExpired | End::Protocol => {
                        Err(AttemptError::NoAnswer)
                    }
                };
            }
        }
    }
}

/// The publisher's part: `judge` decides on the grant of a probe's ATTACH, and the verdict is sealed.
/// A good one is [`RefusalCode::UnknownStream`].
pub(crate) async fn answer_probe(
    mut leg: Leg,
    path: LegPath,
    secret: StreamSecret,
    now: MonoTime,
    judge: impl FnOnce(&Bytes) -> RefusalCode,
) {
    let exchange = async {
        let mut stream = Stream::accept(Config::default(), secret);
        stream.open_leg(path, AttachKind::Resend).ok()?;
        let mut left = PROBE_BYTES_MAX;
        let grant = loop {
            let mut chunks: [Bytes; CHUNKS] = Default::default();
            let count = leg.recv.read_chunks(&mut chunks).await.ok()??;
            for chunk in chunks.iter().take(count) {
                left = left.checked_sub(chunk.len())?;
                stream.receive(path.name(), now, chunk).ok()?;
            }
            if let Some(Event::Attach { grant, .. }) = stream.poll_event() {
                break grant;
            }
        };
        stream.refuse_attach(path.name(), judge(&grant));
        let mut sealed = BytesMut::new();
        while stream.poll_transmit(path.name(), now, &mut sealed, TRANSMIT_BATCH) > 0 {}
        leg.send.write_all_chunks(&mut [sealed.freeze()]).await.ok()?;
        leg.send.finish();
        // Until the consumer has it: a dropped leg would take its last words along.
        leg.send.drained().await.ok()
    };
    let answered = tokio::time::timeout(PROBE_MAX, exchange).await.ok().flatten();
    if answered.is_none() {
        leg.abort(LegCode::from(RefusalCode::Protocol));
    }
}

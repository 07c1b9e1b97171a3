//! Serves an application's connection: opens a stream for it and runs it.

use crate::association::{Association, Associations, StreamKind};
use crate::driver::{Driver, Further, LegIo, Mover, Near, Outcome};
use crate::listen::{Admission, ListenerTable};
use crate::live::{LiveGuard, LiveStreams};
use crate::metrics::{NodeMetrics, StreamRole};
use crate::open::{HOLD, OpenFailure, Opening, Unanswered};
use crate::paths::Paths;
use crate::relays::Relays;
use crate::socket::EndSocket;
use crate::told;
use crate::view::ViewReceiver;
use fairlead_host::{Clock, Headroom};
use fairlead_model::{RefusalCode, StreamNumber, TunnelId};
use fairlead_stream::{Config, Stream};
use fairlead_trust::Consumption;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::Instrument as _;

/// Wait before an open whose leg was lost is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What opens streams.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) view: ViewReceiver,
    pub(crate) relays: Relays,
    pub(crate) associations: Arc<Associations>,
    pub(crate) live: LiveStreams,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) paths: Paths,
    pub(crate) stream_config: Config,
    /// Shared with the publisher: both take a descriptor for each stream.
    pub(crate) headroom: Headroom,
    /// Spreads streams over the relays of a route.
    pub(crate) turn: AtomicUsize,
    /// Relays that are asked behind the others.
    pub(crate) unanswered: Unanswered,
    /// What its streams are for.
    pub(crate) kind: StreamKind,
    /// Is told of connections that were turned away.
    pub(crate) listeners: ListenerTable,
}

/// A stream that a relay and the publisher's daemon have taken.
pub(crate) struct Opened {
    pub(crate) stream: Stream,
    pub(crate) leg: LegIo,
    pub(crate) association: Arc<Association>,
    pub(crate) number: StreamNumber,
    pub(crate) guard: LiveGuard,
    /// Bytes of the application are in it.
    pub(crate) taken: bool,
}

impl Consumer {
    /// Serves one connection to its end. The admission's place is given back once its stream is open
    /// or refused, its descriptor at the end.
    pub(crate) async fn serve(
        self: Arc<Self>,
        socket: TcpStream,
        consumption: Arc<Consumption>,
        admission: Admission,
    ) {
        let Admission {
            held,
            descriptor: _descriptor,
        } = admission;
        let Ok(socket) = EndSocket::tcp(socket) else {
            return;
        };
        self.metrics.connections_held.inc();
        let held = Held {
            metrics: self.metrics.clone(),
            started: Instant::now(),
            _permit: held,
        };
        let mut connection = Some((socket, held));
        while let Some((socket, held)) = connection.take() {
            connection = self.one_stream(socket, held, &consumption).await;
        }
    }

    /// Opens and runs one stream; gives the connection back if it may be tried again.
    async fn one_stream(
        self: &Arc<Self>,
        socket: EndSocket,
        held: Held,
        consumption: &Consumption,
    ) -> Option<(EndSocket, Held)> {
        let started = held.started;
        // Boxed, so that a stream's task keeps nothing of its opening.
        let opening = Box::pin(Opening::new(self, consumption, &socket, started).run());
        let opened = match opening.await {
            Ok(opened) => opened,
            Err(failure) => {
                self.refused(consumption, failure);
                socket.reset();
                return None;
            }
        };
        let tunnel = TunnelId {
            association: opened.association.id(),
            stream: opened.number,
        };
        tracing::debug!(%tunnel, route = %consumption.route, publisher = %consumption.publisher, relay = %opened.leg.via().relay, "tunnel begins");
        let held = Arc::new(Mutex::new(Some(held)));
        let outcome = self
            .drive(socket, opened, consumption, tunnel, held.clone())
            .await;
        self.report(consumption, tunnel, &outcome);
        let refused = outcome.refusal();
        let again = match outcome.untouched() {
            Some(socket) if started.elapsed() >= HOLD => {
                socket.reset();
                None
            }
            again => again,
        };
        let Some(socket) = again else {
            if let Some(code) = refused {
                self.turned_away(consumption, code);
            }
            return None;
        };
        tokio::time::sleep(AGAIN_AFTER).await;
        Some((socket, take(&held)?))
    }

    /// The stream's life. Boxed where it begins: a value that a task moves is kept twice by it.
    fn drive(
        self: &Arc<Self>,
        socket: EndSocket,
        opened: Opened,
        consumption: &Consumption,
        tunnel: TunnelId,
        held: Arc<Mutex<Option<Held>>>,
    ) -> Pin<Box<impl Future<Output = Outcome> + Send + use<>>> {
        let mover = Mover::new(
            self.clone(),
            consumption.route,
            consumption.publisher,
            opened.association,
            opened.number,
            &opened.leg,
        );
        let driver = Driver::new(
            opened.stream,
            Near::Joined(socket),
            opened.leg,
            Further::Mover(Box::new(mover)),
            opened.guard,
            self.clock.clone(),
            self.metrics.clone(),
        )
        .with_taken(opened.taken)
        .on_connected({
            let (consumer, route) = (self.clone(), consumption.route);
            let metrics = self.metrics.clone();
            Box::new(move || {
                consumer.listeners.carried(route, consumer.clock.mono());
                let role = StreamRole::Consumer;
                metrics.streams_opened.get_or_create(&role.into()).inc();
                if let Some(held) = take(&held) {
                    metrics.open_seconds.observe(held.started.elapsed().as_secs_f64());
                }
            })
        });
        let span = tracing::debug_span!("stream", %tunnel);
        Box::pin(driver.run().instrument(span))
    }

    fn refused(&self, consumption: &Consumption, failure: OpenFailure) {
        let (route, reason) = (consumption.route, failure.as_str());
        match failure {
            OpenFailure::Refused(code) => {
                self.metrics.refused(StreamRole::Consumer, code);
                self.turned_away(consumption, code);
            }
            OpenFailure::NoRelay
            | OpenFailure::NoGrant
            | OpenFailure::Full
            | OpenFailure::Gone
            | OpenFailure::Ambiguous => self.metrics.failed(StreamRole::Consumer, reason),
        }
        if let Some(suppressed) = told::stream(reason) {
            tracing::info!(%route, publisher = %consumption.publisher, code = reason, suppressed, "stream not opened; connection reset");
        }
    }

    fn turned_away(&self, consumption: &Consumption, code: RefusalCode) {
        let (at, now) = (self.clock.wall(), self.clock.mono());
        self.listeners.turned_away(consumption.route, code, at, now);
    }

    fn report(&self, consumption: &Consumption, tunnel: TunnelId, outcome: &Outcome) {
        let (role, route) = (StreamRole::Consumer, consumption.route);
        let (code, detail) = outcome.failure();
        tracing::debug!(%tunnel, %route, code, "tunnel ends");
        match outcome {
            Outcome::Closed | Outcome::Reset(_) => return,
            Outcome::Refused { code, .. } => self.metrics.refused(role, *code),
            Outcome::Lost { .. } | Outcome::Protocol(_) | Outcome::Ended(_) => {
                self.metrics.failed(role, code);
            }
        }
        if let Some(suppressed) = told::stream(code) {
            tracing::info!(%tunnel, %route, publisher = %consumption.publisher, code, detail, suppressed, "stream reset");
        }
    }
}

/// A connection that waits for its stream.
#[derive(Debug)]
struct Held {
    metrics: NodeMetrics,
    started: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.metrics.connections_held.dec();
    }
}

fn take(held: &Mutex<Option<Held>>) -> Option<Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner).take()
}

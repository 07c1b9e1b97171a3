//! Lets a close through.
//!
//! quinn holds packets back while the congestion window is full, and with them the one that carries
//! CONNECTION_CLOSE where other data is pending beside it. A closed connection takes no
//! acknowledgement: its window never opens again, and the peer would hear nothing but a stateless
//! reset, or silence. So the window counts as open once the connection is to be closed; nothing but the
//! close is sent after that.

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Whether everything of an endpoint is to be closed. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closing(Arc<AtomicBool>);

impl Closing {
    /// It is, from here on. To be said right before quinn is told.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// How connections of the endpoint control congestion: by CUBIC, until they are closed.
    pub(crate) fn controllers(&self) -> Arc<dyn ControllerFactory + Send + Sync> {
        Arc::new(Factory {
            cubic: Arc::default(),
            endpoint: self.clone(),
        })
    }

    /// The same for one connection.
    pub(crate) fn begin_of(connection: &quinn::Connection) {
        let state = connection.congestion_state().into_any();
        // Every connection of ours has it.
        if let Ok(closable) = state.downcast::<Closable>() {
            closable.own.begin();
        }
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct Factory {
    cubic: Arc<CubicConfig>,
    endpoint: Closing,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Closable {
            inner: Arc::clone(&self.cubic).build(now, current_mtu),
            endpoint: self.endpoint.clone(),
            own: Closing::default(),
        })
    }
}

/// A controller whose window is open once its connection is to be closed; clones share that.
struct Closable {
    inner: Box<dyn Controller>,
    endpoint: Closing,
    own: Closing,
}

impl Controller for Closable {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.own.has_begun() || self.endpoint.has_begun() {
            // Above what quinn paces.
            return u64::MAX;
        }
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            endpoint: self.endpoint.clone(),
            own: self.own.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

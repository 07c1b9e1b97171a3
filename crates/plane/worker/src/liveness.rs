//! Whether the node of a hop session lives: its liveness connection, and QUIC's silence (R-ADM-02).

use crate::relay::Relay;
use fairlead_hop::liveness::{Death, LostCause, RelayAction, RelayLiveness};
use fairlead_host::descriptors::is_of_reserve;
use fairlead_telemetry::{RateLimitedLog, chain};
use fairlead_transport::{Carrier, LiveArriving, LiveBinding, LiveConnection};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

/// Wait after the system gave no connection, such as for want of descriptors: they come back as
/// sessions end, and nodes wait in the backlog meanwhile.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How often that is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Takes liveness connections until the worker ends.
pub(crate) async fn arrivals(relay: Arc<Relay>) {
    let log = RateLimitedLog::new(LOG_EVERY);
    loop {
        let arriving = tokio::select! {
            arriving = relay.live_listener.accept() => arriving,
            () = relay.ended.cancelled() => return,
        };
        match arriving {
            Ok(arriving) => {
                // Sessions go on without their liveness connection; metrics and the supervisor do not
                // go on without a descriptor (F-09).
                if is_of_reserve(arriving.as_fd()) {
                    relay.live_listener.make_room();
                    if let Some(suppressed) = log.allow(std::time::Instant::now()) {
                        warn!(
                            suppressed,
                            "only the reserve of descriptors is left (raise LimitNOFILE)"
                        );
                    }
                }
                relay.tasks.spawn(serve(Arc::clone(&relay), arriving));
            }
            Err(error) => {
                if let Some(suppressed) = log.allow(std::time::Instant::now()) {
                    warn!(reason = %chain(&error), suppressed, "liveness connections cannot be accepted");
                }
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

/// Takes one arrival to the session that it names.
async fn serve(relay: Arc<Relay>, arriving: LiveArriving) {
    let remote = arriving.remote_address();
    let arrived = tokio::select! {
        arrived = arriving.finish() => arrived,
        () = relay.ended.cancelled() => return,
    };
    match arrived {
        Ok(binding) => {
            if let Err((binding, why)) = relay.bind_live(binding) {
                debug!(%remote, peer = %binding.peer, ?why, "liveness connection refused");
                relay.metrics.liveness_refused.inc();
                binding.refuse(why, relay.process_boot).await;
            }
        }
        Err(error) => {
            relay.metrics.liveness_refused.inc();
            debug!(%remote, reason = %chain(&error), "liveness handshake failed");
        }
    }
}

/// Watches one session until its node is dead. `bindings` brings its liveness connections, the
/// newest of which counts; `probe` wakes the control stream's loop to ping.
pub(crate) async fn watch(
    relay: &Relay,
    carrier: &Carrier,
    mut bindings: mpsc::Receiver<LiveBinding>,
    probe: &Notify,
) -> Death {
    let mut machine = RelayLiveness::new(carrier.stats().received_bytes, relay.clock.mono());
    let mut standing = Standing::new(relay);
    loop {
        while let Some(action) = machine.poll_action() {
            match action {
                RelayAction::Probe => probe.notify_one(),
                RelayAction::Dead(death) => {
                    relay.metrics.session_dead(death);
                    return death;
                }
            }
        }
        let now = relay.clock.mono();
        let wake = machine.poll_timeout(now).map(|at| Instant::now() + at.since(now));
        enum Event {
            Bound(LiveBinding),
            Pings(Result<u32, LostCause>),
            Timeout,
        }
        let event = tokio::select! {
            Some(binding) = bindings.recv() => Event::Bound(binding),
            pings = standing.pings() => Event::Pings(pings),
            () = sleep_until(wake) => Event::Timeout,
        };
        let (now, stats) = (relay.clock.mono(), carrier.stats());
        machine.datagrams(stats.received_bytes, stats.rtt, now);
        match event {
            Event::Bound(binding) => {
                debug!("liveness connection up");
                standing.set(Some(binding.bind(relay.process_boot)));
                machine.bound();
            }
            // What a node does not answer is the node's load: its kernel has.
            Event::Pings(Ok(_)) => {}
            Event::Pings(Err(cause)) => {
                debug!(cause = cause.as_str(), "liveness connection lost");
                relay.metrics.liveness_lost(cause);
                standing.set(None);
                machine.lost(cause, now);
            }
            Event::Timeout => machine.handle_timeout(now),
        }
    }
}

/// The session's liveness connection, if it has one; counted.
struct Standing<'a> {
    relay: &'a Relay,
    connection: Option<LiveConnection>,
}

impl<'a> Standing<'a> {
    const fn new(relay: &'a Relay) -> Self {
        Self {
            relay,
            connection: None,
        }
    }

    fn set(&mut self, connection: Option<LiveConnection>) {
        let gauge = &self.relay.metrics.liveness_connections;
        gauge.inc_by(i64::from(connection.is_some()) - i64::from(self.connection.is_some()));
        self.connection = connection;
    }

    async fn pings(&mut self) -> Result<u32, LostCause> {
        match &mut self.connection {
            Some(connection) => connection.pings().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.set(None);
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

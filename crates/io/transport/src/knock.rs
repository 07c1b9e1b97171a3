//! Whether a relay's port is open, seen by TCP: the cheapest sign that a relay is back.

use crate::dial::resolve;
use fairlead_model::HostPort;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Waits between knocks at a closed port: an eighth longer each time, so that a relay that was away
/// for some time is noticed within an eighth of it, and within a second at most (R-NOD-01).
const WAIT_FIRST: Duration = Duration::from_millis(25);
const WAIT_LONGEST: Duration = Duration::from_secs(1);
/// Wait between knocks at a port that is open although the relay cannot be dialled.
const WAIT_OPEN: Duration = Duration::from_secs(5);
/// How long one knock may take. A host that is cut off answers none, and the next one is a fresh
/// packet.
const KNOCK_MAX: Duration = Duration::from_millis(500);
/// How long a name's addresses are taken for good.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// Knocks at the TCP port of a relay that cannot be dialled (the liveness connections' port, which
/// a worker opens together with QUIC's).
///
/// QUIC's own first packets are no match for it: each costs the relay a handshake, and an
/// unanswered one is repeated only after its own back-off.
#[derive(Debug)]
pub struct Knock {
    closed: bool,
    wait: Duration,
}

impl Default for Knock {
    fn default() -> Self {
        Self::new()
    }
}

impl Knock {
    /// At a port of which nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            closed: false,
            wait: WAIT_FIRST,
        }
    }

    /// Waits until the port opens: until it takes a connection after it had not. Cancel-safe: what
    /// was seen is kept for the next call.
    pub async fn opened(&mut self, address: &HostPort) {
        let (mut addresses, mut resolved): (Vec<SocketAddr>, Option<Instant>) = (Vec::new(), None);
        loop {
            if resolved.is_none_or(|at| at.elapsed() >= RESOLVE_EVERY) {
                addresses = resolve(address, Instant::now() + RESOLVE_EVERY)
                    .await
                    .unwrap_or_default();
                resolved = Some(Instant::now());
            }
            let wait = match (any_open(&addresses).await, self.closed) {
                (true, true) => {
                    *self = Self::new();
                    return;
                }
                (true, false) => WAIT_OPEN,
                (false, _) => {
                    self.closed = true;
                    let wait = self.wait;
                    self.wait = (wait + wait / 8).min(WAIT_LONGEST);
                    wait
                }
            };
            sleep(wait).await;
        }
    }
}

async fn any_open(addresses: &[SocketAddr]) -> bool {
    for address in addresses {
        if matches!(timeout(KNOCK_MAX, TcpStream::connect(address)).await, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

//! Whether a relay's port is open, seen by TCP: the cheapest sign that a relay is back.

use crate::dial::resolve;
use fairlead_model::HostPort;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Waits between knocks at a closed port: an eighth longer each time, so that a relay that was away
/// for some time is noticed within an eighth of it, and within a second at most (R-NOD-01).
const WAIT_FIRST: Duration = Duration::from_millis(25);
const WAIT_LONGEST: Duration = Duration::from_secs(1);
/// Wait between knocks at a port that is open although the relay cannot be dialled. The connection is held
/// meanwhile: it ends with the relay's process, however soon the next one opens the port again.
const WAIT_OPEN: Duration = Duration::from_secs(5);
/// Wait before the first such one: an honest relay has been dialled by then, and gets no strangers to hold.
const WAIT_HOLD: Duration = Duration::from_secs(1);
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
    /// Knocks have found the port open, and nothing else.
    open: bool,
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
            open: false,
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
                (Some(_), true) => {
                    *self = Self::new();
                    return;
                }
                (Some(_), false) if !self.open => {
                    self.open = true;
                    WAIT_HOLD
                }
                (Some(held), false) => {
                    let ended = timeout(WAIT_OPEN, ended(held)).await.is_ok();
                    // A process that goes takes its port along. One that lives may let a stranger go:
                    // it is not held again at once.
                    if ended && any_open(&addresses).await.is_none() {
                        self.closed = true;
                        self.wait
                    } else if ended {
                        WAIT_OPEN
                    } else {
                        continue;
                    }
                }
                (None, _) => {
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

/// Waits for the end of a connection on which nothing is said.
async fn ended(mut held: TcpStream) {
    let mut nothing = [0; 64];
    while held.read(&mut nothing).await.is_ok_and(|count| count > 0) {}
}

/// A connection to the first address that takes one.
async fn any_open(addresses: &[SocketAddr]) -> Option<TcpStream> {
    for address in addresses {
        if let Ok(Ok(connection)) = timeout(KNOCK_MAX, TcpStream::connect(address)).await {
            return Some(connection);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn listener() -> (TcpListener, HostPort) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().into();
        (listener, address)
    }

    /// R-NOD-01: a relay that hung, whose port its host kept open, and that was replaced between two knocks,
    /// is noticed at once.
    #[tokio::test(start_paused = true)]
    async fn a_hung_relay_that_is_replaced_between_two_knocks_is_noticed() {
        let (hung, address) = listener().await;
        let at = hung.local_addr().unwrap();
        let knocking = tokio::spawn(async move { Knock::new().opened(&address).await });
        drop(hung.accept().await.unwrap());
        let held = hung.accept().await.unwrap();
        let killed = Instant::now();
        drop((hung, held));
        // Its next process takes less than the shortest wait between knocks.
        sleep(WAIT_FIRST / 2).await;
        let next = TcpListener::bind(at).await.unwrap();
        timeout(WAIT_OPEN, knocking)
            .await
            .expect("it is noticed")
            .unwrap();
        let noticed = killed.elapsed();
        println!("noticed {noticed:?} after its end");
        assert!(noticed <= WAIT_FIRST * 2, "{noticed:?}");
        drop(next);
    }

    /// A port that is open and lets strangers go is not knocked at in a hurry, and is no relay that came back.
    #[tokio::test(start_paused = true)]
    async fn a_port_that_lets_strangers_go_has_not_opened() {
        let (open, address) = listener().await;
        let mut knock = Knock::new();
        let taken = async {
            for _ in 0..6 {
                drop(open.accept().await.unwrap());
            }
        };
        let began = Instant::now();
        tokio::select! {
            () = knock.opened(&address) => panic!("it was open all the time"),
            () = taken => {}
        }
        assert!(began.elapsed() >= WAIT_OPEN * 2, "{:?}", began.elapsed());
    }
}

//! Tests with real sockets on 127.0.0.1 and certificates made on the spot.

mod authority;
mod carriers;
mod live;
mod pairs;
mod probes;
mod strangers;
mod tls;

use crate::{Carrier, CarrierConfig, Dialler, Listener, ListenerConfig, MemberTls, ResetKey};
use authority::Authority;
use fairlead_model::{HostPort, Identity, NodeId, RelayId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Every await in these tests ends well before this.
const SOON: Duration = Duration::from_secs(20);

pub(crate) fn relay_id(n: u8) -> RelayId {
    RelayId::from_bytes([n; 16])
}

pub(crate) fn node_id(n: u8) -> NodeId {
    NodeId::from_bytes([n; 16])
}

/// A relay's listener, a node's dialler, and what is between them.
pub(crate) struct Bench {
    pub(crate) authority: Authority,
    pub(crate) listener: Arc<Listener>,
    pub(crate) dialler: Dialler,
    pub(crate) address: HostPort,
    pub(crate) relay: Identity,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let authority = Authority::new();
        let relay = Identity::Relay(relay_id(1));
        let listener = listener(authority.member(relay), "127.0.0.1:0");
        let address = listener.local_address().unwrap().into();
        let dialler = dialler(authority.member(Identity::Node(node_id(1))));
        Self {
            authority,
            listener: Arc::new(listener),
            dialler,
            address,
            relay,
        }
    }

    /// A carrier from both ends.
    pub(crate) async fn carriers(&self) -> (Carrier, Carrier) {
        let (dialled, taken) = tokio::join!(
            self.dialler.dial(&self.address, self.relay),
            taken(&self.listener)
        );
        (dialled.unwrap(), taken)
    }
}

/// The next carrier whose handshake succeeds: what earlier dials left behind fails.
pub(crate) async fn taken(listener: &Listener) -> Carrier {
    loop {
        if let Ok(carrier) = listener.accept().await.unwrap().finish().await {
            return carrier;
        }
    }
}

pub(crate) fn listener(tls: Arc<MemberTls>, address: &str) -> Listener {
    let config = ListenerConfig::new(address.parse().unwrap(), ResetKey::from_bytes([9; 32]));
    Listener::bind(config, tls).unwrap()
}

pub(crate) fn dialler(tls: Arc<MemberTls>) -> Dialler {
    Dialler::new(tls, &CarrierConfig::default()).unwrap()
}

/// Awaits within [`SOON`].
pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let future = Box::pin(future);
    async { timeout(SOON, future).await.expect("in time") }
}

//! The tunnels that carry bytes, so that a policy can close them.

use fairlead_model::RefusalCode;
use fairlead_trust::admission::LiveTunnel;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// All live tunnels of the worker. Bounded by the legs that nodes may have.
#[derive(Debug)]
pub(crate) struct Tunnels {
    live: Mutex<Live>,
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Live {
    next: u64,
    tunnels: BTreeMap<u64, Arc<Tunnel>>,
}

/// One tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    live: LiveTunnel,
    closed: CancellationToken,
    half_closed: CancellationToken,
    code: OnceLock<RefusalCode>,
}

/// A tunnel's place in the table, until dropped.
#[derive(Debug)]
pub(crate) struct TunnelPlace {
    table: Arc<Tunnels>,
    number: u64,
    tunnel: Arc<Tunnel>,
}

impl Default for Tunnels {
    fn default() -> Self {
        Self {
            live: Mutex::default(),
            count: watch::channel(0).0,
        }
    }
}

impl Tunnels {
    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tunnel.
    pub(crate) fn add(self: &Arc<Self>, live: LiveTunnel) -> TunnelPlace {
        let tunnel = Arc::new(Tunnel {
            live,
            closed: CancellationToken::new(),
            half_closed: CancellationToken::new(),
            code: OnceLock::new(),
        });
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.tunnels.insert(number, Arc::clone(&tunnel));
        self.count.send_replace(table.tunnels.len());
        TunnelPlace {
            table: Arc::clone(self),
            number,
            tunnel,
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until there is none. Cancel-safe.
    pub(crate) async fn none_left(&self) {
        // Fails only when the sender is gone, which is this value's own.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Closes the tunnels for which `verdict` has a code. How many those were.
    pub(crate) fn close_where(&self, verdict: impl Fn(&LiveTunnel) -> Option<RefusalCode>) -> usize {
        let tunnels: Vec<Arc<Tunnel>> = self.lock().tunnels.values().cloned().collect();
        let mut closed = 0;
        for tunnel in tunnels {
            if let Some(code) = verdict(&tunnel.live) {
                tunnel.close(code);
                closed += 1;
            }
        }
        closed
    }
}

impl Tunnel {
    /// What it was admitted as.
    pub(crate) const fn live(&self) -> &LiveTunnel {
        &self.live
    }

    /// Cancelled when one of its directions has read its end.
    pub(crate) fn half_closed(&self) -> CancellationToken {
        self.half_closed.clone()
    }

    /// Ends the tunnel with a reason; the first one counts.
    pub(crate) fn close(&self, code: RefusalCode) {
        let _ = self.code.set(code);
        self.closed.cancel();
    }

    /// Waits for [`close`](Self::close). Cancel-safe.
    pub(crate) async fn closed(&self) -> RefusalCode {
        self.closed.cancelled().await;
        self.code.get().copied().unwrap_or(RefusalCode::Internal)
    }
}

impl TunnelPlace {
    /// The tunnel.
    pub(crate) const fn tunnel(&self) -> &Arc<Tunnel> {
        &self.tunnel
    }
}

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.tunnels.remove(&self.number);
        self.table.count.send_replace(table.tunnels.len());
    }
}

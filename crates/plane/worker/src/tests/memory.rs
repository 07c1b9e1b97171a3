//! What tunnels cost (R-STR-04).

use super::pool::{Node, Pool, soon};
use crate::open;
use crate::relay::Relay;
use bytes::Bytes;
use fairlead_transport::{LegCode, LegError};
use std::sync::Arc;

/// Bytes of the task that a function starts.
fn size_of_task<A, F>(_: impl Fn(Arc<Relay>, A, fairlead_transport::Leg) -> F) -> usize {
    size_of::<F>()
}

/// R-STR-04: the task that opened a tunnel stays as long as the tunnel does, and keeps no room for what
/// only opening needs.
#[test]
fn a_tunnels_task_keeps_no_room_for_its_opening() {
    let tunnel = size_of_task(open::serve);
    println!("{tunnel} B");
    assert!(tunnel <= 800, "{tunnel} B");
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).unwrap();
    kib.trim().parse::<u64>().unwrap() * 1024
}

/// So many tunnels, one after another, each reset by its consumer after an idle moment.
async fn resets(pool: &Pool, alpha: &Node, beta: &Node, count: usize) {
    for _ in 0..count {
        let (near, (_, mut far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
        near.unwrap().abort(LegCode(0x77));
        let end = soon(far.recv.read_chunks(&mut [Bytes::new()])).await;
        assert_eq!(end, Err(LegError::Reset(LegCode(0x77))));
    }
}

/// Issue "Hard to break": tunnels that were reset leave nothing behind while their sessions live. One
/// entry of quinn's for each reset stream made it some 200 B a tunnel.
#[tokio::test]
async fn reset_tunnels_leave_nothing_behind() {
    const TUNNELS: usize = 6_000;
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    resets(&pool, &alpha, &beta, TUNNELS / 2).await;
    let before = resident();
    resets(&pool, &alpha, &beta, TUNNELS).await;
    let grown = resident().saturating_sub(before);
    worker.until(|s| s.live_tunnels == 0).await;
    println!("{grown} B, {} B a tunnel", grown / TUNNELS as u64);
    assert!(grown < 50 * TUNNELS as u64, "{grown} B");
}

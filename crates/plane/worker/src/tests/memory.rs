//! What tunnels cost (R-STR-04).

use crate::open;
use crate::relay::Relay;
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

//! The decision table of a relay: what lease and revocation mean for a tunnel.
//!
//! Whether the control plane is up is no input: nothing here could ask (R-GEN-04). The tests hold
//! every row against both.

use fairlead_model::RefusalCode;

/// What a tunnel is to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tunnel {
    /// A consumer opens it.
    New,
    /// It carries bytes.
    Live,
    /// A consumer opens it for a stream that lives already, elsewhere.
    Resumed,
}

/// Whether the relay may admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lease {
    /// A lease over the policy it holds has not ended.
    Valid,
    /// None has come, or it has ended by either clock.
    Ended,
}

/// What follows for the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Route and grant decide.
    Examine,
    /// It goes on.
    Keep,
    /// It is not opened.
    Refuse(RefusalCode),
    /// It is closed.
    Close(RefusalCode),
}

/// The table. Revocation comes first: it is final, an ended lease passes.
pub(super) const fn decide(lease: Lease, tunnel: Tunnel, revoked: bool) -> Decision {
    match (revoked, tunnel, lease) {
        (true, Tunnel::Live, Lease::Valid | Lease::Ended) => Decision::Close(RefusalCode::Revoked),
        (true, Tunnel::New | Tunnel::Resumed, Lease::Valid | Lease::Ended) => {
            Decision::Refuse(RefusalCode::Revoked)
        }
        // R-POL-06: existing tunnels outlive the lease.
        (false, Tunnel::Live, Lease::Valid | Lease::Ended) => Decision::Keep,
        (false, Tunnel::New | Tunnel::Resumed, Lease::Valid) => Decision::Examine,
        (false, Tunnel::New | Tunnel::Resumed, Lease::Ended) => Decision::Refuse(RefusalCode::LeaseEnded),
    }
}

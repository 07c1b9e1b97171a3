//! A relay's knowledge under every order of events, and its verdicts.

mod order;
mod table;
mod time;
mod unkept;

use super::*;
use crate::fixture::{
    CONSUMER, ENDPOINT, NEW_ROUTE, PUBLISHER, RELAY, ROUTE, START, STRANGER, after, grant, hours, lease,
    relay_policy, signed, signed_by,
};
use crate::{Grant, PolicyRoute, SigningKey};
use fairlead_model::{EndpointId, Generation, RefusalCode, RouteId, ServiceClass};

const BOOT: HostBoot = HostBoot([8; 16]);
const OTHER_BOOT: HostBoot = HostBoot([9; 16]);

fn next(applied: Result<Applied, ApplyRefused>) -> RelayAdmission {
    match applied.unwrap() {
        Applied::Next(next) => next,
        Applied::Unchanged => panic!("nothing changed"),
    }
}

/// A relay that has just got `policy` and a lease of 72 h.
fn relay_with(policy: &RelayPolicy) -> RelayAdmission {
    let policy = signed(policy);
    let lease = signed(&lease(&policy, 1));
    next(RelayAdmission::new(RELAY, BOOT).apply_policy(policy, lease, START))
}

fn relay() -> RelayAdmission {
    relay_with(&relay_policy(1, 10))
}

fn claim(grant: &Verified<Grant>) -> OpenClaim<'_> {
    OpenClaim {
        consumer: CONSUMER,
        route: grant.route,
        grant,
        resume: false,
        waited: Duration::ZERO,
        held_by_consumer: 0,
    }
}

fn open(relay: &RelayAdmission, grant: &Grant, resume: bool, now: Now) -> Verdict {
    let grant = signed(grant);
    let claim = OpenClaim {
        resume,
        ..claim(&grant)
    };
    relay.verdict(&claim, now)
}

fn tunnel() -> LiveTunnel {
    LiveTunnel {
        route: ROUTE,
        consumer: CONSUMER,
        endpoint: ENDPOINT,
        publisher: PUBLISHER,
    }
}

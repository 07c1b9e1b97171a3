//! The publisher's look at a grant, fault by fault.

use super::*;
use crate::fixture::{
    CONSUMER, ENDPOINT, NEW_ROUTE, ROUTE, START, STRANGER, grant, hours, node_policy, signed,
};
use fairlead_model::{EndpointId, Generation, Revision};

fn refused(
    policy: &NodePolicy,
    grant: &Grant,
    peer: NodeId,
    route: RouteId,
    wall: WallTime,
) -> Option<GrantRefused> {
    GrantCheck::new(policy)
        .check(&signed(grant), peer, route, false, wall)
        .err()
}

#[test]
fn a_good_grant_leads_to_its_publication() {
    let policy = node_policy();
    let check = GrantCheck::new(&policy);
    let publication = check
        .check(&signed(&grant()), CONSUMER, ROUTE, false, START.wall)
        .unwrap();
    assert_eq!(publication.endpoint, ENDPOINT);
    assert!(check.keyring().keys().eq(crate::fixture::keyring().keys()));
}

/// A grant names consumer, publisher and route; each is held against what was proved.
#[test]
fn a_grant_for_someone_else_is_refused() {
    let policy = node_policy();
    let of = |grant: Grant, peer, route| refused(&policy, &grant, peer, route, START.wall);
    assert_eq!(
        of(grant(), STRANGER, ROUTE),
        Some(GrantRefused::Consumer {
            granted: CONSUMER,
            peer: STRANGER
        })
    );
    let to_other = Grant {
        publisher: STRANGER,
        ..grant()
    };
    assert_eq!(
        of(to_other, CONSUMER, ROUTE),
        Some(GrantRefused::Publisher { granted: STRANGER })
    );
    assert_eq!(
        of(grant(), CONSUMER, NEW_ROUTE),
        Some(GrantRefused::Route {
            granted: ROUTE,
            asked: NEW_ROUTE
        })
    );
    for wrong in [
        of(grant(), STRANGER, ROUTE),
        of(to_other, CONSUMER, ROUTE),
        of(grant(), CONSUMER, NEW_ROUTE),
    ] {
        assert_eq!(wrong.unwrap().code(), RefusalCode::BadGrant);
    }
    // The publisher's own policy counts: the grant never widens it.
    let stranger = Grant {
        consumer: STRANGER,
        ..grant()
    };
    assert_eq!(
        of(stranger, STRANGER, ROUTE),
        Some(GrantRefused::NotPublished(ROUTE))
    );
    let elsewhere = Grant {
        endpoint: EndpointId::from_bytes([99; 16]),
        ..grant()
    };
    assert_eq!(
        of(elsewhere, CONSUMER, ROUTE),
        Some(GrantRefused::NotPublished(ROUTE))
    );
}

/// R-POL-02, R-POL-05: a grant holds from 60 s before to 60 s after its times.
#[test]
fn a_grant_holds_for_its_time_give_or_take_the_skew() {
    let policy = NodePolicy {
        issued_at: START.wall.minus(hours(1)),
        ..node_policy()
    };
    let of = |wall| refused(&policy, &grant(), CONSUMER, ROUTE, wall).map(|r| r.code());
    let (begin, end) = (grant().not_before, grant().not_after);
    let s = Duration::from_secs;
    assert_eq!(of(begin.minus(s(60))), None);
    assert_eq!(of(begin.minus(s(61))), Some(RefusalCode::GrantNotYetValid));
    assert_eq!(of(end.plus(s(59))), None);
    assert_eq!(of(end.plus(s(60))), Some(RefusalCode::GrantExpired));
}

/// R-POL-05: turning the clock back does not bring an expired grant back.
#[test]
fn a_clock_turned_back_revives_no_grant() {
    let policy = NodePolicy {
        issued_at: grant().not_after.plus(hours(1)),
        ..node_policy()
    };
    let code = refused(&policy, &grant(), CONSUMER, ROUTE, START.wall).map(|r| r.code());
    assert_eq!(code, Some(RefusalCode::GrantExpired));
}

/// R-REV-01, R-REV-04: a revoked route opens and resumes no more, whatever the grant says.
#[test]
fn a_revoked_route_is_refused_new_and_resumed() {
    let policy = NodePolicy {
        revoked_routes: vec![ROUTE],
        ..node_policy()
    };
    let check = GrantCheck::new(&policy);
    for resume in [false, true] {
        let refused = check
            .check(&signed(&grant()), CONSUMER, ROUTE, resume, START.wall)
            .unwrap_err();
        assert_eq!(refused.code(), RefusalCode::Revoked);
    }
    assert!(check.is_revoked(ROUTE) && !check.is_revoked(NEW_ROUTE));
    assert!(check.revoked().contains(&ROUTE));
}

/// R-POL-10: a route that this node's policy does not hold yet is waited for, not denied.
#[test]
fn a_route_ahead_of_the_policy_is_told_to_wait() {
    let policy = node_policy();
    let ahead = Grant {
        route: NEW_ROUTE,
        revision: Revision(11),
        ..grant()
    };
    assert_eq!(
        refused(&policy, &ahead, CONSUMER, NEW_ROUTE, START.wall),
        Some(GrantRefused::AheadOfPolicy(NEW_ROUTE))
    );
    let gone = Grant {
        revision: Revision(10),
        ..ahead
    };
    assert_eq!(
        refused(&policy, &gone, CONSUMER, NEW_ROUTE, START.wall),
        Some(GrantRefused::NotPublished(NEW_ROUTE))
    );
}

/// R-ADM-01: the endpoint's generation counts for new streams, not for those that live.
#[test]
fn resume_ignores_the_generation() {
    let policy = node_policy();
    let check = GrantCheck::new(&policy);
    for (generation, code) in [
        (2, RefusalCode::GrantExpired),
        (4, RefusalCode::GrantAheadOfPolicy),
    ] {
        let grant = signed(&Grant {
            generation: Generation(generation),
            ..grant()
        });
        let new = check.check(&grant, CONSUMER, ROUTE, false, START.wall);
        assert_eq!(new.unwrap_err().code(), code);
        assert!(check.check(&grant, CONSUMER, ROUTE, true, START.wall).is_ok());
    }
}

//! The decision table row by row, then the rows' fine print.

use super::*;
use crate::admission::decision::{Lease, Tunnel};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Control {
    Up,
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Admitted,
    Kept,
    Refused(RefusalCode),
    Closed(RefusalCode),
}

use Control::{Down, Up};
use Lease::{Ended, Valid};
use Outcome::{Admitted, Closed, Kept, Refused};
use RefusalCode::{LeaseEnded, Revoked};
use Tunnel::{Live, New, Resumed};

/// What a relay does in one row. A control plane that is up presents its policy again right before
/// (as on each reconnect); one that is down says nothing.
fn outcome(control: Control, lease_is: Lease, tunnel_is: Tunnel, revoked: bool) -> Outcome {
    let policy = RelayPolicy {
        revoked_routes: if revoked { vec![ROUTE] } else { vec![] },
        ..relay_policy(1, 10)
    };
    let relay = relay_with(&policy);
    let now = match lease_is {
        Valid => after(START, hours(71)),
        Ended => after(START, hours(73)),
    };
    if control == Up {
        let policy = signed(&policy);
        let known = signed(&lease(&policy, 1));
        assert!(matches!(
            relay.apply_policy(policy, known, now),
            Ok(Applied::Unchanged)
        ));
    }
    let resume = match tunnel_is {
        Live => {
            return match relay.live_verdict(&tunnel(), now) {
                LiveVerdict::Keep => Kept,
                LiveVerdict::Close(code) => Closed(code),
            };
        }
        New => false,
        Resumed => true,
    };
    match open(&relay, &grant(), resume, now) {
        Verdict::Admit(_) => Admitted,
        Verdict::Refuse(code) => Refused(code),
        Verdict::Hold(_) => panic!("held"),
    }
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident: $control:ident, $lease:ident, $tunnel:ident, $revoked:literal => $outcome:expr;)*) => {
        $($(#[$doc])* #[test] fn $name() {
            assert_eq!(outcome($control, $lease, $tunnel, $revoked), $outcome);
        })*
        /// The rows above are the whole table: 2 × 2 × 3 × 2.
        #[test]
        fn the_table_is_whole() {
            let mut rows = vec![$(($control, $lease, $tunnel, $revoked)),*];
            assert_eq!(rows.len(), 24);
            while let Some(row) = rows.pop() {
                assert!(!rows.contains(&row), "{row:?}");
            }
        }
    };
}

rows! {
    up_valid_new: Up, Valid, New, false => Admitted;
    up_valid_live: Up, Valid, Live, false => Kept;
    up_valid_resumed: Up, Valid, Resumed, false => Admitted;
    up_ended_new: Up, Ended, New, false => Refused(LeaseEnded);
    up_ended_live: Up, Ended, Live, false => Kept;
    up_ended_resumed: Up, Ended, Resumed, false => Refused(LeaseEnded);
    /// R-GEN-04: the control plane is dead and new tunnels go on being admitted.
    down_valid_new: Down, Valid, New, false => Admitted;
    down_valid_live: Down, Valid, Live, false => Kept;
    down_valid_resumed: Down, Valid, Resumed, false => Admitted;
    /// R-POL-06: after the lease, no new admission.
    down_ended_new: Down, Ended, New, false => Refused(LeaseEnded);
    /// R-POL-06: after the lease, existing tunnels go on.
    down_ended_live: Down, Ended, Live, false => Kept;
    /// R-POL-06: after the lease, no resume onto this relay.
    down_ended_resumed: Down, Ended, Resumed, false => Refused(LeaseEnded);
    /// R-REV-04: revocation covers new, live and resumed alike.
    up_valid_new_revoked: Up, Valid, New, true => Refused(Revoked);
    up_valid_live_revoked: Up, Valid, Live, true => Closed(Revoked);
    up_valid_resumed_revoked: Up, Valid, Resumed, true => Refused(Revoked);
    up_ended_new_revoked: Up, Ended, New, true => Refused(Revoked);
    up_ended_live_revoked: Up, Ended, Live, true => Closed(Revoked);
    up_ended_resumed_revoked: Up, Ended, Resumed, true => Refused(Revoked);
    down_valid_new_revoked: Down, Valid, New, true => Refused(Revoked);
    down_valid_live_revoked: Down, Valid, Live, true => Closed(Revoked);
    down_valid_resumed_revoked: Down, Valid, Resumed, true => Refused(Revoked);
    down_ended_new_revoked: Down, Ended, New, true => Refused(Revoked);
    down_ended_live_revoked: Down, Ended, Live, true => Closed(Revoked);
    down_ended_resumed_revoked: Down, Ended, Resumed, true => Refused(Revoked);
}

#[test]
fn a_relay_without_policy_admits_nothing() {
    let relay = RelayAdmission::new(RELAY, BOOT);
    assert_eq!(
        open(&relay, &grant(), false, START),
        Verdict::Refuse(RefusalCode::NoPolicy)
    );
    assert_eq!(relay.session_verdict(CONSUMER), Err(RefusalCode::NoPolicy));
    assert_eq!(
        relay.registration_verdict(PUBLISHER, ENDPOINT, Generation(3)),
        Err(RefusalCode::NoPolicy)
    );
    assert!(relay.grant_keys().is_empty() && relay.head().is_none());
    assert_eq!(relay.lease_state(START), LeaseState::Missing);
}

/// The endpoint, publisher and class come from policy, never from the asker.
#[test]
fn an_admitted_tunnel_leads_where_the_policy_says() {
    let Verdict::Admit(admitted) = open(&relay(), &grant(), false, START) else {
        panic!("not admitted");
    };
    assert_eq!((admitted.endpoint, admitted.publisher), (ENDPOINT, PUBLISHER));
    assert_eq!(admitted.class, ServiceClass::Database);
    assert_eq!(admitted.revision, Revision(10));
}

#[test]
fn a_grant_that_does_not_fit_is_refused() {
    let relay = relay();
    let bad = Verdict::Refuse(RefusalCode::BadGrant);
    let elsewhere = EndpointId::from_bytes([99; 16]);
    for grant in [
        Grant {
            consumer: STRANGER,
            ..grant()
        },
        Grant {
            publisher: STRANGER,
            ..grant()
        },
        Grant {
            endpoint: elsewhere,
            ..grant()
        },
    ] {
        assert_eq!(open(&relay, &grant, false, START), bad, "{grant:?}");
        assert_eq!(open(&relay, &grant, true, START), bad, "{grant:?}");
    }
    let grant = signed(&grant());
    let of = |consumer, route| {
        let claim = OpenClaim {
            consumer,
            route,
            ..claim(&grant)
        };
        relay.verdict(&claim, START)
    };
    // A grant for one route opens no other, and serves nobody but its consumer.
    assert_eq!(of(CONSUMER, NEW_ROUTE), bad);
    assert_eq!(of(PUBLISHER, ROUTE), bad);
    assert_eq!(of(STRANGER, ROUTE), Verdict::Refuse(RefusalCode::UnknownNode));
}

/// R-REV-04: a grant key that leaves the policy takes its grants with it, held ones included.
#[test]
fn a_revoked_key_ends_its_grants() {
    let old = SigningKey::from_seed(&[77; 32]);
    let grant = signed_by(&old, &grant());
    let with_both = RelayPolicy {
        grant_keys: Keyring::new([old.verifying_key(), crate::fixture::signer().verifying_key()]).unwrap(),
        ..relay_policy(1, 10)
    };
    assert!(matches!(
        relay_with(&with_both).verdict(&claim(&grant), START),
        Verdict::Admit(_)
    ));
    assert_eq!(
        relay().verdict(&claim(&grant), START),
        Verdict::Refuse(RefusalCode::BadGrant)
    );
}

/// R-REV-04: a node that leaves the policy loses its session and its tunnels, at either end.
#[test]
fn a_removed_node_loses_everything() {
    for (gone, left) in [(CONSUMER, PUBLISHER), (PUBLISHER, CONSUMER)] {
        let relay = relay_with(&RelayPolicy {
            nodes: vec![left],
            ..relay_policy(1, 10)
        });
        assert_eq!(relay.session_verdict(gone), Err(RefusalCode::UnknownNode));
        assert_eq!(relay.session_verdict(left), Ok(()));
        assert_eq!(
            relay.live_verdict(&tunnel(), START),
            LiveVerdict::Close(RefusalCode::UnknownNode)
        );
    }
}

/// R-ADM-01: live tunnels close on route or assignment change and for removed endpoints only.
#[test]
fn live_tunnels_close_when_their_route_changes() {
    let of = |policy: &RelayPolicy| relay_with(policy).live_verdict(&tunnel(), START);
    let mut newer = relay_policy(1, 11);
    newer.endpoints[0].generation = Generation(4);
    newer.endpoints[0].class = ServiceClass::Standard;
    assert_eq!(of(&newer), LiveVerdict::Keep);

    let closed = LiveVerdict::Close(RefusalCode::UnknownRoute);
    let mut without = relay_policy(1, 11);
    without.routes.clear();
    assert_eq!(of(&without), closed);
    let mut moved = relay_policy(1, 11);
    moved.endpoints[0].publisher = CONSUMER;
    assert_eq!(of(&moved), closed);
    let mut given_away = relay_policy(1, 11);
    given_away.routes[0].consumer = PUBLISHER;
    assert_eq!(of(&given_away), closed);
}

/// R-ADM-01, R-POL-10: the publisher registers its generation or an older one; a newer one than
/// policy has is told to wait.
#[test]
fn registrations_match_policy() {
    let relay = relay();
    let of = |node, endpoint, generation| relay.registration_verdict(node, endpoint, Generation(generation));
    let mismatch = Err(RefusalCode::RegistrationMismatch);
    assert_eq!(of(PUBLISHER, ENDPOINT, 3), Ok(()));
    assert_eq!(of(PUBLISHER, ENDPOINT, 2), Ok(()));
    assert_eq!(of(PUBLISHER, ENDPOINT, 4), mismatch);
    assert_eq!(of(CONSUMER, ENDPOINT, 3), mismatch);
    assert_eq!(of(PUBLISHER, EndpointId::from_bytes([99; 16]), 3), mismatch);
    assert_eq!(of(STRANGER, ENDPOINT, 3), Err(RefusalCode::UnknownNode));
}

/// R-ADM-01: the generation counts for new tunnels only.
#[test]
fn resume_ignores_the_generation() {
    let relay = relay();
    let of = |generation, resume| {
        let grant = Grant {
            generation: Generation(generation),
            ..grant()
        };
        open(&relay, &grant, resume, START)
    };
    assert_eq!(of(2, false), Verdict::Refuse(RefusalCode::GrantExpired));
    assert!(matches!(of(2, true), Verdict::Admit(_)));
    assert!(matches!(of(4, true), Verdict::Admit(_)));
}

/// R-POL-02: at the last instant of the lease a grant of 4/3 of it still holds, and no grant holds
/// beyond its end and the skew.
#[test]
fn a_grant_outlasts_the_lease_and_ends() {
    let relay = relay();
    let last = after(START, hours(72) - Duration::from_millis(1));
    assert!(matches!(open(&relay, &grant(), false, last), Verdict::Admit(_)));
    let short = Grant {
        not_after: START.wall.plus(hours(1)),
        ..grant()
    };
    let end = after(START, hours(1) + Duration::from_secs(60));
    assert_eq!(
        open(&relay, &short, false, end),
        Verdict::Refuse(RefusalCode::GrantExpired)
    );
    let early = Grant {
        not_before: START.wall.plus(Duration::from_secs(61)),
        ..grant()
    };
    assert_eq!(
        open(&relay, &early, false, START),
        Verdict::Refuse(RefusalCode::GrantNotYetValid)
    );
}

mod ahead {
    use super::*;

    fn ahead() -> Grant {
        Grant {
            route: NEW_ROUTE,
            revision: Revision(11),
            ..grant()
        }
    }

    fn held(grant: &Verified<Grant>, waited: Duration, held_by_consumer: usize) -> OpenClaim<'_> {
        OpenClaim {
            waited,
            held_by_consumer,
            ..claim(grant)
        }
    }

    /// R-POL-10: a grant ahead of policy waits up to 10 s, at most 16 of one node.
    #[test]
    fn a_grant_ahead_of_policy_is_held_within_bounds() {
        let relay = relay();
        let grant = signed(&ahead());
        let of = |waited, others| relay.verdict(&held(&grant, waited, others), START);
        assert_eq!(of(Duration::ZERO, 0), Verdict::Hold(HOLD_MAX));
        let almost = HOLD_MAX - Duration::from_millis(1);
        assert_eq!(of(almost, 15), Verdict::Hold(Duration::from_millis(1)));
        assert_eq!(of(HOLD_MAX, 0), Verdict::Refuse(RefusalCode::GrantAheadOfPolicy));
        assert_eq!(of(Duration::ZERO, 16), Verdict::Refuse(RefusalCode::TooMany));
    }

    #[test]
    fn the_policy_that_comes_in_time_admits_it() {
        let grant = signed(&ahead());
        let mut policy = relay_policy(1, 11);
        policy.routes.push(PolicyRoute {
            route: NEW_ROUTE,
            consumer: CONSUMER,
            endpoint: ENDPOINT,
        });
        let policy = signed(&policy);
        let lease = signed(&lease(&policy, 2));
        let relay = next(relay().apply_policy(policy, lease, START));
        let verdict = relay.verdict(&held(&grant, Duration::from_secs(9), 15), START);
        assert!(matches!(verdict, Verdict::Admit(_)), "{verdict:?}");
    }

    /// R-REV-04: held claims are revoked too; and a route the policy does not know, of its own age
    /// or older, is not waited for.
    #[test]
    fn only_what_is_newer_than_the_policy_is_held() {
        let revoking = relay_with(&RelayPolicy {
            revoked_routes: vec![NEW_ROUTE],
            ..relay_policy(1, 10)
        });
        assert_eq!(
            open(&revoking, &ahead(), false, START),
            Verdict::Refuse(RefusalCode::Revoked)
        );
        let old = Grant {
            revision: Revision(10),
            ..ahead()
        };
        let older_epoch = Grant {
            epoch: PolicyEpoch(0),
            ..ahead()
        };
        for grant in [old, older_epoch] {
            assert_eq!(
                open(&relay(), &grant, false, START),
                Verdict::Refuse(RefusalCode::UnknownRoute)
            );
        }
    }

    /// A newer generation is waited for just so.
    #[test]
    fn a_newer_generation_is_held() {
        let of = |revision| {
            let grant = Grant {
                generation: Generation(4),
                revision: Revision(revision),
                ..grant()
            };
            open(&relay(), &grant, false, START)
        };
        assert_eq!(of(11), Verdict::Hold(HOLD_MAX));
        assert_eq!(of(10), Verdict::Refuse(RefusalCode::GrantAheadOfPolicy));
    }

    #[test]
    fn nothing_is_held_once_the_lease_has_ended() {
        assert_eq!(
            open(&relay(), &ahead(), false, after(START, hours(73))),
            Verdict::Refuse(RefusalCode::LeaseEnded)
        );
    }
}

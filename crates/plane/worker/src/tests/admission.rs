//! Who gets a tunnel, and who does not, with which code.

use super::pool::{ALPHA, BETA, ENDPOINT, Node, Pool, RELAY, ROUTE, answer, code, soon, wall};
use bytes::Bytes;
use fairlead_hop::{Answer, Frame, Hello, LegKind, Open, VERSION};
use fairlead_model::{EndpointId, Generation, Identity, NodeId, PolicyEpoch, RefusalCode, RouteId};
use fairlead_rpc::pb;
use fairlead_transport::{CarrierConfig, CarrierEnd, Dialler, LegError};
use fairlead_trust::{PayloadType, PolicyEndpoint, PolicyRoute, SigningKey, seal};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// R-ADM-05: every refusal has its code.
#[tokio::test]
async fn refusals_have_their_codes() {
    let pool = Pool::new();
    let (worker, alpha, beta) = pool.ready().await;
    let with = |grant: Bytes| Open { grant, ..pool.open() };
    let foreign = {
        let key = SigningKey::from_seed(&[66; 32]);
        let payload = fairlead_rpc::signed::encode_grant(&fairlead_trust::Grant {
            consumer: ALPHA,
            publisher: BETA,
            endpoint: ENDPOINT,
            route: ROUTE,
            generation: Generation(1),
            epoch: fairlead_model::PolicyEpoch(1),
            revision: fairlead_model::Revision(1),
            not_before: wall(),
            not_after: wall().plus(HOUR),
        });
        seal(&key, PayloadType::Grant, &payload).unwrap()
    };
    let other_route = RouteId::from_bytes([0x99; 16]);
    for (open, want) in [
        (with(Bytes::from_static(b"nonsense")), RefusalCode::BadGrant),
        (with(foreign), RefusalCode::BadGrant),
        (with(pool.grant(1, |g| g.consumer = BETA)), RefusalCode::BadGrant),
        (
            with(pool.grant(1, |g| g.route = other_route)),
            RefusalCode::BadGrant,
        ),
        (
            Open {
                route: other_route,
                ..with(pool.grant(1, |g| g.route = other_route))
            },
            RefusalCode::UnknownRoute,
        ),
        (
            with(pool.grant(1, |g| {
                g.not_before = wall().minus(2 * HOUR);
                g.not_after = wall().minus(HOUR);
            })),
            RefusalCode::GrantExpired,
        ),
        (
            with(pool.grant(1, |g| g.not_before = wall().plus(HOUR))),
            RefusalCode::GrantNotYetValid,
        ),
    ] {
        assert_eq!(code(alpha.open(open).await), want);
    }
    // The route is alpha's; beta cannot use alpha's grant.
    assert_eq!(code(beta.open(pool.open()).await), RefusalCode::BadGrant);
    // Nobody serves it any more.
    beta.want(&[]);
    let begun = Instant::now();
    while !worker.scrape().await.contains("fairlead_registrations 0") {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::NotRegistered);
}

/// F-08: an endpoint that its publisher, who is here, has not asked for within 10 s is unknown for good;
/// until then it may be on its way (R-NOD-02), and whenever it comes it is served.
#[tokio::test]
async fn an_endpoint_that_nobody_asks_for_is_unknown() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let policy = pool.policy(1);
    worker.apply(pool.signed(&policy, 1, HOUR)).await.unwrap();
    let alpha = Node::connect(&pool, worker.address, ALPHA).await;
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::NotRegistered);
    let begun = Instant::now();
    let beta = Node::connect(&pool, worker.address, BETA).await;
    loop {
        match code(alpha.open(pool.open()).await) {
            RefusalCode::NotRegistered => tokio::time::sleep(Duration::from_millis(50)).await,
            other => break assert_eq!(other, RefusalCode::UnknownEndpoint),
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    assert!(
        begun.elapsed() >= Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    // A publisher whose registration is refused does publish it.
    beta.want(&[(ENDPOINT, 7)]);
    assert_eq!(beta.refused(ENDPOINT).await, RefusalCode::RegistrationMismatch);
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::NotRegistered);
    beta.publish(&[(ENDPOINT, 1)]).await;
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    opened.unwrap();
    // A renewed lease is no new policy, a new revision begins the wait anew.
    beta.want(&[]);
    worker.apply(pool.signed(&policy, 2, HOUR)).await.unwrap();
    let begun = Instant::now();
    while code(alpha.open(pool.open()).await) != RefusalCode::UnknownEndpoint {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    worker.apply(pool.signed(&pool.policy(2), 3, HOUR)).await.unwrap();
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::NotRegistered);
}

/// A relay that knows no policy admits nothing, and says why.
#[tokio::test]
async fn without_a_policy_nothing_is_admitted() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let alpha = Node::connect(&pool, worker.address, ALPHA).await;
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::NoPolicy);
    alpha.want(&[(ENDPOINT, 1)]);
    assert_eq!(alpha.refused(ENDPOINT).await, RefusalCode::NoPolicy);
    assert_eq!(worker.status().await.applied, None);
}

/// R-POL-06: after the lease's end live tunnels go on, and nothing new comes.
#[tokio::test]
async fn after_the_lease_tunnels_go_on() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let signed = pool.signed(&pool.policy(1), 1, Duration::from_secs(2));
    worker.apply(signed).await.unwrap();
    let alpha = Node::connect(&pool, worker.address, ALPHA).await;
    let beta = Node::connect(&pool, worker.address, BETA).await;
    beta.publish(&[(ENDPOINT, 1)]).await;
    let (near, (_, mut far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let mut near = near.unwrap();
    let begun = Instant::now();
    while worker.scrape().await.contains("lease_left_seconds 1") || begun.elapsed() < Duration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let resumed = Open {
        resume: true,
        ..pool.open()
    };
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::LeaseEnded);
    assert_eq!(code(alpha.open(resumed).await), RefusalCode::LeaseEnded);
    near.send.write_all(b"still here").await.unwrap();
    let mut word = [0; 10];
    soon(far.recv.read_exact(&mut word)).await.unwrap();
    // A renewed lease admits again.
    let signed = pool.signed(&pool.policy(2), 2, HOUR);
    worker.apply(signed).await.unwrap();
    let (again, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    assert!(again.is_ok());
}

/// R-REV-01: a policy that revokes a route closes its tunnels, and only its.
#[tokio::test]
async fn revocation_closes_the_routes_tunnels_only() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let other = RouteId::from_bytes([0x22; 16]);
    let mut policy = pool.policy(2);
    policy.routes.push(PolicyRoute {
        route: other,
        consumer: ALPHA,
        endpoint: ENDPOINT,
    });
    worker.apply(pool.signed(&policy, 2, HOUR)).await.unwrap();
    let (doomed, (_, mut doomed_far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let mut doomed = doomed.unwrap();
    let keep = Open {
        route: other,
        grant: pool.grant(2, |g| g.route = other),
        ..pool.open()
    };
    let (kept, (_, mut kept_far)) = tokio::join!(alpha.open(keep), beta.accept());
    let mut kept = kept.unwrap();
    let pending = alpha.begin(pool.open()).await;
    let (_, _unanswered) = beta.incoming().await;

    let mut policy = pool.policy(3);
    policy.routes[0].route = other;
    policy.revoked_routes = vec![ROUTE];
    let begun = Instant::now();
    worker.apply(pool.signed(&policy, 3, HOUR)).await.unwrap();
    let mut chunks = [Bytes::new()];
    for end in [
        soon(doomed.recv.read_chunks(&mut chunks)).await,
        soon(doomed_far.recv.read_chunks(&mut chunks)).await,
    ] {
        assert_eq!(end, Err(LegError::Reset(RefusalCode::Revoked.into())));
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    // One that was still unanswered is refused.
    let mut pending = pending;
    assert_eq!(answer(&mut pending).await.unwrap_err().code, RefusalCode::Revoked);
    kept.send.write_all(b"x").await.unwrap();
    let mut one = [0];
    soon(kept_far.recv.read_exact(&mut one)).await.unwrap();
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::Revoked);
    assert!(
        worker
            .scrape()
            .await
            .contains("fairlead_tunnels_closed_total{code=\"REVOKED\"} 2")
    );
}

/// R-POL-10: a grant ahead of its policy waits for it, within bounds.
#[tokio::test]
async fn a_grant_ahead_of_policy_is_held() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let new = RouteId::from_bytes([0x31; 16]);
    let ahead = || Open {
        route: new,
        grant: pool.grant(2, |g| g.route = new),
        ..pool.open()
    };
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(alpha.begin(ahead()).await);
    }
    // Four of them are one too many each; which ones is the scheduler's choice.
    let begun = Instant::now();
    while !worker
        .scrape()
        .await
        .contains("fairlead_opens_refused_total{code=\"TOO_MANY\"} 4")
    {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    let mut policy = pool.policy(2);
    policy.routes.push(PolicyRoute {
        route: new,
        consumer: ALPHA,
        endpoint: ENDPOINT,
    });
    worker.apply(pool.signed(&policy, 2, HOUR)).await.unwrap();
    let answers = async {
        let mut refused = 0;
        for leg in &mut held {
            if let Err(refusal) = answer(leg).await {
                assert_eq!(refusal.code, RefusalCode::TooMany);
                refused += 1;
            }
        }
        assert_eq!(refused, 4);
    };
    let accepts = async {
        let mut legs = Vec::new();
        for _ in 0..16 {
            legs.push(beta.accept().await);
        }
        legs
    };
    let ((), _legs) = soon(async { tokio::join!(answers, accepts) }).await;
    // One whose policy does not come is told so after 10 s.
    let never = Open {
        route: RouteId::from_bytes([0x32; 16]),
        grant: pool.grant(9, |g| g.route = RouteId::from_bytes([0x32; 16])),
        ..pool.open()
    };
    let begun = Instant::now();
    let refused = code(alpha.open(never).await);
    assert_eq!(refused, RefusalCode::GrantAheadOfPolicy);
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(9) && took < Duration::from_secs(12),
        "{took:?}"
    );
}

/// A publisher's refusal reaches the consumer as it is; silence has its own code.
#[tokio::test]
async fn a_publishers_answer_is_passed_on() {
    let pool = Pool::new();
    let (worker, alpha, beta) = pool.ready().await;
    let refusing = async {
        let (_, mut leg) = beta.incoming().await;
        let refusal = RefusalCode::UnknownAssociation.into();
        leg.send
            .write_frame(&Frame::Answer(Answer::Refused(refusal)))
            .await
            .unwrap();
        leg.send.finish();
        leg
    };
    let (refused, _leg) = tokio::join!(alpha.open(pool.open()), refusing);
    assert_eq!(code(refused), RefusalCode::UnknownAssociation);
    let begun = Instant::now();
    let (silent, _leg) = tokio::join!(alpha.open(pool.open()), beta.incoming());
    assert_eq!(code(silent), RefusalCode::PublisherUnreachable);
    assert!(begun.elapsed() < Duration::from_secs(7));
    let page = worker.scrape().await;
    assert!(
        page.contains("fairlead_opens_failed_total{reason=\"publisher_refused\"} 1"),
        "{page}"
    );
    assert!(page.contains("fairlead_opens_failed_total{reason=\"publisher_unreachable\"} 1"));
}

/// R-ADM-03: an announced restart has its own code and a retry-after; back again, it serves.
#[tokio::test]
async fn an_announced_restart_is_told() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    beta.announce_restart();
    // The relay has the frame before it has the close, by the order of the control stream.
    tokio::time::sleep(Duration::from_millis(200)).await;
    beta.carrier.close(RefusalCode::ShuttingDown);
    worker.until(|s| s.hop_sessions == 1).await;
    let Err(refusal) = alpha.open(pool.open()).await else {
        panic!("it was admitted");
    };
    assert_eq!(refusal.code, RefusalCode::EndpointRestarting);
    let after = refusal.retry_after.expect("a retry-after");
    assert!(
        after > Duration::from_secs(10) && after <= Duration::from_secs(15),
        "{after:?}"
    );
    let beta = Node::connect(&pool, worker.address, BETA).await;
    beta.publish(&[(ENDPOINT, 1)]).await;
    let (again, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    assert!(again.is_ok());
}

/// R-ADM-04: the newer session's registration wins, whatever the old one says later.
#[tokio::test]
async fn the_newer_registration_wins() {
    let pool = Pool::new();
    let (_worker, alpha, old) = pool.ready().await;
    let new = Node::connect(&pool, _worker.address, BETA).await;
    new.publish(&[(ENDPOINT, 1)]).await;
    old.want(&[]);
    old.carrier.close(RefusalCode::ShuttingDown);
    for _ in 0..5 {
        let (opened, _far) = tokio::join!(alpha.open(pool.open()), new.accept());
        assert!(opened.is_ok());
    }
}

/// R-NOD-02's ground: a daemon that was killed and started again does not keep opens waiting for
/// its dead run; sessions of one run leave each other alone.
#[tokio::test]
async fn a_new_run_ends_the_sessions_of_the_dead_one() {
    let pool = Pool::new();
    let (worker, alpha, dead) = pool.ready().await;
    // Sent to a run that never answers: its host is silent, not its connection closed.
    let mut waiting = alpha.begin(pool.open()).await;
    let (_, _unanswered) = dead.incoming().await;
    let sibling = Node::connect(&pool, worker.address, BETA).await;
    assert_eq!(dead.carrier.end(), None);
    let begun = Instant::now();
    let run = fairlead_model::ProcessBootId::from_bytes([2; 16]);
    let new = Node::connect_run(&pool, worker.address, BETA, run).await.unwrap();
    for earlier in [&dead, &sibling] {
        earlier.closed_by(RefusalCode::ShuttingDown).await;
    }
    let refused = answer(&mut waiting).await.unwrap_err();
    assert_eq!(refused.code, RefusalCode::PublisherUnreachable);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    new.publish(&[(ENDPOINT, 1)]).await;
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), new.accept());
    assert!(opened.is_ok());
}

/// R-ENR-10: the greeting of a run that is dead comes after its successor's: that session ends, the
/// successor's stays and serves, and nobody is taken for a copy, then or when the successor dials again.
#[tokio::test]
async fn a_dead_runs_late_greeting_ends_its_own_session() {
    let pool = Pool::new();
    let (mut worker, alpha, _first) = pool.ready().await;
    let dialler = Dialler::new(pool.member(Identity::Node(BETA)), &CarrierConfig::default()).unwrap();
    let late = soon(dialler.dial(&worker.address.into(), Identity::Relay(RELAY)))
        .await
        .unwrap();
    let run = fairlead_model::ProcessBootId::from_bytes([2; 16]);
    let next = Node::connect_run(&pool, worker.address, BETA, run).await.unwrap();
    next.publish(&[(ENDPOINT, 1)]).await;

    let mut control = late.open_leg().await.unwrap();
    let hello = Frame::Hello(Hello {
        version_min: VERSION,
        version_max: VERSION,
        session: fairlead_model::SessionId::from_bytes([9; 16]),
        process_boot: fairlead_model::ProcessBootId::from_bytes([1; 16]),
        software: "test".to_owned(),
        capabilities: Vec::new(),
    });
    control.send.write_frame(&hello).await.unwrap();
    let end = soon(late.closed()).await;
    assert_eq!(end, CarrierEnd::Peer(RefusalCode::ShuttingDown.into()));

    let (opened, _far) = tokio::join!(alpha.open(pool.open()), next.accept());
    assert!(opened.is_ok());
    let again = Node::connect_run(&pool, worker.address, BETA, run).await.unwrap();
    again.publish(&[(ENDPOINT, 1)]).await;
    assert_eq!(again.carrier.end(), None);
    assert_eq!(worker.status().await.cloned_nodes, []);
}

/// R-ADM-01: tunnels and registration of an old generation stay until the new one registers.
#[tokio::test]
async fn an_old_generation_serves_until_the_new_one_registers() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let (live, (_, mut live_far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let mut live = live.unwrap();
    let mut policy = pool.policy(2);
    policy.endpoints[0].generation = Generation(2);
    worker.apply(pool.signed(&policy, 2, HOUR)).await.unwrap();
    let newer = || Open {
        grant: pool.grant(2, |g| g.generation = Generation(2)),
        ..pool.open()
    };
    let (opened, _far) = tokio::join!(alpha.open(newer()), beta.accept());
    assert!(opened.is_ok());
    beta.publish(&[(ENDPOINT, 2)]).await;
    let (opened, _far) = tokio::join!(alpha.open(newer()), beta.accept());
    assert!(opened.is_ok());
    live.send.write_all(b"x").await.unwrap();
    let mut one = [0];
    soon(live_far.recv.read_exact(&mut one)).await.unwrap();
}

/// R-POL-10: an endpoint that leaves the policy and comes back, which its daemon hears nothing of: it is
/// told that its registration is gone, and registers again by itself.
#[tokio::test]
async fn a_registration_that_policy_dropped_comes_back_with_it() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    let mut without = pool.policy(2);
    without.endpoints.clear();
    without.routes.clear();
    worker.apply(pool.signed(&without, 2, HOUR)).await.unwrap();
    assert_eq!(beta.refused(ENDPOINT).await, RefusalCode::RegistrationMismatch);
    worker.apply(pool.signed(&pool.policy(3), 3, HOUR)).await.unwrap();
    beta.publish(&[(ENDPOINT, 1)]).await;
    let open = Open {
        grant: pool.grant(3, |_| ()),
        ..pool.open()
    };
    let (opened, _far) = tokio::join!(alpha.open(open), beta.accept());
    assert!(opened.is_ok());
}

/// R-REV-04: a grant that was good a moment ago is not once its key is gone from policy.
#[tokio::test]
async fn a_grant_is_forgotten_with_its_key() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    for _ in 0..2 {
        let (opened, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
        assert!(opened.is_ok());
    }
    let mut policy = pool.policy(2);
    let other = SigningKey::from_seed(&[91; 32]);
    policy.grant_keys = fairlead_trust::Keyring::new([other.verifying_key()]).unwrap();
    worker.apply(pool.signed(&policy, 2, HOUR)).await.unwrap();
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::BadGrant);
}

/// Bounds per node are policy's, and hitting them has its code.
#[tokio::test]
async fn bounds_per_node_hold() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let mut policy = pool.policy(1);
    policy.settings.legs_per_node_max = 5;
    policy.settings.pending_opens_per_node_max = 3;
    worker.apply(pool.signed(&policy, 1, HOUR)).await.unwrap();
    let alpha = Node::connect(&pool, worker.address, ALPHA).await;
    let beta = Node::connect(&pool, worker.address, BETA).await;
    beta.publish(&[(ENDPOINT, 1)]).await;
    let mut pending = Vec::new();
    for _ in 0..3 {
        pending.push((alpha.begin(pool.open()).await, beta.incoming().await));
    }
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::TooMany);
    let mut live = Vec::new();
    for (mut leg, (_, mut far)) in pending {
        far.send.write_frame(&Frame::Answer(Answer::Ok)).await.unwrap();
        answer(&mut leg).await.unwrap();
        live.push((leg, far));
    }
    for _ in 0..2 {
        let (leg, (_, far)) = tokio::join!(alpha.open(pool.open()), beta.accept());
        live.push((leg.unwrap(), far));
    }
    assert_eq!(code(alpha.open(pool.open()).await), RefusalCode::TooMany);
    // A tunnel's end gives its place back.
    drop(live.pop());
    worker.until(|s| s.live_tunnels == 4).await;
    let (leg, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    assert!(leg.is_ok());
}

/// A member has a bounded number of sessions: the oldest goes.
#[tokio::test]
async fn a_members_oldest_session_goes() {
    let pool = Pool::new();
    let (mut worker, first, _beta) = pool.ready().await;
    let mut later = Vec::new();
    for _ in 0..4 {
        later.push(Node::connect(&pool, worker.address, ALPHA).await);
    }
    first.closed_by(RefusalCode::TooMany).await;
    worker.until(|s| s.hop_sessions == 5).await;
    assert!(later.iter().all(|node| node.carrier.end().is_none()));
}

/// A node that policy does not name is let go when it was removed, at once; one that has just come
/// may wait for its policy.
#[tokio::test]
async fn unlisted_nodes_leave() {
    let pool = Pool::new();
    let (mut worker, alpha, _beta) = pool.ready().await;
    let new = NodeId::from_bytes([0xc3; 16]);
    let gamma = Node::connect(&pool, worker.address, new).await;
    let mut policy = pool.policy(2);
    policy.nodes = vec![BETA, new];
    policy.routes.clear();
    policy.endpoints.push(PolicyEndpoint {
        endpoint: EndpointId::from_bytes([0xe2; 16]),
        generation: Generation(1),
        publisher: new,
        class: fairlead_model::ServiceClass::Standard,
    });
    worker.apply(pool.signed(&policy, 2, HOUR)).await.unwrap();
    assert_eq!(alpha.dismissed().await, RefusalCode::UnknownNode);
    soon(alpha.carrier.closed()).await;
    gamma.publish(&[(EndpointId::from_bytes([0xe2; 16]), 1)]).await;
    // A registration of another's endpoint is refused.
    gamma.want(&[(ENDPOINT, 1)]);
    assert_eq!(gamma.refused(ENDPOINT).await, RefusalCode::RegistrationMismatch);
}

/// R-ENR-07: another relay's supervisor may probe; it gets no tunnel.
#[tokio::test]
async fn relays_may_probe_and_nothing_else() {
    let pool = Pool::new();
    let (worker, _alpha, _beta) = pool.ready().await;
    let other = Identity::Relay(fairlead_model::RelayId::from_bytes([2; 16]));
    let dialler = Dialler::new(pool.member(other), &CarrierConfig::default()).unwrap();
    let address = worker.address.into();
    let report = soon(fairlead_transport::probe(&dialler, &address, super::pool::RELAY))
        .await
        .unwrap();
    assert!(report.rtt < Duration::from_secs(1));
    let carrier = soon(dialler.dial(&address, Identity::Relay(super::pool::RELAY)))
        .await
        .unwrap();
    let mut control = carrier.open_leg().await.unwrap();
    let hello = Frame::Hello(fairlead_hop::Hello {
        version_min: VERSION,
        version_max: VERSION,
        session: fairlead_model::SessionId::from_bytes([1; 16]),
        process_boot: fairlead_model::ProcessBootId::from_bytes([1; 16]),
        software: String::new(),
        capabilities: Vec::new(),
    });
    control.send.write_frame(&hello).await.unwrap();
    assert!(matches!(
        soon(control.recv.read_frame()).await.unwrap(),
        Some(Frame::HelloOk(_))
    ));
    for kind in [LegKind::Stream, LegKind::Pair] {
        let mut leg = carrier.open_leg().await.unwrap();
        let open = Frame::Open(Open { kind, ..pool.open() });
        leg.send.write_frame(&open).await.unwrap();
        assert_eq!(answer(&mut leg).await.unwrap_err().code, RefusalCode::UnknownNode);
    }
}

/// A peer that breaks the protocol loses its session or its leg, and nobody else does.
#[tokio::test]
async fn protocol_breakers_lose_only_what_is_theirs() {
    let pool = Pool::new();
    let (worker, alpha, beta) = pool.ready().await;
    // A leg that begins with another frame than OPEN.
    let mut leg = alpha.carrier.open_leg().await.unwrap();
    leg.send.write_frame(&Frame::Restarting).await.unwrap();
    let mut chunks = [Bytes::new()];
    let end = soon(leg.recv.read_chunks(&mut chunks)).await.unwrap_err();
    assert_eq!(end, LegError::Reset(RefusalCode::Protocol.into()));
    // A control stream that does.
    let dialler = Dialler::new(pool.member(Identity::Node(ALPHA)), &CarrierConfig::default()).unwrap();
    let carrier = soon(dialler.dial(&worker.address.into(), Identity::Relay(super::pool::RELAY)))
        .await
        .unwrap();
    let mut control = carrier.open_leg().await.unwrap();
    control.send.write_frame(&Frame::Restarting).await.unwrap();
    assert_eq!(
        soon(carrier.closed()).await,
        CarrierEnd::Peer(RefusalCode::Protocol.into())
    );
    let (opened, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    assert!(opened.is_ok());
}

/// R-POL-04: documents that are older, of other content, or of another signer are refused by name.
#[tokio::test]
async fn older_and_forged_policies_are_refused() {
    let pool = Pool::new();
    let (mut worker, _alpha, _beta) = pool.ready().await;
    worker.apply(pool.signed(&pool.policy(5), 5, HOUR)).await.unwrap();
    let mut other_content = pool.policy(5);
    other_content.routes.clear();
    let mut forged = pool.signed(&pool.policy(6), 6, HOUR);
    let forger = SigningKey::from_seed(&[13; 32]);
    let payload = fairlead_rpc::signed::encode_relay_policy(&pool.policy(6));
    forged.policy_envelope = seal(&forger, PayloadType::RelayPolicy, &payload).unwrap();
    for (signed, why) in [
        (pool.signed(&pool.policy(4), 6, HOUR), "revision 4 is below 5"),
        (pool.signed(&other_content, 6, HOUR), "has root"),
        (forged, "cannot be verified"),
        (pb::SignedPolicy::default(), "cannot be verified"),
    ] {
        let refused = worker.apply(signed).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
        let status = worker.status().await;
        assert_eq!(status.policy_refused, refused);
        assert_eq!(status.applied.unwrap().revision, 5);
    }
}

/// R-POL-05: a worker whose clock is behind what was signed says by how much, for as long as it is.
#[tokio::test]
async fn a_clock_behind_what_was_signed_is_reported() {
    let pool = Pool::new();
    let (mut worker, _alpha, _beta) = pool.ready().await;
    assert_eq!(worker.status().await.clock_behind_ms, 0);
    // To the worker, a control plane an hour ahead is its own clock set back by an hour.
    let mut ahead = pool.policy(2);
    ahead.issued_at = wall().plus(HOUR);
    worker.apply(pool.signed(&ahead, 2, HOUR)).await.unwrap();
    let behind = Duration::from_millis(worker.status().await.clock_behind_ms);
    assert!(
        behind > HOUR - Duration::from_secs(30) && behind <= HOUR,
        "{behind:?}"
    );
    // A new reign's clock is believed over the old one's.
    let mut right = pool.policy(3);
    right.epoch = PolicyEpoch(2);
    worker.apply(pool.signed(&right, 1, HOUR)).await.unwrap();
    assert_eq!(worker.status().await.clock_behind_ms, 0);
}

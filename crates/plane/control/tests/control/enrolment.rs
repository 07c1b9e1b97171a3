//! One-shot tokens: who may use one, how often, and what a refusal says.

use crate::fixture::{FROM, Member, Plane, request};
use fairlead_control::api::{AddRelay, AddToken, MemberRole, RelayState};
use fairlead_host::Clock;
use fairlead_model::{ApiCode, WallTime};
use rcgen::KeyPair;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Rounds of F-14.
const ROUNDS: usize = 100;
/// Hosts of a round.
const HOSTS: usize = 50;

/// F-14, R-ENR-02: one token, fifty hosts at the same moment, again and again: exactly one success
/// each, 49 typed refusals, all audited.
#[tokio::test(flavor = "multi_thread")]
async fn f14_one_token_fifty_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let keys: Vec<KeyPair> = (0..HOSTS).map(|_| KeyPair::generate().unwrap()).collect();
    let mut after = plane.control.status().await.audit_seq;
    for round in 0..ROUNDS {
        let name = format!("node-{round}");
        let token = plane.control.add_node(&plane.admin, &name).await.unwrap().token;
        let mut hosts = JoinSet::new();
        for (host, key) in keys.iter().enumerate() {
            let request = request(&plane, "node", &token, &format!("host-{host}"), key);
            let control = plane.control.clone();
            hosts.spawn(async move { control.enrol(request, FROM).await });
        }
        let results = hosts.join_all().await;
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "round {round}");
        assert_eq!(lost.len(), HOSTS - 1);
        for refused in lost {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code, ApiCode::TokenOtherHost, "{refused:?}");
        }
        let entries = plane.control.audit(after, 1000).await.unwrap();
        let of = |action: &str| {
            entries
                .iter()
                .filter(|e| e.action == action && e.object.ends_with(&name))
                .count()
        };
        assert_eq!((of("node.enrol"), of("enrol.refused")), (1, HOSTS - 1));
        after = entries.last().unwrap().seq;
    }
    assert!(plane.control.verify_audit().await.unwrap() >= u64::try_from(ROUNDS * HOSTS).unwrap());
    plane.stop().await;
}

/// R-ENR-02: a reply that was lost is asked for again by the same key from the same host.
#[tokio::test]
async fn a_lost_reply_is_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let token = plane.control.add_node(&plane.admin, "alpha").await.unwrap().token;
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let first = plane
        .control
        .enrol(request(&plane, "node", &token, "a", &key), FROM)
        .await
        .unwrap();
    let again = plane
        .control
        .enrol(request(&plane, "node", &token, "a", &key), FROM)
        .await
        .unwrap();
    assert_eq!(first.identity, again.identity);
    let code = async |host: &str, key: &KeyPair| {
        let request = request(&plane, "node", &token, host, key);
        plane.control.enrol(request, FROM).await.unwrap_err().code
    };
    assert_eq!(code("a", &other).await, ApiCode::TokenUsed);
    assert_eq!(code("b", &key).await, ApiCode::TokenOtherHost);
    plane.stop().await;
}

/// Where a relay may listen is not where nodes reach it: 0.0.0.0 is refused as its address.
#[tokio::test]
async fn an_address_of_no_host_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    for address in ["0.0.0.0", "0.0.0.0:9443", "[::]:9443"] {
        let input = AddRelay {
            name: "one".to_owned(),
            address: address.to_owned(),
            ..AddRelay::default()
        };
        let refused = plane.control.add_relay(&plane.admin, input).await.unwrap_err();
        let fault = refused.faults.first().unwrap();
        assert_eq!(fault.field, "address", "{refused}");
        assert!(fault.message.contains("no host's address"), "{}", fault.message);
    }
    plane.stop().await;
}

/// R-ENR-01: an address that only the relay's own host reaches is refused by its field, except in a lab,
/// whose pool is on one host.
#[tokio::test]
async fn a_loopback_address_is_taken_in_a_lab_only() {
    let input = |address: &str| AddRelay {
        name: "one".to_owned(),
        address: address.to_owned(),
        ..AddRelay::default()
    };
    let addresses = [
        "127.0.0.1",
        "127.8.9.10:9443",
        "[::1]:9443",
        "[::ffff:127.0.0.1]:9443",
        "localhost",
        "a.LocalHost:1",
    ];
    for lab in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let plane = Plane::start_with(dir.path(), lab, Arc::default()).await;
        for address in addresses {
            let added = plane.control.add_relay(&plane.admin, input(address)).await;
            if lab {
                // It listens on its own address alone: the host's other relays have others.
                let command = added.unwrap().install_command;
                let is_ip = address.starts_with(['1', '[']);
                assert_eq!(command.contains(" --listen "), is_ip, "{command}");
                assert!(!is_ip || command.contains(address), "{command}");
                plane.control.remove_relay(&plane.admin, "one").await.unwrap();
                continue;
            }
            let refused = added.unwrap_err();
            assert_eq!(refused.code, ApiCode::InvalidRequest);
            let fault = refused.faults.first().unwrap();
            assert_eq!(fault.field, "address", "{refused}");
            for words in ["own host only", "`--lab`"] {
                assert!(fault.message.contains(words), "{}", fault.message);
            }
        }
        // Nothing was added, and an address of the network is taken.
        let added = plane.control.add_relay(&plane.admin, input("192.0.2.1")).await;
        assert!(!added.unwrap().install_command.contains("--listen"));
        plane.stop().await;
    }
}

/// R-ENR-01, R-ENR-02, R-POL-05: each refusal has its own code and says what is wrong; the token
/// stays usable.
#[tokio::test]
async fn refusals_have_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let issued = plane.control.add_node(&plane.admin, "alpha").await.unwrap();
    let key = KeyPair::generate().unwrap();
    let good = request(&plane, "node", &issued.token, "a", &key);
    let refused = async |change: &dyn Fn(&mut fairlead_control::api::EnrolRequest)| {
        let mut bad = good.clone();
        change(&mut bad);
        plane.control.enrol(bad, FROM).await.unwrap_err()
    };
    let unknown = refused(&|r| r.token = "never-issued".to_owned()).await;
    assert_eq!(unknown.code, ApiCode::TokenUnknown);
    // The other kind of token is told as such.
    let input = AddToken {
        name: "ci".to_owned(),
        scopes: vec!["read".to_owned()],
    };
    let admin = plane.control.add_token(&plane.admin, input).await.unwrap();
    let mixed_up = refused(&|r| r.token.clone_from(&admin.secret)).await;
    assert_eq!(mixed_up.code, ApiCode::TokenUnknown);
    assert!(mixed_up.message.contains("admin token"), "{mixed_up}");
    assert!(!unknown.message.contains("admin token"), "{unknown}");
    let other = refused(&|r| r.role = "relay".to_owned()).await;
    assert_eq!(other.code, ApiCode::TokenOtherMember);
    let day = Duration::from_secs(86_400);
    let skewed = refused(&|r| r.wall_clock = r.wall_clock.map(|at| WallTime::plus(at, day))).await;
    assert_eq!(skewed.code, ApiCode::ClockSkew);
    assert!(
        skewed.message.contains("clock differs by") && skewed.message.contains("ahead of"),
        "{skewed}"
    );
    let bad = refused(&|r| r.csr_pem = "no request".to_owned()).await;
    assert_eq!(bad.code, ApiCode::BadCsr);
    let many = refused(&|r| {
        r.token = String::new();
        r.role = "king".to_owned();
        r.host_fingerprint.clear();
        r.wall_clock = None;
    })
    .await;
    let fields: Vec<&str> = many.faults.iter().map(|f| f.field.as_str()).collect();
    for field in ["token", "role", "host_fingerprint", "wall_clock"] {
        assert!(fields.contains(&field), "{field} is not in {fields:?}");
    }
    // Replaced by a newer one.
    let newer = plane
        .control
        .reissue(&plane.admin, MemberRole::Node, "alpha")
        .await
        .unwrap();
    assert_eq!(refused(&|_| {}).await.code, ApiCode::TokenUnknown);
    let mut with_newer = request(&plane, "node", &newer.token, "a", &key);
    plane.clock.pass(Duration::from_secs(24 * 3600));
    with_newer.wall_clock = Some(plane.clock.wall());
    let expired = plane.control.enrol(with_newer, FROM).await.unwrap_err();
    assert_eq!(expired.code, ApiCode::TokenExpired);
    plane.stop().await;
}

/// R-ENR-04: outside lab mode one host holds one relay; the refusal names it, and nothing is
/// enrolled.
#[tokio::test]
async fn one_host_holds_one_relay() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start_with(dir.path(), false, Arc::default()).await;
    let (first, second) = (plane.add_relay("one").await, plane.add_relay("two").await);
    let key = KeyPair::generate().unwrap();
    // All on one machine; its key is what it enrols with.
    let on = |host: &str, token: &str| {
        let mut request = request(&plane, "relay", token, host, &key);
        request
            .host_fingerprint
            .insert("machine".to_owned(), "bb".to_owned());
        request
    };
    plane.control.enrol(on("a", &first), FROM).await.unwrap();
    let refused = plane.control.enrol(on("a", &second), FROM).await.unwrap_err();
    assert_eq!(refused.code, ApiCode::HostHasRelay);
    assert_eq!(refused.details["relay"], "one");
    // By what the two are one host is said: it may be a clone.
    assert_eq!(refused.details["same"], "host_key");
    assert!(
        refused
            .message
            .starts_with("this host holds relay one already, by its host key"),
        "{refused}"
    );
    let refused = plane.control.enrol(on("c", &second), FROM).await.unwrap_err();
    assert_eq!(refused.details["same"], "machine");
    for words in [
        "by its machine id (/etc/machine-id)",
        "clone",
        "`fairlead relay token one`",
    ] {
        assert!(refused.message.contains(words), "{words}: {refused}");
    }
    // What it advises works: a new token for one that never came.
    assert!(
        refused.message.contains("`fairlead relay token one`"),
        "{refused}"
    );
    let role = MemberRole::Relay;
    plane.control.reissue(&plane.admin, role, "one").await.unwrap();
    assert_eq!(
        plane.control.relay("two").await.unwrap().state,
        RelayState::Pending
    );
    plane
        .control
        .enrol(request(&plane, "relay", &second, "b", &key), FROM)
        .await
        .unwrap();
    // One that has come is not given a new token: it is removed, when it may.
    let (third, fourth) = (plane.add_relay("three").await, plane.add_relay("four").await);
    let third = (Member::enrol(&plane, "relay", &third).await, third);
    let _connected = crate::fixture::Relay::connect(&plane, &third.0).await;
    plane
        .until("its coming is on record", async |c| {
            let again = request(&plane, "relay", &fourth, &third.1, &key);
            let refused = c.enrol(again, FROM).await.unwrap_err().message;
            let is_named = refused.contains("`fairlead relay rm three`");
            assert!(
                is_named || refused.contains("`fairlead relay token three`"),
                "{refused}"
            );
            is_named && !refused.contains("relay token")
        })
        .await;
    plane.stop().await;
}

/// One known token and a wrong clock, again and again: the audit log gets a hundred entries, and then
/// one at each power of ten with the count, over a restart as well.
#[tokio::test]
async fn one_token_cannot_fill_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(dir.path()).await;
    let token = plane.control.add_node(&plane.admin, "alpha").await.unwrap().token;
    let key = KeyPair::generate().unwrap();
    let refuse = async |plane: &Plane, times: usize| {
        let mut skewed = request(plane, "node", &token, "a", &key);
        skewed.wall_clock = Some(plane.clock.wall().plus(Duration::from_secs(3600)));
        for _ in 0..times {
            let refused = plane.control.enrol(skewed.clone(), FROM).await.unwrap_err();
            assert_eq!(refused.code, ApiCode::ClockSkew);
        }
    };
    let noted = async |plane: &Plane| {
        let entries = plane.control.audit(0, 1000).await.unwrap();
        let refused = entries.into_iter().filter(|e| e.action == "enrol.refused");
        refused.map(|e| e.after.unwrap()).collect::<Vec<_>>()
    };
    refuse(&plane, 100).await;
    assert_eq!(noted(&plane).await.len(), 100);
    plane.stop().await;
    let plane = Plane::start(dir.path()).await;
    refuse(&plane, 899).await;
    assert_eq!(noted(&plane).await.len(), 100);
    refuse(&plane, 1).await;
    let after = noted(&plane).await;
    assert_eq!(after.len(), 101);
    assert!(after[100].contains("\"refused_so_far\":1000"), "{}", after[100]);
    // The token is none the worse for it.
    let good = request(&plane, "node", &token, "a", &key);
    plane.control.enrol(good, FROM).await.unwrap();
    plane.stop().await;
}

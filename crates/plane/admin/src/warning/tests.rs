//! Warnings: who gets which, in which order.

use super::warnings;
use fairlead_control::api::{
    HeadView, LinkState, LinkView, Look, NodeState, NodeView, PolicyView, Ref, RefusalView, RelayState,
    RelayView, StatusView,
};
use fairlead_host::rng;
use fairlead_model::{Generation, ServiceClass, WallTime};
use std::time::Duration;

const NOW: WallTime = WallTime(1_800_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = HOUR.saturating_mul(24);

fn policy(lease_left: Duration) -> PolicyView {
    let head = Some(HeadView {
        epoch: 1,
        revision: 1,
    });
    PolicyView {
        wanted: head,
        wanted_at: Some(NOW.minus(HOUR)),
        applied: head,
        refused: String::new(),
        holds_newer: false,
        lease_not_after: Some(NOW.plus(lease_left)),
    }
}

fn relay(name: &str, state: RelayState) -> RelayView {
    RelayView {
        copies: None,
        removable_after: None,
        leased: true,
        refused: None,
        clock_behind: None,
        signed_ahead: false,
        id: rng::new_id(),
        name: name.parse().unwrap(),
        address: "127.0.0.1:9443".parse().unwrap(),
        failure_domain: "host=a".parse().unwrap(),
        local: false,
        state,
        state_reason: "its port has not been verified yet".to_owned(),
        starting: false,
        unreached_by: Vec::new(),
        capacity: true,
        created_at: NOW.minus(DAY),
        enrolled_at: Some(NOW.minus(DAY)),
        last_seen: None,
        version: String::new(),
        worker: None,
        policy: policy(70 * HOUR),
        certificate_not_after: Some(NOW.plus(29 * DAY)),
        endpoints: 0,
    }
}

fn worker(state: &'static str) -> fairlead_control::api::WorkerView {
    fairlead_control::api::WorkerView {
        state,
        version: String::new(),
        pid: 1,
        restarts: 9,
        last_exit: "exited with code 1".to_owned(),
        live_tunnels: 0,
        hop_sessions: 0,
        memory_bytes: 0,
        open_descriptors: 0,
        bytes_relayed: 0,
        metrics: String::new(),
    }
}

fn node(name: &str, state: NodeState) -> NodeView {
    NodeView {
        copies: None,
        id: rng::new_id(),
        name: name.parse().unwrap(),
        state,
        state_reason: "it is connected to none of its relays".to_owned(),
        starting: false,
        created_at: NOW.minus(DAY),
        enrolled_at: Some(NOW.minus(DAY)),
        last_seen: None,
        version: String::new(),
        policy: policy(HOUR),
        refused: None,
        relays: Vec::new(),
        live_streams: 0,
        memory_bytes: 0,
        metrics: String::new(),
        certificate_not_after: Some(NOW.plus(29 * DAY)),
    }
}

fn link(name: &str, relays: &[&RelayView], waits: &[&str]) -> LinkView {
    let end = || Ref {
        id: rng::new_id(),
        name: "n".parse().unwrap(),
    };
    let carrier = |relay: &&RelayView| Ref {
        id: relay.id,
        name: relay.name.clone(),
    };
    LinkView {
        id: rng::new_id(),
        name: name.parse().unwrap(),
        from: end(),
        to: end(),
        target: "127.0.0.1:5432".parse().unwrap(),
        listen: "127.0.0.1:15432".parse().unwrap(),
        class: ServiceClass::Standard,
        endpoint: rng::new_id(),
        generation: Generation(1),
        route: rng::new_id(),
        created_at: NOW.minus(DAY),
        relays: relays.iter().map(carrier).collect(),
        placement_reason: String::new(),
        state: if waits.is_empty() {
            LinkState::Ready
        } else {
            LinkState::Pending
        },
        starting: false,
        waiting_for: waits.iter().map(|wait| (*wait).to_owned()).collect(),
        listen_error: String::new(),
        last_refusal: None,
    }
}

fn look(relays: Vec<RelayView>, nodes: Vec<NodeView>, links: Vec<LinkView>) -> Look {
    let ready = relays.iter().filter(|relay| relay.state == RelayState::Ready);
    let relays_ready = ready.count() as u64;
    Look {
        at: NOW,
        status: StatusView {
            version: String::new(),
            trust_domain: "pool.internal".parse().unwrap(),
            ca_pin: String::new(),
            advertised: "control.example:8443".parse().unwrap(),
            lab: false,
            uptime: HOUR,
            leader_term: 1,
            policy_epoch: 1,
            policy_revision: 1,
            relays_ready,
            relays: relays.len() as u64,
            nodes_ready: 0,
            nodes: nodes.len() as u64,
            links_ready: 0,
            links: links.len() as u64,
            audit_seq: 1,
            audit_broken: 0,
            store_free: Some(1 << 30),
        },
        relays,
        nodes,
        links,
    }
}

fn lines(look: &Look) -> Vec<String> {
    let line = |w: &crate::json::Warning| format!("{} {} {}", w.severity, w.code, w.name);
    warnings(look).iter().map(line).collect()
}

/// R-UI-05: a broken audit log is said, with the entry.
#[test]
fn a_broken_audit_log_is_critical() {
    let mut look = look(Vec::new(), Vec::new(), Vec::new());
    look.status.audit_broken = 7;
    assert_eq!(lines(&look), ["critical AUDIT_BROKEN "]);
    assert!(warnings(&look)[0].message.contains("entry 7"));
}

/// R-UI-01: a disk that fills up is told before changes are refused, and when they are.
#[test]
fn a_store_without_room_is_told() {
    let mut look = look(Vec::new(), Vec::new(), Vec::new());
    for (free, expected) in [
        (None, None),
        (Some(64 << 20), None),
        (Some((64 << 20) - 1), Some("warning STORE_DISK_FULL ")),
        (Some(4 << 20), Some("warning STORE_DISK_FULL ")),
        (Some((4 << 20) - 1), Some("critical STORE_DISK_FULL ")),
        (Some(0), Some("critical STORE_DISK_FULL ")),
    ] {
        look.status.store_free = free;
        assert_eq!(lines(&look), Vec::from_iter(expected), "{free:?}");
    }
}

#[test]
fn a_pool_that_is_well_has_none() {
    let relays = vec![relay("a", RelayState::Ready), relay("b", RelayState::Ready)];
    let links = vec![link("db", &[&relays[0], &relays[1]], &[])];
    assert_eq!(
        lines(&look(relays, vec![node("n", NodeState::Ready)], links)),
        [""; 0]
    );
    assert_eq!(
        lines(&look(Vec::new(), Vec::new(), Vec::new())),
        [""; 0],
        "an empty pool"
    );
    let (mut new_relay, mut new_node) = (relay("a", RelayState::Pending), node("n", NodeState::Pending));
    (new_relay.enrolled_at, new_node.enrolled_at) = (None, None);
    (new_relay.policy, new_node.policy) = (PolicyView::default(), PolicyView::default());
    (new_relay.certificate_not_after, new_node.certificate_not_after) = (None, None);
    assert_eq!(lines(&look(vec![new_relay], vec![new_node], Vec::new())), [""; 0]);
}

#[test]
fn each_trouble_is_named_with_what_to_do_most_urgent_first() {
    let mut ending = relay("b", RelayState::Offline);
    ending.policy = policy(HOUR / 2);
    let mut ended = relay("c", RelayState::Offline);
    ended.policy = policy(Duration::ZERO);
    ended.certificate_not_after = Some(NOW.minus(HOUR));
    let relays = vec![relay("a", RelayState::NotReady), ending, ended];
    let mut old = node("m", NodeState::NotReady);
    old.certificate_not_after = Some(NOW.plus(DAY));
    let mut refusing = link("web", &[&relays[0]], &[]);
    refusing.last_refusal = Some(RefusalView {
        code: "TARGET_REFUSED",
        message: "the target refused the connection".to_owned(),
        at: NOW.minus(HOUR / 60),
        count: 3,
    });
    let links = vec![link("db", &[], &["no relay is ready to carry it"]), refusing];
    let troubled = look(relays, vec![node("n", NodeState::Offline), old], links);
    assert_eq!(
        lines(&troubled),
        [
            "critical NO_RELAY_READY ",
            "critical RELAY_OFFLINE b",
            "critical RELAY_OFFLINE c",
            "critical LEASE_ENDED c",
            "critical CERTIFICATE_ENDING c",
            "critical NODE_OFFLINE n",
            "critical LINK_NOT_READY db",
            "warning RELAY_NOT_READY a",
            "warning LEASE_ENDING b",
            "warning NODE_NOT_READY m",
            "warning CERTIFICATE_ENDING m",
            "warning LINK_HAS_NO_SPARE web",
            "warning LINK_REFUSES web",
        ]
    );
    for warning in warnings(&troubled) {
        assert!(
            warning.message.ends_with('.') && warning.action.ends_with('.'),
            "{warning:?}"
        );
        assert!(["pool", "relay", "node", "link"].contains(&warning.kind.as_str()));
        assert_eq!(warning.id.is_empty(), warning.kind == "pool");
    }
}

/// R-POL-05: a member that is refused for its clock runs: its clock is what is to be mended, not its service.
#[test]
fn a_member_that_is_refused_is_not_said_to_be_stopped() {
    let refused = fairlead_control::api::RefusedView {
        code: "CLOCK_DIFFERS",
        message: "clock differs by 9m59s".to_owned(),
    };
    let mut relay = relay("a", RelayState::Offline);
    let mut node = node("n", NodeState::Offline);
    (relay.refused, node.refused) = (Some(refused.clone()), Some(refused));
    let look = look(vec![relay, relay_b()], vec![node], Vec::new());
    assert_eq!(
        lines(&look),
        ["critical CLOCK_DIFFERS a", "critical CLOCK_DIFFERS n"]
    );
    for warning in warnings(&look) {
        assert!(
            warning
                .message
                .contains("refuses its sessions: clock differs by 9m59s."),
            "{warning:?}"
        );
        assert!(
            warning.action.starts_with("Set that host's clock right"),
            "{warning:?}"
        );
    }
}

/// R-POL-05: a clock that was set back while its relay is connected is named; an offline relay's last
/// report says nothing of now.
#[test]
fn a_clock_that_differs_is_named() {
    let mut behind = relay("a", RelayState::Ready);
    behind.clock_behind = Some(HOUR);
    let look_at = |relay: &RelayView| look(vec![relay.clone(), relay_b()], Vec::new(), Vec::new());
    assert_eq!(lines(&look_at(&behind)), ["warning CLOCK_DIFFERS a"]);
    let warning = &warnings(&look_at(&behind))[0];
    assert!(
        warning.message.starts_with("Clock differs by 3600 s"),
        "{warning:?}"
    );
    // Whose clock was wrong is said: that of the relay's host may never have been.
    behind.signed_ahead = true;
    let warning = &warnings(&look_at(&behind))[0];
    assert!(
        warning
            .message
            .starts_with("The control plane's clock was 3600 s ahead"),
        "{warning:?}"
    );
    behind.state = RelayState::Offline;
    assert_eq!(lines(&look_at(&behind)), ["critical RELAY_OFFLINE a"]);
}

fn relay_b() -> RelayView {
    relay("b", RelayState::Ready)
}

/// Each reason has its own advice: a full disk is not looked for at a firewall.
#[test]
fn advice_fits_the_reason() {
    let advice = |relay: &RelayView| {
        let look = look(vec![relay.clone()], Vec::new(), Vec::new());
        let found = warnings(&look);
        let of_relay = found.iter().find(|w| w.code == "RELAY_NOT_READY");
        of_relay.map(|w| w.action.clone()).unwrap_or_default()
    };
    let mut unready = relay("a", RelayState::NotReady);
    assert!(advice(&unready).contains("UDP port"));
    unready.worker = Some(worker("crash-loop"));
    assert!(advice(&unready).contains("log on its host"));
    unready.policy.refused = "the policy cannot be written to disk".to_owned();
    assert!(advice(&unready).contains("disk is full"));
    let mut node = node("n", NodeState::NotReady);
    node.policy.refused = "the documents cannot be kept".to_owned();
    let found = warnings(&look(Vec::new(), vec![node], Vec::new()));
    assert!(found[0].action.contains("disk is full"), "{found:?}");
}

/// R-POL-04: a member that holds something newer than the control plane gives is no full disk, whatever its words.
#[test]
fn a_store_that_was_restored_is_named_where_members_hold_something_newer() {
    let (mut relay, mut node) = (relay("a", RelayState::NotReady), node("n", NodeState::NotReady));
    for policy in [&mut relay.policy, &mut node.policy] {
        policy.refused = "no".to_owned();
        policy.holds_newer = true;
    }
    let found = warnings(&look(vec![relay], vec![node], Vec::new()));
    for code in ["RELAY_NOT_READY", "NODE_NOT_READY"] {
        let warning = found.iter().find(|w| w.code == code).unwrap();
        assert!(warning.action.contains("store is older"), "{warning:?}");
    }
}

/// Of a relay whose last report says that it holds no lease, nobody is told that it admits on.
#[test]
fn an_offline_relay_without_a_lease_is_not_said_to_admit() {
    let action = |relay: RelayView| {
        let found = warnings(&look(vec![relay], Vec::new(), Vec::new()));
        let offline = found.iter().find(|w| w.code == "RELAY_OFFLINE");
        offline.map(|w| w.action.clone()).unwrap_or_default()
    };
    let mut offline = relay("a", RelayState::Offline);
    offline.worker = Some(worker("crash-loop"));
    assert!(action(offline.clone()).contains("until its lease ends"));
    offline.policy.lease_not_after = None;
    assert!(!action(offline.clone()).contains("lease"));
    // A control plane that has just started has heard nothing of it.
    offline.worker = None;
    assert!(action(offline).contains("until its lease ends"));
}

/// What has just begun is not yet a trouble, and what was refused long ago no longer one.
#[test]
fn time_is_given_to_what_begins() {
    let mut young = relay("a", RelayState::NotReady);
    young.enrolled_at = Some(NOW.minus(Duration::from_secs(5)));
    let other = relay("b", RelayState::Ready);
    let mut new = link("db", &[], &["no relay is ready to carry it"]);
    new.created_at = NOW.minus(Duration::from_secs(5));
    let mut taken = new.clone();
    taken.listen_error = "Address already in use".to_owned();
    let mut past = link("web", &[&young, &other], &[]);
    past.last_refusal = Some(RefusalView {
        code: "TARGET_REFUSED",
        message: String::new(),
        at: NOW.minus(HOUR),
        count: 1,
    });
    let mut look = look(vec![young, other], Vec::new(), vec![new, past]);
    assert_eq!(lines(&look), [""; 0]);
    look.relays[0].state = RelayState::Offline;
    assert_eq!(lines(&look).len(), 1);
    // What no time mends is told at once, and once.
    look.links = vec![taken];
    look.relays[0].state = RelayState::Ready;
    assert_eq!(lines(&look), ["critical LISTEN_FAILED db"]);
    assert!(warnings(&look)[0].message.contains("127.0.0.1:15432"));
    assert!(warnings(&look)[0].action.contains("Free that address"));
    look.links[0].listen_error = "Cannot assign requested address (os error 99)".to_owned();
    assert!(
        warnings(&look)[0]
            .action
            .starts_with("No interface of the consumer's host")
    );
    look.status.uptime = Duration::from_secs(1);
    assert_eq!(lines(&look), [""; 0], "it has not heard of anybody yet");
}

/// Who was started again is no trouble while it comes up, nor is what waits for it: the pool settles. What it refuses
/// is said at once, and so is what takes longer than it may.
#[test]
fn who_is_starting_is_no_trouble_yet() {
    let (mut coming, mut daemon) = (relay("a", RelayState::NotReady), node("n", NodeState::NotReady));
    let mut waits = link("db", &[&coming], &["no relay is ready to carry it"]);
    (coming.starting, daemon.starting, waits.starting) = (true, true, true);
    let mut look = look(vec![coming], vec![daemon], vec![waits]);
    assert_eq!(lines(&look), [""; 0]);
    assert_eq!(crate::verdict::verdict(&look, &warnings(&look)), "settling");
    look.nodes[0].policy.refused = "the documents cannot be kept".to_owned();
    assert_eq!(lines(&look), ["warning NODE_NOT_READY n"]);
    look.nodes.clear();
    (look.relays[0].starting, look.links[0].starting) = (false, false);
    assert_eq!(
        lines(&look),
        [
            "critical NO_RELAY_READY ",
            "critical LINK_NOT_READY db",
            "warning RELAY_NOT_READY a"
        ]
    );
}

/// Relays that hold newer policies go on: no host is to be started, and the control plane's own numbers stand
/// beside the held ones. At once, in the first seconds too.
#[test]
fn a_restored_control_plane_is_at_fault_and_no_host() {
    let mut refusing = relay("a", RelayState::NotReady);
    refusing.policy.refused = "its revision 10 is below 11".to_owned();
    refusing.policy.holds_newer = true;
    let mut node = node("n", NodeState::NotReady);
    node.policy.refused = "the node policy is of leader term 1, held is 3".to_owned();
    node.policy.holds_newer = true;
    refusing.enrolled_at = Some(NOW);
    node.enrolled_at = Some(NOW);
    let mut look = look(vec![refusing], vec![node], Vec::new());
    look.status.leader_term = 4;
    for uptime in [Duration::from_secs(1), HOUR] {
        look.status.uptime = uptime;
        let found = lines(&look);
        let expected = [
            "critical CONTROL_PLANE_OLDER ",
            "warning RELAY_NOT_READY a",
            "warning NODE_NOT_READY n",
        ];
        assert_eq!(found, expected, "{uptime:?}");
        let first = &warnings(&look)[0];
        for words in [
            "Relay a and node n hold",
            "leader term is 4",
            "go on; changes do not arrive",
        ] {
            assert!(first.message.contains(words), "{words}: {first:?}");
        }
        for warning in warnings(&look) {
            assert!(!warning.action.to_lowercase().contains("start"), "{warning:?}");
        }
        assert!(warnings(&look)[2].action.contains("leader term is 4"));
    }
    // One that is offline admits nothing that is known.
    look.relays[0].state = RelayState::Offline;
    look.nodes.clear();
    assert!(lines(&look).contains(&"critical NO_RELAY_READY ".to_owned()));
}

/// A relay that was stopped in order, or never had a lease, is not said to admit.
#[test]
fn a_relay_that_was_stopped_is_not_said_to_admit() {
    let action = |relay: RelayView| {
        warnings(&look(vec![relay, relay_b()], Vec::new(), Vec::new()))[0]
            .action
            .clone()
    };
    let mut stopped = relay("a", RelayState::Offline);
    stopped.worker = Some(worker("stopped"));
    assert_eq!(action(stopped.clone()), "Start its relay service.");
    stopped.worker = None;
    assert!(action(stopped.clone()).contains("until its lease ends"));
    stopped.leased = false;
    assert!(!action(stopped).contains("lease"));
}

fn reach(relay: &RelayView, error: &str) -> fairlead_control::api::ReachView {
    fairlead_control::api::ReachView {
        relay: Ref {
            id: relay.id,
            name: relay.name.clone(),
        },
        connected: error.is_empty(),
        rtt_us: None,
        error: error.to_owned(),
        registered: Vec::new(),
    }
}

/// A relay that nodes do not reach is named as such, and no node that lacks nothing else. Once its supervisor's
/// silence is known as well, its host is to be looked at: no worker of it admits.
#[test]
fn a_relay_that_no_node_reaches_is_named_before_the_nodes() {
    let (mut gone, well) = (relay("a", RelayState::NotReady), relay_b());
    gone.unreached_by = vec!["m".parse().unwrap(), "n".parse().unwrap()];
    let dead = "the relay does not answer";
    let unready = |name: &str| {
        let mut node = node(name, NodeState::NotReady);
        node.relays = vec![reach(&gone, dead), reach(&well, "")];
        node
    };
    let mut look = look(
        vec![gone.clone(), well.clone()],
        vec![unready("m"), unready("n")],
        Vec::new(),
    );
    assert_eq!(lines(&look), ["critical RELAY_NOT_REACHED a"]);
    let found = &warnings(&look)[0];
    assert_eq!(found.message, "Relay a: nodes m, n cannot reach it.");
    assert!(found.action.ends_with("the nodes agree."), "{found:?}");
    look.relays[0].unreached_by.truncate(1);
    look.nodes.truncate(1);
    let alone = &warnings(&look)[0];
    assert!(alone.action.contains("the node's own network"), "{alone:?}");
    look.relays[0].state = RelayState::Offline;
    assert_eq!(lines(&look), ["critical RELAY_OFFLINE a"]);
    let offline = &warnings(&look)[0];
    assert!(
        offline.action.starts_with("Look at its host") && !offline.action.contains("lease"),
        "{offline:?}"
    );
    // One that is alone in missing a relay is named itself: the relay is not at fault.
    look.relays[0] = relay("a", RelayState::Ready);
    look.nodes = vec![node("m", NodeState::NotReady)];
    look.nodes[0].relays = vec![reach(&look.relays[0], dead)];
    assert_eq!(lines(&look), ["warning NODE_NOT_READY m"]);
}

/// Two copies: when the refused one was seen last.
#[test]
fn a_copy_is_named_with_the_time_that_it_was_seen() {
    let mut copied = relay_b();
    copied.copies = Some(fairlead_control::api::CopiesView {
        kept: "host `x`".to_owned(),
        refused: "host `y`".to_owned(),
        since: None,
        last_seen: NOW,
        met_by: Vec::new(),
    });
    let found = warnings(&look(vec![copied], Vec::new(), Vec::new()));
    assert_eq!(found[0].code, "IDENTITY_CLONED");
    let at = crate::json::time(NOW);
    assert!(
        found[0].message.ends_with(&format!("seen last at {at}.")),
        "{found:?}"
    );
}

/// The command line and the console say the same of one pool: who waits to be enrolled needs somebody.
#[test]
fn one_verdict_for_all_who_ask() {
    use crate::verdict::verdict;
    let says = |look: &Look| verdict(look, &warnings(look));
    let relays = || {
        let mut two = relay("b", RelayState::Ready);
        two.failure_domain = "host=b".parse().unwrap();
        vec![relay("a", RelayState::Ready), two]
    };
    let well = look(relays(), vec![node("alpha", NodeState::Ready)], Vec::new());
    assert_eq!((says(&well), warnings(&well).len()), ("well", 0));
    let mut settling = well.clone();
    settling.nodes[0].state = NodeState::NotReady;
    settling.nodes[0].enrolled_at = Some(NOW);
    assert_eq!((says(&settling), warnings(&settling).len()), ("settling", 0));
    let mut waits = well.clone();
    waits.nodes[0].state = NodeState::Pending;
    assert_eq!((says(&waits), warnings(&waits).len()), ("attention", 0));
    let mut gone = well;
    gone.relays[0].state = RelayState::Offline;
    assert_eq!(says(&gone), "attention");
}

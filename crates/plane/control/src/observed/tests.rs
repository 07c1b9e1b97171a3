//! Sessions take each other's place, probes find their prober, witnesses are counted.

use super::*;

fn relay(n: u8) -> RelayId {
    RelayId::from_bytes([n; 16])
}

fn listening(pid: u32) -> RelayReport {
    RelayReport {
        worker: WorkerState::Listening,
        worker_version: String::new(),
        worker_pid: pid,
        worker_restarts: 0,
        worker_last_exit: String::new(),
        applied: None,
        policy_refused: String::new(),
        live_tunnels: 0,
        hop_sessions: 0,
        memory_bytes: 0,
        open_descriptors: 0,
        bytes_relayed: 0,
        worker_metrics: String::new(),
        clock_behind: None,
        signed_ahead: false,
        cloned: Vec::new(),
    }
}

fn gone(at: u64) -> Closed {
    Closed {
        at: MonoTime(at),
        stopped: false,
    }
}

#[test]
fn a_newer_session_takes_the_place_of_an_older() {
    let observed = Observed::default();
    let (old, new) = (CancellationToken::new(), CancellationToken::new());
    let first = observed.open_relay(relay(1), "1".to_owned(), None, old.clone());
    let second = observed.open_relay(relay(1), "2".to_owned(), None, new.clone());
    assert!(first.first && !second.first);
    assert!(old.is_cancelled() && !new.is_cancelled());
    // The old one's late goodbye ends nothing.
    assert!(!observed.close_relay(relay(1), first.session.number, gone(1)));
    assert_eq!(observed.lock().connected(), [relay(1)]);
    assert!(observed.close_relay(relay(1), second.session.number, gone(2)));
    assert_eq!(observed.lock().relays[&relay(1)].closed, Some(gone(2)));
    assert!(observed.lock().connected().is_empty());

    let node = NodeId::from_bytes([1; 16]);
    let (first, _asked) = observed.open_node(node, String::new(), None, old, MonoTime(0));
    let (second, _asked) = observed.open_node(node, String::new(), None, new, MonoTime(0));
    observed.close_node(node, first.number, gone(3));
    assert!(observed.lock().nodes[&node].session.is_some());
    observed.close_node(node, second.number, gone(4));
    assert_eq!(observed.lock().nodes[&node].closed, Some(gone(4)));
}

/// R-ENR-07: a probe goes to another connected supervisor, and is asked for anew when that one is
/// gone before it reported.
#[test]
fn probes_reach_the_prober() {
    let observed = Observed::default();
    let address: HostPort = "10.0.0.1:9443".parse().unwrap();
    let open = |n| observed.open_relay(relay(n), String::new(), None, CancellationToken::new());
    let _target = open(1);
    let mut prober = open(2);
    let ask = |n: u8| {
        let mut members = observed.lock();
        let connected = members.connected();
        members.probe(relay(1), &address, &connected, || [n; 16], MonoTime(0));
    };
    ask(1);
    assert!(
        prober.probes.try_recv().is_err(),
        "its worker does not listen yet"
    );
    observed.lock().relays.get_mut(&relay(1)).unwrap().status = Some(listening(5));
    ask(2);
    let probe = prober.probes.try_recv().unwrap();
    assert_eq!(
        (probe.request, probe.relay, &probe.address),
        ([2; 16], relay(1), &address)
    );
    ask(3);
    assert!(prober.probes.try_recv().is_err(), "one is under way");
    observed.close_relay(relay(2), prober.session.number, gone(1));
    let mut prober = open(2);
    ask(4);
    assert_eq!(prober.probes.try_recv().unwrap().request, [4; 16]);
    observed.probe_reported(relay(1), relay(2), [4; 16], Ok(()), MonoTime(2));
    let members = observed.lock();
    assert_eq!(members.relays[&relay(1)].probes.proven.unwrap().worker_pid, 5);
}

#[test]
fn witnesses_are_connected_nodes() {
    let observed = Observed::default();
    for (n, connected) in [(1, true), (2, false), (3, true)] {
        let node = NodeId::from_bytes([n; 16]);
        let (session, _asked) =
            observed.open_node(node, String::new(), None, CancellationToken::new(), MonoTime(0));
        let reach = Reach {
            connected,
            rtt_us: None,
            error: String::new(),
            registered: Vec::new(),
        };
        observed.lock().nodes.get_mut(&node).unwrap().status = Some(NodeReport {
            policy: None,
            leader_term: 0,
            policy_refused: String::new(),
            grants: None,
            kept: None,
            relays: BTreeMap::from([(relay(1), reach)]),
            listeners: BTreeMap::new(),
            live_streams: 0,
            memory_bytes: 0,
            metrics: String::new(),
        });
        if n == 3 {
            observed.close_node(node, session.number, gone(1));
        }
    }
    assert_eq!(observed.lock().witnesses(relay(1)), (1, 1));
    assert_eq!(observed.lock().witnesses(relay(2)), (0, 0));
}

/// R-UI-01: how long a relay stands as it does begins anew with each state; how long it is not ready does not.
#[test]
fn how_long_a_relay_stands_so_is_counted_by_state() {
    use RelayState::{NotReady, Offline, Ready};
    let at = |seconds| MonoTime(0).plus(Duration::from_secs(seconds));
    let mut members = Members::default();
    assert_eq!(members.stood(relay(1), NotReady, at(9)), Duration::ZERO);
    for (state, now, unready) in [(Offline, 0, 0), (Offline, 60, 60), (NotReady, 61, 61)] {
        let for_so_long = members.stands(relay(1), state, at(now));
        assert_eq!(for_so_long, Duration::from_secs(unready));
    }
    members.stands(relay(1), NotReady, at(70));
    assert_eq!(members.stood(relay(1), NotReady, at(71)), Duration::from_secs(10));
    assert_eq!(
        members.stood(relay(1), Ready, at(71)),
        Duration::ZERO,
        "not looked at yet"
    );
    assert_eq!(members.stands(relay(1), Ready, at(72)), Duration::ZERO);
    assert_eq!(members.stood(relay(1), Ready, at(75)), Duration::from_secs(3));
}

//! Standing, capacity and probes, row by row.

use super::*;

fn at(seconds: u64) -> MonoTime {
    MonoTime(0).plus(Duration::from_secs(seconds))
}

fn relay(n: u8) -> RelayId {
    RelayId::from_bytes([n; 16])
}

fn ready() -> Facts {
    Facts {
        refused: String::new(),
        enrolled: true,
        away: None,
        stopped: false,
        worker: Some(Worker {
            state: WorkerState::Listening,
            last_exit: String::new(),
            holds_policy: true,
            policy_refused: String::new(),
        }),
        port: Port::Open,
        unreached: String::new(),
    }
}

fn worker(change: impl FnOnce(&mut Worker)) -> Facts {
    let mut facts = ready();
    change(facts.worker.as_mut().unwrap());
    facts
}

/// R-ENR-07: every fact that is missing keeps a relay from being ready, and is named.
#[test]
fn standing_names_what_is_missing() {
    let closed = Port::Closed {
        by: "two".to_owned(),
        error: "timed out".to_owned(),
    };
    let away = |seconds| Some(Duration::from_secs(seconds));
    let rows = [
        (ready(), RelayState::Ready, ""),
        (
            Facts {
                enrolled: false,
                ..ready()
            },
            RelayState::Pending,
            "not enrolled",
        ),
        (
            Facts {
                away: away(4),
                ..ready()
            },
            RelayState::Ready,
            "",
        ),
        (
            Facts {
                away: away(5),
                ..ready()
            },
            RelayState::Offline,
            "not connected",
        ),
        (
            Facts {
                away: away(0),
                stopped: true,
                ..ready()
            },
            RelayState::Offline,
            "was stopped",
        ),
        (
            Facts {
                worker: None,
                ..ready()
            },
            RelayState::NotReady,
            "not reported",
        ),
        (
            Facts {
                worker: None,
                away: away(1),
                ..ready()
            },
            RelayState::NotReady,
            "not connected yet",
        ),
        (
            worker(|w| w.state = WorkerState::Starting),
            RelayState::NotReady,
            "starting",
        ),
        (
            worker(|w| {
                w.state = WorkerState::Starting;
                w.last_exit = "exited with code 4: it is taken".to_owned();
            }),
            RelayState::NotReady,
            "starting; the last one exited with code 4: it is taken",
        ),
        (
            worker(|w| w.state = WorkerState::BackingOff),
            RelayState::NotReady,
            "worker ended",
        ),
        (
            worker(|w| {
                w.state = WorkerState::CrashLoop;
                w.last_exit = "signal 9".to_owned();
            }),
            RelayState::NotReady,
            "keeps ending: signal 9",
        ),
        (
            worker(|w| w.state = WorkerState::Unresponsive),
            RelayState::NotReady,
            "does not answer its supervisor",
        ),
        (
            worker(|w| w.policy_refused = "older".to_owned()),
            RelayState::NotReady,
            "refused its policy: older",
        ),
        (
            worker(|w| w.holds_policy = false),
            RelayState::NotReady,
            "no policy",
        ),
        (
            Facts {
                port: Port::Unknown,
                ..ready()
            },
            RelayState::NotReady,
            "not been verified",
        ),
        (
            Facts {
                port: closed,
                ..ready()
            },
            RelayState::NotReady,
            "did not answer relay two: timed out",
        ),
        (
            Facts {
                unreached: "no node reaches it".to_owned(),
                ..ready()
            },
            RelayState::NotReady,
            "no node reaches it",
        ),
    ];
    for (facts, state, reason) in rows {
        let got = standing(&facts);
        assert_eq!(got.state, state, "{facts:?}");
        assert!(
            got.reason.contains(reason) && got.reason.is_empty() == reason.is_empty(),
            "{got:?}"
        );
        assert_eq!(got.lack == Lack::Nothing, state == RelayState::Ready, "{got:?}");
    }
}

/// A relay that nodes do not reach is told from one that the control plane alone does not hear.
#[test]
fn what_nodes_say_of_a_relay_is_its_reason() {
    let said = || "none of 2 nodes reaches it; node a: timed out".to_owned();
    let vanished = |seconds| Facts {
        away: Some(Duration::from_secs(seconds)),
        unreached: said(),
        ..ready()
    };
    let soon = standing(&vanished(1));
    assert_eq!((soon.state, soon.lack), (RelayState::NotReady, Lack::Way));
    assert_eq!(soon.reason, said());
    let later = standing(&vanished(5));
    assert_eq!((later.state, later.lack), (RelayState::Offline, Lack::Way));
    assert_eq!(
        later.reason,
        format!("its supervisor is not connected, and {}", said())
    );
    // What its supervisor says of its worker goes before: nobody can reach what does not run.
    let mut ended = vanished(1);
    ended.worker.as_mut().unwrap().state = WorkerState::BackingOff;
    assert_eq!(standing(&ended).lack, Lack::Mending);
    let stopped = Facts {
        stopped: true,
        ..vanished(5)
    };
    assert_eq!(standing(&stopped).reason, "its supervisor was stopped");
}

/// R-ENR-07, R-GEN-04: capacity is gained by being ready, and lost only when nobody uses the relay.
#[test]
fn capacity_is_lost_with_witnesses_only() {
    let sight = |standing, seconds, nodes_on, nodes_off| Sight {
        standing,
        stopped: false,
        unready: Duration::from_secs(seconds),
        nodes_on,
        nodes_off,
    };
    use RelayState::{NotReady, Offline, Pending, Ready};
    let rows = [
        // held before, sight, held after
        (false, sight(Ready, 0, 0, 0), true),
        (false, sight(NotReady, 0, 3, 0), false),
        (false, sight(Offline, 99, 3, 0), false),
        (true, sight(Pending, 0, 0, 0), false),
        // A short loss of anything moves nothing.
        (true, sight(NotReady, 29, 0, 5), true),
        (true, sight(Offline, 29, 0, 5), true),
        // The worker is gone by its supervisor's own word.
        (true, sight(NotReady, 30, 0, 0), false),
        // Nodes are connected: it works, whatever the control plane sees.
        (true, sight(NotReady, 9_999, 1, 5), true),
        (true, sight(Offline, 9_999, 1, 5), true),
        // Offline, and nobody there to ask: the control plane may be the one that is cut off.
        (true, sight(Offline, 9_999, 0, 0), true),
        (true, sight(Offline, 30, 0, 1), false),
    ];
    for (held, sight, after) in rows {
        assert_eq!(capacity(held, sight), after, "{held} {sight:?}");
    }
    // One that said goodbye needs no witness and little time: enough for a service that is restarted.
    let stopped = |seconds, nodes_on| Sight {
        stopped: true,
        ..sight(Offline, seconds, nodes_on, 0)
    };
    assert!(capacity(true, stopped(4, 0)) && !capacity(true, stopped(5, 0)));
    assert!(capacity(true, stopped(5, 1)), "its worker lives on");
}

/// A relay that comes up has a while; one that was ready, or whose fault is known, has none.
#[test]
fn a_relay_that_starts_is_no_fault_for_a_while() {
    let just = Duration::ZERO;
    let late = START_MAX;
    let coming = [
        worker(|w| w.state = WorkerState::Starting),
        worker(|w| w.holds_policy = false),
        Facts {
            port: Port::Unknown,
            ..ready()
        },
        Facts {
            worker: None,
            ..ready()
        },
    ];
    for facts in coming {
        let stands = standing(&facts);
        assert!(
            stands.is_starting(just) && !stands.is_starting(late),
            "{stands:?}"
        );
    }
    let faults = [
        ready(),
        worker(|w| w.state = WorkerState::CrashLoop),
        worker(|w| w.policy_refused = "older".to_owned()),
        Facts {
            unreached: "no node reaches it".to_owned(),
            ..ready()
        },
        Facts {
            away: Some(OFFLINE_AFTER),
            worker: None,
            ..ready()
        },
    ];
    for facts in faults {
        let stands = standing(&facts);
        assert!(!stands.is_starting(just), "{stands:?}");
    }
}

fn asked(probes: &mut Probes, by: RelayId, n: u8, now: MonoTime) {
    probes.last_prober = Some(by);
    probes.asked = Some(Asked {
        request: [n; 16],
        by,
        at: now,
        worker_pid: 7,
    });
}

fn named(id: RelayId) -> String {
    id.to_string()
}

/// R-ENR-07: another supervisor probes, each in turn; its own only while it is alone, and another's
/// word is asked for as soon as there is another.
#[test]
fn another_supervisor_probes() {
    let mut probes = Probes::default();
    let all = [relay(1), relay(2), relay(3)];
    assert_eq!(probes.next(relay(1), 7, &[], at(0)), None);
    assert_eq!(probes.next(relay(1), 7, &all[..1], at(0)), Some(relay(1)));
    assert_eq!(probes.next(relay(1), 7, &all, at(0)), Some(relay(2)));
    asked(&mut probes, relay(2), 1, at(0));
    assert_eq!(probes.next(relay(1), 7, &all, at(14)), None, "one is under way");
    assert_eq!(
        probes.next(relay(1), 7, &all, at(15)),
        Some(relay(3)),
        "it never answered"
    );
    asked(&mut probes, relay(3), 2, at(15));
    probes.report(relay(3), [2; 16], Ok(()), at(16));
    assert_eq!(probes.next(relay(1), 7, &all, at(75)), None);
    assert_eq!(probes.next(relay(1), 7, &all, at(76)), Some(relay(2)));

    let mut own = Probes::default();
    asked(&mut own, relay(1), 3, at(0));
    own.report(relay(1), [3; 16], Ok(()), at(1));
    assert_eq!(own.next(relay(1), 7, &all[..1], at(2)), None);
    assert_eq!(own.next(relay(1), 7, &all, at(2)), Some(relay(2)));
}

/// R-ENR-07: a report counts for the worker process that was there when it was asked for, and only
/// from the one who was asked.
#[test]
fn a_report_counts_for_its_worker() {
    let mut probes = Probes::default();
    asked(&mut probes, relay(2), 1, at(0));
    probes.report(relay(3), [1; 16], Ok(()), at(1));
    probes.report(relay(2), [9; 16], Ok(()), at(1));
    assert_eq!(probes.port(7, named), Port::Unknown);
    probes.report(relay(2), [1; 16], Ok(()), at(1));
    assert_eq!(probes.port(7, named), Port::Open);
    assert_eq!(probes.port(8, named), Port::Unknown, "another process");
    assert_eq!(probes.next(relay(1), 8, &[relay(2)], at(1)), Some(relay(2)));
}

/// A port that answered stays open over single failures; one that never did is closed at once.
#[test]
fn failures_in_a_row_close_a_port() {
    let mut probes = Probes::default();
    asked(&mut probes, relay(2), 0, at(0));
    probes.report(relay(2), [0; 16], Err("refused".to_owned()), at(0));
    assert!(matches!(probes.port(7, named), Port::Closed { error, .. } if error == "refused"));
    assert_eq!(probes.next(relay(1), 7, &[relay(2)], at(1)), None);
    assert_eq!(probes.next(relay(1), 7, &[relay(2)], at(2)), Some(relay(2)));
    asked(&mut probes, relay(2), 1, at(2));
    probes.report(relay(2), [1; 16], Ok(()), at(2));
    for n in 1..=PROBE_FAILURES_MAX {
        assert_eq!(probes.port(7, named), Port::Open, "{n}");
        asked(&mut probes, relay(2), 2, at(3));
        probes.report(relay(2), [2; 16], Err("timed out".to_owned()), at(3));
    }
    assert!(matches!(probes.port(7, named), Port::Closed { .. }));
    assert_eq!(probes.next(relay(1), 7, &[relay(2)], at(8)), None);
    assert_eq!(probes.next(relay(1), 7, &[relay(2)], at(9)), Some(relay(2)));
    assert_eq!(
        probes.port(8, named),
        Port::Unknown,
        "a process that was started since has not been tried"
    );
}

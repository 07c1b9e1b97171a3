//! `fairlead run worker`, by hand and by its supervisor.

use std::process::{Command, Output};

/// Its folder holds no relay.
fn run(supervised: bool) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command
        .args(["run", "worker", "--dir"])
        .arg(dir.path().join("none"));
    command.env_remove(fairlead_supervisor::SUPERVISED);
    if supervised {
        command.env(fairlead_supervisor::SUPERVISED, "1");
    }
    command.output().unwrap()
}

/// A person reads both outputs in one terminal: the error is said once. A supervisor reads the first.
#[test]
fn a_worker_says_why_it_ends_once_to_a_person() {
    let by_hand = run(false);
    assert!(
        by_hand.stdout.is_empty() && !by_hand.stderr.is_empty(),
        "{by_hand:?}"
    );
    let supervised = run(true);
    let (told, logged) = (supervised.stdout, supervised.stderr);
    assert!(!told.is_empty() && logged.ends_with(&told), "{told:?} {logged:?}");
}

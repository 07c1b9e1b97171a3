//! What is written, in force and acknowledged, in which order.

use super::*;
use crate::tests::pool::{ALPHA, BETA, ENDPOINT, Pool, RELAY, ROUTE};
use fairlead_host::SystemClock;
use fairlead_model::RefusalCode;
use fairlead_trust::admission::{LiveTunnel, LiveVerdict};
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

const HOUR: Duration = Duration::from_secs(3600);

/// Holds one save up: says that it has come so far, and waits to go on.
#[derive(Debug)]
pub(super) struct BeforeSave {
    came: oneshot::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

pub(super) fn wait_before_save(keeper: &PolicyKeeper) {
    let wait = keeper.before_save.lock().unwrap().take();
    if let Some(wait) = wait {
        wait.came.send(()).unwrap();
        wait.go_on.recv().unwrap();
    }
}

fn restored(pool: &Pool) -> Arc<PolicyKeeper> {
    let clock = Arc::new(SystemClock::new());
    Arc::new(PolicyKeeper::restore(&pool.folder, RELAY, clock).unwrap())
}

fn revision(keeper: &PolicyKeeper) -> u64 {
    keeper.current().head().unwrap().revision.0
}

/// R-POL-04: a caller that gives up while its policy is being written (a supervisor after its
/// 10 s) lets no later one overtake it: what was acknowledged stays the newest on disk.
#[tokio::test]
async fn a_write_that_nobody_waits_for_keeps_its_turn() {
    let pool = Pool::new();
    fairlead_host::file::make_folder(&pool.folder.worker_dir(), 0o700).unwrap();
    let keeper = restored(&pool);
    let (came, is_there) = oneshot::channel();
    let (go, go_on) = mpsc::channel();
    *keeper.before_save.lock().unwrap() = Some(BeforeSave { came, go_on });
    let first = pool.signed(&pool.policy(101), 101, HOUR);
    tokio::select! {
        outcome = keeper.apply_policy(&first.policy_envelope, &first.lease_envelope) => panic!("{outcome:?}"),
        came = is_there => came.unwrap(),
    }
    assert!(
        keeper.file.try_lock().is_err(),
        "the turn of a write that still runs was given away"
    );
    let second = pool.signed(&pool.policy(102), 102, HOUR);
    let next = tokio::spawn({
        let keeper = Arc::clone(&keeper);
        async move {
            keeper
                .apply_policy(&second.policy_envelope, &second.lease_envelope)
                .await
        }
    });
    go.send(()).unwrap();
    next.await.unwrap().unwrap();
    assert_eq!(revision(&keeper), 102);
    // What a worker that is killed here starts with.
    drop(keeper.file.lock().await);
    assert_eq!(revision(&restored(&pool)), 102);
}

/// R-REV-01, R-POL-04: a folder that cannot be written keeps no revocation from being enforced. It
/// is acknowledged, and what the policy gives is in force, once it can be written again.
#[tokio::test]
async fn a_revocation_that_cannot_be_written_is_in_force() {
    let pool = Pool::new();
    let dir = pool.folder.worker_dir();
    fairlead_host::file::make_folder(&dir, 0o700).unwrap();
    let keeper = restored(&pool);
    let first = pool.signed(&pool.policy(101), 101, HOUR);
    let applied = keeper.apply_policy(&first.policy_envelope, &first.lease_envelope);
    applied.await.unwrap();
    let mut policy = pool.policy(102);
    policy.revoked_routes = vec![ROUTE];
    let revoking = pool.signed(&policy, 102, HOUR);
    // A folder that is not there cannot be written, whoever runs this.
    std::fs::rename(&dir, dir.with_extension("away")).unwrap();
    let mut changes = keeper.changes();
    let applied = keeper
        .apply_policy(&revoking.policy_envelope, &revoking.lease_envelope)
        .await;
    assert!(matches!(applied, Err(ApplyError::Save(_))), "{applied:?}");
    assert!(
        keeper
            .last_refusal()
            .starts_with("the policy cannot be written to disk")
    );
    assert!(changes.has_changed().unwrap(), "nobody is told");
    changes.mark_unchanged();
    assert_eq!(revision(&keeper), 101, "acknowledged before it is on disk");
    let live = LiveTunnel {
        route: ROUTE,
        consumer: ALPHA,
        endpoint: ENDPOINT,
        publisher: BETA,
    };
    let closed = LiveVerdict::Close(RefusalCode::Revoked);
    assert_eq!(keeper.current().live_verdict(&live, keeper.now()), closed);
    keeper.save().await.unwrap_err();
    assert_eq!(keeper.current().live_verdict(&live, keeper.now()), closed);
    std::fs::rename(dir.with_extension("away"), &dir).unwrap();
    assert!(keeper.save().await.unwrap());
    assert_eq!(revision(&keeper), 102);
    assert_eq!(keeper.last_refusal(), "");
    assert_eq!(revision(&restored(&pool)), 102);
    assert!(!keeper.save().await.unwrap());
}

/// A policy whose caller has gone comes into force all the same: it is on disk.
#[tokio::test]
async fn a_write_that_nobody_waits_for_comes_into_force() {
    let pool = Pool::new();
    fairlead_host::file::make_folder(&pool.folder.worker_dir(), 0o700).unwrap();
    let keeper = restored(&pool);
    let mut changes = keeper.changes();
    let (came, is_there) = oneshot::channel();
    let (go, go_on) = mpsc::channel();
    *keeper.before_save.lock().unwrap() = Some(BeforeSave { came, go_on });
    let signed = pool.signed(&pool.policy(7), 7, HOUR);
    tokio::select! {
        outcome = keeper.apply_policy(&signed.policy_envelope, &signed.lease_envelope) => panic!("{outcome:?}"),
        came = is_there => came.unwrap(),
    }
    go.send(()).unwrap();
    changes.changed().await.unwrap();
    assert_eq!(revision(&keeper), 7);
}

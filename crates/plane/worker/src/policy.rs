//! The policy that the worker admits by: verified, on disk, and in force, in that order.

use arc_swap::ArcSwap;
use fairlead_host::member::{MemberError, MemberFolder};
use fairlead_host::{Clock, StateError, StateFile};
use fairlead_model::{MonoTime, ProcessBootId, RelayId};
use fairlead_rpc::signed;
use fairlead_telemetry::chain;
use fairlead_trust::admission::{Applied, ApplyRefused, HostBoot, Now, SNAPSHOT_LEN_MAX};
use fairlead_trust::{KeyError, Keyring, RelayAdmission, VerifyingKey};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tracing::{info, warn};

/// Kind and format of `policy.state`.
const MAGIC: [u8; 8] = *b"FLPOLST1";

/// Holds a relay's admission state. Readers take the value in force without a lock; changes are
/// applied one at a time, each on disk before it is in force (R-POL-04).
#[derive(Debug)]
pub(crate) struct PolicyKeeper {
    folder: MemberFolder,
    /// Where the value in force is kept. Whoever holds it has the turn: the next change begins once
    /// this one is on disk and in force.
    file: Arc<AsyncMutex<StateFile>>,
    clock: Arc<dyn Clock>,
    keys: ArcSwap<Keyring>,
    admission: ArcSwap<RelayAdmission>,
    /// When the revision in force came, in nanoseconds of the clock's monotonic time.
    revision_since: AtomicU64,
    changed: watch::Sender<u64>,
    refused: Mutex<String>,
    /// What the next save waits for.
    #[cfg(test)]
    before_save: Mutex<Option<tests::BeforeSave>>,
}

/// Why the worker's policy state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyStateError {
    /// The state file is damaged, or the file system failed.
    #[error(transparent)]
    File(#[from] StateError),
    /// The state file holds something else.
    #[error("cannot use {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: signed::RestoreError,
    },
    /// The trust file cannot be read.
    #[error(transparent)]
    Trust(#[from] MemberError),
    /// The trust file's keys are malformed.
    #[error("the policy keys in the trust file cannot be used")]
    Keys(#[source] KeyError),
    /// The kernel's boot id cannot be read.
    #[error("cannot read the boot id")]
    BootId(#[source] fairlead_host::FileError),
    /// The kernel's boot id is no UUID.
    #[error("the kernel's boot id is malformed")]
    BootIdForm,
}

/// Why a policy or lease was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error("the document cannot be verified")]
    Open(#[source] signed::OpenError),
    #[error(transparent)]
    Refused(ApplyRefused),
    #[error("the policy cannot be written to disk")]
    Save(#[source] StateError),
    #[error("the policy cannot be encoded")]
    Encode(#[source] fairlead_codec::WriteError),
    #[error("the writing task was lost")]
    Lost,
}

impl PolicyKeeper {
    /// Reads what the last run knew.
    pub(crate) fn restore(
        folder: &MemberFolder,
        relay: RelayId,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, PolicyStateError> {
        let file = StateFile::new(folder.worker_dir().join("policy.state"), MAGIC, SNAPSHOT_LEN_MAX);
        let keys = read_keys(folder)?;
        let boot = fairlead_host::boot_id().map_err(PolicyStateError::BootId)?;
        let boot: ProcessBootId = boot.parse().map_err(|_| PolicyStateError::BootIdForm)?;
        let boot = HostBoot(boot.to_bytes());
        let now = Now {
            wall: clock.wall(),
            boot: clock.boot(),
        };
        let now_mono = clock.mono().0;
        let admission = match file.load()? {
            None => RelayAdmission::new(relay, boot),
            Some(bytes) => signed::restore_admission(&bytes, &keys, relay, boot, now).map_err(|source| {
                PolicyStateError::Content {
                    path: file.path().to_owned(),
                    source,
                }
            })?,
        };
        Ok(Self {
            folder: folder.clone(),
            file: Arc::new(AsyncMutex::new(file)),
            clock,
            keys: ArcSwap::from_pointee(keys),
            admission: ArcSwap::from_pointee(admission),
            revision_since: AtomicU64::new(now_mono),
            changed: watch::channel(0).0,
            refused: Mutex::default(),
            #[cfg(test)]
            before_save: Mutex::default(),
        })
    }

    /// The value in force.
    pub(crate) fn current(&self) -> Arc<RelayAdmission> {
        self.admission.load_full()
    }

    /// Since when the policy's revision is in force; renewed leases change nothing of it.
    pub(crate) fn in_force_since(&self) -> MonoTime {
        MonoTime(self.revision_since.load(Ordering::Relaxed))
    }

    /// Both clocks.
    pub(crate) fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            boot: self.clock.boot(),
        }
    }

    /// Told of each value that came into force.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Why the last document was refused; empty if it was not.
    pub(crate) fn last_refusal(&self) -> String {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Verifies, persists and puts into force a policy and its lease. Dropped half-way, what has begun
    /// goes on to its end, and the next change waits for it.
    pub(crate) async fn apply_policy(
        self: &Arc<Self>,
        policy: &[u8],
        lease: &[u8],
    ) -> Result<(), ApplyError> {
        let keys = self.keys.load_full();
        let outcome = async {
            let policy = signed::open_relay_policy(&keys, policy).map_err(ApplyError::Open)?;
            let lease = signed::open_policy_lease(&keys, lease).map_err(ApplyError::Open)?;
            self.apply(|held, now| held.apply_policy(policy, lease, now))
                .await
        }
        .await;
        self.note(outcome)
    }

    /// The same for a renewed lease.
    pub(crate) async fn apply_lease(self: &Arc<Self>, lease: &[u8]) -> Result<(), ApplyError> {
        let keys = self.keys.load_full();
        let outcome = async {
            let lease = signed::open_policy_lease(&keys, lease).map_err(ApplyError::Open)?;
            self.apply(|held, now| held.apply_lease(lease, now)).await
        }
        .await;
        self.note(outcome)
    }

    /// Writes what is in force once more: each minute, so that a reboot costs a lease at most that
    /// much of its memory.
    pub(crate) async fn save(self: &Arc<Self>) -> Result<(), ApplyError> {
        self.in_turn(|keeper, file| keeper.write(file, &keeper.current()))
            .await
    }

    /// Reads the policy keys anew.
    pub(crate) fn reload_keys(&self) -> Result<(), PolicyStateError> {
        self.keys.store(Arc::new(read_keys(&self.folder)?));
        Ok(())
    }

    async fn apply(
        self: &Arc<Self>,
        step: impl FnOnce(&RelayAdmission, Now) -> Result<Applied, ApplyRefused> + Send + 'static,
    ) -> Result<(), ApplyError> {
        self.in_turn(|keeper, file| {
            match step(&keeper.current(), keeper.now()).map_err(ApplyError::Refused)? {
                Applied::Unchanged => Ok(()),
                Applied::Next(next) => {
                    keeper.write(file, &next)?;
                    keeper.put_into_force(next);
                    Ok(())
                }
            }
        })
        .await
    }

    /// Works with the file on a thread that may block. The turn belongs to the work: a caller that
    /// gives up in the middle of a write does not let the next one overtake it.
    async fn in_turn(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &mut StateFile) -> Result<(), ApplyError> + Send + 'static,
    ) -> Result<(), ApplyError> {
        let mut turn: OwnedMutexGuard<StateFile> = Arc::clone(&self.file).lock_owned().await;
        let keeper = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&keeper, &mut turn))
            .await
            .map_err(|_| ApplyError::Lost)?
    }

    fn write(&self, file: &mut StateFile, admission: &RelayAdmission) -> Result<(), ApplyError> {
        let bytes = admission
            .snapshot(self.now())
            .encode()
            .map_err(ApplyError::Encode)?;
        #[cfg(test)]
        tests::wait_before_save(self);
        file.save(&bytes).map_err(ApplyError::Save)
    }

    fn put_into_force(&self, next: RelayAdmission) {
        if let Some(head) = next.head() {
            info!(
                epoch = head.epoch.0,
                revision = head.revision.0,
                lease = head.lease_seq.0,
                "policy in force"
            );
        }
        let of = |held: &RelayAdmission| held.head().map(|head| (head.epoch, head.revision));
        if of(&next) != of(&self.current()) {
            self.revision_since.store(self.clock.mono().0, Ordering::Relaxed);
        }
        self.admission.store(Arc::new(next));
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn note(&self, outcome: Result<(), ApplyError>) -> Result<(), ApplyError> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(()) => refused.clear(),
            Err(error) => {
                *refused = chain(error);
                warn!(reason = %*refused, "policy refused");
            }
        }
        outcome
    }
}

fn read_keys(folder: &MemberFolder) -> Result<Keyring, PolicyStateError> {
    let bundle = folder.load_trust()?;
    let keys: Vec<VerifyingKey> = bundle
        .policy_keys
        .iter()
        .map(|key| VerifyingKey::from_bytes(key))
        .collect::<Result<_, _>>()
        .map_err(PolicyStateError::Keys)?;
    Keyring::new(keys).map_err(PolicyStateError::Keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::pool::{Pool, RELAY};
    use fairlead_host::SystemClock;
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
}

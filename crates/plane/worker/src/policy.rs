//! The policy that the worker admits by: verified, on disk, and in force, in that order. Where the disk
//! refuses, what the policy takes away is in force all the same, and the rest waits for the next save.

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
/// applied one at a time, each on disk before what it gives is in force (R-POL-04). What it takes away
/// waits for no disk (R-REV-01).
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

    /// Writes the newest policy once more: each minute, so that a reboot costs a lease at most that
    /// much of its memory. True if it could not be written before: it is in force from now on.
    pub(crate) async fn save(self: &Arc<Self>) -> Result<bool, ApplyError> {
        self.in_turn(|keeper, file| {
            let held = keeper.current();
            keeper.write(file, held.newest())?;
            if held.is_kept() {
                return Ok(false);
            }
            // Before those who watch are told.
            keeper
                .refused
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
            keeper.put_into_force(held.newest().clone());
            Ok(true)
        })
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
                Applied::Next(next) => match keeper.write(file, &next) {
                    Ok(()) => {
                        keeper.put_into_force(next);
                        Ok(())
                    }
                    Err(error) => {
                        keeper.narrow(next);
                        Err(error)
                    }
                },
            }
        })
        .await
    }

    /// Works with the file on a thread that may block. The turn belongs to the work: a caller that
    /// gives up in the middle of a write does not let the next one overtake it.
    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &mut StateFile) -> Result<T, ApplyError> + Send + 'static,
    ) -> Result<T, ApplyError> {
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
        self.replace(next);
    }

    /// Puts what `next` takes away into force: it could not be written.
    fn narrow(&self, next: RelayAdmission) {
        if let Some(head) = next.head() {
            warn!(
                epoch = head.epoch.0,
                revision = head.revision.0,
                "the policy cannot be written to disk: what it takes away is in force, the rest waits"
            );
        }
        self.replace(self.current().with_unkept(next));
    }

    fn replace(&self, admission: RelayAdmission) {
        self.admission.store(Arc::new(admission));
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
mod tests;

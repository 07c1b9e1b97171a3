//! What the daemon keeps on disk: the signed node policy and grants, so that it restarts without
//! the control plane, and how often it has started.
//!
//! The envelopes are kept as they came; their signatures are checked again at each load.

use bytes::Bytes;
use fairlead_codec::{ReadError, Reader, WriteError, Writer};
use fairlead_host::{Clock, LockPlace, StateError, StateFile};
use fairlead_model::{BootCounter, RegistrationBoot};
use fairlead_transport::PairRun;
use std::path::Path;
use std::time::Duration;

/// Greatest signed node policy: the envelope's own limit for payloads (1 MiB) and its frame.
pub(crate) const POLICY_LEN_MAX: usize = 1024 * 1024 + 1024;
/// Greatest signed grant: what a hop OPEN takes.
pub(crate) const GRANT_LEN_MAX: usize = fairlead_hop::frame::GRANT_LEN_MAX;
/// Most grants of a node: one per route that it consumes.
pub(crate) const GRANTS_MAX: usize = 4096;
/// Greatest state file.
const STATE_LEN_MAX: usize = POLICY_LEN_MAX + GRANTS_MAX * (GRANT_LEN_MAX + 4) + 16;

const STATE_MAGIC: [u8; 8] = *b"FLNODE\0\x01";
const BOOT_MAGIC: [u8; 8] = *b"FLBOOT\0\x01";
/// A boot counter's bytes.
const BOOT_LEN: usize = 8;
/// The counter, and what the run had locked.
const RUN_LEN_MAX: usize = BOOT_LEN + LockPlace::LEN;

/// The signed documents that a node holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    /// The signed node policy, once one has come.
    pub(crate) policy: Option<Bytes>,
    /// The signed grants.
    pub(crate) grants: Vec<Bytes>,
}

/// The daemon's state files in its member folder.
#[derive(Debug)]
pub(crate) struct NodeState {
    documents: StateFile,
    boot: StateFile,
}

/// Why the documents could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentsError {
    /// The file.
    #[error(transparent)]
    File(#[from] StateError),
    /// Intact bytes of another layout.
    #[error("the node's state file has an unknown layout")]
    Layout(#[from] ReadError),
    /// More than the file takes.
    #[error("the node's documents are too large for its state file")]
    TooLarge(#[from] WriteError),
}

impl NodeState {
    /// The state files in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            documents: StateFile::new(dir.join("node.state"), STATE_MAGIC, STATE_LEN_MAX),
            boot: StateFile::new(dir.join("boot.state"), BOOT_MAGIC, RUN_LEN_MAX),
        }
    }

    /// The documents as they were saved last; none if never. Blocking.
    pub(crate) fn load(&self) -> Result<Documents, DocumentsError> {
        let Some(bytes) = self.documents.load()? else {
            return Ok(Documents::default());
        };
        Ok(decode(&bytes)?)
    }

    /// Replaces the documents. Durable when it returns. Blocking.
    pub(crate) fn save(&mut self, documents: &Documents) -> Result<(), DocumentsError> {
        Ok(self.documents.save(&encode(documents)?)?)
    }

    /// Renames documents that cannot be read, for who wants to look at them. Blocking.
    pub(crate) fn set_aside(&self) -> Result<(), StateError> {
        self.documents.set_aside()
    }

    /// Counts this start of the daemon, which has locked `place`, and returns the new count, and the last run
    /// if it had locked the same: then it is dead. In a folder that was copied it may be alive. Blocking.
    ///
    /// The count never falls below the wall clock in seconds, so that it still rises after its file was
    /// lost: peers take a lower count for an old run of this daemon. Where it was lost this waits for the
    /// second's end, since the run before may have begun in the same. It is in seconds because registrations
    /// keep 32 bits of it (R-ADM-04).
    pub(crate) fn count_boot(
        &mut self,
        clock: &dyn Clock,
        place: Option<LockPlace>,
    ) -> Result<PairRun, StateError> {
        let last = match self.boot.load() {
            Ok(bytes) => bytes.as_deref().and_then(decode_run).filter(|(boot, _)| {
                let fits = RegistrationBoot::of(*boot).is_some();
                if !fits {
                    tracing::warn!(%boot, "boot counter is past its end; it goes on from the wall clock");
                }
                fits
            }),
            Err(StateError::Damaged { path, what }) => {
                tracing::warn!(path = %path.display(), what, "boot counter is damaged; it goes on from the wall clock");
                None
            }
            Err(error @ (StateError::File(_) | StateError::TooLarge { .. })) => return Err(error),
        };
        let wall_ms = u64::try_from(clock.wall().0).unwrap_or(0);
        let mut clock_s = wall_ms / 1000;
        if last.is_none() && self.documents.path().exists() {
            std::thread::sleep(Duration::from_millis(1000 - wall_ms % 1000));
            clock_s += 1;
        }
        let next = last.map_or(BootCounter(1), |(boot, _)| boot.next());
        let boot = next.max(BootCounter(clock_s));
        let mut bytes = boot.0.to_be_bytes().to_vec();
        bytes.extend(place.iter().flat_map(|place| place.to_bytes()));
        self.boot.save(&bytes)?;
        let dead = last.filter(|(_, had)| place.is_some() && *had == place);
        Ok(PairRun {
            boot,
            dead: dead.map(|(boot, _)| boot),
        })
    }
}

/// A run, and what it had locked; an older version kept the count alone.
fn decode_run(bytes: &[u8]) -> Option<(BootCounter, Option<LockPlace>)> {
    let (boot, place) = bytes.split_first_chunk::<BOOT_LEN>()?;
    let place = <[u8; LockPlace::LEN]>::try_from(place).ok();
    Some((
        BootCounter(u64::from_be_bytes(*boot)),
        place.map(LockPlace::from_bytes),
    ))
}

fn encode(documents: &Documents) -> Result<Vec<u8>, WriteError> {
    let mut out = Vec::new();
    let mut w = Writer::new(&mut out, STATE_LEN_MAX);
    w.bool(documents.policy.is_some())?;
    if let Some(policy) = &documents.policy {
        w.bytes(policy, POLICY_LEN_MAX)?;
    }
    w.varint(documents.grants.len() as u64)?;
    for grant in &documents.grants {
        w.bytes(grant, GRANT_LEN_MAX)?;
    }
    Ok(out)
}

fn decode(bytes: &[u8]) -> Result<Documents, ReadError> {
    let mut r = Reader::new(bytes);
    let policy = if r.bool()? {
        Some(Bytes::copy_from_slice(r.bytes(POLICY_LEN_MAX)?))
    } else {
        None
    };
    let count = r.varint()?;
    let mut grants = Vec::new();
    for _ in 0..count {
        grants.push(Bytes::copy_from_slice(r.bytes(GRANT_LEN_MAX)?));
    }
    r.finish()?;
    Ok(Documents { policy, grants })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_host::SystemClock;

    /// R-GEN-04: what the control plane signed is there after a restart.
    #[test]
    fn documents_survive() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = NodeState::new(dir.path());
        assert_eq!(state.load().unwrap(), Documents::default());
        let documents = Documents {
            policy: Some(Bytes::from_static(b"policy")),
            grants: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
        };
        state.save(&documents).unwrap();
        assert_eq!(NodeState::new(dir.path()).load().unwrap(), documents);
        std::fs::write(dir.path().join("node.state"), b"junk").unwrap();
        assert!(matches!(
            state.load(),
            Err(DocumentsError::File(StateError::Damaged { .. }))
        ));
    }

    /// R-ENR-10: a run that had locked the same is dead; one whose folder was another, or that did not say, may live.
    #[test]
    fn the_last_run_is_dead_where_it_had_the_same_lock() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = NodeState::new(dir.path());
        let clock = SystemClock::new();
        let [here, elsewhere] = [1, 2].map(|n| Some(LockPlace::from_bytes([n; 32])));
        let mut count = |place| state.count_boot(&clock, place).unwrap();
        let first = count(here);
        assert_eq!(first.dead, None);
        let second = count(here);
        assert_eq!(second.dead, Some(first.boot));
        assert_eq!(count(elsewhere).dead, None);
        assert_eq!(count(None).dead, None);
        let silent = count(None);
        assert_eq!(silent.dead, None);
        let last = count(here);
        assert!(last.dead.is_none() && last.boot > silent.boot);
        // As an older version wrote it.
        let mut old = StateFile::new(dir.path().join("boot.state"), BOOT_MAGIC, BOOT_LEN);
        let kept = last.boot.next().0;
        old.save(&kept.to_be_bytes()).unwrap();
        let after = count(here);
        assert_eq!((after.boot, after.dead), (BootCounter(kept + 1), None));
    }

    #[test]
    fn the_boot_counter_rises_even_when_its_file_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = NodeState::new(dir.path());
        let clock = SystemClock::new();
        let mut last = BootCounter(0);
        for _ in 0..3 {
            let next = state.count_boot(&clock, None).unwrap().boot;
            assert!(next > last);
            last = next;
        }
        // A registration's epoch has room for it.
        assert!(RegistrationBoot::of(last).is_some(), "{last:?}");
        state.save(&Documents::default()).unwrap();
        let file = dir.path().join("boot.state");
        std::fs::write(&file, b"junk").unwrap();
        let first = state.count_boot(&clock, None).unwrap().boot;
        // The starts of one second are ahead of the clock by their number.
        assert!(first.0 + 2 >= last.0);
        // One that registrations have no room for is as good as lost.
        let mut past = StateFile::new(file.clone(), BOOT_MAGIC, BOOT_LEN);
        past.save(&u64::MAX.to_be_bytes()).unwrap();
        let counted = state.count_boot(&clock, None).unwrap().boot;
        assert!(
            counted > first && RegistrationBoot::of(counted).is_some(),
            "{counted}"
        );
        let first = counted;
        // At once again, and with no file at all.
        std::fs::remove_file(&file).unwrap();
        assert!(state.count_boot(&clock, None).unwrap().boot > first);
    }
}

//! What the supervisor's two loops share: what is wanted of the worker, and what is observed of
//! it. Both are watched values: the newest counts, nothing queues.

use bytes::Bytes;
use fairlead_host::Clock;
use fairlead_host::member::{MemberConfig, MemberFolder, SessionTeller};
use fairlead_model::ProcessBootId;
use fairlead_rpc::pb;
use fairlead_transport::MemberTls;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// What the worker is to hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// The newest signed policy with its lease.
    pub(crate) policy: Option<pb::SignedPolicy>,
    /// A lease newer than the policy's own.
    pub(crate) lease: Option<Bytes>,
    /// Rises when certificate, key or trust files change.
    pub(crate) identity: u64,
}

/// How the worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WorkerPhase {
    /// Its process was started, or is about to be.
    #[default]
    Starting,
    /// It serves its port.
    Listening,
    /// It ended; the next start waits.
    BackingOff,
    /// It keeps ending soon after its start.
    CrashLoop,
    /// Its process runs and no longer answers.
    Unresponsive,
}

impl WorkerPhase {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Listening => "listening",
            Self::BackingOff => "waiting for its next start",
            Self::CrashLoop => "in a crash loop",
            Self::Unresponsive => "running and does not answer its supervisor",
        }
    }

    pub(crate) const fn to_wire(self) -> pb::WorkerState {
        match self {
            Self::Starting => pb::WorkerState::Starting,
            Self::Listening => pb::WorkerState::Listening,
            Self::BackingOff => pb::WorkerState::BackingOff,
            Self::CrashLoop => pb::WorkerState::CrashLoop,
            Self::Unresponsive => pb::WorkerState::Unresponsive,
        }
    }
}

/// What is observed of the worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// How it stands.
    pub(crate) phase: WorkerPhase,
    /// Its process, while it runs.
    pub(crate) pid: Option<u32>,
    /// Starts after the first, since the supervisor started.
    pub(crate) restarts: u32,
    /// How the last one ended, in words, with the reason that it gave.
    pub(crate) last_exit: String,
    /// Why the last policy or lease was refused; empty if it was not.
    pub(crate) refused: String,
    /// Its own last report; `None` while it does not answer.
    pub(crate) status: Option<pb::WorkerStatusResponse>,
}

/// Shared by the loops.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: MemberFolder,
    pub(crate) member: MemberConfig,
    pub(crate) tls: Arc<MemberTls>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) version: &'static str,
    /// This process, as the control plane is told (R-ENR-10).
    pub(crate) process: pb::Process,
    wanted: watch::Sender<Wanted>,
    observed: watch::Sender<Observed>,
    /// Version of the trust bundle in the files.
    bundle_version: AtomicU64,
    connected: AtomicBool,
    /// Tells on this host how the session stands.
    pub(crate) teller: SessionTeller,
}

fn this_process() -> pb::Process {
    let boot: ProcessBootId = fairlead_host::rng::new_id();
    let mut parts = fairlead_host::host_parts();
    pb::Process {
        boot_id: Bytes::copy_from_slice(&boot.to_bytes()),
        host_name: fairlead_host::host_name(),
        machine: parts.remove("machine").unwrap_or_default(),
        product: parts.remove("product").unwrap_or_default(),
    }
}

impl Shared {
    pub(crate) fn new(
        folder: MemberFolder,
        member: MemberConfig,
        tls: Arc<MemberTls>,
        clock: Arc<dyn Clock>,
        version: &'static str,
        bundle_version: u64,
    ) -> Self {
        Self {
            teller: folder.session_teller(),
            folder,
            member,
            tls,
            clock,
            version,
            process: this_process(),
            wanted: watch::Sender::default(),
            observed: watch::Sender::default(),
            bundle_version: AtomicU64::new(bundle_version),
            connected: AtomicBool::new(false),
        }
    }

    pub(crate) fn watch_wanted(&self) -> watch::Receiver<Wanted> {
        self.wanted.subscribe()
    }

    pub(crate) fn want(&self, change: impl FnOnce(&mut Wanted)) {
        self.wanted.send_modify(change);
    }

    pub(crate) fn watch_observed(&self) -> watch::Receiver<Observed> {
        self.observed.subscribe()
    }

    pub(crate) fn observed(&self) -> Observed {
        self.observed.borrow().clone()
    }

    pub(crate) fn observe(&self, change: impl FnOnce(&mut Observed)) {
        self.observed.send_modify(change);
    }

    pub(crate) fn bundle_version(&self) -> u64 {
        self.bundle_version.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bundle_version(&self, version: u64) {
        self.bundle_version.store(version, Ordering::Relaxed);
    }

    pub(crate) fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }
}

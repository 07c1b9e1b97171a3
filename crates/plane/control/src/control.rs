//! The control plane as a whole: opening its folder, and what its parts share.

use crate::authority::{Authority, AuthorityError, CERTIFICATE_RENEW_LEFT, Keys, ServerIdentity};
use crate::enrol::Refusals;
use crate::folder::ControlFolder;
use crate::ledger::{Change, CommitError, Ledger};
use crate::observed::Observed;
use crate::publish::Published;
use crate::record::{At, LeaderRecord, PoolRecord, Text, TokenRecord, key};
use crate::revocation::Revocations;
use crate::state::{LoadError, State};
use crate::token::hash;
use crate::{api::Scope, audit::AuditNote};
use fairlead_host::{Clock, FileError, FolderLock, LockError, file, rng, secret};
use fairlead_model::{HostPort, LeaderTerm, MonoTime, PolicyEpoch, TrustDomain, WallTime};
use fairlead_rpc::TrustBundle;
use fairlead_store::Backend;
use fairlead_telemetry::Metrics;
use fairlead_trust::{KeyError, Keyring};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The name of the admin token that the first start makes.
const FIRST_TOKEN_NAME: &str = "first";
/// Version of the first trust bundle; it rises when a CA or a policy key is added or dropped.
const TRUST_BUNDLE_VERSION: u64 = 1;

/// How a control plane is opened.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// Its folder.
    pub dir: PathBuf,
    /// Where members reach it: stands in install commands and in its certificate.
    pub advertise: HostPort,
    /// Lab mode: several relays on one host are allowed (R-ENR-04).
    pub lab: bool,
    /// The store's engine.
    pub store: Backend,
    /// Where its metrics are registered.
    pub metrics: Option<Metrics>,
}

impl ControlSettings {
    /// Settings with the defaults: not in lab mode, redb, no metrics.
    #[must_use]
    pub const fn new(dir: PathBuf, advertise: HostPort) -> Self {
        Self {
            dir,
            advertise,
            lab: false,
            store: Backend::Redb,
            metrics: None,
        }
    }
}

/// Why a control plane could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key or certificate.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The store cannot be opened.
    #[error("the store cannot be opened")]
    Store(#[from] fairlead_store::OpenError),
    /// The store's content cannot be taken in.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The folder has keys, and the store knows of no pool.
    #[error(
        "{store} holds no pool, yet there are keys of one ({keys}): restore keys and store together \
         from one backup, or move both away to begin a new pool",
        store = store.display(),
        keys = keys.display()
    )]
    NoPool {
        /// The store's file or folder.
        store: PathBuf,
        /// A file of the pool that was.
        keys: PathBuf,
    },
    /// The folder holds something else, and no pool.
    #[error("{dir} holds something else ({found}) and no pool: give an empty or new folder", dir = dir.display())]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
        /// What is in it.
        found: String,
    },
    /// The first records cannot be written.
    #[error("the first records cannot be written")]
    Commit(#[from] CommitError),
    /// A key of ours cannot be used.
    #[error("the policy key cannot be used")]
    Key(#[from] KeyError),
}

/// A control plane; clones are the same one.
#[derive(Debug, Clone)]
pub struct Control(pub(crate) Arc<Inner>);

/// What its parts share.
pub(crate) struct Inner {
    pub(crate) settings: ControlSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Authority,
    pub(crate) domain: TrustDomain,
    pub(crate) bundle: TrustBundle,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) observed: Observed,
    pub(crate) refusals: Refusals,
    pub(crate) published: Published,
    pub(crate) revocations: Revocations,
    /// When this process opened it.
    pub(crate) started: MonoTime,
    term: AtomicU64,
    pub(crate) epoch: PolicyEpoch,
    /// When the last one was alive for the last time; `None` at the first start.
    pub(crate) last_pulse: Option<WallTime>,
    /// The first entry of the audit log that is not as it was written; 0 while none is known.
    pub(crate) audit_broken: AtomicU64,
    /// Bytes that may still be written to the store's disk; [`FREE_UNKNOWN`] before they are known.
    pub(crate) store_free: AtomicU64,
    /// Wakes the reconcile loop: something was observed.
    pub(crate) wake: Notify,
    /// Cancelled when serving ends.
    pub(crate) stopping: CancellationToken,
    /// Tasks of sessions.
    pub(crate) sessions: TaskTracker,
    server: Mutex<Arc<ServerIdentity>>,
    _lock: FolderLock,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Opens a control plane: locks its folder, opens or makes its keys and its store, takes the
    /// lead, and makes the first admin token where there is none.
    ///
    /// # Errors
    /// Another process has the folder; a file, a key or the store is damaged or cannot be written.
    pub async fn open(settings: ControlSettings, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let folder = ControlFolder::new(&settings.dir);
        if let Some(found) = folder.stranger() {
            let dir = folder.dir().to_owned();
            return Err(OpenError::NotEmpty { dir, found });
        }
        file::make_folder(folder.dir(), 0o700)?;
        let lock = FolderLock::acquire(folder.dir())?;
        // Before anything is made: what is there now tells a first start from a loss.
        let begun = begun(&folder)?;
        if !settings.store.is_made(&folder.store_dir()) {
            fairlead_store::check_backend(settings.store, &folder.store_dir())?;
            begun.may_make_store(&settings)?;
        }
        let store = fairlead_store::open(settings.store, &folder.store_dir())?;
        let state = State::load(&*store).await?;
        let keys = match &state.pool {
            Some(_) => {
                // A mark beside a pool is the rest of a start that was killed.
                file::remove(&folder.begun_path())?;
                Keys::Have
            }
            None => {
                begun.may_make_store(&settings)?;
                Keys::Make
            }
        };
        let authority = Authority::open(&folder, keys, clock.wall())?;
        if let Some(kept) = state.pool.as_ref().and_then(|i| i.record.keys.as_ref()) {
            authority.check(&folder, kept)?;
        }
        let last_pulse = state.pulse.as_ref().map(|k| WallTime::from(k.record.at));
        let ledger = Ledger::new(store, Arc::clone(&clock), state);
        let (domain, epoch, term) = take_lead(&ledger, &authority, clock.wall()).await?;
        // From here on the store says whose keys these are.
        file::remove(&folder.begun_path())?;
        first_token(&ledger, &folder, clock.wall()).await?;
        let bundle = TrustBundle {
            version: TRUST_BUNDLE_VERSION,
            ca_certificates: vec![bytes::Bytes::copy_from_slice(authority.ca_der())],
            policy_keys: Keyring::new([authority.policy.verifying_key()])?,
            trust_domain: domain.clone(),
        };
        let server = authority.issue_server(&domain, &settings.advertise, clock.wall())?;
        let started = clock.mono();
        Ok(Self(Arc::new(Inner {
            settings,
            clock,
            authority,
            domain,
            bundle,
            ledger,
            observed: Observed::default(),
            revocations: Revocations::default(),
            refusals: Refusals::default(),
            published: Published::default(),
            started,
            term: AtomicU64::new(term.0),
            epoch,
            last_pulse,
            audit_broken: AtomicU64::new(0),
            store_free: AtomicU64::new(FREE_UNKNOWN),
            wake: Notify::new(),
            stopping: CancellationToken::new(),
            sessions: TaskTracker::new(),
            server: Mutex::new(Arc::new(server)),
            _lock: lock,
        })))
    }

    /// The CA pin that enrolling hosts check: `sha256:` and the hexadecimal digest of its key.
    #[must_use]
    pub fn ca_pin(&self) -> String {
        self.0.authority.ca_pin().to_string()
    }

    /// The CA certificate.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.0.authority.ca_pem().to_owned()
    }

    /// The pool's trust domain.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.0.domain
    }

    /// Where members reach it.
    #[must_use]
    pub fn advertised(&self) -> &HostPort {
        &self.0.settings.advertise
    }

    /// Whether several relays may be on one host.
    #[must_use]
    pub fn is_lab(&self) -> bool {
        self.0.settings.lab
    }
}

impl Inner {
    /// The leader's term. It rises where members hold a higher one.
    pub(crate) fn term(&self) -> LeaderTerm {
        LeaderTerm(self.term.load(Ordering::SeqCst))
    }

    /// Raises the leader's term to one that is on record.
    pub(crate) fn raise_term(&self, term: LeaderTerm) {
        self.term.fetch_max(term.0, Ordering::SeqCst);
    }

    pub(crate) fn server_identity(&self) -> Arc<ServerIdentity> {
        Arc::clone(&self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a new server certificate when the present one has little left; whether it did.
    pub(crate) fn renew_server(&self) -> Result<bool, AuthorityError> {
        let now = self.clock.wall();
        if self.server_identity().not_after.since(now) > CERTIFICATE_RENEW_LEFT {
            return Ok(false);
        }
        let next = self
            .authority
            .issue_server(&self.domain, &self.settings.advertise, now)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        Ok(true)
    }
}

/// Whether this is a first start, perhaps one that goes on after a kill.
enum Begun {
    /// It is: keys and store may be made.
    First,
    /// It is not: this file of a pool is there.
    Before(PathBuf),
}

impl Begun {
    fn may_make_store(&self, settings: &ControlSettings) -> Result<(), OpenError> {
        match self {
            Self::First => Ok(()),
            Self::Before(keys) => Err(OpenError::NoPool {
                store: settings
                    .store
                    .path(&ControlFolder::new(&settings.dir).store_dir()),
                keys: keys.clone(),
            }),
        }
    }
}

/// Tells a first start from a later one, and marks it before it makes anything: a kill at any instant
/// leaves either nothing, or the mark, or a store that holds the pool.
/// In place of free bytes where the disk does not say.
pub(crate) const FREE_UNKNOWN: u64 = u64::MAX;

fn begun(folder: &ControlFolder) -> Result<Begun, FileError> {
    let mark = folder.begun_path();
    let is_there = |path: &PathBuf| path.try_exists().unwrap_or(true);
    if is_there(&mark) {
        return Ok(Begun::First);
    }
    let keys = [
        folder.ca_path(),
        folder.ca_key_path(),
        folder.policy_key_path(),
        folder.grant_key_path(),
    ];
    if let Some(found) = keys.into_iter().find(is_there) {
        return Ok(Begun::Before(found));
    }
    file::make_folder(&folder.keys_dir(), 0o700)?;
    secret::write(&mark, b"a first start is under way\n")?;
    Ok(Begun::First)
}

/// Writes the leader's record with the next term, and what the pool is at its first start.
/// From the commit on, a control plane that led before can write nothing.
async fn take_lead(
    ledger: &Arc<Ledger>,
    authority: &Authority,
    now: WallTime,
) -> Result<(TrustDomain, PolicyEpoch, LeaderTerm), OpenError> {
    let turn = ledger.turn().await?;
    let mut change = Change::default();
    let pool = match &turn.state().pool {
        Some(kept) if kept.record.keys.is_some() => kept.record.clone(),
        Some(kept) => {
            let filled = PoolRecord {
                keys: Some(authority.record()),
                ..kept.record.clone()
            };
            change.put(key::POOL, &filled);
            filled
        }
        None => {
            let first = PoolRecord {
                trust_domain: Text(own_domain(authority)),
                policy_epoch: 1,
                created_at: At::from(now),
                keys: Some(authority.record()),
            };
            change.put(key::POOL, &first);
            change.note(AuditNote::new("control", "pool.create", "pool").after(&first));
            first
        }
    };
    let term = turn
        .state()
        .leader
        .as_ref()
        .map_or(1, |k| k.record.term.saturating_add(1));
    change.put(key::LEADER, &LeaderRecord { term });
    turn.commit(change).await?;
    Ok((
        pool.trust_domain.0,
        PolicyEpoch(pool.policy_epoch),
        LeaderTerm(term),
    ))
}

/// A trust domain that no other pool has: named after the CA's key.
fn own_domain(authority: &Authority) -> TrustDomain {
    let pin = authority.ca_pin().to_string();
    let digest: String = pin.trim_start_matches("sha256:").chars().take(16).collect();
    #[allow(
        clippy::expect_used,
        reason = "hexadecimal digits, a letter and a dot, which a test parses"
    )]
    format!("pool-{digest}.internal")
        .parse()
        .expect("hexadecimal digits make a trust domain")
}

/// Makes the first admin token where there is no token at all. The file is written before the
/// record: an end between the two leaves a file that the next start replaces.
async fn first_token(ledger: &Arc<Ledger>, folder: &ControlFolder, now: WallTime) -> Result<(), OpenError> {
    let turn = ledger.turn().await?;
    if !turn.state().tokens.is_empty() {
        return Ok(());
    }
    let token = rng::token();
    secret::write(&folder.admin_token_path(), token.expose().as_bytes())?;
    let record = TokenRecord {
        id: Text(rng::new_id()),
        name: FIRST_TOKEN_NAME.to_owned(),
        scopes: vec![Text(Scope::System)],
        created_at: At::from(now),
    };
    let mut change = Change::default();
    change.note(AuditNote::new("control", "token.add", format!("token {FIRST_TOKEN_NAME}")).after(&record));
    change.put(key::token(&hash(token.expose())), &record);
    turn.commit(change).await?;
    Ok(())
}

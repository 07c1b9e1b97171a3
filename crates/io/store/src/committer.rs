//! The committer: one thread that checks preconditions, groups waiting commits into one durable
//! write, and opens the engine anew after a failure.

use crate::api::{
    ApplyError, Entry, Op, Precondition, ReadError, SCAN_LIMIT_MAX, Store, StoreFuture, StoreRevision, Watch,
    check,
};
use crate::engine::{Engine, EngineError, Group, Versioned};
use crate::open::{Backend, guarded};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use tokio::sync::{mpsc, oneshot, watch};

/// Commits that wait; more wait in their callers.
const QUEUE_MAX: usize = 256;
/// Commits in one durable write: bounds its size to what one transaction should hold, and how
/// long the first of them waits for the others' checks.
const GROUP_MAX: usize = 64;
/// Below this free space commits are refused: engines fail cleanly when full, but recover faster
/// when they never run into it, and the daemons' small files need some room as well.
pub(crate) const FREE_BYTES_MIN: u64 = 1 << 20;

/// Said while a failed engine cannot be opened again.
const NOT_OPEN: &str = "the engine failed and could not be opened again";

type Reply = oneshot::Sender<Result<StoreRevision, ApplyError>>;

struct Request {
    preconditions: Vec<Precondition>,
    ops: Vec<Op>,
    reply: Reply,
}

/// The engine, absent while it cannot be opened again. Readers share it; only the committer
/// replaces it.
type Slot = Arc<RwLock<Option<Box<dyn Engine>>>>;

/// A store over an embedded engine.
pub(crate) struct Committed {
    backend: Backend,
    dir: PathBuf,
    slot: Slot,
    last: watch::Receiver<StoreRevision>,
    /// Taken by `close`.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl fmt::Debug for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committed")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Committed {
    pub(crate) fn start(
        backend: Backend,
        dir: &Path,
        engine: Box<dyn Engine>,
        lock: File,
        free_bytes_min: u64,
    ) -> Result<Self, EngineError> {
        let (last_sender, last) = watch::channel(guarded(|| engine.revision())?);
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let slot: Slot = Arc::new(RwLock::new(Some(engine)));
        let mut committer = Committer {
            backend,
            dir: dir.to_owned(),
            slot: Arc::clone(&slot),
            last: last_sender,
            broken: None,
            free_bytes_min,
        };
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                committer.run(requests);
                // The engine is released before the lock, so that the next opener finds it free.
                drop(
                    committer
                        .slot
                        .write()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take(),
                );
                drop(lock);
            })
            .map_err(|e| EngineError::io("cannot start the store's thread", &e))?;
        Ok(Self {
            backend,
            dir: dir.to_owned(),
            slot,
            last,
            queue: Mutex::new(Some(queue)),
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    fn queue(&self) -> Option<mpsc::Sender<Request>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stop(&self) -> Arc<Mutex<Option<JoinHandle<()>>>> {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        Arc::clone(&self.thread)
    }

    fn read<T>(&self, read: impl FnOnce(&dyn Engine) -> Result<T, EngineError>) -> Result<T, ReadError> {
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = slot.as_deref() else {
            // The committer holds the sender as long as it runs.
            if self.last.has_changed().is_err() {
                return Err(ReadError::Closed);
            }
            return Err(self.read_error(EngineError::new(NOT_OPEN)));
        };
        guarded(|| read(engine)).map_err(|source| self.read_error(source))
    }

    fn read_error(&self, source: EngineError) -> ReadError {
        if source.is_damage() {
            return ReadError::Damaged {
                file: self.backend.path(&self.dir),
                source,
            };
        }
        ReadError::Engine {
            dir: self.dir.clone(),
            source,
        }
    }
}

fn join(thread: &Mutex<Option<JoinHandle<()>>>) {
    let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(thread) = thread
        && thread.join().is_err()
    {
        tracing::error!("the store's thread panicked");
    }
}

impl Drop for Committed {
    fn drop(&mut self) {
        join(&self.stop());
    }
}

impl Store for Committed {
    fn apply(
        &self,
        preconditions: Vec<Precondition>,
        ops: Vec<Op>,
    ) -> StoreFuture<'_, Result<StoreRevision, ApplyError>> {
        Box::pin(async move {
            check(&preconditions, &ops)?;
            let queue = self.queue().ok_or(ApplyError::Closed)?;
            let (reply, answer) = oneshot::channel();
            let request = Request {
                preconditions,
                ops,
                reply,
            };
            queue.send(request).await.map_err(|_| ApplyError::Closed)?;
            drop(queue);
            answer.await.map_err(|_| ApplyError::Closed)?
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Result<Option<Entry>, ReadError>> {
        Box::pin(async move {
            let found = self.read(|engine| engine.get(key))?;
            Ok(found.map(|(revision, value)| Entry {
                key: key.to_owned(),
                value,
                revision,
            }))
        })
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Result<Vec<Entry>, ReadError>> {
        Box::pin(
            async move { self.read(|engine| engine.scan(prefix, after, limit.clamp(1, SCAN_LIMIT_MAX))) },
        )
    }

    fn revision(&self) -> StoreRevision {
        *self.last.borrow()
    }

    fn watch(&self) -> Watch {
        Watch {
            receiver: self.last.clone(),
        }
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let thread = self.stop();
            if tokio::task::spawn_blocking(move || join(&thread)).await.is_err() {
                tracing::error!("closing the store failed");
            }
        })
    }
}

struct Committer {
    backend: Backend,
    dir: PathBuf,
    slot: Slot,
    last: watch::Sender<StoreRevision>,
    /// Why the engine is not open: to be opened anew before the next commit.
    broken: Option<EngineError>,
    free_bytes_min: u64,
}

/// A group under way: what it changes, and the verdict on each request, held back until the
/// group is durable, since a verdict may rest on changes of the same group.
struct Pending {
    group: Group,
    verdicts: Vec<(Reply, Result<StoreRevision, ApplyError>)>,
}

impl Committer {
    fn run(&mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(first) = requests.blocking_recv() {
            let mut waiting = vec![first];
            while waiting.len() < GROUP_MAX
                && let Ok(next) = requests.try_recv()
            {
                waiting.push(next);
            }
            self.commit(waiting);
        }
    }

    fn commit(&mut self, waiting: Vec<Request>) {
        let mut pending = Pending {
            group: Group {
                changes: BTreeMap::new(),
                last: *self.last.borrow(),
            },
            verdicts: Vec::with_capacity(waiting.len()),
        };
        let mut replies = Vec::new();
        let mut result = self.ready();
        let asked_engine = result.is_ok();
        for request in waiting {
            if result.is_err() {
                replies.push(request.reply);
                continue;
            }
            match self.weigh(&mut pending.group, &request.preconditions, request.ops) {
                Ok(verdict) => pending.verdicts.push((request.reply, verdict)),
                Err(error) => {
                    replies.push(request.reply);
                    result = Err(error);
                }
            }
        }
        if result.is_ok() && !pending.group.changes.is_empty() {
            result = self.write(&pending.group);
        }
        match result {
            Ok(()) => {
                // Watchers and `revision` first: whoever has the answer sees at least its commit.
                self.last.send_if_modified(|last| {
                    let moved = *last != pending.group.last;
                    *last = pending.group.last;
                    moved
                });
                for (reply, verdict) in pending.verdicts {
                    // A caller that is gone needs no answer.
                    let _ = reply.send(verdict);
                }
            }
            Err(error) => {
                tracing::error!(dir = %self.dir.display(), %error, "a commit failed");
                // A disk without room is no fault of the engine: it is healthy, its readers need it,
                // and it might not open again.
                if asked_engine {
                    self.reopen();
                }
                for reply in pending
                    .verdicts
                    .into_iter()
                    .map(|(reply, _)| reply)
                    .chain(replies)
                {
                    let _ = reply.send(Err(self.apply_error(error.clone())));
                }
            }
        }
    }

    /// The engine is open, opened anew if need be, and the disk has room.
    fn ready(&mut self) -> Result<(), EngineError> {
        if self.broken.is_some() {
            self.reopen();
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        match rustix::fs::statvfs(&self.dir) {
            Ok(disk) if disk.f_bavail.saturating_mul(disk.f_frsize) < self.free_bytes_min => {
                Err(EngineError::no_room(&self.dir, self.free_bytes_min))
            }
            Ok(_) => Ok(()),
            Err(errno) => Err(EngineError::io("cannot read the free space", &errno.into())),
        }
    }

    /// One request's verdict, given the requests before it in the group; adds its changes.
    fn weigh(
        &self,
        group: &mut Group,
        preconditions: &[Precondition],
        ops: Vec<Op>,
    ) -> Result<Result<StoreRevision, ApplyError>, EngineError> {
        for (index, precondition) in preconditions.iter().enumerate() {
            let found = match group.changes.get(precondition.key()) {
                Some(change) => change.as_ref().map(|(revision, _)| *revision),
                None => self.get(precondition.key())?.map(|(revision, _)| revision),
            };
            if !precondition.holds(found) {
                return Ok(Err(ApplyError::PreconditionFailed {
                    index,
                    key: precondition.key().to_owned(),
                }));
            }
        }
        if ops.is_empty() {
            return Ok(Ok(group.last));
        }
        group.last = StoreRevision(group.last.0.saturating_add(1));
        for op in ops {
            match op {
                Op::Put { key, value } => group.changes.insert(key, Some((group.last, value))),
                Op::Delete { key } => group.changes.insert(key, None),
            };
        }
        Ok(Ok(group.last))
    }

    fn get(&self, key: &str) -> Result<Option<Versioned>, EngineError> {
        self.with_engine(|engine| engine.get(key))
    }

    fn write(&self, group: &Group) -> Result<(), EngineError> {
        self.with_engine(|engine| engine.commit(group))
    }

    fn with_engine<T>(
        &self,
        run: impl FnOnce(&dyn Engine) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        let engine = slot.as_deref().ok_or_else(|| EngineError::new(NOT_OPEN))?;
        guarded(|| run(engine))
    }

    /// Opens the engine anew: after a failed write an engine refuses all, and what it would show
    /// need not be what is on the disk.
    fn reopen(&mut self) {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        // Dropped before opening: it holds the engine's own lock. Its drop may write, and fail.
        let old = slot.take();
        if let Err(error) = guarded(|| {
            drop(old);
            Ok(())
        }) {
            tracing::warn!(%error, "the failed engine did not end cleanly");
        }
        let opened = self.backend.open_engine(&self.dir).and_then(|engine| {
            let revision = guarded(|| engine.revision())?;
            Ok((engine, revision))
        });
        match opened {
            Ok((engine, revision)) => {
                *slot = Some(engine);
                self.broken = None;
                // A commit whose outcome was unknown is either there or not.
                self.last.send_if_modified(|last| {
                    let moved = *last != revision;
                    *last = revision;
                    moved
                });
            }
            Err(error) => {
                tracing::error!(dir = %self.dir.display(), %error, "the store cannot be opened again");
                self.broken = Some(error);
            }
        }
    }

    fn apply_error(&self, source: EngineError) -> ApplyError {
        if source.is_disk_full() {
            ApplyError::DiskFull {
                dir: self.dir.clone(),
            }
        } else {
            ApplyError::Engine {
                dir: self.dir.clone(),
                source,
            }
        }
    }
}

//! One suite for every backend; the backend is a parameter at run time.

mod conformance;
mod crash;
mod damage;
mod full_disk;
mod power_cut;

use crate::{Backend, Store, open};
use std::path::Path;
use std::sync::Arc;

/// Runs one test of the suite over every backend, each in a fresh folder.
fn over_every_backend<F>(test: impl Fn(Backend, std::path::PathBuf) -> F)
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for backend in Backend::ALL {
        let dir = tempfile::tempdir().unwrap();
        println!("backend: {backend}");
        runtime.block_on(test(backend, dir.path().join("store")));
    }
}

fn fresh(backend: Backend, dir: &Path) -> Arc<dyn Store> {
    open(backend, dir).unwrap()
}

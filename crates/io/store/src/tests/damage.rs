//! Files that were emptied, overwritten or lost: what is said names the file, and nothing is made
//! in their place.

use super::crash::{child, child_arguments};
use super::{fresh, over_every_backend};
use crate::{Backend, Op, OpenError, ReadError, Store, open};
use std::fs;
use std::path::Path;

async fn fill(store: &dyn Store) {
    for n in 0..200 {
        let op = Op::put(format!("key/{n}"), "x".repeat(1000));
        store.apply(vec![], vec![op]).await.unwrap();
    }
    store.close().await;
}

/// Opens the store and reads all of it; the error's text and whether it names damage.
async fn read_all(backend: Backend, dir: &Path) -> Result<(), (bool, String)> {
    let store = open(backend, dir).map_err(|e| (matches!(e, OpenError::Damaged { .. }), e.to_string()))?;
    let read = store.scan("key/", None, 1000).await;
    store.close().await;
    match read {
        Ok(_) => Ok(()),
        Err(e) => Err((matches!(e, ReadError::Damaged { .. }), e.to_string())),
    }
}

/// The process that `a_damaged_store_is_told_in_one_line` watches; by itself it does nothing.
#[test]
fn damaged_child() {
    let Some((backend, dir)) = child_arguments() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Err((is_damage, text)) = runtime.block_on(read_all(backend, &dir)) {
        assert_eq!(text.lines().count(), 1);
        println!("\nsaid: {is_damage} {text}");
    }
}

/// A file that was overwritten in its middle: the error names it, and the engine's panic is not on
/// standard error.
#[test]
fn a_damaged_store_is_told_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = fresh(Backend::Redb, &dir);
    runtime.block_on(fill(&*store));
    drop(store);
    let file = dir.join("store.redb");
    let good = fs::read(&file).unwrap();
    let mut told = 0;
    for part in 0..8 {
        let mut bad = good.clone();
        let eighth = bad.len() / 8;
        for byte in bad.iter_mut().skip(part * eighth).take(eighth) {
            *byte = byte.wrapping_mul(31) ^ 0x5a;
        }
        fs::write(&file, &bad).unwrap();
        let output = child("tests::damage::damaged_child", Backend::Redb, &dir)
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert!(output.status.success(), "part {part}: {out}{err}");
        assert!(
            !err.contains("panicked") && !out.contains("panicked"),
            "part {part}: {err}{out}"
        );
        if let Some(said) = out.lines().find_map(|line| line.strip_prefix("said: ")) {
            told += 1;
            assert!(said.starts_with("true "), "part {part}: {said}");
            assert!(
                said.contains("store.redb is damaged: restore it from a backup"),
                "{said}"
            );
        }
    }
    assert!(told >= 2, "{told} parts were found damaged");
}

/// An emptied file is no new store: nothing is made in its place.
#[test]
fn an_emptied_redb_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    drop(fresh(Backend::Redb, &dir));
    let file = dir.join("store.redb");
    fs::write(&file, "").unwrap();
    let error = open(Backend::Redb, &dir).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

/// What the system refuses is said of the file that it is about, whoever runs this.
#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    let file = dir.join("store.redb");
    fs::create_dir_all(&file).unwrap();
    let error = open(Backend::Redb, &dir).unwrap_err().to_string();
    assert!(error.contains(&file.display().to_string()), "{error}");
}

/// What stands in the place of a store's file is named for what it is, and nobody waits for it.
#[test]
fn what_is_not_the_stores_is_told_from_damage() {
    over_every_backend(|backend, dir| async move {
        drop(fresh(backend, &dir));
        let own = match backend {
            Backend::Redb => "store.redb",
            Backend::Sled => "sled",
        };
        for name in [own, "store.lock", "backend"] {
            let (path, aside) = (dir.join(name), dir.join("aside"));
            fs::rename(&path, &aside).unwrap();
            let told = |found: &str| {
                let error = open(backend, &dir).unwrap_err();
                assert!(matches!(error, OpenError::Kind { .. }), "{name}: {error:?}");
                let text = error.to_string();
                let start = format!("{} is {found}", path.display());
                assert!(
                    text.starts_with(&start) && text.contains("move it away"),
                    "{name}: {text}"
                );
                fs::remove_file(&path).unwrap();
            };
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
            told("a pipe");
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            told("a socket");
            std::os::unix::fs::symlink(name, &path).unwrap();
            told("a symbolic link that leads back to itself");
            fs::rename(&aside, &path).unwrap();
        }
        drop(fresh(backend, &dir));
    });
}

/// What a kill left of a first opening is made anew.
#[test]
fn a_half_made_redb_file_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("store.redb.new"), vec![0; 1 << 20]).unwrap();
    drop(fresh(Backend::Redb, &dir));
    assert!(!dir.join("store.redb.new").exists());
}

#[test]
fn a_damaged_marker_says_what_it_must_hold_and_a_lost_one_is_not_another_engines() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        fill(&*store).await;
        drop(store);
        let marker = dir.join("backend");
        for damage in [&b""[..], b"\xff\xfe", b"redb sled", b"x"] {
            fs::write(&marker, damage).unwrap();
            let error = open(backend, &dir).unwrap_err();
            assert!(matches!(error, OpenError::Marker { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("store/backend is damaged: it must hold one word"),
                "{text}"
            );
        }
        fs::remove_file(&marker).unwrap();
        for other in Backend::ALL.into_iter().filter(|b| *b != backend) {
            let error = open(other, &dir).unwrap_err();
            assert!(
                matches!(error, OpenError::OtherBackend { found, .. } if found == backend),
                "{error:?}"
            );
        }
        assert!(!marker.exists());
        drop(fresh(backend, &dir));
        assert_eq!(fs::read_to_string(&marker).unwrap().trim(), backend.to_string());
    });
}

//! What a control plane does when its keys or its store are gone: it never takes a loss for a first
//! start, and never a first start that was killed for a loss.

use super::fixture::TestClock;
use fairlead_control::{Control, ControlFolder, ControlSettings, OpenError};
use fairlead_store::Backend;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const KEY_FILES: [&str; 4] = [
    "keys/ca.key.pem",
    "ca.pem",
    "keys/policy.key.pem",
    "keys/grant.key.pem",
];

async fn open(dir: &Path, store: Backend) -> Result<Control, OpenError> {
    let settings = ControlSettings {
        store,
        ..ControlSettings::new(dir.to_owned(), "127.0.0.1:8443".parse().unwrap())
    };
    Control::open(settings, Arc::<TestClock>::default()).await
}

fn token(dir: &Path) -> String {
    fs::read_to_string(ControlFolder::new(dir).admin_token_path()).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}

/// A store that is gone or empty beside keys: refused with its name, and nothing is touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_no_new_pool() {
    for store in Backend::ALL {
        for lost in ["file", "content", "folder"] {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            drop(open(dir, store).await.unwrap());
            let before = token(dir);
            let file = store.path(&dir.join("store"));
            match lost {
                "file" => remove(&file),
                "folder" => remove(&dir.join("store")),
                _ if file.is_dir() => {
                    remove(&file);
                    fs::create_dir(&file).unwrap();
                }
                _ => fs::write(&file, "").unwrap(),
            }
            // Again and again: a refused start leaves nothing that the next one takes.
            for _ in 0..2 {
                let error = open(dir, store).await.unwrap_err();
                let text = match &error {
                    OpenError::Store(source) => source.to_string(),
                    error => error.to_string(),
                };
                assert!(
                    text.contains(&file.display().to_string()),
                    "{store} {lost}: {text}"
                );
                assert!(text.contains("backup"), "{store} {lost}: {text}");
                assert_eq!(token(dir), before, "{store} {lost}");
            }
            // Both away: a new pool.
            for path in ["store", "keys", "ca.pem"] {
                if dir.join(path).exists() {
                    remove(&dir.join(path));
                }
            }
            drop(open(dir, store).await.unwrap());
            assert_ne!(token(dir), before, "{store} {lost}");
        }
    }
}

/// A store that another engine made is not said to be lost: moving it away would end a healthy pool.
#[tokio::test(flavor = "multi_thread")]
async fn another_engines_store_is_named() {
    for (made, asked) in [(Backend::Redb, Backend::Sled), (Backend::Sled, Backend::Redb)] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), made).await.unwrap());
        let OpenError::Store(error) = open(dir.path(), asked).await.unwrap_err() else {
            panic!("the engine is to blame");
        };
        let error = error.to_string();
        let marker = dir.path().join("store/backend");
        for told in [format!("{} says so", marker.display()), format!("--store {made}")] {
            assert!(error.contains(&told), "{told}: {error}");
        }
        drop(open(dir.path(), made).await.unwrap());
    }
}

/// A key that is gone is not made anew, and another's is not taken: every member would refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_foreign_key_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, other) = (dir.path(), other.path());
    let pin = open(dir, Backend::Redb).await.unwrap().ca_pin();
    drop(open(other, Backend::Redb).await.unwrap());
    for name in KEY_FILES {
        let (path, aside) = (dir.join(name), dir.join("aside"));
        fs::rename(&path, &aside).unwrap();
        let error = open(dir, Backend::Redb).await.unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("backup"),
            "{name}: {error}"
        );
        assert!(!path.exists(), "{name} was made anew");
        if name != "ca.pem" && name != "keys/ca.key.pem" {
            copy(&other.join(name), &path);
            let error = open(dir, Backend::Redb).await.unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("another key"),
                "{name}: {error}"
            );
        }
        fs::rename(&aside, &path).unwrap();
    }
    // All of them are gone, or all are another's.
    for from in [None, Some(other)] {
        let aside = tempfile::tempdir().unwrap();
        for name in KEY_FILES {
            copy(&dir.join(name), &aside.path().join(name));
            remove(&dir.join(name));
            if let Some(from) = from {
                copy(&from.join(name), &dir.join(name));
            }
        }
        let error = open(dir, Backend::Redb).await.unwrap_err().to_string();
        assert!(error.contains("backup"), "{error}");
        for name in KEY_FILES {
            copy(&aside.path().join(name), &dir.join(name));
        }
    }
    assert_eq!(open(dir, Backend::Redb).await.unwrap().ca_pin(), pin);
}

/// A first start that was killed at any instant goes on by itself. Its steps in their order: the
/// mark, the store, the keys, the pool in the store, the mark's removal, the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_was_killed_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    drop(open(whole.path(), Backend::Redb).await.unwrap());
    assert!(!whole.path().join("keys/begun").exists());
    for steps in 0..=6 {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("keys")).unwrap();
        fs::write(dir.join("keys/begun"), "").unwrap();
        if steps >= 1 {
            drop(fairlead_store::open(Backend::Redb, &dir.join("store")).unwrap());
        }
        for name in KEY_FILES.iter().take(steps.max(1) - 1) {
            copy(&whole.path().join(name), &dir.join(name));
        }
        if steps == 6 {
            copy(
                &whole.path().join("store/store.redb"),
                &dir.join("store/store.redb"),
            );
        }
        let control = open(dir, Backend::Redb).await.unwrap();
        assert!(!dir.join("keys/begun").exists(), "after {steps} steps");
        if steps < 6 {
            control.authenticate(token(dir).trim()).await.unwrap();
        }
        let pin = control.ca_pin();
        drop(control);
        assert_eq!(open(dir, Backend::Redb).await.unwrap().ca_pin(), pin);
    }
}

/// A folder that was given by mistake is refused before anything is put into it; settings and hidden files may
/// lie in one that is to be the control plane's.
#[tokio::test]
async fn a_folder_of_others_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in [".hidden", "control.toml", "passwd"] {
        fs::write(dir.join(name), "x").unwrap();
    }
    let Err(OpenError::NotEmpty { found, .. }) = open(dir, Backend::Redb).await else {
        panic!("it was taken");
    };
    assert_eq!(found, "passwd");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
    fs::remove_file(dir.join("passwd")).unwrap();
    drop(open(dir, Backend::Redb).await.unwrap());
    // Once it is one, what others put there is nobody's concern.
    fs::write(dir.join("notes"), "x").unwrap();
    open(dir, Backend::Redb).await.unwrap();
}

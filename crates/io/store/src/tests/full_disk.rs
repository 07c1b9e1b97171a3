//! A disk that is really full: a small tmpfs in a mount namespace of the test's own.

use super::crash::{child, child_arguments};
use crate::open::open_with;
use crate::{ApplyError, Backend, Op};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of the test's file system.
const DISK_BYTES: u64 = 24 << 20;
/// Values in one commit.
const BATCH: u64 = 8;
/// A file that is removed to make room again.
const BALLAST_BYTES: usize = 12 << 20;

/// Fills the file system to its last byte with one more file.
fn fill(disk: &Path) -> PathBuf {
    let rest = disk.join("rest");
    let mut file = File::create(&rest).unwrap();
    let mut len = 1 << 20;
    while len > 0 {
        // A write that came short has met the end for this length.
        if file.write_all(&vec![1; len]).is_err() {
            len /= 2;
        }
    }
    let disk = rustix::fs::statvfs(disk).unwrap();
    assert_eq!(disk.f_bavail, 0);
    rest
}

/// What `a_full_disk_refuses_and_recovers` runs inside the small file system; by itself it does
/// nothing.
#[test]
fn full_disk_child() {
    let Some((backend, disk)) = child_arguments() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Without the reserve the engine itself meets ENOSPC; with it, the store refuses before.
    for (name, free_bytes_min) in [("engine", 0), ("reserve", crate::committer::FREE_BYTES_MIN)] {
        let ballast = disk.join("ballast");
        std::fs::write(&ballast, vec![1; BALLAST_BYTES]).unwrap();
        let dir = disk.join(name);
        runtime.block_on(async {
            let store = open_with(backend, &dir, free_bytes_min).unwrap();
            let mut acked = 0u64;
            let put = |n: u64| {
                let key = |i| format!("key/{:06}", n * BATCH + i);
                (0..BATCH)
                    .map(|i| Op::put(key(i), vec![n as u8; 4_000]))
                    .collect::<Vec<_>>()
            };
            let error = loop {
                match store.apply(vec![], put(acked)).await {
                    Ok(_) => acked += 1,
                    Err(error) => break error,
                }
                assert!(acked * BATCH * 4_000 < DISK_BYTES, "the disk never filled");
            };
            println!("{backend} {name}: full after {acked} commits: {error}");
            assert!(
                matches!(&error, ApplyError::DiskFull { dir: d } if *d == dir),
                "{error:?}"
            );
            let told = error.to_string();
            for words in ["disk is full", "make room", dir.to_str().unwrap()] {
                assert!(told.contains(words), "{told}");
            }
            // Opening the engine anew may have freed some pages; what is refused is refused for the
            // same reason.
            for _ in 0..20 {
                match store.apply(vec![], put(acked)).await {
                    Ok(_) => acked += 1,
                    Err(error) => assert!(matches!(error, ApplyError::DiskFull { .. }), "{error:?}"),
                }
            }
            if free_bytes_min > 0 {
                // Others take what the store has left free. It refuses, and reads go on: its engine
                // has met no error.
                let rest = fill(&disk);
                for _ in 0..3 {
                    let error = store.apply(vec![], put(acked)).await.unwrap_err();
                    assert!(matches!(error, ApplyError::DiskFull { .. }), "{error:?}");
                    let entry = store.get("key/000000").await.unwrap().unwrap();
                    assert_eq!(entry.value.len(), 4_000);
                    assert_eq!(store.scan("key/", None, 5).await.unwrap().len(), 5);
                }
                std::fs::remove_file(rest).unwrap();
            }
            // Reads go on. Only sled without the reserve cannot even be opened on a full disk.
            if backend == Backend::Redb || free_bytes_min > 0 {
                let entry = store.get("key/000000").await.unwrap().unwrap();
                assert_eq!(entry.value.len(), 4_000);
            }

            std::fs::remove_file(&ballast).unwrap();
            for n in acked..acked + 20 {
                store.apply(vec![], put(n)).await.unwrap();
            }
            store.close().await;
            drop(store);
            let store = open_with(backend, &dir, free_bytes_min).unwrap();
            for key in 0..(acked + 20) * BATCH {
                let n = key / BATCH;
                let entry = store.get(&format!("key/{key:06}")).await.unwrap();
                assert_eq!(
                    entry.expect("acknowledged").value,
                    vec![n as u8; 4_000],
                    "key {key}"
                );
            }
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
    println!("full disk: done");
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    for backend in Backend::ALL {
        let mount = tempfile::tempdir().unwrap();
        let inner = child("tests::full_disk::full_disk_child", backend, mount.path());
        let script = format!(
            "mount -t tmpfs -o size={DISK_BYTES} none {} && exec \"$0\" \"$@\"",
            mount.path().display()
        );
        let output = Command::new("unshare")
            .args(["-Urm", "sh", "-c", &script])
            .arg(inner.get_program())
            .args(inner.get_args())
            .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .output()
            .expect("unshare of util-linux runs");
        let out = String::from_utf8_lossy(&output.stdout);
        print!("{out}");
        assert!(
            output.status.success() && out.contains("full disk: done"),
            "{out}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

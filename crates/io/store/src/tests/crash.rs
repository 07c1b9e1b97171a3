//! kill -9 of a real process during commits: nothing acknowledged is lost, nothing is half there.

use super::fresh;
use crate::{Backend, Op, Store, StoreRevision};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Names the child's backend and folder.
pub(super) const CHILD_ENV: &str = "FAIRLEAD_STORE_TEST_CHILD";
/// Writers in the child: their commits form groups.
pub(super) const WRITERS: u64 = 4;
/// Keys that each writer goes round: overwrites and new keys both happen.
const KEYS: u64 = 40;
/// Kills per backend.
const ROUNDS: u64 = 12;

/// Runs another test of this binary as a process of its own.
pub(super) fn child(test: &str, backend: Backend, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_ENV, format!("{backend}:{}", dir.display()));
    command
}

pub(super) fn child_arguments() -> Option<(Backend, PathBuf)> {
    let text = std::env::var(CHILD_ENV).ok()?;
    let (backend, dir) = text.split_once(':')?;
    Some((backend.parse().unwrap(), PathBuf::from(dir)))
}

/// Values differ in length, up to the greatest, so that pages split and merge.
fn content(writer: u64, n: u64) -> Vec<u8> {
    let len = 20 + (n * 977 + writer * 131) % 3_900;
    let mut value = format!("{writer}:{n}:").into_bytes();
    value.resize(len as usize, b'a' + (n % 26) as u8);
    value
}

/// The process that `killed_during_commits` kills; by itself it does nothing. Prints
/// `ack WRITER N` after each commit.
#[test]
fn crash_child() {
    let Some((backend, dir)) = child_arguments() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async move {
        let store = fresh(backend, &dir);
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = Arc::clone(&store);
            writers.spawn(async move {
                let mut n = count(&*store, writer).await;
                loop {
                    n += 1;
                    let ops = vec![
                        Op::put(format!("a/{writer}/{}", n % KEYS), content(writer, n)),
                        Op::put(format!("b/{writer}/{}", n % KEYS), content(writer, n)),
                        Op::put(format!("count/{writer}"), n.to_string()),
                    ];
                    store.apply(vec![], ops).await.unwrap();
                    println!("ack {writer} {n}");
                }
            });
        }
        writers.join_all().await;
    });
}

async fn count(store: &dyn Store, writer: u64) -> u64 {
    match store.get(&format!("count/{writer}")).await.unwrap() {
        Some(entry) => std::str::from_utf8(&entry.value).unwrap().parse().unwrap(),
        None => 0,
    }
}

/// The newest commit of each writer that the child's output acknowledges.
fn read_acks(child: &mut Child, kill_after: u64) -> [u64; WRITERS as usize] {
    let mut acked = [0; WRITERS as usize];
    let mut lines = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // A line that the kill cut short does not count.
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split(' ').collect();
        // The test runner has begun the first line.
        let [.., "ack", writer, n] = words[..] else {
            continue;
        };
        let (Ok(writer), Ok(n)) = (writer.parse::<usize>(), n.parse()) else {
            continue;
        };
        acked[writer] = n;
        lines += 1;
        if lines == kill_after {
            // SIGKILL; what is in the pipe is read on.
            child.kill().unwrap();
        }
    }
    assert!(
        lines >= kill_after,
        "the child ended early, after {lines} commits"
    );
    child.wait().unwrap();
    acked
}

/// As [`verify_at_least`]; and nothing is there that was neither acknowledged nor under way.
async fn verify(store: &dyn Store, acked: [u64; WRITERS as usize]) {
    verify_at_least(store, acked).await;
    for writer in 0..WRITERS {
        let (last, acked) = (count(store, writer).await, acked[writer as usize]);
        assert!(
            last <= acked + 1,
            "writer {writer}: {acked} acknowledged, {last} there"
        );
    }
}

/// Every acknowledged commit is there, every commit is whole, and each counted once.
pub(super) async fn verify_at_least(store: &dyn Store, acked: [u64; WRITERS as usize]) {
    let mut total = 0;
    for writer in 0..WRITERS {
        let last = count(store, writer).await;
        total += last;
        let acked = acked[writer as usize];
        assert!(
            last >= acked,
            "writer {writer}: commit {acked} was acknowledged, {last} is there"
        );
        for slot in 0..KEYS.min(last) {
            let n = (1..=last)
                .rev()
                .find(|n| n % KEYS == (last - slot) % KEYS)
                .unwrap();
            for table in ["a", "b"] {
                let key = format!("{table}/{writer}/{}", n % KEYS);
                let entry = store.get(&key).await.unwrap().unwrap();
                assert_eq!(entry.value, content(writer, n), "{key} of commit {n}");
            }
        }
    }
    assert_eq!(store.revision(), StoreRevision(total), "one revision per commit");
}

#[test]
fn killed_during_commits() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for backend in Backend::ALL {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("store");
        let mut base = 0;
        for round in 0..ROUNDS {
            let mut process = child("tests::crash::crash_child", backend, &dir)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // Another instant each round; the first kills fall into the making of the store's files.
            let acked = read_acks(&mut process, 1 + round * 23 + fastrand::u64(0..20));
            let store = fresh(backend, &dir);
            runtime.block_on(verify(&*store, acked));
            let revision = store.revision().0;
            assert!(revision > base);
            base = revision;
        }
        println!("{backend}: {ROUNDS} kills, {base} commits");
    }
}

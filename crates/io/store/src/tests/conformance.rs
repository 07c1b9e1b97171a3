//! What every backend promises.

use super::{fresh, over_every_backend};
use crate::chunk::{self, CHUNKED_LEN_MAX, ChunkError};
use crate::{
    ApplyError, KEY_LEN_MAX, OPS_MAX, Op, OpenError, Precondition, ReadError, SCAN_LIMIT_MAX, Store,
    StoreRevision, VALUE_LEN_MAX, open,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

async fn put(store: &dyn Store, key: &str, value: &str) -> StoreRevision {
    store
        .apply(vec![], vec![Op::put(key, value.to_owned())])
        .await
        .unwrap()
}

async fn value(store: &dyn Store, key: &str) -> Option<String> {
    let entry = store.get(key).await.unwrap()?;
    Some(String::from_utf8(entry.value.to_vec()).unwrap())
}

async fn keys(store: &dyn Store, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let page = store.scan(prefix, after, limit).await.unwrap();
    page.into_iter().map(|entry| entry.key).collect()
}

#[test]
fn values_carry_the_revision_that_wrote_them() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        assert_eq!(store.revision(), StoreRevision(0));
        assert!(store.get("a").await.unwrap().is_none());
        assert_eq!(put(&*store, "a", "1").await, StoreRevision(1));
        let ops = vec![Op::put("b", "2"), Op::put("c", ""), Op::delete("none")];
        assert_eq!(store.apply(vec![], ops).await.unwrap(), StoreRevision(2));
        assert_eq!(store.get("a").await.unwrap().unwrap().revision, StoreRevision(1));
        let c = store.get("c").await.unwrap().unwrap();
        assert_eq!(
            (c.revision, c.value.len(), c.key.as_str()),
            (StoreRevision(2), 0, "c")
        );
        store.apply(vec![], vec![Op::delete("b")]).await.unwrap();
        assert!(store.get("b").await.unwrap().is_none());
        assert_eq!(store.revision(), StoreRevision(3));
        // Only preconditions: nothing is committed.
        let checked = store.apply(vec![Precondition::Absent("b".into())], vec![]).await;
        assert_eq!(checked.unwrap(), StoreRevision(3));
    });
}

#[test]
fn a_failed_precondition_changes_nothing_and_names_itself() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        let first = put(&*store, "a", "1").await;
        let second = put(&*store, "a", "2").await;
        let unchanged = |key: &str, revision| Precondition::Unchanged {
            key: key.to_owned(),
            revision,
        };
        for (precondition, holds) in [
            (Precondition::Absent("a".into()), false),
            (Precondition::Absent("b".into()), true),
            (Precondition::Present("a".into()), true),
            (Precondition::Present("b".into()), false),
            (unchanged("a", first), false),
            (unchanged("a", second), true),
            (unchanged("b", first), false),
            (unchanged("b", StoreRevision(0)), false),
        ] {
            let before = store.revision();
            let preconditions = vec![Precondition::Present("a".into()), precondition.clone()];
            let result = store.apply(preconditions, vec![Op::put("x", "")]).await;
            if holds {
                assert_eq!(result.unwrap(), StoreRevision(before.0 + 1), "{precondition:?}");
            } else {
                let error = result.unwrap_err();
                assert!(error.is_conflict(), "{precondition:?}: {error}");
                assert!(
                    matches!(&error, ApplyError::PreconditionFailed { index: 1, key } if key == precondition.key()),
                    "{error}"
                );
                assert_eq!(store.revision(), before);
                assert!(store.get("x").await.unwrap().is_none(), "{precondition:?}");
            }
            store.apply(vec![], vec![Op::delete("x")]).await.unwrap();
        }
    });
}

/// R-ENR-02: of fifty that compare and set at once, one succeeds.
#[test]
fn fifty_at_once_give_one_success() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        let issued = put(&*store, "token", "issued").await;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..50 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                let unused = Precondition::Unchanged {
                    key: "token".to_owned(),
                    revision: issued,
                };
                let ops = vec![
                    Op::put("token", format!("used by {n}")),
                    Op::put(format!("member/{n}"), ""),
                ];
                store.apply(vec![unused], ops).await
            });
        }
        let mut winners = 0;
        while let Some(result) = tasks.join_next().await {
            match result.unwrap() {
                Ok(_) => winners += 1,
                Err(error) => assert!(error.is_conflict(), "{error}"),
            }
        }
        assert_eq!(winners, 1);
        assert_eq!(keys(&*store, "member/", None, 100).await.len(), 1);
        assert_eq!(store.revision(), StoreRevision(issued.0 + 1));
    });
}

/// Commits that wait together are checked in their order, each against those before it.
#[test]
fn concurrent_increments_lose_nothing() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        put(&*store, "n", "0").await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for _ in 0..10 {
                    loop {
                        let entry = store.get("n").await.unwrap().unwrap();
                        let n: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                        let same = Precondition::Unchanged {
                            key: entry.key,
                            revision: entry.revision,
                        };
                        let op = Op::put("n", (n + 1).to_string());
                        match store.apply(vec![same], vec![op]).await {
                            Ok(_) => break,
                            Err(error) => assert!(error.is_conflict(), "{error}"),
                        }
                    }
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(value(&*store, "n").await.unwrap(), "80");
    });
}

#[test]
fn scans_page_in_key_order() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        for key in [
            "a",
            "l",
            "link/",
            "link/a",
            "link/b",
            "link/b\u{1}0000",
            "link/ü",
            "link0",
            "m",
        ] {
            put(&*store, key, key).await;
        }
        let links = ["link/", "link/a", "link/b", "link/b\u{1}0000", "link/ü"];
        assert_eq!(keys(&*store, "link/", None, 100).await, links);
        assert_eq!(keys(&*store, "link/", Some("link/a"), 2).await, links[2..4]);
        assert_eq!(keys(&*store, "link/", Some("link/aa"), 1).await, links[2..3]);
        assert_eq!(keys(&*store, "link/", Some("a"), 1).await, links[..1]);
        assert!(keys(&*store, "link/", Some("link/ü"), 9).await.is_empty());
        assert!(keys(&*store, "link/", Some("z"), 9).await.is_empty());
        assert_eq!(keys(&*store, "", None, 100).await.len(), 9);
        assert_eq!(keys(&*store, "", None, 0).await, ["a"], "the least limit is 1");
        for n in 0..SCAN_LIMIT_MAX.div_ceil(500) + 1 {
            let ops = (0..500).map(|i| Op::put(format!("many/{n}/{i}"), "")).collect();
            store.apply(vec![], ops).await.unwrap();
        }
        assert_eq!(
            keys(&*store, "many/", None, usize::MAX).await.len(),
            SCAN_LIMIT_MAX
        );
    });
}

#[test]
fn what_is_too_large_is_refused_and_named() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        let long_key = "k".repeat(KEY_LEN_MAX + 1);
        let cases = vec![
            (vec![Op::put("", "")], "a key is empty"),
            (vec![Op::put(long_key.clone(), "")], "257 bytes"),
            (vec![Op::delete(long_key)], "257 bytes"),
            (
                vec![Op::put("ok", ""), Op::put("big", vec![0; VALUE_LEN_MAX + 1])],
                "`big` has 4001",
            ),
            (vec![Op::put("a", ""), Op::delete("a")], "`a` is changed twice"),
            (
                (0..=OPS_MAX).map(|i| Op::delete(i.to_string())).collect(),
                "1025 changes",
            ),
        ];
        for (ops, why) in cases {
            let error = store.apply(vec![], ops).await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let many = vec![Precondition::Absent("a".into()); OPS_MAX + 1];
        assert!(matches!(
            store.apply(many, vec![]).await,
            Err(ApplyError::TooMany { .. })
        ));
        assert_eq!(store.revision(), StoreRevision(0));
        // The greatest allowed are stored.
        let key = "k".repeat(KEY_LEN_MAX);
        let ops = (1..OPS_MAX).map(|i| Op::put(i.to_string(), vec![7; VALUE_LEN_MAX]));
        let ops = ops
            .chain([Op::put(key.clone(), vec![9; VALUE_LEN_MAX])])
            .collect();
        store.apply(vec![], ops).await.unwrap();
        assert_eq!(
            store.get(&key).await.unwrap().unwrap().value,
            vec![9; VALUE_LEN_MAX]
        );
    });
}

#[test]
fn a_closed_store_opens_again_with_all_of_it() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        put(&*store, "a", "1").await;
        put(&*store, "a", "2").await;
        assert!(matches!(open(backend, &dir), Err(OpenError::InUse { .. })));
        let mut watch = store.watch();
        store.close().await;
        assert!(matches!(
            store.apply(vec![], vec![Op::delete("a")]).await,
            Err(ApplyError::Closed)
        ));
        assert!(matches!(store.get("a").await, Err(ReadError::Closed)));
        assert!(watch.after(StoreRevision(2)).await.is_err());
        for round in 0..3 {
            let store = fresh(backend, &dir);
            assert_eq!(store.revision(), StoreRevision(2 + round));
            assert_eq!(value(&*store, "a").await.unwrap(), "2");
            put(&*store, "b", "").await;
            // Dropping closes as well.
        }
        for other in crate::Backend::ALL.into_iter().filter(|b| *b != backend) {
            let error = open(other, &dir).unwrap_err().to_string();
            assert!(
                error.contains(&format!("made with {backend}, not with {other}"))
                    && error.contains("says so"),
                "{error}"
            );
        }
    });
}

#[test]
fn watchers_see_the_newest_commit() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        let mut watch = store.watch();
        let waiting = tokio::spawn(async move {
            let first = watch.after(StoreRevision(0)).await.unwrap();
            (first, watch.after(first).await.unwrap())
        });
        put(&*store, "a", "1").await;
        while !waiting.is_finished() {
            put(&*store, "a", "2").await;
        }
        let (first, second) = waiting.await.unwrap();
        assert!(first < second && second <= store.revision(), "{first} {second}");
        // Commits that came before the wait are seen at once.
        let last = store.revision();
        assert_eq!(store.watch().after(StoreRevision(0)).await.unwrap(), last);
        let nothing_new = tokio::time::timeout(Duration::from_millis(20), async {
            store.watch().after(last).await
        });
        assert!(nothing_new.await.is_err());
    });
}

#[test]
fn damage_is_an_error_and_not_a_panic() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        for n in 0..200 {
            put(&*store, &format!("key/{n}"), &"x".repeat(1000)).await;
        }
        store.close().await;
        drop(store);
        let file = match backend {
            crate::Backend::Redb => dir.join("store.redb"),
            crate::Backend::Sled => dir.join("sled/db"),
        };
        let len = std::fs::metadata(&file).unwrap().len();
        for (at, count) in [(0, len), (len / 3, len / 3), (0, 64)] {
            let good = std::fs::read(&file).unwrap();
            let mut bad = good.clone();
            for byte in bad.iter_mut().skip(at as usize).take(count as usize) {
                *byte ^= 0x5a;
            }
            std::fs::write(&file, &bad).unwrap();
            // Opening or reading fails, or nothing of what is read is wrong.
            if let Ok(store) = open(backend, &dir) {
                for n in 0..200 {
                    if let Ok(Some(entry)) = store.get(&format!("key/{n}")).await {
                        assert_eq!(entry.value, "x".repeat(1000));
                    }
                }
                store.close().await;
            }
            std::fs::write(&file, &good).unwrap();
        }
    });
}

#[test]
fn chunked_values_are_whole_or_not_there() {
    over_every_backend(|backend, dir| async move {
        let store = fresh(backend, &dir);
        assert!(chunk::read(&*store, "policy").await.unwrap().is_none());
        let mut previous = None;
        for len in [
            0,
            1,
            VALUE_LEN_MAX,
            VALUE_LEN_MAX + 1,
            100_000,
            CHUNKED_LEN_MAX,
            10,
            5_000,
        ] {
            let value: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let precondition = match &previous {
                None => Precondition::Absent("policy".into()),
                Some(chunk::ChunkHead { revision, .. }) => Precondition::Unchanged {
                    key: "policy".into(),
                    revision: *revision,
                },
            };
            let ops = chunk::put("policy", &value, previous.as_ref()).unwrap();
            let revision = store.apply(vec![precondition], ops).await.unwrap();
            let (read, at) = chunk::read(&*store, "policy").await.unwrap().unwrap();
            assert_eq!((read.len(), at), (len, revision));
            assert_eq!(read, value);
            previous = chunk::head(&*store, "policy").await.unwrap();
            // What the larger value before had is gone.
            assert_eq!(
                keys(&*store, "policy", None, 1000).await.len(),
                1 + len.div_ceil(VALUE_LEN_MAX)
            );
        }
        assert!(matches!(
            chunk::put("policy", &vec![0; CHUNKED_LEN_MAX + 1], None),
            Err(ChunkError::TooLarge { .. })
        ));
        put(&*store, "policy\u{1}0000", "forged").await;
        assert!(matches!(
            chunk::read(&*store, "policy").await,
            Err(ChunkError::Damaged(_))
        ));
        put(&*store, "plain", "x").await;
        assert!(matches!(
            chunk::read(&*store, "plain").await,
            Err(ChunkError::Damaged(_))
        ));
        let ops = chunk::delete("policy", &previous.unwrap());
        store.apply(vec![], ops).await.unwrap();
        assert!(keys(&*store, "policy", None, 1).await.is_empty());
    });
}

#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<(u8, u8)>, Vec<(u8, Option<u8>)>),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0u8..12;
    let apply = (
        prop::collection::vec((key.clone(), 0u8..3), 0..3),
        prop::collection::btree_map(key, prop::option::of(any::<u8>()), 0..6),
    )
        .prop_map(|(conditions, ops)| Step::Apply(conditions, ops.into_iter().collect()));
    prop::collection::vec(prop_oneof![15 => apply, 1 => Just(Step::Reopen)], 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any sequence of commits gives what a map with revisions gives, over reopening too.
    #[test]
    fn as_a_map_with_revisions(steps in steps()) {
        over_every_backend(|backend, dir| {
            let steps = steps.clone();
            async move {
                let mut store = fresh(backend, &dir);
                let mut model: BTreeMap<String, (u8, StoreRevision)> = BTreeMap::new();
                let mut last = StoreRevision(0);
                for step in steps {
                    let Step::Apply(conditions, ops) = step else {
                        store.close().await;
                        store = fresh(backend, &dir);
                        continue;
                    };
                    let conditions: Vec<Precondition> = conditions
                        .into_iter()
                        .map(|(key, kind)| {
                            let key = format!("k{key}");
                            match kind {
                                0 => Precondition::Absent(key),
                                1 => Precondition::Present(key),
                                _ => {
                                    let revision = model.get(&key).map_or(last, |(_, r)| *r);
                                    Precondition::Unchanged { key, revision }
                                }
                            }
                        })
                        .collect();
                    let holds = conditions.iter().all(|c| c.holds(model.get(c.key()).map(|(_, r)| *r)));
                    let batch = ops.iter().map(|(key, change)| match change {
                        Some(value) => Op::put(format!("k{key}"), vec![*value]),
                        None => Op::delete(format!("k{key}")),
                    });
                    let result = store.apply(conditions, batch.collect()).await;
                    assert_eq!(result.is_ok(), holds);
                    if holds && !ops.is_empty() {
                        last = StoreRevision(last.0 + 1);
                        for (key, change) in ops {
                            match change {
                                Some(value) => model.insert(format!("k{key}"), (value, last)),
                                None => model.remove(&format!("k{key}")),
                            };
                        }
                    }
                    let found: BTreeMap<String, (u8, StoreRevision)> = store
                        .scan("k", None, 100)
                        .await
                        .unwrap()
                        .into_iter()
                        .map(|e| (e.key, (e.value[0], e.revision)))
                        .collect();
                    assert_eq!(found, model);
                    assert_eq!(store.revision(), last);
                }
            }
        });
    }
}

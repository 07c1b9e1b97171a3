//! What subscribers have seen and what they have not: the newest text of every object, in the order
//! of its latest change. A subscriber is a place in that order, nothing else: whoever reads slowly
//! gets fewer, newer changes, and no queue grows for it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Removed objects that are remembered, so that a subscriber hears of them. One that was away for
/// longer begins anew.
pub(crate) const GONE_MAX: usize = 4_096;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Status,
    Warning,
    Relay,
    Node,
    Link,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Warning => "warning",
            Self::Relay => "relay",
            Self::Node => "node",
            Self::Link => "link",
        }
    }
}

/// An object's name on the board.
pub(crate) type Key = (Kind, String);

#[derive(Debug)]
struct Item {
    place: u64,
    /// `None` once it was removed.
    text: Option<Arc<str>>,
}

/// The board.
#[derive(Debug, Default)]
pub(crate) struct Board {
    items: BTreeMap<Key, Item>,
    order: BTreeMap<u64, Key>,
    /// The latest place that was given; 0 before the first.
    latest: u64,
    gone: usize,
    /// The latest removal that is forgotten.
    horizon: u64,
}

/// How far a subscriber is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cursor {
    /// It has the objects up to this place.
    pub(crate) place: u64,
    /// The latest place when it began: of what was removed before, it has heard nothing.
    pub(crate) since: u64,
}

/// Changes after a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Whether the subscriber must forget what it knows.
    pub(crate) anew: bool,
    /// Objects and their texts; `None` for those that were removed.
    pub(crate) items: Vec<(Key, Option<Arc<str>>)>,
    /// The cursor after these.
    pub(crate) cursor: Cursor,
    /// Whether there is nothing more at the moment.
    pub(crate) is_last: bool,
}

impl Board {
    /// Takes in everything that there is: what differs gets a new place, what is missing is gone.
    pub(crate) fn put(&mut self, mut all: BTreeMap<Key, String>) {
        let missing: Vec<Key> = self
            .items
            .iter()
            .filter(|(key, item)| item.text.is_some() && !all.contains_key(*key))
            .map(|(key, _)| key.clone())
            .collect();
        all.retain(|key, text| {
            let known = self.items.get(key).and_then(|item| item.text.as_deref());
            known != Some(text.as_str())
        });
        for (key, text) in all {
            self.set(key, Some(text.into()));
        }
        for key in missing {
            self.set(key, None);
        }
        self.forget();
    }

    fn set(&mut self, key: Key, text: Option<Arc<str>>) {
        self.latest += 1;
        self.gone += usize::from(text.is_none());
        let item = Item {
            place: self.latest,
            text,
        };
        if let Some(old) = self.items.insert(key.clone(), item) {
            self.gone -= usize::from(old.text.is_none());
            self.order.remove(&old.place);
        }
        self.order.insert(self.latest, key);
    }

    /// Forgets the oldest removals beyond the bound.
    fn forget(&mut self) {
        let excess = self.gone.saturating_sub(GONE_MAX);
        let is_gone = |key: &Key| self.items.get(key).is_some_and(|item| item.text.is_none());
        let oldest: Vec<u64> = self
            .order
            .iter()
            .filter(|(_, key)| is_gone(key))
            .map(|(place, _)| *place)
            .take(excess)
            .collect();
        for place in oldest {
            if let Some(key) = self.order.remove(&place) {
                self.items.remove(&key);
            }
            self.gone -= 1;
            self.horizon = place;
        }
    }

    /// Changes after a cursor, everything where there is none; about `bytes_max` of text at most.
    pub(crate) fn after(&self, cursor: Option<Cursor>, bytes_max: usize) -> Batch {
        let known = cursor.filter(|cursor| {
            let heard = cursor.since.max(cursor.place);
            heard >= self.horizon && heard <= self.latest
        });
        let begun = known.unwrap_or(Cursor {
            place: 0,
            since: self.latest,
        });
        let mut batch = Batch {
            anew: known.is_none(),
            items: Vec::new(),
            cursor: begun,
            is_last: true,
        };
        let mut bytes = 0;
        for (place, key) in self.order.range(begun.place.saturating_add(1)..) {
            let Some(item) = self.items.get(key) else { continue };
            bytes += item.text.as_ref().map_or(0, |text| text.len());
            if bytes > bytes_max && !batch.items.is_empty() {
                batch.is_last = false;
                break;
            }
            batch.cursor.place = *place;
            if item.text.is_some() || *place > begun.since {
                batch.items.push((key.clone(), item.text.clone()));
            }
        }
        batch.cursor.since = batch.cursor.since.max(batch.cursor.place);
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pairs: &[(&str, &str)]) -> BTreeMap<Key, String> {
        let pair = |(id, text): &(&str, &str)| ((Kind::Node, (*id).to_owned()), (*text).to_owned());
        pairs.iter().map(pair).collect()
    }

    fn texts(batch: &Batch) -> Vec<(&str, Option<&str>)> {
        let item = |(key, text)| -> (&str, Option<&str>) {
            let ((_, id), text): (&Key, &Option<Arc<str>>) = (key, text);
            (id, text.as_deref())
        };
        batch.items.iter().map(|(key, text)| item((key, text))).collect()
    }

    #[test]
    fn a_subscriber_gets_all_then_only_what_changed_and_the_newest_of_it() {
        let mut board = Board::default();
        board.put(all(&[("a", "1"), ("b", "1"), ("c", "1")]));
        let first = board.after(None, 1_000);
        assert!(first.anew && first.is_last);
        assert_eq!(
            texts(&first),
            [("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]
        );
        assert_eq!(texts(&board.after(Some(first.cursor), 1_000)), []);
        board.put(all(&[("a", "2"), ("b", "1"), ("c", "1")]));
        board.put(all(&[("a", "3"), ("b", "1"), ("d", "1")]));
        let next = board.after(Some(first.cursor), 1_000);
        assert!(!next.anew);
        assert_eq!(texts(&next), [("a", Some("3")), ("d", Some("1")), ("c", None)]);
        // One that begins now does not hear of what was there before.
        assert_eq!(
            texts(&board.after(None, 1_000)),
            [("b", Some("1")), ("a", Some("3")), ("d", Some("1"))]
        );
        board.put(all(&[("c", "9")]));
        let back = board.after(Some(next.cursor), 1_000);
        assert_eq!(
            texts(&back),
            [("c", Some("9")), ("a", None), ("b", None), ("d", None)]
        );
    }

    #[test]
    fn much_comes_in_parts_that_miss_nothing() {
        let mut board = Board::default();
        let pairs: Vec<(String, String)> = (0..100).map(|n| (format!("{n:03}"), "x".repeat(100))).collect();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        board.put(all(&pairs));
        let (mut cursor, mut got, mut parts) = (None, 0, 0);
        loop {
            let batch = board.after(cursor, 1_000);
            assert_eq!(batch.anew, cursor.is_none());
            assert!(batch.items.len() <= 10);
            (cursor, got, parts) = (Some(batch.cursor), got + batch.items.len(), parts + 1);
            if batch.is_last {
                break;
            }
        }
        assert_eq!((got, parts), (100, 10));
        // One object larger than a part is a part of its own, not an endless wait.
        board.put(all(&[("big", &"y".repeat(5_000))]));
        assert_eq!(board.after(cursor, 1_000).items[0].0.1, "big");
    }

    #[test]
    fn removals_are_remembered_up_to_a_bound_and_whoever_missed_them_begins_anew() {
        let mut board = Board::default();
        let mut cursor = None;
        for n in 0..GONE_MAX + 10 {
            let id = n.to_string();
            board.put(all(&[("stays", "x"), ("stays too", "x"), (&id, "x")]));
            if n == 5 {
                cursor = Some(board.after(None, 1_000).cursor);
            }
        }
        assert_eq!(board.items.len(), GONE_MAX + 3);
        assert_eq!(board.order.len(), GONE_MAX + 3);
        let batch = board.after(cursor, usize::MAX);
        assert!(batch.anew);
        assert_eq!(batch.items.len(), 3);
        // In parts, among objects that are older than every removal that is remembered.
        let first = board.after(None, 1);
        assert_eq!((first.items.len(), first.is_last), (1, false));
        let second = board.after(Some(first.cursor), 1);
        assert_eq!((second.anew, second.items.len()), (false, 1));
        let foreign = Cursor {
            place: u64::MAX,
            since: 0,
        };
        assert!(board.after(Some(foreign), 10).anew, "a place of another board");
    }
}

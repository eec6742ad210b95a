//! The expiry of a cache without a thread, as moka's: an entry expires a time after it was written,
//! or earlier if it was not read for a while. Each call first removes what is due. There is one
//! lock, one map and one wheel, and no timer. The caller passes the time in milliseconds.

use std::collections::HashMap;
use std::sync::Mutex;

use hashed_wheel::wheel::{HierarchicalWheel, Key};

struct Cache<V> {
    time_to_live: u64,
    time_to_idle: u64,
    parts: Mutex<Parts<V>>,
}

struct Parts<V> {
    entries: HashMap<String, Entry<V>>,
    /// The keys, at the ticks at which they expire: milliseconds.
    ends: HierarchicalWheel<String>,
}

struct Entry<V> {
    value: V,
    written: u64,
    end: Key,
}

impl<V: Clone> Cache<V> {
    fn new(time_to_live: u64, time_to_idle: u64) -> Self {
        let parts = Parts {
            entries: HashMap::new(),
            ends: HierarchicalWheel::new(64),
        };
        Self {
            time_to_live,
            time_to_idle,
            parts: Mutex::new(parts),
        }
    }

    fn end(&self, written: u64, now: u64) -> u64 {
        (written + self.time_to_live).min(now + self.time_to_idle)
    }

    fn insert(&self, now: u64, key: &str, value: V) -> Option<V> {
        let parts = &mut *self.parts.lock().unwrap();
        parts.expire(now);
        let end = parts.ends.insert(self.end(now, now), key.to_owned());
        let replaced = parts.entries.insert(
            key.to_owned(),
            Entry {
                value,
                written: now,
                end,
            },
        )?;
        parts.ends.remove(replaced.end);
        Some(replaced.value)
    }

    fn get(&self, now: u64, key: &str) -> Option<V> {
        let parts = &mut *self.parts.lock().unwrap();
        parts.expire(now);
        let entry = parts.entries.get(key)?;
        let is_reset = parts.ends.reset(entry.end, self.end(entry.written, now));
        assert!(is_reset, "an entry of the map is in the wheel");
        Some(entry.value.clone())
    }

    fn remove(&self, now: u64, key: &str) -> Option<V> {
        let parts = &mut *self.parts.lock().unwrap();
        parts.expire(now);
        let entry = parts.entries.remove(key)?;
        parts.ends.remove(entry.end);
        Some(entry.value)
    }

    /// The entries in the map and in the wheel.
    fn lens(&self) -> (usize, usize) {
        let parts = self.parts.lock().unwrap();
        (parts.entries.len(), parts.ends.len())
    }
}

impl<V> Parts<V> {
    fn expire(&mut self, now: u64) {
        let Self { entries, ends } = self;
        ends.advance(now, |key| _ = entries.remove(&key));
    }
}

#[test]
fn entry_expires_a_time_after_it_was_written_or_read() {
    let cache = Cache::new(10_000, 3_000);
    cache.insert(0, "idle", 1);
    cache.insert(0, "read", 2);
    for now in [2_999, 5_998, 8_997, 9_999] {
        assert_eq!(cache.get(now, "read"), Some(2), "read in time");
    }
    assert_eq!((cache.get(9_999, "idle"), cache.lens()), (None, (1, 1)));
    let state = (cache.get(10_000, "read"), cache.lens());
    assert_eq!(state, (None, (0, 0)), "10 s after it was written");
}

#[test]
fn write_begins_a_new_life() {
    let cache = Cache::new(1_000, 1_000);
    let inserted = (cache.insert(0, "a", 1), cache.insert(999, "a", 2));
    assert_eq!(inserted, (None, Some(1)));
    assert_eq!((cache.get(1_998, "a"), cache.lens()), (Some(2), (1, 1)));
    let removed = (cache.remove(1_998, "a"), cache.remove(1_998, "a"));
    assert_eq!(removed, (Some(2), None));
    assert_eq!(cache.lens(), (0, 0), "nothing is left in the wheel");
}

#[test]
fn any_call_removes_all_that_is_due() {
    let cache = Cache::new(5, 5);
    (0..1_000).for_each(|n| assert_eq!(cache.insert(n, &n.to_string(), n), None));
    assert_eq!(cache.lens(), (5, 5));
    let state = (cache.get(1_000_000_000, "999"), cache.lens());
    assert_eq!(state, (None, (0, 0)), "after a long pause");
}

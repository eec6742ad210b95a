//! A map whose entries expire: each value comes out once.

use crate::common;

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use common::{AsyncTask, Driven, TICK, accepts_all, ends, ms, quietly};
use fastrand::Rng;
use hashed_wheel::{ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{Cause, ExpiringMap, Removed};

const FAR: Duration = ms(123_456);

/// A map with values, and what its handler got of those that expired.
fn with_channel<K: Send + 'static, V: Send + 'static>(
    timer: &HashedWheelTimer,
) -> (ExpiringMap<K, V>, Receiver<(K, V)>) {
    let (sender, expired) = channel();
    let map = ExpiringMap::builder(timer)
        .causes([Cause::Expired])
        .build_with_handler(move |removed| drop(sender.send(pair(removed))));
    (map, expired)
}

fn pair<K, V>(removed: Removed<K, V>) -> (K, V) {
    assert_eq!(removed.cause, Cause::Expired);
    (removed.key, removed.value)
}

fn all<T>(receiver: &Receiver<T>) -> Vec<T> {
    receiver.try_iter().collect()
}

/// A value that counts its drop.
#[derive(Debug)]
struct Counted {
    name: u64,
    drops: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, SeqCst);
    }
}

// --- one key -------------------------------------------------------------------------------------

#[test]
fn an_expired_entry_goes_to_the_handler() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    assert_eq!(map.insert("a".to_owned(), 1, TICK).unwrap(), None);
    assert_eq!(map.insert("b".to_owned(), 2, TICK * 2).unwrap(), None);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(all(&expired), [("a".to_owned(), 1)]);
    assert!(!map.contains_key("a") && map.contains_key("b"));
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(all(&expired), [("b".to_owned(), 2)]);
    assert!(map.is_empty());
}

#[test]
fn an_insert_returns_the_old_value() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    assert_eq!(map.insert(7, "old", TICK).unwrap(), None);
    assert_eq!(map.insert(7, "new", TICK * 2).unwrap(), Some("old"));
    assert_eq!(
        (map.len(), t.timer.pending_timeouts()),
        (1, 1),
        "the two have one timeout"
    );
    t.pass(TICK);
    assert_eq!(all(&expired), []);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(all(&expired), [(7, "new")]);
}

#[test]
fn an_entry_is_inserted_and_touched_with_an_instant() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    let begin = t.timer.now();
    assert!(!map.touch_at(&7, begin + TICK), "there is no entry");
    t.clock.advance(TICK);
    assert_eq!(map.insert_at(7, "old", begin + TICK * 2).unwrap(), None);
    assert_eq!(
        map.insert_at(7, "new", begin + TICK * 9).unwrap(),
        Some("old")
    );
    assert!(map.touch_at(&7, begin + TICK * 3));
    assert_eq!((t.pass(TICK), t.pass(TICK)), (0, 1));
    // A deadline that has passed is the next boundary.
    assert_eq!(map.insert_at(7, "late", begin).unwrap(), None);
    assert_eq!((t.driver.turn(), t.pass(TICK)), (0, 1));
    assert_eq!(all(&expired), [(7, "new"), (7, "late")]);
}

#[test]
fn a_removed_value_does_not_expire() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    map.insert("a".to_owned(), 1, TICK).unwrap();
    assert_eq!(map.remove("a"), Some(1));
    assert_eq!((map.remove("a"), t.timer.pending_timeouts()), (None, 0));
    assert_eq!((t.pass(FAR), all(&expired)), (0, vec![]));
}

#[test]
fn touch_moves_the_deadline_either_way() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    assert!(!map.touch(&7, TICK), "there is no entry");
    map.insert(7, (), TICK).unwrap();
    assert_eq!(map.remaining(&7), Some(TICK));
    assert!(map.touch(&7, TICK * 5));
    assert_eq!(
        (map.remaining(&7), map.remaining(&8)),
        (Some(TICK * 5), None)
    );
    t.pass(TICK * 4);
    assert!(map.touch(&7, FAR));
    assert!(map.touch(&7, TICK * 2));
    assert_eq!((t.pass(TICK), t.pass(TICK)), (0, 1));
    assert!(!map.touch(&7, TICK), "the entry has expired");
    assert_eq!(all(&expired), [(7, ())]);
}

#[test]
fn with_gives_access_to_the_value() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    map.insert(7, vec![1], TICK).unwrap();
    assert_eq!(map.with(&7, |value| value.push(2)), Some(()));
    assert_eq!(map.with(&7, |value| value.len()), Some(2));
    assert_eq!(map.with(&8, |value| value.len()), None);
    t.pass(TICK);
    assert_eq!(all(&expired), [(7, vec![1, 2])]);
}

/// The key is free when the handler runs.
#[test]
fn a_handler_may_insert_the_entry_again() {
    let mut t = Driven::new();
    let map = Arc::new_cyclic(|map: &Weak<ExpiringMap<u8, u32>>| {
        let map = Weak::clone(map);
        ExpiringMap::with_handler(
            &t.timer,
            move |Removed {
                      key, value: count, ..
                  }| {
                let Some(map) = map.upgrade() else { return };
                assert_eq!(map.insert(key, count + 1, TICK).unwrap(), None);
            },
        )
    });
    map.insert(7, 0, TICK).unwrap();
    (0..5).for_each(|_| assert_eq!(t.pass(TICK), 1));
    assert_eq!(map.with(&7, |count| *count), Some(5));
    drop(map);
    assert_eq!((t.timer.pending_timeouts(), t.timer.stats().panics), (0, 0));
}

#[test]
fn a_rejected_entry_comes_back() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let (map, _expired) = with_channel(&t.timer);
    map.insert(7, "old", FAR).unwrap();
    for key in [7, 8] {
        let rejected = map.insert(key, "new", TICK).unwrap_err();
        assert_eq!((rejected.key, rejected.value), (key, "new"));
        assert!(matches!(
            rejected.error,
            NewTimeoutError::TooManyPending { limit: 1 }
        ));
    }
    assert_eq!((map.with(&7, |value| *value), map.len()), (Some("old"), 1));
    assert_eq!(map.remove(&7), Some("old"));
    t.timer.stop();
    let rejected = map.insert(7, "late", TICK).unwrap_err();
    assert_eq!(format!("{rejected}"), "the timer is stopped");
    assert_eq!(
        format!("{rejected:?}"),
        "InsertError { error: Stopped, .. }"
    );
    assert!(matches!(
        NewTimeoutError::from(rejected),
        NewTimeoutError::Stopped
    ));
}

#[test]
fn an_inserted_key_without_a_handler_disappears() {
    let mut t = Driven::new();
    let map = ExpiringMap::new(&t.timer);
    assert_eq!(map.insert(7, (), TICK).unwrap(), None);
    assert_eq!(map.insert(7, (), TICK).unwrap(), Some(()));
    assert_eq!((t.pass(TICK), map.len()), (1, 0));
}

// --- all keys ------------------------------------------------------------------------------------

#[test]
fn retain_removes_the_others_and_cancels_their_timeouts() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    (0..100).for_each(|key| assert!(map.insert(key, key * 10, TICK).unwrap().is_none()));
    map.retain(|key, value| {
        assert_eq!(*value, key * 10);
        *value += 1;
        key % 10 == 0
    });
    assert_eq!((map.len(), t.timer.pending_timeouts()), (10, 10));
    let mut keys = map.keys();
    keys.sort_unstable();
    assert_eq!(keys, (0..10).map(|key| key * 10).collect::<Vec<_>>());
    assert_eq!(t.pass(TICK), 10);
    assert!(
        all(&expired)
            .into_iter()
            .all(|(key, value)| key % 10 == 0 && value == key * 10 + 1)
    );
}

#[test]
fn each_end_drops_a_value_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let value = |name| Counted {
        name,
        drops: Arc::clone(&drops),
    };
    let t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    let insert =
        || (0..10).for_each(|key| assert!(map.insert(key, value(key), FAR).unwrap().is_none()));

    insert();
    assert_eq!((map.clear(), drops.swap(0, SeqCst)), (10, 10));
    insert();
    map.retain(|_, _| false);
    assert_eq!((map.len(), drops.swap(0, SeqCst)), (0, 10));
    insert();
    assert_eq!(
        (t.timer.stop().len(), drops.swap(0, SeqCst), map.len()),
        (10, 10, 0)
    );

    let t = Driven::new();
    let (map, _expired) = with_channel(&t.timer);
    map.insert(7, value(7), FAR).unwrap();
    drop(map);
    assert_eq!((drops.swap(0, SeqCst), t.timer.pending_timeouts()), (1, 0));
    assert!(all(&expired).is_empty());
}

/// An expired entry that waits in the executor's queue goes to the handler, whatever comes first.
#[test]
fn an_expired_entry_in_an_executor_is_neither_removed_nor_replaced() {
    let (queue, tasks) = channel::<ExpiredTask>();
    let mut t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task| drop(queue.send(task))))
    });
    let (map, expired) = with_channel(&t.timer);
    let mut due = |name| {
        assert_eq!(map.insert(7, name, TICK).unwrap(), None);
        assert_eq!(t.pass(TICK), 1);
        assert!(!map.contains_key(&7) && !map.touch(&7, TICK));
        tasks.try_recv().unwrap()
    };
    due(1).run();
    assert_eq!(all(&expired), [(7, 1)]);

    let task = due(2);
    assert_eq!(map.remove(&7), None);
    task.run();
    assert_eq!(all(&expired), [(7, 2)]);

    let task = due(3);
    assert_eq!(map.insert(7, 4, FAR).unwrap(), None);
    task.run();
    assert_eq!((all(&expired), map.remove(&7)), (vec![(7, 3)], Some(4)));

    drop(due(5));
    assert_eq!(
        (all(&expired), map.len()),
        (vec![(7, 5)], 0),
        "dropped by the executor"
    );
}

// --- get and drain -------------------------------------------------------------------------------

#[test]
fn a_clone_of_a_value_can_be_had() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    map.insert("key".to_owned(), "value".to_owned(), TICK)
        .unwrap();
    assert_eq!(map.get("key").as_deref(), Some("value"));
    assert_eq!(map.get("other"), None);
    t.pass(TICK);
    assert_eq!((map.get("key"), all(&expired).len()), (None, 1));
}

#[test]
fn drain_returns_all_entries_and_cancels_their_timeouts() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    (0..100).for_each(|key| _ = map.insert(key, key * 2, TICK).unwrap());
    let mut drained = map.drain();
    drained.sort_unstable();
    assert!(drained.into_iter().eq((0..100).map(|key| (key, key * 2))));
    assert_eq!(
        (map.len(), t.timer.pending_timeouts(), map.drain()),
        (0, 0, vec![])
    );
    assert_eq!((t.pass(TICK), all(&expired)), (0, vec![]));
}

// --- the receiver --------------------------------------------------------------------------------

mod receiver {
    use std::task::{Context, Poll, Waker};

    use hashed_wheel_util::RemovedEntries;

    use super::*;

    fn poll<K, V>(
        expired: &mut RemovedEntries<K, V>,
        wakes: &Arc<AsyncTask>,
    ) -> Poll<Option<(K, V)>> {
        expired
            .poll_recv(&mut Context::from_waker(&Waker::from(Arc::clone(wakes))))
            .map(|removed| removed.map(pair))
    }

    #[test]
    fn entries_are_received_with_await() {
        let mut t = Driven::new();
        let (map, mut expired) = ExpiringMap::with_receiver(&t.timer);
        map.insert("key", "value", TICK).unwrap();
        let mut recv = std::pin::pin!(expired.recv());
        let context = &mut Context::from_waker(Waker::noop());
        assert_eq!(recv.as_mut().poll(context), Poll::Pending);
        t.pass(TICK);
        assert_eq!(
            recv.as_mut().poll(context).map(|removed| removed.map(pair)),
            Poll::Ready(Some(("key", "value")))
        );
    }

    #[test]
    fn many_entries_are_received_in_their_order() {
        // The executor is not asked.
        let mut t = Driven::with(|builder| builder.task_executor(accepts_all(drop::<ExpiredTask>)));
        let (map, mut expired) = ExpiringMap::with_receiver(&t.timer);
        for key in 0..10 {
            map.insert(key, key * 10, TICK * (10 - key)).unwrap();
        }
        let wakes = AsyncTask::new();
        let mut poll_many = |buffer: &mut Vec<_>, limit| {
            expired.poll_recv_many(
                &mut Context::from_waker(&Waker::from(Arc::clone(&wakes))),
                buffer,
                limit,
            )
        };
        let mut batch = Vec::new();
        assert_eq!(
            poll_many(&mut batch, 0),
            Poll::Ready(0),
            "a limit of zero waits for nothing"
        );
        assert_eq!(poll_many(&mut batch, 100), Poll::Pending);
        assert_eq!(t.pass(TICK * 3), 3);
        assert_eq!(wakes.wakes(), 1);
        assert_eq!(poll_many(&mut batch, 2), Poll::Ready(2), "at most so many");
        assert_eq!(poll_many(&mut batch, 100), Poll::Ready(1));
        let pairs: Vec<_> = batch.drain(..).map(pair).collect();
        assert_eq!(pairs, [(9, 90), (8, 80), (7, 70)], "they are appended");
        assert_eq!(map.remove(&6), Some(60));
        assert_eq!(t.pass(FAR), 6);
        drop(map);
        assert_eq!(poll_many(&mut batch, 100), Poll::Ready(6));
        assert_eq!(
            batch
                .drain(..)
                .map(|removed| removed.key)
                .collect::<Vec<_>>(),
            [5, 4, 3, 2, 1, 0]
        );
        assert_eq!(
            poll_many(&mut batch, 100),
            Poll::Ready(0),
            "the map is gone"
        );
    }

    #[test]
    fn a_receiver_is_woken_gets_all_and_ends_with_the_map() {
        let mut t = Driven::with(|builder| builder.task_executor(accepts_all(drop::<ExpiredTask>)));
        let (map, mut expired) = ExpiringMap::with_receiver(&t.timer);
        let [first, last] = [(); 2].map(|()| AsyncTask::new());
        let counts = || [&first, &last].map(|wakes| wakes.wakes());
        (1..=3).for_each(|key| _ = map.insert(key, (), TICK * key).unwrap());
        assert_eq!(poll(&mut expired, &first), Poll::Pending);
        assert_eq!(poll(&mut expired, &last), Poll::Pending);
        assert_eq!(poll(&mut expired, &last), Poll::Pending);
        t.pass(TICK * 2);
        assert_eq!(counts(), [0, 1], "the last waker is woken once");
        assert!(
            format!("{expired:?}").starts_with("RemovedEntries { len: 2"),
            "{expired:?}"
        );
        assert_eq!(poll(&mut expired, &last), Poll::Ready(Some((1, ()))));
        assert_eq!(poll(&mut expired, &last), Poll::Ready(Some((2, ()))));
        assert_eq!(poll(&mut expired, &last), Poll::Pending);
        assert_eq!(map.remove(&3), Some(()));
        drop(map);
        assert_eq!(counts(), [0, 2]);
        assert_eq!(poll(&mut expired, &last), Poll::Ready(None));
    }

    #[test]
    fn without_a_receiver_expired_entries_are_dropped() {
        let mut t = Driven::new();
        let drops = Arc::new(AtomicUsize::new(0));
        let (map, expired) = ExpiringMap::with_receiver(&t.timer);
        for name in 1..=2 {
            map.insert(
                name,
                Counted {
                    name,
                    drops: Arc::clone(&drops),
                },
                TICK * name as u32,
            )
            .unwrap();
        }
        t.pass(TICK);
        assert_eq!(drops.load(SeqCst), 0);
        drop(expired);
        assert_eq!(
            drops.load(SeqCst),
            1,
            "dropped, because there is no receiver"
        );
        t.pass(TICK);
        assert_eq!(drops.load(SeqCst), 2);
    }

    #[cfg(feature = "stream")]
    #[test]
    fn a_receiver_is_a_stream() {
        use futures_core::{FusedStream, Stream};

        let mut t = Driven::new();
        let (map, expired) = ExpiringMap::with_receiver(&t.timer);
        map.insert(7, "seven", TICK).unwrap();
        t.pass(TICK);
        drop(map);
        let mut expired = std::pin::pin!(expired);
        let mut context = Context::from_waker(Waker::noop());
        assert!(!expired.is_terminated());
        assert_eq!(
            expired
                .as_mut()
                .poll_next(&mut context)
                .map(|removed| removed.map(pair)),
            Poll::Ready(Some((7, "seven")))
        );
        assert_eq!(expired.as_mut().poll_next(&mut context), Poll::Ready(None));
        assert!(expired.is_terminated());
    }
}

// --- user code -----------------------------------------------------------------------------------

#[test]
fn a_closure_that_panics_leaves_a_consistent_map() {
    let mut t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    (0..100).for_each(|key| assert!(map.insert(key, 0, TICK).unwrap().is_none()));
    quietly(|| {
        let with = || {
            map.with(&7, |value| {
                *value = 1;
                panic!("in `with`");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(with)).is_err());
        let mut calls = 0;
        let keep = |_: &i32, _: &mut i32| {
            calls += 1;
            assert!(calls < 50, "in `retain`");
            false
        };
        assert!(catch_unwind(AssertUnwindSafe(|| map.retain(keep))).is_err());
    });
    let left = map.len();
    assert!(left > 50 && left == t.timer.pending_timeouts(), "{left}");
    assert!(map.contains_key(&7) <= (map.with(&7, |value| *value) == Some(1)));
    assert_eq!((t.pass(TICK), all(&expired).len()), (left, left));
}

/// A handler that panics, and a value whose drop does.
#[test]
fn a_panic_of_a_handler_affects_no_other_entry() {
    let mut t = Driven::new();
    let (sender, expired) = channel();
    let map = ExpiringMap::with_handler(&t.timer, move |Removed { key, .. }: Removed<u8, ()>| {
        assert!(key != 1, "a handler panics");
        sender.send(key).unwrap();
    });
    (0..3).for_each(|key| _ = map.insert(key, (), TICK).unwrap());
    quietly(|| assert_eq!(t.pass(TICK), 3));
    assert_eq!((all(&expired), t.timer.stats().panics), (vec![0, 2], 1));
    assert!(map.is_empty());
}

/// A key or value that uses the map when it is dropped. If the map held a lock, the call would
/// hang.
#[derive(Clone)]
struct CallsBack(
    Arc<std::sync::OnceLock<ExpiringMap<CallsBack, CallsBack>>>,
    u8,
    Arc<AtomicUsize>,
);

impl PartialEq for CallsBack {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Eq for CallsBack {}

impl Hash for CallsBack {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        if let Some(map) = self.0.get() {
            self.2.fetch_add(1, SeqCst);
            // `len` locks every shard.
            let _ = map.len();
        }
    }
}

#[test]
fn no_lock_is_held_while_keys_and_values_are_dropped() {
    let calls = ends(|| {
        let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(3)));
        let (map, calls) = (Arc::default(), Arc::<AtomicUsize>::default());
        let value = |name| CallsBack(Arc::clone(&map), name, Arc::clone(&calls));
        map.set(ExpiringMap::with_handler(&t.timer, drop))
            .unwrap_or_default();
        let own = map.get().unwrap();
        let insert = |key, delay| own.insert(value(key), value(0), delay).is_ok();
        assert!(insert(1, FAR) && insert(1, FAR) && insert(1, TICK));
        assert_eq!(t.pass(TICK), 1);
        assert!(
            insert(1, FAR)
                && insert(2, FAR)
                && insert(3, FAR)
                && insert(3, FAR)
                && !insert(3, TICK)
                && !insert(4, FAR)
        );
        assert!(own.remove(&value(1)).is_some());
        own.retain(|key, _| key.1 == 3);
        drop(own.keys());
        assert_eq!(own.clear(), 1);
        assert!(insert(1, FAR));
        assert_eq!(t.timer.stop().len(), 1);
        assert!(!insert(1, FAR) && own.is_empty());
        calls.load(SeqCst)
    });
    assert!(calls > 20, "{calls}");
}

thread_local! {
    /// How many more calls of `Hash` succeed.
    static HASHES: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[derive(Clone, PartialEq, Eq)]
struct PanickingKey(u8);

impl Hash for PanickingKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let left = HASHES.get();
        assert!(left > 0, "the `Hash` of a key panics");
        HASHES.set(left - 1);
        self.0.hash(state);
    }
}

/// Whichever call of `Hash` panics: the old entry stays, and the new timeout is cancelled.
#[test]
fn a_hash_that_panics_in_insert_leaves_a_consistent_map() {
    for is_present in [false, true] {
        let mut has_succeeded = false;
        for hashes in 0..10 {
            let mut t = Driven::new();
            let (map, expired) = with_channel(&t.timer);
            let drops = Arc::new(AtomicUsize::new(0));
            let value = |name| Counted {
                name,
                drops: Arc::clone(&drops),
            };
            if is_present {
                map.insert(PanickingKey(7), value(1), TICK).unwrap();
            }
            HASHES.set(hashes);
            let insert = || map.insert(PanickingKey(7), value(2), TICK * 2).unwrap();
            let result = quietly(|| catch_unwind(AssertUnwindSafe(insert)));
            HASHES.set(usize::MAX);
            let name = match &result {
                Ok(_) => Some(2),
                Err(_) => is_present.then_some(1),
            };
            assert_eq!(
                map.with(&PanickingKey(7), |value| value.name),
                name,
                "{hashes} calls"
            );
            let left = usize::from(name.is_some());
            assert_eq!(
                (map.len(), t.timer.pending_timeouts()),
                (left, left),
                "{hashes} calls"
            );
            has_succeeded |= result.is_ok();
            drop(result);
            assert_eq!(t.pass(TICK * 2), left);
            let expired: Vec<_> = all(&expired).iter().map(|(_, value)| value.name).collect();
            assert_eq!(expired, Vec::from_iter(name), "{hashes} calls");
            assert_eq!(drops.load(SeqCst), 1 + usize::from(is_present));
        }
        assert!(has_succeeded);
    }
}

/// The map returns a value, but the drop of its key panics: the value is dropped.
#[test]
fn a_key_whose_drop_panics_leaks_no_value() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key {
        panics: bool,
    }

    impl Drop for Key {
        fn drop(&mut self) {
            assert!(
                !std::mem::take(&mut self.panics),
                "the drop of a key panics"
            );
        }
    }

    let t = Driven::new();
    let (map, expired) = with_channel(&t.timer);
    let drops = Arc::new(AtomicUsize::new(0));
    let insert = |name| {
        let value = Counted {
            name,
            drops: Arc::clone(&drops),
        };
        map.insert(Key { panics: true }, value, FAR).unwrap()
    };
    let remove = || map.remove(std::mem::ManuallyDrop::new(Key { panics: true }).deref());
    assert!(insert(1).is_none());
    quietly(|| {
        assert!(catch_unwind(AssertUnwindSafe(|| insert(2))).is_err());
        assert_eq!(
            (drops.load(SeqCst), map.len()),
            (1, 1),
            "the value that was replaced"
        );
        assert!(catch_unwind(AssertUnwindSafe(remove)).is_err());
        assert_eq!(
            (drops.load(SeqCst), map.len()),
            (2, 0),
            "the value that was removed"
        );
    });
    assert_eq!((t.timer.pending_timeouts(), all(&expired).len()), (0, 0));
}

/// All threads use the same few keys.
#[test]
fn each_value_comes_out_once_when_threads_share_keys() {
    const THREADS: u64 = 4;
    let time = if cfg!(miri) { ms(0) } else { ms(300) };

    for receives in [false, true] {
        let timer = HashedWheelTimer::builder()
            .tick(Duration::from_micros(50))
            .build()
            .unwrap();
        let (drops, expired) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&expired);
        let (map, receiver) = if receives {
            let (map, receiver) = ExpiringMap::with_receiver(&timer);
            (map, Some(receiver))
        } else {
            let handler = move |_: Removed<_, Counted>| _ = count.fetch_add(1, SeqCst);
            (ExpiringMap::with_handler(&timer, handler), None)
        };
        let begin = Instant::now();
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (map, drops) = (map.clone(), Arc::clone(&drops));
                thread::spawn(move || {
                    let mut random = Rng::with_seed(index);
                    let (mut inserted, mut out) = (0, 0);
                    while begin.elapsed() < time || inserted < 20 {
                        let key = random.u32(0..3);
                        let delay = Duration::from_micros(random.u64(0..200));
                        match random.u32(0..8) {
                            0..4 => {
                                let value = Counted {
                                    name: index,
                                    drops: Arc::clone(&drops),
                                };
                                let old = map.insert(key, value, delay).unwrap();
                                (inserted, out) = (inserted + 1, out + usize::from(old.is_some()));
                            }
                            4 => _ = map.touch(&key, delay),
                            5 => map.retain(|_, value| value.name != index || random.bool()),
                            6 => _ = map.clear(),
                            _ => out += usize::from(map.remove(&key).is_some()),
                        }
                        if random.u32(0..8) == 0 {
                            thread::sleep(Duration::from_micros(random.u64(0..200)));
                        }
                    }
                    (inserted, out)
                })
            })
            .collect();
        let (mut inserted, mut out) = (0, 0);
        for thread in threads {
            let counts = thread.join().unwrap();
            (inserted, out) = (inserted + counts.0, out + counts.1);
        }
        // What is left comes out at the end of the map, or of the timer.
        if receives {
            drop(map);
        } else {
            timer.stop();
        }
        let mut received = Vec::new();
        if let Some(mut receiver) = receiver {
            smol::future::block_on(async {
                while receiver.recv_many(&mut received, 10).await > 0 {}
            });
        }
        let expired = expired.load(SeqCst) + received.len();
        drop(received);
        assert_eq!(expired + out, inserted, "each value comes out once");
        assert_eq!(drops.load(SeqCst), inserted, "and is dropped once");
        assert!(
            cfg!(miri) || (expired > 0 && out > 0),
            "{expired} expired, {out} did not"
        );
    }
}

/// A clock that panics makes `insert` panic; the map stays as it was.
#[test]
fn a_clock_that_panics_leaves_a_consistent_map() {
    struct PanickingClock(ManualClock, Arc<AtomicUsize>);

    impl hashed_wheel::Clock for PanickingClock {
        fn now(&self) -> Duration {
            assert_eq!(self.1.load(SeqCst), 0, "the clock panics");
            hashed_wheel::Clock::now(&self.0)
        }
    }

    let is_broken = Arc::new(AtomicUsize::new(0));
    let clock = PanickingClock(ManualClock::new(), Arc::clone(&is_broken));
    let (timer, _driver) = HashedWheelTimer::builder()
        .clock(clock)
        .build_driven()
        .unwrap();
    let (map, _expired) = with_channel(&timer);
    map.insert(7, 1, FAR).unwrap();
    is_broken.store(1, SeqCst);
    let insert = || map.insert(7, 2, FAR);
    assert!(quietly(|| catch_unwind(AssertUnwindSafe(insert))).is_err());
    is_broken.store(0, SeqCst);
    assert_eq!((map.len(), timer.pending_timeouts()), (1, 1));
    assert_eq!(map.insert(7, 3, FAR).unwrap(), Some(1));
}

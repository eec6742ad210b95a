//! Maps with a limit of their entries.

use crate::common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{Driven, TICK, ms};
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::{Cause, ExpiringMap, Removed};

const FAR: Duration = ms(123_456);

/// A map of this many entries, filled with the keys from 0.
fn full(timer: &HashedWheelTimer, max: usize) -> ExpiringMap<usize, usize> {
    let map = ExpiringMap::builder(timer).max_entries(max).build();
    (0..max).for_each(|key| assert!(map.insert(key, key, FAR).unwrap().is_none()));
    assert_eq!(map.len(), max);
    map
}

fn keys(map: &ExpiringMap<usize, usize>) -> Vec<usize> {
    let mut keys = map.keys();
    keys.sort_unstable();
    keys
}

#[test]
fn new_key_evicts_the_first_entry_that_was_not_used() {
    let t = Driven::new();
    let map = full(&t.timer, 6);
    // The first four are used. To look whether an entry is there is no use.
    assert_eq!(map.get(&0), Some(0));
    map.with(&1, |value| *value += 10);
    assert!(map.touch(&2, FAR) && map.renew(&3));
    assert!(map.contains_key(&4) && map.remaining(&4).is_some());
    map.insert(100, 0, FAR).unwrap();
    assert_eq!(keys(&map), [0, 1, 2, 3, 5, 100]);
    // Their use has counted once, and they come after 5 and 100 now.
    map.insert(101, 0, FAR).unwrap();
    assert_eq!(keys(&map), [0, 1, 2, 3, 100, 101]);
    assert!(map.touch_at(&0, t.timer.now() + FAR));
    map.insert(102, 0, FAR).unwrap();
    assert_eq!(keys(&map), [0, 2, 3, 100, 101, 102], "0 was used again");
    assert_eq!(
        t.timer.pending_timeouts(),
        6,
        "an evicted entry has no timeout"
    );
}

#[test]
fn evicted_entry_goes_to_the_handler() {
    let mut t = Driven::new();
    let (sender, handled) = channel();
    let value = Arc::new(());
    let map = ExpiringMap::builder(&t.timer)
        .time_to_live(TICK)
        .max_entries(1)
        .build_with_handler(move |entry: Removed<u8, Arc<()>>| {
            sender.send((entry.key, entry.cause)).unwrap();
        });
    map.put(1, Arc::clone(&value)).unwrap();
    assert!(
        map.put(2, Arc::clone(&value)).unwrap().is_none(),
        "another key's value is not returned"
    );
    assert_eq!((map.len(), Arc::strong_count(&value)), (1, 2));
    assert_eq!(handled.try_recv(), Ok((1, Cause::Evicted)));
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(
        handled.try_iter().collect::<Vec<_>>(),
        [(2, Cause::Expired)]
    );
}

/// The worker does not turn at all.
#[test]
fn dead_entries_of_a_map_with_a_limit_do_not_pile_up() {
    let t = Driven::new();
    let (sender, handled) = channel();
    let value = Arc::new(());
    let map = ExpiringMap::builder(&t.timer)
        .max_entries(10)
        .build_with_handler(move |entry: Removed<usize, Arc<()>>| {
            sender.send((entry.key, entry.cause)).unwrap();
        });
    for key in 0..1_000 {
        // Now and then the key is that of a dead entry.
        map.insert(key % 15, Arc::clone(&value), ms(5)).unwrap();
        t.clock.advance(ms(1));
        assert!(map.len() <= 10 && t.timer.pending_timeouts() <= 10);
        assert!(Arc::strong_count(&value) <= 1 + 10);
    }
    let ends: Vec<_> = handled.try_iter().collect();
    assert!(ends.len() >= 1_000 - 10, "{} ends", ends.len());
    assert!(ends.iter().all(|(_, cause)| *cause == Cause::Expired));
}

#[test]
fn entry_that_is_dead_on_arrival_evicts_none() {
    let t = Driven::new();
    let (sender, handled) = channel();
    let map = ExpiringMap::builder(&t.timer)
        .max_entries(1)
        .build_with_handler(move |entry: Removed<u8, u8>| {
            sender.send((entry.key, entry.cause)).unwrap();
        });
    map.insert(1, 1, FAR).unwrap();
    map.insert(2, 2, Duration::ZERO).unwrap();
    assert_eq!((map.get(&1), map.get(&2), map.len()), (Some(1), None, 1));
    assert_eq!(handled.try_recv(), Ok((2, Cause::Expired)));
    assert!(handled.try_recv().is_err());
    assert_eq!(t.timer.pending_timeouts(), 1);
}

/// The worker is late. The dead entries were used, and are not the first ones in the order.
#[test]
fn full_map_evicts_the_dead_first_however_their_times_have_changed() {
    let t = Driven::new();
    let (sender, handled) = channel();
    let map = ExpiringMap::builder(&t.timer)
        .max_entries(4)
        .build_with_handler(move |entry: Removed<usize, ()>| {
            sender.send((entry.key, entry.cause)).unwrap();
        });
    let insert = |key, delay| map.insert(key, (), delay).unwrap();
    insert(0, FAR);
    insert(1, TICK);
    insert(2, TICK);
    insert(3, FAR);
    // 1 lives longer now, and 3 not so long.
    assert!(map.touch(&1, FAR) && map.touch(&3, TICK) && map.get(&2).is_some());
    t.clock.advance(TICK);
    insert(4, FAR);
    insert(5, FAR);
    let mut keys = map.keys();
    keys.sort_unstable();
    assert_eq!((keys, map.len()), (vec![0, 1, 4, 5], 4));
    assert_eq!(t.timer.pending_timeouts(), 4);
    let mut expired: Vec<_> = handled.try_iter().collect();
    expired.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(expired, [(2, Cause::Expired), (3, Cause::Expired)]);
    insert(6, FAR);
    assert_eq!(
        handled.try_iter().collect::<Vec<_>>(),
        [(0, Cause::Evicted)]
    );
}

#[test]
fn entry_that_is_replaced_evicts_nothing_and_comes_last() {
    let t = Driven::new();
    let map = full(&t.timer, 3);
    assert_eq!(map.insert(0, 7, FAR).unwrap(), Some(0));
    assert_eq!(keys(&map), [0, 1, 2]);
    map.insert(3, 3, FAR).unwrap();
    assert_eq!(keys(&map), [0, 2, 3]);
}

#[test]
fn entries_that_have_left_make_room() {
    let mut t = Driven::new();
    let map = full(&t.timer, 3);
    assert_eq!(map.remove(&1), Some(1));
    map.insert(3, 3, TICK).unwrap();
    assert_eq!((keys(&map), t.pass(TICK)), (vec![0, 2, 3], 1));
    map.insert(4, 4, FAR).unwrap();
    assert_eq!(keys(&map), [0, 2, 4]);
    map.clear();
    (5..8).for_each(|key| assert!(map.insert(key, key, FAR).unwrap().is_none()));
    assert_eq!(keys(&map), [5, 6, 7]);
    t.timer.cancel_all();
    map.insert(8, 8, FAR).unwrap();
    assert_eq!(keys(&map), [8]);
}

/// An eviction holds the lock only for as long as it takes to look at a few entries.
#[test]
fn eviction_passes_over_64_used_entries() {
    let t = Driven::new();
    let map = full(&t.timer, 100);
    (0..100).for_each(|key| assert!(map.renew(&key)));
    map.insert(100, 0, FAR).unwrap();
    assert!(!map.contains_key(&64));
    assert_eq!(map.len(), 100);
}

/// A rejected insertion is none.
#[test]
fn rejected_entry_evicts_nothing() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(2)));
    let map = full(&t.timer, 2);
    map.insert(2, 2, FAR).unwrap_err();
    assert_eq!(keys(&map), [0, 1]);
}

#[test]
#[should_panic(expected = "max_entries is zero")]
fn limit_of_zero_is_refused() {
    let _ = ExpiringMap::<u8, u8>::builder(&HashedWheelTimer::default()).max_entries(0);
}

/// From 2 048 on there are several locks, each with its part of the limit.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn large_map_is_never_over_its_limit_and_nearly_fills_it() {
    let t = Driven::new();
    for max in [2_047, 2_048, 10_000, 40_000] {
        let map = ExpiringMap::builder(&t.timer).max_entries(max).build();
        (0..max / 4 * 3).for_each(|key| assert!(map.insert(key, key, FAR).unwrap().is_none()));
        // A lock gets a third more keys than the average with a probability of less than 2^-60.
        assert_eq!(map.len(), max / 4 * 3, "nothing was evicted");
        for key in max..4 * max {
            map.insert(key, key, FAR).unwrap();
            assert!(key % 64 > 0 || map.len() <= max);
        }
        assert!(
            (max - 16..=max).contains(&map.len()),
            "{} of {max}",
            map.len()
        );
    }
}

#[test]
fn threads_together_stay_within_the_limit() {
    const MAX: usize = 8;
    let each = if cfg!(miri) { 40 } else { 2_000 };
    let timer = HashedWheelTimer::new(ms(1), 64);
    let map = ExpiringMap::builder(&timer).max_entries(MAX).build();
    let value = Arc::new(());
    thread::scope(|scope| {
        for number in 0..4 {
            let (map, value) = (&map, &value);
            scope.spawn(move || {
                for key in 0..each {
                    // Some keys are common to the threads, and some entries expire.
                    let delay = if key % 5 == 0 { ms(0) } else { FAR };
                    map.insert((key % 3 * number, key), Arc::clone(value), delay)
                        .unwrap();
                    assert!(map.len() <= MAX);
                }
            });
        }
    });
    assert!((1..=MAX).contains(&map.len()));
    map.clear();
    timer.stop();
    assert_eq!(Arc::strong_count(&value), 1, "each value was dropped");
}

//! Where the entries go that leave a map; the default time to live; and lookups by another type.

use crate::common;

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{Driven, TICK, accepts_all, ends, ms, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer};
use hashed_wheel_util::{Cause, Equivalent, ExpiringMap, ExpiringMapBuilder, Removed};

const FAR: Duration = ms(123_456);

type Ends = Receiver<Removed<u8, u32>>;

/// A map, and what its handler gets.
fn with_handler(builder: ExpiringMapBuilder<u8, u32>) -> (ExpiringMap<u8, u32>, Ends) {
    let (sender, ends) = channel();
    let map = builder.build_with_handler(move |removed| sender.send(removed).unwrap());
    (map, ends)
}

/// What the handler got, in the order of the keys.
fn all(ends: &Ends) -> Vec<(u8, u32, Cause)> {
    sorted(ends.try_iter())
}

fn sorted(ends: impl Iterator<Item = Removed<u8, u32>>) -> Vec<(u8, u32, Cause)> {
    let mut all: Vec<_> = ends
        .map(|Removed { key, value, cause }| (key, value, cause))
        .collect();
    all.sort_by_key(|(key, ..)| *key);
    all
}

fn fill(map: &ExpiringMap<u8, u32>, delay: Duration) {
    (1..=3).for_each(|key| assert!(map.insert(key, 10, delay).unwrap().is_none()));
}

// --- the output ----------------------------------------------------------------------------------

#[test]
fn each_value_goes_to_the_caller_or_with_its_cause_to_the_handler() {
    let mut t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    fill(&map, TICK);
    assert_eq!(map.insert(1, 11, TICK).unwrap(), Some(10));
    assert_eq!((map.remove(&1), map.remove(&1)), (Some(11), None));
    assert_eq!(all(&ends), []);
    assert_eq!(t.pass(TICK), 2);
    assert_eq!(all(&ends), [2, 3].map(|key| (key, 10, Cause::Expired)));

    fill(&map, FAR);
    map.retain(|key, _| *key == 3);
    assert_eq!(all(&ends), [1, 2].map(|key| (key, 10, Cause::Removed)));
    assert_eq!(
        (map.clear(), all(&ends)),
        (1, vec![(3, 10, Cause::Removed)])
    );
    fill(&map, FAR);
    assert_eq!((map.drain().len(), all(&ends)), (3, vec![]));
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn values_that_are_left_come_out_at_each_end_of_the_map_and_the_timer() {
    type End = fn(&HashedWheelTimer, ExpiringMap<u8, u32>) -> Option<ExpiringMap<u8, u32>>;
    let ends: [End; 5] = [
        |timer, map| {
            assert_eq!(timer.stop().len(), 3);
            Some(map)
        },
        |timer, map| {
            assert_eq!(timer.shutdown(TICK).len(), 3);
            Some(map)
        },
        |timer, map| {
            assert_eq!(timer.cancel_all(), 3);
            Some(map)
        },
        |_, map| {
            drop(map);
            None
        },
        |timer, map| {
            timer.begin_stop().wait();
            Some(map)
        },
    ];
    for end in ends {
        let t = Driven::new();
        let (map, handled) = with_handler(ExpiringMap::builder(&t.timer));
        fill(&map, FAR);
        let map = end(&t.timer, map);
        assert_eq!(
            all(&handled),
            [1, 2, 3].map(|key| (key, 10, Cause::Stopped))
        );
        if let Some(map) = map {
            assert!(map.is_empty());
            drop(map);
        }
        assert_eq!(all(&handled), []);

        let t = Driven::new();
        let (map, mut entries) = ExpiringMap::with_receiver(&t.timer);
        fill(&map, FAR);
        drop(end(&t.timer, map));
        let mut received = Vec::new();
        let context = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(entry)) = entries.poll_recv(context) {
            received.push(entry);
        }
        assert_eq!(
            sorted(received.into_iter()),
            [1, 2, 3].map(|key| (key, 10, Cause::Stopped))
        );
        assert_eq!(entries.poll_recv(context), Poll::Ready(None));
    }
}

/// A dead entry whose key has another one, and a dead one that has the key.
#[test]
fn dead_entries_that_the_timer_has_not_removed_come_out_at_the_end() {
    type End = fn(&HashedWheelTimer, ExpiringMap<u8, u32>);
    let ends: [End; 3] = [
        |timer, _map| assert_eq!(timer.stop().len(), 3),
        |timer, _map| assert_eq!(timer.cancel_all(), 3),
        |_, map| drop(map),
    ];
    for end in ends {
        let t = Driven::new();
        let (map, handled) = with_handler(ExpiringMap::builder(&t.timer));
        map.insert(1, 10, TICK).unwrap();
        map.insert(3, 10, TICK).unwrap();
        t.clock.advance(TICK);
        map.insert(1, 11, FAR).unwrap();
        end(&t.timer, map);
        let mut ends = all(&handled);
        ends.sort_unstable_by_key(|(key, value, _)| (*key, *value));
        assert_eq!(
            ends,
            [
                (1, 10, Cause::Expired),
                (1, 11, Cause::Stopped),
                (3, 10, Cause::Expired)
            ]
        );
        assert_eq!(t.timer.pending_timeouts(), 0);
    }
}

#[test]
fn an_entry_whose_task_the_executor_drops_goes_to_the_handler() {
    let mut t = Driven::with(|builder| builder.task_executor(accepts_all(drop::<ExpiredTask>)));
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    fill(&map, TICK);
    assert_eq!(t.pass(TICK), 3);
    assert_eq!(all(&ends), [1, 2, 3].map(|key| (key, 10, Cause::Expired)));
}

#[test]
fn only_the_chosen_causes_go_to_the_handler() {
    let mut t = Driven::new();
    let builder = ExpiringMap::builder(&t.timer);
    let (map, ends) = with_handler(
        builder
            .causes([Cause::Replaced, Cause::Evicted])
            .max_entries(3),
    );
    fill(&map, TICK);
    assert_eq!(map.insert(1, 11, TICK).unwrap(), None, "the handler has it");
    assert_eq!(all(&ends), [(1, 10, Cause::Replaced)]);
    map.insert(4, 10, FAR).unwrap();
    assert_eq!(all(&ends), [(2, 10, Cause::Evicted)]);
    assert_eq!(map.remove(&1), Some(11));
    assert_eq!(t.pass(TICK), 1);
    map.insert(5, 10, FAR).unwrap();
    map.retain(|key, _| *key == 4);
    t.timer.stop();
    assert_eq!((all(&ends), map.len()), (vec![], 0));
}

#[test]
fn a_map_without_a_handler_returns_what_it_replaces_whatever_the_causes() {
    let t = Driven::new();
    let map = ExpiringMap::builder(&t.timer)
        .causes([Cause::Replaced])
        .build();
    assert_eq!(map.put(7, 1).unwrap(), None);
    assert_eq!(map.put(7, 2).unwrap(), Some(1));
}

/// If a lock were held, the call would hang.
#[test]
fn the_handler_may_use_the_map() {
    let lens = ends(|| {
        let mut t = Driven::new();
        let own = Arc::<OnceLock<ExpiringMap<u8, u32>>>::default();
        let (shared, (sender, lens)) = (Arc::downgrade(&own), channel());
        // `len` locks every shard.
        let handler = move |_| {
            let shared = shared.upgrade().unwrap();
            sender.send(shared.get().unwrap().len()).unwrap();
        };
        let all_causes = [
            Cause::Replaced,
            Cause::Expired,
            Cause::Removed,
            Cause::Stopped,
        ];
        let builder = ExpiringMap::builder(&t.timer).causes(all_causes);
        let map = own.get_or_init(|| builder.build_with_handler(handler));
        (0..2).for_each(|value| _ = map.insert(1, value, TICK).unwrap());
        t.pass(TICK);
        (0..8).for_each(|key| _ = map.insert(key, 0, FAR).unwrap());
        map.retain(|key, _| *key != 1);
        map.clear();
        map.insert(1, 0, FAR).unwrap();
        t.timer.stop();
        lens.try_iter().collect::<Vec<_>>()
    });
    // The handler gets the replaced entry when the new one is there, and the others when all of the
    // call have left.
    assert_eq!(lens, [vec![1, 0, 7], vec![0; 8]].concat());
}

#[test]
fn a_panic_of_the_handler_goes_to_the_caller_and_leaves_a_consistent_map() {
    let mut t = Driven::new();
    let value = Arc::new(());
    let causes = [
        Cause::Replaced,
        Cause::Removed,
        Cause::Expired,
        Cause::Stopped,
    ];
    let map = ExpiringMap::builder(&t.timer)
        .causes(causes)
        .build_with_handler(|removed: Removed<u8, Arc<()>>| panic!("{:?}", removed.cause));
    let insert = |key, delay| map.insert(key, Arc::clone(&value), delay).unwrap();
    quietly(|| {
        insert(1, FAR);
        assert!(catch_unwind(AssertUnwindSafe(|| insert(1, FAR))).is_err());
        assert_eq!(
            (map.len(), t.timer.pending_timeouts()),
            (1, 1),
            "the new entry is there"
        );
        insert(2, FAR);
        insert(3, FAR);
        assert!(catch_unwind(AssertUnwindSafe(|| map.clear())).is_err());
        assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
        insert(4, TICK);
        assert_eq!((t.pass(TICK), t.timer.stats().panics), (1, 1));
        insert(5, FAR);
        insert(6, FAR);
        assert_eq!((t.timer.stop().len(), t.timer.stats().panics), (2, 3));
    });
    assert_eq!(
        (map.len(), Arc::strong_count(&value)),
        (0, 1),
        "no value leaks"
    );
}

#[test]
fn a_panic_of_the_handler_loses_no_other_value() {
    type End = fn(ExpiringMap<u8, u8>, &HashedWheelTimer);
    let ends: [(End, bool); 7] = [
        (|map, _| _ = map.clear(), true),
        (|map, _| map.retain(|_, _| false), true),
        (|map, _| drop(map), false),
        (|_map, _| panic!("the map is dropped meanwhile"), true),
        (|_map, timer| _ = timer.stop(), false),
        (|_map, timer| _ = timer.shutdown(TICK), false),
        (|_map, timer| _ = timer.cancel_all(), false),
    ];
    for (end, panics) in ends {
        let t = Driven::new();
        let (sender, handled) = channel();
        let map = ExpiringMap::with_handler(&t.timer, move |removed: Removed<u8, u8>| {
            sender.send(removed.key).unwrap();
            panic!("each call");
        });
        (0..20).for_each(|key| _ = map.insert(key, 0, FAR).unwrap());
        let ended = quietly(|| catch_unwind(AssertUnwindSafe(|| end(map, &t.timer))));
        let mut keys: Vec<_> = handled.try_iter().collect();
        keys.sort_unstable();
        assert_eq!((ended.is_err(), keys), (panics, (0..20).collect()));
        assert_eq!(t.timer.pending_timeouts(), 0);
    }
}

// --- the default time to live --------------------------------------------------------------------

#[test]
fn put_and_renew_use_the_default_time_to_live() {
    let mut t = Driven::new();
    let map = ExpiringMap::builder(&t.timer)
        .time_to_live(TICK * 3)
        .build();
    assert_eq!(map.put(7, "old").unwrap(), None);
    assert_eq!(map.remaining(&7), Some(TICK * 3));
    assert_eq!(t.pass(TICK), 0);
    assert!(map.renew(&7) && !map.renew(&8));
    assert_eq!(map.remaining(&7), Some(TICK * 3));
    assert_eq!(map.insert(8, "own delay", TICK).unwrap(), None);
    assert_eq!((t.pass(TICK), map.put(7, "new").unwrap()), (1, Some("old")));
    t.pass(TICK * 2);
    assert_eq!((map.len(), t.pass(TICK), map.len()), (1, 1, 0));
    t.timer.stop();
    assert_eq!(map.put(7, "late").unwrap_err().value, "late");
}

#[test]
fn without_a_time_to_live_an_entry_of_put_never_expires() {
    let mut t = Driven::new();
    let map = ExpiringMap::new(&t.timer);
    map.put(7, ()).unwrap();
    map.insert(8, (), TICK).unwrap();
    assert!(map.renew(&8));
    t.pass(Duration::from_secs(1_000_000_000));
    assert_eq!((map.keys().len(), t.timer.pending_timeouts()), (2, 2));
    assert_eq!(
        format!(
            "{:?}",
            ExpiringMap::<u8, u8>::builder(&t.timer).time_to_live(TICK)
        ),
        format!("ExpiringMapBuilder {{ time_to_live: {TICK:?}, max_entries: None, .. }}")
    );
}

// --- lookups -------------------------------------------------------------------------------------

/// A tenant and a user, which `Borrow` cannot look up by borrowed parts.
struct User<'a>(u32, &'a str);

impl Hash for User<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0, self.1).hash(state);
    }
}

impl Equivalent<(u32, String)> for User<'_> {
    fn equivalent(&self, key: &(u32, String)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

#[test]
fn a_key_is_looked_up_by_an_equivalent_type() {
    let t = Driven::new();
    let map = ExpiringMap::new(&t.timer);
    map.insert((1, "ada".to_owned()), 17, FAR).unwrap();
    let (ada, other) = (User(1, "ada"), User(2, "ada"));
    assert!(map.contains_key(&ada) && !map.contains_key(&other));
    assert_eq!((map.get(&ada), map.get(&other)), (Some(17), None));
    assert_eq!(
        map.with(&ada, |value| std::mem::replace(value, 18)),
        Some(17)
    );
    assert!(map.touch(&ada, TICK) && map.touch_at(&ada, t.timer.now() + TICK * 2));
    assert_eq!(map.remaining(&ada), Some(TICK * 2));
    assert_eq!((map.remove(&other), map.remove(&ada)), (None, Some(18)));
}

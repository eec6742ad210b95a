//! The listener of a map, which is told of each entry that leaves it; the default time to live; and
//! lookups by another type.

use crate::common;

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{Driven, TICK, accepts_all, ends, ms, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer};
use hashed_wheel_util::{Cause, Equivalent, ExpiringMap, ExpiringMapBuilder};

const FAR: Duration = ms(123_456);

type Told = Receiver<(u8, u32, Cause)>;

/// Begins a map, and returns what its listener is told.
fn builder(timer: &HashedWheelTimer) -> (ExpiringMapBuilder<u8, u32>, Told) {
    let (sender, told) = channel();
    let listener = move |key: &u8, value: &u32, cause| sender.send((*key, *value, cause)).unwrap();
    (ExpiringMap::builder(timer).listener(listener), told)
}

fn all<T: Ord>(receiver: &Receiver<T>) -> Vec<T> {
    receiver.try_iter().collect()
}

/// The calls of the listener, in an order of its own for entries that left in no particular order.
fn told(receiver: &Told) -> Vec<(u8, u32, Cause)> {
    let mut told: Vec<_> = receiver.try_iter().collect();
    told.sort_by_key(|(key, ..)| *key);
    told
}

// --- the listener --------------------------------------------------------------------------------

#[test]
fn the_listener_is_told_of_each_end_with_its_cause() {
    let mut t = Driven::new();
    let (builder, listener) = builder(&t.timer);
    let (sender, handled) = channel();
    let map = builder.build_with_handler(move |key, value| sender.send((key, value)).unwrap());
    let fill =
        |delay| (1..=3).for_each(|key| assert!(map.insert(key, 10, delay).unwrap().is_none()));

    fill(TICK);
    assert_eq!(map.insert(1, 11, TICK).unwrap(), Some(10));
    assert_eq!(told(&listener), [(1, 10, Cause::Replaced)]);
    assert_eq!(map.remove(&1), Some(11));
    assert_eq!(map.remove(&1), None);
    assert_eq!(told(&listener), [(1, 11, Cause::Removed)]);
    assert_eq!((t.pass(TICK), all(&handled)), (2, vec![(2, 10), (3, 10)]));
    assert_eq!(
        told(&listener),
        [(2, 10, Cause::Expired), (3, 10, Cause::Expired)]
    );

    fill(FAR);
    map.retain(|key, _| *key == 3);
    assert_eq!(
        told(&listener),
        [(1, 10, Cause::Removed), (2, 10, Cause::Removed)]
    );
    assert_eq!(
        (map.clear(), told(&listener)),
        (1, vec![(3, 10, Cause::Removed)])
    );
    fill(FAR);
    assert_eq!(map.drain().len(), 3);
    assert_eq!(
        told(&listener),
        [1, 2, 3].map(|key| (key, 10, Cause::Removed))
    );
    assert_eq!((all(&handled), t.timer.pending_timeouts()), (vec![], 0));
}

#[test]
fn the_listener_of_a_map_with_a_receiver_is_told_when_the_entry_expires() {
    let mut t = Driven::new();
    let (builder, listener) = builder(&t.timer);
    let (map, mut expired) = builder.build_with_receiver();
    map.insert(7, 1, TICK).unwrap();
    t.pass(TICK);
    assert_eq!(told(&listener), [(7, 1, Cause::Expired)]);
    let context = &mut Context::from_waker(Waker::noop());
    assert_eq!(expired.poll_recv(context), Poll::Ready(Some((7, 1))));
}

#[test]
fn the_listener_is_not_told_of_the_end_of_the_map_or_the_timer() {
    let mut t = Driven::with(|builder| builder.task_executor(accepts_all(drop::<ExpiredTask>)));
    let value = Arc::new(());
    let (sender, listener) = channel();
    let map = ExpiringMap::builder(&t.timer)
        .listener(move |_, _, cause| sender.send(cause).unwrap())
        .build();
    let insert = || assert!(map.insert(7, Arc::clone(&value), TICK).unwrap().is_none());
    insert();
    assert_eq!(
        (t.pass(TICK), Arc::strong_count(&value)),
        (1, 1),
        "dropped by the executor"
    );
    insert();
    assert_eq!(
        (t.timer.cancel_all(), map.len(), Arc::strong_count(&value)),
        (1, 0, 1)
    );
    let other = ExpiringMap::new(&t.timer);
    other.insert(7, Arc::clone(&value), TICK).unwrap();
    drop(other);
    assert_eq!(Arc::strong_count(&value), 1);
    insert();
    assert_eq!(
        (t.timer.stop().len(), map.len(), Arc::strong_count(&value)),
        (1, 0, 1)
    );
    let rejected = map.insert(7, Arc::clone(&value), TICK).unwrap_err();
    drop((map, rejected));
    assert_eq!(
        listener.recv(),
        Err(std::sync::mpsc::RecvError),
        "it was told of nothing"
    );
}

/// If a lock were held, the call would hang.
#[test]
fn the_listener_may_use_the_map() {
    let lens = ends(|| {
        let mut t = Driven::new();
        let own = Arc::<OnceLock<ExpiringMap<u8, u32>>>::default();
        // The map owns its listener, so the listener must not own the map.
        let (shared, (sender, lens)) = (Arc::downgrade(&own), channel());
        // `len` locks every shard.
        let listener = move |_: &u8, _: &u32, _| {
            let map = shared.upgrade().unwrap();
            sender.send(map.get().unwrap().len()).unwrap();
        };
        let map = own.get_or_init(|| ExpiringMap::builder(&t.timer).listener(listener).build());
        (0..2).for_each(|value| _ = map.insert(1, value, TICK).unwrap());
        t.pass(TICK);
        (0..8).for_each(|key| _ = map.insert(key, 0, FAR).unwrap());
        map.remove(&0);
        map.retain(|key, _| *key != 1);
        map.clear();
        all(&lens)
    });
    // Told of the replaced entry, the new one is there. The others have left before it is told.
    assert_eq!(lens, [vec![1, 0, 7, 6], vec![0; 6]].concat());
}

#[test]
fn a_panic_of_the_listener_goes_to_the_caller_and_leaves_a_consistent_map() {
    let mut t = Driven::new();
    let value = Arc::new(());
    let listener = |_: &u8, _: &Arc<()>, cause| panic!("told of {cause:?}");
    let map = ExpiringMap::builder(&t.timer).listener(listener).build();
    let insert = |key, delay| map.insert(key, Arc::clone(&value), delay).unwrap();
    quietly(|| {
        insert(1, FAR);
        assert!(catch_unwind(AssertUnwindSafe(|| insert(1, FAR))).is_err());
        assert_eq!(
            (map.len(), t.timer.pending_timeouts()),
            (1, 1),
            "the new entry is there"
        );
        assert!(catch_unwind(AssertUnwindSafe(|| map.remove(&1))).is_err());
        insert(2, FAR);
        insert(3, FAR);
        assert!(catch_unwind(AssertUnwindSafe(|| map.clear())).is_err());
        assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
        insert(4, TICK);
        assert_eq!((t.pass(TICK), t.timer.stats().panics), (1, 1));
    });
    assert_eq!(
        (map.len(), Arc::strong_count(&value)),
        (0, 1),
        "no value leaks"
    );
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
    assert_eq!((t.pass(TICK * 2), t.pass(TICK), map.len()), (0, 1, 0));
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
    assert_eq!(
        (t.pass(Duration::from_secs(1_000_000_000)), map.len()),
        (0, 2)
    );
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

//! The entry API, the time to idle, write-back, weights, and the receiver with a bound.

use crate::common;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{AsyncTask, Driven, TICK, ends, eventually, ms, quietly};
use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::{
    BeingWritten, BoxFuture, Cause, Entry, ExpiringMap, ExpiringMapBuilder, Removed,
};

const FAR: Duration = ms(123_456);

type Ends = Receiver<(u8, u64, Cause)>;

/// A map, and what its handler gets.
fn with_handler(builder: ExpiringMapBuilder<u8, u64>) -> (ExpiringMap<u8, u64>, Ends) {
    let (sender, ends) = channel();
    let map = builder.build_with_handler(send(sender));
    (map, ends)
}

fn send(sender: Sender<(u8, u64, Cause)>) -> impl Fn(Removed<u8, u64>) + Send + Sync + 'static {
    move |Removed { key, value, cause }| sender.send((key, value, cause)).unwrap()
}

fn all(ends: &Ends) -> Vec<(u8, u64, Cause)> {
    ends.try_iter().collect()
}

// --- entries -------------------------------------------------------------------------------------

#[test]
fn try_entry_answers_at_once() {
    let mut t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    let entry = map.entry(7).or_insert(1, TICK).unwrap();
    assert_eq!(map.try_entry(7).map(drop), Err(BeingWritten));
    drop(entry);
    let Ok(Entry::Occupied(mut entry)) = map.try_entry(7) else {
        panic!("it is there");
    };
    assert_eq!(entry.insert(2), 1);
    drop(entry);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(all(&ends), [(7, 2, Cause::Expired)]);
    assert!(matches!(map.try_entry(7), Ok(Entry::Vacant(_))));
}

/// The dead entry waits for the executor, and the handler would wait for the key.
#[test]
fn a_rejected_insertion_calls_no_handler_while_it_has_the_key() {
    let (to_pool, tasks) = channel();
    let executor = common::accepts_all(move |task| to_pool.send(task).unwrap());
    let mut t = Driven::with(|builder| builder.task_executor(executor));
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    map.insert(7, 1, TICK).unwrap();
    assert_eq!(t.pass(TICK), 1);
    let Entry::Vacant(vacant) = map.entry(7) else {
        panic!("it is dead");
    };
    t.timer.stop();
    assert_eq!(vacant.insert(2, TICK).unwrap_err().value, 2);
    assert_eq!(all(&ends), []);
    drop(tasks);
    assert_eq!(all(&ends), [(7, 1, Cause::Expired)]);
}

#[test]
fn a_waker_that_panics_leaves_no_other_call_asleep() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("the waker");
        }
    }

    let t = Driven::new();
    let (map, _ends) = with_handler(ExpiringMap::builder(&t.timer));
    let entry = map.entry(7);
    let task = AsyncTask::new();
    let wakers = [
        Waker::from(Arc::new(Panics)),
        Waker::from(Arc::clone(&task)),
    ];
    let mut written = [map.written(&7), map.written(&7)].map(Box::pin);
    for (written, waker) in written.iter_mut().zip(&wakers) {
        let polled = written.as_mut().poll(&mut Context::from_waker(waker));
        assert!(polled.is_pending());
    }
    quietly(|| drop(entry));
    assert_eq!(task.wakes(), 1);
}

#[test]
fn an_entry_is_occupied_or_vacant() {
    let mut t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    let Entry::Vacant(vacant) = map.entry(7) else {
        panic!("there is no entry");
    };
    assert_eq!((*vacant.key(), map.len()), (7, 0));
    let mut occupied = vacant.insert(1, TICK).unwrap();
    assert_eq!((occupied.insert(2), *occupied.get()), (1, 2));
    *occupied.get_mut() += 1;
    assert_eq!(
        (*occupied.key(), map.len()),
        (7, 0),
        "no other call sees it"
    );
    drop(occupied);
    assert_eq!((map.get(&7), map.remaining(&7)), (Some(3), Some(TICK)));

    let entry = map.entry(7).and_modify(|value| *value *= 2);
    assert_eq!(*entry.key(), 7);
    let mut occupied = entry
        .or_insert_with(|| panic!("there is one"), FAR)
        .unwrap();
    assert!(occupied.touch(TICK * 3) && *occupied.get() == 6);
    drop(occupied);
    t.pass(TICK * 2);
    assert_eq!((map.get(&7), map.remaining(&7)), (Some(6), Some(TICK)));

    let Entry::Occupied(occupied) = map.entry(7) else {
        panic!("there is an entry");
    };
    assert_eq!((occupied.remove(), t.timer.pending_timeouts()), (6, 0));
    assert_eq!(
        map.entry(7).and_modify(|_| panic!("there is none")).key(),
        &7
    );
    map.entry(7).or_insert(9, TICK).unwrap();
    assert_eq!(
        (t.pass(TICK), all(&ends)),
        (1, vec![(7, 9, Cause::Expired)])
    );
    let Entry::Vacant(vacant) = map.entry(7) else {
        panic!("it has expired");
    };
    assert_eq!((vacant.into_key(), map.len(), all(&ends)), (7, 0, vec![]));
}

#[test]
fn an_entry_that_is_dead_is_vacant() {
    let t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    map.insert(7, 1, TICK).unwrap();
    t.clock.advance(TICK);
    assert!(matches!(map.entry(7), Entry::Vacant(_)));
    let value = map.get_or_insert_with(7, || 2, FAR).unwrap();
    assert_eq!(
        (value, map.get_or_insert_with(7, || 3, FAR).unwrap()),
        (2, 2)
    );
    drop(map);
    let mut all = all(&ends);
    all.sort_unstable_by_key(|(_, value, _)| *value);
    assert_eq!(all, [(7, 1, Cause::Expired), (7, 2, Cause::Stopped)]);
}

/// Its time comes, or the timer ends, while a call has the entry.
#[test]
fn an_entry_whose_timeout_ends_leaves_the_map_after_it_was_dropped() {
    type End = fn(&mut Driven);
    let ends: [(End, Cause); 4] = [
        (|t| _ = t.pass(TICK), Cause::Expired),
        (|t| _ = t.timer.stop(), Cause::Stopped),
        (|t| _ = t.timer.cancel_all(), Cause::Stopped),
        // Dead, and the timer is late.
        (
            |t| {
                t.clock.advance(TICK);
                t.timer.stop();
            },
            Cause::Expired,
        ),
    ];
    for (end, cause) in ends {
        let mut t = Driven::new();
        let (map, handled) = with_handler(ExpiringMap::builder(&t.timer));
        map.insert(7, 1, TICK).unwrap();
        let Entry::Occupied(mut entry) = map.entry(7) else {
            panic!("there is an entry");
        };
        end(&mut t);
        *entry.get_mut() = 2;
        assert_eq!((entry.touch(FAR), all(&handled)), (false, vec![]));
        drop(entry);
        t.pass(TICK);
        assert_eq!(all(&handled), [(7, 2, cause)]);
        assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
    }
}

/// The entry expires, or is too much for the map, while a call has it. If the key were still
/// reserved for the handler, this would hang.
#[test]
fn the_handler_of_an_entry_may_insert_it_again() {
    let keys = ends(|| {
        let mut t = Driven::new();
        let own = Arc::<OnceLock<ExpiringMap<u8, u64>>>::default();
        let shared = Arc::downgrade(&own);
        let handler = move |Removed { key, value, cause }| {
            if let (Cause::Expired, Some(own)) = (cause, shared.upgrade()) {
                own.get().unwrap().insert(key, value + 1, FAR).unwrap();
            }
        };
        let builder = ExpiringMap::builder(&t.timer);
        let map = own.get_or_init(|| builder.build_with_handler(handler));
        map.insert(7, 1, TICK).unwrap();
        let entry = map.entry(7);
        t.pass(TICK);
        drop(entry);
        t.pass(TICK);
        map.drain()
    });
    assert_eq!(keys, [(7, 2)]);
}

/// The timer asks for its deadline once, and again when it is back.
#[test]
fn the_timer_does_not_ask_in_each_tick_for_a_dead_entry_that_a_call_has() {
    let mut t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    map.insert(7, 1, TICK).unwrap();
    let entry = map.entry(7);
    assert_eq!(t.pass(TICK), 0);
    assert!(t.driver.next_turn().is_some_and(|wait| wait > 5 * TICK));
    drop(entry);
    assert!(t.driver.next_turn().is_some_and(|wait| wait <= TICK));
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(all(&ends), [(7, 1, Cause::Expired)]);
}

#[test]
fn a_dead_entry_that_a_call_has_leaves_within_the_grace_of_a_shutdown() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (map, ends) = with_handler(ExpiringMap::builder(&timer));
    map.insert(7, 1, ms(100)).unwrap();
    let entry = map.entry(7);
    thread::sleep(ms(120));
    let ending = timer.begin_shutdown(FAR);
    thread::sleep(ms(250));
    assert!(!ending.is_finished());
    drop(entry);
    assert_eq!(
        ending.wait_timeout(ms(60_000)).unwrap(),
        [],
        "nothing is left"
    );
    assert_eq!(all(&ends), [(7, 1, Cause::Expired)]);
}

/// The worker is late.
#[test]
fn a_dead_entry_of_a_call_is_not_touched() {
    let t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    map.insert(7, 1, TICK).unwrap();
    let Entry::Occupied(mut entry) = map.entry(7) else {
        panic!("there is an entry");
    };
    t.clock.advance(TICK);
    assert!(!entry.touch(FAR));
    drop(entry);
    assert_eq!((map.get(&7), all(&ends)), (None, vec![]));
    drop(map);
    assert_eq!(all(&ends), [(7, 1, Cause::Expired)]);
}

/// The dead one that the vacant entry has left is in the table too.
#[test]
fn an_insertion_replaces_the_living_entry_of_its_key() {
    for limit in [None, Some(10)] {
        let t = Driven::new();
        let (map, ends) = with_handler(ExpiringMap::builder(&t.timer).max_entries(limit));
        map.insert(7, 1, TICK).unwrap();
        t.clock.advance(TICK);
        drop(map.entry(7).or_insert(2, FAR).unwrap());
        assert_eq!(map.insert(7, 3, FAR).unwrap(), Some(2));
        assert_eq!((map.remove(&7), map.get(&7)), (Some(3), None));
        drop(map);
        assert_eq!(all(&ends), [(7, 1, Cause::Expired)]);
    }
}

/// After this time another thread waits for a key that is reserved.
const WAITS: Duration = ms(if cfg!(miri) { 3_000 } else { 200 });

/// It counts from the end of the wait.
#[test]
fn a_touch_that_waits_gives_its_whole_time() {
    let t = Driven::new();
    let map = ExpiringMap::new(&t.timer);
    map.insert(7, 1, FAR).unwrap();
    let entry = map.entry(7);
    thread::scope(|scope| {
        let touch = scope.spawn(|| map.touch(&7, TICK));
        thread::sleep(WAITS);
        t.clock.advance(TICK * 2);
        drop(entry);
        assert!(touch.join().unwrap());
    });
    assert_eq!(map.remaining(&7), Some(TICK));
}

/// Its delay begins when the key is free.
#[test]
fn an_insertion_that_waits_gives_its_whole_time() {
    let t = Driven::new();
    let map = ExpiringMap::new(&t.timer);
    let entry = map.entry(7);
    thread::scope(|scope| {
        let insert = scope.spawn(|| map.insert(7, 1, TICK));
        thread::sleep(WAITS);
        t.clock.advance(TICK * 2);
        drop(entry);
        assert_eq!(insert.join().unwrap().unwrap(), None);
    });
    assert_eq!(map.remaining(&7), Some(TICK));
}

#[test]
fn a_rejected_entry_comes_back_and_the_key_is_free() {
    let t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer));
    t.timer.stop();
    let rejected = map.entry(7).or_insert(1, TICK).unwrap_err();
    assert_eq!((rejected.key, rejected.value), (7, 1));
    let rejected = map.get_or_insert_with(7, || 2, TICK).unwrap_err();
    assert!(matches!(rejected.error, NewTimeoutError::Stopped));
    assert_eq!((map.get(&7), map.len(), all(&ends)), (None, 0, vec![]));
}

#[test]
fn a_closure_that_panics_frees_the_key() {
    let t = Driven::new();
    let (map, _ends) = with_handler(ExpiringMap::builder(&t.timer));
    map.insert(7, 1, FAR).unwrap();
    quietly(|| {
        let modify = || drop(map.entry(7).and_modify(|_| panic!("in `and_modify`")));
        assert!(catch_unwind(AssertUnwindSafe(modify)).is_err());
        let make = || _ = map.get_or_insert_with(8, || panic!("in the closure"), FAR);
        assert!(catch_unwind(AssertUnwindSafe(make)).is_err());
    });
    assert_eq!((map.get(&7), map.get(&8)), (Some(1), None));
    assert_eq!((map.len(), t.timer.pending_timeouts()), (1, 1));
}

/// All calls for the key wait, and others do not.
#[test]
fn calls_for_the_key_of_an_entry_wait() {
    let t = Driven::new();
    let map = Arc::new(ExpiringMap::new(&t.timer));
    type Call = fn(&ExpiringMap<u8, u64>);
    let calls: [Call; 8] = [
        |map| assert_eq!(map.get(&7), Some(2)),
        |map| assert_eq!(map.with(&7, |value| *value), Some(2)),
        |map| assert!(map.touch(&7, FAR)),
        |map| assert!(map.contains_key(&7)),
        |map| assert_eq!(map.insert(7, 3, FAR).unwrap(), Some(2)),
        |map| assert_eq!(map.insert_if_absent(7, 3, FAR).unwrap(), Some((7, 3))),
        |map| assert_eq!(map.remove(&7), Some(2)),
        |map| assert!(matches!(map.entry(7), Entry::Occupied(_))),
    ];
    for call in calls {
        map.insert(7, 1, FAR).unwrap();
        let Entry::Occupied(mut entry) = map.entry(7) else {
            panic!("there is an entry");
        };
        let (begins, other) = (Arc::new(Barrier::new(2)), Arc::clone(&map));
        let begun = Arc::clone(&begins);
        let caller = thread::spawn(move || {
            begun.wait();
            call(&other);
        });
        begins.wait();
        assert_eq!(map.try_get(&7), Err(BeingWritten));
        assert_eq!(
            (map.insert(8, 1, FAR).is_ok(), map.get(&8)),
            (true, Some(1))
        );
        assert_eq!(entry.insert(2), 1);
        drop(entry);
        caller.join().unwrap();
    }
}

#[test]
fn threads_count_with_entries_and_lose_nothing() {
    const THREADS: u64 = 4;
    let each = if cfg!(miri) { 20 } else { 5_000 };
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (map, made) = (ExpiringMap::new(&timer), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..each {
                    let make = || {
                        made.fetch_add(1, SeqCst);
                        0
                    };
                    let mut count = map.entry(number % 3).or_insert_with(make, FAR).unwrap();
                    *count.get_mut() += 1;
                }
            });
        }
    });
    let total: u64 = map.drain().into_iter().map(|(_, count)| count).sum();
    assert_eq!((total, made.load(SeqCst)), (THREADS * each, 3));
}

// --- the time to idle ----------------------------------------------------------------------------

#[test]
fn each_use_moves_the_deadline_at_most_to_the_end() {
    type Use = fn(&ExpiringMap<u8, u64>);
    let uses: [Use; 5] = [
        |map| assert_eq!(map.get(&7), Some(1)),
        |map| assert_eq!(map.try_get(&7), Ok(Some(1))),
        |map| assert_eq!(map.with(&7, |value| *value), Some(1)),
        |map| assert!(matches!(map.entry(7), Entry::Occupied(_))),
        |map| assert_eq!(map.get_or_insert_with(7, || 2, FAR).unwrap(), 1),
    ];
    for call in uses {
        let mut t = Driven::new();
        let builder = ExpiringMap::builder(&t.timer).time_to_live(TICK * 5);
        let (map, ends) = with_handler(builder.time_to_idle(TICK * 2));
        map.put(7, 1).unwrap();
        for left in [2, 2, 2, 1] {
            assert!(map.contains_key(&7), "that is no use");
            t.pass(TICK);
            call(&map);
            assert_eq!(map.remaining(&7), Some(TICK * left));
        }
        assert_eq!((t.pass(TICK), map.get(&7)), (1, None));
        assert_eq!(all(&ends), [(7, 1, Cause::Expired)]);
    }
}

#[test]
fn an_idle_entry_expires_and_a_touch_moves_the_end() {
    let mut t = Driven::new();
    let (map, ends) = with_handler(ExpiringMap::builder(&t.timer).time_to_idle(TICK * 2));
    map.put(7, 1).unwrap();
    map.insert(8, 2, TICK).unwrap();
    assert_eq!(
        (map.remaining(&7), map.remaining(&8)),
        (Some(TICK * 2), Some(TICK))
    );
    map.insert_at(9, 3, t.timer.now() + FAR).unwrap();
    assert_eq!(map.remaining(&9), Some(TICK * 2));
    // `get` does not go beyond the end, and `touch` moves that.
    assert_eq!(map.get(&8), Some(2));
    assert_eq!(map.remaining(&8), Some(TICK));
    assert!(map.touch(&8, TICK * 3) && map.touch(&9, TICK));
    assert_eq!(
        (map.remaining(&8), map.remaining(&9)),
        (Some(TICK * 2), Some(TICK))
    );
    t.pass(TICK);
    assert_eq!((map.get(&9), map.get(&8)), (None, Some(2)));
    assert_eq!(map.remaining(&8), Some(TICK * 2), "the end is at 3 ticks");
    assert!(map.renew(&8));
    t.pass(TICK);
    t.pass(TICK);
    let keys: Vec<_> = all(&ends).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, [9, 7, 8]);
}

// --- write-back ----------------------------------------------------------------------------------

/// A table of rows, as a database has them.
type Rows = Arc<Mutex<BTreeMap<u8, u64>>>;

fn with_rows(builder: ExpiringMapBuilder<u8, u64>) -> (ExpiringMap<u8, u64>, Rows) {
    let rows = Rows::default();
    let table = Arc::clone(&rows);
    let map = builder.build_with_write_back(move |Removed { key, value, .. }| {
        table.lock().unwrap().insert(key, value);
    });
    (map, rows)
}

/// The worker does not turn. A call that finds no entry finds a row.
#[test]
fn a_call_that_finds_a_dead_entry_writes_it_first() {
    type Call = fn(&ExpiringMap<u8, u64>);
    let calls: [Call; 8] = [
        |map| assert_eq!(map.get(&7), None),
        |map| assert_eq!(map.try_get(&7), Ok(None)),
        |map| assert!(!map.touch(&7, FAR)),
        |map| assert!(!map.contains_key(&7)),
        |map| assert_eq!(map.remove(&7), None),
        |map| assert_eq!(map.insert(7, 2, FAR).unwrap(), None),
        |map| assert!(matches!(map.entry(7), Entry::Vacant(_))),
        |map| smol::future::block_on(map.written(&7)),
    ];
    for call in calls {
        let t = Driven::new();
        let (map, rows) = with_rows(ExpiringMap::builder(&t.timer));
        map.insert(7, 1, TICK).unwrap();
        t.clock.advance(TICK);
        call(&map);
        assert_eq!(*rows.lock().unwrap(), BTreeMap::from([(7, 1)]));
        let others = usize::from(map.contains_key(&7));
        assert_eq!((map.len(), t.timer.pending_timeouts()), (others, others));
    }
}

/// Other threads read the row when they find no entry, and add to it. No addition is lost.
#[test]
fn no_update_is_lost_between_the_map_and_the_table() {
    const THREADS: u64 = 4;
    let each = if cfg!(miri) { 20 } else { 3_000 };
    let timer = HashedWheelTimer::new(ms(1), 64);
    let builder = ExpiringMap::builder(&timer);
    let (map, rows) = with_rows(builder.time_to_live(Duration::from_micros(50)));
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (map, rows) = (&map, &rows);
            scope.spawn(move || {
                let mut random = Rng::with_seed(index);
                for _ in 0..each {
                    let key = random.u8(..3);
                    let read = || rows.lock().unwrap().get(&key).copied().unwrap_or_default();
                    let delay = Duration::from_micros(random.u64(..100));
                    let mut count = map.entry(key).or_insert_with(read, delay).unwrap();
                    *count.get_mut() += 1;
                }
            });
        }
    });
    timer.stop();
    assert_eq!(map.len(), 0);
    assert_eq!(rows.lock().unwrap().values().sum::<u64>(), THREADS * each);
}

/// A handler that panics frees the key.
#[test]
fn a_write_that_panics_frees_the_key() {
    let mut t = Driven::new();
    let write = |_: Removed<u8, u64>| panic!("the database is away");
    let map = ExpiringMap::builder(&t.timer).build_with_write_back(write);
    map.insert(7, 1, TICK).unwrap();
    quietly(|| assert_eq!((t.pass(TICK), t.timer.stats().panics), (1, 1)));
    assert_eq!((map.get(&7), map.len()), (None, 0));
}

#[test]
fn a_key_is_reserved_until_its_future_has_ended() {
    for is_dropped in [false, true] {
        let mut t = Driven::new();
        let (sender, futures) = channel::<BoxFuture>();
        let rows = Rows::default();
        let table = Arc::clone(&rows);
        let map = ExpiringMap::builder(&t.timer).build_with_async_write_back(
            move |write| sender.send(write).unwrap(),
            move |Removed { key, value, .. }| {
                let table = Arc::clone(&table);
                async move {
                    smol::future::yield_now().await;
                    table.lock().unwrap().insert(key, value);
                }
            },
        );
        map.insert(7, 1, TICK).unwrap();
        map.insert(8, 2, FAR).unwrap();
        assert_eq!(t.pass(TICK), 1);
        assert_eq!(
            (map.try_get(&7), map.try_get(&8)),
            (Err(BeingWritten), Ok(Some(2)))
        );
        let task = AsyncTask::new();
        let waker = Waker::from(Arc::clone(&task));
        let mut written = std::pin::pin!(map.written(&7));
        let mut poll = || written.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!((poll(), poll()), (Poll::Pending, Poll::Pending));
        let write = futures.try_recv().unwrap();
        if is_dropped {
            drop(write);
        } else {
            smol::future::block_on(write);
        }
        assert_eq!((task.wakes(), poll()), (1, Poll::Ready(())));
        assert_eq!((map.try_get(&7), map.len()), (Ok(None), 1));
        assert_eq!(rows.lock().unwrap().len(), usize::from(!is_dropped));
    }
}

#[test]
fn a_thread_waits_for_a_write_in_progress() {
    let (timer, rows) = (HashedWheelTimer::new(ms(1), 64), Rows::default());
    let (table, (sender, begun)) = (Arc::clone(&rows), channel());
    let (go_on, may_go_on) = channel();
    let may_go_on = Mutex::new(may_go_on);
    let map = ExpiringMap::builder(&timer).build_with_write_back(
        move |Removed { key, value, .. }: Removed<u8, u64>| {
            sender.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
            // Most likely the other thread waits by now.
            thread::sleep(ms(20));
            table.lock().unwrap().insert(key, value);
        },
    );
    map.insert(7, 1, ms(1)).unwrap();
    begun.recv().unwrap();
    assert_eq!(map.try_get(&7), Err(BeingWritten));
    go_on.send(()).unwrap();
    assert_eq!(map.get(&7), None);
    assert_eq!(rows.lock().unwrap()[&7], 1);
}

/// An insertion that writes a dead entry first begins its delay after that.
#[test]
fn a_delay_begins_after_the_write_of_a_dead_entry() {
    let mut t = Driven::new();
    let clock = t.clock.clone();
    let map = ExpiringMap::builder(&t.timer)
        .build_with_write_back(move |_: Removed<u8, u64>| clock.advance(TICK * 5));
    map.insert(7, 1, TICK).unwrap();
    t.clock.advance(TICK);
    map.insert(7, 2, TICK * 3).unwrap();
    assert_eq!(map.remaining(&7), Some(TICK * 3));
    assert_eq!(t.pass(TICK * 3), 1);
}

/// The entry that has replaced another one is written after that one, whatever removes it.
#[test]
fn entries_of_a_key_are_written_in_the_order_in_which_they_leave() {
    let mut t = Driven::new();
    let (sender, futures) = channel::<BoxFuture>();
    let map = ExpiringMap::builder(&t.timer)
        .causes([Cause::Replaced, Cause::Expired, Cause::Removed])
        .build_with_async_write_back(
            move |write| sender.send(write).unwrap(),
            |_: Removed<u8, u64>| async {},
        );
    map.insert(7, 1, FAR).unwrap();
    assert_eq!(map.insert(7, 2, TICK).unwrap(), None);
    let first = futures.try_recv().unwrap();
    map.insert(8, 3, FAR).unwrap();
    assert_eq!((map.clear(), futures.try_iter().count()), (1, 1));
    map.retain(|_, _| false);
    assert_eq!((map.drain(), futures.try_iter().count()), (vec![], 0));
    // The timer asks again when the first one was written.
    assert_eq!((t.pass(TICK), map.len()), (0, 1));
    drop(first);
    assert_eq!((t.pass(TICK), futures.try_iter().count()), (1, 1));
}

/// The same for an entry that is evicted, and for those that are left at the end. It is the last
/// that was inserted, so its value must be the last that is written.
#[test]
fn an_entry_that_must_leave_waits_for_the_write_of_an_older_one() {
    type End = fn(&HashedWheelTimer, ExpiringMap<u8, u64>) -> Option<ExpiringMap<u8, u64>>;
    let ends: [(End, Cause); 4] = [
        (
            |_, map| {
                map.insert(8, 0, FAR).unwrap();
                Some(map)
            },
            Cause::Evicted,
        ),
        (
            |timer, map| {
                timer.stop();
                Some(map)
            },
            Cause::Stopped,
        ),
        (
            |timer, map| {
                timer.cancel_all();
                Some(map)
            },
            Cause::Stopped,
        ),
        (
            |_, map| {
                drop(map);
                None
            },
            Cause::Stopped,
        ),
    ];
    for (end, cause) in ends {
        let t = Driven::new();
        let ((sender, futures), (begin, begun)) = (channel::<BoxFuture>(), channel());
        let map = ExpiringMap::builder(&t.timer)
            .max_entries(1)
            .causes([Cause::Replaced, Cause::Evicted, Cause::Stopped])
            .build_with_async_write_back(
                move |write| sender.send(write).unwrap(),
                move |Removed { key, value, cause }: Removed<u8, u64>| {
                    begin.send((key, value, cause)).unwrap();
                    async {}
                },
            );
        map.insert(7, 1, FAR).unwrap();
        map.insert(7, 2, FAR).unwrap();
        let map = end(&t.timer, map);
        assert_eq!(all(&begun), [(7, 1, Cause::Replaced)]);
        let others = usize::from(cause == Cause::Evicted);
        assert_eq!(t.timer.pending_timeouts(), others);
        if let Some(map) = &map {
            assert_eq!((map.try_get(&7), map.len()), (Err(BeingWritten), others));
        }
        smol::future::block_on(futures.try_recv().unwrap());
        assert_eq!(all(&begun), [(7, 2, cause)]);
        drop(futures.try_recv().unwrap());
        if let Some(map) = &map {
            assert_eq!(map.try_get(&7), Ok(None));
        }
    }
}

/// Keys with the same hash: the entries are written one after the other, however many they are.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn many_entries_may_wait_for_each_other() {
    #[derive(PartialEq, Eq)]
    struct Same(usize);

    impl Hash for Same {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }

    const KEYS: usize = 3_000;
    let t = Driven::new();
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let map = ExpiringMap::builder(&t.timer).build_with_write_back(move |_: Removed<_, ()>| {
        count.fetch_add(1, SeqCst);
    });
    for key in 0..KEYS {
        map.insert(Same(key), (), FAR).unwrap();
    }
    assert_eq!((map.clear(), written.load(SeqCst)), (KEYS, KEYS));
    assert_eq!(map.try_get(&Same(0)), Ok(None));
}

/// What is dropped may use the map, also for the key of another entry that is dropped.
#[test]
fn only_keys_of_entries_that_are_written_are_reserved() {
    struct Asks(Weak<OnceLock<ExpiringMap<u8, Self>>>, u8);
    impl Drop for Asks {
        fn drop(&mut self) {
            if let Some(map) = self.0.upgrade() {
                assert!(map.get().unwrap().try_entry(self.1).is_ok());
            }
        }
    }
    let t = Driven::new();
    let cell = Arc::new(OnceLock::new());
    let asks = |key| Asks(Arc::downgrade(&cell), key);
    let map = ExpiringMap::builder(&t.timer)
        .causes([Cause::Expired])
        .build_with_write_back(|_| panic!("nothing expires"));
    let map = cell.get_or_init(|| map);
    map.insert(1, asks(2), FAR).unwrap();
    map.insert(2, asks(1), FAR).unwrap();
    drop(map.insert(1, asks(1), FAR).unwrap());
    assert_eq!(map.clear(), 2);
}

/// Each cause reserves the key.
#[test]
fn entries_of_each_cause_are_written_back() {
    let t = Driven::new();
    let (map, rows) = with_rows(ExpiringMap::builder(&t.timer).max_entries(2));
    let take = || std::mem::take(&mut *rows.lock().unwrap());
    (1..4).for_each(|key| assert_eq!(map.insert(key, 10, FAR).unwrap(), None));
    assert_eq!(take(), BTreeMap::from([(1, 10)]), "evicted");
    assert_eq!(map.insert(2, 11, FAR).unwrap(), Some(10), "returned");
    map.retain(|key, _| *key != 2);
    assert_eq!(take(), BTreeMap::from([(2, 11)]), "removed");
    t.timer.stop();
    assert_eq!(take(), BTreeMap::from([(3, 10)]), "stopped");
    assert_eq!((map.get(&1), map.get(&2), map.get(&3)), (None, None, None));
}

// --- weights -------------------------------------------------------------------------------------

#[test]
fn entries_are_evicted_by_their_weight() {
    let t = Driven::new();
    let builder = ExpiringMap::builder(&t.timer).max_weight(100, |_, value| *value as u32);
    let (map, ends) = with_handler(builder);
    for (key, weight) in [(1, 40), (2, 40), (3, 20)] {
        map.insert(key, weight, FAR).unwrap();
    }
    assert_eq!((map.get(&1), all(&ends)), (Some(40), vec![]));
    map.insert(4, 50, FAR).unwrap();
    assert_eq!(
        all(&ends),
        [(2, 40, Cause::Evicted), (3, 20, Cause::Evicted)]
    );
    assert_eq!(
        map.insert(4, 10, FAR).unwrap(),
        Some(50),
        "it weighs less now"
    );
    map.insert(5, 50, FAR).unwrap();
    assert_eq!((map.len(), all(&ends)), (3, vec![]));
    map.insert(6, 101, FAR).unwrap();
    assert_eq!((map.len(), all(&ends)), (3, vec![(6, 101, Cause::Evicted)]));
    assert_eq!(map.remove(&1), Some(40));
    map.insert(7, 40, FAR).unwrap();
    assert_eq!((map.len(), all(&ends)), (3, vec![]));
    assert_eq!((map.clear(), all(&ends).len()), (3, 3));
    (1..=10).for_each(|key| _ = map.insert(key, 10, FAR).unwrap());
    assert_eq!(
        (map.len(), t.timer.pending_timeouts(), all(&ends)),
        (10, 10, vec![])
    );
}

/// The number alone would allow many locks, and each a small part of the weight.
#[test]
fn a_limit_of_the_weight_is_not_divided_into_small_parts() {
    let t = Driven::new();
    let builder = ExpiringMap::builder(&t.timer).max_entries(1_000_000);
    let (map, ends) = with_handler(builder.max_weight(100, |_, value| *value as u32));
    map.insert(1, 100, FAR).unwrap();
    assert_eq!((map.get(&1), all(&ends)), (Some(100), vec![]));
}

// --- the receiver with a bound -------------------------------------------------------------------

#[test]
fn insertions_fail_while_the_receiver_is_full() {
    let mut t = Driven::new();
    let (map, mut removed) = ExpiringMap::builder(&t.timer).build_with_bounded_receiver(2);
    (0..3).for_each(|key| _ = map.insert(key, (), TICK).unwrap());
    assert_eq!((t.pass(TICK), removed.len()), (3, 3), "none is lost");
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let rejected = map.insert(9, (), FAR).unwrap_err();
        assert!(matches!(
            rejected.error,
            NewTimeoutError::TooManyPending { limit: 2 }
        ));
        assert!(removed.poll_recv(&mut context).is_ready());
    }
    map.insert(9, (), FAR).unwrap();
    drop(removed);
    map.insert(10, (), FAR).unwrap();
    assert_eq!((map.len(), t.timer.pending_timeouts()), (2, 2));
}

#[test]
#[should_panic(expected = "capacity is zero")]
fn a_bound_of_zero_is_refused() {
    let builder = ExpiringMap::<u8, u8>::builder(&HashedWheelTimer::default());
    let _ = builder.build_with_bounded_receiver(0);
}

/// All options at once, and each value comes out once.
#[test]
fn each_value_comes_out_once_in_a_storm() {
    const THREADS: u64 = 4;
    let each = if cfg!(miri) { 30 } else { 5_000 };
    let storm = |is_async| {
        ends(move || {
            let timer = HashedWheelTimer::builder()
                .tick(Duration::from_micros(50))
                .build()
                .unwrap();
            let out = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&out);
            let builder = ExpiringMap::builder(&timer)
                .time_to_idle(Duration::from_micros(100))
                .max_entries(3)
                .max_weight(20, |_, weight: &Arc<u32>| **weight)
                .causes([
                    Cause::Expired,
                    Cause::Evicted,
                    Cause::Removed,
                    Cause::Replaced,
                    Cause::Stopped,
                ]);
            let map = if is_async {
                let (spawn, writes) = channel::<BoxFuture>();
                thread::spawn(move || writes.into_iter().for_each(smol::future::block_on));
                let write = move |removed| {
                    let counter = Arc::clone(&counter);
                    async move {
                        counter.fetch_add(1, SeqCst);
                        drop(removed);
                    }
                };
                builder.build_with_async_write_back(move |write| spawn.send(write).unwrap(), write)
            } else {
                builder.build_with_write_back(move |_| _ = counter.fetch_add(1, SeqCst))
            };
            let (value, mut inserted) = (Arc::new(7), 0);
            let begin = Arc::new(Barrier::new(THREADS as usize));
            let threads: Vec<_> = (0..THREADS)
                .map(|index| {
                    let (map, value, out) = (map.clone(), Arc::clone(&value), Arc::clone(&out));
                    let begin = Arc::clone(&begin);
                    thread::spawn(move || {
                        begin.wait();
                        let mut random = Rng::with_seed(index);
                        let mut inserted = 0;
                        for _ in 0..each {
                            let (key, value) = (random.u8(..5), Arc::clone(&value));
                            let delay = Duration::from_micros(random.u64(..300));
                            match random.u8(..8) {
                                0 | 1 => {
                                    assert!(map.insert(key, value, delay).unwrap().is_none());
                                    inserted += 1;
                                }
                                2 => {
                                    let make = || {
                                        inserted += 1;
                                        value
                                    };
                                    drop(map.entry(key).or_insert_with(make, delay).unwrap());
                                }
                                3 => _ = map.touch(&key, delay),
                                4 => _ = map.get(&key),
                                5 => {
                                    let removed = usize::from(map.remove(&key).is_some());
                                    out.fetch_add(removed, SeqCst);
                                }
                                6 if key == 0 => _ = out.fetch_add(map.drain().len(), SeqCst),
                                6 if key == 1 => _ = map.clear(),
                                6 => map.retain(|other, _| *other != key),
                                _ => thread::sleep(Duration::from_micros(random.u64(..50))),
                            }
                        }
                        inserted
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| inserted += thread.join().unwrap());
            timer.stop();
            drop(map);
            eventually("all values were dropped", || Arc::strong_count(&value) == 1);
            assert_eq!(out.load(SeqCst), inserted, "each value comes out once");
            inserted
        })
    };
    for is_async in [false, true] {
        assert!(storm(is_async) > 30);
    }
}

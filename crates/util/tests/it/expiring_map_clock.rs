//! The clock decides how long an entry lives, even if the timer is late. And `insert_if_absent`,
//! which asks it.

use crate::common;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use common::{Driven, TICK, accepts_all, ends, ms};
use hashed_wheel::{Clock, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{Cause, Entry, ExpiringMap, Removed};

const FAR: Duration = ms(123_456);

/// A map, and the values and causes that its handler gets.
fn with_channel(timer: &HashedWheelTimer) -> (ExpiringMap<u8, u32>, Receiver<(u32, Cause)>) {
    let (sender, ends) = channel();
    let handler = move |removed: Removed<_, _>| _ = sender.send((removed.value, removed.cause));
    (ExpiringMap::with_handler(timer, handler), ends)
}

/// The entry is in the map, and its time has come.
#[track_caller]
fn assert_dead(t: &Driven, map: &ExpiringMap<u8, u32>) {
    assert_eq!(map.len(), 1, "no tick has removed it");
    assert_eq!((map.get(&7), map.contains_key(&7)), (None, false));
    assert_eq!(
        (map.with(&7, |value| *value), map.remaining(&7)),
        (None, None)
    );
    assert!(!map.touch(&7, FAR) && !map.renew(&7));
    assert!(!map.touch_at(&7, t.timer.now() + FAR));
    assert_eq!(map.remove(&7), None);
    assert_eq!(map.keys(), []);
    map.retain(|_, _| panic!("a dead entry is not shown"));
}

/// A handler takes longer than the entries live that are behind other locks.
#[test]
fn retain_shows_no_entry_whose_time_has_come_meanwhile() {
    let t = Driven::new();
    let clock = t.clock.clone();
    let map = ExpiringMap::with_handler(&t.timer, move |_: Removed<u8, u64>| clock.advance(TICK));
    (0..64).for_each(|key| assert_eq!(map.insert(key, 0, TICK).unwrap(), None));
    map.retain(|_, _| false);
    assert!((1..64).contains(&map.len()), "{} are left", map.len());
}

#[test]
fn no_method_finds_an_entry_whose_time_has_come() {
    let mut t = Driven::new();
    let (map, ends) = with_channel(&t.timer);
    map.insert(7, 1, TICK).unwrap();
    t.clock.advance(TICK - Duration::from_nanos(1));
    assert_eq!(map.remaining(&7), Some(Duration::from_nanos(1)));
    assert_eq!((map.get(&7), map.keys()), (Some(1), vec![7]));
    t.clock.advance(Duration::from_nanos(1));
    assert_dead(&t, &map);
    assert_eq!((map.clear(), map.drain()), (0, vec![]));
    assert!(ends.try_recv().is_err(), "it waits for the timer");
    assert_eq!(t.driver.turn(), 1);
    assert_eq!(ends.try_recv(), Ok((1, Cause::Expired)));
    assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
}

#[test]
fn each_way_to_set_a_deadline_counts() {
    for (name, set) in [
        (
            "insert_at",
            (|t, map| _ = map.insert_at(7, 1, t.timer.now() + TICK).unwrap())
                as fn(&Driven, &ExpiringMap<u8, u32>),
        ),
        ("insert_if_absent", |_, map| {
            _ = map.insert_if_absent(7, 1, TICK).unwrap();
        }),
        ("touch, earlier", |_, map| {
            map.insert(7, 1, FAR).unwrap();
            assert!(map.touch(&7, TICK));
        }),
        ("touch, later", |_, map| {
            map.insert(7, 1, TICK / 2).unwrap();
            assert!(map.touch(&7, TICK));
        }),
        ("touch_at", |t, map| {
            map.insert(7, 1, FAR).unwrap();
            assert!(map.touch_at(&7, t.timer.now() + TICK));
        }),
    ] {
        let mut t = Driven::new();
        let (map, _ends) = with_channel(&t.timer);
        set(&t, &map);
        t.clock.advance(TICK - ms(1));
        assert_eq!(map.get(&7), Some(1), "{name}");
        t.clock.advance(ms(1));
        assert_dead(&t, &map);
        assert_eq!((t.driver.turn(), map.len()), (1, 0), "{name}");
    }
}

/// A new entry takes the key of a dead one, which still goes to the handler as a task of the timer.
#[test]
fn an_insertion_does_not_return_an_entry_whose_time_has_come() {
    let mut t = Driven::new();
    let (map, ends) = with_channel(&t.timer);
    for value in 1..4 {
        assert_eq!(map.insert(7, value, TICK).unwrap(), None);
        t.clock.advance(TICK);
    }
    assert_eq!(map.insert_if_absent(7, 4, FAR).unwrap(), None);
    assert_eq!((map.get(&7), map.len()), (Some(4), 4));
    assert!(ends.try_recv().is_err(), "they wait for the timer");
    assert_eq!(t.driver.turn(), 3);
    let expired: Vec<_> = ends.try_iter().collect();
    assert_eq!(expired, [1, 2, 3].map(|value| (value, Cause::Expired)));
    assert_eq!((map.remove(&7), t.timer.pending_timeouts()), (Some(4), 0));
}

/// The task of a dead entry waits in an executor's queue.
#[test]
fn an_entry_in_an_executor_is_dead() {
    let (queue, tasks) = channel::<ExpiredTask>();
    let mut t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task| drop(queue.send(task))))
    });
    let (map, ends) = with_channel(&t.timer);
    map.insert(7, 1, TICK).unwrap();
    assert_eq!(t.pass(TICK), 1);
    assert_dead(&t, &map);
    map.insert(7, 2, FAR).unwrap();
    assert!(ends.try_recv().is_err());
    tasks.try_recv().unwrap().run();
    assert_eq!(ends.try_recv(), Ok((1, Cause::Expired)));
    assert_eq!(map.remove(&7), Some(2));
}

#[test]
fn an_entry_that_is_present_is_kept() {
    let mut t = Driven::new();
    let (map, ends) = with_channel(&t.timer);
    assert_eq!(map.insert_if_absent(7, 1, TICK).unwrap(), None);
    assert_eq!(map.insert_if_absent(7, 2, FAR).unwrap(), Some((7, 2)));
    assert_eq!(
        (map.remaining(&7), t.timer.pending_timeouts()),
        (Some(TICK), 1)
    );
    assert_eq!(
        (t.pass(TICK), ends.try_recv()),
        (1, Ok((1, Cause::Expired)))
    );
    assert_eq!(map.insert_if_absent(7, 3, FAR).unwrap(), None);
    t.timer.stop();
    let rejected = map.insert_if_absent(7, 4, FAR).unwrap_err();
    assert_eq!((rejected.key, rejected.value), (7, 4));
    assert!(matches!(rejected.error, NewTimeoutError::Stopped));
}

/// An entry that is present needs no room under the timer's limit.
#[test]
fn an_insertion_that_finds_an_entry_is_not_rejected() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let (map, _ends) = with_channel(&t.timer);
    assert_eq!(map.insert_if_absent(7, 1, FAR).unwrap(), None);
    assert_eq!(map.insert_if_absent(7, 2, FAR).unwrap(), Some((7, 2)));
    map.insert_if_absent(8, 3, FAR).unwrap_err();
}

#[test]
fn one_of_many_threads_inserts() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let rounds = if cfg!(miri) { 5 } else { 500 };
    let map = ExpiringMap::new(&timer);
    for round in 0..rounds {
        let inserted = AtomicUsize::new(0);
        thread::scope(|scope| {
            for name in 0..4_u32 {
                let (map, inserted) = (&map, &inserted);
                scope.spawn(move || {
                    let present = map.insert_if_absent(round, name, FAR).unwrap();
                    assert!(present.is_none_or(|present| present == (round, name)));
                    inserted.fetch_add(usize::from(present.is_none()), SeqCst);
                });
            }
        });
        assert_eq!(inserted.load(SeqCst), 1);
    }
    assert_eq!(timer.pending_timeouts(), rounds);
}

/// With a real clock and a long tick: an entry is never found after its time.
#[test]
fn an_entry_is_not_found_late_in_real_time() {
    let timer = HashedWheelTimer::new(ms(100), 64);
    let map = ExpiringMap::new(&timer);
    for key in 0..if cfg!(miri) { 2 } else { 20 } {
        map.insert(key, (), ms(5)).unwrap();
        let end = timer.now() + ms(5);
        // The clock is read before the look.
        loop {
            let now = timer.now();
            if !map.contains_key(&key) {
                assert!(!map.touch(&key, FAR));
                break;
            }
            assert!(now < end, "found {:?} after its time", now - end);
        }
    }
}

/// A clock that jumps once, right after it was read: the thread is suspended there.
#[derive(Default)]
struct Jump {
    now: AtomicU64,
    by: AtomicU64,
}

impl Clock for Jump {
    fn now(&self) -> Duration {
        let by = self.by.swap(0, SeqCst);
        Duration::from_secs(self.now.fetch_add(by, SeqCst))
    }
}

/// A clock that calls a function once, right after it was read: the thread is suspended there.
#[derive(Default)]
struct Meanwhile {
    clock: ManualClock,
    run: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for Meanwhile {
    fn now(&self) -> Duration {
        let now = self.clock.now();
        let run = self.run.lock().unwrap().take();
        if let Some(run) = run {
            run();
        }
        now
    }
}

/// The timer fires after the look at the clock. The task waits in an executor.
#[test]
fn a_use_that_is_too_late_for_the_timeout_finds_nothing() {
    let (queue, tasks) = channel::<ExpiredTask>();
    let clock = Arc::new(Meanwhile::default());
    let (timer, mut driver) = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(Arc::clone(&clock))
        .task_executor(accepts_all(move |task| drop(queue.send(task))))
        .build_driven()
        .unwrap();
    let map = ExpiringMap::builder(&timer).time_to_idle(TICK).build();
    map.insert(7, 1, FAR).unwrap();
    clock.clock.advance(TICK - ms(1));
    let (meanwhile, (sender, turned)) = (clock.clock.clone(), channel());
    *clock.run.lock().unwrap() = Some(Box::new(move || {
        meanwhile.advance(ms(1));
        sender.send((driver.turn(), driver)).unwrap();
    }));
    assert_eq!(map.get(&7), None, "the timer has found it dead");
    let (expired, _driver) = turned.try_recv().unwrap();
    assert_eq!((expired, map.len()), (1, 1));
    tasks.try_recv().unwrap().run();
    assert_eq!((map.len(), timer.pending_timeouts()), (0, 0));
}

/// The task is suspended between its look at the clock and the lock.
#[test]
fn a_touched_entry_is_not_late_if_its_task_waits_for_the_lock() {
    let clock = Arc::new(Meanwhile::default());
    let (timer, mut driver) = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(Arc::clone(&clock))
        .build_driven()
        .unwrap();
    let map = ExpiringMap::new(&timer);
    map.insert(7, 1, TICK).unwrap();
    assert!(map.touch(&7, TICK * 5));
    clock.clock.advance(TICK);
    // The first look is that of the turn.
    let second = Arc::clone(&clock);
    *clock.run.lock().unwrap() = Some(Box::new(move || {
        let meanwhile = second.clock.clone();
        *second.run.lock().unwrap() = Some(Box::new(move || meanwhile.advance(TICK * 2)));
    }));
    assert_eq!((driver.turn(), map.remaining(&7)), (0, Some(TICK * 2)));
    clock.clock.advance(TICK * 2);
    assert_eq!((driver.turn(), map.len()), (1, 0));
}

/// The timeout is later than the entry. If a lock were held, the waker would hang.
#[test]
fn a_touch_to_a_deadline_before_that_of_the_timeout_calls_no_waker_under_the_lock() {
    const S: Duration = Duration::from_secs(1);

    // It is 5 s. The entry ends at 10 s, and its timeout at 15 s.
    for (limit, delay, wakes) in [(None, S * 3, 1), (None, S * 7, 0), (Some(9), S * 7, 0)] {
        let counts = ends(move || {
            let (clock, wakes) = (Arc::new(Jump::default()), Arc::new(AtomicUsize::new(0)));
            let own = Arc::<OnceLock<ExpiringMap<u8, u32>>>::default();
            let (map, count) = (Arc::downgrade(&own), Arc::clone(&wakes));
            let waker = move || {
                let own = map.upgrade();
                if let Some(map) = own.as_deref().and_then(OnceLock::get) {
                    assert_eq!(map.get(&7), Some(1));
                    count.fetch_add(1, SeqCst);
                }
            };
            let (timer, mut driver) = HashedWheelTimer::builder()
                .clock(Arc::clone(&clock))
                .waker(waker)
                .max_pending_timeouts(limit)
                .build_driven()
                .unwrap();
            let map = ExpiringMap::new(&timer);
            let Entry::Vacant(vacant) = map.entry(7) else {
                panic!("there is none");
            };
            clock.by.store(5, SeqCst);
            drop(vacant.insert(1, S * 10).unwrap());
            driver.turn();
            assert!(driver.next_turn().is_some(), "it sleeps");
            let map = own.get_or_init(|| map);
            assert!(map.touch(&7, delay));
            let wakes = wakes.load(SeqCst);
            clock.now.store(4 + delay.as_secs(), SeqCst);
            assert_eq!((driver.turn(), map.remaining(&7)), (0, Some(S)));
            clock.now.store(5 + delay.as_secs(), SeqCst);
            assert_eq!(map.get(&7), None);
            clock.now.store(16, SeqCst);
            driver.turn();
            (wakes, map.len())
        });
        assert_eq!(counts, (wakes, 0));
    }
}

/// A call takes the entry before the touch tells the timer its deadline.
#[test]
fn an_earlier_touch_of_an_entry_that_a_call_has_counts_when_it_goes_back() {
    let clock = Arc::new(Meanwhile::default());
    let builder = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(Arc::clone(&clock));
    let (timer, mut driver) = builder.build_driven().unwrap();
    let (map, handled) = with_channel(&timer);
    map.insert(7, 1, FAR).unwrap();
    let (taken, is_taken) = channel();
    let (release, is_released) = channel::<()>();
    let (dropped, holder) = channel();
    let other = map.clone();
    let take = move || {
        let holds = thread::spawn(move || {
            let entry = other.entry(7);
            taken.send(()).unwrap();
            is_released.recv().unwrap();
            drop(entry);
            dropped.send(()).unwrap();
        });
        is_taken.recv().unwrap();
        drop(holds);
    };
    // The touch reads the clock once before it stores the deadline.
    let again = Arc::clone(&clock);
    *clock.run.lock().unwrap() = Some(Box::new(move || {
        *again.run.lock().unwrap() = Some(Box::new(take));
    }));
    assert!(map.touch(&7, TICK));
    release.send(()).unwrap();
    holder.recv().unwrap();
    assert_eq!(map.remaining(&7), Some(TICK));
    clock.clock.advance(TICK);
    driver.turn();
    assert_eq!(handled.try_recv(), Ok((1, Cause::Expired)));
    assert_eq!((map.len(), timer.pending_timeouts()), (0, 0));
}

//! A later deadline is only stored in the entry. The timer finds it when the old one has come.

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{Driven, TICK, accepts_all, ms, quietly};
use hashed_wheel::{Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{Cause, Entry, ExpiringMap, ExpiringMapBuilder, Removed};

const FAR: Duration = ms(123_456);

type Ends = Receiver<(u32, Cause)>;

/// A map, and the values and causes that its handler gets.
fn with_channel(builder: ExpiringMapBuilder<u8, u32>) -> (ExpiringMap<u8, u32>, Ends) {
    let (sender, ends) = channel();
    let handler = move |removed: Removed<_, _>| _ = sender.send((removed.value, removed.cause));
    (builder.build_with_handler(handler), ends)
}

fn all(ends: &Ends) -> Vec<(u32, Cause)> {
    ends.try_iter().collect()
}

#[test]
fn an_entry_that_is_touched_often_ends_at_the_last_deadline_and_tells_the_timer_nothing() {
    type Use = fn(&ExpiringMap<u8, u32>);
    let uses: [Use; 4] = [
        |map| assert!(map.touch(&7, TICK * 3)),
        |map| assert_eq!(map.get(&7), Some(1)),
        |map| assert!(matches!(map.entry(7), Entry::Occupied(_))),
        |map| match map.entry(7) {
            Entry::Occupied(mut entry) => assert!(entry.touch(TICK * 3)),
            Entry::Vacant(_) => panic!("it is there"),
        },
    ];
    for call in uses {
        let mut t = Driven::new();
        let builder = ExpiringMap::builder(&t.timer).time_to_idle(TICK * 3);
        let (map, ends) = with_channel(builder);
        map.insert(7, 1, FAR).unwrap();
        // Nine times per tick.
        for _ in 0..90 {
            assert_eq!(t.pass(TICK / 10), 0);
            call(&map);
            let scheduled = t.timer.stats().scheduled;
            assert_eq!((scheduled, t.timer.pending_timeouts()), (1, 1));
        }
        t.pass(TICK * 3 - Duration::from_nanos(1));
        assert_eq!((map.get(&8), map.len(), all(&ends)), (None, 1, vec![]));
        assert_eq!(t.pass(Duration::from_nanos(1)), 1);
        assert_eq!(all(&ends), [(1, Cause::Expired)]);
        assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
    }
}

/// The old timeout comes first, or the new deadline.
#[test]
fn an_earlier_deadline_counts_after_a_later_one() {
    let calls = [(2, 5), (5, 2), (5, 5)];
    let calls = calls
        .into_iter()
        .flat_map(|call| [(call, false), (call, true)]);
    for ((first, last), has_entry) in calls {
        let mut t = Driven::new();
        let (map, ends) = with_channel(ExpiringMap::builder(&t.timer));
        map.insert(7, 1, TICK * first).unwrap();
        assert!(map.touch(&7, TICK * 9));
        match map.entry(7) {
            Entry::Occupied(mut entry) if has_entry => assert!(entry.touch(TICK * last)),
            entry => {
                drop(entry);
                assert!(map.touch(&7, TICK * last));
            }
        }
        t.pass(TICK * last - Duration::from_nanos(1));
        assert_eq!((map.get(&7), all(&ends)), (Some(1), vec![]));
        assert_eq!(t.pass(Duration::from_nanos(1)), 1);
        assert_eq!(all(&ends), [(1, Cause::Expired)]);
        t.pass(FAR);
        assert_eq!((t.timer.pending_timeouts(), map.len()), (0, 0));
    }
}

/// The worker is late for the old deadline and for the new one. One turn is enough.
#[test]
fn a_touched_entry_whose_time_has_come_too_ends_at_once() {
    let mut t = Driven::new();
    let (map, ends) = with_channel(ExpiringMap::builder(&t.timer));
    map.insert(7, 1, TICK).unwrap();
    assert!(map.touch(&7, TICK * 3));
    assert_eq!(t.pass(TICK * 3), 1);
    assert_eq!(all(&ends), [(1, Cause::Expired)]);
    assert_eq!(t.timer.stats().scheduled, 1);
}

#[test]
fn each_touched_value_comes_out_once_when_the_timer_ends() {
    type End = fn(&HashedWheelTimer);
    let ends: [End; 2] = [|timer| _ = timer.stop(), |timer| _ = timer.cancel_all()];
    for end in ends {
        // Before the old deadline, and after it.
        for ticks in [0, 2] {
            let mut t = Driven::new();
            let (map, ends) = with_channel(ExpiringMap::builder(&t.timer));
            (0..9).for_each(|key| _ = map.insert(key, key.into(), TICK).unwrap());
            assert!((0..9).all(|key| map.touch(&key, TICK * 5)));
            t.pass(TICK * ticks);
            end(&t.timer);
            let mut out = all(&ends);
            out.sort_unstable_by_key(|(value, _)| *value);
            assert!(out.iter().map(|(value, _)| *value).eq(0..9));
            assert!(out.iter().all(|(_, cause)| *cause == Cause::Stopped));
            assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
        }
    }
}

/// An executor that is busy does not get the task at the old deadline.
#[test]
fn a_touched_entry_does_not_depend_on_the_executor() {
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(clock.clone())
        .task_executor(accepts_all(drop::<ExpiredTask>))
        .build_driven()
        .unwrap();
    let (map, ends) = with_channel(ExpiringMap::builder(&timer));
    map.insert(7, 1, TICK).unwrap();
    assert!(map.touch(&7, TICK * 3));
    for is_alive in [true, true, false] {
        clock.advance(TICK);
        assert_eq!(driver.turn(), usize::from(!is_alive));
        assert_eq!(map.get(&7), is_alive.then_some(1));
        assert_eq!(timer.pending_timeouts(), usize::from(is_alive));
    }
    assert_eq!(all(&ends), [(1, Cause::Expired)]);
}

/// The old deadline comes while a call has the entry.
#[test]
fn a_touched_entry_that_a_call_has_keeps_its_timeout() {
    for touches_first in [false, true] {
        let mut t = Driven::new();
        let (map, ends) = with_channel(ExpiringMap::builder(&t.timer));
        map.insert(7, 1, TICK).unwrap();
        assert!(!touches_first || map.touch(&7, TICK * 4));
        let Entry::Occupied(mut entry) = map.entry(7) else {
            panic!("it is there");
        };
        assert!(touches_first || entry.touch(TICK * 4));
        assert_eq!((t.pass(TICK), t.timer.pending_timeouts()), (0, 1));
        assert!(entry.touch(TICK), "an earlier deadline");
        drop(entry);
        assert_eq!((map.get(&7), t.timer.pending_timeouts()), (Some(1), 1));
        assert_eq!((t.pass(TICK), map.len()), (1, 0));
        assert_eq!(all(&ends), [(1, Cause::Expired)]);
    }
}

#[test]
fn with_a_limit_of_the_timer_a_touched_entry_keeps_its_place() {
    type Use = fn(&ExpiringMap<u8, u32>);
    let uses: [Use; 2] = [
        |map| assert!(map.touch(&7, TICK * 3)),
        |map| assert_eq!(map.get(&7), Some(1)),
    ];
    for call in uses {
        let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
        let builder = ExpiringMap::builder(&t.timer).time_to_idle(TICK * 3);
        let (map, ends) = with_channel(builder);
        map.insert(7, 1, FAR).unwrap();
        for _ in 0..9 {
            assert_eq!(t.pass(TICK * 2), 0);
            let full = NewTimeoutError::TooManyPending { limit: 1 };
            assert_eq!(t.timer.new_timeout(|_| (), TICK).unwrap_err(), full);
            call(&map);
        }
        assert_eq!((t.pass(TICK * 3), map.len()), (1, 0));
        assert_eq!(all(&ends), [(1, Cause::Expired)]);
    }
}

/// Before its beginning, and after it.
#[test]
fn a_touch_counts_within_the_grace_of_a_shutdown() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let builder = ExpiringMap::builder(&timer).time_to_idle(ms(1_000));
    let (map, ends) = with_channel(builder);
    (0..4).for_each(|key| _ = map.insert(key, 1, FAR).unwrap());
    // The old deadline is a hundred ticks earlier.
    thread::sleep(ms(100));
    let touched = Instant::now();
    assert_eq!(map.get(&3), Some(1));
    let _end = timer.begin_shutdown(FAR);
    assert!(map.touch(&0, FAR));
    match map.entry(1) {
        Entry::Occupied(mut entry) => assert!(entry.touch(FAR)),
        Entry::Vacant(_) => panic!("it is there"),
    }
    assert_eq!(map.get(&2), Some(1));
    assert!(map.insert(4, 2, FAR).is_err(), "the timer rejects it");
    for _ in 0..4 {
        assert_eq!(ends.recv(), Ok((1, Cause::Expired)));
        assert!(touched.elapsed() >= ms(1_000));
    }
    assert!(map.is_empty());
}

#[test]
fn an_entry_that_replaces_another_takes_over_its_timeout() {
    let mut t = Driven::new();
    let (map, ends) = with_channel(ExpiringMap::builder(&t.timer));
    for value in 0..9 {
        let old = map.insert(7, value, TICK * 3).unwrap();
        assert_eq!(old, value.checked_sub(1));
    }
    assert_eq!((t.timer.stats().scheduled, map.len()), (1, 1));
    t.pass(TICK);
    assert_eq!(map.insert(7, 9, TICK * 4).unwrap(), Some(8));
    t.pass(TICK * 2);
    let scheduled = t.timer.stats().scheduled;
    assert_eq!((scheduled, t.timer.pending_timeouts()), (1, 1));
    t.pass(TICK * 2 - Duration::from_nanos(1));
    assert_eq!((map.get(&7), all(&ends)), (Some(9), vec![]));
    assert_eq!(t.pass(Duration::from_nanos(1)), 1);
    assert_eq!(all(&ends), [(9, Cause::Expired)]);
    assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
}

/// A clock of which some readings panic.
#[derive(Clone, Default)]
struct Panicking {
    clock: ManualClock,
    /// How many readings come before the first one that panics, and before the one after the last.
    range: Arc<[AtomicU32; 2]>,
}

impl Panicking {
    fn set(&self, first: u32, end: u32) {
        self.range[0].store(first, SeqCst);
        self.range[1].store(end, SeqCst);
    }
}

impl Clock for Panicking {
    fn now(&self) -> Duration {
        let next = |left: u32| Some(left.saturating_sub(1));
        let [first, end] = [0, 1].map(|at| self.range[at].fetch_update(SeqCst, SeqCst, next));
        assert!(first.unwrap() > 0 || end.unwrap() == 0, "a reading panics");
        self.clock.now()
    }
}

/// A touched entry, and the tasks that wait in an executor's queue.
struct Touched {
    clock: Panicking,
    timer: HashedWheelTimer,
    driver: Driver,
    map: Option<ExpiringMap<u8, u32>>,
    ends: Ends,
    tasks: Receiver<ExpiredTask>,
}

impl Touched {
    fn new() -> Self {
        let (queue, tasks) = channel();
        let clock = Panicking::default();
        let (timer, driver) = HashedWheelTimer::builder()
            .tick(TICK)
            .clock(clock.clone())
            .task_executor(accepts_all(move |task| drop(queue.send(task))))
            .build_driven()
            .unwrap();
        let (map, ends) = with_channel(ExpiringMap::builder(&timer));
        map.insert(7, 1, TICK * 2).unwrap();
        assert!(map.touch(&7, TICK * 5));
        let map = Some(map);
        Self {
            clock,
            timer,
            driver,
            map,
            ends,
            tasks,
        }
    }

    fn map(&self) -> &ExpiringMap<u8, u32> {
        self.map.as_ref().unwrap()
    }

    /// The timer fires.
    fn pass(&mut self, time: Duration) {
        self.clock.clock.advance(time);
        self.driver.turn();
    }

    /// Makes a call during which the clock panics.
    fn call<R>(
        &mut self,
        (first, end): (u32, u32),
        call: impl FnOnce(&mut Self) -> R,
    ) -> Option<R> {
        self.clock.set(first, end);
        let result = quietly(|| catch_unwind(AssertUnwindSafe(|| call(self))));
        self.clock.set(0, 0);
        result.ok()
    }
}

/// Neither does the process abort, nor does an entry stay or end twice.
#[test]
fn a_clock_that_panics_ends_each_touched_entry_once() {
    type Case = fn(&mut Touched, (u32, u32)) -> Option<u32>;
    let cases: [(&str, Case); 7] = [
        ("asked", |t, panics| {
            t.call(panics, |t| t.pass(TICK * 2));
            None
        }),
        ("put back", |t, panics| {
            let map = t.map().clone();
            let entry = map.entry(7);
            t.pass(TICK * 2);
            t.call(panics, |_| drop(entry));
            None
        }),
        ("put back before", |t, panics| {
            let map = t.map().clone();
            let entry = map.entry(7);
            t.call(panics, |_| drop(entry));
            None
        }),
        ("an earlier deadline", |t, panics| {
            t.call(panics, |t| t.map().touch(&7, TICK));
            t.pass(TICK * 2);
            let is_found = t.map().contains_key(&7);
            t.tasks.try_iter().for_each(ExpiredTask::run);
            assert_eq!(t.map().len(), usize::from(is_found), "no dead entry stays");
            None
        }),
        ("cancelled", |t, panics| {
            t.call(panics, |t| t.timer.cancel_all());
            None
        }),
        ("replaced", |t, panics| {
            t.pass(TICK * 2);
            let inserted = t.call(panics, |t| t.map().insert(7, 2, TICK));
            inserted.and_then(Result::unwrap)
        }),
        ("the map is dropped", |t, panics| {
            t.call(panics, |t| t.map = None);
            None
        }),
    ];
    for (name, case) in cases {
        for first in 0..10 {
            // One reading panics, or all do.
            for end in [first + 1, u32::MAX] {
                let mut t = Touched::new();
                let returned = case(&mut t, (first, end));
                for _ in 0..9 {
                    t.pass(TICK);
                    t.tasks.try_iter().for_each(ExpiredTask::run);
                }
                let mut out: Vec<_> = all(&t.ends).into_iter().map(|(value, _)| value).collect();
                out.extend(returned);
                out.sort_unstable();
                assert!(
                    out == [1] || name == "replaced" && out == [1, 2],
                    "{name}: {out:?}"
                );
                let left = t.map.as_ref().map_or(0, ExpiringMap::len);
                assert_eq!((left, t.timer.pending_timeouts()), (0, 0), "{name}");
            }
        }
    }
}

/// `cancel_all` has ended both timeouts before the first handler runs.
#[test]
fn a_new_entry_does_not_take_over_a_cancelled_timeout() {
    let t = Driven::new();
    let map = Arc::new(OnceLock::<ExpiringMap<u8, u32>>::new());
    let inside = Arc::downgrade(&map);
    let handler = move |removed: Removed<u8, u32>| {
        if removed.cause == Cause::Stopped && removed.key == 1 {
            let map = inside.upgrade().unwrap();
            map.get().unwrap().insert(2, 3, FAR).unwrap();
        }
    };
    let made = ExpiringMap::builder(&t.timer).build_with_handler(handler);
    let map = map.get_or_init(|| made);
    map.insert(1, 1, TICK).unwrap();
    map.insert(2, 2, TICK).unwrap();
    assert_eq!(t.timer.cancel_all(), 2);
    assert_eq!((map.get(&1), map.get(&2)), (None, Some(3)));
}

//! Entries whose values are tasks: each successful insertion has one end and leaves nothing behind.

use crate::common;
use crate::support;

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use common::{Driven, TICK, accepts_all, ends, eventually, ms, quietly};
use fastrand::Rng;
use hashed_wheel::{Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::{Cause, ExpiringMap, Removed};
use support::Tasks;

const FAR: Duration = ms(123_456);

/// The names of the tasks that ran, and the number of tasks that were dropped without a run.
#[derive(Clone, Default)]
struct Log {
    ran: Arc<Mutex<Vec<u64>>>,
    dropped_unrun: Arc<AtomicUsize>,
}

/// Counts its task on drop, unless the task has run.
struct End {
    dropped_unrun: Arc<AtomicUsize>,
    has_run: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        self.dropped_unrun
            .fetch_add(usize::from(!self.has_run), SeqCst);
    }
}

/// Calls a closure when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

impl Log {
    fn task<K>(&self, name: u64) -> impl FnOnce(K) + Send + 'static + use<K> {
        let ran = Arc::clone(&self.ran);
        let mut end = End {
            dropped_unrun: Arc::clone(&self.dropped_unrun),
            has_run: false,
        };
        move |_| {
            // Capture the whole `End`, not only one field.
            let end = &mut end;
            ran.lock().unwrap().push(name);
            end.has_run = true;
        }
    }

    fn take(&self) -> (Vec<u64>, usize) {
        (
            std::mem::take(&mut self.ran.lock().unwrap()),
            self.dropped_unrun.swap(0, SeqCst),
        )
    }
}

/// Returns a timer whose executor keeps the tasks until the test runs them.
fn with_queue() -> (Driven, Receiver<ExpiredTask>) {
    let (queue, tasks) = channel();
    (
        Driven::with(|builder| {
            builder.task_executor(accepts_all(move |task| drop(queue.send(task))))
        }),
        tasks,
    )
}

// --- one key -------------------------------------------------------------------------------------

#[test]
fn a_task_gets_its_key_and_the_key_is_free_when_it_runs() {
    let mut t = Driven::new();
    let map = Tasks::new(&t.timer);
    let (sender, receiver) = channel();
    let inside = map.clone();
    let task = move |key: String| {
        let was_present = inside.contains_key(&key);
        let second_sender = sender.clone();
        let replaced = inside.schedule(
            key.clone(),
            move |key| second_sender.send((key, true, true)).unwrap(),
            TICK,
        );
        sender.send((key, was_present, replaced.unwrap())).unwrap();
    };
    assert!(!map.schedule("a".to_owned(), task, TICK).unwrap());
    assert!(map.contains_key("a") && !map.contains_key("b") && map.len() == 1);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(receiver.try_recv().unwrap(), ("a".to_owned(), false, false));
    assert_eq!(map.len(), 1);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(receiver.try_recv().unwrap(), ("a".to_owned(), true, true));
    assert!(map.is_empty());
}

#[test]
fn a_schedule_replaces_the_timeout_of_the_same_key() {
    let mut t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    assert!(!map.schedule(7, log.task(1), TICK).unwrap());
    assert!(!map.schedule(8, log.task(2), TICK).unwrap());
    assert!(map.schedule(7, log.task(3), TICK * 3).unwrap());
    assert_eq!(
        log.take(),
        (vec![], 1),
        "the replaced task is dropped before schedule returns"
    );
    assert_eq!((map.len(), t.timer.pending_timeouts()), (2, 2));
    t.pass(TICK * 2);
    assert_eq!(log.take(), (vec![2], 0));
    t.pass(TICK);
    assert_eq!(log.take(), (vec![3], 0));
    assert!(map.is_empty());
    assert!(
        !map.schedule(7, log.task(4), TICK).unwrap(),
        "the key has no timeout any more"
    );
}

#[test]
fn a_rejected_schedule_leaves_the_earlier_timeout() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    map.schedule(7, log.task(1), TICK * 2).unwrap();
    for key in [7, 8] {
        let rejected = map.schedule(key, log.task(2), TICK).unwrap_err();
        assert!(
            matches!(rejected, NewTimeoutError::TooManyPending { limit: 1 }),
            "{rejected}"
        );
    }
    assert_eq!(log.take(), (vec![], 2));
    assert!(map.contains_key(&7) && !map.contains_key(&8));
    t.pass(TICK);
    assert_eq!(log.take(), (vec![], 0));
    t.pass(TICK);
    assert_eq!(log.take(), (vec![1], 0));
}

#[test]
fn reset_moves_the_deadline_either_way() {
    let mut t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    assert!(!map.touch(&7, TICK), "the key has no timeout");
    map.schedule(7, log.task(1), TICK).unwrap();
    assert!(map.touch(&7, TICK * 5));
    t.pass(TICK * 4);
    assert!(map.touch(&7, FAR));
    assert!(map.touch(&7, TICK * 2));
    assert_eq!(t.pass(TICK), 0);
    assert_eq!(t.pass(TICK), 1);
    assert!(!map.touch(&7, TICK), "the task has run");
    assert_eq!(log.take(), (vec![1], 0));
}

#[test]
fn a_key_is_scheduled_and_reset_to_an_instant() {
    let mut t = Driven::new();
    let (map, log, begin) = (Tasks::new(&t.timer), Log::default(), t.timer.now());
    assert!(!map.touch_at(&7, begin + TICK), "the key has no timeout");
    t.clock.advance(TICK);
    assert!(!map.schedule_at(7, log.task(1), begin + TICK * 2).unwrap());
    assert!(map.schedule_at(7, log.task(2), begin + TICK * 9).unwrap());
    assert!(map.touch_at(&7, begin + TICK * 3));
    assert_eq!((t.pass(TICK), t.pass(TICK)), (0, 1));
    // A deadline that has passed is the next boundary.
    assert!(!map.schedule_at(7, log.task(3), begin).unwrap());
    assert_eq!((t.driver.turn(), t.pass(TICK)), (0, 1));
    assert_eq!(log.take(), (vec![2, 3], 1));
}

#[test]
fn a_cancelled_task_does_not_run() {
    let mut t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    map.schedule("a".to_owned(), log.task(1), TICK).unwrap();
    assert!(map.cancel("a"));
    assert_eq!(
        log.take(),
        (vec![], 1),
        "the task is dropped before cancel returns"
    );
    assert!(!map.cancel("a") && map.is_empty());
    assert_eq!(t.timer.pending_timeouts(), 0);
    assert_eq!(t.pass(FAR), 0);
}

// --- all keys ------------------------------------------------------------------------------------

#[test]
fn clear_cancels_all() {
    let t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    (0..100).for_each(|key| assert!(!map.schedule(key, log.task(key), TICK).unwrap()));
    assert_eq!(map.len(), 100);
    assert_eq!(map.clear(), 100);
    assert_eq!(
        (log.take(), map.len(), t.timer.pending_timeouts()),
        ((vec![], 100), 0, 0)
    );
    assert!(
        !map.schedule(5, log.task(5), TICK).unwrap(),
        "the map can be used again"
    );
}

#[test]
fn the_drop_of_the_last_handle_cancels_all() {
    let t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    (0..100).for_each(|key| assert!(!map.schedule(key, log.task(key), TICK).unwrap()));
    let clone = map.clone();
    drop(map);
    assert_eq!(clone.len(), 100);
    drop(clone);
    assert_eq!((log.take(), t.timer.pending_timeouts()), ((vec![], 100), 0));
}

#[test]
fn a_map_counts_as_a_handle_of_the_timer() {
    let Driven {
        timer,
        mut driver,
        clock,
    } = Driven::new();
    let (map, log) = (Tasks::new(&timer), Log::default());
    drop(timer);
    map.schedule(7, log.task(1), TICK).unwrap();
    clock.advance(TICK);
    assert_eq!(driver.turn(), 1);
    drop(map);
    assert!(driver.is_stopped());
}

#[test]
fn stop_cancels_all() {
    let t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    (0..100).for_each(|key| assert!(!map.schedule(key, log.task(key), TICK).unwrap()));
    assert_eq!(t.timer.stop().len(), 100);
    assert_eq!((log.take(), map.len()), ((vec![], 100), 0));
    assert!(!map.cancel(&7) && !map.touch(&7, TICK));
    let rejected = map.schedule(7, log.task(7), TICK).unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::Stopped), "{rejected}");
}

/// The drop of the last handle ends the map: runs the task that is due, and cancels the other one.
#[test]
fn a_task_may_hold_the_last_handle() {
    let Driven {
        timer,
        mut driver,
        clock,
    } = Driven::new();
    let (map, log) = (Tasks::new(&timer), Log::default());
    let clone = map.clone();
    map.schedule(1, move |_| drop(clone), TICK).unwrap();
    map.schedule(2, log.task(2), TICK).unwrap();
    map.schedule(3, log.task(3), FAR).unwrap();
    drop(map);
    drop(timer);
    assert!(!driver.is_stopped(), "the task holds the last handle");
    clock.advance(TICK);
    // The task that the drop has run does not run again in the same turn. Then the timer stops.
    assert_eq!(driver.turn(), 1);
    assert_eq!(log.take(), (vec![2], 1));
    assert!(driver.is_stopped());
}

#[test]
fn a_weak_reference_keeps_nothing_alive() {
    fn reschedule(key: u32, map: &Weak<Tasks<u32>>) {
        if let Some(strong) = map.upgrade() {
            let weak = Weak::clone(map);
            strong
                .schedule(key, move |key| reschedule(key, &weak), TICK)
                .unwrap();
        }
    }

    let mut t = Driven::new();
    let map = Arc::new(Tasks::new(&t.timer));
    reschedule(7, &Arc::downgrade(&map));
    (0..10).for_each(|_| assert_eq!(t.pass(TICK), 1));
    assert_eq!(Arc::strong_count(&map), 1);
    drop(map);
    assert_eq!((t.timer.pending_timeouts(), t.pass(TICK)), (0, 0));
}

// --- tasks in an executor ------------------------------------------------------------------------

/// The timeout has expired, so the task runs, even if its key gets another one.
#[test]
fn a_task_in_an_executor_is_neither_cancelled_nor_replaced() {
    let (mut t, tasks) = with_queue();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    let mut due = |name| {
        assert!(!map.schedule(7, log.task(name), TICK).unwrap());
        assert_eq!(t.pass(TICK), 1);
        assert!(!map.contains_key(&7));
        assert!(!map.touch(&7, TICK), "an expired timeout cannot be reset");
        tasks.try_recv().unwrap()
    };

    due(1).run();
    assert_eq!(log.take(), (vec![1], 0));

    let task = due(2);
    assert!(!map.cancel(&7));
    task.run();
    assert_eq!(log.take(), (vec![2], 0), "too late to cancel it");

    let task = due(3);
    assert!(!map.schedule(7, log.task(4), TICK).unwrap());
    task.run();
    assert_eq!(log.take(), (vec![3], 0), "too late to replace it");
    assert!(map.cancel(&7));
    assert_eq!(log.take(), (vec![], 1));

    let task = due(5);
    assert_eq!(map.clear(), 0);
    task.run();
    assert_eq!(log.take(), (vec![5], 0), "too late to clear it");

    drop(due(6));
    assert_eq!(log.take(), (vec![6], 0), "dropped by the executor");
    assert!(map.is_empty());

    let task = due(8);
    drop(map);
    assert_eq!(log.take(), (vec![8], 0), "the drop of the map runs it");
    task.run();
    assert_eq!(log.take(), (vec![], 0));
}

// --- tasks that run before `schedule` returns ----------------------------------------------------

/// A timer that turns immediately: its waker moves the clock and makes a turn during `new_timeout`.
struct ImmediateTimer {
    timer: HashedWheelTimer,
    driver: Arc<Mutex<Option<Driver>>>,
    log: Log,
}

impl ImmediateTimer {
    fn new(runs: bool) -> Self {
        let driver = Arc::new(Mutex::new(None::<Driver>));
        let (clock, turned) = (ManualClock::new(), Arc::clone(&driver));
        let mut builder = HashedWheelTimer::builder()
            .tick(TICK)
            .clock(clock.clone())
            .waker(move || {
                clock.advance(TICK);
                // `stop` calls the waker as well, when the driver is gone.
                if let Some(driver) = &mut *turned.lock().unwrap() {
                    driver.turn();
                }
            });
        if !runs {
            builder = builder.task_executor(accepts_all(drop::<ExpiredTask>));
        }
        let (timer, new_driver) = builder.build_driven().unwrap();
        *driver.lock().unwrap() = Some(new_driver);
        Self {
            timer,
            driver,
            log: Log::default(),
        }
    }

    /// After this call, a timeout that is due earlier than all others calls the waker.
    fn announce_sleep(&self) {
        let _ = self.driver.lock().unwrap().as_mut().unwrap().next_turn();
    }
}

/// The timer owns the waker, and the waker owns the driver. The drop breaks this cycle.
impl Drop for ImmediateTimer {
    fn drop(&mut self) {
        let driver = self.driver.lock().unwrap().take();
        self.timer.stop();
        drop(driver);
    }
}

#[test]
fn a_task_that_begins_before_schedule_returns_replaces_the_earlier_one() {
    let t = ImmediateTimer::new(true);
    let map = Tasks::new(&t.timer);
    t.announce_sleep();
    assert!(!map.schedule(7, t.log.task(1), TICK).unwrap());
    assert_eq!(t.log.take(), (vec![1], 0));
    assert!(map.is_empty());

    assert!(!map.schedule(7, t.log.task(2), FAR).unwrap());
    t.announce_sleep();
    assert!(
        map.schedule(7, t.log.task(3), TICK).unwrap(),
        "schedule reports the replacement that the task made"
    );
    assert_eq!(t.log.take(), (vec![3], 1));
    assert!(map.is_empty());
    assert_eq!(t.timer.pending_timeouts(), 0);
}

/// The new entry expires before the call returns, and the handler panics for the old one.
#[test]
fn a_panic_for_a_replaced_entry_does_not_lose_the_new_one() {
    let t = ImmediateTimer::new(true);
    let (sender, handled) = channel();
    let map = ExpiringMap::builder(&t.timer)
        .causes([Cause::Replaced, Cause::Expired])
        .build_with_handler(move |Removed { key, value, cause }| {
            sender.send((key, value, cause)).unwrap();
            assert_eq!(cause, Cause::Expired, "the handler panics");
        });
    map.insert(7, 1, FAR).unwrap();
    t.announce_sleep();
    let insert = AssertUnwindSafe(|| map.insert(7, 2, TICK));
    assert!(quietly(|| catch_unwind(insert)).is_err());
    let handled: Vec<_> = handled.try_iter().collect();
    assert_eq!(handled, [(7, 1, Cause::Replaced), (7, 2, Cause::Expired)]);
    assert_eq!((map.len(), t.timer.pending_timeouts()), (0, 0));
}

#[test]
fn a_task_scheduled_before_schedule_returns_is_kept() {
    let t = ImmediateTimer::new(true);
    let (map, log) = (Tasks::new(&t.timer), t.log.clone());
    let inside = map.clone();
    t.announce_sleep();
    let task = move |key| assert!(!inside.schedule(key, log.task(1), FAR).unwrap());
    assert!(!map.schedule(7, task, TICK).unwrap());
    assert!(map.contains_key(&7));
    assert!(map.cancel(&7));
    assert_eq!(t.log.take(), (vec![], 1));
}

#[test]
fn a_task_that_is_dropped_before_schedule_returns_leaves_nothing() {
    let t = ImmediateTimer::new(false);
    let map = Tasks::new(&t.timer);
    t.announce_sleep();
    assert!(!map.schedule(7, t.log.task(1), TICK).unwrap());
    assert_eq!(t.log.take(), (vec![1], 0), "its time has come");
    assert!(map.is_empty());

    assert!(!map.schedule(7, t.log.task(2), FAR).unwrap());
    t.announce_sleep();
    assert!(map.schedule(7, t.log.task(3), TICK).unwrap());
    assert_eq!(
        t.log.take(),
        (vec![3], 1),
        "schedule reports the replacement"
    );
    assert!(map.is_empty());
}

// --- user code -----------------------------------------------------------------------------------

/// A key, clock and waker that uses the map on each call. If the map held a lock, the call would
/// hang.
#[derive(Clone)]
struct CallsBack {
    map: Arc<Mutex<Option<Tasks<CallsBack>>>>,
    calls: Arc<AtomicUsize>,
    now: Arc<AtomicU64>,
}

impl CallsBack {
    fn call_back(&self) {
        // The lock of this slot is not held during the call either.
        let map = self.map.lock().unwrap().clone();
        if let Some(map) = map {
            self.calls.fetch_add(1, SeqCst);
            // `len` locks every shard.
            let _ = map.len();
        }
    }
}

impl Hash for CallsBack {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for CallsBack {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CallsBack {}

impl Drop for CallsBack {
    fn drop(&mut self) {
        self.call_back();
    }
}

impl Clock for CallsBack {
    fn now(&self) -> Duration {
        self.call_back();
        Duration::from_nanos(self.now.load(SeqCst))
    }
}

#[test]
fn no_lock_is_held_while_user_code_runs() {
    let calls = ends(|| {
        let (slot, calls) = (Arc::default(), Arc::default());
        let calls_back = CallsBack {
            map: Arc::clone(&slot),
            calls: Arc::clone(&calls),
            now: Arc::default(),
        };
        let (clock, waker) = (calls_back.clone(), calls_back.clone());
        let builder = HashedWheelTimer::builder().max_pending_timeouts(Some(2));
        let (timer, mut driver) = builder
            .clock(clock)
            .waker(move || waker.call_back())
            .build_driven()
            .unwrap();
        let map = Tasks::new(&timer);
        *slot.lock().unwrap() = Some(map.clone());
        let task = || {
            let calls_back = calls_back.clone();
            move |_| calls_back.call_back()
        };
        let calls_of = |operation: &str, code: &mut dyn FnMut()| {
            let before = calls.load(SeqCst);
            code();
            assert!(calls.load(SeqCst) > before, "{operation} calls back");
        };
        calls_of("schedule", &mut || {
            assert!(!map.schedule(calls_back.clone(), task(), FAR).unwrap());
        });
        calls_of("replacement", &mut || {
            assert!(map.schedule(calls_back.clone(), task(), TICK).unwrap());
        });
        calls_of("reset", &mut || assert!(map.touch(&calls_back, TICK / 2)));
        let other = timer.new_timeout(|_| (), FAR).unwrap();
        calls_of("rejected schedule", &mut || {
            assert!(map.schedule(calls_back.clone(), task(), TICK / 4).is_err());
        });
        other.cancel();
        calls_of("cancel", &mut || assert!(map.cancel(&calls_back)));
        assert!(!map.schedule(calls_back.clone(), task(), FAR).unwrap());
        calls_of("clear", &mut || assert_eq!(map.clear(), 1));
        assert!(!map.schedule(calls_back.clone(), task(), TICK).unwrap());
        assert!(map.touch(&calls_back, FAR));
        calls_back.now.store(TICK.as_nanos() as u64, SeqCst);
        assert_eq!(driver.turn(), 0, "it is asked");
        calls_of("stop", &mut || assert_eq!(timer.stop().len(), 1));
        assert!(map.is_empty());
        *slot.lock().unwrap() = None;
        calls.load(SeqCst)
    });
    assert!(calls > 10, "{calls}");
}

thread_local! {
    /// How many more calls of a [`FussyKey`]'s methods succeed.
    static CALLS: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The only key that has a hash at present.
    static HASHED: Cell<Option<u32>> = const { Cell::new(None) };
}

type FussyMap = ExpiringMap<FussyKey, UsesMap>;

/// Uses the map on each drop. If the map held a lock, the drop would hang.
#[derive(Clone, Default)]
struct UsesMap {
    map: Arc<Mutex<Option<FussyMap>>>,
    drops: Arc<AtomicUsize>,
}

impl Drop for UsesMap {
    fn drop(&mut self) {
        let map = self.map.lock().unwrap().clone();
        if let Some(map) = map {
            self.drops.fetch_add(1, SeqCst);
            // `len` locks every shard.
            let _ = map.len();
        }
    }
}

/// A key whose `Hash`, `Eq` and `Clone` panic if the test demands it. All keys have the same hash,
/// unless they are `spread`.
struct FussyKey {
    name: u32,
    spread: bool,
    uses_map: UsesMap,
}

fn succeed_or_panic() {
    let left = CALLS.get();
    assert!(left > 0, "a method of a key panics");
    CALLS.set(left - 1);
}

impl Hash for FussyKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        succeed_or_panic();
        if self.spread {
            assert!(
                HASHED.get().is_none_or(|name| name == self.name),
                "the `Hash` of a key panics"
            );
            self.name.hash(state);
        }
    }
}

impl PartialEq for FussyKey {
    fn eq(&self, other: &Self) -> bool {
        succeed_or_panic();
        self.name == other.name
    }
}

impl Eq for FussyKey {}

impl Clone for FussyKey {
    fn clone(&self) -> Self {
        succeed_or_panic();
        Self {
            uses_map: self.uses_map.clone(),
            ..*self
        }
    }
}

/// Makes keys and values of one map.
#[derive(Clone)]
struct Fussy {
    map: FussyMap,
    uses_map: UsesMap,
    spread: bool,
}

impl Fussy {
    fn new(timer: &HashedWheelTimer, spread: bool) -> Self {
        let map = FussyMap::with_handler(timer, drop);
        let uses_map = UsesMap::default();
        *uses_map.map.lock().unwrap() = Some(map.clone());
        Self {
            map,
            uses_map,
            spread,
        }
    }

    fn key(&self, name: u32) -> FussyKey {
        FussyKey {
            name,
            spread: self.spread,
            uses_map: self.uses_map.clone(),
        }
    }

    fn insert(&self, name: u32, delay: Duration) -> bool {
        self.map
            .insert(self.key(name), self.uses_map.clone(), delay)
            .unwrap()
            .is_some()
    }

    /// Returns how many keys and values were dropped. The map has neither any more.
    fn end(self) -> usize {
        let drops = Arc::clone(&self.uses_map.drops);
        self.map.clear();
        *self.uses_map.map.lock().unwrap() = None;
        drops.load(SeqCst)
    }
}

/// A map that shrinks or grows must not call the `Hash` of keys that are in it.
#[test]
fn no_hash_is_called_when_a_map_shrinks_at_an_expiry() {
    const KEYS: u32 = if cfg!(miri) { 100 } else { 8_000 };
    const SECOND: Duration = ms(1_000);

    ends(|| {
        let mut t = Driven::new();
        let fussy = Fussy::new(&t.timer, true);
        (0..KEYS).for_each(|name| assert!(!fussy.insert(name, SECOND * (name + 1))));
        for name in 0..KEYS {
            HASHED.set(Some(name));
            assert_eq!(t.pass(SECOND), 1);
        }
        HASHED.set(None);
        assert_eq!(
            (
                fussy.map.len(),
                t.timer.pending_timeouts(),
                t.timer.stats().panics
            ),
            (0, 0, 0)
        );
        assert_eq!(fussy.end(), 2 * KEYS as usize);
    });
}

#[test]
fn no_hash_is_called_when_a_map_grows_or_shrinks_in_a_call() {
    const KEYS: u32 = if cfg!(miri) { 100 } else { 8_000 };

    ends(|| {
        let t = Driven::new();
        let fussy = Fussy::new(&t.timer, true);
        for name in 0..KEYS {
            HASHED.set(Some(name));
            assert!(!fussy.insert(name, FAR));
        }
        for name in 0..KEYS {
            HASHED.set(Some(name));
            assert!(fussy.map.remove(&fussy.key(name)).is_some());
        }
        HASHED.set(None);
        assert_eq!((fussy.map.len(), t.timer.pending_timeouts()), (0, 0));
    });
}

/// Whichever call of a key's method panics: no lock is held when keys and values are dropped, and
/// the map is consistent.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn keys_that_panic_are_dropped_without_a_lock() {
    type Operation = (&'static str, fn(&Fussy));
    const OPERATIONS: [Operation; 8] = [
        ("insert", |fussy| assert!(!fussy.insert(9, TICK))),
        ("replace", |fussy| assert!(fussy.insert(2, TICK))),
        ("remove", |fussy| {
            assert!(fussy.map.remove(&fussy.key(2)).is_some());
        }),
        ("touch", |fussy| {
            assert!(fussy.map.touch(&fussy.key(2), TICK));
        }),
        ("with", |fussy| {
            assert!(fussy.map.with(&fussy.key(2), |_| ()).is_some());
        }),
        ("remaining", |fussy| {
            assert!(fussy.map.remaining(&fussy.key(2)).is_some());
        }),
        ("retain", |fussy| fussy.map.retain(|key, _| key.name == 2)),
        ("keys", |fussy| assert_eq!(fussy.map.keys().len(), 3)),
    ];

    ends(|| {
        // The immediate timer expires the timeouts of `insert` and `replace` before these return.
        for is_immediate in [false, true] {
            for (name, operation) in OPERATIONS {
                let (mut has_panicked, mut has_succeeded) = (false, false);
                for calls in 0..20 {
                    let (driven, immediate) = (Driven::new(), ImmediateTimer::new(true));
                    let timer = if is_immediate {
                        &immediate.timer
                    } else {
                        &driven.timer
                    };
                    let fussy = Fussy::new(timer, false);
                    (1..=3).for_each(|name| assert!(!fussy.insert(name, FAR)));
                    immediate.announce_sleep();
                    CALLS.set(calls);
                    let result = quietly(|| catch_unwind(AssertUnwindSafe(|| operation(&fussy))));
                    CALLS.set(usize::MAX);
                    let panics = timer.stats().panics > 0 || result.is_err();
                    (has_panicked, has_succeeded) =
                        (has_panicked | panics, has_succeeded | !panics);
                    let left = fussy.map.len();
                    assert_eq!(
                        left,
                        timer.pending_timeouts(),
                        "{name}, after {calls} calls"
                    );
                    assert!(
                        (1..=4).contains(&left),
                        "{name}, after {calls} calls: {left}"
                    );
                    assert_eq!(fussy.map.keys().len(), left);
                    assert!(fussy.end() > 0);
                    assert_eq!(timer.pending_timeouts(), 0, "{name}, after {calls} calls");
                }
                let never_calls = name == "retain";
                assert!(has_succeeded && has_panicked != never_calls, "{name}");
            }
        }
    });
}

type Call = Box<dyn FnOnce() + Send>;

/// A clock that makes a call, once, when the time is read.
#[derive(Clone, Default)]
struct InterruptingClock {
    clock: ManualClock,
    call: Arc<Mutex<Option<Call>>>,
}

impl InterruptingClock {
    /// At the next reading a value replaces the one under the key; at the reading after it the next
    /// one does, and so on, until none is left.
    fn replace(&self, map: ExpiringMap<u8, u32>, left: u32) {
        let clock = self.clone();
        let call = (left > 0).then(|| -> Call {
            Box::new(move || {
                assert!(map.insert(7, left, FAR).unwrap().is_some());
                clock.replace(map, left - 1);
            })
        });
        *self.call.lock().unwrap() = call;
    }
}

impl Clock for InterruptingClock {
    fn now(&self) -> Duration {
        let call = self.call.lock().unwrap().take();
        if let Some(call) = call {
            call();
        }
        self.clock.now()
    }
}

/// `touch` reads the clock before it looks for the entry, and again before it tells the timer of an
/// earlier deadline. An entry that replaces the touched one keeps its own deadline.
#[test]
fn an_entry_is_replaced_before_a_touch_or_after_it() {
    let clock = InterruptingClock::default();
    let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
    let (timer, mut driver) = builder.build_driven().unwrap();
    let (sender, expired) = channel();
    let map = ExpiringMap::with_handler(&timer, move |removed: Removed<u8, _>| {
        sender.send(removed.value).unwrap();
    });
    for replacements in 0..3 {
        map.insert(7, 0, FAR).unwrap();
        clock.replace(map.clone(), replacements);
        assert!(map.touch(&7, TICK), "{replacements} replacements");
        assert!(clock.call.lock().unwrap().is_none());
        clock.clock.advance(TICK);
        let is_after = replacements == 2;
        driver.turn();
        let value = u32::from(replacements > 0);
        assert_eq!(expired.try_recv().ok(), (!is_after).then_some(value));
        assert_eq!(map.remove(&7), is_after.then_some(value));
    }
}

#[test]
fn a_panic_affects_no_other_key() {
    let mut t = Driven::new();
    let (map, log) = (Tasks::new(&t.timer), Log::default());
    map.schedule(1, |_| panic!("in a task"), TICK).unwrap();
    map.schedule(2, log.task(2), TICK).unwrap();
    let guard = OnDrop(|| panic!("in a drop"));
    map.schedule(3, move |_| drop(guard), TICK).unwrap();
    map.schedule(4, log.task(4), TICK).unwrap();
    quietly(|| assert_eq!(t.pass(TICK), 4));
    assert_eq!(log.take(), (vec![2, 4], 0));
    assert!(map.is_empty());
    assert_eq!(t.timer.stats().panics, 2);
}

#[test]
fn maps_are_send_and_sync() {
    fn check<T: Send + Sync + Clone + std::panic::UnwindSafe + std::panic::RefUnwindSafe>(_: &T) {}

    let t = Driven::new();
    let map = ExpiringMap::<std::cell::Cell<u8>, std::cell::Cell<u8>>::new(&t.timer);
    check(&map);
    assert!(
        format!("{map:?}").starts_with("ExpiringMap { timer: HashedWheelTimer { "),
        "{map:?}"
    );
}

/// A thread with a key of its own knows which task a call has replaced or cancelled.
#[test]
fn a_replaced_or_cancelled_task_does_not_begin() {
    stress(true, |index, _| index as u32);
}

/// All threads use the same few keys.
#[test]
fn each_task_has_one_end_when_threads_share_keys() {
    stress(false, |_, random| random.u32(0..3));
}

fn stress(has_own_key: bool, key: fn(usize, &mut Rng) -> u32) {
    const THREADS: usize = 4;
    let time = if cfg!(miri) { ms(0) } else { ms(300) };

    for in_pool in [false, true] {
        let builder = HashedWheelTimer::builder().tick(Duration::from_micros(50));
        let (timer, pool) = if in_pool {
            let (queue, tasks) = channel::<ExpiredTask>();
            let pool = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
            (
                builder
                    .task_executor(accepts_all(move |task| drop(queue.send(task))))
                    .build()
                    .unwrap(),
                Some(pool),
            )
        } else {
            (builder.build().unwrap(), None)
        };
        let map = Tasks::new(&timer);
        let [runs, too_late] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let log = Log::default();
        let begin = Instant::now();
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (map, log) = (map.clone(), log.clone());
                let (runs, too_late) = (Arc::clone(&runs), Arc::clone(&too_late));
                thread::spawn(move || {
                    let mut random = Rng::with_seed(index as u64);
                    let (mut scheduled, mut removed) = (0, 0);
                    let mut last = Arc::new(AtomicBool::new(false));
                    while begin.elapsed() < time || scheduled < 20 {
                        let (key, delay) = (
                            key(index, &mut random),
                            Duration::from_micros(random.u64(0..200)),
                        );
                        if random.u32(0..4) > 0 {
                            let is_removed = Arc::new(AtomicBool::new(false));
                            let (task, removed_before_run) =
                                (log.task::<u32>(0), Arc::clone(&is_removed));
                            let (runs, too_late) = (Arc::clone(&runs), Arc::clone(&too_late));
                            let task = move |key| {
                                too_late.fetch_add(
                                    usize::from(removed_before_run.load(SeqCst)),
                                    SeqCst,
                                );
                                runs.fetch_add(1, SeqCst);
                                task(key);
                            };
                            let replaced = map.schedule(key, task, delay).unwrap();
                            let before = std::mem::replace(&mut last, is_removed);
                            before.store(has_own_key && replaced, SeqCst);
                            (scheduled, removed) = (scheduled + 1, removed + usize::from(replaced));
                        } else if random.bool() {
                            let cancelled = map.cancel(&key);
                            last.store(has_own_key && cancelled, SeqCst);
                            removed += usize::from(cancelled);
                        } else {
                            map.touch(&key, delay);
                        }
                        if random.u32(0..8) == 0 {
                            sleep(Duration::from_micros(random.u64(0..200)));
                        }
                    }
                    (scheduled, removed)
                })
            })
            .collect();
        let (mut scheduled, mut removed) = (0, 0);
        for thread in threads {
            let counts = thread.join().unwrap();
            scheduled += counts.0;
            removed += counts.1;
        }
        let all_have_ended = || runs.load(SeqCst) + removed == scheduled;
        eventually("all tasks run or were removed", all_have_ended);
        drop(map);
        timer.stop();
        pool.into_iter().for_each(|pool| pool.join().unwrap());
        assert_eq!(
            too_late.load(SeqCst),
            0,
            "tasks that began after they were replaced or cancelled"
        );
        let runs = runs.load(SeqCst);
        assert_eq!(runs + removed, scheduled, "each task has one end");
        assert_eq!(
            log.dropped_unrun.load(SeqCst),
            removed,
            "each task that did not run was dropped"
        );
        assert!(
            cfg!(miri) || (runs > 0 && removed > 0),
            "{runs} ran, {removed} did not"
        );
    }
}

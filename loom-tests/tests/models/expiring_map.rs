//! An expiring map. The lock of the shard decides how an item ends, and loom sees that lock.

use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel::util::{Cause, ExpiredEntries, ExpiringMap};

use super::*;

/// A map whose values are tasks.
type Tasks = ExpiringMap<u8, Task>;

fn tasks(timer: &HashedWheelTimer) -> Tasks {
    ExpiringMap::with_handler(timer, |_, task: Task| task.count_run())
}

/// One insertion of a task, as the model sees it.
struct Item(Arc<Outcome>);

impl Item {
    fn schedule(map: &Tasks, ticks: u32) -> (bool, Self) {
        let outcome = Arc::new(Outcome::default());
        let replaced = map
            .insert(7, Task(Arc::clone(&outcome)), TICK * ticks)
            .unwrap();
        (replaced.is_some(), Self(outcome))
    }

    /// The task was dropped once, and ran before if `ran`.
    #[track_caller]
    fn assert(&self, ran: bool) {
        self.0.assert(usize::from(ran), 0);
    }

    fn ran(&self) -> bool {
        self.0.runs.load(Relaxed) > 0
    }
}

impl Task {
    fn count_run(self) {
        self.0.runs.fetch_add(1, Relaxed);
    }
}

/// Returns a timer with an item that is current and due.
fn with_due_item() -> (Driven, Tasks, Item) {
    let mut driven = Driven::new();
    let map = tasks(&driven.timer);
    let (replaced, item) = Item::schedule(&map, 1);
    assert!(!replaced);
    driven.driver.turn();
    driven.clock.advance(TICK);
    (driven, map, item)
}

#[test]
fn cancel_or_expiry_wins() {
    explore(None, [mutant("RemoveInTwoSteps")], || {
        let (driven, map, item) = with_due_item();
        let turn = Driven::turn(driven.driver);
        let cancelled = map.remove(&7).is_some();
        let (_, _driver) = turn.join().unwrap();
        item.assert(!cancelled);
        assert!(map.is_empty());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn replacement_or_expiry_wins() {
    explore(Some(4), [mutant("RemovedItemStarts")], || {
        let (driven, map, old) = with_due_item();
        let turn = Driven::turn(driven.driver);
        let (replaced, new) = Item::schedule(&map, 5);
        let (_, mut driver) = turn.join().unwrap();
        old.assert(!replaced);
        assert!(!new.ran() && map.contains_key(&7) && map.len() == 1);
        assert_eq!(
            driven.timer.pending_timeouts(),
            1,
            "a replaced timeout is cancelled"
        );
        driven.clock.advance(TICK * 6);
        assert_eq!(driver.turn(), 1);
        new.assert(true);
        assert!(map.is_empty());
    });
}

#[test]
fn reset_in_time_moves_the_deadline() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let (driven, map, item) = with_due_item();
        let turn = Driven::turn(driven.driver);
        let reset = map.touch(&7, TICK * 3);
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(
            usize::from(reset) + expired,
            1,
            "either the reset was in time or the expiry"
        );
        assert_eq!((item.ran(), map.contains_key(&7)), (!reset, reset));
        driven.clock.advance(TICK * 3);
        driver.turn();
        item.assert(true);
        assert!(map.is_empty());
    });
}

/// The timeout may expire before `schedule` has made its item current.
#[test]
fn task_that_starts_before_schedule_returns_runs_once() {
    explore(Some(3), [mutant("PendingItemDoesNotStart")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let map = tasks(&timer);
        let turn = thread::spawn(move || {
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            (clock, driver)
        });
        let (replaced, item) = Item::schedule(&map, 0);
        let (clock, mut driver) = turn.join().unwrap();
        clock.0.fetch_add(2, AcqRel);
        driver.turn();
        assert!(!replaced);
        item.assert(true);
        assert!(map.is_empty());
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

/// In that case the old item is replaced before the task starts.
#[test]
fn task_that_starts_before_schedule_returns_replaces_the_current_item() {
    explore(Some(3), [mutant("PendingItemDoesNotStart")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let map = tasks(&timer);
        let (_, old) = Item::schedule(&map, 1);
        driver.turn();
        let turn = thread::spawn(move || {
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            (clock, driver)
        });
        let (replaced, new) = Item::schedule(&map, 0);
        let (clock, mut driver) = turn.join().unwrap();
        clock.0.fetch_add(2, AcqRel);
        driver.turn();
        old.assert(!replaced);
        new.assert(true);
        assert!(map.is_empty());
        assert_eq!(
            timer.pending_timeouts(),
            0,
            "a replaced timeout is cancelled"
        );
    });
}

#[test]
fn one_of_two_schedules_of_a_key_remains() {
    explore(Some(2), [mutant("ReplaceInTwoSteps")], || {
        let mut driven = Driven::new();
        let map = tasks(&driven.timer);
        let other = map.clone();
        let schedule = thread::spawn(move || Item::schedule(&other, 1));
        let (replaced, item) = Item::schedule(&map, 1);
        let (others_replaced, others) = schedule.join().unwrap();
        assert_ne!(
            replaced, others_replaced,
            "the later call replaces the earlier one"
        );
        assert_eq!(
            (map.len(), driven.timer.pending_timeouts()),
            (1, 1),
            "a replaced timeout is cancelled"
        );
        driven.driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        item.assert(replaced);
        others.assert(others_replaced);
        assert!(map.is_empty());
    });
}

/// The item is dropped, whether `stop` finds its timeout or `schedule` is rejected.
#[test]
fn schedule_during_stop_leaves_nothing() {
    explore(bound(5, None), [mutant("EndedItemStaysCurrent")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let map = tasks(&timer);
        let stop = thread::spawn(move || timer.stop().len());
        let outcome = Arc::new(Outcome::default());
        let task = Task(Arc::clone(&outcome));
        let scheduled = map.insert(7, task, TICK).map(drop).map_err(drop);
        let stopped = stop.join().unwrap();
        assert_eq!(stopped, usize::from(scheduled.is_ok()));
        outcome.assert(0, 0);
        assert!(map.is_empty());
    });
}

/// Both items of the key are dropped: the replaced one and the new one.
#[test]
fn replacement_during_stop_leaves_nothing() {
    explore(Some(3), [mutant("EndedItemStaysCurrent")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let map = tasks(&timer);
        let (_, old) = Item::schedule(&map, 1);
        let stop = thread::spawn(move || timer.stop().len());
        let outcome = Arc::new(Outcome::default());
        let task = Task(Arc::clone(&outcome));
        drop(map.insert(7, task, TICK));
        stop.join().unwrap();
        old.assert(false);
        outcome.assert(0, 0);
        assert!(map.is_empty());
    });
}

// --- values --------------------------------------------------------------------------------------

const OLD: u8 = 1;
const NEW: u8 = 2;

/// A value. Wherever it ends, it is dropped there.
struct Value {
    name: u8,
    drops: Arc<AtomicUsize>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Relaxed);
    }
}

fn value(name: u8, drops: &Arc<AtomicUsize>) -> Value {
    Value {
        name,
        drops: Arc::clone(drops),
    }
}

/// The values that the handler of a map got.
type Handled = Arc<Mutex<Vec<u8>>>;

/// The calls of the listener of a map.
type Told = Arc<Mutex<Vec<(u8, Cause)>>>;

/// Returns a map with values, what its handler got, what its listener was told, and how many values
/// were dropped.
fn values(timer: &HashedWheelTimer) -> (ExpiringMap<u8, Value>, Handled, Told, Arc<AtomicUsize>) {
    let (expired, told) = (Handled::default(), Told::default());
    let (handled, tells) = (Arc::clone(&expired), Arc::clone(&told));
    let map = ExpiringMap::builder(timer)
        .listener(move |_, value: &Value, cause| tells.lock().unwrap().push((value.name, cause)))
        .build_with_handler(move |_, value: Value| handled.lock().unwrap().push(value.name));
    (map, expired, told, Arc::default())
}

/// Each entry has left the map once, for the cause that says who has its value.
#[track_caller]
fn assert_told(told: &Told, ends: &[(&[u8], Cause)]) {
    let mut told = told.lock().unwrap().clone();
    for (name, cause) in ends
        .iter()
        .flat_map(|(names, cause)| names.iter().map(move |name| (name, cause)))
    {
        let at = told.iter().position(|end| *end == (*name, *cause));
        told.remove(at.unwrap_or_else(|| panic!("{name} was not told as {cause:?}: {told:?}")));
    }
    assert_eq!(told, []);
}

/// A map in which the old value is current and due.
struct Values {
    driven: Driven,
    map: ExpiringMap<u8, Value>,
    expired: Handled,
    told: Told,
    drops: Arc<AtomicUsize>,
}

impl Values {
    fn with_due_value() -> Self {
        let mut driven = Driven::new();
        let (map, expired, told, drops) = values(&driven.timer);
        assert!(map.insert(7, value(OLD, &drops), TICK).unwrap().is_none());
        driven.driver.turn();
        driven.clock.advance(TICK);
        Self {
            driven,
            map,
            expired,
            told,
            drops,
        }
    }
}

fn name(value: Option<Value>) -> Vec<u8> {
    value.iter().map(|value| value.name).collect()
}

#[test]
fn value_goes_to_remove_or_to_the_handler() {
    explore(Some(4), [mutant("RemovedItemStarts")], || {
        let Values {
            driven,
            map,
            expired,
            told,
            drops,
        } = Values::with_due_value();
        let turn = Driven::turn(driven.driver);
        let removed = name(map.remove(&7));
        // The timeout of the old value must not take the new one.
        let replaced = name(map.insert(7, value(NEW, &drops), TICK * 5).unwrap());
        let (_, _driver) = turn.join().unwrap();
        assert!(replaced.is_empty(), "the key was free");
        let expired = expired.lock().unwrap().clone();
        assert_eq!([&removed[..], &expired].concat(), [OLD]);
        assert_told(
            &told,
            &[(&removed, Cause::Removed), (&expired, Cause::Expired)],
        );
        assert_eq!(drops.load(Relaxed), 1);
        assert_eq!(name(map.remove(&7)), [NEW]);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn value_goes_to_insert_or_to_the_handler() {
    explore(bound(3, Some(4)), [mutant("RemovedItemStarts")], || {
        let Values {
            driven,
            map,
            expired,
            told,
            drops,
        } = Values::with_due_value();
        let turn = Driven::turn(driven.driver);
        let replaced = name(map.insert(7, value(NEW, &drops), TICK * 5).unwrap());
        let touched = map.touch(&7, TICK * 6);
        let (_, _driver) = turn.join().unwrap();
        let expired = expired.lock().unwrap().clone();
        assert_eq!([&replaced[..], &expired].concat(), [OLD]);
        assert_told(
            &told,
            &[(&replaced, Cause::Replaced), (&expired, Cause::Expired)],
        );
        assert!(touched && map.with(&7, |value| value.name) == Some(NEW));
        assert_eq!(map.clear(), 1);
        assert_eq!(drops.load(Relaxed), 2);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// There is an entry all the time, and its time has not come.
#[test]
fn touch_moves_the_deadline_of_an_entry_or_of_its_replacement() {
    explore(Some(3), [mutant("TouchTriesOneItem")], || {
        let mut driven = Driven::new();
        let (map, expired, told, drops) = values(&driven.timer);
        assert!(
            map.insert(7, value(OLD, &drops), TICK * 5)
                .unwrap()
                .is_none()
        );
        let other = map.clone();
        let new = value(NEW, &drops);
        let insert = thread::spawn(move || name(other.insert(7, new, TICK * 5).unwrap()));
        assert!(map.touch(&7, TICK * 9));
        assert_eq!(insert.join().unwrap(), [OLD]);
        assert_eq!((map.len(), driven.timer.pending_timeouts()), (1, 1));
        driven.driver.turn();
        driven.clock.advance(TICK * 9);
        assert_eq!(driven.driver.turn(), 1);
        assert_eq!(
            (expired.lock().unwrap().clone(), drops.load(Relaxed)),
            (vec![NEW], 2)
        );
        assert_told(
            &told,
            &[(&[OLD], Cause::Replaced), (&[NEW], Cause::Expired)],
        );
    });
}

/// The timeout may expire before `insert` goes on, and replaces the old value in its place.
#[test]
fn insert_returns_the_value_that_its_early_expiry_has_replaced() {
    explore(
        Some(3),
        [
            mutant("StartLosesReplaced"),
            mutant("EarlyReplacementIsNotTold"),
        ],
        || {
            let clock = ModelClock::default();
            let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
            let (map, expired, told, drops) = values(&timer);
            map.insert(7, value(OLD, &drops), TICK * 9).unwrap();
            driver.turn();
            let turn = thread::spawn(move || {
                clock.0.fetch_add(1, AcqRel);
                driver.turn();
                (clock, driver)
            });
            let replaced = name(map.insert(7, value(NEW, &drops), Duration::ZERO).unwrap());
            let (clock, mut driver) = turn.join().unwrap();
            clock.0.fetch_add(2, AcqRel);
            driver.turn();
            assert_eq!(
                (replaced, expired.lock().unwrap().clone()),
                (vec![OLD], vec![NEW])
            );
            assert_told(
                &told,
                &[(&[OLD], Cause::Replaced), (&[NEW], Cause::Expired)],
            );
            assert_eq!(
                (drops.load(Relaxed), map.len(), timer.pending_timeouts()),
                (2, 0, 0)
            );
        },
    );
}

#[test]
fn rejected_value_comes_back_and_an_accepted_one_is_dropped_by_stop() {
    explore(Some(3), [mutant("EndedItemStaysCurrent")], || {
        let Values {
            driven,
            map,
            expired,
            told,
            drops,
        } = Values::with_due_value();
        let Driven {
            timer,
            driver: _driver,
            ..
        } = driven;
        let stop = thread::spawn(move || timer.stop().len());
        let result = map.insert(7, value(NEW, &drops), TICK);
        stop.join().unwrap();
        match &result {
            Ok(replaced) => assert!(replaced.as_ref().is_none_or(|value| value.name == OLD)),
            Err(rejected) => assert_eq!((rejected.key, rejected.value.name), (7, NEW)),
        }
        let replaced = if let Ok(Some(_)) = result {
            vec![OLD]
        } else {
            vec![]
        };
        assert_told(&told, &[(&replaced, Cause::Replaced)]);
        drop(result);
        assert_eq!(
            drops.load(Relaxed),
            2,
            "each value came out, or was dropped by `stop`"
        );
        assert!(map.is_empty() && expired.lock().unwrap().is_empty());
    });
}

/// A waker that counts its calls.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Wakes {
    fn poll(self: &Arc<Self>, expired: &mut ExpiredEntries<u8, u8>) -> Poll<Option<(u8, u8)>> {
        expired.poll_recv(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

#[test]
fn receiver_has_the_entry_or_is_woken() {
    explore(
        None,
        [
            mutant("PollWithoutSecondLook"),
            mutant("ExpiredEntryDoesNotWake"),
        ],
        || {
            let mut driven = Driven::new();
            let (map, mut expired) = ExpiringMap::with_receiver(&driven.timer);
            map.insert(7, OLD, TICK).unwrap();
            driven.driver.turn();
            driven.clock.advance(TICK);
            let wakes = Arc::new(Wakes::default());
            let turn = Driven::turn(driven.driver);
            let first = wakes.poll(&mut expired);
            let (_, _driver) = turn.join().unwrap();
            if first.is_pending() {
                assert_eq!(wakes.count(), 1);
                assert_eq!(wakes.poll(&mut expired), Poll::Ready(Some((7, OLD))));
            } else {
                assert_eq!(first, Poll::Ready(Some((7, OLD))));
            }
        },
    );
}

#[test]
fn receiver_sees_the_end_of_the_map_or_is_woken() {
    explore(
        None,
        [
            mutant("PollWithoutSecondLook"),
            mutant("ClosedMapDoesNotWake"),
        ],
        || {
            let driven = Driven::new();
            let (map, mut expired) = ExpiringMap::with_receiver(&driven.timer);
            let wakes = Arc::new(Wakes::default());
            let end = thread::spawn(move || drop(map));
            let first = wakes.poll(&mut expired);
            end.join().unwrap();
            assert_eq!(usize::from(first.is_pending()), wakes.count());
            assert_eq!(wakes.poll(&mut expired), Poll::Ready(None));
        },
    );
}

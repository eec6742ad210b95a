//! An expiring map. The lock of the shard decides how an item ends, and loom sees that lock.

use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel::util::{BoxFuture, Cause, Entry, ExpiringMap, Removed, RemovedEntries};

use super::*;

/// A map whose values are tasks.
type Tasks = ExpiringMap<u8, Task>;

fn tasks(timer: &HashedWheelTimer) -> Tasks {
    ExpiringMap::builder(timer)
        .causes([Cause::Expired])
        .build_with_handler(|Removed { value, .. }: Removed<u8, Task>| value.count_run())
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

/// Returns a timer with an item that is current and due in a tick.
fn with_item() -> (Driven, Tasks, Item) {
    let mut driven = Driven::new();
    let map = tasks(&driven.timer);
    let (replaced, item) = Item::schedule(&map, 1);
    assert!(!replaced);
    driven.driver.turn();
    (driven, map, item)
}

/// Lets a tick pass on another thread, which turns the driver then.
fn pass_tick(clock: &ManualClock, mut driver: Driver) -> thread::JoinHandle<(usize, Driver)> {
    let clock = clock.clone();
    thread::spawn(move || {
        clock.advance(TICK);
        (driver.turn(), driver)
    })
}

#[test]
fn cancel_or_expiry_wins() {
    explore(bound(5, None), [mutant("RemoveInTwoSteps")], || {
        let (driven, map, item) = with_item();
        let turn = pass_tick(&driven.clock, driven.driver);
        let cancelled = map.remove(&7).is_some();
        let (_, _driver) = turn.join().unwrap();
        item.assert(!cancelled);
        assert!(map.is_empty());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn replacement_or_expiry_wins() {
    explore(Some(4), [mutant("MovedItemEnds")], || {
        let (driven, map, old) = with_item();
        let turn = pass_tick(&driven.clock, driven.driver);
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
fn touch_in_time_moves_the_deadline() {
    explore(None, [mutant("MovedItemEnds")], || {
        let (driven, map, item) = with_item();
        let turn = pass_tick(&driven.clock, driven.driver);
        let is_touched = map.touch(&7, TICK * 3);
        let (_, mut driver) = turn.join().unwrap();
        assert_eq!(
            (item.ran(), map.contains_key(&7)),
            (!is_touched, is_touched),
            "either the touch was in time or the expiry"
        );
        driven.clock.advance(TICK * 3);
        driver.turn();
        item.assert(true);
        assert!(map.is_empty());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// Returns a timer with an item that is current, and that was touched, so that it lives for longer
/// than its timeout, which is due in a tick.
fn with_touched_item() -> (Driven, Tasks, Item) {
    let (driven, map, item) = with_item();
    assert!(map.touch(&7, TICK * 9));
    (driven, map, item)
}

/// The timer asks the item for its deadline meanwhile.
#[test]
fn earlier_touch_of_a_touched_item_is_not_late() {
    explore(Some(4), [mutant("EarlierTouchIsNotTold")], || {
        let (driven, map, item) = with_touched_item();
        let turn = pass_tick(&driven.clock, driven.driver);
        assert!(map.touch(&7, TICK * 3));
        let (_, mut driver) = turn.join().unwrap();
        assert!(!item.ran());
        driven.clock.advance(map.remaining(&7).unwrap());
        driver.turn();
        item.assert(true);
        assert!(map.is_empty());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// The timer does not find the item, which gets a later deadline.
#[test]
fn touched_entry_that_a_call_has_does_not_expire() {
    let mutants = [mutant("HeldItemEnds"), mutant("ReturnedItemStays")];
    explore(Some(4), mutants, || {
        let (driven, map, item) = with_item();
        let turn = pass_tick(&driven.clock, driven.driver);
        let is_touched = match map.entry(7) {
            Entry::Occupied(mut entry) => entry.touch(TICK * 3),
            Entry::Vacant(_) => false,
        };
        let (_, mut driver) = turn.join().unwrap();
        assert_eq!(map.contains_key(&7), is_touched);
        assert!(!(is_touched && item.ran()));
        driven.clock.advance(TICK * 3);
        driver.turn();
        item.assert(true);
        assert_eq!((map.len(), driven.timer.pending_timeouts()), (0, 0));
    });
}

/// Of two earlier deadlines, the timer is told that of the item, although one of the calls has it.
#[test]
fn earlier_touch_of_an_item_that_a_call_has_is_not_late() {
    explore(Some(3), [mutant("ReturnedItemIsLate")], || {
        let mut driven = Driven::new();
        let map = tasks(&driven.timer);
        let (_, item) = Item::schedule(&map, 5);
        driven.driver.turn();
        let other = map.clone();
        let hold = thread::spawn(move || match other.entry(7) {
            Entry::Occupied(mut entry) => assert!(entry.touch(TICK * 2)),
            Entry::Vacant(_) => panic!("it is there"),
        });
        assert!(map.touch(&7, TICK * 3));
        hold.join().unwrap();
        driven.clock.advance(map.remaining(&7).unwrap());
        driven.driver.turn();
        item.assert(true);
        assert_eq!((map.len(), driven.timer.pending_timeouts()), (0, 0));
    });
}

/// The touch tells the timer its deadline when the item was replaced, and a call has the new one.
#[test]
fn replacement_of_a_touched_item_that_a_call_has_is_not_late() {
    explore(Some(3), [mutant("ReturnedItemIsLate")], || {
        let mut driven = Driven::new();
        let map = tasks(&driven.timer);
        let (_, old) = Item::schedule(&map, 9);
        driven.driver.turn();
        let other = map.clone();
        let touch = thread::spawn(move || other.touch(&7, TICK * 5));
        assert!(map.touch(&7, TICK));
        let (replaced, new) = Item::schedule(&map, 2);
        drop(map.entry(7));
        touch.join().unwrap();
        assert!(replaced && !new.ran());
        old.assert(false);
        driven.clock.advance(map.remaining(&7).unwrap());
        driven.driver.turn();
        new.assert(true);
        assert_eq!((map.len(), driven.timer.pending_timeouts()), (0, 0));
    });
}

/// The timeout that the new item takes over ends meanwhile.
#[test]
fn replacement_of_a_touched_item_has_one_timeout() {
    explore(Some(3), [mutant("MovedItemEnds")], || {
        let (driven, map, old) = with_touched_item();
        let turn = pass_tick(&driven.clock, driven.driver);
        let (replaced, new) = Item::schedule(&map, 12);
        let (_, mut driver) = turn.join().unwrap();
        assert!(replaced && !new.ran());
        old.assert(false);
        assert_eq!(driven.timer.pending_timeouts(), 1);
        while !map.is_empty() {
            driven.clock.advance(TICK * 6);
            driver.turn();
        }
        new.assert(true);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// After one call has found an entry dead, no other call finds it alive.
#[test]
fn touch_does_not_renew_what_another_call_has_found_dead() {
    explore(None, [mutant("MapClockGoesBack")], || {
        let Driven {
            timer,
            clock,
            driver: _driver,
        } = Driven::new();
        let map = tasks(&timer);
        let (_, item) = Item::schedule(&map, 1);
        let other = map.clone();
        let look = thread::spawn(move || {
            clock.advance(TICK);
            other.contains_key(&7)
        });
        let is_touched = map.touch(&7, TICK * 3);
        assert_eq!(look.join().unwrap(), is_touched);
        drop(map);
        // At the end of the map a dead entry is passed on as expired.
        item.assert(!is_touched);
    });
}

/// The timeout is not later than the item, whichever touch is the last.
#[test]
fn two_touches_to_earlier_deadlines_leave_the_last_one() {
    explore(Some(3), [mutant("TouchOverwritesAnother")], || {
        let mut driven = Driven::new();
        let map = tasks(&driven.timer);
        let (_, item) = Item::schedule(&map, 5);
        driven.driver.turn();
        let other = map.clone();
        let touch = thread::spawn(move || assert!(other.touch(&7, TICK * 3)));
        assert!(map.touch(&7, TICK * 2));
        touch.join().unwrap();
        let is_early = map.remaining(&7).unwrap() == TICK * 2;
        driven.clock.advance(TICK * 2);
        driven.driver.turn();
        assert_eq!(item.ran(), is_early);
        driven.clock.advance(TICK);
        driven.driver.turn();
        item.assert(true);
    });
}

#[test]
fn one_of_two_insertions_finds_no_entry() {
    explore(Some(3), [mutant("PresentEntryIsReplaced")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let map = ExpiringMap::new(&timer);
        let other = map.clone();
        let insert = thread::spawn(move || other.insert_if_absent(7, OLD, TICK).unwrap());
        let ours = map.insert_if_absent(7, NEW, TICK).unwrap();
        let theirs = insert.join().unwrap();
        let value = map.get(&7).unwrap();
        assert_eq!(
            (ours.is_some(), theirs.is_some()),
            (value == OLD, value == NEW)
        );
        assert_eq!((map.len(), timer.pending_timeouts()), (1, 1));
    });
}

/// The time of the old entry has come, and the worker is late.
#[test]
fn insertion_leaves_a_dead_entry_to_its_task() {
    explore(Some(3), [mutant("DeadItemIsFound")], || {
        let (driven, map, old) = with_item();
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let outcome = Arc::new(Outcome::default());
        let present = map.insert_if_absent(7, Task(Arc::clone(&outcome)), TICK * 5);
        assert!(present.unwrap().is_none());
        let (_, _driver) = turn.join().unwrap();
        old.assert(true);
        assert!(map.remove(&7).is_some());
        outcome.assert(0, 0);
        assert_eq!((map.len(), driven.timer.pending_timeouts()), (0, 0));
    });
}

/// The timeout of a new item may expire before the call knows that the key is taken.
#[test]
fn insertion_that_expires_at_once_finds_an_entry() {
    explore(Some(3), [mutant("PresentEntryIsReplaced")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let map = tasks(&timer);
        let other = map.clone();
        let turn = thread::spawn(move || {
            let (_, old) = Item::schedule(&other, 9);
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            (old, clock, driver)
        });
        let outcome = Arc::new(Outcome::default());
        let present = map.insert_if_absent(7, Task(Arc::clone(&outcome)), Duration::ZERO);
        let is_present = present.unwrap().is_some();
        let (old, clock, mut driver) = turn.join().unwrap();
        clock.0.fetch_add(2, AcqRel);
        driver.turn();
        outcome.assert(usize::from(!is_present), 0);
        assert!(map.remove(&7).is_some());
        old.assert(false);
        assert_eq!((map.len(), timer.pending_timeouts()), (0, 0));
    });
}

/// The timeout may expire before `schedule` has made its item current.
#[test]
fn task_that_starts_before_schedule_returns_runs_once() {
    explore(Some(3), [mutant("EndedItemIsInserted")], || {
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
    explore(Some(3), [mutant("EndedItemIsInserted")], || {
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
    explore(bound(4, None), [mutant("EndedItemIsInserted")], || {
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
    explore(Some(3), [mutant("EndedItemIsInserted")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let map = tasks(&timer);
        let (_, old) = Item::schedule(&map, 2);
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

/// The values that the handler of a map got, and the causes.
type Handled = Arc<Mutex<Vec<(u8, Cause)>>>;

/// Returns a map with values, what its handler got, and how many values were dropped.
fn values(timer: &HashedWheelTimer) -> (ExpiringMap<u8, Value>, Handled, Arc<AtomicUsize>) {
    let handled = Handled::default();
    let handler_has = Arc::clone(&handled);
    let map = ExpiringMap::with_handler(timer, move |removed: Removed<u8, Value>| {
        let mut handled = handler_has.lock().unwrap();
        handled.push((removed.value.name, removed.cause));
    });
    (map, handled, Arc::default())
}

/// Returns the values, all of which have left the map for this cause.
#[track_caller]
fn names(handled: &Handled, cause: Cause) -> Vec<u8> {
    let handled = handled.lock().unwrap();
    assert!(handled.iter().all(|(_, own)| *own == cause), "{handled:?}");
    handled.iter().map(|(name, _)| *name).collect()
}

/// A map in which the old value is current and due in a tick.
struct Values {
    driven: Driven,
    map: ExpiringMap<u8, Value>,
    handled: Handled,
    drops: Arc<AtomicUsize>,
}

impl Values {
    fn with_value() -> Self {
        let mut driven = Driven::new();
        let (map, handled, drops) = values(&driven.timer);
        assert!(map.insert(7, value(OLD, &drops), TICK).unwrap().is_none());
        driven.driver.turn();
        Self {
            driven,
            map,
            handled,
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
            handled,
            drops,
        } = Values::with_value();
        let turn = pass_tick(&driven.clock, driven.driver);
        let removed = name(map.remove(&7));
        // The timeout of the old value must not take the new one.
        let replaced = name(map.insert(7, value(NEW, &drops), TICK * 5).unwrap());
        let (_, _driver) = turn.join().unwrap();
        assert!(replaced.is_empty(), "the key was free");
        let expired = names(&handled, Cause::Expired);
        assert_eq!([&removed[..], &expired].concat(), [OLD]);
        assert_eq!(drops.load(Relaxed), 1);
        assert_eq!(name(map.remove(&7)), [NEW]);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn value_goes_to_insert_or_to_the_handler() {
    explore(bound(3, Some(4)), [mutant("MovedItemEnds")], || {
        let Values {
            driven,
            map,
            handled,
            drops,
        } = Values::with_value();
        let turn = pass_tick(&driven.clock, driven.driver);
        let replaced = name(map.insert(7, value(NEW, &drops), TICK * 5).unwrap());
        let touched = map.touch(&7, TICK * 6);
        let (_, _driver) = turn.join().unwrap();
        let expired = names(&handled, Cause::Expired);
        assert_eq!([&replaced[..], &expired].concat(), [OLD]);
        assert!(touched && map.with(&7, |value| value.name) == Some(NEW));
        assert_eq!(map.clear(), 1);
        assert_eq!(drops.load(Relaxed), 2);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// There is an entry all the time, and its time has not come.
#[test]
fn touch_moves_the_deadline_of_an_entry_or_of_its_replacement() {
    explore(Some(3), [mutant("ReplaceInTwoSteps")], || {
        let mut driven = Driven::new();
        let (map, handled, drops) = values(&driven.timer);
        assert!(
            map.insert(7, value(OLD, &drops), TICK * 5)
                .unwrap()
                .is_none()
        );
        let other = map.clone();
        let new = value(NEW, &drops);
        let insert = thread::spawn(move || name(other.insert(7, new, TICK * 4).unwrap()));
        assert!(map.touch(&7, TICK * 3));
        assert_eq!(insert.join().unwrap(), [OLD]);
        assert_eq!((map.len(), driven.timer.pending_timeouts()), (1, 1));
        driven.driver.turn();
        driven.clock.advance(TICK * 9);
        assert_eq!(driven.driver.turn(), 1);
        assert_eq!(
            (names(&handled, Cause::Expired), drops.load(Relaxed)),
            (vec![NEW], 2)
        );
    });
}

/// The timeout may expire before `insert` goes on, and replaces the old value in its place.
#[test]
fn insert_returns_the_value_that_its_early_expiry_has_replaced() {
    explore(Some(3), [mutant("EndedItemIsInserted")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let (map, handled, drops) = values(&timer);
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
            (replaced, names(&handled, Cause::Expired)),
            (vec![OLD], vec![NEW])
        );
        assert_eq!(
            (drops.load(Relaxed), map.len(), timer.pending_timeouts()),
            (2, 0, 0)
        );
    });
}

/// The new value has a timeout of its own, or takes over that of the old one.
#[test]
fn each_value_comes_out_once_when_the_timer_stops() {
    for delay in [TICK / 2, TICK] {
        explore(Some(3), [mutant("EndedValueIsLost")], move || {
            let Values {
                driven,
                map,
                handled,
                drops,
            } = Values::with_value();
            let Driven {
                timer,
                driver: _driver,
                ..
            } = driven;
            let stop = thread::spawn(move || timer.stop().len());
            let result = map.insert(7, value(NEW, &drops), delay);
            stop.join().unwrap();
            let mut out = names(&handled, Cause::Stopped);
            match &result {
                Ok(replaced) => out.extend(replaced.as_ref().map(|value| value.name)),
                Err(rejected) => {
                    assert_eq!((rejected.key, rejected.value.name), (7, NEW));
                    out.push(NEW);
                }
            }
            out.sort_unstable();
            assert_eq!(out, [OLD, NEW]);
            drop(result);
            assert_eq!((drops.load(Relaxed), map.len()), (2, 0));
        });
    }
}

/// The timer stops while it asks a touched item for its deadline.
#[test]
fn touched_value_comes_out_once_when_the_timer_stops() {
    explore(Some(3), [mutant("EndedValueIsLost")], || {
        let Values {
            driven,
            map,
            handled,
            drops,
        } = Values::with_value();
        assert!(map.touch(&7, TICK * 9));
        let turn = pass_tick(&driven.clock, driven.driver);
        driven.timer.stop();
        let (_, _driver) = turn.join().unwrap();
        assert_eq!(names(&handled, Cause::Stopped), [OLD]);
        assert_eq!((drops.load(Relaxed), map.len()), (1, 0));
    });
}

/// A new key needs the place of an entry that another call removes.
#[test]
fn eviction_or_remove_wins() {
    explore(Some(3), [mutant("RemoveInTwoSteps")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let (handled, drops) = (Handled::default(), Arc::default());
        let handler_has = Arc::clone(&handled);
        let map = ExpiringMap::builder(&timer)
            .max_entries(1)
            .build_with_handler(move |removed: Removed<u8, Value>| {
                let mut handled = handler_has.lock().unwrap();
                handled.push((removed.value.name, removed.cause));
            });
        map.insert(7, value(OLD, &drops), TICK).unwrap();
        let (other, new) = (map.clone(), value(NEW, &drops));
        let insert = thread::spawn(move || name(other.insert(8, new, TICK).unwrap()));
        let mut out = name(map.remove(&7));
        assert!(insert.join().unwrap().is_empty());
        out.extend(names(&handled, Cause::Evicted));
        assert_eq!(out, [OLD]);
        assert_eq!((map.len(), timer.pending_timeouts()), (1, 1));
        assert!(map.contains_key(&8));
    });
}

/// A call has the entry while its time comes, or while the timer stops.
#[test]
fn entry_that_a_call_has_ends_once() {
    for stops in [false, true] {
        explore(Some(3), [mutant("EndedItemIsInserted")], move || {
            let Values {
                driven,
                map,
                handled,
                drops,
            } = Values::with_value();
            let (timer, clock) = (driven.timer.clone(), driven.clock.clone());
            let mut driver = driven.driver;
            let end = thread::spawn(move || {
                if stops {
                    timer.stop();
                } else {
                    clock.advance(TICK);
                    driver.turn();
                }
                driver
            });
            let is_found = match map.entry(7) {
                Entry::Occupied(mut entry) => {
                    entry.get_mut().name = NEW;
                    true
                }
                Entry::Vacant(_) => false,
            };
            let mut driver = end.join().unwrap();
            // The timer was perhaps asked while a call had the entry.
            driven.clock.advance(TICK);
            driver.turn();
            let cause = if stops {
                Cause::Stopped
            } else {
                Cause::Expired
            };
            let name = if is_found { NEW } else { OLD };
            assert_eq!(names(&handled, cause), [name]);
            assert_eq!((map.len(), drops.load(Relaxed)), (0, 1));
        });
    }
}

#[test]
fn two_entries_of_a_key_change_it_one_after_the_other() {
    let mutants = [
        mutant("ReservedKeyIsGivenOut"),
        mutant("FreedKeyDoesNotWake"),
    ];
    explore(Some(2), mutants, || {
        let driven = Driven::new();
        let map = ExpiringMap::new(&driven.timer);
        let add = |map: &ExpiringMap<u8, u8>| {
            *map.entry(7).or_insert(0, TICK).unwrap().get_mut() += 1;
        };
        let other = map.clone();
        let thread = thread::spawn(move || add(&other));
        add(&map);
        thread.join().unwrap();
        assert_eq!((map.get(&7), driven.timer.pending_timeouts()), (Some(2), 1));
    });
}

/// A call that finds no entry finds its value in the table of rows.
#[test]
fn get_waits_until_the_entry_is_written() {
    let mutants = [
        mutant("KeyIsFreeBeforeTheWrite"),
        mutant("DeadEntryIsNotWritten"),
        mutant("ReservedKeyIsGivenOut"),
        mutant("FreedKeyDoesNotWake"),
    ];
    explore(Some(3), mutants, || {
        let mut driven = Driven::new();
        let (row, rows) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (written, count) = (Arc::clone(&row), Arc::clone(&rows));
        let map = ExpiringMap::builder(&driven.timer).build_with_write_back(
            move |removed: Removed<u8, u8>| {
                // loom does not see the row, and otherwise no other thread runs here.
                thread::yield_now();
                written.store(removed.value.into(), Relaxed);
                count.fetch_add(1, Relaxed);
            },
        );
        map.insert(7, OLD, TICK).unwrap();
        driven.driver.turn();
        let turn = pass_tick(&driven.clock, driven.driver);
        // The other thread may run before this one reads the clock.
        assert!(map.len() <= 1);
        if map.get(&7).is_none() {
            assert_eq!(row.load(Relaxed), OLD.into());
        }
        let _driver = turn.join().unwrap();
        assert_eq!((rows.load(Relaxed), map.len()), (1, 0));
    });
}

/// The newer of two entries of a key leaves while the older one is being written.
fn newer_entry_is_written_after_the_older_one(stops: bool) {
    let Driven {
        timer,
        clock,
        mut driver,
    } = Driven::new();
    let writes = Arc::new(Mutex::new(Vec::<BoxFuture>::new()));
    let events = Arc::new(Mutex::new(Vec::new()));
    let (spawned, began) = (Arc::clone(&writes), Arc::clone(&events));
    let map = ExpiringMap::builder(&timer)
        .causes([Cause::Replaced, Cause::Expired, Cause::Stopped])
        .build_with_async_write_back(
            move |write| spawned.lock().unwrap().push(write),
            move |Removed { value, .. }: Removed<u8, u8>| {
                began.lock().unwrap().push(("begin", value));
                let ended = Arc::clone(&began);
                async move {
                    // loom does not see the events, and otherwise no other thread runs here.
                    thread::yield_now();
                    ended.lock().unwrap().push(("end", value));
                }
            },
        );
    map.insert(7, OLD, TICK).unwrap();
    driver.turn();
    map.insert(7, NEW, TICK).unwrap();
    let end_write = || {
        let mut write = writes.lock().unwrap().remove(0);
        // Its end begins the write of the newer entry, if that waits.
        let mut context = Context::from_waker(Waker::noop());
        assert!(write.as_mut().poll(&mut context).is_ready());
    };
    let (other, others_clock) = (timer.clone(), clock.clone());
    let end = thread::spawn(move || {
        if stops {
            other.stop();
        } else {
            others_clock.advance(TICK);
            driver.turn();
        }
        driver
    });
    end_write();
    let mut driver = end.join().unwrap();
    clock.advance(TICK);
    driver.turn();
    end_write();
    let expected = [("begin", OLD), ("end", OLD), ("begin", NEW), ("end", NEW)];
    assert_eq!(*events.lock().unwrap(), expected);
    assert_eq!(map.try_get(&7), Ok(None));
    assert_eq!((map.len(), timer.pending_timeouts()), (0, 0));
}

#[test]
fn expired_entry_is_written_after_an_older_one() {
    explore(Some(3), [mutant("ReturnedItemStays")], || {
        newer_entry_is_written_after_the_older_one(false);
    });
}

#[test]
fn stopped_entry_is_written_after_an_older_one() {
    explore(Some(3), [mutant("NewerEntryDoesNotWait")], || {
        newer_entry_is_written_after_the_older_one(true);
    });
}

/// The end of the map and an expiry.
#[test]
fn value_goes_to_the_handler_once_at_the_end_of_the_map() {
    explore(Some(4), [mutant("LastDropLosesValues")], || {
        let Values {
            driven,
            map,
            handled,
            drops,
        } = Values::with_value();
        let turn = pass_tick(&driven.clock, driven.driver);
        drop(map);
        let _driver = turn.join().unwrap();
        let handled = handled.lock().unwrap().clone();
        // The clock decides, also if the drop is faster than the turn.
        assert!(handled == [(OLD, Cause::Stopped)] || handled == [(OLD, Cause::Expired)]);
        assert_eq!(
            (drops.load(Relaxed), driven.timer.pending_timeouts()),
            (1, 0)
        );
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
    fn poll(self: &Arc<Self>, expired: &mut RemovedEntries<u8, u8>) -> Poll<Option<u8>> {
        expired
            .poll_recv(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
            .map(|entry| entry.map(|entry| entry.value))
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
            let turn = pass_tick(&driven.clock, driven.driver);
            let first = wakes.poll(&mut expired);
            let (_, _driver) = turn.join().unwrap();
            if first.is_pending() {
                assert_eq!(wakes.count(), 1);
                assert_eq!(wakes.poll(&mut expired), Poll::Ready(Some(OLD)));
            } else {
                assert_eq!(first, Poll::Ready(Some(OLD)));
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

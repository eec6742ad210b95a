//! Timeouts by key. The lock of the shard decides how an item ends, and loom sees that lock.

use hashed_wheel::KeyedTimeouts;

use super::*;

/// One call of `KeyedTimeouts::schedule`, as the model sees it.
struct Item(Arc<Outcome>);

impl Item {
    fn schedule(keyed: &KeyedTimeouts<u8>, ticks: u32) -> (bool, Self) {
        let outcome = Arc::new(Outcome::default());
        let task = Task(Arc::clone(&outcome));
        let replaced = keyed.schedule(7, move |_| task.count_run(), TICK * ticks).unwrap();
        (replaced, Self(outcome))
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
fn with_due_item() -> (Driven, KeyedTimeouts<u8>, Item) {
    let mut driven = Driven::new();
    let keyed = KeyedTimeouts::new(&driven.timer);
    let (replaced, item) = Item::schedule(&keyed, 1);
    assert!(!replaced);
    driven.driver.turn();
    driven.clock.advance(TICK);
    (driven, keyed, item)
}

#[test]
fn cancel_or_expiry_wins() {
    explore(None, [mutant("RemovedItemStarts")], || {
        let (driven, keyed, item) = with_due_item();
        let turn = Driven::turn(driven.driver);
        let cancelled = keyed.cancel(&7);
        let (_, _driver) = turn.join().unwrap();
        item.assert(!cancelled);
        assert!(keyed.is_empty());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn replacement_or_expiry_wins() {
    explore(Some(4), [mutant("RemovedItemStarts")], || {
        let (driven, keyed, old) = with_due_item();
        let turn = Driven::turn(driven.driver);
        let (replaced, new) = Item::schedule(&keyed, 5);
        let (_, mut driver) = turn.join().unwrap();
        old.assert(!replaced);
        assert!(!new.ran() && keyed.contains(&7) && keyed.len() == 1);
        assert_eq!(driven.timer.pending_timeouts(), 1, "a replaced timeout is cancelled");
        driven.clock.advance(TICK * 6);
        assert_eq!(driver.turn(), 1);
        new.assert(true);
        assert!(keyed.is_empty());
    });
}

#[test]
fn reset_in_time_moves_the_deadline() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let (driven, keyed, item) = with_due_item();
        let turn = Driven::turn(driven.driver);
        let reset = keyed.reset(&7, TICK * 3);
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(usize::from(reset) + expired, 1, "either the reset was in time or the expiry");
        assert_eq!((item.ran(), keyed.contains(&7)), (!reset, reset));
        driven.clock.advance(TICK * 3);
        driver.turn();
        item.assert(true);
        assert!(keyed.is_empty());
    });
}

/// The timeout may expire before `schedule` has made its item current.
#[test]
fn task_that_starts_before_schedule_returns_runs_once() {
    explore(Some(3), [mutant("PendingItemDoesNotStart")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let keyed = KeyedTimeouts::new(&timer);
        let turn = thread::spawn(move || {
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            (clock, driver)
        });
        let (replaced, item) = Item::schedule(&keyed, 0);
        let (clock, mut driver) = turn.join().unwrap();
        clock.0.fetch_add(2, AcqRel);
        driver.turn();
        assert!(!replaced);
        item.assert(true);
        assert!(keyed.is_empty());
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

/// In that case the old item is replaced before the task starts.
#[test]
fn task_that_starts_before_schedule_returns_replaces_the_current_item() {
    explore(Some(3), [mutant("PendingItemDoesNotStart")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        let keyed = KeyedTimeouts::new(&timer);
        let (_, old) = Item::schedule(&keyed, 1);
        driver.turn();
        let turn = thread::spawn(move || {
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            (clock, driver)
        });
        let (replaced, new) = Item::schedule(&keyed, 0);
        let (clock, mut driver) = turn.join().unwrap();
        clock.0.fetch_add(2, AcqRel);
        driver.turn();
        old.assert(!replaced);
        new.assert(true);
        assert!(keyed.is_empty());
        assert_eq!(timer.pending_timeouts(), 0, "a replaced timeout is cancelled");
    });
}

#[test]
fn one_of_two_schedules_of_a_key_remains() {
    explore(Some(2), [mutant("KeyedReplaceInTwoSteps")], || {
        let mut driven = Driven::new();
        let keyed = KeyedTimeouts::new(&driven.timer);
        let other = keyed.clone();
        let schedule = thread::spawn(move || Item::schedule(&other, 1));
        let (replaced, item) = Item::schedule(&keyed, 1);
        let (others_replaced, others) = schedule.join().unwrap();
        assert_ne!(replaced, others_replaced, "the later call replaces the earlier one");
        assert_eq!((keyed.len(), driven.timer.pending_timeouts()), (1, 1), "a replaced timeout is cancelled");
        driven.driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        item.assert(replaced);
        others.assert(others_replaced);
        assert!(keyed.is_empty());
    });
}

/// The item is dropped, whether `stop` finds its timeout or `schedule` is rejected.
#[test]
fn schedule_during_stop_leaves_nothing() {
    explore(None, [mutant("EndedItemStaysCurrent")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let keyed = KeyedTimeouts::new(&timer);
        let stop = thread::spawn(move || timer.stop().len());
        let outcome = Arc::new(Outcome::default());
        let task = Task(Arc::clone(&outcome));
        let scheduled = keyed.schedule(7, move |_| task.count_run(), TICK);
        let stopped = stop.join().unwrap();
        assert_eq!(stopped, usize::from(scheduled.is_ok()));
        outcome.assert(0, 0);
        assert!(keyed.is_empty());
    });
}

/// Both items of the key are dropped: the replaced one and the new one.
#[test]
fn replacement_during_stop_leaves_nothing() {
    explore(Some(3), [mutant("EndedItemStaysCurrent")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let keyed = KeyedTimeouts::new(&timer);
        let (_, old) = Item::schedule(&keyed, 1);
        let stop = thread::spawn(move || timer.stop().len());
        let outcome = Arc::new(Outcome::default());
        let task = Task(Arc::clone(&outcome));
        let _either = keyed.schedule(7, move |_| task.count_run(), TICK);
        stop.join().unwrap();
        old.assert(false);
        outcome.assert(0, 0);
        assert!(keyed.is_empty());
    });
}

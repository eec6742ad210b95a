//! Timeouts by key: what decides is the lock of the shard, which loom sees.

use hashed_wheel::KeyedTimeouts;

use super::*;

/// Of `KeyedTimeouts::schedule`, what a test knows of one call.
struct Item(Arc<Ends>);

impl Item {
    fn schedule(keyed: &KeyedTimeouts<u8>, ticks: u32) -> (bool, Self) {
        let ends = Arc::new(Ends::default());
        let task = Task(Arc::clone(&ends));
        let replaced = keyed.schedule(7, move |_| task.run_it(), TICK * ticks).unwrap();
        (replaced, Self(ends))
    }

    /// It ran, or was dropped.
    #[track_caller]
    fn assert(&self, ran: bool) {
        self.0.assert(usize::from(ran), 0);
    }

    fn ran(&self) -> bool {
        self.0.runs.load(Relaxed) > 0
    }
}

impl Task {
    fn run_it(self) {
        self.0.runs.fetch_add(1, Relaxed);
    }
}

/// What is placed under the key and in the wheel, due at once.
fn due() -> (Driven, KeyedTimeouts<u8>, Item) {
    let mut driven = Driven::new();
    let keyed = KeyedTimeouts::new(&driven.timer);
    let (replaced, item) = Item::schedule(&keyed, 1);
    assert!(!replaced);
    driven.driver.turn();
    driven.clock.advance(TICK);
    (driven, keyed, item)
}

#[test]
fn of_a_cancel_and_the_expiry_one_wins() {
    explore(None, [mutant("BeginWithoutLook")], || {
        let (driven, keyed, item) = due();
        let turn = Driven::turn(driven.driver);
        let cancelled = keyed.cancel(&7);
        let (_, _driver) = turn.join().unwrap();
        item.assert(!cancelled);
        assert!(keyed.is_empty());
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn of_a_replacement_and_the_expiry_one_wins() {
    explore(Some(4), [mutant("BeginWithoutLook")], || {
        let (driven, keyed, old) = due();
        let turn = Driven::turn(driven.driver);
        let (replaced, new) = Item::schedule(&keyed, 5);
        let (_, mut driver) = turn.join().unwrap();
        old.assert(!replaced);
        assert!(!new.ran() && keyed.contains(&7) && keyed.len() == 1);
        assert_eq!(driven.timer.pending_timeouts(), 1, "no orphan");
        driven.clock.advance(TICK * 6);
        assert_eq!(driver.turn(), 1);
        new.assert(true);
        assert!(keyed.is_empty());
    });
}

#[test]
fn a_reset_that_was_in_time_moves_the_deadline() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let (driven, keyed, item) = due();
        let turn = Driven::turn(driven.driver);
        let reset = keyed.reset(&7, TICK * 3);
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(usize::from(reset) + expired, 1, "re-armed, or expired before");
        assert_eq!((item.ran(), keyed.contains(&7)), (!reset, reset));
        driven.clock.advance(TICK * 3);
        driver.turn();
        item.assert(true);
        assert!(keyed.is_empty());
    });
}

/// It may have expired before it is under its key.
#[test]
fn a_task_that_is_faster_than_its_schedule_runs_once_and_leaves_nothing() {
    explore(Some(3), [mutant("BeginOnlyPlaced")], || {
        let clock = Seen::default();
        let (timer, mut driver) = small().clock(clock.clone()).build_driven().unwrap();
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

/// Then what it replaces is replaced before it begins.
#[test]
fn a_task_that_is_faster_than_its_schedule_replaces_what_is_there() {
    explore(Some(3), [mutant("BeginOnlyPlaced")], || {
        let clock = Seen::default();
        let (timer, mut driver) = small().clock(clock.clone()).build_driven().unwrap();
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
        assert_eq!(timer.pending_timeouts(), 0, "no orphan");
    });
}

#[test]
fn of_two_schedules_of_a_key_one_is_left() {
    explore(Some(2), [mutant("ReplaceInTwoSteps")], || {
        let mut driven = Driven::new();
        let keyed = KeyedTimeouts::new(&driven.timer);
        let other = keyed.clone();
        let schedule = thread::spawn(move || Item::schedule(&other, 1));
        let (replaced, item) = Item::schedule(&keyed, 1);
        let (others_replaced, others) = schedule.join().unwrap();
        assert_ne!(replaced, others_replaced, "the later one replaces the earlier one");
        assert_eq!((keyed.len(), driven.timer.pending_timeouts()), (1, 1), "no orphan");
        driven.driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        item.assert(replaced);
        others.assert(others_replaced);
        assert!(keyed.is_empty());
    });
}

/// Whichever timeout `stop` finds, its item is gone: placed, coming, or refused.
#[test]
fn a_schedule_leaves_nothing_to_a_stopped_timer() {
    explore(None, [mutant("PlacedForEver")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let keyed = KeyedTimeouts::new(&timer);
        let stop = thread::spawn(move || timer.stop().len());
        let ends = Arc::new(Ends::default());
        let task = Task(Arc::clone(&ends));
        let scheduled = keyed.schedule(7, move |_| task.run_it(), TICK);
        let stopped = stop.join().unwrap();
        assert_eq!(stopped, usize::from(scheduled.is_ok()));
        ends.assert(0, 0);
        assert!(keyed.is_empty());
    });
}

/// Of both the key's timeouts: a replacement, and what it replaces.
#[test]
fn a_replacement_and_stop_leave_nothing() {
    explore(Some(3), [mutant("PlacedForEver")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let keyed = KeyedTimeouts::new(&timer);
        let (_, old) = Item::schedule(&keyed, 1);
        let stop = thread::spawn(move || timer.stop().len());
        let ends = Arc::new(Ends::default());
        let task = Task(Arc::clone(&ends));
        let _either = keyed.schedule(7, move |_| task.run_it(), TICK);
        stop.join().unwrap();
        old.assert(false);
        ends.assert(0, 0);
        assert!(keyed.is_empty());
    });
}

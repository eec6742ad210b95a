//! The occupancy of the slots, on both wheels, with a clock that moves only when the test moves it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::common::{self, Driven, Schedules, TICK, ms};
use hashed_wheel::wheel::order::SlotCounts;
use hashed_wheel::{Builder, Occupancy, Timeout, Unavailable};

impl Driven {
    fn after(&self, ticks: u32) -> Timeout {
        self.timer.schedule(|_| (), TICK * ticks)
    }

    #[track_caller]
    fn occupancy(&self) -> Occupancy {
        self.timer
            .occupancy()
            .expect("no turn is in progress, and the timer is not stopped")
    }
}

/// Returns the slots that are not empty, with their counts.
fn occupied(level: &SlotCounts) -> Vec<(usize, usize)> {
    let counts = level.slots.iter().copied().enumerate();
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Returns the number of ticks per slot, for each level.
fn widths(levels: &[SlotCounts]) -> Vec<u64> {
    levels.iter().map(|level| level.ticks_per_slot).collect()
}

#[test]
fn a_new_timer_is_empty() {
    let t = Driven::new();
    let wheel = t.occupancy();
    assert_eq!((wheel.tick, wheel.queued), (0, 0));
    let [level] = &wheel.levels[..] else {
        panic!("{wheel:?}");
    };
    assert_eq!((level.ticks_per_slot, level.current_slot), (1, 0));
    assert_eq!(level.slots[..], [0; 8]);

    let t = Driven::with(|builder| builder.hierarchical(true));
    assert_eq!(t.occupancy().levels, [], "no level has been needed");
}

#[test]
fn each_timeout_is_in_the_slot_of_its_tick() {
    let mut t = Driven::new();
    // Slots 1, 3, 7, 0, and slot 3 twice more in later rounds.
    _ = [1, 3, 7, 8, 11, 8 * 1_000 + 3].map(|ticks| t.after(ticks));
    let cancelled = t.after(2);
    cancelled.cancel();
    let before = t.occupancy();
    assert_eq!(occupied(&before.levels[0]), []);
    assert_eq!(before.queued, 7, "the worker has not read the messages");

    t.turn();
    let after = t.occupancy();
    assert_eq!(occupied(&after.levels[0]), [(0, 1), (1, 1), (3, 3), (7, 1)]);
    assert_eq!(after.queued, 0);
}

#[test]
fn an_expired_timeout_leaves_its_slot() {
    let mut t = Driven::new();
    _ = [1, 3, 11].map(|ticks| t.after(ticks));
    assert_eq!(t.pass(TICK * 3), 2);
    let wheel = t.occupancy();
    assert_eq!((wheel.tick, wheel.levels[0].current_slot), (3, 3));
    assert_eq!(occupied(&wheel.levels[0]), [(3, 1)], "one round later");
    assert_eq!(t.pass(TICK * 8), 1);
    assert_eq!(occupied(&t.occupancy().levels[0]), []);
}

#[test]
fn a_cancelled_timeout_occupies_its_slot_until_the_next_turn() {
    let mut t = Driven::new();
    let timeout = t.after(5);
    t.turn();
    timeout.cancel();
    assert_eq!(occupied(&t.occupancy().levels[0]), [(5, 1)]);
    assert_eq!(t.pending(), 0);
    t.turn();
    assert_eq!(occupied(&t.occupancy().levels[0]), []);
}

#[test]
fn a_timeout_reset_to_later_stays_in_its_slot_until_the_worker_reaches_it() {
    let mut t = Driven::new();
    let timeout = t.after(2);
    t.turn();
    assert!(timeout.reset(TICK * 6));
    t.turn();
    assert_eq!(occupied(&t.occupancy().levels[0]), [(2, 1)]);
    assert_eq!(t.pass(TICK * 2), 0);
    assert_eq!(occupied(&t.occupancy().levels[0]), [(6, 1)]);
}

#[test]
fn the_current_slot_follows_the_clock() {
    let mut t = Driven::new();
    t.after(100);
    t.turn();
    for (passes, tick, present) in [
        (ms(9), 0, 0),
        (ms(1), 1, 1),
        (TICK * 6, 7, 7),
        (TICK, 8, 0),
        (TICK * 91, 99, 3),
    ] {
        // No turn is made: the worker sleeps.
        t.clock.advance(passes);
        let wheel = t.occupancy();
        assert_eq!((wheel.tick, wheel.levels[0].current_slot), (tick, present));
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn unread_messages_are_counted_as_queued() {
    let mut t = Driven::new();
    // More messages than one turn reads.
    (0..100_003).for_each(|_| drop(t.after(1)));
    assert_eq!(t.pass(TICK), 100_000);
    assert_eq!(t.occupancy().queued, 3);
    assert_eq!(t.turn(), 3);
    assert_eq!(t.occupancy().queued, 0);

    // `next_turn` reads the messages.
    t.after(1);
    assert_eq!(t.occupancy().queued, 1);
    assert_eq!(t.next_turn(), Some(TICK));
    let wheel = t.occupancy();
    assert_eq!(wheel.queued, 0);
    assert_eq!(occupied(&wheel.levels[0]), [(2, 1)]);
}

#[test]
fn the_hierarchical_wheel_has_the_levels_that_were_needed() {
    let mut t = Driven::with(|builder| builder.hierarchical(true));
    // In the third level: 2 · 64 + 1 · 8 + 5 ticks.
    t.after(2 * 64 + 8 + 5);
    t.turn();
    let levels = t.occupancy().levels;
    assert_eq!(widths(&levels), [64]);
    assert_eq!(occupied(&levels[0]), [(2, 1)]);
    assert_eq!((levels[0].current_slot, levels[0].slots.len()), (0, 8));

    // One more, in the lowest level.
    t.after(3);
    t.turn();
    let levels = t.occupancy().levels;
    assert_eq!(widths(&levels), [1, 64]);
    assert_eq!(occupied(&levels[0]), [(3, 1)]);

    // So few entries are in no level. Each counts for the slot that it would have at the current
    // tick: this one moves down to the lowest level.
    assert_eq!(t.pass(TICK * (2 * 64 + 8 + 4)), 1);
    let wheel = t.occupancy();
    assert_eq!(wheel.tick, 2 * 64 + 8 + 4);
    let present: Vec<_> = wheel
        .levels
        .iter()
        .map(|level| (level.ticks_per_slot, level.current_slot))
        .collect();
    assert_eq!(present, [(1, 4)]);
    let full: usize = wheel.levels.iter().flat_map(|level| &level.slots).sum();
    assert_eq!(full, 1);
    assert_eq!(t.pass(TICK), 1);
    let levels = t.occupancy().levels;
    assert!(levels.iter().all(|level| occupied(level).is_empty()));
}

/// The uppermost level ends with the 64 bits of a tick. A timeout that never fires is in that level
/// or below.
#[test]
fn a_timeout_that_never_fires_has_a_slot() {
    for slots in [1, 2, 8, 512, 1 << 12] {
        for hierarchical in [false, true] {
            let tick = Duration::from_micros(1);
            let with_wheel = |builder: Builder| builder.ticks_per_wheel(slots).tick(tick);
            let mut t = Driven::with(|builder| with_wheel(builder).hierarchical(hierarchical));
            t.schedule(|_| (), Duration::MAX);
            t.pass(Duration::from_secs(1 << 30));
            let levels = t.occupancy().levels;
            let counts = levels.iter().flat_map(occupied).map(|(_, count)| count);
            assert_eq!(counts.sum::<usize>(), 1);
            let mut levels = levels.iter();
            assert!(levels.all(|level| level.current_slot < level.slots.len()));
        }
    }
}

#[test]
fn occupancy_is_not_available_to_a_task_on_the_worker() {
    let mut t = Driven::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let (timer, count) = (t.timer.clone(), Arc::clone(&seen));
    let task = move |_: &Timeout| {
        assert_eq!(timer.occupancy(), Err(Unavailable::Busy));
        count.fetch_add(1, SeqCst);
    };
    t.schedule(task, TICK);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!((seen.load(SeqCst), t.stats().panics), (1, 0));
    t.occupancy();
}

#[test]
fn occupancy_does_not_wait_for_a_turn() {
    let mut t = Driven::new();
    let in_turn = Arc::new(Barrier::new(2));
    let task = Arc::clone(&in_turn);
    let blocks = move |_: &Timeout| {
        task.wait();
        // Until the other thread has read the occupancy.
        task.wait();
    };
    t.schedule(blocks, TICK);
    t.clock.advance(TICK);
    let turn = thread::spawn(move || (t.driver.turn(), t.driver));
    in_turn.wait();
    assert_eq!(t.timer.occupancy(), Err(Unavailable::Busy));
    in_turn.wait();
    let (expired, _driver) = turn.join().unwrap();
    assert_eq!(expired, 1);
    assert!(t.timer.occupancy().is_ok());
}

#[test]
fn a_stopped_timer_has_no_wheel() {
    let mut t = Driven::new();
    t.after(3);
    t.turn();
    assert_eq!(t.timer.stop().len(), 1);
    let error = t.timer.occupancy().unwrap_err();
    assert_eq!(error, Unavailable::Stopped);
    assert_eq!(error.to_string(), "the timer is stopped");

    let t = Driven::new();
    drop(t.driver);
    assert_eq!(t.timer.occupancy(), Err(Unavailable::Stopped));
}

/// A thread that reads the occupancy as often as it can does not delay the timer.
#[test]
fn reading_the_occupancy_does_not_delay_the_timer() {
    const COUNT: u64 = if cfg!(miri) { 30 } else { 200 };

    let timer = hashed_wheel::HashedWheelTimer::new(ms(1), 512);
    let fired = Arc::new(AtomicUsize::new(0));
    let other = timer.clone();
    let reader = thread::spawn(move || {
        let mut seen = 0;
        while !other.is_stopped() {
            seen += usize::from(other.occupancy().is_ok());
        }
        assert_eq!(other.occupancy(), Err(Unavailable::Stopped));
        seen
    });
    for delay in 0..COUNT {
        let fired = Arc::clone(&fired);
        timer.schedule(move |_| _ = fired.fetch_add(1, SeqCst), ms(delay));
    }
    assert!(timer.shutdown(common::TEST_TIMEOUT).is_empty());
    assert_eq!(fired.load(SeqCst), COUNT as usize);
    assert!(reader.join().unwrap() > 0);
}

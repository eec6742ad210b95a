//! The tests of other timers, in our own words, on a clock that moves only when the test moves it.
//!
//! `docs/ported-tests.md` says which versions the tests are from, and lists those that end
//! differently here. Each test names the cases that it stands for. Cases that another file of
//! `tests` already had are not repeated.
// Miri would take hours.
#![cfg(not(miri))]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use crate::common::{
    Driven, Ends, Gate, STOPPED, Schedules, TICK, accepts_all, ends, ms, panics, quietly,
};
use hashed_wheel::{
    BuildError, Clock, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Periodic,
    Timeout,
};

const SECOND: Duration = Duration::from_secs(1);

/// Two timers with a tick of one millisecond: one with a hashed wheel, one with a hierarchical one.
fn timers() -> [Driven; 2] {
    [
        Driven::with(|builder| builder.tick(ms(1))),
        Driven::with(|builder| builder.tick(ms(1)).hierarchical(true)),
    ]
}

/// Repeats a test for both wheels.
macro_rules! on_both_wheels {
    (|$Wheel:ident| $test:block) => {{
        use hashed_wheel::wheel::HashedWheel as $Wheel;
        $test
    }
    {
        use hashed_wheel::wheel::HierarchicalWheel as $Wheel;
        $test
    }};
}

/// The names of the tasks that ran, each with the time in milliseconds.
#[derive(Clone)]
struct Fired(ManualClock, Arc<Mutex<Vec<(u64, u64)>>>);

impl Fired {
    fn on(t: &Driven) -> Self {
        Self(t.clock.clone(), Arc::default())
    }

    fn add(&self, name: u64) {
        self.1
            .lock()
            .unwrap()
            .push((name, self.0.now().as_millis() as u64));
    }

    fn task(&self, name: u64) -> impl FnOnce(&Timeout) + Send + 'static {
        let fired = self.clone();
        move |_| fired.add(name)
    }

    fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.1.lock().unwrap())
    }
}

impl Driven {
    /// Turns the timer every millisecond, for so many of them.
    fn run_for(&mut self, millis: u64) {
        for _ in 0..millis {
            self.pass(ms(1));
        }
    }

    /// Turns the timer whenever it asks for a turn, until nothing is pending.
    fn run(&mut self) {
        while let Some(wait) = self.driver.next_turn() {
            self.pass(wait);
        }
    }
}

// --- java.util.concurrent ------------------------------------------------------------------------

/// JSR-166: `DelayQueueTest`, `ScheduledExecutorTest`. See also `tests/delay_queue.rs` and
/// `tests/it/periodic.rs`.
mod jsr166 {
    use super::*;

    /// `testSchedule1`, `testSchedule3`: a task has no result; it sends one.
    #[test]
    fn a_task_runs_after_its_delay_and_sends_its_result() {
        for mut t in timers() {
            let (sender, result) = mpsc::channel();
            let timeout = t.schedule(move |_| sender.send(true).unwrap(), ms(12));
            t.run_for(11);
            assert!(result.try_recv().is_err() && !timeout.is_expired());
            t.run_for(1);
            assert!(result.try_recv().unwrap() && timeout.is_expired());
        }
    }

    /// `testSchedule4`, `testSchedule5`, `testFixedRateSequence`, `testFixedDelaySequence`.
    #[test]
    fn eight_runs_are_at_the_multiples_of_the_period() {
        for delay in [1, 3, 9, 27, 81] {
            for with_fixed_delay in [false, true] {
                for mut t in timers() {
                    let fired = Fired::on(&t);
                    let (log, delay) = (fired.clone(), ms(delay));
                    let task = move || log.add(0);
                    let periodic = if with_fixed_delay {
                        t.fixed_delay(task, delay, delay)
                    } else {
                        t.fixed_rate(task, delay, delay)
                    };
                    t.run_for(8 * delay.as_millis() as u64);
                    assert!(periodic.cancel());
                    t.pass(delay * 100);
                    let expected = (1..=8).map(|run| (0, run * delay.as_millis() as u64));
                    assert!(fired.take().into_iter().eq(expected));
                }
            }
        }
    }

    /// `testGetTaskCount`, `testGetCompletedTaskCount`: `expired` counts a task from its beginning,
    /// and not from its end. A difference.
    #[test]
    fn a_task_counts_as_expired_while_it_runs() {
        let mut t = Driven::new();
        let (sender, counts) = mpsc::channel();
        let task = move |timeout: &Timeout| sender.send(timeout.timer().stats()).unwrap();
        t.schedule(task, TICK);
        t.schedule(|_| (), TICK * 2);
        assert_eq!((t.stats().scheduled, t.stats().expired), (2, 0));
        t.pass(TICK);
        let within = counts.try_recv().unwrap();
        assert_eq!((within.scheduled, within.expired), (2, 1));
        t.pass(TICK);
        assert_eq!((t.stats().scheduled, t.stats().expired), (2, 2));
    }

    /// `testPurge`: a cancelled task leaves the count at once, without a purge.
    #[test]
    fn a_cancelled_task_is_not_counted() {
        let t = Driven::new();
        let tasks = [(); 5].map(|()| t.schedule(|_| (), SECOND));
        assert!(tasks[4].cancel() && tasks[3].cancel());
        assert_eq!(t.pending(), 3);
    }

    /// `testShutdownNow_delayedTasks`: the tasks are returned, and here they are cancelled. A
    /// difference.
    #[test]
    fn stop_returns_and_cancels_delayed_and_periodic_tasks() {
        let mut t = Driven::new();
        let delay = SECOND * 9;
        let (timeouts, periodics): (Vec<Timeout>, Vec<[Periodic; 2]>) = (0..3)
            .map(|_| {
                let at_rate = t.fixed_rate(|| (), delay, delay);
                let with_delay = t.fixed_delay(|| (), delay, delay);
                (t.schedule(|_| (), delay), [at_rate, with_delay])
            })
            .unzip();
        assert_eq!(t.pending(), 9);
        let rest = t.timer.stop();
        assert_eq!((rest.len(), t.pending()), (9, 0));
        assert!(timeouts.iter().all(|timeout| rest.contains(timeout)));
        assert!(rest.iter().all(Timeout::is_cancelled));
        assert!(!rest.iter().any(Timeout::is_expired));
        assert!(periodics.iter().flatten().all(Periodic::is_cancelled));
        assert_eq!(t.pass(delay), 0);
    }

    /// `testShutdownNow`, `testSubmittedTasksRejectedWhenShutdown`, `testIsShutdown`,
    /// `testIsTerminated`: a task that runs is not interrupted, and `stop` returns after it. A
    /// difference.
    #[test]
    fn stop_waits_for_a_running_task_and_rejects_meanwhile() {
        let timer = HashedWheelTimer::new(ms(1), 64);
        let (gate, wait) = Gate::new();
        let running = timer.schedule(move |_| wait(), ms(1));
        gate.wait_for_arrival();
        let waiting = timer.schedule(|_| (), Duration::ZERO);
        let other = timer.clone();
        let stop = std::thread::spawn(move || other.stop());
        let timer = ends(move || {
            while timer.start().is_ok() {
                std::thread::yield_now();
            }
            timer
        });
        assert_eq!(timer.new_timeout(|_| (), SECOND), Err(STOPPED));
        assert!(!stop.is_finished());
        gate.open();
        assert_eq!(ends(move || stop.join().unwrap()), [waiting]);
        assert!(timer.is_stopped() && running.is_expired());
        assert_eq!(timer.new_timeout(|_| (), SECOND), Err(STOPPED));
    }

    /// `testScheduleWithFixedDelay_overflow`.
    #[test]
    fn an_infinite_period_holds_up_nothing() {
        for mut t in timers() {
            let (delayed, immediate) = (Fired::on(&t), Fired::on(&t));
            let (log, at_once, timer) = (delayed.clone(), immediate.clone(), t.timer.clone());
            let task = move || {
                log.add(0);
                timer.schedule(at_once.task(0), Duration::ZERO);
            };
            t.fixed_delay(task, Duration::ZERO, Duration::MAX);
            t.run_for(2);
            assert_eq!([delayed.take(), immediate.take()], [[(0, 1)], [(0, 2)]]);
        }
    }

    /// `testRemove`, `testGetQueue`: the queue itself cannot be read; the handles tell the same.
    #[test]
    fn a_task_that_runs_is_not_cancelled_and_one_that_waits_is_cancelled_once() {
        let mut t = Driven::new();
        let waiting = Arc::new(OnceLock::<[Timeout; 4]>::new());
        let others = Arc::clone(&waiting);
        let first = move |timeout: &Timeout| {
            let [_, _, fourth, fifth] = others.get().unwrap();
            assert!(!timeout.cancel() && timeout.is_expired());
            assert!(!fourth.is_expired() && !fifth.is_expired());
            let cancelled = [fifth.cancel(), fifth.cancel(), fourth.cancel()];
            assert_eq!(cancelled, [true, false, true]);
        };
        t.schedule(first, TICK);
        waiting
            .set([(); 4].map(|()| t.schedule(|_| (), TICK)))
            .unwrap();
        assert_eq!(t.pass(TICK), 3);
        assert_eq!(t.stats().panics, 0);
    }
}

// --- Kafka ---------------------------------------------------------------------------------------

mod kafka {
    use super::*;

    /// `TimerTest.testAlreadyExpiredTask`, `TimingWheelTest.testAddExpiredTask` and
    /// `testAddTaskInCurrentBucket`; `MockTimer.add`: Kafka runs such a task at once. A difference.
    #[test]
    fn a_task_that_is_due_already_waits_for_a_tick() {
        let mut t = Driven::new();
        let fired = Fired::on(&t);
        t.pass(ms(1_000));
        for (name, early) in (0..5).map(|name| (name, ms(name))) {
            t.schedule_at(fired.task(name), t.timer.now() - early);
        }
        t.schedule(fired.task(5), ms(5));
        assert_eq!((t.turn(), t.pending()), (0, 6));
        assert_eq!(t.pass(TICK), 6);
        assert_eq!(fired.take(), [0, 1, 2, 3, 4, 5].map(|name| (name, 1_010)));
    }

    /// `TimerTest.testTaskExpiration`.
    #[test]
    fn tasks_of_500_delays_run_in_order() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let twice = (10..100).flat_map(|delay| [delay, delay]);
            let delays: Vec<_> = (0..5).chain(twice).chain(100..500).collect();
            for &delay in &delays {
                t.schedule(fired.task(delay), ms(delay));
            }
            assert_eq!(t.pass(ms(2_000)), delays.len());
            assert!(fired.take().into_iter().map(|(delay, _)| delay).eq(delays));
        }
    }

    /// `TimingWheelTest.testAddValidTask`, `testAddExpiredTask`, `testAddTaskInCurrentBucket`: an
    /// entry that is due is accepted here. A difference.
    #[test]
    fn a_wheel_accepts_entries_that_are_due() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(5);
            wheel.advance(100, |_| unreachable!());
            for (deadline, name) in [(102, "valid"), (99, "past"), (100, "now")] {
                wheel.insert(deadline, name);
            }
            assert_eq!(wheel.len(), 3);
            let mut fired = Vec::new();
            wheel.advance(100, |name| fired.push(name));
            assert_eq!((fired, wheel.len()), (vec!["past", "now"], 1));
        });
    }

    /// `TimingWheelTest.testAdvanceClockWithinTick`, `testAdvanceClockToNextTick`.
    #[test]
    fn time_within_a_tick_does_not_move_the_wheel() {
        let mut t = Driven::new();
        t.schedule(|_| (), TICK * 9);
        let tick = |t: &Driven| t.timer.occupancy().unwrap().tick;
        t.pass(ms(5));
        assert_eq!(tick(&t), 0);
        t.pass(ms(5));
        assert_eq!(tick(&t), 1);
    }

    /// `TimingWheelTest.testOverflowWheelCreation`, `testAdvanceClockWithOverflowWheel`.
    #[test]
    fn a_level_is_made_when_it_is_needed_and_follows_the_time() {
        let mut t = Driven::with(|builder| builder.hierarchical(true));
        // The width of a slot of each level, and its current slot.
        let levels = |t: &Driven| -> Vec<_> {
            let wheel = t.timer.occupancy().unwrap();
            wheel
                .levels
                .iter()
                .map(|level| (level.ticks_per_slot, level.current_slot))
                .collect()
        };
        // The first 32 are in a list instead, until their time has come.
        for _ in 0..33 {
            t.schedule(|_| (), TICK);
        }
        t.turn();
        assert_eq!(levels(&t), [(1, 0)]);
        for delay in [9, 10] {
            t.schedule(|_| (), TICK * delay);
            t.turn();
            assert_eq!(levels(&t), [(1, 0), (8, 0)]);
        }
        assert_eq!(t.pass(TICK * 8), 33);
        assert_eq!(levels(&t), [(1, 0), (8, 1)]);
        assert_eq!(t.pass(TICK * 2), 2);
    }

    /// `TimerTaskListTest.testAll`, `testGetDelay`; `TimingWheelTest.testAddCancelledTask`.
    #[test]
    fn a_reset_changes_no_count_and_a_cancel_does() {
        let mut t = Driven::new();
        let timeouts = [(); 10].map(|()| t.schedule(|_| (), SECOND * 10));
        for timeout in &timeouts {
            assert!(timeout.reset(SECOND * 10));
            assert_eq!(t.pending(), 10);
        }
        t.pass(SECOND * 5);
        assert_eq!(timeouts[0].remaining(), SECOND * 5);
        assert_eq!(t.next_turn(), Some(SECOND * 5));
        for (timeout, left) in timeouts.iter().zip((0..10).rev()) {
            assert!(timeout.cancel() && !timeout.reset(SECOND));
            assert_eq!(t.pending(), left);
        }
        assert_eq!(t.pass(SECOND * 20), 0);
    }

    /// `SystemTimerReaperTest.testReaper`, `testSharedTimerBetweenConsumers`.
    #[test]
    fn a_timer_serves_the_handles_that_are_left() {
        let mut t = Driven::new();
        let fired = Fired::on(&t);
        let first = t.timer.clone();
        first.schedule(fired.task(1), ms(100));
        t.schedule(fired.task(2), ms(200));
        t.run_for(100);
        drop(first);
        t.run_for(100);
        t.schedule(fired.task(3), ms(100));
        t.run_for(100);
        assert_eq!(fired.take(), [(1, 100), (2, 200), (3, 300)]);
    }

    /// `MockTimer.advanceClock` runs a task one millisecond after its deadline. A difference.
    #[test]
    fn a_task_runs_when_the_clock_shows_its_deadline() {
        for mut t in timers() {
            t.schedule(|_| (), ms(100));
            assert_eq!((t.pass(ms(99)), t.pass(ms(1))), (0, 1));
        }
    }
}

// --- Dubbo ---------------------------------------------------------------------------------------

mod dubbo {
    use super::*;

    /// `constructorTest`.
    #[test]
    fn settings_are_checked_and_there_may_be_many_timers() {
        let build = |tick, slots| {
            HashedWheelTimer::builder()
                .tick(tick)
                .ticks_per_wheel(slots)
                .build()
                .map(drop)
        };
        assert!(build(ms(100), 8).is_ok());
        assert_eq!(build(Duration::ZERO, 8), Err(BuildError::ZeroTick));
        assert_eq!(build(ms(100), 0), Err(BuildError::ZeroTicksPerWheel));
        assert!(matches!(
            build(ms(u64::MAX), 8),
            Err(BuildError::TickTooLong { .. })
        ));
        assert!(matches!(
            build(ms(100), i32::MAX as usize),
            Err(BuildError::TooManyTicksPerWheel { .. })
        ));
        let timers: Vec<_> = (0..128).map(|_| HashedWheelTimer::default()).collect();
        assert!(timers.iter().all(|timer| !timer.is_stopped()));
    }

    /// `createTaskTest`.
    #[test]
    fn a_task_that_panics_has_expired_and_the_limit_rejects_the_ninth() {
        let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(8)));
        let timeout = t.schedule(|_| panic!("a test"), TICK);
        assert_eq!(quietly(|| t.pass(TICK)), 1);
        assert!(!timeout.cancel() && !timeout.is_cancelled());
        assert!(!format!("{timeout:?}").is_empty());

        let far = t.schedule(|_| (), SECOND * 1_000);
        assert!(far.cancel() && far.is_cancelled());

        let due = [(); 8].map(|()| t.schedule(|_| (), Duration::ZERO));
        assert_eq!(t.pending(), 8);
        let rejected = t.timer.new_timeout(|_| (), ms(1));
        assert_eq!(rejected, Err(NewTimeoutError::TooManyPending { limit: 8 }));
        t.pass(TICK);
        assert!(due[2].is_expired());
        assert!(t.timer.stop().is_empty());
    }

    /// `stopTaskTest`.
    #[test]
    fn a_task_cannot_stop_its_timer_and_a_stopped_timer_rejects() {
        let mut t = Driven::new();
        let stop = |timeout: &Timeout| drop(timeout.timer().stop());
        t.schedule(stop, TICK);
        assert_eq!(quietly(|| t.pass(TICK)), 1);
        assert!(t.stats().panics == 1 && !t.timer.is_stopped());
        for _ in 0..8 {
            t.schedule(|_| (), Duration::ZERO);
        }
        assert_eq!(t.timer.stop().len(), 8);
        assert!(t.timer.is_stopped());
        assert_eq!(t.timer.new_timeout(|_| (), SECOND), Err(STOPPED));
    }
}

// --- Agrona --------------------------------------------------------------------------------------

/// `DeadlineTimerWheelTest`, on the plain wheels.
mod agrona {
    use super::*;

    /// Advances tick by tick from `from` on, and returns each value with its tick.
    macro_rules! fired {
        ($wheel:expr, $ticks:expr) => {{
            let mut fired = Vec::new();
            for tick in $ticks {
                $wheel.advance(tick, |name| fired.push((name, tick)));
            }
            fired
        }};
    }

    /// `shouldExceptionOnNonPowerOfTwoTicksPerWheel`, `shouldExceptionOnNonPowerOfTwoResolution`: a
    /// difference. `shouldDefaultConfigure`.
    #[test]
    fn sizes_are_rounded_up_and_any_resolution_will_do() {
        let t = Driven::with(|builder| {
            builder
                .ticks_per_wheel(10)
                .tick(Duration::from_nanos(17_001))
        });
        let sizes = (t.timer.ticks_per_wheel(), t.timer.tick_duration());
        assert_eq!(sizes, (16, Duration::from_nanos(17_001)));
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(10);
            wheel.insert(11, 0);
            assert_eq!(fired!(wheel, 0..20), [(0, 11)]);
        });
    }

    /// `shouldBeAbleToScheduleTimerOnEdgeOfTick`, `shouldHandleNonZeroStartTime`,
    /// `shouldHandleMultipleRounds`, `shouldHandleMultipleTimersInDifferentTicks`,
    /// `…InSameTickSameRound`, `…InSameTickDifferentRound`: a tick earlier here. A difference.
    #[test]
    fn an_entry_fires_at_its_tick_and_not_at_the_next() {
        on_both_wheels!(|Wheel| {
            for (slots, start, deadlines) in [
                (1_024, 0, [5, 5]),
                (1_024, 100, [105, 105]),
                (16, 0, [63, 63]),
                (256, 0, [15, 23]),
                (8, 0, [15, 15]),
                (8, 0, [15, 23]),
            ] {
                let mut wheel = Wheel::new(slots);
                wheel.advance(start, |_| unreachable!());
                for (name, deadline) in deadlines.into_iter().enumerate() {
                    wheel.insert(deadline, name);
                }
                let expected = [(0, deadlines[0]), (1, deadlines[1])];
                assert_eq!(fired!(wheel, start..200), expected);
            }
        });
    }

    /// `shouldHandleNanoTimeUnitTimers`.
    #[test]
    fn a_deadline_between_two_ticks_fires_at_the_second() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            t.schedule(fired.task(0), ms(5) + Duration::from_nanos(1));
            t.run_for(10);
            assert_eq!(fired.take(), [(0, 6)]);
        }
    }

    /// `shouldBeAbleToCancelTimer`, `shouldClearOutScheduledTimers`.
    #[test]
    fn a_removed_entry_does_not_fire() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(256);
            let key = wheel.insert(63, 0);
            assert_eq!(fired!(wheel, 0..16), []);
            assert_eq!((wheel.remove(key), wheel.remove(key)), (Some(0), None));
            assert_eq!(fired!(wheel, 16..128), []);
            let keys = [wheel.insert(143, 1), wheel.insert(150, 2)];
            assert_eq!(wheel.drain().count(), 2);
            assert!(wheel.is_empty() && keys.iter().all(|&key| wheel.get(key).is_none()));
        });
    }

    /// `shouldHandleExpiringTimersInPreviousTicks`: in one call. `shouldScheduleDeadlineInThePast`,
    /// `shouldExpandTickAllocation`.
    #[test]
    fn late_and_overdue_entries_fire_in_the_next_call() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(256);
            wheel.insert(15, 0);
            assert_eq!(fired!(wheel, [32]), [(0, 32)]);
            wheel.insert(29, 1);
            assert_eq!(fired!(wheel, [32]), [(1, 32)]);
            let keys = [1, 2, 3, 4, 5].map(|name| wheel.insert(32 + name, name));
            assert_eq!(
                keys.map(|key| wheel.get(key).copied()),
                [1, 2, 3, 4, 5].map(Some)
            );
            assert_eq!(fired!(wheel, [38]), [1, 2, 3, 4, 5].map(|name| (name, 38)));
        });
    }

    /// `shouldHandleFalseReturnToExpireTimerAgain`: an entry cannot refuse to fire, and is inserted
    /// again instead. A difference.
    #[test]
    fn an_entry_that_is_to_fire_again_is_inserted_again() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(8);
            wheel.insert(15, 1);
            wheel.insert(15, 2);
            let (mut fired, mut again) = (Vec::new(), vec![1]);
            for tick in 0..20 {
                wheel.advance(tick, |name| fired.push((name, tick)));
                if fired.len() == 2 {
                    again
                        .drain(..)
                        .for_each(|name| _ = wheel.insert(tick + 1, name));
                }
            }
            assert_eq!(fired, [(1, 15), (2, 15), (1, 16)]);
        });
    }

    /// `shouldCopeWithExceptionFromHandler`: a tick earlier here. A difference. A timer catches the
    /// panic.
    #[test]
    fn a_panic_ends_the_call_and_loses_no_other_entry() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(8);
            wheel.insert(15, 1);
            wheel.insert(15, 2);
            let advance = || wheel.advance(15, |name| assert_ne!(name, 1));
            assert!(panics(advance));
            assert_eq!(wheel.len(), 1);
            assert_eq!(fired!(wheel, [15]), [(2, 15)]);
        });
        for mut t in timers() {
            let fired = Fired::on(&t);
            t.schedule(|_| panic!("a test"), ms(15));
            t.schedule(fired.task(2), ms(15));
            assert_eq!(quietly(|| t.pass(ms(15))), 2);
            assert_eq!((fired.take(), t.stats().panics), (vec![(2, 15)], 1));
        }
    }
}

// --- Caffeine ------------------------------------------------------------------------------------

/// `TimerWheelTest` and the scheduling of expiry. A tick is a second.
mod caffeine {
    use super::*;

    /// `schedule`.
    #[test]
    fn what_is_due_has_fired() {
        on_both_wheels!(|Wheel| {
            for start in [0, 1, 61, 1 << 40] {
                for (time, expected) in [(10, 0), (180, 2), (600, 3)] {
                    let mut wheel = Wheel::new(64);
                    wheel.advance(start, |_| unreachable!());
                    [25, 90, 240]
                        .iter()
                        .for_each(|delay| _ = wheel.insert(start + delay, start + delay));
                    let mut fired = Vec::new();
                    wheel.advance(start + time, |deadline| fired.push(deadline));
                    assert!(
                        fired.len() == expected
                            && fired.iter().all(|&deadline| deadline <= start + time)
                    );
                }
            }
        });
    }

    /// `schedule_fuzzy`, `deschedule_fuzzy`, `getExpirationDelay_fuzzy`: `next_deadline` is the
    /// earliest deadline, and not the tick at which an entry moves down a level. A difference.
    #[test]
    fn random_entries_fire_up_to_the_time_and_the_next_deadline_is_exact() {
        on_both_wheels!(|Wheel| {
            for seed in 0..20 {
                let mut random = fastrand::Rng::with_seed(seed);
                let (start, end) = (random.u64(..1 << 40), 1 << 41);
                let mut wheel = Wheel::new(64);
                wheel.advance(start, |_| unreachable!());
                let deadlines: Vec<_> = (0..5_000).map(|_| random.u64(start + 1..end)).collect();
                let keys: Vec<_> = deadlines
                    .iter()
                    .map(|&deadline| wheel.insert(deadline, deadline))
                    .collect();
                let time = random.u64(start + 1..end);
                let mut fired = 0;
                wheel.advance(time, |deadline| {
                    assert!(deadline <= time);
                    fired += 1;
                });
                let left = deadlines.iter().filter(|&&deadline| deadline > time);
                assert_eq!(fired + left.clone().count(), deadlines.len());
                assert_eq!(wheel.next_deadline(), left.min().copied());
                let removed = keys.into_iter().filter_map(|key| wheel.remove(key)).count();
                assert!(removed + fired == deadlines.len() && wheel.is_empty());
            }
        });
    }

    /// `findBucket_expired`, `findBucket_largeDuration_returnsLastWheel`,
    /// `advance_doesNotEvictFutureTimers`, `advance`, `advance_largeDelta`.
    #[test]
    fn any_distance_is_possible() {
        on_both_wheels!(|Wheel| {
            for start in [0, 100, 1 << 40] {
                let mut wheel = Wheel::new(64);
                wheel.advance(start, |_| unreachable!());
                for deadline in [0, start + 10, start + 1_000, u64::MAX / 2, u64::MAX] {
                    wheel.insert(deadline, deadline);
                }
                for (time, left) in [
                    (start + 1, 4),
                    (start + 13, 3),
                    (start + 999, 3),
                    (u64::MAX / 2, 1),
                    (u64::MAX, 0),
                ] {
                    wheel.advance(time, |deadline| assert!(deadline <= time));
                    assert_eq!(wheel.len(), left);
                }
            }
        });
    }

    /// `advance_backwards`. A timer does the same: `behaviour::a_clock_that_steps_back_…`.
    #[test]
    fn time_that_goes_back_changes_nothing() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(64);
            wheel.advance(1 << 20, |_| unreachable!());
            (0..1_000).for_each(|name| _ = wheel.insert((1 << 20) + name * 7 + 1, name));
            for back in [1, 64, 64 * 64, 1 << 20] {
                wheel.advance((1 << 20) - back, |_| unreachable!());
                assert_eq!((wheel.tick(), wheel.len()), (1 << 20, 1_000));
            }
        });
    }

    /// `advance_reschedule`, `getExpirationDelay_hierarchy`,
    /// `getExpirationDelay_occupiedCurrentBucket`.
    #[test]
    fn an_entry_of_a_higher_level_is_neither_early_nor_late() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(64);
            wheel.insert(15, 15);
            wheel.insert(80, 80);
            let mut fired = Vec::new();
            for (time, expected) in [(45, vec![15]), (70, vec![]), (79, vec![]), (90, vec![80])] {
                wheel.advance(time, |deadline| fired.push(deadline));
                assert_eq!(std::mem::take(&mut fired), expected);
                if time == 45 {
                    let later = wheel.insert(95, 95);
                    assert_eq!(wheel.next_deadline(), Some(80));
                    wheel.remove(later);
                }
            }
            assert!(wheel.is_empty());

            let mut wheel = Wheel::new(64);
            wheel.advance(64, |_| unreachable!());
            wheel.insert(128, 0);
            wheel.advance(127, |_| unreachable!());
            wheel.insert(127 + 64 * 64 - 1, 1);
            assert_eq!(wheel.next_deadline(), Some(128));
        });
    }

    /// `getExpirationDelay_empty`, `…_firstWheel`, `…_lastWheel`,
    /// `…_singleTimerInFirstWheel_positiveDelay`, `…_notInLastWheel_lessThanMax`.
    #[test]
    fn the_next_deadline_is_that_of_the_only_entry() {
        on_both_wheels!(|Wheel| {
            for start in [0, 1, 63, 1 << 40] {
                let mut wheel = Wheel::new(64);
                wheel.advance(start, |_| unreachable!());
                assert_eq!(wheel.next_deadline(), None);
                for delay in [1, 2, 14 * 86_400] {
                    let key = wheel.insert(start + delay, ());
                    assert_eq!(wheel.next_deadline(), Some(start + delay));
                    wheel.remove(key);
                    assert_eq!(wheel.next_deadline(), None);
                }
            }
        });
    }

    /// `advance_exception`, `advance_exception_restoresChain`: the entry whose callback panicked is
    /// not kept, and the time is that of the call. A difference. The other entries are kept.
    #[test]
    fn an_entry_whose_callback_panics_does_not_come_again() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(64);
            let keys = [1, 2, 3].map(|name| wheel.insert(5, name));
            let advance = || wheel.advance(9, |name| assert_ne!(name, 2));
            assert!(panics(advance));
            assert_eq!(wheel.tick(), 9);
            let values = keys.map(|key| wheel.get(key).copied());
            assert_eq!(values, [None, None, Some(3)]);
        });
    }

    /// `deschedule`, `deschedule_notScheduled`.
    #[test]
    fn an_entry_is_removed_once() {
        on_both_wheels!(|Wheel| {
            let mut wheel = Wheel::new(64);
            let key = wheel.insert(100, ());
            let seen = (wheel.remove(key), wheel.remove(key), wheel.len());
            assert_eq!(seen, (Some(()), None, 0));
        });
    }

    /// `reschedule`.
    #[test]
    fn a_reset_replaces_the_deadline_either_way() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let timeout = t.schedule(fired.task(0), SECOND * 15 * 60);
            for minutes in [120, 1, 2] {
                assert!(timeout.reset(SECOND * 60 * minutes));
                assert_eq!(timeout.remaining(), SECOND * 60 * minutes);
            }
            assert_eq!(t.pending(), 1);
            t.run();
            assert_eq!(fired.take(), [(0, 120_000)]);
            assert!(!timeout.cancel() && !timeout.reset(SECOND));
        }
    }

    /// `expire_reschedule`: an entry that fires is gone; its task schedules the next. A difference.
    #[test]
    fn a_task_schedules_its_successor() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let (first, next) = (fired.task(1), fired.task(2));
            let task = move |timeout: &Timeout| {
                first(timeout);
                timeout.timer().schedule(next, ms(100));
            };
            let timeout = t.schedule(task, ms(100));
            t.run_for(150);
            assert!(timeout.is_expired() && t.pending() == 1);
            t.run_for(50);
            assert_eq!(fired.take(), [(1, 100), (2, 200)]);
        }
    }

    /// `cascade`.
    #[test]
    fn an_entry_moves_to_a_lower_level_before_it_is_due() {
        let mut t = Driven::with(|builder| builder.hierarchical(true).ticks_per_wheel(64));
        // The entries in slots of one tick, and in slots of 64.
        let entries = |t: &Driven| {
            let wheel = t.timer.occupancy().unwrap();
            let wide = |width| {
                wheel
                    .levels
                    .iter()
                    .filter(move |level| level.ticks_per_slot == width)
            };
            [1, 64].map(|width| wide(width).flat_map(|level| &level.slots).sum::<usize>())
        };
        t.schedule(|_| (), TICK * 100);
        t.turn();
        assert_eq!(entries(&t), [0, 1]);
        assert_eq!(t.pass(TICK * 70), 0);
        assert_eq!(entries(&t), [1, 0]);
        assert_eq!(t.pass(TICK * 30), 1);
    }

    /// `SchedulerTest`: `scheduler`, `scheduler_exception`, `scheduledExecutorService_schedule`,
    /// `scheduledExecutorService_shutdown`: a stopped timer returns an error. A difference.
    #[test]
    fn the_executor_gets_the_task_and_its_panic_is_counted() {
        let ran = Ends::new();
        let mut t = Driven::with(|builder| builder.task_executor(accepts_all(ExpiredTask::run)));
        t.schedule_task(ran.task(), Duration::from_nanos(1));
        assert_eq!((t.pass(TICK), ran.runs()), (1, 1));
        t.timer.stop();
        assert_eq!(t.timer.new_timeout(|_| (), SECOND), Err(STOPPED));

        let refuses = |_: ExpiredTask| panic!("a test");
        let mut t = Driven::with(|builder| builder.task_executor(accepts_all(refuses)));
        t.schedule_task(ran.task(), Duration::from_nanos(1));
        quietly(|| t.pass(TICK));
        assert_eq!((ran.runs(), ran.drops(), t.stats().panics), (1, 2, 1));
    }
}

// --- folly ---------------------------------------------------------------------------------------

/// `HHWheelTimerTest`, `HHWheelTimerHighResTest`, `HHWheelTimerSlowTests`.
mod folly {
    use super::*;

    /// `FireOnce`, `SlowFast`, `lambda`, `Level1`, `Level2`.
    #[test]
    fn timeouts_fire_once_and_on_time() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let delays = [20, 20, 40, 10, 5, 500, 605, 300, 605 * 256, 300 * 256];
            for (delay, name) in delays.into_iter().zip(0..) {
                t.schedule(fired.task(name), ms(delay));
            }
            assert_eq!(t.pending(), delays.len());
            t.run();
            let mut expected: Vec<_> = (0..).zip(delays).collect();
            expected.sort_by_key(|&(_, delay)| delay);
            assert_eq!((fired.take(), t.pending()), (expected, 0));
        }
    }

    /// `FireOnce`: a timeout that is scheduled again fires once. Here that is `reset`.
    #[test]
    fn a_timeout_that_is_reset_fires_once() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let timeout = t.schedule(fired.task(0), ms(20));
            t.run_for(5);
            assert!(timeout.reset(ms(20)));
            assert_eq!(t.pending(), 1);
            t.run_for(100);
            assert_eq!(fired.take(), [(0, 25)]);
        }
    }

    /// `NoRequestContextLeak`.
    #[test]
    fn what_a_task_holds_is_dropped_with_its_guard() {
        let t = Driven::new();
        let (first, second) = (Ends::new(), Ends::new());
        let guard = t.schedule_task(first.task(), TICK).cancel_on_drop();
        let _other = t.schedule_task(second.task(), TICK);
        assert_eq!((first.drops(), second.drops()), (0, 0));
        drop(guard);
        assert_eq!((first.drops(), second.drops()), (1, 0));
    }

    /// `TestSchedulingWithinCallback`, `ReschedTest`.
    #[test]
    fn a_task_schedules_another() {
        for (first, second) in [(500, 1), (128, 255)] {
            for mut t in timers() {
                let fired = Fired::on(&t);
                let (one, two) = (fired.task(1), fired.task(2));
                let task = move |timeout: &Timeout| {
                    one(timeout);
                    timeout.timer().schedule(two, ms(second));
                };
                t.schedule(task, ms(first));
                t.run();
                assert_eq!(fired.take(), [(1, first), (2, first + second)]);
            }
        }
    }

    /// `CancelTimeout`.
    #[test]
    fn a_task_cancels_others_that_are_due_and_some_that_are_not() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let others = Arc::new(Mutex::new(BTreeMap::<u64, Timeout>::new()));
            let cancel = |names: &'static [u64]| {
                let others = Arc::clone(&others);
                move || {
                    names
                        .iter()
                        .all(|name| others.lock().unwrap()[name].cancel())
                }
            };
            let (cancel_two, cancel_four) = (cancel(&[52, 54]), cancel(&[55, 102, 201, 202]));
            let (first, third, third_again) = (fired.task(51), fired.task(53), fired.task(53));
            let first = move |timeout: &Timeout| {
                first(timeout);
                assert!(cancel_two());
            };
            let third = move |timeout: &Timeout| {
                third(timeout);
                assert!(cancel_four());
                timeout.timer().schedule(third_again, ms(5));
            };
            let add = |name, task: Box<dyn FnOnce(&Timeout) + Send>, delay| {
                others
                    .lock()
                    .unwrap()
                    .insert(name, t.schedule(task, ms(delay)));
            };
            add(51, Box::new(first), 5);
            add(52, Box::new(fired.task(52)), 5);
            add(53, Box::new(third), 5);
            for (name, delay) in [
                (54, 5),
                (55, 5),
                (101, 10),
                (102, 10),
                (103, 10),
                (201, 20),
                (202, 20),
            ] {
                add(name, Box::new(fired.task(name)), delay);
            }
            t.run_for(30);
            let expected = [(51, 5), (53, 5), (101, 10), (103, 10), (53, 10)];
            assert_eq!(fired.take(), expected);
            assert_eq!((t.pending(), t.stats().panics), (0, 0));
        }
    }

    /// `DestroyTimeoutSet`, `DeleteWheelInTimeout`.
    #[test]
    fn a_task_may_drop_the_last_handle() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            t.schedule(fired.task(1), ms(5));
            let (last, second) = (t.timer.clone(), fired.task(2));
            let task = move |timeout: &Timeout| {
                second(timeout);
                drop(last);
            };
            t.schedule(task, ms(5));
            let others = [5, 10].map(|delay| t.schedule(fired.task(3), ms(delay)));
            drop(t.timer);
            for _ in 0..20 {
                t.clock.advance(ms(1));
                t.driver.turn();
            }
            assert_eq!(fired.take(), [(1, 5), (2, 5)]);
            assert!(t.driver.is_stopped() && others.iter().all(Timeout::is_cancelled));
        }
    }

    /// `IntrusivePtr`.
    #[test]
    fn a_second_handle_keeps_the_timer_running() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let first = t.timer.clone();
            first.schedule(fired.task(1), ms(5));
            t.schedule(fired.task(2), ms(10));
            drop(first);
            t.run_for(10);
            assert_eq!(fired.take(), [(1, 5), (2, 10)]);
        }
    }

    /// `lambdaThrows`.
    #[test]
    fn a_panic_of_a_task_is_caught() {
        for mut t in timers() {
            t.schedule(|_| panic!("a test"), ms(1));
            assert_eq!((quietly(|| t.pass(ms(1))), t.stats().panics), (1, 1));
        }
    }

    /// `GetTimeRemaining`.
    #[test]
    fn the_time_that_remains_ends_at_zero() {
        for mut t in timers() {
            let timeout = t.schedule(|_| (), ms(10));
            for left in (1..=10).rev() {
                assert_eq!(timeout.remaining(), ms(left));
                t.run_for(1);
            }
            assert!(timeout.remaining().is_zero() && timeout.is_expired());
        }
    }

    /// `prematureTimeout`, `SlowLoop`.
    #[test]
    fn a_late_turn_makes_no_later_timeout_early() {
        for hierarchical in [false, true] {
            let settings = |builder: hashed_wheel::Builder| builder.ticks_per_wheel(256);
            let mut t = Driven::with(|b| settings(b).hierarchical(hierarchical));
            let fired = Fired::on(&t);
            t.schedule(fired.task(1), ms(1));
            // Past the tick of the first timeout, and no turn was made.
            t.clock.advance(ms(10));
            t.schedule(fired.task(2), ms(2_555));
            t.turn();
            t.run();
            assert_eq!(fired.take(), [(1, 10), (2, 2_570)]);
        }
    }

    /// `NegativeTimeout`.
    #[test]
    fn a_deadline_that_has_passed_fires_at_the_next_tick() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            t.run_for(10);
            t.schedule(fired.task(1), ms(1));
            t.schedule_at(fired.task(2), t.timer.now() - ms(9));
            t.run_for(1);
            assert_eq!(fired.take(), [(1, 11), (2, 11)]);
        }
    }

    /// `AtMostEveryN`.
    #[test]
    fn a_tick_bounds_how_often_the_timer_wakes() {
        let mut t = Driven::with(|builder| builder.tick(ms(3)));
        let fired = Fired::on(&t);
        for name in 0..60 {
            t.schedule(fired.task(name), ms(10));
            t.run_for(1);
        }
        t.run_for(20);
        let fired = fired.take();
        assert_eq!(fired.len(), 60);
        for (name, time) in fired {
            assert!(
                time % 3 == 0 && (name + 10..name + 13).contains(&time),
                "{name} at {time}"
            );
        }
    }

    /// `Stress`.
    #[test]
    fn cancels_and_tasks_that_schedule_again_add_up() {
        // The number of timeouts, and the longest delay in milliseconds.
        const COUNT: u64 = 10_000;
        const LONGEST: u64 = 10_000;
        for mut t in timers() {
            let mut random = fastrand::Rng::with_seed(1);
            let (ends, twice) = (Ends::new(), Ends::new());
            let mut to_cancel = BTreeMap::<u64, Vec<Timeout>>::new();
            for _ in 0..COUNT {
                let delay = random.u64(1..LONGEST);
                if random.bool() {
                    let timeout = t.schedule_task(ends.task(), ms(delay + 256));
                    to_cancel.entry(delay).or_default().push(timeout);
                } else {
                    let (task, next) = (twice.task(), random.u64(1..LONGEST));
                    let again = move |timeout: &Timeout| {
                        timeout.timer().schedule_task(task, ms(next));
                    };
                    t.schedule(again, ms(delay));
                }
            }
            let cancelled: u64 = to_cancel
                .values()
                .map(|timeouts| timeouts.len() as u64)
                .sum();
            for now in 1..=2 * LONGEST {
                t.run_for(1);
                assert!(
                    to_cancel
                        .remove(&now)
                        .into_iter()
                        .flatten()
                        .all(|timeout| timeout.cancel())
                );
            }
            let (stats, again) = (t.stats(), COUNT - cancelled);
            assert_eq!((ends.runs(), ends.hooks() as u64), (0, cancelled));
            assert_eq!((twice.runs() as u64, stats.expired), (again, 2 * again));
            assert_eq!((stats.pending, stats.cancelled), (0, cancelled));
        }
    }
}

// --- seastar -------------------------------------------------------------------------------------

/// `timer_test`.
mod seastar {
    use super::*;

    /// `test_timer_basic`.
    #[test]
    fn a_task_cancels_two_and_arms_one_of_them_again() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let others = Arc::new(OnceLock::<[Timeout; 2]>::new());
            let (first, again, to_cancel) = (fired.task(1), fired.task(5), Arc::clone(&others));
            let task = move |timeout: &Timeout| {
                first(timeout);
                assert!(to_cancel.get().unwrap().iter().all(Timeout::cancel));
                timeout.timer().schedule(again, ms(1_100));
            };
            t.schedule(task, ms(500));
            t.schedule(fired.task(2), ms(900));
            t.schedule(fired.task(3), ms(1_000));
            let cancelled = [700, 800].map(|delay| t.schedule(fired.task(4), ms(delay)));
            others.set(cancelled).unwrap();
            t.run();
            assert_eq!(fired.take(), [(1, 500), (2, 900), (3, 1_000), (5, 1_600)]);
            assert_eq!(t.stats().panics, 0);
        }
    }

    /// `test_timer_cancelling`. A timeout that was cancelled cannot be armed again: a new one takes
    /// its place.
    #[test]
    fn a_cancelled_timeout_is_replaced_by_a_new_one() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            for name in [1, 2] {
                let timeout = t.schedule(fired.task(name), ms(100));
                assert!(timeout.cancel() && !timeout.reset(ms(100)));
            }
            t.schedule(fired.task(3), ms(100));
            t.run();
            assert_eq!(fired.take(), [(3, 100)]);
        }
    }

    /// `test_highres_periodic_cancel_in_callback`.
    #[test]
    fn a_periodic_task_cancels_itself_and_another_timeout_fires() {
        for mut t in timers() {
            let fired = Fired::on(&t);
            let handle = Arc::new(OnceLock::<Periodic>::new());
            let (log, next) = (fired.clone(), fired.clone());
            let (timer, own) = (t.timer.clone(), Arc::clone(&handle));
            let task = move || {
                log.add(1);
                assert!(own.get().unwrap().cancel());
                timer.schedule(next.task(2), ms(10));
            };
            assert!(handle.set(t.fixed_rate(task, ms(5), ms(5))).is_ok());
            t.run_for(1_000);
            assert_eq!(fired.take(), [(1, 5), (2, 15)]);
            assert_eq!((t.pending(), t.stats().panics), (0, 0));
        }
    }
}

// --- pingora -------------------------------------------------------------------------------------

/// `pingora-timeout`. Its timer has a tick of 10 ms.
#[cfg(feature = "async")]
mod pingora {
    use std::future::pending;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use hashed_wheel::TimeoutError;

    use super::*;
    use crate::common::AsyncTask;

    /// Polls the future, and moves the clock to the next turn as long as it is pending.
    fn block_on<T>(t: &mut Driven, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                return output;
            }
            t.pass(t.next_turn().unwrap());
        }
    }

    /// `test_timeout`, `test_instantly_return`, `test_delayed_return`, `test_sleep`.
    #[test]
    fn a_timeout_ends_with_the_earlier_of_two() {
        let mut t = Driven::new();
        let timer = t.timer.clone();
        let elapsed = block_on(&mut t, timer.timeout(SECOND, pending::<()>()));
        assert!(matches!(elapsed, Err(TimeoutError::Elapsed)));
        assert_eq!(t.clock.now(), SECOND);
        let output = block_on(&mut t, timer.timeout(SECOND, async { 1 })).unwrap();
        assert_eq!(output, 1);
        assert_eq!(t.clock.now(), SECOND);
        for limit in [60, 1_000] {
            let before = t.clock.now();
            let delayed = async {
                timer.sleep(SECOND).await.unwrap();
                1
            };
            let output = block_on(&mut t, timer.timeout(SECOND * limit, delayed)).unwrap();
            assert_eq!(output, 1);
            assert_eq!(t.clock.now() - before, SECOND);
        }
    }

    /// `test_round`, `test_time`.
    #[test]
    fn delays_are_rounded_up_to_a_tick() {
        for (delay, rounded) in [(30, 30), (31, 40), (29, 30), (128, 130)] {
            let mut t = Driven::new();
            let timer = t.timer.clone();
            block_on(&mut t, timer.sleep(ms(delay))).unwrap();
            // A sleep that is polled again is ready at its deadline; it is woken at the tick.
            assert_eq!(t.clock.now(), ms(rounded));
        }
    }

    /// `test_timer_manager`.
    #[test]
    fn sleeps_of_one_tick_end_together() {
        let (mut t, task) = (Driven::new(), AsyncTask::new());
        let mut sleeps = [t.timer.sleep(SECOND), t.timer.sleep(SECOND)];
        let mut poll = || {
            let waker = Waker::from(Arc::clone(&task));
            let mut context = Context::from_waker(&waker);
            sleeps
                .each_mut()
                .map(|sleep| Pin::new(sleep).poll(&mut context).is_ready())
        };
        assert_eq!(poll(), [false, false]);
        assert_eq!(t.pass(SECOND), 2);
        assert_eq!((poll(), task.wakes()), ([true, true], 2));
    }
}

//! Turns that run a limited number of tasks: `Driver::turn_at_most` and
//! `Builder::max_tasks_per_turn`.

use std::collections::BTreeMap;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::common::{Driven, Log, Schedules, TICK, accepts_all, built, ms};
use hashed_wheel::{Builder, HashedWheelTimer, ManualClock, MissedTick, Schedule, Timeout};

/// A turn drains at most so many messages.
const MAX_MESSAGES: u64 = 100_000;

/// A driven timer whose tasks record their numbers.
struct Recorder {
    t: Driven,
    log: Log,
}

impl Recorder {
    fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        Self {
            t: Driven::with(settings),
            log: Log::default(),
        }
    }

    fn schedule(&self, number: u64, ticks: u64) -> Timeout {
        self.t.schedule(self.log.task(number), TICK * ticks as u32)
    }

    fn advance(&self, ticks: u64) {
        self.t.clock.advance(TICK * ticks as u32);
    }

    fn turn(&mut self, n: usize) -> usize {
        self.t.driver.turn_at_most(n)
    }

    /// Makes turns of `n` tasks while something is due. Returns how many tasks each ran.
    fn turn_until_quiet(&mut self, n: usize) -> Vec<usize> {
        let mut turns = Vec::new();
        while self.t.next_turn() == Some(Duration::ZERO) {
            turns.push(self.turn(n));
        }
        turns
    }
}

/// One on each wheel.
fn both() -> [Recorder; 2] {
    [
        Recorder::with(|builder| builder),
        Recorder::with(|builder| builder.hierarchical(true)),
    ]
}

#[test]
fn portions_run_in_the_order_of_one_turn() {
    const COUNT: u64 = 100;

    for n in [1, 3, 7, 64, 65, 99, 100, 101, usize::MAX]
        .into_iter()
        .step_by(if cfg!(miri) { 5 } else { 1 })
    {
        for mut recorder in both() {
            // 25 ticks, which are three rounds, with four timeouts each.
            let ticks = |number| number * 7 % 25 + 1;
            (0..COUNT).for_each(|number| _ = recorder.schedule(number, ticks(number)));
            recorder.advance(30);
            let turns = recorder.turn_until_quiet(n);
            assert!(turns.iter().all(|&ran| ran <= n), "{turns:?}");
            let mut expected: Vec<_> = (0..COUNT).collect();
            expected.sort_by_key(|&number| ticks(number));
            assert_eq!(recorder.log.take(), expected, "{n} at a time");
            assert_eq!(recorder.t.next_turn(), None);
        }
    }
}

#[test]
fn next_turn_is_zero_until_everything_due_has_run() {
    for mut recorder in both() {
        (0..5).for_each(|number| _ = recorder.schedule(number, 1));
        recorder.schedule(5, 3);
        recorder.advance(1);
        assert_eq!(recorder.turn(2), 2);
        assert_eq!(recorder.t.next_turn(), Some(Duration::ZERO));
        assert_eq!(recorder.t.pending(), 4);
        assert_eq!(recorder.turn(3), 3);
        assert_eq!(recorder.t.next_turn(), Some(TICK * 2));
        assert_eq!(recorder.turn(3), 0);
    }
}

#[test]
fn portion_of_zero_only_drains_messages() {
    for mut recorder in both() {
        recorder.schedule(0, 1);
        recorder.advance(1);
        assert_eq!(recorder.turn(0), 0);
        assert_eq!(recorder.t.timer.occupancy().unwrap().queued, 0);
        assert_eq!(recorder.t.next_turn(), Some(Duration::ZERO));
        assert_eq!(recorder.t.turn(), 1);
    }
}

#[test]
fn due_timeouts_can_be_cancelled_and_reset_between_portions() {
    for mut recorder in both() {
        let timeouts: Vec<_> = (0..6).map(|number| recorder.schedule(number, 1)).collect();
        recorder.advance(2);
        assert_eq!(recorder.turn(1), 1);
        assert!(!timeouts[0].cancel() && !timeouts[0].reset(TICK));
        assert!(timeouts[1].cancel());
        assert!(timeouts[2].reset(TICK * 5));
        assert!(timeouts[4].reset(Duration::ZERO));
        assert_eq!(recorder.t.pending(), 4);
        // The turn takes in these messages, although the tick is not finished.
        assert_eq!(recorder.turn(1), 1);
        assert_eq!(recorder.t.stats().cancelled_not_reclaimed, 0);
        assert_eq!(recorder.turn_until_quiet(1), [1, 1]);
        assert_eq!(recorder.log.take(), [0, 3, 5, 4]);
        recorder.advance(5);
        assert_eq!(recorder.t.turn(), 1);
        assert_eq!(recorder.log.take(), [2]);
    }
}

#[test]
fn what_is_scheduled_between_portions_fires_in_its_place() {
    for mut recorder in both() {
        for (number, ticks) in [(0, 1), (1, 1), (2, 3), (3, 9)] {
            recorder.schedule(number, ticks);
        }
        recorder.advance(10);
        assert_eq!(recorder.turn(1), 1);
        // Due now, which is after everything that was due before.
        recorder.schedule(4, 0);
        recorder.schedule(5, 1);
        assert_eq!(recorder.turn(9), 4);
        assert_eq!(recorder.log.take(), [0, 1, 2, 3, 4]);
        recorder.advance(1);
        assert_eq!(recorder.turn(9), 1);
        assert_eq!(recorder.log.take(), [5]);
    }
}

#[test]
fn stop_between_portions_returns_the_rest() {
    for mut recorder in both() {
        let timeouts: Vec<_> = (0..4).map(|number| recorder.schedule(number, 1)).collect();
        recorder.advance(1);
        assert_eq!(recorder.turn(1), 1);
        let rest = recorder.t.timer.stop();
        assert_eq!(rest.len(), 3);
        assert!(
            timeouts[1..]
                .iter()
                .all(|timeout| timeout.is_cancelled() && rest.contains(timeout))
        );
        assert_eq!(recorder.turn(9), 0);
        assert_eq!(recorder.t.next_turn(), None);
    }
}

#[test]
fn shutdown_between_portions_runs_the_rest() {
    for mut recorder in both() {
        (0..4).for_each(|number| _ = recorder.schedule(number, 1));
        recorder.advance(1);
        assert_eq!(recorder.turn(1), 1);
        assert!(recorder.t.timer.shutdown(Duration::ZERO).is_empty());
        assert_eq!(recorder.log.take(), [0, 1, 2, 3]);
    }
}

#[test]
fn tasks_for_an_executor_count() {
    let (send, tasks) = mpsc::channel();
    let send = Mutex::new(send);
    let execute = move |task| send.lock().unwrap().send(task).unwrap();
    let mut recorder = Recorder::with(|builder| builder.task_executor(accepts_all(execute)));
    (0..5).for_each(|number| _ = recorder.schedule(number, 1));
    recorder.advance(1);
    assert_eq!(recorder.turn(2), 2);
    assert_eq!(tasks.try_iter().count(), 2);
    assert_eq!(recorder.turn_until_quiet(2), [2, 1]);
    assert_eq!(tasks.try_iter().count(), 3);
}

/// A periodic task that makes up for missed runs does not hold up the others.
#[test]
fn periodic_task_that_is_behind_takes_turns_with_the_others() {
    for mut recorder in both() {
        let log = recorder.log.clone();
        let schedule = Schedule::at_fixed_rate(TICK).missed_tick(MissedTick::Burst);
        let _periodic = recorder.t.periodic(schedule, move |_| log.push(100));
        (0..3).for_each(|number| _ = recorder.schedule(number, 1));
        recorder.advance(4);
        assert_eq!(recorder.turn_until_quiet(2), [2, 2, 2, 1]);
        assert_eq!(recorder.log.take(), [100, 0, 1, 2, 100, 100, 100]);
    }
}

/// The last one was due immediately, and fires at the next tick, behind those that were in the
/// wheel.
#[test]
fn a_portion_keeps_the_order_of_its_tick() {
    for mut recorder in both() {
        for (number, ticks) in [(0, 1), (1, 1), (2, 0)] {
            recorder.schedule(number, ticks);
        }
        recorder.advance(1);
        assert_eq!((recorder.turn(1), recorder.t.turn()), (1, 2));
        assert_eq!(recorder.log.take(), [0, 1, 2]);
    }
}

/// More messages than a turn may take: what was left over is carried over, and is due at the tick
/// of the turn that was cut short.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn portions_run_owed_timeouts_in_the_order_of_ticks() {
    const COUNT: u64 = MAX_MESSAGES + 1_000;

    for mut recorder in both() {
        let ticks = |number: u64| COUNT - number;
        (0..COUNT).for_each(|number| _ = recorder.schedule(number, ticks(number)));
        recorder.advance(COUNT + 1);
        // The first turn sees the first messages, which are due last.
        assert_eq!(recorder.turn(10), 10);
        let first = recorder.log.take();
        assert!(
            first.is_sorted_by_key(|&number| ticks(number))
                && first.iter().all(|&n| n < MAX_MESSAGES)
        );
        // The next one takes the rest, which should have run before.
        let turns = recorder.turn_until_quiet(1_000);
        assert!(turns.iter().all(|&ran| ran <= 1_000));
        let rest = recorder.log.take();
        assert!(rest.is_sorted_by_key(|&number| ticks(number)));
        assert_eq!(first.len() + rest.len(), COUNT as usize);
    }
}

/// A deadline that has passed counts as one of the tick in which it is scheduled, also if its
/// message is carried over.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn owed_timeout_of_the_past_does_not_overtake() {
    for mut recorder in both() {
        let begin = recorder.t.timer.now();
        (0..MAX_MESSAGES).for_each(|number| _ = recorder.schedule(number, 100_000));
        recorder.schedule(MAX_MESSAGES, 1);
        recorder
            .t
            .schedule_at(recorder.log.task(MAX_MESSAGES + 1), begin);
        recorder.schedule(MAX_MESSAGES + 2, 2);
        recorder.advance(10);
        (0..3).for_each(|_| _ = recorder.t.turn());
        let order = recorder.log.take();
        assert_eq!(order, [0, 1, 2].map(|number| MAX_MESSAGES + number));
    }
}

/// Once nothing that was carried over is left, a deadline that has passed counts again as one of
/// the tick in which it is scheduled.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn timeout_of_the_past_does_not_overtake_after_a_backlog() {
    for mut recorder in both() {
        let begin = recorder.t.timer.now();
        (0..=MAX_MESSAGES).for_each(|number| _ = recorder.schedule(number, 100_000));
        recorder.advance(1);
        (0..2).for_each(|_| assert_eq!(recorder.t.turn(), 0));
        recorder.advance(9);
        assert_eq!(recorder.t.turn(), 0);
        recorder.schedule(1, 1);
        recorder.schedule(2, 1);
        let past = recorder.log.task(3);
        recorder.t.schedule_at(past, begin);
        recorder.t.turn();
        recorder.advance(1);
        for _ in 0..3 {
            recorder.t.driver.turn_at_most(1);
        }
        assert_eq!(recorder.log.take(), [1, 2, 3]);
    }
}

/// The lateness of a timeout that has waited in a backlog counts from its own tick.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn owed_timeout_counts_as_late_as_it_is() {
    for most in [1, usize::MAX] {
        for mut recorder in both() {
            (0..MAX_MESSAGES).for_each(|number| _ = recorder.schedule(number, 100_000));
            recorder.schedule(MAX_MESSAGES, 1);
            recorder.schedule(MAX_MESSAGES + 1, 3);
            recorder.advance(10);
            assert_eq!(recorder.t.turn(), 0);
            while recorder.t.driver.turn_at_most(most) > 0 {}
            let lateness = recorder.t.stats().lateness;
            assert_eq!(lateness.max, TICK * 9);
            recorder.schedule(0, 1);
            recorder.advance(1);
            assert_eq!(recorder.t.turn(), 1);
            let on_time = recorder.t.stats().lateness.buckets().next();
            assert_eq!(on_time.map(|(_, count)| count), Some(1));
        }
    }
}

/// The lateness of one that was owed in an earlier turn is not that of a later one.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn owed_timeouts_of_a_lasting_backlog_count_as_late_as_they_are() {
    for mut recorder in both() {
        (0..MAX_MESSAGES).for_each(|number| _ = recorder.schedule(number, 100_000));
        recorder.schedule(0, 1);
        (1..MAX_MESSAGES).for_each(|number| _ = recorder.schedule(number, 100_000));
        recorder.schedule(0, 115);
        for (ticks, ran) in [(10, 0), (10, 1), (100, 1)] {
            recorder.advance(ticks);
            assert_eq!(recorder.t.turn(), ran);
        }
        assert_eq!(recorder.t.stats().lateness.max, TICK * 19);
    }
}

#[test]
fn worker_thread_looks_at_its_queue_between_portions() {
    let builder = HashedWheelTimer::builder().tick(ms(1));
    let timer = builder.max_tasks_per_turn(Some(3)).build().unwrap();
    let (send, turns) = mpsc::channel();
    let hold = timer.new_timeout(
        // Until all of the following are due.
        move |_| std::thread::sleep(ms(20)),
        ms(5),
    );
    hold.unwrap();
    for _ in 0..20 {
        let send = send.clone();
        let task = move |timeout: &Timeout| send.send(timeout.timer().stats().turns).unwrap();
        timer.schedule(task, ms(10));
    }
    drop(send);
    let mut tasks_by_turn = BTreeMap::new();
    for turn in turns {
        *tasks_by_turn.entry(turn).or_insert(0) += 1;
    }
    assert_eq!(tasks_by_turn.values().sum::<u32>(), 20);
    assert!(
        tasks_by_turn.values().all(|&tasks| tasks <= 3),
        "{tasks_by_turn:?}"
    );
}

/// Without the limit, both calls would wait until all that was due has run.
#[test]
fn calls_that_wait_for_a_turn_need_not_wait_for_a_storm() {
    const STORM: usize = 2_000;

    let (began, begins) = mpsc::channel();
    let timer = built(|builder| builder.tick(ms(1)).max_tasks_per_turn(Some(1)));
    let task = move |_: &Timeout| {
        _ = began.send(());
        std::thread::sleep(ms(1));
    };
    let timeouts: Vec<_> = (0..STORM)
        .map(|_| timer.schedule(task.clone(), Duration::ZERO))
        .collect();
    begins.recv().unwrap();

    let is_first_over = !timeouts[0].cancel_and_wait();
    assert!(
        is_first_over && !timeouts[STORM / 2].is_expired(),
        "it waited for one task"
    );
    assert!(timer.cancel_all() >= STORM / 2, "it waited for one turn");
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn the_limit_is_that_of_each_turn_of_a_hosted_timer() {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder()
        .clock(clock.clone())
        .max_tasks_per_turn(Some(2));
    let (timer, mut driver) = builder.build_hosted(|| ()).unwrap();
    for _ in 0..3 {
        timer.schedule(|_| (), ms(1));
    }
    clock.advance(ms(100));
    assert_eq!([driver.turn(), driver.turn(), driver.turn()], [2, 1, 0]);
}

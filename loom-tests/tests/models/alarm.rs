//! Alarms: each arming ends once, whatever operations race.

use super::dispatch::ThreadPerTask;
use super::*;
use hashed_wheel::Alarm;

/// Makes an alarm, and the number of its runs. Loom sees that number, whose change is no atomic
/// one: if two runs overlap, or the second one does not see the first, a run is lost.
fn alarm_of(timer: &HashedWheelTimer) -> (Alarm, Arc<loom::sync::atomic::AtomicUsize>) {
    let runs = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let alarm = timer.new_alarm(move |_| counted.store(counted.load(Relaxed) + 1, Relaxed));
    (alarm, runs)
}

/// Lets everything fire that is armed. Returns how many tasks ran.
fn pass_all(mut driver: Driver, clock: &ManualClock, timer: &HashedWheelTimer) -> usize {
    let pending = timer.pending_timeouts();
    clock.advance(TICK * 9);
    let runs = driver.turn();
    assert_eq!((runs, timer.pending_timeouts()), (pending, 0));
    runs
}

#[test]
fn arm_or_expiry_is_first_and_no_arming_is_lost() {
    explore(bound(3, None), [mutant("AlarmTrustsLastTimeout")], || {
        let mut driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK).unwrap();
        assert_eq!(driven.driver.turn(), 0);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        alarm.arm(TICK).unwrap();
        assert!(alarm.is_armed());
        let (ran, driver) = turn.join().unwrap();
        assert!(alarm.is_armed(), "it is moved, or armed again");
        assert_eq!(pass_all(driver, &driven.clock, &driven.timer), 1);
        assert_eq!(runs.load(Relaxed), ran + 1);
    });
}

#[test]
fn alarm_that_moves_to_earlier_during_a_turn_is_not_late() {
    explore(None, [mutant("AlarmMovesSilently")], || {
        let mut driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK * 5).unwrap();
        assert_eq!(driven.driver.turn(), 0);
        let turn = Driven::turn(driven.driver);
        alarm.arm(TICK).unwrap();
        let (ran, mut driver) = turn.join().unwrap();
        driven.clock.advance(TICK);
        assert_eq!((ran, driver.turn()), (0, 1));
        assert_eq!(runs.load(Relaxed), 1);
        assert!(!alarm.is_armed());
    });
}

#[test]
fn two_armings_at_a_time_are_one() {
    explore(bound(2, Some(3)), [mutant("AlarmKeepsBoth")], || {
        let driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        let other = alarm.clone();
        let arm = thread::spawn(move || other.arm(TICK).unwrap());
        alarm.arm(TICK).unwrap();
        arm.join().unwrap();
        assert!(alarm.is_armed());
        assert_eq!(pass_all(driven.driver, &driven.clock, &driven.timer), 1);
        assert_eq!(runs.load(Relaxed), 1);
        assert!(!alarm.is_armed());
    });
}

/// The timeout may fire before the call that has scheduled it returns.
#[test]
fn arming_by_the_task_is_later_than_the_one_that_runs_it() {
    explore(
        bound(2, Some(3)),
        [mutant("AlarmInstallsOverAnother")],
        || {
            let Driven {
                timer,
                mut driver,
                clock,
            } = Driven::new();
            let alarm = timer.new_alarm(|alarm| alarm.arm(TICK).unwrap());
            let time = clock.clone();
            let turn = thread::spawn(move || {
                time.advance(TICK);
                (driver.turn(), driver)
            });
            alarm.arm(TICK).unwrap();
            let (_, mut driver) = turn.join().unwrap();
            for _ in 0..2 {
                assert_eq!((alarm.is_armed(), timer.pending_timeouts()), (true, 1));
                clock.advance(TICK * 2);
                assert_eq!(driver.turn(), 1);
            }
            assert!(alarm.disarm());
        },
    );
}

/// It has expired before.
#[test]
fn disarm_finds_an_arming_or_leaves_it() {
    explore(bound(2, Some(3)), [mutant("DisarmIgnoresExpiry")], || {
        let mut driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK).unwrap();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        let other = alarm.clone();
        let disarm = thread::spawn(move || other.disarm());
        alarm.arm(TICK).unwrap();
        let disarmed = disarm.join().unwrap();
        assert_eq!(alarm.is_armed(), !disarmed);
        let ran = pass_all(driven.driver, &driven.clock, &driven.timer);
        assert_eq!((ran, runs.load(Relaxed)), (usize::from(!disarmed), ran + 1));
    });
}

#[test]
fn disarm_or_expiry_ends_the_arming() {
    explore(None, [mutant("DisarmIgnoresExpiry")], || {
        let mut driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK).unwrap();
        assert_eq!(driven.driver.turn(), 0);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let disarmed = alarm.disarm();
        let (ran, driver) = turn.join().unwrap();
        assert_eq!(
            usize::from(disarmed) + ran,
            1,
            "exactly one of the two wins"
        );
        assert!(!alarm.is_armed());
        assert_eq!(pass_all(driver, &driven.clock, &driven.timer), 0);
        assert_eq!(runs.load(Relaxed), ran);
    });
}

#[test]
fn arming_is_ended_by_stop_or_rejected() {
    explore(
        bound(2, Some(3)),
        [
            mutant("AlarmHidesRejection"),
            mutant("NewTimeoutNotWithdrawn"),
        ],
        || {
            let driven = Driven::new();
            let (alarm, runs) = alarm_of(&driven.timer);
            let other = alarm.clone();
            let arm = thread::spawn(move || other.arm(TICK));
            let stopped = driven.timer.stop().len();
            let armed = arm.join().unwrap();
            assert_eq!(armed.is_ok(), stopped == 1);
            assert_eq!(
                (alarm.is_armed(), driven.timer.pending_timeouts()),
                (false, 0)
            );
            assert_eq!(runs.load(Relaxed), 0);
        },
    );
}

#[test]
fn runs_on_executor_follow_each_other() {
    let mutants = [
        mutant("AlarmRunsOverlap"),
        mutant("AlarmForgetsRun"),
        mutant("TaskLockGivenBackLate"),
        no_acquire("alarm/runs.rs use_task"),
        no_release("alarm/runs.rs use_task"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (alarm, runs) = alarm_of(&driven.timer);
        for _ in 0..2 {
            alarm.arm(TICK).unwrap();
            driven.clock.advance(TICK);
            assert_eq!(driven.driver.turn(), 1);
        }
        executor.join();
        assert_eq!(runs.load(Relaxed), 2, "one run per arming");
        assert!(!alarm.is_armed());
    });
}

/// A cancelled alarm is not armed, and has dropped its task.
fn assert_cancelled<T>(alarm: &Alarm, in_task: &Arc<T>, timer: &HashedWheelTimer) {
    assert!(alarm.is_cancelled() && !alarm.is_armed());
    assert_eq!(alarm.arm(TICK), Err(NewTimeoutError::Cancelled));
    assert_eq!(timer.pending_timeouts(), 0);
    assert_eq!(Arc::strong_count(in_task), 1, "the task is dropped");
}

#[test]
fn cancel_during_a_run_that_arms_is_final() {
    let mutants = [
        mutant("AlarmInstallsAfterCancel"),
        mutant("CancelDropsRunningTask"),
        mutant("CancelKeepsTask"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let driven = Driven::new();
        let in_task = Arc::new(());
        let used = Arc::clone(&in_task);
        let alarm = driven.timer.new_alarm(move |alarm| {
            let _ = (&used, alarm.arm(TICK));
        });
        alarm.arm(TICK).unwrap();
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        assert!(alarm.cancel());
        assert!(!alarm.is_armed());
        let (_, driver) = turn.join().unwrap();
        assert_cancelled(&alarm, &in_task, &driven.timer);
        assert_eq!(pass_all(driver, &driven.clock, &driven.timer), 0);
    });
}

#[test]
fn cancel_ends_an_arming_by_another_thread() {
    let mutants = [
        mutant("AlarmInstallsAfterCancel"),
        mutant("CancelDisarmsFirst"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        let other = alarm.clone();
        let arm = thread::spawn(move || other.arm(TICK));
        assert!(alarm.cancel());
        let _ended_or_rejected = arm.join().unwrap();
        assert_cancelled(&alarm, &runs, &driven.timer);
        let ran = pass_all(driven.driver, &driven.clock, &driven.timer);
        assert_eq!((ran, runs.load(Relaxed)), (0, 0));
    });
}

#[test]
fn cancel_or_expiry_ends_the_arming() {
    let mutants = [
        mutant("CancelledAlarmRuns"),
        mutant("CancelDropsRunningTask"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let mut driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK).unwrap();
        assert_eq!(driven.driver.turn(), 0);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        assert!(alarm.cancel());
        let (expired, driver) = turn.join().unwrap();
        assert_cancelled(&alarm, &runs, &driven.timer);
        assert!(runs.load(Relaxed) <= expired);
        assert_eq!(pass_all(driver, &driven.clock, &driven.timer), 0);
    });
}

#[test]
fn cancel_or_stop_ends_the_arming() {
    explore(bound(2, Some(3)), [mutant("CancelKeepsTask")], || {
        let driven = Driven::new();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK).unwrap();
        let other = alarm.clone();
        let cancel = thread::spawn(move || other.cancel());
        let stopped = driven.timer.stop().len();
        assert!(cancel.join().unwrap() && stopped <= 1);
        assert_cancelled(&alarm, &runs, &driven.timer);
        assert_eq!(runs.load(Relaxed), 0);
    });
}

#[test]
fn run_is_over_after_cancel_and_wait() {
    let mutants = [
        mutant("AlarmWaitsForNoRun"),
        mutant("AlarmRunEndWithoutWake"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (alarm, runs) = alarm_of(&driven.timer);
        alarm.arm(TICK).unwrap();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        assert!(alarm.cancel_and_wait());
        let ran = runs.load(Relaxed);
        assert_eq!(Arc::strong_count(&runs), 1, "the task is dropped");
        executor.join();
        assert_eq!(runs.load(Relaxed), ran, "no run begins");
    });
}

#[test]
fn run_that_cancels_its_alarm_is_over_after_cancel_and_wait() {
    let mutants = [
        mutant("AlarmWaitsForNoRun"),
        no_acquire("alarm/runs.rs cancel_and_wait"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let is_over = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let over = Arc::clone(&is_over);
        let alarm = driven.timer.new_alarm(move |alarm| {
            let is_first = alarm.cancel_and_wait();
            over.store(1 + usize::from(is_first), Relaxed);
        });
        alarm.arm(TICK).unwrap();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        let is_first = alarm.cancel_and_wait();
        let seen = is_over.load(Relaxed);
        executor.join();
        assert_eq!(is_over.load(Relaxed), seen, "it has not begun, or is over");
        assert_eq!(seen == 2, !is_first);
    });
}

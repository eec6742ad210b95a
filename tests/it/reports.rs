//! The events that a timer emits through `tracing`. This is a separate test binary, because the
//! warning about too many timers is emitted once per process.

#![cfg(feature = "tracing")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::subscriber::Reports;
use crate::common::{Driven, Schedules, TICK, accepts_all, ms, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer, Timeout, TimerTask};
use tracing::Level;

fn reports_of(test: impl FnOnce()) -> Vec<String> {
    let reports = Reports::new();
    tracing::subscriber::with_default(reports.clone(), || quietly(test));
    reports.take()
}

#[track_caller]
fn assert_contains(report: &str, parts: &[&str]) {
    with_level(Level::ERROR, report, parts);
}

#[track_caller]
fn with_level(level: Level, report: &str, parts: &[&str]) {
    assert!(report.starts_with(&format!("{level} ")), "{report}");
    for part in parts {
        assert!(report.contains(part), "{part:?} is not in {report:?}");
    }
}

#[test]
fn a_panic_is_reported_with_its_task_and_its_message() {
    let reports = reports_of(|| {
        let mut t = Driven::new();
        t.schedule(|_| panic!("out of {}", "luck"), TICK);
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    let test = "a_panic_is_reported_with_its_task_and_its_message";
    assert_contains(
        &reports[0],
        &["a timer task panicked in run", "out of luck", test],
    );
}

#[test]
fn each_kind_of_task_is_reported_by_its_name() {
    struct Panics<T>(T);

    impl<T: Send + 'static> TimerTask for Panics<T> {
        fn run(self, _: &Timeout) {
            let _task = self.0;
            panic!("in a task");
        }
    }

    let reports = reports_of(|| {
        let mut t = Driven::new();
        t.schedule_task(Panics([1_u8]), TICK);
        t.schedule_task(Panics([1_u64; 99]), TICK);
        let large = [1_u64; 99];
        let closure = move |_: &Timeout| panic!("{}", large[0]);
        t.schedule(closure, TICK);
        let alarm = t.timer.new_alarm(|_| panic!("in an alarm"));
        alarm.arm(TICK).unwrap();
        t.pass(TICK);
    });
    let test = "each_kind_of_task_is_reported_by_its_name";
    let names = ["Panics<[u8; 1]>", "Panics<[u64; 99]>", test, test];
    assert_eq!(reports.len(), names.len(), "{reports:?}");
    for (report, name) in reports.iter().zip(names) {
        assert_contains(report, &[name]);
    }
}

#[cfg(feature = "async")]
#[test]
fn a_waker_that_panics_is_reported_as_that_of_a_future() {
    use std::pin::pin;
    use std::task::Wake;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }

    let reports = reports_of(|| {
        let mut t = Driven::new();
        let mut sleep = pin!(t.timer.sleep(TICK));
        let waker = Arc::new(Panics).into();
        assert!(crate::common::poll(&mut sleep, &waker).is_pending());
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_contains(&reports[0], &["in a waker", "(the waker of a future)"]);
}

#[test]
fn a_periodic_task_that_panics_is_reported_once_and_does_not_run_again() {
    let reports = reports_of(|| {
        let mut t = Driven::new();
        t.fixed_rate(|| panic!("out of order"), TICK, TICK);
        t.pass(TICK * 5);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    let test = "a_periodic_task_that_panics_is_reported_once";
    assert_contains(
        &reports[0],
        &[
            "a timer task panicked in run, and runs no more",
            "out of order",
            test,
        ],
    );
}

#[test]
fn a_task_that_the_executor_drops_is_reported() {
    let reports = reports_of(|| {
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(|task: ExpiredTask| drop(task)))
        });
        t.schedule(|_| (), TICK);
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_contains(
        &reports[0],
        &[
            "the task executor refused or dropped a task",
            "a_task_that_the_executor_drops_is_reported",
        ],
    );
}

#[test]
fn an_executor_that_panics_is_reported_and_so_is_the_task() {
    let reports = reports_of(|| {
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(|_: ExpiredTask| panic!("no pool")))
        });
        t.schedule(|_| (), TICK);
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert_contains(
        &reports[0],
        &["the task executor refused or dropped a task"],
    );
    assert_contains(&reports[1], &["panicked in the executor", "no pool"]);
}

#[test]
fn a_subscriber_that_panics_has_no_effect() {
    tracing::subscriber::with_default(Reports::broken(), || {
        quietly(|| {
            let mut t = Driven::with(|builder| {
                builder.task_executor(accepts_all(|task: ExpiredTask| drop(task)))
            });
            t.schedule(|_| (), TICK);
            t.schedule(|_| (), TICK);
            assert_eq!(t.pass(TICK), 2);
            assert_eq!(t.stats().dropped_tasks, 2);
            drop(HashedWheelTimer::new(Duration::from_nanos(7), 8));
        });
    });
}

#[test]
fn a_tick_that_is_too_short_is_reported() {
    let reports = reports_of(|| {
        drop(HashedWheelTimer::new(Duration::from_nanos(7), 8));
        drop(HashedWheelTimer::new(Duration::from_micros(1), 8));
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(
        reports[0].starts_with("WARN") && reports[0].contains("tick=7ns"),
        "{reports:?}"
    );
}

#[test]
fn a_slow_task_is_reported_with_its_type_and_its_duration() {
    let reports = reports_of(|| {
        let mut t = Driven::with(|builder| builder.slow_task_threshold(Some(ms(5))));
        for takes in [1, 7] {
            let clock = t.clock.clone();
            t.schedule(move |_| clock.advance(ms(takes)), TICK);
        }
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    let task = "a_slow_task_is_reported_with_its_type_and_its_duration";
    with_level(
        Level::WARN,
        &reports[0],
        &["delayed the worker", task, "took=7ms", "threshold=5ms"],
    );
}

/// The numbers in events that are emitted only at the first, second, fourth, eighth … occurrence.
fn numbers(reports: &[String], name: &str) -> Vec<u64> {
    let number = |report: &String| {
        report
            .split_once(&format!(" {name}="))?
            .1
            .split(' ')
            .next()?
            .parse()
            .ok()
    };
    reports
        .iter()
        .map(|report| number(report).unwrap_or_else(|| panic!("no {name} in {report}")))
        .collect()
}

#[test]
fn rejections_are_reported_less_and_less_often() {
    let reports = reports_of(|| {
        let builder = HashedWheelTimer::builder()
            .max_pending_timeouts(Some(1))
            .thread_name("requests");
        let timer = builder.build().unwrap();
        for _ in 0..=100 {
            let _ = timer.new_timeout(|_| (), Duration::MAX);
        }
        assert_eq!(timer.stats().rejected, 100);
    });
    assert_eq!(numbers(&reports, "rejected"), [1, 2, 4, 8, 16, 32, 64]);
    let parts = [
        "a timer rejects timeouts",
        "timer=\"requests\"",
        "too many timeouts are pending: the limit is 1",
    ];
    reports
        .iter()
        .for_each(|report| with_level(Level::WARN, report, &parts));
}

#[test]
fn a_rejection_by_a_stopped_timer_is_returned_and_not_reported() {
    let reports = reports_of(|| {
        let t = Driven::new();
        t.timer.stop();
        assert!(t.timer.new_timeout(|_| (), TICK).is_err());
    });
    assert_eq!(reports, Vec::<String>::new());
}

#[test]
fn long_turns_are_reported_less_and_less_often() {
    let reports = reports_of(|| {
        let mut t = Driven::new();
        for takes in [10, 11, 11, 11, 11, 10] {
            let clock = t.clock.clone();
            t.schedule(move |_| clock.advance(ms(takes)), TICK);
            t.pass(TICK * 2);
        }
        assert_eq!(t.stats().long_turns, 4);
    });
    assert_eq!(numbers(&reports, "long_turns"), [1, 2, 4]);
    let parts = [
        "longer than a tick",
        "timer=\"hashed-wheel-",
        "took=11ms",
        "tick=10ms",
    ];
    reports
        .iter()
        .for_each(|report| with_level(Level::WARN, report, &parts));
}

/// A subscriber may use the timer in any way: the timer holds no lock that the subscriber could
/// wait for.
#[test]
fn a_subscriber_may_stop_the_timer_that_reports() {
    for event_text in ["rejects timeouts", "longer than a tick"] {
        let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
        let (timer, stopped) = (t.timer.clone(), Arc::new(Mutex::new(None)));
        let seen = stopped.clone();
        let stops = move |text: &str| {
            if text.contains(event_text) {
                *seen.lock().unwrap() = Some(timer.stop().len());
            }
        };
        tracing::subscriber::with_default(Reports(Arc::default(), Arc::new(stops)), || {
            let clock = t.clock.clone();
            t.schedule(move |_| clock.advance(TICK * 2), TICK);
            if event_text == "rejects timeouts" {
                assert!(t.timer.new_timeout(|_| (), TICK).is_err());
            }
            t.pass(TICK);
        });
        assert_eq!(
            *stopped.lock().unwrap(),
            Some(usize::from(event_text == "rejects timeouts"))
        );
    }
}

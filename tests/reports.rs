//! What a timer reports, through `tracing`. A test binary of its own: too many timers are warned of once in a process.

#![cfg(feature = "tracing")]

mod common;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Driven, TICK, ms, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Keeps the text of each event.
#[derive(Clone)]
struct Reports(Arc<Mutex<Vec<String>>>, fn(&str));

impl Reports {
    fn new() -> Self {
        Self(Arc::default(), |_| ())
    }

    fn broken() -> Self {
        Self(Arc::default(), |text| panic!("cannot write {text}"))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Reports {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.1(&text.0);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn reports_of(test: impl FnOnce()) -> Vec<String> {
    let reports = Reports::new();
    tracing::subscriber::with_default(reports.clone(), || quietly(test));
    reports.take()
}

#[track_caller]
fn assert_contains(report: &str, parts: &[&str]) {
    assert!(report.starts_with(&Level::ERROR.to_string()), "{report}");
    for part in parts {
        assert!(report.contains(part), "{part:?} is not in {report:?}");
    }
}

#[test]
fn a_panic_is_reported_with_its_task_and_its_message() {
    let reports = reports_of(|| {
        let mut t = Driven::new();
        t.timer.new_timeout(|_| panic!("out of {}", "luck"), TICK).unwrap();
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    let test = "a_panic_is_reported_with_its_task_and_its_message";
    assert_contains(&reports[0], &["a timer task panicked in run", "out of luck", test]);
}

#[test]
fn a_periodic_task_that_panics_is_reported_once_and_runs_no_more() {
    let reports = reports_of(|| {
        let mut t = Driven::new();
        t.timer.schedule_at_fixed_rate(|| panic!("out of order"), TICK, TICK).unwrap();
        t.pass(TICK * 5);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    let test = "a_periodic_task_that_panics_is_reported_once";
    assert_contains(&reports[0], &["a timer task panicked in run, and runs no more", "out of order", test]);
}

#[test]
fn a_task_that_the_executor_drops_is_reported() {
    let reports = reports_of(|| {
        let mut t = Driven::with(|builder| builder.task_executor(|task: ExpiredTask| drop(task)));
        t.timer.new_timeout(|_| (), TICK).unwrap();
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_contains(
        &reports[0],
        &["the task executor dropped a task", "a_task_that_the_executor_drops_is_reported"],
    );
}

#[test]
fn an_executor_that_panics_is_reported_and_so_is_the_task() {
    let reports = reports_of(|| {
        let mut t = Driven::with(|builder| builder.task_executor(|_: ExpiredTask| panic!("no pool")));
        t.timer.new_timeout(|_| (), TICK).unwrap();
        t.pass(TICK);
    });
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert_contains(&reports[0], &["the task executor dropped a task"]);
    assert_contains(&reports[1], &["panicked in the executor", "no pool"]);
}

#[test]
fn a_subscriber_that_panics_harms_nobody() {
    tracing::subscriber::with_default(Reports::broken(), || {
        quietly(|| {
            let mut t = Driven::with(|builder| builder.task_executor(|task: ExpiredTask| drop(task)));
            t.timer.new_timeout(|_| (), TICK).unwrap();
            t.timer.new_timeout(|_| (), TICK).unwrap();
            assert_eq!(t.pass(TICK), 2);
            assert_eq!(t.timer.stats().dropped, 2);
            drop(HashedWheelTimer::new(Duration::from_nanos(7), 8));
        });
    });
}

#[test]
fn a_tick_that_cannot_be_kept_is_reported() {
    let reports = reports_of(|| {
        drop(HashedWheelTimer::new(Duration::from_nanos(7), 8));
        drop(HashedWheelTimer::new(Duration::from_micros(1), 8));
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].starts_with("WARN") && reports[0].contains("tick=7ns"), "{reports:?}");
}

#[test]
fn more_than_64_live_timers_are_warned_of_once() {
    // The other tests here have a few alive for a moment: far from 64, and not counted once they are stopped.
    for _ in 0..10 {
        let timers: Vec<_> = (0..50).map(|_| HashedWheelTimer::new(ms(1), 8)).collect();
        assert!(reports_of(|| drop(HashedWheelTimer::default())).is_empty());
        timers[0].stop();
    }
    let reports = reports_of(|| {
        let _timers: Vec<_> = (0..150).map(|_| HashedWheelTimer::new(ms(1), 8)).collect();
        let _more: Vec<_> = (0..150).map(|_| HashedWheelTimer::new(ms(1), 8)).collect();
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_contains(&reports[0], &["many timers are alive"]);
}

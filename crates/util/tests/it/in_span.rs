//! Tasks that run in the span in which they were made.
#![cfg(feature = "tracing")]

use crate::common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{Driven, TEST_TIMEOUT, TICK, accepts_all, quietly};
use hashed_wheel::{ExpiredTask, Timeout, TimerTask};
use hashed_wheel_util::InSpan;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Span, Subscriber, info_span};
use tracing_core::span::Current;

thread_local!(static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) });

/// Knows the spans of each thread, and how many of them are open.
#[derive(Clone, Default)]
struct Spans {
    made: Arc<Mutex<Vec<&'static Metadata<'static>>>>,
    open: Arc<AtomicUsize>,
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut made = self.made.lock().unwrap();
        made.push(span.metadata());
        self.open.fetch_add(1, SeqCst);
        Id::from_u64(made.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        assert_eq!(ENTERED.with_borrow_mut(Vec::pop), Some(id.into_u64()));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.open.fetch_add(1, SeqCst);
        id.clone()
    }

    fn try_close(&self, _: Id) -> bool {
        self.open.fetch_sub(1, SeqCst) == 1
    }

    fn current_span(&self) -> Current {
        let made = self.made.lock().unwrap();
        match ENTERED.with_borrow(|entered| entered.last().copied()) {
            Some(id) => Current::new(Id::from_u64(id), made[id as usize - 1]),
            None => Current::none(),
        }
    }
}

/// The name of the current span.
fn current() -> &'static str {
    Span::current().metadata().map_or("none", Metadata::name)
}

/// Where tasks ran.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn note(&self) {
        self.0.lock().unwrap().push(current());
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl TimerTask for Log {
    fn run(self, _: &Timeout) {
        self.note();
    }

    fn cancelled(self, _: &Timeout) {
        self.note();
    }
}

#[test]
fn each_task_runs_in_the_span_in_which_it_was_made() {
    let spans = Spans::default();
    with_default(spans.clone(), || {
        let (mut t, log) = (Driven::new(), Log::default());
        for span in [info_span!("one"), info_span!("two"), Span::none()] {
            span.in_scope(|| {
                t.timer
                    .new_timeout_task(InSpan::new(log.clone()), TICK)
                    .unwrap();
                t.timer
                    .new_timeout_task(InSpan::new(log.clone()), TICK * 2)
                    .unwrap();
                let cancelled = t
                    .timer
                    .new_timeout_task(InSpan::new(log.clone()), TICK)
                    .unwrap();
                Span::none().in_scope(|| assert!(cancelled.cancel()));
            });
        }
        assert_eq!(log.take(), ["one", "two", "none"], "the hooks");
        t.pass(TICK);
        assert_eq!(log.take(), ["one", "two", "none"]);
        info_span!("of the turn").in_scope(|| t.pass(TICK));
        assert_eq!(
            log.take(),
            ["one", "two", "of the turn"],
            "a task without a span enters none"
        );
        assert_eq!(current(), "none");
    });
    assert_eq!(
        spans.open.load(SeqCst),
        0,
        "a task that has ended holds no span"
    );
}

#[test]
fn task_runs_in_its_span_on_a_thread_of_the_executor() {
    let spans = Spans::default();
    with_default(spans.clone(), || {
        let (send, tasks) = channel::<ExpiredTask>();
        let executor = accepts_all(move |task| send.send(task).unwrap());
        let mut t = Driven::with(|builder| builder.task_executor(executor));
        let log = Log::default();
        let task = log.clone();
        info_span!("request")
            .in_scope(|| t.timer.new_timeout_task(InSpan::new(task), TICK).unwrap());
        t.pass(TICK);
        let task = tasks.recv_timeout(TEST_TIMEOUT).unwrap();
        let subscriber = spans.clone();
        thread::spawn(|| with_default(subscriber, || task.run()))
            .join()
            .unwrap();
        assert_eq!(log.take(), ["request"]);
    });
    assert_eq!(spans.open.load(SeqCst), 0);
}

#[test]
fn panic_leaves_the_span() {
    struct Panics;

    impl TimerTask for Panics {
        fn run(self, _: &Timeout) {
            panic!("in the span");
        }
    }

    with_default(Spans::default(), || {
        let mut t = Driven::new();
        info_span!("request")
            .in_scope(|| t.timer.new_timeout_task(InSpan::new(Panics), TICK).unwrap());
        quietly(|| t.pass(TICK));
        assert_eq!((t.timer.stats().panics, current()), (1, "none"));
    });
}

/// The constants of the task hold for the task in a span.
#[test]
fn task_in_a_span_runs_on_the_worker_if_it_has_to() {
    struct Short(Log);

    impl TimerTask for Short {
        const RUNS_ON_WORKER: bool = true;
        const IS_AWAITED: bool = true;

        fn run(self, _: &Timeout) {
            self.0.note();
        }
    }

    with_default(Spans::default(), || {
        let mut t = Driven::with(|builder| builder.task_executor(accepts_all(drop)));
        let log = Log::default();
        let task = Short(log.clone());
        info_span!("wake").in_scope(|| t.timer.new_timeout_task(InSpan::new(task), TICK).unwrap());
        assert_eq!(t.timer.cancel_all(), 0);
        t.pass(TICK);
        assert_eq!(log.take(), ["wake"]);
    });
}

/// A task that postpones itself does so in its span.
#[test]
fn task_in_a_span_is_asked_in_its_span() {
    struct Asked(Log);

    impl TimerTask for Asked {
        const POSTPONES: bool = true;

        fn postpone(&self, timeout: &Timeout) -> Option<Duration> {
            self.0.note();
            (timeout.timer().clock().now() < TICK * 3).then_some(TICK * 2)
        }

        fn run(self, _: &Timeout) {}
    }

    with_default(Spans::default(), || {
        let mut t = Driven::new();
        let log = Log::default();
        let task = Asked(log.clone());
        info_span!("idle").in_scope(|| t.timer.new_timeout_task(InSpan::new(task), TICK).unwrap());
        assert_eq!((t.pass(TICK), t.pass(TICK * 2)), (0, 1));
        assert_eq!(log.take(), ["idle", "idle"]);
    });
}

#[test]
fn rejected_task_comes_back_without_its_span() {
    let t = Driven::new();
    t.timer.stop();
    let rejected = t
        .timer
        .try_new_timeout_task(InSpan::new(Log::default()), TICK)
        .unwrap_err();
    let log: Log = rejected.task.into_inner();
    assert!(log.take().is_empty());
}

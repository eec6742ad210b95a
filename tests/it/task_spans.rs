//! Tasks that run in the span in which they were scheduled.
#![cfg(feature = "tracing")]

use crate::common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use common::{Driven, Ends, TEST_TIMEOUT, TICK, ms, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer, Timeout, TimerTask};
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
    /// Panics at each call that belongs to a span.
    is_broken: bool,
    /// Panics when a span is left or closed.
    is_broken_at_the_end: bool,
}

impl Spans {
    fn check(&self) {
        assert!(!self.is_broken, "the subscriber");
    }

    fn check_end(&self) {
        assert!(!self.is_broken_at_the_end, "the subscriber");
    }
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
        self.check();
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        self.check();
        assert_eq!(ENTERED.with_borrow_mut(Vec::pop), Some(id.into_u64()));
        self.check_end();
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.check();
        self.open.fetch_add(1, SeqCst);
        id.clone()
    }

    fn try_close(&self, _: Id) -> bool {
        let open = self.open.fetch_sub(1, SeqCst);
        self.check_end();
        open == 1
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

fn driven() -> Driven {
    Driven::with(|builder| builder.task_spans())
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
fn each_task_runs_in_the_span_in_which_it_was_scheduled() {
    let spans = Spans::default();
    with_default(spans.clone(), || {
        let (mut t, log) = (driven(), Log::default());
        for span in [info_span!("one"), info_span!("two"), Span::none()] {
            let closure = log.clone();
            span.in_scope(|| {
                t.timer.new_timeout(move |_| closure.note(), TICK).unwrap();
                t.timer.new_timeout_task(log.clone(), TICK * 2).unwrap();
                let cancelled = t.timer.new_timeout_task(log.clone(), TICK).unwrap();
                Span::none().in_scope(|| assert!(cancelled.cancel()));
            });
        }
        assert_eq!(log.take(), ["one", "two", "none"], "the hooks");
        t.pass(TICK);
        assert_eq!(log.take(), ["one", "two", "none"]);
        info_span!("of the turn").in_scope(|| t.pass(TICK));
        assert_eq!(log.take(), ["one", "two", "of the turn"], "a task without a span enters none");
        assert_eq!(current(), "none");
    });
    assert_eq!(spans.open.load(SeqCst), 0, "a task that has ended holds no span");
}

#[test]
fn periodic_task_runs_in_its_span() {
    let spans = Spans::default();
    with_default(spans.clone(), || {
        let (mut t, log) = (driven(), Log::default());
        let task = log.clone();
        let beat = info_span!("beat")
            .in_scope(|| t.timer.schedule_at_fixed_rate(move || task.note(), TICK, TICK).unwrap());
        t.pass(TICK);
        t.pass(TICK);
        assert_eq!(log.take(), ["beat", "beat"]);
        assert!(beat.cancel());
        t.driver.turn();
    });
    assert_eq!(spans.open.load(SeqCst), 0);
}

#[test]
fn task_runs_in_its_span_on_a_thread_of_the_executor() {
    let spans = Spans::default();
    with_default(spans.clone(), || {
        let (send, tasks) = channel::<ExpiredTask>();
        let executor = move |task| send.send(task).unwrap();
        let mut t = Driven::with(|builder| builder.task_spans().task_executor(executor));
        let log = Log::default();
        let closure = log.clone();
        info_span!("request").in_scope(|| t.timer.new_timeout(move |_| closure.note(), TICK).unwrap());
        t.pass(TICK);
        let task = tasks.recv_timeout(TEST_TIMEOUT).unwrap();
        let subscriber = spans.clone();
        thread::spawn(|| with_default(subscriber, || task.run())).join().unwrap();
        assert_eq!(log.take(), ["request"]);
    });
    assert_eq!(spans.open.load(SeqCst), 0);
}

#[test]
fn panic_leaves_the_span() {
    with_default(Spans::default(), || {
        let mut t = driven();
        info_span!("request").in_scope(|| t.timer.new_timeout(|_| panic!("in the span"), TICK).unwrap());
        quietly(|| t.pass(TICK));
        assert_eq!((t.timer.stats().panics, current()), (1, "none"));
    });
}

/// A subscriber that panics harms no task and no count.
#[test]
fn task_runs_although_the_subscriber_panics() {
    let (mut t, log) = (driven(), Log::default());
    let spans = Spans::default();
    let span = with_default(spans.clone(), || info_span!("request"));
    quietly(|| {
        // The span belongs to the first subscriber, and this thread's is the broken one.
        let broken = Spans { is_broken: true, ..spans.clone() };
        with_default(broken, || {
            let of_broken = info_span!("broken");
            ENTERED.with_borrow_mut(|entered| entered.push(of_broken.id().unwrap().into_u64()));
            t.timer.new_timeout_task(log.clone(), TICK).unwrap();
            ENTERED.with_borrow_mut(Vec::clear);
        });
        t.pass(TICK);
    });
    assert_eq!((log.take().len(), t.timer.stats().panics), (1, 0));
    drop(span);
}

#[test]
fn task_is_not_blamed_for_a_subscriber_that_panics_at_the_end_of_a_span() {
    let (mut t, task_ends) = (driven(), Ends::new());
    let spans = Spans { is_broken_at_the_end: true, ..Spans::default() };
    with_default(spans.clone(), || {
        // Not dropped here, because this subscriber would panic.
        let span = std::mem::ManuallyDrop::new(info_span!("request"));
        ENTERED.with_borrow_mut(|entered| entered.push(span.id().unwrap().into_u64()));
        t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
        let cancelled = t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
        ENTERED.with_borrow_mut(Vec::clear);
        quietly(|| {
            assert!(cancelled.cancel());
            t.pass(TICK);
        });
    });
    assert_eq!((task_ends.runs(), task_ends.hooks(), task_ends.drops()), (1, 1, 2));
    assert_eq!((t.timer.stats().panics, spans.open.load(SeqCst)), (0, 1), "one was not dropped");
}

#[test]
fn without_the_setting_tasks_run_in_no_span() {
    with_default(Spans::default(), || {
        for limit in [0, 5] {
            let mut t = Driven::with(|builder| builder.max_pending_timeouts((limit > 0).then_some(limit)));
            let log = Log::default();
            info_span!("request").in_scope(|| t.timer.new_timeout_task(log.clone(), TICK).unwrap());
            t.pass(TICK);
            assert_eq!(log.take(), ["none"], "with a limit of {limit}");
        }
    });
}

/// The limit is checked first, and a place that a task with a span took is free after its end.
#[test]
fn spans_and_a_limit_go_together() {
    with_default(Spans::default(), || {
        let mut t = Driven::with(|builder| builder.task_spans().max_pending_timeouts(Some(1)));
        let log = Log::default();
        info_span!("request").in_scope(|| {
            t.timer.new_timeout_task(log.clone(), TICK).unwrap();
            assert!(t.timer.new_timeout_task(log.clone(), TICK).is_err());
        });
        t.pass(TICK);
        assert_eq!((log.take(), t.timer.pending_timeouts()), (vec!["request"], 0));
    });
}

/// On a worker thread, which has no subscriber of its own: the span enters that of its thread.
#[test]
fn worker_thread_runs_tasks_in_their_spans() {
    let spans = Spans::default();
    with_default(spans.clone(), || {
        let timer = HashedWheelTimer::builder().tick(ms(1)).task_spans().build().unwrap();
        let (send, receive) = channel();
        let task = move |_: &Timeout| send.send(ENTERED.with_borrow(|entered| entered.len())).unwrap();
        info_span!("request").in_scope(|| timer.new_timeout(task, ms(2)).unwrap());
        assert_eq!(receive.recv_timeout(TEST_TIMEOUT), Ok(1));
        timer.stop();
    });
    assert_eq!(spans.open.load(SeqCst), 0);
}

/// A task that meets the end of the timer comes back without its span, also if it was in the queue
/// already.
#[test]
fn a_rejected_task_comes_back_without_its_span() {
    struct Carrier(u32);

    impl TimerTask for Carrier {
        fn run(self, _: &Timeout) {}
    }

    for _ in 0..if cfg!(miri) { 10 } else { 200 } {
        let t = Driven::with(|builder| builder.task_spans());
        let (timer, (go, wait)) = (t.timer.clone(), channel::<()>());
        let stop = thread::spawn(move || {
            wait.recv().unwrap();
            timer.stop().len()
        });
        let mut accepted = 0;
        go.send(()).unwrap();
        let rejected = loop {
            match t.timer.try_new_timeout_task(Carrier(accepted), TICK) {
                Ok(_) => accepted += 1,
                Err(rejected) => break rejected,
            }
        };
        assert_eq!(rejected.task.0, accepted);
        assert_eq!(stop.join().unwrap(), accepted as usize);
    }
}

//! Every way to end a timeout without running it: each calls the task's hook, and each lets the
//! worker reclaim memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::{Driven, Schedules, TICK};
use hashed_wheel::{Cancel, CancelOnDrop, HashedWheelTimer, Timeout, TimerTask};

const FAR: Duration = Duration::from_secs(3_600);

// --- the hook ------------------------------------------------------------------------------------

/// Where and how often its hook was called, and whether it was dropped since.
#[derive(Default)]
struct Hook {
    calls: std::sync::Mutex<Vec<ThreadId>>,
    drops: AtomicUsize,
}

/// `N` zero is a task that fits into its node; with more words, it does not.
struct Hooked<const N: usize>(Arc<Hook>, [usize; N]);

impl<const N: usize> TimerTask for Hooked<N> {
    fn run(self, _: &Timeout) {
        unreachable!("it is cancelled");
    }

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.0.calls.lock().unwrap().push(thread::current().id());
    }
}

impl<const N: usize> Drop for Hooked<N> {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
    }
}

type Schedule = fn(&HashedWheelTimer, &Arc<Hook>) -> Timeout;

fn schedule<const N: usize>(timer: &HashedWheelTimer, hook: &Arc<Hook>) -> Timeout {
    let task = Hooked(Arc::clone(hook), [0; N]);
    timer.schedule_task(task, FAR)
}

fn schedule_boxed(timer: &HashedWheelTimer, hook: &Arc<Hook>) -> Timeout {
    let task: Box<dyn hashed_wheel::DynTimerTask> = Box::new(Hooked(Arc::clone(hook), []));
    timer.schedule_task(task, FAR)
}

/// A name, and a call that ends the timeout.
type Way = (&'static str, fn(HashedWheelTimer, Timeout));

/// Each gets the only handle of the timeout, and the only one of the timer.
const WAYS: [Way; 11] = [
    ("cancel", |_, timeout| assert!(timeout.cancel())),
    ("cancel, dyn", |_, timeout| {
        let dynamic: Box<dyn Cancel> = Box::new(timeout);
        assert!(dynamic.cancel());
    }),
    ("cancel_and_drop", |_, timeout| {
        assert!(timeout.cancel_and_drop());
    }),
    ("cancel_and_drop of a clone", |_, timeout| {
        assert!(timeout.clone().cancel_and_drop() && timeout.is_cancelled());
    }),
    ("cancel_and_wait", |_, timeout| {
        assert!(timeout.cancel_and_wait());
    }),
    ("guard", |_, timeout| drop(timeout.cancel_on_drop())),
    ("guard, dyn", |_, timeout| {
        let dynamic: Box<dyn Cancel> = Box::new(timeout);
        drop(CancelOnDrop::new(dynamic));
    }),
    ("cancel_all", |timer, timeout| {
        drop(timeout);
        assert_eq!(timer.cancel_all(), 1);
    }),
    ("stop", |timer, timeout| {
        drop(timeout);
        assert_eq!(timer.stop().len(), 1);
    }),
    ("shutdown", |timer, timeout| {
        drop(timeout);
        assert_eq!(timer.shutdown(Duration::ZERO).len(), 1);
    }),
    ("last drop", |timer, timeout| drop((timeout, timer))),
];

#[test]
fn every_way_to_end_a_timeout_calls_its_hook_once_on_this_thread() {
    let kinds: [(&str, Schedule); 3] = [
        ("in the node", schedule::<0>),
        ("in a box", schedule::<99>),
        ("dyn", schedule_boxed),
    ];
    for (kind, schedule) in kinds {
        for (way, end) in WAYS {
            for is_in_wheel in [false, true] {
                let context = format!("{kind}, {way}, in the wheel: {is_in_wheel}");
                let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
                let hook = Arc::new(Hook::default());
                let timeout = schedule(&t.timer, &hook);
                if is_in_wheel {
                    assert_eq!(t.turn(), 0);
                }
                let stats = t.timer.downgrade();
                let Driven { timer, driver, .. } = t;
                end(timer, timeout);
                let calls = hook.calls.lock().unwrap().clone();
                assert_eq!(calls, [thread::current().id()], "{context}");
                assert_eq!(hook.drops.load(SeqCst), 1, "{context}");
                assert_eq!(Arc::strong_count(&hook), 1, "{context}");
                assert!(stats.upgrade().is_none(), "{context}");
                drop(driver);
                assert_eq!(hook.calls.lock().unwrap().len(), 1, "{context}");
            }
        }
    }
}

/// A thread that has nothing cached of the timer takes another path.
#[test]
fn a_thread_that_does_not_use_the_timer_calls_the_hook_too() {
    for (way, end) in WAYS {
        let t = Driven::new();
        let hook = Arc::new(Hook::default());
        let timeout = schedule::<0>(&t.timer, &hook);
        let timer = t.timer;
        let thread = thread::spawn(move || end(timer, timeout));
        let id = thread.thread().id();
        thread.join().unwrap();
        assert_eq!(*hook.calls.lock().unwrap(), [id], "{way}");
        assert_eq!(hook.drops.load(SeqCst), 1, "{way}");
    }
}

// --- the wake-up of a driver's loop --------------------------------------------------------------

/// Counts the calls of the waker during 40 000 times `end`, which is one if the loop does not turn
/// meanwhile. They were made by `make`, and are in the wheel.
#[track_caller]
fn assert_wakes_the_loop_once<T>(
    way: &str,
    make: impl Fn(&HashedWheelTimer) -> T,
    end: impl Fn(T),
) {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let mut t = Driven::with(|builder| builder.waker(move || _ = counter.fetch_add(1, SeqCst)));
    let made: Vec<T> = (0..40_000).map(|_| make(&t.timer)).collect();
    assert_eq!(t.turn(), 0, "{way}");
    assert!(t.next_turn() > Some(TICK * 2), "{way}");
    wakes.store(0, SeqCst);
    made.into_iter().for_each(end);
    assert_eq!(t.pending(), 0, "{way}");
    assert_eq!(wakes.load(SeqCst), 1, "{way}");
}

fn nothing(timer: &HashedWheelTimer) -> Timeout {
    timer.schedule(|_| (), FAR)
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn cancelled_timeouts_wake_the_loop() {
    type Way = (&'static str, fn(Timeout));
    let ways: [Way; 5] = [
        ("cancel", |timeout| assert!(timeout.cancel())),
        ("cancel_and_drop", |timeout| {
            assert!(timeout.cancel_and_drop());
        }),
        ("cancel_and_drop of a clone", |timeout| {
            assert!(timeout.clone().cancel_and_drop());
        }),
        ("cancel_and_wait", |timeout| {
            assert!(timeout.cancel_and_wait());
        }),
        ("guard", |timeout| drop(timeout.cancel_on_drop())),
    ];
    for (way, end) in ways {
        assert_wakes_the_loop_once(way, nothing, end);
        let task = || Hooked(Arc::new(Hook::default()), []);
        let make = |timer: &HashedWheelTimer| timer.schedule_task(task(), FAR);
        assert_wakes_the_loop_once(way, make, end);
    }
    // All at once, by the timer.
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let t = Driven::with(|builder| builder.waker(move || _ = counter.fetch_add(1, SeqCst)));
    (0..40_000).for_each(|_| drop(nothing(&t.timer)));
    assert!(t.next_turn() > Some(TICK * 2));
    wakes.store(0, SeqCst);
    assert_eq!(t.timer.cancel_all(), 40_000);
    assert_eq!(wakes.load(SeqCst), 1);
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn disarmed_and_cancelled_alarms_wake_the_loop() {
    let make = |timer: &HashedWheelTimer| {
        let alarm = timer.new_alarm(|_| ());
        alarm.arm(FAR).unwrap();
        alarm
    };
    assert_wakes_the_loop_once("disarm", make, |alarm| assert!(alarm.disarm()));
    assert_wakes_the_loop_once("cancel", make, |alarm| assert!(alarm.cancel()));
    let guarded = |timer: &HashedWheelTimer| make(timer).cancel_on_drop();
    assert_wakes_the_loop_once("guard", guarded, drop);
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn cancelled_periodic_tasks_wake_the_loop() {
    let make = |timer: &HashedWheelTimer| timer.fixed_rate(|| (), FAR, FAR);
    assert_wakes_the_loop_once("cancel", make, |task| assert!(task.cancel()));
    assert_wakes_the_loop_once("and drop", make, |task| assert!(task.cancel_and_drop()));
    assert_wakes_the_loop_once("and wait", make, |task| assert!(task.cancel_and_wait()));
    assert_wakes_the_loop_once("guard", make, |task| drop(task.cancel_on_drop()));
}

#[cfg(feature = "async")]
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn dropped_futures_wake_the_loop() {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    fn poll<F: Future>(future: F) -> Pin<Box<F>> {
        let mut future = Box::pin(future);
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        future
    }
    assert_wakes_the_loop_once("sleep", |timer| poll(timer.sleep(FAR)), drop);
    let make = |timer: &HashedWheelTimer| poll(timer.timeout(FAR, std::future::pending::<()>()));
    assert_wakes_the_loop_once("timeout", make, drop);
    let make = |timer: &HashedWheelTimer| {
        let mut interval = timer.interval_at(timer.now() + FAR, FAR);
        let mut context = Context::from_waker(Waker::noop());
        assert!(interval.poll_tick(&mut context).is_pending());
        interval
    };
    assert_wakes_the_loop_once("interval", make, drop);
}

//! How long a thread's cache keeps parts of the timers that the thread uses.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{Schedules, built_driven};
use hashed_wheel::{Clock, Driver, HashedWheelTimer, Schedule, Timeout};

const LATER: Duration = Duration::from_secs(60);

struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// This clock lives as long as the memory of its timer.
struct SharedClock(#[allow(dead_code, reason = "it is only counted")] Arc<()>);

impl Clock for SharedClock {
    fn now(&self) -> Duration {
        StoppedClock.now()
    }
}

/// Returns a timer, its driver, and a weak reference that shows whether the timer's memory exists.
fn timer() -> (HashedWheelTimer, Driver, Weak<()>) {
    let lifetime = Arc::new(());
    let memory = Arc::downgrade(&lifetime);
    let (timer, driver) = built_driven(|builder| builder.clock(SharedClock(lifetime)));
    (timer, driver, memory)
}

fn is_freed(memory: &Weak<()>) -> bool {
    memory.strong_count() == 0
}

/// A thread that executes the closures it is sent, one after the other.
struct Helper {
    work: Sender<Box<dyn FnOnce() + Send>>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Helper {
    fn new() -> Self {
        let ((work, todo), (finished, done)) = (channel::<Box<dyn FnOnce() + Send>>(), channel());
        let thread = thread::spawn(move || {
            for work in todo {
                work();
                finished.send(()).unwrap();
            }
        });
        Self { work, done, thread }
    }

    fn call(&self, work: impl FnOnce() + Send + 'static) {
        self.work.send(Box::new(work)).unwrap();
        self.done
            .recv_timeout(Duration::from_secs(60))
            .expect("the call returns");
    }

    fn end(self) {
        drop(self.work);
        self.thread.join().unwrap();
    }
}

fn use_timer(timer: &HashedWheelTimer) -> Timeout {
    timer.schedule(|_| (), LATER)
}

#[test]
fn the_thread_that_drops_the_last_handle_keeps_nothing() {
    let (timer, driver, memory) = timer();
    let (kept, cancelled) = (use_timer(&timer), use_timer(&timer));
    assert!(cancelled.cancel());
    drop((cancelled, driver, timer));
    assert!(!is_freed(&memory), "a timeout keeps its timer");
    assert!(kept.is_cancelled());
    drop(kept);
    assert!(is_freed(&memory));
}

#[test]
fn a_thread_that_ends_keeps_nothing() {
    let (timer, driver, memory) = timer();
    let helper = Helper::new();
    let its_timer = timer.clone();
    helper.call(move || drop(use_timer(&its_timer)));
    drop((timer, driver));
    helper.end();
    assert!(is_freed(&memory));
}

#[test]
fn a_thread_that_uses_another_timer_releases_all_stopped_ones() {
    let timers = [(); 3].map(|()| timer());
    let helper = Helper::new();
    let its_timers = timers.each_ref().map(|(timer, ..)| timer.clone());
    helper.call(move || its_timers.iter().for_each(|timer| drop(use_timer(timer))));
    let memories = timers.map(|(.., memory)| memory);
    helper.call(|| {
        let (other, _driver) = built_driven(|builder| builder.clock(StoppedClock));
        use_timer(&other);
    });
    assert!(memories.iter().all(is_freed));
    helper.end();
}

/// The thread need not use a third timer, nor use the other one for the first time.
#[test]
fn a_thread_that_goes_on_with_another_timer_releases_the_stopped_one() {
    let (timer, driver, memory) = timer();
    let (other, _driver, _) = self::timer();
    let helper = Helper::new();
    let (its_timer, its_other) = (timer.clone(), other.clone());
    helper.call(move || {
        use_timer(&its_timer).cancel();
        use_timer(&its_other).cancel();
    });
    drop((timer, driver));
    assert!(!is_freed(&memory), "the helper's cache keeps it");
    helper.call(move || {
        // More than one block of messages, and an operation after it.
        (0..600).for_each(|_| assert!(use_timer(&other).cancel()));
    });
    assert!(is_freed(&memory));
    helper.end();
}

/// A thread that only resets timeouts to later deadlines caches nothing.
#[test]
fn a_thread_that_only_resets_to_later_keeps_nothing() {
    let (timer, mut driver, memory) = timer();
    let helper = Helper::new();
    for is_in_wheel in [false, true] {
        let timeout = use_timer(&timer);
        if is_in_wheel {
            driver.turn();
        }
        helper.call(move || assert!(timeout.reset(2 * LATER)));
    }
    drop((timer, driver));
    assert!(is_freed(&memory));
    helper.end();
}

/// Resets a timeout in the wheel to an earlier deadline, on the helper's thread.
fn reset_to_earlier(helper: &Helper, timer: &HashedWheelTimer, driver: &mut Driver) {
    // In an `Arc`, because a thread that drops a handle gets the reference of the handle.
    let timeout = Arc::new(use_timer(timer));
    driver.turn();
    let its_timeout = Arc::clone(&timeout);
    helper.call(move || assert!(its_timeout.reset(LATER / 2)));
}

/// Returns a thread that has only reset a timeout, to an earlier deadline. The thread has a lane of
/// the stopped timer, and no references, so it does not keep the timer's memory.
fn that_has_only_reset() -> Helper {
    let (timer, mut driver, memory) = timer();
    let helper = Helper::new();
    reset_to_earlier(&helper, &timer, &mut driver);
    drop((timer, driver));
    assert!(is_freed(&memory));
    helper
}

#[test]
fn a_thread_that_has_only_reset_keeps_nothing_of_a_stopped_timer() {
    let helper = that_has_only_reset();
    helper.call(|| {
        let (other, _driver) = built_driven(|builder| builder.clock(StoppedClock));
        assert!(use_timer(&other).cancel());
    });
    helper.end();
}

/// One of the new timers takes the index of the old one, of which the thread has a lane.
#[test]
fn a_thread_resets_by_the_lane_of_the_timer_of_the_timeout() {
    let helper = that_has_only_reset();
    for _ in 0..if cfg!(miri) { 5 } else { 100 } {
        let (timer, mut driver, _) = timer();
        reset_to_earlier(&helper, &timer, &mut driver);
        driver.turn();
        assert_eq!(driver.next_turn(), Some(LATER / 2));
    }
    helper.end();
}

/// A thread alternates between many timers.
#[test]
fn a_thread_uses_many_timers_alternately() {
    let timers: Vec<_> = (0..10)
        .map(|_| built_driven(|builder| builder.clock(StoppedClock)))
        .collect();
    for _ in 0..3 {
        let timeouts: Vec<_> = timers.iter().map(|(timer, _)| use_timer(timer)).collect();
        assert!(timeouts.iter().rev().all(Timeout::cancel));
    }
    assert!(
        timers
            .iter()
            .all(|(timer, _)| timer.pending_timeouts() == 0)
    );
}

/// A thread uses a timer in a destructor of a thread-local, when the thread's cache may already be
/// destroyed.
#[test]
fn a_thread_can_use_a_timer_while_it_ends() {
    struct AtTheEnd(HashedWheelTimer, Sender<Timeout>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let (first, second) = (use_timer(&self.0), use_timer(&self.0));
            assert!(second.cancel());
            self.1.send(first).unwrap();
        }
    }

    thread_local!(static LAST: RefCell<Vec<AtTheEnd>> = const { RefCell::new(Vec::new()) });

    let (timer, mut driver) = built_driven(|builder| builder.clock(StoppedClock));
    for uses_it_before in [false, true] {
        let (send, receive) = channel();
        let its_timer = timer.clone();
        let thread = thread::spawn(move || {
            // As a rule, the thread-local that was used first is destroyed last.
            if uses_it_before {
                assert!(use_timer(&its_timer).cancel());
            }
            LAST.with_borrow_mut(|last| last.push(AtTheEnd(its_timer.clone(), send)));
            if !uses_it_before {
                assert!(use_timer(&its_timer).cancel());
            }
        });
        thread.join().unwrap();
        let timeout = receive.recv().unwrap();
        assert_eq!(timer.pending_timeouts(), 1);
        driver.turn();
        assert!(timeout.cancel());
    }
    assert_eq!(timer.stop(), []);
}

/// A panic in a destructor of a thread-local ends the process.
///
/// On Windows the thread would wait forever: no other thread can begin before the destructor has
/// returned.
#[test]
#[cfg(not(windows))]
fn a_thread_can_build_and_stop_a_timer_while_it_ends() {
    struct AtTheEnd(Sender<usize>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let timer = HashedWheelTimer::new(Duration::from_millis(1), 8);
            use_timer(&timer);
            let each_second = Schedule::at_fixed_rate(Duration::from_secs(1)).jitter(LATER);
            timer.periodic(each_second, |_| ());
            assert!(use_timer(&timer).cancel_and_wait());
            assert_ne!(format!("{timer:?}"), "");
            let other = HashedWheelTimer::default();
            use_timer(&other);
            assert_eq!(other.shutdown(Duration::from_millis(1)).len(), 1);
            self.0.send(timer.stop().len()).unwrap();
        }
    }

    thread_local!(static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) });

    for uses_a_timer_before in [false, true] {
        let (send, receive) = channel();
        let thread = thread::spawn(move || {
            if uses_a_timer_before {
                use_timer(&HashedWheelTimer::default());
            }
            LAST.set(Some(AtTheEnd(send)));
            if !uses_a_timer_before {
                use_timer(&HashedWheelTimer::default());
            }
        });
        thread.join().unwrap();
        assert_eq!(receive.recv(), Ok(2));
    }
}

/// A thread resets a timeout in a destructor of a thread-local, when the thread's cache may already
/// be destroyed.
#[test]
fn a_thread_can_reset_a_timeout_while_it_ends() {
    struct ResetsAtTheEnd(Timeout);

    impl Drop for ResetsAtTheEnd {
        fn drop(&mut self) {
            assert!(self.0.reset(LATER / 2));
        }
    }

    thread_local!(static LAST: RefCell<Vec<ResetsAtTheEnd>> = const { RefCell::new(Vec::new()) });

    let (timer, mut driver) = built_driven(|builder| builder.clock(StoppedClock));
    for uses_it_before in [false, true] {
        let timeouts = [use_timer(&timer), use_timer(&timer)];
        driver.turn();
        let [first, last] = timeouts.clone();
        let thread = thread::spawn(move || {
            // As a rule, the thread-local that was used first is destroyed last.
            if uses_it_before {
                assert!(first.reset(LATER * 3 / 4));
            }
            LAST.with_borrow_mut(|at_the_end| at_the_end.push(ResetsAtTheEnd(last)));
            if !uses_it_before {
                assert!(first.reset(LATER * 3 / 4));
            }
        });
        thread.join().unwrap();
        driver.turn();
        assert_eq!(driver.next_turn(), Some(LATER / 2));
        assert!(timeouts[1].cancel());
        driver.turn();
        assert_eq!(driver.next_turn(), Some(LATER * 3 / 4));
        assert!(timeouts[0].cancel());
    }
    assert_eq!(timer.pending_timeouts(), 0);
}

/// Dropping a timer drops its clock, and the drop of that clock uses another timer.
#[test]
fn a_clock_may_use_another_timer_when_it_is_dropped() {
    struct UsesTimerWhenDropped(HashedWheelTimer);

    impl Clock for UsesTimerWhenDropped {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    impl Drop for UsesTimerWhenDropped {
        fn drop(&mut self) {
            use_timer(&self.0);
        }
    }

    let (other, _driver) = built_driven(|builder| builder.clock(StoppedClock));
    let (timer, driver) =
        built_driven(|builder| builder.clock(UsesTimerWhenDropped(other.clone())));
    let helper = Helper::new();
    let its_timer = timer.clone();
    helper.call(move || drop(use_timer(&its_timer)));
    drop((timer, driver));
    assert_eq!(other.pending_timeouts(), 0, "its cache keeps the first");
    let third = built_driven(|builder| builder.clock(StoppedClock));
    // The cache releases the first timer to store the third. The first timer's clock then uses the
    // second timer.
    helper.call(move || drop(use_timer(&third.0)));
    assert_eq!(other.pending_timeouts(), 1);
    helper.end();
}

struct PanicsWhenDropped {
    drops: Arc<AtomicUsize>,
}

impl Clock for PanicsWhenDropped {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        panic!("in the drop of a clock or waker");
    }
}

/// The clock and the waker go with the last handle of a timeout. Their panics do not unwind out of
/// its drop.
#[test]
fn a_clock_and_a_waker_may_panic_when_they_are_dropped() {
    let drops = Arc::new(AtomicUsize::new(0));
    let clock = PanicsWhenDropped {
        drops: drops.clone(),
    };
    let waker = PanicsWhenDropped {
        drops: drops.clone(),
    };
    let builder = HashedWheelTimer::builder()
        .clock(clock)
        .waker(move || _ = waker.now());
    let (timer, driver) = builder.build_driven().unwrap();
    let timeout = use_timer(&timer);
    let memory = timeout.timer();
    drop((timer, driver));
    drop(memory);
    assert!(timeout.is_cancelled());
    assert_eq!(drops.load(Ordering::Relaxed), 0, "kept by the timeout");
    drop(timeout);
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

/// The cache drops the clock of another timer after the work of a cancel. A panic in the drop of
/// that clock changes nothing.
#[test]
fn another_timers_clock_does_not_break_a_cancel() {
    let clock = PanicsWhenDropped {
        drops: Arc::default(),
    };
    let (stopped, driver) = built_driven(|builder| builder.clock(clock));
    let (timer, _driver) = built_driven(|builder| builder.clock(StoppedClock));
    let helper = Helper::new();
    let its_timer = stopped.clone();
    helper.call(move || drop(use_timer(&its_timer)));
    drop((driver, stopped));
    let timeout = use_timer(&timer);
    let its_timeout = timeout.clone();
    helper.call(move || assert!(its_timeout.cancel()));
    assert!(timeout.is_cancelled());
    assert_eq!(timer.pending_timeouts(), 0);
    helper.end();
}

/// The cache drops the clock of another timer after the work of a cancel. So that clock may stop
/// the timer, which waits for no cancel then.
#[test]
fn another_timers_clock_may_stop_the_timer_of_a_cancel() {
    struct StopsWhenDropped(Arc<Mutex<Option<HashedWheelTimer>>>);

    impl Clock for StopsWhenDropped {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    impl Drop for StopsWhenDropped {
        fn drop(&mut self) {
            let timer = self.0.lock().unwrap().take();
            timer.expect("the clock is dropped once").stop();
        }
    }

    let (timer, driver) = built_driven(|builder| builder.clock(StoppedClock));
    let clock = StopsWhenDropped(Arc::new(Mutex::new(Some(timer.clone()))));
    let (stopped, its_driver) = built_driven(|builder| builder.clock(clock));
    let timeout = use_timer(&timer);
    let helper = Helper::new();
    let its_timer = stopped.clone();
    helper.call(move || drop(use_timer(&its_timer)));
    drop((its_driver, stopped));
    let its_timeout = timeout.clone();
    helper.call(move || assert!(its_timeout.cancel()));
    assert!(timer.is_stopped() && timeout.is_cancelled());
    helper.end();
    drop(driver);
}

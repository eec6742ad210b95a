//! What a thread keeps of the timers that it uses, and until when.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hashed_wheel::{Clock, Driver, HashedWheelTimer, Timeout};

const LATER: Duration = Duration::from_secs(60);

struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// Whether it is there says whether the timer's memory is.
struct Shared(#[allow(dead_code, reason = "it is only counted")] Arc<()>);

impl Clock for Shared {
    fn now(&self) -> Duration {
        Still.now()
    }
}

/// A timer, its driver, and what says whether its memory is there.
fn timer() -> (HashedWheelTimer, Driver, Weak<()>) {
    let shared = Arc::new(());
    let is_there = Arc::downgrade(&shared);
    let (timer, driver) = HashedWheelTimer::builder().clock(Shared(shared)).build_driven().unwrap();
    (timer, driver, is_there)
}

fn is_gone(timer: &Weak<()>) -> bool {
    timer.strong_count() == 0
}

/// A thread that does what it is told, one thing after the other.
struct Helper {
    work: Sender<Box<dyn FnOnce() + Send>>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Helper {
    fn new() -> Self {
        let ((work, todo), (tell, done)) = (channel::<Box<dyn FnOnce() + Send>>(), channel());
        let thread = thread::spawn(move || {
            for work in todo {
                work();
                tell.send(()).unwrap();
            }
        });
        Self { work, done, thread }
    }

    fn call(&self, work: impl FnOnce() + Send + 'static) {
        self.work.send(Box::new(work)).unwrap();
        self.done.recv().unwrap();
    }

    fn end(self) {
        drop(self.work);
        self.thread.join().unwrap();
    }
}

fn use_it(timer: &HashedWheelTimer) -> Timeout {
    timer.new_timeout(|_| (), LATER).unwrap()
}

#[test]
fn nothing_is_kept_by_who_drops_the_last_handle() {
    let (timer, driver, is_there) = timer();
    let (kept, cancelled) = (use_it(&timer), use_it(&timer));
    assert!(cancelled.cancel());
    drop((cancelled, driver, timer));
    assert!(!is_gone(&is_there), "a timeout has a timer");
    assert!(kept.is_cancelled());
    drop(kept);
    assert!(is_gone(&is_there));
}

#[test]
fn a_thread_that_ends_keeps_nothing() {
    let (timer, driver, is_there) = timer();
    let helper = Helper::new();
    let its = timer.clone();
    helper.call(move || drop(use_it(&its)));
    drop((timer, driver));
    helper.end();
    assert!(is_gone(&is_there));
}

#[test]
fn a_thread_that_uses_another_timer_lets_go_of_the_stopped_one() {
    let (timer, driver, is_there) = timer();
    let helper = Helper::new();
    let its = timer.clone();
    helper.call(move || drop(use_it(&its)));
    drop((timer, driver));
    helper.call(|| {
        let (other, _driver) = HashedWheelTimer::builder().clock(Still).build_driven().unwrap();
        use_it(&other);
    });
    assert!(is_gone(&is_there));
    helper.end();
}

/// A task goes back and forth between many timers.
#[test]
fn a_thread_uses_many_timers_in_turn() {
    let timers: Vec<_> =
        (0..10).map(|_| HashedWheelTimer::builder().clock(Still).build_driven().unwrap()).collect();
    for _ in 0..3 {
        let timeouts: Vec<_> = timers.iter().map(|(timer, _)| use_it(timer)).collect();
        assert!(timeouts.iter().rev().all(Timeout::cancel));
    }
    assert!(timers.iter().all(|(timer, _)| timer.pending_timeouts() == 0));
}

/// What the thread itself keeps is gone by then, or going.
#[test]
fn a_thread_that_is_ending_can_use_a_timer() {
    struct AtTheEnd(HashedWheelTimer, Sender<Timeout>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let (first, second) = (use_it(&self.0), use_it(&self.0));
            assert!(second.cancel());
            self.1.send(first).unwrap();
        }
    }

    thread_local!(static LAST: RefCell<Vec<AtTheEnd>> = const { RefCell::new(Vec::new()) });

    let (timer, mut driver) = HashedWheelTimer::builder().clock(Still).build_driven().unwrap();
    for uses_it_before in [false, true] {
        let (send, receive) = channel();
        let its = timer.clone();
        let thread = thread::spawn(move || {
            // The one that is first used is the last to go, as a rule.
            if uses_it_before {
                assert!(use_it(&its).cancel());
            }
            LAST.with_borrow_mut(|last| last.push(AtTheEnd(its.clone(), send)));
            if !uses_it_before {
                assert!(use_it(&its).cancel());
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

/// The end of a timer is the end of its clock, whose own end uses another timer.
#[test]
fn a_clock_may_use_another_timer_when_it_is_dropped() {
    struct Farewell(HashedWheelTimer);

    impl Clock for Farewell {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    impl Drop for Farewell {
        fn drop(&mut self) {
            use_it(&self.0);
        }
    }

    let (other, _driver) = HashedWheelTimer::builder().clock(Still).build_driven().unwrap();
    let (timer, driver) = HashedWheelTimer::builder().clock(Farewell(other.clone())).build_driven().unwrap();
    let helper = Helper::new();
    let its = timer.clone();
    helper.call(move || drop(use_it(&its)));
    drop((timer, driver));
    assert_eq!(other.pending_timeouts(), 0, "the helper keeps it");
    let third = HashedWheelTimer::builder().clock(Still).build_driven().unwrap();
    // It lets go of the first for the third, and the clock of the first uses the second.
    helper.call(move || drop(use_it(&third.0)));
    assert_eq!(other.pending_timeouts(), 1);
    helper.end();
}

/// What a cancel does for its own timer is done before another one's clock goes, and whatever that does.
#[test]
fn another_timers_clock_does_not_break_a_cancel() {
    struct Bad;

    impl Clock for Bad {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("at the end of a clock");
        }
    }

    let (stopped, driver) = HashedWheelTimer::builder().clock(Bad).build_driven().unwrap();
    let (timer, _driver) = HashedWheelTimer::builder().clock(Still).build_driven().unwrap();
    let helper = Helper::new();
    let its = stopped.clone();
    helper.call(move || drop(use_it(&its)));
    drop((driver, stopped));
    let timeout = use_it(&timer);
    let its = timeout.clone();
    helper.call(move || assert!(its.cancel()));
    assert!(timeout.is_cancelled());
    assert_eq!(timer.pending_timeouts(), 0);
    helper.end();
}

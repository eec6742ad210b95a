//! Settings of the worker thread, large tasks, clocks that step back, and `fork`.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::common::{
    self, Driven, Ends, RewindableClock, Schedules, TEST_TIMEOUT, TICK, ends, eventually, ms,
    quietly, wait_until_idle,
};
use hashed_wheel::{
    Builder, Clock, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn builder() -> Builder {
    HashedWheelTimer::builder().tick(ms(1))
}

// --- hooks ---------------------------------------------------------------------------------------

#[test]
fn hooks_run_on_the_worker_thread_before_and_after_all_tasks() {
    let (log, entries) = channel();
    let entry = |name: &'static str| {
        let log = Mutex::new(log.clone());
        move || {
            log.lock()
                .unwrap()
                .send((name, thread::current().id()))
                .unwrap();
        }
    };
    let timer = builder()
        .on_thread_start(entry("start"))
        .on_thread_stop(entry("stop"))
        .build()
        .unwrap();
    let task = entry("task");
    timer.schedule(move |_| task(), ms(0));
    let next = || entries.recv_timeout(TEST_TIMEOUT).unwrap();
    let (start, worker) = next();
    assert_eq!((start, next()), ("start", ("task", worker)));
    assert_ne!(worker, thread::current().id());
    timer.stop();
    // It was called before `stop` returned.
    assert_eq!(entries.try_recv().unwrap(), ("stop", worker));
    drop(timer);
    assert!(entries.try_recv().is_err(), "each hook is called once");
}

#[test]
fn a_task_that_drops_the_last_handle_is_followed_by_the_stop_hook() {
    let (stopped, wait) = channel();
    let stopped = Mutex::new(stopped);
    let timer = builder()
        .on_thread_stop(move || stopped.lock().unwrap().send(()).unwrap())
        .build()
        .unwrap();
    let last = timer.clone();
    timer.schedule(move |_| drop(last), ms(1));
    drop(timer);
    wait.recv_timeout(TEST_TIMEOUT).unwrap();
}

#[test]
fn panics_of_hooks_are_counted_and_harm_nothing() {
    quietly(|| {
        let (fired, wait) = channel();
        let timer = builder()
            .on_thread_start(|| std::panic::resume_unwind(Box::new("start")))
            .on_thread_stop(|| std::panic::resume_unwind(Box::new("stop")))
            .build()
            .unwrap();
        timer.schedule(move |_| fired.send(()).unwrap(), ms(1));
        wait.recv_timeout(TEST_TIMEOUT).unwrap();
        assert_eq!(timer.stats().panics, 1);
        timer.stop();
        assert_eq!(timer.stats().panics, 2);
    });
}

#[test]
fn hooks_whose_drop_panics_do_not_unwind_out_of_the_drop_of_a_handle() {
    struct PanicsWhenDropped(Sender<()>);
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            std::panic::resume_unwind(Box::new("in drop"));
        }
    }
    let (dropped, drops) = channel();
    let hook = || {
        let captured = PanicsWhenDropped(dropped.clone());
        let shared = Mutex::new(captured);
        move || _ = &shared
    };
    let timer = builder()
        .on_thread_start(hook())
        .on_thread_stop(hook())
        .build()
        .unwrap();
    timer.start().unwrap();
    drop(timer);
    for _ in 0..2 {
        drops.recv_timeout(TEST_TIMEOUT).unwrap();
    }
}

#[test]
fn a_start_hook_may_stop_the_timer() {
    let timer = Arc::new(OnceLock::<HashedWheelTimer>::new());
    let (stopped, wait) = channel();
    let hook = {
        let (timer, stopped) = (Arc::downgrade(&timer), Mutex::new(stopped));
        move || {
            let timer = timer.upgrade().unwrap();
            stopped
                .lock()
                .unwrap()
                .send(timer.get().unwrap().stop().len())
                .unwrap();
        }
    };
    timer
        .set(builder().on_thread_start(hook).build().unwrap())
        .unwrap();
    let _ = timer.get().unwrap().start();
    assert_eq!(wait.recv_timeout(TEST_TIMEOUT), Ok(0));
    let end = Arc::clone(&timer);
    assert!(ends(move || end.get().unwrap().stop()).is_empty());
}

// --- the stack -----------------------------------------------------------------------------------

/// Uses so much of the stack.
#[inline(never)]
fn use_stack<const SIZE: usize>() {
    black_box(&[1_u8; SIZE]);
}

#[test]
fn the_stack_of_the_worker_has_the_size_that_was_set() {
    const LARGE: usize = 8 << 20;
    let timer = builder().thread_stack_size(2 * LARGE).build().unwrap();
    let (fired, wait) = channel();
    let task = move |_: &Timeout| {
        use_stack::<LARGE>();
        fired.send(()).unwrap();
    };
    timer.schedule(task, ms(0));
    wait.recv_timeout(TEST_TIMEOUT).unwrap();
}

#[test]
#[cfg(target_pointer_width = "64")]
#[cfg_attr(miri, ignore = "Miri's threads have no stack of their own")]
fn a_stack_that_is_too_large_is_an_error_of_the_start() {
    let timer = builder().thread_stack_size(1 << 60).build().unwrap();
    for _ in 0..2 {
        assert!(matches!(timer.start(), Err(NewTimeoutError::Spawn { .. })));
        assert!(matches!(
            timer.new_timeout(|_| (), ms(1)),
            Err(NewTimeoutError::Spawn { .. })
        ));
    }
    assert_eq!((timer.pending_timeouts(), timer.stop()), (0, vec![]));
}

// --- large tasks ---------------------------------------------------------------------------------

const MIB: usize = 1 << 20;

/// Runs on a thread with a large stack: a caller moves what it passes by value.
fn with_large_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(test)
        .unwrap()
        .join()
        .unwrap();
}

/// Sends the number of its bytes when it runs or is cancelled.
struct Large<const SIZE: usize>([u8; SIZE], Sender<usize>);

impl<const SIZE: usize> Large<SIZE> {
    #[inline(never)]
    fn schedule_closure(
        timer: &HashedWheelTimer,
        result: Sender<usize>,
        delay: Duration,
    ) -> Timeout {
        let bytes = [1_u8; SIZE];
        timer.schedule(
            move |_| result.send(black_box(&bytes).len()).unwrap(),
            delay,
        )
    }

    #[inline(never)]
    fn schedule_task(timer: &HashedWheelTimer, result: Sender<usize>, delay: Duration) -> Timeout {
        timer.schedule_task(Self([1; SIZE], result), delay)
    }

    fn send(&self, sign: usize) {
        self.1.send(black_box(&self.0).len() + sign).unwrap();
    }
}

impl<const SIZE: usize> TimerTask for Large<SIZE> {
    fn run(self, _: &Timeout) {
        self.send(0);
    }

    fn cancelled(self, _: &Timeout) {
        self.send(1);
    }
}

/// A closure runs where it is: it may be larger than the worker's stack, which is 2 MiB.
#[test]
fn a_closure_of_many_mebibytes_runs_on_the_worker() {
    with_large_stack(|| {
        let timer = builder().build().unwrap();
        let (result, results) = channel();
        Large::<MIB>::schedule_closure(&timer, result.clone(), ms(1));
        assert_eq!(results.recv_timeout(TEST_TIMEOUT), Ok(MIB));
        Large::<{ 16 * MIB }>::schedule_closure(&timer, result, ms(1));
        assert_eq!(results.recv_timeout(TEST_TIMEOUT), Ok(16 * MIB));
    });
}

/// The worker moves a `TimerTask` to its stack, once.
#[test]
fn a_task_of_a_mebibyte_runs_on_the_worker() {
    const MOST: usize = 2 * MIB - 128 * 1_024;
    with_large_stack(|| {
        let timer = builder().build().unwrap();
        let (result, results) = channel();
        Large::<MIB>::schedule_task(&timer, result.clone(), ms(1));
        assert_eq!(results.recv_timeout(TEST_TIMEOUT), Ok(MIB));
        Large::<MOST>::schedule_task(&timer, result, ms(1));
        assert_eq!(results.recv_timeout(TEST_TIMEOUT), Ok(MOST));
    });
}

/// So may a periodic task be, and one that is cancelled.
#[test]
fn a_large_task_can_be_periodic_or_cancelled_on_a_small_stack() {
    with_large_stack(|| {
        let timer = builder().build().unwrap();
        let (result, results) = channel();
        let closure = Large::<{ 16 * MIB }>::schedule_closure(&timer, result.clone(), HOUR);
        let task = Large::<MIB>::schedule_task(&timer, result.clone(), HOUR);
        thread::spawn(move || assert!(closure.cancel() && task.cancel()))
            .join()
            .unwrap();
        assert_eq!(results.try_recv(), Ok(MIB + 1));

        let bytes = [1_u8; 16 * MIB];
        let task = move || result.send(black_box(&bytes).len()).unwrap();
        timer.fixed_rate(task, ms(1), ms(1));
        assert_eq!(results.recv_timeout(TEST_TIMEOUT), Ok(16 * MIB));
    });
}

#[test]
fn a_boxed_closure_is_reported_under_its_own_name() {
    let mut t = Driven::new();
    let words = [1_usize; 4];
    let timeout = t.schedule(move |_| assert_eq!(words, [1; 4]), TICK);
    let name = format!("{timeout:?}");
    assert!(
        name.contains("a_boxed_closure_is_reported_under_its_own_name::{{closure}}"),
        "{name}"
    );
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(t.stats().panics, 0);
}

#[test]
fn large_tasks_end_once_each() {
    struct Padded(common::Task, [usize; 8]);
    impl TimerTask for Padded {
        fn run(self, timeout: &Timeout) {
            assert_eq!(self.1, [7; 8]);
            self.0.run(timeout);
        }
        fn cancelled(self, timeout: &Timeout) {
            assert_eq!(self.1, [7; 8]);
            self.0.cancelled(timeout);
        }
    }
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(3)));
    let task_ends = Ends::new();
    let new = |t: &Driven| {
        t.timer
            .new_timeout_task(Padded(task_ends.task(), [7; 8]), TICK)
    };
    new(&t).unwrap();
    assert!(new(&t).unwrap().cancel());
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(task_ends.counts(), (1, 1, 2));
    // A closure: dropped with what it owns.
    let owned = Arc::new(());
    let closure = || {
        let (owned, padding) = (Arc::clone(&owned), [7_usize; 8]);
        move |_: &Timeout| assert_eq!((&*owned, padding), (&(), [7; 8]))
    };
    t.schedule(closure(), TICK);
    t.schedule(closure(), HOUR).cancel();
    assert_eq!((t.pass(TICK), Arc::strong_count(&owned)), (1, 1));
    let [one, two] = [(); 2].map(|()| t.schedule(closure(), HOUR));
    let three = new(&t).unwrap();
    assert!(matches!(
        t.timer.new_timeout(closure(), TICK),
        Err(NewTimeoutError::TooManyPending { .. })
    ));
    assert_eq!(Arc::strong_count(&owned), 3);
    assert_eq!(t.timer.stop().len(), 3);
    assert!(one.is_cancelled() && two.is_cancelled() && three.is_cancelled());
    assert_eq!(Arc::strong_count(&owned), 1);
    assert_eq!((task_ends.hooks(), task_ends.drops()), (2, 3));
    assert_eq!(t.stats().panics, 0);
}

// --- a clock that steps back ---------------------------------------------------------------------

/// The real time, and a number of hours.
#[derive(Clone)]
struct FallingClock(Instant, Arc<AtomicU32>);

impl FallingClock {
    /// Builds a timer, and lets two hours pass.
    fn with_timer(tick: Duration) -> (Self, HashedWheelTimer) {
        let clock = Self(Instant::now(), Arc::default());
        let timer = builder().tick(tick).clock(clock.clone()).build().unwrap();
        clock.set_hours(2);
        (clock, timer)
    }

    fn hours(&self) -> u32 {
        self.1.load(SeqCst)
    }

    fn set_hours(&self, hours: u32) {
        self.1.store(hours, SeqCst);
    }
}

impl Clock for FallingClock {
    fn now(&self) -> Duration {
        HOUR * self.hours() + self.0.elapsed()
    }
}

#[test]
fn the_worker_does_not_sleep_for_the_time_by_which_its_clock_has_stepped_back() {
    thread::scope(|scope| {
        for tick in [ms(1), ms(10), ms(100)] {
            scope.spawn(move || does_not_sleep_for_the_step_of_its_clock(tick));
        }
    });
}

fn does_not_sleep_for_the_step_of_its_clock(tick: Duration) {
    let (clock, timer) = FallingClock::with_timer(tick);
    let (fired, wait) = channel();
    // In a task: the next reading of the worker, before it sleeps, is an hour back.
    let in_task = clock.clone();
    timer.schedule(move |_| in_task.set_hours(1), ms(100));
    timer.schedule(move |_| fired.send(()).unwrap(), ms(2_500));
    eventually("the clock steps back", || clock.hours() == 1);
    let (before, begin) = (timer.stats().wake_ups, Instant::now());
    sleep(ms(200));
    let (woken, time) = (timer.stats().wake_ups - before, begin.elapsed());
    let looks = time.as_millis() as u64 / 50 + 2;
    assert!(
        woken <= looks,
        "the worker looks at the clock about every 50 ms, and not {woken} times in {time:?}"
    );
    clock.set_hours(2);
    wait.recv_timeout(TEST_TIMEOUT)
        .expect("the clock is right again");
}

#[test]
fn the_worker_does_not_wake_for_a_clock_that_has_stepped_back_if_nothing_is_pending() {
    let (clock, timer) = FallingClock::with_timer(ms(1));
    let last = timer.schedule(move |_| clock.set_hours(1), ms(5));
    eventually("the timeout expires", || last.is_expired());
    // It wakes to reclaim what has ended, and then no more.
    wait_until_idle(&timer);
    let before = timer.stats().wake_ups;
    // With a far deadline it looks.
    timer.schedule(|_| (), HOUR);
    sleep(ms(300));
    assert!(timer.stats().wake_ups > before + 1);
}

#[test]
fn the_loop_of_a_driver_does_not_sleep_for_that_time_either() {
    let (on, back) = (ManualClock::new(), ManualClock::new());
    on.advance(HOUR);
    let clock = RewindableClock(on.clone(), back.clone());
    let (timer, mut driver) = builder().tick(TICK).clock(clock).build_driven().unwrap();
    on.advance(HOUR);
    timer.schedule(|_| (), ms(200));
    driver.turn();
    assert_eq!(driver.next_turn(), Some(ms(200)));
    back.advance(HOUR);
    assert_eq!(driver.turn(), 0);
    assert_eq!(driver.next_turn(), Some(ms(50)));
    on.advance(HOUR + ms(200));
    assert_eq!(driver.next_turn(), Some(ms(0)));
    assert_eq!(driver.turn(), 1);
    back.advance(HOUR);
    driver.turn();
    assert_eq!(driver.next_turn(), None);
}

// --- fork ----------------------------------------------------------------------------------------

#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code, reason = "fork is unsafe")]
pub(crate) mod fork {
    use super::common::Gate;
    use super::*;

    /// Runs `child` in a child process, which must end without a panic. Kills it if it hangs.
    #[track_caller]
    pub(crate) fn in_child(child: impl FnOnce()) {
        // SAFETY: the child has one thread. It uses the timer and the allocator, which works after
        // a fork on Linux, and ends without destructors and handlers.
        let process = unsafe { libc::fork() };
        assert_ne!(process, -1);
        if process == 0 {
            // SAFETY: `alarm` takes a number. The signal ends the process.
            unsafe { libc::alarm(20) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: `_exit` takes a number.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { 101 }) };
        }
        let mut status = 0;
        // SAFETY: the pointer is valid, and `process` is a child of this process.
        let waited = unsafe { libc::waitpid(process, &raw mut status, 0) };
        assert_eq!(waited, process);
        assert!(libc::WIFEXITED(status), "it hangs or crashes: {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child panics");
    }

    #[test]
    fn stop_and_drop_in_a_child_process_return() {
        let timer = builder().build().unwrap();
        let task_ends = Ends::new();
        let pending = timer.schedule_task(task_ends.task(), HOUR);
        in_child(|| {
            assert!(timer.stop().is_empty());
            assert!(timer.is_stopped());
            assert!(matches!(
                timer.new_timeout(|_| (), ms(1)),
                Err(NewTimeoutError::Forked)
            ));
            assert!(timer.stop().is_empty() && timer.shutdown(HOUR).is_empty());
            // SAFETY: the child never uses this copy again.
            drop(unsafe { std::ptr::read(&timer) });
            assert_eq!((task_ends.hooks(), task_ends.drops()), (0, 0));
        });
        in_child(|| assert!(timer.shutdown(HOUR).is_empty()));
        // SAFETY: the child never uses this copy again.
        in_child(|| drop(unsafe { std::ptr::read(&timer) }));
        assert_eq!(timer.stop(), [pending]);
        in_child(|| assert!(timer.stop().is_empty()));
    }

    /// The thread that forks has used the timer. Later timeouts than its first one wake no worker.
    #[test]
    fn a_copy_of_a_timer_rejects_what_it_cannot_run() {
        let timer = builder().build().unwrap();
        let task_ends = Ends::new();
        let (near, far) = (ms(50), timer.schedule_task(task_ends.task(), HOUR));
        timer.schedule(|_| (), near);
        in_child(|| {
            for delay in [ms(0), near, HOUR, HOUR * 9] {
                let error = timer.new_timeout(|_| (), delay).unwrap_err();
                assert_eq!(error, NewTimeoutError::Forked);
            }
            assert!(timer.is_stopped());
            assert_eq!(timer.start(), Err(NewTimeoutError::Forked));
            assert!(far.cancel());
            assert_eq!((task_ends.runs(), task_ends.hooks()), (0, 1));
        });
        in_child(|| assert_eq!(timer.start(), Err(NewTimeoutError::Forked)));
        in_child(|| {
            let refused = || timer.new_timeout(|_| (), HOUR).unwrap_err();
            let on_a_thread = thread::scope(|scope| scope.spawn(refused).join().unwrap());
            assert_eq!(
                [on_a_thread, refused()],
                [NewTimeoutError::Forked, NewTimeoutError::Forked]
            );
            // One that is made here works.
            let timer = builder().build().unwrap();
            let (fired, wait) = channel();
            timer.schedule(move |_| fired.send(()).unwrap(), ms(1));
            wait.recv_timeout(TEST_TIMEOUT).unwrap();
        });
        assert!(!timer.is_stopped() && far.cancel(), "the parent's goes on");
    }

    #[cfg(feature = "async")]
    #[test]
    fn a_future_of_a_copy_of_a_timer_is_an_error() {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        let timer = builder().build().unwrap();
        timer.schedule(|_| (), HOUR);
        in_child(|| {
            let polled = pin!(timer.sleep(HOUR)).poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(Err(NewTimeoutError::Forked)));
        });
    }

    /// The worker holds its lock at the moment of the fork.
    #[test]
    fn stop_in_a_child_process_returns_although_a_task_was_running() {
        let timer = builder().build().unwrap();
        let (gate, wait) = Gate::new();
        let running = timer.schedule(move |_| wait(), ms(0));
        gate.wait_for_arrival();
        in_child(|| {
            assert!(timer.shutdown(HOUR).is_empty());
            assert!(timer.stop().is_empty());
        });
        in_child(|| {
            assert_eq!(timer.cancel_all(), 0);
            running.cancel_and_wait();
            // New threads get the memory of threads that do not exist here, and their numbers.
            for _ in 0..3 {
                let timer = timer.clone();
                thread::spawn(move || assert!(timer.stop().is_empty()))
                    .join()
                    .unwrap();
            }
        });
        gate.open();
    }

    #[test]
    fn a_timer_without_a_thread_works_in_a_child_process() {
        let timer = builder().build().unwrap();
        let mut driven = Driven::new();
        driven.timer.schedule(|_| (), TICK);
        in_child(|| {
            assert_eq!(driven.pass(TICK), 1);
            let (fired, wait) = channel();
            timer.schedule(move |_| fired.send(()).unwrap(), ms(1));
            wait.recv_timeout(TEST_TIMEOUT).unwrap();
            let pending = timer.schedule(|_| (), HOUR);
            assert_eq!(timer.stop(), [pending]);
        });
    }
}

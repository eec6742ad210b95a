//! User code that calls back into the timer, from every place where a timer calls user code:
//! nothing hangs, and nothing leaks.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Driven, Ends, Gate, STOPPED, Schedules, TEST_TIMEOUT, TICK, accepts_all, built, ends,
    eventually, ms,
};
use hashed_wheel::{
    Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock, TaskExecutor, Timeout, TimerTask,
};

/// Calls its closure when it is cancelled.
struct OnCancel<F>(F);

impl<F: FnOnce(&Timeout) + Send + 'static> TimerTask for OnCancel<F> {
    fn run(self, _: &Timeout) {}

    fn cancelled(self, timeout: &Timeout) {
        (self.0)(timeout);
    }
}

// --- a handle from a timeout ---------------------------------------------------------------------

#[test]
fn a_handle_from_a_timeout_is_an_ordinary_handle() {
    let t = Driven::new();
    let timeout = t.schedule(|_| (), TICK);
    let other = timeout.timer();
    drop(t.timer);
    assert!(!other.is_stopped());
    assert!(other.new_timeout(|_| (), TICK).is_ok());
    drop(other);
    assert!(timeout.is_cancelled());
    assert!(timeout.timer().clone().is_stopped());
}

#[test]
fn a_task_that_keeps_a_handle_after_the_last_one_does_not_keep_the_timer_running() {
    let mut t = Driven::new();
    let (task_ends, kept) = (Ends::new(), Arc::new(Mutex::new(None)));
    let far = t.schedule_task(task_ends.task(), ms(100_000));
    let (last, keep) = (t.timer.clone(), kept.clone());
    let task = move |timeout: &Timeout| {
        drop(last);
        *keep.lock().unwrap() = Some(timeout.timer());
    };
    t.schedule(task, TICK);
    drop(t.timer);
    t.clock.advance(TICK);
    assert_eq!(t.driver.turn(), 1);
    assert!(far.is_cancelled());
    assert_eq!((task_ends.hooks(), far.timer().pending_timeouts()), (1, 0));
}

/// Waits until a timer whose last handle is being dropped is stopped. A handle made for the
/// question could itself become the last one, and its drop would block like that drop. So a
/// separate thread asks each time.
fn wait_until_stopped(timeout: &Timeout) {
    let is_stopped = || {
        let (timeout, (result, received)) = (timeout.clone(), channel());
        thread::spawn(move || {
            let timer = timeout.timer();
            result.send(timer.is_stopped()).unwrap();
        });
        received.recv().unwrap()
    };
    eventually("the timer is stopped", is_stopped);
}

#[test]
fn a_task_in_a_full_pool_gets_its_timer_while_the_last_handle_is_dropped() {
    ends(|| {
        let (pool, tasks) = sync_channel::<ExpiredTask>(0);
        let worker = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
        let builder = HashedWheelTimer::builder().tick(ms(1));
        let timer = builder
            .task_executor(accepts_all(move |task| pool.send(task).unwrap()))
            .build()
            .unwrap();
        let (gate, wait) = Gate::new();
        let (outcome, outcomes) = channel();
        let again = move |timeout: &Timeout| {
            wait();
            outcome
                .send(timeout.timer().new_timeout(|_| (), ms(1)).is_err())
                .unwrap();
        };
        let first = timer.schedule(again, ms(1));
        // The worker blocks until the pool accepts this task.
        timer.schedule(|_| (), ms(1));
        gate.wait_for_arrival();
        let dropper = thread::spawn(move || drop(timer));
        wait_until_stopped(&first);
        gate.open();
        assert!(
            outcomes.recv_timeout(TEST_TIMEOUT).unwrap(),
            "the timer is stopped"
        );
        dropper.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn cancel_with_a_hook_that_uses_the_timer_does_not_wait_for_the_worker() {
    let timer = HashedWheelTimer::new(ms(1), 8);
    let hook = OnCancel(|timeout: &Timeout| assert!(timeout.timer().is_stopped()));
    let far = timer.schedule_task(hook, ms(100_000));
    let (gate, wait) = Gate::new();
    timer.schedule(move |_| wait(), ms(1));
    gate.wait_for_arrival();
    let dropper = thread::spawn(move || drop(timer));
    wait_until_stopped(&far);
    let canceller = far.clone();
    assert!(ends(move || canceller.cancel()));
    gate.open();
    dropper.join().unwrap();
    assert_eq!(far.timer().stats().panics, 0);
}

// --- a driver used by the timer's own tasks ------------------------------------------------------

#[test]
fn a_driver_is_turned_and_dropped_in_a_hook_of_stop() {
    ends(|| {
        let t = Driven::new();
        let own_driver: Arc<Mutex<Option<Driver>>> = Arc::new(Mutex::new(Some(t.driver)));
        let hook = OnCancel(move |_: &Timeout| {
            let mut driver = own_driver.lock().unwrap().take().unwrap();
            assert_eq!((driver.turn(), driver.next_turn()), (0, None));
        });
        t.timer.schedule_task(hook, TICK);
        assert_eq!(t.timer.stop().len(), 1);
        assert_eq!(t.timer.stats().panics, 0);
    });
}

#[test]
fn a_driver_that_its_own_task_holds_is_dropped_with_it() {
    ends(|| {
        let t = Driven::new();
        let driver = t.driver;
        let timeout = t.timer.schedule(move |_| drop(driver), TICK);
        assert!(timeout.cancel());
        assert!(t.timer.is_stopped());
    });
}

#[test]
fn a_turn_of_a_stopped_timer_does_nothing() {
    let mut t = Driven::new();
    t.schedule(|_| (), TICK);
    t.timer.stop();
    let before = t.stats();
    assert_eq!((t.pass(TICK), t.next_turn()), (0, None));
    assert_eq!(t.stats(), before);
}

#[test]
fn stop_waits_for_a_turn_that_is_in_progress() {
    let t = Driven::new();
    let (gate, wait) = Gate::new();
    t.schedule(move |_| wait(), TICK);
    let behind = t.schedule(|_| (), TICK);
    t.clock.advance(TICK);
    let mut driver = t.driver;
    let turner = thread::spawn(move || (driver.turn(), driver));
    gate.wait_for_arrival();
    let (stopped, wait) = channel();
    let timer = t.timer.clone();
    let stopper = thread::spawn(move || stopped.send(timer.stop()).unwrap());
    eventually("the stop begins", || t.timer.is_stopped());
    assert_eq!(wait.recv_timeout(ms(50)), Err(RecvTimeoutError::Timeout));
    gate.open();
    assert_eq!(wait.recv_timeout(TEST_TIMEOUT).unwrap(), [behind]);
    stopper.join().unwrap();
    assert_eq!(turner.join().unwrap().0, 1);
}

#[test]
fn one_driver_turns_another() {
    let mut outer = Driven::new();
    let mut inner = Driven::new();
    let (ran, runs) = channel();
    inner.timer.schedule(move |_| ran.send(()).unwrap(), TICK);
    let outer_timer = outer.timer.clone();
    let task = move |_: &Timeout| {
        assert_eq!(inner.pass(TICK), 1);
        assert!(inner.timer.stop().is_empty(), "it is another timer's task");
        assert!(!outer_timer.is_stopped());
    };
    outer.timer.schedule(task, TICK);
    assert_eq!((outer.pass(TICK), outer.timer.stats().panics), (1, 0));
    runs.try_recv().unwrap();
}

// --- tasks and hooks -----------------------------------------------------------------------------

#[test]
fn a_task_may_call_any_method_of_its_timer() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(3)));
    let other = t.schedule(|_| (), ms(100_000));
    let task = move |timeout: &Timeout| {
        let timer = timeout.timer();
        timer.start().unwrap();
        assert_eq!((timer.pending_timeouts(), timer.stats().expired), (1, 1));
        assert!(format!("{timer:?} {timeout:?}").contains("expired"));
        assert!(!timeout.cancel() && !timeout.reset(TICK));
        assert_eq!(timeout.remaining(), Duration::ZERO);
        let later = timer.schedule(|_| (), TICK);
        assert!(later.reset(TICK * 2) && later.cancel());
        assert!(other.cancel());
        timer.schedule(|_| (), TICK);
    };
    t.schedule(task, TICK);
    assert_eq!((t.pass(TICK), t.stats().panics), (1, 0));
    assert_eq!(t.pass(TICK), 1);
}

#[test]
fn a_new_timeout_in_a_hook_of_stop_is_rejected() {
    let t = Driven::new();
    let hook = OnCancel(|timeout: &Timeout| {
        let timer = timeout.timer();
        assert_eq!(timer.new_timeout(|_| (), TICK), Err(STOPPED));
        assert_eq!(timer.pending_timeouts(), 0);
    });
    t.schedule_task(hook, TICK);
    assert_eq!((t.timer.stop().len(), t.stats().panics), (1, 0));
}

#[test]
fn a_task_that_cancels_itself_when_it_is_dropped_is_too_late() {
    struct Guard(Arc<Mutex<Option<Timeout>>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            assert!(!self.0.lock().unwrap().take().unwrap().cancel());
        }
    }
    let mut t = Driven::new();
    for cancels in [false, true] {
        let itself = Arc::new(Mutex::new(None));
        let guard = Guard(itself.clone());
        let timeout = t.schedule(move |_| drop(guard), TICK);
        *itself.lock().unwrap() = Some(timeout.clone());
        assert_eq!(
            if cancels {
                usize::from(timeout.cancel())
            } else {
                t.pass(TICK)
            },
            1
        );
    }
    assert_eq!(t.stats().panics, 0);
}

#[test]
fn a_timeout_in_a_thread_local_of_the_worker_can_return_its_timer() {
    struct Last(Timeout);
    impl Drop for Last {
        fn drop(&mut self) {
            assert!(self.0.timer().clone().is_stopped());
        }
    }
    thread_local!(static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) });
    ends(|| {
        let timer = HashedWheelTimer::new(ms(1), 8);
        let (ran, wait) = channel();
        let task = move |timeout: &Timeout| {
            LAST.set(Some(Last(timeout.clone())));
            ran.send(()).unwrap();
        };
        timer.schedule(task, ms(1));
        wait.recv_timeout(TEST_TIMEOUT).unwrap();
        drop(timer);
    });
}

// --- the executor --------------------------------------------------------------------------------

#[test]
fn stop_drops_the_executor() {
    let (pool, tasks) = channel::<ExpiredTask>();
    let builder = HashedWheelTimer::builder();
    let timer = builder
        .task_executor(accepts_all(move |task| pool.send(task).unwrap()))
        .build()
        .unwrap();
    let timeout = timer.schedule(|_| (), ms(60_000));
    assert_eq!(timer.stop(), [timeout]);
    // A pool that takes tasks until its channel closes therefore ends, although handles still
    // exist.
    assert!(matches!(
        tasks.recv_timeout(TEST_TIMEOUT),
        Err(RecvTimeoutError::Disconnected)
    ));
    drop(timer);
}

#[test]
fn an_executor_that_keeps_a_task_does_not_keep_itself_alive() {
    let memory = Arc::new(());
    let held = memory.clone();
    let queue = Arc::new(Mutex::new(Vec::new()));
    let executor_queue = queue.clone();
    let mut t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task: ExpiredTask| {
            let _ = &held;
            executor_queue.lock().unwrap().push(task);
        }))
    });
    t.schedule(|_| (), TICK);
    assert_eq!(t.pass(TICK), 1);
    drop(t);
    drop(queue);
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// No call of `stop` drops it then.
#[test]
fn a_turn_in_which_a_task_drops_the_last_handle_drops_the_executor() {
    let memory = Arc::new(());
    let held = memory.clone();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(clock.clone())
        .task_executor(accepts_all(move |task: ExpiredTask| {
            let _ = &held;
            task.run();
        }))
        .build_driven()
        .unwrap();
    let last = timer.clone();
    timer.schedule(move |_| drop(last), TICK);
    drop(timer);
    clock.advance(TICK);
    assert_eq!(driver.turn(), 1);
    assert!(driver.is_stopped());
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// A thread that runs the tasks. The drop of the pool joins it.
struct Pool {
    tasks: Option<Sender<ExpiredTask>>,
    thread: Option<thread::JoinHandle<()>>,
    /// The worker calls this after each task that it hands over.
    after_send: Box<dyn Fn() + Send + Sync>,
}

impl Pool {
    fn new(after_send: impl Fn() + Send + Sync + 'static) -> Self {
        let (sender, tasks) = channel::<ExpiredTask>();
        let thread = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
        Self {
            tasks: Some(sender),
            thread: Some(thread),
            after_send: Box::new(after_send),
        }
    }
}

impl TaskExecutor for Pool {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        self.tasks.as_ref().unwrap().send(task).unwrap();
        (self.after_send)();
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.tasks = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Returns a task that stops the timer as well, once the gate is open, and then reports it.
fn task_that_stops() -> (Gate, Receiver<()>, impl FnOnce(&Timeout) + Send + 'static) {
    let (gate, wait) = Gate::new();
    let (stopped, wait_for_stop) = channel();
    let task = move |timeout: &Timeout| {
        wait();
        drop(timeout.timer().stop());
        stopped.send(()).unwrap();
    };
    (gate, wait_for_stop, task)
}

#[test]
fn a_pool_that_waits_for_a_task_that_stops_the_timer_is_dropped_by_another_thread() {
    for explicitly in [false, true] {
        ends(move || {
            let timer = HashedWheelTimer::builder()
                .tick(ms(1))
                .task_executor(Pool::new(|| ()))
                .build()
                .unwrap();
            let (gate, wait_for_stop, task) = task_that_stops();
            let timeout = timer.schedule(task, ms(1));
            let far = timer.schedule(|_| (), ms(60_000));
            gate.wait_for_arrival();
            let stopper = thread::spawn(move || {
                if explicitly {
                    assert_eq!(timer.stop().len(), 1);
                }
                drop(timer);
            });
            while !far.is_cancelled() {
                thread::yield_now();
            }
            gate.open();
            wait_for_stop.recv_timeout(TEST_TIMEOUT).unwrap();
            stopper.join().unwrap();
            assert_eq!(timeout.timer().stats().panics, 0);
        });
    }
}

#[test]
fn a_pool_that_waits_for_a_task_that_stops_the_timer_is_dropped_by_the_worker() {
    ends(|| {
        // The worker drops this last handle after the task is in the pool, when no other handle is
        // left.
        let last: Arc<Mutex<Option<HashedWheelTimer>>> = Arc::default();
        let is_last = Arc::new(AtomicBool::new(false));
        let (taken, may_be_taken) = (last.clone(), is_last.clone());
        let pool = Pool::new(move || {
            while !may_be_taken.load(SeqCst) {
                thread::yield_now();
            }
            drop(taken.lock().unwrap().take());
        });
        let timer = built(|builder| builder.tick(ms(1)).task_executor(pool));
        let (gate, wait_for_stop, task) = task_that_stops();
        let first = timer.clone();
        *last.lock().unwrap() = Some(timer);
        first.schedule(task, ms(1));
        let far = first.schedule(|_| (), ms(60_000));
        drop(first);
        is_last.store(true, SeqCst);
        gate.wait_for_arrival();
        while !far.is_cancelled() {
            thread::yield_now();
        }
        gate.open();
        wait_for_stop.recv_timeout(TEST_TIMEOUT).unwrap();
    });
}

#[test]
fn a_pool_that_waits_for_a_task_that_stops_the_timer_is_dropped_because_of_the_clock() {
    struct BreakableClock(Arc<AtomicBool>, Instant);
    impl Clock for BreakableClock {
        fn now(&self) -> Duration {
            assert!(
                !self.0.load(SeqCst) || thread::current().name() != Some("hw-broken"),
                "the clock is broken"
            );
            self.1.elapsed()
        }
    }
    ends(|| {
        let is_broken = Arc::new(AtomicBool::new(false));
        let break_clock = is_broken.clone();
        let pool = Pool::new(move || break_clock.store(true, SeqCst));
        let clock = BreakableClock(is_broken, Instant::now());
        let builder = HashedWheelTimer::builder()
            .tick(ms(1))
            .thread_name("hw-broken")
            .clock(clock);
        let timer = builder.task_executor(pool).build().unwrap();
        let (gate, wait_for_stop, task) = task_that_stops();
        timer.schedule(task, ms(1));
        gate.wait_for_arrival();
        while !timer.is_stopped() {
            thread::yield_now();
        }
        gate.open();
        wait_for_stop.recv_timeout(TEST_TIMEOUT).unwrap();
    });
}
